//! Requests on the broker's tables and its store, other than sends and pulls: those of tools, of
//! slaves that copy the tables, and of consumers between two pulls.
//!
//! `serve_quick` has what touches memory only and may run in the client loop; `serve` has what may
//! touch the disk. Both give `None` for a code that is not theirs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::clients::Clients;
use super::delay::Delays;
use super::groups::Groups;
use super::locks::Locks;
use super::offsets::Offsets;
use super::outbox::Peer;
use super::refusal::{Refusal, reply};
use super::runtime_info::{LiveFigures, ha_status, runtime_info};
use super::stats::Stats;
use super::topics::{TopicConfig, Topics};
use super::{groups, table::Entry, topics};
use crate::base::data_version::DataVersion;
use crate::base::json as dialect;
use crate::remoting::codes::{request as code, response};
use crate::remoting::{Command, Fields};
use crate::store::record;
use crate::store::{Chunk, Store};

/// Most messages one query answers with, as in the original.
const QUERY_MESSAGES_MAX: usize = 64;
/// Most bytes of records in one answer, so that the frame stays below its limit.
const QUERY_BYTES_MAX: usize = 12 * 1024 * 1024;
/// Most queue entries in one answer.
const ENTRIES_MAX: i64 = 4000;
/// What requesters from 5.3.0 to 5.3.3 announce, their snapshots included.
const VERSION_5_3: std::ops::RangeInclusive<i32> = 472..=480;

/// What the handlers here need of the broker. `live` is asked for each request that shows it.
pub struct AdminContext {
    pub topics: Arc<Topics>,
    pub groups: Arc<Groups>,
    pub clients: Arc<Clients>,
    pub locks: Arc<Locks>,
    pub offsets: Arc<Offsets>,
    pub delays: Arc<Delays>,
    pub store: Arc<Store>,
    pub stats: Arc<Stats>,
    pub broker_name: String,
    /// `ASYNC_MASTER`, `SYNC_MASTER` or `SLAVE`.
    pub role: &'static str,
    pub slave: bool,
    /// `ip:port` as name servers know them.
    pub address: String,
    pub ha_address: String,
    pub started_ms: i64,
    pub commit_log_dirs: Vec<PathBuf>,
    /// The effective configuration, as `key=value` lines.
    pub config_text: String,
    /// How near to the log's end a message still counts as being in memory
    /// (`accessMessageInMemoryMaxRatio` of the memory).
    pub memory_bytes: u64,
    pub live: Box<dyn Fn() -> LiveFigures + Send + Sync>,
}

type Answer = Result<Command, Refusal>;

/// Serves what touches tables in memory only.
pub fn serve_quick(
    context: &AdminContext,
    request: &Command,
    peer: &Peer,
    now: Instant,
) -> Option<Command> {
    let clients = &context.clients;
    Some(match request.code() {
        code::HEART_BEAT => clients.heartbeat(request, peer, now),
        code::UNREGISTER_CLIENT => clients.unregister(request, peer),
        code::GET_CONSUMER_LIST_BY_GROUP => clients.consumer_list(request),
        code::CHECK_CLIENT_CONFIG => clients.check_client_config(request),
        code::LOCK_BATCH_MQ => context.locks.lock(request, context.slave, now),
        code::UNLOCK_BATCH_MQ => context.locks.unlock(request),
        code::UPDATE_CONSUMER_OFFSET => {
            let offsets = &context.offsets;
            offsets.update(request, &context.topics, &context.groups)
        }
        _ => return None,
    })
}

