//! An offset that only grows, and those who follow it: threads that wait on a Condvar, and event
//! loops that want their waker called.
//!
//! Moving the offset and waking the followers are apart, since a batch moves it once a record
//! and wakes once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

type Hook = Box<dyn Fn() + Send + Sync>;

/// One writer at a time, any number of readers.
#[derive(Default)]
pub struct Watermark {
    offset: AtomicU64,
    /// Guards nothing but the moment between a waiter's look at `offset` and its sleep.
    gate: Mutex<bool>,
    moved: Condvar,
    hooks: Mutex<Vec<Hook>>,
}

impl Watermark {
    pub fn new(offset: u64) -> Watermark {
        Watermark {
            offset: AtomicU64::new(offset),
            ..Watermark::default()
        }
    }

    pub fn get(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    /// Moves the offset without waking anybody; a smaller value changes nothing.
    pub fn advance(&self, to: u64) {
        self.offset.fetch_max(to, Ordering::AcqRel);
    }

    /// Sets the offset back. Only recovery does this, before anybody follows.
    pub fn reset(&self, to: u64) {
        self.offset.store(to, Ordering::Release);
    }

    /// Wakes every waiting thread and calls every hook, once a batch.
    pub fn wake(&self) {
        drop(self.lock());
        self.moved.notify_all();
        let hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        for hook in hooks.iter() {
            hook();
        }
    }

    /// Ends all waits for good: the process stops.
    pub fn close(&self) {
        *self.lock() = true;
        self.wake();
    }

    /// Has `hook` called at each `wake`. It must be quick and take no lock of its own.
    pub fn on_wake(&self, hook: impl Fn() + Send + Sync + 'static) {
        let mut hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        hooks.push(Box::new(hook));
    }

    /// Waits until the offset is at least `offset`, the deadline passes or the mark is closed.
    /// True if the offset is there.
    pub fn wait(&self, offset: u64, deadline: Instant) -> bool {
        let mut closed = self.lock();
        while self.get() < offset && !*closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.moved.wait_timeout(closed, left);
            closed = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.get() >= offset
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    #[test]
    fn it_never_falls() {
        let mark = Watermark::new(10);
        mark.advance(5);
        assert_eq!(mark.get(), 10);
    }

    #[test]
    fn a_waiter_is_woken_and_a_late_one_does_not_wait() {
        let mark = Arc::new(Watermark::new(0));
        let waiter = {
            let mark = mark.clone();
            std::thread::spawn(move || mark.wait(7, Instant::now() + Duration::from_secs(20)))
        };
        mark.advance(7);
        mark.wake();
        assert!(waiter.join().expect("the waiter ends"));
        assert!(mark.wait(7, Instant::now()));
        assert!(!mark.wait(8, Instant::now()));
    }

    #[test]
    fn closing_ends_a_wait_early_and_hooks_are_called_once_a_wake() {
        let mark = Watermark::new(0);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        mark.on_wake(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        mark.close();
        let start = Instant::now();
        assert!(!mark.wait(1, start + Duration::from_secs(20)));
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}
