//! Opening and closing a store, in order.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::checkpoint::Checkpoint;
use super::commit_log::{CommitLog, QueueOffsets};
use super::config::StoreConfig;
use super::consume_queue::ENTRY_SIZE;
use super::dispatch::{self, Counters, Dispatcher, QueueName, Scope};
use super::error::StoreError;
use super::index::{Index, Shape};
use super::mapped_file::sync_parent;
use super::queue_table::{QueueTable, sub_directories};
use super::record::RecordView;
use super::recovery::{self, Kept, LogFiles};
use super::{Stop, Store, cleanup, flush, layout};
use crate::base::sys::{self, LockFile};
use crate::base::watermark::Watermark;

impl Store {
    /// Opens the store: lock, find the log's end, bring queues and index up to it, give out queue
    /// offsets from there, start the threads.
    pub fn open(config: StoreConfig) -> Result<Arc<Store>, StoreError> {
        check(&config)?;
        let root = config.root.clone();
        for dir in config.commit_log_dirs.iter().chain([&root]) {
            fs::create_dir_all(dir).map_err(|error| StoreError::system("create", dir, error))?;
        }
        let lock = lock(&root)?;
        let clean = !layout::abort(&root).exists();
        let recovered = recover(&config, clean)?;
        let store = assemble(config, lock, recovered.kept, recovered.parts);
        store.catch_up(&recovered.scope, recovered.end, recovered.thorough)?;
        let store = Arc::new(store);
        store.start_threads()?;
        Ok(store)
    }

    /// Brings queues and index up to the log's end, and the queue offsets after them.
    fn catch_up(&self, scope: &Scope, end: u64, thorough: bool) -> Result<(), StoreError> {
        let from = scope
            .queues_from
            .min(scope.index_from)
            .max(self.log.start());
        let mut walk = Dispatcher::new(self, from, scope.clone());
        walk.run_to(end)?;
        let wrong = self.queues_that_end_wrong(if thorough { 0 } else { from });
        if !wrong.is_empty() {
            dispatch::rebuild(self, wrong, end)?;
        }
        let mut next = QueueOffsets::default();
        for queue in self.queues.all() {
            queue.tidy(thorough)?;
            queue.correct_min(self.log.start())?;
            next.set(&queue.topic, queue.queue_id, queue.max());
        }
        self.queues.remove_empty();
        self.log.set_queue_offsets(next);
        self.dispatched.reset(end);
        Ok(())
    }

    /// Queues whose last entry, at `from` or behind it in the log, is not what its record says.
    fn queues_that_end_wrong(&self, from: u64) -> HashSet<QueueName> {
        let fits = |offset: i64, at: u64, queue: &super::consume_queue::ConsumeQueue| {
            let chunk = self.record(at);
            chunk.is_ok_and(|chunk| {
                RecordView::parse(&chunk).is_ok_and(|view| {
                    let place = (view.topic, view.queue_id, view.queue_offset);
                    place == (&*queue.topic, queue.queue_id, offset)
                })
            })
        };
        let mut wrong = HashSet::new();
        for queue in self.queues.all() {
            let Some((offset, entry)) = queue.last_entry() else {
                continue;
            };
            let there = entry.log_offset >= from.max(self.log.start());
            if there && !fits(offset, entry.log_offset, &queue) {
                log::warn!("queue {}/{} ends wrong", queue.topic, queue.queue_id);
                wrong.insert((queue.topic.clone(), queue.queue_id));
            }
        }
        wrong
    }