/// Serves what may touch the disk.
pub fn serve(context: &AdminContext, request: &Command, peer: &Peer) -> Option<Command> {
    let answer = match request.code() {
        code::QUERY_CONSUMER_OFFSET => Ok(query_offset(context, request)),
        code::QUERY_MESSAGE => query_message(context, request),
        code::VIEW_MESSAGE_BY_ID => view_message(context, request),
        code::SEARCH_OFFSET_BY_TIMESTAMP => search_offset(context, request),
        code::GET_MAX_OFFSET => bound(context, request, |bounds| bounds.max),
        code::GET_MIN_OFFSET => bound(context, request, |bounds| bounds.min),
        code::GET_EARLIEST_MSG_STORETIME => earliest_time(context, request),
        code::QUERY_CONSUME_QUEUE => query_queue(context, request),
        code::UPDATE_AND_CREATE_TOPIC => update_topic(context, request),
        code::DELETE_TOPIC_IN_BROKER => delete_topic(context, request),
        code::GET_ALL_TOPIC_CONFIG => Ok(all_topics(context, request, peer)),
        code::GET_TOPIC_CONFIG => topic_config(context, request),
        code::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => Ok(system_topics(context, request)),
        code::GET_TOPIC_STATS_INFO => topic_stats(context, request),
        code::QUERY_TOPIC_CONSUME_BY_WHO => groups_of_topic(context, request),
        code::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => update_group(context, request),
        code::DELETE_SUBSCRIPTIONGROUP => delete_group(context, request),
        code::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => {
            Ok(json_reply(request, &context.groups.table().wrapper()))
        }
        code::GET_SUBSCRIPTIONGROUP_CONFIG => group_config(context, request),
        code::GET_CONSUME_STATS => consume_stats(context, request),
        code::GET_CONSUMER_CONNECTION_LIST => context.clients.consumer_connections(request),
        code::GET_PRODUCER_CONNECTION_LIST => context.clients.producer_connections(request),
        code::GET_ALL_CONSUMER_OFFSET => Ok(success(request).with_body(context.offsets.body())),
        code::GET_ALL_DELAY_OFFSET => Ok(success(request).with_body(context.delays.body())),
        code::GET_BROKER_CONFIG => Ok(broker_config(context, request)),
        code::UPDATE_BROKER_CONFIG => Err(Refusal::new(
            response::REQUEST_CODE_NOT_SUPPORTED,
            "the configuration is changed in its file, not by request",
        )),
        code::GET_BROKER_RUNTIME_INFO => Ok(json_reply(request, &runtime_info(context))),
        code::GET_BROKER_HA_STATUS => Ok(json_reply(request, &ha_status(context))),
        _ => return None,
    };
    Some(reply(request, answer))
}

fn success(request: &Command) -> Command {
    Command::reply(request, response::SUCCESS)
}

fn json_reply(request: &Command, body: &Value) -> Command {
    success(request).with_body(dialect::write(body))
}

fn ext_reply(request: &Command, name: &str, value: i64) -> Command {
    success(request).with_ext(Fields::default().with(name, value))
}

/// What the tables hold belongs to the master: a slave would lose the change with the next copy.
fn master_only(context: &AdminContext) -> Result<(), Refusal> {
    if context.slave {
        return Err(Refusal::error("this broker is a slave: ask its master"));
    }
    Ok(())
}

// ---- offsets and messages

fn query_offset(context: &AdminContext, request: &Command) -> Command {
    let store = &context.store;
    context.offsets.query(request, |topic, queue_id| {
        let Some(bounds) = store.queue_bounds(topic, queue_id) else {
            return true;
        };
        if bounds.min > 0 {
            return false;
        }
        let first = store.entry(topic, queue_id, 0);
        first.is_none_or(|first| {
            store.log().end().saturating_sub(first.log_offset) <= context.memory_bytes
        })
    })
}

/// QUERY_MESSAGE (12), by key or by unique key: both are in the index.
fn query_message(context: &AdminContext, request: &Command) -> Answer {
    let ext = request.ext();
    let (topic, key) = (ext.need("topic")?, ext.need("key")?);
    let max = ext.parse_or::<i64>("maxNum", QUERY_MESSAGES_MAX as i64)?;
    let max = usize::try_from(max).unwrap_or(0).min(QUERY_MESSAGES_MAX);
    let (begin, end) = (ext.parse("beginTimestamp")?, ext.parse("endTimestamp")?);
    let found = match max {
        0 => Vec::new(),
        _ => context.store.query(topic, key, max, begin, end),
    };
    let mut body = Vec::new();
    for offset in found {
        let Ok(record) = context.store.record(offset) else {
            continue; // Deleted since it was found.
        };
        if !body.is_empty() && body.len() + record.len() > QUERY_BYTES_MAX {
            break;
        }
        body.extend_from_slice(&record);
    }
    if body.is_empty() {
        return Err(Refusal::new(
            response::QUERY_NOT_FOUND,
            "no message has this key",
        ));
    }
    let figures = context.store.figures();
    let ext = Fields::default()
        .with(
            "indexLastUpdateTimestamp",
            figures.latest_stored_ms.unwrap_or(0),
        )
        .with("indexLastUpdatePhyoffset", figures.dispatched);
    Ok(success(request).with_ext(ext).with_body(body))
}

