//! `twinmq send`: lines, files or words become messages.

use std::fs;
use std::io::{self, BufRead, Write};

use serde_json::json;

use super::options::{Options, Usage, flag, opt};
use super::peers::{BROKER, JSON, NAMESRV, Peers, TIMEOUT, Target};
use super::producer::{Outgoing, Producer, Sent, join_properties, unique_key};
use super::{Done, Failure, Outcome, output};

pub const USAGE: Usage = Usage {
    name: "send",
    arguments: "[MESSAGE ...]",
    about: "Sends each MESSAGE; without one each line of the standard input, or a whole file. \
            Prints for each its id, queue, queue offset and status. Exits with 1 if one of them \
            was not answered SEND_OK.",
    options: &[
        NAMESRV,
        BROKER,
        opt("t", "topic", "TOPIC", "The topic. Needed."),
        opt(
            "f",
            "file",
            "FILE",
            "Sends the bytes of FILE as one message. Several may be named.",
        )
        .many(),
        opt(
            "k",
            "keys",
            "KEYS",
            "Keys under which the messages can be found, with spaces between.",
        ),
        opt(
            "g",
            "tags",
            "TAG",
            "The tag, which consumers can select by.",
        ),
        opt(
            "p",
            "property",
            "NAME=VALUE",
            "A property. Several may be named.",
        )
        .many(),
        opt(
            "q",
            "queue",
            "QUEUE",
            "The number of the queue. Default: all queues in turn; with --broker the broker \
             chooses.",
        ),
        opt("", "count", "N", "Sends every message N times. Default: 1."),
        opt(
            "",
            "window",
            "N",
            "How many messages may be unanswered at a time. Default: 16. The order within a queue \
             stays.",
        ),
        flag(
            "",
            "no-wait",
            "Asks the broker not to wait for the disk or a slave (WAIT=false).",
        ),
        TIMEOUT,
        JSON,
    ],
};

struct Plan {
    topic: String,
    properties: Vec<(String, String)>,
    copies: u64,
    json: bool,
}

/// Who sends what, and what has come of it.
struct Sending {
    plan: Plan,
    producer: Producer,
    targets: Vec<Target>,
    sent: usize,
    /// Lines that could not be sent: a message needs a body.
    empty_lines: usize,
    done: Done,
}

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let peers = Peers::of(&options)?;
    let plan = Plan {
        topic: options.need("topic")?,
        properties: properties(&options)?,
        copies: options.count("count")?.unwrap_or(1),
        json: options.has("json"),
    };
    let window = options.count("window")?.unwrap_or(16) as usize;
    let queue = options.value("queue")?;
    let files = read_files(&options)?;
    let targets = peers.targets(&plan.topic, queue)?;
    let producer = Producer::new(window, peers.timeout);
    let mut sending = Sending {
        plan,
        producer,
        targets,
        sent: 0,
        empty_lines: 0,
        done: Done::Fine,
    };
    let result = sending.send_all(&options.words, &files);
    let unanswered = sending.producer.in_flight();
    if sending.empty_lines > 0 {
        eprintln!(
            "twinmq send: left out {} empty lines: a message needs a body",
            sending.empty_lines
        );
    }
    match result {
        Err(Failure::Peer(text)) => Err(Failure::peer(format!(
            "{text} ({} messages went out, at least {unanswered} of them were not answered)",
            sending.sent
        ))),
        Err(other) => Err(other),
        Ok(()) => Ok(sending.done),
    }
}

fn read_files(options: &Options) -> Result<Vec<Vec<u8>>, Failure> {
    let read = |name: String| {
        fs::read(&name).map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))
    };
    options.all("file").into_iter().map(read).collect()
}

/// The properties that all messages get.
fn properties(options: &Options) -> Result<Vec<(String, String)>, Failure> {
    let mut all = Vec::new();
    for (option, name) in [("keys", "KEYS"), ("tags", "TAGS")] {
        all.extend(options.text(option).map(|value| (name.to_owned(), value)));
    }
    for pair in options.all("property") {
        let (name, value) = pair
            .split_once('=')
            .filter(|(name, value)| !name.is_empty() && !value.is_empty())
            .ok_or_else(|| Failure::usage(format!("{pair:?} is not NAME=VALUE")))?;
        all.push((name.to_owned(), value.to_owned()));
    }
    if options.has("no-wait") {
        all.push(("WAIT".to_owned(), "false".to_owned()));
    }
    let is_separator = |c| c == '\u{1}' || c == '\u{2}';
    match all
        .iter()
        .find(|(name, value)| name.contains(is_separator) || value.contains(is_separator))
    {
        Some((name, _)) => Err(Failure::usage(format!(
            "{name:?} has a separator (01 or 02) in it"
        ))),
        None => Ok(all),
    }
}

