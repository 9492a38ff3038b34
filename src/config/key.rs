//! What a configuration key is, and how its value is read and written.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// One configuration key: everything the program and twinmq.conf(5) know about it.
pub struct Key {
    pub name: &'static str,
    /// The same key under the names other versions gave it.
    pub aliases: &'static [&'static str],
    pub kind: Kind,
    /// The value that stands when nothing is configured, as it would be written. Empty where
    /// the default follows from other keys: then `derived` says how.
    pub default: &'static str,
    pub derived: Option<&'static str>,
    pub effect: Effect,
    /// A key of this product alone: its values may have units and be hexadecimal.
    pub ours: bool,
    /// A change takes effect on SIGHUP.
    pub reloadable: bool,
    /// A number outside the range becomes the nearest bound, as in the original, with a warning.
    pub clamped: bool,
    /// One paragraph. Words in backquotes are keys or values.
    pub help: &'static str,
}

/// What values a key takes. Bounds are inclusive, because that is how people read them.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Flag,
    Int {
        min: i64,
        max: i64,
    },
    Bytes {
        min: i64,
        max: i64,
    },
    Time {
        unit: Unit,
        min: i64,
        max: i64,
    },
    Text,
    Choice(&'static [&'static str]),
    /// Parts divided by this character; empty parts do not count.
    List(char),
    /// Like `List`, each part a `HOST:PORT`.
    Peers(char),
    /// An IP address or a host name; may be empty.
    Host,
    /// `HOST:PORT`; may be empty.
    Peer,
}

/// The unit in which a time is written when no unit is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Micros,
    Millis,
    Seconds,
    Hours,
}

/// Whether setting a key changes anything.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    Used,
    /// Another value than the default asks for what this version does not have. It is warned
    /// about and the default stands, or refused where going on without it would be unsafe.
    Later {
        refuse: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Flag(bool),
    /// A number, bytes, or a time in the key's unit.
    Int(i64),
    Text(String),
}

/// Most that fits a Java `int`.
pub const INT_MAX: i64 = i32::MAX as i64;

pub const fn key(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key {
        name,
        aliases: &[],
        kind,
        default,
        derived: None,
        effect: Effect::Used,
        ours: false,
        reloadable: false,
        clamped: false,
        help,
    }
}

pub const fn int(min: i64, max: i64) -> Kind {
    Kind::Int { min, max }
}

pub const fn bytes(min: i64, max: i64) -> Kind {
    Kind::Bytes { min, max }
}

pub const fn millis(min: i64) -> Kind {
    Kind::Time {
        unit: Unit::Millis,
        min,
        max: INT_MAX,
    }
}

impl Key {
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Key {
        self.aliases = aliases;
        self
    }

    pub const fn ours(mut self) -> Key {
        self.ours = true;
        self
    }

    /// Says in words what the default is, where it is not one value.
    pub const fn derived(mut self, how: &'static str) -> Key {
        self.derived = Some(how);
        self
    }

    pub const fn reloadable(mut self) -> Key {
        self.reloadable = true;
        self
    }

    pub const fn clamped(mut self) -> Key {
        self.clamped = true;
        self
    }

    /// Only the default works in this version; another value is warned about.
    pub const fn later(mut self) -> Key {
        self.effect = Effect::Later { refuse: false };
        self
    }