/// VIEW_MESSAGE_BY_ID (33). Only a whole, intact record leaves: the offset may point anywhere.
fn view_message(context: &AdminContext, request: &Command) -> Answer {
    let offset: i64 = request.ext().parse("offset")?;
    let record = u64::try_from(offset)
        .ok()
        .and_then(|at| context.store.record(at).ok());
    let record = record.ok_or_else(|| Refusal::error(format!("no message at {offset}")))?;
    Ok(success(request).with_body(record.to_vec()))
}

fn queue_of(request: &Command) -> Result<(&str, i32), Refusal> {
    let ext = request.ext();
    Ok((ext.need("topic")?, ext.parse("queueId")?))
}

fn bound(
    context: &AdminContext,
    request: &Command,
    pick: fn(crate::store::QueueBounds) -> i64,
) -> Answer {
    let (topic, queue_id) = queue_of(request)?;
    context.store.settle();
    let bounds = context.store.queue_bounds(topic, queue_id);
    Ok(ext_reply(request, "offset", bounds.map_or(0, pick)))
}

fn search_offset(context: &AdminContext, request: &Command) -> Answer {
    let (topic, queue_id) = queue_of(request)?;
    let time_ms = request.ext().parse("timestamp")?;
    let upper = request
        .ext()
        .get("boundaryType")
        .is_some_and(|kind| kind.eq_ignore_ascii_case("UPPER"));
    let known = context.store.queue_bounds(topic, queue_id);
    let offset = known.map_or(0, |_| {
        context
            .store
            .offset_by_time(topic, queue_id, time_ms, upper)
    });
    Ok(ext_reply(request, "offset", offset))
}

fn earliest_time(context: &AdminContext, request: &Command) -> Answer {
    let (topic, queue_id) = queue_of(request)?;
    let bounds = context.store.queue_bounds(topic, queue_id);
    let first = bounds.and_then(|bounds| stored_at(context, topic, queue_id, bounds.min));
    Ok(ext_reply(request, "timestamp", first.unwrap_or(-1)))
}

fn record_at(context: &AdminContext, topic: &str, queue_id: i32, offset: i64) -> Option<Chunk> {
    let entry = context.store.entry(topic, queue_id, offset)?;
    context.store.record(entry.log_offset).ok()
}

/// Store time of a queue's message.
fn stored_at(context: &AdminContext, topic: &str, queue_id: i32, offset: i64) -> Option<i64> {
    record::peek_stored_ms(&record_at(context, topic, queue_id, offset)?)
}

/// QUERY_CONSUME_QUEUE (321): the entries themselves, for people who look into a queue.
fn query_queue(context: &AdminContext, request: &Command) -> Answer {
    let (topic, queue_id) = queue_of(request)?;
    let ext = request.ext();
    let (index, count) = (
        ext.parse::<i64>("index")?,
        ext.parse_or::<i64>("count", 10)?,
    );
    let bounds = context
        .store
        .queue_bounds(topic, queue_id)
        .ok_or_else(|| Refusal::error(format!("{topic} has no queue {queue_id} here")))?;
    let group = ext
        .get("consumerGroup")
        .and_then(|group| context.groups.get(group));
    let wanted = group.and_then(|group| context.clients.subscription(&group, topic, 0).ok());
    let from = index.max(bounds.min);
    let to = from
        .saturating_add(count.clamp(0, ENTRIES_MAX))
        .min(bounds.max);
    let entries = (from..to).map_while(|at| context.store.entry(topic, queue_id, at));
    let rows: Vec<Value> = entries
        .map(|entry| {
            json!({
                "eval": wanted.as_ref().is_some_and(|wanted| wanted.matches(entry.tags_code)),
                "physicOffset": entry.log_offset,
                "physicSize": entry.size,
                "tagsCode": entry.tags_code,
            })
        })
        .collect();
    let mut body = json!({
        "maxQueueIndex": bounds.max,
        "minQueueIndex": bounds.min,
        "queueData": rows,
    });
    if let Some(wanted) = wanted {
        body["subscriptionData"] = wanted.to_json();
    }
    Ok(json_reply(request, &body))
}

