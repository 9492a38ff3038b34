//! `twinmq consume`: a topic's messages as lines.
//!
//! Without --follow the queues are read one after the other up to where they ended at the start;
//! with it each queue has a thread that pulls, and this one writes.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Stdout, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::message::Message;
use super::options::{Options, Usage, flag, opt};
use super::output::{harmless, is_terminal, write_json_line};
use super::peers::{BROKER, BrokerGroup, JSON, NAMESRV, Peers, Route, TIMEOUT};
use super::puller::{
    GroupReader, Pulled, QueueBounds, Subscription, commit_offset, committed_offset,
    offset_by_time, topic_queues,
};
use super::times::parse_rfc3339;
use super::{Done, Failure, Outcome};
use crate::base::sys::{Signal, Signals, spawn};
use crate::remoting::codes::response;

pub const USAGE: Usage = Usage {
    name: "consume",
    arguments: "",
    about: "Writes the bodies of a topic's messages, one a line, queue after queue. Bodies that \
            the producer compressed with zlib are inflated; lz4 and zstd are shown as their name \
            and base64. Reads from a slave when the master is gone or sends it there.",
    options: &[
        NAMESRV,
        BROKER,
        opt("t", "topic", "TOPIC", "The topic. Needed."),
        opt(
            "g",
            "group",
            "GROUP",
            "Reads on where this consumer group stands, and stores every 5 seconds and at the end \
             how far it was read.",
        ),
        opt(
            "",
            "from",
            "first|last|OFFSET|TIME",
            "Where to begin, with --group only in queues where the group has never been. TIME is \
             as in RFC 3339 (2026-11-29T16:40:05Z) or in milliseconds since 1970; a number below \
             1000000000000 is a queue offset. Default: first.",
        ),
        opt(
            "q",
            "queue",
            "QUEUE",
            "Reads only the queue of this number.",
        ),
        opt(
            "",
            "tags",
            "TAGS",
            "Only messages with one of these tags: red || green. Default: *.",
        ),
        opt("", "count", "N", "Ends after N messages."),
        flag(
            "f",
            "follow",
            "Waits for more messages, until SIGINT or SIGTERM.",
        ),
        TIMEOUT,
        JSON,
    ],
};

/// A group that every broker knows from the start.
const GROUP_DEFAULT: &str = "TOOLS_CONSUMER";
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// How long a broker may hold a pull until a message comes.
const SUSPEND: Duration = Duration::from_secs(15);
/// Numbers from here on are times: as an offset it would be a queue of 20 TB, as a time it is 2001.
const FIRST_TIME_MS: i64 = 1_000_000_000_000;
/// Between two pulls that brought nothing.
const PAUSE: Duration = Duration::from_millis(200);
/// Pull answers that wait to be written.
const WAITING_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    First,
    Last,
    Offset(i64),
    Time(i64),
}

struct Plan {
    peers: Peers,
    subscription: Subscription,
    commits: bool,
    from: Start,
    queue: Option<i32>,
    follow: bool,
}

/// One queue, where to read on and where it ended when we began.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Index of the brokers that have it.
    group: usize,
    queue_id: i32,
    next: i64,
    end: i64,
}

/// What there is to read, and what could not be reached.
struct Opened {
    groups: Vec<BrokerGroup>,
    positions: Vec<Position>,
    failure: Option<Failure>,
}

enum Event {
    Pulled(Position, Pulled),
    Stop,
}

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let plan = Plan::of(&options)?;
    let limit = options.count("count")?;
    let Opened {
        groups,
        positions,
        failure,
    } = open(&plan)?;
    let mut sink = Sink::new(&plan, &groups, options.has("json"), limit);
    let result = match plan.follow {
        true => follow(&plan, groups, positions, &mut sink),
        false => read_once(&plan, groups, positions, &mut sink),
    };
    let committed = sink.commit();
    result
        .and(committed)
        .and(failure.map_or(Ok(Done::Fine), Err))
}

