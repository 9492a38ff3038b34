use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mio::{Poll, Token, Waker};

use super::*;
use crate::base::clock::wall_ms;
use crate::broker::outbox::Outbox;
use crate::broker::topics::BuiltinTopics;
use crate::store::record::RecordView;
use crate::store::{DelayLevels, Message, StoreConfig};

struct Fixture {
    context: AdminContext,
    _poll: Poll,
    dir: tempfile::TempDir,
}

fn fixture(slave: bool) -> Fixture {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("config");
    let builtin = BuiltinTopics {
        cluster: "C".into(),
        broker_name: "b".into(),
        auto_create: true,
        default_queues: 8,
        cluster_topic: true,
        broker_topic: true,
        trace_topic: None,
    };
    let topics = Arc::new(Topics::open(&config, &builtin, slave).expect("topics"));
    let groups = Arc::new(Groups::open(&config, true, slave).expect("groups"));
    let poll = Poll::new().expect("a poll");
    let outbox = Outbox::new(Waker::new(poll.registry(), Token(1)).expect("a waker"));
    let context = AdminContext {
        clients: Arc::new(Clients::new(
            topics.clone(),
            groups.clone(),
            Arc::new(outbox),
        )),
        topics,
        groups,
        locks: Arc::default(),
        offsets: Arc::new(Offsets::open(&config, slave).expect("offsets")),
        delays: Arc::new(Delays::open(&config, DelayLevels::default(), slave).expect("delays")),
        store: open_store(dir.path(), slave),
        stats: Arc::default(),
        broker_name: "b".into(),
        role: if slave { "SLAVE" } else { "ASYNC_MASTER" },
        slave,
        address: "127.0.0.1:10911".into(),
        ha_address: "127.0.0.1:10912".into(),
        started_ms: wall_ms(),
        commit_log_dirs: vec![dir.path().join("commitlog")],
        config_text: "brokerName=b\n".into(),
        memory_bytes: 1 << 30,
        live: Box::new(|| LiveFigures {
            state: "ready",
            sends: Default::default(),
            pulls: Default::default(),
            slaves: Vec::new(),
            link: None,
        }),
    };
    Fixture {
        context,
        _poll: poll,
        dir,
    }
}

fn open_store(root: &Path, slave: bool) -> Arc<Store> {
    let config = StoreConfig {
        log_file_size: 1 << 20,
        queue_file_size: 20_000,
        hash_slots: 1000,
        index_entries: 4000,
        slave,
        ..StoreConfig::new(root)
    };
    Store::open(config).expect("a store")
}

impl Fixture {
    fn ask(&self, code: i32, ext: Fields) -> Command {
        self.ask_with_body(code, ext, Vec::new())
    }

    fn ask_with_body(&self, code: i32, ext: Fields, body: Vec<u8>) -> Command {
        let request = Command::request(code, ext).with_body(body);
        serve(&self.context, &request, &peer(false))
            .or_else(|| serve_quick(&self.context, &request, &peer(false), Instant::now()))
            .expect("a code that is served")
    }

    fn json(&self, code: i32, ext: Fields) -> Value {
        let reply = self.ask(code, ext);
        assert!(reply.is_success(), "{code}: {}", reply.remark());
        dialect::parse(reply.body()).expect("a body")
    }

    fn number(&self, code: i32, field: &str, ext: Fields) -> i64 {
        let reply = self.ask(code, ext);
        assert!(reply.is_success(), "{code}: {}", reply.remark());
        reply.ext().parse(field).expect(field)
    }

    fn create(&self, topic: &str, queues: i32) -> Command {
        let ext = Fields::default()
            .with("topic", topic)
            .with("defaultTopic", "TBW102")
            .with("readQueueNums", queues)
            .with("writeQueueNums", queues)
            .with("perm", 6)
            .with("topicFilterType", "SINGLE_TAG")
            .with("order", false);
        self.ask(code::UPDATE_AND_CREATE_TOPIC, ext)
    }

