//! Appending, reading and replicating stores of our own.

mod local;

use std::fs;
use std::time::{Duration, Instant};

use local::*;
use twinmq::store::record::{self, RecordView};
use twinmq::store::{PullLimits, PullStatus, Refusal, Store, StoreError};

const LIMITS: PullLimits = PullLimits {
    max_messages: 32,
    max_bytes: 256 * 1024,
};

fn size_of(body: usize) -> usize {
    record::encoded_size(&message("T", 0, &vec![0; body]))
}

#[test]
fn a_record_may_leave_eight_bytes_and_not_seven() {
    for (left, same_file) in [(8, true), (7, false), (9, true)] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let store = open(dir.path());
        let body = LOG_FILE_SIZE as usize - left - size_of(0);
        if !same_file {
            let error = store.append(&[message("T", 0, &vec![1; body])]);
            assert!(
                matches!(error, Err(StoreError::MessageIllegal(_))),
                "no file holds it"
            );
            assert_eq!((store.log().end(), store.log().is_empty()), (0, true));
            store.close().expect("closed");
            continue;
        }
        put(&store, "T", 0, &vec![1; body]);
        assert_eq!(put(&store, "T", 0, b"next").start, LOG_FILE_SIZE);
        let blank = store
            .log()
            .read(LOG_FILE_SIZE - left as u64, 99)
            .expect("there");
        assert_eq!(blank[..8], record::blank(left), "{left}");
        store.close().expect("closed");
        let store = open(dir.path());
        assert_eq!(store.queue_bounds("T", 0).expect("there").max, 2);
        store.close().expect("closed");
    }
}

#[test]
fn a_record_that_would_leave_seven_bytes_goes_to_the_next_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let first = put(&store, "T", 0, b"first");
    let room = (LOG_FILE_SIZE - first.end) as usize;
    let second = put(&store, "T", 0, &vec![1; room - 7 - size_of(0)]);
    assert_eq!(second.start, LOG_FILE_SIZE);
    let blank = store.log().read(first.end, usize::MAX).expect("there");
    assert_eq!((blank.len(), &blank[..8]), (room, &record::blank(room)[..]));
    store.close().expect("closed");
}

#[test]
fn a_batch_stays_together_and_goes_whole_to_the_next_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let first = put(&store, "T", 0, &vec![1; LOG_FILE_SIZE as usize / 2]);
    let body = vec![2; 3000];
    let batch = [message("T", 0, &body); 3];
    let appended = store.append(&batch).expect("appended");
    assert_eq!(
        appended.start, LOG_FILE_SIZE,
        "it does not fit behind {}",
        first.end
    );
    assert_eq!(
        (appended.queue_offset, appended.record_starts.len()),
        (1, 3)
    );
    settle(&store);
    for (n, start) in appended.record_starts.iter().enumerate() {
        let entry = store.entry("T", 0, 1 + n as i64).expect("there");
        assert_eq!(entry.log_offset, *start);
        let chunk = store.record(*start).expect("there");
        let view = RecordView::parse(&chunk).expect("a record");
        assert_eq!(
            (view.queue_offset, view.stored_ms),
            (1 + n as i64, appended.stored_ms)
        );
    }
    let other = [message("T", 0, b"x"), message("T", 1, b"x")];
    assert!(matches!(
        store.append(&other),
        Err(StoreError::MessageIllegal(_))
    ));
    assert!(matches!(
        store.append(&[]),
        Err(StoreError::MessageIllegal(_))
    ));
    store.close().expect("closed");
}

#[test]
fn a_refused_message_leaves_no_trace() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let before = put(&store, "T", 0, b"good");
    let mut long = message("T", 0, b"x");
    let properties = vec![b'p'; 32_768];
    long.properties = &properties;
    assert!(matches!(
        store.append(&[long]),
        Err(StoreError::PropertiesTooLong { .. })
    ));
    let huge = vec![0; 5 << 20];
    let batch = [message("T", 0, b"x"), message("T", 0, &huge)];
    assert!(matches!(
        store.append(&batch),
        Err(StoreError::MessageIllegal(_))
    ));
    assert_eq!(store.log().end(), before.end);
    assert_eq!(put(&store, "T", 0, b"good").queue_offset, 1);
    store.close().expect("closed");
    assert!(matches!(
        store.append(&[message("T", 0, b"x")]),
        Err(StoreError::NotWritable(Refusal::Closed))
    ));
}

#[test]
fn prepared_and_rolled_back_messages_are_in_no_queue() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    for (sys_flag, queue_offset) in [(0, 0), (4, 0), (8, 1), (12, 0), (0, 2)] {
        let mut sent = message("T", 0, b"x");
        sent.sys_flag = sys_flag;
        let appended = store.append(&[sent]).expect("appended");
        assert_eq!(appended.queue_offset, queue_offset, "type {sys_flag}");
    }
    settle(&store);
    assert_eq!(store.queue_bounds("T", 0).expect("there").max, 3);
    assert_eq!(
        store.query("T", "k", 64, 0, i64::MAX).len(),
        4,
        "all but the rolled back one"
    );
    store.close().expect("closed");
}

