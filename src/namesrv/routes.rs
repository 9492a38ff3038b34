//! The route table: brokers, their topics, and since when each was heard. No sockets, and time
//! comes in as an argument.
//!
//! A broker name stands for a master (id 0) and its slaves. Three rules of the original are easy
//! to get wrong, and each has its test in requests_tests.rs:
//!
//! - A registration adds and changes topics and never takes one away: brokers also register a
//!   single topic that has just been created.
//! - Topics come from the master. While none is known they come from the slave with the lowest
//!   id, so that a name server which restarts meanwhile still leads consumers to the slave.
//! - A broker that is gone leaves its topics behind as long as another id of its name is there.
//!
//! Two brokers that claim one id of one name (a configuration copied, or a master that moved to
//! another host) would replace each other at every registration. Here the one that is registered
//! keeps its place while it is alive, that is while its connection is open and it was heard within
//! `HOLDS_FOR`; the other one is refused and told so. A larger `stateVersion` wins at once: a
//! promotion raises it.

use crate::base::data_version::DataVersion;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use super::registration_body::RegistrationBody;

/// Silence after which a broker is gone, unless its registration says otherwise.
pub const SILENCE_MAX: Duration = Duration::from_secs(120);
/// How long a silent broker keeps its id against another address. Brokers register every 60 s or
/// more often.
pub const HOLDS_FOR: Duration = Duration::from_secs(65);
/// Anyone can register, so the table has bounds. They are far above what a cluster has.
const BROKER_NAMES_MAX: usize = 10_000;
const IDS_MAX: usize = 100;
const QUEUE_DATAS_MAX: usize = 1_000_000;

pub const MASTER_ID: i64 = 0;
const PERM_WRITE: i32 = 2;
const PERM_READ_WRITE: i32 = 6;
const SYS_FLAG_UNIT: i32 = 1;
const SYS_FLAG_UNIT_SUB: i32 = 2;

/// One topic's queues on one broker name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueData {
    pub read_queues: i32,
    pub write_queues: i32,
    pub perm: i32,
    pub sys_flag: i32,
}

/// Which broker: what every request of a broker names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerId {
    pub cluster: String,
    pub name: String,
    pub id: i64,
    pub address: String,
}

pub struct Registration {
    pub broker: BrokerId,
    pub ha_address: String,
    /// What the broker asks for instead of `SILENCE_MAX`.
    pub silence_max: Option<Duration>,
    /// `None` from brokers of the 4.x line.
    pub acting_master: Option<bool>,
    pub body: RegistrationBody,
    /// The connection it came on; when that closes, the broker is gone.
    pub connection: usize,
}

/// What a registration's answer tells a slave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterAddress {
    pub address: String,
    pub ha_address: String,
}

/// Why a registration is not taken. The broker hears the text, and prints it in its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another live broker has this id.
    Taken {
        broker: BrokerId,
        holder: String,
    },
    Full(&'static str, usize),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Taken { broker, holder } => write!(
                f,
                "broker {} id {} is registered from {holder}, which is alive; {} is not taken",
                broker.name, broker.id, broker.address
            ),
            Refused::Full(what, max) => write!(f, "the name server holds at most {max} {what}"),
        }
    }
}

/// All brokers of one name.
#[derive(Clone, Debug, Default)]
pub struct BrokerData {
    pub cluster: String,
    pub acting_master: Option<bool>,
    pub addresses: BTreeMap<i64, String>,
}

/// What is known of one registered broker beside its place in `BrokerData`.
struct Live {
    broker: BrokerId,
    ha_address: String,
    version: DataVersion,
    filter_servers: Vec<String>,
    connection: usize,
    heard: Instant,
    silence_max: Duration,
}

#[derive(Default)]
pub struct Routes {
    brokers: BTreeMap<String, BrokerData>,
    topics: BTreeMap<String, BTreeMap<String, QueueData>>,
    queue_datas: usize,
    /// By broker address. One address is one process, whatever ids it had before.
    live: BTreeMap<String, Live>,
}

/// The brokers of one topic, each with its queues.
pub type TopicRoute<'a> = Vec<(&'a str, &'a BrokerData, QueueData)>;

