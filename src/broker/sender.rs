//! The send thread: takes every batch that is queued, stores all of them in one pass, wakes the
//! followers once, and answers. What must wait for a slave is left with the group transfer, so
//! this thread never waits for one: hundreds of sends in flight need no thread each.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::outbox::Peer;
use crate::remoting::Command;

/// Batches stored in one pass: the first answers must not wait for the thousandth connection.
const BATCHES_PER_PASS: usize = 64;
/// Bytes that wait to be stored, of all connections. Past this, sends are answered "busy".
const QUEUED_MAX: usize = 128 * 1024 * 1024;

/// Sends of one connection, in the order they came, with the moment each arrived.
pub struct Batch {
    pub peer: Peer,
    pub requests: Vec<(Command, Instant)>,
    bytes: usize,
}

impl Batch {
    pub fn new(peer: Peer) -> Batch {
        Batch {
            peer,
            requests: Vec::new(),
            bytes: 0,
        }
    }

    pub fn push(&mut self, request: Command, arrived: Instant) {
        self.bytes += request.body().len() + 512;
        self.requests.push((request, arrived));
    }

    /// About how much memory it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    requests: usize,
    bytes: usize,
    stopped: bool,
}

/// The queue in front of the send thread.
pub struct Sender {
    /// Most requests that wait (`sendThreadPoolQueueCapacity`).
    requests_max: usize,
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Sender {
    pub fn new(requests_max: usize) -> Sender {
        Sender {
            requests_max,
            queue: Mutex::default(),
            filled: Condvar::new(),
        }
    }

    /// Queues a batch; hands it back if too much waits, or nobody will take it any more.
    pub fn submit(&self, batch: Batch) -> Result<(), Batch> {
        let mut queue = self.lock();
        let requests = queue.requests + batch.requests.len();
        let full = queue.bytes + batch.bytes > QUEUED_MAX || requests > self.requests_max;
        if queue.stopped || (full && !queue.batches.is_empty()) {
            return Err(batch);
        }
        queue.requests = requests;
        queue.bytes += batch.bytes;
        queue.batches.push_back(batch);
        drop(queue);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for batches; `None` once the broker stops and nothing waits any more.
    pub fn take(&self) -> Option<Vec<Batch>> {
        let mut queue = self.lock();
        loop {
            if !queue.batches.is_empty() {
                let count = queue.batches.len().min(BATCHES_PER_PASS);
                let batches: Vec<Batch> = queue.batches.drain(..count).collect();
                queue.bytes -= batches.iter().map(Batch::bytes).sum::<usize>();
                queue.requests -= batches.iter().map(|b| b.requests.len()).sum::<usize>();
                return Some(batches);
            }
            if queue.stopped {
                return None;
            }
            queue = self
                .filled
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Requests that wait, for runtime info.
    pub fn queued(&self) -> usize {
        self.lock().requests
    }

    /// What is queued is still stored; then the thread ends.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