    fn start_threads(self: &Arc<Self>) -> Result<(), StoreError> {
        type Body = fn(&Store);
        let bodies: [(&str, Body); 3] = [
            ("flush", flush::run),
            ("dispatch", dispatch::run),
            ("store-timer", cleanup::run),
        ];
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, body) in bodies {
            let store = self.clone();
            let thread = sys::spawn(name, move || body(&store))
                .map_err(|error| StoreError::system("start thread", Path::new(name), error))?;
            threads.push(thread);
        }
        Ok(())
    }

    /// Takes no more messages, brings everything to the disk, and ends the threads. The store is
    /// marked as closed properly only if queues and index have all of the log.
    pub fn close(&self) -> Result<(), StoreError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        flush::or_abort(self.log.flush());
        self.stopping.set();
        self.log.wrote().close();
        self.log.flushed().close();
        let threads = {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *threads)
        };
        for thread in threads {
            // A thread that panicked has said so; the store is not marked as closed then.
            let _ = thread.join();
        }
        flush::or_abort(self.log.flush());
        self.checkpoint()?;
        self.dispatched.close();
        let complete = self.dispatched.get() == self.log.end();
        if complete && !self.disk_full.load(Ordering::Relaxed) {
            let abort = layout::abort(&self.config.root);
            fs::remove_file(&abort).map_err(|error| StoreError::system("remove", &abort, error))?;
            sync_parent(&abort)?;
        } else {
            log::warn!("the store stays marked as not closed properly");
        }
        Ok(())
    }
}

/// What recovery hands to the store.
struct Recovered {
    parts: Parts,
    kept: Kept,
    scope: Scope,
    end: u64,
    /// Something may lie behind the queues' ends.
    thorough: bool,
}

struct Parts {
    queues: QueueTable,
    index: Option<Index>,
    lost: Vec<std::ops::Range<u64>>,
    damaged: u64,
    end: u64,
    batch_topics: HashSet<Box<str>>,
}

/// Finds the log's end and cuts what lies behind it; sets queues and index back to where they
/// are surely right.
fn recover(config: &StoreConfig, clean: bool) -> Result<Recovered, StoreError> {
    let root = &config.root;
    let log = LogFiles::open(config)?;
    let (queues, emptied) = QueueTable::open(root, config.queue_file_size)?;
    let checkpoint = Checkpoint::read(&layout::checkpoint(root))?;
    let index = match config.index_enabled {
        true => {
            let shape = Shape {
                slots: config.hash_slots,
                entries: config.index_entries,
            };
            Some(Index::open(
                &layout::index(root),
                shape,
                checkpoint.index_ms,
            )?)
        }
        false => None,
    };
    // From here on files are changed: until this store is closed properly it counts as crashed.
    mark_open(root)?;
    for queue in queues.all() {
        queue.cut(u64::MAX)?;
    }
    if log.is_empty() {
        forget_derived(&queues, index.as_ref())?;
    }
    let from = recovery::start(&log, &queues, &checkpoint, clean);
    let scan = log.scan(from, clean, config.check_crc_on_recover);
    if !clean {
        log::info!(
            "not closed properly: log looked at from {from} to {}",
            scan.end
        );
    }
    let scope = scope(&log, &queues, index.as_ref(), from, &scan, clean, emptied)?;
    for queue in queues.all() {
        queue.cut(scope.queues_from.min(scan.end))?;
    }
    let cut = scan.stopped.is_some();
    let kept = log.cut(scan.end, scan.stopped, config.slave)?;
    let mut end = scan.end;
    if kept.is_empty() {
        forget_derived(&queues, index.as_ref())?;
        end = 0;
    }
    for file in kept
        .complete
        .iter()
        .filter(|file| !clean && file.base() >= from)
    {
        file.sync()?;
    }
    let parts = Parts {
        queues,
        index,
        lost: scan.lost,
        damaged: scan.damaged,
        end,
        batch_topics: batch_topics(root)?,
    };
    Ok(Recovered {
        parts,
        kept,
        scope,
        end,
        thorough: !clean || cut,
    })
}

/// From where queues and index are built: the scan's start, or the log's where they are gone.
fn scope(
    log: &LogFiles,
    queues: &QueueTable,
    index: Option<&Index>,
    from: u64,
    scan: &recovery::Scan,
    clean: bool,
    emptied: bool,
) -> Result<Scope, StoreError> {
    let mut scope = Scope {
        queues_from: from,
        index_from: from,
        rebuild: None,
    };
    if from > log.start() && (emptied || queues.all().is_empty()) {
        log::warn!("consume queues are missing: built anew from the log");
        scope.queues_from = log.start();
    }
    let Some(index) = index else {
        scope.index_from = u64::MAX;
        return Ok(scope);
    };
    let beyond = index
        .end_offset()
        .is_some_and(|offset| offset >= scan.end as i64);
    if !index.is_empty() && (!clean || beyond) {
        let complete = index.repair(scan.end, &|at| log.stored_ms(at))?;
        if !complete {
            let end = index.end_offset().unwrap_or(0).max(0) as u64;
            scope.index_from = end.clamp(log.start(), from);
        }
    }
    if index.is_empty() && from > log.start() {
        log::warn!("the index is missing: built anew from the log");
        scope.index_from = log.start();
    }
    Ok(scope)
}

