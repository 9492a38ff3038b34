//! Whether a send may be stored, and where: the original's checks in the original's order
//! (`msgCheck`), with this broker's own refusals.

use std::sync::Arc;

use super::Broker;
use super::groups::SubscriptionGroup;
use super::refusal::Refusal;
use super::send_request::SendRequest;
use super::topics::{self, TopicConfig};
use crate::remoting::codes::response;
use crate::store::record::{PROPERTIES_MAX, SYS_TRANSACTION};

/// From this version on (3.4.9) a client's own limit of retries counts.
const VERSION_OWN_RETRY_LIMIT: i32 = 121;
const SYS_MULTI_TAGS: i32 = 2;
/// The body is a batch in one record; only topics of 5.x that are declared so hold such.
const SYS_INNER_BATCH: i32 = 1 << 7;

/// Where a message goes.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    pub topic: String,
    pub queue_id: i32,
    /// Bits that the topic adds to the message's flags.
    pub sys_flag: i32,
    /// Not 0: it goes to its topic after this delay level's time.
    pub delay_level: i32,
}

pub fn target(broker: &Broker, send: &SendRequest<'_>, version: i32) -> Result<Target, Refusal> {
    check_topic_name(send.topic)?;
    check_features(send)?;
    let config = find_topic(broker, send)?;
    let queue_id = choose_queue(send, &config)?;
    let sys_flag = if config.filter_type == "MULTI_TAG" {
        SYS_MULTI_TAGS
    } else {
        0
    };
    let topic = send.topic.to_owned();
    match send.topic.strip_prefix(topics::RETRY_PREFIX) {
        None => Ok(Target {
            topic,
            queue_id,
            sys_flag,
            delay_level: 0,
        }),
        Some(group) => retry_target(
            broker,
            send,
            version,
            group,
            Target {
                topic,
                queue_id,
                sys_flag,
                delay_level: 0,
            },
        ),
    }
}

fn check_topic_name(topic: &str) -> Result<(), Refusal> {
    topics::check_name(topic).map_err(|why| Refusal::new(response::SYSTEM_ERROR, why))?;
    if topics::is_send_refused(topic) {
        let remark = format!("sending to the topic {topic} is forbidden");
        return Err(Refusal::new(response::NO_PERMISSION, remark));
    }
    Ok(())
}

/// What this version cannot keep a promise about is refused, and never delivered wrongly.
fn check_features(send: &SendRequest<'_>) -> Result<(), Refusal> {
    let is_retry = send.topic.starts_with(topics::RETRY_PREFIX);
    if send.batch && is_retry {
        return Err(Refusal::new(
            response::MESSAGE_ILLEGAL,
            "a batch cannot go to a retry topic",
        ));
    }
    if send.properties.len() > PROPERTIES_MAX {
        let remark = format!(
            "{} bytes of properties, at most {PROPERTIES_MAX}",
            send.properties.len()
        );
        return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
    }
    if send
        .property("TRAN_MSG")
        .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    {
        let remark = "transactional messages are not supported by this broker";
        return Err(Refusal::new(response::NO_PERMISSION, remark));
    }
    if send.sys_flag & (SYS_TRANSACTION | SYS_INNER_BATCH) != 0 {
        let remark = format!(
            "system flag {:#x} asks for a transaction or an inner batch, which this broker does not have",
            send.sys_flag
        );
        return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
    }
    if delay_level(send) > 0 && !is_retry {
        let remark = "delay levels are not supported by this broker";
        return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
    }
    let timer = ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"];
    if timer.iter().any(|name| send.property(name).is_some()) {
        let remark = "timer messages are not supported by this broker";
        return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
    }
    Ok(())
}

fn delay_level(send: &SendRequest<'_>) -> i32 {
    send.property("DELAY")
        .and_then(|level| level.parse().ok())
        .unwrap_or(0)
}

/// The topic's configuration; an unknown one is made from its template, or as a retry topic.
fn find_topic(broker: &Broker, send: &SendRequest<'_>) -> Result<Arc<TopicConfig>, Refusal> {
    if let Some(config) = broker.topics.get(send.topic) {
        return Ok(config);
    }
    let made = broker.topics.create_on_send(
        send.topic,
        send.default_topic,
        send.default_queues,
        send.unit_mode,
    );
    let made = made.or_else(|| {
        let retry = send.topic.starts_with(topics::RETRY_PREFIX);
        if retry {
            broker.topics.create_internal(send.topic, 1)
        } else {
            None
        }
    });
    made.ok_or_else(|| {
        let remark = format!("topic {} not exist, apply first please!", send.topic);
        Refusal::new(response::TOPIC_NOT_EXIST, remark)
    })
}

/// A queue id below 0 means any.
fn choose_queue(send: &SendRequest<'_>, config: &TopicConfig) -> Result<i32, Refusal> {
    let limit = config.queues();
    if send.queue_id >= limit {
        let remark = format!(
            "queueId {} is not below {limit}, the topic's queues",
            send.queue_id
        );
        return Err(Refusal::new(response::SYSTEM_ERROR, remark));
    }
    if send.queue_id >= 0 {
        return Ok(send.queue_id);
    }
    Ok(any_queue(config.write_queues))
}

/// Spreads messages that name no queue; nothing depends on how.
pub fn any_queue(queues: i32) -> i32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (NEXT.fetch_add(1, Ordering::Relaxed) % queues.max(1) as u32) as i32
}

/// A consumer sends a message to its retry topic when it could not give it back. After too many
/// tries it goes to the dead letters, else it waits for its delay level.
fn retry_target(
    broker: &Broker,
    send: &SendRequest<'_>,
    version: i32,
    group: &str,
    retry: Target,
) -> Result<Target, Refusal> {
    let config = retry_group(broker, group)?;
    let limit = retry_limit(&config, send.max_reconsume_times, version);
    if send.reconsume_times >= limit {
        return Ok(dead_letter(broker, group));
    }
    Ok(Target {
        delay_level: delay_level(send),
        ..retry
    })
}

/// The group whose messages are retried; it may be made on demand.
pub fn retry_group(broker: &Broker, group: &str) -> Result<Arc<SubscriptionGroup>, Refusal> {
    broker.groups.find_or_create(group).ok_or_else(|| {
        let remark = format!("subscription group not exist, {group}");
        Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    })
}

/// After how many tries a message is a dead letter: the client's own limit, if it is new enough
/// to have one, else the group's.
pub fn retry_limit(config: &SubscriptionGroup, own: Option<i32>, version: i32) -> i32 {
    let own = own.filter(|_| version >= VERSION_OWN_RETRY_LIMIT);
    own.unwrap_or(config.retry_max)
}

/// The group's dead-letter queue, made on demand.
pub fn dead_letter(broker: &Broker, group: &str) -> Target {
    let topic = topics::dead_letter_topic(group);
    broker.topics.create_internal(&topic, 1);
    Target {
        topic,
        queue_id: 0,
        sys_flag: 0,
        delay_level: 0,
    }
}
