//! The body of a registration, in its two forms.
//!
//! JSON: `{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{},
//! "topicConfigTable":{"T":{}}}}`. Both lines write it; 5.x adds members that are not needed here.
//!
//! Compressed: a zlib stream of parts, each with its length (4 bytes, big-endian) before it:
//!
//! | part        | content                                                               |
//! |-------------|-----------------------------------------------------------------------|
//! | 1           | data version, JSON                                                    |
//! | 2           | number of topics (no length before it)                                |
//! | 3, a topic  | `name readQueues writeQueues perm filterType [attributes as JSON]`    |
//! | 4           | filter servers, JSON array                                            |
//! | 5           | static topics: from header version 413 on, and of no use here         |
//!
//! Which form it is, the first byte tells. The header's `compressed` does not: a 5.3.3 broker with
//! `compressedRegister` compresses and says that it did not.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::routes::QueueData;
use crate::base::data_version::DataVersion;
use crate::base::json::{self, JsonError};
use crate::base::reader::{Reader, Short};

/// A compressed body may not become longer than a plain one could be.
const INFLATED_MAX: usize = crate::remoting::frame::FRAME_MAX;
/// First byte of every zlib stream that a broker makes (deflate, 32 KiB window).
const ZLIB: u8 = 0x78;
/// Retry topics are the longest: their prefix and a group's name.
const TOPIC_LENGTH_MAX: usize = 255;
/// What a topic has where its config does not say.
const DEFAULT_QUEUES: i64 = 16;
const DEFAULT_PERM: i64 = 6;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrationBody {
    pub version: DataVersion,
    pub topics: BTreeMap<String, QueueData>,
    pub filter_servers: Vec<String>,
}

#[derive(Debug)]
pub enum BodyError {
    Crc,
    Json(JsonError),
    /// Neither JSON nor a zlib stream that inflates to a body within the limit.
    Inflate,
    Short,
    Topic(String),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Crc => write!(f, "crc32 not match"),
            BodyError::Json(error) => write!(f, "registration body: {error}"),
            BodyError::Inflate => write!(
                f,
                "registration body: no zlib stream of at most {INFLATED_MAX} bytes"
            ),
            BodyError::Short => write!(f, "registration body: ends inside a part"),
            BodyError::Topic(text) => write!(f, "registration body: no topic: {text:?}"),
        }
    }
}

impl From<JsonError> for BodyError {
    fn from(error: JsonError) -> BodyError {
        BodyError::Json(error)
    }
}

impl From<Short> for BodyError {
    fn from(_: Short) -> BodyError {
        BodyError::Short
    }
}

impl RegistrationBody {
    /// `crc` is the header's `bodyCrc32`; 0 means that it is not checked.
    pub fn decode(body: &[u8], crc: i64) -> Result<RegistrationBody, BodyError> {
        if crc != 0 && i64::from(crc32fast::hash(body) & 0x7fff_ffff) != crc {
            return Err(BodyError::Crc);
        }
        match body.first() {
            None => Ok(RegistrationBody::default()),
            Some(&ZLIB) => {
                let inflated =
                    miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(body, INFLATED_MAX);
                from_parts(&inflated.map_err(|_| BodyError::Inflate)?)
            }
            Some(_) => Ok(from_json(&json::parse(body)?)),
        }
    }
}

fn from_json(body: &Value) -> RegistrationBody {
    let wrapper = &body["topicConfigSerializeWrapper"];
    let table = wrapper["topicConfigTable"].as_object();
    let topics = table.into_iter().flatten().filter_map(|(name, config)| {
        let name = json::text(config, "topicName").unwrap_or(name);
        is_topic(name).then(|| (name.to_owned(), queue_data(config)))
    });
    RegistrationBody {
        version: DataVersion::of(wrapper).unwrap_or_default(),
        topics: topics.collect(),
        filter_servers: strings(&body["filterServerList"]),
    }
}

fn from_parts(parts: &[u8]) -> Result<RegistrationBody, BodyError> {
    let mut reader = Reader::new(parts);
    let version = DataVersion::read(&json::parse(reader.bytes32()?)?);
    let mut topics = BTreeMap::new();
    for _ in 0..reader.i32()? {
        let text = String::from_utf8_lossy(reader.bytes32()?);
        let (name, queues) = topic_from_text(&text)
            .ok_or_else(|| BodyError::Topic(text.chars().take(80).collect()))?;
        if is_topic(name) {
            topics.insert(name.to_owned(), queues);
        }
    }
    let filter_servers = strings(&json::parse(reader.bytes32()?)?);
    Ok(RegistrationBody {
        version,
        topics,
        filter_servers,
    })
}

fn topic_from_text(text: &str) -> Option<(&str, QueueData)> {
    let mut words = text.splitn(6, ' ');
    let name = words.next()?;
    let mut number = || words.next()?.parse().ok();
    let queues = QueueData {
        read_queues: number()?,
        write_queues: number()?,
        perm: number()?,
        sys_flag: 0,
    };
    words.next().map(|_filter_type| (name, queues))
}

