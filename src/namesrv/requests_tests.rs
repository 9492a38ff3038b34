use super::*;
use crate::remoting::codes::VERSION;

const CONNECTION: usize = 100;

/// A name server without sockets, and a clock moved by hand.
struct World {
    state: State,
    now: Instant,
}

fn config(perm: i32, queues: i32, sys_flag: i32) -> Value {
    json!({"order": false, "perm": perm, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": sys_flag, "writeQueueNums": queues})
}

/// A registration as a 4.9 broker sends it.
fn registration(name: &str, id: i64, address: &str, counter: i64, topics: &[&str]) -> Command {
    let table: Map<String, Value> = topics
        .iter()
        .map(|topic| ((*topic).to_owned(), config(6, 4, 0)))
        .collect();
    registration_of(name, id, address, counter, json!(table))
}

fn registration_of(name: &str, id: i64, address: &str, counter: i64, table: Value) -> Command {
    let body = json!({"filterServerList": [], "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": counter, "timestamp": 1}, "topicConfigTable": table}});
    let ext = broker_fields(name, id, address)
        .with("haServerAddr", format!("{address}2"))
        .with("compressed", false)
        .with("bodyCrc32", 0);
    Command::request(code::REGISTER_BROKER, ext).with_body(json::write(&body))
}

fn broker_fields(name: &str, id: i64, address: &str) -> Fields {
    Fields::default()
        .with("brokerName", name)
        .with("brokerAddr", address)
        .with("clusterName", "c")
        .with("brokerId", id)
}

fn acting(mut registration: Command, acting: bool) -> Command {
    registration.header.ext.add("enableActingMaster", acting);
    registration
}

impl World {
    fn new() -> World {
        World {
            state: State::new(vec![("listenPort", "9876".to_owned())]),
            now: Instant::now(),
        }
    }

    /// With master `a` of broker name `b` and its topics T and U.
    fn with_master() -> World {
        let mut world = World::new();
        world.ok(&registration("b", 0, "a", 1, &["T", "U"]));
        world
    }

    fn on(&mut self, connection: usize, request: &Command) -> Command {
        self.state.serve(request, connection, self.now)
    }

    fn ok(&mut self, request: &Command) -> Command {
        let reply = self.on(CONNECTION, request);
        assert!(reply.is_success(), "{reply:?}");
        reply
    }

    fn ask(&mut self, code: i32, ext: Fields) -> Command {
        self.on(CONNECTION + 1, &Command::request(code, ext))
    }

    fn json(&mut self, code: i32, ext: Fields) -> Value {
        let reply = self.ask(code, ext);
        assert!(reply.is_success(), "{reply:?}");
        json::parse(reply.body()).expect("a JSON body")
    }

    fn route_text(&mut self, version: i32, ext: Fields) -> String {
        let mut request = Command::request(code::GET_ROUTEINFO_BY_TOPIC, ext);
        request.header.version = version;
        let reply = self.ok(&request);
        String::from_utf8(reply.body().to_vec()).expect("text")
    }

    fn route(&mut self, topic: &str) -> Option<Value> {
        let reply = self.ask(
            code::GET_ROUTEINFO_BY_TOPIC,
            Fields::default().with("topic", topic),
        );
        match reply.code() {
            response::SUCCESS => Some(json::parse(reply.body()).expect("a JSON body")),
            response::TOPIC_NOT_EXIST => None,
            other => panic!("code {other}"),
        }
    }

    fn addresses(&mut self, topic: &str) -> Value {
        self.route(topic).expect("a route")["brokerDatas"][0]["brokerAddrs"].clone()
    }

    fn perm(&mut self, topic: &str) -> Value {
        self.route(topic).expect("a route")["queueDatas"][0]["perm"].clone()
    }

