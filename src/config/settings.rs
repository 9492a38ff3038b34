//! The values of a table of keys: read from a file and from arguments, looked up by name, and
//! printed so that they can be read back.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::key::{Effect, Key, Kind, Value, split_list};
use super::properties;

/// Keys that belong together, under a title for `-p` and the manual page.
pub struct Section {
    pub title: &'static str,
    pub keys: &'static [Key],
}

/// Keys of RocketMQ that change nothing here, all for one reason.
pub struct Unused {
    pub why: &'static str,
    /// Divided by blanks.
    pub names: &'static str,
}

impl Unused {
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split_whitespace()
    }
}

/// All that a kind of server knows about its keys.
pub struct Table {
    pub sections: &'static [Section],
    pub unused: &'static [Unused],
}

impl Table {
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.sections.iter().flat_map(|section| section.keys)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.keys().position(|key| key.names().any(|n| n == name))
    }

    fn unused(&self, name: &str) -> Option<(&'static str, &'static Unused)> {
        let mut names = self
            .unused
            .iter()
            .flat_map(|group| group.names().map(move |n| (n, group)));
        names.find(|(known, _)| *known == name)
    }

    /// The known name nearest to a misspelt one, if any is near.
    fn nearest(&self, name: &str) -> Option<&'static str> {
        let unused = self.unused.iter().flat_map(Unused::names);
        self.keys()
            .flat_map(Key::names)
            .chain(unused)
            .map(|known| {
                (
                    edit_distance(&name.to_lowercase(), &known.to_lowercase()),
                    known,
                )
            })
            .min()
            .filter(|(distance, _)| *distance <= 2.min(name.len() / 3))
            .map(|(_, known)| known)
    }
}

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    File(PathBuf, usize),
    Argument,
    /// A variable of the environment stands in for a key.
    Environment(&'static str),
    /// No single line: a default, or keys taken together.
    Whole,
}

/// Something to tell the operator: as an error it ends the start, as a warning it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: Place,
    pub message: String,
}

pub type Warning = Problem;

/// Every reason why a configuration cannot be used, one a line.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError(pub Vec<Problem>);

/// The values of one table. Two are equal when every key has the same value, however it came.
pub struct Settings {
    table: &'static Table,
    values: Vec<Value>,
    given: Vec<Option<Place>>,
    /// Keys without effect that were set, with their values, in their order.
    unused: Vec<(&'static str, String)>,
}

/// Values while they are read, with what there is to say about them.
pub(super) struct Reading {
    pub settings: Settings,
    pub warnings: Vec<Warning>,
    pub errors: Vec<Problem>,
}

impl Settings {
    fn new(table: &'static Table) -> Settings {
        let values: Vec<Value> = table.keys().map(Key::default_value).collect();
        Settings {
            table,
            given: vec![None; values.len()],
            values,
            unused: Vec::new(),
        }
    }

    pub fn flag(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Flag(flag) => *flag,
            other => panic!("{name} is {other:?}, not a flag"),
        }
    }

    pub fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Int(number) => *number,
            other => panic!("{name} is {other:?}, not a number"),
        }
    }

    /// A count of bytes; no such key allows a negative one.
    pub fn bytes(&self, name: &str) -> u64 {
        assert!(
            matches!(self.key(name).kind, Kind::Bytes { .. }),
            "{name} is not in bytes"
        );
        u64::try_from(self.int(name)).expect("the table has no negative minimum for bytes")
    }

    pub fn duration(&self, name: &str) -> Duration {
        let Kind::Time { unit, .. } = self.key(name).kind else {
            panic!("{name} is not a time");
        };
        unit.duration(u64::try_from(self.int(name)).expect("the table has no negative times"))
    }

    /// A text, a word, or an address; empty when it is not set.
    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Value::Text(text) => text,
            other => panic!("{name} is {other:?}, not a text"),
        }
    }

    pub fn list(&self, name: &str) -> Vec<&str> {
        match self.key(name).kind {
            Kind::List(separator) | Kind::Peers(separator) => {
                split_list(self.text(name), separator)
            }
            other => panic!("{name} is {other:?}, not a list"),
        }
    }

    /// Whether a file or an argument set the key.
    pub fn is_given(&self, name: &str) -> bool {
        self.given[self.index(name)].is_some()
    }

    /// The effective configuration as a file. Read again it gives the same values.
    pub fn print(&self) -> String {
        let mut out = String::new();
        for section in self.table.sections {
            let _ = writeln!(out, "# {}", section.title);
            for key in section.keys {
                let value = properties::escape(&self.value(key.name).to_string());
                let _ = writeln!(out, "{}={value}", key.name);
            }
            out.push('\n');
        }
        for (name, value) in &self.unused {
            let (_, group) = self.table.unused(name).expect("only known names are kept");
            let why = group.why;
            let _ = writeln!(out, "# known in RocketMQ, changes nothing here: {why}");
            let _ = writeln!(out, "{name}={}", properties::escape(value));
        }
        out
    }

    /// The keys whose values differ in `newer`, for a reload.
    pub fn changed<'a>(&'a self, newer: &'a Settings) -> impl Iterator<Item = &'static Key> + 'a {
        let pairs = self.values.iter().zip(&newer.values);
        let keys = self.table.keys().zip(pairs);
        keys.filter(|(_, (old, new))| old != new)
            .map(|(key, _)| key)
    }

    fn value(&self, name: &str) -> &Value {
        &self.values[self.index(name)]
    }

    fn key(&self, name: &str) -> &'static Key {
        self.table
            .keys()
            .nth(self.index(name))
            .expect("index() is in the table")
    }

    fn index(&self, name: &str) -> usize {
        match self.table.position(name) {
            Some(index) => index,
            None => panic!("{name} is not a key of this table"),
        }
    }
}

