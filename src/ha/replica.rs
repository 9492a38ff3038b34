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
    /// Where the master said the next byte goes, while our log has no place.
    master_next: Option<u64>,
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
            master_next: None,
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
        self.master_next = None;
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
        // With an empty log that is only so where the master's begins at 0 too.
        let continues = !log.is_empty() || self.master_next == Some(0);
        let confirmed = requesting && self.phase != Phase::Requesting && continues;
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
        } else {
            self.master_next = Some(base);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ha::byte_log::AppendError;
    use crate::ha::memory_log::MemoryLog;
    use crate::store::record::Flaw;

    const FILE: u64 = 4096;
    const SECOND: Duration = Duration::from_secs(1);
    const TIMING: Timing = Timing {
        heartbeat: Duration::from_secs(5),
        housekeeping: Duration::from_secs(20),
    };

    /// A slave with its log, and all reports that it made.
    struct World {
        log: MemoryLog,
        replica: Replica,
        now: Instant,
        reports: Vec<u64>,
    }

    fn world() -> World {
        let now = Instant::now();
        World {
            log: MemoryLog::new(FILE),
            replica: Replica::new(TIMING, now),
            now,
            reports: Vec::new(),
        }
    }

    impl World {
        fn connect(&mut self) -> u64 {
            self.replica.on_connect(&self.log, self.now);
            self.reports.clear();
            self.take_reports();
            self.reports[0]
        }

        fn receive(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
            let result = self.replica.on_bytes(bytes, &self.log, self.now);
            self.take_reports();
            result
        }

        fn take_reports(&mut self) {
            while let Ok(bytes) = self.replica.output().try_into() {
                self.reports.push(u64::from_be_bytes(bytes));
                self.replica.on_written(REPORT_SIZE);
            }
        }
    }

    /// A master's log over a few files, with its blanks.
    fn master() -> MemoryLog {
        let log = MemoryLog::new(FILE);
        for n in 0..12usize {
            log.append_message(&vec![n as u8; n * 97 % 900]);
        }
        assert!(log.end() > FILE);
        log
    }

    fn unit(start: i64, body: &[u8]) -> Vec<u8> {
        let header = TransferHeader {
            start,
            length: body.len() as i32,
        };
        [&header.encode()[..], body].concat()
    }

    /// The log from `from` in bodies of at most `size`, with heartbeats between all of them.
    fn stream(log: &MemoryLog, from: u64, size: usize) -> Vec<u8> {
        let mut wire = unit(from as i64, &[]);
        let mut at = from;
        while let Some(body) = log.read(at, size) {
            wire.extend(unit(at as i64, &body));
            at += body.len() as u64;
            wire.extend(unit(at as i64, &[]));
        }
        wire
    }

    #[test]
    fn a_stream_cut_at_any_position_gives_the_same_log() {
        // C-43, J13, B30. Bodies of a size that fits no record, so records are cut anyway.
        let master = master();
        let wire = stream(&master, 0, 333);
        for cut in 0..=wire.len() {
            let mut w = world();
            assert_eq!(w.connect(), 0);
            w.receive(&wire[..cut]).expect("the first part continues");
            assert_eq!(w.reports.last(), Some(&w.log.end()), "and no half record");
            w.receive(&wire[cut..]).expect("the rest continues");
            assert_eq!(w.log.bytes(), master.bytes(), "cut after {cut} bytes");
            assert_eq!(w.reports.last(), Some(&master.end()));
        }
    }

    #[test]
    fn single_bytes_give_the_same_log_and_reports_only_of_record_ends() {
        // I8, DECISIONS 4, C-47.
        let master = master();
        let mut ends = vec![0];
        let copy = MemoryLog::new(FILE);
        for n in 0..12usize {
            ends.push(copy.append_message(&vec![n as u8; n * 97 % 900]));
        }
        let mut w = world();
        w.connect();
        for byte in stream(&master, 0, 333) {
            w.receive(&[byte]).expect("it continues");
            let reported = *w.reports.last().expect("a report");
            assert!(reported <= w.log.end());
        }
        assert_eq!(w.log.bytes(), master.bytes());
        assert!(w.reports.is_sorted());
        let is_end = |at: &u64| ends.contains(at) || at.is_multiple_of(FILE);
        assert!(w.reports.iter().all(is_end), "{:?}", w.reports);
    }

    #[test]
    fn a_read_makes_one_append_a_file_and_one_report() {
        let master = master();
        let mut w = world();
        w.connect();
        w.receive(&stream(&master, 0, 500)).expect("it continues");
        let files = master.end().div_ceil(FILE) as usize;
        assert_eq!(w.log.appends(), files);
        assert_eq!(w.reports, [0, master.end()]);
        assert_eq!(w.replica.phase(), Phase::Streaming);
    }

    #[test]
    fn a_slave_that_is_up_to_date_acknowledges_with_its_second_report() {
        // DECISIONS 1: the first one counted for nothing.
        let mut w = world();
        let end = w.log.append_message(b"here already");
        assert_eq!(w.connect(), end);
        w.receive(&unit(end as i64, &[])).expect("it continues");
        assert_eq!(w.reports, [end, end]);
        w.receive(&unit(end as i64, &[])).expect("it continues");
        assert_eq!(w.reports, [end, end], "a heartbeat moves nothing");
    }

    #[test]
    fn a_heartbeat_on_an_empty_log_creates_and_acknowledges_nothing() {
        // W-24, C-42.
        let mut w = world();
        assert_eq!(w.connect(), 0);
        w.receive(&unit(3 * FILE as i64, &[]))
            .expect("a file's base");
        assert!(w.log.is_empty());
        assert_eq!(w.reports, [0]);
        let master = MemoryLog::starting_at(FILE, 5 * FILE);
        let end = master.append_message(b"first");
        w.receive(&stream(&master, 5 * FILE, 40))
            .expect("its first data");
        assert_eq!((w.log.start(), w.log.end()), (5 * FILE, end));
        assert_eq!(w.reports, [0, end]);
    }

    /// An idle new pair: the master shall see that its slave is there and has all there is.
    #[test]
    fn a_heartbeat_at_0_on_an_empty_log_is_answered_with_a_second_report() {
        let mut w = world();
        assert_eq!(w.connect(), 0);
        w.receive(&unit(0, &[])).expect("the beginning");
        assert!(w.log.is_empty());
        assert_eq!(w.reports, [0, 0]);
    }

    #[test]
    fn half_a_record_on_an_empty_log_is_forgotten_with_its_connection() {
        let master = master();
        let mut w = world();
        w.connect();
        let body = master.read(0, 50).expect("bytes");
        w.receive(&unit(0, &body)).expect("it continues");
        assert_eq!(w.replica.received(), 50);
        assert!(w.log.is_empty());
        assert_eq!(w.connect(), 0);
        w.receive(&stream(&master, 0, 500))
            .expect("from the beginning");
        assert_eq!(w.log.bytes(), master.bytes());
    }

    #[test]
    fn a_transfer_that_does_not_continue_the_log_is_refused_heartbeats_too() {
        // C-45, B25.
        let record = MemoryLog::new(FILE);
        record.append_message(b"again");
        for start in [-5, 0, 1, 32768, i64::MAX, i64::MIN] {
            for body in [&record.bytes()[..], &[]] {
                let mut w = world();
                let end = w.log.append_message(b"here already");
                w.connect();
                let refused = w.receive(&unit(start, body));
                let expected = end;
                assert_eq!(refused, Err(Refusal::Gap { expected, start }));
                assert_eq!((w.log.end(), w.reports.len()), (end, 1));
            }
        }
    }

    #[test]
    fn an_empty_log_begins_only_where_a_file_does() {
        for start in [1, FILE as i64 - 1, -1, i64::MIN] {
            for body in [&b"x"[..], &[]] {
                let mut w = world();
                w.connect();
                let refused = w.receive(&unit(start, body));
                let file_size = FILE;
                assert_eq!(refused, Err(Refusal::Unaligned { start, file_size }));
                assert!(w.log.is_empty());
            }
        }
    }

    #[test]
    fn lengths_that_no_transfer_has_are_refused_before_a_byte_is_held() {
        // J13, W-19.
        for length in [-1, i32::MIN, TRANSFER_BODY_MAX as i32 + 1, i32::MAX] {
            let mut w = world();
            w.connect();
            let header = TransferHeader { start: 0, length };
            let refused = w.receive(&header.encode());
            assert_eq!(refused, Err(Refusal::Length { length }));
            assert_eq!(w.replica.received(), 0);
        }
    }

    #[test]
    fn a_transfer_over_a_files_end_is_refused() {
        // B54, W-14: the master's files are larger than ours.
        let mut w = world();
        w.connect();
        let refused = w.receive(&unit(0, &[0; FILE as usize + 1]));
        assert!(matches!(refused, Err(Refusal::CrossesFile { .. })));
    }

    #[test]
    fn bytes_that_are_no_record_close_and_leave_the_log_as_it_was() {
        // J13.
        let master = MemoryLog::new(FILE);
        let first = master.append_message(b"hello");
        master.append_message(b"second");
        let flawed = [
            (first + 4, Flaw::Magic),
            (first, Flaw::Size),
            (first + 35, Flaw::PhysicalOffset(0)),
        ];
        for (at, flaw) in flawed {
            let mut w = world();
            w.connect();
            w.receive(&unit(0, &master.read(0, first as usize).expect("a record")))
                .expect("it continues");
            master.flip(at);
            let bad = master.read(first, 1000).expect("a record");
            master.flip(at);
            let refused = w.receive(&unit(first as i64, &bad));
            let Err(Refusal::Flawed(Flawed::Structure {
                at: named,
                flaw: seen,
            })) = refused
            else {
                panic!("{refused:?}");
            };
            assert_eq!(named, first);
            let same = std::mem::discriminant(&seen) == std::mem::discriminant(&flaw);
            assert!(same, "{seen:?} instead of {flaw:?}");
            assert_eq!((w.log.end(), w.reports.clone()), (first, vec![0, first]));
            assert_eq!(w.connect(), first);
        }
    }

    #[test]
    fn a_wrong_body_checksum_closes_once_and_is_carried_when_it_comes_again_as_it_was() {
        // DECISIONS 4, C-51.
        let master = MemoryLog::new(FILE);
        let first = master.append_message(b"hello");
        master.append_message(&[7; 100]);
        master.flip(first + 90);
        let wire = stream(&master, first, 1000);
        let mut w = world();
        w.log.append_message(b"hello");
        w.connect();
        let refused = w.receive(&wire);
        assert_eq!(refused, Err(Refusal::Flawed(Flawed::Body { at: first })));
        assert_eq!(w.log.end(), first);
        // Other wrong bytes at that place: the link's damage, not the master's.
        master.flip(first + 91);
        assert_eq!(w.connect(), first);
        assert!(w.receive(&stream(&master, first, 1000)).is_err());
        assert_eq!(w.log.end(), first);
        assert_eq!(w.connect(), first);
        w.receive(&stream(&master, first, 30)).expect("carried");
        assert_eq!(w.log.bytes(), master.bytes());
        assert_eq!(w.replica.carried(), 1);
    }

    #[test]
    fn what_the_log_does_not_take_is_not_reported() {
        // J7: a full disk.
        let master = master();
        let mut w = world();
        w.connect();
        let full = AppendError::Full("disk".to_string());
        w.log.refuse_appends(Some(full.clone()));
        let refused = w.receive(&stream(&master, 0, 500));
        assert_eq!(refused, Err(Refusal::Flawed(Flawed::Append(full))));
        assert_eq!(w.reports, [0]);
        w.log.refuse_appends(None);
        assert_eq!(w.connect(), 0);
        w.receive(&stream(&master, 0, 500)).expect("room again");
        assert_eq!(w.log.bytes(), master.bytes());
    }

    #[test]
    fn whole_records_before_a_refused_transfer_are_kept() {
        let master = MemoryLog::new(FILE);
        let end = master.append_message(b"good");
        let mut wire = stream(&master, 0, 1000);
        wire.extend(unit(0, b"not the continuation"));
        let mut w = world();
        w.connect();
        assert!(w.receive(&wire).is_err());
        assert_eq!(w.log.end(), end);
        assert_eq!(w.connect(), end);
    }

    #[test]
    fn a_quiet_link_has_a_report_each_interval_and_ends_after_silence() {
        // C-41, C-49, W-15.
        let mut w = world();
        let end = w.log.append_message(b"here already");
        w.connect();
        for seconds in 1..20 {
            w.now += SECOND;
            w.replica
                .on_tick(&w.log, w.now)
                .expect("not silent for long");
            w.take_reports();
            assert_eq!(w.reports.len(), 1 + seconds / 5);
        }
        assert!(w.reports.iter().all(|report| *report == end));
        w.now += SECOND;
        let silent = w.replica.on_tick(&w.log, w.now);
        assert_eq!(silent, Err(Refusal::Silent(20 * SECOND)));
    }

    #[test]
    fn a_report_that_the_socket_took_in_parts_stays_whole_and_the_newest_follows() {
        let mut queue = ReportQueue::default();
        queue.push(100);
        queue.on_written(3);
        queue.push(200);
        queue.push(300);
        let rest = queue.output().to_vec();
        queue.on_written(5);
        assert_eq!(rest, encode_report(100)[3..]);
        assert_eq!(queue.output(), encode_report(300));
    }

    #[test]
    fn endless_heartbeats_cost_nothing() {
        // C-44: a 5.x master with flow control floods empty transfers.
        let mut w = world();
        let end = w.log.append_message(b"here already");
        w.connect();
        let flood = unit(end as i64, &[]).repeat(1000);
        for _ in 0..100 {
            w.receive(&flood).expect("it continues");
        }
        assert_eq!(w.reports, [end, end]);
    }
}
