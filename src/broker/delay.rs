//! Delayed messages: stored in SCHEDULE_TOPIC_XXXX, one queue a level, and put into their real
//! topic when their time has come. delayOffset.json has how far each level is.
//!
//! A queue of that topic is in the order of delivery times, since each level has one delay, and its
//! entries carry the delivery time in place of the tags code. Only a master delivers; a slave
//! stores the offsets that its master sends. The position moves with each delivery and is saved
//! every few seconds and on a clean stop, so a crash repeats at most those seconds' deliveries.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use super::topics::{SCHEDULE_TOPIC, TRANS_HALF_TOPIC, check_stored_name};
use crate::base::clock::wall_ms;
use crate::base::data_version::DataVersion;
use crate::base::json;
use crate::base::json_file::SavedFile;
use crate::store::record::{Message, RecordView};
use crate::store::{Chunk, DelayLevels, QueueBounds, QueueEntry, Store, StoreError, properties};

const FILE: &str = "delayOffset.json";
const MEMBER: &str = "offsetTable";
const REAL_TOPIC: &str = "REAL_TOPIC";
const REAL_QUEUE: &str = "REAL_QID";
/// Most deliveries of one level in one turn, so that the other levels are not kept waiting.
const DELIVERIES_PER_TURN: usize = 256;
/// A level whose delivery failed is tried again after that long, as in the original.
const RETRY_MS: i64 = 10_000;
/// The version moves once in so many deliveries, as in 5.x (`delayOffsetUpdateVersionStep`).
const VERSION_STEP: u64 = 200;

/// Where a message waits, and what it is stored with.
#[derive(Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// In SCHEDULE_TOPIC_XXXX.
    pub queue_id: i32,
    pub properties: Vec<u8>,
}

/// Turns a message for `topic` into one that waits: its destination becomes two properties. A
/// level above the highest counts as the highest.
pub fn schedule(
    levels: &DelayLevels,
    level: i32,
    topic: &str,
    queue_id: i32,
    stored: &[u8],
) -> Scheduled {
    let level = level.clamp(1, levels.max().max(1));
    let mut kept = properties::remove(stored, properties::DELAY);
    kept = properties::remove(&kept, REAL_TOPIC);
    kept = properties::remove(&kept, REAL_QUEUE);
    properties::push(&mut kept, properties::DELAY, &level.to_string());
    properties::push(&mut kept, REAL_TOPIC, topic);
    properties::push(&mut kept, REAL_QUEUE, &queue_id.to_string());
    Scheduled {
        queue_id: level - 1,
        properties: kept,
    }
}

/// What delivery needs of the store.
pub trait DelayStore {
    type Bytes: Deref<Target = [u8]>;

    fn bounds(&self, queue_id: i32) -> Option<QueueBounds>;
    fn entry(&self, queue_id: i32, offset: i64) -> Option<QueueEntry>;
    fn record(&self, log_offset: u64) -> Result<Self::Bytes, StoreError>;
    fn append(&self, message: &Message<'_>) -> Result<(), StoreError>;
    fn wake(&self);
}

impl DelayStore for Store {
    type Bytes = Chunk;

    fn bounds(&self, queue_id: i32) -> Option<QueueBounds> {
        self.queue_bounds(SCHEDULE_TOPIC, queue_id)
    }

    fn entry(&self, queue_id: i32, offset: i64) -> Option<QueueEntry> {
        Store::entry(self, SCHEDULE_TOPIC, queue_id, offset)
    }

    fn record(&self, log_offset: u64) -> Result<Chunk, StoreError> {
        Store::record(self, log_offset)
    }

    fn append(&self, message: &Message<'_>) -> Result<(), StoreError> {
        Store::append(self, std::slice::from_ref(message)).map(|_| ())
    }