    /// Only the default works; another value is refused, since ignoring it would be unsafe.
    pub const fn refused(mut self) -> Key {
        self.effect = Effect::Later { refuse: true };
        self
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    pub fn default_value(&self) -> Value {
        match (self.default, self.kind) {
            ("", Kind::Int { .. } | Kind::Bytes { .. } | Kind::Time { .. }) => Value::Int(0),
            (text, _) => match self.parse(text) {
                Ok(Parsed { value, note: None }) => value,
                _ => panic!(
                    "{}: the default {text:?} is not a value of its kind",
                    self.name
                ),
            },
        }
    }

    /// Reads a value; the error says what is wrong with it, without the key's name.
    pub fn parse(&self, text: &str) -> Result<Parsed, String> {
        match self.kind {
            Kind::Flag => Ok(self.parse_flag(text)),
            Kind::Int { min, max } | Kind::Bytes { min, max } | Kind::Time { min, max, .. } => {
                self.parse_number(text, min, max)
            }
            Kind::Choice(choices) if choices.contains(&text) => Ok(Value::Text(text.into()).into()),
            Kind::Choice(choices) => Err(format!("{text:?} is not one of {}", choices.join(", "))),
            Kind::Text => Ok(Value::Text(text.into()).into()),
            Kind::List(separator) | Kind::Peers(separator) => {
                let parts = split_list(text, separator);
                if matches!(self.kind, Kind::Peers(_)) {
                    parts.iter().try_for_each(|part| check_peer(part))?;
                }
                Ok(Value::Text(parts.join(&separator.to_string())).into())
            }
            Kind::Host if text.is_empty() => Ok(Value::Text(String::new()).into()),
            Kind::Host => check_host(text).map(|()| Value::Text(text.into()).into()),
            Kind::Peer if text.is_empty() => Ok(Value::Text(String::new()).into()),
            Kind::Peer => check_peer(text).map(|()| Value::Text(text.into()).into()),
        }
    }

    /// Java's reading: `true` in any case is true, whatever else is false. What is neither word
    /// gets a note, because it is hardly what was meant.
    fn parse_flag(&self, text: &str) -> Parsed {
        let value = text.eq_ignore_ascii_case("true");
        let plain = value || text.eq_ignore_ascii_case("false");
        Parsed {
            value: Value::Flag(value),
            note: (!plain)
                .then(|| format!("{text:?} is neither true nor false and counts as false")),
        }
    }

    fn parse_number(&self, text: &str, min: i64, max: i64) -> Result<Parsed, String> {
        let number = match self.ours {
            true => self.with_unit(text)?,
            false => java_integer(text)?,
        };
        if (min..=max).contains(&number) {
            return Ok(Value::Int(number).into());
        }
        let range = format!("{number} is outside {min} to {max}");
        match self.clamped {
            false => Err(range),
            true => {
                let bound = number.clamp(min, max);
                Ok(Parsed {
                    value: Value::Int(bound),
                    note: Some(format!("{range}; {bound} is used")),
                })
            }
        }
    }

    /// A number that may be hexadecimal and may have a unit that suits the kind.
    fn with_unit(&self, text: &str) -> Result<i64, String> {
        let bad = || format!("{text:?} is not a number with an optional unit");
        let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
        if let Some(digits) = hex {
            let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
            return (plain
                .then(|| i64::from_str_radix(digits, 16).ok())
                .flatten())
            .ok_or_else(bad);
        }
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let number: i64 = digits.parse().map_err(|_| bad())?;
        let (times, per) = match (unit.trim(), self.kind) {
            ("", _) => (1, 1),
            (unit, Kind::Bytes { .. }) => (byte_unit(unit).ok_or_else(bad)?, 1),
            (unit, Kind::Time { unit: own, .. }) => {
                (time_unit(unit).ok_or_else(bad)?, own.micros())
            }
            _ => return Err(bad()),
        };
        let total = number.checked_mul(times).ok_or_else(bad)?;
        match total % per {
            0 => Ok(total / per),
            _ => Err(format!("{text:?} is not a whole number of {}", self.unit())),
        }
    }

    /// The unit of a bare number, for people.
    pub fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Flag => "boolean",
            Kind::Int { .. } => "number",
            Kind::Bytes { .. } => "bytes",
            Kind::Time { unit, .. } => unit.name(),
            Kind::Text => "text",
            Kind::Choice(_) => "word",
            Kind::List(_) => "list",
            Kind::Peers(_) => "host:port list",
            Kind::Host => "address",
            Kind::Peer => "host:port",
        }
    }
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Micros => "microseconds",
            Unit::Millis => "milliseconds",
            Unit::Seconds => "seconds",
            Unit::Hours => "hours",
        }
    }

    pub fn duration(self, count: u64) -> Duration {
        Duration::from_micros(count.saturating_mul(self.micros() as u64))
    }

    fn micros(self) -> i64 {
        match self {
            Unit::Micros => 1,
            Unit::Millis => 1_000,
            Unit::Seconds => 1_000_000,
            Unit::Hours => 3_600_000_000,
        }
    }
}

/// A value, and what the operator should know about how it was read.
#[derive(Debug)]
pub struct Parsed {
    pub value: Value,
    pub note: Option<String>,
}

