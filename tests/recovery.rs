//! A closed or killed store whose bytes were changed, opened again.

mod golden;
mod local;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use golden::Golden;
use local::*;
use serde_json::Value;
use twinmq::store::record::{self, RecordView};
use twinmq::store::{PullStatus, Store, StoreError};

/// A closed store with some messages in two queues, and the start of its last record.
fn sample(root: &Path) -> (u64, u64) {
    let store = open(root);
    for n in 0..6 {
        put(&store, "T", n % 2, format!("body {n}").as_bytes());
    }
    let last = put(&store, "T", 0, b"the last one");
    store.close().expect("closed");
    (last.start, last.end)
}

fn mark_crashed(root: &Path) {
    fs::write(root.join("abort"), "").expect("written");
}

#[test]
fn a_torn_last_record_is_cut_wherever_it_is_torn() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (base, (start, end)) = (dir.path().join("base"), sample(&dir.path().join("base")));
    for (n, torn_at) in (start..end).step_by(5).chain([end - 1]).enumerate() {
        let root = dir.path().join(format!("torn{n}"));
        copy(&base, &root);
        edit(&log_file(&root, 0), |bytes| {
            bytes[torn_at as usize..].fill(0)
        });
        if n % 2 == 0 {
            mark_crashed(&root);
        }
        let store = open(&root);
        assert_eq!(
            store.log().end(),
            start,
            "torn at {torn_at} of {start}..{end}"
        );
        assert_eq!(bodies(&store, "T", 0), ["body 0", "body 2", "body 4"]);
        assert_eq!(put(&store, "T", 0, b"next").queue_offset, 3);
        store.close().expect("closed");
        fs::remove_dir_all(&root).expect("removed");
    }
}

#[test]
fn garbage_behind_the_end_is_cut_and_zeroed() {
    for crashed in [false, true] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (_, end) = sample(dir.path());
        edit(&log_file(dir.path(), 0), |bytes| {
            for (n, byte) in bytes[end as usize..].iter_mut().enumerate() {
                *byte = (n * 7 + 1) as u8;
            }
        });
        if crashed {
            mark_crashed(dir.path());
        }
        let store = open(dir.path());
        assert_eq!(store.log().end(), end);
        store.close().expect("closed");
        let bytes = fs::read(log_file(dir.path(), 0)).expect("a file");
        assert!(
            bytes[end as usize..].iter().all(|&b| b == 0),
            "nothing is left"
        );
    }
}

#[test]
fn what_was_cut_does_not_come_back_behind_a_record_of_the_same_size() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    put(&store, "T", 0, b"good");
    let first = put(&store, "T", 0, b"AAAA");
    let second = put(&store, "T", 0, b"BBBB");
    store.close().expect("closed");
    // The first is damaged and the second not recognisable, so the log ends before both.
    let path = log_file(dir.path(), 0);
    let magic = second.start as usize + 4;
    edit(&path, |bytes| {
        bytes[first.start as usize + 88] ^= 1;
        bytes[magic] ^= 1;
    });
    mark_crashed(dir.path());
    let store = open(dir.path());
    assert_eq!(store.log().end(), first.start);
    let again = put(&store, "T", 0, b"CCCC");
    assert_eq!((again.start, again.end), (first.start, first.end));
    store.close().expect("closed");
    edit(&path, |bytes| bytes[magic] = 0xDA); // had its bytes stayed, it would be whole again
    mark_crashed(dir.path());
    let store = open(dir.path());
    assert_eq!(store.log().end(), again.end);
    assert_eq!(bodies(&store, "T", 0), ["good", "CCCC"]);
    store.close().expect("closed");
}

#[test]
fn a_damaged_record_is_stepped_over_and_keeps_its_place() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let starts: Vec<u64> = (0..5)
        .map(|n| put(&store, "T", 0, format!("body {n}").as_bytes()).start)
        .collect();
    store.close().expect("closed");
    // (what is changed, whether its own size still leads to the next record)
    for (offset, crashed) in [(88, false), (88, true), (3, true), (5, true), (30, true)] {
        let root = tempfile::tempdir().expect("a temporary directory");
        copy(dir.path(), root.path());
        edit(&log_file(root.path(), 0), |bytes| {
            bytes[starts[2] as usize + offset] ^= 1
        });
        if crashed {
            mark_crashed(root.path());
        }
        let store = open(root.path());
        let place = format!("byte {offset}, crashed {crashed}");
        assert_eq!(
            bodies(&store, "T", 0),
            ["body 0", "body 1", "body 3", "body 4"],
            "{place}"
        );
        assert_eq!(store.queue_bounds("T", 0).expect("there").max, 5, "{place}");
        assert_eq!(put(&store, "T", 0, b"next").queue_offset, 5, "{place}");
        let figures = store.figures();
        assert_eq!(figures.damaged_records + figures.lost_ranges, 1, "{place}");
        store.close().expect("closed");
    }
}

