//! The producers and consumers that are alive: who they are, what they subscribe to, and who is
//! told when a group changes.
//!
//! A client names its groups in every heartbeat, on one connection a broker. It is gone when that
//! connection closes, when it says so (35), or when it has been silent for `CLIENT_EXPIRY`.
//! Consumers announce themselves to masters and slaves alike, so each broker knows them all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use mio::Token;
use serde_json::{Value, json};

use super::groups::{self, Groups, SubscriptionGroup};
use super::outbox::{Outbox, Peer};
use super::refusal::{Refusal, reply};
use super::subscription::{Subscription, TAG};
use super::topics::{Topics, retry_topic};
use crate::base::json as dialect;
use crate::remoting::codes::{request as code, response};
use crate::remoting::{Command, Fields};

/// A client without a heartbeat for that long is gone, and its connection closed. Clients send one
/// every 30 seconds.
pub const CLIENT_EXPIRY: Duration = Duration::from_secs(120);

const CONSUME_TYPES: [&str; 3] = ["CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"];
const BROADCASTING: &str = "BROADCASTING";
const MESSAGE_MODELS: [&str; 2] = [BROADCASTING, "CLUSTERING"];
const CONSUME_FROM: [&str; 6] = [
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
];

/// One client of a group, on its connection.
#[derive(Clone, Debug)]
pub struct Channel {
    pub client_id: String,
    pub peer: Peer,
    pub language: &'static str,
    pub version: i32,
    pub seen: Instant,
}

/// The live members of a consumer group and what the latest heartbeat said of it.
#[derive(Default)]
struct ConsumerGroup {
    channels: HashMap<Token, Channel>,
    subscriptions: HashMap<String, Arc<Subscription>>,
    consume_type: &'static str,
    message_model: &'static str,
    consume_from: &'static str,
}

#[derive(Default)]
struct Tables {
    consumers: HashMap<String, ConsumerGroup>,
    producers: HashMap<String, HashMap<Token, Channel>>,
    /// The groups of each connection, so that its end needs no search.
    memberships: HashMap<Token, Membership>,
}

#[derive(Default)]
struct Membership {
    consumers: BTreeSet<String>,
    producers: BTreeSet<String>,
}

/// Connections that must hear that their group changed. Sent without the lock.
type Notices = Vec<(String, Vec<Token>)>;

pub struct Clients {
    tables: RwLock<Tables>,
    topics: Arc<Topics>,
    groups: Arc<Groups>,
    outbox: Arc<Outbox>,
}

impl Clients {
    pub fn new(topics: Arc<Topics>, groups: Arc<Groups>, outbox: Arc<Outbox>) -> Clients {
        Clients {
            tables: RwLock::default(),
            topics,
            groups,
            outbox,
        }
    }

    /// HEART_BEAT (34). A group that cannot be taken costs only itself, but the client hears of it.
    pub fn heartbeat(&self, request: &Command, peer: &Peer, now: Instant) -> Command {
        reply(request, self.take_heartbeat(request, peer, now))
    }

    fn take_heartbeat(
        &self,
        request: &Command,
        peer: &Peer,
        now: Instant,
    ) -> Result<Command, Refusal> {
        let body = dialect::parse(request.body()).map_err(|e| Refusal::error(e.to_string()))?;
        let client_id = dialect::text(&body, "clientID")
            .ok_or_else(|| Refusal::error("the heartbeat has no clientID"))?;
        let channel = Channel {
            client_id: client_id.to_owned(),
            peer: *peer,
            language: request.header.language.name(),
            version: request.header.version,
            seen: now,
        };
        let mut failure = None;
        for consumer in listed(&body, "consumerDataSet") {
            if let Err(why) = self.register_consumer(consumer, &channel) {
                failure = Some(why);
            }
        }
        for producer in listed(&body, "producerDataSet") {
            if let Err(why) = self.register_producer(producer, &channel) {
                failure = Some(why);
            }
        }
        match failure {
            None => Ok(Command::reply(request, response::SUCCESS)),
            Some(why) => {
                log::warn!("{}: heartbeat of {client_id}: {why}", peer.address);
                Err(Refusal::error(why))
            }
        }
    }

