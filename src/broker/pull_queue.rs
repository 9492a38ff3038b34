//! What the pull threads work on: requests that may touch the disk, and pulls that were held and
//! may find something now. Held pulls live here too, under the same lock, so that none falls
//! between "nothing there" and "wake me".

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::outbox::Peer;
use crate::remoting::Command;
use crate::store::Arrival;

/// Requests that may wait; past this they are answered "busy" at once.
pub const QUEUED_MAX: usize = 100_000;

/// A request on its way to a pull thread.
pub struct Job {
    pub peer: Peer,
    pub request: Command,
    pub arrived: Instant,
    pub attempt: Attempt,
}

/// How often a pull has been looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    First,
    /// It was held and its queue grew. Messages that did not match may have moved it on to `from`.
    Woken {
        from: i64,
        deadline: Instant,
    },
    /// It was held as long as its client allows.
    Expired {
        from: i64,
    },
}

/// A pull that waits for its queue to grow.
pub struct Held {
    pub peer: Peer,
    pub request: Command,
    pub arrived: Instant,
    pub from: i64,
    pub deadline: Instant,
}

impl Held {
    fn woken(self, now: Option<Instant>) -> Job {
        let attempt = match now {
            Some(now) if now >= self.deadline => Attempt::Expired { from: self.from },
            _ => Attempt::Woken {
                from: self.from,
                deadline: self.deadline,
            },
        };
        Job {
            peer: self.peer,
            request: self.request,
            arrived: self.arrived,
            attempt,
        }
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// By topic, then queue id: a look-up by `&str` allocates nothing.
    held: HashMap<String, HashMap<i32, Vec<Held>>>,
    held_count: usize,
    next_deadline: Option<Instant>,
    stopped: bool,
}

#[derive(Default)]
pub struct PullQueue {
    state: Mutex<State>,
    filled: Condvar,
}

impl PullQueue {
    /// Queues a request; hands it back if too many wait.
    pub fn submit(&self, job: Job) -> Result<(), Box<Job>> {
        let mut state = self.lock();
        if state.jobs.len() >= QUEUED_MAX {
            return Err(Box::new(job));
        }
        state.jobs.push_back(job);
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for the next job; `None` when the broker stops.
    pub fn take(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            if state.next_deadline.is_some_and(|deadline| now >= deadline) {
                state.expire(now);
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = match state.next_deadline {
                None => self
                    .filled
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let waited = self
                        .filled
                        .wait_timeout(state, deadline.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Keeps a pull until its queue grows or its time is over. The caller then looks once more
    /// whether the queue has grown meanwhile, and calls `wake` if so.
    pub fn hold(&self, topic: &str, queue_id: i32, held: Held) {
        let mut state = self.lock();
        state.next_deadline = Some(
            state
                .next_deadline
                .map_or(held.deadline, |d| d.min(held.deadline)),
        );
        state.held_count += 1;
        if !state.held.contains_key(topic) {
            state.held.insert(topic.to_owned(), HashMap::new());
        }
        let queues = state
            .held
            .get_mut(topic)
            .expect("it was put there a line ago");
        queues.entry(queue_id).or_default().push(held);
        drop(state);
        // A sleeping thread may have to wake earlier now.
        self.filled.notify_one();
    }

    /// One queue may have something for those who wait for it.
    pub fn wake(&self, topic: &str, queue_id: i32) {
        let mut state = self.lock();
        state.wake(topic, queue_id);
        drop(state);
        self.filled.notify_all();
    }

    /// Queues grew; called once a dispatch pass.
    pub fn on_arrival(&self, arrivals: &[Arrival]) {
        let mut state = self.lock();
        if state.held_count == 0 {
            return;
        }
        for arrival in arrivals {
            state.wake(&arrival.topic, arrival.queue_id);
        }
        if !state.jobs.is_empty() {
            drop(state);
            self.filled.notify_all();
        }
    }

    /// Jobs that wait, and pulls that are held.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.jobs.len(), state.held_count)
    }

    pub fn stop(&self) {
        self.lock().stopped = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&mut self, topic: &str, queue_id: i32) {
        let Some(queues) = self.held.get_mut(topic) else {
            return;
        };
        let Some(woken) = queues.remove(&queue_id) else {
            return;
        };
        if queues.is_empty() {
            self.held.remove(topic);
        }
        self.held_count -= woken.len();
        self.jobs
            .extend(woken.into_iter().map(|held| held.woken(None)));
    }

    fn expire(&mut self, now: Instant) {
        let mut over = Vec::new();
        for queues in self.held.values_mut() {
            for held in queues.values_mut() {
                over.extend(held.extract_if(.., |held| now >= held.deadline));
            }
            queues.retain(|_, held| !held.is_empty());
        }
        self.held.retain(|_, queues| !queues.is_empty());
        self.held_count -= over.len();
        let left = self.held.values().flat_map(HashMap::values).flatten();
        self.next_deadline = left.map(|held| held.deadline).min();
        self.jobs
            .extend(over.into_iter().map(|held| held.woken(Some(now))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::Fields;
    use mio::Token;
    use std::sync::Arc;
    use std::time::Duration;

    fn held(from: i64, deadline: Instant) -> Held {
        let peer = Peer {
            connection: Token(20),
            address: ([127, 0, 0, 1], 1).into(),
            fast: false,
        };
        Held {
            peer,
            request: Command::request(11, Fields::default()),
            arrived: deadline,
            from,
            deadline,
        }
    }

    fn arrival(topic: &str, queue_id: i32) -> Arrival {
        Arrival {
            topic: Arc::from(topic),
            queue_id,
            queue_offset: 1,
            tags_code: 0,
            stored_ms: 0,
        }
    }

    #[test]
    fn an_arrival_wakes_only_those_of_its_queue() {
        let queue = PullQueue::default();
        let deadline = Instant::now() + Duration::from_secs(60);
        queue.hold("T", 0, held(7, deadline));
        queue.hold("T", 1, held(8, deadline));
        queue.on_arrival(&[arrival("U", 0), arrival("T", 0)]);
        let job = queue.take().expect("one is woken");
        assert_eq!(job.attempt, Attempt::Woken { from: 7, deadline });
        assert_eq!(queue.counts(), (0, 1));
    }

    #[test]
    fn a_held_pull_comes_back_when_its_time_is_over() {
        let queue = PullQueue::default();
        let start = Instant::now();
        queue.hold("T", 0, held(3, start + Duration::from_millis(20)));
        queue.hold("T", 0, held(4, start + Duration::from_secs(60)));
        let job = queue.take().expect("the first one's time is over");
        assert_eq!(job.attempt, Attempt::Expired { from: 3 });
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(queue.counts(), (0, 1));
    }
}
