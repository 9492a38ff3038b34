//! Small stores of our own for tests: settings, messages, copies of a store as a crash leaves it.
#![allow(dead_code)] // each test file uses its part

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use twinmq::store::record::RecordView;
use twinmq::store::{Appended, Chunk, Message, PullLimits, Store, StoreConfig, StoreError};

pub const LOG_FILE_SIZE: u64 = 16 * 1024;

/// Small files, so that their borders come quickly.
pub fn config(root: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(root);
    config.log_file_size = LOG_FILE_SIZE;
    config.queue_file_size = 20 * 20;
    config.hash_slots = 50;
    config.index_entries = 100;
    config.cleaning.reserved = Duration::from_secs(1 << 40);
    config
}

pub fn open(root: &Path) -> Arc<Store> {
    Store::open(config(root)).expect("the store opens")
}

pub fn message<'a>(topic: &'a str, queue_id: i32, body: &'a [u8]) -> Message<'a> {
    Message {
        topic,
        queue_id,
        flag: 0,
        sys_flag: 0,
        born_ms: 1_700_000_000_000,
        born_host: ([10, 0, 0, 1], 40000).into(),
        store_host: ([10, 0, 0, 2], 10911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties: b"KEYS\x01k\x02TAGS\x01t",
    }
}

/// Stores one message and waits until it is in its queue.
pub fn put(store: &Store, topic: &str, queue_id: i32, body: &[u8]) -> Appended {
    let appended = store
        .append(&[message(topic, queue_id, body)])
        .expect("appended");
    settle(store);
    appended
}

/// Waits until everything is in the queues.
pub fn settle(store: &Store) {
    store.wake_followers();
    let end = store.log().end();
    let deadline = Instant::now() + Duration::from_secs(60);
    assert!(store.dispatched().wait(end, deadline), "dispatched in time");
}

/// The bytes of a refusal's reason.
pub fn refusal(result: Result<Arc<Store>, StoreError>) -> String {
    match result {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it opened"),
    }
}

/// Everything in a queue, from its first offset on.
pub fn pull_all(store: &Store, topic: &str, queue_id: i32) -> Vec<Chunk> {
    let limits = PullLimits {
        max_messages: 32,
        max_bytes: 1 << 20,
    };
    let Some(bounds) = store.queue_bounds(topic, queue_id) else {
        return Vec::new();
    };
    let (mut next, mut records) = (bounds.min, Vec::new());
    while next < bounds.max {
        let pulled = store.pull(topic, queue_id, next, limits, &|_| true);
        assert!(pulled.next > next, "a pull gets on");
        next = pulled.next;
        records.extend(pulled.records);
    }
    records
}

pub fn bodies(store: &Store, topic: &str, queue_id: i32) -> Vec<String> {
    let body = |chunk: &Chunk| {
        let view = RecordView::parse(chunk).expect("a record");
        String::from_utf8_lossy(view.body).into_owned()
    };
    pull_all(store, topic, queue_id).iter().map(body).collect()
}

/// What is on disk right now: a store that is copied while it is open looks like one whose
/// process was killed.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("copied");
        }
    }
}

/// A log file by its first offset.
pub fn log_file(root: &Path, base: u64) -> PathBuf {
    root.join("commitlog").join(format!("{base:020}"))
}

/// Changes bytes of a closed store's file.
pub fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("a file");
    change(&mut bytes);
    fs::write(path, bytes).expect("written");
}
