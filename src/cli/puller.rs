//! Reading one queue: pulls, what a broker knows of its queues, and the fall-over to a slave.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Failure;
use super::message::{Message, decode_all};
use super::peers::BrokerGroup;
use crate::base::json;
use crate::remoting::client::ClientError;
use crate::remoting::codes::{request, response};
use crate::remoting::{Client, Command, Fields};

const SYS_SUSPEND: i32 = 2;
const SYS_SUBSCRIPTION: i32 = 4;
/// Messages asked for at a time, as Java clients do.
const PULL_MAX: i32 = 32;
/// A broker that failed is not asked again for this long while another one answers.
const REST: Duration = Duration::from_secs(3);

/// What is read, and for whom.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub group: String,
    pub topic: String,
    /// `*`, or tags with `||` between them.
    pub tags: String,
}

/// A broker's answer to a pull.
#[derive(Debug)]
pub struct Pulled {
    pub code: i32,
    pub next_offset: i64,
    pub min_offset: i64,
    pub max_offset: i64,
    /// The id of the broker that should be asked next.
    pub suggested: i64,
    pub messages: Vec<Message>,
}

/// A queue's number and the offsets of its first message and of the one that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    pub queue_id: i32,
    pub min: i64,
    pub max: i64,
}

impl Subscription {
    pub fn pull_request(&self, queue_id: i32, offset: i64, suspend: Option<Duration>) -> Command {
        let suspend_flag = if suspend.is_some() { SYS_SUSPEND } else { 0 };
        let fields = Fields::default()
            .with("consumerGroup", &self.group)
            .with("topic", &self.topic)
            .with("queueId", queue_id)
            .with("queueOffset", offset)
            .with("maxMsgNums", PULL_MAX)
            .with("sysFlag", SYS_SUBSCRIPTION | suspend_flag)
            .with("commitOffset", 0)
            .with("suspendTimeoutMillis", suspend.map_or(0, |d| d.as_millis()))
            .with("subscription", &self.tags)
            .with("subVersion", 0)
            .with("expressionType", "TAG");
        Command::request(request::PULL_MESSAGE, fields)
    }

    /// Brokers select by the tags' hashes; texts of the same hash are told apart here.
    fn wants(&self, message: &Message) -> bool {
        let tags = self.tags.trim();
        if tags.is_empty() || tags == "*" {
            return true;
        }
        let tag = message.property("TAGS").unwrap_or("");
        tags.split("||").any(|wanted| wanted.trim() == tag)
    }

    fn parse(&self, address: &str, reply: &Command) -> Result<Pulled, ClientError> {
        let makes_no_sense = |what: String| ClientError::Answer(address.to_owned(), what);
        let field = |name| {
            reply
                .ext()
                .parse(name)
                .map_err(|e| makes_no_sense(e.to_string()))
        };
        let mut messages = match reply.code() {
            response::SUCCESS => {
                decode_all(reply.body()).map_err(|flaw| makes_no_sense(flaw.to_string()))?
            }
            response::PULL_NOT_FOUND
            | response::PULL_RETRY_IMMEDIATELY
            | response::PULL_OFFSET_MOVED => Vec::new(),
            code => return Err(refused(address, code, reply)),
        };
        messages.retain(|message| self.wants(message));
        Ok(Pulled {
            code: reply.code(),
            next_offset: field("nextBeginOffset")?,
            min_offset: field("minOffset")?,
            max_offset: field("maxOffset")?,
            suggested: reply.ext().parse_or("suggestWhichBrokerId", 0).unwrap_or(0),
            messages,
        })
    }
}

fn refused(address: &str, code: i32, reply: &Command) -> ClientError {
    ClientError::Refused {
        address: address.to_owned(),
        code,
        remark: reply.remark().to_owned(),
    }
}

fn queue_fields(topic: &str, queue_id: i32) -> Fields {
    Fields::default()
        .with("topic", topic)
        .with("queueId", queue_id)
}

