//! What disks, peers and crashes do to a store, and how it goes on.

mod local;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use local::*;
use twinmq::store::checkpoint::Checkpoint;
use twinmq::store::mapped_file::MappedFile;
use twinmq::store::record::RecordView;
use twinmq::store::{Message, Store};

#[test]
fn one_record_of_a_whole_batch_does_not_hide_the_messages_behind_it() {
    const INNER_BATCH: i32 = 1 << 7;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    let batch = |topic| Message {
        sys_flag: INNER_BATCH,
        ..message(topic, 0, b"a batch")
    };
    put(&store, "T", 0, b"before");
    store.append(&[batch("T")]).expect("appended");
    put(&store, "T", 0, b"behind");
    put(&store, "T", 1, b"elsewhere");
    // At a queue's start, and alone in a topic.
    store.append(&[batch("U")]).expect("appended");
    put(&store, "U", 0, b"behind");
    store.append(&[batch("V")]).expect("appended");
    settle(&store);
    let check = |store: &Store| {
        assert_eq!(bodies(store, "T", 0), ["before", "behind"]);
        assert_eq!(bodies(store, "T", 1), ["elsewhere"]);
        assert_eq!(bodies(store, "U", 0), ["behind"]);
        assert_eq!(store.queue_bounds("V", 0), None, "it has no queue");
        assert_eq!(store.queue_bounds("T", 0).expect("there").max, 3);
        assert_eq!(store.figures().misplaced_records, 0);
    };
    check(&store);
    store.close().expect("closed");
    // Opened again, and with queues that are built anew from the log, it is the same.
    for anew in [false, true] {
        if anew {
            fs::remove_dir_all(dir.path().join("consumequeue")).expect("removed");
        }
        let store = open(dir.path());
        check(&store);
        store.close().expect("closed");
    }
}

#[test]
fn a_topic_with_batch_queues_gets_no_others() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir_all(dir.path().join("batchconsumequeue/T")).expect("a directory");
    let store = open(dir.path());
    put(&store, "T", 0, b"not queued");
    put(&store, "U", 0, b"queued");
    assert_eq!(store.queue_bounds("T", 0), None);
    assert_eq!(bodies(&store, "U", 0), ["queued"]);
    store.close().expect("closed");
}

fn open_slave(root: &Path) -> Arc<Store> {
    let mut config = config(root);
    config.slave = true;
    Store::open(config).expect("the store opens")
}

/// A store whose process ended when its first log file had been made and nothing written to it.
fn crash_before_the_first_record(root: &Path, base: u64) {
    fs::create_dir_all(root.join("commitlog")).expect("a directory");
    let zeros = vec![0; LOG_FILE_SIZE as usize];
    fs::write(log_file(root, base), zeros).expect("written");
    fs::write(root.join("abort"), "").expect("written");
}

#[test]
fn a_first_file_without_a_record_is_no_log() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let master = open(&dir.path().join("master"));
    while master.log().end() < 2 * LOG_FILE_SIZE {
        put(&master, "T", 0, &[b'x'; 2000]);
    }
    let bytes = master.log().read(LOG_FILE_SIZE, usize::MAX).expect("there");
    for base in [0, 3 * LOG_FILE_SIZE] {
        let root = dir.path().join(format!("slave{base}"));
        crash_before_the_first_record(&root, base);
        let slave = open_slave(&root);
        assert!(slave.log().is_empty(), "file {base}");
        assert_eq!(slave.log().end(), 0);
        // So it takes the log of a master from wherever that begins.
        slave
            .log()
            .append_raw(LOG_FILE_SIZE, &bytes)
            .expect("appended");
        settle(&slave);
        assert_eq!(slave.log().start(), LOG_FILE_SIZE);
        let first = slave.queue_bounds("T", 0).expect("there").min;
        assert!(first > 0 && !pull_all(&slave, "T", 0).is_empty());
        slave.close().expect("closed");
    }
    master.close().expect("closed");
}

#[test]
fn a_master_keeps_its_place_in_the_log() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    crash_before_the_first_record(dir.path(), 3 * LOG_FILE_SIZE);
    let store = open(dir.path());
    assert!(!store.log().is_empty());
    // Offsets that were given out before are not given out again.
    assert_eq!(put(&store, "T", 0, b"next").start, 3 * LOG_FILE_SIZE);
    store.close().expect("closed");
}

