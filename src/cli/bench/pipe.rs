//! `twinmq bench pipe`: what one TCP connection carries on this machine when nobody looks at the
//! bytes. One thread writes 8 frames of 12 + 32 KiB at a time out of one buffer, another reads
//! into 256 KiB and drops.

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::cpu::CpuWatch;
use super::report::Report;
use super::{PIDS, SECONDS_DEFAULT};
use crate::cli::options::{Usage, opt};
use crate::cli::peers::JSON;
use crate::cli::{Done, Failure, Outcome};
use crate::net::listener::prepare;

pub const USAGE: Usage = Usage {
    name: "bench pipe",
    arguments: "",
    about: "Moves bytes through one loopback connection: writev of 8 frames of 32 KiB on one side, \
            recv of up to 256 KiB on the other. Tells MB/s and CPU seconds a GB; replication \
            cannot be faster.",
    options: &[
        opt("s", "seconds", "SECONDS", "How long to go on. Default: 5."),
        PIDS,
        JSON,
    ],
};

const FRAME: usize = 32 * 1024;
const HEADER: usize = 12;
const FRAMES_PER_WRITE: usize = 8;
const RECEIVE: usize = 256 * 1024;

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let seconds = options.seconds("seconds")?.unwrap_or(SECONDS_DEFAULT);
    let system = |error: io::Error| Failure::System(format!("the pipe broke: {error}"));
    let (sender, receiver) = loopback_pair().map_err(system)?;
    let watch = CpuWatch::start(options.text("pids").as_deref())?;
    let started = Instant::now();
    let reading = thread::spawn(move || drain(receiver));
    let writes = fill(sender, seconds).map_err(system)?;
    let (bytes, reads) = reading
        .join()
        .expect("a panic ends the process")
        .map_err(system)?;
    let elapsed = started.elapsed().as_secs_f64();
    let used = watch.finish();
    let mut report = Report::new("pipe");
    report
        .add("frame", FRAME)
        .add("framesPerWrite", FRAMES_PER_WRITE)
        .add("receive", RECEIVE);
    report.add("writes", writes).add("reads", reads);
    report
        .number("seconds", elapsed)
        .number("gb", bytes as f64 / 1e9);
    report.number("mbPerSecond", bytes as f64 / 1e6 / elapsed);
    report.number("cpuSecondsPerGb", used.own() / (bytes as f64 / 1e9));
    report.cpu(&used).write(options.has("json"))?;
    Ok(Done::Fine)
}

/// Two ends of one connection.
pub fn loopback_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    prepare(&one)?;
    prepare(&other)?;
    Ok((one, other))
}

/// Writes until the time is over; closing tells the other side.
fn fill(mut stream: TcpStream, seconds: Duration) -> io::Result<u64> {
    let header = [0_u8; HEADER];
    let bodies = vec![0x5a_u8; FRAME * FRAMES_PER_WRITE];
    let started = Instant::now();
    let mut writes = 0;
    while started.elapsed() < seconds {
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(2 * FRAMES_PER_WRITE);
        for body in bodies.chunks(FRAME) {
            slices.extend([IoSlice::new(&header), IoSlice::new(body)]);
        }
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let count = stream.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, count);
            writes += 1;
        }
    }
    Ok(writes)
}

fn drain(mut stream: TcpStream) -> io::Result<(u64, u64)> {
    let mut buffer = vec![0_u8; RECEIVE];
    let (mut bytes, mut reads) = (0, 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok((bytes, reads)),
            count => bytes += count as u64,
        }
        reads += 1;
    }
}
