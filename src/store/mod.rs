//! Bytes on disk: the commit log, and the queues and the index that are derived from it.
//!
//! | file          | what                                                              |
//! |---------------|-------------------------------------------------------------------|
//! | `layout`      | names of files and directories                                    |
//! | `mapped_file` | mapped files: the only `unsafe`                                   |
//! | `file_chain`  | equal-sized files as one address space                            |
//! | `record`      | one stored message; `properties` is the last part of it           |
//! | `commit_log`  | append on a master, append of a master's bytes on a slave, read   |
//! | `consume_queue` `queue_table` `index` | what is derived from the log               |
//! | `dispatch`    | the walk that derives it, and its thread                          |
//! | `flush` `cleanup` `checkpoint` | what reaches the disk, and what leaves it        |
//! | `recovery`    | where the log ends after a crash                                  |
//! | `open`        | opening and closing, in order                                     |
//! | `pull`        | reading queues, look-ups by time and key                          |

pub mod checkpoint;
mod cleanup;
pub mod commit_log;
pub mod config;
pub mod consume_queue;
pub mod dispatch;
pub mod error;
pub mod file_chain;
mod flush;
pub mod index;
pub mod layout;
pub mod mapped_file;
mod open;
pub mod properties;
pub mod pull;
mod queue_table;
pub mod record;
pub mod recovery;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sys::LockFile;
use crate::base::watermark::Watermark;

pub use commit_log::CommitLog;
pub use config::{Cleaning, DelayLevels, StoreConfig};
pub use consume_queue::QueueEntry;
pub use error::{Refusal, StoreError};
pub use mapped_file::Chunk;
pub use pull::{PullLimits, PullStatus, Pulled};
pub use record::Message;

use dispatch::Counters;
use index::Index;
use queue_table::QueueTable;
use record::Prepared;

type ArrivalHook = Arc<dyn Fn(&[Arrival]) + Send + Sync>;

/// How long a reader waits for the dispatcher.
const SETTLE_MAX: Duration = Duration::from_millis(20);

/// The whole store. All methods may be called from any thread.
pub struct Store {
    config: StoreConfig,
    log: CommitLog,
    queues: QueueTable,
    index: Option<Index>,
    /// Everything before is in the queues and the index.
    dispatched: Watermark,
    /// Store time of the last record dispatched.
    dispatched_ms: AtomicI64,
    /// What the last checkpoint covers.
    checkpointed: AtomicU64,
    /// Stretches of the log that hold no record, found by recovery or by the dispatcher.
    lost: RwLock<Vec<Range<u64>>>,
    /// Topics whose queues are of a kind that we do not build.
    batch_topics: HashSet<Box<str>>,
    counters: Counters,
    disk_full: AtomicBool,
    dispatch_stopped: AtomicBool,
    closed: AtomicBool,
    stopping: Stop,
    hooks: RwLock<Vec<ArrivalHook>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    _lock: LockFile,
}

/// A flag that ends sleeps.
#[derive(Default)]
struct Stop {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn set(&self) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn is_set(&self) -> bool {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps, unless or until the flag is set. True if it is.
    fn wait(&self, sleep: Duration) -> bool {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(set, sleep, |set| !*set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Where messages went: one record each, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    pub start: u64,
    pub end: u64,
    pub record_starts: RecordStarts,
    /// Queue offset of the first one; the others follow.
    pub queue_offset: i64,
    pub stored_ms: i64,
}

/// Log offsets of the records; one of them costs no allocation. Derefs to a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordStarts {
    One([u64; 1]),
    Many(Vec<u64>),
}

impl std::ops::Deref for RecordStarts {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            RecordStarts::One(start) => start,
            RecordStarts::Many(starts) => starts,
        }
    }
}

/// Queue offsets that can be read: `min..max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    pub min: i64,
    pub max: i64,
}

