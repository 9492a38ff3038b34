//! Memory-mapped files: the only `unsafe` of the project.
//!
//! Two kinds, because their bytes live differently.
//!
//! `MappedFile` is a file of the commit log. It is written once, from front to back, by the one
//! `Appender` that exists for it; bytes below `wrote` never change again and may be read by
//! anyone, as plain slices (`Chunk`) that keep the mapping alive. Bytes behind `wrote` are the
//! appender's alone.
//!
//! `MappedTable` is a file of the index, changed in place while others read. All access goes
//! through atomic 32-bit words, so no slice of it is ever handed out.
//!
//! Both need every block of the file allocated before: a store into a hole of a full disk would
//! end the process with SIGBUS, while `allocate` gives an error. Nobody else may shorten the
//! files meanwhile; the store's lock keeps other brokers away.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use memmap2::MmapRaw;
use rustix::fs::FallocateFlags;

use super::error::StoreError;

/// From so many bytes on a write call is cheaper than page faults.
const WRITE_CALL_MIN: usize = 64 * 1024;

/// One file of the commit log, mapped whole.
pub struct MappedFile {
    base: u64,
    path: PathBuf,
    file: File,
    map: MmapRaw,
    wrote: AtomicUsize,
}

impl MappedFile {
    /// Creates the file of `size` bytes that starts at log offset `base`, with its blocks.
    pub fn create(path: &Path, base: u64, size: u64) -> Result<Appender, StoreError> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|error| StoreError::system("create", path, error))?;
        let mapped = allocate(&file, path, size)
            .and_then(|()| sync_parent(path))
            .and_then(|()| MappedFile::map(path, base, file, 0));
        match mapped {
            Ok(file) => Ok(Appender {
                file: Arc::new(file),
            }),
            Err(error) => {
                // One of the wrong size would stop the next start, and any the next attempt.
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// Opens a file that is complete: nothing is appended any more.
    pub fn open(path: &Path, base: u64) -> Result<Arc<MappedFile>, StoreError> {
        let file = open_rw(path)?;
        let mapped = MappedFile::map(path, base, file, usize::MAX)?;
        mapped.wrote.store(mapped.map.len(), Ordering::Release);
        Ok(Arc::new(mapped))
    }

    /// Opens a file that goes on at `wrote`, and sees to it that all its blocks are there.
    pub fn open_to_append(path: &Path, base: u64, wrote: usize) -> Result<Appender, StoreError> {
        let file = open_rw(path)?;
        let size = file
            .metadata()
            .map_err(|error| StoreError::system("stat", path, error))?
            .len();
        allocate(&file, path, size)?;
        Ok(Appender {
            file: Arc::new(MappedFile::map(path, base, file, wrote)?),
        })
    }

    fn map(path: &Path, base: u64, file: File, wrote: usize) -> Result<MappedFile, StoreError> {
        let map =
            MmapRaw::map_raw(&file).map_err(|error| StoreError::system("map", path, error))?;
        Ok(MappedFile {
            base,
            path: path.to_path_buf(),
            file,
            map,
            wrote: AtomicUsize::new(wrote),
        })
    }

    /// Log offset of the first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn size(&self) -> usize {
        self.map.len()
    }

    /// Bytes that are there and will not change.
    pub fn wrote(&self) -> usize {
        self.wrote.load(Ordering::Acquire)
    }

    /// The bytes that are there.
    pub fn written(&self) -> &[u8] {
        let wrote = self.wrote();
        // SAFETY: the mapping is `map.len()` bytes long and `wrote` never exceeds that
        // (`Appender::publish` and the constructors see to it). Bytes below `wrote` are not
        // written again while `self` lives: the only writer is the one `Appender`, which starts
        // at `wrote`. The acquire load makes the writer's stores visible.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), wrote) }
    }

    /// A share of the bytes that are there; `None` if some of them are not.
    pub fn chunk(self: &Arc<Self>, range: Range<usize>) -> Option<Chunk> {
        (range.start <= range.end && range.end <= self.wrote()).then(|| Chunk {
            file: self.clone(),
            start: range.start,
            end: range.end,
        })
    }

    /// Has the disk keep all that was written so far.
    pub fn sync(&self) -> Result<(), StoreError> {
        rustix::fs::fdatasync(&self.file)
            .map_err(|error| StoreError::sync(&self.path, error.into()))
    }
}

