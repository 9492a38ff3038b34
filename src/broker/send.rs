//! The produce path: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and
//! CONSUMER_SEND_MSG_BACK (36). `serve` is its spine.

use std::sync::Arc;
use std::time::Instant;

use super::Broker;
use super::delay;
use super::outbox::{Outgoing, Peer};
use super::refusal::Refusal;
use super::send_back;
use super::send_check::{self, Target};
use super::send_request::{Part, SendRequest};
use super::sender::Batch;
use super::topics::SCHEDULE_TOPIC;
use crate::ha::Replicated;
use crate::ha::intake::HELD_MAX;
use crate::remoting::codes::{request, response};
use crate::remoting::{Command, Fields};
use crate::store::record::{RECORD_SIZE_MIN, TOPIC_MAX_V1, message_id};
use crate::store::{Appended, Message, RecordStarts, StoreError, properties};

/// A message was stored; whether it is also replicated is not known yet.
pub struct Stored {
    pub appended: Appended,
    /// The queue the client named, which for a delayed retry is not where it lies.
    pub queue_id: i32,
    /// The client wants to hear of flush and replication (its property WAIT is not false).
    pub wait: bool,
}

impl Stored {
    /// A message that its group wants dropped: a success, with nothing in the log.
    pub fn dropped() -> Stored {
        let appended = Appended {
            start: 0,
            end: 0,
            record_starts: RecordStarts::Many(Vec::new()),
            queue_offset: 0,
            stored_ms: 0,
        };
        Stored {
            appended,
            queue_id: 0,
            wait: false,
        }
    }
}

/// Answers of one connection's batch that may not go before disk or slave have the bytes.
struct Waiting {
    peer: Peer,
    arrived: Instant,
    replies: Vec<(u64, Command)>,
}

/// The send thread's body.
pub fn run(broker: &Arc<Broker>) {
    while let Some(batches) = broker.sender.take() {
        serve(broker, batches);
    }
}

/// Serves the sends that are queued. The whole produce path is here, in order.
fn serve(broker: &Arc<Broker>, batches: Vec<Batch>) {
    // 1. Append each message that is allowed; a refused one fails alone. What waits for nobody
    //    is answered at the end of this pass.
    let mut answers = Vec::with_capacity(batches.len());
    let mut waiting = Vec::new();
    for batch in batches {
        let (answer, wait) = store_batch(broker, batch);
        answers.push(answer);
        waiting.extend(wait);
    }
    // 2. One wake-up for all that follow the log: flush, then dispatch and the HA loop.
    broker.store.wake_followers();
    // 3. The connections may hand over what has gathered meanwhile.
    answers
        .into_iter()
        .for_each(|answer| broker.outbox.post(answer));
    // 4. With SYNC_FLUSH one wait for all of this pass: the flush thread syncs once for them.
    //    The slave's wait is the group transfer's, which answers when it is over.
    for mut waiting in waiting {
        if broker.store.is_sync_flush() {
            wait_for_disk(broker, &mut waiting);
        }
        if broker.waits_for_slaves() {
            wait_for_slaves(broker, waiting);
        } else {
            answer(broker, waiting);
        }
    }
}

fn store_batch(broker: &Arc<Broker>, batch: Batch) -> (Outgoing, Option<Waiting>) {
    let Batch { peer, requests, .. } = batch;
    let arrived = requests
        .first()
        .map_or_else(Instant::now, |(_, arrived)| *arrived);
    let mut out = Outgoing {
        connection: peer.connection,
        bytes: Vec::new(),
        answered: 0,
        batch_stored: true,
    };
    let mut waiting = Waiting {
        peer,
        arrived,
        replies: Vec::new(),
    };
    for (request, _) in requests {
        let (reply, end) = match store_one(broker, &request, &peer) {
            Ok(stored) => (
                success(broker, &request, &stored),
                waits_until(broker, &stored),
            ),
            Err(refusal) => (refused(broker, &request, refusal), None),
        };
        match end {
            Some(end) if !request.is_oneway() => waiting.replies.push((end, reply)),
            _ => {
                out.answered += 1;
                if !request.is_oneway() {
                    reply.encode(&mut out.bytes);
                }
            }
        }
    }
    (out, (!waiting.replies.is_empty()).then_some(waiting))
}