    fn expired(&mut self) -> Vec<usize> {
        self.state.routes.expire(self.now)
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

fn topic(name: &str) -> Fields {
    Fields::default().with("topic", name)
}

/// remoting.md 11.5: 61, 62.
#[test]
fn a_route_has_the_form_that_its_reader_understands() {
    let mut world = World::with_master();
    world.ok(&registration("b", 1, "s", 1, &[]));
    let queues = r#""queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSynFlag":0,"topicSysFlag":0,"writeQueueNums":4}]"#;
    let with = |addresses| {
        format!(
            r#"{{"brokerDatas":[{{"brokerAddrs":{addresses},"brokerName":"b","cluster":"c"}}],"filterServerTable":{{}},{queues}}}"#
        )
    };
    let quoted = with(r#"{"0":"a","1":"s"}"#);
    assert_eq!(world.route_text(VERSION, topic("T")), quoted);
    assert_eq!(world.route_text(401, topic("T")), quoted);
    let asks = topic("T").with("acceptStandardJsonOnly", true);
    assert_eq!(world.route_text(317, asks), quoted);
    let bare = with(r#"{0:"a",1:"s"}"#);
    assert_eq!(world.route_text(317, topic("T")), bare);
    assert_eq!(world.route_text(399, topic("T")), bare);
}

/// 63.
#[test]
fn an_unknown_topic_has_no_route() {
    let mut world = World::with_master();
    let reply = world.ask(code::GET_ROUTEINFO_BY_TOPIC, topic("V"));
    assert_eq!(reply.code(), response::TOPIC_NOT_EXIST);
    assert!(reply.remark().contains('V'), "{}", reply.remark());
}

/// 65; the bodies themselves are tested in registration_body.rs.
#[test]
fn a_registration_with_a_wrong_checksum_changes_nothing() {
    let mut world = World::new();
    let mut request = registration("b", 0, "a", 1, &["T"]);
    request.header.ext = broker_fields("b", 0, "a").with("bodyCrc32", 1);
    let reply = world.on(CONNECTION, &request);
    assert_eq!(
        (reply.code(), reply.remark()),
        (response::SYSTEM_ERROR, "crc32 not match")
    );
    assert_eq!(world.route("T"), None);
    let crc = crc32fast::hash(request.body()) & 0x7fff_ffff;
    request.header.ext = broker_fields("b", 0, "a").with("bodyCrc32", crc);
    world.ok(&request);
    assert!(world.route("T").is_some());
}

/// 66. A 5.x broker registers a topic that was just created alone, under a new version.
#[test]
fn a_registration_with_one_topic_keeps_the_others() {
    let mut world = World::with_master();
    world.ok(&registration_of(
        "b",
        0,
        "a",
        2,
        json!({"N": config(4, 8, 0)}),
    ));
    assert_eq!(world.perm("N"), json!(4));
    assert!(world.route("T").is_some() && world.route("U").is_some());
}

/// 67.
#[test]
fn a_slave_changes_no_topics_and_hears_its_master() {
    let mut world = World::with_master();
    let reply = world.ok(&registration_of(
        "b",
        1,
        "s",
        9,
        json!({"T": config(4, 1, 0), "X": config(6, 1, 0)}),
    ));
    assert_eq!(reply.ext().get("masterAddr"), Some("a"));
    assert_eq!(reply.ext().get("haServerAddr"), Some("a2"));
    assert_eq!((world.perm("T"), world.route("X")), (json!(6), None));
    let reply = world.ok(&registration("b", 0, "a", 1, &[]));
    assert_eq!(reply.ext().get("masterAddr"), None, "a master has none");
}

/// 68, first half; and a connection that the broker has left does not count.
#[test]
fn a_closed_connection_removes_its_broker_at_once() {
    let mut world = World::with_master();
    world.on(CONNECTION + 7, &registration("b", 0, "a", 1, &[]));
    world.state.routes.on_closed(CONNECTION);
    assert!(world.route("T").is_some(), "it registers elsewhere now");
    world.state.routes.on_closed(CONNECTION + 7);
    assert_eq!(world.route("T"), None);
    let info = world.json(code::GET_BROKER_CLUSTER_INFO, Fields::default());
    assert_eq!(info, json!({"brokerAddrTable": {}, "clusterAddrTable": {}}));
}

/// 68, second half.
#[test]
fn a_silent_broker_is_removed_after_its_limit() {
    let mut world = World::with_master();
    let mut short = registration("s", 0, "x", 1, &["S"]);
    short.header.ext.add("heartbeatTimeoutMillis", 10_000);
    world.on(CONNECTION + 1, &short);
    world.pass(9);
    assert_eq!(world.expired(), Vec::<usize>::new());
    world.pass(1);
    assert_eq!(world.expired(), [CONNECTION + 1]);
    world.pass(109);
    assert_eq!(world.expired(), Vec::<usize>::new());
    assert!(world.route("T").is_some());
    world.pass(1);
    assert_eq!(world.expired(), [CONNECTION]);
    assert_eq!(world.route("T"), None);
}

/// 69.
#[test]
fn a_master_that_goes_leaves_topics_and_slave_behind() {
    let mut world = World::with_master();
    world.on(CONNECTION + 1, &registration("b", 1, "s", 1, &["T"]));
    world.state.routes.on_closed(CONNECTION);
    assert_eq!(world.addresses("T"), json!({"1": "s"}));
    assert_eq!(world.perm("U"), json!(6));
    world.state.routes.on_closed(CONNECTION + 1);
    assert_eq!(world.route("U"), None);
}

/// 70 and 74.
#[test]
fn a_version_query_and_a_heartbeat_are_signs_of_life() {
    let mut world = World::with_master();
    let query = |counter: i64, address: &str| {
        Command::request(code::QUERY_DATA_VERSION, broker_fields("b", 0, address)).with_body(
            json::write(&json!({"counter": counter, "stateVersion": 0, "timestamp": 1})),
        )
    };
    world.pass(100);
    let same = world.ok(&query(1, "a"));
    assert_eq!(same.ext().get("changed"), Some("false"));
    let version = json::parse(same.body()).expect("the version that is stored");
    assert_eq!(version["counter"], json!(1));
    let other = world.ok(&query(2, "a"));
    assert_eq!(other.ext().get("changed"), Some("true"));
    let unknown = world.ok(&query(1, "nobody"));
    assert_eq!(unknown.ext().get("changed"), Some("true"));
    assert_eq!(unknown.body(), b"");
    world.pass(100);
    let beat = broker_fields("b", 0, "a");
    world.ok(&Command::request(code::BROKER_HEARTBEAT, beat).oneway());
    world.pass(100);
    assert_eq!(world.expired(), Vec::<usize>::new());
    world.pass(20);
    assert_eq!(world.expired(), [CONNECTION]);
}

/// 71; and what 6.7 says about how long it lasts.
#[test]
fn write_permission_is_wiped_until_the_broker_has_news() {
    let mut world = World::with_master();
    let name = Fields::default().with("brokerName", "b");
    let reply = world.ask(code::WIPE_WRITE_PERM_OF_BROKER, name.clone());
    assert_eq!(reply.ext().get("wipeTopicCount"), Some("2"));
    assert_eq!(world.perm("T"), json!(4));
    world.ok(&registration("b", 0, "a", 1, &["T", "U"]));
    assert_eq!(
        world.perm("T"),
        json!(4),
        "the same version changes nothing"
    );
    world.ok(&registration("b", 0, "a", 2, &["T"]));
    assert_eq!((world.perm("T"), world.perm("U")), (json!(6), json!(4)));
    let reply = world.ask(code::ADD_WRITE_PERM_OF_BROKER, name);
    assert_eq!(reply.ext().get("addTopicCount"), Some("2"));
    assert_eq!(world.perm("U"), json!(6));
    let nobody = Fields::default().with("brokerName", "x");
    let reply = world.ask(code::WIPE_WRITE_PERM_OF_BROKER, nobody);
    assert_eq!(reply.ext().get("wipeTopicCount"), Some("0"));
}

/// 72.
#[test]
fn the_lists_have_the_shapes_that_the_tools_read() {
    let mut world = World::with_master();
    world.ok(&registration("b", 1, "s", 1, &[]));
    let table = json!({"V": config(6, 1, 1), "W": config(6, 1, 2), "X": config(6, 1, 3)});
    world.ok(&registration_of("b2", 0, "d", 1, table));
    let none = Fields::default;
    let info = world.ask(code::GET_BROKER_CLUSTER_INFO, none());
    assert_eq!(
        String::from_utf8_lossy(info.body()),
        r#"{"brokerAddrTable":{"b":{"brokerAddrs":{0:"a",1:"s"},"brokerName":"b","cluster":"c"},"b2":{"brokerAddrs":{0:"d"},"brokerName":"b2","cluster":"c"}},"clusterAddrTable":{"c":["b","b2"]}}"#
    );
    for (code, ext, want) in [
        (
            code::GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            none(),
            json!(["T", "U", "V", "W", "X"]),
        ),
        (
            code::GET_TOPICS_BY_CLUSTER,
            none().with("cluster", "c"),
            json!(["T", "U", "V", "W", "X"]),
        ),
        (
            code::GET_TOPICS_BY_CLUSTER,
            none().with("cluster", "d"),
            json!([]),
        ),
        (
            code::GET_SYSTEM_TOPIC_LIST_FROM_NS,
            none(),
            json!(["c", "b", "b2"]),
        ),
        (code::GET_UNIT_TOPIC_LIST, none(), json!(["V", "X"])),
        (code::GET_HAS_UNIT_SUB_TOPIC_LIST, none(), json!(["W", "X"])),
        (
            code::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            none(),
            json!(["W"]),
        ),
    ] {
        assert_eq!(world.json(code, ext)["topicList"], want, "{code}");
    }
    let system = world.json(code::GET_SYSTEM_TOPIC_LIST_FROM_NS, none());
    assert_eq!(system["brokerAddr"], json!("a"));
    let group = none().with("clusterName", "c").with("brokerName", "b");
    let members = world.ask(code::GET_BROKER_MEMBER_GROUP, group);
    assert_eq!(
        String::from_utf8_lossy(members.body()),
        r#"{"brokerMemberGroup":{"brokerAddrs":{0:"a",1:"s"},"brokerName":"b","cluster":"c"}}"#
    );
}

/// 73; and order topics, which brokers get with every registration.
#[test]
fn key_value_pairs_are_kept_and_the_order_topics_handed_out() {
    let mut world = World::with_master();
    let key = |key| {
        Fields::default()
            .with("namespace", "ORDER_TOPIC_CONFIG")
            .with("key", key)
    };
    assert_eq!(
        world.ask(code::GET_KV_CONFIG, key("T")).code(),
        response::QUERY_NOT_FOUND
    );
    let list = Fields::default().with("namespace", "ORDER_TOPIC_CONFIG");
    assert_eq!(
        world
            .ask(code::GET_KVLIST_BY_NAMESPACE, list.clone())
            .code(),
        response::QUERY_NOT_FOUND
    );
    assert_eq!(
        world.ask(code::PUT_KV_CONFIG, key("T")).code(),
        response::SYSTEM_ERROR
    );
    assert!(
        world
            .ask(code::PUT_KV_CONFIG, key("T").with("value", "b:2"))
            .is_success()
    );
    assert_eq!(
        world.ask(code::GET_KV_CONFIG, key("T")).ext().get("value"),
        Some("b:2")
    );
    let table = json!({"table": {"T": "b:2"}});
    assert_eq!(world.json(code::GET_KVLIST_BY_NAMESPACE, list), table);
    let reply = world.ok(&registration("b", 0, "a", 1, &[]));
    assert_eq!(json::parse(reply.body()), Ok(table));
    assert!(world.ask(code::DELETE_KV_CONFIG, key("T")).is_success());
    assert_eq!(
        world.ask(code::GET_KV_CONFIG, key("T")).code(),
        response::QUERY_NOT_FOUND
    );
    assert_eq!(world.ok(&registration("b", 0, "a", 1, &[])).body(), b"");
}

#[test]
fn a_topic_is_deleted_everywhere_or_in_one_cluster() {
    let mut world = World::with_master();
    let mut other = registration("o", 0, "z", 1, &["T"]);
    other.header.ext = Fields::default()
        .with("brokerName", "o")
        .with("brokerAddr", "z")
        .with("clusterName", "d")
        .with("brokerId", 0);
    world.ok(&other);
    let in_cluster = topic("T").with("clusterName", "c");
    assert!(
        world
            .ask(code::DELETE_TOPIC_IN_NAMESRV, in_cluster)
            .is_success()
    );
    assert_eq!(world.addresses("T"), json!({"0": "z"}));
    assert!(
        world
            .ask(code::DELETE_TOPIC_IN_NAMESRV, topic("T"))
            .is_success()
    );
    assert_eq!(world.route("T"), None);
    assert!(world.route("U").is_some());
    world.ok(&registration("b", 0, "a", 1, &["T", "U"]));
    assert!(world.route("T").is_some(), "the broker still has it");
}

#[test]
fn a_single_topic_of_a_live_broker_can_be_registered() {
    let mut world = World::with_master();
    let route = json!({"queueDatas": [
        {"brokerName": "b", "perm": 4, "readQueueNums": 2, "writeQueueNums": 2, "topicSysFlag": 0},
        {"brokerName": "nobody", "perm": 6, "readQueueNums": 2, "writeQueueNums": 2},
    ]});
    let request = Command::request(code::REGISTER_TOPIC_IN_NAMESRV, topic("N"));
    world.ok(&request.with_body(json::write(&route)));
    let found = world.route("N").expect("a route");
    assert_eq!(found["queueDatas"].as_array().map(Vec::len), Some(1));
    assert_eq!(world.perm("N"), json!(4));
}

#[test]
fn a_broker_that_unregisters_is_gone_and_nobody_else() {
    let mut world = World::with_master();
    let out = |name, id, address| {
        Command::request(code::UNREGISTER_BROKER, broker_fields(name, id, address))
    };
    world.ok(&out("b", 0, "other"));
    world.ok(&out("b", 1, "a"));
    assert!(world.route("T").is_some());
    world.ok(&out("b", 0, "a"));
    assert_eq!(world.route("T"), None);
}

#[test]
fn what_is_not_served_is_said_to_be() {
    let mut world = World::new();
    for code in [
        code::UPDATE_NAMESRV_CONFIG,
        code::SEND_MESSAGE,
        1005,
        77_777,
    ] {
        let reply = world.ask(code, Fields::default());
        assert_eq!(reply.code(), response::REQUEST_CODE_NOT_SUPPORTED, "{code}");
        assert!(reply.remark().contains("not supported"));
    }
    let reply = world.ask(code::GET_NAMESRV_CONFIG, Fields::default());
    assert_eq!(reply.body(), b"listenPort=9876\n");
}

#[test]
fn a_request_without_its_fields_is_refused_by_name() {
    let mut world = World::new();
    for (code, field) in [
        (code::REGISTER_BROKER, "clusterName"),
        (code::GET_ROUTEINFO_BY_TOPIC, "topic"),
        (code::BROKER_HEARTBEAT, "brokerAddr"),
        (code::GET_KV_CONFIG, "namespace"),
    ] {
        let reply = world.ask(code, Fields::default());
        assert_eq!(reply.code(), response::SYSTEM_ERROR, "{code}");
        assert!(reply.remark().contains(field), "{}", reply.remark());
    }
    let long = "x".repeat(NAME_LENGTH_MAX + 1);
    let reply = world.on(CONNECTION, &registration(&long, 0, "a", 1, &["T"]));
    assert_eq!(reply.code(), response::SYSTEM_ERROR);
}

/// B149: two masters of one name flap at every registration of the original.
#[test]
fn of_two_live_brokers_with_one_id_the_first_stays() {
    let mut world = World::with_master();
    for _ in 0..10 {
        world.pass(20);
        let reply = world.on(CONNECTION + 1, &registration("b", 0, "z", 7, &["T", "Z"]));
        assert_eq!(reply.code(), response::SYSTEM_ERROR);
        assert!(
            reply.remark().contains("a, which is alive"),
            "{}",
            reply.remark()
        );
        assert!(
            world
                .on(CONNECTION, &registration("b", 0, "a", 1, &["T"]))
                .is_success()
        );
        assert_eq!(world.addresses("T"), json!({"0": "a"}));
    }
    assert_eq!(world.route("Z"), None);
    world.state.routes.on_closed(CONNECTION + 1);
    assert_eq!(world.addresses("T"), json!({"0": "a"}));
}

/// B119: a master that moved to another address, and whose old host is gone without a word.
#[test]
fn a_silent_holder_gives_way_and_a_closed_one_at_once() {
    let mut world = World::with_master();
    let moved = registration("b", 0, "z", 1, &["T"]);
    world.pass(64);
    assert!(!world.on(CONNECTION + 1, &moved).is_success());
    world.pass(1);
    assert!(world.on(CONNECTION + 1, &moved).is_success());
    assert_eq!(world.addresses("T"), json!({"0": "z"}));
    world.state.routes.on_closed(CONNECTION);
    assert_eq!(
        world.addresses("T"),
        json!({"0": "z"}),
        "the old one owns nothing"
    );
    world.state.routes.on_closed(CONNECTION + 1);
    assert!(
        world
            .on(CONNECTION + 2, &registration("b", 0, "a", 1, &["T"]))
            .is_success()
    );
}

/// B149: "with versions the larger wins always".
#[test]
fn a_larger_state_version_takes_the_id() {
    let mut world = World::with_master();
    let body = json!({"topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 1, "stateVersion": 2, "timestamp": 1}, "topicConfigTable": {}}});
    let newer = Command::request(code::REGISTER_BROKER, broker_fields("b", 0, "z"))
        .with_body(json::write(&body));
    assert!(world.on(CONNECTION + 1, &newer).is_success());
    assert_eq!(world.addresses("T"), json!({"0": "z"}));
    assert!(
        !world
            .on(CONNECTION, &registration("b", 0, "a", 9, &["T"]))
            .is_success()
    );
}

/// B150 and C-78: a slave that is promoted is shown once.
#[test]
fn an_address_is_held_under_one_id() {
    let mut world = World::with_master();
    world.on(CONNECTION + 1, &registration("b", 1, "s", 1, &["T"]));
    world.state.routes.on_closed(CONNECTION);
    assert!(
        world
            .on(CONNECTION + 1, &registration("b", 0, "s", 2, &["T"]))
            .is_success()
    );
    assert_eq!(world.addresses("T"), json!({"0": "s"}));
    assert!(
        world
            .on(CONNECTION + 1, &registration("b", 1, "s", 2, &["T"]))
            .is_success()
    );
    assert_eq!(world.addresses("T"), json!({"1": "s"}));
    assert!(
        world
            .on(CONNECTION + 1, &registration("n", 0, "s", 3, &["N"]))
            .is_success()
    );
    assert_eq!(
        (world.route("T"), world.addresses("N")),
        (None, json!({"0": "s"}))
    );
}

/// B152: a slave that comes first must not leave its permissions to the master's topics.
#[test]
fn a_slave_that_registers_before_its_master_changes_nothing_for_it() {
    let mut world = World::new();
    world.on(
        CONNECTION + 1,
        &acting(registration("b", 1, "s", 1, &["T"]), true),
    );
    assert_eq!(world.perm("T"), json!(4));
    world.ok(&acting(registration("b", 0, "a", 1, &["T"]), true));
    assert_eq!(world.perm("T"), json!(6));
    world.on(
        CONNECTION + 1,
        &acting(registration("b", 1, "s", 2, &["T"]), true),
    );
    assert_eq!(world.perm("T"), json!(6));
    world.state.routes.on_closed(CONNECTION);
    assert_eq!(
        world.perm("T"),
        json!(4),
        "an acting master takes no writes"
    );
    let mut world = World::new();
    world.on(
        CONNECTION + 1,
        &acting(registration("b", 1, "s", 1, &["T"]), false),
    );
    world.on(CONNECTION + 2, &registration("b", -1, "p", 1, &["T"]));
    world.ok(&registration("b", 0, "a", 1, &["T", "M"]));
    assert_eq!((world.perm("T"), world.perm("M")), (json!(6), json!(6)));
}

/// B153: two slaves with one id.
#[test]
fn of_two_slaves_with_one_id_the_second_hears_why_not() {
    let mut world = World::with_master();
    assert!(
        world
            .on(CONNECTION + 1, &registration("b", 1, "s", 1, &[]))
            .is_success()
    );
    let reply = world.on(CONNECTION + 2, &registration("b", 1, "t", 1, &[]));
    assert!(
        reply.remark().contains("broker b id 1"),
        "{}",
        reply.remark()
    );
    assert_eq!(world.addresses("T"), json!({"0": "a", "1": "s"}));
}

/// B154: the name server restarts while the master is down.
#[test]
fn without_a_master_the_lowest_slave_provides_the_topics() {
    let mut world = World::new();
    world.on(CONNECTION + 1, &registration("b", 1, "s", 1, &["T"]));
    world.on(CONNECTION + 2, &registration("b", 2, "t", 9, &["T", "V"]));
    assert_eq!(world.addresses("T"), json!({"1": "s", "2": "t"}));
    assert_eq!(world.route("V"), None);
    let reply = world.on(CONNECTION + 2, &registration("b", 2, "t", 9, &[]));
    assert_eq!(reply.ext().get("masterAddr"), None);
}

/// B155: a topic that one broker name has is lost for writes with that master, and stays readable.
#[test]
fn a_topic_of_one_pair_is_seen_to_be_so() {
    let mut world = World::with_master();
    world.on(CONNECTION + 1, &registration("b", 1, "s", 1, &[]));
    world.on(CONNECTION + 2, &registration("b2", 0, "d", 1, &["V", "W"]));
    let route = world.route("T").expect("a route");
    assert_eq!(route["queueDatas"].as_array().map(Vec::len), Some(1));
    world.state.routes.on_closed(CONNECTION);
    assert_eq!(world.addresses("T"), json!({"1": "s"}));
    assert_eq!(world.addresses("V"), json!({"0": "d"}));
}

#[test]
fn a_slave_with_another_cluster_name_does_not_move_its_master() {
    let mut world = World::with_master();
    let mut slave = registration("b", 1, "s", 1, &[]);
    slave.header.ext = Fields::default()
        .with("brokerName", "b")
        .with("brokerAddr", "s")
        .with("clusterName", "typo")
        .with("brokerId", 1);
    world.ok(&slave);
    let info = world.json(code::GET_BROKER_CLUSTER_INFO, Fields::default());
    assert_eq!(info["clusterAddrTable"], json!({"c": ["b"]}));
}
