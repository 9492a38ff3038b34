//! The index: message keys to log offsets.
//!
//! A file has a header, H hash slots and N entries; neither H nor N is written anywhere, so both
//! come from the configuration. Integers are big-endian.
//!
//! | offset        | size | field         | meaning                                           |
//! |--------------:|-----:|---------------|---------------------------------------------------|
//! |             0 |    8 | begin time    | store time of the first entry, ms                 |
//! |             8 |    8 | end time      | store time of the last entry                      |
//! |            16 |    8 | begin offset  | log offset of the first entry                     |
//! |            24 |    8 | end offset    | log offset of the last entry                      |
//! |            32 |    4 | slot count    | slots that are not empty                          |
//! |            36 |    4 | index count   | 1 + number of entries                             |
//! |        40+4·s |    4 | slot s        | newest entry of the slot, 0 if none               |
//! | 40+4·H+20·i   |   20 | entry i       | hash 4, log offset 8, seconds since begin 4,      |
//! |               |      |               | previous entry of the slot 4; entry 0 is not used |
//!
//! A key's text is `topic#key`; its hash is the absolute value of Java's string hash, and its
//! slot the hash modulo H. Files are named by the time they were made.
//!
//! One thread writes (dispatch); anyone reads. An entry is written before its slot, and its slot
//! before the count, so a reader never follows a chain into nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::error::StoreError;
use super::mapped_file::{MappedTable, sync_parent};
use super::properties;
use super::record::{self, RecordView};
use crate::base::clock::{self, Calendar};

const BEGIN_TIME: usize = 0;
const END_TIME: usize = 8;
const BEGIN_OFFSET: usize = 16;
const END_OFFSET: usize = 24;
const SLOT_COUNT: usize = 32;
const INDEX_COUNT: usize = 36;
const HEADER_SIZE: usize = 40;
const SLOT_SIZE: usize = 4;
const ENTRY_SIZE: usize = 20;
/// A repair drops the last record's entries; a record seldom has more keys.
const DROPPED_KEYS_MAX: u64 = 64;
/// Digits of a file's name: a time to the millisecond.
const NAME_DIGITS: usize = 17;

/// The sizes of every index file of a store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub slots: u32,
    pub entries: u32,
}

impl Shape {
    pub fn file_size(&self) -> u64 {
        HEADER_SIZE as u64
            + SLOT_SIZE as u64 * u64::from(self.slots)
            + ENTRY_SIZE as u64 * u64::from(self.entries)
    }

    fn slot_at(&self, hash: u32) -> usize {
        HEADER_SIZE + SLOT_SIZE * (hash % self.slots) as usize
    }

    fn entry_at(&self, number: u32) -> usize {
        HEADER_SIZE + SLOT_SIZE * self.slots as usize + ENTRY_SIZE * number as usize
    }
}

/// The hash of a key's text, as the original has it: -2^31 has no absolute value and counts 0.
pub fn key_hash(topic: &str, key: &str) -> u32 {
    let hash = [topic, "#", key].into_iter().fold(0, record::java_hash_on);
    hash.checked_abs().unwrap_or(0) as u32
}

/// The keys a record is found by: its unique key, then each of its keys.
pub fn keys_of<'a>(view: &RecordView<'a>) -> impl Iterator<Item = &'a str> {
    let keys = view.property(properties::KEYS).unwrap_or("");
    view.property(properties::UNIQ_KEY)
        .into_iter()
        .chain(keys.split(' ').filter(|key| !key.is_empty()))
}

struct IndexFile {
    table: MappedTable,
    shape: Shape,
    dirty: AtomicBool,
}

/// One entry as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    hash: u32,
    log_offset: i64,
    seconds: i32,
    previous: u32,
}

impl IndexFile {
    fn open(path: &Path, shape: Shape) -> Result<IndexFile, StoreError> {
        Ok(IndexFile {
            table: MappedTable::open(path, shape.file_size())?,
            shape,
            dirty: AtomicBool::new(true),
        })
    }

    /// 1 + the number of entries, whatever the file says.
    fn count(&self) -> u32 {
        self.table.get(INDEX_COUNT).clamp(1, self.shape.entries)
    }

    fn is_full(&self) -> bool {
        self.count() >= self.shape.entries
    }

    fn begin_ms(&self) -> i64 {
        self.table.get_i64(BEGIN_TIME)
    }

    fn end_ms(&self) -> i64 {
        self.table.get_i64(END_TIME)
    }

