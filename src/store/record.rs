//! One stored message: its layout, and how it is written, read and checked.
//!
//! All integers are big-endian. Offsets hold while both hosts are IPv4; a host is 12 bytes
//! longer when its IPv6 bit is set in `sysFlag`, and moves what follows.
//!
//! | offset | size | field           | meaning                                                |
//! |-------:|-----:|-----------------|--------------------------------------------------------|
//! |      0 |    4 | totalSize       | bytes of the record, these included                    |
//! |      4 |    4 | magic           | `DAA320A7`; `DAA320AB` with a two-byte topic length    |
//! |      8 |    4 | bodyCRC         | CRC-32 of the body, top bit cleared; 0 without a body  |
//! |     12 |    4 | queueId         |                                                        |
//! |     16 |    4 | flag            | the client's                                           |
//! |     20 |    8 | queueOffset     | place in the queue; 0 for prepared and rollback        |
//! |     28 |    8 | physicalOffset  | log offset of this record                              |
//! |     36 |    4 | sysFlag         | bits 2-3 transaction type, 4 born, 5 store host IPv6   |
//! |     40 |    8 | bornTimestamp   | ms, the client's clock                                 |
//! |     48 |    8 | bornHost        | address, then port in four bytes                       |
//! |     56 |    8 | storeTimestamp  | ms, the broker's clock                                 |
//! |     64 |    8 | storeHost       |                                                        |
//! |     72 |    4 | reconsumeTimes  |                                                        |
//! |     76 |    8 | preparedOffset  | log offset of the half message, else 0                 |
//! |     84 |    4 | bodyLength      |                                                        |
//! |     88 |    b | body            |                                                        |
//! |        | 1, 2 | topicLength     |                                                        |
//! |        |    t | topic           | UTF-8                                                  |
//! |        |    2 | propertiesLength|                                                        |
//! |        |    p | properties      | see `properties`                                       |
//!
//! A file ends with a blank: the four-byte count of bytes from there to the file's end, the
//! magic `CBD43194`, and whatever the file held. Every record leaves the blank its eight bytes.
//!
//! Nothing here touches a file; the replica checks what a master sends with the same functions.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use byteorder::{BigEndian, ByteOrder};

use super::error::StoreError;
use super::properties;
use crate::base::reader::{Reader, Short};

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Bytes of a blank that mean something, and what each record must leave free in its file.
pub const BLANK_SIZE: usize = 8;
/// A record with IPv4 hosts, no body, a one-byte topic and no properties.
pub const RECORD_SIZE_MIN: usize = 88 + 1 + 1 + 2;
/// The length field is signed 16 bits.
pub const PROPERTIES_MAX: usize = i16::MAX as usize;
/// What the one-byte length field of a V1 record can say.
pub const TOPIC_MAX_V1: usize = 127;
pub const TOPIC_MAX_V2: usize = 255;
/// How much longer than `maxMessageSize` a whole record may be.
pub const RECORD_OVERHEAD_MAX: usize = 64 * 1024;

/// Retry topics alone may be longer than a V1 record can say.
pub const RETRY_PREFIX: &str = "%RETRY%";

pub const SYS_COMPRESSED: i32 = 1;
pub const SYS_TRANSACTION: i32 = 0b1100;
pub const SYS_PREPARED: i32 = 0b0100;
pub const SYS_COMMIT: i32 = 0b1000;
pub const SYS_ROLLBACK: i32 = 0b1100;
pub const SYS_BORN_V6: i32 = 1 << 4;
pub const SYS_STORE_V6: i32 = 1 << 5;

const QUEUE_OFFSET_AT: usize = 20;
const PHYSICAL_OFFSET_AT: usize = 28;
const SYS_FLAG_AT: usize = 36;
/// Enough of a record to see its physical offset.
const HEAD_SIZE: usize = 36;
const BORN_HOST_AT: usize = 48;

