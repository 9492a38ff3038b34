//! Every file and directory name in a store.

use std::path::{Path, PathBuf};

/// Held with a POSIX lock while a broker has the store open.
pub fn lock(root: &Path) -> PathBuf {
    root.join("lock")
}

/// There while the store is open, and afterwards if it was not closed properly.
pub fn abort(root: &Path) -> PathBuf {
    root.join("abort")
}

pub fn checkpoint(root: &Path) -> PathBuf {
    root.join("checkpoint")
}

/// `<topic>/<queue id>/<file>` below it.
pub fn consume_queues(root: &Path) -> PathBuf {
    root.join("consumequeue")
}

pub fn consume_queue(root: &Path, topic: &str, queue_id: i32) -> PathBuf {
    consume_queues(root).join(topic).join(queue_id.to_string())
}

pub fn index(root: &Path) -> PathBuf {
    root.join("index")
}

/// What a broker with `storeType=defaultRocksDB` leaves instead of topic directories.
pub fn rocksdb_marker(root: &Path) -> PathBuf {
    consume_queues(root).join("CURRENT")
}

/// Files of the log and of queues are named by their first byte's offset, in 20 digits.
pub fn offset_file(offset: u64) -> String {
    format!("{offset:020}")
}

/// The offset in such a name.
pub fn parse_offset_file(name: &str) -> Option<u64> {
    (name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit()))
        .then(|| name.parse().ok())
        .flatten()
        .filter(|&offset: &u64| i64::try_from(offset).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_files_have_twenty_digits() {
        assert_eq!(offset_file(1 << 31), "00000000002147483648");
        assert_eq!(parse_offset_file("00000000002147483648"), Some(1 << 31));
        assert_eq!(parse_offset_file("0000000000214748364"), None);
        assert_eq!(parse_offset_file("+0000000002147483648"), None);
        assert_eq!(parse_offset_file("18446744073709551615"), None);
    }
}
