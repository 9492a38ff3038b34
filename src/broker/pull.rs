//! PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): checks, reading, holding, and the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Broker;
use super::clients::unsupported_filter;
use super::groups::SubscriptionGroup;
use super::pull_queue::{Attempt, Held, Job};
use super::refusal::Refusal;
use super::subscription::{self, Subscription};
use super::topics::PERM_READ;
use crate::remoting::codes::response;
use crate::remoting::fields::FieldError;
use crate::remoting::{Command, Fields};
use crate::store::{PullLimits, PullStatus, Pulled};

const FLAG_COMMIT_OFFSET: i32 = 1;
const FLAG_SUSPEND: i32 = 2;
const FLAG_SUBSCRIPTION: i32 = 4;
/// A slave whose master is there sends readers who have seen everything back to it, but not at
/// once: a client whose route does not have the master yet would ask again without a pause.
const SHORT_HOLD: Duration = Duration::from_secs(1);
/// No client waits longer than 30 s for its answer.
const HOLD_MAX: Duration = Duration::from_secs(28);

#[derive(Debug)]
pub struct PullRequest<'a> {
    group: &'a str,
    topic: &'a str,
    queue_id: i32,
    from: i64,
    max_messages: i32,
    sys_flag: i32,
    commit_offset: i64,
    suspend: Duration,
    subscription: &'a str,
    sub_version: i64,
    expression_type: &'a str,
}

