//! How a broker registers: with our own name server, and with ones that are dead, silent, slow to
//! learn or just restarted.

mod fake_peer;

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fake_peer::{FakePeer, PATIENCE, eventually};
use serde_json::{Value, json};
use twinmq::base::json;
use twinmq::broker::registration::{
    Identity, MasterAddress, NameServerState, Registration, RegistrationConfig,
};
use twinmq::namesrv::{Namesrv, NamesrvSettings};
use twinmq::remoting::codes::{request, response};
use twinmq::remoting::{Client, Command, Fields};

fn topics(names: &[&str]) -> Value {
    let table: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| {
            let config =
                json!({"topicName": name, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4});
            ((*name).to_owned(), config)
        })
        .collect();
    json!({"dataVersion": {"counter": names.len(), "timestamp": 1, "stateVersion": 0},
        "topicConfigTable": table})
}

fn identity(id: i64) -> Identity {
    Identity {
        cluster: "c".to_owned(),
        name: "b".to_owned(),
        id,
        address: format!("127.0.0.1:{}", 20911 + id * 10),
        ha_address: format!("127.0.0.2:{}", 20912 + id * 10),
    }
}

/// A registering broker whose topics and whose masters a test can see.
struct Broker {
    registration: Registration,
    topics: Arc<Mutex<Value>>,
    masters: Arc<Mutex<Vec<MasterAddress>>>,
}

impl Broker {
    fn start(id: i64, name_servers: &[String]) -> Broker {
        let table = Arc::new(Mutex::new(topics(&["T", "U"])));
        let masters: Arc<Mutex<Vec<MasterAddress>>> = Arc::default();
        let config = RegistrationConfig {
            name_servers: name_servers.to_vec(),
            identity: identity(id),
            period: Duration::from_secs(1), // means the lower bound, 10 s
        };
        let (source, heard) = (table.clone(), masters.clone());
        let registration = Registration::start(
            config,
            Box::new(move || source.lock().expect("the table").clone()),
            Box::new(move |master| heard.lock().expect("the list").push(master.clone())),
        )
        .expect("threads");
        Broker {
            registration,
            topics: table,
            masters,
        }
    }

    fn state(&self, index: usize) -> NameServerState {
        self.registration.states()[index].clone()
    }

    fn wait_registered(&self, index: usize) {
        eventually("registered", || {
            self.state(index).registered_since_ms.is_some()
        });
    }

    fn masters(&self) -> Vec<MasterAddress> {
        self.masters.lock().expect("the list").clone()
    }
}

fn namesrv(address: &str) -> Namesrv {
    let settings = NamesrvSettings {
        address: address.to_owned(),
        ..NamesrvSettings::default()
    };
    Namesrv::start(settings).expect("a name server")
}

fn addresses(namesrv: &Namesrv, topic: &str) -> Option<Value> {
    let mut client = Client::connect(&namesrv.address().to_string(), PATIENCE).expect("connected");
    let ext = Fields::default().with("topic", topic);
    let reply = client
        .call(
            Command::request(request::GET_ROUTEINFO_BY_TOPIC, ext),
            PATIENCE,
        )
        .expect("an answer");
    if reply.code() == response::TOPIC_NOT_EXIST {
        return None;
    }
    let route = json::parse(reply.body()).expect("JSON");
    Some(route["brokerDatas"][0]["brokerAddrs"].clone())
}

/// Answers every registration well, with these fields.
fn good(fields: Fields) -> FakePeer {
    FakePeer::start(move |request| Some(Command::reply(request, 0).with_ext(fields.clone())))
}

fn dead_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

fn master(address: &str, ha_address: Option<&str>) -> MasterAddress {
    MasterAddress {
        address: address.to_owned(),
        ha_address: ha_address.map(str::to_owned),
    }
}

