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
    /// End of the slave's log, by its reports after the first; 0 until then.
    acked: u64,
    last_read_at: Instant,
    last_write_at: Instant,
    /// When the slave began to be behind; `None` while it has everything.
    behind_since: Option<Instant>,
    transitions: Vec<Transition>,
}

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
            acked: 0,
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

    pub fn acked(&self) -> u64 {
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
        // A slave that has everything learns at once that it continues us, and then
        // acknowledges: its first report could not. So the heartbeat is due now.
        self.last_write_at = now.checked_sub(self.rules.heartbeat).unwrap_or(now);
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
        if received < self.acked {
            let cause = format!("it reports {received} after {}", self.acked);
            self.close(Reason::BadReport, cause, now);
            return Heard::Nothing;
        }
        if received == self.acked {
            return Heard::Nothing;
        }
        self.acked = received;
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
            _ if self.acked >= readable => None,
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
