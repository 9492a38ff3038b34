//! kill -9 of either side under load: nothing acknowledged is lost, both logs end equal.

mod common;

use std::time::Duration;

use common::load::Load;
use common::process::{Pair, eventually};

fn all_messages(client: &mut common::client::Client, topic: &str) -> Vec<common::client::Got> {
    (0..4)
        .flat_map(|queue| client.pull_all(topic, queue, 0))
        .collect()
}

/// I4: queue offsets are dense from 0.
fn assert_dense(client: &mut common::client::Client, topic: &str) {
    for queue in 0..4 {
        let offsets: Vec<i64> = client
            .pull_all(topic, queue, 0)
            .iter()
            .map(|m| m.offset)
            .collect();
        assert!(
            offsets.iter().copied().eq(0..offsets.len() as i64),
            "queue {queue} has a gap"
        );
    }
}

fn assert_queues_equal(pair: &Pair, topic: &str) {
    pair.wait_topic(topic);
    let (mut master, mut slave) = (pair.master.client(), pair.slave.client());
    for queue in 0..4 {
        let max = master.max_offset(topic, queue);
        eventually("the slave's queue is built", || {
            (slave.max_offset(topic, queue) == max).then_some(())
        });
        assert_eq!(
            master.pull_all(topic, queue, 0),
            slave.pull_all(topic, queue, 0),
            "queue {queue}"
        );
    }
}

#[test]
fn a_slave_killed_three_times_under_load_ends_byte_equal() {
    let mut pair = Pair::start("SYNC_MASTER", &["slaveTimeout=1000"]);
    pair.master.client().create_topic("T", 4);
    let load = Load::start(4, &[pair.master.address()], "T");
    for _ in 0..3 {
        let before = load.ledger.acked();
        eventually("sends are acknowledged", || {
            (load.ledger.acked() > before + 50).then_some(())
        });
        pair.slave.kill();
        std::thread::sleep(Duration::from_millis(50));
        let without = load.ledger.acked();
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(
            load.ledger.acked(),
            without,
            "acknowledged with the only slave dead"
        );
        pair.slave.start();
        eventually("sends are acknowledged again", || {
            (load.ledger.acked() > without).then_some(())
        });
    }
    let ledger = load.stop();
    assert!(
        ledger.codes().iter().all(|code| [0, 11, 12].contains(code)),
        "{:?}",
        ledger.codes()
    );
    pair.assert_equal_logs();
    assert_queues_equal(&pair, "T");
    ledger.check(&all_messages(&mut pair.slave.client(), "T"));
    assert_dense(&mut pair.slave.client(), "T");
}

#[test]
fn a_master_killed_under_load_keeps_everything_acknowledged() {
    let mut pair = Pair::start("SYNC_MASTER", &["slaveTimeout=1000"]);
    pair.master.client().create_topic("T", 4);
    let load = Load::start(4, &[pair.master.address()], "T");
    for _ in 0..3 {
        let before = load.ledger.acked();
        eventually("sends are acknowledged", || {
            (load.ledger.acked() > before + 50).then_some(())
        });
        pair.master.kill();
        pair.master.start();
    }
    let before = load.ledger.acked();
    eventually("sends are acknowledged", || {
        (load.ledger.acked() > before + 50).then_some(())
    });
    let ledger = load.stop();
    pair.assert_equal_logs();
    assert_queues_equal(&pair, "T");
    ledger.check(&all_messages(&mut pair.master.client(), "T"));
    assert_dense(&mut pair.master.client(), "T");
}

/// I9: nothing goes back over a polite restart of both.
#[test]
fn a_polite_restart_moves_nothing_and_leaves_no_abort_file() {
    let mut pair = Pair::start("SYNC_MASTER", &[]);
    let mut client = pair.master.client();
    client.create_topic("T", 4);
    let properties = |i: i32| format!("KEYS\u{1}key{i}");
    for i in 0..200 {
        assert!(
            client
                .send_with("T", i % 4, &vec![b'x'; 9000], &properties(i))
                .is_ok()
        );
    }
    let ext = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "0"),
        ("commitOffset", "17"),
    ];
    assert!(client.call(15, &ext).is_success());
    let end = pair.wait_equal();
    let (before, log) = (all_messages(&mut client, "T"), pair.master.log_bytes(end));
    pair.slave.stop();
    pair.master.stop();
    for broker in [&pair.master, &pair.slave] {
        assert!(!broker.store().join("abort").exists(), "abort file left");
    }
    pair.master.start();
    pair.slave.start();
    let mut client = pair.master.client();
    assert_eq!(client.log_end(), end);
    assert!(
        all_messages(&mut client, "T") == before,
        "the messages changed"
    );
    assert!(pair.master.log_bytes(end) == log, "the log changed");
    let ext = [("consumerGroup", "G"), ("topic", "T"), ("queueId", "0")];
    assert_eq!(client.call(14, &ext).ext().get("offset"), Some("17"));
    pair.wait_linked();
    let sent = client.send("T", 0, b"next");
    assert_eq!((sent.code, sent.offset), (0, 50), "{sent:?}");
    pair.assert_equal_logs();
}