#[test]
fn a_flipped_queue_offset_costs_no_other_message() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let starts: Vec<u64> = (0..9)
        .map(|n| put(&store, "T", 0, format!("body {n}").as_bytes()).start)
        .collect();
    store.close().expect("closed");
    // From 5 to 4, 7, 1 and far away: down, up, and to where no queue goes.
    for (byte, flip) in [(27, 1), (27, 2), (27, 4), (25, 1), (20, 0x80)] {
        let root = tempfile::tempdir().expect("a temporary directory");
        copy(dir.path(), root.path());
        edit(&log_file(root.path(), 0), |bytes| {
            bytes[starts[5] as usize + byte] ^= flip
        });
        mark_crashed(root.path());
        let store = open(root.path());
        let mut wanted: Vec<String> = (0..9).map(|n| format!("body {n}")).collect();
        wanted.remove(5);
        assert_eq!(bodies(&store, "T", 0), wanted, "byte {byte} ^ {flip}");
        assert_eq!(
            put(&store, "T", 0, b"next").queue_offset,
            9,
            "byte {byte} ^ {flip}"
        );
        assert!(store.figures().misplaced_records > 0);
        store.close().expect("closed");
    }
}

#[test]
fn a_crash_around_a_roll_loses_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(&dir.path().join("base"));
    let mut last = put(&store, "T", 0, &[b'x'; 3000]);
    while last.end < 3 * LOG_FILE_SIZE / 2 {
        last = put(&store, "T", 0, &[b'x'; 3000]);
    }
    let count = store.queue_bounds("T", 0).expect("there").max;
    store.close().expect("closed");
    let blank = (0..).map_while(|n| store.entry("T", 0, n));
    let blank = blank
        .take_while(|e| e.log_offset < LOG_FILE_SIZE)
        .last()
        .expect("one")
        .log_end();
    let in_first = (0..count).filter(|&n| store.entry("T", 0, n).expect("one").log_offset < blank);
    let in_first = in_first.count() as i64;

    // The next file is missing: the log goes on where the blank stood.
    let root = dir.path().join("missing");
    copy(&dir.path().join("base"), &root);
    fs::remove_file(log_file(&root, LOG_FILE_SIZE)).expect("removed");
    mark_crashed(&root);
    let store = open(&root);
    assert_eq!(store.log().end(), blank);
    assert_eq!(put(&store, "T", 0, b"small").queue_offset, in_first);
    store.close().expect("closed");

    // The next file is there and empty, and so is one that was made ahead of time.
    let root = dir.path().join("zero");
    copy(&dir.path().join("base"), &root);
    edit(&log_file(&root, LOG_FILE_SIZE), |bytes| bytes.fill(0));
    fs::copy(
        log_file(&root, LOG_FILE_SIZE),
        log_file(&root, 2 * LOG_FILE_SIZE),
    )
    .expect("copied");
    mark_crashed(&root);
    let store = open(&root);
    assert_eq!(store.log().end(), LOG_FILE_SIZE);
    assert!(!log_file(&root, 2 * LOG_FILE_SIZE).exists());
    assert_eq!(put(&store, "T", 0, b"small").start, LOG_FILE_SIZE);
    store.close().expect("closed");
}

#[test]
fn a_killed_store_loses_nothing_and_its_offsets_stay_dense() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut root = dir.path().join("0");
    let mut wanted: Vec<String> = Vec::new();
    for life in 0..4 {
        let store = open(&root);
        for n in 0..40 {
            let body = format!("life {life} message {n} {}", "x".repeat(n * 20));
            let appended = store
                .append(&[message("T", 3, body.as_bytes())])
                .expect("appended");
            assert_eq!(appended.queue_offset, wanted.len() as i64);
            wanted.push(body);
            if n % 7 == 0 {
                settle(&store);
            }
        }
        let next = dir.path().join((life + 1).to_string());
        copy(&root, &next);
        store.close().expect("closed");
        root = next;
        let store = open(&root);
        assert_eq!(bodies(&store, "T", 3), wanted);
        assert_eq!(
            store.query("T", "k", 64, 0, i64::MAX).len(),
            64.min(wanted.len())
        );
        store.close().expect("closed");
        assert_eq!(
            bodies(&open(&root), "T", 3),
            wanted,
            "and once more after a clean stop"
        );
        fs::remove_file(root.join("abort")).expect("the store above is still open");
    }
}

