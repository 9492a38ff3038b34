//! The slave's side of a connection, without a socket: received bytes and time go in, appended
//! records and reports come out.

use std::fmt;
use std::time::{Duration, Instant};

use super::byte_log::Log;
use super::intake::{Flawed, Intake};
use super::wire::{
    REPORT_SIZE, TRANSFER_BODY_DEFAULT, TRANSFER_BODY_MAX, TRANSFER_HEADER_SIZE, TransferHeader,
    encode_report,
};

/// One slave, over all its connections to masters.
///
/// Invariant: every reported offset is the end of whole, checked records in the log, and reports
/// never fall within a connection.
pub struct Replica {
    timing: Timing,
    phase: Phase,
    header: [u8; TRANSFER_HEADER_SIZE],
    header_filled: usize,
    /// Body bytes of the current transfer that have not come yet.
    body_left: usize,
    intake: Intake,
    /// Our log has a place: it is not empty, or the first transfer gave it one.
    anchored: bool,
    reports: ReportQueue,
    last_read_at: Instant,
    last_report_at: Instant,
}

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two reports on a quiet link.
    pub heartbeat: Duration,
    /// Silence of the master that ends a connection.
    pub housekeeping: Duration,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The master has not sent anything yet.
    Requesting,
    CatchingUp,
    /// We have all that the master had when it sent last.
    Streaming,
    /// Not even heartbeats come.
    Stalled,
}

/// Why a connection to a master must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A body length that no transfer has.
    Length {
        length: i32,
    },
    /// The transfer does not continue our log.
    Gap {
        expected: u64,
        start: i64,
    },
    /// Our log is empty, and this is not where a file begins.
    Unaligned {
        start: i64,
        file_size: u64,
    },
    /// The transfer goes over the end of one of our files.
    CrossesFile {
        start: u64,
        end: u64,
        file_size: u64,
    },
    Flawed(Flawed),
    /// The master sent nothing for too long.
    Silent(Duration),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Length { length } => write!(f, "transfer of {length} bytes"),
            Refusal::Gap { expected, start } => {
                write!(
                    f,
                    "transfer from {start}, but our log continues at {expected}"
                )
            }
            Refusal::Unaligned { start, file_size } => write!(
                f,
                "transfer from {start} begins no file of {file_size} bytes; \
                 is mappedFileSizeCommitLog the master's?"
            ),
            Refusal::CrossesFile {
                start,
                end,
                file_size,
            } => write!(
                f,
                "transfer {start}..{end} crosses the end of a file of {file_size} bytes; \
                 is mappedFileSizeCommitLog the master's?"
            ),
            Refusal::Flawed(flawed) => write!(f, "{flawed}"),
            Refusal::Silent(time) => write!(f, "the master was silent for {time:?}"),
        }
    }
}

impl From<Flawed> for Refusal {
    fn from(flawed: Flawed) -> Refusal {
        Refusal::Flawed(flawed)
    }
}