/// A message on its way into the log.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body: &'a [u8],
    /// The stored bytes; they pass through untouched.
    pub properties: &'a [u8],
}

/// What the append lock decides about a record.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub queue_offset: i64,
    pub log_offset: u64,
    pub stored_ms: i64,
}

/// What can be told about a message before the append lock is taken.
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    pub size: usize,
    pub body_crc: u32,
}

/// Checks a message against the limits that every store has, and measures it.
pub fn prepare(message: &Message<'_>, max_message_size: usize) -> Result<Prepared, StoreError> {
    let illegal = |reason: String| Err(StoreError::MessageIllegal(reason));
    let topic = message.topic;
    if !is_safe_topic(topic) {
        return illegal(format!("topic {topic:?} cannot be stored"));
    }
    if topic.len() > TOPIC_MAX_V1 && !topic.starts_with(RETRY_PREFIX) {
        return illegal(format!("topic of {} bytes, at most 127", topic.len()));
    }
    if message.properties.len() > PROPERTIES_MAX {
        return Err(StoreError::PropertiesTooLong {
            len: message.properties.len(),
            max: PROPERTIES_MAX,
        });
    }
    // Recovery takes a zero byte in a last record's properties for a write that was torn.
    if message.properties.contains(&0) {
        return illegal("a property holds a zero byte".into());
    }
    if message.queue_id < 0 {
        return illegal(format!("queue id {}", message.queue_id));
    }
    let size = encoded_size(message);
    if message.body.len() > max_message_size || size > max_message_size + RECORD_OVERHEAD_MAX {
        return illegal(format!(
            "body of {} bytes, record of {size}, maxMessageSize is {max_message_size}",
            message.body.len()
        ));
    }
    Ok(Prepared {
        size,
        body_crc: body_crc(message.body),
    })
}

/// Bytes of the record that `message` becomes.
pub fn encoded_size(message: &Message<'_>) -> usize {
    let topic_length = if message.topic.len() > TOPIC_MAX_V1 {
        2
    } else {
        1
    };
    let v6 = |host: &SocketAddr| if stored_ip(host).is_ipv6() { 12 } else { 0 };
    88 + v6(&message.born_host)
        + v6(&message.store_host)
        + message.body.len()
        + topic_length
        + message.topic.len()
        + 2
        + message.properties.len()
}

/// Writes the record into `out`, which has the prepared size exactly.
pub fn encode(message: &Message<'_>, prepared: Prepared, place: Place, out: &mut [u8]) {
    assert_eq!(out.len(), prepared.size, "a record has the prepared size");
    let long_topic = message.topic.len() > TOPIC_MAX_V1;
    let (born, store) = (
        stored_ip(&message.born_host),
        stored_ip(&message.store_host),
    );
    let mut sys_flag = message.sys_flag & !(SYS_BORN_V6 | SYS_STORE_V6);
    sys_flag |= if born.is_ipv6() { SYS_BORN_V6 } else { 0 };
    sys_flag |= if store.is_ipv6() { SYS_STORE_V6 } else { 0 };

    let mut out = Writer(out);
    out.i32(prepared.size as i32);
    out.i32(if long_topic { MAGIC_V2 } else { MAGIC_V1 } as i32);
    out.i32(prepared.body_crc as i32);
    out.i32(message.queue_id);
    out.i32(message.flag);
    out.i64(place.queue_offset);
    out.i64(place.log_offset as i64);
    out.i32(sys_flag);
    out.i64(message.born_ms);
    out.host(born, message.born_host.port());
    out.i64(place.stored_ms);
    out.host(store, message.store_host.port());
    out.i32(message.reconsume_times);
    out.i64(message.prepared_offset);
    out.i32(message.body.len() as i32);
    out.bytes(message.body);
    if long_topic {
        out.i16(message.topic.len() as i16);
    } else {
        out.bytes(&[message.topic.len() as u8]);
    }
    out.bytes(message.topic.as_bytes());
    out.i16(message.properties.len() as i16);
    out.bytes(message.properties);
    assert!(out.0.is_empty(), "a record fills its place");
}