// ---- topics

/// UPDATE_AND_CREATE_TOPIC (17).
fn update_topic(context: &AdminContext, request: &Command) -> Answer {
    master_only(context)?;
    let ext = request.ext();
    let name = ext.need("topic")?;
    let old = context.topics.get(name);
    let mut config = TopicConfig::new(name, 0, ext.parse("perm")?);
    config.read_queues = ext.parse("readQueueNums")?;
    config.write_queues = ext.parse("writeQueueNums")?;
    config.sys_flag = ext.parse_or("topicSysFlag", 0)?;
    config.order = ext.flag("order");
    if let Some(kind) = ext.get("topicFilterType").filter(|kind| !kind.is_empty()) {
        config.filter_type = kind.to_owned();
    }
    config.others = old.map(|old| old.others.clone()).unwrap_or_default();
    if let Some(text) = ext.get("attributes").filter(|text| !text.is_empty()) {
        change_attributes(&mut config.others, text).map_err(Refusal::error)?;
    }
    context.topics.update(config).map_err(Refusal::error)?;
    save(context)?;
    Ok(success(request))
}

/// The attributes that 5.x knows. A slave of 5.3.3 that meets another one loses its topics.
const TOPIC_ATTRIBUTES: [&str; 4] = [
    "queue.type",
    "cleanup.policy",
    "message.type",
    "reserve.time",
];

/// `+key=value` sets an attribute and `-key` removes one, separated by commas, as in 5.x.
fn change_attributes(others: &mut Map<String, Value>, text: &str) -> Result<(), String> {
    let mut attributes = match others.get("attributes") {
        Some(Value::Object(attributes)) => attributes.clone(),
        _ => Map::new(),
    };
    for change in text
        .split(',')
        .map(str::trim)
        .filter(|change| !change.is_empty())
    {
        match (change.strip_prefix('+'), change.strip_prefix('-')) {
            (Some(set), _) => {
                let (key, value) = set
                    .split_once('=')
                    .ok_or_else(|| format!("the attribute {change:?} has no value"))?;
                if !TOPIC_ATTRIBUTES.contains(&key) {
                    return Err(format!("there is no topic attribute {key:?}"));
                }
                attributes.insert(key.to_owned(), Value::from(value));
            }
            (_, Some(key)) => {
                attributes.remove(key);
            }
            _ => {
                return Err(format!(
                    "the attribute {change:?} starts with neither + nor -"
                ));
            }
        }
    }
    others.insert("attributes".into(), Value::Object(attributes));
    Ok(())
}

/// DELETE_TOPIC_IN_BROKER (215): the topic, its queues and its offsets. Also for one unknown here.
fn delete_topic(context: &AdminContext, request: &Command) -> Answer {
    master_only(context)?;
    let topic = request.ext().need("topic")?;
    context.topics.delete(topic).map_err(Refusal::error)?;
    save(context)?;
    context.store.delete_topic(topic).map_err(|error| {
        log::error!("queues of the deleted topic {topic}: {error}");
        Refusal::error("the topic is deleted, its queues could not be")
    })?;
    context.offsets.remove_topic(topic);
    log::info!("topic {topic} deleted");
    Ok(success(request))
}

