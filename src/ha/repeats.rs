//! Log lines that would repeat: a peer that comes back every second with the same fault must not
//! fill the disk with it.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// In this time a line is written a few times; what comes beyond that is counted.
const WINDOW: Duration = Duration::from_secs(60);
const LINES_PER_WINDOW: u64 = 3;
/// Most kinds remembered. Beyond that the oldest are forgotten, which at worst repeats a line.
const KINDS_MAX: usize = 256;

/// Remembers which kinds of line were written lately.
pub struct Repeats<K> {
    seen: HashMap<K, Seen>,
}

struct Seen {
    window_start: Instant,
    lines: u64,
}

impl<K: Eq + Hash + Clone> Default for Repeats<K> {
    fn default() -> Self {
        Repeats {
            seen: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash + Clone> Repeats<K> {
    /// `Some(n)` if a line of this kind is to be written now, after `n` that were held back.
    pub fn pass(&mut self, kind: K, now: Instant) -> Option<u64> {
        if let Some(seen) = self.seen.get_mut(&kind)
            && now.saturating_duration_since(seen.window_start) < WINDOW
        {
            seen.lines += 1;
            return (seen.lines <= LINES_PER_WINDOW).then_some(0);
        }
        self.make_room();
        let fresh = Seen {
            window_start: now,
            lines: 1,
        };
        let before = self.seen.insert(kind, fresh);
        Some(before.map_or(0, |seen| seen.lines.saturating_sub(LINES_PER_WINDOW)))
    }

    fn make_room(&mut self) {
        if self.seen.len() < KINDS_MAX {
            return;
        }
        let oldest = self.seen.iter().min_by_key(|(_, seen)| seen.window_start);
        if let Some(kind) = oldest.map(|(kind, _)| kind.clone()) {
            self.seen.remove(&kind);
        }
    }
}

/// How a line ends that stands for others too.
pub fn and_more(held_back: u64) -> String {
    match held_back {
        0 => String::new(),
        n => format!(" ({n} more of these before)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_three_times_a_minute_and_tells_how_often_it_was_not() {
        // B23: a peer that comes back every second.
        let mut repeats = Repeats::default();
        let start = Instant::now();
        let mut written = 0;
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            written += u64::from(repeats.pass("silent", now) == Some(0));
        }
        assert_eq!(written, LINES_PER_WINDOW);
        assert_eq!(repeats.pass("gone", start), Some(0));
        assert_eq!(repeats.pass("silent", start + WINDOW), Some(57));
        assert_eq!(repeats.pass("silent", start + 2 * WINDOW), Some(0));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut repeats = Repeats::default();
        let start = Instant::now();
        for kind in 0..10_000u64 {
            repeats.pass(kind, start + Duration::from_millis(kind));
        }
        assert_eq!(repeats.seen.len(), KINDS_MAX);
    }
}
