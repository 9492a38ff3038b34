//! The master's side around `connection`: the acceptor, the event loop and the clocks, in the
//! thread `ha`.
//!
//! A new append wakes the loop through the log's watermark; nothing is polled for. An idle loop
//! with slaves wakes for their reports and heartbeats, one without slaves not at all.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::byte_log::{Log, LogRange};
use super::config::HaConfig;
use super::connection::{Connection, Heard, Output, Reason, Rules, State, Transition};
use super::group_transfer::GroupTransfer;
use super::repeats::{Repeats, and_more};
use super::socket;
use crate::base::sys;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// Connection numbers start behind the two tokens above, and are never used twice.
const FIRST_CONNECTION: usize = 2;
/// Most connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// How long nothing is accepted after the system refused: descriptors come back with time (B130).
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// Sleep of a loop that has nothing to wait for.
const FOREVER: Duration = Duration::from_secs(3600);

/// A running HA port. Every broker has one; that of a slave serves slaves of its own, if any come.
pub struct MasterService {
    address: SocketAddr,
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    log_end: Box<dyn Fn() -> u64 + Send + Sync>,
    fallbehind_max: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// The loop sleeps, or is about to, and wants to hear of new bytes.
    armed: AtomicBool,
    board: Mutex<Vec<SlaveFigures>>,
}

/// One slave, for `status` and metrics.
#[derive(Clone, Copy, Debug)]
pub struct SlaveFigures {
    pub address: SocketAddr,
    pub state: State,
    /// Handed to the socket up to here.
    pub sent: u64,
    /// On the slave up to here; `None` before its second report.
    pub reported: Option<u64>,
    /// Readable bytes that the slave has not reported.
    pub lag_bytes: u64,
    /// Time since the slave had everything.
    pub lag: Duration,
    /// Near enough that synchronous sends wait for it.
    pub in_sync: bool,
    /// When the state was entered.
    pub since: Instant,
    behind_since: Option<Instant>,
}

impl MasterService {
    /// Listens and starts the thread `ha`.
    pub fn start<L: Log>(
        config: &HaConfig,
        log: Arc<L>,
        group: Arc<GroupTransfer>,
    ) -> io::Result<MasterService> {
        let mut listener = TcpListener::bind(config.bind)?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let shared = Arc::new(Shared::default());
        wake_on_append(&*log, &shared, &waker);
        let log_end = {
            let log = log.clone();
            Box::new(move || log.readable().get())
        };
        let mut service = Loop {
            rules: config.rules(),
            max_connections: config.max_connections,
            log,
            group,
            shared: shared.clone(),
            poll,
            events: Events::with_capacity(64),
            listener,
            accept_ready: true,
            accept_after: None,
            slaves: Vec::new(),
            next_token: FIRST_CONNECTION,
            repeats: Repeats::default(),
        };
        let thread = sys::spawn("ha", move || service.run())?;
        Ok(MasterService {
            address,
            shared,
            waker,
            log_end,
            fallbehind_max: config.fallbehind_max,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Where the HA port listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The slaves as they are now.
    pub fn figures(&self) -> Vec<SlaveFigures> {
        let now = Instant::now();
        let end = (self.log_end)();
        let mut slaves = lock(&self.shared.board).clone();
        for slave in &mut slaves {
            slave.lag_bytes = end.saturating_sub(slave.reported.unwrap_or(0));
            let behind = slave.behind_since.filter(|_| slave.lag_bytes > 0);
            slave.lag = behind.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            slave.in_sync &= slave.reported.is_some() && slave.lag_bytes < self.fallbehind_max;
        }
        slaves
    }

    /// Closes the port and all connections.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Err(error) = self.waker.wake() {
            log::error!("the ha thread cannot be woken: {error}");
            return;
        }
        if let Some(thread) = lock(&self.thread).take() {
            thread.join().expect("the ha thread does not panic");
        }
    }
}

/// Has the loop woken when the log grows, but only when it sleeps: one system call for all that
/// is appended while a turn runs.
fn wake_on_append<L: Log>(log: &L, shared: &Arc<Shared>, waker: &Arc<Waker>) {
    let (shared, waker) = (shared.clone(), waker.clone());
    log.readable().on_wake(move || {
        // Pairs with the fence in `sleep`: either it sees the new offset or this sees `armed`.
        fence(Ordering::SeqCst);
        if shared.armed.swap(false, Ordering::SeqCst)
            && let Err(error) = waker.wake()
        {
            log::error!("the ha thread cannot be woken: {error}");
        }
    });
}

/// What the thread owns.
struct Loop<L: Log> {
    rules: Rules,
    max_connections: usize,
    log: Arc<L>,
    group: Arc<GroupTransfer>,
    shared: Arc<Shared>,
    poll: Poll,
    events: Events,
    listener: TcpListener,
    accept_ready: bool,
    accept_after: Option<Instant>,
    /// In the order of their arrival.
    slaves: Vec<Slave<L::Chunk>>,
    next_token: usize,
    repeats: Repeats<(std::net::IpAddr, &'static str)>,
}

struct Slave<C> {
    token: Token,
    socket: TcpStream,
    core: Connection<C>,
    /// mio tells each edge once, so what a turn leaves unread stays marked for the next.
    readable: bool,
    writable: bool,
}

impl<L: Log> Loop<L> {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.turn().expect("the event loop's poll works");
        }
        for slave in &self.slaves {
            self.group.on_gone(slave.core.id());
        }
        lock(&self.shared.board).clear();
    }

