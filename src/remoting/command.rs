//! One request or reply: a header with its typed fields, and a body.
//!
//! The ROCKETMQ (binary) header:
//!
//! | bytes | field                                                                        |
//! |------:|------------------------------------------------------------------------------|
//! |     2 | code                                                                         |
//! |     1 | language                                                                     |
//! |     2 | version                                                                      |
//! |     4 | opaque                                                                       |
//! |     4 | flag                                                                         |
//! | 4 + n | remark; length 0 is none                                                     |
//! | 4 + m | ext fields: name length (2), name, value length (4), value, until m is used  |

use std::fmt;

use super::codes::{VERSION, response};
use super::fields::Fields;
use super::frame::PREFIX;
use super::json_header;
use crate::base::reader::{Reader, Short};

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;
/// A subscription group or a lock request of a client with thousands of queues is smaller.
const SMALL_BODY_MAX: usize = 1024 * 1024;

/// How a header is written. A reply uses its request's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Serialize {
    #[default]
    Json,
    RocketMq,
}

/// The peer's programming language, by its number in `LanguageCode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Language(pub u8);

const LANGUAGES: [&str; 14] = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
];
const LANGUAGE_OTHER: u8 = 7;

impl Language {
    pub fn name(self) -> &'static str {
        LANGUAGES
            .get(usize::from(self.0))
            .copied()
            .unwrap_or(LANGUAGES[usize::from(LANGUAGE_OTHER)])
    }

    /// From a name or an ordinal.
    pub fn from_text(text: &str) -> Language {
        let named = LANGUAGES
            .iter()
            .position(|name| *name == text)
            .map(|index| index as u8);
        Language(
            named
                .or_else(|| text.parse().ok())
                .unwrap_or(LANGUAGE_OTHER),
        )
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub code: i32,
    pub language: Language,
    pub version: i32,
    /// Correlates a reply with its request, within one direction of one connection.
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<String>,
    pub ext: Fields,
}

/// A request or a reply. The body lies behind the header in the frame it came in.
#[derive(Clone, Default)]
pub struct Command {
    pub header: Header,
    pub serialize: Serialize,
    frame: Vec<u8>,
    body_at: usize,
}

/// The header cannot be understood. The connection is closed.
#[derive(Debug)]
pub enum CommandError {
    SerializeType(u8),
    Json(serde_json::Error),
    Binary,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::SerializeType(number) => write!(f, "unknown serialize type {number}"),
            CommandError::Json(error) => write!(f, "header: {error}"),
            CommandError::Binary => write!(f, "binary header with impossible lengths"),
        }
    }
}

impl std::error::Error for CommandError {}

impl From<Short> for CommandError {
    fn from(_: Short) -> CommandError {
        CommandError::Binary
    }
}

impl Command {
    pub fn request(code: i32, ext: Fields) -> Command {
        let header = Header {
            code,
            version: VERSION,
            ext,
            ..Header::default()
        };
        Command {
            header,
            ..Command::default()
        }
    }

    /// A reply to `request`, in its form, with its opaque.
    pub fn reply(request: &Command, code: i32) -> Command {
        let header = Header {
            code,
            version: VERSION,
            opaque: request.header.opaque,
            flag: FLAG_RESPONSE,
            ..Header::default()
        };
        Command {
            header,
            serialize: request.serialize,
            ..Command::default()
        }
    }

    /// A reply that says why not.
    pub fn refusal(request: &Command, code: i32, remark: impl Into<String>) -> Command {
        Command::reply(request, code).with_remark(remark)
    }

    pub fn with_remark(mut self, remark: impl Into<String>) -> Command {
        self.header.remark = Some(remark.into());
        self
    }

    pub fn with_ext(mut self, ext: Fields) -> Command {
        self.header.ext = ext;
        self
    }

    pub fn with_body(mut self, body: Vec<u8>) -> Command {
        (self.frame, self.body_at) = (body, 0);
        self
    }

    /// Without its body, if that is larger than any request but a send has reason to be. Requests
    /// that are held for long must not hold 16 MiB each.
    pub fn without_large_body(self) -> Command {
        if self.body().len() > SMALL_BODY_MAX {
            self.with_body(Vec::new())
        } else {
            self
        }
    }

    pub fn oneway(mut self) -> Command {
        self.header.flag |= FLAG_ONEWAY;
        self
    }

    pub fn code(&self) -> i32 {
        self.header.code
    }

    pub fn ext(&self) -> &Fields {
        &self.header.ext
    }

    pub fn remark(&self) -> &str {
        self.header.remark.as_deref().unwrap_or("")
    }

    pub fn body(&self) -> &[u8] {
        &self.frame[self.body_at..]
    }

    pub fn is_oneway(&self) -> bool {
        self.header.flag & FLAG_ONEWAY != 0
    }

    pub fn is_response(&self) -> bool {
        self.header.flag & FLAG_RESPONSE != 0
    }

    pub fn is_success(&self) -> bool {
        self.code() == response::SUCCESS
    }

    /// Takes apart one frame that `frame::complete` found.
    pub fn decode(frame: Vec<u8>) -> Result<Command, CommandError> {
        let mut reader = Reader::new(&frame);
        reader.i32()?;
        let mark = reader.i32()?;
        let header = reader.take((mark & 0x00ff_ffff) as usize)?;
        let body_at = reader.position();
        let (serialize, header) = match (mark >> 24) as u8 {
            0 => (
                Serialize::Json,
                json_header::read(header).map_err(CommandError::Json)?,
            ),
            1 => (Serialize::RocketMq, read_binary(header)?),
            other => return Err(CommandError::SerializeType(other)),
        };
        Ok(Command {
            header,
            serialize,
            frame,
            body_at,
        })
    }

