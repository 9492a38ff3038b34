//! From the log to the queues and the index.
//!
//! The dispatcher walks the log record by record. What a pass finds for one queue is written at
//! once, at the places that the records' own queue offsets say; so walking a stretch twice
//! changes nothing, and a wrong entry is put right. Recovery and the `dispatch` thread use the
//! same walk.

use std::cmp::Ordering as CmpOrdering;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::time::{Duration, Instant};

use super::commit_log::takes_queue_offset;
use super::consume_queue::{ConsumeQueue, ENTRY_SIZE, QueueEntry};
use super::error::StoreError;
use super::properties;
use super::record::{self, Flaw, RecordView};
use super::recovery::candidates;
use super::{Arrival, Store};

/// Log bytes after which a pass ends, so that what it found becomes visible.
const PASS_BYTES: usize = 1024 * 1024;
/// The system flag of a record that holds a whole batch (5.x BatchCQ).
const SYS_INNER_BATCH: i32 = 1 << 7;
/// Where delayed messages wait; their entries hold the delivery time.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// No queue gets this long; its files' names must stay within 20 digits.
const QUEUE_OFFSET_MAX: i64 = i64::MAX / 64;
/// A failed write is tried again after this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Room kept for the next pass's entries of one queue.
const KEPT_CAPACITY: usize = 16 * 1024;

/// What was met and is not as it should be; for figures.
#[derive(Default)]
pub struct Counters {
    /// Records that are not intact, found by recovery or by a reader.
    pub damaged: AtomicU64,
    /// Queue entries that a pull stepped over.
    pub stepped_over: AtomicU64,
    /// Records whose queue offset contradicts their queue.
    pub misplaced: AtomicU64,
    /// Stretches of the log without a record.
    pub lost_ranges: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A queue by name.
pub type QueueName = (Arc<str>, i32);

/// Which part of the work a walk does.
#[derive(Clone, Default)]
pub struct Scope {
    /// Queue entries are made from here on, index entries from there on.
    pub queues_from: u64,
    pub index_from: u64,
    /// Only these queues, from the log's first record on. What is missing then is lost.
    pub rebuild: Option<HashSet<QueueName>>,
}

pub struct Dispatcher<'s> {
    store: &'s Store,
    scope: Scope,
    /// Log offset of the next record.
    at: u64,
    /// Before here everything is in the queues.
    written: u64,
    /// Store time of the last record.
    walked_ms: i64,
    pending: HashMap<Arc<str>, HashMap<i32, Pending>>,
    touched: Vec<QueueName>,
    /// Queues that miss entries before the next one; nothing is added until they are rebuilt.
    gaps: HashSet<QueueName>,
    /// Topics in which a record of a whole batch was met, each reported once.
    batches_in: HashSet<Box<str>>,
}

/// Entries of one queue that are not written yet.
struct Pending {
    queue: Arc<ConsumeQueue>,
    touched: bool,
    first: i64,
    entries: Vec<u8>,
    /// The queue has no entry before `first`.
    fresh: bool,
    /// Log offset behind the record of the last entry.
    log_end: u64,
    /// Places since then that have no entry: of records whose own place was taken, or of batches.
    displaced: u64,
    tags_code: i64,
    stored_ms: i64,
}

impl Pending {
    fn next(&self) -> i64 {
        self.first + (self.entries.len() / ENTRY_SIZE) as i64
    }

    fn push(&mut self, entry: QueueEntry) {
        self.entries.extend_from_slice(&entry.to_bytes());
    }

    /// The entry at a queue offset before `next`, written or not.
    fn entry(&self, offset: i64) -> Option<QueueEntry> {
        match usize::try_from(offset - self.first) {
            Ok(at) => QueueEntry::from_bytes(&self.entries[at * ENTRY_SIZE..]),
            Err(_) => self.queue.entry(offset),
        }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        if self.fresh {
            self.queue.write_first(self.first, &self.entries)?;
        } else {
            self.queue.write(self.first, &self.entries)?;
        }
        self.first = self.next();
        self.fresh = false;
        self.entries.clear();
        self.entries.shrink_to(KEPT_CAPACITY);
        Ok(())
    }
}

