//! One queue of one topic: entries that point into the log, in queue order.
//!
//! An entry (`ENTRY_SIZE` bytes, big-endian):
//!
//! | offset | size | field      | meaning                                                     |
//! |-------:|-----:|------------|-------------------------------------------------------------|
//! |      0 |    8 | log offset | of the record                                               |
//! |      8 |    4 | size       | of the record; 0 ends the queue                             |
//! |     12 |    8 | tags code  | Java hash of the tags; delivery time in the delay topic     |
//!
//! Queue offset q lives at byte 20·q of the queue, so a file is found by division and writing an
//! entry twice changes nothing. Where a queue does not start at 0, or messages of it were lost,
//! *filler* entries (0, 2147483647, 0) take the places, as in the original.
//!
//! Queues are derived from the log: what is wrong with one is repaired from there. They are read
//! and written through descriptors, since thousands of queues must not need as many mappings;
//! a file has its exact size from the start and is sparse.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use byteorder::{BigEndian, ByteOrder};

use super::error::StoreError;
use super::file_chain::{self, FileChain};
use super::layout;
use super::mapped_file::{punch, sync_parent};

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 20;
/// The size field of a filler.
const FILLER_SIZE: u32 = i32::MAX as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    pub log_offset: u64,
    pub size: u32,
    /// Hash of the tags; the delivery time in the delay topic.
    pub tags_code: i64,
}

impl QueueEntry {
    pub const FILLER: QueueEntry = QueueEntry {
        log_offset: 0,
        size: FILLER_SIZE,
        tags_code: 0,
    };

    pub fn is_filler(&self) -> bool {
        self.size == FILLER_SIZE && self.log_offset == 0
    }

    /// Log offset behind the record.
    pub fn log_end(&self) -> u64 {
        self.log_offset + u64::from(self.size)
    }

    pub fn to_bytes(self) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        BigEndian::write_u64(&mut bytes, self.log_offset);
        BigEndian::write_u32(&mut bytes[8..], self.size);
        BigEndian::write_i64(&mut bytes[12..], self.tags_code);
        bytes
    }

    /// `None` for what ends a queue: zeros, or anything that cannot be an entry.
    pub fn from_bytes(bytes: &[u8]) -> Option<QueueEntry> {
        let bytes = bytes.get(..ENTRY_SIZE)?;
        let log_offset = BigEndian::read_i64(bytes);
        let size = BigEndian::read_i32(&bytes[8..]);
        (log_offset >= 0 && size > 0).then(|| QueueEntry {
            log_offset: log_offset as u64,
            size: size as u32,
            tags_code: BigEndian::read_i64(&bytes[12..]),
        })
    }
}

struct QueueFile {
    path: PathBuf,
    file: OnceLock<File>,
}

impl QueueFile {
    /// Opened when first used: a store has many more queue files than are read.
    fn get(&self) -> Result<&File, StoreError> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = File::options()
            .read(true)
            .write(true)
            .open(&self.path)
            .map_err(|error| StoreError::system("open", &self.path, error))?;
        Ok(self.file.get_or_init(|| file))
    }
}

pub struct ConsumeQueue {
    pub topic: Arc<str>,
    pub queue_id: i32,
    dir: PathBuf,
    files: FileChain<QueueFile>,
    /// First entry whose record is still in the log.
    min: AtomicI64,
    /// Behind the last entry.
    max: AtomicI64,
    /// First byte that may not be on the disk; `u64::MAX` if all is.
    dirty_from: AtomicU64,
    new_files: AtomicBool,
}

