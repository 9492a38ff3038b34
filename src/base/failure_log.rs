//! A failure that repeats every few seconds is said once, and again when it becomes another one or
//! has gone on for long.

use std::time::{Duration, Instant};

/// A failure that lasts is repeated this often, so that it is in every log file.
const REPEAT: Duration = Duration::from_secs(600);

/// What was said last about one thing that can fail.
#[derive(Default)]
pub struct FailureLog {
    said: Option<(String, Instant)>,
}

impl FailureLog {
    /// True if this failure is to be said now.
    pub fn failed(&mut self, text: &str, now: Instant) -> bool {
        if let Some((said, at)) = &self.said
            && said == text
            && now.saturating_duration_since(*at) < REPEAT
        {
            return false;
        }
        self.said = Some((text.to_owned(), now));
        true
    }

    /// True if there was a failure before.
    pub fn succeeded(&mut self) -> bool {
        self.said.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_said_once_until_it_changes_or_lasts() {
        let mut log = FailureLog::default();
        let now = Instant::now();
        assert!(!log.succeeded());
        assert!(log.failed("a", now) && !log.failed("a", now));
        assert!(log.failed("b", now) && log.failed("a", now));
        assert!(!log.failed("a", now + REPEAT / 2) && log.failed("a", now + REPEAT));
        assert!(log.succeeded() && !log.succeeded());
        assert!(log.failed("a", now));
    }
}
