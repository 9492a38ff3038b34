//! The JSON form of a header, read without building a tree: this is on the path of every message.
//!
//! Unknown members are skipped, order does not matter, and ext values may be numbers or booleans
//! (the C++ client sends numbers); they become text. What we write has text values only: Go
//! rejects a frame otherwise.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::command::{Header, Language};
use super::fields::Fields;
use crate::base::json::write_string;

/// Reads the header's text.
pub fn read(text: &[u8]) -> Result<Header, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let header = deserializer.deserialize_map(HeaderVisitor)?;
    deserializer.end()?;
    Ok(header)
}

/// Appends compact JSON, members in alphabetical order as the original has them.
pub fn write(header: &Header, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"code\":");
    write_number(header.code, out);
    out.extend_from_slice(b",\"extFields\":{");
    for (i, (name, value)) in header.ext.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_string(name, out);
        out.push(b':');
        write_string(value, out);
    }
    out.extend_from_slice(b"},\"flag\":");
    write_number(header.flag, out);
    out.extend_from_slice(b",\"language\":\"");
    out.extend_from_slice(header.language.name().as_bytes());
    out.extend_from_slice(b"\",\"opaque\":");
    write_number(header.opaque, out);
    if let Some(remark) = &header.remark {
        out.extend_from_slice(b",\"remark\":");
        write_string(remark, out);
    }
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    write_number(header.version, out);
    out.push(b'}');
}

fn write_number(value: i32, out: &mut Vec<u8>) {
    serde_json::to_writer(out, &value).expect("writing a number to memory cannot fail");
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a remoting header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
        while let Some(Name(name)) = map.next_key_seed(NameSeed)? {
            match name.as_ref() {
                "code" => header.code = map.next_value()?,
                "flag" => header.flag = map.next_value()?,
                "opaque" => header.opaque = map.next_value()?,
                "version" => header.version = map.next_value()?,
                "language" => {
                    let mut text = String::new();
                    map.next_value_seed(Text(&mut text))?;
                    header.language = Language::from_text(&text);
                }
                "remark" => {
                    let mut text = String::new();
                    let present = map.next_value_seed(Text(&mut text))?;
                    header.remark = (present && !text.is_empty()).then_some(text);
                }
                "extFields" => map.next_value_seed(ExtFields(&mut header.ext))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(header)
    }
}

/// A member's name, borrowed where it has no escapes.
struct Name<'de>(std::borrow::Cow<'de, str>);
struct NameSeed;

impl<'de> DeserializeSeed<'de> for NameSeed {
    type Value = Name<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Name<'de>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for NameSeed {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(name.into()))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(name.to_owned().into()))
    }
}

/// The `extFields` object, or null.
struct ExtFields<'f>(&'f mut Fields);

impl<'de> DeserializeSeed<'de> for ExtFields<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ExtFields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of fields")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key_seed(NameSeed)? {
            if map.next_value_seed(Text(self.0.begin_value(&name)))? {
                self.0.end_value();
            } else {
                self.0.drop_last();
            }
        }
        Ok(())
    }
}

/// Appends a scalar's text to a string; false for null.
struct Text<'t>(&'t mut String);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Text<'_> {
    fn put(self, value: impl fmt::Display) -> bool {
        use fmt::Write;
        write!(self.0, "{value}").expect("writing to a string cannot fail");
        true
    }
}

impl<'de> Visitor<'de> for Text<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text, a number or a boolean")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<bool, E> {
        self.0.push_str(value);
        Ok(true)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<bool, E> {
        Ok(self.put(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<bool, E> {
        Ok(self.put(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<bool, E> {
        Ok(self.put(value))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(self.put(value))
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }
}
