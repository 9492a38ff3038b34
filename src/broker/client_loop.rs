//! The client loop: every connection of both client ports, on one thread.
//!
//! A turn learns what is ready, then does bounded work in a fixed order: accept, read, hand the
//! batches on, take what other threads have finished, write, expire. What only touches tables in
//! memory is answered here; the rest goes to the send thread or the pull threads and comes back
//! through the outbox.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

use super::Broker;
use super::client::{Client, Ended};
use super::connections::Connections;
use super::outbox::{Outbox, Peer};
use super::requests::{self, Route};
use super::send;
use crate::net::listener::Listener;
use crate::net::slots::Slots;
use crate::remoting::Command;

const MAIN: Token = Token(0);
const FAST: Token = Token(1);
const WAKER: Token = Token(2);
/// Idle connections and half frames are looked for this often.
const EXPIRE_EVERY: Duration = Duration::from_secs(5);

/// The sockets, bound before recovery so that a taken port is said at once, served after it.
pub struct Ports {
    poll: Poll,
    main: Listener,
    fast: Option<Listener>,
}

impl Ports {
    /// Binds both ports. The outbox wakes the loop that will serve them.
    pub fn bind(main: SocketAddr, fast: Option<SocketAddr>) -> io::Result<(Ports, Outbox)> {
        let poll = Poll::new()?;
        let outbox = Outbox::new(Waker::new(poll.registry(), WAKER)?);
        Ok((
            Ports {
                poll,
                main: Listener::bind(&main.to_string())?,
                fast: fast
                    .map(|fast| Listener::bind(&fast.to_string()))
                    .transpose()?,
            },
            outbox,
        ))
    }

    /// Where clients connect, with the port the system chose for 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.main.local()
    }
}

pub struct ClientLoop {
    broker: Arc<Broker>,
    poll: Poll,
    main: Listener,
    fast: Option<Listener>,
    clients: Slots<Client>,
    /// Those that may be served in this turn.
    ready: Vec<Token>,
    connections: Connections,
    next_expiry: Instant,
    stop: Arc<AtomicBool>,
}

impl ClientLoop {
    pub fn new(ports: Ports, broker: Arc<Broker>, stop: Arc<AtomicBool>) -> io::Result<ClientLoop> {
        let Ports {
            poll,
            mut main,
            mut fast,
        } = ports;
        main.register(poll.registry(), MAIN)?;
        if let Some(fast) = &mut fast {
            fast.register(poll.registry(), FAST)?;
        }
        let connections = Connections::new(broker.settings.limits);
        Ok(ClientLoop {
            broker,
            poll,
            main,
            fast,
            clients: Slots::default(),
            ready: Vec::new(),
            connections,
            next_expiry: Instant::now() + EXPIRE_EVERY,
            stop,
        })
    }

