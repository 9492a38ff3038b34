//! What a slave holds between the wire and its log: bytes become whole, checked records here.
//!
//! Transfers are cut anywhere, so the last record of what came is usually incomplete. It waits
//! here, and neither the log nor a report knows of it until its last byte is there and right.

use std::fmt;

use super::byte_log::{AppendError, Log};
use crate::store::record::{Flaw, Inspection, inspect};

/// Most bytes of one incomplete record, or of a file's blank, that are held. An original master's
/// message limit is 4 MiB unless its operator raised it.
pub const HELD_MAX: usize = 16 * 1024 * 1024;

/// Bytes that continue the log but are not in it yet.
#[derive(Default)]
pub struct Intake {
    held: Vec<u8>,
    /// Log offset of the first held byte; the log's end, unless the log is empty.
    at: u64,
    /// Held bytes below which looking again is useless.
    need: usize,
    /// The record whose body checksum failed last, to see whether it comes again as it was. It
    /// outlives the connection.
    suspect: Option<Suspect>,
    carried: u64,
}

struct Suspect {
    at: u64,
    bytes: Vec<u8>,
}

/// Why the log cannot be continued with what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flawed {
    /// No record can look like this.
    Structure { at: u64, flaw: Flaw },
    /// A record larger than is held.
    TooLarge { at: u64, size: usize },
    /// A record's body does not have its checksum, for the first time.
    Body { at: u64 },
    /// The bytes are right, and the log did not take them.
    Append(AppendError),
}

impl fmt::Display for Flawed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flawed::Structure { at, flaw } => write!(f, "no record at {at}: {flaw}"),
            Flawed::TooLarge { at, size } => {
                write!(
                    f,
                    "record at {at} of {size} bytes, at most {HELD_MAX} are held"
                )
            }
            Flawed::Body { at } => write!(f, "body checksum of the record at {at} is wrong"),
            Flawed::Append(error) => write!(f, "{error}"),
        }
    }
}

/// How far whole records reach, and why not further.
enum Reach {
    /// The next record's rest is not there yet.
    Incomplete,
    FileEnd,
    Flawed(Flawed),
}

impl Intake {
    /// Forgets what is held: a new connection continues at the log's end, `at`.
    pub fn restart(&mut self, at: u64) {
        self.held = Vec::new();
        self.at = at;
        self.need = 0;
    }

    /// Where the next byte belongs.
    pub fn next(&self) -> u64 {
        self.at + self.held.len() as u64
    }

    /// Records that were taken over with a wrong body checksum.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// Adds bytes that begin at `next`. The caller settles at least once a read.
    pub fn take(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Appends all whole records to the log, in one piece a file.
    pub fn settle(&mut self, log: &impl Log) -> Result<(), Flawed> {
        loop {
            let (whole, reach) = self.measure(log.file_size());
            if whole > 0 {
                let append = log.append_raw(self.at, &self.held[..whole]);
                append.map_err(Flawed::Append)?;
                self.at += whole as u64;
                self.held.drain(..whole);
            }
            match reach {
                Reach::FileEnd => {}
                Reach::Incomplete => return Ok(()),
                Reach::Flawed(why) => return Err(why),
            }
        }
    }

    /// Walks over the whole records at the front of what is held, at most to the file's end.
    fn measure(&mut self, file_size: u64) -> (usize, Reach) {
        let mut whole = 0;
        if self.held.len() < self.need {
            return (whole, Reach::Incomplete);
        }
        self.need = 0;
        loop {
            let at = self.at + whole as u64;
            if whole > 0 && at.is_multiple_of(file_size) {
                return (whole, Reach::FileEnd);
            }
            let rest = &self.held[whole..];
            if rest.is_empty() {
                return (whole, Reach::Incomplete);
            }
            let room = file_size - at % file_size;
            let size = match inspect(rest, at, room) {
                Inspection::Record { size } | Inspection::Blank { size } => size,
                Inspection::Damaged { size, .. } => {
                    if !self.came_before(at, whole..whole + size) {
                        return (whole, Reach::Flawed(Flawed::Body { at }));
                    }
                    size
                }
                Inspection::Incomplete { need } if need > HELD_MAX => {
                    return (whole, Reach::Flawed(Flawed::TooLarge { at, size: need }));
                }
                Inspection::Incomplete { need } => {
                    assert!(need > rest.len(), "an incomplete record needs more bytes");
                    self.need = need;
                    return (whole, Reach::Incomplete);
                }
                Inspection::Broken(flaw) => {
                    return (whole, Reach::Flawed(Flawed::Structure { at, flaw }));
                }
            };
            assert!(size > 0 && size as u64 <= room, "a record lies in its file");
            whole += size;
        }
    }

    /// A damaged record is carried when it comes a second time with the very same bytes: then the
    /// damage is the master's own, and one old flipped bit must not end replication.
    fn came_before(&mut self, at: u64, range: std::ops::Range<usize>) -> bool {
        let bytes = &self.held[range];
        let again = self.suspect.take();
        if again.is_some_and(|suspect| suspect.at == at && suspect.bytes == bytes) {
            self.carried += 1;
            log::error!(
                "the record at {at} has a wrong body checksum on the master too; it is carried"
            );
            return true;
        }
        let bytes = bytes.to_vec();
        self.suspect = Some(Suspect { at, bytes });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ha::memory_log::MemoryLog;

    #[test]
    fn a_record_larger_than_is_held_is_refused_by_its_first_bytes() {
        let size = HELD_MAX + 1;
        let log = MemoryLog::new(1 << 30);
        let mut head = vec![0; 92];
        head[..4].copy_from_slice(&(size as u32).to_be_bytes());
        head[4..8].copy_from_slice(&0xDAA3_20A7_u32.to_be_bytes());
        let mut intake = Intake::default();
        intake.take(&head);
        let refused = intake.settle(&log);
        assert_eq!(refused, Err(Flawed::TooLarge { at: 0, size }));
    }

    #[test]
    fn a_blank_larger_than_is_held_is_refused_too() {
        let log = MemoryLog::new(1 << 30);
        let mut intake = Intake::default();
        intake.take(&(1u32 << 30).to_be_bytes());
        intake.take(&0xCBD4_3194_u32.to_be_bytes());
        let refused = intake.settle(&log);
        assert_eq!(
            refused,
            Err(Flawed::TooLarge {
                at: 0,
                size: 1 << 30
            })
        );
    }
}
