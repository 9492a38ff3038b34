//! JSON as the original's library (fastjson) writes it, made readable for serde_json, and written
//! the same way.
//!
//! Map keys that are not strings stand bare: `{0:5}`, `{true:1}`, and even an object:
//! `{{"brokerName":"b","queueId":0,"topic":"T"}:7}`. A bare key is read as a string key with its
//! text. A writer asks for one with `bare_key`. Objects are written with their keys sorted, as
//! the original does.

use std::fmt;

use serde_json::Value;

/// Nesting beyond this is refused: real bodies have four levels.
const DEPTH_MAX: usize = 64;
/// Marks a key that is written without quotes. No topic, group or address contains it.
const BARE: char = '\u{1f}';

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError(String);

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not JSON: {}", self.0)
    }
}

impl std::error::Error for JsonError {}

/// Reads standard JSON or fastjson's dialect.
pub fn parse(text: &[u8]) -> Result<Value, JsonError> {
    let strict = match serde_json::from_slice(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let mut quoted = Quoter {
        text,
        at: 0,
        out: Vec::with_capacity(text.len() + text.len() / 8),
    };
    if quoted.value(0).is_err() || !quoted.rest_is_space() {
        return Err(JsonError(strict.to_string()));
    }
    serde_json::from_slice(&quoted.out).map_err(|error| JsonError(error.to_string()))
}

/// A key that `write` puts down without quotes: a number or a whole object.
pub fn bare_key(text: impl fmt::Display) -> String {
    format!("{BARE}{text}")
}

/// Compact JSON, keys sorted, bare keys bare.
pub fn write(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write_value(value, &mut out);
    out
}

fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            out.push(b'{');
            for (i, (key, member)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                match key.strip_prefix(BARE) {
                    Some(text) => out.extend_from_slice(text.as_bytes()),
                    None => write_string(key, out),
                }
                out.push(b':');
                write_value(member, out);
            }
            out.push(b'}');
        }
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_value(item, out);
            }
            out.push(b']');
        }
        Value::String(text) => write_string(text, out),
        other => out.extend_from_slice(other.to_string().as_bytes()),
    }
}

/// A quoted, escaped string.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("writing a string to memory cannot fail");
}

/// The member as a number, also when it came as text (the C++ client sends text).
pub fn number(value: &Value, name: &str) -> Option<i64> {
    match value.get(name)? {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// The member as text; `None` if it is absent or something else.
pub fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}

/// The member as a boolean, `default` if it is absent or something else.
pub fn flag(value: &Value, name: &str, default: bool) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(default)
}

/// Copies a text and puts quotes around bare keys on the way.
struct Quoter<'a> {
    text: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

/// The text is not even the dialect; serde_json's own message is the better one.
struct Bad;

impl Quoter<'_> {
    fn peek(&mut self) -> Result<u8, Bad> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied().ok_or(Bad)
    }

    fn rest_is_space(&self) -> bool {
        self.text[self.at..].iter().all(u8::is_ascii_whitespace)
    }

    fn value(&mut self, depth: usize) -> Result<(), Bad> {
        if depth > DEPTH_MAX {
            return Err(Bad);
        }
        match self.peek()? {
            b'{' => self.members(b'}', depth, true),
            b'[' => self.members(b']', depth, false),
            b'"' => self.string(),
            _ => self.scalar(),
        }
    }

    fn members(&mut self, close: u8, depth: usize, keyed: bool) -> Result<(), Bad> {
        self.copy();
        if self.peek()? == close {
            self.copy();
            return Ok(());
        }
        loop {
            if keyed {
                self.key(depth)?;
                self.expect(b':')?;
            }
            self.value(depth + 1)?;
            match self.peek()? {
                b',' => self.copy(),
                end if end == close => {
                    self.copy();
                    return Ok(());
                }
                _ => return Err(Bad),
            }
        }
    }

    fn key(&mut self, depth: usize) -> Result<(), Bad> {
        if self.peek()? == b'"' {
            return self.string();
        }
        let outer = std::mem::take(&mut self.out);
        let result = self.value(depth + 1);
        let key = std::mem::replace(&mut self.out, outer);
        result?;
        write_string(std::str::from_utf8(&key).map_err(|_| Bad)?, &mut self.out);
        Ok(())
    }

    fn string(&mut self) -> Result<(), Bad> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.text.get(self.at).ok_or(Bad)? {
                b'\\' => self.at += 2,
                b'"' => break,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        self.out.extend_from_slice(&self.text[start..self.at]);
        Ok(())
    }

    fn scalar(&mut self) -> Result<(), Bad> {
        let start = self.at;
        while let Some(byte) = self.text.get(self.at)
            && (byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
        {
            self.at += 1;
        }
        self.out.extend_from_slice(&self.text[start..self.at]);
        if self.at == start { Err(Bad) } else { Ok(()) }
    }

    fn expect(&mut self, byte: u8) -> Result<(), Bad> {
        if self.peek()? != byte {
            return Err(Bad);
        }
        self.copy();
        Ok(())
    }

    fn copy(&mut self) {
        self.out.push(self.text[self.at]);
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bare_keys_of_every_kind_are_read() {
        for (text, want) in [
            (r#"{0:5,1:-6}"#, json!({"0": 5, "1": -6})),
            (
                "{\n\t\"offsetTable\":{\n\t\t\"T@G\":{0:5,1:7\n\t\t}\n\t}\n}",
                json!({"offsetTable": {"T@G": {"0": 5, "1": 7}}}),
            ),
            (r#"{true:1}"#, json!({"true": 1})),
            (r#"{"a":[{1:{2:3}}]}"#, json!({"a": [{"1": {"2": 3}}]})),
            (
                r#"{{"q":0,"t":"a\"b"}:{"m":1}}"#,
                json!({"{\"q\":0,\"t\":\"a\\\"b\"}": {"m": 1}}),
            ),
            (r#"{"0":"x"}"#, json!({"0": "x"})),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_written_with_bare_keys_is_read_back() {
        let value =
            json!({ bare_key(3): 1, "T@G": { bare_key(json!({"topic": "T"})): {"x": "\u{1}"} } });
        let text = write(&value);
        let want = r#"{3:1,"T@G":{{"topic":"T"}:{"x":"\u0001"}}}"#;
        assert_eq!(String::from_utf8_lossy(&text), want);
        assert_eq!(parse(&text).map(|v| v["3"].clone()), Ok(json!(1)));
    }

    #[test]
    fn broken_text_is_an_error_and_never_a_panic() {
        for text in [
            "", "{", "{0", "{0:", "{0:1", "{0:1}}", "{:1}", "\"\\", "{{{{", "nul", "{0 1}",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse("{0:".repeat(100_000).as_bytes()).is_err());
    }
}
