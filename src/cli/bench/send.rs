//! `twinmq bench send`: producers.
//!
//! Closed loop: each connection keeps its window full; a time counts from the write of a request.
//! Open loop (--rate): requests go out on a fixed schedule, whatever the broker does, and a time
//! counts from when the request was meant to go out.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::cpu::CpuWatch;
use super::report::Report;
use super::wire::Wire;
use super::{CONNECTIONS, COUNT, Limit, PIDS, SECONDS, Tally, is_success};
use crate::cli::options::{Options, Usage, flag, opt};
use crate::cli::peers::{BROKER, JSON, NAMESRV, Peers, TIMEOUT, Target};
use crate::cli::producer::{Outgoing, join_properties, send_request, unique_key};
use crate::cli::{Failure, Outcome};
use crate::remoting::Command;

pub const USAGE: Usage = Usage {
    name: "bench send",
    arguments: "",
    about: "Sends messages as fast as the window allows, or at a fixed rate, and tells how long \
            the answers took, in microseconds, and what they were. Exits with 1 if one was missing \
            or not SEND_OK.",
    options: &[
        NAMESRV,
        BROKER,
        opt("t", "topic", "TOPIC", "The topic. Default: BenchTopic."),
        opt(
            "",
            "queues",
            "N",
            "With --broker: how many queues to send to in turn. Default: 4.",
        ),
        opt("", "size", "BYTES", "The size of a body. Default: 1024."),
        CONNECTIONS,
        opt(
            "w",
            "window",
            "N",
            "Unanswered requests a connection. Default: 1.",
        ),
        opt(
            "r",
            "rate",
            "N",
            "Messages a second over all connections, on a fixed schedule; there is no window then.",
        ),
        flag(
            "",
            "no-wait",
            "Asks the broker not to wait for the disk or a slave (WAIT=false).",
        ),
        SECONDS,
        COUNT,
        PIDS,
        TIMEOUT,
        JSON,
    ],
};

const BODY_MAX: usize = 16 * 1024 * 1024 - 64 * 1024;

struct Job {
    topic: String,
    body: Vec<u8>,
    connections: usize,
    window: usize,
    rate: Option<f64>,
    no_wait: bool,
    limit: Limit,
    timeout: Duration,
    targets: Vec<Target>,
}

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let job = Job::of(&options)?;
    let watch = CpuWatch::start(options.text("pids").as_deref())?;
    // Everybody connects first; then the clock starts.
    let start = Barrier::new(job.connections + 1);
    let (tally, used, elapsed) = thread::scope(|scope| {
        let run = |index| {
            let (job, start) = (&job, &start);
            scope.spawn(move || job.connection(index, start))
        };
        let threads: Vec<_> = (0..job.connections).map(run).collect();
        start.wait();
        let started = Instant::now();
        let mut tally = Tally::default();
        let mut failure = None;
        for thread in threads {
            match thread.join().expect("a panic ends the process") {
                Ok(part) => tally.add(&part),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(failure) => Err(failure),
            None => {
                let elapsed = tally.seconds_since(started);
                Ok((tally, watch.finish(), elapsed))
            }
        }
    })?;
    let mut report = Report::new("send");
    report.add("loop", if job.rate.is_some() { "open" } else { "closed" });
    report
        .add("connections", job.connections)
        .add("size", job.body.len());
    match job.rate {
        Some(rate) => report.number("rate", rate),
        None => report.add("window", job.window),
    };
    let answered = tally.latency.count() as f64;
    report
        .add("messages", tally.sent)
        .number("seconds", elapsed);
    report.number("perSecond", answered / elapsed);
    report.number(
        "mbPerSecond",
        answered * job.body.len() as f64 / 1e6 / elapsed,
    );
    report.times("latencyUs", &tally.latency);
    if job.rate.is_some() {
        report.times("sentLateUs", &tally.lateness);
    }
    report.codes(&tally).cpu(&used).write(options.has("json"))?;
    Ok(tally.judge(is_success))
}