    fn wake(&self) {
        self.wake_followers();
    }
}

pub struct Delays {
    file: SavedFile,
    levels: DelayLevels,
    state: Mutex<State>,
}

struct State {
    /// Level to the next queue offset in its queue.
    offsets: BTreeMap<i32, i64>,
    version: DataVersion,
    rest: Map<String, Value>,
    deliveries: u64,
    generation: u64,
    /// Levels that wait after a failure, and until when.
    paused: HashMap<i32, i64>,
}

/// What became of the entry a level stands at.
enum Step {
    /// Delivered, or known to be undeliverable: the level moves on.
    Done,
    /// Due at this time.
    DueAt(i64),
    /// Nothing waits.
    Empty,
    /// The store refused; the level waits and tries again.
    Failed,
}

impl Delays {
    /// A broken file stops the start of a master; a slave gets the offsets again.
    pub fn open(directory: &Path, levels: DelayLevels, slave: bool) -> io::Result<Delays> {
        std::fs::create_dir_all(directory)?;
        let (file, value) = SavedFile::open(directory.join(FILE), slave)?;
        Ok(Delays {
            file,
            levels,
            state: Mutex::new(State::from_json(&value.unwrap_or_default())),
        })
    }

    pub fn levels(&self) -> &DelayLevels {
        &self.levels
    }

    /// Delivers what is due at `now_ms`. Returns when to come again, if something waits: at once
    /// if a level had more than one turn's worth.
    pub fn deliver(&self, store: &impl DelayStore, now_ms: i64) -> Option<i64> {
        let mut next: Option<i64> = None;
        let mut delivered = false;
        for level in 1..=self.levels.max() {
            let (any, due) = self.deliver_level(store, level, now_ms);
            delivered |= any;
            next = next.into_iter().chain(due).min();
        }
        if delivered {
            store.wake();
        }
        next
    }

    /// Whether anything was delivered, and when the level wants its next turn.
    fn deliver_level(
        &self,
        store: &impl DelayStore,
        level: i32,
        now_ms: i64,
    ) -> (bool, Option<i64>) {
        if let Some(until) = self.paused_until(level, now_ms) {
            return (false, Some(until));
        }
        let Some(bounds) = store.bounds(level - 1) else {
            return (false, None);
        };
        let mut offset = self.position(level, bounds);
        for turn in 0..DELIVERIES_PER_TURN {
            match self.step(store, level, offset, bounds.max, now_ms) {
                Step::Done => {
                    offset += 1;
                    self.state().moved(level, offset);
                }
                Step::DueAt(due) => return (turn > 0, Some(due)),
                Step::Empty => return (turn > 0, None),
                Step::Failed => {
                    let until = now_ms + RETRY_MS;
                    self.state().paused.insert(level, until);
                    return (turn > 0, Some(until));
                }
            }
        }
        (true, Some(now_ms))
    }

    /// Where the level stands, within what its queue has.
    fn position(&self, level: i32, bounds: QueueBounds) -> i64 {
        let stored = self.state().offsets.get(&level).copied().unwrap_or(0);
        let inside = stored.clamp(bounds.min, bounds.max.max(bounds.min));
        if inside != stored {
            log::warn!("delay level {level}: offset {stored} is outside its queue, now {inside}");
            self.state().moved(level, inside);
        }
        inside
    }

    fn step(
        &self,
        store: &impl DelayStore,
        level: i32,
        offset: i64,
        end: i64,
        now_ms: i64,
    ) -> Step {
        if offset >= end {
            return Step::Empty;
        }
        let Some(entry) = store.entry(level - 1, offset) else {
            // Its file was deleted just now, or cannot be read: the next turn starts inside the
            // queue's bounds again.
            log::error!("delay level {level}: queue offset {offset} cannot be read");
            return Step::Failed;
        };
        let due = entry.tags_code;
        // Later than a fresh message of this level would be due: the clock was set back since.
        let clock_moved = due > self.levels.due_ms(level, now_ms);
        if due > now_ms && !clock_moved {
            return Step::DueAt(due);
        }
        let record = match store.record(entry.log_offset) {
            Ok(record) => record,
            Err(error @ (StoreError::NotFound { .. } | StoreError::Corrupt { .. })) => {
                log::error!("delay level {level}: queue offset {offset} is left out: {error}");
                return Step::Done;
            }
            Err(error) => {
                log::error!("delay level {level}: queue offset {offset} waits: {error}");
                return Step::Failed;
            }
        };
        match deliver_record(store, &record) {
            Ok(()) => Step::Done,
            Err(Undelivered::Never(why)) => {
                log::error!("delay level {level}: queue offset {offset} is left out: {why}");
                Step::Done
            }
            Err(Undelivered::Later(error)) => {
                log::error!("delay level {level}: queue offset {offset} waits: {error}");
                Step::Failed
            }
        }
    }

