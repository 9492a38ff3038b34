//! A master and a slave as real processes, seen by a client.

mod common;

use std::time::{Duration, Instant};

use common::client::{Client, Sent, messages};
use common::process::{Broker, Namesrv, Pair, eventually};

fn bodies(got: &[common::client::Got]) -> Vec<String> {
    got.iter()
        .map(|message| String::from_utf8_lossy(&message.body).into_owned())
        .collect()
}

#[test]
fn what_is_sent_to_the_master_is_read_from_both_with_the_same_offsets() {
    let pair = Pair::start("SYNC_MASTER", &[]);
    let mut client = pair.master.client();
    client.create_topic("T", 2);
    for i in 0..20 {
        let sent = client.send_with(
            "T",
            i % 2,
            format!("body {i}").as_bytes(),
            "KEYS\u{1}k\u{2}TAGS\u{1}a",
        );
        assert_eq!(
            (sent.code, sent.queue, sent.offset),
            (0, i % 2, i64::from(i / 2)),
            "{sent:?}"
        );
    }
    pair.wait_equal();
    pair.wait_topic("T");
    let mut slave = pair.slave.client();
    for queue in 0..2 {
        eventually("the slave has built its queue", || {
            (slave.max_offset("T", queue) == 10).then_some(())
        });
        let (ours, theirs) = (
            client.pull_all("T", queue, 0),
            slave.pull_all("T", queue, 0),
        );
        assert_eq!(ours, theirs);
        assert_eq!(
            ours.iter().map(|m| m.offset).collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
    }
    pair.assert_equal_logs();
}

#[test]
fn sync_master_without_a_slave_never_answers_success() {
    let master = Broker::new("SYNC_MASTER", "broker-a", None, &[]).started();
    let mut client = master.client();
    client.create_topic("T", 1);
    let sent = client.send("T", 0, b"alone");
    assert_eq!((sent.code, sent.offset), (11, 0), "{sent:?}");
    let sent = client.send_with("T", 0, b"does not wait", "WAIT\u{1}false");
    assert_eq!((sent.code, sent.offset), (0, 1), "{sent:?}");
    eventually("both are in the queue", || {
        (client.max_offset("T", 0) == 2).then_some(())
    });
    assert_eq!(
        bodies(&client.pull_all("T", 0, 0)),
        ["alone", "does not wait"]
    );
}

#[test]
fn a_stopped_slave_gives_a_timeout_and_an_ended_one_is_not_available_at_once() {
    let mut pair = Pair::start("SYNC_MASTER", &["slaveTimeout=700"]);
    let mut client = pair.master.client();
    client.create_topic("T", 1);
    assert!(client.send("T", 0, b"a").is_ok());
    pair.slave.process().signal("STOP");
    let start = Instant::now();
    assert_eq!(client.send("T", 0, b"b").code, 12);
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(690),
        "{took:?} is before the deadline"
    );
    pair.slave.process().signal("CONT");
    eventually("the slave goes on", || {
        client.send("T", 0, b"c").is_ok().then_some(())
    });
    pair.slave.kill();
    eventually("its socket's end is noticed", || {
        (client.send("T", 0, b"d").code == 11).then_some(())
    });
}

#[test]
fn sends_in_flight_are_stored_in_their_order_and_all_answered() {
    let pair = Pair::start("SYNC_MASTER", &[]);
    let mut client = pair.master.client();
    client.create_topic("T", 1);
    let requests = (0..500)
        .map(|i| Client::send_request("T", 0, format!("{i}").as_bytes(), ""))
        .collect();
    let sent = client.send_pipelined(requests);
    assert!(
        sent.iter().all(Sent::is_ok),
        "{:?}",
        sent.iter().find(|s| !s.is_ok())
    );
    assert_eq!(
        sent.iter().map(|s| s.offset).collect::<Vec<_>>(),
        (0..500).collect::<Vec<_>>()
    );
    let want: Vec<String> = (0..500).map(|i| i.to_string()).collect();
    assert_eq!(bodies(&client.pull_all("T", 0, 0)), want);
}

