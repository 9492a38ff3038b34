//! A listening socket in an event loop: accept until empty, pause when descriptors run out.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

/// As the original's SO_BACKLOG.
const BACKLOG: i32 = 1024;
/// How long accepting rests after the system had no descriptor left. The waiting peers stay in
/// the backlog meanwhile.
const PAUSE: Duration = Duration::from_millis(500);
/// Connections taken in one turn, so that a flood of them does not starve the others.
const ACCEPTS_PER_TURN: usize = 256;
/// A peer that does not take our bytes for this long is gone, whatever TCP still hopes for.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Listener {
    socket: TcpListener,
    /// The last readiness event has not been used up.
    pending: bool,
    paused_until: Option<Instant>,
}

impl Listener {
    /// Binds `address`; the error names it, since "address in use" alone helps nobody.
    pub fn bind(address: &str) -> io::Result<Listener> {
        bind(address).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
        })
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE)
    }

    /// The address that is really bound, with the port the system chose for 0.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The poll said there is something to accept.
    pub fn mark(&mut self) {
        self.pending = true;
    }

    /// When `accept` wants to be called again; `None` for not before the next event.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        self.pending.then(|| {
            self.paused_until
                .map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
        })
    }

    /// The connections that wait, up to a bound; their sockets have no delay and notice dead peers.
    pub fn accept(&mut self, now: Instant) -> Vec<(TcpStream, SocketAddr)> {
        let mut accepted = Vec::new();
        if !self.pending || self.paused_until.is_some_and(|until| now < until) {
            return accepted;
        }
        self.paused_until = None;
        while accepted.len() < ACCEPTS_PER_TURN {
            match self.socket.accept() {
                Ok((stream, peer)) => accepted.push((stream, peer)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.pending = false;
                    break;
                }
                Err(error) if is_peers(&error) => {}
                Err(error) => {
                    log::warn!("accepting connections pauses for {PAUSE:?}: {error}");
                    self.paused_until = Some(now + PAUSE);
                    break;
                }
            }
        }
        for (stream, peer) in &accepted {
            if let Err(error) = prepare(stream) {
                log::debug!("{peer}: socket options: {error}");
            }
        }
        accepted
    }
}

/// The peer was gone before it was accepted, or a signal came: the next one may be fine.
fn is_peers(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

fn bind(address: &str) -> io::Result<Listener> {
    let address = resolve(address)?;
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(socket.into());
    Ok(Listener {
        socket,
        pending: true,
        paused_until: None,
    })
}

/// The first address of a `host:port`.
pub fn resolve(address: &str) -> io::Result<SocketAddr> {
    let none = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("{address}: no such address"),
        )
    };
    address.to_socket_addrs()?.next().ok_or_else(none)
}

/// Options of every connection, both directions: small writes go out at once, a dead peer is
/// noticed. Buffer sizes stay the kernel's, which adapts them (the original's fixed ones cut the
/// rate on a 2 ms link to a tenth).
pub fn prepare(stream: &impl std::os::fd::AsFd) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    let alive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket.set_tcp_keepalive(&alive)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}
