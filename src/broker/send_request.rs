//! What a send request says: its header in the long form (10) or the one-letter form (310, 320),
//! and the messages of a batch body.
//!
//! A batch body is these records, back to back:
//!
//! | bytes | field                              |
//! |------:|------------------------------------|
//! |     4 | size of this record, itself too    |
//! |   4+4 | magic and body CRC, both 0         |
//! |     4 | flag                               |
//! | 4 + n | body                               |
//! | 2 + m | properties                         |

use super::refusal::Refusal;
use crate::base::reader::{Reader, Short};
use crate::remoting::Command;
use crate::remoting::codes::{request, response};
use crate::store::{StoreError, properties};

/// Errors sent to peers name no paths: what the system said goes to our log.
impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        let code = match &error {
            StoreError::MessageIllegal(_) | StoreError::PropertiesTooLong { .. } => {
                response::MESSAGE_ILLEGAL
            }
            StoreError::NotWritable(_) => response::SERVICE_NOT_AVAILABLE,
            StoreError::DiskFull(_) => {
                return Refusal::new(response::SERVICE_NOT_AVAILABLE, "the disk is full");
            }
            StoreError::NotFound { .. } | StoreError::Corrupt { .. } => response::SYSTEM_ERROR,
            other => {
                log::error!("a message could not be stored: {other}");
                return Refusal::new(response::SYSTEM_ERROR, "the message could not be stored");
            }
        };
        Refusal::new(code, error.to_string())
    }
}

#[derive(Debug)]
pub struct SendRequest<'a> {
    pub topic: &'a str,
    pub default_topic: &'a str,
    pub default_queues: i32,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub flag: i32,
    pub properties: &'a [u8],
    pub reconsume_times: i32,
    pub max_reconsume_times: Option<i32>,
    pub unit_mode: bool,
    pub batch: bool,
    pub body: &'a [u8],
}

/// Names of the same field: long form, short form.
type Name = (&'static str, &'static str);

const TOPIC: Name = ("topic", "b");
const DEFAULT_TOPIC: Name = ("defaultTopic", "c");
const DEFAULT_QUEUES: Name = ("defaultTopicQueueNums", "d");
const QUEUE_ID: Name = ("queueId", "e");
const SYS_FLAG: Name = ("sysFlag", "f");
const BORN: Name = ("bornTimestamp", "g");
const FLAG: Name = ("flag", "h");
const PROPERTIES: Name = ("properties", "i");
const RECONSUME_TIMES: Name = ("reconsumeTimes", "j");
const UNIT_MODE: Name = ("unitMode", "k");
const MAX_RECONSUME_TIMES: Name = ("maxReconsumeTimes", "l");
const BATCH: Name = ("batch", "m");

impl<'a> SendRequest<'a> {
    pub fn parse(request: &'a Command) -> Result<SendRequest<'a>, Refusal> {
        let long = request.code() == request::SEND_MESSAGE;
        let name = |(long_name, short_name): Name| if long { long_name } else { short_name };
        let ext = request.ext();
        let max = ext.parse_or(name(MAX_RECONSUME_TIMES), i32::MIN)?;
        Ok(SendRequest {
            topic: ext.need(name(TOPIC))?,
            default_topic: ext.get(name(DEFAULT_TOPIC)).unwrap_or(""),
            default_queues: ext.parse_or(name(DEFAULT_QUEUES), 0)?,
            queue_id: ext.parse(name(QUEUE_ID))?,
            sys_flag: ext.parse_or(name(SYS_FLAG), 0)?,
            born_ms: ext.parse_or(name(BORN), 0)?,
            flag: ext.parse_or(name(FLAG), 0)?,
            properties: ext.get(name(PROPERTIES)).unwrap_or("").as_bytes(),
            reconsume_times: ext.parse_or(name(RECONSUME_TIMES), 0)?,
            max_reconsume_times: (max != i32::MIN).then_some(max),
            unit_mode: ext.flag(name(UNIT_MODE)),
            // The C++ client sends its batches under 310 and only sets the flag.
            batch: request.code() == request::SEND_BATCH_MESSAGE || ext.flag(name(BATCH)),
            body: request.body(),
        })
    }

    pub fn property(&self, name: &str) -> Option<&'a str> {
        properties::get_str(self.properties, name)
    }