/// A queue that grew in a dispatch pass.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub topic: Arc<str>,
    pub queue_id: i32,
    /// The queue's new end.
    pub queue_offset: i64,
    /// Tags code and store time of the last message that came.
    pub tags_code: i64,
    pub stored_ms: i64,
}

/// Figures for people and for runtime info (28).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreFigures {
    pub log_min: u64,
    pub log_max: u64,
    pub flushed: u64,
    pub dispatched: u64,
    /// Readable bytes that are in no queue yet.
    pub dispatch_behind: u64,
    pub queues: usize,
    /// Used share of the file systems of the log and of the queues.
    pub log_disk_ratio: f64,
    pub queue_disk_ratio: f64,
    pub disk_full: bool,
    pub dispatch_stopped: bool,
    /// For how long the append lock has been held, 0 if it is free.
    pub append_busy_ms: u64,
    pub appended_records: u64,
    pub appended_bytes: u64,
    /// Records that recovery found not to be intact.
    pub damaged_records: u64,
    /// Queue entries that pulls stepped over.
    pub stepped_over: u64,
    /// Records whose queue offset contradicts their queue.
    pub misplaced_records: u64,
    /// Stretches of the log that were found to hold no record.
    pub lost_ranges: u64,
    /// Store times of the oldest and the newest record, if there are any.
    pub earliest_stored_ms: Option<i64>,
    pub latest_stored_ms: Option<i64>,
}