/// The queues of a topic as one broker has them; `None` if it does not know the topic.
pub fn topic_queues(
    client: &mut Client,
    topic: &str,
    timeout: Duration,
) -> Result<Option<Vec<QueueBounds>>, ClientError> {
    let fields = Fields::default().with("topic", topic);
    let reply = client.call(
        Command::request(request::GET_TOPIC_STATS_INFO, fields),
        timeout,
    )?;
    match reply.code() {
        response::SUCCESS => {}
        response::TOPIC_NOT_EXIST => return Ok(None),
        code => return Err(refused(client.address(), code, &reply)),
    }
    let body = json::parse(reply.body())
        .map_err(|error| ClientError::Answer(client.address().to_owned(), error.to_string()))?;
    Ok(Some(parse_topic_stats(&body)))
}

/// The keys of the table are objects, the queues.
fn parse_topic_stats(body: &Value) -> Vec<QueueBounds> {
    let table = body.get("offsetTable").and_then(Value::as_object);
    let bounds = |(key, value): (&String, &Value)| {
        let queue = json::parse(key.as_bytes()).ok()?;
        Some(QueueBounds {
            queue_id: i32::try_from(json::number(&queue, "queueId")?).ok()?,
            min: json::number(value, "minOffset")?,
            max: json::number(value, "maxOffset")?,
        })
    };
    let mut queues: Vec<_> = table.into_iter().flatten().filter_map(bounds).collect();
    queues.sort_by_key(|queue| queue.queue_id);
    queues
}

/// The first offset whose message was stored at or after a time.
pub fn offset_by_time(
    client: &mut Client,
    topic: &str,
    queue_id: i32,
    time_ms: i64,
    timeout: Duration,
) -> Result<i64, ClientError> {
    let fields = queue_fields(topic, queue_id).with("timestamp", time_ms);
    let request = Command::request(request::SEARCH_OFFSET_BY_TIMESTAMP, fields);
    let reply = client.ask(request, timeout)?;
    offset_field(client, &reply)
}

/// Where a group stands in a queue; `None` if it has never been there.
pub fn committed_offset(
    client: &mut Client,
    subscription: &Subscription,
    queue_id: i32,
    timeout: Duration,
) -> Result<Option<i64>, ClientError> {
    let fields = queue_fields(&subscription.topic, queue_id)
        .with("consumerGroup", &subscription.group)
        .with("setZeroIfNotFound", false);
    let request = Command::request(request::QUERY_CONSUMER_OFFSET, fields);
    let reply = client.call(request, timeout)?;
    match reply.code() {
        response::SUCCESS => offset_field(client, &reply).map(Some),
        response::QUERY_NOT_FOUND => Ok(None),
        code => Err(refused(client.address(), code, &reply)),
    }
}

/// Stores where a group stands.
pub fn commit_offset(
    client: &mut Client,
    subscription: &Subscription,
    queue_id: i32,
    offset: i64,
    timeout: Duration,
) -> Result<(), ClientError> {
    let fields = queue_fields(&subscription.topic, queue_id)
        .with("consumerGroup", &subscription.group)
        .with("commitOffset", offset);
    client
        .ask(
            Command::request(request::UPDATE_CONSUMER_OFFSET, fields),
            timeout,
        )
        .map(|_| ())
}

fn offset_field(client: &Client, reply: &Command) -> Result<i64, ClientError> {
    let parsed = reply.ext().parse("offset");
    parsed.map_err(|error| ClientError::Answer(client.address().to_owned(), error.to_string()))
}

/// The brokers of one name as a reader: asks the one that should be asked, another one when that
/// is gone, and comes back.
pub struct GroupReader {
    group: BrokerGroup,
    timeout: Duration,
    connections: HashMap<i64, Client>,
    /// Brokers that failed, and when they may be tried again.
    resting: HashMap<i64, Instant>,
    /// Whom the last answer suggested.
    preferred: i64,
}

impl GroupReader {
    pub fn new(group: BrokerGroup, timeout: Duration) -> GroupReader {
        GroupReader {
            group,
            timeout,
            connections: HashMap::new(),
            resting: HashMap::new(),
            preferred: 0,
        }
    }

    pub fn name(&self) -> &str {
        &self.group.name
    }

