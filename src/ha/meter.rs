//! Bytes a second, for people: an average over the last second or so.

use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);

/// Counts bytes in windows of a second.
pub struct Meter {
    window_start: Instant,
    window_bytes: u64,
    last_rate: f64,
}

impl Meter {
    pub fn new(now: Instant) -> Meter {
        Meter {
            window_start: now,
            window_bytes: 0,
            last_rate: 0.0,
        }
    }

    pub fn add(&mut self, bytes: u64, now: Instant) {
        self.turn_over(now);
        self.window_bytes += bytes;
    }

    pub fn rate(&mut self, now: Instant) -> f64 {
        self.turn_over(now);
        self.last_rate
    }

    fn turn_over(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.window_start);
        if elapsed >= WINDOW {
            self.last_rate = self.window_bytes as f64 / elapsed.as_secs_f64();
            self.window_start = now;
            self.window_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_window_and_falls_to_zero() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.add(500, start);
        meter.add(500, start + WINDOW / 2);
        assert_eq!(meter.rate(start + WINDOW), 1000.0);
        assert_eq!(meter.rate(start + 3 * WINDOW), 0.0);
    }
}
