//! Equal-sized files as one address space: which files there are, and which one holds an offset.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::error::StoreError;
use super::layout;

/// A file found on disk: the offset of its first byte, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub base: u64,
    pub path: PathBuf,
}

/// Finds the files of one chain in a directory, sorted. Anything that does not belong there is
/// refused by name, as the original refuses it; only a file that sorts last, is too short and
/// holds nothing, left by a crash during its creation, is removed.
pub fn list(dir: &Path, file_size: u64) -> Result<Vec<Found>, StoreError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::system("list", dir, error)),
        Ok(entries) => entries,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| StoreError::system("list", dir, error))?;
        let meta = fs::metadata(entry.path())
            .map_err(|error| StoreError::system("stat", &entry.path(), error))?;
        // 5.x skips directories here, so a store of its may have some.
        if !meta.is_dir() {
            names.push((entry.file_name(), meta.len()));
        }
    }
    names.sort();
    if let Some((name, len)) = names.last()
        && is_unfinished(&dir.join(name), *len, file_size)?
    {
        let path = dir.join(name);
        log::warn!("{}: {len} bytes, nothing in it: removed", path.display());
        fs::remove_file(&path).map_err(|error| StoreError::system("remove", &path, error))?;
        names.pop();
    }
    names
        .into_iter()
        .map(|(name, len)| {
            let path = dir.join(&name);
            let base = name.to_str().and_then(layout::parse_offset_file);
            found(path, base, len, file_size)
        })
        .collect()
}

/// True for a file whose creation did not end: it is empty, or one of the chain that is too short
/// and all zeros.
fn is_unfinished(path: &Path, len: u64, file_size: u64) -> Result<bool, StoreError> {
    if len == 0 || len >= file_size {
        return Ok(len == 0);
    }
    let name = path.file_name().and_then(|name| name.to_str());
    if name.and_then(layout::parse_offset_file).is_none() {
        return Ok(false);
    }
    let failed = |error| StoreError::system("read", path, error);
    let mut file = fs::File::open(path).map_err(failed)?;
    let mut bytes = [0; 64 * 1024];
    loop {
        match file.read(&mut bytes).map_err(failed)? {
            0 => return Ok(true),
            read if bytes[..read].iter().any(|&byte| byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

fn found(path: PathBuf, base: Option<u64>, len: u64, size: u64) -> Result<Found, StoreError> {
    let place = path.display();
    match base {
        None => Err(StoreError::Refused(format!(
            "{place} does not belong there: move it out of the store"
        ))),
        Some(_) if len != size => Err(StoreError::Refused(format!(
            "{place} has {len} bytes, the configured file size is {size}: \
             configure the size the store was made with, or restore the file"
        ))),
        Some(base) if base % size != 0 => Err(StoreError::Refused(format!(
            "{place} does not start at a multiple of the configured file size {size}"
        ))),
        Some(base) => Ok(Found { base, path }),
    }
}

/// Refuses a chain with a hole or with two files for one place.
pub fn check_contiguous(files: &[Found], file_size: u64) -> Result<(), StoreError> {
    for pair in files.windows(2) {
        if pair[1].base != pair[0].base + file_size {
            return Err(StoreError::Refused(format!(
                "{} does not continue {}: restore what is missing between them, or move one out",
                pair[1].path.display(),
                pair[0].path.display()
            )));
        }
    }
    Ok(())
}

/// Files in order of their offsets, shared between readers.
pub struct FileChain<F> {
    file_size: u64,
    files: RwLock<Vec<(u64, Arc<F>)>>,
}

impl<F> FileChain<F> {
    pub fn new(file_size: u64) -> FileChain<F> {
        FileChain {
            file_size,
            files: RwLock::new(Vec::new()),
        }
    }

    pub fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Adds a file behind the others.
    pub fn push(&self, base: u64, file: Arc<F>) {
        let mut files = self.write();
        if let Some((last, _)) = files.last() {
            assert_eq!(base, last + self.file_size, "files follow each other");
        }
        files.push((base, file));
    }

    /// Takes the first file out of the chain.
    pub fn pop_first(&self) -> Option<Arc<F>> {
        let mut files = self.write();
        (!files.is_empty()).then(|| files.remove(0).1)
    }

    /// Takes the last file out of the chain.
    pub fn pop_last(&self) -> Option<(u64, Arc<F>)> {
        self.write().pop()
    }

    pub fn first(&self) -> Option<(u64, Arc<F>)> {
        self.read().first().cloned()
    }

    pub fn last(&self) -> Option<(u64, Arc<F>)> {
        self.read().last().cloned()
    }

    pub fn len(&self) -> usize {
        self.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// The file that holds `offset`, and its base.
    pub fn find(&self, offset: u64) -> Option<(u64, Arc<F>)> {
        let files = self.read();
        let first = files.first()?.0;
        let at = usize::try_from(offset.checked_sub(first)? / self.file_size).ok()?;
        files.get(at).cloned()
    }

    pub fn all(&self) -> Vec<(u64, Arc<F>)> {
        self.read().clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<(u64, Arc<F>)>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<(u64, Arc<F>)>> {
        self.files.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(dir: &Path, name: &str, len: u64) {
        let file = fs::File::create(dir.join(name)).expect("a file");
        file.set_len(len).expect("it grows");
    }

    fn refusal(dir: &Path) -> String {
        match list(dir, 100) {
            Err(StoreError::Refused(reason)) => reason,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn files_are_listed_in_order_and_strangers_refused_by_name() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(list(&dir.path().join("none"), 100).expect("no files"), []);
        touch(dir.path(), "00000000000000000100", 100);
        touch(dir.path(), "00000000000000000000", 100);
        touch(dir.path(), "00000000000000000200", 0);
        let bases: Vec<_> = list(dir.path(), 100)
            .expect("an empty last file is removed")
            .iter()
            .map(|found| found.base)
            .collect();
        assert_eq!(bases, [0, 100]);
        assert!(!dir.path().join("00000000000000000200").exists());
        touch(dir.path(), "notes.txt", 100);
        assert!(refusal(dir.path()).contains("notes.txt does not belong"));
        fs::remove_file(dir.path().join("notes.txt")).expect("it was there");
        touch(dir.path(), "00000000000000000200", 99);
        assert_eq!(list(dir.path(), 100).expect("nothing in it").len(), 2);
        assert!(!dir.path().join("00000000000000000200").exists());
        fs::write(dir.path().join("00000000000000000300"), [1; 99]).expect("written");
        assert!(refusal(dir.path()).contains("00000000000000000300 has 99 bytes"));
    }

    #[test]
    fn a_hole_in_the_chain_is_refused() {
        let found = |base: u64| Found {
            base,
            path: PathBuf::from(layout::offset_file(base)),
        };
        assert!(check_contiguous(&[found(100), found(200)], 100).is_ok());
        assert!(check_contiguous(&[found(0), found(200)], 100).is_err());
        assert!(check_contiguous(&[found(100), found(100)], 100).is_err());
    }

    #[test]
    fn an_offset_is_found_in_its_file_only() {
        let chain = FileChain::new(100);
        chain.push(300, Arc::new('a'));
        chain.push(400, Arc::new('b'));
        let at = |offset| chain.find(offset).map(|(base, file)| (base, *file));
        assert_eq!(at(299), None);
        assert_eq!(at(300), Some((300, 'a')));
        assert_eq!(at(499), Some((400, 'b')));
        assert_eq!(at(500), None);
        chain.pop_first();
        assert_eq!(at(300), None);
    }
}
