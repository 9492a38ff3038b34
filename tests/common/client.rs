//! A client for tests: thin over the product's own blocking one, with what a test asks for.

use std::time::{Duration, Instant};

use twinmq::remoting::{self, Command, Fields};

const TIMEOUT: Duration = Duration::from_secs(15);

pub struct Client {
    pub inner: remoting::Client,
}

/// A send's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub code: i32,
    pub remark: String,
    pub msg_id: String,
    pub queue: i32,
    pub offset: i64,
}

impl Sent {
    pub fn of(reply: &Command) -> Sent {
        let number = |name| reply.ext().parse(name).unwrap_or(-1);
        Sent {
            code: reply.code(),
            remark: reply.remark().to_owned(),
            msg_id: reply.ext().get("msgId").unwrap_or("").to_owned(),
            queue: number("queueId") as i32,
            offset: number("queueOffset"),
        }
    }

    pub fn is_ok(&self) -> bool {
        self.code == 0
    }
}

/// One message out of a pull's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub topic: String,
    pub queue: i32,
    pub offset: i64,
    pub log_offset: i64,
    pub body: Vec<u8>,
    pub properties: String,
    pub raw: Vec<u8>,
}

impl Client {
    pub fn connect(address: &str) -> Client {
        Client::try_connect(address).expect("the broker accepts connections")
    }

    pub fn try_connect(address: &str) -> Option<Client> {
        let inner = remoting::Client::connect(address, TIMEOUT).ok()?;
        Some(Client { inner })
    }

    pub fn request(code: i32, ext: &[(&str, &str)]) -> Command {
        let fields = ext.iter().fold(Fields::default(), |fields, (name, value)| {
            fields.with(name, value)
        });
        Command::request(code, fields)
    }

    pub fn call(&mut self, code: i32, ext: &[(&str, &str)]) -> Command {
        self.inner
            .call(Client::request(code, ext), TIMEOUT)
            .expect("an answer")
    }

    pub fn call_body(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> Command {
        let request = Client::request(code, ext).with_body(body.to_vec());
        self.inner.call(request, TIMEOUT).expect("an answer")
    }

    /// The JSON body of an answer that must be a success.
    pub fn json(&mut self, code: i32, ext: &[(&str, &str)]) -> serde_json::Value {
        let reply = self.call(code, ext);
        assert!(reply.is_success(), "code {code}: {reply:?}");
        twinmq::base::json::parse(reply.body()).expect("JSON")
    }

    pub fn send_request(topic: &str, queue: i32, body: &[u8], properties: &str) -> Command {
        let queue = queue.to_string();
        let ext = [
            ("a", "test"),
            ("b", topic),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", &queue),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "0"),
            ("i", properties),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
        ];
        Client::request(310, &ext).with_body(body.to_vec())
    }

    pub fn send(&mut self, topic: &str, queue: i32, body: &[u8]) -> Sent {
        self.send_with(topic, queue, body, "")
    }

    pub fn send_with(&mut self, topic: &str, queue: i32, body: &[u8], properties: &str) -> Sent {
        self.try_send(topic, queue, body, properties)
            .expect("an answer to the send")
    }

    /// `None` if the connection broke or nothing came: the outcome is unknown.
    pub fn try_send(
        &mut self,
        topic: &str,
        queue: i32,
        body: &[u8],
        properties: &str,
    ) -> Option<Sent> {
        let request = Client::send_request(topic, queue, body, properties);
        self.inner
            .call(request, TIMEOUT)
            .ok()
            .map(|reply| Sent::of(&reply))
    }

    /// Many sends in flight at once; their answers in order.
    pub fn send_pipelined(&mut self, requests: Vec<Command>) -> Vec<Sent> {
        let posted: Vec<i32> = requests
            .into_iter()
            .map(|request| self.inner.post(request).expect("a connection"))
            .collect();
        let deadline = Instant::now() + TIMEOUT;
        posted
            .into_iter()
            .map(|opaque| Sent::of(&self.inner.take(opaque, deadline).expect("an answer")))
            .collect()
    }

    pub fn create_topic(&mut self, topic: &str, queues: i32) {
        let queues = queues.to_string();
        let reply = self.call(
            17,
            &[
                ("topic", topic),
                ("defaultTopic", "TBW102"),
                ("readQueueNums", &queues),
                ("writeQueueNums", &queues),
                ("perm", "6"),
                ("topicFilterType", "SINGLE_TAG"),
                ("topicSysFlag", "0"),
                ("order", "false"),
            ],
        );
        assert!(reply.is_success(), "create {topic}: {reply:?}");
    }

    pub fn pull_request(topic: &str, queue: i32, from: i64, suspend_ms: u64) -> Command {
        let (queue, from, suspend) = (queue.to_string(), from.to_string(), suspend_ms.to_string());
        let flags = if suspend_ms > 0 { "6" } else { "4" };
        let ext = [
            ("consumerGroup", "test"),
            ("topic", topic),
            ("queueId", &queue),
            ("queueOffset", &from),
            ("maxMsgNums", "32"),
            ("sysFlag", flags),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", &suspend),
            ("subscription", "*"),
            ("subVersion", "0"),
        ];
        Client::request(11, &ext)
    }

    pub fn pull(&mut self, topic: &str, queue: i32, from: i64) -> Command {
        let request = Client::pull_request(topic, queue, from, 0);
        self.inner.call(request, TIMEOUT).expect("an answer")
    }

    /// Every message of a queue from `from` to its present end.
    pub fn pull_all(&mut self, topic: &str, queue: i32, from: i64) -> Vec<Got> {
        let (mut all, mut at) = (Vec::new(), from);
        loop {
            let reply = self.pull(topic, queue, at);
            match reply.code() {
                0 | 20 => {
                    let next = reply.ext().parse("nextBeginOffset").expect("a next offset");
                    if next == at {
                        return all; // a slave's way to say that there is no more
                    }
                    all.extend(messages(reply.body()));
                    at = next;
                }
                19 => return all,
                _ => panic!("pull {topic} {queue} {at}: {reply:?}"),
            }
        }
    }

    pub fn max_offset(&mut self, topic: &str, queue: i32) -> i64 {
        let reply = self.call(30, &[("topic", topic), ("queueId", &queue.to_string())]);
        reply.ext().parse("offset").expect("an offset")
    }

    pub fn runtime(&mut self) -> serde_json::Map<String, serde_json::Value> {
        match self.json(28, &[])["table"].take() {
            serde_json::Value::Object(table) => table,
            other => panic!("runtime info: {other}"),
        }
    }

    pub fn log_end(&mut self) -> u64 {
        let table = self.runtime();
        table["commitLogMaxOffset"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .expect("an offset")
    }
}

/// The records of a pull's body.
pub fn messages(mut body: &[u8]) -> Vec<Got> {
    let mut all = Vec::new();
    while !body.is_empty() {
        let size = u32::from_be_bytes(body[..4].try_into().expect("four bytes")) as usize;
        let (raw, rest) = body.split_at(size);
        let record = twinmq::store::record::RecordView::parse(raw).expect("a whole record");
        all.push(Got {
            topic: record.topic.to_owned(),
            queue: record.queue_id,
            offset: record.queue_offset,
            log_offset: record.physical_offset,
            body: record.body.to_vec(),
            properties: String::from_utf8_lossy(record.properties).into_owned(),
            raw: raw.to_vec(),
        });
        body = rest;
    }
    all
}
