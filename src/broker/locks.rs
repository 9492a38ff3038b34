//! Queue locks of orderly consumers (41, 42): one client a queue and group, for as long as it
//! renews. They are the master's alone and in memory only: a client that gets no answer stops
//! consuming, and after a restart all ask again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::groups;
use super::refusal::{Refusal, reply};
use super::topics;
use crate::base::json as dialect;
use crate::remoting::Command;
use crate::remoting::codes::response;

/// A lock that was not renewed for that long is free. Clients renew every 20 seconds.
pub const LOCK_EXPIRY: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MessageQueue {
    broker: String,
    topic: String,
    queue_id: i32,
}

struct Lock {
    client_id: String,
    renewed: Instant,
}

/// What both requests carry.
struct LockRequest {
    client_id: String,
    group: String,
    queues: Vec<MessageQueue>,
}

#[derive(Default)]
pub struct Locks {
    held: Mutex<HashMap<String, HashMap<MessageQueue, Lock>>>,
}

impl Locks {
    /// LOCK_BATCH_MQ (41): answers with the queues that are now the client's. A slave grants
    /// none: the master may have granted the same ones.
    pub fn lock(&self, request: &Command, slave: bool, now: Instant) -> Command {
        if slave {
            return Refusal::error("queues are locked at the master").to_reply(request);
        }
        let granted = LockRequest::read(request).map(|wanted| {
            let queues: Vec<Value> = self.grant(wanted, now).iter().map(to_json).collect();
            let body = dialect::write(&json!({ "lockOKMQSet": queues }));
            Command::reply(request, response::SUCCESS).with_body(body)
        });
        reply(request, granted)
    }

    /// UNLOCK_BATCH_MQ (42).
    pub fn unlock(&self, request: &Command) -> Command {
        let done = LockRequest::read(request).map(|wanted| {
            self.release(&wanted);
            Command::reply(request, response::SUCCESS)
        });
        reply(request, done)
    }

    /// Forgets the locks that nobody renews any more.
    pub fn expire(&self, now: Instant) {
        let mut held = self.held();
        for locks in held.values_mut() {
            locks.retain(|_, lock| !lock.is_free(now));
        }
        held.retain(|_, locks| !locks.is_empty());
    }

    fn grant(&self, wanted: LockRequest, now: Instant) -> Vec<MessageQueue> {
        let mut held = self.held();
        let locks = held.entry(wanted.group).or_default();
        let mut granted = Vec::new();
        for queue in wanted.queues {
            let others = |lock: &Lock| lock.client_id != wanted.client_id && !lock.is_free(now);
            if locks.get(&queue).is_some_and(others) {
                continue;
            }
            let lock = Lock {
                client_id: wanted.client_id.clone(),
                renewed: now,
            };
            locks.insert(queue.clone(), lock);
            granted.push(queue);
        }
        granted
    }

    fn release(&self, wanted: &LockRequest) {
        let mut held = self.held();
        let Some(locks) = held.get_mut(&wanted.group) else {
            return;
        };
        for queue in &wanted.queues {
            if locks
                .get(queue)
                .is_some_and(|lock| lock.client_id == wanted.client_id)
            {
                locks.remove(queue);
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<String, HashMap<MessageQueue, Lock>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lock {
    fn is_free(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.renewed) > LOCK_EXPIRY
    }
}

impl LockRequest {
    fn read(request: &Command) -> Result<LockRequest, Refusal> {
        let body = dialect::parse(request.body()).map_err(|e| Refusal::error(e.to_string()))?;
        let member = |name: &str| {
            dialect::text(&body, name)
                .map(str::to_owned)
                .ok_or_else(|| Refusal::error(format!("{name} is missing")))
        };
        let (client_id, group) = (member("clientId")?, member("consumerGroup")?);
        groups::check_name(&group).map_err(Refusal::error)?;
        let listed = body
            .get("mqSet")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let queues = listed
            .map(read_queue)
            .collect::<Result<_, _>>()
            .map_err(Refusal::error)?;
        Ok(LockRequest {
            client_id,
            group,
            queues,
        })
    }
}

fn read_queue(value: &Value) -> Result<MessageQueue, String> {
    let topic = dialect::text(value, "topic").ok_or("a queue has no topic")?;
    topics::check_stored_name(topic)?;
    Ok(MessageQueue {
        broker: dialect::text(value, "brokerName")
            .unwrap_or_default()
            .to_owned(),
        topic: topic.to_owned(),
        queue_id: super::table::integer(value, "queueId", 0),
    })
}

fn to_json(queue: &MessageQueue) -> Value {
    json!({"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::Fields;
    use crate::remoting::codes::request as code;

    fn request(client: &str, queues: &[i32]) -> Command {
        let queues: Vec<Value> = queues
            .iter()
            .map(|id| json!({"brokerName": "b", "queueId": id, "topic": "T"}))
            .collect();
        let body = json!({"clientId": client, "consumerGroup": "G", "mqSet": queues});
        Command::request(code::LOCK_BATCH_MQ, Fields::default()).with_body(dialect::write(&body))
    }

    fn granted(locks: &Locks, client: &str, queues: &[i32], now: Instant) -> Vec<i64> {
        let reply = locks.lock(&request(client, queues), false, now);
        let body = dialect::parse(reply.body()).expect("a body");
        let listed = body["lockOKMQSet"].as_array().expect("a list");
        listed
            .iter()
            .map(|queue| queue["queueId"].as_i64().expect("an id"))
            .collect()
    }

    #[test]
    fn a_lock_is_one_clients_until_a_minute_after_its_last_renewal() {
        let locks = Locks::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(granted(&locks, "a", &[0, 1], start), [0, 1]);
        assert_eq!(granted(&locks, "b", &[1, 2], after(1)), [2]);
        assert_eq!(granted(&locks, "a", &[1], after(50)), [1]);
        assert_eq!(granted(&locks, "b", &[0, 1], after(61)), [0]);
        assert_eq!(granted(&locks, "b", &[1], after(110)), [0i64; 0]);
        assert_eq!(granted(&locks, "b", &[1], after(111)), [1]);
        locks.expire(after(172));
        assert!(locks.held().is_empty());
    }

    #[test]
    fn only_the_holder_unlocks() {
        let locks = Locks::default();
        let now = Instant::now();
        granted(&locks, "a", &[0], now);
        locks.unlock(&request("b", &[0]));
        assert_eq!(granted(&locks, "b", &[0], now), [0i64; 0]);
        assert!(locks.unlock(&request("a", &[0])).is_success());
        assert_eq!(granted(&locks, "b", &[0], now), [0]);
    }

    #[test]
    fn a_slave_grants_nothing_and_nonsense_is_refused() {
        let locks = Locks::default();
        let now = Instant::now();
        assert!(!locks.lock(&request("a", &[0]), true, now).is_success());
        let empty = Command::request(code::LOCK_BATCH_MQ, Fields::default());
        assert!(!locks.lock(&empty, false, now).is_success());
    }
}