impl ConsumeQueue {
    /// A queue whose entries have not been looked at: `cut` finds its end.
    pub fn open(
        dir: PathBuf,
        topic: Arc<str>,
        id: i32,
        size: u64,
    ) -> Result<ConsumeQueue, StoreError> {
        let queue = ConsumeQueue {
            topic,
            queue_id: id,
            files: FileChain::new(size),
            min: AtomicI64::new(0),
            max: AtomicI64::new(0),
            dirty_from: AtomicU64::new(u64::MAX),
            new_files: AtomicBool::new(false),
            dir,
        };
        let found = file_chain::list(&queue.dir, size)?;
        if file_chain::check_contiguous(&found, size).is_err() {
            log::warn!("{}: files are missing, built anew", queue.dir.display());
            queue.remove_files()?;
            return Ok(queue);
        }
        for file in found {
            let queue_file = QueueFile {
                path: file.path,
                file: OnceLock::new(),
            };
            queue.files.push(file.base, Arc::new(queue_file));
        }
        let first = queue.files_start();
        queue.min.store(first, Ordering::Release);
        queue.max.store(first, Ordering::Release);
        Ok(queue)
    }

    pub fn min(&self) -> i64 {
        self.min.load(Ordering::Acquire)
    }

    pub fn max(&self) -> i64 {
        self.max.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// True if there is no entry, whatever files there are.
    pub fn has_no_entries(&self) -> bool {
        self.max() == self.files_start()
    }

    /// True if an entry at this offset would follow others, or replace one.
    pub fn holds(&self, offset: i64) -> bool {
        !self.has_no_entries() && (self.files_start()..=self.max()).contains(&offset)
    }

    /// The entry at a queue offset below the end; `None` for one that cannot be an entry.
    pub fn entry(&self, offset: i64) -> Option<QueueEntry> {
        let mut bytes = [0; ENTRY_SIZE];
        if offset >= self.max() || self.read(offset, &mut bytes).ok()? < ENTRY_SIZE {
            return None;
        }
        QueueEntry::from_bytes(&bytes)
    }

    /// The last entry that is no filler.
    pub fn last_entry(&self) -> Option<(i64, QueueEntry)> {
        let first = self.files_start();
        (first..self.max()).rev().find_map(|offset| {
            let entry = self.entry(offset)?;
            (!entry.is_filler()).then_some((offset, entry))
        })
    }

    /// Reads raw entries from `offset` on into `bytes`, as many as one file gives. Returns the
    /// bytes read; entries at or behind `max` are whatever the file holds.
    pub fn read(&self, offset: i64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        let Ok(at) = u64::try_from(offset).map(|offset| offset * ENTRY_SIZE as u64) else {
            return Ok(0);
        };
        let Some((base, file)) = self.files.find(at) else {
            return Ok(0);
        };
        let in_file = at - base;
        let len = bytes.len().min((self.files.file_size() - in_file) as usize);
        file.get()?
            .read_exact_at(&mut bytes[..len], in_file)
            .map_err(|error| StoreError::system("read", &file.path, error))?;
        Ok(len)
    }

    /// Writes entries from queue offset `first` on and moves the end behind them.
    pub fn write(&self, first: i64, entries: &[u8]) -> Result<(), StoreError> {
        let start = first as u64 * ENTRY_SIZE as u64;
        let mut at = start;
        let mut rest = entries;
        while !rest.is_empty() {
            let (base, file) = self.file_for(at)?;
            let room = (base + self.files.file_size() - at) as usize;
            let (part, next) = rest.split_at(rest.len().min(room));
            file.get()?
                .write_all_at(part, at - base)
                .map_err(|error| StoreError::system("write", &file.path, error))?;
            at += part.len() as u64;
            rest = next;
        }
        self.dirty_from.fetch_min(start, Ordering::AcqRel);
        self.max
            .fetch_max((at / ENTRY_SIZE as u64) as i64, Ordering::AcqRel);
        Ok(())
    }

    /// The first entry of a queue that does not begin at 0: fillers from its file's start on,
    /// then the entries.
    pub fn write_first(&self, first: i64, entries: &[u8]) -> Result<(), StoreError> {
        let per_file = (self.files.file_size() / ENTRY_SIZE as u64) as i64;
        let start = first - first % per_file;
        if self.files_start() != start {
            self.remove_files()?; // of entries that were all cut off
        }
        let mut bytes = QueueEntry::FILLER
            .to_bytes()
            .repeat((first - start) as usize);
        bytes.extend_from_slice(entries);
        self.write(start, &bytes)?;
        self.min.store(first, Ordering::Release);
        Ok(())
    }

    /// The file for a byte of the queue, created if it is the first or the next one.
    fn file_for(&self, at: u64) -> Result<(u64, Arc<QueueFile>), StoreError> {
        if let Some(found) = self.files.find(at) {
            return Ok(found);
        }
        let size = self.files.file_size();
        let base = at - at % size;
        let path = self.dir.join(layout::offset_file(base));
        fs::create_dir_all(&self.dir)
            .map_err(|error| StoreError::system("create", &self.dir, error))?;
        let create = || -> io::Result<File> {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)?;
            file.set_len(size)?;
            Ok(file)
        };
        let file = create().map_err(|error| {
            let _ = fs::remove_file(&path); // one of the wrong size would stop the next start
            StoreError::system("create", &path, error)
        })?;
        let queue_file = Arc::new(QueueFile {
            path,
            file: OnceLock::from(file),
        });
        self.files.push(base, queue_file.clone());
        self.new_files.store(true, Ordering::Release);
        Ok((base, queue_file))
    }

