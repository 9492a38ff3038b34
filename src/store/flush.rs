//! The `flush` thread: brings the log to the disk.
//!
//! Under SYNC_FLUSH it syncs whenever something was written, once for all that wait. Otherwise
//! it sleeps while everything is flushed, waits an interval after the first new byte, and syncs
//! what has gathered; the little that is less than some pages waits for the thorough interval.
//!
//! A failed sync ends the process. The kernel may have dropped the pages, so a second sync that
//! succeeds would prove nothing; restart recovers.

use std::time::{Duration, Instant};

use super::Store;
use super::commit_log::CommitLog;
use super::error::StoreError;

const PAGE_SIZE: u64 = 4096;

impl CommitLog {
    /// Has the disk keep everything that is written now.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let (from, to) = (self.flushed().get(), self.end());
        if from >= to {
            return Ok(());
        }
        for (base, file) in self.chain.all() {
            if base < to && base + self.file_size() > from {
                file.sync()?;
            }
        }
        self.flushed().advance(to);
        Ok(())
    }
}

/// Ends the process after a failed sync; says what else went wrong.
pub(super) fn or_abort(result: Result<(), StoreError>) {
    let Err(error) = result else {
        return;
    };
    if error.is_failed_sync() {
        log::error!("{error}: what is on the disk is not known any more, the process ends");
        log::logger().flush();
        std::process::abort();
    }
    log::error!("{error}");
}

/// The thread's body.
pub fn run(store: &Store) {
    let log = &store.log;
    let mut thorough_at = Instant::now();
    while !store.stopping.is_set() {
        let idle = Instant::now() + Duration::from_secs(3600);
        if !log.wrote().wait(log.flushed().get() + 1, idle) {
            continue;
        }
        if !store.config.sync_flush {
            if store.stopping.wait(store.config.flush_interval) {
                break;
            }
            let dirty = log.end() / PAGE_SIZE - log.flushed().get() / PAGE_SIZE;
            let thorough = thorough_at.elapsed() >= store.config.flush_thorough_interval;
            if dirty < store.config.flush_least_pages && !thorough {
                continue;
            }
        }
        or_abort(log.flush());
        thorough_at = Instant::now();
        log.flushed().wake();
    }
}