    /// Stores messages m0, m1, ... with the keys `common` and `key0`, ...
    fn send(&self, topic: &str, count: usize) -> Vec<u64> {
        let host: SocketAddr = ([127, 0, 0, 1], 10911).into();
        let starts = (0..count).map(|i| {
            let properties = format!("KEYS\x01key{i} common\x02UNIQ_KEY\x01U{i}\x02TAGS\x01tagA");
            let body = format!("m{i}");
            let message = Message {
                topic,
                queue_id: 0,
                flag: 0,
                sys_flag: 0,
                born_ms: wall_ms(),
                born_host: host,
                store_host: host,
                reconsume_times: 0,
                prepared_offset: 0,
                body: body.as_bytes(),
                properties: properties.as_bytes(),
            };
            self.context.store.append(&[message]).expect("stored").start
        });
        let starts: Vec<u64> = starts.collect();
        self.context.store.wake_followers();
        let deadline = Instant::now() + Duration::from_secs(10);
        let end = self.context.store.log().end();
        while self.context.store.dispatched().get() < end {
            assert!(Instant::now() < deadline, "not dispatched");
            std::thread::sleep(Duration::from_millis(5));
        }
        starts
    }
}

fn peer(fast: bool) -> Peer {
    Peer {
        connection: Token(20),
        address: ([127, 0, 0, 1], 5).into(),
        fast,
    }
}

fn queue(queue_id: i32) -> Fields {
    Fields::default()
        .with("topic", "T")
        .with("queueId", queue_id)
}

fn bodies(reply: &Command) -> Vec<String> {
    let mut rest = reply.body();
    let mut bodies = Vec::new();
    while !rest.is_empty() {
        let view = RecordView::parse(rest).expect("a record");
        bodies.push(String::from_utf8_lossy(view.body).into());
        rest = &rest[view.size..];
    }
    bodies
}

#[test]
fn queues_tell_their_bounds_and_times() {
    let f = fixture(false);
    f.create("T", 2);
    f.send("T", 3);
    assert_eq!(f.number(code::GET_MAX_OFFSET, "offset", queue(0)), 3);
    assert_eq!(f.number(code::GET_MIN_OFFSET, "offset", queue(0)), 0);
    for unknown in [
        queue(9),
        Fields::default().with("topic", "X").with("queueId", 0),
    ] {
        assert_eq!(f.number(code::GET_MAX_OFFSET, "offset", unknown.clone()), 0);
        assert_eq!(
            f.number(code::GET_EARLIEST_MSG_STORETIME, "timestamp", unknown),
            -1
        );
    }
    let first = f.number(code::GET_EARLIEST_MSG_STORETIME, "timestamp", queue(0));
    assert!((f.context.started_ms..=wall_ms()).contains(&first));
    let search = |time: i64| {
        let ext = queue(0).with("timestamp", time);
        f.number(code::SEARCH_OFFSET_BY_TIMESTAMP, "offset", ext)
    };
    assert_eq!((search(0), search(wall_ms() + 60_000)), (0, 3));
    let strange = f.ask(code::GET_MAX_OFFSET, Fields::default().with("topic", "T"));
    assert_eq!(strange.code(), response::SYSTEM_ERROR);
}

#[test]
fn messages_are_found_by_key_and_only_whole_records_by_offset() {
    let f = fixture(false);
    f.create("T", 1);
    let starts = f.send("T", 5);
    let query = |topic: &str, key: &str, max: i64| {
        let ext = Fields::default()
            .with("topic", topic)
            .with("key", key)
            .with("maxNum", max)
            .with("beginTimestamp", 0)
            .with("endTimestamp", i64::MAX);
        f.ask(code::QUERY_MESSAGE, ext)
    };
    assert_eq!(
        bodies(&query("T", "common", 64)),
        ["m4", "m3", "m2", "m1", "m0"]
    );
    assert_eq!(bodies(&query("T", "common", 2)).len(), 2);
    assert_eq!(bodies(&query("T", "U3", 32)), ["m3"]);
    for (topic, key, max) in [("T", "none", 64), ("U", "common", 64), ("T", "common", -1)] {
        assert_eq!(query(topic, key, max).code(), response::QUERY_NOT_FOUND);
    }
    let view = |offset: i64| {
        f.ask(
            code::VIEW_MESSAGE_BY_ID,
            Fields::default().with("offset", offset),
        )
    };
    assert_eq!(bodies(&view(starts[2] as i64)), ["m2"]);
    for bad in [starts[2] as i64 + 1, -5, 1 << 50, i64::MIN] {
        let reply = view(bad);
        assert_eq!(
            (reply.code(), reply.body()),
            (response::SYSTEM_ERROR, &b""[..]),
            "{bad}"
        );
    }
}

