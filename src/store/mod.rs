//! Bytes on disk: the commit log, and the queues and the index that are derived from it.

pub mod commit_log;
pub mod config;
pub mod consume_queue;
pub mod error;
pub mod layout;
pub mod mapped_file;
pub mod properties;
pub mod pull;
pub mod record;

use std::sync::Arc;

use crate::base::watermark::Watermark;

pub use commit_log::CommitLog;
pub use config::{Cleaning, DelayLevels, StoreConfig};
pub use consume_queue::QueueEntry;
pub use error::{Refusal, StoreError};
pub use mapped_file::Chunk;
pub use pull::{PullLimits, PullStatus, Pulled};
pub use record::Message;

/// The whole store. All methods may be called from any thread.
pub struct Store {
    log: CommitLog,
    dispatched: Watermark,
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
    /// Tag code of the last message that came.
    pub tags_code: i64,
    /// Store time of the last message that came.
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
    /// Used share of the file systems of the log (the fullest counts) and of the queues.
    pub log_disk_ratio: f64,
    pub queue_disk_ratio: f64,
    pub disk_full: bool,
    pub dispatch_stopped: bool,
    /// For how long the append lock has been held, 0 if it is free.
    pub append_busy_ms: u64,
    pub appended_records: u64,
    pub appended_bytes: u64,
    /// Records met that were not intact, and queue entries that pulls stepped over.
    pub damaged_records: u64,
    pub stepped_over: u64,
    /// Stretches of the log that recovery found to hold no record.
    pub lost_ranges: u64,
    /// Store times of the oldest and the newest record, if there are any.
    pub earliest_stored_ms: Option<i64>,
    pub latest_stored_ms: Option<i64>,
}

impl Store {
    pub fn open(_config: StoreConfig) -> Result<Arc<Store>, StoreError> {
        todo!()
    }

    /// Stores messages of one topic and queue behind each other. Wakes nobody.
    pub fn append(&self, _messages: &[Message<'_>]) -> Result<Appended, StoreError> {
        todo!()
    }

    /// Once a batch: flush, dispatch and replication look at the log again.
    pub fn wake_followers(&self) {
        self.log.wake();
    }

    pub fn log(&self) -> &CommitLog {
        &self.log
    }

    pub fn flushed(&self) -> &Watermark {
        todo!()
    }

    pub fn dispatched(&self) -> &Watermark {
        &self.dispatched
    }

    pub fn is_sync_flush(&self) -> bool {
        todo!()
    }

    pub fn is_slave(&self) -> bool {
        todo!()
    }

    /// The whole record at a log offset, checked.
    pub fn record(&self, _offset: u64) -> Result<Chunk, StoreError> {
        todo!()
    }

    pub fn queue_bounds(&self, _topic: &str, _queue_id: i32) -> Option<QueueBounds> {
        todo!()
    }

    pub fn queues_of(&self, _topic: &str) -> Vec<i32> {
        todo!()
    }

    pub fn topics(&self) -> Vec<Arc<str>> {
        todo!()
    }

    pub fn pull(
        &self,
        _topic: &str,
        _queue_id: i32,
        _from: i64,
        _limits: PullLimits,
        _filter: &dyn Fn(i64) -> bool,
    ) -> Pulled {
        todo!()
    }

    pub fn entry(&self, _topic: &str, _queue_id: i32, _offset: i64) -> Option<QueueEntry> {
        todo!()
    }

    pub fn offset_by_time(&self, _topic: &str, _queue_id: i32, _time_ms: i64, _upper: bool) -> i64 {
        todo!()
    }

    /// Log offsets of the messages with this key, newest first.
    pub fn query(
        &self,
        _topic: &str,
        _key: &str,
        _max: usize,
        _begin_ms: i64,
        _end_ms: i64,
    ) -> Vec<u64> {
        todo!()
    }

    pub fn on_arrival(&self, _hook: impl Fn(&[Arrival]) + Send + Sync + 'static) {
        todo!()
    }

    pub fn delete_topic(&self, _topic: &str) -> Result<(), StoreError> {
        todo!()
    }

    pub fn figures(&self) -> StoreFigures {
        todo!()
    }

    pub fn close(&self) -> Result<(), StoreError> {
        todo!()
    }
}