    fn end_offset(&self) -> i64 {
        self.table.get_i64(END_OFFSET)
    }

    fn entry(&self, number: u32) -> Entry {
        let at = self.shape.entry_at(number);
        Entry {
            hash: self.table.get(at),
            log_offset: self.table.get_i64(at + 4),
            seconds: self.table.get(at + 12) as i32,
            previous: self.table.get(at + 16),
        }
    }

    fn put(&self, hash: u32, log_offset: i64, stored_ms: i64) {
        let begin = self.begin_ms();
        let seconds = match (stored_ms - begin) / 1000 {
            _ if begin <= 0 => 0,
            seconds => seconds.clamp(0, i64::from(i32::MAX)) as i32,
        };
        self.link(hash, log_offset, seconds);
        if self.count() == 2 {
            self.table.set_i64(BEGIN_OFFSET, log_offset);
            self.table.set_i64(BEGIN_TIME, stored_ms);
        }
        self.table.set_i64(END_OFFSET, log_offset);
        self.table.set_i64(END_TIME, stored_ms);
    }

    /// Adds an entry and makes it the first of its slot.
    fn link(&self, hash: u32, log_offset: i64, seconds: i32) {
        let (number, slot) = (self.count(), self.shape.slot_at(hash));
        let mut previous = self.table.get(slot);
        if previous >= number {
            previous = 0;
        }
        let at = self.shape.entry_at(number);
        self.table.set(at, hash);
        self.table.set_i64(at + 4, log_offset);
        self.table.set(at + 12, seconds as u32);
        self.table.set(at + 16, previous);
        self.table.set(slot, number);
        if previous == 0 {
            self.table
                .set(SLOT_COUNT, self.table.get(SLOT_COUNT).wrapping_add(1));
        }
        self.table.set(INDEX_COUNT, number + 1);
        self.dirty.store(true, Ordering::Release);
    }

    /// Offsets with this hash and a store time in `begin..=end`, newest first, until `wanted`
    /// has had enough.
    fn find(&self, hash: u32, begin: i64, end: i64, wanted: &mut dyn FnMut(u64) -> bool) -> bool {
        let count = self.count();
        let mut number = self.table.get(self.shape.slot_at(hash));
        while number > 0 && number < count {
            let entry = self.entry(number);
            if entry.seconds < 0 {
                break;
            }
            let time = self.begin_ms() + i64::from(entry.seconds) * 1000;
            let hit = entry.hash == hash && (begin..=end).contains(&time);
            if hit && entry.log_offset >= 0 && !wanted(entry.log_offset as u64) {
                return false;
            }
            // A chain only leads to older entries; anything else would go in circles.
            if entry.previous >= number || time < begin {
                break;
            }
            number = entry.previous;
        }
        true
    }

    /// Makes slots and header anew from the first `sound` entries; after a crash they may be
    /// older than the entries, or newer.
    fn rebuild(
        &self,
        sound: u32,
        stored_ms: &dyn Fn(u64) -> Option<i64>,
    ) -> Result<(), StoreError> {
        let begin = match self.begin_ms() {
            0 if sound > 0 => stored_ms(self.entry(1).log_offset as u64).unwrap_or(0),
            begin => begin,
        };
        self.table.clear(0..self.shape.entry_at(0))?;
        self.table
            .clear(self.shape.entry_at(sound + 1)..self.table.size())?;
        self.table.set(INDEX_COUNT, 1);
        for number in 1..=sound {
            let entry = self.entry(number);
            self.link(entry.hash, entry.log_offset, entry.seconds);
        }
        self.dirty.store(true, Ordering::Release);
        if sound > 0 {
            let (first, last) = (self.entry(1), self.entry(sound));
            let estimate = begin + i64::from(last.seconds) * 1000;
            self.table.set_i64(BEGIN_TIME, begin);
            self.table.set_i64(BEGIN_OFFSET, first.log_offset);
            self.table.set_i64(END_OFFSET, last.log_offset);
            let end = stored_ms(last.log_offset as u64).unwrap_or(estimate);
            self.table.set_i64(END_TIME, end);
        }
        Ok(())
    }