    /// New addresses, after the route was asked for again.
    pub fn set_group(&mut self, group: BrokerGroup) {
        if group != self.group {
            self.connections.clear();
            self.resting.clear();
            self.group = group;
        }
    }

    /// Whoever answers first: the preferred broker, then the others by their ids.
    pub fn ask<T>(
        &mut self,
        question: impl Fn(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, Failure> {
        let mut last = Failure::peer(format!("no broker named {} is there", self.group.name));
        for id in self.candidates() {
            match self.ask_one(id, &question) {
                Ok(answer) => {
                    self.resting.remove(&id);
                    return Ok(answer);
                }
                Err(error) => {
                    self.connections.remove(&id);
                    self.resting.insert(id, Instant::now() + REST);
                    last = error.into();
                }
            }
        }
        Err(last)
    }

    /// A connection that was made earlier may have died with a broker that is back by now: the
    /// question is asked once more on a fresh one. It never does harm twice.
    fn ask_one<T>(
        &mut self,
        id: i64,
        question: impl Fn(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        if let Some(client) = self.connections.get_mut(&id) {
            match question(client) {
                Err(ClientError::Io(..)) => {}
                other => return other,
            }
        }
        let client = Client::connect(&self.group.addresses[&id], self.timeout)?;
        self.connections.remove(&id);
        question(self.connections.entry(id).or_insert(client))
    }

    fn candidates(&self) -> Vec<i64> {
        let now = Instant::now();
        let mut ids: Vec<i64> = self.group.addresses.keys().copied().collect();
        let rests = |id: &i64| self.resting.get(id).is_some_and(|until| now < *until);
        ids.sort_by_key(|id| (rests(id), *id != self.preferred, *id));
        ids
    }

    /// One pull. With `suspend` the broker may hold it for that long until a message comes.
    pub fn pull(
        &mut self,
        subscription: &Subscription,
        queue_id: i32,
        offset: i64,
        suspend: Option<Duration>,
    ) -> Result<Pulled, Failure> {
        let timeout = self.timeout + suspend.unwrap_or_default();
        let pulled = self.ask(|client| {
            let request = subscription.pull_request(queue_id, offset, suspend);
            let reply = client.call(request, timeout)?;
            subscription.parse(client.address(), &reply)
        })?;
        if self.group.addresses.contains_key(&pulled.suggested) {
            self.preferred = pulled.suggested;
        }
        Ok(pulled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn topic_stats_are_read_with_objects_as_keys() {
        let text = r#"{"offsetTable":{
            {"brokerName":"b","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":0,"maxOffset":7,"minOffset":2},
            {"brokerName":"b","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}}}"#;
        let body = json::parse(text.as_bytes()).expect("the dialect");
        let want = [(0, 0, 0), (1, 2, 7)];
        let found: Vec<_> = parse_topic_stats(&body)
            .iter()
            .map(|q| (q.queue_id, q.min, q.max))
            .collect();
        assert_eq!(found, want);
    }

    #[test]
    fn tags_are_compared_as_text() {
        let mut subscription = Subscription {
            group: "G".into(),
            topic: "T".into(),
            tags: "red || green".into(),
        };
        let tagged = |tag: &str| Message {
            properties: vec![("TAGS".into(), tag.into())],
            ..Message::default()
        };
        assert!(subscription.wants(&tagged("green")) && !subscription.wants(&tagged("blue")));
        assert!(!subscription.wants(&Message::default()));
        subscription.tags = "*".into();
        assert!(subscription.wants(&Message::default()));
    }

    #[test]
    fn a_broker_that_failed_rests_behind_the_others() {
        let addresses = BTreeMap::from([
            (0, "m".to_owned()),
            (1, "s".to_owned()),
            (2, "t".to_owned()),
        ]);
        let group = BrokerGroup {
            name: "b".into(),
            cluster: None,
            addresses,
        };
        let mut reader = GroupReader::new(group, Duration::from_secs(1));
        assert_eq!(reader.candidates(), [0, 1, 2]);
        reader.preferred = 1;
        assert_eq!(reader.candidates(), [1, 0, 2]);
        reader.resting.insert(1, Instant::now() + REST);
        assert_eq!(reader.candidates(), [0, 2, 1]);
    }
}