/// The right to write behind `wrote`. There is one for a file, and it is not cloned.
pub struct Appender {
    file: Arc<MappedFile>,
}

impl Appender {
    pub fn file(&self) -> &Arc<MappedFile> {
        &self.file
    }

    /// Bytes left in the file.
    pub fn room(&self) -> usize {
        self.file.size() - self.file.wrote()
    }

    /// The next `len` bytes, to be filled and then published. They may hold anything before.
    pub fn reserve(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.room(), "a reservation stays inside its file");
        let at = self.file.wrote();
        // SAFETY: `at + len` is inside the mapping. Nobody reads at or behind `wrote` (`written`
        // and `chunk` end there), and nobody else writes: this is the file's only appender and
        // it is borrowed mutably for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.file.map.as_mut_ptr().add(at), len) }
    }

    /// Puts bytes where `publish` will make them readable. Many at once go through the file: a
    /// page that a write call fills is not zeroed first, as one that is touched in the mapping is.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.len() < WRITE_CALL_MIN {
            self.reserve(bytes.len()).copy_from_slice(bytes);
            return Ok(());
        }
        assert!(
            bytes.len() <= self.room(),
            "more than the file has room for"
        );
        let at = self.file.wrote() as u64;
        let written = self.file.file.write_all_at(bytes, at);
        written.map_err(|error| StoreError::system("write", &self.file.path, error))
    }

    /// Makes the next `len` bytes readable; they will not change any more.
    pub fn publish(&mut self, len: usize) {
        assert!(len <= self.room(), "only bytes of the file are published");
        let wrote = self.file.wrote() + len;
        self.file.wrote.store(wrote, Ordering::Release);
    }
}

/// Bytes of the log that stay there and stay the same for as long as this lives.
#[derive(Clone)]
pub struct Chunk {
    file: Arc<MappedFile>,
    start: usize,
    end: usize,
}

impl Chunk {
    /// Log offset of the first byte.
    pub fn start(&self) -> u64 {
        self.file.base + self.start as u64
    }

    /// Log offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.file.base + self.end as u64
    }

    /// A part of it; the range is inside the chunk.
    pub fn slice(&self, range: Range<usize>) -> Chunk {
        assert!(range.start <= range.end && range.end <= self.len());
        Chunk {
            file: self.file.clone(),
            start: self.start + range.start,
            end: self.start + range.end,
        }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.file.written()[self.start..self.end]
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// One file of the index: big-endian 32-bit words that change in place.
pub struct MappedTable {
    path: PathBuf,
    file: File,
    map: MmapRaw,
}

impl MappedTable {
    /// Opens or creates the file with exactly `size` bytes, all of them allocated.
    pub fn open(path: &Path, size: u64) -> Result<MappedTable, StoreError> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| StoreError::system("open", path, error))?;
        if let Err(error) = allocate(&file, path, size) {
            if file.metadata().is_ok_and(|meta| meta.len() < size) {
                let _ = std::fs::remove_file(path);
            }
            return Err(error);
        }
        let map =
            MmapRaw::map_raw(&file).map_err(|error| StoreError::system("map", path, error))?;
        Ok(MappedTable {
            path: path.to_path_buf(),
            file,
            map,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn get(&self, at: usize) -> u32 {
        u32::from_be(self.word(at).load(Ordering::Acquire))
    }

    pub fn set(&self, at: usize, value: u32) {
        self.word(at).store(value.to_be(), Ordering::Release);
    }

    pub fn get_i64(&self, at: usize) -> i64 {
        (i64::from(self.get(at)) << 32) | i64::from(self.get(at + 4))
    }

    pub fn set_i64(&self, at: usize, value: i64) {
        self.set(at, (value >> 32) as u32);
        self.set(at + 4, value as u32);
    }

    /// Makes all words of a range zero, and keeps their blocks.
    pub fn clear(&self, range: Range<usize>) -> Result<(), StoreError> {
        punch(&self.file, &self.path, range.start as u64, range.end as u64)?;
        allocate(&self.file, &self.path, self.map.len() as u64)
    }

    pub fn size(&self) -> usize {
        self.map.len()
    }

    pub fn sync(&self) -> Result<(), StoreError> {
        rustix::fs::fdatasync(&self.file)
            .map_err(|error| StoreError::sync(&self.path, error.into()))
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(
            at.is_multiple_of(4) && at + 4 <= self.map.len(),
            "a word of the table"
        );
        // SAFETY: the word is inside the mapping and aligned (a mapping starts at a page), and
        // the bytes of this mapping are reached only through these atomics.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }
}

fn open_rw(path: &Path) -> Result<File, StoreError> {
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| StoreError::system("open", path, error))
}

/// Reserves the blocks of the file's first `size` bytes and makes it that long. What is there
/// already stays.
fn allocate(file: &File, path: &Path, size: u64) -> Result<(), StoreError> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let error = loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => break error,
        }
    };
    if error != rustix::io::Errno::OPNOTSUPP {
        return Err(StoreError::system("allocate", path, error.into()));
    }
    if !WARNED.swap(true, Ordering::Relaxed) {
        log::warn!(
            "{}: this file system cannot reserve space; a full disk will end the process",
            path.display()
        );
    }
    let length = || -> io::Result<()> {
        if file.metadata()?.len() < size {
            file.set_len(size)?;
        }
        Ok(())
    };
    length().map_err(|error| StoreError::system("extend", path, error))
}