    /// Has the disk keep all entries.
    pub fn sync(&self) -> Result<(), StoreError> {
        let from = self.dirty_from.swap(u64::MAX, Ordering::AcqRel);
        if from == u64::MAX {
            return Ok(());
        }
        let size = self.files.file_size();
        for (base, file) in self.files.all() {
            if base + size > from {
                rustix::fs::fdatasync(file.get()?)
                    .map_err(|error| StoreError::sync(&file.path, error.into()))?;
            }
        }
        if self.new_files.swap(false, Ordering::AcqRel) {
            // The file's, the queue's and the topic's names.
            let topic = self.dir.parent().unwrap_or(&self.dir);
            for path in [&self.dir.join("file"), &self.dir, topic] {
                sync_parent(path)?;
            }
        }
        Ok(())
    }

    /// Finds the queue's end: everything from the first entry that is none, or whose record is
    /// at `log_limit` or behind, does not count. Log offsets never fall within a queue, so it
    /// takes a binary search. Nothing is changed on disk.
    pub fn cut(&self, log_limit: u64) -> Result<(), StoreError> {
        let first = self.leading_fillers_end()?;
        let mut end = self.partition_point(first, self.files_end(), |entry| {
            entry.is_some_and(|e| e.log_offset < log_limit)
        })?;
        if end == first {
            end = self.files_start(); // fillers alone say nothing
        }
        self.max.store(end, Ordering::Release);
        Ok(())
    }

