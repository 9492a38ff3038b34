//! A connection that measures: requests are gathered into one write, answers taken out of one
//! read, so that the client is not what limits a broker.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::cli::Failure;
use crate::net::listener::{prepare, resolve};
use crate::remoting::{Command, frame};

/// A read takes what is there, up to this.
const READ_SIZE: usize = 256 * 1024;

pub struct Wire {
    stream: TcpStream,
    address: String,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that were taken.
    taken: usize,
}

impl Wire {
    pub fn connect(address: &str, timeout: Duration) -> Result<Wire, Failure> {
        let stream = dial(address, timeout)
            .map_err(|error| Failure::peer(format!("cannot connect to {address}: {error}")))?;
        Ok(Wire::over(stream, address))
    }

    fn over(stream: TcpStream, address: &str) -> Wire {
        Wire {
            stream,
            address: address.to_owned(),
            output: Vec::new(),
            input: Vec::new(),
            taken: 0,
        }
    }

    /// The same connection for a thread that only reads. `timeout` takes the place of the one
    /// that `connect` was given.
    pub fn reader(&self, timeout: Duration) -> Result<Wire, Failure> {
        let cloned = self.stream.try_clone().and_then(|stream| {
            stream.set_read_timeout(Some(timeout))?;
            Ok(stream)
        });
        let stream = cloned.map_err(|error| self.failed(&error))?;
        Ok(Wire::over(stream, &self.address))
    }

    /// Puts a request behind those that wait to be written.
    pub fn post(&mut self, mut request: Command, opaque: i32) {
        request.header.opaque = opaque;
        request.encode(&mut self.output);
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        let written = self.stream.write_all(&self.output);
        written.map_err(|error| self.failed(&error))?;
        self.output.clear();
        Ok(())
    }

    /// The next answer that has been read already.
    pub fn next(&mut self) -> Result<Option<Command>, Failure> {
        let rest = &self.input[self.taken..];
        let bad = |what: String| Failure::peer(format!("{}: {what}", self.address));
        let Some(len) = frame::complete(rest).map_err(|error| bad(error.to_string()))? else {
            return Ok(None);
        };
        let command = Command::decode(rest[..len].to_vec()).map_err(|e| bad(e.to_string()))?;
        self.taken += len;
        Ok(Some(command))
    }

    /// Waits for more bytes; false if none came in time.
    pub fn read(&mut self) -> Result<bool, Failure> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let end = self.input.len();
        self.input.resize(end + READ_SIZE, 0);
        let read = self.stream.read(&mut self.input[end..]);
        self.input
            .truncate(end + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) => Err(self.failed(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::peer(format!("{}: {error}", self.address))
    }
}

fn dial(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&resolve(address)?, timeout)?;
    prepare(&stream)?;
    stream.set_read_timeout(Some(timeout))?;
    Ok(stream)
}