/// Writes the tables that a request changed, before it is answered.
fn save(context: &AdminContext) -> Result<(), Refusal> {
    let saved = context.topics.table().save_if_changed();
    saved
        .and_then(|_| context.groups.table().save_if_changed())
        .map_err(|error| {
            log::error!("a table could not be saved: {error}");
            Refusal::error("the change is made but could not be saved")
        })?;
    Ok(())
}

/// GET_ALL_TOPIC_CONFIG (21), asked by slaves and tools.
fn all_topics(context: &AdminContext, request: &Command, peer: &Peer) -> Command {
    let mut wrapper = context.topics.table().wrapper();
    // A 5.3 slave puts each attribute through the check for administrators, which wants a "+", and
    // loses its topics otherwise. Slaves ask on the fast port; tools do not, and would show it.
    if peer.fast && VERSION_5_3.contains(&request.header.version) {
        mark_attributes(&mut wrapper);
    }
    json_reply(request, &wrapper)
}

fn mark_attributes(wrapper: &mut Value) {
    let topics = wrapper
        .get_mut(TopicConfig::MEMBER)
        .and_then(Value::as_object_mut);
    for topic in topics.into_iter().flat_map(|topics| topics.values_mut()) {
        if let Some(Value::Object(attributes)) = topic.get_mut("attributes") {
            let marked = std::mem::take(attributes).into_iter();
            *attributes = marked
                .map(|(key, value)| (format!("+{key}"), value))
                .collect();
        }
    }
}

fn topic_config(context: &AdminContext, request: &Command) -> Answer {
    let topic = known_topic(context, request.ext().need("topic")?)?;
    Ok(json_reply(request, &topic.to_json()))
}

fn known_topic(context: &AdminContext, topic: &str) -> Result<Arc<TopicConfig>, Refusal> {
    let unknown = || Refusal::new(response::TOPIC_NOT_EXIST, "the topic does not exist here");
    context.topics.get(topic).ok_or_else(unknown)
}

fn system_topics(context: &AdminContext, request: &Command) -> Command {
    let body = json!({
        "brokerAddr": context.address,
        "topicList": context.topics.system_names(),
    });
    json_reply(request, &body)
}

/// A queue as a map key: the object itself, bare, as fastjson writes it.
fn queue_key(context: &AdminContext, topic: &str, queue_id: i32) -> String {
    let queue = json!({
        "brokerName": context.broker_name,
        "queueId": queue_id,
        "topic": topic,
    });
    dialect::bare_key(queue)
}

/// GET_TOPIC_STATS_INFO (202).
fn topic_stats(context: &AdminContext, request: &Command) -> Answer {
    let name = request.ext().need("topic")?;
    let topic = known_topic(context, name)?;
    let mut table = Map::new();
    for queue_id in 0..topic.queues() {
        let bounds = context.store.queue_bounds(name, queue_id);
        let (min, max) = bounds.map_or((0, 0), |bounds| (bounds.min, bounds.max));
        let last = (max > min)
            .then(|| stored_at(context, name, queue_id, max - 1))
            .flatten();
        let row = json!({
            "lastUpdateTimestamp": last.unwrap_or(0),
            "maxOffset": max,
            "minOffset": min,
        });
        table.insert(queue_key(context, name, queue_id), row);
    }
    Ok(json_reply(request, &json!({ "offsetTable": table })))
}

/// QUERY_TOPIC_CONSUME_BY_WHO (300).
fn groups_of_topic(context: &AdminContext, request: &Command) -> Answer {
    let topic = request.ext().need("topic")?;
    let mut groups: BTreeSet<String> = context.offsets.groups_of(topic).into_iter().collect();
    groups.extend(context.clients.groups_of(topic));
    Ok(json_reply(request, &json!({ "groupList": groups })))
}

// ---- groups

/// UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200).
fn update_group(context: &AdminContext, request: &Command) -> Answer {
    master_only(context)?;
    let config = dialect::parse(request.body()).map_err(|e| Refusal::error(e.to_string()))?;
    context.groups.update(&config).map_err(Refusal::error)?;
    save(context)?;
    Ok(success(request))
}