fn waits_until(broker: &Broker, stored: &Stored) -> Option<u64> {
    let must = broker.store.is_sync_flush() || broker.waits_for_slaves();
    (must && stored.wait).then_some(stored.appended.end)
}

/// Checks and appends what one request carries.
fn store_one(broker: &Arc<Broker>, request: &Command, peer: &Peer) -> Result<Stored, Refusal> {
    broker.may_write()?;
    if request.code() == request::CONSUMER_SEND_MSG_BACK {
        return send_back::serve(broker, request);
    }
    let send = SendRequest::parse(request)?;
    let target = send_check::target(broker, &send, request.header.version)?;
    let stored = if send.batch {
        append_many(broker, &send, &target, peer)
    } else {
        append_single(broker, &send, &target, peer)
    };
    if let Ok(stored) = &stored {
        let messages = stored.appended.record_starts.len() as u64;
        broker.stats.on_put(messages, request.body().len() as u64);
    }
    stored
}

fn append_single(
    broker: &Broker,
    send: &SendRequest<'_>,
    target: &Target,
    peer: &Peer,
) -> Result<Stored, Refusal> {
    let wait = send.waits();
    let mut text = properties::remove(send.properties, "WAIT");
    // A consumer that sends back what it pulled sends this one along.
    text = properties::remove(&text, "CLUSTER");
    properties::push(&mut text, "CLUSTER", &broker.cluster);
    let message = message(broker, send, target, peer, send.body, &text);
    let appended = append_now_or_later(broker, message, target.delay_level)?;
    Ok(Stored {
        appended,
        queue_id: target.queue_id,
        wait,
    })
}

/// A delayed message lies in the delay topic until its level's time is over.
pub fn append_now_or_later(
    broker: &Broker,
    message: Message<'_>,
    delay_level: i32,
) -> Result<Appended, StoreError> {
    if delay_level <= 0 {
        return broker.store.append(&[message]);
    }
    let Message {
        topic,
        queue_id,
        properties,
        ..
    } = message;
    let levels = broker.delays.levels();
    let waiting = delay::schedule(levels, delay_level, topic, queue_id, properties);
    broker.store.append(&[Message {
        topic: SCHEDULE_TOPIC,
        queue_id: waiting.queue_id,
        properties: &waiting.properties,
        ..message
    }])
}

fn append_many(
    broker: &Broker,
    send: &SendRequest<'_>,
    target: &Target,
    peer: &Peer,
) -> Result<Stored, Refusal> {
    let parts = send.parts(broker.settings.max_message_size)?;
    let mut common = send.properties.to_vec();
    properties::push(&mut common, "CLUSTER", &broker.cluster);
    check_batch_size(&parts, &common)?;
    let texts: Vec<Vec<u8>> = parts
        .iter()
        .map(|part| join(part.properties, &common))
        .collect();
    let messages: Vec<Message<'_>> = parts
        .iter()
        .zip(&texts)
        .map(|(part, text)| Message {
            flag: part.flag,
            ..message(broker, send, target, peer, part.body, text)
        })
        .collect();
    let appended = broker.store.append(&messages)?;
    Ok(Stored {
        appended,
        queue_id: target.queue_id,
        wait: send.waits(),
    })
}

/// Each message of a batch becomes a record with the batch's properties, so a batch of tiny ones
/// grows many times over. A slave takes a record, or the blank that a batch leaves at a file's
/// end, of at most `HELD_MAX`.
fn check_batch_size(parts: &[Part<'_>], common: &[u8]) -> Result<(), Refusal> {
    let each = RECORD_SIZE_MIN + TOPIC_MAX_V1 + common.len() + 1;
    let size: usize = parts
        .iter()
        .map(|part| each + part.body.len() + part.properties.len())
        .sum();
    if size > HELD_MAX / 2 {
        let remark = format!(
            "a batch of {} messages takes {size} bytes, too many",
            parts.len()
        );
        return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
    }
    Ok(())
}

/// A batch's own properties follow those of each message in it.
fn join(own: &[u8], common: &[u8]) -> Vec<u8> {
    let mut text = own.to_vec();
    if !text.is_empty() && text.last() != Some(&properties::ENTRY_END) {
        text.push(properties::ENTRY_END);
    }
    text.extend_from_slice(common);
    text
}

fn message<'a>(
    broker: &Broker,
    send: &SendRequest<'a>,
    target: &'a Target,
    peer: &Peer,
    body: &'a [u8],
    properties: &'a [u8],
) -> Message<'a> {
    Message {
        topic: &target.topic,
        queue_id: target.queue_id,
        flag: send.flag,
        sys_flag: send.sys_flag | target.sys_flag,
        born_ms: send.born_ms,
        born_host: peer.address,
        store_host: broker.store_host,
        reconsume_times: send.reconsume_times,
        prepared_offset: 0,
        body,
        properties,
    }
}

