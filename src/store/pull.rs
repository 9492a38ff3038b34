//! Reading a queue: pulls and look-ups by time.

use super::mapped_file::Chunk;

/// Most queue entries that one pull looks at.
pub const ENTRIES_EXAMINED_MAX: i64 = 800;
/// Most messages and bytes in one answer; a first message of any size always passes.
pub const PULL_MESSAGES_MAX: usize = 32;
pub const PULL_BYTES_MAX: usize = 256 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullLimits {
    pub max_messages: usize,
    pub max_bytes: usize,
}

/// Java's names for how a pull ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullStatus {
    Found,
    NoMatchedMessage,
    MessageWasRemoving,
    NoMatchedLogicQueue,
    NoMessageInQueue,
    OffsetOverflowOne,
    OffsetOverflowBadly,
    OffsetTooSmall,
}

pub struct Pulled {
    pub status: PullStatus,
    /// Where the next pull begins; the corrected offset where the asked one cannot be read.
    pub next: i64,
    pub min: i64,
    pub max: i64,
    /// Whole records in queue order.
    pub records: Vec<Chunk>,
    /// Bytes of all records.
    pub bytes: usize,
    /// How far behind the log's end the last examined record lies.
    pub behind_bytes: u64,
}
