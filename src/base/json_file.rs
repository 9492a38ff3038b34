//! A JSON table on disk: replaced as a whole, never seen half written, with the previous one
//! beside it as `.bak` as the original keeps it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::json;

/// A table's file, and which of the table's generations it holds. The lock is held while the file
/// is written, and by nobody else.
pub struct SavedFile {
    path: PathBuf,
    generation: Mutex<u64>,
}

impl SavedFile {
    /// Loads a table's file. A broken one stops the start of a master, since it may be the only
    /// copy; a slave goes on without, its master sends the table again.
    pub fn open(path: PathBuf, slave: bool) -> io::Result<(SavedFile, Option<Value>)> {
        let value = match load(&path) {
            Ok(found) => found.map(|(value, _)| value),
            Err(error) if slave => {
                log::error!("{error}; starting without, the master's table will replace it");
                None
            }
            Err(error) => return Err(error),
        };
        Ok((SavedFile::new(path), value))
    }

    /// The file holds generation 0: what the table was loaded from.
    pub fn new(path: PathBuf) -> SavedFile {
        SavedFile {
            path,
            generation: Mutex::new(0),
        }
    }

    /// Writes the file if the table's generation is another than the file's; false if not.
    /// `content` takes the table's own lock for a moment, and gives its generation and its text
    /// if that generation is not the given one.
    pub fn save_if_changed(
        &self,
        content: impl FnOnce(u64) -> Option<(u64, Value)>,
    ) -> io::Result<bool> {
        let mut saved = self
            .generation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some((generation, value)) = content(*saved) else {
            return Ok(false);
        };
        save(&self.path, &value)?;
        *saved = generation;
        Ok(true)
    }
}

/// Which of the two files a table was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Main,
    Backup,
}

/// Reads `path`, or its `.bak` where the first is missing, empty or broken. `None` if neither
/// exists with content. An error if content exists and none of it is JSON: starting with an empty
/// table would throw away what an operator may still repair.
pub fn load(path: &Path) -> io::Result<Option<(Value, Source)>> {
    let main = read(path);
    if let Ok(Some(value)) = main {
        return Ok(Some((value, Source::Main)));
    }
    if let Err(error) = &main {
        log::error!("{}: {error}; trying its backup", path.display());
    }
    match (read(&backup_path(path)), main) {
        (Ok(Some(value)), _) => Ok(Some((value, Source::Backup))),
        (Ok(None), Ok(_)) => Ok(None),
        (Err(error), _) | (Ok(None), Err(error)) => Err(io::Error::new(
            error.kind(),
            format!("{}: {error}", path.display()),
        )),
    }
}

/// Replaces `path`: the new text is on disk before the old name points to it, and the old text
/// is the backup by then.
pub fn save(path: &Path, value: &Value) -> io::Result<()> {
    let temporary = with_suffix(path, ".tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(&pretty(value))?;
    file.sync_all()?;
    keep_backup(path)?;
    fs::rename(&temporary, path)?;
    sync_directory(path)
}

pub fn backup_path(path: &Path) -> PathBuf {
    with_suffix(path, ".bak")
}

/// Makes the names under a file's directory durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The present file becomes the backup, unless it is empty: a backup with content is worth more.
fn keep_backup(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.len() > 0 => {}
        _ => return Ok(()),
    }
    let link = with_suffix(path, ".bak.tmp");
    let _ = fs::remove_file(&link);
    fs::hard_link(path, &link)?;
    fs::rename(link, backup_path(path))
}

fn read(path: &Path) -> io::Result<Option<Value>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let value = json::parse(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(Some(value))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// One tab a level, no space after colons, as the original prints it. Keys are quoted.
fn pretty(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, format);
    serde::Serialize::serialize(value, &mut serializer).expect("a value can be written to memory");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_survives_an_empty_or_broken_main_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("topics.json");
        assert_eq!(load(&path).expect("nothing is no error"), None);
        save(&path, &json!({"v": 1})).expect("first save");
        save(&path, &json!({"v": 2})).expect("second save");
        assert_eq!(
            load(&path).expect("main"),
            Some((json!({"v": 2}), Source::Main))
        );
        for damage in ["", "{\"v\":", "<nil>"] {
            fs::write(&path, damage).expect("damage");
            assert_eq!(
                load(&path).expect("backup"),
                Some((json!({"v": 1}), Source::Backup))
            );
        }
        save(&path, &json!({"v": 3})).expect("third save");
        assert_eq!(
            load(&path).expect("main"),
            Some((json!({"v": 3}), Source::Main))
        );
    }

    #[test]
    fn two_broken_files_are_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("topics.json");
        fs::write(&path, "<nil>").expect("main");
        fs::write(backup_path(&path), "<nil>").expect("backup");
        let error = load(&path).expect_err("no table can be read").to_string();
        assert!(error.contains("topics.json"), "{error}");
    }
}