/// The blank that ends a file with `room` bytes left.
pub fn blank(room: usize) -> [u8; BLANK_SIZE] {
    let mut bytes = [0; BLANK_SIZE];
    BigEndian::write_u32(&mut bytes[..4], room as u32);
    BigEndian::write_u32(&mut bytes[4..], MAGIC_BLANK);
    bytes
}

/// Fills a slice from its front.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        let (front, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        front.copy_from_slice(bytes);
        self.0 = rest;
    }

    fn i16(&mut self, value: i16) {
        self.bytes(&value.to_be_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.bytes(&value.to_be_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.bytes(&value.to_be_bytes());
    }

    fn host(&mut self, ip: IpAddr, port: u16) {
        match ip {
            IpAddr::V4(ip) => self.bytes(&ip.octets()),
            IpAddr::V6(ip) => self.bytes(&ip.octets()),
        }
        self.i32(i32::from(port));
    }
}

/// Java turns `::ffff:a.b.c.d` into an IPv4 address, so it is stored as one.
fn stored_ip(host: &SocketAddr) -> IpAddr {
    host.ip().to_canonical()
}

/// CRC-32 with the top bit cleared; 0 for an empty body.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

/// A stored record, taken apart in place.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    pub size: usize,
    pub magic: u32,
    pub body_crc: u32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub born_host: SocketAddr,
    pub stored_ms: i64,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body: &'a [u8],
    pub topic: &'a str,
    pub properties: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Takes the record at the front of `bytes` apart; what follows it is not looked at. Checks
    /// that its lengths add up, not where it stands and not its body.
    pub fn parse(bytes: &'a [u8]) -> Result<RecordView<'a>, Flaw> {
        let declared = Reader::new(bytes).i32().map_err(|Short| Flaw::Size)?;
        let size = usize::try_from(declared).map_err(|_| Flaw::Size)?;
        let record = bytes.get(..size).ok_or(Flaw::Size)?;
        let magic = record.get(4..8).map_or(0, BigEndian::read_u32);
        if magic != MAGIC_V1 && magic != MAGIC_V2 {
            return Err(Flaw::Magic);
        }
        let mut reader = Reader::new(record);
        let view = fields(&mut reader, size, magic).map_err(|Short| Flaw::Lengths)?;
        if !reader.is_empty() {
            return Err(Flaw::Lengths);
        }
        let (view, topic) = view;
        let topic = std::str::from_utf8(topic).map_err(|_| Flaw::Topic)?;
        if !is_safe_topic(topic) {
            return Err(Flaw::Topic);
        }
        Ok(RecordView { topic, ..view })
    }

    pub fn transaction_type(&self) -> i32 {
        self.sys_flag & SYS_TRANSACTION
    }

    pub fn property(&self, name: &str) -> Option<&'a str> {
        properties::get_str(self.properties, name)
    }

    /// The message that was stored, for re-encoding or for putting it into another topic.
    pub fn message(&self) -> Message<'a> {
        Message {
            topic: self.topic,
            queue_id: self.queue_id,
            flag: self.flag,
            sys_flag: self.sys_flag,
            born_ms: self.born_ms,
            born_host: self.born_host,
            store_host: self.store_host,
            reconsume_times: self.reconsume_times,
            prepared_offset: self.prepared_offset,
            body: self.body,
            properties: self.properties,
        }
    }

    /// The offset id that clients and tools know this record by.
    pub fn message_id(&self) -> String {
        message_id(self.store_host, self.physical_offset as u64)
    }
}