    fn paused_until(&self, level: i32, now_ms: i64) -> Option<i64> {
        let mut state = self.state();
        // A clock that was set back must not hold a level for longer than the pause.
        let waits = |until: &i64| (now_ms..=now_ms + RETRY_MS).contains(until) && *until > now_ms;
        let until = state.paused.get(&level).copied().filter(waits);
        if until.is_none() {
            state.paused.remove(&level);
        }
        until
    }

    /// Level, next offset and queue end of each level that has a queue, for the figures.
    pub fn positions(&self, store: &impl DelayStore) -> Vec<(i32, i64, i64)> {
        let levels = 1..=self.levels.max();
        levels
            .filter_map(|level| {
                let end = store.bounds(level - 1)?.max;
                let offset = self.state().offsets.get(&level).copied().unwrap_or(0);
                Some((level, offset, end))
            })
            .collect()
    }

    /// GET_ALL_DELAY_OFFSET (45): levels stand bare.
    pub fn body(&self) -> Vec<u8> {
        json::write(&self.state().to_json(json::bare_key))
    }

    /// A slave stores what its master sends.
    pub fn store_from_master(&self, body: &Value) -> Result<(), String> {
        let offsets =
            read_offsets(body).ok_or_else(|| format!("the member {MEMBER} is missing"))?;
        let mut state = self.state();
        if state.offsets != offsets {
            state.offsets = offsets;
            state.generation += 1;
        }
        state.version = DataVersion::of(body).unwrap_or(state.version);
        Ok(())
    }