#[test]
fn a_new_group_starts_at_zero_on_a_young_queue_and_commits_are_kept() {
    let f = fixture(false);
    f.create("T", 2);
    f.send("T", 3);
    let of = |group: &str| queue(0).with("consumerGroup", group);
    assert_eq!(f.number(code::QUERY_CONSUMER_OFFSET, "offset", of("G")), 0);
    let commit = f.ask(
        code::UPDATE_CONSUMER_OFFSET,
        of("G").with("commitOffset", 2),
    );
    assert!(commit.is_success());
    assert_eq!(f.number(code::QUERY_CONSUMER_OFFSET, "offset", of("G")), 2);

    // Tools: the group's progress, and who consumes the topic.
    let stats = f.ask(
        code::GET_CONSUME_STATS,
        Fields::default().with("consumerGroup", "G"),
    );
    let text = String::from_utf8_lossy(stats.body());
    let key = r#"{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":"#;
    assert!(text.starts_with(key), "{text}");
    let who = f.json(
        code::QUERY_TOPIC_CONSUME_BY_WHO,
        Fields::default().with("topic", "T"),
    );
    assert_eq!(who, json!({"groupList": ["G"]}));

    let old = Fixture {
        context: AdminContext {
            memory_bytes: 0,
            ..f.context
        },
        ..f
    };
    let reply = old.ask(code::QUERY_CONSUMER_OFFSET, of("H"));
    assert_eq!(reply.code(), response::QUERY_NOT_FOUND);
}

