//! The store as a log of bytes: append on a master, append of a master's bytes on a slave, read.
//!
//! One lock, the append lock, covers giving out queue offsets, encoding into the mapping and
//! moving `wrote`. Readers take no part in it: what lies below `wrote` never changes.
//!
//! ```text
//! start() <= flushed <= wrote        readable = flushed under SYNC_FLUSH, else wrote
//! ```
//!
//! A record never crosses a file's end. One that does not fit goes to the next file, and a blank
//! (see `record`) fills the rest; so every record leaves the blank its eight bytes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::config::StoreConfig;
use super::error::StoreError;
use super::file_chain::FileChain;
use super::layout;
use super::mapped_file::{Appender, Chunk, MappedFile};
use super::record::{self, Message, Place, Prepared};
use super::{Appended, RecordStarts};
use crate::base::clock;
use crate::base::sys::DiskSpace;
use crate::base::watermark::Watermark;

pub struct CommitLog {
    dirs: Vec<PathBuf>,
    sync_flush: bool,
    clean_forcibly_ratio: f64,
    pub(super) chain: FileChain<MappedFile>,
    tail: Mutex<Tail>,
    wrote: Watermark,
    flushed: Watermark,
    /// Store time of the newest record; moves before `wrote`.
    pub(super) latest_stored_ms: AtomicI64,
    /// When the append lock was taken, 0 while it is free.
    pub(super) append_since_ms: AtomicI64,
    pub(super) appended_records: AtomicU64,
    pub(super) appended_bytes: AtomicU64,
}

/// What the append lock guards.
struct Tail {
    appender: Option<Appender>,
    /// Next queue offset of each queue.
    next: QueueOffsets,
}

/// Topic and queue id to the next queue offset.
#[derive(Default)]
pub struct QueueOffsets(HashMap<Box<str>, HashMap<i32, i64>>);

impl QueueOffsets {
    pub fn get(&self, topic: &str, queue_id: i32) -> i64 {
        let queues = self.0.get(topic);
        queues.and_then(|q| q.get(&queue_id)).copied().unwrap_or(0)
    }

    pub fn set(&mut self, topic: &str, queue_id: i32, next: i64) {
        // A known topic costs no allocation.
        if let Some(queues) = self.0.get_mut(topic) {
            queues.insert(queue_id, next);
        } else {
            self.0
                .insert(topic.into(), HashMap::from([(queue_id, next)]));
        }
    }

    pub fn remove_topic(&mut self, topic: &str) {
        self.0.remove(topic);
    }
}

impl CommitLog {
    pub(super) fn new(config: &StoreConfig) -> CommitLog {
        CommitLog {
            dirs: config.commit_log_dirs.clone(),
            sync_flush: config.sync_flush,
            clean_forcibly_ratio: config.cleaning.clean_forcibly_ratio,
            chain: FileChain::new(config.log_file_size),
            tail: Mutex::new(Tail {
                appender: None,
                next: QueueOffsets::default(),
            }),
            wrote: Watermark::new(0),
            flushed: Watermark::new(0),
            latest_stored_ms: AtomicI64::new(0),
            append_since_ms: AtomicI64::new(0),
            appended_records: AtomicU64::new(0),
            appended_bytes: AtomicU64::new(0),
        }
    }

    /// Log offset of the first byte there is; 0 when there is no file.
    pub fn start(&self) -> u64 {
        self.chain.first().map_or(0, |(base, _)| base)
    }

    /// Log offset behind the last byte written.
    pub fn end(&self) -> u64 {
        self.wrote.get()
    }

    /// Up to where slaves and consumers may read: what is flushed under SYNC_FLUSH, else what
    /// is written.
    pub fn readable(&self) -> &Watermark {
        if self.sync_flush {
            &self.flushed
        } else {
            &self.wrote
        }
    }

    pub fn wrote(&self) -> &Watermark {
        &self.wrote
    }

    pub fn flushed(&self) -> &Watermark {
        &self.flushed
    }

    pub fn file_size(&self) -> u64 {
        self.chain.file_size()
    }

