//! The slave's loop around `replica`: finds the master, connects, and keeps one link, in the
//! thread `ha-client`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

use super::byte_log::{AppendError, Log};
use super::config::HaConfig;
use super::intake::Flawed;
use super::meter::Meter;
use super::repeats::{Repeats, and_more};
use super::replica::{Phase, Refusal, Replica};
use super::socket;
use crate::base::sys;

const WAKER: Token = Token(0);
const LINK: Token = Token(1);
/// One read. Eight transfers of the usual size, and what a core's cache holds.
const READ_SIZE: usize = 256 * 1024;
/// As long as an original slave waits for its connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// The pause before the next attempt doubles between these. A master that comes back shall not
/// answer its producers SLAVE_NOT_AVAILABLE for longer than a moment.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a slave without a master says so.
const REMIND: Duration = Duration::from_secs(60);
/// `stop` waits this long: the thread may be inside a name look-up, which nothing can interrupt.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// A running slave. It begins without a master unless `set_master` gave it one.
pub struct SlaveService {
    shared: Arc<Shared>,
    waker: Waker,
    ended: Mutex<Receiver<()>>,
}

struct Shared {
    stop: AtomicBool,
    master: Mutex<Option<String>>,
    board: Mutex<LinkFigures>,
}

/// The link, for `status` and metrics.
#[derive(Clone, Debug)]
pub struct LinkFigures {
    /// HA address of the master, as it was given.
    pub master: Option<String>,
    pub state: LinkState,
    /// When the state was entered.
    pub since: Instant,
    /// End of what came, an incomplete last record included.
    pub received: u64,
    /// The last report; `None` before the first connection.
    pub reported: Option<u64>,
    /// Bytes that the master is known to have and our log has not. `None` while catching up or
    /// without a link: the master's end is not told on this channel.
    pub lag_bytes: Option<u64>,
    pub last_error: Option<String>,
    pub last_read_at: Option<Instant>,
    pub last_write_at: Option<Instant>,
    pub bytes_per_second: f64,
    pub connections: u64,
    /// Records taken over with a body checksum that is wrong on the master too.
    pub damaged_records: u64,
}

/// Where the link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    NoMaster,
    Connecting,
    Requesting,
    CatchingUp,
    Streaming,
    Stalled,
    /// The master closed as soon as it heard where our log ends.
    Refused,
    DiskFull,
    Stopped,
}

impl LinkState {
    /// As in `status`, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            LinkState::NoMaster => "no-master",
            LinkState::Connecting => "connecting",
            LinkState::Requesting => "requesting",
            LinkState::CatchingUp => "catching-up",
            LinkState::Streaming => "streaming",
            LinkState::Stalled => "stalled",
            LinkState::Refused => "refused",
            LinkState::DiskFull => "disk-full",
            LinkState::Stopped => "stopped",
        }
    }
}

impl From<Phase> for LinkState {
    fn from(phase: Phase) -> LinkState {
        match phase {
            Phase::Requesting => LinkState::Requesting,
            Phase::CatchingUp => LinkState::CatchingUp,
            Phase::Streaming => LinkState::Streaming,
            Phase::Stalled => LinkState::Stalled,
        }
    }
}

impl SlaveService {
    /// Starts the thread.
    pub fn start<L: Log>(config: &HaConfig, log: Arc<L>) -> io::Result<SlaveService> {
        let now = Instant::now();
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            master: Mutex::new(None),
            board: Mutex::new(LinkFigures::new(now)),
        });
        let mut client = Client {
            patience: config.housekeeping,
            replica: Replica::new(config.timing(), now),
            log,
            shared: shared.clone(),
            poll,
            events: Events::with_capacity(8),
            buffer: vec![0; READ_SIZE],
            master: None,
            link: None,
            state: LinkState::NoMaster,
            pause: PAUSE_MIN,
            next_attempt: now,
            attempts: 0,
            meter: Meter::new(now),
            repeats: Repeats::default(),
        };
        let (end, ended) = mpsc::channel();
        sys::spawn("ha-client", move || {
            client.run();
            // Nobody may be waiting any more, which is fine.
            let _ = end.send(());
        })?;
        Ok(SlaveService {
            shared,
            waker,
            ended: Mutex::new(ended),
        })
    }

    /// The master's HA address, `host:port`. Another one than before ends the link at once
    /// (C-52); `None` ends it and waits.
    pub fn set_master(&self, address: Option<String>) {
        *lock(&self.shared.master) = address;
        self.wake();
    }

    pub fn figures(&self) -> LinkFigures {
        lock(&self.shared.board).clone()
    }

    /// Closes the link, which the master sees at once (B132), and ends the thread.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.wake();
        if lock(&self.ended).recv_timeout(STOP_PATIENCE).is_err() {
            log::warn!("the slave's thread is still looking up a name; it is left behind");
        }
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            log::error!("the ha-client thread cannot be woken: {error}");
        }
    }
}

