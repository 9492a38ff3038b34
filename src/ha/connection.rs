//! One slave as the master sees it. It has no socket and no clock of its own: bytes and time come
//! in as arguments, so tests and the simulation drive it as the event loop does.

use std::fmt;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::{Duration, Instant};

use super::byte_log::{Log, LogRange};
use super::read_handler::ReadHandler;
use super::write_handler::WriteHandler;

/// Most `writev` calls for one slave in one turn: about 1 MiB, then the others have theirs.
const WRITES_PER_TURN: usize = 4;

/// One slave connection, on the master.
///
/// ```text
///    accept ──▶ AwaitRequest ──first report──▶ CatchingUp ◀──▶ Streaming
///                    │                           │   ▲             │
///                    │                           ▼   │             │
///                    │                          Stalled ◀──────────┤
///                    └── silence, bad report, EOF, error ──────────┴──▶ Closed(why)
/// ```
///
/// Invariant after the request: `acked <= sent <= log end`.
pub struct Connection<C> {
    id: u64,
    peer: SocketAddr,
    rules: Rules,
    state: State,
    since: Instant,
    reader: ReadHandler,
    writer: WriteHandler<C>,
    /// Where the slave's log ended or was made to begin, by its first report.
    requested: Request,
    /// End of the slave's log, by its reports after the first; `None` until then.
    acked: Option<u64>,
    last_read_at: Instant,
    last_write_at: Instant,
    /// When the slave began to be behind; `None` while it has everything.
    behind_since: Option<Instant>,
    transitions: Vec<Transition>,
}

/// When a connection's first heartbeat goes out, if there is no data by then. Not at once: what is
/// appended at that moment is a better first unit, and some peers expect it to be one.
const FIRST_HEARTBEAT: Duration = Duration::from_millis(100);

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub heartbeat: Duration,
    /// Silence that ends a connection.
    pub housekeeping: Duration,
    /// Most silence before the first report. An original slave of 4.9 sends it five to six
    /// seconds after it connected: it reports only when its heartbeat is due (C-1).
    pub first_report: Duration,
    pub transfer_body_max: usize,
    pub empty_slave_from: EmptySlaveFrom,
    /// A streaming slave that falls this far behind is catching up again.
    pub fallbehind_max: u64,
}

/// Where a slave starts that reports 0, which means that it has nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptySlaveFrom {
    /// The first file that is there, so that the slave has all of the history.
    Min,
    /// The file that is being written, as the original masters do (C-3, C-4).
    LastFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    AwaitRequest,
    CatchingUp,
    Streaming,
    /// Output waits and the socket takes none.
    Stalled,
    Closed(Reason),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A report beyond what the master has, or beyond what this connection was sent.
    AheadOfMaster,
    /// The slave's log ends before the master's first file.
    OffsetGone,
    /// A report that no slave sends: negative, or lower than one before.
    BadReport,
    Silent,
    /// No place for it.
    Refused,
    /// The slave closed, or the connection broke.
    Gone,
}

impl State {
    /// As in `status`, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            State::AwaitRequest => "awaiting-request",
            State::CatchingUp => "catching-up",
            State::Streaming => "streaming",
            State::Stalled => "stalled",
            State::Closed(reason) => reason.name(),
        }
    }
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::AheadOfMaster => "ahead-of-master",
            Reason::OffsetGone => "offset-gone",
            Reason::BadReport => "bad-report",
            Reason::Silent => "silent",
            Reason::Refused => "refused",
            Reason::Gone => "gone",
        }
    }
}

/// A change of state, for the log.
#[derive(Clone, Debug)]
pub struct Transition {
    pub from: State,
    pub to: State,
    pub cause: String,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} -> {:?}: {}", self.from, self.to, self.cause)
    }
}

/// The first report, as it was understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Where transfers start.
    pub start: u64,
    /// The slave had nothing, so what lies before `start` is not there, whatever it reports.
    pub empty: bool,
}

/// How a turn's writing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// All that there is was written.
    Drained,
    /// The turn's bound was reached.
    More,
    /// The socket is full.
    Blocked,
}

/// What a turn's reading means to the producers that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    /// The slave counts from now on.
    Request(Request),
    /// Every byte before it is on the slave.
    Acked(u64),
}