/// Reads all fields; the topic apart, since it is not yet known to be text.
fn fields<'a>(
    reader: &mut Reader<'a>,
    size: usize,
    magic: u32,
) -> Result<(RecordView<'a>, &'a [u8]), Short> {
    reader.take(8)?;
    let body_crc = reader.i32()? as u32;
    let (queue_id, flag) = (reader.i32()?, reader.i32()?);
    let (queue_offset, physical_offset) = (reader.i64()?, reader.i64()?);
    let sys_flag = reader.i32()?;
    let born_ms = reader.i64()?;
    let born_host = host(reader, sys_flag & SYS_BORN_V6 != 0)?;
    let stored_ms = reader.i64()?;
    let store_host = host(reader, sys_flag & SYS_STORE_V6 != 0)?;
    let (reconsume_times, prepared_offset) = (reader.i32()?, reader.i64()?);
    let body = reader.bytes32()?;
    let topic = match magic {
        MAGIC_V1 => {
            let length = usize::from(reader.u8()?);
            if length > TOPIC_MAX_V1 {
                return Err(Short); // a signed byte
            }
            reader.take(length)?
        }
        _ => reader.bytes16()?,
    };
    let properties = reader.bytes16()?;
    let view = RecordView {
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_ms,
        born_host,
        stored_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        body,
        topic: "",
        properties,
    };
    Ok((view, topic))
}

fn host(reader: &mut Reader<'_>, v6: bool) -> Result<SocketAddr, Short> {
    let ip = if v6 {
        let octets: [u8; 16] = reader.take(16)?.try_into().map_err(|_| Short)?;
        IpAddr::V6(Ipv6Addr::from(octets))
    } else {
        let octets: [u8; 4] = reader.take(4)?.try_into().map_err(|_| Short)?;
        IpAddr::V4(Ipv4Addr::from(octets))
    };
    // A port is stored in four bytes; only sixteen bits of them mean something.
    Ok(SocketAddr::new(ip, reader.i32()? as u16))
}

/// A topic becomes a directory name, so one that could leave its place is never followed.
pub fn is_safe_topic(topic: &str) -> bool {
    (1..=TOPIC_MAX_V2).contains(&topic.len())
        && topic != "."
        && topic != ".."
        && !topic.contains(|c: char| c == '/' || c.is_control())
}

/// Why bytes are not an intact record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The size is too small, or more than its file has room for.
    Size,
    /// Neither a record nor a blank starts here.
    Magic,
    /// A blank that does not reach its file's end.
    Blank,
    /// A record that belongs elsewhere: stale bytes.
    PhysicalOffset(i64),
    /// Its parts do not add up to its size.
    Lengths,
    /// Its topic is not one.
    Topic,
    /// A last record with zeros where its properties should be.
    Torn,
    /// The body is not what was stored.
    BodyCrc,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Size => f.write_str("impossible size"),
            Flaw::Magic => f.write_str("unknown magic"),
            Flaw::Blank => f.write_str("blank of the wrong size"),
            Flaw::PhysicalOffset(offset) => write!(f, "record of log offset {offset}"),
            Flaw::Lengths => f.write_str("lengths do not add up"),
            Flaw::Topic => f.write_str("unusable topic"),
            Flaw::Torn => f.write_str("torn write"),
            Flaw::BodyCrc => f.write_str("body checksum differs"),
        }
    }
}

/// How much of a record `verify` looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyMode {
    /// Magic, size, lengths, place.
    Structure,
    /// The body's checksum too.
    Full,
}

/// Checks the record at the front of `bytes`, which stands at log offset `at`.
pub fn verify(bytes: &[u8], at: u64, mode: VerifyMode) -> Result<RecordView<'_>, Flaw> {
    let view = RecordView::parse(bytes)?;
    if view.physical_offset != at as i64 {
        return Err(Flaw::PhysicalOffset(view.physical_offset));
    }
    if mode == VerifyMode::Full && body_crc(view.body) != view.body_crc {
        return Err(Flaw::BodyCrc);
    }
    Ok(view)
}