impl Routes {
    pub fn register(
        &mut self,
        registration: Registration,
        now: Instant,
    ) -> Result<Option<MasterAddress>, Refused> {
        self.check(&registration, now)
            .inspect_err(|refused| log::warn!("registration refused: {refused}"))?;
        let first = self.place(&registration.broker, registration.acting_master);
        if self.provides_topics(&registration.broker) {
            self.merge_topics(&registration, first);
        }
        let master = self.master_for(&registration.broker);
        self.remember(registration, now);
        Ok(master)
    }

    fn check(&self, registration: &Registration, now: Instant) -> Result<(), Refused> {
        let broker = &registration.broker;
        let topics = registration.body.topics.keys();
        self.check_room(topics.map(|topic| (topic.as_str(), broker.name.as_str())))?;
        let Some(data) = self.brokers.get(&broker.name) else {
            return bounded(self.brokers.len(), BROKER_NAMES_MAX, "broker names");
        };
        let Some(holder) = data.addresses.get(&broker.id) else {
            return bounded(data.addresses.len(), IDS_MAX, "brokers of one name");
        };
        let live = self.live.get(holder);
        let holds = live.is_some_and(|live| {
            registration.body.version.state_version <= live.version.state_version
                && now.saturating_duration_since(live.heard) < HOLDS_FOR
        });
        if *holder != broker.address && holds {
            let (broker, holder) = (broker.clone(), holder.clone());
            return Err(Refused::Taken { broker, holder });
        }
        Ok(())
    }

    /// Gives the broker its id. A new master is one that was not registered under this id with
    /// this address; a promoted slave leaves its old id, so that it is not shown twice.
    fn place(&mut self, broker: &BrokerId, acting_master: Option<bool>) -> bool {
        self.leave_other_places(broker);
        let data = self.brokers.entry(broker.name.clone()).or_default();
        // A slave whose cluster name is wrong does not move its master.
        if data.cluster.is_empty() || broker.id == MASTER_ID {
            data.cluster.clone_from(&broker.cluster);
        } else if data.cluster != broker.cluster {
            let BrokerId {
                name, id, cluster, ..
            } = broker;
            log::warn!(
                "broker {name} is of cluster {}, its id {id} says {cluster}",
                data.cluster
            );
        }
        data.acting_master = acting_master.or(data.acting_master);
        let before = data.addresses.insert(broker.id, broker.address.clone());
        let first = before.as_ref() != Some(&broker.address);
        if let Some(before) = before
            && first
        {
            log::warn!(
                "broker {} id {}: {before} is replaced",
                broker.name,
                broker.id
            );
            self.live.remove(&before);
        }
        if first {
            log::info!(
                "broker {} id {} registered from {}",
                broker.name,
                broker.id,
                broker.address
            );
        }
        first
    }

    /// Whatever else this address was registered as, it is no more.
    fn leave_other_places(&mut self, broker: &BrokerId) {
        let Some(live) = self.live.get(&broker.address) else {
            return;
        };
        if live.broker == *broker {
            return;
        }
        let old = live.broker.clone();
        if old.name == broker.name {
            // The name stays, and its topics with it: only the id changes.
            if let Some(data) = self.brokers.get_mut(&old.name)
                && data.addresses.get(&old.id) == Some(&old.address)
            {
                data.addresses.remove(&old.id);
            }
            self.live.remove(&old.address);
        } else {
            self.remove(&old.address, "registers under another name");
        }
    }

    /// The master; the lowest id where no master is known.
    fn provides_topics(&self, broker: &BrokerId) -> bool {
        let Some(data) = self.brokers.get(&broker.name) else {
            return false;
        };
        let provider = match data.addresses.get(&MASTER_ID) {
            Some(_) => Some(&MASTER_ID),
            None => data.addresses.keys().next(),
        };
        provider == Some(&broker.id)
    }

    /// As long as the version is the one that is known, only missing topics are taken: what
    /// `wipe_write_perm` did stays until the broker has something new to say.
    fn merge_topics(&mut self, registration: &Registration, first: bool) {
        let broker = &registration.broker;
        let known = self.live.get(&broker.address).map(|live| live.version);
        let changed = first || known != Some(registration.body.version);
        let read_only = broker.id != MASTER_ID && registration.acting_master == Some(true);
        for (topic, queues) in &registration.body.topics {
            let mut queues = *queues;
            if read_only {
                queues.perm &= !PERM_WRITE;
            }
            if changed || self.queue_data(topic, &broker.name).is_none() {
                self.put_queue_data(topic, &broker.name, queues);
            }
        }
    }