#[test]
fn a_pair_registers_everywhere_and_the_slave_hears_of_its_master() {
    let name_servers = [namesrv("127.0.0.1:0"), namesrv("127.0.0.1:0")];
    let list: Vec<String> = name_servers
        .iter()
        .map(|n| n.address().to_string())
        .collect();
    let first = Broker::start(0, &list);
    (0..2).for_each(|index| first.wait_registered(index));
    let slave = Broker::start(1, &list);
    (0..2).for_each(|index| slave.wait_registered(index));
    for namesrv in &name_servers {
        let both = json!({"0": "127.0.0.1:20911", "1": "127.0.0.1:20921"});
        assert_eq!(addresses(namesrv, "T"), Some(both));
    }
    // B118: two addresses, end to end; told once although two name servers said it.
    let told = [master("127.0.0.1:20911", Some("127.0.0.2:20912"))];
    assert_eq!(slave.masters(), told);
    assert_eq!(first.masters(), []);
    first.registration.stop();
    for namesrv in &name_servers {
        assert_eq!(
            addresses(namesrv, "T"),
            Some(json!({"1": "127.0.0.1:20921"}))
        );
    }
    slave.registration.stop();
    assert_eq!(addresses(&name_servers[0], "T"), None);
}

/// remoting.md 10.10; B115: the HA address is its own.
#[test]
fn a_registration_is_what_both_lines_of_name_servers_take() {
    let fake = good(Fields::default());
    let broker = Broker::start(1, &[fake.address.to_string()]);
    let asked = fake.wait_for(request::REGISTER_BROKER, 1).remove(0);
    let crc = (crc32fast::hash(asked.body()) & 0x7fff_ffff).to_string();
    for (field, want) in [
        ("brokerName", "b"),
        ("brokerAddr", "127.0.0.1:20921"),
        ("clusterName", "c"),
        ("haServerAddr", "127.0.0.2:20922"),
        ("brokerId", "1"),
        ("compressed", "false"),
        ("enableActingMaster", "false"),
        ("bodyCrc32", &crc),
    ] {
        assert_eq!(asked.ext().get(field), Some(want), "{field}");
    }
    assert_eq!((asked.header.version, asked.is_oneway()), (409, false));
    let body = json::parse(asked.body()).expect("JSON");
    assert_eq!(body["filterServerList"], json!([]));
    assert_eq!(body["topicConfigSerializeWrapper"], topics(&["T", "U"]));
    broker.registration.stop();
    let left = fake.asked(request::UNREGISTER_BROKER);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].ext().get("brokerId"), Some("1"));
    assert_eq!(fake.connections(), 1, "the connection was kept");
}

#[test]
fn a_dead_or_silent_name_server_delays_no_other() {
    let silent = FakePeer::start(|_| None);
    let alive = good(Fields::default());
    let list = [
        dead_address(),
        silent.address.to_string(),
        alive.address.to_string(),
    ];
    let begun = Instant::now();
    let broker = Broker::start(0, &list);
    broker.wait_registered(2);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    eventually("the dead one is known", || {
        broker.state(0).last_error.is_some()
    });
    let error = broker.state(0).last_error.expect("an error");
    assert!(error.contains(&list[0]), "{error}");
    assert_eq!(broker.state(2).last_error, None);
    assert_eq!(broker.state(1).registered_since_ms, None);
    let begun = Instant::now();
    broker.registration.stop();
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(alive.asked(request::UNREGISTER_BROKER).len(), 1);
}

/// B153, seen from the broker that comes second.
#[test]
fn a_refusal_is_kept_for_status() {
    let namesrv = namesrv("127.0.0.1:0");
    let list = [namesrv.address().to_string()];
    let first = Broker::start(1, &list);
    first.wait_registered(0);
    let mut config = identity(1);
    config.address = "127.0.0.1:29999".to_owned();
    let second = Registration::start(
        RegistrationConfig {
            name_servers: list.to_vec(),
            identity: config,
            period: Duration::from_secs(30),
        },
        Box::new(|| topics(&["T", "U"])),
        Box::new(|_| panic!("it has no master")),
    )
    .expect("threads");
    eventually("the second is refused", || {
        second.states()[0].last_error.is_some()
    });
    let error = second.states()[0].last_error.clone().expect("an error");
    assert!(error.contains("registered from 127.0.0.1:20921"), "{error}");
    second.stop();
    assert_eq!(
        addresses(&namesrv, "T"),
        Some(json!({"1": "127.0.0.1:20921"}))
    );
}

