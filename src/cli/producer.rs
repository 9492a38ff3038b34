//! A small producer over blocking connections: up to a window of sends in flight, each answered.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Failure;
use super::peers::Target;
use crate::base::clock::wall_ms;
use crate::remoting::codes::{request, response};
use crate::remoting::{Client, Command, Fields};

/// The group that a producer of ours names.
pub const PRODUCER_GROUP: &str = "TWINMQ_PRODUCER";

/// A send as it goes out. `properties` is in the stored form, see `join_properties`.
pub struct Outgoing<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    pub body: &'a [u8],
    pub properties: &'a str,
}

/// What a broker said to one send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub broker: String,
    pub code: i32,
    pub unique_key: String,
    /// The broker's id: where the message is stored.
    pub offset_id: Option<String>,
    pub queue_id: Option<i32>,
    pub queue_offset: Option<i64>,
    pub remark: String,
}

/// A SEND_MESSAGE_V2 request.
pub fn send_request(message: &Outgoing<'_>) -> Command {
    let fields = Fields::default()
        .with("a", PRODUCER_GROUP)
        .with("b", message.topic)
        .with("c", "TBW102")
        .with("d", 4)
        .with("e", message.queue_id)
        .with("f", 0)
        .with("g", wall_ms())
        .with("h", 0)
        .with("i", message.properties)
        .with("j", 0)
        .with("k", false)
        .with("m", false);
    Command::request(request::SEND_MESSAGE_V2, fields).with_body(message.body.to_vec())
}

/// Properties in the form in which they are stored.
pub fn join_properties<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        text.extend([name, "\u{1}", value, "\u{2}"]);
    }
    text
}

/// An id that no other message of any producer has: 32 hexadecimal digits.
pub fn unique_key() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    static START: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let start = START.get_or_init(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |since| since.as_nanos() as u64)
    });
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{start:016X}{:08X}{count:08X}", std::process::id())
}

/// The name of a send's result that Java clients use, for the codes that count as stored.
pub fn status_name(code: i32) -> Option<&'static str> {
    match code {
        response::SUCCESS => Some("SEND_OK"),
        response::FLUSH_DISK_TIMEOUT => Some("FLUSH_DISK_TIMEOUT"),
        response::SLAVE_NOT_AVAILABLE => Some("SLAVE_NOT_AVAILABLE"),
        response::FLUSH_SLAVE_TIMEOUT => Some("FLUSH_SLAVE_TIMEOUT"),
        _ => None,
    }
}

impl Sent {
    pub fn of(reply: &Command, broker: &str, unique_key: &str) -> Sent {
        let ext = reply.ext();
        Sent {
            broker: broker.to_owned(),
            code: reply.code(),
            unique_key: unique_key.to_owned(),
            offset_id: ext.get("msgId").map(str::to_owned),
            queue_id: ext.parse("queueId").ok(),
            queue_offset: ext.parse("queueOffset").ok(),
            remark: reply.remark().to_owned(),
        }
    }

    pub fn is_ok(&self) -> bool {
        self.code == response::SUCCESS
    }

    pub fn status(&self) -> String {
        status_name(self.code).map_or_else(|| format!("code {}", self.code), str::to_owned)
    }
}

struct InFlight {
    address: String,
    broker: String,
    unique_key: String,
    opaque: i32,
    deadline: Instant,
}

/// Sends to any number of brokers. Answers are taken in the order of the sends.
pub struct Producer {
    window: usize,
    timeout: Duration,
    connections: HashMap<String, Client>,
    in_flight: VecDeque<InFlight>,
}

impl Producer {
    pub fn new(window: usize, timeout: Duration) -> Producer {
        Producer {
            window: window.max(1),
            timeout,
            connections: HashMap::new(),
            in_flight: VecDeque::new(),
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= self.window
    }

    /// Sends a message that has `unique_key` among its properties, without waiting for the answer.
    pub fn post(
        &mut self,
        target: &Target,
        message: &Outgoing<'_>,
        unique_key: &str,
    ) -> Result<(), Failure> {
        let timeout = self.timeout;
        let opaque = self
            .connection(&target.address)?
            .post(send_request(message))?;
        self.in_flight.push_back(InFlight {
            address: target.address.clone(),
            broker: target.broker.clone(),
            unique_key: unique_key.to_owned(),
            opaque,
            deadline: Instant::now() + timeout,
        });
        Ok(())
    }

    /// Waits for the answer to the oldest send in flight; `None` if there is none.
    pub fn take(&mut self) -> Result<Option<Sent>, Failure> {
        let Some(oldest) = self.in_flight.pop_front() else {
            return Ok(None);
        };
        let reply = self
            .connection(&oldest.address)?
            .take(oldest.opaque, oldest.deadline)?;
        Ok(Some(Sent::of(&reply, &oldest.broker, &oldest.unique_key)))
    }

    /// One message, sent and answered.
    pub fn send(
        &mut self,
        target: &Target,
        topic: &str,
        properties: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Sent, Failure> {
        let key = unique_key();
        let all = properties
            .iter()
            .copied()
            .chain([("UNIQ_KEY", key.as_str())]);
        let text = join_properties(all);
        let queue_id = target.queue_id;
        let message = Outgoing {
            topic,
            queue_id,
            body,
            properties: &text,
        };
        let timeout = self.timeout;
        let client = self.connection(&target.address)?;
        let reply = client.call(send_request(&message), timeout);
        if reply.is_err() {
            self.forget(&target.address);
        }
        Ok(Sent::of(&reply?, &target.broker, &key))
    }

    /// Drops a connection that failed, with what is in flight on it; the next send makes a new one.
    pub fn forget(&mut self, address: &str) {
        self.connections.remove(address);
        self.in_flight.retain(|sent| sent.address != address);
    }

    fn connection(&mut self, address: &str) -> Result<&mut Client, Failure> {
        if !self.connections.contains_key(address) {
            let client = Client::connect(address, self.timeout)?;
            self.connections.insert(address.to_owned(), client);
        }
        Ok(self
            .connections
            .get_mut(address)
            .expect("it was just put there"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_another_one() {
        let (a, b) = (unique_key(), unique_key());
        assert!(a != b && a.len() == 32 && b.len() == 32, "{a} {b}");
    }

    #[test]
    fn a_reply_without_its_fields_is_still_a_result() {
        let request = Command::request(request::SEND_MESSAGE_V2, Fields::default());
        let reply = Command::refusal(&request, response::SYSTEM_BUSY, "busy");
        let sent = Sent::of(&reply, "b", "k");
        assert_eq!(
            (sent.status().as_str(), sent.queue_offset),
            ("code 2", None)
        );
        assert!(!sent.is_ok());
    }
}