impl Job {
    fn of(options: &Options) -> Result<Job, Failure> {
        let peers = Peers::of(options)?;
        let size = options.count("size")?.unwrap_or(1024) as usize;
        if size > BODY_MAX {
            return Err(Failure::usage(format!("--size is at most {BODY_MAX}")));
        }
        let rate: Option<f64> = options.value("rate")?;
        if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(Failure::usage("--rate has to be more than 0"));
        }
        let topic = options
            .text("topic")
            .unwrap_or_else(|| "BenchTopic".to_owned());
        let mut targets = peers.targets(&topic, None)?;
        if let [Target { queue_id: -1, .. }] = targets[..] {
            let queues = options.count("queues")?.unwrap_or(4) as i32;
            let one = targets.remove(0);
            targets = (0..queues)
                .map(|queue_id| Target {
                    queue_id,
                    ..one.clone()
                })
                .collect();
        }
        Ok(Job {
            body: (b'a'..=b'z').cycle().take(size).collect(),
            connections: options.count("connections")?.unwrap_or(1) as usize,
            window: options.count("window")?.unwrap_or(1) as usize,
            rate,
            no_wait: options.has("no-wait"),
            limit: Limit::of(options)?,
            timeout: peers.timeout,
            targets,
            topic,
        })
    }

    /// One connection from its start to its end.
    fn connection(&self, index: usize, start: &Barrier) -> Result<Tally, Failure> {
        let targets = self.targets_of(index);
        let wire = Wire::connect(&targets[0].address, self.timeout);
        start.wait();
        let limit = self.limit.part(index as u64, self.connections as u64);
        match self.rate {
            None => self.closed_loop(wire?, &targets, limit),
            Some(rate) => {
                let interval = Duration::from_secs_f64(self.connections as f64 / rate);
                let first = interval.mul_f64(index as f64 / self.connections as f64);
                self.open_loop(wire?, &targets, limit, first, interval)
            }
        }
    }

    /// A connection goes to one broker; connections take the brokers in turn.
    fn targets_of(&self, index: usize) -> Vec<Target> {
        let mut addresses: Vec<&str> = self.targets.iter().map(|t| t.address.as_str()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let address = addresses[index % addresses.len()];
        let mut targets: Vec<Target> = self
            .targets
            .iter()
            .filter(|target| target.address == address)
            .cloned()
            .collect();
        // So that connections do not all begin with the same queue.
        let count = targets.len();
        targets.rotate_left(index % count);
        targets
    }

    fn request(&self, target: &Target) -> Command {
        let key = unique_key();
        let wait = self.no_wait.then_some(("WAIT", "false"));
        let properties = join_properties([("UNIQ_KEY", key.as_str())].into_iter().chain(wait));
        send_request(&Outgoing {
            topic: &self.topic,
            queue_id: target.queue_id,
            body: &self.body,
            properties: &properties,
        })
    }

    fn closed_loop(
        &self,
        mut wire: Wire,
        targets: &[Target],
        limit: Limit,
    ) -> Result<Tally, Failure> {
        let mut tally = Tally::default();
        let mut in_flight: VecDeque<(i32, Instant)> = VecDeque::new();
        let started = Instant::now();
        loop {
            while in_flight.len() < self.window && !limit.is_over(started, tally.sent) {
                let target = &targets[tally.sent as usize % targets.len()];
                wire.post(self.request(target), tally.sent as i32);
                in_flight.push_back((tally.sent as i32, Instant::now()));
                tally.sent += 1;
            }
            if in_flight.is_empty() {
                return Ok(tally);
            }
            wire.flush()?;
            if !wire.read()? {
                tally.unanswered += in_flight.len() as u64;
                return Ok(tally);
            }
            while let Some(reply) = wire.next()? {
                let opaque = reply.header.opaque;
                if let Some(at) = in_flight.iter().position(|(number, _)| *number == opaque) {
                    let (_, sent_at) = in_flight.remove(at).expect("it was found there");
                    tally.answered(reply.code(), sent_at.elapsed());
                }
            }
        }
    }

    /// This thread sends; another one takes the answers. Message n is meant to go out at `first`
    /// and n intervals after the start.
    fn open_loop(
        &self,
        mut wire: Wire,
        targets: &[Target],
        limit: Limit,
        first: Duration,
        interval: Duration,
    ) -> Result<Tally, Failure> {
        // Short, because the last answer may have come when the reader learns that it was the last.
        let reader = wire.reader(Duration::from_millis(50))?;
        let started = Instant::now();
        let intended = move |number: u64| started + first + interval.mul_f64(number as f64);
        let total = AtomicU64::new(u64::MAX);
        thread::scope(|scope| {
            let answers = scope.spawn(|| take_answers(reader, &total, self.timeout, intended));
            let sent = self.send_on_schedule(&mut wire, targets, limit, intended);
            let count = sent.as_ref().map_or(0, |part| part.sent);
            total.store(count, Ordering::Release);
            let mut tally = answers.join().expect("a panic ends the process")?;
            tally.add(&sent?);
            tally.unanswered = tally.sent - tally.latency.count();
            Ok(tally)
        })
    }

    fn send_on_schedule(
        &self,
        wire: &mut Wire,
        targets: &[Target],
        limit: Limit,
        intended: impl Fn(u64) -> Instant,
    ) -> Result<Tally, Failure> {
        // The default slack of 50 us would be part of every time that is measured.
        if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            log::warn!("the timer stays coarse: {error}");
        }
        let mut tally = Tally::default();
        let started = Instant::now();
        while !limit.is_over(started, tally.sent) {
            thread::sleep(intended(tally.sent).saturating_duration_since(Instant::now()));
            // All that are due go out together, so that a late client catches up.
            while intended(tally.sent) <= Instant::now() && !limit.is_over(started, tally.sent) {
                let target = &targets[tally.sent as usize % targets.len()];
                wire.post(self.request(target), tally.sent as i32);
                tally.lateness.record(intended(tally.sent).elapsed());
                tally.sent += 1;
            }
            wire.flush()?;
        }
        Ok(tally)
    }
}

/// Takes answers until all have come, or none has come for `patience` since the last request.
fn take_answers(
    mut reader: Wire,
    total: &AtomicU64,
    patience: Duration,
    intended: impl Fn(u64) -> Instant,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut quiet_since = Instant::now();
    while tally.latency.count() < total.load(Ordering::Acquire) {
        if reader.read()? || total.load(Ordering::Acquire) == u64::MAX {
            quiet_since = Instant::now();
        } else if quiet_since.elapsed() > patience {
            break;
        }
        while let Some(reply) = reader.next()? {
            let number = u64::from(reply.header.opaque as u32);
            tally.answered(reply.code(), intended(number).elapsed());
        }
    }
    Ok(tally)
}
