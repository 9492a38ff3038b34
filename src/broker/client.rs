//! One client connection, as the client loop owns it: its buffers, its frames, what is in flight.
//!
//! Sends of one connection are stored in the order they came: they gather in `growing`, and one
//! batch at a time is with the send thread. While it is there, reading goes on up to the limits
//! below; past them the connection is not read, and TCP holds its sender back.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::outbox::Peer;
use super::sender::Batch;
use crate::net::stream::{Input, Output, Progress};
use crate::remoting::command::{Command, CommandError};
use crate::remoting::frame::{self, FrameError};

/// Bytes read from one connection in one turn.
const READ_PER_TURN: usize = 1024 * 1024;
/// Replies that wait for a slow reader; past this its requests are not read.
const OUTPUT_HIGH: usize = 8 * 1024 * 1024;
/// Bytes of sends that wait behind the batch in the pool.
const GROWING_HIGH: usize = 8 * 1024 * 1024;
/// Requests of one connection that may be unanswered.
const IN_FLIGHT_MAX: usize = 8192;
/// A frame that is not complete after this is not going to be: one byte a second holds a buffer.
const FRAME_MAX_AGE: Duration = Duration::from_secs(60);

pub struct Client {
    stream: TcpStream,
    pub peer: Peer,
    input: Input,
    output: Output,
    /// The socket may have bytes that were not read yet.
    readable: bool,
    /// The client is in the loop's list of those to be served this turn.
    pub listed: bool,
    growing: Batch,
    batch_in_pool: bool,
    in_flight: usize,
    last_heard: Instant,
    /// When the incomplete frame at the front of `input` began.
    frame_since: Option<Instant>,
}

/// Why a connection ends.
#[derive(Debug)]
pub enum Ended {
    Closed,
    Idle,
    SlowFrame,
    Io(io::Error),
    Frame(FrameError),
    Header(CommandError),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Closed => write!(f, "closed by the client"),
            Ended::Idle => write!(f, "silent for too long"),
            Ended::SlowFrame => write!(
                f,
                "a frame was not complete after {} s",
                FRAME_MAX_AGE.as_secs()
            ),
            Ended::Io(error) => write!(f, "{error}"),
            Ended::Frame(error) => write!(f, "{error}"),
            Ended::Header(error) => write!(f, "{error}"),
        }
    }
}

impl Client {
    pub fn new(stream: TcpStream, peer: Peer, now: Instant) -> Client {
        Client {
            stream,
            peer,
            input: Input::default(),
            output: Output::default(),
            readable: true,
            listed: false,
            growing: Batch::new(peer),
            batch_in_pool: false,
            in_flight: 0,
            last_heard: now,
            frame_since: None,
        }
    }

    pub fn stream_mut(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// The poll said that something arrived.
    pub fn mark_readable(&mut self) {
        self.readable = true;
    }

    /// There is something to read, and the limits allow it now.
    pub fn wants_turn(&self) -> bool {
        self.readable && !self.is_held_back()
    }

    fn is_held_back(&self) -> bool {
        self.output.queued() > OUTPUT_HIGH
            || self.growing.bytes() > GROWING_HIGH
            || self.in_flight >= IN_FLIGHT_MAX
    }

    /// Reads once, at most `READ_PER_TURN`, and hands each complete request to `serve`.
    pub fn read(
        &mut self,
        now: Instant,
        mut serve: impl FnMut(&mut Client, Command),
    ) -> Result<(), Ended> {
        let progress = self
            .input
            .fill(&mut self.stream, READ_PER_TURN)
            .map_err(Ended::Io)?;
        self.readable = progress == Progress::More;
        self.last_heard = now;
        while let Some(len) = frame::complete(self.input.bytes()).map_err(Ended::Frame)? {
            let frame = self.input.bytes()[..len].to_vec();
            self.input.consume(len);
            self.frame_since = None;
            let command = Command::decode(frame).map_err(Ended::Header)?;
            serve(self, command);
        }
        if !self.input.bytes().is_empty() {
            self.frame_since.get_or_insert(now);
        }
        if progress == Progress::Closed {
            Err(Ended::Closed)
        } else {
            Ok(())
        }
    }

    /// A send joins the batch that is gathered.
    pub fn gather(&mut self, request: Command, arrived: Instant) {
        self.in_flight += 1;
        self.growing.push(request, arrived);
    }

    /// A request went to another thread; its answer comes through the outbox.
    pub fn sent_on(&mut self) {
        self.in_flight += 1;
    }

    /// The batch to store next, if there is one and none is with the send thread.
    pub fn take_batch(&mut self) -> Option<Batch> {
        if self.batch_in_pool || self.growing.is_empty() {
            return None;
        }
        self.batch_in_pool = true;
        Some(std::mem::replace(&mut self.growing, Batch::new(self.peer)))
    }

    /// The outbox brought something for this connection.
    pub fn deliver(&mut self, bytes: Vec<u8>, answered: usize, batch_stored: bool) {
        self.output.push(bytes);
        self.in_flight = self.in_flight.saturating_sub(answered);
        if batch_stored {
            self.batch_in_pool = false;
        }
    }

    /// Writes what the socket takes.
    pub fn write(&mut self) -> Result<(), Ended> {
        if self.output.is_empty() {
            return Ok(());
        }
        match self.output.flush(&mut self.stream).map_err(Ended::Io)? {
            Progress::Closed => Err(Ended::Closed),
            Progress::Blocked | Progress::More => Ok(()),
        }
    }

    /// Whether it has been silent, or a frame incomplete, for too long. A client that waits for
    /// our answer is not silent: it is we who are.
    pub fn expired(&self, idle_max: Duration, now: Instant) -> Option<Ended> {
        if self.is_held_back() {
            return None; // It is we who do not read.
        }
        if self
            .frame_since
            .is_some_and(|since| now - since > FRAME_MAX_AGE)
        {
            return Some(Ended::SlowFrame);
        }
        let idle = self.in_flight == 0 && now.saturating_duration_since(self.last_heard) > idle_max;
        idle.then_some(Ended::Idle)
    }
}
