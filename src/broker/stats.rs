//! Counters of what this broker served, and their rates over the last ten seconds, minute and ten
//! minutes as runtime info (28) shows them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::clock::Calendar;

/// Rates are shown over these, in seconds.
const WINDOWS: [i64; 3] = [10, 60, 600];
const SAMPLES_MAX: usize = 601;

/// Counted since the start; each counter only grows.
#[derive(Default)]
pub struct Stats {
    /// Messages stored for producers.
    put: AtomicU64,
    put_bytes: AtomicU64,
    put_failed: AtomicU64,
    /// Pulls that found messages, pulls that found none, and messages sent to consumers.
    found: AtomicU64,
    miss: AtomicU64,
    transferred: AtomicU64,
    /// The longest read of one pull.
    pull_max_ms: AtomicU64,
    history: Mutex<History>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub put: u64,
    pub put_bytes: u64,
    pub put_failed: u64,
    pub found: u64,
    pub miss: u64,
    pub transferred: u64,
    pub pull_max_ms: u64,
}

/// The totals of puts and of messages sent, at a midnight (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mornings {
    pub put_yesterday: u64,
    pub put_today: u64,
    pub got_yesterday: u64,
    pub got_today: u64,
}

#[derive(Default)]
struct History {
    /// One a second, oldest first.
    samples: VecDeque<(i64, Counts)>,
    mornings: Mornings,
    day: Option<i64>,
}

impl Stats {
    /// Messages were stored.
    pub fn on_put(&self, messages: u64, bytes: u64) {
        self.put.fetch_add(messages, Relaxed);
        self.put_bytes.fetch_add(bytes, Relaxed);
    }

    /// A send was not stored.
    pub fn on_put_failed(&self) {
        self.put_failed.fetch_add(1, Relaxed);
    }

    /// A pull was answered with so many messages.
    pub fn on_pull(&self, messages: u64, took: Duration) {
        let counter = if messages > 0 {
            &self.found
        } else {
            &self.miss
        };
        counter.fetch_add(1, Relaxed);
        self.transferred.fetch_add(messages, Relaxed);
        self.pull_max_ms.fetch_max(took.as_millis() as u64, Relaxed);
    }

    pub fn counts(&self) -> Counts {
        Counts {
            put: self.put.load(Relaxed),
            put_bytes: self.put_bytes.load(Relaxed),
            put_failed: self.put_failed.load(Relaxed),
            found: self.found.load(Relaxed),
            miss: self.miss.load(Relaxed),
            transferred: self.transferred.load(Relaxed),
            pull_max_ms: self.pull_max_ms.load(Relaxed),
        }
    }

    /// Once a second, by `timer`.
    pub fn sample(&self, now_ms: i64) {
        let counts = self.counts();
        let today = now_ms.div_euclid(86_400_000);
        let mut history = self.history();
        if history.day.is_some_and(|day| day != today) {
            log::info!("{}", day_line(now_ms, counts));
            history.mornings = Mornings {
                put_yesterday: history.mornings.put_today,
                put_today: counts.put,
                got_yesterday: history.mornings.got_today,
                got_today: counts.transferred,
            };
        }
        history.day = Some(today);
        history.samples.push_back((now_ms, counts));
        if history.samples.len() > SAMPLES_MAX {
            history.samples.pop_front();
        }
    }

    pub fn mornings(&self) -> Mornings {
        self.history().mornings
    }

    /// Three rates a second, separated by spaces, of what `count` picks.
    pub fn rates(&self, count: impl Fn(&Counts) -> u64) -> String {
        let history = self.history();
        let rates = WINDOWS.map(|seconds| format!("{:?}", history.rate(seconds, &count)));
        rates.join(" ")
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl History {
    fn rate(&self, seconds: i64, count: impl Fn(&Counts) -> u64) -> f64 {
        let Some((now, newest)) = self.samples.back() else {
            return 0.0;
        };
        let recent = self
            .samples
            .iter()
            .find(|(at, _)| *at >= now - seconds * 1000);
        match recent {
            Some((at, oldest)) if at < now => {
                let grown = count(newest).saturating_sub(count(oldest));
                grown as f64 * 1000.0 / (now - at) as f64
            }
            _ => 0.0,
        }
    }
}

fn day_line(now_ms: i64, counts: Counts) -> String {
    let day = Calendar::utc(now_ms);
    format!(
        "{:04}-{:02}-{:02}: {} messages stored and {} sent to consumers since the start",
        day.year, day.month, day.day, counts.put, counts.transferred
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_last_ten_seconds_minute_and_ten_minutes() {
        let stats = Stats::default();
        assert_eq!(stats.rates(|c| c.put), "0.0 0.0 0.0");
        for second in 0..=60 {
            stats.sample(second * 1000);
            stats.on_put(if second < 50 { 10 } else { 40 }, 100);
        }
        assert_eq!(stats.rates(|c| c.put), "40.0 15.0 15.0");
        for second in 61..2000 {
            stats.sample(second * 1000);
        }
        assert_eq!(stats.history().samples.len(), SAMPLES_MAX);
        assert_eq!(stats.rates(|c| c.put), "0.0 0.0 0.0");
    }

    #[test]
    fn pulls_count_as_found_or_missed_and_mornings_move_at_midnight() {
        let stats = Stats::default();
        stats.on_pull(3, Duration::from_millis(7));
        stats.on_pull(0, Duration::from_millis(2));
        stats.on_put(5, 50);
        stats.on_put_failed();
        let counts = stats.counts();
        assert_eq!((counts.found, counts.miss, counts.transferred), (1, 1, 3));
        assert_eq!((counts.pull_max_ms, counts.put_failed), (7, 1));
        stats.sample(86_399_000);
        assert_eq!(stats.mornings(), Mornings::default());
        stats.sample(86_400_000);
        let mornings = stats.mornings();
        assert_eq!(
            (
                mornings.put_today,
                mornings.got_today,
                mornings.put_yesterday
            ),
            (5, 3, 0)
        );
        stats.sample(2 * 86_400_000);
        assert_eq!(stats.mornings().put_yesterday, 5);
    }
}
