//! A master made by hand: takes a slave's connections and sends what the test says.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use twinmq::ha::wire::TransferHeader;

pub struct FakeMaster {
    listener: TcpListener,
    pub address: SocketAddr,
}

/// One connection of a slave.
pub struct MasterLink {
    pub socket: TcpStream,
}

impl FakeMaster {
    pub fn listen() -> FakeMaster {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket option");
        let address = listener.local_addr().expect("an address");
        FakeMaster { listener, address }
    }

    /// The slave's next connection, if it comes in time.
    pub fn try_accept(&self, patience: Duration) -> Option<MasterLink> {
        let deadline = Instant::now() + patience;
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(false).expect("a socket option");
                    socket.set_nodelay(true).expect("a socket option");
                    return Some(MasterLink { socket });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline {
                        return None;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("the listener fails: {error}"),
            }
        }
    }

    pub fn accept(&self) -> MasterLink {
        self.try_accept(Duration::from_secs(20))
            .expect("the slave connects")
    }
}

impl MasterLink {
    pub fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the slave reads");
    }

    pub fn transfer(&mut self, start: u64, body: &[u8]) {
        let header = TransferHeader {
            start: start as i64,
            length: body.len() as i32,
        };
        self.raw(&[&header.encode()[..], body].concat());
    }

    /// The slave's next report; an error once it closed, or if none comes in time.
    pub fn report(&mut self, patience: Duration) -> io::Result<u64> {
        self.socket.set_read_timeout(Some(patience))?;
        let mut bytes = [0; 8];
        self.socket.read_exact(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Reads reports until one is `wanted`; false if it does not come in time.
    pub fn wait_report(&mut self, wanted: u64, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.report(left.max(Duration::from_millis(1))) {
                Ok(report) if report == wanted => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    pub fn is_closed_within(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.report(left.max(Duration::from_millis(1))) {
                Ok(_) => {}
                Err(error) => {
                    let timeout = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
                    return !timeout.contains(&error.kind());
                }
            }
        }
    }
}
