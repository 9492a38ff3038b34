//! A stored message as a consumer sees it: taken out of a pull reply, shown to people.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::output::base64;
use crate::store::properties;
use crate::store::record::{Flaw, RecordView, SYS_COMPRESSED};

/// How a body is compressed, in the system flag.
const SYS_COMPRESSION: i32 = 0x700;
/// Most that a compressed body may become; a message of ordinary settings has 4 MiB.
const INFLATED_MAX: usize = 64 * 1024 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub sys_flag: i32,
    pub stored_ms: i64,
    /// The address and the log offset in hexadecimal, as the broker gave it to the producer.
    pub offset_id: String,
    pub body: Vec<u8>,
    pub properties: Vec<(String, String)>,
}

/// A body as it can be shown.
#[derive(Debug, PartialEq, Eq)]
pub enum Content<'a> {
    Bytes(Cow<'a, [u8]>),
    /// Compressed in a way that is not undone here: its name, the bytes as they are.
    Packed(&'static str, &'a [u8]),
}

/// The messages of a pull reply's body: records back to back.
pub fn decode_all(body: &[u8]) -> Result<Vec<Message>, Flaw> {
    let mut messages = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let record = RecordView::parse(rest)?;
        messages.push(Message::of(&record));
        rest = &rest[record.size..];
    }
    Ok(messages)
}

impl Message {
    fn of(record: &RecordView<'_>) -> Message {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let pairs = properties::iter(record.properties);
        Message {
            topic: record.topic.to_owned(),
            queue_id: record.queue_id,
            queue_offset: record.queue_offset,
            sys_flag: record.sys_flag,
            stored_ms: record.stored_ms,
            offset_id: record.message_id(),
            body: record.body.to_vec(),
            properties: pairs
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
        }
    }

    pub fn property(&self, name: &str) -> Option<&str> {
        let found = self.properties.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// What a producer calls the message's id: its own, or the place where it is stored.
    pub fn id(&self) -> &str {
        self.property("UNIQ_KEY").unwrap_or(&self.offset_id)
    }

    /// The body, inflated if the producer deflated it.
    pub fn content(&self) -> Content<'_> {
        if self.sys_flag & SYS_COMPRESSED == 0 {
            return Content::Bytes(Cow::Borrowed(&self.body));
        }
        let kind = match self.sys_flag & SYS_COMPRESSION {
            0x100 => "lz4",
            0x200 => "zstd",
            _ => "zlib",
        };
        if kind != "zlib" {
            return Content::Packed(kind, &self.body);
        }
        let inflate = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
        match inflate(&self.body, INFLATED_MAX) {
            Ok(plain) => Content::Bytes(Cow::Owned(plain)),
            Err(_) => Content::Packed("broken zlib", &self.body),
        }
    }

    /// The line without its end that a person sees: the body, nothing else.
    pub fn line(&self) -> Cow<'_, [u8]> {
        match self.content() {
            Content::Bytes(plain) => plain,
            Content::Packed(kind, bytes) => {
                Cow::Owned(format!("{kind} {}", base64(bytes)).into_bytes())
            }
        }
    }

    /// Everything about it. The body is text in `body`, or base64 in `bodyBase64` with the way it
    /// is compressed in `compression`.
    pub fn to_json(&self) -> Value {
        let properties: Map<String, Value> = self
            .properties
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        let mut value = json!({
            "topic": self.topic,
            "queue": self.queue_id,
            "offset": self.queue_offset,
            "msgId": self.id(),
            "offsetMsgId": self.offset_id,
            "keys": self.property("KEYS"),
            "tags": self.property("TAGS"),
            "properties": properties,
            "storeTime": self.stored_ms,
        });
        match self.content() {
            Content::Bytes(plain) => match std::str::from_utf8(&plain) {
                Ok(text) => value["body"] = json!(text),
                Err(_) => value["bodyBase64"] = json!(base64(&plain)),
            },
            Content::Packed(kind, bytes) => {
                value["compression"] = json!(kind);
                value["bodyBase64"] = json!(base64(bytes));
            }
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record of a 4.9.8 broker: `hello` in topic T1, queue 0, queue offset 5.
    const STORED: &str = "00000090daa320a73610a6860000000000000000000000000000000500000000\
        00001d63000000000000018bcfe568007f00000100009958000001a227695437\
        7f000001000051af0000000000000000000000000000000568656c6c6f025431\
        002e554e49515f4b4559014141414102434c55535445520144656661756c7443\
        6c757374657202544147530174616741";

    fn stored() -> Vec<u8> {
        let hex = |at| u8::from_str_radix(&STORED[at..at + 2], 16).expect("hexadecimal");
        (0..STORED.len()).step_by(2).map(hex).collect()
    }

    #[test]
    fn a_stored_record_is_understood() {
        let messages = decode_all(&[stored(), stored()].concat()).expect("two records");
        assert_eq!(messages.len(), 2);
        let value = messages[0].to_json();
        let want = json!({
            "topic": "T1", "queue": 0, "offset": 5, "msgId": "AAAA", "keys": null, "tags": "tagA",
            "offsetMsgId": "7F000001000051AF0000000000001D63", "storeTime": 1_795_957_543_991_i64,
            "properties": {"UNIQ_KEY": "AAAA", "CLUSTER": "DefaultCluster", "TAGS": "tagA"},
            "body": "hello",
        });
        assert_eq!(value, want);
    }

    #[test]
    fn cut_and_changed_records_are_errors() {
        let record = stored();
        for len in 1..record.len() {
            assert!(decode_all(&record[..len]).is_err(), "{len}");
            assert!(
                decode_all(&[&record, &record[..len]].concat()).is_err(),
                "{len}"
            );
        }
        for at in [0, 4, 84] {
            let mut changed = record.clone();
            changed[at] ^= 0x80;
            assert!(decode_all(&changed).is_err(), "{at}");
        }
    }

    #[test]
    fn compressed_bodies_are_inflated_or_named() {
        let mut message = Message {
            sys_flag: SYS_COMPRESSED,
            body: miniz_oxide::deflate::compress_to_vec_zlib(b"plain", 5),
            ..Message::default()
        };
        assert_eq!(message.line().as_ref(), b"plain");
        message.sys_flag = SYS_COMPRESSED | 0x300;
        assert_eq!(message.to_json()["body"], "plain");
        message.sys_flag = SYS_COMPRESSED | 0x100;
        assert_eq!(message.to_json()["compression"], "lz4");
        message.sys_flag = SYS_COMPRESSED;
        message.body = vec![0xff, 0xfe];
        assert_eq!(message.line().as_ref(), b"broken zlib //4=");
        message.sys_flag = 0;
        assert_eq!(message.to_json()["bodyBase64"], "//4=");
    }
}
