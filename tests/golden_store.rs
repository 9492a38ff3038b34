//! Stores that real brokers wrote: each opens, and holds what the brokers said it holds.

mod golden;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use golden::Golden;
use serde_json::Value;
use twinmq::store::record::{self, Place, RecordView, VerifyMode};
use twinmq::store::{Message, PullLimits, PullStatus, Store};

/// Stores without a defect. (5.4.0 adds a database of its own, which is left alone.)
const STORES: &[&str] = &[
    "store-4.9.7-small",
    "store-4.9.7-clean",
    "store-4.9.7-crash",
    "store-4.9.7-slave",
    "store-5.3.3-small",
    "store-5.3.3-clean",
    "store-5.3.3-crash",
    "store-5.3.3-slave",
    "store-5.3.3-propcrc",
    "store-5.4.0-small",
];

/// Topics of the BatchCQ kind have queues of another format, which TwinMQ neither builds nor
/// serves; their records are in the log all the same.
const BATCH_TOPICS: &[&str] = &["goldBatchCq"];

fn int(value: &Value) -> i64 {
    value.as_i64().expect("a number")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Every record of the log, in order, as (offset, bytes).
fn walk(store: &Store) -> Vec<(u64, Vec<u8>)> {
    let log = store.log();
    let mut records = Vec::new();
    let mut at = log.start();
    while let Some(chunk) = log.read(at, usize::MAX) {
        let size = i32::from_be_bytes(chunk[..4].try_into().expect("four bytes")) as usize;
        if chunk[4..8] == record::MAGIC_BLANK.to_be_bytes() {
            at = chunk.end() - chunk.end() % log.file_size();
            if at <= chunk.start() {
                break;
            }
            continue;
        }
        records.push((at, chunk[..size].to_vec()));
        at += size as u64;
    }
    records
}

fn check_log(name: &str, store: &Store, java: &Value) {
    let records = walk(store);
    let wanted: Vec<&Value> = java["log"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|entry| entry["kind"] == "message")
        .collect();
    assert_eq!(records.len(), wanted.len(), "{name}: records");
    for ((at, bytes), want) in records.iter().zip(wanted) {
        let place = format!("{name} at {at}");
        assert_eq!(*at as i64, int(&want["phy"]), "{place}");
        let view = record::verify(bytes, *at, VerifyMode::Full).expect(&place);
        assert_eq!(view.size as i64, int(&want["size"]), "{place}");
        assert_eq!(view.topic, text(&want["topic"]), "{place}");
        assert_eq!(i64::from(view.queue_id), int(&want["queueId"]), "{place}");
        assert_eq!(view.queue_offset, int(&want["queueOffset"]), "{place}");
        assert_eq!(view.message_id(), text(&want["offsetMsgId"]), "{place}");
        assert_eq!(i64::from(view.body_crc), int(&want["bodyCrc"]), "{place}");
        assert_eq!(i64::from(view.sys_flag), int(&want["sysFlag"]), "{place}");
        assert_eq!(view.born_ms, int(&want["bornTimestamp"]), "{place}");
        assert_eq!(view.stored_ms, int(&want["storeTimestamp"]), "{place}");
        if let Some(tags) = want["tags"].as_str() {
            assert_eq!(view.property("TAGS"), Some(tags), "{place}");
        }
        let place_of = Place {
            queue_offset: view.queue_offset,
            log_offset: *at,
            stored_ms: view.stored_ms,
        };
        let message = view.message();
        let prepared = record::prepare(&message, 1 << 24).expect(&place);
        let mut again = vec![0; prepared.size];
        record::encode(&message, prepared, place_of, &mut again);
        assert!(again == *bytes, "{place}: re-encoded bytes differ");
    }
}

fn check_queues(name: &str, store: &Store, java: &Value) {
    for (topic, queues) in java["queues"].as_object().expect("a map") {
        if BATCH_TOPICS.contains(&topic.as_str()) {
            continue;
        }
        for (id, want) in queues.as_object().expect("a map") {
            let place = format!("{name} {topic}/{id}");
            let id: i32 = id.parse().expect("a queue id");
            let bounds = store.queue_bounds(topic, id).expect(&place);
            assert_eq!(bounds.min, int(&want["min"]), "{place}");
            assert_eq!(bounds.max, int(&want["max"]), "{place}");
            for entry in want["entries"].as_array().expect("a list") {
                let found = store.entry(topic, id, int(&entry[0])).expect(&place);
                assert_eq!(found.log_offset as i64, int(&entry[1]), "{place} {entry}");
                assert_eq!(i64::from(found.size), int(&entry[2]), "{place} {entry}");
                assert_eq!(found.tags_code, int(&entry[3]), "{place} {entry}");
            }
            check_pulls(&place, store, topic, id, bounds.min, bounds.max);
        }
    }
}

/// Pulling from the first to the last offset gives each message once, and then the end.
fn check_pulls(place: &str, store: &Store, topic: &str, id: i32, min: i64, max: i64) {
    let limits = PullLimits {
        max_messages: 7,
        max_bytes: 1 << 20,
    };
    let (mut next, mut offsets) = (min, Vec::new());
    while next < max {
        let pulled = store.pull(topic, id, next, limits, &|_| true);
        assert_eq!(pulled.status, PullStatus::Found, "{place} at {next}");
        for chunk in &pulled.records {
            offsets.push(RecordView::parse(chunk).expect(place).queue_offset);
        }
        next = pulled.next;
    }
    assert_eq!(offsets, (min..max).collect::<Vec<_>>(), "{place}");
    let end = store.pull(topic, id, max, limits, &|_| true);
    assert_eq!(
        (end.status, end.next),
        (PullStatus::OffsetOverflowOne, max),
        "{place}"
    );
}

fn check_index(name: &str, store: &Store, java: &Value) {
    let records: HashMap<u64, Vec<u8>> = walk(store).into_iter().collect();
    for query in java["indexQueries"].as_array().expect("a list") {
        let (topic, key) = (text(&query["topic"]), text(&query["key"]));
        if BATCH_TOPICS.contains(&topic) {
            continue;
        }
        let mut want: Vec<u64> = query["phy"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|phy| int(phy) as u64)
            // Java does not compare keys, so other keys with the same hash are among its answers.
            .filter(|phy| {
                let view = RecordView::parse(&records[phy]).expect("a record");
                twinmq::store::index::keys_of(&view).any(|k| k == key)
            })
            .collect();
        let mut found = store.query(topic, key, 64, 0, i64::MAX);
        assert!(
            found.is_sorted_by(|a, b| a > b),
            "{name} {topic}#{key}: newest first"
        );
        found.sort_unstable();
        want.sort_unstable();
        want.dedup();
        assert_eq!(found, want, "{name} {topic}#{key}");
    }
}

/// The first offset stored at the time or later, else the end; by the records, not as Java
/// 4.9 answers, which goes by the files' modification times.
fn check_times(name: &str, store: &Store, java: &Value) {
    let mut stored: HashMap<(String, i64), BTreeMap<i64, i64>> = HashMap::new();
    for record in java["log"].as_array().expect("a list") {
        if record["kind"] == "message" && int(&record["sysFlag"]) & 4 == 0 {
            let queue = (text(&record["topic"]).to_string(), int(&record["queueId"]));
            let times = stored.entry(queue).or_default();
            times.insert(int(&record["queueOffset"]), int(&record["storeTimestamp"]));
        }
    }
    for lookup in java["timeLookups"].as_array().expect("a list") {
        let (topic, id) = (text(&lookup["topic"]), int(&lookup["queueId"]));
        if BATCH_TOPICS.contains(&topic) {
            continue;
        }
        let asked = int(&lookup["timestamp"]);
        let times = &stored[&(topic.to_string(), id)];
        let end = times.len() as i64;
        let want = times
            .iter()
            .find(|(_, ms)| **ms >= asked)
            .map_or(end, |(at, _)| *at);
        let found = store.offset_by_time(topic, id as i32, asked, false);
        assert_eq!(found, want, "{name} {topic}/{id} at {asked}");
        if let Some(upper) = lookup["offsetUpper"].as_str() {
            let found = store.offset_by_time(topic, id as i32, asked, true);
            assert_eq!(
                found.to_string(),
                upper,
                "{name} {topic}/{id} up to {asked} of {times:?}"
            );
        }
    }
}

fn append(store: &Store, body: &[u8]) -> twinmq::store::Appended {
    let message = Message {
        topic: "afterwards",
        queue_id: 1,
        flag: 0,
        sys_flag: 0,
        born_ms: 1,
        born_host: ([127, 0, 0, 1], 1).into(),
        store_host: ([127, 0, 0, 1], 10911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties: b"KEYS\x01later",
    };
    store.append(&[message]).expect("appended")
}

#[test]
fn every_store_holds_what_its_broker_said() {
    for name in STORES {
        let Some(golden) = Golden::unpack(name) else {
            return;
        };
        let java = &golden.manifest["java"];
        let store = Store::open(golden.config()).expect(name);
        let max = int(&java["commitLogMaxOffset"]) as u64;
        assert_eq!(store.log().end(), max, "{name}: log end");
        check_log(name, &store, java);
        check_queues(name, &store, java);
        check_index(name, &store, java);
        check_times(name, &store, java);
        let figures = store.figures();
        assert_eq!(
            (figures.damaged_records, figures.lost_ranges),
            (0, 0),
            "{name}"
        );
        assert_eq!(
            (figures.stepped_over, figures.misplaced_records),
            (0, 0),
            "{name}"
        );
        store.close().expect(name);
    }
}

#[test]
fn a_store_can_be_appended_to_closed_and_opened_again() {
    for name in STORES {
        let Some(golden) = Golden::unpack(name) else {
            return;
        };
        let java = &golden.manifest["java"];
        let store = Store::open(golden.config()).expect(name);
        let before = store.log().end();
        let first = append(&store, b"one");
        assert!(first.start >= before, "{name}");
        assert_eq!(append(&store, &[7; 5000]).queue_offset, 1, "{name}");
        store.wake_followers();
        store.close().expect(name);
        assert!(
            !golden.root().join("abort").exists(),
            "{name}: closed properly"
        );
        check_sizes(&golden.root(), &golden);

        let again = Store::open(golden.config()).expect(name);
        check_queues(name, &again, java);
        check_index(name, &again, java);
        assert_eq!(again.queue_bounds("afterwards", 1).expect(name).max, 2);
        assert_eq!(
            again.query("afterwards", "later", 64, 0, i64::MAX).len(),
            2,
            "{name}"
        );
        assert_eq!(append(&again, b"three").queue_offset, 2, "{name}");
        again.close().expect(name);
    }
}

/// Every file has exactly its configured size, and no queue file is all zeros.
fn check_sizes(root: &Path, golden: &Golden) {
    let config = golden.config();
    let mut left = vec![root.join("commitlog"), root.join("consumequeue")];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).expect("a file");
            let want = match dir.ends_with("commitlog") {
                true => config.log_file_size,
                false => config.queue_file_size,
            };
            assert_eq!(bytes.len() as u64, want, "{}", path.display());
            assert!(bytes.iter().any(|&b| b != 0), "{} is empty", path.display());
        }
    }
}

#[test]
fn a_store_without_queues_or_index_gets_them_back() {
    for (name, abort) in [("store-4.9.7-small", false), ("store-5.3.3-clean", true)] {
        let Some(golden) = Golden::unpack(name) else {
            return;
        };
        let root = golden.root();
        std::fs::remove_dir_all(root.join("consumequeue")).expect("it was there");
        std::fs::remove_dir_all(root.join("index")).expect("it was there");
        if abort {
            std::fs::write(root.join("abort"), "").expect("written");
        }
        let store = Store::open(golden.config()).expect(name);
        check_queues(name, &store, &golden.manifest["java"]);
        check_index(name, &store, &golden.manifest["java"]);
        store.close().expect(name);
    }
}
