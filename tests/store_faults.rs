//! What disks, peers and crashes do to a store, and how it goes on.

mod local;

use std::fs;

use local::*;
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