/// What stands at the front of some log bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// It cannot be told before this many bytes (in total) are there.
    Incomplete { need: usize },
    /// A whole intact record.
    Record { size: usize },
    /// A whole blank with all its filler: it ends the file.
    Blank { size: usize },
    /// A whole record whose structure is right and whose body is not.
    Damaged { size: usize, flaw: Flaw },
    /// Not a record at all.
    Broken(Flaw),
}

/// Says what `bytes` begin with. They stand at log offset `at`, and their file has `room` bytes
/// from there to its end. Asks for no more bytes than it needs to refuse early.
pub fn inspect(bytes: &[u8], at: u64, room: u64) -> Inspection {
    if bytes.len() < 8 {
        let need = if bytes.len() < 4 { 4 } else { 8 };
        return Inspection::Incomplete { need };
    }
    let size = u64::from(BigEndian::read_u32(bytes));
    let magic = BigEndian::read_u32(&bytes[4..]);
    match magic {
        MAGIC_BLANK if size != room => Inspection::Broken(Flaw::Blank),
        MAGIC_BLANK if (bytes.len() as u64) < size => Inspection::Incomplete {
            need: size as usize,
        },
        MAGIC_BLANK => Inspection::Blank {
            size: size as usize,
        },
        MAGIC_V1 | MAGIC_V2 => {
            if size < RECORD_SIZE_MIN as u64 || size + BLANK_SIZE as u64 > room {
                return Inspection::Broken(Flaw::Size);
            }
            inspect_record(bytes, at, size as usize)
        }
        _ => Inspection::Broken(Flaw::Magic),
    }
}

fn inspect_record(bytes: &[u8], at: u64, size: usize) -> Inspection {
    if bytes.len() < HEAD_SIZE {
        return Inspection::Incomplete { need: HEAD_SIZE };
    }
    let physical = BigEndian::read_i64(&bytes[PHYSICAL_OFFSET_AT..]);
    if physical != at as i64 {
        return Inspection::Broken(Flaw::PhysicalOffset(physical));
    }
    if bytes.len() < size {
        return Inspection::Incomplete { need: size };
    }
    match verify(&bytes[..size], at, VerifyMode::Full) {
        Ok(_) => Inspection::Record { size },
        Err(flaw @ Flaw::BodyCrc) => Inspection::Damaged { size, flaw },
        Err(flaw) => Inspection::Broken(flaw),
    }
}

/// The store time of the record that `bytes` begin with, without looking at the rest of it.
pub fn peek_stored_ms(bytes: &[u8]) -> Option<i64> {
    let magic = BigEndian::read_u32(bytes.get(4..8)?);
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return None;
    }
    let sys_flag = BigEndian::read_i32(bytes.get(SYS_FLAG_AT..SYS_FLAG_AT + 4)?);
    let host = if sys_flag & SYS_BORN_V6 != 0 { 20 } else { 8 };
    let at = BORN_HOST_AT + host;
    Some(BigEndian::read_i64(bytes.get(at..at + 8)?))
}

/// The queue offset and physical offset fields of a record's first bytes.
pub fn peek_offsets(bytes: &[u8]) -> Option<(i64, i64)> {
    let head = bytes.get(..HEAD_SIZE)?;
    Some((
        BigEndian::read_i64(&head[QUEUE_OFFSET_AT..]),
        BigEndian::read_i64(&head[PHYSICAL_OFFSET_AT..]),
    ))
}

/// Java's `String.hashCode`: over UTF-16 units, in wrapping 32-bit arithmetic.
pub fn java_hash(text: &str) -> i32 {
    java_hash_on(0, text)
}

