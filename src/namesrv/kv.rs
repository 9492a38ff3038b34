//! Key-value pairs by namespace: what `mqadmin updateKvConfig` and `updateOrderConf` put here.
//! In memory only, so a restart forgets them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// What mqadmin puts in this namespace, brokers get with every registration.
pub const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";
/// Anyone can put something here.
const BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Default)]
pub struct KvConfig {
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    bytes: usize,
}

impl KvConfig {
    /// False if there is no room.
    pub fn put(&mut self, namespace: &str, key: &str, value: &str) -> bool {
        self.delete(namespace, key);
        let bytes = size(namespace, key, value);
        if self.bytes + bytes > BYTES_MAX {
            return false;
        }
        self.bytes += bytes;
        let table = self.namespaces.entry(namespace.to_owned()).or_default();
        table.insert(key.to_owned(), value.to_owned());
        true
    }

    pub fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        self.namespaces.get(namespace)?.get(key).map(String::as_str)
    }

    pub fn delete(&mut self, namespace: &str, key: &str) {
        let Some(table) = self.namespaces.get_mut(namespace) else {
            return;
        };
        if let Some(value) = table.remove(key) {
            self.bytes -= size(namespace, key, &value);
        }
        if table.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// A whole namespace as the original's `KVTable`.
    pub fn table(&self, namespace: &str) -> Option<Value> {
        let table = self.namespaces.get(namespace)?;
        Some(json!({ "table": table }))
    }
}

fn size(namespace: &str, key: &str, value: &str) -> usize {
    namespace.len() + key.len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_until_it_is_deleted() {
        let mut kv = KvConfig::default();
        assert!(kv.put("n", "k", "v") && kv.put("n", "k", "w"));
        assert_eq!(kv.get("n", "k"), Some("w"));
        assert_eq!(kv.table("n"), Some(json!({"table": {"k": "w"}})));
        kv.delete("n", "k");
        assert_eq!((kv.get("n", "k"), kv.table("n"), kv.bytes), (None, None, 0));
    }

    #[test]
    fn a_flood_of_pairs_is_refused_at_a_bound() {
        let mut kv = KvConfig::default();
        let big = "v".repeat(BYTES_MAX / 2);
        assert!(kv.put("n", "a", &big));
        assert!(!kv.put("n", "b", &big));
        assert!(
            kv.put("n", "a", &big),
            "a value can be replaced by one as long"
        );
    }
}