    /// True if there is no file at all.
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// At most `max` readable bytes from `from` on, never across a file's end.
    pub fn read(&self, from: u64, max: usize) -> Option<Chunk> {
        let readable = self.readable().get();
        if from >= readable {
            return None;
        }
        self.read_to(from, max, readable)
    }

    /// As `read`, up to a limit that the caller answers for.
    pub(super) fn read_to(&self, from: u64, max: usize, limit: u64) -> Option<Chunk> {
        let (base, file) = self.chain.find(from)?;
        let end = limit.min(base + file.wrote() as u64);
        let len = usize::try_from(end.checked_sub(from)?).ok()?.min(max);
        if len == 0 {
            return None;
        }
        let at = (from - base) as usize;
        file.chunk(at..at + len)
    }

    pub fn wake(&self) {
        self.wrote.wake();
    }

    /// Appends messages of one topic and queue as records behind each other in one file. What
    /// is refused leaves no trace: neither in the log nor in the queue offsets.
    pub(super) fn append(
        &self,
        messages: &[Message<'_>],
        prepared: &[Prepared],
    ) -> Result<Appended, StoreError> {
        let total: usize = prepared.iter().map(|p| p.size).sum();
        if (total + record::BLANK_SIZE) as u64 > self.file_size() {
            return Err(StoreError::MessageIllegal(format!(
                "{total} bytes do not fit a log file of {}",
                self.file_size()
            )));
        }
        let mut tail = self.lock();
        let stored_ms = clock::wall_ms();
        self.append_since_ms.store(stored_ms, Ordering::Relaxed);
        let appended = self.append_locked(&mut tail, messages, prepared, total, stored_ms);
        self.append_since_ms.store(0, Ordering::Relaxed);
        appended
    }

    fn append_locked(
        &self,
        tail: &mut Tail,
        messages: &[Message<'_>],
        prepared: &[Prepared],
        total: usize,
        stored_ms: i64,
    ) -> Result<Appended, StoreError> {
        self.make_room(tail, total)?;
        let start = self.wrote.get();
        let (topic, queue_id) = (messages[0].topic, messages[0].queue_id);
        let first = tail.next.get(topic, queue_id);
        let appender = tail.appender.as_mut().expect("make_room left a file");
        let mut out = appender.reserve(total);
        let (mut log_offset, mut queue_offset) = (start, first);
        let mut starts = Vec::new();
        for (message, prepared) in messages.iter().zip(prepared) {
            let counts = takes_queue_offset(message.sys_flag);
            let place = Place {
                queue_offset: if counts { queue_offset } else { 0 },
                log_offset,
                stored_ms,
            };
            let (record, rest) = out.split_at_mut(prepared.size);
            record::encode(message, *prepared, place, record);
            if messages.len() > 1 {
                starts.push(log_offset);
            }
            out = rest;
            log_offset += prepared.size as u64;
            queue_offset += i64::from(counts);
        }
        appender.publish(total);
        // Only now is the message there; before, a failure has given out no queue offset.
        tail.next.set(topic, queue_id, queue_offset);
        self.latest_stored_ms.store(stored_ms, Ordering::Release);
        self.count(messages.len() as u64, total as u64);
        self.wrote.advance(log_offset);
        Ok(Appended {
            start,
            end: log_offset,
            record_starts: match starts.is_empty() {
                true => RecordStarts::One([start]),
                false => RecordStarts::Many(starts),
            },
            queue_offset: if queue_offset > first { first } else { 0 },
            stored_ms,
        })
    }

    /// Sees to it that `total` bytes and a blank fit the file in use; else ends that file with a
    /// blank and goes to the next. That one is created first, so a full disk changes nothing.
    fn make_room(&self, tail: &mut Tail, total: usize) -> Result<(), StoreError> {
        let Some(appender) = tail.appender.as_mut() else {
            let first = self.create_file(self.wrote.get())?;
            self.adopt(tail, first);
            return Ok(());
        };
        let room = appender.room();
        if total + record::BLANK_SIZE <= room {
            return Ok(());
        }
        let next = self.next_file(appender)?;
        if room > 0 {
            let out = appender.reserve(room);
            out[..record::BLANK_SIZE].copy_from_slice(&record::blank(room));
            appender.publish(room);
            self.wrote.advance(next.file().base());
        }
        self.adopt(tail, next);
        Ok(())
    }

    /// Appends a master's bytes: whole records, or a file's blank with all its filler. `start`
    /// is where the log ends, unless the log has no file yet: then it may be anywhere. The
    /// caller wakes the followers.
    pub fn append_raw(&self, start: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut tail = self.lock();
        let log_end = self.wrote.get();
        match tail.appender.as_mut() {
            None if self.chain.is_empty() => {
                let base = start - start % self.file_size();
                let mut appender = self.create_file(base)?;
                appender.publish((start - base) as usize);
                self.wrote.advance(start);
                self.flushed.advance(start);
                self.adopt(&mut tail, appender);
            }
            _ if start != log_end => return Err(StoreError::Gap { log_end, start }),
            None => {
                let next = self.create_file(log_end)?;
                self.adopt(&mut tail, next);
            }
            Some(appender) if appender.room() == 0 => {
                let next = self.next_file(appender)?;
                self.adopt(&mut tail, next);
            }
            Some(_) => {}
        }
        let appender = tail.appender.as_mut().expect("there is a file by now");
        if bytes.len() > appender.room() {
            // The master's files have another size than ours, or the caller joined two files.
            return Err(StoreError::Gap { log_end, start });
        }
        appender.fill(bytes)?;
        appender.publish(bytes.len());
        self.appended_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.wrote.advance(start + bytes.len() as u64);
        Ok(())
    }

    /// The file that follows the one in use. Made on demand so far; a file that is prepared
    /// ahead of time would be taken here.
    fn next_file(&self, current: &Appender) -> Result<Appender, StoreError> {
        self.create_file(current.file().base() + self.file_size())
    }

    fn create_file(&self, offset: u64) -> Result<Appender, StoreError> {
        let base = offset - offset % self.file_size();
        let path = self.dir_for(base).join(layout::offset_file(base));
        let mut appender = MappedFile::create(&path, base, self.file_size())?;
        appender.publish((offset - base) as usize);
        Ok(appender)
    }

    fn adopt(&self, tail: &mut Tail, appender: Appender) {
        let file = appender.file();
        self.chain.push(file.base(), file.clone());
        tail.appender = Some(appender);
    }

    /// Files go to the directories in turn, but not to one that is nearly full.
    fn dir_for(&self, base: u64) -> &PathBuf {
        let mut dirs: Vec<&PathBuf> = self.dirs.iter().collect();
        dirs.sort();
        if dirs.len() > 1 {
            let roomy = |dir: &&&PathBuf| {
                DiskSpace::of(dir).is_ok_and(|s| s.used_ratio() <= self.clean_forcibly_ratio)
            };
            let left: Vec<_> = dirs.iter().filter(roomy).copied().collect();
            if !left.is_empty() {
                dirs = left;
            }
        }
        dirs[(base / self.file_size()) as usize % dirs.len()]
    }

    /// Takes over what recovery found: complete files, the one that goes on, and the log's end.
    pub(super) fn adopt_recovered(
        &self,
        complete: Vec<Arc<MappedFile>>,
        last: Option<Appender>,
        end: u64,
    ) {
        for file in complete {
            self.chain.push(file.base(), file);
        }
        let mut tail = self.lock();
        if let Some(last) = last {
            self.adopt(&mut tail, last);
        }
        self.wrote.reset(end);
        self.flushed.reset(end);
    }

    pub(super) fn set_queue_offsets(&self, next: QueueOffsets) {
        self.lock().next = next;
    }

    pub(super) fn forget_topic(&self, topic: &str) {
        self.lock().next.remove_topic(topic);
    }

    fn count(&self, records: u64, bytes: u64) {
        self.appended_records.fetch_add(records, Ordering::Relaxed);
        self.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prepared and rolled back messages are in the log only, so they take no place in a queue.
pub fn takes_queue_offset(sys_flag: i32) -> bool {
    !matches!(
        sys_flag & record::SYS_TRANSACTION,
        record::SYS_PREPARED | record::SYS_ROLLBACK
    )
}