#[test]
fn pulls_end_as_java_s_do() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    for n in 0..50 {
        put(&store, "T", 0, format!("{n}").as_bytes());
    }
    let ends = |from| {
        let pulled = store.pull("T", 0, from, LIMITS, &|_| true);
        (pulled.status, pulled.next, pulled.records.len())
    };
    assert_eq!(ends(0), (PullStatus::Found, 32, 32));
    assert_eq!(ends(32), (PullStatus::Found, 50, 18));
    assert_eq!(ends(50), (PullStatus::OffsetOverflowOne, 50, 0));
    assert_eq!(ends(51), (PullStatus::OffsetOverflowBadly, 50, 0));
    assert_eq!(ends(i64::MAX), (PullStatus::OffsetOverflowBadly, 50, 0));
    assert_eq!(ends(-1), (PullStatus::OffsetTooSmall, 0, 0));
    let none = store.pull("T", 0, 10, LIMITS, &|_| false);
    assert_eq!((none.status, none.next), (PullStatus::NoMatchedMessage, 50));
    let unknown = store.pull("T", 9, 5, LIMITS, &|_| true);
    assert_eq!(
        (unknown.status, unknown.next),
        (PullStatus::NoMatchedLogicQueue, 0)
    );
    let small = PullLimits {
        max_messages: 32,
        max_bytes: 1,
    };
    let one = store.pull("T", 0, 3, small, &|_| true);
    assert_eq!(
        (one.next, one.records.len()),
        (4, 1),
        "a first message always passes"
    );
    assert_eq!(one.behind_bytes, store.log().end() - one.records[0].start());
    store.close().expect("closed");
}

#[test]
fn a_pull_looks_at_eight_hundred_entries() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let batch = [message("T", 0, b"x"); 100];
    for _ in 0..9 {
        store.append(&batch).expect("appended");
    }
    settle(&store);
    let pulled = store.pull("T", 0, 20, LIMITS, &|_| false);
    assert_eq!(
        (pulled.status, pulled.next),
        (PullStatus::NoMatchedMessage, 820)
    );
    store.close().expect("closed");
}

#[test]
fn hooks_hear_of_each_queue_that_grew() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = heard.clone();
    store.on_arrival(move |arrivals| {
        let names = arrivals
            .iter()
            .map(|a| (a.topic.to_string(), a.queue_id, a.queue_offset));
        sink.lock().expect("not poisoned").extend(names);
    });
    put(&store, "A", 1, b"x");
    put(&store, "B", 2, b"x");
    put(&store, "A", 1, b"x");
    store.close().expect("closed");
    let want = [("A".into(), 1, 1), ("B".into(), 2, 1), ("A".into(), 1, 2)];
    assert_eq!(*heard.lock().expect("not poisoned"), want);
}

#[test]
fn a_delayed_message_has_its_delivery_time_in_the_queue() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let mut sent = message("SCHEDULE_TOPIC_XXXX", 2, b"x");
    sent.properties = b"DELAY\x013\x02TAGS\x01t";
    let appended = store.append(&[sent]).expect("appended");
    settle(&store);
    let entry = store.entry("SCHEDULE_TOPIC_XXXX", 2, 0).expect("there");
    assert_eq!(entry.tags_code, appended.stored_ms + 10_000);
    store.close().expect("closed");
}

/// Copies what the master has into the slave, in pieces that end where records end.
fn replicate(master: &Store, slave: &Store, from: u64) {
    let mut at = from;
    while let Some(chunk) = master.log().read(at, usize::MAX) {
        let mut done = 0;
        while done < chunk.len() {
            let room = (LOG_FILE_SIZE - (at + done as u64) % LOG_FILE_SIZE) as usize;
            let rest = &chunk[done..];
            let size = match record::inspect(rest, at + done as u64, room as u64) {
                record::Inspection::Record { size } | record::Inspection::Blank { size } => size,
                other => panic!("{other:?}"),
            };
            let appended = slave.log().append_raw(at + done as u64, &rest[..size]);
            appended.expect("it continues");
            done += size;
        }
        at = chunk.end();
    }
    slave.log().wake();
    let deadline = Instant::now() + Duration::from_secs(60);
    assert!(slave.dispatched().wait(at, deadline), "dispatched in time");
}

fn fill(store: &Store) {
    for n in 0..60 {
        put(store, "T", n % 3, &vec![b'x'; 100 * n as usize % 1500]);
    }
}

