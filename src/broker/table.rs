//! A table of named configurations with a version and a file: the part that topics and
//! subscription groups have in common.
//!
//! A reader never sees a table half changed: each change, also that of a slave taking over the
//! master's whole table, is one step under the lock, and the version moves in the same step.
//! The lock is a leaf. Writing the file is the caller's step (`save_if_changed`), so that a thread
//! that must not wait for the disk can leave it to `timer`, which the change hook wakes.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use serde_json::{Map, Value};

use crate::base::clock::wall_ms;
use crate::base::data_version::DataVersion;
use crate::base::json_file::{self, SavedFile};

/// One kind of configuration.
pub trait Entry: Sized + PartialEq {
    /// The file's name in the store's config directory.
    const FILE: &'static str;
    /// The member that holds the entries, in the file and in what brokers exchange.
    const MEMBER: &'static str;

    fn name(&self) -> &str;
    /// Reads an entry; absent members have the original's defaults, unknown ones are kept.
    fn from_json(name: &str, value: &Value) -> Result<Self, String>;
    fn to_json(&self) -> Value;
}

pub struct Table<E> {
    file: SavedFile,
    state: RwLock<State<E>>,
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct State<E> {
    entries: HashMap<String, Arc<E>>,
    version: DataVersion,
    /// Members beside the entries and the version, kept for the line that wrote them.
    rest: Map<String, Value>,
    /// Counts changes since the start; the version is the peers' and may also go back.
    generation: u64,
}

impl<E: Entry> Table<E> {
    /// Loads the file over the built-in entries. A broken table stops the start of a master: it
    /// may be the only copy. A slave goes on without, since its master sends the table again.
    pub fn open(directory: &Path, builtin: Vec<E>, slave: bool) -> io::Result<Table<E>> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join(E::FILE);
        let mut state = State::new();
        match load(&path) {
            Ok(None) => {}
            Ok(Some(loaded)) => state = loaded,
            Err(error) if slave => {
                log::error!("{error}; starting without, the master's table will replace it");
            }
            Err(error) => return Err(error),
        }
        if state.add_missing(builtin) && !slave {
            state.note_change();
        }
        Ok(Table {
            file: SavedFile::new(path),
            state: RwLock::new(state),
            on_change: OnceLock::new(),
        })
    }