impl Sending {
    fn send_all(&mut self, words: &[String], files: &[Vec<u8>]) -> Result<(), Failure> {
        for body in files {
            self.send_copies(body)?;
        }
        for word in words {
            self.send_copies(word.as_bytes())?;
        }
        if files.is_empty() && words.is_empty() {
            self.send_lines()?;
        }
        self.take_answers(0)
    }

    fn send_lines(&mut self) -> Result<(), Failure> {
        let mut input = io::stdin().lock();
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = input.read_until(b'\n', &mut line);
            let count = read.map_err(|error| {
                Failure::System(format!("cannot read the standard input: {error}"))
            })?;
            if count == 0 {
                return Ok(());
            }
            line.pop_if(|byte| *byte == b'\n');
            match line.is_empty() {
                true => self.empty_lines += 1,
                false => self.send_copies(&line)?,
            }
            // A person who types sees the answer before the next line.
            if io::IsTerminal::is_terminal(&input) {
                self.take_answers(0)?;
            }
        }
    }

    fn send_copies(&mut self, body: &[u8]) -> Result<(), Failure> {
        if body.is_empty() {
            return Err(Failure::usage(
                "an empty message cannot be sent: brokers refuse it",
            ));
        }
        for _ in 0..self.plan.copies {
            while self.producer.is_full() {
                self.take_answers(self.producer.in_flight() - 1)?;
            }
            let target = &self.targets[self.sent % self.targets.len()];
            let key = unique_key();
            let pairs = self
                .plan
                .properties
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            let properties = join_properties(pairs.chain([("UNIQ_KEY", key.as_str())]));
            let message = Outgoing {
                topic: &self.plan.topic,
                queue_id: target.queue_id,
                body,
                properties: &properties,
            };
            self.producer.post(target, &message, &key)?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Takes and prints answers until at most `rest` are missing.
    fn take_answers(&mut self, rest: usize) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        while self.producer.in_flight() > rest
            && let Some(sent) = self.producer.take()?
        {
            if !sent.is_ok() {
                self.done = Done::Negative;
            }
            write_result(&mut out, &sent, self.plan.json)?;
        }
        Ok(())
    }
}

fn write_result(out: &mut impl Write, sent: &Sent, as_json: bool) -> io::Result<()> {
    if as_json {
        let value = json!({
            "broker": sent.broker,
            "status": sent.status(),
            "code": sent.code,
            "msgId": sent.unique_key,
            "offsetMsgId": sent.offset_id,
            "queue": sent.queue_id,
            "offset": sent.queue_offset,
            "remark": if sent.remark.is_empty() { None } else { Some(&sent.remark) },
        });
        return output::write_json_line(out, &value);
    }
    match (sent.queue_id, sent.queue_offset) {
        (Some(queue), Some(offset)) => {
            writeln!(
                out,
                "{} {queue} {offset} {}",
                sent.unique_key,
                sent.status()
            )
        }
        _ => writeln!(
            out,
            "{} - - {}: {}",
            sent.unique_key,
            sent.status(),
            sent.remark
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Vec<(String, String)>, Failure> {
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        properties(&USAGE.parse(&arguments)?)
    }

    #[test]
    fn properties_come_from_their_options() {
        let all = parse(&["-k", "k1 k2", "-g", "red", "-p", "a=b=c", "--no-wait"]).expect("good");
        let text = join_properties(all.iter().map(|(n, v)| (n.as_str(), v.as_str())));
        assert_eq!(
            text,
            "KEYS\u{1}k1 k2\u{2}TAGS\u{1}red\u{2}a\u{1}b=c\u{2}WAIT\u{1}false\u{2}"
        );
    }

    #[test]
    fn properties_that_would_not_come_back_are_refused() {
        for bad in ["novalue", "=x", "x=", "a=b\u{1}c"] {
            assert!(parse(&["-p", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_result_names_what_the_broker_did_with_the_message() {
        let mut sent = Sent {
            broker: "broker-a".into(),
            code: 12,
            unique_key: "K".into(),
            offset_id: Some("O".into()),
            queue_id: Some(3),
            queue_offset: Some(7),
            remark: String::new(),
        };
        let text = |sent: &Sent, json| {
            let mut out = Vec::new();
            write_result(&mut out, sent, json).expect("memory");
            String::from_utf8(out).expect("text")
        };
        assert_eq!(text(&sent, false), "K 3 7 FLUSH_SLAVE_TIMEOUT\n");
        let value: serde_json::Value = serde_json::from_str(&text(&sent, true)).expect("JSON");
        assert_eq!(
            (&value["status"], &value["offset"]),
            (&json!("FLUSH_SLAVE_TIMEOUT"), &json!(7))
        );
        sent = Sent {
            code: 13,
            queue_id: None,
            remark: "too long".into(),
            ..sent
        };
        assert_eq!(text(&sent, false), "K - - code 13: too long\n");
    }
}