/// Runs itself in a process of its own, whose address space has no room for the file.
#[test]
fn a_file_that_cannot_be_mapped_is_not_left_behind() {
    const PATH: &str = "TWINMQ_TEST_UNMAPPABLE";
    const SIZE: u64 = 256 << 20;
    let Some(path) = std::env::var_os(PATH) else {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let test = "a_file_that_cannot_be_mapped_is_not_left_behind";
        let output = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", test, "--nocapture"])
            .env(PATH, dir.path().join("f"))
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("1 passed"), "{text}");
        return;
    };
    let status = std::fs::read_to_string("/proc/self/status").expect("figures");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = kib.expect("a line").trim().trim_end_matches(" kB");
    let used: u64 = kib.parse().expect("a number");
    let limit = rustix::process::Rlimit {
        current: Some(used * 1024 + SIZE / 2),
        maximum: None,
    };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).expect("it is lower");
    let path = Path::new(&path);
    match MappedFile::create(path, 0, SIZE) {
        Err(error) => assert!(error.to_string().contains("map"), "{error}"),
        Ok(_) => panic!("it was mapped"),
    }
    assert!(!path.exists(), "it can be made again");
}

#[test]
fn a_log_file_that_was_never_finished_is_removed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    put(&store, "T", 0, b"x");
    store.close().expect("closed");
    let short = log_file(dir.path(), LOG_FILE_SIZE);
    fs::write(&short, vec![0; 9000]).expect("written");
    let store = open(dir.path());
    assert_eq!(bodies(&store, "T", 0), ["x"]);
    assert!(!short.exists());
    store.close().expect("closed");
    let mut content = vec![0; 9000];
    content[8999] = 1;
    fs::write(&short, &content).expect("written");
    let reason = refusal(Store::open(config(dir.path())));
    assert!(reason.contains("has 9000 bytes"), "{reason}");
    assert_eq!(fs::read(&short).expect("still there"), content);
}

/// The pieces of a log as a slave gets them: records, and blanks with their filler.
fn pieces(store: &Store) -> Vec<(u64, Vec<u8>)> {
    let (mut at, mut pieces) = (store.log().start(), Vec::new());
    while let Some(chunk) = store.log().read(at, usize::MAX) {
        let size = RecordView::parse(&chunk).map_or(chunk.len(), |view| view.size);
        pieces.push((at, chunk[..size].to_vec()));
        at += size as u64;
    }
    pieces
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A slave that cannot create queue 0's second file, and is told the 21st message of that queue.
/// Returns the store time of the last message that could be queued, and what else the log has.
#[allow(clippy::type_complexity)] // a store, a queue end, and log bytes by offset
fn slave_with_a_broken_queue(root: &Path) -> (Arc<Store>, i64, Vec<(u64, Vec<u8>)>) {
    let master = open(&root.join("master"));
    for _ in 0..20 {
        put(&master, "T", 0, b"x");
    }
    std::thread::sleep(Duration::from_millis(5)); // so that its store time is another
    let behind = put(&master, "T", 0, b"21st").start;
    let mut later = message("T", 1, b"later");
    later.properties = b"KEYS\x01later\x02";
    master.append(&[later]).expect("appended");
    settle(&master);
    let mut log = pieces(&master);
    let rest = log.split_off(log.iter().position(|(at, _)| *at == behind).expect("there"));
    master.close().expect("closed");

    let slave = open_slave(&root.join("slave"));
    for (at, bytes) in &log {
        slave.log().append_raw(*at, bytes).expect("appended");
    }
    settle(&slave);
    let queued_ms = slave.figures().latest_stored_ms.expect("a record");
    let queue = root.join("slave/consumequeue/T/0");
    fs::rename(&queue, root.join("aside")).expect("moved");
    fs::write(&queue, "no directory").expect("written");
    let (at, bytes) = &rest[0];
    slave.log().append_raw(*at, bytes).expect("appended");
    slave.wake_followers();
    wait_for("dispatch stops", || slave.figures().dispatch_stopped);
    (slave, queued_ms, rest)
}

#[test]
fn a_checkpoint_is_never_ahead_of_the_queues() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (slave, queued_ms, rest) = slave_with_a_broken_queue(dir.path());
    let view = RecordView::parse(&rest[0].1).expect("a record");
    assert!(view.stored_ms > queued_ms, "else this shows nothing");
    assert_eq!(slave.figures().latest_stored_ms, Some(queued_ms));
    slave.close().expect("closed");
    let checkpoint = Checkpoint::read(&dir.path().join("slave/checkpoint")).expect("there");
    assert_eq!(checkpoint.queue_ms, queued_ms);
}

