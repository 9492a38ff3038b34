//! A slave made by hand: reports what the test says, and reads transfers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use twinmq::ha::wire::{TRANSFER_HEADER_SIZE, TransferHeader};

pub struct FakeSlave {
    pub socket: TcpStream,
    received: Vec<u8>,
}

impl FakeSlave {
    pub fn connect(master: SocketAddr) -> FakeSlave {
        let socket = TcpStream::connect(master).expect("the HA port accepts");
        socket.set_nodelay(true).expect("a socket option");
        FakeSlave {
            socket,
            received: Vec::new(),
        }
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the master reads");
    }

    pub fn report(&mut self, received: i64) {
        self.raw(&received.to_be_bytes());
    }

    /// The next transfer or heartbeat; `None` if none is complete in time. An error once the
    /// master has closed.
    pub fn transfer(&mut self, patience: Duration) -> io::Result<Option<(i64, Vec<u8>)>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(unit) = self.take_unit() {
                return Ok(Some(unit));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            let mut buffer = [0; 65536];
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_unit(&mut self) -> Option<(i64, Vec<u8>)> {
        let header = TransferHeader::decode(&self.received).ok()?;
        let size = TRANSFER_HEADER_SIZE + header.length as usize;
        if self.received.len() < size {
            return None;
        }
        let body = self.received[TRANSFER_HEADER_SIZE..size].to_vec();
        self.received.drain(..size);
        Some((header.start, body))
    }

    /// Whether the master closes in time; transfers are read over meanwhile.
    pub fn is_closed_within(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.transfer(left) {
                Err(_) => return true,
                Ok(None) => return false,
                Ok(Some(_)) => {}
            }
        }
    }
}

pub fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