/// The hash of a text that begins with one whose hash is known, and goes on with `text`.
pub fn java_hash_on(hash: i32, text: &str) -> i32 {
    text.encode_utf16().fold(hash, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

/// The offset id: store host and log offset in upper-case hexadecimal.
pub fn message_id(store_host: SocketAddr, log_offset: u64) -> String {
    let mut bytes = [0; 28];
    let ip = stored_ip(&store_host);
    let size = if ip.is_ipv6() { 28 } else { 16 };
    let mut out = Writer(&mut bytes[..size]);
    out.host(ip, store_host.port());
    out.i64(log_offset as i64);
    hex_upper(&bytes[..size])
}

/// The log offset in an offset id, with the host that made it; `None` if it is not one.
pub fn parse_message_id(id: &str) -> Option<(SocketAddr, u64)> {
    let v6 = id.len() != 32;
    if !matches!(id.len(), 32 | 56) || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let bytes: Vec<u8> = (0..id.len() / 2)
        .map(|i| u8::from_str_radix(&id[2 * i..2 * i + 2], 16).unwrap_or(0))
        .collect();
    let mut reader = Reader::new(&bytes);
    let host = host(&mut reader, v6).ok()?;
    let offset = u64::try_from(reader.i64().ok()?).ok()?;
    Some((host, offset))
}

fn hex_upper(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)), 50000);
    const STORE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 168, 0, 9)), 10911);

    fn message<'a>(topic: &'a str, body: &'a [u8], properties: &'a [u8]) -> Message<'a> {
        Message {
            topic,
            queue_id: 3,
            flag: 7,
            sys_flag: 0,
            born_ms: 1_700_000_000_000,
            born_host: HOST,
            store_host: STORE,
            reconsume_times: 0,
            prepared_offset: 0,
            body,
            properties,
        }
    }

    fn encoded(message: &Message<'_>, place: Place) -> Vec<u8> {
        let prepared = prepare(message, 1 << 22).expect("a legal message");
        let mut bytes = vec![0xEE; prepared.size];
        encode(message, prepared, place, &mut bytes);
        bytes
    }

    fn place(queue_offset: i64, log_offset: u64) -> Place {
        Place {
            queue_offset,
            log_offset,
            stored_ms: 0x01A2_275B_DF10,
        }
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |p: &[u8]| u8::from_str_radix(std::str::from_utf8(p).expect("ASCII"), 16);
        digits
            .chunks(2)
            .map(|p| pair(p).expect("two digits"))
            .collect()
    }

    const PROPERTIES: &[u8] = b"a\x01b\x02KEYS\x01k1 k2\x02\
        UNIQ_KEY\x010A0102030000000000000000000000AA\x02TAGS\x01TagA";

    #[test]
    fn a_record_has_the_documented_bytes() {
        let bytes = encoded(&message("TopicA", b"hello", PROPERTIES), place(0, 0));
        let mut want = unhex(
            "000000A8 DAA320A7 3610A686 00000003 00000007 0000000000000000 0000000000000000
             00000000 0000018BCFE56800 0A010203 0000C350 000001A2275BDF10 C0A80009 00002A9F
             00000000 0000000000000000 00000005 68656C6C6F 06 546F70696341 0042",
        );
        want.extend_from_slice(PROPERTIES);
        assert_eq!(bytes, want);
        let view = verify(&bytes, 0, VerifyMode::Full).expect("intact");
        assert_eq!(view.message_id(), "C0A8000900002A9F0000000000000000");
        assert_eq!(view.property("TAGS"), Some("TagA"));
    }

    #[test]
    fn hashes_are_java_s() {
        assert_eq!(java_hash("TagA"), 0x27_A807);
        assert_eq!(java_hash("TagB"), 2_598_920);
        assert_eq!(java_hash("\u{6807}\u{7B7E}"), 857_175);
        assert_eq!(java_hash("TopicA#k1"), -1_903_240_649);
        // Outside the BMP two units count: D83D, DE00.
        assert_eq!(java_hash("\u{1F600}"), 0xD83D * 31 + 0xDE00);
    }

    #[test]
    fn hosts_of_both_families_come_back() {
        let v6: SocketAddr = "[2001:db8::1]:9".parse().expect("an address");
        let mapped: SocketAddr = "[::ffff:1.2.3.4]:5".parse().expect("an address");
        for (born, store) in [(v6, STORE), (HOST, v6), (v6, v6), (mapped, STORE)] {
            let mut sent = message("T", b"x", b"");
            (sent.born_host, sent.store_host) = (born, store);
            sent.sys_flag = SYS_BORN_V6 | SYS_STORE_V6; // left over from another message
            let bytes = encoded(&sent, place(5, 77));
            let view = verify(&bytes, 77, VerifyMode::Full).expect("intact");
            let canonical =
                |host: SocketAddr| SocketAddr::new(host.ip().to_canonical(), host.port());
            assert_eq!(
                (view.born_host, view.store_host),
                (canonical(born), canonical(store))
            );
            assert_eq!(view.sys_flag & SYS_BORN_V6 != 0, canonical(born).is_ipv6());
            assert_eq!(peek_stored_ms(&bytes), Some(view.stored_ms));
            let id = view.message_id();
            assert_eq!(id.len(), if canonical(store).is_ipv6() { 56 } else { 32 });
            assert_eq!(parse_message_id(&id), Some((canonical(store), 77)));
        }
        assert_eq!(parse_message_id("C0A8000900002A9F000000000000000G"), None);
    }

    #[test]
    fn checksums_have_no_top_bit_and_an_empty_body_has_none() {
        let high = (0u32..)
            .map(u32::to_be_bytes)
            .find(|b| crc32fast::hash(b) >= 1 << 31);
        let body = high.expect("half of all bodies");
        assert_eq!(body_crc(&body), crc32fast::hash(&body) - (1 << 31));
        assert_eq!(body_crc(b""), 0);
    }

    #[test]
    fn limits_are_kept_and_named() {
        let refused = |message: Message<'_>| match prepare(&message, 100) {
            Err(StoreError::MessageIllegal(reason)) => reason,
            Err(StoreError::PropertiesTooLong { .. }) => "properties".into(),
            other => panic!("{other:?}"),
        };
        let long = "t".repeat(128);
        let retry = format!("%RETRY%{}", "g".repeat(248));
        assert!(prepare(&message(&long[..127], b"", b""), 100).is_ok());
        assert!(refused(message(&long, b"", b"")).contains("128 bytes"));
        let bytes = encoded(&message(&retry, b"", b""), place(0, 0));
        assert_eq!(bytes[4..8], MAGIC_V2.to_be_bytes());
        assert_eq!(RecordView::parse(&bytes).expect("intact").topic, retry);
        assert!(refused(message(&format!("{retry}g"), b"", b"")).contains("cannot be stored"));
        assert!(refused(message("../x", b"", b"")).contains("cannot be stored"));
        assert!(refused(message("", b"", b"")).contains("cannot be stored"));
        assert!(refused(message("T", &[0; 101], b"")).contains("maxMessageSize"));
        assert!(refused(message("T", b"", b"a\x01b\0")).contains("zero byte"));
        let mut negative = message("T", b"", b"");
        negative.queue_id = -1;
        assert!(refused(negative).contains("queue id"));
        let most = vec![b'p'; PROPERTIES_MAX];
        assert!(prepare(&message("T", b"", &most), 100).is_ok());
        assert_eq!(
            refused(message("T", b"", &[b'p'; PROPERTIES_MAX + 1])),
            "properties"
        );
    }

    #[test]
    fn each_flaw_is_told_apart() {
        let good = encoded(&message("TopicA", b"hello", PROPERTIES), place(0, 4096));
        let room = good.len() as u64 + 8;
        let size = good.len();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            inspect(&bytes, 4096, room)
        };
        assert_eq!(inspect(&good, 4096, room), Inspection::Record { size });
        assert_eq!(
            inspect(&good, 4096, room - 1),
            Inspection::Broken(Flaw::Size)
        );
        assert_eq!(
            inspect(&good, 4095, room),
            Inspection::Broken(Flaw::PhysicalOffset(4096))
        );
        assert_eq!(with(3, 7), Inspection::Broken(Flaw::Size));
        assert_eq!(with(4, 7), Inspection::Broken(Flaw::Magic));
        assert_eq!(with(87, 4), Inspection::Broken(Flaw::Lengths));
        assert_eq!(with(84, 0xFF), Inspection::Broken(Flaw::Lengths));
        assert_eq!(with(94, b'/'), Inspection::Broken(Flaw::Topic));
        let flaw = Flaw::BodyCrc;
        assert_eq!(with(88, b'j'), Inspection::Damaged { size, flaw });
        for (there, need) in [(0, 4), (4, 8), (8, 36), (36, size), (size - 1, size)] {
            let inspection = inspect(&good[..there], 4096, room);
            assert_eq!(inspection, Inspection::Incomplete { need }, "{there}");
        }
    }

    #[test]
    fn a_blank_reaches_its_file_s_end() {
        let mut bytes = blank(12).to_vec();
        assert_eq!(inspect(&bytes, 88, 12), Inspection::Incomplete { need: 12 });
        bytes.extend_from_slice(b"junk and more");
        assert_eq!(inspect(&bytes, 88, 12), Inspection::Blank { size: 12 });
        assert_eq!(inspect(&bytes, 88, 13), Inspection::Broken(Flaw::Blank));
        assert_eq!(inspect(&blank(8), 92, 8), Inspection::Blank { size: 8 });
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_read_back_and_encodes_to_the_same_bytes(
            topic in "[%|a-zA-Z0-9_-]{1,127}",
            body in proptest::collection::vec(any::<u8>(), 0..300),
            properties in proptest::collection::vec(1u8.., 0..300),
            numbers in any::<[i32; 4]>(),
            times in any::<[i64; 4]>(),
            at in 0u64..1 << 60,
            v6 in any::<[u8; 16]>(),
        ) {
            let mut sent = message(&topic, &body, &properties);
            sent.queue_id = numbers[0] & i32::MAX;
            sent.flag = numbers[1];
            sent.reconsume_times = numbers[2];
            sent.sys_flag = numbers[3];
            sent.born_ms = times[0];
            sent.prepared_offset = times[1];
            sent.born_host = SocketAddr::new(IpAddr::from(v6), 1);
            let place = Place { queue_offset: times[2], log_offset: at, stored_ms: times[3] };
            let bytes = encoded(&sent, place);
            let view = verify(&bytes, at, VerifyMode::Full).expect("intact");
            prop_assert_eq!(view.queue_offset, place.queue_offset);
            prop_assert_eq!(view.stored_ms, place.stored_ms);
            prop_assert_eq!(view.body, &body[..]);
            prop_assert_eq!(view.properties, &properties[..]);
            prop_assert_eq!(encoded(&view.message(), place), bytes);
        }

        #[test]
        fn no_bytes_make_it_panic_or_ask_for_more_than_the_file_has(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
            magic in prop_oneof![Just(MAGIC_V1), Just(MAGIC_V2), Just(MAGIC_BLANK)],
            at in any::<u64>(),
            room in 0u64..1000,
        ) {
            if bytes.len() > 40 {
                bytes[..3].fill(0);
                bytes[4..8].copy_from_slice(&magic.to_be_bytes());
                bytes[28..36].copy_from_slice(&at.to_be_bytes());
            }
            let _ = RecordView::parse(&bytes);
            let _ = properties::iter(&bytes).count();
            match inspect(&bytes, at, room) {
                Inspection::Incomplete { need } => {
                    prop_assert!(need > bytes.len() && need as u64 <= room.max(36));
                }
                Inspection::Record { size } | Inspection::Damaged { size, .. } => {
                    prop_assert!(size <= bytes.len() && size as u64 + 8 <= room);
                }
                Inspection::Blank { size } => prop_assert_eq!(size as u64, room),
                Inspection::Broken(_) => {}
            }
        }
    }
}
