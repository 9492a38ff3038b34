//! One blocking connection to a broker or name server: for the command line, for tests, and for
//! what a broker asks of its peers. One request at a time, or pipelined with `post` and `take`.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::codes::response;
use super::command::{Command, CommandError};
use super::frame::{self, FrameError};
use crate::net::listener::prepare;

pub struct Client {
    stream: TcpStream,
    address: String,
    input: Vec<u8>,
    next_opaque: i32,
    /// Replies that came while another one was waited for.
    early: Vec<Command>,
    /// Requests that the peer sent us, oldest first, a few at most.
    pushed: Vec<Command>,
}

/// Why a call has no good answer. Each names the peer.
#[derive(Debug)]
pub enum ClientError {
    Connect(String, io::Error),
    Io(String, io::Error),
    Frame(String, FrameError),
    Command(String, CommandError),
    /// Nothing came in time.
    Timeout(String),
    /// The peer answered with another code than 0.
    Refused {
        address: String,
        code: i32,
        remark: String,
    },
    /// The peer answered something that makes no sense here.
    Answer(String, String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Connect(peer, error) => write!(f, "cannot connect to {peer}: {error}"),
            ClientError::Io(peer, error) => write!(f, "{peer}: {error}"),
            ClientError::Frame(peer, error) => write!(f, "{peer}: {error}"),
            ClientError::Command(peer, error) => write!(f, "{peer}: {error}"),
            ClientError::Timeout(peer) => write!(f, "{peer}: no answer in time"),
            ClientError::Refused {
                address,
                code,
                remark,
            } => {
                write!(f, "{address} answered code {code}: {remark}")
            }
            ClientError::Answer(peer, what) => write!(f, "{peer}: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// Pushed requests kept for `pushed`; nobody who cares lets more pile up.
const PUSHED_MAX: usize = 64;

impl Client {
    /// Connects to `host:port`.
    pub fn connect(address: &str, timeout: Duration) -> Result<Client, ClientError> {
        let failed = |error| ClientError::Connect(address.to_owned(), error);
        let stream = connect_any(address, timeout).map_err(failed)?;
        prepare(&stream).map_err(failed)?;
        Ok(Client {
            stream,
            address: address.to_owned(),
            input: Vec::new(),
            next_opaque: 1,
            early: Vec::new(),
            pushed: Vec::new(),
        })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// One request and its reply, whatever its code.
    pub fn call(&mut self, request: Command, timeout: Duration) -> Result<Command, ClientError> {
        let opaque = self.post(request)?;
        self.take(opaque, Instant::now() + timeout)
    }

    /// One request whose reply must have code 0.
    pub fn ask(&mut self, request: Command, timeout: Duration) -> Result<Command, ClientError> {
        let reply = self.call(request, timeout)?;
        if reply.code() == response::SUCCESS {
            return Ok(reply);
        }
        Err(ClientError::Refused {
            address: self.address.clone(),
            code: reply.code(),
            remark: reply.remark().to_owned(),
        })
    }

    /// Sends a request and returns the opaque under which `take` finds its reply.
    pub fn post(&mut self, mut request: Command) -> Result<i32, ClientError> {
        let opaque = self.next_opaque;
        self.next_opaque = self.next_opaque.wrapping_add(1);
        request.header.opaque = opaque;
        self.write(&request.to_bytes())?;
        Ok(opaque)
    }

    /// Waits for the reply to `opaque`. Replies to others are kept for their own `take`.
    pub fn take(&mut self, opaque: i32, deadline: Instant) -> Result<Command, ClientError> {
        if let Some(at) = self
            .early
            .iter()
            .position(|reply| reply.header.opaque == opaque)
        {
            return Ok(self.early.swap_remove(at));
        }
        loop {
            let command = self.receive(deadline)?;
            if !command.is_response() {
                self.keep_pushed(command);
            } else if command.header.opaque == opaque {
                return Ok(command);
            } else {
                self.early.push(command);
            }
        }
    }

    /// Requests that the peer has pushed meanwhile.
    pub fn pushed(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.pushed)
    }

    /// The next frame, reply or request.
    pub fn receive(&mut self, deadline: Instant) -> Result<Command, ClientError> {
        loop {
            let complete = frame::complete(&self.input);
            if let Some(len) = complete.map_err(|e| ClientError::Frame(self.address.clone(), e))? {
                let frame = self.input.drain(..len).collect();
                return Command::decode(frame)
                    .map_err(|e| ClientError::Command(self.address.clone(), e));
            }
            self.read(deadline)?;
        }
    }

    fn keep_pushed(&mut self, command: Command) {
        if self.pushed.len() < PUSHED_MAX {
            self.pushed.push(command);
        }
    }

    fn read(&mut self, deadline: Instant) -> Result<(), ClientError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ClientError::Timeout(self.address.clone()));
        }
        let result = self
            .stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .and_then(|()| {
                let mut part = [0; 64 * 1024];
                let count = self.stream.read(&mut part)?;
                self.input.extend_from_slice(&part[..count]);
                Ok(count)
            });
        match result {
            Ok(0) => Err(self.failed(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was closed",
            ))),
            Ok(_) => Ok(()),
            Err(error) if is_timeout(&error) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.stream
            .write_all(bytes)
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> ClientError {
        ClientError::Io(self.address.clone(), error)
    }
}

/// Tries every address of a name: `localhost` may be ::1 first, where nobody listens.
fn connect_any(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