impl PartialEq for Settings {
    fn eq(&self, other: &Settings) -> bool {
        self.values == other.values && self.unused == other.unused
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}

impl Reading {
    pub fn new(table: &'static Table) -> Reading {
        Reading {
            settings: Settings::new(table),
            warnings: Vec::new(),
            errors: Vec::new(),
        }
    }

    pub fn file(&mut self, path: &Path, text: &str) {
        let place = |line| Place::File(path.to_owned(), line);
        match properties::parse(text) {
            Ok(entries) => {
                for entry in entries {
                    self.setting(place(entry.line), &entry.key, &entry.value);
                }
            }
            Err(malformed) => self.error(place(malformed.line), malformed.why),
        }
    }

    /// `KEY=VALUE` arguments; they overrule the file without a word.
    pub fn arguments(&mut self, arguments: &[String]) {
        for argument in arguments {
            match argument.split_once('=') {
                Some((key, value)) => self.setting(Place::Argument, key.trim(), value),
                None => self.error(Place::Argument, format!("{argument:?} is not KEY=VALUE")),
            }
        }
    }

    /// A variable of the environment, for a key that is not set otherwise.
    pub fn environment(&mut self, variable: &'static str, name: &str) {
        if let Ok(text) = std::env::var(variable)
            && !self.settings.is_given(name)
        {
            self.setting(Place::Environment(variable), name, &text);
        }
    }

    /// Sets a value that follows from others, or that a rule changed.
    pub fn set(&mut self, name: &str, value: Value) {
        let index = self.settings.index(name);
        self.settings.values[index] = value;
    }

    pub fn set_text(&mut self, name: &str, text: impl Into<String>) {
        self.set(name, Value::Text(text.into()));
    }

    pub fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(Problem {
            place: Place::Whole,
            message: message.into(),
        });
    }

    /// Refuses a combination, or one value by a rule that its kind does not know.
    pub fn refuse(&mut self, message: impl Into<String>) {
        self.error(Place::Whole, message);
    }

    pub fn finish(self) -> Result<(Settings, Vec<Warning>), ConfigError> {
        match self.errors.is_empty() {
            true => Ok((self.settings, self.warnings)),
            false => Err(ConfigError(self.errors)),
        }
    }

    fn setting(&mut self, place: Place, name: &str, text: &str) {
        // Java keeps blanks at a value's end, which nobody means.
        let text = text.trim();
        let table = self.settings.table;
        if let Some(index) = table.position(name) {
            let key = table.keys().nth(index).expect("position() is in the table");
            self.known(place, index, key, name, text);
        } else if let Some((known, _)) = table.unused(name) {
            self.settings
                .unused
                .retain(|(earlier, _)| *earlier != known);
            self.settings.unused.push((known, text.into()));
        } else {
            let hint = table
                .nearest(name)
                .map_or(String::new(), |near| format!(" (did you mean {near}?)"));
            let message = format!("unknown key {name:?} is ignored{hint}");
            if !self
                .warnings
                .iter()
                .any(|warning| warning.message == message)
            {
                self.warnings.push(Problem { place, message });
            }
        }
    }

    fn known(&mut self, place: Place, index: usize, key: &'static Key, name: &str, text: &str) {
        let parsed = match key.parse(text) {
            Ok(parsed) => parsed,
            Err(why) => return self.error(place, format!("{name}: {why}")),
        };
        if let Some(note) = parsed.note {
            self.warnings.push(Problem {
                place: place.clone(),
                message: format!("{name}: {note}"),
            });
        }
        let again = self.settings.given[index].is_some() && place != Place::Argument;
        if again && self.settings.values[index] != parsed.value {
            let message = format!("{name} was set before to another value; this one counts");
            self.warnings.push(Problem {
                place: place.clone(),
                message,
            });
        }
        let value = match key.effect {
            Effect::Later { refuse } if parsed.value != key.default_value() => {
                self.not_yet(&place, key, text, refuse);
                key.default_value()
            }
            _ => parsed.value,
        };
        self.settings.values[index] = value;
        self.settings.given[index] = Some(place);
    }

    fn not_yet(&mut self, place: &Place, key: &Key, text: &str, refuse: bool) {
        let name = key.name;
        let place = place.clone();
        match (refuse, key.default) {
            (true, _) => {
                let mut why = key.help.trim_end_matches('.').replace('`', "");
                why[..1].make_ascii_lowercase();
                self.error(place, format!("{name}={text} is not supported: {why}"));
            }
            (false, "") => self.warnings.push(Problem {
                place,
                message: format!("{name}={text} has no effect in this version"),
            }),
            (false, default) => self.warnings.push(Problem {
                place,
                message: format!(
                    "{name}={text} has no effect in this version, which goes on with {default}"
                ),
            }),
        }
    }

    fn error(&mut self, place: Place, message: impl Into<String>) {
        self.errors.push(Problem {
            place,
            message: message.into(),
        });
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File(path, line) => write!(f, "{}:{line}: {}", path.display(), self.message),
            Place::Argument => write!(f, "argument: {}", self.message),
            Place::Environment(name) => write!(f, "environment {name}: {}", self.message),
            Place::Whole => f.write_str(&self.message),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Insertions, deletions and replacements that turn one text into the other.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, c) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, d) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *d);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edit_distance_counts_single_letters() {
        assert_eq!(edit_distance("slaveTimeout", "slaveTimeout"), 0);
        assert_eq!(edit_distance("slaveTimout", "slaveTimeout"), 1);
        assert_eq!(edit_distance("abc", "cab"), 2);
        assert_eq!(edit_distance("", "abc"), 3);
    }
}
