//! The commit log as replication sees it: bytes at offsets, and nothing of topics.

use std::fmt;
use std::ops::Deref;

use crate::base::watermark::Watermark;
use crate::store::{Chunk, Refusal, Store, StoreError};

/// A log that is read (on a master) and continued (on a slave). The store's commit log is one;
/// tests have one in memory.
pub trait Log: Send + Sync + 'static {
    /// Bytes of the log that stay readable as long as they are held.
    type Chunk: Deref<Target = [u8]> + Send;

    /// Offset of the first byte that is still there.
    fn start(&self) -> u64;
    /// End of what was written.
    fn end(&self) -> u64;
    /// How far a slave may be fed; at most `end`.
    fn readable(&self) -> &Watermark;
    /// Bytes of one file. A file's base is a multiple of it.
    fn file_size(&self) -> u64;
    /// No file at all: the log may begin at any file's base.
    fn is_empty(&self) -> bool;
    /// At most `max` bytes from `from`, up to `readable`, never across a file's end. `None` where
    /// nothing can be read.
    fn read(&self, from: u64, max: usize) -> Option<Self::Chunk>;
    /// Continues the log with whole records, or a file's blank with its filler, inside one file.
    fn append_raw(&self, start: u64, bytes: &[u8]) -> Result<(), AppendError>;
    /// Tells those who follow the log that it moved; once a batch.
    fn wake(&self);
}

/// Where a log begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    pub start: u64,
    pub end: u64,
}

impl LogRange {
    pub fn of(log: &impl Log) -> LogRange {
        LogRange {
            start: log.start(),
            end: log.end(),
        }
    }
}

/// Why a log could not be continued. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// No room on the disk. The link is closed and tried again: room may come back.
    Full(String),
    /// Anything else; the text says what and where.
    Failed(String),
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppendError::Full(why) => write!(f, "no room for the log: {why}"),
            AppendError::Failed(why) => write!(f, "log not written: {why}"),
        }
    }
}

impl Log for Store {
    type Chunk = Chunk;

    fn start(&self) -> u64 {
        self.log().start()
    }

    fn end(&self) -> u64 {
        self.log().end()
    }

    fn readable(&self) -> &Watermark {
        self.log().readable()
    }

    fn file_size(&self) -> u64 {
        self.log().file_size()
    }

    fn is_empty(&self) -> bool {
        self.log().is_empty()
    }

    fn read(&self, from: u64, max: usize) -> Option<Chunk> {
        self.log().read(from, max)
    }

    fn append_raw(&self, start: u64, bytes: &[u8]) -> Result<(), AppendError> {
        self.log()
            .append_raw(start, bytes)
            .map_err(AppendError::from)
    }

    fn wake(&self) {
        self.wake_followers();
    }
}

impl From<StoreError> for AppendError {
    fn from(error: StoreError) -> AppendError {
        match error {
            StoreError::DiskFull(_) => AppendError::Full(error.to_string()),
            StoreError::NotWritable(Refusal::DiskFull) => AppendError::Full(error.to_string()),
            _ => AppendError::Failed(error.to_string()),
        }
    }
}