    /// Appends the whole frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.reserve(256 + self.body().len());
        out.extend_from_slice(&[0; PREFIX]);
        let kind = match self.serialize {
            Serialize::Json => {
                json_header::write(&self.header, out);
                0
            }
            Serialize::RocketMq => {
                write_binary(&self.header, out);
                1 << 24
            }
        };
        let header_len = out.len() - start - PREFIX;
        out.extend_from_slice(self.body());
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        out[start + 4..start + 8].copy_from_slice(&(header_len as u32 | kind).to_be_bytes());
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} with a body of {} bytes",
            self.header,
            self.body().len()
        )
    }
}

fn read_binary(bytes: &[u8]) -> Result<Header, CommandError> {
    let mut reader = Reader::new(bytes);
    let mut header = Header {
        code: i32::from(reader.i16()?),
        language: Language(reader.u8()?),
        version: i32::from(reader.i16()?),
        opaque: reader.i32()?,
        flag: reader.i32()?,
        ..Header::default()
    };
    let remark = text(reader.bytes32()?)?;
    header.remark = (!remark.is_empty()).then(|| remark.to_owned());
    let mut ext = Reader::new(reader.bytes32()?);
    while !ext.is_empty() {
        let name = text(ext.bytes16()?)?;
        let value = text(ext.bytes32()?)?;
        if !name.is_empty() && !value.is_empty() {
            header.ext.add(name, value);
        }
    }
    Ok(header)
}

fn text(bytes: &[u8]) -> Result<&str, CommandError> {
    std::str::from_utf8(bytes).map_err(|_| CommandError::Binary)
}

fn write_binary(header: &Header, out: &mut Vec<u8>) {
    out.extend_from_slice(&(header.code as i16).to_be_bytes());
    out.push(header.language.0);
    out.extend_from_slice(&(header.version as i16).to_be_bytes());
    out.extend_from_slice(&header.opaque.to_be_bytes());
    out.extend_from_slice(&header.flag.to_be_bytes());
    let remark = header.remark.as_deref().unwrap_or("");
    out.extend_from_slice(&(remark.len() as u32).to_be_bytes());
    out.extend_from_slice(remark.as_bytes());
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    for (name, value) in header.ext.iter() {
        out.extend_from_slice(&(name.len() as u16).to_be_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        out.extend_from_slice(value.as_bytes());
    }
    let length = (out.len() - length_at - 4) as u32;
    out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(serialize: Serialize) -> Command {
        let ext = Fields::default()
            .with("i", "KEYS\u{1}k\u{2}")
            .with("e", -1)
            .with("topic", "T\"ü");
        let mut command = Command::request(310, ext)
            .with_remark("why")
            .with_body(b"body".to_vec());
        command.header.opaque = -7;
        command.serialize = serialize;
        command
    }

    #[test]
    fn both_forms_are_read_back_as_written() {
        for serialize in [Serialize::Json, Serialize::RocketMq] {
            let command = sample(serialize);
            let read = Command::decode(command.to_bytes()).expect("our own frame");
            assert_eq!(read.header, command.header);
            assert_eq!((read.serialize, read.body()), (serialize, &b"body"[..]));
        }
    }

    /// remoting.md 1.12: a 4.9.8 broker's own bytes.
    #[test]
    fn a_binary_reply_without_remark_and_fields_is_21_bytes() {
        let mut request = Command::request(0, Fields::default());
        request.serialize = Serialize::RocketMq;
        request.header.opaque = 1001;
        let bytes = Command::reply(&request, 0).to_bytes();
        assert_eq!(bytes[..8], [0, 0, 0, 25, 1, 0, 0, 21]);
        assert_eq!(
            bytes[8..],
            [
                0, 0, 0, 0x01, 0x99, 0, 0, 0x03, 0xe9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0
            ]
        );
    }

    #[test]
    fn numbers_booleans_and_nulls_among_the_fields_are_accepted() {
        let json = br#"{"code":310,"extFields":{"e":3,"m":true,"x":null,"n":1.5,"b":"T"},"flag":0,"new":[{}],
            "language":"CPP","opaque":2147483647,"remark":null,"version":333}"#;
        let header = json_header::read(json).expect("what the C++ client sends");
        assert_eq!(header.ext.get("e"), Some("3"));
        assert_eq!(header.ext.get("m"), Some("true"));
        assert_eq!(header.ext.get("x"), None);
        assert_eq!(header.ext.get("b"), Some("T"));
        assert_eq!((header.language.name(), header.opaque), ("CPP", i32::MAX));
    }

    #[test]
    fn a_reply_is_written_as_the_original_writes_it() {
        let mut request = Command::request(310, Fields::default());
        request.header.opaque = 1002;
        let reply = Command::reply(&request, 0)
            .with_ext(Fields::default().with("queueId", 0).with("msgId", "7F"));
        let text = String::from_utf8(reply.to_bytes()[8..].to_vec()).expect("JSON is text");
        assert_eq!(
            text,
            r#"{"code":0,"extFields":{"queueId":"0","msgId":"7F"},"flag":1,"language":"JAVA","opaque":1002,"serializeTypeCurrentRPC":"JSON","version":409}"#
        );
    }

    #[test]
    fn no_mutation_of_a_frame_panics() {
        for serialize in [Serialize::Json, Serialize::RocketMq] {
            let bytes = sample(serialize).to_bytes();
            for at in 4..bytes.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[at] = value;
                    let _ = Command::decode(damaged);
                }
            }
        }
    }
}
