//! A header's `extFields`: names and values, all text on the wire.

use std::fmt::{self, Display, Write};
use std::str::FromStr;

/// Names and values in one string, in the order they came: a request has about fifteen, so a
/// scan beats a map, and two allocations beat thirty.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fields {
    text: String,
    /// Where each name and each value ends in `text`; they follow one another.
    ends: Vec<(usize, usize)>,
}

/// A field is missing or no value of its type. The peer hears which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    name: String,
    value: Option<String>,
}

impl Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            None => write!(f, "the field {} is missing", self.name),
            Some(value) => write!(f, "the field {} cannot be {value:?}", self.name),
        }
    }
}

impl Fields {
    /// The value under the first of these names that is there.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// The value, or an error that names the field.
    pub fn need(&self, name: &str) -> Result<&str, FieldError> {
        self.get(name).ok_or_else(|| FieldError {
            name: name.to_owned(),
            value: None,
        })
    }

    /// A number or boolean that must be there.
    pub fn parse<T: FromStr>(&self, name: &str) -> Result<T, FieldError> {
        parse_value(name, self.need(name)?)
    }

    /// A number that may be absent.
    pub fn parse_or<T: FromStr>(&self, name: &str, default: T) -> Result<T, FieldError> {
        match self.get(name) {
            None | Some("") => Ok(default),
            Some(text) => parse_value(name, text),
        }
    }

    /// As Java reads a boolean: `true` in any letter case, everything else is false.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Appends a field. Nothing looks for duplicates: the first one wins on reading.
    pub fn add(&mut self, name: &str, value: impl Display) {
        self.text.push_str(name);
        let name_end = self.text.len();
        write!(self.text, "{value}").expect("writing to a string cannot fail");
        self.ends.push((name_end, self.text.len()));
    }

    pub fn with(mut self, name: &str, value: impl Display) -> Fields {
        self.add(name, value);
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |&(name_end, value_end)| {
            let pair = (&self.text[start..name_end], &self.text[name_end..value_end]);
            start = value_end;
            pair
        })
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// For decoders: appends a name, then whatever they write to the returned string is the value
    /// until `end_value`.
    pub(super) fn begin_value(&mut self, name: &str) -> &mut String {
        self.text.push_str(name);
        self.ends.push((self.text.len(), self.text.len()));
        &mut self.text
    }

    pub(super) fn end_value(&mut self) {
        if let Some(last) = self.ends.last_mut() {
            last.1 = self.text.len();
        }
    }

    /// For decoders: the last field had no value after all.
    pub(super) fn drop_last(&mut self) {
        self.ends.pop();
        self.text
            .truncate(self.ends.last().map_or(0, |last| last.1));
    }
}

fn parse_value<T: FromStr>(name: &str, text: &str) -> Result<T, FieldError> {
    text.trim().parse().map_err(|_| FieldError {
        name: name.to_owned(),
        value: Some(text.chars().take(60).collect()),
    })
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_and_errors_name_the_field() {
        let fields = Fields::default()
            .with("a", "x")
            .with("queueId", 7)
            .with("m", true)
            .with("empty", "");
        assert_eq!(fields.get("a"), Some("x"));
        assert_eq!(fields.parse::<i32>("queueId"), Ok(7));
        assert!(fields.flag("m") && !fields.flag("a"));
        assert_eq!(fields.parse_or("empty", 3), Ok(3));
        assert_eq!(
            fields.parse::<i32>("a").expect_err("no number").to_string(),
            "the field a cannot be \"x\""
        );
        assert_eq!(
            fields.need("b").expect_err("absent").to_string(),
            "the field b is missing"
        );
    }
}