    /// Java's rule: absent is true, present is true only as "true".
    pub fn waits(&self) -> bool {
        self.property("WAIT")
            .is_none_or(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The messages of a batch body, which counts as one message against the limit.
    pub fn parts(&self, max_message_size: usize) -> Result<Vec<Part<'a>>, Refusal> {
        if self.body.len() > max_message_size {
            let remark = format!(
                "a batch of {} bytes, at most {max_message_size}",
                self.body.len()
            );
            return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
        }
        let mut reader = Reader::new(self.body);
        let mut parts = Vec::new();
        while !reader.is_empty() {
            let part = Part::read(&mut reader).map_err(|_| {
                let at = reader.position();
                Refusal::new(
                    response::MESSAGE_ILLEGAL,
                    format!("the batch body is broken at byte {at}"),
                )
            })?;
            parts.push(part);
        }
        if parts.is_empty() {
            return Err(Refusal::new(
                response::MESSAGE_ILLEGAL,
                "the batch holds no message",
            ));
        }
        Ok(parts)
    }
}

/// One message of a batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Part<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
}

impl<'a> Part<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Part<'a>, Short> {
        let start = reader.position();
        let size = reader.i32()?;
        reader.take(8)?;
        let part = Part {
            flag: reader.i32()?,
            body: reader.bytes32()?,
            properties: reader.bytes16()?,
        };
        if usize::try_from(size) == Ok(reader.position() - start) {
            Ok(part)
        } else {
            Err(Short)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::Fields;

    fn batch_of(parts: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (body, properties) in parts {
            let size = (4 * 5 + body.len() + 2 + properties.len()) as u32;
            out.extend_from_slice(&size.to_be_bytes());
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(&7u32.to_be_bytes());
            out.extend_from_slice(&(body.len() as u32).to_be_bytes());
            out.extend_from_slice(body);
            out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
            out.extend_from_slice(properties);
        }
        out
    }

    fn request(code: i32, ext: Fields, body: &[u8]) -> Command {
        Command::request(code, ext).with_body(body.to_vec())
    }

    #[test]
    fn long_and_short_names_mean_the_same() {
        let long = Fields::default()
            .with("topic", "T")
            .with("queueId", 3)
            .with("properties", "WAIT\u{1}false");
        let short = Fields::default()
            .with("b", "T")
            .with("e", 3)
            .with("i", "WAIT\u{1}false");
        for (code, ext) in [(10, long), (310, short)] {
            let command = request(code, ext, b"x");
            let send = SendRequest::parse(&command).expect("enough fields");
            assert_eq!(
                (send.topic, send.queue_id, send.waits(), send.batch),
                ("T", 3, false, false)
            );
        }
    }

    #[test]
    fn a_missing_field_is_named() {
        let command = request(310, Fields::default().with("b", "T"), b"x");
        let refusal = SendRequest::parse(&command).expect_err("no queue id");
        assert_eq!(
            (refusal.code, refusal.remark.as_str()),
            (1, "the field e is missing")
        );
    }

    #[test]
    fn a_batch_is_taken_apart_and_a_broken_one_refused_wherever_it_is_cut() {
        let body = batch_of(&[(b"a", b""), (b"", b"K\x01v"), (b"ccc", b"x\x01y\x02")]);
        let ext = Fields::default()
            .with("b", "T")
            .with("e", 0)
            .with("m", true);
        let command = request(310, ext.clone(), &body);
        let parts = SendRequest::parse(&command).and_then(|send| send.parts(1000).map(|p| p.len()));
        assert_eq!(parts.expect("a whole batch"), 3);
        let send = SendRequest::parse(&command).expect("the header is fine");
        assert!(
            send.parts(body.len() - 1).is_err(),
            "larger than a message may be"
        );
        for cut in (1..body.len()).filter(|cut| ![23, 48].contains(cut)) {
            let command = request(310, ext.clone(), &body[..cut]);
            let send = SendRequest::parse(&command).expect("the header is fine");
            assert!(send.parts(1000).is_err(), "cut at {cut}");
        }
    }
}
