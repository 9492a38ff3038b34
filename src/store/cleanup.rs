//! The `store-timer` thread: checkpoints, disk usage, and deletion of old files.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use super::Store;
use super::checkpoint::Checkpoint;
use super::error::StoreError;
use super::flush;
use super::layout;
use crate::base::clock::{self, Calendar};
use crate::base::sys::DiskSpace;

/// The thread's body: both jobs at their own pace.
pub fn run(store: &Store) {
    let (checkpoint, cleaning) = (
        store.config.checkpoint_interval,
        store.config.cleaning.interval,
    );
    let start = Instant::now();
    let (mut checkpoint_at, mut clean_at) = (start + checkpoint, start + cleaning);
    loop {
        let next = checkpoint_at.min(clean_at);
        let sleep = next.saturating_duration_since(Instant::now());
        if store.stopping.wait(sleep.max(Duration::from_millis(1))) {
            return;
        }
        let now = Instant::now();
        if now >= checkpoint_at {
            checkpoint_at = now + checkpoint;
            flush::or_abort(store.checkpoint());
        }
        if now >= clean_at {
            clean_at = now + cleaning;
            if let Err(error) = store.clean() {
                log::error!("cleaning: {error}");
            }
        }
    }
}

impl Store {
    /// Has the disk keep everything that is dispatched now, and says so in the checkpoint file.
    pub(super) fn checkpoint(&self) -> Result<(), StoreError> {
        // The time first: all that is older is in the queues already, and synced below.
        let stored_ms = self.dispatched_ms.load(Ordering::Acquire);
        let dispatched = self.dispatched.get();
        if self.checkpointed.load(Ordering::Acquire) == dispatched {
            return Ok(());
        }
        self.log.flush()?;
        self.log.flushed().wake();
        for queue in self.queues.all() {
            queue.sync()?;
        }
        let mut index_ms = 0;
        if let Some(index) = &self.index {
            index.sync()?;
            index_ms = index.full_ms();
        }
        let checkpoint = Checkpoint {
            log_ms: stored_ms,
            queue_ms: stored_ms,
            index_ms,
        };
        checkpoint.write(&layout::checkpoint(&self.config.root))?;
        self.checkpointed.store(dispatched, Ordering::Release);
        Ok(())
    }

    /// Looks at the disks, and deletes what has expired or what must give way.
    pub(super) fn clean(&self) -> Result<(), StoreError> {
        let rules = &self.config.cleaning;
        let (log_ratio, queue_ratio) = self.disk_ratios();
        let used = log_ratio.max(queue_ratio);
        self.set_disk_full(used > rules.warning_ratio);
        let at_once = rules.clean_forcibly && used > rules.clean_forcibly_ratio;
        let hour = Calendar::utc(clock::wall_ms()).hour;
        let due = rules.delete_when.contains(&hour) || used > rules.disk_max_used_ratio;
        if !due && !at_once {
            return Ok(());
        }
        let mut deleted = 0;
        while deleted < rules.files_per_run && self.delete_first_file(at_once)? {
            deleted += 1;
        }
        if deleted > 0 {
            self.clean_derived()?;
        }
        Ok(())
    }

    /// Deletes the oldest log file if it has expired, or at once; never the last one.
    fn delete_first_file(&self, at_once: bool) -> Result<bool, StoreError> {
        let chain = &self.log.chain;
        let Some((base, first)) = chain.first().filter(|_| chain.len() > 1) else {
            return Ok(false);
        };
        if base + chain.file_size() > self.dispatched.get() {
            return Ok(false); // the queues do not know all of it yet
        }
        let path = first.path().to_path_buf();
        if !at_once && !self.has_expired(&path) {
            return Ok(false);
        }
        // Readers that still hold the file keep its mapping; only its name goes.
        chain.pop_first();
        std::fs::remove_file(&path).map_err(|error| StoreError::system("remove", &path, error))?;
        log::info!(
            "{} deleted: {}",
            path.display(),
            if at_once { "disk full" } else { "expired" }
        );
        Ok(true)
    }

    fn has_expired(&self, path: &Path) -> bool {
        let modified = std::fs::metadata(path).and_then(|meta| meta.modified());
        let age = |time| SystemTime::now().duration_since(time).unwrap_or_default();
        modified.is_ok_and(|time| age(time) >= self.config.cleaning.reserved)
    }

    /// Lets queues and index follow the log's new beginning.
    fn clean_derived(&self) -> Result<(), StoreError> {
        let log_min = self.log.start();
        for queue in self.queues.all() {
            queue.delete_expired(log_min)?;
        }
        if let Some(index) = &self.index {
            index.delete_expired(log_min)?;
        }
        Ok(())
    }

    /// Used share of the log's file systems (the emptiest counts: new files go there) and of the
    /// queues'. What cannot be measured counts as empty, and is said.
    pub(super) fn disk_ratios(&self) -> (f64, f64) {
        let ratio = |path: &Path| match DiskSpace::of(path) {
            Ok(space) => space.used_ratio(),
            Err(error) => {
                log::warn!("disk usage of {}: {error}", path.display());
                0.0
            }
        };
        let dirs = self.config.commit_log_dirs.iter();
        let log = dirs.map(|dir| ratio(dir)).fold(f64::INFINITY, f64::min);
        (log, ratio(&self.config.root))
    }
}