impl LinkFigures {
    fn new(now: Instant) -> LinkFigures {
        LinkFigures {
            master: None,
            state: LinkState::NoMaster,
            since: now,
            received: 0,
            reported: None,
            lag_bytes: None,
            last_error: None,
            last_read_at: None,
            last_write_at: None,
            bytes_per_second: 0.0,
            connections: 0,
            damaged_records: 0,
        }
    }
}

/// What the thread owns.
struct Client<L: Log> {
    patience: Duration,
    log: Arc<L>,
    replica: Replica,
    shared: Arc<Shared>,
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
    master: Option<String>,
    link: Option<Link>,
    state: LinkState,
    pause: Duration,
    next_attempt: Instant,
    attempts: usize,
    meter: Meter,
    repeats: Repeats<(LinkState, String)>,
}

struct Link {
    socket: TcpStream,
    peer: SocketAddr,
    begun_at: Instant,
    connected: bool,
    readable: bool,
    /// The master closed its side: read on until the end, whatever a read returns.
    ending: bool,
}

/// Why a link ended.
enum LinkError {
    Connect(SocketAddr, io::Error),
    Ended,
    Broken(io::Error),
    Refusal(Refusal),
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkError::Connect(peer, error) => write!(f, "cannot connect to {peer}: {error}"),
            LinkError::Ended => f.write_str("the master closed the connection"),
            LinkError::Broken(error) => write!(f, "connection to the master broke: {error}"),
            LinkError::Refusal(refusal) => write!(f, "{refusal}"),
        }
    }
}

impl From<Refusal> for LinkError {
    fn from(refusal: Refusal) -> LinkError {
        LinkError::Refusal(refusal)
    }
}

