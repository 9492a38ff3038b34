//! One queue of one topic: 20-byte entries that point into the log.

/// Bytes of an entry: log offset, size, tags code.
pub const ENTRY_SIZE: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    pub log_offset: u64,
    pub size: u32,
    /// Hash of the tags; the delivery time in the delay topic.
    pub tags_code: i64,
}
