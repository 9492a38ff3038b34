//! The version of a table, as brokers and name servers compare it: equal means nothing changed.

use serde_json::{Value, json};

use crate::base::clock::wall_ms;
use crate::base::json;

/// Peers compare all three members for equality; nobody orders them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataVersion {
    /// Number of changes since the table was created.
    pub counter: i64,
    /// Time of the last change, in milliseconds since 1970.
    pub timestamp: i64,
    /// The controller's epoch in 5.x, else 0. 4.9 does not know it.
    pub state_version: i64,
}

impl DataVersion {
    /// The version of a table that was created now.
    pub fn created_now() -> DataVersion {
        DataVersion {
            timestamp: wall_ms(),
            ..DataVersion::default()
        }
    }

    /// The member `dataVersion` of a body or file; `None` if there is none.
    pub fn of(value: &Value) -> Option<DataVersion> {
        let version = value.get("dataVersion").filter(|v| v.is_object())?;
        Some(DataVersion::read(version))
    }

    /// The object itself; absent members are 0.
    pub fn read(version: &Value) -> DataVersion {
        let member = |name| json::number(version, name).unwrap_or(0);
        DataVersion {
            counter: member("counter"),
            timestamp: member("timestamp"),
            state_version: member("stateVersion"),
        }
    }

    /// Notes a change at `now_ms`.
    pub fn advance(&mut self, now_ms: i64) {
        self.timestamp = now_ms;
        self.counter += 1;
    }

    pub fn to_json(self) -> Value {
        json!({
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_versions_are_read_and_written_back() {
        let old = json!({"dataVersion": {"counter": 3, "timestamp": 1_700_000_000_000i64}});
        let mut version = DataVersion::of(&old).expect("a version");
        assert_eq!((version.counter, version.state_version), (3, 0));
        version.advance(5);
        assert_eq!(
            version.to_json(),
            json!({"counter": 4, "stateVersion": 0, "timestamp": 5})
        );
        assert_eq!(DataVersion::of(&json!({"offsetTable": {}})), None);
    }
}