impl Plan {
    fn of(options: &Options) -> Result<Plan, Failure> {
        let group = options.text("group");
        let from = options.text("from").unwrap_or_else(|| "first".to_owned());
        Ok(Plan {
            peers: Peers::of(options)?,
            commits: group.is_some(),
            subscription: Subscription {
                group: group.unwrap_or_else(|| GROUP_DEFAULT.to_owned()),
                topic: options.need("topic")?,
                tags: options.text("tags").unwrap_or_else(|| "*".to_owned()),
            },
            from: Start::parse(&from)
                .ok_or_else(|| Failure::usage(format!("--from cannot be {from:?}")))?,
            queue: options.value("queue")?,
            follow: options.has("follow"),
        })
    }
}

impl Start {
    fn parse(text: &str) -> Option<Start> {
        match text {
            "first" => return Some(Start::First),
            "last" => return Some(Start::Last),
            _ => {}
        }
        match text.parse() {
            Ok(number) if number < 0 => None,
            Ok(number) if number < FIRST_TIME_MS => Some(Start::Offset(number)),
            Ok(number) => Some(Start::Time(number)),
            Err(_) => parse_rfc3339(text).map(Start::Time),
        }
    }
}

/// The queues to read and where. Brokers that cannot be reached are left out and are the command's
/// failure at its end, unless nobody can.
fn open(plan: &Plan) -> Result<Opened, Failure> {
    let topic = &plan.subscription.topic;
    let nobody = || Failure::peer(format!("no broker has the topic {topic}"));
    let route = plan.peers.route(topic)?.ok_or_else(nobody)?;
    let groups = route.groups.clone();
    let (mut positions, mut failure, mut known) = (Vec::new(), None, false);
    for (index, group) in groups.iter().enumerate() {
        let mut reader = GroupReader::new(group.clone(), plan.peers.timeout);
        match open_group(plan, &mut reader, readable(&route, &group.name)) {
            Ok(None) => {}
            Ok(Some(opened)) => {
                known = true;
                positions.extend(opened.into_iter().map(|p| Position { group: index, ..p }));
            }
            Err(error) => {
                eprintln!("twinmq consume: {error}; going on without that broker");
                failure = Some(error);
            }
        }
    }
    match (known, failure) {
        (false, failure) => Err(failure.unwrap_or_else(nobody)),
        (true, failure) => Ok(Opened {
            groups,
            positions,
            failure,
        }),
    }
}

/// How many queues of a broker may be read; all where no name server was asked.
fn readable(route: &Route, broker: &str) -> i32 {
    if route.queues.is_empty() {
        return i32::MAX;
    }
    let of_broker = route.queues.iter().filter(|queues| queues.broker == broker);
    of_broker.map(|queues| queues.readable).max().unwrap_or(0)
}

fn open_group(
    plan: &Plan,
    reader: &mut GroupReader,
    readable: i32,
) -> Result<Option<Vec<Position>>, Failure> {
    let (topic, timeout) = (&plan.subscription.topic, plan.peers.timeout);
    let Some(mut queues) = reader.ask(|client| topic_queues(client, topic, timeout))? else {
        return Ok(None);
    };
    queues.retain(|q| q.queue_id < readable && plan.queue.is_none_or(|id| id == q.queue_id));
    let mut positions = Vec::new();
    for bounds in queues {
        let next = start_offset(plan, reader, bounds)?;
        let (queue_id, end) = (bounds.queue_id, bounds.max);
        positions.push(Position {
            group: 0,
            queue_id,
            next,
            end,
        });
    }
    Ok(Some(positions))
}

fn start_offset(
    plan: &Plan,
    reader: &mut GroupReader,
    bounds: QueueBounds,
) -> Result<i64, Failure> {
    let (subscription, timeout) = (&plan.subscription, plan.peers.timeout);
    let queue_id = bounds.queue_id;
    if plan.commits {
        let stands = reader.ask(|c| committed_offset(c, subscription, queue_id, timeout))?;
        if let Some(offset) = stands {
            return Ok(offset.clamp(bounds.min, bounds.max));
        }
    }
    match plan.from {
        Start::First => Ok(bounds.min),
        Start::Last => Ok(bounds.max),
        Start::Offset(offset) => Ok(offset.clamp(bounds.min, bounds.max)),
        Start::Time(ms) => {
            reader.ask(|c| offset_by_time(c, &subscription.topic, queue_id, ms, timeout))
        }
    }
}