    /// How many entries follow the log: what is certain after a crash.
    fn sound_entries(&self, log_end: u64) -> u32 {
        let mut newest = 0;
        for number in 1..self.shape.entries {
            let entry = self.entry(number);
            let sound = entry.hash <= i32::MAX as u32
                && entry.seconds >= 0
                && entry.log_offset >= newest
                && (entry.log_offset as u64) < log_end
                && entry.previous < number;
            let zero = entry.hash == 0 && entry.log_offset == 0 && entry.previous == 0;
            if !sound || zero {
                return number - 1;
            }
            newest = entry.log_offset;
        }
        self.shape.entries - 1
    }

    /// `sound` without the entries of the last record among them.
    fn without_last_record(&self, sound: u32) -> u32 {
        let last = self.entry(sound).log_offset;
        let kept = (1..=sound)
            .rev()
            .find(|&number| self.entry(number).log_offset != last);
        kept.unwrap_or(0)
    }

    fn sync(&self) -> Result<(), StoreError> {
        if self.dirty.swap(false, Ordering::AcqRel) {
            self.table.sync()?;
        }
        Ok(())
    }
}

/// All index files of a store.
pub struct Index {
    dir: PathBuf,
    shape: Shape,
    files: RwLock<Vec<Arc<IndexFile>>>,
    /// End time of the newest file that is full and on the disk.
    full_ms: AtomicI64,
    /// A record, and how many of its keys are there: no file could be made for the others.
    unfinished: Mutex<Option<(i64, usize)>>,
}

