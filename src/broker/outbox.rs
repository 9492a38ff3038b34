//! What other threads leave for the client loop to write. One lock for a moment, one wake-up for
//! whatever has gathered.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use mio::{Token, Waker};

use crate::remoting::Command;

/// Who sent a request: enough to answer it and to know the client again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The connection, never reused for another one.
    pub connection: Token,
    pub address: SocketAddr,
    /// It came through the fast port (listenPort - 2), which serves no pulls.
    pub fast: bool,
}

/// Bytes for one connection.
pub struct Outgoing {
    pub connection: Token,
    pub bytes: Vec<u8>,
    /// How many of its requests these bytes answer: they are no longer in flight.
    pub answered: usize,
    /// The connection's batch has been stored; its next one may follow.
    pub batch_stored: bool,
}

pub struct Outbox {
    queue: Mutex<Vec<Outgoing>>,
    waker: Waker,
}

impl Outbox {
    pub fn new(waker: Waker) -> Outbox {
        Outbox {
            queue: Mutex::new(Vec::new()),
            waker,
        }
    }

    /// Answers one request of a connection. A one-way request is answered by nothing.
    pub fn reply(&self, peer: &Peer, reply: Option<&Command>) {
        let bytes = reply.map(Command::to_bytes).unwrap_or_default();
        self.post(Outgoing {
            connection: peer.connection,
            bytes,
            answered: 1,
            batch_stored: false,
        });
    }

    /// Sends a request of our own to a client, which need not answer.
    pub fn push(&self, connection: Token, request: &Command) {
        let bytes = request.to_bytes();
        self.post(Outgoing {
            connection,
            bytes,
            answered: 0,
            batch_stored: false,
        });
    }

    pub fn post(&self, outgoing: Outgoing) {
        let first = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push(outgoing);
            queue.len() == 1
        };
        if first {
            self.wake();
        }
    }

    /// Everything that has gathered, for the client loop.
    pub fn take(&self) -> Vec<Outgoing> {
        std::mem::take(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the client loop's sleep.
    pub fn wake(&self) {
        match self.waker.wake() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => log::error!("the client loop cannot be woken: {error}"),
        }
    }
}