    /// Makes what lies behind the end zero and removes files without an entry, so that neither
    /// we nor the original take it for entries. Unless `thorough`, only if the place of the next
    /// entry shows that there is something.
    pub fn tidy(&self, thorough: bool) -> Result<(), StoreError> {
        let end = self.max() as u64 * ENTRY_SIZE as u64;
        while let Some((base, file)) = self.files.last() {
            if base < end {
                break;
            }
            fs::remove_file(&file.path)
                .map_err(|error| StoreError::system("remove", &file.path, error))?;
            self.files.pop_last();
            self.new_files.store(true, Ordering::Release);
            self.dirty_from.fetch_min(end, Ordering::AcqRel);
        }
        let Some((base, file)) = self.files.find(end) else {
            if self.files.is_empty() {
                self.min.store(0, Ordering::Release);
                self.max.store(0, Ordering::Release);
                let _ = fs::remove_dir(&self.dir); // only if it is empty
            }
            return Ok(());
        };
        let mut next = [0; ENTRY_SIZE];
        self.read(self.max(), &mut next)?;
        if thorough || next != [0; ENTRY_SIZE] {
            punch(file.get()?, &file.path, end - base, self.files.file_size())?;
            self.dirty_from.fetch_min(end, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Sets the first readable entry: the first whose record lies at `log_min` or behind.
    pub fn correct_min(&self, log_min: u64) -> Result<(), StoreError> {
        let first = self.leading_fillers_end()?.min(self.max());
        let mut min = self.partition_point(first, self.max(), |entry| {
            entry.is_some_and(|e| e.log_offset < log_min)
        })?;
        while min < self.max() && self.raw_entry(min)?.is_none_or(|e| e.is_filler()) {
            min += 1;
        }
        self.min.store(min, Ordering::Release);
        Ok(())
    }

    /// Deletes files, never the last one, whose records all lie before `log_min`. Returns how
    /// many.
    pub fn delete_expired(&self, log_min: u64) -> Result<usize, StoreError> {
        let mut deleted = 0;
        while self.files.len() > 1 {
            let Some((base, file)) = self.files.first() else {
                break;
            };
            let last = (base + self.files.file_size()) as i64 / ENTRY_SIZE as i64 - 1;
            if self.entry(last).is_none_or(|e| e.log_offset >= log_min) {
                break;
            }
            self.files.pop_first();
            fs::remove_file(&file.path)
                .map_err(|error| StoreError::system("remove", &file.path, error))?;
            deleted += 1;
        }
        if self
            .entry(self.min())
            .is_none_or(|e| e.log_offset < log_min)
        {
            self.correct_min(log_min)?;
        }
        Ok(deleted)
    }

    /// Deletes all files: the queue is empty and starts anew.
    pub fn remove_files(&self) -> Result<(), StoreError> {
        self.max.store(0, Ordering::Release);
        self.min.store(0, Ordering::Release);
        while self.files.pop_first().is_some() {}
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::system("remove", &self.dir, error))
            }
            _ => Ok(()),
        }
    }

    /// Queue offset of the first file's first entry.
    fn files_start(&self) -> i64 {
        let first = self.files.first().map_or(0, |(base, _)| base);
        (first / ENTRY_SIZE as u64) as i64
    }

    /// Behind the last file's last place.
    fn files_end(&self) -> i64 {
        let end = self
            .files
            .last()
            .map_or(0, |(base, _)| base + self.files.file_size());
        (end / ENTRY_SIZE as u64) as i64
    }

    fn raw_entry(&self, offset: i64) -> Result<Option<QueueEntry>, StoreError> {
        let mut bytes = [0; ENTRY_SIZE];
        self.read(offset, &mut bytes)?;
        Ok(QueueEntry::from_bytes(&bytes))
    }

