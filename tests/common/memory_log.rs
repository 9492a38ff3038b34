//! A commit log in memory, for tests of replication. As strict as the real one: what does not
//! continue it, or is no whole record, is a failed test.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use twinmq::base::watermark::Watermark;
use twinmq::ha::byte_log::{AppendError, Log};
use twinmq::store::record::{self, Inspection, Message, Place};

pub struct MemoryLog {
    file_size: u64,
    inner: Mutex<Inner>,
    readable: Watermark,
    appends: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    /// Log offset of `bytes[0]`.
    base: u64,
    bytes: Vec<u8>,
    exists: bool,
    queue_offset: i64,
    refuse: Option<AppendError>,
}

impl MemoryLog {
    pub fn new(file_size: u64) -> MemoryLog {
        MemoryLog {
            file_size,
            inner: Mutex::default(),
            readable: Watermark::new(0),
            appends: AtomicUsize::new(0),
        }
    }

    /// A log whose first files are gone; it begins, and ends, at `base`.
    pub fn starting_at(file_size: u64, base: u64) -> MemoryLog {
        assert!(base.is_multiple_of(file_size));
        let log = MemoryLog::new(file_size);
        log.lock().base = base;
        log.lock().exists = true;
        log.readable.advance(base);
        log
    }

    /// Appends one message as a master does, behind a blank where the file's rest is too small.
    /// The end of its record. Wakes nobody.
    pub fn append_message(&self, body: &[u8]) -> u64 {
        let mut inner = self.lock();
        let host = "127.0.0.1:10911".parse().expect("an address");
        let message = Message {
            topic: "T",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_ms: 1,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_offset: 0,
            body,
            properties: b"",
        };
        let prepared = record::prepare(&message, 4 << 20).expect("a legal message");
        let room = self.file_size - inner.end() % self.file_size;
        assert!(prepared.size as u64 + 8 <= self.file_size, "it fits a file");
        if prepared.size as u64 + 8 > room {
            let filled = inner.bytes.len() + room as usize;
            inner.bytes.extend(record::blank(room as usize));
            inner.bytes.resize(filled, 0);
        }
        let place = Place {
            queue_offset: inner.queue_offset,
            log_offset: inner.end(),
            stored_ms: 1,
        };
        let mut encoded = vec![0; prepared.size];
        record::encode(&message, prepared, place, &mut encoded);
        inner.queue_offset += 1;
        inner.exists = true;
        inner.bytes.extend(encoded);
        self.readable.advance(inner.end());
        inner.end()
    }

    /// Flips bits of one stored byte.
    pub fn flip(&self, offset: u64) {
        let mut inner = self.lock();
        let index = (offset - inner.base) as usize;
        inner.bytes[index] ^= 0x55;
    }

    /// Deletes the files before `base`.
    pub fn delete_before(&self, base: u64) {
        assert!(base.is_multiple_of(self.file_size));
        let mut inner = self.lock();
        let gone = (base - inner.base) as usize;
        inner.bytes.drain(..gone);
        inner.base = base;
    }

    /// Cuts the log, as recovery does after a crash. `end` is a record's end.
    pub fn truncate(&self, end: u64) {
        let mut inner = self.lock();
        let keep = (end - inner.base) as usize;
        inner.bytes.truncate(keep);
        self.readable.reset(end);
    }

    /// Where records end, the log's beginning included.
    pub fn record_ends(&self) -> Vec<u64> {
        let inner = self.lock();
        let mut ends = vec![inner.base];
        let mut at = 0;
        while at < inner.bytes.len() {
            let rest = &inner.bytes[at..];
            at += u32::from_be_bytes(rest[..4].try_into().expect("a size")) as usize;
            ends.push(inner.base + at as u64);
        }
        ends
    }

    /// From now on appends fail like this, or no longer.
    pub fn refuse_appends(&self, how: Option<AppendError>) {
        self.lock().refuse = how;
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// The bytes from `from` to the end.
    pub fn tail(&self, from: u64) -> Vec<u8> {
        let inner = self.lock();
        inner.bytes[(from - inner.base) as usize..].to_vec()
    }

    /// Calls of `append_raw` so far.
    pub fn appends(&self) -> usize {
        self.appends.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics with the lock")
    }
}

impl Inner {
    fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }
}

impl Log for MemoryLog {
    type Chunk = Vec<u8>;

    fn start(&self) -> u64 {
        self.lock().base
    }

    fn end(&self) -> u64 {
        self.lock().end()
    }

    fn readable(&self) -> &Watermark {
        &self.readable
    }

    fn file_size(&self) -> u64 {
        self.file_size
    }

    fn is_empty(&self) -> bool {
        !self.lock().exists
    }

    fn read(&self, from: u64, max: usize) -> Option<Vec<u8>> {
        let inner = self.lock();
        let readable = self.readable.get().min(inner.end());
        if from < inner.base || from >= readable {
            return None;
        }
        let file_end = from - from % self.file_size + self.file_size;
        let end = readable.min(file_end).min(from + max as u64);
        let range = (from - inner.base) as usize..(end - inner.base) as usize;
        Some(inner.bytes[range].to_vec())
    }

    fn append_raw(&self, start: u64, bytes: &[u8]) -> Result<(), AppendError> {
        let mut inner = self.lock();
        if let Some(error) = &inner.refuse {
            return Err(error.clone());
        }
        if !inner.exists {
            assert!(
                start.is_multiple_of(self.file_size),
                "a file begins at {start}"
            );
            inner.base = start;
            inner.exists = true;
        }
        assert_eq!(start, inner.end(), "bytes that continue the log");
        check_whole(bytes, start, self.file_size);
        inner.bytes.extend_from_slice(bytes);
        self.appends.fetch_add(1, Ordering::SeqCst);
        self.readable.advance(inner.end());
        Ok(())
    }

    fn wake(&self) {
        self.readable.wake();
    }
}

/// Whole records of one file, and nothing else.
fn check_whole(bytes: &[u8], start: u64, file_size: u64) {
    assert!(!bytes.is_empty(), "an empty append");
    let room = (file_size - start % file_size) as usize;
    assert!(bytes.len() <= room, "an append within one file");
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += match record::inspect(rest, start + at as u64, (room - at) as u64) {
            Inspection::Record { size } | Inspection::Blank { size } => size,
            Inspection::Damaged { size, .. } => size,
            other => panic!("no whole record at {}: {other:?}", start + at as u64),
        };
    }
}