impl<'s> Dispatcher<'s> {
    pub fn new(store: &'s Store, at: u64, scope: Scope) -> Dispatcher<'s> {
        Dispatcher {
            store,
            scope,
            at,
            written: at,
            walked_ms: 0,
            pending: HashMap::new(),
            touched: Vec::new(),
            gaps: HashSet::new(),
            batches_in: HashSet::new(),
        }
    }

    pub fn at(&self) -> u64 {
        self.at
    }

    /// Before here everything is in the queues.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Walks up to `limit`, which is a record's end, and repairs the queues that miss entries.
    pub fn run_to(&mut self, limit: u64) -> Result<(), StoreError> {
        let (start, mut said) = (self.at, Instant::now());
        while self.at < limit {
            self.pass(limit).1?;
            if said.elapsed() > PROGRESS_EVERY {
                said = Instant::now();
                let (done, all) = (self.at - start, limit - start);
                log::info!("queues and index: {} of {} MiB", done >> 20, all >> 20);
            }
        }
        self.repair_gaps()
    }

    /// Walks some bytes and makes what was found visible. Returns the queues that grew, also
    /// when the walk failed. What could not be written is kept, and the next pass begins with
    /// it: so no more than one pass's entries are ever held.
    pub fn pass(&mut self, limit: u64) -> (Vec<Arrival>, Result<(), StoreError>) {
        let mut arrivals = Vec::new();
        let passed = self.write_pending(&mut arrivals).and_then(|()| {
            let walked = self.walk(limit);
            walked.and(self.write_pending(&mut arrivals))
        });
        (arrivals, passed)
    }

    fn walk(&mut self, limit: u64) -> Result<(), StoreError> {
        let log = &self.store.log;
        if self.at < log.start() {
            log::warn!("dispatch goes on at {}: the log begins there", log.start());
            self.at = log.start();
        }
        if let Some(end) = self.lost_until(self.at) {
            self.at = end;
            return Ok(());
        }
        if self.at >= limit {
            return Ok(());
        }
        let missing = StoreError::NotFound { offset: self.at };
        let chunk = log.read_to(self.at, usize::MAX, limit).ok_or(missing)?;
        let start = chunk.start();
        let mut position = 0;
        while position < chunk.len().min(PASS_BYTES) {
            self.at = start + position as u64;
            if self.lost_until(self.at).is_some() {
                return Ok(()); // the next pass steps over it
            }
            match RecordView::parse(&chunk[position..]) {
                Ok(view) if view.physical_offset == self.at as i64 => {
                    self.record(&view)?;
                    position += view.size;
                }
                _ if is_blank(&chunk[position..]) => {
                    let size = log.file_size();
                    self.at = start - start % size + size;
                    return Ok(());
                }
                Ok(view) => {
                    self.step_over(Flaw::PhysicalOffset(view.physical_offset), limit);
                    return Ok(());
                }
                Err(flaw) => {
                    self.step_over(flaw, limit);
                    return Ok(());
                }
            }
        }
        self.at = start + position as u64;
        Ok(())
    }

    /// What stands here is no record, though the log is known to go on to `limit`: recovery has
    /// not looked here, or a peer sent it. The walk goes on at the next record that is one, and
    /// the stretch counts as lost, so that it is met only once.
    fn step_over(&mut self, flaw: Flaw, limit: u64) {
        let lost = self.at..self.next_record(limit);
        let bytes = lost.end - lost.start;
        log::error!(
            "log offset {}: {bytes} bytes that are no record: {flaw}",
            self.at
        );
        self.at = lost.end;
        Counters::add(&self.store.counters.lost_ranges);
        let mut known = self
            .store
            .lost
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        known.push(lost);
    }

    /// The next place behind here, or else `limit`, where a record says itself that it stands.
    fn next_record(&self, limit: u64) -> u64 {
        let mut from = self.at + 1;
        while let Some(chunk) = self.store.log.read_to(from, usize::MAX, limit) {
            let stands = |start: &usize| {
                let view = RecordView::parse(&chunk[*start..]);
                view.is_ok_and(|view| view.physical_offset == from as i64 + *start as i64)
            };
            if let Some(start) = candidates(&chunk, 0, &chunk).find(stands) {
                return from + start as u64;
            }
            from = chunk.end();
        }
        limit
    }

    /// The end of the lost stretch that a log offset is in.
    fn lost_until(&self, at: u64) -> Option<u64> {
        let lost = self.lost();
        lost.iter().find(|r| r.contains(&at)).map(|r| r.end)
    }

    /// Bytes of lost stretches between two log offsets.
    fn lost_between(&self, from: u64, to: u64) -> u64 {
        let overlap = |r: &Range<u64>| r.end.min(to).saturating_sub(r.start.max(from));
        self.lost().iter().map(overlap).sum()
    }

    fn lost(&self) -> RwLockReadGuard<'_, Vec<Range<u64>>> {
        let lost = self.store.lost.read();
        lost.unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&mut self, view: &RecordView<'_>) -> Result<(), StoreError> {
        if let (Some(index), true) = (&self.store.index, self.at >= self.scope.index_from) {
            index.put(view)?;
        }
        if self.at >= self.scope.queues_from
            && takes_queue_offset(view.sys_flag)
            && !self.store.batch_topics.contains(view.topic)
        {
            match view.sys_flag & SYS_INNER_BATCH {
                0 => self.place(view)?,
                _ => self.pass_over_batch(view)?,
            }
        }
        self.walked_ms = view.stored_ms;
        Ok(())
    }