#[test]
fn a_held_pull_is_answered_by_the_next_message_and_does_not_block_its_connection() {
    let master = Broker::new("ASYNC_MASTER", "broker-a", None, &[]).started();
    let mut client = master.client();
    client.create_topic("T", 1);
    let held = client
        .inner
        .post(Client::pull_request("T", 0, 0, 15_000))
        .expect("a connection");
    assert_eq!(client.max_offset("T", 0), 0);
    client.send("T", 0, b"wake");
    let reply = client
        .inner
        .take(held, Instant::now() + Duration::from_secs(5))
        .expect("an answer");
    assert_eq!(bodies(&messages(reply.body())), ["wake"]);
    let start = Instant::now();
    let held = client
        .inner
        .post(Client::pull_request("T", 0, 1, 400))
        .expect("a connection");
    let reply = client
        .inner
        .take(held, start + Duration::from_secs(5))
        .expect("an answer");
    assert_eq!(reply.code(), 19);
    assert!(
        start.elapsed() >= Duration::from_millis(390),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_slave_that_starts_ten_thousand_messages_late_catches_up() {
    let namesrv = Namesrv::start();
    let master = Broker::new("ASYNC_MASTER", "broker-a", Some(&namesrv), &[]).started();
    let mut client = master.client();
    client.create_topic("T", 4);
    for round in 0..20 {
        let body = |i: i32| format!("{}", round * 500 + i).repeat(20);
        let requests = (0..500)
            .map(|i| Client::send_request("T", i % 4, body(i).as_bytes(), ""))
            .collect();
        assert!(client.send_pipelined(requests).iter().all(Sent::is_ok));
    }
    let slave = Broker::new("SLAVE", "broker-a", Some(&namesrv), &[]).started();
    let pair = Pair {
        namesrv,
        master,
        slave,
    };
    pair.assert_equal_logs();
    let mut slave = pair.slave.client();
    for queue in 0..4 {
        eventually("its queues are built", || {
            (slave.max_offset("T", queue) == 2500).then_some(())
        });
    }
}

#[test]
fn a_slave_refuses_writes_and_stores_nothing() {
    let pair = Pair::start("ASYNC_MASTER", &[]);
    pair.master.client().create_topic("T", 1);
    let end = pair.wait_equal();
    let mut slave = pair.slave.client();
    let sent = slave.send("T", 0, b"no");
    assert!([2, 14].contains(&sent.code), "{sent:?}");
    assert_eq!(slave.log_end(), end);
}

#[test]
fn topics_groups_and_offsets_of_the_master_reach_the_slave_and_its_files() {
    let pair = Pair::start("ASYNC_MASTER", &[]);
    let mut client = pair.master.client();
    client.create_topic("Meta", 3);
    let group = br#"{"groupName":"G","retryMaxTimes":5,"retryQueueNums":2}"#;
    assert!(client.call_body(200, &[], group).is_success());
    let ext = [
        ("consumerGroup", "G"),
        ("topic", "Meta"),
        ("queueId", "2"),
        ("commitOffset", "1234"),
    ];
    assert!(client.call(15, &ext).is_success());
    let mut slave = pair.slave.client();
    eventually("the topic is there", || {
        slave.json(21, &[])["topicConfigTable"].get("Meta").cloned()
    });
    eventually("the group is there", || {
        (slave.json(201, &[])["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 5).then_some(())
    });
    eventually("the offset is there", || {
        (slave.json(43, &[])["offsetTable"]["Meta@G"]["2"] == 1234).then_some(())
    });
    for file in [
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
    ] {
        eventually(file, || {
            let text = std::fs::read(pair.slave.store().join("config").join(file)).ok()?;
            let text = String::from_utf8_lossy(&text).into_owned();
            (text.contains("Meta") || text.contains("\"G\"")).then_some(())
        });
    }
}

#[test]
fn the_fast_port_serves_everything_but_pulls() {
    let master = Broker::new("ASYNC_MASTER", "broker-a", None, &[]).started();
    let mut fast = Client::connect(&master.fast_address().to_string());
    fast.create_topic("T", 1);
    assert!(fast.send("T", 0, b"x").is_ok());
    assert_eq!(fast.pull("T", 0, 0).code(), 3);
    assert!(fast.call(21, &[]).is_success());
}

#[test]
fn a_second_broker_on_the_same_store_or_port_says_why_it_does_not_start() {
    let master = Broker::new("ASYNC_MASTER", "broker-a", None, &[]).started();
    let start = |settings: Vec<String>| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_twinmq"));
        let output = command
            .arg("broker")
            .args(settings)
            .output()
            .expect("it ends by itself");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let other = tempfile::tempdir().expect("a temporary directory");
    let port = master.address().port();
    let (code, said) = start(vec![
        format!("listenPort={port}"),
        format!("storePathRootDir={}", other.path().display()),
        "brokerIP1=127.0.0.1".into(),
    ]);
    assert!(
        code != Some(0) && said.contains(&port.to_string()),
        "{code:?}: {said}"
    );
    let free = common::process::free_ports(5) + 2;
    let (code, said) = start(vec![
        format!("listenPort={free}"),
        format!("storePathRootDir={}", master.store().display()),
        "brokerIP1=127.0.0.1".into(),
        "mappedFileSizeCommitLog=1048576".into(),
    ]);
    assert!(code != Some(0) && said.contains("lock"), "{code:?}: {said}");
}

/// Code, suggested broker and time of one pull that may be held.
fn slave_pull(slave: &mut Client, queue: i32, from: i64) -> (i32, String, Duration) {
    let start = Instant::now();
    let request = Client::pull_request("T", queue, from, 3000);
    let reply = slave
        .inner
        .call(request, Duration::from_secs(10))
        .expect("an answer");
    let suggested = reply.ext().get("suggestWhichBrokerId").unwrap_or("");
    (reply.code(), suggested.to_owned(), start.elapsed())
}

/// C-72, B66: what a consumer hears from a slave, with its master there and away.
#[test]
fn a_slave_sends_readers_back_without_haste_and_holds_them_when_it_is_alone() {
    let mut pair = Pair::start("ASYNC_MASTER", &["accessMessageInMemoryMaxRatio=0"]);
    let mut client = pair.master.client();
    client.create_topic("T", 2);
    for i in 0..5 {
        assert!(client.send("T", 0, format!("{i}").as_bytes()).is_ok());
    }
    pair.wait_equal();
    pair.wait_topic("T");
    let mut slave = pair.slave.client();
    eventually("its queue is built", || {
        (slave.max_offset("T", 0) == 5).then_some(())
    });
    // Far behind memory, whose share is 0 here: it is to stay on the slave.
    let (code, suggested, _) = slave_pull(&mut slave, 0, 0);
    assert_eq!((code, suggested.as_str()), (0, "1"));
    // At the end: back to the master, but not in a busy loop.
    let (code, suggested, took) = slave_pull(&mut slave, 0, 5);
    assert_eq!((code, suggested.as_str()), (20, "0"));
    assert!(took >= Duration::from_millis(900), "{took:?}");
    pair.master.kill();
    eventually("the link is down", || {
        let link = slave.runtime()["twinmq.link"].as_str()?.to_owned();
        (!link.contains("streaming")).then_some(())
    });
    // Alone it holds readers as a master does, also those it has nothing for yet.
    for (queue, from, code) in [(0, 5, 19), (0, 7, 20), (1, 7, 20)] {
        let (answered, _, took) = slave_pull(&mut slave, queue, from);
        assert_eq!(answered, code, "queue {queue} from {from}");
        assert!(took >= Duration::from_millis(2900), "{took:?}");
    }
}

#[test]
fn what_this_version_does_not_have_is_refused_and_stores_nothing() {
    let master = Broker::new("ASYNC_MASTER", "broker-a", None, &[]).started();
    let mut client = master.client();
    client.create_topic("T", 1);
    for (properties, code) in [
        ("DELAY\u{1}3", 13),
        ("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}P", 16),
        ("TIMER_DELAY_SEC\u{1}5", 13),
    ] {
        assert_eq!(client.send_with("T", 0, b"x", properties).code, code);
    }
    for flag in ["4", "12", "128"] {
        let ext = [
            ("a", "test"),
            ("b", "T"),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", "0"),
            ("f", flag),
            ("g", "1700000000000"),
            ("h", "0"),
        ];
        let reply = client.call_body(310, &ext, b"x");
        assert_eq!(reply.code(), 13, "sysFlag {flag}: {reply:?}");
    }
    assert_eq!(client.call(222, &[("topic", "T")]).code(), 3);
    assert_eq!(client.log_end(), 0);
}

/// A batch of empty messages grows a hundredfold on its way into the log.
#[test]
fn a_batch_that_would_grow_beyond_what_a_slave_takes_is_refused() {
    let master = Broker::new(
        "ASYNC_MASTER",
        "broker-a",
        None,
        &["mappedFileSizeCommitLog=67108864"],
    )
    .started();
    let mut client = master.client();
    client.create_topic("T", 1);
    let part = [
        &22u32.to_be_bytes()[..],
        &[0; 12],
        &0u32.to_be_bytes(),
        &0u16.to_be_bytes(),
    ]
    .concat();
    for (parts, code) in [(1000, 0), (100_000, 13), (200_000, 13)] {
        let ext = [
            ("a", "test"),
            ("b", "T"),
            ("e", "0"),
            ("f", "0"),
            ("g", "0"),
            ("h", "0"),
            ("m", "true"),
        ];
        let reply = client.call_body(320, &ext, &part.repeat(parts));
        assert_eq!(reply.code(), code, "{parts} parts: {}", reply.remark());
    }
    assert_eq!(client.max_offset("T", 0), 1000);
}
