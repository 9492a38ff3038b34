//! The name server's one thread: accept, read, serve, write, expire.
//!
//! Every request is served where it is read, since all of them only touch a table in memory. What
//! a peer can hold is bounded: connections in all and of one address, bytes of unfinished frames
//! in one and in all connections, the time for one frame, replies that it does not fetch.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

use super::requests::State;
use crate::base::sys;
use crate::net::listener::Listener;
use crate::net::slots::Slots;
use crate::net::stream::{Input, Output, Progress};
use crate::remoting::Command;
use crate::remoting::frame;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// Events taken in one turn.
const EVENTS_PER_TURN: usize = 256;
/// Bytes read from one connection in one turn, so that one peer cannot keep the others waiting.
const READ_PER_TURN: usize = 256 * 1024;
/// A peer that has so many bytes of replies to fetch is not read from until it did.
const OUTPUT_HIGH: usize = 1024 * 1024;
/// How often the clocks are looked at: silent brokers, idle connections, frames that do not end.
const TICK: Duration = Duration::from_secs(1);

/// What can be set. The defaults are those of the original, or bounds that it lacks.
#[derive(Clone, Debug)]
pub struct NamesrvSettings {
    /// `host:port`; port 0 lets the system choose.
    pub address: String,
    pub connections_max: usize,
    pub connections_per_address_max: usize,
    /// A connection without a byte in either direction for so long is closed.
    pub idle_max: Duration,
    /// From a frame's first byte to its last. A registration of 16 MiB over a slow line passes.
    pub frame_time_max: Duration,
    /// Bytes of unfinished frames in all connections; beyond it the largest is closed.
    pub unfinished_bytes_max: usize,
}

impl Default for NamesrvSettings {
    fn default() -> Self {
        NamesrvSettings {
            address: "0.0.0.0:9876".to_owned(),
            connections_max: 10_000,
            connections_per_address_max: 1_000,
            idle_max: Duration::from_secs(120),
            frame_time_max: Duration::from_secs(30),
            unfinished_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// A name server that runs.
pub struct Namesrv {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Namesrv {
    /// Listens and serves; an error names the address.
    pub fn start(settings: NamesrvSettings) -> io::Result<Namesrv> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let mut listener = Listener::bind(&settings.address)?;
        listener.register(poll.registry(), LISTENER)?;
        let address = listener.local()?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut turns = Loop {
            state: State::new(properties(&settings, address)),
            settings,
            poll,
            listener,
            connections: Slots::default(),
            of_address: HashMap::new(),
            ready: Vec::new(),
            unfinished: 0,
            ticked: Instant::now(),
            stop: stop.clone(),
        };
        let thread = sys::spawn("namesrv", move || {
            if let Err(error) = turns.run() {
                log::error!("the name server ends: {error}");
            }
        })?;
        Ok(Namesrv {
            address,
            stop,
            waker,
            thread: Some(thread),
        })
    }

    /// Where it listens, with the port that the system chose for 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// False once the thread has ended by itself: the system refused to poll.
    pub fn is_alive(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Closes all connections and waits for the thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Err(error) = self.waker.wake() {
            log::error!("the name server's thread cannot be woken: {error}");
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the name server's thread panicked");
        }
    }
}

impl Drop for Namesrv {
    fn drop(&mut self) {
        self.end();
    }
}

/// The settings by the original's names where it has them.
fn properties(settings: &NamesrvSettings, address: SocketAddr) -> Vec<(&'static str, String)> {
    vec![
        ("bindAddress", address.ip().to_string()),
        ("listenPort", address.port().to_string()),
        ("maxConnections", settings.connections_max.to_string()),
        (
            "maxConnectionsPerAddress",
            settings.connections_per_address_max.to_string(),
        ),
        (
            "serverChannelMaxIdleTimeSeconds",
            settings.idle_max.as_secs().to_string(),
        ),
    ]
}

struct Connection {
    socket: TcpStream,
    peer: SocketAddr,
    input: Input,
    output: Output,
    /// There may be more to read without a new event.
    readable: bool,
    /// Bytes of `input` that are counted in the loop's `unfinished`.
    held: usize,
    /// It is in the loop's `ready` list.
    marked: bool,
    /// The last byte in either direction.
    moved: Instant,
    /// When the unfinished frame at the front of `input` began.
    frame_since: Option<Instant>,
}

struct Loop {
    settings: NamesrvSettings,
    state: State,
    poll: Poll,
    listener: Listener,
    connections: Slots<Connection>,
    /// Connections by their address; no entry for none.
    of_address: HashMap<IpAddr, usize>,
    /// Connections that an event or an unfinished turn has marked.
    ready: Vec<Token>,
    /// Bytes of unfinished frames in all connections.
    unfinished: usize,
    ticked: Instant,
    stop: Arc<AtomicBool>,
}

impl Loop {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        while !self.stop.load(Ordering::SeqCst) {
            let sleep = self.sleep_time(Instant::now());
            if let Err(error) = self.poll.poll(&mut events, sleep)
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.listener.mark(),
                    WAKER => {} // only ends the sleep: `stop` is looked at in every turn
                    token => self.mark(token),
                }
            }
            let now = Instant::now();
            self.accept(now);
            self.serve(now);
            self.expire(now);
        }
        Ok(())
    }

