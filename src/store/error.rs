//! What can go wrong in the store, one variant for each decision a caller can take.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::record::Flaw;

#[derive(Debug)]
pub enum StoreError {
    /// The message breaks a rule or a limit. The client hears MESSAGE_ILLEGAL; nothing was written.
    MessageIllegal(String),
    /// The client hears PROPERTIES_SIZE_EXCEEDED; nothing was written.
    PropertiesTooLong { len: usize, max: usize },
    /// The store takes no messages now. The client hears SERVICE_NOT_AVAILABLE.
    NotWritable(Refusal),
    /// The master's bytes do not continue our log. The slave drops the connection.
    Gap { log_end: u64, start: u64 },
    /// There is no record at this log offset, or it is not readable yet.
    NotFound { offset: u64 },
    /// Stored bytes are not an intact record.
    Corrupt { offset: u64, flaw: Flaw },
    /// The file system has no room for what was to be written.
    DiskFull(PathBuf),
    /// Another process has the store open.
    InUse(PathBuf),
    /// This directory cannot be opened as a store; says which file, why, and what to do.
    Refused(String),
    /// The system refused: the call, the file, its reason.
    System(&'static str, PathBuf, io::Error),
}

/// Why the store takes no messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Slave,
    DiskFull,
    /// Queues or the index cannot be written, or the log holds bytes that are no record.
    DispatchStopped,
    Closed,
}

impl StoreError {
    /// Turns a system call's failure into an error with its place; a full disk has its own name.
    pub fn system(call: &'static str, path: &Path, error: io::Error) -> StoreError {
        if matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ) {
            return StoreError::DiskFull(path.to_path_buf());
        }
        StoreError::System(call, path.to_path_buf(), error)
    }

    /// A sync that failed, for whatever reason: what is on the disk is not known any more.
    pub fn sync(path: &Path, error: io::Error) -> StoreError {
        StoreError::System(SYNC_CALL, path.to_path_buf(), error)
    }

    pub fn is_failed_sync(&self) -> bool {
        matches!(self, StoreError::System(SYNC_CALL, ..))
    }
}

const SYNC_CALL: &str = "fdatasync";

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::MessageIllegal(reason) => write!(f, "message refused: {reason}"),
            StoreError::PropertiesTooLong { len, max } => {
                write!(
                    f,
                    "message refused: {len} bytes of properties, at most {max}"
                )
            }
            StoreError::NotWritable(why) => write!(f, "the store takes no messages: {why}"),
            StoreError::Gap { log_end, start } => {
                write!(
                    f,
                    "bytes from {start} do not continue the log, which ends at {log_end}"
                )
            }
            StoreError::NotFound { offset } => write!(f, "no record at log offset {offset}"),
            StoreError::Corrupt { offset, flaw } => {
                write!(f, "log offset {offset} holds no intact record: {flaw}")
            }
            StoreError::DiskFull(path) => write!(f, "no space left for {}", path.display()),
            StoreError::InUse(path) => {
                write!(
                    f,
                    "{} is locked: another broker uses this store",
                    path.display()
                )
            }
            StoreError::Refused(reason) => f.write_str(reason),
            StoreError::System(call, path, error) => {
                write!(f, "{call} {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for StoreError {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Slave => "it is a slave's",
            Refusal::DiskFull => "disk full",
            Refusal::DispatchStopped => "its queues cannot be built",
            Refusal::Closed => "it is closed",
        })
    }
}
