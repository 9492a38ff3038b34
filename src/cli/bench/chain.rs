//! `twinmq bench chain`: the least that a synchronous send can cost on this machine.
//!
//! ```text
//! client ──message──▶ master ──the same bytes──▶ slave
//! client ◀──bytes acknowledged── master ◀──bytes received── slave
//! ```
//!
//! One thread each; nothing is parsed, stored or checked. A report and an answer are 8 bytes.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use super::cpu::CpuWatch;
use super::pipe::loopback_pair;
use super::report::Report;
use super::{COUNT, Histogram, Limit, PIDS, SECONDS};
use crate::cli::options::{Usage, opt};
use crate::cli::peers::JSON;
use crate::cli::{Done, Failure, Outcome};

pub const USAGE: Usage = Usage {
    name: "bench chain",
    arguments: "",
    about: "Passes messages from a client through a master to a slave and their acknowledgements \
            back, three threads over loopback connections that do nothing else. A SYNC_MASTER \
            cannot be faster.",
    options: &[
        opt("", "size", "BYTES", "The size of a message. Default: 1024."),
        opt(
            "w",
            "window",
            "N",
            "Messages that may be unacknowledged, up to 1024. Default: 1.",
        ),
        SECONDS,
        COUNT,
        PIDS,
        JSON,
    ],
};

const CLIENT: Token = Token(0);
const SLAVE: Token = Token(1);
const BUFFER: usize = 256 * 1024;
/// What is in flight has to fit the sockets' buffers: the master does not keep what it cannot
/// write.
const IN_FLIGHT_MAX: u64 = 1024 * 1024;

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let size = options.count("size")?.unwrap_or(1024);
    let window = options.count("window")?.unwrap_or(1);
    if window > 1024 || size.saturating_mul(window) > IN_FLIGHT_MAX {
        return Err(Failure::usage(format!(
            "--window is at most 1024, and --size times --window at most {IN_FLIGHT_MAX}"
        )));
    }
    let limit = Limit::of(&options)?;
    let watch = CpuWatch::start(options.text("pids").as_deref())?;
    let started = Instant::now();
    let times = measure(size as usize, window as usize, limit)
        .map_err(|error| Failure::System(format!("the chain broke: {error}")))?;
    let elapsed = started.elapsed().as_secs_f64();
    let (used, count) = (watch.finish(), times.count() as f64);
    let mut report = Report::new("chain");
    report.add("size", size).add("window", window);
    report
        .add("messages", times.count())
        .number("seconds", elapsed);
    report.number("perSecond", count / elapsed);
    report.number("cpuUsPerMessage", used.own() * 1e6 / count);
    report
        .times("latencyUs", &times)
        .cpu(&used)
        .write(options.has("json"))?;
    Ok(Done::Fine)
}

fn measure(size: usize, window: usize, limit: Limit) -> io::Result<Histogram> {
    let (client, master_of_client) = loopback_pair()?;
    let (slave, master_of_slave) = loopback_pair()?;
    let slave = thread::spawn(move || acknowledge(slave));
    let master = thread::spawn(move || relay(master_of_client, master_of_slave));
    let times = send(client, size, window, limit);
    // The client's end closes the master's, that one the slave's.
    master.join().expect("a panic ends the process")?;
    slave.join().expect("a panic ends the process")?;
    times
}

/// The client: keeps the window full. What one read acknowledged is replaced by one write.
fn send(mut stream: TcpStream, size: usize, window: usize, limit: Limit) -> io::Result<Histogram> {
    let messages = vec![0x5a_u8; size * window];
    let mut times = Histogram::default();
    let mut in_flight: VecDeque<Instant> = VecDeque::new();
    let (mut sent, mut acked) = (0, 0);
    let started = Instant::now();
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    loop {
        let mut fresh = 0;
        while in_flight.len() < window && !limit.is_over(started, sent) {
            in_flight.push_back(Instant::now());
            sent += 1;
            fresh += 1;
        }
        if in_flight.is_empty() {
            return Ok(times);
        }
        stream.write_all(&messages[..fresh * size])?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        let now_acked = u64::from_be_bytes(answer) / size as u64;
        for sent_at in in_flight.drain(..(now_acked - acked) as usize) {
            times.record(sent_at.elapsed());
        }
        acked = now_acked;
    }
}

/// The master: passes bytes on to the slave, and the last report of each read to the client.
fn relay(client: TcpStream, slave: TcpStream) -> io::Result<()> {
    client.set_nonblocking(true)?;
    slave.set_nonblocking(true)?;
    let mut client = mio::net::TcpStream::from_std(client);
    let mut slave = mio::net::TcpStream::from_std(slave);
    let mut poll = Poll::new()?;
    poll.registry()
        .register(&mut client, CLIENT, Interest::READABLE)?;
    poll.registry()
        .register(&mut slave, SLAVE, Interest::READABLE)?;
    let mut events = Events::with_capacity(4);
    let mut buffer = vec![0_u8; BUFFER];
    let mut reports: Vec<u8> = Vec::new();
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            match event.token() {
                CLIENT => {
                    while let Some(count) = read_ready(&mut client, &mut buffer)? {
                        if count == 0 {
                            return Ok(());
                        }
                        write_fully(&mut slave, &buffer[..count])?;
                    }
                }
                _ => {
                    while let Some(count) = read_ready(&mut slave, &mut buffer)? {
                        reports.extend_from_slice(&buffer[..count]);
                        if count == 0 {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                    }
                    let whole = reports.len() / 8 * 8;
                    if whole > 0 {
                        write_fully(&mut client, &reports[whole - 8..whole])?;
                        reports.drain(..whole);
                    }
                }
            }
        }
    }
}

/// The slave: says after each read how much it has.
fn acknowledge(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0_u8; BUFFER];
    let mut received = 0_u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => received += count as u64,
        }
        stream.write_all(&received.to_be_bytes())?;
    }
}

/// `None` when nothing more is there.
fn read_ready(stream: &mut mio::net::TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match stream.read(buffer) {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is in flight fits the socket's buffer; should the kernel have a smaller one, this yields.
fn write_fully(stream: &mut mio::net::TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_of_a_chain_is_acknowledged() {
        for window in [1, 7] {
            let limit = Limit {
                seconds: None,
                count: Some(100),
            };
            let times = measure(100, window, limit).expect("a whole chain");
            assert_eq!(times.count(), 100, "{window}");
        }
    }
}