    /// Puts a record's entry where its queue offset says.
    fn place(&mut self, view: &RecordView<'_>) -> Result<(), StoreError> {
        if view.queue_id < 0 || !(0..QUEUE_OFFSET_MAX).contains(&view.queue_offset) {
            let queues = self.pending.get_mut(view.topic);
            if let Some(known) = queues.and_then(|queues| queues.get_mut(&view.queue_id)) {
                known.displaced += 1;
            }
            self.misplaced(view, "impossible");
            return Ok(());
        }
        if !self.wants(view) {
            return Ok(());
        }
        let entry = QueueEntry {
            log_offset: view.physical_offset as u64,
            size: view.size as u32,
            tags_code: tags_code(view, &self.store.config.delay_levels),
        };
        let rebuilding = self.scope.rebuild.is_some();
        let offset = view.queue_offset;
        let pending = self.pending_of(view)?;
        if pending.entries.is_empty() && pending.queue.has_no_entries() && offset != pending.first {
            pending.first = offset;
            pending.fresh = true;
        }
        if offset < pending.next() {
            return self.place_again(view, entry);
        }
        if offset > pending.next() {
            if !rebuilding {
                log::warn!(
                    "queue {}/{} misses entries {}..{offset}, built anew from the log",
                    view.topic,
                    view.queue_id,
                    pending.next()
                );
                self.gaps.insert((view.topic.into(), view.queue_id));
                return Ok(());
            }
            if !self.fill(view)? {
                return Ok(());
            }
        }
        let pending = self.pending_of(view)?;
        pending.push(entry);
        pending.log_end = entry.log_end();
        pending.displaced = 0;
        pending.tags_code = entry.tags_code;
        pending.stored_ms = view.stored_ms;
        Ok(())
    }

    /// A record of a whole batch belongs into a queue of another format, which is neither built
    /// nor served. A queue that has ordinary messages keeps the place that it took among them.
    fn pass_over_batch(&mut self, view: &RecordView<'_>) -> Result<(), StoreError> {
        let (topic, id) = (view.topic, view.queue_id);
        if !self.batches_in.contains(topic) {
            log::warn!("topic {topic} has records of whole batches, which are not served");
            self.batches_in.insert(topic.into());
        }
        if self.store.queues.get(topic, id).is_none() || !self.wants(view) {
            return Ok(());
        }
        let pending = self.pending_of(view)?;
        let empty = pending.entries.is_empty() && pending.queue.has_no_entries();
        let places = batch_places(view);
        match view.queue_offset.cmp(&pending.next()) {
            CmpOrdering::Equal if !empty => {
                pending.push(QueueEntry::FILLER);
                pending.log_end = view.physical_offset as u64 + view.size as u64;
                pending.displaced = places - 1;
            }
            CmpOrdering::Greater if !empty => pending.displaced += places,
            _ => {}
        }
        Ok(())
    }