impl<C: Deref<Target = [u8]>> Connection<C> {
    pub fn new(id: u64, peer: SocketAddr, rules: Rules, now: Instant) -> Connection<C> {
        Connection {
            id,
            peer,
            rules,
            state: State::AwaitRequest,
            since: now,
            reader: ReadHandler::default(),
            writer: WriteHandler::starting_at(0),
            requested: Request::default(),
            acked: None,
            last_read_at: now,
            last_write_at: now,
            behind_since: None,
            transitions: Vec::new(),
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn since(&self) -> Instant {
        self.since
    }

    pub fn sent(&self) -> u64 {
        self.writer.sent()
    }

    /// What the slave has, by its word; 0 before its second report.
    pub fn acked(&self) -> u64 {
        self.acked.unwrap_or(0)
    }

    /// The last report that counted, if there was one.
    pub fn reported(&self) -> Option<u64> {
        self.acked
    }

    pub fn behind_since(&self) -> Option<Instant> {
        self.behind_since
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Its first report was valid and it is not closed: it counts as a slave.
    pub fn is_live(&self) -> bool {
        !self.is_closed() && self.state != State::AwaitRequest
    }

    pub fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_read_at)
    }

    /// State changes since the last call.
    pub fn take_transitions(&mut self) -> Vec<Transition> {
        std::mem::take(&mut self.transitions)
    }

    /// Reads what the slave sent. The second value: there may be more.
    pub fn read(
        &mut self,
        socket: &mut impl Read,
        range: LogRange,
        file_size: u64,
        now: Instant,
    ) -> (Heard, bool) {
        let reports = match self.reader.read(socket) {
            Ok(reports) => reports,
            Err(error) => {
                self.close(Reason::Gone, error.to_string(), now);
                return (Heard::Nothing, false);
            }
        };
        if reports.any {
            self.last_read_at = now;
        }
        let heard = match reports.last {
            Some(received) => self.on_report(received, range, file_size, now),
            None => Heard::Nothing,
        };
        if reports.ended {
            self.close(
                Reason::Gone,
                "the slave closed the connection".to_string(),
                now,
            );
        }
        (heard, reports.more && !self.is_closed())
    }

    /// The slave says that its log ends at `received`.
    pub fn on_report(
        &mut self,
        received: i64,
        range: LogRange,
        file_size: u64,
        now: Instant,
    ) -> Heard {
        let Ok(received) = u64::try_from(received) else {
            self.close(Reason::BadReport, format!("a report of {received}"), now);
            return Heard::Nothing;
        };
        match self.state {
            State::AwaitRequest => self.on_request(received, range, file_size, now),
            State::Closed(_) => Heard::Nothing,
            _ => self.on_ack(received, now),
        }
    }

    /// The first report acknowledges nothing: anyone can send eight bytes. Later ones count, up
    /// to what this connection was sent.
    fn on_request(
        &mut self,
        received: u64,
        range: LogRange,
        file_size: u64,
        now: Instant,
    ) -> Heard {
        let LogRange { start, end } = range;
        if received > end {
            let cause = format!("its log ends at {received}, ours at {end}");
            self.close(Reason::AheadOfMaster, cause, now);
            return Heard::Nothing;
        }
        if received != 0 && received < start {
            let cause = format!("its log ends at {received}, ours begins at {start}");
            self.close(Reason::OffsetGone, cause, now);
            return Heard::Nothing;
        }
        let empty = received == 0;
        let from = match self.rules.empty_slave_from {
            _ if !empty => received,
            EmptySlaveFrom::Min => start,
            EmptySlaveFrom::LastFile => end - end % file_size,
        };
        self.requested = Request { start: from, empty };
        self.writer = WriteHandler::starting_at(from);
        // A slave that has everything learns soon that it continues us, and then acknowledges:
        // its first report could not.
        let early = self.rules.heartbeat.saturating_sub(FIRST_HEARTBEAT);
        self.last_write_at = now.checked_sub(early).unwrap_or(now);
        let what = if empty { ", it is empty" } else { "" };
        let cause = format!("from {from}{what}; we end at {end}");
        self.enter(State::CatchingUp, now, cause);
        Heard::Request(self.requested)
    }

    fn on_ack(&mut self, received: u64, now: Instant) -> Heard {
        let sent = self.sent();
        if received > sent {
            let cause = format!("it reports {received} and was sent {sent}");
            self.close(Reason::AheadOfMaster, cause, now);
            return Heard::Nothing;
        }
        if received < self.acked() {
            let cause = format!("it reports {received} after {}", self.acked());
            self.close(Reason::BadReport, cause, now);
            return Heard::Nothing;
        }
        if self.acked == Some(received) {
            return Heard::Nothing;
        }
        self.acked = Some(received);
        Heard::Acked(received)
    }

    /// Hands the socket what it takes, within a turn's bound.
    pub fn write<L>(&mut self, socket: &mut impl Write, log: &L, now: Instant) -> Output
    where
        L: Log<Chunk = C>,
    {
        for _ in 0..WRITES_PER_TURN {
            self.fill(log, now);
            if self.writer.is_idle() {
                return Output::Drained;
            }
            match self.writer.write(socket) {
                Ok(bytes) => self.on_written(bytes, now),
                Err(error) => self.close(Reason::Gone, error.to_string(), now),
            }
            if self.is_closed() {
                return Output::Drained;
            }
            if !self.writer.is_idle() {
                // It took less than all, so it is full, and tells when it no longer is.
                return Output::Blocked;
            }
        }
        Output::More
    }

    /// There is something to write now.
    pub fn has_output(&self, log: &impl Log, now: Instant) -> bool {
        let heartbeat_due = now >= self.last_write_at + self.rules.heartbeat;
        let behind = self.writer.next() < log.readable().get();
        self.is_live() && (!self.writer.is_idle() || behind || heartbeat_due)
    }

    fn on_written(&mut self, bytes: usize, now: Instant) {
        if bytes == 0 {
            return;
        }
        self.last_write_at = now;
        if self.state == State::Stalled {
            self.enter(State::CatchingUp, now, "it reads again".to_string());
        }
    }

    /// Queues what the log has for the slave; a heartbeat if it has nothing and one is due.
    fn fill<L: Log<Chunk = C>>(&mut self, log: &L, now: Instant) {
        if !self.is_live() {
            return;
        }
        let readable = log.readable().get();
        while self.writer.has_room() && self.writer.next() < readable {
            let next = self.writer.next();
            let Some(body) = log.read(next, self.rules.transfer_body_max) else {
                // Heartbeats for ever would look healthy; the slave hears about it instead.
                let cause = format!("the log can no longer be read at {next}");
                return self.close(Reason::OffsetGone, cause, now);
            };
            let end = next + body.len() as u64;
            assert!(end <= log.end(), "a slave is sent only what is in the log");
            let same_file = next / log.file_size() == (end - 1) / log.file_size();
            assert!(same_file, "a transfer stays within one file");
            self.writer.transfer(body);
        }
        let quiet_for = now.saturating_duration_since(self.last_write_at);
        if self.writer.is_idle() && quiet_for >= self.rules.heartbeat {
            self.writer.heartbeat();
        }
        self.follow(readable, now);
    }

    /// Keeps the state in step with how far the slave is.
    fn follow(&mut self, readable: u64, now: Instant) {
        self.behind_since = match self.behind_since {
            _ if self.acked() >= readable => None,
            None => Some(now),
            since => since,
        };
        let behind = readable.saturating_sub(self.sent());
        match self.state {
            State::CatchingUp if self.writer.next() >= readable => {
                self.enter(State::Streaming, now, format!("at {readable}"));
            }
            State::Streaming if behind > self.rules.fallbehind_max => {
                self.enter(State::CatchingUp, now, format!("{behind} bytes behind"));
            }
            _ => {}
        }
    }

    /// Ends what was silent for too long, and sees whether output moves.
    pub fn on_tick(&mut self, now: Instant) {
        if self.is_closed() {
            return;
        }
        if now >= self.silent_at() {
            let cause = format!("silent for {:?}", self.silent_for(now));
            return self.close(Reason::Silent, cause, now);
        }
        let stalled = !self.writer.is_idle() && now >= self.last_write_at + self.rules.heartbeat;
        if stalled && self.state != State::Stalled {
            let cause = format!("it takes nothing after {}", self.sent());
            self.enter(State::Stalled, now, cause);
        }
    }

    /// When `on_tick` or `write` has something to do though nothing happens.
    pub fn next_deadline(&self) -> Instant {
        let output = self.last_write_at + self.rules.heartbeat;
        match self.state {
            State::AwaitRequest | State::Stalled => self.silent_at(),
            _ => self.silent_at().min(output),
        }
    }

    fn silent_at(&self) -> Instant {
        let patience = match self.state {
            State::AwaitRequest => self.rules.first_report,
            _ => self.rules.housekeeping,
        };
        self.last_read_at + patience
    }

    /// Two connections from one address are one slave that came back, if nothing is heard of the
    /// older one: a slave reports at each heartbeat interval, an original one up to a second
    /// later. Where both report they are two slaves on one host.
    pub fn yield_to(&mut self, newer: &Connection<C>, now: Instant) {
        let silent = self.silent_for(now) > self.rules.heartbeat * 3 / 2;
        if silent && self.is_live() && self.peer.ip() == newer.peer.ip() {
            let cause = format!("silent, and {} came from its address", newer.peer);
            self.close(Reason::Silent, cause, now);
        }
    }

    pub fn close(&mut self, reason: Reason, cause: String, now: Instant) {
        if !self.is_closed() {
            self.enter(State::Closed(reason), now, cause);
        }
    }

    /// The only place that changes the state.
    fn enter(&mut self, to: State, now: Instant, cause: String) {
        let from = std::mem::replace(&mut self.state, to);
        self.since = now;
        self.transitions.push(Transition { from, to, cause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ha::memory_log::MemoryLog;
    use crate::ha::pipe::Pipe;
    use crate::ha::wire::{TRANSFER_HEADER_SIZE, TransferHeader};

    const FILE: u64 = 4096;
    const SECOND: Duration = Duration::from_secs(1);

    const RULES: Rules = Rules {
        heartbeat: Duration::from_secs(5),
        housekeeping: Duration::from_secs(20),
        first_report: Duration::from_secs(20),
        transfer_body_max: 1000,
        empty_slave_from: EmptySlaveFrom::Min,
        fallbehind_max: 1 << 20,
    };

    /// A master's log of a few files, a connection to it, and a clock.
    struct World {
        log: MemoryLog,
        core: Connection<Vec<u8>>,
        socket: Pipe,
        now: Instant,
    }

    fn world(rules: Rules) -> World {
        let log = MemoryLog::new(FILE);
        (0..40).for_each(|n| {
            log.append_message(&[n; 200]);
        });
        let now = Instant::now();
        World {
            log,
            core: connection(rules, 40112, now),
            socket: Pipe::open(),
            now,
        }
    }

    fn connection(rules: Rules, port: u16, now: Instant) -> Connection<Vec<u8>> {
        Connection::new(
            port.into(),
            SocketAddr::from(([10, 0, 0, 2], port)),
            rules,
            now,
        )
    }

    impl World {
        fn hear(&mut self, bytes: &[u8]) -> Heard {
            self.socket.input.extend(bytes);
            let range = LogRange::of(&self.log);
            self.core.read(&mut self.socket, range, FILE, self.now).0
        }

        fn report(&mut self, received: i64) -> Heard {
            self.hear(&received.to_be_bytes())
        }

        /// Writes all there is; the transfers that went out.
        fn transfers(&mut self) -> Vec<(i64, Vec<u8>)> {
            while self.core.write(&mut self.socket, &self.log, self.now) == Output::More {}
            units(&std::mem::take(&mut self.socket.output))
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
            self.core.on_tick(self.now);
        }
    }

    fn units(mut wire: &[u8]) -> Vec<(i64, Vec<u8>)> {
        let mut units = Vec::new();
        while !wire.is_empty() {
            let header = TransferHeader::decode(wire).expect("a whole header");
            let (body, rest) = wire[TRANSFER_HEADER_SIZE..].split_at(header.length as usize);
            units.push((header.start, body.to_vec()));
            wire = rest;
        }
        units
    }

    fn request(start: u64, empty: bool) -> Heard {
        Heard::Request(Request { start, empty })
    }

    #[test]
    fn nothing_is_sent_before_the_first_complete_report() {
        // C-1: a 4.9 slave is silent for six seconds.
        let mut w = world(RULES);
        assert_eq!(w.transfers(), []);
        w.pass(6 * SECOND);
        assert_eq!(w.hear(&[0, 0, 0]), Heard::Nothing);
        assert_eq!(w.transfers(), []);
        assert_eq!(w.core.state(), State::AwaitRequest);
        assert_eq!(w.hear(&[0; 5]), request(0, true));
        assert_ne!(w.transfers(), []);
    }

    #[test]
    fn transfers_are_the_log_in_order_bounded_and_within_files() {
        // C-6, C-7, C-8.
        let mut w = world(RULES);
        let start = 1234;
        assert_eq!(w.report(start), request(start as u64, false));
        let mut got = Vec::new();
        for (at, body) in w.transfers() {
            assert_eq!(at as usize, start as usize + got.len());
            assert!(!body.is_empty() && body.len() <= RULES.transfer_body_max);
            assert_eq!(at as u64 / FILE, (at as u64 + body.len() as u64 - 1) / FILE);
            got.extend(body);
        }
        assert_eq!(got, w.log.bytes()[start as usize..]);
        assert_eq!(w.core.state(), State::Streaming);
    }

    #[test]
    fn an_empty_slave_gets_the_first_file_or_as_in_java_the_last_one() {
        // DECISIONS 8; C-3.
        let mut w = world(RULES);
        w.log.delete_before(FILE);
        assert_eq!(w.report(0), request(FILE, true));
        assert_eq!(w.transfers()[0].0 as u64, FILE);
        let mut w = world(Rules {
            empty_slave_from: EmptySlaveFrom::LastFile,
            ..RULES
        });
        let last = w.log.end() - w.log.end() % FILE;
        assert_eq!(w.report(0), request(last, true));
        assert_eq!(w.transfers()[0].0 as u64, last);
    }

    #[test]
    fn at_a_files_edge_the_first_unit_is_a_heartbeat_there() {
        // C-4.
        let mut w = world(Rules {
            empty_slave_from: EmptySlaveFrom::LastFile,
            ..RULES
        });
        w.log = MemoryLog::starting_at(FILE, 3 * FILE);
        assert_eq!(w.report(0), request(3 * FILE, true));
        w.pass(FIRST_HEARTBEAT);
        assert_eq!(w.transfers(), [(3 * FILE as i64, vec![])]);
        w.log.append_message(b"next");
        assert_eq!(w.transfers()[0].0 as u64, 3 * FILE);
    }

    #[test]
    fn the_first_report_is_a_request_and_a_later_one_counts() {
        // J1, W-6, DECISIONS 1.
        let mut w = world(RULES);
        let end = w.log.end();
        assert_eq!(w.report(end as i64), request(end, false));
        assert_eq!(w.core.acked(), 0);
        // It is answered soon, so that the slave can acknowledge.
        w.pass(FIRST_HEARTBEAT);
        assert_eq!(w.transfers(), [(end as i64, vec![])]);
        assert_eq!(w.report(end as i64), Heard::Acked(end));
        assert_eq!(w.report(end as i64), Heard::Nothing);
    }

    #[test]
    fn a_report_beyond_what_was_sent_closes_and_does_not_count() {
        // J1, C-15, B19: the bytes are in the log, but this connection was not sent them.
        let mut w = world(RULES);
        w.report(1000);
        w.socket.room = TRANSFER_HEADER_SIZE + 500;
        w.core.write(&mut w.socket, &w.log, w.now);
        assert_eq!(w.core.sent(), 1500);
        assert_eq!(w.report(1500), Heard::Acked(1500));
        assert_eq!(w.report(1501), Heard::Nothing);
        assert_eq!(w.core.state(), State::Closed(Reason::AheadOfMaster));
        assert_eq!(w.core.acked(), 1500);
    }

    #[test]
    fn a_report_that_falls_or_is_negative_closes() {
        for bad in [1499, 0, -1, i64::MIN] {
            let mut w = world(RULES);
            w.report(1000);
            w.transfers();
            assert_eq!(w.report(1500), Heard::Acked(1500));
            assert_eq!(w.report(bad), Heard::Nothing);
            assert_eq!(w.core.state(), State::Closed(Reason::BadReport), "{bad}");
        }
    }

    #[test]
    fn a_request_outside_the_log_is_refused_at_once_and_named() {
        // J8, C-13, C-14, B21.
        let end = world(RULES).log.end() as i64;
        for (first, reason) in [
            (end + 1, Reason::AheadOfMaster),
            (i64::MAX, Reason::AheadOfMaster),
            (1, Reason::OffsetGone),
            (FILE as i64 - 1, Reason::OffsetGone),
            (-1, Reason::BadReport),
            (i64::MIN, Reason::BadReport),
        ] {
            let mut w = world(RULES);
            w.log.delete_before(FILE);
            assert_eq!(w.report(first), Heard::Nothing);
            assert_eq!(w.core.state(), State::Closed(reason), "{first}");
            assert_eq!(w.transfers(), []);
        }
    }

    #[test]
    fn stray_bytes_are_no_slave() {
        // J1's list.
        let strays: [&[u8]; 4] = [
            &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x12, 0x9a, 0x55, 0x01, 0x77, 0xee, 0x03, 0x9c],
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            &[
                0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0x55, 0x55, 0x55, 0x55, 0x55,
            ],
        ];
        for stray in strays {
            let mut w = world(RULES);
            assert_eq!(w.hear(stray), Heard::Nothing);
            assert!(w.core.is_closed(), "{stray:02x?}");
        }
    }

    #[test]
    fn silence_closes_before_and_after_the_first_report() {
        // C-11, C-1.
        let mut w = world(RULES);
        w.pass(20 * SECOND - Duration::from_millis(1));
        assert_eq!(w.core.state(), State::AwaitRequest);
        w.pass(Duration::from_millis(1));
        assert_eq!(w.core.state(), State::Closed(Reason::Silent));
        let mut w = world(RULES);
        w.report(1000);
        w.transfers();
        w.pass(19 * SECOND);
        assert!(w.core.is_live());
        w.report(1500);
        w.pass(19 * SECOND);
        assert!(w.core.is_live());
        w.pass(SECOND);
        assert_eq!(w.core.state(), State::Closed(Reason::Silent));
    }

    #[test]
    fn a_quiet_link_has_a_heartbeat_each_interval_after_the_last_byte() {
        // C-9, J9.
        let mut w = world(RULES);
        let end = w.log.end() as i64;
        w.report(1000);
        w.transfers();
        for _ in 0..10 {
            assert_eq!(w.core.next_deadline(), w.now + 5 * SECOND);
            w.pass(5 * SECOND - Duration::from_millis(1));
            assert_eq!(w.transfers(), []);
            w.pass(Duration::from_millis(1));
            assert_eq!(w.transfers(), [(end, vec![])]);
            w.report(end);
        }
        assert_eq!(w.core.state(), State::Streaming);
    }

    #[test]
    fn output_that_does_not_move_is_a_stall_and_goes_on_where_it_stood() {
        // C-10, B134.
        let mut w = world(RULES);
        w.report(0);
        w.socket.room = 777;
        assert_eq!(w.core.write(&mut w.socket, &w.log, w.now), Output::Blocked);
        assert_eq!(w.core.state(), State::CatchingUp);
        w.pass(5 * SECOND);
        assert_eq!(w.core.state(), State::Stalled);
        w.socket.room = usize::MAX;
        let got: Vec<u8> = w.transfers().into_iter().flat_map(|unit| unit.1).collect();
        assert_eq!(got, w.log.bytes());
        assert_eq!(w.core.state(), State::Streaming);
    }

    #[test]
    fn a_file_deleted_under_a_slow_slave_ends_its_connection() {
        // B21: no heartbeats for ever.
        let mut w = world(RULES);
        w.report(0);
        w.socket.room = 100;
        w.core.write(&mut w.socket, &w.log, w.now);
        w.log.delete_before(2 * FILE);
        while !w.core.is_closed() {
            w.socket.room = 1 << 20;
            w.core.write(&mut w.socket, &w.log, w.now);
        }
        assert_eq!(w.core.state(), State::Closed(Reason::OffsetGone));
    }

    #[test]
    fn what_is_not_readable_yet_is_not_sent() {
        // DECISIONS 5: under SYNC_FLUSH the log's end is not flushed yet.
        let mut w = world(RULES);
        w.log.readable().reset(3000);
        w.report(2000);
        let sent: usize = w.transfers().iter().map(|unit| unit.1.len()).sum();
        assert_eq!(sent, 1000);
        w.log.wake();
        assert_eq!(w.report(3001), Heard::Nothing);
        assert_eq!(w.core.state(), State::Closed(Reason::AheadOfMaster));
    }

    #[test]
    fn the_end_of_the_stream_closes_after_its_last_report() {
        let mut w = world(RULES);
        w.report(1000);
        w.transfers();
        w.socket.ended = true;
        assert_eq!(w.report(1500), Heard::Acked(1500));
        assert_eq!(w.core.state(), State::Closed(Reason::Gone));
    }

    #[test]
    fn a_silent_connection_yields_to_a_newer_one_from_its_address_and_a_live_one_does_not() {
        // C-17, W-11, DECISIONS 10.
        let mut w = world(RULES);
        w.report(1000);
        w.now += 7 * SECOND;
        let newer = connection(RULES, 40113, w.now);
        w.core.yield_to(&newer, w.now);
        assert!(w.core.is_live());
        w.now += SECOND;
        w.core.yield_to(&newer, w.now);
        assert_eq!(w.core.state(), State::Closed(Reason::Silent));
    }
}
