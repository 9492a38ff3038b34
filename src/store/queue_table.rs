//! All queues of a store, by topic and queue id.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::consume_queue::ConsumeQueue;
use super::error::StoreError;
use super::{layout, record};

/// The table; a queue is in it from its first record on.
pub struct QueueTable {
    root: PathBuf,
    file_size: u64,
    topics: RwLock<HashMap<Arc<str>, Queues>>,
}

type Queues = BTreeMap<i32, Arc<ConsumeQueue>>;

impl QueueTable {
    /// Opens what is there; ends are not known before `cut`. The flag is true if a queue's
    /// directory was found without a file: it has lost them.
    pub fn open(root: &Path, file_size: u64) -> Result<(QueueTable, bool), StoreError> {
        let table = QueueTable {
            root: root.to_path_buf(),
            file_size,
            topics: RwLock::new(HashMap::new()),
        };
        let mut emptied = false;
        for topic in sub_directories(&layout::consume_queues(root))? {
            if !record::is_safe_topic(&topic) {
                continue;
            }
            let topic: Arc<str> = topic.into();
            let dir = layout::consume_queues(root).join(&*topic);
            for id in sub_directories(&dir)? {
                // The original skips what is not a number.
                let Some(id) = id
                    .parse()
                    .ok()
                    .filter(|&n: &i32| n >= 0 && n.to_string() == id)
                else {
                    continue;
                };
                emptied |= table.add(topic.clone(), id)?.is_empty();
            }
        }
        Ok((table, emptied))
    }

    pub fn get(&self, topic: &str, queue_id: i32) -> Option<Arc<ConsumeQueue>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.get(topic)?.get(&queue_id).cloned()
    }

    pub fn get_or_create(&self, topic: &str, id: i32) -> Result<Arc<ConsumeQueue>, StoreError> {
        match self.get(topic, id) {
            Some(queue) => Ok(queue),
            None => self.add(topic.into(), id),
        }
    }

    fn add(&self, topic: Arc<str>, id: i32) -> Result<Arc<ConsumeQueue>, StoreError> {
        let dir = layout::consume_queue(&self.root, &topic, id);
        let queue = Arc::new(ConsumeQueue::open(dir, topic.clone(), id, self.file_size)?);
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.entry(topic).or_default().insert(id, queue.clone());
        Ok(queue)
    }

    pub fn ids(&self, topic: &str) -> Vec<i32> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics
            .get(topic)
            .map(|queues| queues.keys().copied().collect())
            .unwrap_or_default()
    }

    pub fn topics(&self) -> Vec<Arc<str>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.keys().cloned().collect()
    }

    pub fn all(&self) -> Vec<Arc<ConsumeQueue>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics
            .values()
            .flat_map(|queues| queues.values().cloned())
            .collect()
    }

    /// Takes a queue that has no entries out of the table.
    pub fn remove_empty(&self) {
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        for queues in topics.values_mut() {
            queues.retain(|_, queue| !queue.is_empty());
        }
        topics.retain(|_, queues| !queues.is_empty());
    }

    /// Deletes all queues of a topic.
    pub fn delete_topic(&self, topic: &str) -> Result<(), StoreError> {
        let removed = {
            let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
            topics.remove(topic).unwrap_or_default()
        };
        for queue in removed.values() {
            queue.remove_files()?;
        }
        let _ = fs::remove_dir(layout::consume_queues(&self.root).join(topic)); // if empty
        Ok(())
    }
}

/// Names of a directory's directories; none if it is not there.
pub fn sub_directories(dir: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::system("list", dir, error)),
        Ok(entries) => entries,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| StoreError::system("list", dir, error))?;
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if let (true, Ok(name)) = (is_dir, entry.file_name().into_string()) {
            names.push(name);
        }
    }
    Ok(names)
}