impl From<Value> for Parsed {
    fn from(value: Value) -> Parsed {
        Parsed { value, note: None }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// The parts of a list without blanks around them; empty ones are dropped.
pub fn split_list(text: &str, separator: char) -> Vec<&str> {
    let parts = text.split(separator).map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

/// `Integer.parseInt`: an optional sign and decimal digits, nothing else. The original ignores
/// what it cannot read and goes on with the default; we say so instead.
fn java_integer(text: &str) -> Result<i64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a whole number (a key of RocketMQ takes no units)"))
}

fn byte_unit(unit: &str) -> Option<i64> {
    let shift = match unit.to_ascii_lowercase().as_str() {
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    Some(1 << shift)
}

/// Microseconds in a unit.
fn time_unit(unit: &str) -> Option<i64> {
    Some(match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    })
}

fn check_host(text: &str) -> Result<(), String> {
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match text.parse::<IpAddr>().is_ok() || (!text.is_empty() && text.chars().all(name)) {
        true => Ok(()),
        false => Err(format!("{text:?} is not an address or a host name")),
    }
}

fn check_peer(text: &str) -> Result<(), String> {
    let bad = || format!("{text:?} is not HOST:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let host = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host);
    check_host(host).map_err(|_| bad())?;
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS_BYTES: Key = key("b", bytes(0, i64::MAX), "0", "").ours();
    const OURS_TIME: Key = key("t", millis(0), "0", "").ours();
    const JAVA_INT: Key = key("i", int(0, INT_MAX), "0", "");

    fn number(key: &Key, text: &str) -> Result<i64, String> {
        key.parse(text).map(|parsed| match parsed.value {
            Value::Int(number) => number,
            other => panic!("{other:?} is no number"),
        })
    }

    #[test]
    fn our_numbers_take_units_and_hexadecimal() {
        assert_eq!(number(&OURS_BYTES, "64m"), Ok(64 << 20));
        assert_eq!(number(&OURS_BYTES, "2 G"), Ok(2 << 30));
        assert_eq!(number(&OURS_BYTES, "0x10"), Ok(16));
        assert_eq!(number(&OURS_TIME, "3s"), Ok(3000));
        assert_eq!(number(&OURS_TIME, "1500"), Ok(1500));
        for bad in [
            "",
            "m",
            "1x",
            "1s",
            "-1",
            "0x",
            "0x-1",
            "9999999999t",
            "1.5m",
        ] {
            assert!(number(&OURS_BYTES, bad).is_err(), "{bad:?}");
        }
        let error = number(&OURS_TIME, "1500us").expect_err("half a millisecond");
        assert!(error.contains("whole number of milliseconds"), "{error}");
    }

    #[test]
    fn java_numbers_are_decimal_only() {
        assert_eq!(number(&JAVA_INT, "+7"), Ok(7));
        for bad in [
            "",
            "64m",
            "0x10",
            "1_000",
            "1.0",
            "9223372036854775808",
            "2147483648",
            "-1",
        ] {
            assert!(number(&JAVA_INT, bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn java_flags_are_true_or_else_false() {
        let flag = key("f", Kind::Flag, "false", "");
        assert_eq!(flag.parse("TRUE").expect("a flag").value, Value::Flag(true));
        let yes = flag.parse("yes").expect("a flag");
        assert_eq!(yes.value, Value::Flag(false));
        assert!(yes.note.expect("a note").contains("counts as false"));
    }

    #[test]
    fn a_clamped_number_becomes_the_nearest_bound() {
        let clamped = key("c", int(10, 95), "75", "").clamped();
        let parsed = clamped.parse("99").expect("a number");
        assert_eq!(parsed.value, Value::Int(95));
        assert!(parsed.note.expect("a note").contains("95 is used"));
    }

    #[test]
    fn peers_and_hosts_are_checked() {
        for good in ["10.0.0.1:9876", "ns-1.example:1", "[::1]:9876"] {
            assert_eq!(check_peer(good), Ok(()));
        }
        for bad in [
            "",
            "host",
            "host:",
            ":1",
            "host:0",
            "host:65536",
            "a b:1",
            "host:x",
        ] {
            assert!(check_peer(bad).is_err(), "{bad:?}");
        }
        assert!(check_host("::1").is_ok() && check_host("a/b").is_err());
    }
}
