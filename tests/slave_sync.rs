//! How a slave copies its master's tables: from masters of both lines, by the bodies that they
//! really sent, and from masters that are broken in one way or another.

mod fake_peer;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fake_peer::{FakePeer, eventually};
use serde_json::{Value, json};
use twinmq::base::json;
use twinmq::broker::slave_sync::{ItemState, Sink, Sinks, SlaveSync, SlaveSyncConfig};
use twinmq::remoting::Command;
use twinmq::remoting::codes::{request, response};

const CODES: [i32; 4] = [
    request::GET_ALL_TOPIC_CONFIG,
    request::GET_ALL_CONSUMER_OFFSET,
    request::GET_ALL_DELAY_OFFSET,
    request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
];

/// What the slave's four tables were given, in the order of `CODES`.
type Taken = Arc<Mutex<[Vec<Value>; 4]>>;

struct Slave {
    sync: SlaveSync,
    taken: Taken,
}

impl Slave {
    fn start(master: Option<&str>, period: Duration) -> Slave {
        Slave::start_at("127.0.0.1:1", master, period)
    }

    fn start_at(own_address: &str, master: Option<&str>, period: Duration) -> Slave {
        let taken = Taken::default();
        let sink = |index: usize| -> Sink {
            let taken = taken.clone();
            Box::new(move |value| {
                if value.as_object().is_none_or(|members| members.is_empty()) {
                    return Err("the table is empty".to_owned());
                }
                taken.lock().expect("the tables")[index].push(value.clone());
                Ok(())
            })
        };
        let config = SlaveSyncConfig {
            master: master.map(str::to_owned),
            own_address: own_address.to_owned(),
            period,
        };
        let sinks = Sinks {
            topics: sink(0),
            consumer_offsets: sink(1),
            delay_offsets: sink(2),
            groups: sink(3),
        };
        let sync = SlaveSync::start(config, sinks).expect("a thread");
        Slave { sync, taken }
    }

    /// The newest value of each table, once it has been given all four.
    fn wait_all(&self) -> [Value; 4] {
        eventually("all four tables", || {
            self.counts().iter().all(|count| *count > 0)
        });
        let taken = self.taken.lock().expect("the tables");
        std::array::from_fn(|index| taken[index].last().expect("a value").clone())
    }

    fn counts(&self) -> [usize; 4] {
        let taken = self.taken.lock().expect("the tables");
        std::array::from_fn(|index| taken[index].len())
    }

    fn items(&self) -> Vec<ItemState> {
        self.sync.state().items
    }
}

/// A master: its fast port and its ordinary one.
struct Master {
    fast: Option<FakePeer>,
    main: FakePeer,
}

impl Master {
    /// `bodies` in the order of `CODES`, as text; an empty one is answered with code 1.
    fn start(bodies: [Vec<u8>; 4], has_fast_port: bool) -> Master {
        let (fast, main) = two_ports();
        let answer = move |request: &Command| {
            let index = CODES.iter().position(|code| *code == request.code());
            let body = index.map(|index| bodies[index].clone());
            Some(match body {
                None => Command::refusal(request, response::REQUEST_CODE_NOT_SUPPORTED, "no"),
                Some(body) if body.is_empty() => {
                    Command::refusal(request, 1, "no table in this broker")
                }
                Some(body) => Command::reply(request, 0).with_body(body),
            })
        };
        Master {
            fast: has_fast_port.then(|| FakePeer::on(fast, answer.clone())),
            main: FakePeer::on(main, answer),
        }
    }

    fn address(&self) -> String {
        self.main.address.to_string()
    }
}

fn two_ports() -> (TcpListener, TcpListener) {
    loop {
        let main = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = main.local_addr().expect("an address").port();
        if let Ok(fast) = TcpListener::bind(("127.0.0.1", port - 2)) {
            return (fast, main);
        }
    }
}

fn small() -> [Vec<u8>; 4] {
    [
        br#"{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"T":{"topicName":"T"}}}"#.to_vec(),
        br#"{"offsetTable":{"T@G":{0:15,1:3}}}"#.to_vec(),
        br#"{"offsetTable":{1:10}}"#.to_vec(),
        br#"{"dataVersion":{"counter":1,"timestamp":2},"subscriptionGroupTable":{"G":{"groupName":"G"}}}"#.to_vec(),
    ]
}

/// The bodies that a real master sent a real slave, or `None` where they are not at hand.
fn captured(version: &str) -> Option<[Vec<u8>; 4]> {
    let shared = std::env::var_os("TWINMQ_SHARED").map_or("../shared".into(), PathBuf::from);
    let dir = shared.join(format!("interop/captures/slave-{version}-master-{version}"));
    let Ok(entries) = std::fs::read_dir(&dir) else {
        println!("skipped: {} is not there", dir.display());
        return None;
    };
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    Some(CODES.map(|code| {
        let end = format!("-{code}.resp.hex");
        let file = files
            .iter()
            .find(|file| file.to_string_lossy().ends_with(&end));
        let text = std::fs::read_to_string(file.expect("a capture")).expect("text");
        let frame = Command::decode(bytes_of_hex(&text)).expect("a frame");
        frame.body().to_vec()
    }))
}

fn bytes_of_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).expect("hex"))
        .collect()
}

fn check_captured(version: &str) -> Option<[Value; 4]> {
    let bodies = captured(version)?;
    let master = Master::start(bodies, true);
    let slave = Slave::start(Some(&master.address()), Duration::from_secs(60));
    let taken = slave.wait_all();
    let queues = &taken[0]["topicConfigTable"]["TopicA"]["readQueueNums"];
    assert_eq!(queues, &json!(4));
    assert_eq!(taken[2]["offsetTable"], json!({"2": 1}));
    let group = &taken[3]["subscriptionGroupTable"]["GroupA"];
    assert_eq!(json::number(group, "retryMaxTimes"), Some(16));
    slave.sync.stop();
    Some(taken)
}