/// Reads every queue to the end it had.
fn read_once(
    plan: &Plan,
    groups: Vec<BrokerGroup>,
    positions: Vec<Position>,
    sink: &mut Sink<'_>,
) -> Outcome {
    let reader = |group: BrokerGroup| GroupReader::new(group, plan.peers.timeout);
    let mut readers: Vec<GroupReader> = groups.into_iter().map(reader).collect();
    for position in positions {
        if !read_queue(plan, &mut readers[position.group], position, sink)? {
            break;
        }
    }
    Ok(Done::Fine)
}

/// False when enough was written.
fn read_queue(
    plan: &Plan,
    reader: &mut GroupReader,
    mut position: Position,
    sink: &mut Sink<'_>,
) -> Result<bool, Failure> {
    let mut moved_at = Instant::now();
    while position.next < position.end {
        let pulled = reader.pull(&plan.subscription, position.queue_id, position.next, None)?;
        let next = pulled.next_offset;
        if next != position.next {
            moved_at = Instant::now();
        } else if moved_at.elapsed() > plan.peers.timeout {
            return Err(Failure::peer(format!(
                "{}: queue {} does not go on at offset {next}, before its end {}",
                reader.name(),
                position.queue_id,
                position.end
            )));
        } else {
            thread::sleep(PAUSE);
        }
        if !sink.take(position, pulled)? {
            return Ok(false);
        }
        position.next = next;
    }
    Ok(true)
}

/// Reads every queue for ever, each in a thread of its own.
fn follow(
    plan: &Plan,
    groups: Vec<BrokerGroup>,
    positions: Vec<Position>,
    sink: &mut Sink<'_>,
) -> Outcome {
    let system = |error: io::Error| Failure::System(format!("cannot start: {error}"));
    let signals = Signals::install().map_err(system)?;
    let (sender, receiver) = sync_channel(WAITING_MAX);
    for position in positions {
        let (sender, peers) = (sender.clone(), plan.peers.clone());
        let subscription = plan.subscription.clone();
        let reader = GroupReader::new(groups[position.group].clone(), plan.peers.timeout);
        let name = format!("pull-{}", position.queue_id);
        spawn(name, move || {
            follow_queue(&peers, &subscription, reader, position, &sender)
        })
        .map_err(system)?;
    }
    spawn("signals", move || {
        while signals.wait(COMMIT_INTERVAL) != Some(Signal::Stop) {}
        // Nobody listens any more when everything was written already.
        let _ = sender.send(Event::Stop);
    })
    .map_err(system)?;
    write_events(&receiver, sink)
}

fn write_events(receiver: &Receiver<Event>, sink: &mut Sink<'_>) -> Outcome {
    loop {
        match receiver.recv_timeout(COMMIT_INTERVAL) {
            Ok(Event::Pulled(position, pulled)) => {
                if !sink.take(position, pulled)? {
                    return Ok(Done::Fine);
                }
            }
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(Done::Fine),
            Err(RecvTimeoutError::Timeout) => sink.commit_when_due(),
        }
    }
}

fn follow_queue(
    peers: &Peers,
    subscription: &Subscription,
    mut reader: GroupReader,
    mut position: Position,
    sender: &SyncSender<Event>,
) {
    let mut failing = false;
    loop {
        let asked_at = Instant::now();
        match reader.pull(
            subscription,
            position.queue_id,
            position.next,
            Some(SUSPEND),
        ) {
            Ok(pulled) => {
                failing = false;
                let (next, code) = (pulled.next_offset, pulled.code);
                let stays = next == position.next;
                if !stays && sender.send(Event::Pulled(position, pulled)).is_err() {
                    return;
                }
                position.next = next;
                if stays && (code != response::PULL_NOT_FOUND || asked_at.elapsed() < PAUSE) {
                    thread::sleep(PAUSE);
                }
            }
            Err(error) => {
                if !failing {
                    eprintln!("twinmq consume: {error}; queue {} waits", position.queue_id);
                }
                failing = true;
                thread::sleep(Duration::from_secs(1));
                find_again(peers, subscription, &mut reader);
            }
        }
    }
}