#[test]
fn topics_are_made_shown_and_deleted_and_the_file_follows() {
    let f = fixture(false);
    assert!(f.create("T", 2).is_success());
    for bad in ["TBW102", "a/b", ""] {
        assert_eq!(f.create(bad, 1).code(), response::SYSTEM_ERROR, "{bad}");
    }
    f.send("T", 2);
    let file =
        || std::fs::read_to_string(f.dir.path().join("config/topics.json")).expect("the file");
    assert!(file().contains("\"T\""));
    let shown = f.json(code::GET_TOPIC_CONFIG, Fields::default().with("topic", "T"));
    assert_eq!(
        (&shown["topicName"], &shown["perm"]),
        (&json!("T"), &json!(6))
    );
    let stats = f.json(
        code::GET_TOPIC_STATS_INFO,
        Fields::default().with("topic", "T"),
    );
    let rows = stats["offsetTable"].as_object().expect("a table");
    assert_eq!(rows.len(), 2);
    let row = &rows[r#"{"brokerName":"b","queueId":0,"topic":"T"}"#];
    assert_eq!(
        (&row["minOffset"], &row["maxOffset"]),
        (&json!(0), &json!(2))
    );
    f.context.offsets.commit("G", "T", 0, 1);

    let delete = || {
        f.ask(
            code::DELETE_TOPIC_IN_BROKER,
            Fields::default().with("topic", "T"),
        )
    };
    assert!(delete().is_success() && delete().is_success());
    assert!(!file().contains("\"T\""));
    assert_eq!(f.number(code::GET_MAX_OFFSET, "offset", queue(0)), 0);
    assert_eq!(f.context.offsets.get("G", "T", 0), None);
    for code in [code::GET_TOPIC_CONFIG, code::GET_TOPIC_STATS_INFO] {
        let reply = f.ask(code, Fields::default().with("topic", "T"));
        assert_eq!(reply.code(), response::TOPIC_NOT_EXIST);
    }
    let system = f.json(code::GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Fields::default());
    assert!(
        system["topicList"]
            .as_array()
            .expect("a list")
            .contains(&json!("TBW102"))
    );
}

#[test]
fn attributes_are_set_removed_and_marked_for_a_5_3_slave_only() {
    let f = fixture(false);
    let set = |text: &str| {
        let ext = Fields::default()
            .with("topic", "T")
            .with("readQueueNums", 1)
            .with("writeQueueNums", 1)
            .with("perm", 6)
            .with("attributes", text);
        f.ask(code::UPDATE_AND_CREATE_TOPIC, ext)
    };
    assert!(set("+message.type=FIFO,+queue.type=SimpleCQ").is_success());
    assert!(set("-queue.type").is_success());
    assert!(!set("+a=b").is_success());
    assert!(!set("nonsense").is_success());
    let attributes = |version: i32, fast: bool| {
        let mut request = Command::request(code::GET_ALL_TOPIC_CONFIG, Fields::default());
        request.header.version = version;
        let reply = serve(&f.context, &request, &peer(fast)).expect("served");
        let body = dialect::parse(reply.body()).expect("a body");
        body["topicConfigTable"]["T"]["attributes"].clone()
    };
    assert_eq!(attributes(479, true), json!({"+message.type": "FIFO"}));
    for (version, fast) in [(479, false), (409, true)] {
        assert_eq!(attributes(version, fast), json!({"message.type": "FIFO"}));
    }
}

#[test]
fn groups_are_made_shown_and_deleted_with_both_lines_flags() {
    let f = fixture(false);
    for flag in ["removeOffset", "cleanOffset"] {
        let body = br#"{"groupName":"G","retryMaxTimes":5}"#.to_vec();
        let update = code::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP;
        assert!(
            f.ask_with_body(update, Fields::default(), body)
                .is_success()
        );
        let shown = f.json(
            code::GET_SUBSCRIPTIONGROUP_CONFIG,
            Fields::default().with("group", "G"),
        );
        assert_eq!(shown["retryMaxTimes"], 5);
        f.context.offsets.commit("G", "T", 0, 1);
        let ext = Fields::default().with("groupName", "G").with(flag, "true");
        assert!(f.ask(code::DELETE_SUBSCRIPTIONGROUP, ext).is_success());
        assert!(f.context.groups.get("G").is_none());
        assert_eq!(f.context.offsets.get("G", "T", 0), None);
    }
}

#[test]
fn a_slave_refuses_to_change_tables_and_still_shows_them() {
    let f = fixture(true);
    assert!(!f.create("T", 1).is_success());
    let body = br#"{"groupName":"G"}"#.to_vec();
    let update = code::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP;
    assert!(
        !f.ask_with_body(update, Fields::default(), body)
            .is_success()
    );
    let delete = f.ask(
        code::DELETE_TOPIC_IN_BROKER,
        Fields::default().with("topic", "T"),
    );
    assert!(!delete.is_success());
    assert!(f.context.topics.get("T").is_none() && f.context.groups.get("G").is_none());
    assert!(f.json(code::GET_ALL_TOPIC_CONFIG, Fields::default())["topicConfigTable"].is_object());
    assert_eq!(
        f.json(code::GET_BROKER_HA_STATUS, Fields::default())["master"],
        false
    );
}

#[test]
fn runtime_info_has_what_the_tools_cut_apart() {
    let f = fixture(false);
    f.create("T", 1);
    f.send("T", 2);
    f.context.stats.on_put(2, 100);
    f.context.stats.sample(wall_ms());
    let body = f.json(code::GET_BROKER_RUNTIME_INFO, Fields::default());
    let table = body["table"].as_object().expect("a table");
    let required = "brokerVersionDesc brokerVersion bootTimestamp runtime putTps getTransferedTps getTransferredTps \
        getTotalTps getFoundTps getMissTps sendThreadPoolQueueSize sendThreadPoolQueueCapacity \
        sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize pullThreadPoolQueueCapacity \
        pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio \
        consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset commitLogDirCapacity dispatchBehindBytes \
        remainHowManyDataToFlush msgPutTotalTodayNow msgPutTotalTodayMorning msgPutTotalYesterdayMorning \
        msgGetTotalTodayNow msgGetTotalTodayMorning msgGetTotalYesterdayMorning brokerActive";
    for key in required.split_ascii_whitespace() {
        assert!(table.get(key).is_some_and(Value::is_string), "{key}");
    }
    let end = f.context.store.log().end().to_string();
    assert_eq!(table["commitLogMaxOffset"], end);
    assert_eq!(
        (&table["msgPutTotalTodayNow"], &table["dispatchBehindBytes"]),
        (&json!("2"), &json!("0"))
    );
    for tps in ["putTps", "getTotalTps", "getTransferedTps"] {
        let rates = table[tps]
            .as_str()
            .expect("text")
            .split(' ')
            .map(str::parse::<f64>);
        assert_eq!(rates.filter(Result::is_ok).count(), 3, "{tps}");
    }
    let status = f.json(code::GET_BROKER_HA_STATUS, Fields::default());
    assert_eq!(
        (&status["master"], &status["inSyncSlaveNums"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(status["masterCommitLogMaxOffset"].to_string(), end);
}

#[test]
fn the_configuration_is_shown_and_never_changed_by_request() {
    let f = fixture(false);
    let shown = f.ask(code::GET_BROKER_CONFIG, Fields::default());
    assert_eq!(shown.body(), b"brokerName=b\n");
    assert!(
        shown
            .ext()
            .get("version")
            .is_some_and(|text| text.contains("counter"))
    );
    let change = f.ask_with_body(
        code::UPDATE_BROKER_CONFIG,
        Fields::default(),
        b"brokerName=x".to_vec(),
    );
    assert_eq!(change.code(), response::REQUEST_CODE_NOT_SUPPORTED);
    for code in [60, 61, 402, 9999] {
        let request = Command::request(code, Fields::default());
        assert!(
            serve(&f.context, &request, &peer(false)).is_none(),
            "{code}"
        );
    }
}

#[test]
fn queue_entries_are_shown_within_bounds() {
    let f = fixture(false);
    f.create("T", 1);
    let starts = f.send("T", 3);
    let show = |index: i64, count: i64| {
        let ext = queue(0).with("index", index).with("count", count);
        f.json(code::QUERY_CONSUME_QUEUE, ext)
    };
    let body = show(1, 10);
    assert_eq!(
        (&body["minQueueIndex"], &body["maxQueueIndex"]),
        (&json!(0), &json!(3))
    );
    let rows = body["queueData"].as_array().expect("a list");
    assert_eq!(
        (rows.len(), &rows[0]["physicOffset"]),
        (2, &json!(starts[1]))
    );
    assert_eq!(rows[0]["tagsCode"], record::java_hash("tagA"));
    for (index, count) in [(3, 10), (i64::MAX, i64::MAX), (0, -1)] {
        assert_eq!(
            show(index, count)["queueData"],
            json!([]),
            "{index} {count}"
        );
    }
    let ext = queue(7).with("index", 0).with("count", 1);
    assert_eq!(
        f.ask(code::QUERY_CONSUME_QUEUE, ext).code(),
        response::SYSTEM_ERROR
    );
}

#[test]
fn a_topic_that_only_the_queues_know_is_adopted() {
    let f = fixture(false);
    f.send("Lost", 2);
    assert_eq!(adopt_topics(&f.context.topics, &f.context.store), 1);
    assert_eq!(f.context.topics.get("Lost").expect("adopted").queues(), 1);
    assert_eq!(adopt_topics(&f.context.topics, &f.context.store), 0);
}