/// One wait for the flush of everything up to the batch's end. Each reply then looks at its own
/// end, so a timeout fails only what is really not on the disk.
fn wait_for_disk(broker: &Broker, waiting: &mut Waiting) {
    let Some(end) = waiting.replies.last().map(|(end, _)| *end) else {
        return;
    };
    let deadline = waiting.arrived + broker.settings.sync_flush_timeout;
    if broker.store.flushed().wait(end, deadline) {
        return;
    }
    let flushed = broker.store.flushed().get();
    for (end, reply) in &mut waiting.replies {
        if *end > flushed {
            reply.header.code = response::FLUSH_DISK_TIMEOUT;
        }
    }
}

/// Leaves the replies with the group transfer. The replica's verdict overrides the disk's.
fn wait_for_slaves(broker: &Arc<Broker>, mut waiting: Waiting) {
    let Some(end) = waiting.replies.last().map(|(end, _)| *end) else {
        return;
    };
    let deadline = waiting.arrived + broker.settings.slave_timeout;
    let answering = broker.clone();
    let done = move |verdict: Replicated| {
        let code = match verdict {
            Replicated::Yes => return answer(&answering, waiting),
            Replicated::Timeout => response::FLUSH_SLAVE_TIMEOUT,
            Replicated::NoSlave => response::SLAVE_NOT_AVAILABLE,
        };
        for (end, reply) in &mut waiting.replies {
            if !answering.group_transfer.is_replicated(*end) {
                reply.header.code = code;
            }
        }
        answer(&answering, waiting);
    };
    broker.group_transfer.submit(end, deadline, Box::new(done));
}

fn answer(broker: &Broker, waiting: Waiting) {
    let mut bytes = Vec::new();
    for (_, reply) in &waiting.replies {
        reply.encode(&mut bytes);
    }
    broker.outbox.post(Outgoing {
        connection: waiting.peer.connection,
        bytes,
        answered: waiting.replies.len(),
        batch_stored: false,
    });
}

/// The reply of a stored message. A send-back has no fields: it has no id of its own to tell.
fn success(broker: &Broker, request: &Command, stored: &Stored) -> Command {
    let reply = Command::reply(request, response::SUCCESS);
    if request.code() == request::CONSUMER_SEND_MSG_BACK {
        return reply;
    }
    let ids: Vec<String> = stored
        .appended
        .record_starts
        .iter()
        .map(|start| message_id(broker.store_host, *start))
        .collect();
    reply.with_ext(
        common_fields(broker)
            .with("msgId", ids.join(","))
            .with("queueId", stored.queue_id)
            .with("queueOffset", stored.appended.queue_offset),
    )
}

fn refused(broker: &Broker, request: &Command, refusal: Refusal) -> Command {
    broker.stats.on_put_failed();
    Command::refusal(request, refusal.code, refusal.remark).with_ext(common_fields(broker))
}

/// The Java client reads these two from every answer to a send, refusals included.
fn common_fields(broker: &Broker) -> Fields {
    Fields::default()
        .with("MSG_REGION", &broker.settings.region)
        .with("TRACE_ON", broker.settings.trace_on)
}

/// Too many sends wait: these are answered at once, and nothing of them is stored.
pub fn refuse_busy(broker: &Broker, batch: Batch) {
    let mut bytes = Vec::new();
    let answered = batch.requests.len();
    for (request, _) in batch
        .requests
        .iter()
        .filter(|(request, _)| !request.is_oneway())
    {
        let remark = "[OVERLOAD] too many messages wait to be stored, try again";
        refused(broker, request, Refusal::new(response::SYSTEM_BUSY, remark)).encode(&mut bytes);
    }
    broker.outbox.post(Outgoing {
        connection: batch.peer.connection,
        bytes,
        answered,
        batch_stored: true,
    });
}
