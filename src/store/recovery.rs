//! Where the log ends, and from where queues and index are made anew.
//!
//! The end of a log is written nowhere: it is behind the last intact record. A damaged record
//! with intact ones behind it is not the end; the walk goes on where the record's own size leads
//! to the next one, else at the next place where a record stands that says so itself (magic, and
//! physical offset = position). Only what no intact record follows is cut: made zero and synced
//! before anything is appended, so that it cannot come back.
//!
//! After a clean stop the queues tell where the log ends, and only its end is read. After a crash
//! the checkpoint tells from which file on everything must be looked at.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use byteorder::{BigEndian, ByteOrder};
use rustix::fs::SeekFrom;

use super::checkpoint::Checkpoint;
use super::config::StoreConfig;
use super::error::StoreError;
use super::file_chain::{self, Found};
use super::mapped_file::{Appender, MappedFile, punch};
use super::queue_table::QueueTable;
use super::record::{self, Flaw, Inspection};
use crate::base::clock;

/// After a clean stop this much of the last file is looked at again: a check of what the stop
/// promised, that costs next to nothing.
const CLEAN_CHECK_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes that are looked at together when searching for the next record.
const BLOCK: usize = 4096;

/// The log's files in order, for looking only.
pub struct LogFiles {
    files: Vec<Arc<MappedFile>>,
    file_size: u64,
}