    /// Behind the fillers that the first file begins with.
    fn leading_fillers_end(&self) -> Result<i64, StoreError> {
        let (mut low, mut high) = (self.files_start(), self.files_end());
        if low == high || !self.raw_entry(low)?.is_some_and(|e| e.is_filler()) {
            return Ok(low);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.raw_entry(middle)?.is_some_and(|e| e.is_filler()) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The first offset in `from..to` whose entry is not `before`; those that are come first. A
    /// filler is taken for what the next real entry is: there are few behind the leading ones.
    fn partition_point(
        &self,
        from: i64,
        to: i64,
        before: impl Fn(Option<QueueEntry>) -> bool,
    ) -> Result<i64, StoreError> {
        let (mut low, mut high) = (from, to);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut real = middle;
            let mut entry = self.raw_entry(real)?;
            while entry.is_some_and(|e| e.is_filler()) && real + 1 < high {
                real += 1;
                entry = self.raw_entry(real)?;
            }
            // Fillers up to `high` go with what is there, which is not `before`.
            if !entry.is_some_and(|e| e.is_filler()) && before(entry) {
                low = real + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::queue_table::QueueTable;
    use super::*;

    /// Ten entries a file.
    const FILE_SIZE: u64 = 200;

    fn entries(range: std::ops::Range<u64>) -> Vec<u8> {
        let entry = |n: u64| QueueEntry {
            log_offset: n * 100,
            size: 100,
            tags_code: -1,
        };
        range.flat_map(|n| entry(n).to_bytes()).collect()
    }

    fn open(root: &Path, limit: u64) -> Arc<ConsumeQueue> {
        let (table, _) = QueueTable::open(root, FILE_SIZE).expect("it opens");
        let queue = table.get_or_create("T", 3).expect("it opens");
        queue.cut(limit).expect("it is read");
        queue.tidy(true).expect("it is tidied");
        queue.correct_min(0).expect("it is read");
        queue
    }

    #[test]
    fn entries_cross_files_and_are_found_again() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let queue = open(dir.path(), 0);
        queue.write(0, &entries(0..25)).expect("written");
        queue.sync().expect("synced");
        assert_eq!((queue.min(), queue.max()), (0, 25));
        assert_eq!(queue.entry(10).expect("there").log_offset, 1000);
        assert_eq!(queue.entry(25), None);
        let names = fs::read_dir(dir.path().join("consumequeue/T/3")).expect("a directory");
        assert_eq!(names.count(), 3);
        assert_eq!(open(dir.path(), u64::MAX).max(), 25);
        assert_eq!(open(dir.path(), 1050).max(), 11);
        assert_eq!(
            open(dir.path(), u64::MAX).max(),
            11,
            "what is cut does not come back"
        );
        assert_eq!(open(dir.path(), 1000).max(), 10);
        let names = fs::read_dir(dir.path().join("consumequeue/T/3")).expect("a directory");
        assert_eq!(names.count(), 1, "no file without an entry is left");
        assert_eq!(open(dir.path(), 0).max(), 0);
        assert!(!dir.path().join("consumequeue/T/3").exists());
    }

    #[test]
    fn a_queue_that_starts_at_seven_begins_with_seven_fillers() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let queue = open(dir.path(), 0);
        queue.write_first(17, &entries(17..22)).expect("written");
        assert_eq!((queue.min(), queue.max()), (17, 22));
        let path = dir.path().join("consumequeue/T/3/00000000000000000200");
        let bytes = fs::read(path).expect("the second file is the first");
        for filler in bytes[..7 * ENTRY_SIZE].chunks(ENTRY_SIZE) {
            assert_eq!(filler, QueueEntry::FILLER.to_bytes());
        }
        let again = open(dir.path(), u64::MAX);
        assert_eq!((again.min(), again.max()), (17, 22));
        assert_eq!(
            open(dir.path(), 1700).max(),
            0,
            "fillers alone are no queue"
        );
    }

    #[test]
    fn expired_files_go_and_the_minimum_follows() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let queue = open(dir.path(), 0);
        queue.write(0, &entries(0..25)).expect("written");
        assert_eq!(queue.delete_expired(900).expect("nothing to do"), 0);
        assert_eq!((queue.min(), queue.max()), (9, 25));
        assert_eq!(queue.delete_expired(1000).expect("deleted"), 1);
        assert_eq!((queue.min(), queue.max()), (10, 25));
        assert_eq!(
            queue.delete_expired(9000).expect("deleted"),
            1,
            "the last file stays"
        );
        assert_eq!((queue.min(), queue.max()), (25, 25));
    }

    #[test]
    fn a_zero_entry_ends_a_queue_and_a_filler_in_it_does_not() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let queue = open(dir.path(), 0);
        queue.write(0, &entries(0..9)).expect("written");
        queue
            .write(4, &QueueEntry::FILLER.to_bytes())
            .expect("written");
        assert_eq!(open(dir.path(), u64::MAX).max(), 9);
        assert_eq!(open(dir.path(), 500).max(), 4);
    }
}