/// Brokers may have come back elsewhere. A name server that does not answer changes nothing.
fn find_again(peers: &Peers, subscription: &Subscription, reader: &mut GroupReader) {
    if let Ok(Some(route)) = peers.route(&subscription.topic)
        && let Some(group) = route
            .groups
            .into_iter()
            .find(|group| group.name == reader.name())
    {
        reader.set_group(group);
    }
}

/// Where messages go, and how far each queue was written.
struct Sink<'p> {
    plan: &'p Plan,
    out: BufWriter<Stdout>,
    json: bool,
    /// Control characters in bodies must not reach a terminal.
    terminal: bool,
    left: Option<u64>,
    /// For commits, which go to the master if it is there.
    committers: Vec<GroupReader>,
    /// By broker group and queue: the offset behind what was written.
    written: BTreeMap<(usize, i32), i64>,
    committed_at: Instant,
}

impl Sink<'_> {
    fn new<'p>(plan: &'p Plan, groups: &[BrokerGroup], json: bool, left: Option<u64>) -> Sink<'p> {
        let committer = |group: &BrokerGroup| GroupReader::new(group.clone(), plan.peers.timeout);
        Sink {
            plan,
            out: BufWriter::new(io::stdout()),
            json,
            terminal: is_terminal(),
            left,
            committers: groups.iter().map(committer).collect(),
            written: BTreeMap::new(),
            committed_at: Instant::now(),
        }
    }

    /// Writes what a pull brought; false when enough was written.
    fn take(&mut self, position: Position, pulled: Pulled) -> Result<bool, Failure> {
        let place = (position.group, position.queue_id);
        for message in &pulled.messages {
            if self.left == Some(0) {
                break;
            }
            self.write(message)?;
            self.left = self.left.map(|left| left - 1);
            self.written.insert(place, message.queue_offset + 1);
        }
        self.out.flush()?;
        if self.left == Some(0) {
            return Ok(false);
        }
        self.written.insert(place, pulled.next_offset);
        self.commit_when_due();
        Ok(true)
    }

    fn write(&mut self, message: &Message) -> io::Result<()> {
        if self.json {
            return write_json_line(&mut self.out, &message.to_json());
        }
        let line = message.line();
        match self.terminal {
            true => self.out.write_all(harmless(&line).as_bytes())?,
            false => self.out.write_all(&line)?,
        }
        self.out.write_all(b"\n")
    }

    fn commit_when_due(&mut self) {
        if self.committed_at.elapsed() < COMMIT_INTERVAL {
            return;
        }
        if let Err(error) = self.commit() {
            eprintln!("twinmq consume: {error}; offsets will be stored later");
        }
    }

    fn commit(&mut self) -> Outcome {
        self.committed_at = Instant::now();
        let (subscription, timeout) = (&self.plan.subscription, self.plan.peers.timeout);
        if !self.plan.commits {
            return Ok(Done::Fine);
        }
        // All of them every time: the last may have gone to a slave, and the master is back now.
        for (&(group, queue_id), &offset) in &self.written {
            self.committers[group]
                .ask(|client| commit_offset(client, subscription, queue_id, offset, timeout))?;
        }
        Ok(Done::Fine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::peers::RouteQueues;

    #[test]
    fn a_start_is_a_word_an_offset_or_a_time() {
        for (text, want) in [
            ("first", Some(Start::First)),
            ("last", Some(Start::Last)),
            ("0", Some(Start::Offset(0))),
            ("999999999999", Some(Start::Offset(999_999_999_999))),
            ("1795970405123", Some(Start::Time(1_795_970_405_123))),
            (
                "2026-11-29T16:40:05.123Z",
                Some(Start::Time(1_795_970_405_123)),
            ),
            ("-1", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(Start::parse(text), want, "{text}");
        }
    }

    #[test]
    fn without_a_name_server_every_queue_is_readable() {
        let mut route = Route::default();
        assert_eq!(readable(&route, "b"), i32::MAX);
        let queues = |broker: &str, readable| RouteQueues {
            broker: broker.into(),
            readable,
            writable: 8,
        };
        route.queues = vec![queues("a", 3), queues("b", 4)];
        assert_eq!((readable(&route, "b"), readable(&route, "c")), (4, 0));
    }
}