impl Store {
    /// Stores messages of one topic and queue behind each other, or none of them. Wakes nobody.
    pub fn append(&self, messages: &[Message<'_>]) -> Result<Appended, StoreError> {
        self.check_writable()?;
        let Some(first) = messages.first() else {
            return Err(StoreError::MessageIllegal("no message".into()));
        };
        let prepare = |message| record::prepare(message, self.config.max_message_size);
        if messages.len() == 1 {
            return self.append_prepared(messages, &[prepare(first)?]);
        }
        for message in messages {
            if (message.topic, message.queue_id) != (first.topic, first.queue_id) {
                return Err(StoreError::MessageIllegal("a batch has one queue".into()));
            }
            if message.sys_flag & record::SYS_TRANSACTION != 0 {
                return Err(StoreError::MessageIllegal(
                    "a batch in a transaction".into(),
                ));
            }
        }
        let prepared = messages
            .iter()
            .map(prepare)
            .collect::<Result<Vec<_>, _>>()?;
        self.append_prepared(messages, &prepared)
    }

    fn append_prepared(
        &self,
        messages: &[Message<'_>],
        prepared: &[Prepared],
    ) -> Result<Appended, StoreError> {
        let appended = self.log.append(messages, prepared);
        if let Err(StoreError::DiskFull(path)) = &appended {
            // The timer clears it when there is room again.
            if !self.set_disk_full(true) {
                log::error!("no space left for {}", path.display());
            }
        }
        appended
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        let refused = |why| Err(StoreError::NotWritable(why));
        if self.closed.load(Ordering::Acquire) {
            return refused(Refusal::Closed);
        }
        if self.config.slave {
            return refused(Refusal::Slave);
        }
        if self.disk_full.load(Ordering::Relaxed) {
            return refused(Refusal::DiskFull);
        }
        if self.dispatch_stopped.load(Ordering::Relaxed) {
            return refused(Refusal::DispatchStopped);
        }
        Ok(())
    }

    /// Once a batch: flush, dispatch and replication look at the log again.
    pub fn wake_followers(&self) {
        self.log.wake();
    }

    pub fn log(&self) -> &CommitLog {
        &self.log
    }

    /// Everything before is on the disk.
    pub fn flushed(&self) -> &Watermark {
        self.log.flushed()
    }

    /// Everything before is in the queues and the index.
    pub fn dispatched(&self) -> &Watermark {
        &self.dispatched
    }

    /// Waits until what can be read now is in the queues, so that whoever was told that a message
    /// is stored finds it there. The dispatcher is microseconds behind; when it is further, as
    /// while a slave catches up, the queues are read as they are after `SETTLE_MAX`.
    pub fn settle(&self) {
        let readable = self.log.readable().get();
        if self.dispatched.get() < readable {
            self.dispatched.wait(readable, Instant::now() + SETTLE_MAX);
        }
    }

    pub fn is_sync_flush(&self) -> bool {
        self.config.sync_flush
    }

    pub fn is_slave(&self) -> bool {
        self.config.slave
    }

    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    pub fn queue_bounds(&self, topic: &str, queue_id: i32) -> Option<QueueBounds> {
        let queue = self.queues.get(topic, queue_id)?;
        Some(QueueBounds {
            min: queue.min(),
            max: queue.max(),
        })
    }

    /// Ids of a topic's queues that hold or held messages.
    pub fn queues_of(&self, topic: &str) -> Vec<i32> {
        self.queues.ids(topic)
    }

    /// Topics that have queues.
    pub fn topics(&self) -> Vec<Arc<str>> {
        self.queues.topics()
    }

    /// Has `hook` called after each dispatch pass that made queues grow.
    pub fn on_arrival(&self, hook: impl Fn(&[Arrival]) + Send + Sync + 'static) {
        let mut hooks = self.hooks.write().unwrap_or_else(PoisonError::into_inner);
        hooks.push(Arc::new(hook));
    }

    fn tell_arrivals(&self, arrivals: &[Arrival]) {
        if arrivals.is_empty() {
            return;
        }
        let hooks = self
            .hooks
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for hook in hooks {
            hook(arrivals);
        }
    }

    /// Deletes a topic's queues; its records leave with their log files. Queue offsets of the
    /// topic start at 0 again.
    pub fn delete_topic(&self, topic: &str) -> Result<(), StoreError> {
        self.log.forget_topic(topic);
        self.queues.delete_topic(topic)
    }

    /// Sets the flag that refuses messages; returns what it was.
    fn set_disk_full(&self, full: bool) -> bool {
        let was = self.disk_full.swap(full, Ordering::Relaxed);
        if was && !full {
            log::info!("there is room on the disk again");
        }
        was
    }

    fn set_dispatch_stopped(&self, stopped: bool) -> bool {
        self.dispatch_stopped.swap(stopped, Ordering::Relaxed)
    }

    pub fn figures(&self) -> StoreFigures {
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (log_disk_ratio, queue_disk_ratio) = self.disk_ratios();
        let since = self.log.append_since_ms.load(Ordering::Relaxed);
        let busy = if since == 0 {
            0
        } else {
            clock::wall_ms() - since
        };
        let newest = self.log.latest_stored_ms.load(Ordering::Acquire);
        let newest = newest.max(self.dispatched_ms.load(Ordering::Acquire));
        let (readable, dispatched) = (self.log.readable().get(), self.dispatched.get());
        StoreFigures {
            log_min: self.log.start(),
            log_max: self.log.end(),
            flushed: self.log.flushed().get(),
            dispatched,
            dispatch_behind: readable.saturating_sub(dispatched),
            queues: self.queues.all().len(),
            log_disk_ratio,
            queue_disk_ratio,
            disk_full: self.disk_full.load(Ordering::Relaxed),
            dispatch_stopped: self.dispatch_stopped.load(Ordering::Relaxed),
            append_busy_ms: busy.max(0) as u64,
            appended_records: counter(&self.log.appended_records),
            appended_bytes: counter(&self.log.appended_bytes),
            damaged_records: counter(&self.counters.damaged),
            stepped_over: counter(&self.counters.stepped_over),
            misplaced_records: counter(&self.counters.misplaced),
            lost_ranges: counter(&self.counters.lost_ranges),
            earliest_stored_ms: self.stored_ms(self.log.start()),
            latest_stored_ms: (newest > 0).then_some(newest),
        }
    }
}