    /// Writes the file if a level moved since it was written; false if not.
    pub fn save_if_changed(&self) -> io::Result<bool> {
        self.file.save_if_changed(|saved| {
            let state = self.state();
            (state.generation != saved)
                .then(|| (state.generation, state.to_json(|level| level.to_string())))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Undelivered {
    /// Trying again cannot help. The record stays in the log.
    Never(String),
    Later(StoreError),
}

/// Puts a message that waited into its real topic, its properties' bytes unchanged.
fn deliver_record(store: &impl DelayStore, record: &[u8]) -> Result<(), Undelivered> {
    let never = |why: &str| Undelivered::Never(why.to_owned());
    let view = RecordView::parse(record).map_err(|flaw| Undelivered::Never(flaw.to_string()))?;
    let topic = view
        .property(REAL_TOPIC)
        .ok_or_else(|| never("it has no REAL_TOPIC"))?;
    check_stored_name(topic).map_err(Undelivered::Never)?;
    if topic == TRANS_HALF_TOPIC || topic == SCHEDULE_TOPIC {
        return Err(never("its REAL_TOPIC takes no delayed messages"));
    }
    let queue_id = view
        .property(REAL_QUEUE)
        .and_then(|text| text.parse::<i32>().ok())
        .filter(|id| *id >= 0)
        .ok_or_else(|| never("it has no REAL_QID"))?;
    let message = Message {
        topic,
        queue_id,
        prepared_offset: 0,
        ..view.message()
    };
    store.append(&message).map_err(|error| match error {
        StoreError::MessageIllegal(_) | StoreError::PropertiesTooLong { .. } => {
            Undelivered::Never(error.to_string())
        }
        other => Undelivered::Later(other),
    })
}

impl State {
    fn from_json(value: &Value) -> State {
        let others = value.as_object().into_iter().flatten();
        State {
            offsets: read_offsets(value).unwrap_or_default(),
            version: DataVersion::of(value).unwrap_or_else(DataVersion::created_now),
            rest: others
                .filter(|(name, _)| *name != "dataVersion" && *name != MEMBER)
                .map(|(name, member)| (name.clone(), member.clone()))
                .collect(),
            deliveries: 0,
            generation: 0,
            paused: HashMap::new(),
        }
    }

    fn to_json(&self, level_key: impl Fn(i32) -> String) -> Value {
        let pairs = self.offsets.iter();
        let table: Map<String, Value> = pairs
            .map(|(level, offset)| (level_key(*level), Value::from(*offset)))
            .collect();
        let mut members = self.rest.clone();
        members.insert("dataVersion".into(), self.version.to_json());
        members.insert(MEMBER.into(), Value::Object(table));
        Value::Object(members)
    }

    fn moved(&mut self, level: i32, offset: i64) {
        self.offsets.insert(level, offset);
        self.generation += 1;
        self.deliveries += 1;
        if self.deliveries.is_multiple_of(VERSION_STEP) {
            self.version.advance(wall_ms());
        }
    }
}

/// The offsets of a file or body; entries that are no numbers are left out.
fn read_offsets(value: &Value) -> Option<BTreeMap<i32, i64>> {
    let members = value.get(MEMBER)?.as_object()?.iter();
    let pairs = members.filter_map(|(level, offset)| Some((level.parse().ok()?, offset.as_i64()?)));
    Some(pairs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::record::{Place, encode, encoded_size, prepare};
    use serde_json::json;
    use std::cell::RefCell;

    struct Delivered {
        topic: String,
        queue_id: i32,
        body: String,
        properties: Vec<u8>,
    }

    /// Records of the schedule topic by level, and what was delivered.
    #[derive(Default)]
    struct FakeStore {
        queues: BTreeMap<i32, Vec<(i64, u64)>>,
        records: RefCell<Vec<Vec<u8>>>,
        delivered: RefCell<Vec<Delivered>>,
        full: RefCell<bool>,
    }

    impl DelayStore for FakeStore {
        type Bytes = Vec<u8>;

        fn bounds(&self, queue_id: i32) -> Option<QueueBounds> {
            let max = self.queues.get(&queue_id)?.len() as i64;
            Some(QueueBounds { min: 0, max })
        }

        fn entry(&self, queue_id: i32, offset: i64) -> Option<QueueEntry> {
            let (due, log_offset) = *self.queues.get(&queue_id)?.get(offset as usize)?;
            let size = 0;
            Some(QueueEntry {
                log_offset,
                size,
                tags_code: due,
            })
        }

        fn record(&self, log_offset: u64) -> Result<Vec<u8>, StoreError> {
            let records = self.records.borrow();
            let found = records.get(log_offset as usize).cloned();
            found.ok_or(StoreError::NotFound { offset: log_offset })
        }

        fn append(&self, message: &Message<'_>) -> Result<(), StoreError> {
            if *self.full.borrow() {
                return Err(StoreError::DiskFull(std::path::PathBuf::new()));
            }
            self.delivered.borrow_mut().push(Delivered {
                topic: message.topic.to_owned(),
                queue_id: message.queue_id,
                body: String::from_utf8_lossy(message.body).into(),
                properties: message.properties.to_vec(),
            });
            Ok(())
        }

        fn wake(&self) {}
    }

    impl FakeStore {
        fn put(&mut self, level: i32, due: i64, body: &str, properties: &[u8]) {
            let host = ([127, 0, 0, 1], 10911).into();
            let message = Message {
                topic: SCHEDULE_TOPIC,
                queue_id: level - 1,
                flag: 0,
                sys_flag: 0,
                born_ms: 1,
                born_host: host,
                store_host: host,
                reconsume_times: 2,
                prepared_offset: 0,
                body: body.as_bytes(),
                properties,
            };
            let prepared = prepare(&message, 1 << 20).expect("legal");
            let mut bytes = vec![0; encoded_size(&message)];
            let place = Place {
                queue_offset: 0,
                log_offset: 0,
                stored_ms: 0,
            };
            encode(&message, prepared, place, &mut bytes);
            let at = self.records.borrow().len() as u64;
            self.records.borrow_mut().push(bytes);
            self.queues.entry(level - 1).or_default().push((due, at));
        }

        fn wait_for(&mut self, level: i32, due: i64, body: &str) {
            let waiting = schedule(&DelayLevels::default(), level, "%RETRY%G", 0, b"a\x01b");
            self.put(level, due, body, &waiting.properties);
        }

        fn bodies(&self) -> Vec<String> {
            let delivered = self.delivered.borrow();
            delivered.iter().map(|one| one.body.clone()).collect()
        }
    }

    fn open(dir: &Path) -> Delays {
        Delays::open(dir, DelayLevels::default(), false).expect("delays")
    }

    #[test]
    fn a_scheduled_message_names_its_destination() {
        let levels = DelayLevels::default();
        let made = schedule(&levels, 3, "T", 5, b"DELAY\x019\x02a\x01b\x02");
        assert_eq!(made.queue_id, 2);
        assert_eq!(
            made.properties,
            b"a\x01b\x02DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x015"
        );
        assert_eq!(schedule(&levels, 25, "T", 0, b"").queue_id, 17);
    }

    #[test]
    fn messages_are_delivered_when_due_and_unchanged() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let delays = open(dir.path());
        let mut store = FakeStore::default();
        store.wait_for(1, 1000, "first");
        store.wait_for(1, 2000, "second");
        store.wait_for(3, 10_000, "other level");
        assert_eq!(delays.deliver(&store, 999), Some(1000));
        assert_eq!(delays.deliver(&store, 1000), Some(2000));
        assert_eq!(store.bodies(), ["first"]);
        assert_eq!(delays.deliver(&store, 5000), Some(10_000));
        assert_eq!(delays.deliver(&store, 10_000), None);
        assert_eq!(store.bodies(), ["first", "second", "other level"]);
        let delivered = store.delivered.borrow();
        let first = &delivered[0];
        assert_eq!((first.topic.as_str(), first.queue_id), ("%RETRY%G", 0));
        assert_eq!(
            first.properties,
            b"a\x01b\x02DELAY\x011\x02REAL_TOPIC\x01%RETRY%G\x02REAL_QID\x010"
        );
    }

    #[test]
    fn positions_survive_a_restart_and_travel_to_a_slave() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let delays = open(dir.path());
        let mut store = FakeStore::default();
        store.wait_for(1, 1000, "first");
        delays.deliver(&store, 1000);
        assert!(delays.save_if_changed().expect("saved"));
        assert!(!delays.save_if_changed().expect("not again"));
        let again = open(dir.path());
        store.wait_for(1, 1500, "second");
        again.deliver(&store, 3000);
        assert_eq!(store.bodies(), ["first", "second"]);
        let body = String::from_utf8(again.body()).expect("text");
        assert!(body.ends_with(r#""offsetTable":{1:2}}"#), "{body}");
        assert_eq!(again.positions(&store), [(1, 2, 2)]);

        let other = tempfile::tempdir().expect("a temporary directory");
        let slave = Delays::open(other.path(), DelayLevels::default(), true).expect("delays");
        slave
            .store_from_master(&json::parse(body.as_bytes()).expect("json"))
            .expect("stored");
        assert!(slave.save_if_changed().expect("saved"));
        assert_eq!(open(other.path()).positions(&store), [(1, 2, 2)]);
        assert!(slave.store_from_master(&json!({})).is_err());
    }

    #[test]
    fn a_refusing_store_delays_and_loses_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let delays = open(dir.path());
        let mut store = FakeStore::default();
        store.wait_for(1, 1000, "first");
        *store.full.borrow_mut() = true;
        assert_eq!(delays.deliver(&store, 1000), Some(11_000));
        *store.full.borrow_mut() = false;
        assert_eq!(delays.deliver(&store, 2000), Some(11_000));
        assert_eq!(store.bodies(), [""; 0]);
        delays.deliver(&store, 11_000);
        assert_eq!(store.bodies(), ["first"]);
    }

    #[test]
    fn what_cannot_be_delivered_does_not_hold_up_the_rest() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let delays = open(dir.path());
        let mut store = FakeStore::default();
        store.put(1, 10, "no destination", b"");
        store.put(1, 10, "bad topic", b"REAL_TOPIC\x01../x\x02REAL_QID\x010");
        store.put(1, 10, "bad queue", b"REAL_TOPIC\x01T\x02REAL_QID\x01-1");
        store.queues.get_mut(&0).expect("level 1").push((10, 999));
        store.wait_for(1, 10, "good");
        assert_eq!(delays.deliver(&store, 10), None);
        assert_eq!(store.bodies(), ["good"]);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_keep_messages() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let delays = open(dir.path());
        let mut store = FakeStore::default();
        store.wait_for(1, 1_000_000, "from the future");
        delays.deliver(&store, 500);
        assert_eq!(store.bodies(), ["from the future"]);
    }

    #[test]
    fn a_long_queue_is_delivered_in_turns() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let delays = open(dir.path());
        let mut store = FakeStore::default();
        for _ in 0..DELIVERIES_PER_TURN + 1 {
            store.wait_for(2, 10, "x");
        }
        assert_eq!(delays.deliver(&store, 20), Some(20));
        assert_eq!(store.bodies().len(), DELIVERIES_PER_TURN);
        assert_eq!(delays.deliver(&store, 20), None);
        assert_eq!(store.bodies().len(), DELIVERIES_PER_TURN + 1);
    }
}