impl<'a> PullRequest<'a> {
    fn parse(request: &'a Command) -> Result<PullRequest<'a>, FieldError> {
        let ext = request.ext();
        let suspend_ms: i64 = ext.parse_or("suspendTimeoutMillis", 0)?;
        Ok(PullRequest {
            group: ext.need("consumerGroup")?,
            topic: ext.need("topic")?,
            queue_id: ext.parse("queueId")?,
            from: ext.parse("queueOffset")?,
            max_messages: ext.parse("maxMsgNums")?,
            sys_flag: ext.parse_or("sysFlag", 0)?,
            commit_offset: ext.parse_or("commitOffset", 0)?,
            suspend: Duration::from_millis(suspend_ms.max(0) as u64).min(HOLD_MAX),
            subscription: ext.get("subscription").unwrap_or(""),
            sub_version: ext.parse_or("subVersion", 0)?,
            expression_type: ext.get("expressionType").unwrap_or(""),
        })
    }

    fn has(&self, flag: i32) -> bool {
        self.sys_flag & flag != 0
    }
}

/// What the checks found out.
struct Allowed {
    filter: Arc<Subscription>,
    group: Arc<SubscriptionGroup>,
}

/// Serves one pull, at the first look or again after it was held.
pub fn serve(broker: &Broker, job: Job) {
    let looked = PullRequest::parse(&job.request)
        .map_err(Refusal::from)
        .and_then(|pull| look(broker, &pull, &job));
    match looked {
        Ok(Look::Answer(reply)) => broker.answer(&job.peer, &job.request, &reply),
        Ok(Look::Hold(held)) => hold(broker, job, held),
        Err(refusal) => broker.answer(&job.peer, &job.request, &refusal.to_reply(&job.request)),
    }
}

/// What a look into the queue leads to.
enum Look {
    Answer(Command),
    Hold(Holding),
}

/// Where and until when a pull is held.
struct Holding {
    topic: String,
    queue_id: i32,
    from: i64,
    deadline: Instant,
    /// The queue's end when it was looked at.
    seen: i64,
}

fn look(broker: &Broker, pull: &PullRequest<'_>, job: &Job) -> Result<Look, Refusal> {
    let allowed = check(broker, pull)?;
    let from = start(pull, job.attempt);
    commit(broker, pull, job.attempt);
    if job.attempt == Attempt::First && is_at_end(broker, pull) {
        broker.store.settle();
    }
    let found = read(broker, pull, from, &allowed);
    let Some(deadline) = hold_until(broker, pull, job, &found) else {
        return Ok(Look::Answer(answer(broker, job, pull, &allowed, found)));
    };
    let passed_over = found.status == PullStatus::NoMatchedMessage;
    Ok(Look::Hold(Holding {
        topic: pull.topic.to_owned(),
        queue_id: pull.queue_id,
        from: if passed_over { found.next } else { from },
        deadline,
        seen: found.max,
    }))
}

/// It may find nothing, but what was acknowledged before it came must be found.
fn is_at_end(broker: &Broker, pull: &PullRequest<'_>) -> bool {
    let bounds = broker.store.queue_bounds(pull.topic, pull.queue_id);
    bounds.is_none_or(|bounds| pull.from >= bounds.max)
}

fn start(pull: &PullRequest<'_>, attempt: Attempt) -> i64 {
    match attempt {
        Attempt::First => pull.from,
        Attempt::Woken { from, .. } | Attempt::Expired { from } => from,
    }
}

/// The original's checks in the original's order (remoting.md 3.3).
fn check(broker: &Broker, pull: &PullRequest<'_>) -> Result<Allowed, Refusal> {
    if broker.settings.permission & PERM_READ == 0 {
        let remark = "the broker's permission does not allow reading";
        return Err(Refusal::new(response::NO_PERMISSION, remark));
    }
    let group = broker.groups.find_or_create(pull.group).ok_or_else(|| {
        let remark = format!("subscription group [{}] does not exist", pull.group);
        Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    })?;
    if !group.consume_enable {
        let remark = format!("subscription group no permission, {}", pull.group);
        return Err(Refusal::new(response::NO_PERMISSION, remark));
    }
    let topic = broker.topics.get(pull.topic).ok_or_else(|| {
        let remark = format!("topic[{}] not exist, apply first please!", pull.topic);
        Refusal::new(response::TOPIC_NOT_EXIST, remark)
    })?;
    if !topic.is_readable() {
        let remark = format!("the topic[{}] pulling message is forbidden", pull.topic);
        return Err(Refusal::new(response::NO_PERMISSION, remark));
    }
    if pull.queue_id < 0 || pull.queue_id >= topic.read_queues {
        let remark = format!(
            "queueId[{}] is illegal, topic {} has {} read queues",
            pull.queue_id, pull.topic, topic.read_queues
        );
        return Err(Refusal::new(response::SYSTEM_ERROR, remark));
    }
    let filter = filter(broker, pull, &group)?;
    Ok(Allowed { filter, group })
}

/// The subscription that a pull brings along, or else the one of its group's heartbeat.
fn filter(
    broker: &Broker,
    pull: &PullRequest<'_>,
    group: &SubscriptionGroup,
) -> Result<Arc<Subscription>, Refusal> {
    if !pull.has(FLAG_SUBSCRIPTION) {
        return broker
            .clients
            .subscription(group, pull.topic, pull.sub_version);
    }
    if !["", subscription::TAG].contains(&pull.expression_type) {
        return Err(unsupported_filter(pull.expression_type));
    }
    let parsed = Subscription::parse(pull.topic, pull.subscription).ok_or_else(|| {
        let remark = format!("the expression {:?} names no tag", pull.subscription);
        Refusal::new(response::SUBSCRIPTION_PARSE_FAILED, remark)
    })?;
    Ok(Arc::new(parsed))
}

/// The offset that a pull carries is stored at the first look only, and not on a slave: its
/// master's table comes over and would overwrite it.
fn commit(broker: &Broker, pull: &PullRequest<'_>, attempt: Attempt) {
    if attempt == Attempt::First
        && pull.has(FLAG_COMMIT_OFFSET)
        && pull.commit_offset >= 0
        && !broker.is_slave()
    {
        broker
            .offsets
            .commit(pull.group, pull.topic, pull.queue_id, pull.commit_offset);
    }
}

fn read(broker: &Broker, pull: &PullRequest<'_>, from: i64, allowed: &Allowed) -> Pulled {
    let asked = usize::try_from(pull.max_messages).unwrap_or(0).max(1);
    let settings = &broker.settings;
    let most = if is_far(broker, pull, from) {
        settings.on_disk
    } else {
        settings.in_memory
    };
    let limits = PullLimits {
        max_messages: most.max_messages.min(asked),
        ..most
    };
    let matches = |tags_code| allowed.filter.matches(tags_code);
    broker
        .store
        .pull(pull.topic, pull.queue_id, from, limits, &matches)
}

/// The first message wanted lies further back than memory is taken to hold.
fn is_far(broker: &Broker, pull: &PullRequest<'_>, from: i64) -> bool {
    let entry = broker.store.entry(pull.topic, pull.queue_id, from);
    let end = broker.store.log().end();
    entry.is_some_and(|entry| end.saturating_sub(entry.log_offset) > broker.settings.memory_share)
}

/// Until when the pull is held; `None` if it is answered now.
fn hold_until(
    broker: &Broker,
    pull: &PullRequest<'_>,
    job: &Job,
    found: &Pulled,
) -> Option<Instant> {
    let nothing_yet = match found.status {
        PullStatus::OffsetOverflowOne => true,
        PullStatus::NoMessageInQueue | PullStatus::NoMatchedLogicQueue => {
            pull.from == 0 || broker.stands_in()
        }
        // On a slave whose master is away, a reader beyond our end waits until it is reached.
        PullStatus::OffsetOverflowBadly | PullStatus::OffsetTooSmall => broker.stands_in(),
        // Held before, and what came did not match: it goes on waiting behind that.
        PullStatus::NoMatchedMessage => {
            matches!(job.attempt, Attempt::Woken { .. }) && found.next >= found.max
        }
        PullStatus::Found | PullStatus::MessageWasRemoving => false,
    };
    if !nothing_yet || !pull.has(FLAG_SUSPEND) {
        return None;
    }
    match job.attempt {
        Attempt::First => {
            let mut patience = broker.settings.short_poll.unwrap_or(pull.suspend);
            if broker.sends_readers_to_master() {
                patience = patience.min(SHORT_HOLD);
            }
            Some(job.arrived + patience.min(pull.suspend))
        }
        Attempt::Woken { deadline, .. } => Some(deadline),
        Attempt::Expired { .. } => None,
    }
}

fn hold(broker: &Broker, job: Job, holding: Holding) {
    let Holding {
        topic,
        queue_id,
        from,
        deadline,
        seen,
    } = holding;
    let Job {
        peer,
        request,
        arrived,
        ..
    } = job;
    let held = Held {
        peer,
        request,
        arrived,
        from,
        deadline,
    };
    broker.pulls.hold(&topic, queue_id, held);
    // What was dispatched between our look and the hold would wake nobody.
    let bounds = broker.store.queue_bounds(&topic, queue_id);
    if bounds.is_some_and(|bounds| bounds.max > seen) {
        broker.pulls.wake(&topic, queue_id);
    }
}

fn answer(
    broker: &Broker,
    job: &Job,
    pull: &PullRequest<'_>,
    allowed: &Allowed,
    found: Pulled,
) -> Command {
    let (mut code, remark) = status(&found, pull.from);
    let mut next = found.next;
    let mut suggested = suggestion(broker, &allowed.group, &found);
    if broker.is_slave()
        && code == response::PULL_OFFSET_MOVED
        && !broker.settings.offset_check_in_slave
    {
        // The master knows better where this consumer belongs.
        (code, next, suggested) = (
            response::PULL_RETRY_IMMEDIATELY,
            pull.from,
            allowed.group.broker_id,
        );
    }
    if broker.sends_readers_to_master() && code == response::PULL_NOT_FOUND {
        (code, suggested) = (response::PULL_RETRY_IMMEDIATELY, 0);
    }
    let messages = found.records.len() as u64;
    broker.stats.on_pull(messages, job.arrived.elapsed());
    let mut body = Vec::with_capacity(found.bytes);
    found
        .records
        .iter()
        .for_each(|record| body.extend_from_slice(record));
    Command::reply(&job.request, code)
        .with_remark(remark)
        .with_body(body)
        .with_ext(
            Fields::default()
                .with("suggestWhichBrokerId", suggested)
                .with("nextBeginOffset", next)
                .with("minOffset", found.min)
                .with("maxOffset", found.max),
        )
}

/// Code and remark of how a look into the queue ended (remoting.md 3.5).
fn status(found: &Pulled, from: i64) -> (i32, &'static str) {
    match found.status {
        PullStatus::Found => (response::SUCCESS, "FOUND"),
        PullStatus::NoMatchedMessage => (response::PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
        PullStatus::MessageWasRemoving => {
            (response::PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING")
        }
        PullStatus::NoMatchedLogicQueue if from == 0 => {
            (response::PULL_NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE")
        }
        PullStatus::NoMatchedLogicQueue => (response::PULL_OFFSET_MOVED, "NO_MATCHED_LOGIC_QUEUE"),
        PullStatus::NoMessageInQueue if from == 0 => {
            (response::PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        }
        PullStatus::NoMessageInQueue => (response::PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE"),
        PullStatus::OffsetOverflowOne => (response::PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
        PullStatus::OffsetOverflowBadly => (response::PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
        PullStatus::OffsetTooSmall => (response::PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
    }
}

/// Where to pull next: the slave, for one who reads what memory no longer holds.
fn suggestion(broker: &Broker, group: &SubscriptionGroup, found: &Pulled) -> i64 {
    if !broker.settings.slave_read_enable {
        return 0;
    }
    if found.behind_bytes > broker.settings.memory_share {
        group.slow_broker_id
    } else {
        group.broker_id
    }
}
