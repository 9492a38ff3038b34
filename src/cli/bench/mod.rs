//! `twinmq bench`: producers and consumers over real sockets, and two bare programs beside them,
//! so that every figure can be told as a ratio to what the machine can do at all.

mod chain;
mod cpu;
mod histogram;
mod pipe;
mod pull;
mod report;
mod send;
mod wire;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::options::{Opt, Options, Usage, opt};
use super::{Done, Failure, Outcome};
use crate::remoting::codes::response;

pub use histogram::Histogram;

pub const USAGES: &[&Usage] = &[&send::USAGE, &pull::USAGE, &pipe::USAGE, &chain::USAGE];

const SECONDS: Opt = opt(
    "s",
    "seconds",
    "SECONDS",
    "How long to go on. Default: 5, unless --count is there.",
);
const COUNT: Opt = opt("", "count", "N", "Ends after N messages.");
const CONNECTIONS: Opt = opt(
    "c",
    "connections",
    "N",
    "How many connections, each with a thread of its own (two with --rate). Default: 1.",
);
const PIDS: Opt = opt(
    "",
    "pids",
    "PID[,PID...]",
    "Tells the CPU time of these processes too; the rest of the machine is `others`.",
);

const SECONDS_DEFAULT: Duration = Duration::from_secs(5);

pub fn run(arguments: &[String]) -> Outcome {
    let Some((kind, rest)) = arguments.split_first() else {
        return Err(Failure::usage(
            "what shall be measured: send, pull, pipe or chain?",
        ));
    };
    match kind.as_str() {
        "send" => send::run(rest),
        "pull" => pull::run(rest),
        "pipe" => pipe::run(rest),
        "chain" => chain::run(rest),
        _ => Err(Failure::usage(format!(
            "{kind:?} is none of send, pull, pipe and chain"
        ))),
    }
}

/// When a measurement ends: after a time, after a number of messages, whichever comes first.
#[derive(Clone, Copy, Debug)]
struct Limit {
    seconds: Option<Duration>,
    count: Option<u64>,
}

impl Limit {
    fn of(options: &Options) -> Result<Limit, Failure> {
        let limit = Limit {
            seconds: options.seconds("seconds")?,
            count: options.count("count")?,
        };
        Ok(match limit {
            Limit {
                seconds: None,
                count: None,
            } => Limit {
                seconds: Some(SECONDS_DEFAULT),
                ..limit
            },
            _ => limit,
        })
    }

    /// The share of one of `parts` that do the same.
    fn part(self, index: u64, parts: u64) -> Limit {
        let share = |count: u64| count / parts + u64::from(index < count % parts);
        Limit {
            count: self.count.map(share),
            ..self
        }
    }

    fn is_over(self, started: Instant, done: u64) -> bool {
        self.count.is_some_and(|count| done >= count)
            || self
                .seconds
                .is_some_and(|seconds| started.elapsed() >= seconds)
    }
}

/// What one connection has seen; those of all are added up.
#[derive(Default)]
struct Tally {
    latency: Histogram,
    /// How much later than intended a request went out (open loop only): the client's own delay.
    lateness: Histogram,
    /// Answers by their code.
    codes: BTreeMap<i32, u64>,
    sent: u64,
    unanswered: u64,
    last_answer: Option<Instant>,
    /// Messages and bytes that came (pull).
    messages: u64,
    bytes: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.latency.add(&other.latency);
        self.lateness.add(&other.lateness);
        for (code, count) in &other.codes {
            *self.codes.entry(*code).or_default() += count;
        }
        self.sent += other.sent;
        self.unanswered += other.unanswered;
        self.last_answer = self.last_answer.max(other.last_answer);
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    fn answered(&mut self, code: i32, time: Duration) {
        self.latency.record(time);
        *self.codes.entry(code).or_default() += 1;
        self.last_answer = Some(Instant::now());
    }

    /// Seconds to the last answer; what was waited for in vain does not count.
    fn seconds_since(&self, started: Instant) -> f64 {
        self.last_answer
            .unwrap_or_else(Instant::now)
            .duration_since(started)
            .as_secs_f64()
    }

    /// Negative if anything was not answered as it should be.
    fn judge(&self, fine: impl Fn(i32) -> bool) -> Done {
        match self.unanswered == 0 && self.codes.keys().all(|code| fine(*code)) {
            true => Done::Fine,
            false => Done::Negative,
        }
    }
}

fn is_success(code: i32) -> bool {
    code == response::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_count_add_up() {
        let limit = Limit {
            seconds: None,
            count: Some(10),
        };
        let parts: Vec<_> = (0..4).map(|index| limit.part(index, 4).count).collect();
        assert_eq!(parts, [Some(3), Some(3), Some(2), Some(2)]);
    }

    #[test]
    fn an_answer_that_is_missing_or_bad_is_a_negative_result() {
        let mut tally = Tally {
            codes: BTreeMap::from([(0, 5)]),
            ..Tally::default()
        };
        assert_eq!(tally.judge(is_success), Done::Fine);
        tally.unanswered = 1;
        assert_eq!(tally.judge(is_success), Done::Negative);
        let bad = Tally {
            codes: BTreeMap::from([(12, 1)]),
            ..Tally::default()
        };
        tally = Tally::default();
        tally.add(&bad);
        assert_eq!(tally.judge(is_success), Done::Negative);
    }
}
