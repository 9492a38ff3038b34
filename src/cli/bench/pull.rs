//! `twinmq bench pull`: consumers that read whole queues and drop what they read.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::cpu::CpuWatch;
use super::report::Report;
use super::wire::Wire;
use super::{CONNECTIONS, COUNT, Limit, PIDS, SECONDS, Tally, is_success};
use crate::base::reader::Reader;
use crate::cli::options::{Options, Usage, opt};
use crate::cli::peers::{BROKER, JSON, NAMESRV, Peers, TIMEOUT};
use crate::cli::puller::{QueueBounds, Subscription, topic_queues};
use crate::cli::{Failure, Outcome};
use crate::remoting::codes::response;

pub const USAGE: Usage = Usage {
    name: "bench pull",
    arguments: "",
    about: "Reads a topic's queues from their first message to where they ended at the start, \
            again and again if --seconds is there, and tells how fast that was. Exits with 1 if a \
            pull was refused.",
    options: &[
        NAMESRV,
        BROKER,
        opt("t", "topic", "TOPIC", "The topic. Default: BenchTopic."),
        CONNECTIONS,
        SECONDS_HERE,
        COUNT,
        PIDS,
        TIMEOUT,
        JSON,
    ],
};

const SECONDS_HERE: super::Opt = opt(
    SECONDS.short,
    SECONDS.long,
    SECONDS.value,
    "Begins again with the first message until this time is over. Default: once.",
);

struct Queue {
    address: String,
    bounds: QueueBounds,
}

struct Job {
    subscription: Subscription,
    queues: Vec<Queue>,
    connections: usize,
    limit: Limit,
    timeout: Duration,
}

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let job = Job::of(&options)?;
    let watch = CpuWatch::start(options.text("pids").as_deref())?;
    let start = Barrier::new(job.connections + 1);
    let (tally, used, elapsed) = thread::scope(|scope| {
        let run = |index| {
            let (job, start) = (&job, &start);
            scope.spawn(move || {
                start.wait();
                job.connection(index)
            })
        };
        let threads: Vec<_> = (0..job.connections).map(run).collect();
        start.wait();
        let started = Instant::now();
        let mut tally = Tally::default();
        for thread in threads {
            tally.add(&thread.join().expect("a panic ends the process")?);
        }
        let elapsed = tally.seconds_since(started);
        Ok::<_, Failure>((tally, watch.finish(), elapsed))
    })?;
    let mut report = Report::new("pull");
    report
        .add("connections", job.connections)
        .add("queues", job.queues.len());
    report
        .add("messages", tally.messages)
        .add("pulls", tally.sent)
        .number("seconds", elapsed);
    report.number("perSecond", tally.messages as f64 / elapsed);
    report.number("mbPerSecond", tally.bytes as f64 / 1e6 / elapsed);
    report.times("pullUs", &tally.latency);
    report.codes(&tally).cpu(&used).write(options.has("json"))?;
    Ok(tally.judge(is_ordinary))
}

/// What a pull may be answered in ordinary use.
fn is_ordinary(code: i32) -> bool {
    is_success(code)
        || code == response::PULL_NOT_FOUND
        || code == response::PULL_RETRY_IMMEDIATELY
        || code == response::PULL_OFFSET_MOVED
}

impl Job {
    fn of(options: &Options) -> Result<Job, Failure> {
        let peers = Peers::of(options)?;
        let topic = options
            .text("topic")
            .unwrap_or_else(|| "BenchTopic".to_owned());
        let queues = find_queues(&peers, &topic)?;
        if queues
            .iter()
            .all(|queue| queue.bounds.min == queue.bounds.max)
        {
            return Err(Failure::peer(format!("the topic {topic} has no messages")));
        }
        let connections = options.count("connections")?.unwrap_or(1) as usize;
        Ok(Job {
            connections: connections.min(queues.len()),
            queues,
            subscription: Subscription {
                group: "TOOLS_CONSUMER".to_owned(),
                topic,
                tags: "*".to_owned(),
            },
            limit: Limit {
                seconds: options.seconds("seconds")?,
                count: options.count("count")?,
            },
            timeout: peers.timeout,
        })
    }

    /// Reads every n-th queue, n being the number of connections.
    fn connection(&self, index: usize) -> Result<Tally, Failure> {
        let limit = self.limit.part(index as u64, self.connections as u64);
        let mut tally = Tally::default();
        let started = Instant::now();
        loop {
            let before = tally.messages;
            for queue in self.queues.iter().skip(index).step_by(self.connections) {
                self.read_queue(queue, limit, started, &mut tally)?;
            }
            let again = limit.seconds.is_some() && tally.messages > before;
            if !again || limit.is_over(started, tally.messages) {
                return Ok(tally);
            }
        }
    }

    fn read_queue(
        &self,
        queue: &Queue,
        limit: Limit,
        started: Instant,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let mut wire = Wire::connect(&queue.address, self.timeout)?;
        let QueueBounds { queue_id, min, max } = queue.bounds;
        let mut offset = min;
        while offset < max && !limit.is_over(started, tally.messages) {
            let asked_at = Instant::now();
            wire.post(
                self.subscription.pull_request(queue_id, offset, None),
                tally.sent as i32,
            );
            wire.flush()?;
            tally.sent += 1;
            let reply = loop {
                if let Some(reply) = wire.next()? {
                    break reply;
                }
                if !wire.read()? {
                    tally.unanswered += 1;
                    return Ok(());
                }
            };
            tally.answered(reply.code(), asked_at.elapsed());
            tally.messages += count_records(reply.body());
            tally.bytes += reply.body().len() as u64;
            let next = reply
                .ext()
                .parse_or("nextBeginOffset", offset)
                .unwrap_or(offset);
            if next <= offset {
                return Ok(());
            }
            offset = next;
        }
        Ok(())
    }
}

fn find_queues(peers: &Peers, topic: &str) -> Result<Vec<Queue>, Failure> {
    let nobody = || Failure::peer(format!("no broker has the topic {topic}"));
    let route = peers.route(topic)?.ok_or_else(nobody)?;
    let mut queues = Vec::new();
    for group in &route.groups {
        let Some(address) = group.addresses.values().next() else {
            continue;
        };
        let mut client = peers.connect(address)?;
        let found = topic_queues(&mut client, topic, peers.timeout)?.unwrap_or_default();
        queues.extend(found.into_iter().map(|bounds| Queue {
            address: address.clone(),
            bounds,
        }));
    }
    if queues.is_empty() {
        Err(nobody())
    } else {
        Ok(queues)
    }
}

/// Records by their sizes, as a client that hands them on later would find them.
fn count_records(body: &[u8]) -> u64 {
    let (mut count, mut rest) = (0, body);
    while let Ok(size) = Reader::new(rest).i32()
        && let Ok(size) = usize::try_from(size)
        && size > 0
        && let Some(behind) = rest.get(size..)
    {
        count += 1;
        rest = behind;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_by_their_sizes() {
        let record = [0, 0, 0, 6, 1, 2];
        assert_eq!(count_records(&[record, record].concat()), 2);
        assert_eq!(count_records(&record[..5]), 0);
        assert_eq!(count_records(&[0; 8]), 0);
        assert_eq!(count_records(&[0xff; 8]), 0);
    }
}