/// DELETE_SUBSCRIPTIONGROUP (207). 4.9 and 5.x name the flag for its offsets differently.
fn delete_group(context: &AdminContext, request: &Command) -> Answer {
    master_only(context)?;
    let ext = request.ext();
    let group = ext.need("groupName")?;
    groups::check_name(group).map_err(Refusal::error)?;
    if context.groups.table().remove(group) {
        log::info!("subscription group {group} deleted");
    }
    if ext.flag("removeOffset") || ext.flag("cleanOffset") {
        context.offsets.remove_group(group);
    }
    save(context)?;
    Ok(success(request))
}

fn group_config(context: &AdminContext, request: &Command) -> Answer {
    let group = request.ext().need("group")?;
    let config = context.groups.find_or_create(group).ok_or_else(|| {
        let why = "the subscription group does not exist";
        Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, why)
    })?;
    Ok(json_reply(request, &config.to_json()))
}

/// GET_CONSUME_STATS (208). The rate of consumption is not counted by group, so it is left out.
fn consume_stats(context: &AdminContext, request: &Command) -> Answer {
    let ext = request.ext();
    let group = ext.need("consumerGroup")?;
    let named = ext.get("topic").filter(|topic| !topic.is_empty());
    let listed = ext.get("topicList").filter(|topics| !topics.is_empty());
    let wanted: Vec<String> = match (named, listed) {
        (Some(topic), _) => vec![topic.to_owned()],
        (None, Some(topics)) => topics.split(';').map(str::to_owned).collect(),
        (None, None) => context.offsets.topics_of(group),
    };
    let mut table = Map::new();
    for name in &wanted {
        let Some(topic) = context.topics.get(name) else {
            continue;
        };
        // A live group that does not subscribe to it any more has nothing to catch up there.
        if context.clients.subscribes(group, name) == Some(false) {
            continue;
        }
        let offsets = context.offsets.of(group, name);
        for queue_id in 0..topic.read_queues {
            let consumed = offsets.get(&queue_id).copied().unwrap_or(0).max(0);
            let row = consume_row(context, name, queue_id, consumed);
            table.insert(queue_key(context, name, queue_id), row);
        }
    }
    Ok(json_reply(request, &json!({ "offsetTable": table })))
}

fn consume_row(context: &AdminContext, topic: &str, queue_id: i32, consumed: i64) -> Value {
    let bounds = context.store.queue_bounds(topic, queue_id);
    let last = (consumed > 0)
        .then(|| stored_at(context, topic, queue_id, consumed - 1))
        .flatten();
    json!({
        "brokerOffset": bounds.map_or(0, |bounds| bounds.max),
        "consumerOffset": consumed,
        "lastTimestamp": last.unwrap_or(0),
    })
}

// ---- configuration

/// GET_BROKER_CONFIG (26).
fn broker_config(context: &AdminContext, request: &Command) -> Command {
    // It changes with a restart only, and so does its version.
    let version = DataVersion {
        timestamp: context.started_ms,
        ..DataVersion::default()
    };
    let ext = Fields::default().with("version", version.to_json());
    success(request)
        .with_ext(ext)
        .with_body(context.config_text.clone().into_bytes())
}

/// At a master's start after a crash: topics whose creation had not reached the file are found by
/// their queues (see `topics`).
pub fn adopt_topics(topics: &Topics, store: &Store) -> usize {
    let unknown = store
        .topics()
        .into_iter()
        .filter(|name| topics.get(name).is_none());
    let stored = unknown.filter_map(|name| {
        let queues = store.queues_of(&name);
        let newest_ms = queues
            .iter()
            .filter_map(|id| {
                let bounds = store.queue_bounds(&name, *id)?;
                let entry = store.entry(&name, *id, bounds.max - 1)?;
                record::peek_stored_ms(&store.record(entry.log_offset).ok()?)
            })
            .max()?;
        Some(topics::StoredTopic {
            name: name.to_string(),
            queues: queues.iter().max()? + 1,
            newest_ms,
        })
    });
    topics.adopt(stored)
}

#[cfg(test)]
mod tests;
