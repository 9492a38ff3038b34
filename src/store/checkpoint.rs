//! The checkpoint file: up to which store time everything is on the disk.
//!
//! | offset | size | field                                                                    |
//! |-------:|-----:|--------------------------------------------------------------------------|
//! |      0 |    8 | log time: store time up to which the log is on the disk, ms              |
//! |      8 |    8 | queue time: the same for the queues                                      |
//! |     16 |    8 | index time: end time of the last index file that is full and on the disk |
//! |     24 |   16 | written by 5.x, kept as they are                                         |
//!
//! The file has 4096 bytes. Too small a time costs a longer recovery, too large a one loses
//! queue entries; so it is written only after everything before it was synced.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use byteorder::{BigEndian, ByteOrder};

use super::error::StoreError;
use super::mapped_file::sync_parent;

const FILE_SIZE: usize = 4096;
/// Times are taken this much earlier: clocks and syncs do not end on the same millisecond.
const SAFETY_MS: i64 = 3000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    pub log_ms: i64,
    pub queue_ms: i64,
    pub index_ms: i64,
}

impl Checkpoint {
    /// Reads the file; one that is missing or short says nothing.
    pub fn read(path: &Path) -> Result<Checkpoint, StoreError> {
        let mut bytes = [0; 24];
        let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => bytes.fill(0),
            Err(error) => return Err(StoreError::system("read", path, error)),
            Ok(()) => {}
        }
        Ok(Checkpoint {
            log_ms: BigEndian::read_i64(&bytes),
            queue_ms: BigEndian::read_i64(&bytes[8..]),
            index_ms: BigEndian::read_i64(&bytes[16..]),
        })
    }

    /// Writes the file and has the disk keep it.
    pub fn write(&self, path: &Path) -> Result<(), StoreError> {
        let mut bytes = [0; 24];
        BigEndian::write_i64(&mut bytes, self.log_ms);
        BigEndian::write_i64(&mut bytes[8..], self.queue_ms);
        BigEndian::write_i64(&mut bytes[16..], self.index_ms);
        let write = || -> io::Result<(File, bool)> {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let new = file.metadata()?.len() != FILE_SIZE as u64;
            if new {
                file.set_len(FILE_SIZE as u64)?;
            }
            file.write_all_at(&bytes, 0)?;
            Ok((file, new))
        };
        let (file, new) = write().map_err(|error| StoreError::system("write", path, error))?;
        file.sync_data()
            .map_err(|error| StoreError::sync(path, error))?;
        if new { sync_parent(path) } else { Ok(()) }
    }

    /// The store time before which log and queues are surely on the disk; 0 if that is not
    /// known. A time that is still to come was not written by a sound clock.
    pub fn safe_ms(&self, now_ms: i64) -> i64 {
        let ms = self.log_ms.min(self.queue_ms);
        if self.log_ms.max(self.queue_ms) > now_ms {
            return 0;
        }
        (ms - SAFETY_MS).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_other_bytes_are_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("checkpoint");
        assert_eq!(
            Checkpoint::read(&path).expect("nothing"),
            Checkpoint::default()
        );
        let checkpoint = Checkpoint {
            log_ms: 10_000,
            queue_ms: 9_000,
            index_ms: 3,
        };
        checkpoint.write(&path).expect("written");
        let mut bytes = std::fs::read(&path).expect("it is there");
        assert_eq!(bytes.len(), FILE_SIZE);
        bytes[32] = 7;
        std::fs::write(&path, &bytes).expect("written");
        checkpoint.write(&path).expect("written again");
        assert_eq!(std::fs::read(&path).expect("there")[32], 7);
        assert_eq!(Checkpoint::read(&path).expect("read"), checkpoint);
        assert_eq!(checkpoint.safe_ms(20_000), 6_000);
        assert_eq!(checkpoint.safe_ms(9_999), 0);
        std::fs::write(&path, b"short").expect("written");
        assert_eq!(
            Checkpoint::read(&path).expect("read"),
            Checkpoint::default()
        );
    }
}