    fn register_consumer(&self, data: &Value, channel: &Channel) -> Result<(), String> {
        let group = group_name(data)?;
        let mut wanted = HashMap::new();
        for entry in listed(data, "subscriptionDataSet") {
            let subscription = Subscription::from_json(entry)?;
            wanted.insert(subscription.topic.clone(), Arc::new(subscription));
        }
        if let Some(config) = self.groups.find_or_create(group) {
            self.topics
                .create_internal(&retry_topic(group), config.retry_queues);
        }
        let mut tables = self.write();
        tables
            .membership(channel)
            .consumers
            .insert(group.to_owned());
        let entry = tables.consumers.entry(group.to_owned()).or_default();
        entry.consume_type = enum_name(data, "consumeType", &CONSUME_TYPES, 1);
        entry.message_model = enum_name(data, "messageModel", &MESSAGE_MODELS, 1);
        entry.consume_from = enum_name(data, "consumeFromWhere", &CONSUME_FROM, 0);
        let joined = entry.join(channel);
        let changed = entry.subscribe(wanted);
        let tokens: Vec<Token> = entry.channels.keys().copied().collect();
        drop(tables);
        if joined || changed {
            self.notify(vec![(group.to_owned(), tokens)]);
        }
        Ok(())
    }

    fn register_producer(&self, data: &Value, channel: &Channel) -> Result<(), String> {
        let group = group_name(data)?;
        let mut tables = self.write();
        tables
            .membership(channel)
            .producers
            .insert(group.to_owned());
        let channels = tables.producers.entry(group.to_owned()).or_default();
        channels.insert(channel.peer.connection, channel.clone());
        Ok(())
    }

    /// UNREGISTER_CLIENT (35): this connection leaves the groups it names. Always a success.
    pub fn unregister(&self, request: &Command, peer: &Peer) -> Command {
        let named = |field| request.ext().get(field).filter(|group| !group.is_empty());
        let notices = {
            let mut tables = self.write();
            if let Some(group) = named("producerGroup") {
                tables.leave_producers(group, peer.connection);
            }
            let left = named("consumerGroup")
                .and_then(|group| tables.leave_consumers(group, peer.connection));
            left.into_iter().collect()
        };
        self.notify(notices);
        Command::reply(request, response::SUCCESS)
    }

    /// A connection ended: its client leaves all groups.
    pub fn on_closed(&self, connection: Token) {
        let notices = self.write().remove(connection);
        self.notify(notices);
    }

    /// Removes the clients that have been silent for too long. Their connections are returned, to
    /// be closed.
    pub fn expire(&self, now: Instant) -> Vec<Token> {
        let mut silent = BTreeSet::new();
        let mut notices = Vec::new();
        {
            let mut tables = self.write();
            let consumers = tables
                .consumers
                .values()
                .flat_map(|group| group.channels.values());
            let producers = tables.producers.values().flat_map(HashMap::values);
            for channel in consumers.chain(producers) {
                if now.saturating_duration_since(channel.seen) > CLIENT_EXPIRY {
                    log::warn!(
                        "{}: no heartbeat of {}",
                        channel.peer.address,
                        channel.client_id
                    );
                    silent.insert(channel.peer.connection);
                }
            }
            for connection in &silent {
                notices.extend(tables.remove(*connection));
            }
        }
        self.notify(notices);
        silent.into_iter().collect()
    }

    /// GET_CONSUMER_LIST_BY_GROUP (38). A group without members is an error: clients then keep
    /// the queues they have.
    pub fn consumer_list(&self, request: &Command) -> Command {
        let ids = request
            .ext()
            .need("consumerGroup")
            .map(|group| self.client_ids(group));
        match ids {
            Err(error) => Refusal::from(error).to_reply(request),
            Ok(ids) if ids.is_empty() => {
                Refusal::error("the group has no members here").to_reply(request)
            }
            Ok(ids) => Command::reply(request, response::SUCCESS)
                .with_body(dialect::write(&json!({ "consumerIdList": ids }))),
        }
    }

    /// GET_CONSUMER_CONNECTION_LIST (203).
    pub fn consumer_connections(&self, request: &Command) -> Result<Command, Refusal> {
        let group = request.ext().need("consumerGroup")?;
        let tables = self.read();
        let members = tables.consumers.get(group).ok_or_else(|| {
            Refusal::new(
                response::CONSUMER_NOT_ONLINE,
                "no consumer of the group is connected",
            )
        })?;
        let subscriptions: BTreeMap<_, _> = members
            .subscriptions
            .iter()
            .map(|(topic, subscription)| (topic, subscription.to_json()))
            .collect();
        let body = json!({
            "connectionSet": connections(members.channels.values()),
            "consumeFromWhere": members.consume_from,
            "consumeType": members.consume_type,
            "messageModel": members.message_model,
            "subscriptionTable": subscriptions,
        });
        Ok(Command::reply(request, response::SUCCESS).with_body(dialect::write(&body)))
    }