    /// Until something is due; for ever while nobody is connected, since then nothing can expire.
    fn sleep_time(&self, now: Instant) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let tick = (!self.connections.is_empty())
            .then(|| (self.ticked + TICK).saturating_duration_since(now));
        tick.into_iter().chain(self.listener.due(now)).min()
    }

    fn mark(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(token) {
            connection.readable = true;
            if !std::mem::replace(&mut connection.marked, true) {
                self.ready.push(token);
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        for (socket, peer) in self.listener.accept(now) {
            if let Err(why) = self.admit(socket, peer, now) {
                log::warn!("{peer}: not accepted: {why}");
            }
        }
    }

    fn admit(&mut self, socket: TcpStream, peer: SocketAddr, now: Instant) -> io::Result<()> {
        let here = self.of_address.get(&peer.ip()).copied().unwrap_or(0);
        if self.connections.len() >= self.settings.connections_max {
            return Err(io::Error::other("too many connections"));
        }
        if here >= self.settings.connections_per_address_max {
            return Err(io::Error::other("too many connections from this address"));
        }
        let token = self.connections.insert_with(|_| Connection {
            socket,
            peer,
            input: Input::default(),
            output: Output::default(),
            readable: true,
            held: 0,
            marked: false,
            moved: now,
            frame_since: None,
        });
        *self.of_address.entry(peer.ip()).or_default() += 1;
        let connection = self.connections.get_mut(token).expect("it was just put in");
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self
            .poll
            .registry()
            .register(&mut connection.socket, token, interest);
        if registered.is_err() {
            self.close(token, "cannot be polled");
        }
        registered
    }

    /// One bounded step of every connection that is marked.
    fn serve(&mut self, now: Instant) {
        for token in std::mem::take(&mut self.ready) {
            let Some(connection) = self.connections.get_mut(token) else {
                continue;
            };
            connection.marked = false;
            let progress = connection.turn(&mut self.state, token, now);
            self.count_unfinished(token);
            let Some(connection) = self.connections.get_mut(token) else {
                continue;
            };
            match progress {
                Ok(Progress::Blocked) => {}
                Ok(Progress::More) => {
                    connection.marked = true;
                    self.ready.push(token);
                }
                Ok(Progress::Closed) => self.close(token, "the peer closed it"),
                Err(why) => {
                    if why.kind() == io::ErrorKind::InvalidData {
                        log::warn!("{}: closed: {why}", connection.peer);
                    }
                    // What was asked before the broken frame still has its answer.
                    let _ = connection.write(now);
                    self.close(token, &why.to_string());
                }
            }
        }
    }

    /// Counts the bytes that a connection holds of an unfinished frame. Everyone may have a large
    /// one under way, but not all at once: beyond the bound the largest is closed.
    fn count_unfinished(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let held = connection.input.bytes().len();
        self.unfinished += held;
        self.unfinished -= std::mem::replace(&mut connection.held, held);
        while self.unfinished > self.settings.unfinished_bytes_max {
            let largest = self.connections.iter_mut().max_by_key(|(_, c)| c.held);
            let Some((token, connection)) = largest else {
                return;
            };
            log::warn!(
                "{}: closed: unfinished frames fill {} bytes and its own is the largest",
                connection.peer,
                self.unfinished
            );
            self.close(token, "its unfinished frame was the largest");
        }
    }

    fn expire(&mut self, now: Instant) {
        if now.saturating_duration_since(self.ticked) < TICK {
            return;
        }
        self.ticked = now;
        for connection in self.state.routes.expire(now) {
            self.close(Token(connection), "its broker was silent");
        }
        let settings = &self.settings;
        let late: Vec<(Token, &'static str)> = self
            .connections
            .iter_mut()
            .filter_map(|(token, connection)| Some((token, connection.overdue(settings, now)?)))
            .collect();
        for (token, why) in late {
            self.close(token, why);
        }
    }

    fn close(&mut self, token: Token, why: &str) {
        let Some(connection) = self.connections.remove(token) else {
            return;
        };
        log::debug!("{}: closed: {why}", connection.peer);
        self.unfinished -= connection.held;
        let address = connection.peer.ip();
        if let Some(count) = self.of_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.of_address.remove(&address);
            }
        }
        self.state.routes.on_closed(token.0);
    }
}