    /// Serves until the broker stops. An error here ends the process.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.stop.load(Ordering::Acquire) {
            if let Err(error) = self.turn(&mut events) {
                panic!("the client loop cannot poll: {error}");
            }
        }
        self.take_finished();
    }

    fn turn(&mut self, events: &mut Events) -> io::Result<()> {
        if let Err(error) = self.poll.poll(events, Some(self.sleep(Instant::now())))
            && error.kind() != io::ErrorKind::Interrupted
        {
            return Err(error);
        }
        let now = Instant::now();
        for event in events.iter() {
            match event.token() {
                MAIN => self.main.mark(),
                FAST => self.fast.iter_mut().for_each(Listener::mark),
                WAKER => {} // only ends the sleep: finished work is taken below, always
                token => self.mark(token),
            }
        }
        self.accept(now);
        self.read_requests(now);
        self.take_finished();
        self.expire(now);
        Ok(())
    }

    /// Zero while a connection may be served now: one that is held back must not keep the loop
    /// awake, so only those that want a turn stay in `ready`.
    fn sleep(&self, now: Instant) -> Duration {
        if !self.ready.is_empty() {
            return Duration::ZERO;
        }
        let expiry = self.next_expiry.saturating_duration_since(now);
        let fast = self.fast.as_ref().and_then(|fast| fast.due(now));
        let accepts = [self.main.due(now), fast];
        accepts.into_iter().flatten().fold(expiry, Duration::min)
    }

    fn mark(&mut self, token: Token) {
        if let Some(client) = self.clients.get_mut(token) {
            client.mark_readable();
            list(&mut self.ready, client);
        }
    }

    fn accept(&mut self, now: Instant) {
        let fast = self.fast.as_mut().map(|fast| fast.accept(now));
        let main = self
            .main
            .accept(now)
            .into_iter()
            .map(|accepted| (accepted, false));
        let fast = fast.into_iter().flatten().map(|accepted| (accepted, true));
        for ((stream, address), fast) in main.chain(fast).collect::<Vec<_>>() {
            match self.connections.admit(address.ip()) {
                Ok(()) => self.add(stream, address, fast, now),
                Err(limit) => self.broker.refused_connection(address, limit),
            }
        }
    }

    fn add(&mut self, stream: TcpStream, address: SocketAddr, fast: bool, now: Instant) {
        let token = self.clients.insert_with(|connection| {
            Client::new(
                stream,
                Peer {
                    connection,
                    address,
                    fast,
                },
                now,
            )
        });
        let client = self
            .clients
            .get_mut(token)
            .expect("it was put there a line ago");
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self
            .poll
            .registry()
            .register(client.stream_mut(), token, interest)
        {
            return self.close(token, Ended::Io(error));
        }
        list(&mut self.ready, client);
    }

    fn read_requests(&mut self, now: Instant) {
        for token in std::mem::take(&mut self.ready) {
            let Some(client) = self.clients.get_mut(token) else {
                continue;
            };
            client.listed = false;
            let broker = &self.broker;
            let result = if client.wants_turn() {
                client.read(now, |client, command| route(broker, client, command, now))
            } else {
                Ok(())
            };
            self.serve_client(token, result);
        }
    }

    /// Other threads have finished something: replies go out, the batch that grew meanwhile goes
    /// to the send thread.
    fn take_finished(&mut self) {
        for outgoing in self.broker.outbox.take() {
            let Some(client) = self.clients.get_mut(outgoing.connection) else {
                continue;
            };
            client.deliver(outgoing.bytes, outgoing.answered, outgoing.batch_stored);
            if !client.listed {
                client.listed = true;
                self.ready.push(outgoing.connection);
            }
        }
        for token in std::mem::take(&mut self.ready) {
            if let Some(client) = self.clients.get_mut(token) {
                client.listed = false;
                self.serve_client(token, Ok(()));
            }
        }
    }

    /// What follows every contact with a connection: its batch goes on, its replies go out, and
    /// it stays listed if it may be read again.
    fn serve_client(&mut self, token: Token, so_far: Result<(), Ended>) {
        let Some(client) = self.clients.get_mut(token) else {
            return;
        };
        if let Some(batch) = client.take_batch()
            && let Err(batch) = self.broker.sender.submit(batch)
        {
            send::refuse_busy(&self.broker, batch);
        }
        match so_far.and_then(|()| client.write()) {
            Ok(()) if client.wants_turn() => list(&mut self.ready, client),
            Ok(()) => {}
            Err(ended) => self.close(token, ended),
        }
    }

    fn expire(&mut self, now: Instant) {
        if now < self.next_expiry {
            return;
        }
        self.next_expiry = now + EXPIRE_EVERY;
        let idle_max = self.broker.settings.idle_max;
        let expired = self
            .clients
            .iter_mut()
            .filter_map(|(token, client)| Some((token, client.expired(idle_max, now)?)));
        for (token, ended) in expired.collect::<Vec<_>>() {
            self.close(token, ended);
        }
        for token in self.broker.clients.expire(now) {
            self.close(token, Ended::Idle);
        }
    }

    /// A closed connection loses its registrations at once.
    fn close(&mut self, token: Token, ended: Ended) {
        let Some(client) = self.clients.remove(token) else {
            return;
        };
        let address = client.peer.address;
        match ended {
            Ended::Frame(_) | Ended::Header(_) | Ended::SlowFrame => {
                log::warn!("client {address}: {ended}")
            }
            _ => log::debug!("client {address}: {ended}"),
        }
        self.connections.leave(address.ip());
        self.broker.clients.on_closed(token);
    }
}

/// Puts a client into the list of those to be served, once.
fn list(ready: &mut Vec<Token>, client: &mut Client) {
    if !client.listed {
        client.listed = true;
        ready.push(client.peer.connection);
    }
}

/// Where a request goes. A reply to something we asked (40 is one-way, so nothing is waited for)
/// is dropped.
fn route(broker: &Arc<Broker>, client: &mut Client, request: Command, now: Instant) {
    if request.is_response() {
        return;
    }
    match requests::route(request.code()) {
        Route::Send => client.gather(request, now),
        Route::Disk => {
            client.sent_on();
            broker.submit(client.peer, request.without_large_body(), now);
        }
        Route::Quick => {
            let reply = requests::serve_quick(broker, &request, &client.peer, now);
            if !request.is_oneway() {
                client.deliver(reply.to_bytes(), 0, false);
            }
        }
    }
}