/// Makes `from..to` of a file zero and gives its blocks back; without writing where the file
/// system can.
pub fn punch(file: &File, path: &Path, from: u64, to: u64) -> Result<(), StoreError> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if from >= to || rustix::fs::fallocate(file, flags, from, to - from).is_ok() {
        return Ok(());
    }
    let zeros = [0; 64 * 1024];
    let mut at = from;
    while at < to {
        let len = (to - at).min(zeros.len() as u64) as usize;
        file.write_all_at(&zeros[..len], at)
            .map_err(|error| StoreError::system("write", path, error))?;
        at += len as u64;
    }
    Ok(())
}

/// Has the disk keep the file's name.
pub fn sync_parent(path: &Path) -> Result<(), StoreError> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| StoreError::system("sync", parent, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_can_be_read_and_nothing_behind_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("f");
        let mut appender = MappedFile::create(&path, 4096, 4096).expect("a new file");
        let file = appender.file().clone();
        appender.reserve(3).copy_from_slice(b"abc");
        assert!(file.chunk(0..1).is_none(), "not published yet");
        appender.publish(3);
        let chunk = file.chunk(1..3).expect("published");
        assert_eq!(
            (&*chunk, chunk.start(), chunk.end()),
            (&b"bc"[..], 4097, 4099)
        );
        assert_eq!(&*chunk.slice(1..2), b"c");
        assert!(file.chunk(2..4).is_none());
        appender.reserve(1).copy_from_slice(b"d");
        appender.publish(1);
        assert_eq!(&*chunk, b"bc", "a chunk stays the same");
        drop((appender, file));
        std::fs::remove_file(&path).expect("a file can be deleted while it is read");
        assert_eq!(&*chunk, b"bc");
    }

    #[test]
    fn a_reopened_file_goes_on_where_it_was_told() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("f");
        let mut appender = MappedFile::create(&path, 0, 4096).expect("a new file");
        appender.reserve(4).copy_from_slice(b"abcd");
        appender.publish(4);
        drop(appender);
        assert_eq!(
            &MappedFile::open(&path, 0).expect("it opens").written()[..5],
            b"abcd\0"
        );
        let mut appender = MappedFile::open_to_append(&path, 0, 2).expect("it opens");
        assert_eq!(
            (appender.room(), appender.file().written()),
            (4094, &b"ab"[..])
        );
        assert_eq!(appender.reserve(2), b"cd");
    }

    #[test]
    fn a_table_keeps_big_endian_words() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("t");
        let table = MappedTable::open(&path, 64).expect("a new table");
        table.set(4, 0x0102_0304);
        table.set_i64(12, -2);
        assert_eq!((table.get(4), table.get_i64(12)), (0x0102_0304, -2));
        let bytes = std::fs::read(&path).expect("it is a file");
        assert_eq!(&bytes[4..8], &[1, 2, 3, 4]);
        assert_eq!(bytes.len(), 64);
    }
}