/// C-54.
#[test]
fn the_tables_of_a_4_9_master_are_understood() {
    if let Some(taken) = check_captured("4.9.7") {
        assert_eq!(taken[1]["offsetTable"], json!({"TopicA@GroupA": {"0": 1}}));
        assert_eq!(taken[0]["dataVersion"]["counter"], json!(2));
    }
}

#[test]
fn the_tables_of_a_5_3_master_are_understood() {
    if let Some(taken) = check_captured("5.3.3") {
        assert_eq!(taken[0]["dataVersion"]["stateVersion"], json!(0));
        assert_eq!(
            taken[0]["topicConfigTable"]["TopicA"]["attributes"],
            json!({})
        );
    }
}

#[test]
fn a_slave_asks_where_java_slaves_ask_and_nothing_that_4_9_lacks() {
    let master = Master::start(small(), true);
    let slave = Slave::start(Some(&master.address()), Duration::from_secs(60));
    slave.wait_all();
    let fast = master.fast.as_ref().expect("a fast port");
    assert_eq!(fast.asked(CODES[0]).len(), 1);
    assert_eq!(master.main.asked(CODES[0]).len(), 0);
    for code in &CODES[1..] {
        assert_eq!(master.main.asked(*code).len(), 1);
    }
    for code in [60, 61, 402] {
        assert_eq!(fast.asked(code).len() + master.main.asked(code).len(), 0);
    }
    assert!(slave.items().iter().all(|item| item.last_error.is_none()));
    slave.sync.stop();
}

/// M-7.
#[test]
fn without_the_fast_port_the_topics_come_from_the_ordinary_one() {
    let master = Master::start(small(), false);
    let slave = Slave::start(Some(&master.address()), Duration::from_secs(60));
    assert_eq!(
        slave.wait_all()[0]["topicConfigTable"]["T"]["topicName"],
        json!("T")
    );
    assert_eq!(master.main.asked(CODES[0]).len(), 1);
    slave.sync.stop();
}

#[test]
fn a_table_that_fails_stops_no_other_and_says_why() {
    let mut bodies = small();
    bodies[1] = Vec::new();
    bodies[2] = b"{\"offsetTable\":".to_vec();
    bodies[3] = b"{}".to_vec();
    let master = Master::start(bodies, true);
    let slave = Slave::start(Some(&master.address()), Duration::from_secs(60));
    eventually("the last table was tried", || {
        slave.items()[3].last_error.is_some()
    });
    let items = slave.items();
    assert!(items[0].last_success_ms.is_some() && items[0].last_error.is_none());
    for (item, why) in items[1..]
        .iter()
        .zip(["code 1: no table", "not JSON", "is empty"])
    {
        let error = item.last_error.as_deref().expect("an error");
        assert!(
            error.contains(why) && error.contains("127.0.0.1:"),
            "{error}"
        );
        assert_eq!(item.last_success_ms, None);
    }
    assert_eq!(slave.counts(), [1, 0, 0, 0]);
    // Without waiting for the period it is tried again.
    master.main.wait_for(CODES[3], 2);
    slave.sync.stop();
}

#[test]
fn the_copy_begins_as_soon_as_the_master_is_known_and_follows_it() {
    let (first, second) = (Master::start(small(), true), Master::start(small(), true));
    let slave = Slave::start(None, Duration::from_secs(60));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((slave.counts(), slave.sync.state().master), ([0; 4], None));
    for master in [&first, &second] {
        let begun = Instant::now();
        slave.sync.set_master(&master.address());
        master.main.wait_for(CODES[3], 1);
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    }
    slave.sync.set_master(&second.address());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(
        second.main.asked(CODES[3]).len(),
        1,
        "the same master is no news"
    );
    assert_eq!(slave.sync.state().master, Some(second.address()));
    slave.sync.stop();
}

#[test]
fn a_master_from_the_configuration_stays() {
    let (fixed, other) = (Master::start(small(), true), Master::start(small(), true));
    let slave = Slave::start(Some(&fixed.address()), Duration::from_millis(50));
    slave.sync.set_master(&other.address());
    fixed.main.wait_for(CODES[3], 3);
    assert_eq!(other.main.connections(), 0);
    slave.sync.stop();
}

#[test]
fn a_broker_does_not_copy_from_itself() {
    let itself = Master::start(small(), true);
    let slave = Slave::start_at(&itself.address(), None, Duration::from_millis(50));
    slave.sync.set_master(&itself.address());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(itself.main.connections(), 0);
    slave.sync.stop();
}

#[test]
fn it_copies_every_period_until_it_is_stopped() {
    let master = Master::start(small(), true);
    let slave = Slave::start(Some(&master.address()), Duration::from_millis(100));
    master.main.wait_for(CODES[3], 5);
    slave.sync.stop();
    let asked = master.main.asked(CODES[3]).len();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(master.main.asked(CODES[3]).len(), asked);
}

#[test]
fn a_master_that_does_not_answer_holds_up_neither_the_state_nor_the_stop() {
    let silent = FakePeer::start(|_| None);
    let slave = Slave::start(Some(&silent.address.to_string()), Duration::from_secs(60));
    eventually("it is asked", || silent.connections() > 0);
    assert_eq!(slave.sync.state().items.len(), 4);
    let begun = Instant::now();
    slave.sync.stop();
    assert!(
        begun.elapsed() < Duration::from_millis(2500),
        "{:?}",
        begun.elapsed()
    );
}