impl Connection {
    /// Reads, serves and writes a bounded amount. `More` asks for another turn without an event.
    fn turn(&mut self, state: &mut State, token: Token, now: Instant) -> io::Result<Progress> {
        self.write(now)?;
        let mut read = Progress::Blocked;
        if self.readable && self.output.queued() < OUTPUT_HIGH {
            let before = self.input.bytes().len();
            read = self.input.fill(&mut self.socket, READ_PER_TURN)?;
            self.readable = read == Progress::More;
            if self.input.bytes().len() > before {
                self.moved = now;
            }
        }
        let held = self.serve_frames(state, token, now)?;
        self.write(now)?;
        let may_go_on = self.output.queued() < OUTPUT_HIGH && (held || self.readable);
        Ok(match read {
            Progress::Closed => Progress::Closed,
            _ if may_go_on => Progress::More,
            _ => Progress::Blocked,
        })
    }

    fn write(&mut self, now: Instant) -> io::Result<()> {
        let before = self.output.queued();
        if self.output.flush(&mut self.socket)? == Progress::Closed {
            return Err(io::ErrorKind::WriteZero.into());
        }
        if self.output.queued() < before {
            self.moved = now;
        }
        Ok(())
    }

    /// Serves the whole frames that are there, until their replies reach the mark. True if some
    /// are left.
    fn serve_frames(&mut self, state: &mut State, token: Token, now: Instant) -> io::Result<bool> {
        while let Some(length) = frame::complete(self.input.bytes()).map_err(broken)? {
            if self.output.queued() >= OUTPUT_HIGH {
                return Ok(true);
            }
            let bytes = self.input.bytes()[..length].to_vec();
            self.input.consume(length);
            self.frame_since = None;
            let request = Command::decode(bytes).map_err(broken)?;
            if request.is_response() {
                continue; // we ask nobody anything
            }
            let reply = state.serve(&request, token.0, now);
            if !reply.is_success() {
                let code = request.code();
                log::debug!("{}: request {code}: {}", self.peer, reply.remark());
            }
            if !request.is_oneway() {
                self.output.push(reply.to_bytes());
            }
        }
        if !self.input.bytes().is_empty() {
            self.frame_since.get_or_insert(now);
        }
        Ok(false)
    }

    /// Why it is closed now, if it is.
    fn overdue(&self, settings: &NamesrvSettings, now: Instant) -> Option<&'static str> {
        if now.saturating_duration_since(self.moved) >= settings.idle_max {
            return Some("idle");
        }
        let since = self.frame_since?;
        (now.saturating_duration_since(since) >= settings.frame_time_max)
            .then_some("a frame did not end in time")
    }
}

fn broken(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