    fn wants(&self, view: &RecordView<'_>) -> bool {
        if self.scope.rebuild.is_none() && self.gaps.is_empty() {
            return true;
        }
        let name = (view.topic.into(), view.queue_id);
        !self.gaps.contains(&name)
            && self
                .scope
                .rebuild
                .as_ref()
                .is_none_or(|s| s.contains(&name))
    }

    /// A place before the queue's end: the same record again, or a repair, or a topic that was
    /// deleted and made again, or a record whose queue offset is wrong.
    fn place_again(&mut self, view: &RecordView<'_>, entry: QueueEntry) -> Result<(), StoreError> {
        let offset = view.queue_offset;
        let pending = self.pending_of(view)?;
        match pending.entry(offset) {
            Some(known) if known == entry => {}
            _ if offset < pending.queue.min() => {}
            Some(known) if known.is_filler() || known.log_offset == entry.log_offset => {
                pending.write()?;
                pending.queue.write(offset, &entry.to_bytes())?;
            }
            None => {
                pending.write()?;
                pending.queue.write(offset, &entry.to_bytes())?;
            }
            Some(known) if offset == 0 && known.log_offset < entry.log_offset => {
                log::info!("queue {}/{} starts anew", view.topic, view.queue_id);
                pending.entries.clear();
                pending.queue.remove_files()?;
                pending.first = 0;
                pending.fresh = false;
                pending.push(entry);
                pending.log_end = entry.log_end();
                pending.tags_code = entry.tags_code;
                pending.stored_ms = view.stored_ms;
            }
            Some(_) => {
                pending.displaced += 1;
                self.misplaced(view, "taken");
            }
        }
        Ok(())
    }

    /// Takes the places that records lost from the log had. How many there can have been is
    /// known; a queue offset beyond that is wrong itself, and only its own place is taken.
    /// Returns whether the record may have its place.
    fn fill(&mut self, view: &RecordView<'_>) -> Result<bool, StoreError> {
        let at = view.physical_offset as u64;
        let from = self.pending_of(view)?.log_end;
        let lost = self.lost_between(from, at);
        let pending = self.pending_of(view)?;
        let possible = lost.div_ceil(record::RECORD_SIZE_MIN as u64) + pending.displaced;
        let missing = (view.queue_offset - pending.next()) as u64;
        let explained = missing <= possible;
        for _ in 0..if explained { missing } else { 1 } {
            pending.push(QueueEntry::FILLER);
        }
        pending.displaced = 0;
        if !explained {
            self.misplaced(view, "beyond the queue's end");
        }
        Ok(explained)
    }

    fn misplaced(&self, view: &RecordView<'_>, what: &str) {
        Counters::add(&self.store.counters.misplaced);
        log::error!(
            "record at {}: its place {} in queue {}/{} is {what}; no consumer gets it",
            view.physical_offset,
            view.queue_offset,
            view.topic,
            view.queue_id
        );
    }

    fn pending_of(&mut self, view: &RecordView<'_>) -> Result<&mut Pending, StoreError> {
        let (topic, id) = (view.topic, view.queue_id);
        let known = self.pending.get(topic).and_then(|queues| queues.get(&id));
        if !known.is_some_and(|pending| pending.touched) {
            self.touch(view)?;
        }
        let pending = self
            .pending
            .get_mut(topic)
            .and_then(|queues| queues.get_mut(&id));
        Ok(pending.expect("touched just now"))
    }

    /// The first record of a queue in this pass: look at the queue as it is now.
    fn touch(&mut self, view: &RecordView<'_>) -> Result<(), StoreError> {
        let queue = self.store.queues.get_or_create(view.topic, view.queue_id)?;
        let name = (queue.topic.clone(), view.queue_id);
        let queues = self.pending.entry(name.0.clone()).or_default();
        let rebuilding = self.scope.rebuild.is_some();
        let pending = queues.entry(name.1).or_insert_with(|| Pending {
            queue: queue.clone(),
            touched: false,
            // A rebuild overwrites entry by entry from the log's first record of the queue on.
            first: if rebuilding { view.queue_offset } else { 0 },
            entries: Vec::new(),
            fresh: rebuilding && !queue.holds(view.queue_offset),
            log_end: 0,
            displaced: 0,
            tags_code: 0,
            stored_ms: 0,
        });
        if !rebuilding {
            pending.first = queue.max();
            pending.queue = queue;
        }
        pending.touched = true;
        self.touched.push(name);
        Ok(())
    }

