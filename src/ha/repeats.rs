//! Log lines that would repeat: a peer that comes back every second with the same fault must not
//! fill the disk with it.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A line is written once in this time; what came between is counted.
const QUIET: Duration = Duration::from_secs(60);
/// Most kinds remembered. Beyond that the oldest are forgotten, which at worst repeats a line.
const KINDS_MAX: usize = 256;

/// Remembers which kinds of line were written lately.
pub struct Repeats<K> {
    seen: HashMap<K, Seen>,
}

struct Seen {
    written_at: Instant,
    held_back: u64,
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
            && now.saturating_duration_since(seen.written_at) < QUIET
        {
            seen.held_back += 1;
            return None;
        }
        self.make_room();
        let fresh = Seen {
            written_at: now,
            held_back: 0,
        };
        let before = self.seen.insert(kind, fresh);
        Some(before.map_or(0, |seen| seen.held_back))
    }

    fn make_room(&mut self) {
        if self.seen.len() < KINDS_MAX {
            return;
        }
        let oldest = self.seen.iter().min_by_key(|(_, seen)| seen.written_at);
        if let Some(kind) = oldest.map(|(kind, _)| kind.clone()) {
            self.seen.remove(&kind);
        }
    }
}

/// How a line ends that stands for others too.
pub fn and_more(held_back: u64) -> String {
    match held_back {
        0 => String::new(),
        n => format!(" ({n} more of these in the last minutes)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_once_a_minute_and_tells_how_often_it_was_not() {
        let mut repeats = Repeats::default();
        let start = Instant::now();
        assert_eq!(repeats.pass("silent", start), Some(0));
        assert_eq!(repeats.pass("gone", start), Some(0));
        for second in 1..60 {
            let now = start + Duration::from_secs(second);
            assert_eq!(repeats.pass("silent", now), None);
        }
        assert_eq!(repeats.pass("silent", start + QUIET), Some(59));
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
