//! What the store needs to know, in its own units; the broker's configuration fills it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::consume_queue::ENTRY_SIZE;

/// A store's settings. `new` has the original's defaults.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub root: PathBuf,
    /// Where log files are; a new one goes to the directories in turn.
    pub commit_log_dirs: Vec<PathBuf>,
    /// Loaded, never written.
    pub read_only_log_dirs: Vec<PathBuf>,
    pub log_file_size: u64,
    /// A multiple of 20; `queue_file_size` rounds up as the original does.
    pub queue_file_size: u64,
    pub hash_slots: u32,
    pub index_entries: u32,
    pub index_enabled: bool,
    /// SYNC_FLUSH: nobody sees what is not on the disk.
    pub sync_flush: bool,
    pub flush_interval: Duration,
    pub flush_least_pages: u64,
    pub flush_thorough_interval: Duration,
    /// How often queues, index and checkpoint are brought to the disk.
    pub checkpoint_interval: Duration,
    pub max_message_size: usize,
    /// Takes only `append_raw`.
    pub slave: bool,
    pub delay_levels: DelayLevels,
    pub check_crc_on_recover: bool,
    pub cleaning: Cleaning,
}

/// When old log files are deleted.
#[derive(Clone, Debug)]
pub struct Cleaning {
    pub reserved: Duration,
    /// Hours of the day, 0 to 23, in which expired files are deleted.
    pub delete_when: Vec<u32>,
    /// Expired files are deleted at any hour above this share of used space.
    pub disk_max_used_ratio: f64,
    /// Files are deleted before they expire above this one ...
    pub clean_forcibly_ratio: f64,
    /// ... and no message is taken above this one.
    pub warning_ratio: f64,
    pub clean_forcibly: bool,
    pub interval: Duration,
    pub files_per_run: usize,
}

impl StoreConfig {
    pub fn new(root: &Path) -> StoreConfig {
        StoreConfig {
            root: root.to_path_buf(),
            commit_log_dirs: vec![root.join("commitlog")],
            read_only_log_dirs: Vec::new(),
            log_file_size: 1 << 30,
            queue_file_size: 300_000 * ENTRY_SIZE as u64,
            hash_slots: 5_000_000,
            index_entries: 20_000_000,
            index_enabled: true,
            sync_flush: false,
            flush_interval: Duration::from_millis(500),
            flush_least_pages: 4,
            flush_thorough_interval: Duration::from_secs(10),
            checkpoint_interval: Duration::from_secs(10),
            max_message_size: 4 * 1024 * 1024,
            slave: false,
            delay_levels: DelayLevels::default(),
            check_crc_on_recover: true,
            cleaning: Cleaning::default(),
        }
    }
}

impl Default for Cleaning {
    fn default() -> Cleaning {
        Cleaning {
            reserved: Duration::from_secs(72 * 3600),
            delete_when: vec![4],
            disk_max_used_ratio: 0.75,
            clean_forcibly_ratio: 0.85,
            warning_ratio: 0.90,
            clean_forcibly: true,
            interval: Duration::from_secs(10),
            files_per_run: 10,
        }
    }
}

/// How long a message of each delay level waits; level 1 is the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels(Vec<i64>);

impl DelayLevels {
    /// Reads `1s 5s 10m 1h 1d`; `None` if a piece is not a number with one of the units s m h d.
    pub fn parse(text: &str) -> Option<DelayLevels> {
        let level = |piece: &str| {
            let unit = piece.chars().last()?;
            let ms = match unit {
                's' => 1000,
                'm' => 60_000,
                'h' => 3_600_000,
                'd' => 86_400_000,
                _ => return None,
            };
            let count: i64 = piece[..piece.len() - 1].parse().ok()?;
            count.checked_mul(ms)
        };
        text.split(' ')
            .filter(|piece| !piece.is_empty())
            .map(level)
            .collect::<Option<_>>()
            .map(DelayLevels)
    }

    /// Highest level.
    pub fn max(&self) -> i32 {
        self.0.len() as i32
    }

    /// When a message of this level, stored at `stored_ms`, is due; higher levels count as the
    /// highest.
    pub fn due_ms(&self, level: i32, stored_ms: i64) -> i64 {
        let level = level.clamp(0, self.max()) as usize;
        let delay = level.checked_sub(1).and_then(|at| self.0.get(at));
        stored_ms.saturating_add(delay.copied().unwrap_or(1000))
    }
}

impl Default for DelayLevels {
    fn default() -> DelayLevels {
        DelayLevels::parse("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
            .expect("the original's default is well-formed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_levels_are_read_and_capped() {
        let levels = DelayLevels::default();
        assert_eq!(levels.max(), 18);
        assert_eq!(levels.due_ms(1, 50), 1050);
        assert_eq!(levels.due_ms(14, 0), 600_000);
        assert_eq!(levels.due_ms(25, 0), 7_200_000);
        assert_eq!(DelayLevels::parse("1s 2x"), None);
        assert_eq!(DelayLevels::parse("s"), None);
        assert_eq!(DelayLevels::parse("1é"), None);
    }
}