    fn write_pending(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), StoreError> {
        while let Some((topic, id)) = self.touched.last() {
            let queues = self.pending.get_mut(topic);
            if let Some(pending) = queues.and_then(|queues| queues.get_mut(id)) {
                let grew = !pending.entries.is_empty();
                pending.write()?;
                pending.touched = false;
                if grew {
                    arrivals.push(Arrival {
                        topic: topic.clone(),
                        queue_id: *id,
                        queue_offset: pending.queue.max(),
                        tags_code: pending.tags_code,
                        stored_ms: pending.stored_ms,
                    });
                }
            }
            self.touched.pop();
        }
        self.written = self.at;
        // Only now: a checkpoint takes it as what the queues have.
        if self.walked_ms != 0 && self.scope.rebuild.is_none() {
            let dispatched_ms = &self.store.dispatched_ms;
            dispatched_ms.store(self.walked_ms, Ordering::Release);
        }
        Ok(())
    }

    /// Builds the queues that miss entries anew, from the log's first record up to here.
    pub fn repair_gaps(&mut self) -> Result<(), StoreError> {
        if self.gaps.is_empty() {
            return Ok(());
        }
        let names = self.gaps.clone();
        rebuild(self.store, names, self.at)?;
        self.gaps.clear();
        Ok(())
    }

    pub fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }
}

/// Builds queues anew from the log's records before `to`. They stay readable meanwhile.
pub fn rebuild(store: &Store, queues: HashSet<QueueName>, to: u64) -> Result<(), StoreError> {
    log::warn!("{} queues are built anew from the log", queues.len());
    let scope = Scope {
        index_from: u64::MAX,
        rebuild: Some(queues),
        ..Scope::default()
    };
    let mut walk = Dispatcher::new(store, store.log.start(), scope);
    walk.run_to(to)
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.get(4..8) == Some(&record::MAGIC_BLANK.to_be_bytes())
}

/// Queue offsets that a whole batch takes: one a message. Each message has at least a byte.
fn batch_places(view: &RecordView<'_>) -> u64 {
    let places = view.property(properties::INNER_NUM);
    let places = places.and_then(|places| places.parse().ok());
    places.unwrap_or(1).clamp(1, view.size as u64)
}

/// What the queue entry says about a record's tags; in the delay topic, when it is due.
pub fn tags_code(view: &RecordView<'_>, levels: &super::DelayLevels) -> i64 {
    if view.topic == SCHEDULE_TOPIC
        && let Some(level) = view.property(properties::DELAY)
    {
        // A level that is no number has no delay of its own.
        let level = level.parse().unwrap_or(0);
        return levels.due_ms(level, view.stored_ms);
    }
    view.property(properties::TAGS)
        .map_or(0, |tags| i64::from(record::java_hash(tags)))
}

/// The `dispatch` thread: follows what is readable until the store stops.
pub fn run(store: &Store) {
    let from = store.dispatched.get();
    let mut dispatcher = Dispatcher::new(store, from, Scope::default());
    loop {
        let limit = store.log.readable().get();
        if dispatcher.at() < limit || dispatcher.has_gaps() {
            let (arrivals, passed) = dispatcher.pass(limit);
            store.dispatched.advance(dispatcher.written());
            store.dispatched.wake();
            store.tell_arrivals(&arrivals);
            match passed.and_then(|()| dispatcher.repair_gaps()) {
                Ok(()) => {
                    store.set_dispatch_stopped(false);
                }
                Err(error) => {
                    if !store.set_dispatch_stopped(true) {
                        log::error!("dispatch stops at {}: {error}", dispatcher.at());
                    }
                    if store.stopping.wait(RETRY_AFTER) {
                        return;
                    }
                }
            }
        } else if store.stopping.is_set() {
            return;
        } else {
            let idle = Instant::now() + Duration::from_secs(3600);
            store.log.readable().wait(dispatcher.at() + 1, idle);
        }
    }
}