#[test]
fn queue_files_that_are_gone_are_made_anew() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(&dir.path().join("base"));
    for n in 0..70 {
        put(&store, "T", n % 2, b"x");
    }
    store.close().expect("closed");
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 5] = [
        ("last file", |q| {
            fs::remove_file(q.join("00000000000000000400")).expect("removed")
        }),
        ("first file", |q| {
            fs::remove_file(q.join("00000000000000000000")).expect("removed")
        }),
        ("all files", |q| {
            fs::remove_dir_all(q).expect("removed");
            fs::create_dir(q).expect("created");
        }),
        ("wrong entry", |q| {
            edit(&q.join("00000000000000000000"), |bytes| bytes[205] ^= 0x40);
        }),
        ("zero entry", |q| {
            edit(&q.join("00000000000000000000"), |bytes| {
                bytes[200..220].fill(0)
            });
        }),
    ];
    for (name, harm) in harms {
        for crashed in [false, true] {
            let root = tempfile::tempdir().expect("a temporary directory");
            copy(&dir.path().join("base"), root.path());
            harm(&root.path().join("consumequeue/T/1"));
            if crashed {
                mark_crashed(root.path());
            }
            let store = open(root.path());
            let bounds = store.queue_bounds("T", 1).expect("there");
            assert_eq!(
                (bounds.min, bounds.max),
                (0, 35),
                "{name}, crashed {crashed}"
            );
            assert_eq!(
                bodies(&store, "T", 1).len(),
                35,
                "{name}, crashed {crashed}"
            );
            store.close().expect("closed");
        }
    }
}

#[test]
fn stores_that_cannot_be_ours_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    sample(&dir.path().join("base"));
    let refused = |harm: &dyn Fn(&Path), want: &str| {
        let root = tempfile::tempdir().expect("a temporary directory");
        copy(&dir.path().join("base"), root.path());
        harm(root.path());
        let reason = refusal(Store::open(config(root.path())));
        assert!(reason.contains(want), "{reason}");
        assert!(!root.path().join("abort").exists(), "it was not changed");
    };
    refused(
        &|root| fs::write(root.join("commitlog/note"), "x").expect("written"),
        "note does not",
    );
    refused(
        &|root| fs::write(log_file(root, LOG_FILE_SIZE), "x").expect("written"),
        "has 1 bytes, the configured file size is 16384",
    );
    refused(
        &|root| fs::write(log_file(root, 2 * LOG_FILE_SIZE), [0; 16384]).expect("written"),
        "does not continue",
    );
    refused(
        &|root| fs::write(root.join("consumequeue/CURRENT"), "x").expect("written"),
        "RocksDB",
    );
}

/// All records of a damaged store's base, by log offset.
fn base_records(name: &str) -> Option<(Golden, BTreeMap<u64, Vec<u8>>)> {
    let base = Golden::unpack(name)?;
    let size = base.config().log_file_size;
    let mut records = BTreeMap::new();
    for entry in base.manifest["java"]["log"].as_array().expect("a list") {
        if entry["kind"] == "message" {
            let at = entry["phy"].as_u64().expect("a number");
            let len = entry["size"].as_u64().expect("a number") as usize;
            let bytes = fs::read(log_file(&base.root(), at - at % size)).expect("a file");
            let from = (at % size) as usize;
            records.insert(at, bytes[from..from + len].to_vec());
        }
    }
    Some((base, records))
}

/// What the damaged store still has whole.
fn intact(root: &Path, size: u64, base: &BTreeMap<u64, Vec<u8>>) -> HashSet<u64> {
    let mut files: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut whole = HashSet::new();
    for (&at, record) in base {
        let file = files
            .entry(at - at % size)
            .or_insert_with(|| fs::read(log_file(root, at - at % size)).unwrap_or_default());
        let from = (at % size) as usize;
        if file.get(from..from + record.len()) == Some(&record[..]) {
            whole.insert(at);
        }
    }
    whole
}

#[test]
fn damaged_stores_keep_what_is_whole_and_serve_nothing_else() {
    let Ok(listing) = fs::read_dir(golden::shared().join("golden")) else {
        eprintln!("skipped: no golden stores");
        return;
    };
    let mut names: Vec<String> = listing
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_suffix(".tar.gz")?.to_string()))
        .filter(|name| name.starts_with("damage-"))
        .collect();
    names.sort();
    let mut bases = HashMap::new();
    for name in &names {
        let golden = Golden::unpack(name).expect("it is listed");
        let base = golden.manifest["base"]
            .as_str()
            .expect("a name")
            .to_string();
        let base = base.trim_end_matches(".tar.gz").to_string();
        let (_, records) = bases
            .entry(base.clone())
            .or_insert_with(|| base_records(&base).expect("it is there"));
        check_damaged(name, &golden, records);
    }
    assert!(names.len() > 60, "{} damaged stores", names.len());
}