    /// GET_PRODUCER_CONNECTION_LIST (204).
    pub fn producer_connections(&self, request: &Command) -> Result<Command, Refusal> {
        let group = request.ext().need("producerGroup")?;
        let tables = self.read();
        let members = tables
            .producers
            .get(group)
            .ok_or_else(|| Refusal::error("no producer of the group is connected"))?;
        let body = json!({ "connectionSet": connections(members.values()) });
        Ok(Command::reply(request, response::SUCCESS).with_body(dialect::write(&body)))
    }

    /// CHECK_CLIENT_CONFIG (46): clients ask before they subscribe by anything but tags.
    pub fn check_client_config(&self, request: &Command) -> Command {
        let wanted = match dialect::parse(request.body()) {
            Ok(body) => body,
            Err(error) => return Refusal::error(error.to_string()).to_reply(request),
        };
        let kind = wanted
            .get("subscriptionData")
            .and_then(|data| dialect::text(data, "expressionType"))
            .filter(|kind| !kind.is_empty());
        match kind {
            None | Some(TAG) => Command::reply(request, response::SUCCESS),
            Some(kind) => unsupported_filter(kind).to_reply(request),
        }
    }

    /// The subscription that a pull goes by when it brings none of its own: the group's latest
    /// heartbeat. `version` is the one the client believes in.
    pub fn subscription(
        &self,
        group: &SubscriptionGroup,
        topic: &str,
        version: i64,
    ) -> Result<Arc<Subscription>, Refusal> {
        let tables = self.read();
        let members = tables.consumers.get(&group.name).ok_or_else(|| {
            Refusal::new(
                response::SUBSCRIPTION_NOT_EXIST,
                "no heartbeat of the group has come",
            )
        })?;
        if members.message_model == BROADCASTING && !group.broadcast_enable {
            return Err(Refusal::new(
                response::NO_PERMISSION,
                "the group may not consume by broadcast",
            ));
        }
        let found = members.subscriptions.get(topic).ok_or_else(|| {
            Refusal::new(
                response::SUBSCRIPTION_NOT_EXIST,
                "the group does not subscribe to the topic",
            )
        })?;
        if found.version < version {
            return Err(Refusal::new(
                response::SUBSCRIPTION_NOT_LATEST,
                "the subscription here is older than the client's",
            ));
        }
        if found.expression_type != TAG {
            return Err(unsupported_filter(&found.expression_type));
        }
        Ok(found.clone())
    }

    /// The ids of a group's live members, sorted.
    pub fn client_ids(&self, group: &str) -> Vec<String> {
        let tables = self.read();
        let channels = tables
            .consumers
            .get(group)
            .into_iter()
            .flat_map(|g| g.channels.values());
        // A client that came back before its old connection ended is one member.
        let ids: BTreeSet<String> = channels.map(|channel| channel.client_id.clone()).collect();
        ids.into_iter().collect()
    }

    /// Whether the group has members, and if so, whether they subscribe to the topic.
    pub fn subscribes(&self, group: &str, topic: &str) -> Option<bool> {
        let tables = self.read();
        let members = tables.consumers.get(group)?;
        Some(members.subscriptions.contains_key(topic))
    }

    /// The live groups that subscribe to a topic.
    pub fn groups_of(&self, topic: &str) -> Vec<String> {
        let tables = self.read();
        let mut groups: Vec<String> = tables
            .consumers
            .iter()
            .filter(|(_, members)| members.subscriptions.contains_key(topic))
            .map(|(group, _)| group.clone())
            .collect();
        groups.sort_unstable();
        groups
    }

    /// Connected producer and consumer clients, for the figures.
    pub fn count(&self) -> usize {
        self.read().memberships.len()
    }