    fn check_room<'a>(
        &self,
        pairs: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), Refused> {
        let new = pairs.filter(|(topic, name)| self.queue_data(topic, name).is_none());
        let count = (self.queue_datas + new.count()).saturating_sub(1);
        bounded(count, QUEUE_DATAS_MAX, "topics of brokers")
    }

    fn queue_data(&self, topic: &str, broker_name: &str) -> Option<&QueueData> {
        self.topics.get(topic)?.get(broker_name)
    }

    fn put_queue_data(&mut self, topic: &str, broker_name: &str, queues: QueueData) {
        if let Some(brokers) = self.topics.get_mut(topic)
            && let Some(known) = brokers.get_mut(broker_name)
        {
            *known = queues;
            return;
        }
        self.queue_datas += 1;
        let brokers = self.topics.entry(topic.to_owned()).or_default();
        brokers.insert(broker_name.to_owned(), queues);
    }

    fn master_for(&self, broker: &BrokerId) -> Option<MasterAddress> {
        if broker.id == MASTER_ID {
            return None;
        }
        let address = self.brokers.get(&broker.name)?.addresses.get(&MASTER_ID)?;
        let live = self.live.get(address)?;
        Some(MasterAddress {
            address: address.clone(),
            ha_address: live.ha_address.clone(),
        })
    }

    fn remember(&mut self, registration: Registration, now: Instant) {
        let live = Live {
            ha_address: registration.ha_address,
            version: registration.body.version,
            filter_servers: registration.body.filter_servers,
            connection: registration.connection,
            heard: now,
            silence_max: registration.silence_max.unwrap_or(SILENCE_MAX),
            broker: registration.broker,
        };
        self.live.insert(live.broker.address.clone(), live);
    }

    /// 104. Only the broker itself: another process that claims its id cannot take it out.
    pub fn unregister(&mut self, broker: &BrokerId) {
        let ours = self
            .live
            .get(&broker.address)
            .is_some_and(|live| live.broker.name == broker.name && live.broker.id == broker.id);
        if ours {
            self.remove(&broker.address, "unregistered");
        }
    }

    /// 904 and 322: a sign of life. Returns the version that is stored, if the broker is known.
    pub fn heard(&mut self, address: &str, now: Instant) -> Option<DataVersion> {
        let live = self.live.get_mut(address)?;
        live.heard = now;
        Some(live.version)
    }

    /// The connection is gone, and with it whoever registered on it last.
    pub fn on_closed(&mut self, connection: usize) {
        let gone: Vec<String> = self
            .live
            .values()
            .filter(|live| live.connection == connection)
            .map(|live| live.broker.address.clone())
            .collect();
        for address in gone {
            self.remove(&address, "its connection is closed");
        }
    }

    /// Removes the brokers that were silent too long; returns the connections they used.
    pub fn expire(&mut self, now: Instant) -> Vec<usize> {
        let silent: Vec<(String, usize)> = self
            .live
            .values()
            .filter(|live| now.saturating_duration_since(live.heard) >= live.silence_max)
            .map(|live| (live.broker.address.clone(), live.connection))
            .collect();
        let mut connections = Vec::new();
        for (address, connection) in silent {
            self.remove(&address, "silent");
            connections.push(connection);
        }
        connections
    }

    fn remove(&mut self, address: &str, why: &str) {
        let Some(live) = self.live.remove(address) else {
            return;
        };
        let BrokerId { name, id, .. } = &live.broker;
        log::info!("broker {name} id {id} at {address} is removed: {why}");
        let Some(data) = self.brokers.get_mut(name) else {
            return;
        };
        if data.addresses.get(id).map(String::as_str) == Some(address) {
            data.addresses.remove(id);
        }
        if data.addresses.is_empty() {
            self.brokers.remove(name);
            self.remove_queue_datas(name);
        } else if *id == MASTER_ID && data.acting_master == Some(true) {
            self.change_perm(name, |perm| perm & !PERM_WRITE);
        }
    }

    fn remove_queue_datas(&mut self, broker_name: &str) {
        let removed = &mut self.queue_datas;
        self.topics.retain(|_, brokers| {
            *removed -= usize::from(brokers.remove(broker_name).is_some());
            !brokers.is_empty()
        });
    }

    /// Changes a broker name's topics, here only; returns how many there are.
    fn change_perm(&mut self, broker_name: &str, change: impl Fn(i32) -> i32) -> usize {
        let queues = self
            .topics
            .values_mut()
            .filter_map(|brokers| brokers.get_mut(broker_name));
        queues
            .map(|queues| queues.perm = change(queues.perm))
            .count()
    }

    pub fn wipe_write_perm(&mut self, broker_name: &str) -> usize {
        self.change_perm(broker_name, |perm| perm & !PERM_WRITE)
    }

    /// Also for topics that could never be written: the original does not remember.
    pub fn add_write_perm(&mut self, broker_name: &str) -> usize {
        self.change_perm(broker_name, |_| PERM_READ_WRITE)
    }

    /// 216. Without a cluster the topic goes everywhere.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        let Some(queues) = self.topics.get_mut(topic) else {
            return;
        };
        let brokers = &self.brokers;
        let before = queues.len();
        queues.retain(|name, _| {
            cluster
                .is_some_and(|cluster| brokers.get(name).is_none_or(|data| data.cluster != cluster))
        });
        self.queue_datas -= before - queues.len();
        if queues.is_empty() {
            self.topics.remove(topic);
        }
    }

    /// 217: one topic of brokers that are known.
    pub fn register_topic(
        &mut self,
        topic: &str,
        queues: &[(String, QueueData)],
    ) -> Result<(), Refused> {
        self.check_room(queues.iter().map(|(name, _)| (topic, name.as_str())))?;
        for (broker_name, queues) in queues {
            if self.brokers.contains_key(broker_name) {
                self.put_queue_data(topic, broker_name, *queues);
            }
        }
        Ok(())
    }

    /// Empty if nobody serves the topic.
    pub fn route(&self, topic: &str) -> TopicRoute<'_> {
        let queues = self.topics.get(topic).into_iter().flatten();
        let known = queues.filter_map(|(name, queues)| {
            let data = self.brokers.get(name)?;
            Some((name.as_str(), data, *queues))
        });
        known.collect()
    }

    pub fn filter_servers(&self, address: &str) -> &[String] {
        self.live
            .get(address)
            .map_or(&[], |live| &live.filter_servers)
    }

    pub fn brokers(&self) -> impl Iterator<Item = (&str, &BrokerData)> {
        self.brokers
            .iter()
            .map(|(name, data)| (name.as_str(), data))
    }

    pub fn broker(&self, name: &str) -> Option<&BrokerData> {
        self.brokers.get(name)
    }

    /// Cluster names, each with its broker names.
    pub fn clusters(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut clusters: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, data) in self.brokers() {
            clusters.entry(&data.cluster).or_default().insert(name);
        }
        clusters
    }

    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(String::as_str)
    }

    pub fn topics_of_cluster<'a>(&'a self, cluster: &'a str) -> impl Iterator<Item = &'a str> {
        self.topics_where(move |name, _| {
            self.brokers
                .get(name)
                .is_some_and(|data| data.cluster == cluster)
        })
    }

    /// 311, 312, 313: topics of units, and those with subscribers from other units.
    pub fn topics_by_unit(&self, list: UnitList) -> impl Iterator<Item = &str> {
        self.topics_where(move |_, queues| {
            let unit = queues.sys_flag & SYS_FLAG_UNIT != 0;
            let sub = queues.sys_flag & SYS_FLAG_UNIT_SUB != 0;
            match list {
                UnitList::Unit => unit,
                UnitList::HasUnitSub => sub,
                UnitList::HasUnitSubButNoUnit => sub && !unit,
            }
        })
    }

    fn topics_where<'a>(
        &'a self,
        test: impl Fn(&str, &QueueData) -> bool + 'a,
    ) -> impl Iterator<Item = &'a str> {
        let topics = self.topics.iter();
        topics
            .filter(move |(_, brokers)| brokers.iter().any(|(name, queues)| test(name, queues)))
            .map(|(topic, _)| topic.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitList {
    Unit,
    HasUnitSub,
    HasUnitSubButNoUnit,
}

fn bounded(count: usize, max: usize, what: &'static str) -> Result<(), Refused> {
    if count < max {
        Ok(())
    } else {
        Err(Refused::Full(what, max))
    }
}