impl Index {
    /// Opens the files that are there.
    pub fn open(dir: &Path, shape: Shape, full_ms: i64) -> Result<Index, StoreError> {
        let mut files = Vec::new();
        for path in list(dir)? {
            let len = fs::metadata(&path)
                .map_err(|error| StoreError::system("stat", &path, error))?
                .len();
            if len != shape.file_size() {
                return Err(StoreError::Refused(format!(
                    "{} has {len} bytes, maxHashSlotNum and maxIndexNum make {}: configure \
                     what the store was made with, or remove {} to have it built anew",
                    path.display(),
                    shape.file_size(),
                    dir.display()
                )));
            }
            files.push(Arc::new(IndexFile::open(&path, shape)?));
        }
        Ok(Index {
            dir: dir.to_path_buf(),
            shape,
            files: RwLock::new(files),
            full_ms: AtomicI64::new(full_ms),
            unfinished: Mutex::new(None),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// End time of the newest file that is full and on the disk; what a checkpoint may say.
    pub fn full_ms(&self) -> i64 {
        self.full_ms.load(Ordering::Acquire)
    }

    /// Log offset of the last record that was indexed.
    pub fn end_offset(&self) -> Option<i64> {
        let files = self.all();
        let filled = files.iter().rev().find(|file| file.count() > 1)?;
        Some(filled.end_offset())
    }

    /// After a crash: keeps the entries that follow the log without a hole, and drops those of
    /// the last record, since some of its keys may be missing. Returns false if more is gone
    /// than that record accounts for.
    pub fn repair(
        &self,
        log_end: u64,
        stored_ms: &dyn Fn(u64) -> Option<i64>,
    ) -> Result<bool, StoreError> {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let promised: u64 = files.iter().map(|file| u64::from(file.count())).sum();
        let trusted = |file: &IndexFile| {
            let on_disk = file.is_full() && file.end_ms() <= self.full_ms();
            on_disk && file.end_offset() < log_end as i64
        };
        let mut sound = Vec::new();
        for file in files.iter() {
            let full = self.shape.entries - 1;
            let count = if trusted(file) {
                full
            } else {
                file.sound_entries(log_end)
            };
            sound.push(count);
            if count < full {
                break; // nothing behind a hole counts
            }
        }
        while files.len() > sound.len() {
            remove_last(&mut files)?;
        }
        // The last record may have entries at the end of one file and the start of the next.
        while let (Some(file), Some(count)) = (files.last(), sound.last_mut()) {
            *count = file.without_last_record(*count);
            if *count > 0 || files.len() == 1 {
                file.rebuild(*count, stored_ms)?;
                break;
            }
            remove_last(&mut files)?;
            sound.pop();
        }
        for (file, count) in files.iter().zip(&sound).rev().skip(1) {
            if !trusted(file) {
                file.rebuild(*count, stored_ms)?;
            }
        }
        let kept: u64 = sound.iter().map(|count| u64::from(*count)).sum();
        Ok(promised <= kept + sound.len() as u64 + DROPPED_KEYS_MAX)
    }

    /// Forgets everything; the next `put` starts anew.
    pub fn remove_all(&self) -> Result<(), StoreError> {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        for file in files.drain(..) {
            remove(file.table.path())?;
        }
        self.full_ms.store(0, Ordering::Release);
        Ok(())
    }

    /// Adds a record's keys. One that is not behind the last indexed record is there already.
    pub fn put(&self, view: &RecordView<'_>) -> Result<(), StoreError> {
        let mut file = self.last_file()?;
        let mut unfinished = self
            .unfinished
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let done = unfinished
            .take()
            .filter(|(offset, _)| *offset == view.physical_offset);
        let known = file.count() > 1 || file.end_offset() > 0;
        if done.is_none() && known && view.physical_offset <= file.end_offset() {
            return Ok(());
        }
        if view.transaction_type() == record::SYS_ROLLBACK {
            return Ok(());
        }
        let done = done.map_or(0, |(_, keys)| keys);
        for (number, key) in keys_of(view).enumerate().skip(done) {
            if file.is_full() {
                *unfinished = Some((view.physical_offset, number));
                file = self.create(Some(&file))?;
                *unfinished = None;
            }
            file.put(
                key_hash(view.topic, key),
                view.physical_offset,
                view.stored_ms,
            );
        }
        Ok(())
    }

    /// Offsets that may belong to messages with this key, newest first. `wanted` is asked about
    /// each and returns false when it has enough.
    pub fn find(
        &self,
        topic: &str,
        key: &str,
        begin_ms: i64,
        end_ms: i64,
        wanted: &mut dyn FnMut(u64) -> bool,
    ) {
        let hash = key_hash(topic, key);
        for file in self.all().iter().rev() {
            let (begin, end) = (file.begin_ms(), file.end_ms());
            if file.count() <= 1 {
                continue;
            }
            let overlaps = begin <= end_ms && end >= begin_ms;
            if overlaps && !file.find(hash, begin_ms, end_ms, wanted) || begin < begin_ms {
                break;
            }
        }
    }

    /// Has the disk keep all entries.
    pub fn sync(&self) -> Result<(), StoreError> {
        for file in self.all() {
            let full = file.is_full();
            file.sync()?;
            if full {
                self.full_ms.fetch_max(file.end_ms(), Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Deletes files, never the last one, whose records all lie before `log_min`.
    pub fn delete_expired(&self, log_min: u64) -> Result<usize, StoreError> {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let mut deleted = 0;
        while files.len() > 1 && files[0].end_offset() < log_min as i64 {
            remove(files[0].table.path())?;
            files.remove(0);
            deleted += 1;
        }
        Ok(deleted)
    }

    fn all(&self) -> Vec<Arc<IndexFile>> {
        self.files
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn last_file(&self) -> Result<Arc<IndexFile>, StoreError> {
        let last = {
            let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
            files.last().cloned()
        };
        match last {
            Some(file) => Ok(file),
            None => self.create(None),
        }
    }

    /// A new file; it begins where the one before ends.
    fn create(&self, before: Option<&IndexFile>) -> Result<Arc<IndexFile>, StoreError> {
        fs::create_dir_all(&self.dir)
            .map_err(|error| StoreError::system("create", &self.dir, error))?;
        let mut name: u64 = time_name(clock::wall_ms());
        if let Some(last) = before.and_then(|file| name_of(file.table.path())) {
            name = name.max(last + 1); // names sort by age even if the clock went back
        }
        let path = self.dir.join(format!("{name:0NAME_DIGITS$}"));
        let file = IndexFile::open(&path, self.shape)?;
        sync_parent(&path)?;
        file.table.set(INDEX_COUNT, 1);
        if let Some(before) = before {
            for (at, value) in [(BEGIN_TIME, before.end_ms()), (END_TIME, before.end_ms())] {
                file.table.set_i64(at, value);
            }
            for at in [BEGIN_OFFSET, END_OFFSET] {
                file.table.set_i64(at, before.end_offset());
            }
        }
        let file = Arc::new(file);
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        files.push(file.clone());
        Ok(file)
    }
}

/// Index files in order of age. What is not named by a number is not ours and is left alone.
fn list(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::system("list", dir, error)),
        Ok(entries) => entries,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| StoreError::system("list", dir, error))?
            .path();
        if name_of(&path).is_some() && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn name_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| name.parse().ok())?
}

fn time_name(ms: i64) -> u64 {
    let c = Calendar::utc(ms);
    let date = c.year as u64 * 10_000 + u64::from(c.month * 100 + c.day);
    let time = u64::from(c.hour * 10_000 + c.minute * 100 + c.second);
    (date * 1_000_000 + time) * 1000 + u64::from(c.millis)
}

fn remove_last(files: &mut Vec<Arc<IndexFile>>) -> Result<(), StoreError> {
    files.pop().map_or(Ok(()), |file| remove(file.table.path()))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    fs::remove_file(path).map_err(|error| StoreError::system("remove", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        slots: 4,
        entries: 6,
    };

    fn record<'a>(at: i64, keys: &'a [u8]) -> RecordView<'a> {
        RecordView {
            size: 100,
            magic: record::MAGIC_V1,
            body_crc: 0,
            queue_id: 0,
            flag: 0,
            queue_offset: 0,
            physical_offset: at,
            sys_flag: 0,
            born_ms: 0,
            born_host: ([127, 0, 0, 1], 1).into(),
            stored_ms: 1_000_000 + at,
            store_host: ([127, 0, 0, 1], 2).into(),
            reconsume_times: 0,
            prepared_offset: 0,
            body: b"",
            topic: "T",
            properties: keys,
        }
    }

    fn all(index: &Index, key: &str) -> Vec<u64> {
        let mut found = Vec::new();
        index.find("T", key, 0, i64::MAX, &mut |offset| {
            found.push(offset);
            true
        });
        found
    }

    #[test]
    fn hashes_are_the_documented_ones() {
        assert_eq!(key_hash("TopicA", "k1"), 0x7171_25C9);
        // The well-known text whose hash has no absolute value.
        assert_eq!(record::java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(
            record::java_hash("polygenelubricants")
                .checked_abs()
                .unwrap_or(0),
            0
        );
    }

    #[test]
    fn keys_are_found_newest_first_over_several_files() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let index = Index::open(dir.path(), SHAPE, 0).expect("it opens");
        for n in 0..9 {
            index
                .put(&record(n * 100, b"KEYS\x01a b  c\x02UNIQ_KEY\x01u"))
                .expect("put");
            index
                .put(&record(n * 100, b"KEYS\x01a b"))
                .expect("known already");
        }
        let newest_first: Vec<u64> = (0..9).rev().map(|n| n * 100).collect();
        for key in ["a", "b", "c", "u"] {
            assert_eq!(all(&index, key), newest_first, "{key}");
        }
        assert_eq!(all(&index, "d"), [0u64; 0]);
        index.sync().expect("synced");
        assert!(index.full_ms() > 1_000_000);
        let again = Index::open(dir.path(), SHAPE, 0).expect("it opens");
        assert_eq!(all(&again, "a"), newest_first);
        assert_eq!(again.end_offset(), Some(800));
        assert!(again.delete_expired(500).expect("deleted") > 0);
        assert_eq!(all(&again, "a")[..4], [800, 700, 600, 500]);
    }

    #[test]
    fn a_damaged_file_is_made_anew_from_its_entries() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let shape = Shape {
            slots: 4,
            entries: 100,
        };
        let index = Index::open(dir.path(), shape, 0).expect("it opens");
        for n in 1..9 {
            index.put(&record(n * 100, b"KEYS\x01a b")).expect("put");
        }
        let file = index.last_file().expect("there");
        file.table.set(shape.slot_at(key_hash("T", "a")), 77);
        file.table.set(INDEX_COUNT, 3);
        assert!(
            index
                .repair(700, &|at| Some(1_000_000 + at as i64))
                .expect("repaired")
        );
        // 700 is behind the log's end; 600 may lack a key, and is added again by dispatch.
        assert_eq!(index.end_offset(), Some(500));
        assert_eq!(all(&index, "a"), [500, 400, 300, 200, 100]);
        index.put(&record(600, b"KEYS\x01a b")).expect("put");
        assert_eq!(all(&index, "b")[..2], [600, 500]);
        assert_eq!(file.table.get(INDEX_COUNT), 13);
    }

    #[test]
    fn files_of_another_shape_are_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Index::open(dir.path(), SHAPE, 0)
            .expect("it opens")
            .put(&record(0, b""))
            .expect("put");
        let other = Shape {
            slots: 5,
            entries: 6,
        };
        assert!(matches!(
            Index::open(dir.path(), other, 0),
            Err(StoreError::Refused(_))
        ));
    }

    #[test]
    fn names_are_times() {
        assert_eq!(time_name(1_704_067_199_123), 20_231_231_235_959_123);
    }
}