    /// Called after each change, without the lock. The second call has no effect.
    pub fn on_change(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(hook));
    }

    pub fn get(&self, name: &str) -> Option<Arc<E>> {
        self.read().entries.get(name).cloned()
    }

    /// The entry of that name; `make` is asked for it where there is none, and may refuse.
    pub fn get_or_insert(&self, name: &str, make: impl FnOnce() -> Option<E>) -> Option<Arc<E>> {
        if let Some(found) = self.get(name) {
            return Some(found);
        }
        let made = Arc::new(make()?);
        let mut state = self.write();
        if let Some(found) = state.entries.get(name) {
            return Some(found.clone());
        }
        state.entries.insert(name.to_owned(), made.clone());
        state.note_change();
        drop(state);
        self.changed();
        Some(made)
    }

    /// Sets an entry; false if it was the same already.
    pub fn put(&self, entry: E) -> bool {
        let mut state = self.write();
        if state
            .entries
            .get(entry.name())
            .is_some_and(|old| **old == entry)
        {
            return false;
        }
        state
            .entries
            .insert(entry.name().to_owned(), Arc::new(entry));
        state.note_change();
        drop(state);
        self.changed();
        true
    }

    /// Removes an entry; false if there was none.
    pub fn remove(&self, name: &str) -> bool {
        let mut state = self.write();
        if state.entries.remove(name).is_none() {
            return false;
        }
        state.note_change();
        drop(state);
        self.changed();
        true
    }

    /// A slave takes over its master's table, in one step, and its version with it. False if
    /// nothing differed. An empty table is refused: no broker has one.
    pub fn replace_all(&self, wrapper: &Value) -> Result<bool, String> {
        let mut new = State::<E>::from_wrapper(wrapper)?;
        if new.entries.is_empty() {
            return Err(format!("the member {} is empty", E::MEMBER));
        }
        let mut state = self.write();
        // The contents are compared, not only the version: a table that lost an entry under an
        // equal version is repaired by the next exchange.
        if state.version == new.version && state.same_as(&new) {
            return Ok(false);
        }
        new.generation = state.generation + 1;
        *state = new;
        drop(state);
        self.changed();
        Ok(true)
    }

    /// The whole table as brokers exchange it.
    pub fn wrapper(&self) -> Value {
        self.read().wrapper()
    }

    pub fn version(&self) -> DataVersion {
        self.read().version
    }

    /// All entries, in the order of their names.
    pub fn all(&self) -> Vec<Arc<E>> {
        let mut all: Vec<_> = self.read().entries.values().cloned().collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// Writes the file if the table changed since it was written; false if not.
    pub fn save_if_changed(&self) -> io::Result<bool> {
        self.file.save_if_changed(|saved| {
            let state = self.read();
            (state.generation != saved).then(|| (state.generation, state.wrapper()))
        })
    }

    fn changed(&self) {
        if let Some(hook) = self.on_change.get() {
            hook();
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State<E>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State<E>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Entry> State<E> {
    fn new() -> State<E> {
        State {
            entries: HashMap::new(),
            version: DataVersion::created_now(),
            rest: Map::new(),
            generation: 0,
        }
    }

    /// Reads what `wrapper` writes. An entry that cannot be used is left out, with a warning: one
    /// bad name must not cost the other topics.
    fn from_wrapper(wrapper: &Value) -> Result<State<E>, String> {
        let table = wrapper
            .get(E::MEMBER)
            .and_then(Value::as_object)
            .ok_or_else(|| format!("the member {} is missing", E::MEMBER))?;
        let mut state = State::new();
        state.version = DataVersion::of(wrapper).unwrap_or(state.version);
        for (name, value) in table {
            match E::from_json(name, value) {
                Ok(entry) => {
                    state.entries.insert(name.clone(), Arc::new(entry));
                }
                Err(why) => log::warn!("{}: entry {name:?} is left out: {why}", E::FILE),
            }
        }
        let others = wrapper.as_object().into_iter().flatten();
        state.rest = others
            .filter(|(name, _)| *name != E::MEMBER && *name != "dataVersion")
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        Ok(state)
    }

    fn wrapper(&self) -> Value {
        let table: Map<String, Value> = self
            .entries
            .iter()
            .map(|(name, entry)| (name.clone(), entry.to_json()))
            .collect();
        let mut wrapper = self.rest.clone();
        wrapper.insert("dataVersion".into(), self.version.to_json());
        wrapper.insert(E::MEMBER.into(), Value::Object(table));
        Value::Object(wrapper)
    }

    fn add_missing(&mut self, builtin: Vec<E>) -> bool {
        let before = self.entries.len();
        for entry in builtin {
            self.entries
                .entry(entry.name().to_owned())
                .or_insert_with(|| Arc::new(entry));
        }
        self.entries.len() > before
    }

    fn same_as(&self, other: &State<E>) -> bool {
        self.entries == other.entries && self.rest == other.rest
    }

    fn note_change(&mut self) {
        self.version.advance(wall_ms());
        self.generation += 1;
    }
}

fn load<E: Entry>(path: &Path) -> io::Result<Option<State<E>>> {
    let Some((value, _)) = json_file::load(path)? else {
        return Ok(None);
    };
    let state = State::from_wrapper(&value).map_err(|why| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: {why}", path.display()),
        )
    })?;
    Ok(Some(state))
}

/// For entries: an integer member that may come as text, within an i32.
pub(super) fn integer(value: &Value, name: &str, default: i32) -> i32 {
    crate::base::json::number(value, name)
        .and_then(|number| i32::try_from(number).ok())
        .unwrap_or(default)
}

/// For entries: the members that have no field of their own.
pub(super) fn other_members(value: &Value, known: &[&str]) -> Map<String, Value> {
    value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, member)| !known.contains(&name.as_str()) && !member.is_null())
        .map(|(name, member)| (name.clone(), member.clone()))
        .collect()
}