/// Without a log there is nothing that queues and index could point to.
fn forget_derived(queues: &QueueTable, index: Option<&Index>) -> Result<(), StoreError> {
    if !queues.all().is_empty() {
        log::warn!("there is no commit log: the consume queues are removed");
    }
    for topic in queues.topics() {
        queues.delete_topic(&topic)?;
    }
    index.map_or(Ok(()), Index::remove_all)
}

fn assemble(config: StoreConfig, lock: LockFile, kept: Kept, parts: Parts) -> Store {
    let log = CommitLog::new(&config);
    log.adopt_recovered(kept.complete, kept.last, parts.end);
    let counters = Counters::default();
    counters.damaged.store(parts.damaged, Ordering::Relaxed);
    counters
        .lost_ranges
        .store(parts.lost.len() as u64, Ordering::Relaxed);
    Store {
        config,
        log,
        queues: parts.queues,
        index: parts.index,
        dispatched: Watermark::new(0),
        dispatched_ms: AtomicI64::new(0),
        checkpointed: AtomicU64::new(u64::MAX),
        lost: RwLock::new(parts.lost),
        batch_topics: parts.batch_topics,
        counters,
        disk_full: AtomicBool::new(false),
        dispatch_stopped: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        stopping: Stop::default(),
        hooks: RwLock::default(),
        threads: Mutex::default(),
        _lock: lock,
    }
}

fn check(config: &StoreConfig) -> Result<(), StoreError> {
    let refuse = |reason: &str| Err(StoreError::Refused(reason.into()));
    let size = config.log_file_size;
    if !(4096..=i32::MAX as u64).contains(&size) {
        return refuse("mappedFileSizeCommitLog must be 4096 to 2147483647");
    }
    let size = config.queue_file_size;
    if size == 0 || !size.is_multiple_of(ENTRY_SIZE as u64) || size > i32::MAX as u64 {
        return refuse("mappedFileSizeConsumeQueue must be a multiple of 20 up to 2147483647");
    }
    if config.hash_slots == 0 || config.index_entries < 2 {
        return refuse("maxHashSlotNum must be at least 1, maxIndexNum at least 2");
    }
    if config.commit_log_dirs.is_empty() {
        return refuse("there is no directory for the commit log");
    }
    if layout::rocksdb_marker(&config.root).exists() {
        let reason = format!(
            "{} is a RocksDB database: set storeType=default in the original, or move the \
             directory away to have the queues built anew",
            layout::consume_queues(&config.root).display()
        );
        return Err(StoreError::Refused(reason));
    }
    Ok(())
}

fn lock(root: &Path) -> Result<LockFile, StoreError> {
    let path = layout::lock(root);
    LockFile::take(&path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StoreError::InUse(path),
        _ => StoreError::system("lock", &path, error),
    })
}

/// Creates `abort`; as 5.x does, it holds the process id.
fn mark_open(root: &Path) -> Result<(), StoreError> {
    let path = layout::abort(root);
    fs::write(&path, std::process::id().to_string())
        .map_err(|error| StoreError::system("write", &path, error))?;
    sync_parent(&path)
}

/// Topics that a 5.x broker keeps in another kind of queue.
fn batch_topics(root: &Path) -> Result<HashSet<Box<str>>, StoreError> {
    let names = sub_directories(&root.join("batchconsumequeue"))?;
    for name in &names {
        log::warn!("topic {name} has batch queues, which are not served");
    }
    Ok(names.into_iter().map(Box::from).collect())
}