#[test]
fn a_slave_gets_the_same_log_and_the_same_queues() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (master_root, slave_root) = (dir.path().join("m"), dir.path().join("s"));
    let master = open(&master_root);
    fill(&master);
    let mut slave_config = config(&slave_root);
    slave_config.slave = true;
    let slave = Store::open(slave_config.clone()).expect("it opens");
    assert!(matches!(
        slave.append(&[message("T", 0, b"x")]),
        Err(StoreError::NotWritable(Refusal::Slave))
    ));
    replicate(&master, &slave, 0);
    let gap = slave.log().append_raw(5, b"x");
    assert!(matches!(gap, Err(StoreError::Gap { start: 5, .. })));
    for id in 0..3 {
        assert_eq!(bodies(&slave, "T", id), bodies(&master, "T", id));
    }
    master.close().expect("closed");
    slave.close().expect("closed");
    for kind in ["commitlog", "consumequeue/T/0", "consumequeue/T/2"] {
        for entry in fs::read_dir(master_root.join(kind)).expect("a directory") {
            let path = entry.expect("an entry").path();
            let other = slave_root
                .join(kind)
                .join(path.file_name().expect("a name"));
            let same = fs::read(&path).expect("a file") == fs::read(other).expect("its copy");
            assert!(same, "{}", path.display());
        }
    }
    let slave = Store::open(slave_config).expect("it opens");
    assert_eq!(slave.log().end(), master.log().end());
    slave.close().expect("closed");
}

#[test]
fn a_slave_that_starts_with_the_last_file_has_queues_that_start_late() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (master, root) = (open(&dir.path().join("m")), dir.path().join("s"));
    fill(&master);
    let mut slave_config = config(&root);
    slave_config.slave = true;
    let slave = Store::open(slave_config.clone()).expect("it opens");
    let from = master.log().end() - master.log().end() % LOG_FILE_SIZE;
    replicate(&master, &slave, from);
    for life in 0..3 {
        let slave = match life {
            0 => slave.clone(),
            _ => Store::open(slave_config.clone()).expect("it opens"),
        };
        assert_eq!(
            (slave.log().start(), slave.log().end()),
            (from, master.log().end())
        );
        for id in 0..3 {
            let (ours, theirs) = (slave.queue_bounds("T", id), master.queue_bounds("T", id));
            let (ours, theirs) = (ours.expect("there"), theirs.expect("there"));
            assert_eq!(ours.max, theirs.max, "life {life}");
            assert!(ours.min > 0);
            let (first, same) = (
                slave.entry("T", id, ours.min),
                master.entry("T", id, ours.min),
            );
            assert_eq!(first, same, "life {life}");
            assert!(first.expect("there").log_offset >= from);
        }
        slave.close().expect("closed");
        if life == 1 {
            fs::write(root.join("abort"), "").expect("written");
        }
    }
    master.close().expect("closed");
}

#[test]
fn under_sync_flush_nothing_is_readable_before_it_is_flushed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut settings = config(dir.path());
    settings.sync_flush = true;
    let store = Store::open(settings).expect("it opens");
    // Nobody was woken yet, so nothing is flushed: the flush thread sleeps.
    let appended = store.append(&[message("T", 0, b"x")]).expect("appended");
    assert!(store.log().read(0, 10).is_none());
    assert_eq!(store.flushed().get(), 0);
    settle(&store);
    assert_eq!(store.flushed().get(), appended.end);
    assert!(store.log().read(0, 10).is_some());
    store.close().expect("closed");
}

#[test]
fn a_deleted_topic_starts_at_zero_again_and_on_the_slave_too() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (master, root) = (open(&dir.path().join("m")), dir.path().join("s"));
    let slave = Store::open(config(&root)).expect("it opens");
    for n in 0..5 {
        put(&master, "T", 0, format!("old {n}").as_bytes());
    }
    replicate(&master, &slave, 0);
    master.delete_topic("T").expect("deleted");
    assert_eq!(master.queue_bounds("T", 0), None);
    let from = master.log().end();
    for n in 0..2 {
        assert_eq!(
            put(&master, "T", 0, format!("new {n}").as_bytes()).queue_offset,
            n
        );
    }
    replicate(&master, &slave, from);
    assert_eq!(bodies(&master, "T", 0), ["new 0", "new 1"]);
    assert_eq!(bodies(&slave, "T", 0), ["new 0", "new 1"]);
    master.close().expect("closed");
    slave.close().expect("closed");
}

#[test]
fn old_files_are_deleted_when_they_expire() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut settings = config(dir.path());
    settings.cleaning.reserved = Duration::ZERO;
    settings.cleaning.delete_when = (0..24).collect();
    settings.cleaning.interval = Duration::from_millis(20);
    let store = Store::open(settings).expect("it opens");
    let held = {
        let first = put(&store, "T", 0, b"held by a reader");
        store.record(first.start)
    };
    while store.log().end() < 4 * LOG_FILE_SIZE {
        put(&store, "T", 0, &[b'x'; 2000]);
    }
    let last = store.log().end() - store.log().end() % LOG_FILE_SIZE;
    let deadline = Instant::now() + Duration::from_secs(60);
    let followed = || {
        store
            .queue_bounds("T", 0)
            .and_then(|b| store.entry("T", 0, b.min))
    };
    while store.log().start() < last || followed().is_none_or(|e| e.log_offset < last) {
        assert!(Instant::now() < deadline, "deleted in time");
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Ok(held) = held {
        assert!(
            RecordView::parse(&held).is_ok(),
            "its bytes stay while they are read"
        );
    }
    store.close().expect("closed");
}
