//! Reading queues: pulls, look-ups by time and by key.

use super::consume_queue::{ConsumeQueue, ENTRY_SIZE, QueueEntry};
use super::dispatch::Counters;
use super::error::StoreError;
use super::mapped_file::Chunk;
use super::record::{self, VerifyMode};
use super::{QueueBounds, Store, index};

/// Most queue entries that one pull looks at.
pub const ENTRIES_EXAMINED_MAX: i64 = 800;
/// Most messages and bytes in one answer; a first message of any size always passes.
pub const PULL_MESSAGES_MAX: usize = 32;
pub const PULL_BYTES_MAX: usize = 256 * 1024;
/// Entries that are read from a queue together.
const ENTRIES_PER_READ: usize = 64;
/// Most offsets that a query by key gives.
pub const QUERY_MAX: usize = 64;

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

impl Pulled {
    fn empty(status: PullStatus, next: i64, min: i64, max: i64) -> Pulled {
        Pulled {
            status,
            next,
            min,
            max,
            records: Vec::new(),
            bytes: 0,
            behind_bytes: 0,
        }
    }
}

impl Store {
    /// The whole record at a log offset, checked but for its body.
    pub fn record(&self, offset: u64) -> Result<Chunk, StoreError> {
        self.checked_record(offset, VerifyMode::Structure)
    }

    fn checked_record(&self, offset: u64, mode: VerifyMode) -> Result<Chunk, StoreError> {
        let missing = StoreError::NotFound { offset };
        let chunk = self.log.read(offset, usize::MAX).ok_or(missing)?;
        match record::verify(&chunk, offset, mode) {
            Ok(view) => Ok(chunk.slice(0..view.size)),
            Err(flaw) => Err(StoreError::Corrupt { offset, flaw }),
        }
    }

    /// Reads messages from a queue. `filter` is asked about each entry's tags code.
    pub fn pull(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        limits: PullLimits,
        filter: &dyn Fn(i64) -> bool,
    ) -> Pulled {
        let Some(queue) = self.queues.get(topic, queue_id) else {
            return Pulled::empty(PullStatus::NoMatchedLogicQueue, 0, 0, 0);
        };
        let (min, max) = (queue.min(), queue.max());
        let refused = |status, next| Pulled::empty(status, next, min, max);
        match from {
            _ if max == 0 => refused(PullStatus::NoMessageInQueue, 0),
            _ if from < min => refused(PullStatus::OffsetTooSmall, min),
            _ if from == max => refused(PullStatus::OffsetOverflowOne, from),
            _ if from > max => refused(PullStatus::OffsetOverflowBadly, max),
            _ => self.pull_from(&queue, from, QueueBounds { min, max }, limits, filter),
        }
    }

    fn pull_from(
        &self,
        queue: &ConsumeQueue,
        from: i64,
        bounds: QueueBounds,
        limits: PullLimits,
        filter: &dyn Fn(i64) -> bool,
    ) -> Pulled {
        let QueueBounds { min, max } = bounds;
        let mut pulled = Pulled::empty(PullStatus::NoMatchedMessage, from, min, max);
        let last = max.min(from.saturating_add(ENTRIES_EXAMINED_MAX));
        let mut bytes = [0; ENTRIES_PER_READ * ENTRY_SIZE];
        while pulled.next < last {
            let read = queue.read(pulled.next, &mut bytes).unwrap_or_else(|error| {
                log::error!("{error}");
                0
            });
            if read < ENTRY_SIZE {
                break;
            }
            for entry in bytes[..read].chunks_exact(ENTRY_SIZE) {
                if pulled.next >= last {
                    break;
                }
                if !self.take(
                    queue,
                    &mut pulled,
                    QueueEntry::from_bytes(entry),
                    limits,
                    filter,
                ) {
                    return pulled;
                }
            }
        }
        pulled
    }

    /// Looks at the entry at `pulled.next`. False if it must wait for the next pull.
    fn take(
        &self,
        queue: &ConsumeQueue,
        pulled: &mut Pulled,
        entry: Option<QueueEntry>,
        limits: PullLimits,
        filter: &dyn Fn(i64) -> bool,
    ) -> bool {
        let offset = pulled.next;
        let found = match entry {
            Some(entry) if entry.is_filler() => None,
            Some(entry) if !filter(entry.tags_code) => None,
            Some(entry) => {
                let count = pulled.records.len();
                let full = count >= limits.max_messages
                    || pulled.bytes + entry.size as usize > limits.max_bytes;
                if count > 0 && full {
                    return false;
                }
                self.entry_record(queue, offset, entry)
            }
            None => {
                self.step_over(queue, offset, "it is no entry");
                None
            }
        };
        pulled.next = offset + 1;
        if let Some(entry) = entry.filter(|entry| !entry.is_filler()) {
            pulled.behind_bytes = self.log.end().saturating_sub(entry.log_offset);
            if entry.log_offset < self.log.start() && pulled.records.is_empty() {
                pulled.status = PullStatus::MessageWasRemoving;
            }
        }
        if let Some(record) = found {
            pulled.bytes += record.len();
            pulled.records.push(record);
            pulled.status = PullStatus::Found;
        }
        true
    }

