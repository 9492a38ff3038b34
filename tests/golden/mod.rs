//! Unpacks a golden store into a directory of its own.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use twinmq::store::StoreConfig;

pub struct Golden {
    dir: TempDir,
    pub manifest: Value,
}

/// Where material shared between projects is; not part of this one.
pub fn shared() -> PathBuf {
    match std::env::var_os("TWINMQ_SHARED") {
        Some(path) => path.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"),
    }
}

impl Golden {
    /// `None`, said, where there are no golden stores.
    pub fn unpack(name: &str) -> Option<Golden> {
        let path = shared().join("golden").join(format!("{name}.tar.gz"));
        let Ok(file) = File::open(&path) else {
            eprintln!("skipped: {} is not there", path.display());
            return None;
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        archive.set_preserve_mtime(true);
        archive.unpack(dir.path()).expect("an archive");
        let manifest = std::fs::read(dir.path().join("manifest.json")).expect("a manifest");
        let manifest = serde_json::from_slice(&manifest).expect("JSON");
        Some(Golden { dir, manifest })
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// The settings the store was made with.
    pub fn config(&self) -> StoreConfig {
        let number = |key: &str| -> u64 {
            let value = self.manifest["properties"][key].as_str();
            value.expect(key).parse().expect("a number")
        };
        let mut config = StoreConfig::new(&self.root());
        config.log_file_size = number("mappedFileSizeCommitLog");
        config.queue_file_size = number("mappedFileSizeConsumeQueue");
        config.hash_slots = number("maxHashSlotNum") as u32;
        config.index_entries = number("maxIndexNum") as u32;
        config.cleaning.reserved = std::time::Duration::from_secs(1 << 40);
        config
    }
}