fn check_damaged(name: &str, golden: &Golden, base: &BTreeMap<u64, Vec<u8>>) {
    let root = golden.root();
    let config = golden.config();
    let whole = intact(&root, config.log_file_size, base);
    let refused = ["log-file-short", "log-stray-file"];
    let opened = Store::open(config);
    if refused.iter().any(|variant| name.ends_with(variant)) {
        assert!(matches!(opened, Err(StoreError::Refused(_))), "{name}");
        return;
    }
    let store = opened.expect(name);
    let mut served = HashSet::new();
    let mut queued = 0;
    for topic in store.topics() {
        for id in store.queues_of(&topic) {
            for chunk in pull_all(&store, &topic, id) {
                let at = chunk.start();
                served.insert(at);
                // Properties have no checksum: a flipped bit there cannot be seen.
                let same = base.get(&at).is_some_and(|record| record[..] == chunk[..]);
                assert!(
                    same || name.contains("flip-props"),
                    "{name}: {at} is no message"
                );
            }
            queued += store.queue_bounds(&topic, id).expect("there").max;
        }
    }
    for at in &whole {
        let view = RecordView::parse(&base[at]).expect("a record");
        assert!(
            served.contains(at),
            "{name}: {}/{} at {at} is lost",
            view.topic,
            view.queue_id
        );
        let keys: Vec<&str> = twinmq::store::index::keys_of(&view).collect();
        for key in keys {
            let found = store.query(view.topic, key, 64, view.stored_ms, view.stored_ms);
            assert!(found.contains(at), "{name}: {at} is not found by {key}");
        }
    }
    assert!(
        queued >= whole.len() as i64,
        "{name}: offsets given out twice"
    );
    // New messages take new places, and the store closes and opens again as it is.
    let topic = store.topics().into_iter().next().expect("a topic");
    let id = store.queues_of(&topic)[0];
    let max = store.queue_bounds(&topic, id).expect("there").max;
    assert_eq!(
        put(&store, &topic, id, b"afterwards").queue_offset,
        max,
        "{name}"
    );
    let (end, figures) = (store.log().end(), store.figures());
    store.close().expect(name);
    let again = Store::open(golden.config()).expect(name);
    assert_eq!(again.log().end(), end, "{name}");
    assert_eq!(
        again.queue_bounds(&topic, id).expect("there").max,
        max + 1,
        "{name}"
    );
    assert!(
        again.figures().damaged_records <= figures.damaged_records,
        "{name}"
    );
    again.close().expect(name);
}

#[test]
fn an_entry_below_the_log_is_not_served() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    while store.log().end() < 2 * LOG_FILE_SIZE {
        put(&store, "T", 0, &[b'x'; 2000]);
    }
    store.close().expect("closed");
    fs::remove_file(log_file(dir.path(), 0)).expect("removed");
    let store = open(dir.path());
    let bounds = store.queue_bounds("T", 0).expect("there");
    let first = store.entry("T", 0, bounds.min).expect("one");
    assert!(bounds.min > 0 && first.log_offset == LOG_FILE_SIZE);
    let limits = twinmq::store::PullLimits {
        max_messages: 1,
        max_bytes: 1,
    };
    let pulled = store.pull("T", 0, 0, limits, &|_| true);
    assert_eq!(
        (pulled.status, pulled.next),
        (PullStatus::OffsetTooSmall, bounds.min)
    );
    let pulled = store.pull("T", 0, bounds.min, limits, &|_| true);
    assert_eq!(
        (pulled.status, pulled.records.len()),
        (PullStatus::Found, 1)
    );
    store.close().expect("closed");
}

#[test]
fn the_manifests_say_what_was_changed() {
    // Guards the test above: an archive whose manifest lists no change would check nothing.
    let Some(golden) = Golden::unpack("damage-4.9.7-torn-props") else {
        return;
    };
    let changes: &Value = &golden.manifest["changes"];
    assert!(changes.as_array().is_some_and(|list| !list.is_empty()));
    assert_eq!(record::MAGIC_V1.to_be_bytes(), [0xDA, 0xA3, 0x20, 0xA7]);
}