impl Replica {
    pub fn new(timing: Timing, now: Instant) -> Replica {
        Replica {
            timing,
            phase: Phase::Requesting,
            header: [0; TRANSFER_HEADER_SIZE],
            header_filled: 0,
            body_left: 0,
            intake: Intake::default(),
            anchored: false,
            reports: ReportQueue::default(),
            last_read_at: now,
            last_report_at: now,
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// End of what came, incomplete records included.
    pub fn received(&self) -> u64 {
        self.intake.next()
    }

    /// The last report of this connection.
    pub fn reported(&self) -> u64 {
        self.reports.last
    }

    /// When the master last sent something on this connection.
    pub fn last_read_at(&self) -> Option<Instant> {
        (self.phase != Phase::Requesting).then_some(self.last_read_at)
    }

    /// Records taken over with a wrong body checksum.
    pub fn carried(&self) -> u64 {
        self.intake.carried()
    }

    /// A connection begins: what the old one left incomplete is dropped, and the first report
    /// asks for what follows our log.
    pub fn on_connect(&mut self, log: &impl Log, now: Instant) {
        self.phase = Phase::Requesting;
        self.header_filled = 0;
        self.body_left = 0;
        self.anchored = !log.is_empty();
        self.intake.restart(reportable(log));
        self.reports = ReportQueue::default();
        self.last_read_at = now;
        self.report(log, now);
    }

    /// What one read gave. Whole records among it are in the log afterwards, also those before
    /// bytes that are refused; the refusal ends the connection.
    pub fn on_bytes(&mut self, bytes: &[u8], log: &impl Log, now: Instant) -> Result<(), Refusal> {
        self.last_read_at = now;
        let requesting = self.phase == Phase::Requesting;
        let before = log.end();
        let cut = self.cut(bytes, log);
        self.intake.settle(log)?;
        cut?;
        let moved = log.end() > before;
        // Our first report was a request and counted for nothing. So that nobody waits for what
        // we already have, the next one follows as soon as the master turns out to continue us.
        let confirmed = requesting && self.phase != Phase::Requesting && !log.is_empty();
        if moved || confirmed {
            self.report(log, now);
        }
        Ok(())
    }

    /// Cuts what came into headers and bodies. Each header is checked before its body is taken,
    /// so nothing is held that could not be appended.
    fn cut(&mut self, mut bytes: &[u8], log: &impl Log) -> Result<(), Refusal> {
        while !bytes.is_empty() {
            if self.body_left > 0 {
                let (body, rest) = bytes.split_at(self.body_left.min(bytes.len()));
                self.intake.take(body);
                self.body_left -= body.len();
                bytes = rest;
                continue;
            }
            let missing = TRANSFER_HEADER_SIZE - self.header_filled;
            let (part, rest) = bytes.split_at(missing.min(bytes.len()));
            self.header[self.header_filled..][..part.len()].copy_from_slice(part);
            self.header_filled += part.len();
            bytes = rest;
            if self.header_filled == TRANSFER_HEADER_SIZE {
                self.header_filled = 0;
                let header = TransferHeader::decode(&self.header).expect("a whole header");
                self.on_header(header, log)?;
            }
        }
        Ok(())
    }

    fn on_header(&mut self, header: TransferHeader, log: &impl Log) -> Result<(), Refusal> {
        let TransferHeader { start, length } = header;
        let body = usize::try_from(length).ok();
        let Some(body) = body.filter(|body| *body <= TRANSFER_BODY_MAX) else {
            return Err(Refusal::Length { length });
        };
        let file_size = log.file_size();
        let start = self.place(start, body, file_size)?;
        let end = start + body as u64;
        if body > 0 && start / file_size != (end - 1) / file_size {
            return Err(Refusal::CrossesFile {
                start,
                end,
                file_size,
            });
        }
        self.body_left = body;
        // A full transfer says nothing; any other was all that the master had just then, unless
        // a file ended there.
        let all = body < TRANSFER_BODY_DEFAULT && (body == 0 || !end.is_multiple_of(file_size));
        self.phase = match self.phase {
            _ if all => Phase::Streaming,
            Phase::Streaming => Phase::Streaming,
            _ => Phase::CatchingUp,
        };
        Ok(())
    }

    /// Whether a transfer continues our log. An empty log may begin at any file's base, and the
    /// first body decides it: a heartbeat brings no byte, so it creates and acknowledges nothing.
    fn place(&mut self, start: i64, body: usize, file_size: u64) -> Result<u64, Refusal> {
        if self.anchored {
            let expected = self.intake.next();
            return match u64::try_from(start) {
                Ok(start) if start == expected => Ok(start),
                _ => Err(Refusal::Gap { expected, start }),
            };
        }
        let base = u64::try_from(start).ok();
        let Some(base) = base.filter(|base| base.is_multiple_of(file_size)) else {
            return Err(Refusal::Unaligned { start, file_size });
        };
        if body > 0 {
            self.anchored = true;
            self.intake.restart(base);
        }
        Ok(base)
    }

    /// Reports on a quiet link, and ends a connection whose master is silent.
    pub fn on_tick(&mut self, log: &impl Log, now: Instant) -> Result<(), Refusal> {
        let silent_for = now.saturating_duration_since(self.last_read_at);
        if silent_for >= self.timing.housekeeping {
            return Err(Refusal::Silent(silent_for));
        }
        if now >= self.last_report_at + self.timing.heartbeat {
            self.report(log, now);
        }
        if silent_for >= 2 * self.timing.heartbeat && self.phase != Phase::Requesting {
            self.phase = Phase::Stalled;
        }
        Ok(())
    }

    /// When `on_tick` has something to do.
    pub fn next_deadline(&self) -> Instant {
        let report = self.last_report_at + self.timing.heartbeat;
        report.min(self.last_read_at + self.timing.housekeeping)
    }

    fn report(&mut self, log: &impl Log, now: Instant) {
        self.reports.push(reportable(log));
        self.last_report_at = now;
    }

    /// Report bytes that the socket has not taken yet.
    pub fn output(&self) -> &[u8] {
        self.reports.output()
    }

    /// The socket took `n` bytes of the output.
    pub fn on_written(&mut self, n: usize) {
        self.reports.on_written(n);
    }
}

/// What may be reported: the end of the log, which holds whole records only.
fn reportable(log: &impl Log) -> u64 {
    if log.is_empty() { 0 } else { log.end() }
}

/// The report being written and the newest one behind it; what lies between is out of date.
struct ReportQueue {
    current: [u8; REPORT_SIZE],
    written: usize,
    newer: Option<u64>,
    last: u64,
}

impl Default for ReportQueue {
    fn default() -> Self {
        ReportQueue {
            current: [0; REPORT_SIZE],
            written: REPORT_SIZE,
            newer: None,
            last: 0,
        }
    }
}

impl ReportQueue {
    fn push(&mut self, received: u64) {
        assert!(received >= self.last, "reports never fall");
        self.last = received;
        self.newer = Some(received);
        self.advance();
    }

    fn output(&self) -> &[u8] {
        &self.current[self.written..]
    }

    fn on_written(&mut self, n: usize) {
        self.written += n;
        assert!(
            self.written <= REPORT_SIZE,
            "no more is written than there was"
        );
        self.advance();
    }

    fn advance(&mut self) {
        if self.written == REPORT_SIZE
            && let Some(received) = self.newer.take()
        {
            self.current = encode_report(received);
            self.written = 0;
        }
    }
}