/// A name that no broker could serve is left out; the others are taken.
fn is_topic(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"%|_-".contains(&byte);
    let good = (1..=TOPIC_LENGTH_MAX).contains(&name.len()) && name.bytes().all(legal);
    if !good {
        let shown: String = name.chars().take(80).collect();
        // At debug level: one body may hold a hundred thousand of them, every 30 s.
        log::debug!("a registration holds an illegal topic name: {shown:?}");
    }
    good
}

/// Also of a route's `queueDatas`, whose members have the same names.
pub fn queue_data(config: &Value) -> QueueData {
    let number = |name, default| json::number(config, name).unwrap_or(default) as i32;
    QueueData {
        read_queues: number("readQueueNums", DEFAULT_QUEUES),
        write_queues: number("writeQueueNums", DEFAULT_QUEUES),
        perm: number("perm", DEFAULT_PERM),
        sys_flag: number("topicSysFlag", 0),
    }
}

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const QUEUES: QueueData = QueueData {
        read_queues: 8,
        write_queues: 4,
        perm: 6,
        sys_flag: 0,
    };

    fn part(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        out.extend_from_slice(bytes);
    }

    /// As a 4.9 broker with `compressedRegister` writes it.
    fn parts(topics: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        part(&mut out, br#"{"counter":3,"timestamp":7}"#);
        out.extend_from_slice(&(topics.len() as u32).to_be_bytes());
        for topic in topics {
            part(&mut out, topic.as_bytes());
        }
        part(&mut out, br#"["10.0.0.9:1"]"#);
        out
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        miniz_oxide::deflate::compress_to_vec_zlib(bytes, 9)
    }

    #[test]
    fn both_forms_say_the_same() {
        let json = json!({
            "filterServerList": ["10.0.0.9:1"],
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": 3, "timestamp": 7},
                "topicConfigTable": {
                    "T": {"readQueueNums": 8, "writeQueueNums": 4, "perm": 6, "topicName": "T", "attributes": {}},
                    "bad name": {"topicName": "bad name"},
                },
                "topicQueueMappingInfoMap": {},
            },
        });
        let plain = RegistrationBody::decode(json.to_string().as_bytes(), 0).expect("JSON");
        let packed = zlib(&parts(&["T 8 4 6 SINGLE_TAG", "bad/name 8 8 6 SINGLE_TAG"]));
        assert_eq!(RegistrationBody::decode(&packed, 0).expect("parts"), plain);
        assert_eq!(plain.topics, BTreeMap::from([("T".to_owned(), QUEUES)]));
        assert_eq!((plain.version.counter, plain.version.timestamp), (3, 7));
    }

    #[test]
    fn attributes_and_static_topics_of_the_5_line_are_passed_over() {
        let mut bytes = parts(&["T 8 4 6 SINGLE_TAG {\"a b\":\"c d\"}"]);
        bytes.extend_from_slice(&1u32.to_be_bytes());
        part(&mut bytes, b"{}");
        let body = RegistrationBody::decode(&zlib(&bytes), 0).expect("with part 5");
        assert_eq!(body.topics["T"], QUEUES);
    }

    #[test]
    fn a_wrong_checksum_is_refused_and_none_is_accepted() {
        let body = b"{}";
        let crc = i64::from(crc32fast::hash(body) & 0x7fff_ffff);
        assert!(RegistrationBody::decode(body, crc).is_ok());
        assert!(RegistrationBody::decode(body, 0).is_ok());
        assert!(matches!(
            RegistrationBody::decode(body, crc + 1),
            Err(BodyError::Crc)
        ));
    }

    #[test]
    fn an_absent_body_is_an_empty_one() {
        assert_eq!(
            RegistrationBody::decode(b"", 0).expect("nothing"),
            RegistrationBody::default()
        );
    }

    #[test]
    fn a_body_that_inflates_without_end_is_refused() {
        let bomb = zlib(&vec![b' '; INFLATED_MAX + 1]);
        assert!(bomb.len() < 100_000);
        assert!(matches!(
            RegistrationBody::decode(&bomb, 0),
            Err(BodyError::Inflate)
        ));
    }

    #[test]
    fn cut_or_changed_bodies_are_errors_and_never_a_panic() {
        let good = parts(&["T 8 4 6 SINGLE_TAG"]);
        for len in 0..good.len() {
            assert!(
                RegistrationBody::decode(&zlib(&good[..len]), 0).is_err(),
                "{len}"
            );
        }
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 0xff;
            let _ = RegistrationBody::decode(&zlib(&damaged), 0);
            let mut packed = zlib(&good);
            let at = at % packed.len();
            packed[at] ^= 0x10;
            let _ = RegistrationBody::decode(&packed, 0);
        }
    }
}