    fn notify(&self, notices: Notices) {
        for (group, connections) in notices {
            if !self
                .groups
                .get(&group)
                .is_none_or(|config| config.notify_changes)
            {
                continue;
            }
            let ext = Fields::default().with("consumerGroup", &group);
            let notice = Command::request(code::NOTIFY_CONSUMER_IDS_CHANGED, ext).oneway();
            for connection in connections {
                self.outbox.push(connection, &notice);
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn membership(&mut self, channel: &Channel) -> &mut Membership {
        self.memberships.entry(channel.peer.connection).or_default()
    }

    /// The connection leaves the group; those that stay are to be told.
    fn leave_consumers(&mut self, group: &str, connection: Token) -> Option<(String, Vec<Token>)> {
        let members = self.consumers.get_mut(group)?;
        members.channels.remove(&connection)?;
        let stay: Vec<Token> = members.channels.keys().copied().collect();
        if stay.is_empty() {
            self.consumers.remove(group);
        }
        if let Some(membership) = self.memberships.get_mut(&connection) {
            membership.consumers.remove(group);
        }
        self.forget_if_idle(connection);
        Some((group.to_owned(), stay))
    }

    fn leave_producers(&mut self, group: &str, connection: Token) {
        if let Some(members) = self.producers.get_mut(group) {
            members.remove(&connection);
            if members.is_empty() {
                self.producers.remove(group);
            }
        }
        if let Some(membership) = self.memberships.get_mut(&connection) {
            membership.producers.remove(group);
        }
        self.forget_if_idle(connection);
    }

    fn forget_if_idle(&mut self, connection: Token) {
        let idle = |m: &Membership| m.consumers.is_empty() && m.producers.is_empty();
        if self.memberships.get(&connection).is_some_and(idle) {
            self.memberships.remove(&connection);
        }
    }

    fn remove(&mut self, connection: Token) -> Notices {
        let Some(membership) = self.memberships.remove(&connection) else {
            return Notices::new();
        };
        for group in &membership.producers {
            self.leave_producers(group, connection);
        }
        let consumers = membership.consumers.iter();
        consumers
            .filter_map(|group| self.leave_consumers(group, connection))
            .collect()
    }
}

impl ConsumerGroup {
    /// Adds or renews a member; true if it is new.
    fn join(&mut self, channel: &Channel) -> bool {
        let old = self
            .channels
            .insert(channel.peer.connection, channel.clone());
        old.is_none_or(|old| old.client_id != channel.client_id)
    }

    /// Takes over a heartbeat's subscriptions: the higher version of each topic, and no topic
    /// that the heartbeat lacks. True if a topic came or went; a new version alone moves no queue.
    fn subscribe(&mut self, wanted: HashMap<String, Arc<Subscription>>) -> bool {
        let before = self.subscriptions.len();
        self.subscriptions
            .retain(|topic, _| wanted.contains_key(topic));
        let mut changed = self.subscriptions.len() < before;
        for (topic, subscription) in wanted {
            match self.subscriptions.get(&topic) {
                Some(old) if old.version >= subscription.version => {}
                Some(_) => {
                    self.subscriptions.insert(topic, subscription);
                }
                None => {
                    changed = true;
                    self.subscriptions.insert(topic, subscription);
                }
            }
        }
        changed
    }
}

/// Filtering by anything but tags. Clients show the remark to their user.
pub fn unsupported_filter(kind: &str) -> Refusal {
    Refusal::error(format!("this broker does not filter messages by {kind}"))
}

fn listed<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn group_name(data: &Value) -> Result<&str, String> {
    let group = dialect::text(data, "groupName").ok_or("a group has no groupName")?;
    groups::check_name(group).map_err(|why| format!("group {group:?}: {why}"))?;
    Ok(group)
}

/// A Java enum by its name or, as C++ sends it, its ordinal.
fn enum_name(data: &Value, member: &str, names: &[&'static str], default: usize) -> &'static str {
    let by_name =
        dialect::text(data, member).and_then(|text| names.iter().find(|name| **name == text));
    let by_ordinal = || names.get(usize::try_from(dialect::number(data, member)?).ok()?);
    by_name.or_else(by_ordinal).unwrap_or(&names[default])
}

fn connections<'a>(channels: impl Iterator<Item = &'a Channel>) -> Vec<Value> {
    channels
        .map(|channel| {
            json!({
                "clientAddr": channel.peer.address.to_string(),
                "clientId": channel.client_id,
                "language": channel.language,
                "version": channel.version,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::topics::BuiltinTopics;
    use mio::{Poll, Waker};

    struct Fixture {
        clients: Clients,
        start: Instant,
        _poll: Poll,
        _dir: tempfile::TempDir,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let builtin = BuiltinTopics {
            cluster: "C".into(),
            broker_name: "b".into(),
            auto_create: true,
            default_queues: 8,
            cluster_topic: true,
            broker_topic: true,
            trace_topic: None,
        };
        let topics = Topics::open(dir.path(), &builtin, false).expect("topics");
        let groups = Groups::open(dir.path(), true, false).expect("groups");
        let poll = Poll::new().expect("a poll");
        let waker = Waker::new(poll.registry(), Token(1)).expect("a waker");
        let outbox = Arc::new(Outbox::new(waker));
        Fixture {
            clients: Clients::new(Arc::new(topics), Arc::new(groups), outbox),
            start: Instant::now(),
            _poll: poll,
            _dir: dir,
        }
    }

    impl Fixture {
        fn beat(&self, connection: usize, body: &Value) -> Command {
            self.beat_at(connection, body, self.start)
        }

        fn beat_at(&self, connection: usize, body: &Value, now: Instant) -> Command {
            let request = Command::request(code::HEART_BEAT, Fields::default())
                .with_body(dialect::write(body));
            self.clients.heartbeat(&request, &peer(connection), now)
        }

        /// Connections that were told of a change since the last call, sorted.
        fn told(&self) -> Vec<usize> {
            let mut told: Vec<usize> = Vec::new();
            for outgoing in self.clients.outbox.take() {
                let notice = Command::decode(outgoing.bytes).expect("a request");
                assert_eq!(notice.code(), code::NOTIFY_CONSUMER_IDS_CHANGED);
                assert!(notice.is_oneway() && notice.ext().get("consumerGroup") == Some("G"));
                told.push(outgoing.connection.0);
            }
            told.sort_unstable();
            told
        }
    }

    fn peer(connection: usize) -> Peer {
        Peer {
            connection: Token(connection),
            address: ([127, 0, 0, 1], connection as u16).into(),
            fast: false,
        }
    }

    fn java(client: &str, topics: &[&str], version: i64) -> Value {
        let subscriptions: Vec<Value> = topics
            .iter()
            .map(|topic| {
                json!({"classFilterMode": false, "codeSet": [], "expressionType": "TAG",
                    "subString": "*", "subVersion": version, "tagsSet": [], "topic": topic})
            })
            .collect();
        json!({"clientID": client, "consumerDataSet": [{
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
            "groupName": "G", "messageModel": "CLUSTERING", "unitMode": false,
            "subscriptionDataSet": subscriptions}], "producerDataSet": [{"groupName": "P"}]})
    }

    #[test]
    fn members_are_told_when_one_joins_or_leaves_or_subscriptions_change() {
        let f = fixture();
        assert!(f.beat(20, &java("a", &["T"], 1)).is_success());
        assert_eq!(f.told(), [20]);
        assert!(f.clients.topics.get("%RETRY%G").is_some());
        f.beat(21, &java("b", &["T"], 1));
        assert_eq!(f.told(), [20, 21]);
        f.beat(20, &java("a", &["T"], 1));
        f.beat(20, &java("a", &["T"], 2));
        assert_eq!(f.told(), [0usize; 0]);
        f.beat(20, &java("a", &["T", "U"], 2));
        assert_eq!(f.told(), [20, 21]);
        assert_eq!(f.clients.client_ids("G"), ["a", "b"]);
        f.clients.on_closed(Token(21));
        assert_eq!(
            (f.told(), f.clients.client_ids("G")),
            (vec![20], vec!["a".into()])
        );
        assert_eq!(f.clients.count(), 1);
    }

    #[test]
    fn a_group_without_members_has_no_list_and_unregistering_is_always_a_success() {
        let f = fixture();
        let list = Command::request(
            code::GET_CONSUMER_LIST_BY_GROUP,
            Fields::default().with("consumerGroup", "G"),
        );
        assert_eq!(
            f.clients.consumer_list(&list).code(),
            response::SYSTEM_ERROR
        );
        f.beat(20, &java("a", &["T"], 1));
        assert_eq!(
            f.clients.consumer_list(&list).body(),
            br#"{"consumerIdList":["a"]}"#
        );
        let leave = Fields::default()
            .with("consumerGroup", "G")
            .with("producerGroup", "P");
        let leave = Command::request(code::UNREGISTER_CLIENT, leave);
        for _ in 0..2 {
            assert!(f.clients.unregister(&leave, &peer(20)).is_success());
        }
        assert_eq!(
            f.clients.consumer_list(&list).code(),
            response::SYSTEM_ERROR
        );
        assert_eq!(f.clients.count(), 0);
    }

    #[test]
    fn a_silent_client_expires_and_its_connection_is_to_be_closed() {
        let f = fixture();
        f.beat(20, &java("a", &["T"], 1));
        f.beat_at(21, &java("b", &["T"], 1), f.start + Duration::from_secs(60));
        f.told();
        assert_eq!(
            f.clients.expire(f.start + CLIENT_EXPIRY),
            [0usize; 0].map(Token)
        );
        let late = f.start + CLIENT_EXPIRY + Duration::from_secs(1);
        assert_eq!(f.clients.expire(late), [Token(20)]);
        assert_eq!(
            (f.told(), f.clients.client_ids("G")),
            (vec![21], vec!["b".into()])
        );
    }

    #[test]
    fn a_pull_finds_its_subscription_or_hears_why_not() {
        let f = fixture();
        let group = SubscriptionGroup::new("G");
        let code_of = |group: &SubscriptionGroup, topic, version| {
            f.clients
                .subscription(group, topic, version)
                .map_or_else(|no| no.code, |_| 0)
        };
        assert_eq!(code_of(&group, "T", 1), response::SUBSCRIPTION_NOT_EXIST);
        f.beat(20, &java("a", &["T"], 5));
        assert_eq!(code_of(&group, "T", 5), 0);
        assert_eq!(code_of(&group, "T", 6), response::SUBSCRIPTION_NOT_LATEST);
        assert_eq!(code_of(&group, "U", 0), response::SUBSCRIPTION_NOT_EXIST);
        let mut body = java("a", &["T"], 5);
        body["consumerDataSet"][0]["messageModel"] = json!("BROADCASTING");
        f.beat(20, &body);
        assert_eq!(code_of(&group, "T", 5), 0);
        let quiet = SubscriptionGroup {
            broadcast_enable: false,
            ..group
        };
        assert_eq!(code_of(&quiet, "T", 5), response::NO_PERMISSION);
    }

    #[test]
    fn a_heartbeat_of_cpp_has_ordinals_and_text_versions_and_lacks_sets() {
        let f = fixture();
        let body = json!({"clientID": "c", "consumerDataSet": [{"consumeFromWhere": 4,
            "consumeType": 1, "groupName": "G", "messageModel": 0,
            "subscriptionDataSet": [{"subString": "tagA", "subVersion": "9", "topic": "T"}]}]});
        assert!(f.beat(20, &body).is_success());
        let request = Command::request(
            code::GET_CONSUMER_CONNECTION_LIST,
            Fields::default().with("consumerGroup", "G"),
        );
        let answer = f.clients.consumer_connections(&request).expect("online");
        let answer = dialect::parse(answer.body()).expect("a body");
        assert_eq!(answer["consumeFromWhere"], "CONSUME_FROM_FIRST_OFFSET");
        assert_eq!(answer["consumeType"], "CONSUME_PASSIVELY");
        assert_eq!(answer["messageModel"], "BROADCASTING");
        assert_eq!(answer["subscriptionTable"]["T"]["subVersion"], 9);
        assert_eq!(answer["connectionSet"][0]["clientAddr"], "127.0.0.1:20");
    }

    #[test]
    fn one_bad_group_is_refused_and_the_others_are_taken() {
        let f = fixture();
        let mut body = java("a", &["T"], 1);
        let bad = json!({"groupName": "../G", "subscriptionDataSet": []});
        body["consumerDataSet"]
            .as_array_mut()
            .expect("a list")
            .insert(0, bad);
        assert!(!f.beat(20, &body).is_success());
        assert_eq!(f.clients.client_ids("G"), ["a"]);
        for broken in [json!({}), json!([]), json!({"clientID": 5})] {
            assert!(!f.beat(21, &broken).is_success(), "{broken}");
        }
    }

    #[test]
    fn filters_other_than_tags_are_refused() {
        let f = fixture();
        let check = |kind: &str| {
            let body = json!({"clientId": "a", "subscriptionData": {"expressionType": kind}});
            let request = Command::request(code::CHECK_CLIENT_CONFIG, Fields::default())
                .with_body(dialect::write(&body));
            f.clients.check_client_config(&request).code()
        };
        assert_eq!((check("TAG"), check("SQL92")), (0, response::SYSTEM_ERROR));
    }
}