    fn turn(&mut self) -> io::Result<()> {
        self.sleep()?;
        let now = Instant::now();
        for event in &self.events {
            match event.token() {
                LISTENER => self.accept_ready = true,
                WAKER => {} // only ends the sleep: every turn looks at the log
                token => {
                    let slave = self.slaves.iter_mut().find(|slave| slave.token == token);
                    if let Some(slave) = slave {
                        slave.readable |= event.is_readable();
                        slave.writable |= event.is_writable();
                    }
                }
            }
        }
        self.accept(now);
        self.read_reports(now);
        self.write_transfers(now);
        self.expire(now);
        self.forget_closed(now);
        self.publish();
        Ok(())
    }

    fn sleep(&mut self) -> io::Result<()> {
        // Without a slave that wants bytes, appends need not wake this thread.
        let wants = self.slaves.iter().any(|slave| slave.core.is_live());
        self.shared.armed.store(wants, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let now = Instant::now();
        let left = match self.has_work(now) {
            true => Duration::ZERO,
            false => self.next_deadline(now).saturating_duration_since(now),
        };
        let polled = self.poll.poll(&mut self.events, Some(left));
        self.shared.armed.store(false, Ordering::SeqCst);
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Something is marked and may be served now; one whose output is full may not.
    fn has_work(&self, now: Instant) -> bool {
        let slave_has = |slave: &Slave<L::Chunk>| {
            slave.readable || slave.writable && slave.core.has_output(&*self.log, now)
        };
        self.accept_ready && self.may_accept(now) || self.slaves.iter().any(slave_has)
    }

    fn next_deadline(&self, now: Instant) -> Instant {
        let slaves = self.slaves.iter().map(|slave| slave.core.next_deadline());
        let accept = self.accept_after.filter(|_| self.accept_ready);
        slaves.chain(accept).min().unwrap_or(now + FOREVER)
    }

    fn may_accept(&self, now: Instant) -> bool {
        self.accept_after.is_none_or(|after| now >= after)
    }

    fn accept(&mut self, now: Instant) {
        if !self.accept_ready || !self.may_accept(now) {
            return;
        }
        self.accept_after = None;
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((socket, peer)) => self.admit(socket, peer, now),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.accept_ready = false;
                        return;
                    }
                    // The peer was gone before we looked (B131).
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => {
                        self.accept_after = Some(now + ACCEPT_PAUSE);
                        return self.note_accept_error(error, now);
                    }
                },
            }
        }
    }

    fn note_accept_error(&mut self, error: io::Error, now: Instant) {
        let anybody = std::net::IpAddr::from([0, 0, 0, 0]);
        if let Some(held_back) = self.repeats.pass((anybody, "accept"), now) {
            let more = and_more(held_back);
            log::error!("HA port accepts nothing for {ACCEPT_PAUSE:?}: {error}{more}");
        }
    }

    /// Takes a connection in. At the limit the oldest one that has not said a word yet yields;
    /// slaves do not.
    fn admit(&mut self, mut socket: TcpStream, peer: SocketAddr, now: Instant) {
        let token = Token(self.next_token);
        self.next_token += 1;
        let mut core = Connection::new(token.0 as u64, peer, self.rules, now);
        if self.slaves.len() >= self.max_connections && !self.make_room(now) {
            let cause = format!("{} slaves are connected", self.max_connections);
            core.close(Reason::Refused, cause, now);
            return self.note(peer, &core.take_transitions(), now);
        }
        let interests = Interest::READABLE | Interest::WRITABLE;
        let ready = socket::prepare(&socket, self.rules.housekeeping)
            .and_then(|()| self.poll.registry().register(&mut socket, token, interests));
        if let Err(error) = ready {
            core.close(Reason::Gone, error.to_string(), now);
            return self.note(peer, &core.take_transitions(), now);
        }
        log::debug!("slave {peer}: connected");
        self.slaves.push(Slave {
            token,
            socket,
            core,
            readable: true,
            writable: true,
        });
    }

    fn make_room(&mut self, now: Instant) -> bool {
        let waiting = |slave: &&mut Slave<L::Chunk>| slave.core.state() == State::AwaitRequest;
        let Some(oldest) = self.slaves.iter_mut().find(waiting) else {
            return false;
        };
        let cause = "a new connection needs its place".to_string();
        oldest.core.close(Reason::Refused, cause, now);
        self.forget_closed(now);
        true
    }

    fn read_reports(&mut self, now: Instant) {
        let range = LogRange::of(&*self.log);
        let file_size = self.log.file_size();
        for slave in self.slaves.iter_mut().filter(|slave| slave.readable) {
            let socket = &mut slave.socket;
            let (heard, more) = slave.core.read(socket, range, file_size, now);
            slave.readable = more;
            match heard {
                Heard::Nothing => {}
                Heard::Request(request) => self.group.on_slave(slave.core.id(), request),
                Heard::Acked(acked) => self.group.on_report(slave.core.id(), acked),
            }
        }
    }

    fn write_transfers(&mut self, now: Instant) {
        for slave in self.slaves.iter_mut().filter(|slave| slave.writable) {
            let output = slave.core.write(&mut slave.socket, &*self.log, now);
            slave.writable = output != Output::Blocked;
        }
    }

    /// What time does: silence, stalls, and connections that a newer one of their slave replaces.
    fn expire(&mut self, now: Instant) {
        for slave in &mut self.slaves {
            slave.core.on_tick(now);
        }
        for newer in (1..self.slaves.len()).rev() {
            let (before, rest) = self.slaves.split_at_mut(newer);
            let newer = &rest[0].core;
            for older in before.iter_mut().filter(|_| newer.is_live()) {
                older.core.yield_to(newer, now);
            }
        }
    }

    /// Drops what is closed. Its slave counts no longer before anything else happens (J2, J7).
    fn forget_closed(&mut self, now: Instant) {
        let mut slaves = std::mem::take(&mut self.slaves);
        slaves.retain_mut(|slave| {
            let transitions = slave.core.take_transitions();
            self.note(slave.core.peer(), &transitions, now);
            if slave.core.is_closed() {
                self.group.on_gone(slave.core.id());
            }
            !slave.core.is_closed()
        });
        self.slaves = slaves;
    }

    /// One line a change of state; the same change of the same address again only now and then.
    fn note(&mut self, peer: SocketAddr, transitions: &[Transition], now: Instant) {
        for transition in transitions {
            let kind = (peer.ip(), transition.to.name());
            let Some(held_back) = self.repeats.pass(kind, now) else {
                log::debug!("slave {peer}: {transition}");
                continue;
            };
            let level = match transition.to {
                State::Closed(Reason::Gone) => log::Level::Info,
                State::Closed(_) | State::Stalled => log::Level::Warn,
                _ => log::Level::Info,
            };
            log::log!(level, "slave {peer}: {transition}{}", and_more(held_back));
        }
    }

    fn publish(&self) {
        let mut board = lock(&self.shared.board);
        board.clear();
        board.extend(self.slaves.iter().map(|slave| slave.core.figures()));
    }
}

impl<C: std::ops::Deref<Target = [u8]>> Connection<C> {
    fn figures(&self) -> SlaveFigures {
        SlaveFigures {
            address: self.peer(),
            state: self.state(),
            sent: self.sent(),
            reported: self.reported(),
            lag_bytes: 0,
            lag: Duration::ZERO,
            in_sync: self.is_live(),
            since: self.since(),
            behind_since: self.behind_since(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