impl LogFiles {
    pub fn open(config: &StoreConfig) -> Result<LogFiles, StoreError> {
        let mut found: Vec<Found> = Vec::new();
        for dir in config
            .commit_log_dirs
            .iter()
            .chain(&config.read_only_log_dirs)
        {
            found.extend(file_chain::list(dir, config.log_file_size)?);
        }
        found.sort_by_key(|file| file.base);
        file_chain::check_contiguous(&found, config.log_file_size)?;
        let files = found
            .iter()
            .map(|file| MappedFile::open(&file.path, file.base))
            .collect::<Result<_, _>>()?;
        Ok(LogFiles {
            files,
            file_size: config.log_file_size,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn start(&self) -> u64 {
        self.files.first().map_or(0, |file| file.base())
    }

    /// The file that holds a log offset.
    fn find(&self, at: u64) -> Option<&Arc<MappedFile>> {
        let index = at.checked_sub(self.start())? / self.file_size;
        self.files.get(index as usize)
    }

    /// The bytes from a log offset to its file's end.
    fn bytes(&self, at: u64) -> Option<&[u8]> {
        let file = self.find(at)?;
        Some(&file.written()[(at - file.base()) as usize..])
    }

    fn inspect(&self, at: u64) -> Inspection {
        match self.bytes(at) {
            Some(bytes) => record::inspect(bytes, at, bytes.len() as u64),
            None => Inspection::Broken(Flaw::Magic),
        }
    }

    /// The store time of the record at a log offset, if one is there.
    pub fn stored_ms(&self, at: u64) -> Option<i64> {
        let bytes = self.bytes(at)?;
        let (_, physical) = record::peek_offsets(bytes)?;
        record::peek_stored_ms(bytes).filter(|_| physical == at as i64)
    }

    /// Where to look from after a crash: the last file whose first record is so old that all
    /// before it is surely in the queues; the first file if there is none.
    fn start_after_crash(&self, checkpoint: &Checkpoint) -> u64 {
        let safe_ms = checkpoint.safe_ms(clock::wall_ms());
        let old = |file: &&Arc<MappedFile>| {
            let first = self.stored_ms(file.base());
            first.is_some_and(|ms| ms != 0 && ms <= safe_ms)
        };
        let file = self.files.iter().rev().find(old);
        file.map_or(self.start(), |file| file.base())
    }

    /// Where to look from after a clean stop: shortly before the end of the furthest queue.
    fn start_after_stop(&self, queues: &QueueTable) -> u64 {
        let entries = queues.all().into_iter().filter_map(|q| q.last_entry());
        let Some(last) = entries.map(|(_, e)| e).max_by_key(|e| e.log_end()) else {
            return self.start();
        };
        let Some(file) = self.find(last.log_end()).or(self.files.last()) else {
            return self.start();
        };
        let sound = self.inspect(last.log_offset)
            == Inspection::Record {
                size: last.size as usize,
            };
        if sound && last.log_end().saturating_sub(file.base()) > CLEAN_CHECK_BYTES {
            return last.log_offset;
        }
        file.base()
    }

    /// Walks from `from`, a record's start or a file's, to the log's end.
    pub fn scan(&self, from: u64, clean: bool, check_crc: bool) -> Scan {
        let mut scan = Scan {
            end: from,
            lost: Vec::new(),
            damaged: 0,
            stopped: None,
        };
        let (mut at, mut last_ms, mut last_record) = (from, 0, None);
        let mut damaged = 0;
        while let Some(bytes) = self.bytes(at) {
            let inspection = record::inspect(bytes, at, bytes.len() as u64);
            let flaw = match inspection {
                Inspection::Record { size } => {
                    last_ms = record::peek_stored_ms(bytes).unwrap_or(last_ms);
                    last_record = Some(at..at + size as u64);
                    at += size as u64;
                    scan.reach(at, &mut damaged);
                    continue;
                }
                Inspection::Damaged { size, flaw } => {
                    damaged += 1;
                    log::error!("log offset {at}: damaged record of {size} bytes");
                    scan.stopped.get_or_insert((at, flaw));
                    at += size as u64;
                    if !check_crc {
                        scan.reach(at, &mut damaged);
                    }
                    continue;
                }
                // A blank that ends the last file is opened again, as the original does.
                Inspection::Blank { size } if self.find(at + size as u64).is_none() => break,
                Inspection::Blank { size } => {
                    at += size as u64;
                    scan.reach(at, &mut damaged);
                    continue;
                }
                Inspection::Broken(flaw) => flaw,
                Inspection::Incomplete { .. } => Flaw::Size,
            };
            scan.stopped.get_or_insert((at, flaw));
            let Some(next) = self.next_record(at, last_ms) else {
                break;
            };
            log::error!(
                "log offset {at}: {} bytes that are no record: {flaw}",
                next - at
            );
            scan.lost.push(at..next);
            at = next;
        }
        scan.lost.retain(|range| range.start < scan.end);
        if let Some(last) = last_record.filter(|last| last.end == scan.end)
            && self.is_torn(last.start, clean)
        {
            scan.end = last.start;
            scan.stopped = Some((last.start, Flaw::Torn));
        }
        scan
    }

    /// A last record's properties have no checksum. A write that was torn left zeros in them.
    fn is_torn(&self, at: u64, clean: bool) -> bool {
        let view = self.bytes(at).map(record::RecordView::parse);
        match view {
            Some(Ok(view)) if clean => view.properties.last() == Some(&0),
            Some(Ok(view)) => view.properties.contains(&0),
            _ => true,
        }
    }

    /// The next place behind `at` where the log goes on. A record older than the last intact one
    /// is what an earlier life of the file left there.
    fn next_record(&self, at: u64, last_ms: i64) -> Option<u64> {
        let bytes = self.bytes(at)?;
        let declared = bytes.get(..4).map_or(0, BigEndian::read_u32) as u64;
        let by_size = at + declared;
        if declared > 0 && declared < bytes.len() as u64 {
            match self.inspect(by_size) {
                Inspection::Record { .. } if self.stored_ms(by_size) >= Some(last_ms) => {
                    return Some(by_size);
                }
                Inspection::Blank { .. } if self.find(at + bytes.len() as u64).is_some() => {
                    return Some(by_size);
                }
                _ => {}
            }
        }
        let mut from = at + 1;
        while let Some(file) = self.find(from) {
            if let Some(found) = self.search(file, from, last_ms) {
                return Some(found);
            }
            from = file.base() + self.file_size;
        }
        None
    }

    /// The first record at or behind `from` in one file.
    fn search(&self, file: &MappedFile, from: u64, last_ms: i64) -> Option<u64> {
        let bytes = file.written();
        for data in data_ranges(file, (from - file.base()) as usize) {
            let mut position = data.start;
            while position < data.end {
                let block = &bytes[position..data.end.min(position + BLOCK)];
                let zero = block.iter().fold(0, |sum, byte| sum | byte) == 0;
                for start in candidates(if zero { &[] } else { block }, position, bytes) {
                    let at = file.base() + start as u64;
                    let intact = matches!(self.inspect(at), Inspection::Record { .. });
                    if at >= from && intact && self.stored_ms(at) >= Some(last_ms) {
                        return Some(at);
                    }
                }
                position += BLOCK;
            }
        }
        None
    }

    /// Makes everything behind `end` as if it had never been there, and has the disk keep that.
    /// Returns the files that are complete, and the one that goes on at `end`.
    ///
    /// A first file without a record stays on a master whose log has begun before it: offsets
    /// that were given out are not given out again. Else it says nothing and is removed, so that
    /// the log is empty and a slave may begin where its master's log does.
    pub fn cut(
        self,
        end: u64,
        stopped: Option<(u64, Flaw)>,
        slave: bool,
    ) -> Result<Kept, StoreError> {
        let nothing = end == self.start() && (end == 0 || slave);
        let mut kept = Kept {
            complete: Vec::new(),
            last: None,
        };
        let mut last: Option<(PathBuf, u64)> = None;
        for file in self.files {
            if file.base() + self.file_size <= end {
                kept.complete.push(file);
                continue;
            }
            let from = end.saturating_sub(file.base()) as usize;
            if let Some(garbage) = last_data(&file, from) {
                let reason =
                    stopped.map_or("nothing".into(), |(at, flaw)| format!("{flaw} at {at}"));
                let (start, len) = (file.base() + from as u64, garbage - from);
                log::warn!("log cut at {start}: {len} bytes behind it are no records ({reason})");
            }
            if file.base() > end || nothing {
                std::fs::remove_file(file.path())
                    .map_err(|error| StoreError::system("remove", file.path(), error))?;
                super::mapped_file::sync_parent(file.path())?;
            } else {
                if last_data(&file, from).is_some() {
                    punch(file.file(), file.path(), from as u64, self.file_size)?;
                }
                file.sync()?;
                last = Some((file.path().to_path_buf(), file.base()));
            }
        }
        if let Some((path, base)) = last {
            let wrote = end.saturating_sub(base) as usize;
            kept.last = Some(MappedFile::open_to_append(&path, base, wrote)?);
        }
        Ok(kept)
    }
}

/// What a walk found.
pub struct Scan {
    /// Log offset behind the last intact record.
    pub end: u64,
    /// Stretches before the end that hold no record.
    pub lost: Vec<Range<u64>>,
    /// Records before the end whose body is not what was stored.
    pub damaged: u64,
    /// What stands behind the end, and why it is no record.
    pub stopped: Option<(u64, Flaw)>,
}

impl Scan {
    /// The log goes on at least to `end`; what was damaged before it is inside the log.
    fn reach(&mut self, end: u64, damaged: &mut u64) {
        self.end = end;
        self.damaged += std::mem::take(damaged);
        self.stopped = None;
    }
}

/// What is left of the log's files.
pub struct Kept {
    pub complete: Vec<Arc<MappedFile>>,
    pub last: Option<Appender>,
}

impl Kept {
    pub fn is_empty(&self) -> bool {
        self.complete.is_empty() && self.last.is_none()
    }
}

/// From where queues and index are looked at again.
pub fn start(log: &LogFiles, queues: &QueueTable, checkpoint: &Checkpoint, clean: bool) -> u64 {
    if clean {
        log.start_after_stop(queues)
    } else {
        log.start_after_crash(checkpoint)
    }
}

/// Places in a block where a record may start: its magic is there, four bytes further.
pub(super) fn candidates<'a>(
    block: &'a [u8],
    at: usize,
    file: &'a [u8],
) -> impl Iterator<Item = usize> + 'a {
    let first = (record::MAGIC_V1 >> 24) as u8;
    let magic_at = block.iter().enumerate().filter(move |(_, b)| **b == first);
    magic_at.filter_map(move |(offset, _)| {
        let start = (at + offset).checked_sub(4)?;
        let magic = BigEndian::read_u32(file.get(start + 4..start + 8)?);
        (magic == record::MAGIC_V1 || magic == record::MAGIC_V2).then_some(start)
    })
}

/// The parts of a file, from `from` on, that are not holes. Where the file system cannot tell,
/// everything is data.
fn data_ranges(file: &MappedFile, from: usize) -> Vec<Range<usize>> {
    let size = file.size();
    let mut ranges = Vec::new();
    let mut at = from as u64;
    while at < size as u64 {
        let data = match rustix::fs::seek(file.file(), SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => {
                ranges.push(at as usize..size);
                break;
            }
        };
        let hole = rustix::fs::seek(file.file(), SeekFrom::Hole(data)).unwrap_or(size as u64);
        ranges.push(data as usize..(hole as usize).min(size));
        at = hole.max(data + 1);
    }
    ranges
}

/// Behind the last byte at or after `from` that is not zero.
fn last_data(file: &MappedFile, from: usize) -> Option<usize> {
    let bytes = file.written();
    for range in data_ranges(file, from).into_iter().rev() {
        let last = bytes[range.clone()].iter().rposition(|&byte| byte != 0);
        if let Some(last) = last {
            return Some(range.start + last + 1);
        }
    }
    None
}
