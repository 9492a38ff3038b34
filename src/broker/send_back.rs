//! CONSUMER_SEND_MSG_BACK (36): a consumer could not deal with a message. A copy goes to the
//! group's retry topic after a delay that grows with each try, and to the dead letters in the end.

use super::Broker;
use super::refusal::Refusal;
use super::send::{Stored, append_now_or_later};
use super::send_check::{self, Target};
use super::topics::retry_topic;
use crate::remoting::Command;
use crate::remoting::codes::response;
use crate::store::record::RecordView;
use crate::store::{Message, properties};

/// The first retry waits for this level: 10 s.
const FIRST_RETRY_LEVEL: i32 = 3;

pub fn serve(broker: &Broker, request: &Command) -> Result<Stored, Refusal> {
    let ext = request.ext();
    let group = ext.need("group")?;
    let offset: u64 = ext.parse("offset")?;
    let level: i32 = ext.parse_or("delayLevel", 0)?;
    let config = send_check::retry_group(broker, group)?;
    let own_limit = ext.parse_or("maxReconsumeTimes", config.retry_max)?;
    let limit = send_check::retry_limit(&config, Some(own_limit), request.header.version);

    let chunk = broker.store.record(offset)?;
    let record = RecordView::parse(&chunk).map_err(|flaw| {
        Refusal::new(
            response::SYSTEM_ERROR,
            format!("no message at log offset {offset}: {flaw}"),
        )
    })?;
    if config.retry_queues <= 0 {
        // The group wants no retries: the message is dropped, as in the original.
        return Ok(Stored::dropped());
    }
    let target = if record.reconsume_times >= limit || level < 0 {
        send_check::dead_letter(broker, group)
    } else {
        retry(
            broker,
            group,
            config.retry_queues,
            delay(level, record.reconsume_times),
        )
    };
    store_copy(broker, &record, &target)
}

fn delay(asked: i32, tries: i32) -> i32 {
    if asked == 0 {
        FIRST_RETRY_LEVEL.saturating_add(tries)
    } else {
        asked
    }
}

fn retry(broker: &Broker, group: &str, queues: i32, delay_level: i32) -> Target {
    let topic = retry_topic(group);
    broker.topics.create_internal(&topic, queues);
    Target {
        topic,
        queue_id: send_check::any_queue(queues),
        sys_flag: 0,
        delay_level,
    }
}

/// The same body under the new topic, one try more, with where it came from.
fn store_copy(
    broker: &Broker,
    record: &RecordView<'_>,
    target: &Target,
) -> Result<Stored, Refusal> {
    let origin = record
        .property("ORIGIN_MESSAGE_ID")
        .map_or_else(|| record.message_id(), str::to_owned);
    let topic = record.property("RETRY_TOPIC").unwrap_or(record.topic);
    let mut text = record.properties.to_vec();
    for (name, value) in [
        ("RETRY_TOPIC", topic),
        ("ORIGIN_MESSAGE_ID", &origin),
        ("WAIT", "false"),
    ] {
        text = properties::remove(&text, name);
        properties::push(&mut text, name, value);
    }
    let message = Message {
        topic: &target.topic,
        queue_id: target.queue_id,
        store_host: broker.store_host,
        reconsume_times: record.reconsume_times.saturating_add(1),
        prepared_offset: 0,
        properties: &text,
        ..record.message()
    };
    let appended = append_now_or_later(broker, message, target.delay_level)?;
    Ok(Stored {
        appended,
        queue_id: target.queue_id,
        wait: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_try_waits_a_level_longer_unless_the_consumer_says() {
        assert_eq!([delay(0, 0), delay(0, 5), delay(7, 5)], [3, 8, 7]);
        assert_eq!(delay(0, i32::MAX), i32::MAX);
    }
}
