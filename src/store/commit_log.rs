//! The store as a log of bytes.

use crate::base::watermark::Watermark;

use super::error::StoreError;
use super::mapped_file::Chunk;

pub struct CommitLog {}

impl CommitLog {
    /// Log offset of the first byte there is; 0 when there is no file.
    pub fn start(&self) -> u64 {
        todo!()
    }

    /// Log offset behind the last byte written.
    pub fn end(&self) -> u64 {
        todo!()
    }

    /// Up to where slaves and consumers may read: what is flushed under SYNC_FLUSH, else what
    /// is written.
    pub fn readable(&self) -> &Watermark {
        todo!()
    }

    pub fn file_size(&self) -> u64 {
        todo!()
    }

    /// True if there is no file at all.
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// At most `max` readable bytes from `from` on, never across a file's end.
    pub fn read(&self, _from: u64, _max: usize) -> Option<Chunk> {
        todo!()
    }

    /// Appends a master's bytes: whole records, or a file's blank with all its filler. `start`
    /// is where the log ends, unless the log has no file yet. The caller wakes the followers.
    pub fn append_raw(&self, _start: u64, _bytes: &[u8]) -> Result<(), StoreError> {
        todo!()
    }

    pub fn wake(&self) {
        todo!()
    }
}