    /// The record of an entry; `None`, said and counted, if it is not intact or not this
    /// entry's. What was deleted with its file is just not there.
    fn entry_record(&self, queue: &ConsumeQueue, offset: i64, entry: QueueEntry) -> Option<Chunk> {
        if entry.log_offset < self.log.start() {
            return None;
        }
        let chunk = match self.checked_record(entry.log_offset, VerifyMode::Full) {
            Ok(chunk) => chunk,
            Err(error) => {
                self.step_over(queue, offset, &error.to_string());
                return None;
            }
        };
        let fits = record::RecordView::parse(&chunk).is_ok_and(|view| {
            view.topic == &*queue.topic
                && view.queue_id == queue.queue_id
                && view.queue_offset == offset
        });
        if !fits {
            self.step_over(queue, offset, "its record is of another place");
            return None;
        }
        Some(chunk)
    }

    fn step_over(&self, queue: &ConsumeQueue, offset: i64, why: &str) {
        Counters::add(&self.counters.stepped_over);
        log::error!(
            "queue {}/{}: entry {offset} is stepped over: {why}",
            queue.topic,
            queue.queue_id
        );
    }

    pub fn entry(&self, topic: &str, queue_id: i32, offset: i64) -> Option<QueueEntry> {
        let queue = self.queues.get(topic, queue_id)?;
        (offset >= queue.min()).then(|| queue.entry(offset))?
    }

    /// The first queue offset whose message was stored at `time_ms` or later, else the end. With
    /// `upper` the last one that was stored at `time_ms` or before, else the first.
    pub fn offset_by_time(&self, topic: &str, queue_id: i32, time_ms: i64, upper: bool) -> i64 {
        let Some(queue) = self.queues.get(topic, queue_id) else {
            return 0;
        };
        let (min, max) = (queue.min(), queue.max());
        if !upper {
            return self.first_stored(&queue, min, max, |stored| stored >= time_ms);
        }
        let after = self.first_stored(&queue, min, max, |stored| stored > time_ms);
        (after - 1).max(min)
    }

    /// Store times do not fall within a queue while the clock does not, so this searches binary.
    fn first_stored(
        &self,
        queue: &ConsumeQueue,
        min: i64,
        max: i64,
        reached: impl Fn(i64) -> bool,
    ) -> i64 {
        let (mut low, mut high) = (min, max);
        while low < high {
            let middle = low + (high - low) / 2;
            // An entry whose record is not there has the time of the next one that is.
            let next = (middle..high).find_map(|at| Some((at, self.entry_stored_ms(queue, at)?)));
            match next {
                Some((at, stored)) if !reached(stored) => low = at + 1,
                _ => high = middle,
            }
        }
        low
    }

    fn entry_stored_ms(&self, queue: &ConsumeQueue, offset: i64) -> Option<i64> {
        let entry = queue.entry(offset).filter(|entry| !entry.is_filler())?;
        self.stored_ms(entry.log_offset)
    }

    /// The store time of the record at a log offset.
    pub(super) fn stored_ms(&self, log_offset: u64) -> Option<i64> {
        let chunk = self.log.read(log_offset, record::RECORD_SIZE_MIN)?;
        let (_, physical) = record::peek_offsets(&chunk)?;
        record::peek_stored_ms(&chunk).filter(|_| physical == log_offset as i64)
    }

    /// Log offsets of the messages that have this key, newest first, stored between the two
    /// times. The index keeps hashes and whole seconds; each record is asked itself.
    pub fn query(
        &self,
        topic: &str,
        key: &str,
        max: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> Vec<u64> {
        let mut found = Vec::new();
        let Some(index) = &self.index else {
            return found;
        };
        let max = max.min(QUERY_MAX);
        // A stored time is rounded down to a second after its file's begin.
        index.find(
            topic,
            key,
            begin_ms.saturating_sub(1000),
            end_ms,
            &mut |offset| {
                let is_it = self.record(offset).is_ok_and(|chunk| {
                    record::RecordView::parse(&chunk).is_ok_and(|view| {
                        view.topic == topic
                            && (begin_ms..=end_ms).contains(&view.stored_ms)
                            && index::keys_of(&view).any(|k| k == key)
                    })
                });
                if is_it && !found.contains(&offset) {
                    found.push(offset);
                }
                found.len() < max
            },
        );
        found
    }
}