impl<L: Log> Client<L> {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.follow_address(Instant::now());
            self.attempt(Instant::now());
            self.publish(Instant::now());
            self.sleep().expect("the event loop's poll works");
            if self.link.is_some()
                && let Err(error) = self.turn(Instant::now())
            {
                self.end_link(error, Instant::now());
            }
        }
        self.link = None;
        self.enter(LinkState::Stopped, Instant::now(), "the broker stops");
        self.publish(Instant::now());
    }

    /// One turn of the link. The slave's replication path is here, in order.
    fn turn(&mut self, now: Instant) -> Result<(), LinkError> {
        if !self.finish_connecting(now)? {
            return Ok(());
        }
        // 1. Read what came, at most one buffer.
        let size = self.read()?;
        let before = self.log.end();
        let bytes = &self.buffer[..size];
        let mut taken = Ok(());
        if size > 0 {
            // 2. Cut it into units; does each continue our log?
            // 3. Hold what is incomplete, check whole records.
            // 4. Append them, in one piece a file.
            taken = self.replica.on_bytes(bytes, &*self.log, now);
        }
        // 5. Report the end of the last whole record; on a quiet link now and then.
        if taken.is_ok() {
            taken = self.replica.on_tick(&*self.log, now);
        }
        let reported = self.write_reports(now);
        // 6. Wake who follows the log: dispatch, flush.
        if self.log.end() > before {
            self.log.wake();
            self.on_progress(size, now);
        }
        taken?;
        reported?;
        self.enter_phase(now);
        Ok(())
    }

    /// Ends the link when the address changed, before anything else comes over it.
    fn follow_address(&mut self, now: Instant) {
        let address = lock(&self.shared.master).clone();
        if address != self.master {
            let before = self.master.as_deref().unwrap_or("none").to_string();
            self.link = None;
            self.master = address;
            self.pause = PAUSE_MIN;
            self.next_attempt = now;
            let state = match self.master {
                Some(_) => LinkState::Connecting,
                None => LinkState::NoMaster,
            };
            self.enter(state, now, &format!("the master's address was {before}"));
        }
        if self.master.is_none() {
            let kind = (LinkState::NoMaster, String::new());
            if self.repeats.pass(kind, now).is_some() {
                log::warn!("not replicating: no master's HA address is known");
            }
        }
    }

    /// Begins to connect when it is time. Names are looked up each time: they may move.
    fn attempt(&mut self, now: Instant) {
        let Some(master) = self.master.clone() else {
            return;
        };
        if self.link.is_some() || now < self.next_attempt {
            return;
        }
        self.attempts += 1;
        match resolve(&master, self.attempts) {
            Err(error) => self.fail(LinkState::Connecting, &error.to_string(), now),
            Ok(peer) => match self.connect(peer, now) {
                Ok(link) => self.link = Some(link),
                Err(error) => {
                    let error = LinkError::Connect(peer, error);
                    self.fail(LinkState::Connecting, &error.to_string(), now);
                }
            },
        }
    }

    fn connect(&self, peer: SocketAddr, now: Instant) -> io::Result<Link> {
        let mut socket = TcpStream::connect(peer)?;
        let interests = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut socket, LINK, interests)?;
        Ok(Link {
            socket,
            peer,
            begun_at: now,
            connected: false,
            readable: false,
            ending: false,
        })
    }

    fn sleep(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let until = match &self.link {
            Some(link) if link.connected && (link.readable || link.ending) => now,
            Some(link) if link.connected => self.replica.next_deadline(),
            Some(link) => link.begun_at + CONNECT_PATIENCE,
            None if self.master.is_some() => self.next_attempt,
            None => now + REMIND,
        };
        let left = until.saturating_duration_since(now);
        if let Err(error) = self.poll.poll(&mut self.events, Some(left))
            && error.kind() != io::ErrorKind::Interrupted
        {
            return Err(error);
        }
        for event in self.events.iter().filter(|event| event.token() == LINK) {
            if let Some(link) = &mut self.link {
                link.readable |= event.is_readable();
                link.ending |= event.is_read_closed() || event.is_error();
            }
        }
        Ok(())
    }

    /// True once the link is there. Then the first report is queued.
    fn finish_connecting(&mut self, now: Instant) -> Result<bool, LinkError> {
        let link = self.link.as_mut().expect("turn is called with a link");
        if link.connected {
            return Ok(true);
        }
        let peer = link.peer;
        let failed = |error| LinkError::Connect(peer, error);
        if let Some(error) = link.socket.take_error().map_err(failed)? {
            return Err(failed(error));
        }
        match link.socket.peer_addr() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                let late = now >= link.begun_at + CONNECT_PATIENCE;
                return match late {
                    true => Err(failed(io::ErrorKind::TimedOut.into())),
                    false => Ok(false),
                };
            }
            Err(error) => return Err(failed(error)),
        }
        socket::prepare(&link.socket, self.patience).map_err(failed)?;
        link.connected = true;
        self.replica.on_connect(&*self.log, now);
        self.meter = Meter::new(now);
        lock(&self.shared.board).connections += 1;
        let from = self.replica.reported();
        self.enter(LinkState::Requesting, now, &format!("{peer}, from {from}"));
        Ok(true)
    }

    /// Bytes that are in the buffer now.
    fn read(&mut self) -> Result<usize, LinkError> {
        let link = self.link.as_mut().expect("turn is called with a link");
        if !link.readable && !link.ending {
            return Ok(0);
        }
        loop {
            match link.socket.read(&mut self.buffer) {
                Ok(0) => return Err(LinkError::Ended),
                Ok(size) => {
                    // A short read has emptied the socket; the next bytes make a new event.
                    link.readable = size == self.buffer.len();
                    return Ok(size);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    link.readable = false;
                    link.ending = false;
                    return Ok(0);
                }
                Err(error) => return Err(LinkError::Broken(error)),
            }
        }
    }

    fn write_reports(&mut self, now: Instant) -> Result<(), LinkError> {
        let link = self.link.as_mut().expect("turn is called with a link");
        while !self.replica.output().is_empty() {
            match link.socket.write(self.replica.output()) {
                Ok(written) => {
                    self.replica.on_written(written);
                    lock(&self.shared.board).last_write_at = Some(now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The rest goes out when the socket tells that it has room.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(LinkError::Broken(error)),
            }
        }
        Ok(())
    }

    /// Our log grew, so this master is worth coming back to at once.
    fn on_progress(&mut self, size: usize, now: Instant) {
        self.pause = PAUSE_MIN;
        self.meter.add(size as u64, now);
    }

    fn enter_phase(&mut self, now: Instant) {
        let state = LinkState::from(self.replica.phase());
        let at = format_args!("log end {}", self.log.end()).to_string();
        self.enter(state, now, &at);
    }

    fn end_link(&mut self, error: LinkError, now: Instant) {
        let refused = matches!(error, LinkError::Ended) && self.state == LinkState::Requesting;
        let state = match &error {
            LinkError::Refusal(Refusal::Flawed(Flawed::Append(AppendError::Full(_)))) => {
                LinkState::DiskFull
            }
            _ if refused => LinkState::Refused,
            _ => LinkState::Connecting,
        };
        let mut why = error.to_string();
        if refused {
            let end = self.replica.reported();
            why = format!(
                "{why} after our report {end}: its log may end before that, or begin after it"
            );
        }
        self.fail(state, &why, now);
    }

    /// No link now; the next attempt waits longer each time.
    fn fail(&mut self, state: LinkState, why: &str, now: Instant) {
        self.link = None;
        self.next_attempt = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        lock(&self.shared.board).last_error = Some(why.to_string());
        let kind = (state, why.to_string());
        if let Some(held_back) = self.repeats.pass(kind, now) {
            let master = self.master.as_deref().unwrap_or("none");
            let (from, more) = (self.state, and_more(held_back));
            log::warn!("link to {master}: {from:?} -> {state:?}: {why}{more}");
        }
        self.set_state(state, now);
    }

    fn enter(&mut self, to: LinkState, now: Instant, cause: &str) {
        let from = self.state;
        if from == to {
            return;
        }
        self.set_state(to, now);
        let master = self.master.as_deref().unwrap_or("none");
        match self.repeats.pass((to, String::new()), now) {
            Some(held_back) => {
                let more = and_more(held_back);
                log::info!("link to {master}: {from:?} -> {to:?}: {cause}{more}");
            }
            None => log::debug!("link to {master}: {from:?} -> {to:?}: {cause}"),
        }
    }

    /// The only place that changes the state.
    fn set_state(&mut self, to: LinkState, now: Instant) {
        if self.state != to {
            self.state = to;
            lock(&self.shared.board).since = now;
        }
    }

    fn publish(&mut self, now: Instant) {
        let mut board = lock(&self.shared.board);
        if board.master != self.master {
            board.master.clone_from(&self.master);
        }
        board.state = self.state;
        board.received = self.replica.received().max(self.log.end());
        board.reported = (board.connections > 0).then(|| self.replica.reported());
        board.lag_bytes = match self.state {
            LinkState::Streaming => Some(self.replica.received().saturating_sub(self.log.end())),
            _ => None,
        };
        board.last_read_at = self.replica.last_read_at();
        board.bytes_per_second = self.meter.rate(now);
        board.damaged_records = self.replica.carried();
    }
}

/// The address to try now: where a name has several, each attempt takes the next.
fn resolve(master: &str, attempt: usize) -> io::Result<SocketAddr> {
    let failed = |error| io::Error::other(format!("address {master} of the master: {error}"));
    let found: Vec<SocketAddr> = master.to_socket_addrs().map_err(failed)?.collect();
    match found.len() {
        0 => Err(io::Error::other(format!("{master} has no address"))),
        n => Ok(found[attempt % n]),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