#[test]
fn what_could_not_be_queued_is_written_before_more_is_read() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (slave, _, rest) = slave_with_a_broken_queue(dir.path());
    for (at, bytes) in &rest[1..] {
        slave.log().append_raw(*at, bytes).expect("appended");
    }
    let later = || slave.query("T", "later", 64, 0, i64::MAX).len();
    // Two tries go by in this time: the index shows how far they read.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(later(), 0, "nothing more is held in memory");
    let queue = dir.path().join("slave/consumequeue/T/0");
    fs::remove_file(&queue).expect("removed");
    fs::rename(dir.path().join("aside"), &queue).expect("moved");
    settle(&slave);
    assert_eq!((bodies(&slave, "T", 0).len(), later()), (21, 1));
    assert_eq!(bodies(&slave, "T", 1), ["later"]);
    slave.close().expect("closed");
}

#[test]
fn a_rebuild_steps_over_what_is_no_record() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(&dir.path().join("base"));
    let mut count = 0;
    while store.log().end() < 3 * LOG_FILE_SIZE || count % 2 == 1 {
        put(&store, "T", count % 2, &[b'x'; 2000]);
        count += 1;
    }
    let log = pieces(&store);
    store.close().expect("closed");
    let is_blank = |bytes: &[u8]| RecordView::parse(bytes).is_err();
    let last_in_file = log.iter().position(|(_, b)| is_blank(b)).expect("one") - 1;
    // Size, magic, physical offset and a length, of a record inside a file and of its last one.
    for (n, piece) in [1, last_in_file].into_iter().enumerate() {
        for offset in [1, 2, 5, 30, 35, 84] {
            let root = dir.path().join(format!("{n}-{offset}"));
            copy(&dir.path().join("base"), &root);
            edit(&log_file(&root, 0), |bytes| {
                bytes[log[piece].0 as usize + offset] ^= 0x20
            });
            // One queue has lost its files; by the other one only the log's end is looked at.
            let queue = root.join("consumequeue/T/0");
            fs::remove_dir_all(&queue).expect("removed");
            fs::create_dir(&queue).expect("created");
            let place = format!("record {piece}, byte {offset}");
            let store = open(&root);
            let served = bodies(&store, "T", 0).len() + bodies(&store, "T", 1).len();
            assert_eq!(served as i32, count - 1, "{place}");
            let max = |id| store.queue_bounds("T", id).expect("there").max;
            assert_eq!(max(0) + max(1), i64::from(count), "{place}");
            assert_eq!(store.figures().lost_ranges, 1, "{place}");
            assert_eq!(store.figures().misplaced_records, 0, "{place}");
            store.close().expect("closed");
        }
    }
}

#[test]
fn a_damaged_record_from_a_peer_does_not_stop_the_queues() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let master = open(&dir.path().join("master"));
    for n in 0..5 {
        put(&master, "T", 0, format!("body {n}").as_bytes());
    }
    let mut log = pieces(&master);
    master.close().expect("closed");
    log[2].1[5] ^= 1; // its magic
    let slave = open_slave(&dir.path().join("slave"));
    for (at, bytes) in &log {
        slave.log().append_raw(*at, bytes).expect("appended");
        settle(&slave);
    }
    assert_eq!(
        bodies(&slave, "T", 0),
        ["body 0", "body 1", "body 3", "body 4"]
    );
    assert_eq!(slave.figures().lost_ranges, 1);
    assert!(!slave.figures().dispatch_stopped);
    slave.close().expect("closed");
}