#[test]
fn changed_topics_are_told_at_once_and_many_together() {
    let fake = good(Fields::default());
    let broker = Broker::start(0, &[fake.address.to_string()]);
    broker.wait_registered(0);
    std::thread::sleep(Duration::from_millis(600));
    let changed = Instant::now();
    for count in 0..200 {
        let names: Vec<String> = (0..=count).map(|n| format!("N{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        *broker.topics.lock().expect("the table") = topics(&names);
        broker.registration.topics_changed();
    }
    let all = topics(
        &(0..200)
            .map(|n| format!("N{n}"))
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
    eventually("the last change is told", || {
        let last = fake
            .asked(request::REGISTER_BROKER)
            .pop()
            .expect("a registration");
        json::parse(last.body()).expect("JSON")["topicConfigSerializeWrapper"] == all
    });
    assert!(
        changed.elapsed() < Duration::from_secs(3),
        "{:?}",
        changed.elapsed()
    );
    let count = fake.asked(request::REGISTER_BROKER).len();
    assert!((2..=4).contains(&count), "{count} registrations");
    broker.registration.stop();
}

#[test]
fn a_period_later_it_registers_again() {
    let fake = good(Fields::default());
    let broker = Broker::start(0, &[fake.address.to_string()]);
    eventually("the first registration", || {
        fake.asked(request::REGISTER_BROKER).len() == 1
    });
    std::thread::sleep(Duration::from_secs(9));
    fake.wait_for(request::REGISTER_BROKER, 2);
    let times = fake.asked_at(request::REGISTER_BROKER);
    let apart = times[1].0 - times[0].0;
    assert!((9500..14_000).contains(&apart.as_millis()), "{apart:?}");
    assert_eq!(fake.connections(), 1);
    broker.registration.stop();
}

#[test]
fn a_name_server_that_restarts_has_the_broker_again_within_seconds() {
    let first = namesrv("127.0.0.1:0");
    let address = first.address().to_string();
    let broker = Broker::start(0, std::slice::from_ref(&address));
    broker.wait_registered(0);
    first.stop();
    eventually("the loss is noticed", || {
        broker.state(0).registered_since_ms.is_none()
    });
    let second = namesrv(&address);
    let begun = Instant::now();
    eventually("it is registered again", || {
        addresses(&second, "T").is_some()
    });
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    broker.registration.stop();
}

/// A 5.x name server may send NOTIFY_MIN_BROKER_ID_CHANGE (905).
#[test]
fn a_notice_of_the_name_server_is_passed_over() {
    let fake = good(Fields::default());
    let broker = Broker::start(1, &[fake.address.to_string()]);
    broker.wait_registered(0);
    fake.push(&Command::request(905, Fields::default()).oneway());
    std::thread::sleep(Duration::from_millis(600));
    broker.registration.topics_changed();
    fake.wait_for(request::REGISTER_BROKER, 2);
    assert_eq!(fake.connections(), 1);
    broker.registration.stop();
}

/// B119: the master has moved, and one name server has not noticed yet.
/// A slave that comes up before its master must not wait for its whole period, 10 s at least.
#[test]
fn a_slave_without_a_master_asks_again_soon() {
    let name_server = namesrv("127.0.0.1:0");
    let addresses = [name_server.address().to_string()];
    let slave = Broker::start(1, &addresses);
    slave.wait_registered(0);
    assert_eq!(slave.masters(), []);
    let start = Instant::now();
    let _master = Broker::start(0, &addresses);
    eventually("the slave hears of its master", || {
        !slave.masters().is_empty()
    });
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn of_two_masters_the_one_that_is_news_counts() {
    let moved = Arc::new(AtomicUsize::new(0));
    let says = moved.clone();
    let answer = |address: &str| {
        Fields::default()
            .with("masterAddr", address)
            .with("haServerAddr", "")
    };
    let stale = good(answer("old:1"));
    let (old, new) = (answer("old:1"), answer("new:1"));
    let learns = FakePeer::start(move |request| {
        let fields = match says.load(Ordering::SeqCst) {
            0 => old.clone(),
            1 => new.clone(),
            _ => Fields::default(), // it has lost the master
        };
        Some(Command::reply(request, 0).with_ext(fields))
    });
    let list = [stale.address.to_string(), learns.address.to_string()];
    let broker = Broker::start(1, &list);
    (0..2).for_each(|index| broker.wait_registered(index));
    assert_eq!(broker.masters(), [master("old:1", None)]);
    for state in [1, 2, 1] {
        moved.store(state, Ordering::SeqCst);
        let before = learns.asked(request::REGISTER_BROKER).len();
        broker.registration.topics_changed();
        learns.wait_for(request::REGISTER_BROKER, before + 1);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(
            broker.masters(),
            [master("old:1", None), master("new:1", None)]
        );
    }
    broker.registration.stop();
}
