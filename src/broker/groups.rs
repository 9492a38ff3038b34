//! The subscription groups of this broker: what a consumer group may do and how often its
//! messages are retried; subscriptionGroup.json.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::table::{Entry, Table, integer, other_members};
use super::topics;
use crate::base::json as dialect;

/// Longest group name, as in the original.
pub const GROUP_NAME_MAX: usize = 255;
/// Groups with this prefix exist on demand, whatever the configuration says.
const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";

/// Name, and whether broadcasting is allowed (the clients' own default is that it is).
const BUILTIN: [&str; 8] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
];

/// A consumer group as a request may name it.
pub fn check_name(group: &str) -> Result<(), String> {
    topics::check(group, GROUP_NAME_MAX)
}

#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionGroup {
    pub name: String,
    pub consume_enable: bool,
    pub broadcast_enable: bool,
    /// Tell the members when one joins or leaves.
    pub notify_changes: bool,
    pub retry_queues: i32,
    /// After as many retries a message is a dead letter.
    pub retry_max: i32,
    /// Where the group reads: a broker id, usually 0, and the one when it lags behind.
    pub broker_id: i64,
    pub slow_broker_id: i64,
    /// `consumeFromMinEnable` and the members of 5.x, kept as they came.
    pub others: Map<String, Value>,
}

impl SubscriptionGroup {
    pub fn new(name: &str) -> SubscriptionGroup {
        SubscriptionGroup {
            name: name.to_owned(),
            consume_enable: true,
            broadcast_enable: true,
            notify_changes: true,
            retry_queues: 1,
            retry_max: 16,
            broker_id: 0,
            slow_broker_id: 1,
            others: Map::from_iter([("consumeFromMinEnable".to_owned(), Value::Bool(true))]),
        }
    }
}

impl Entry for SubscriptionGroup {
    const FILE: &'static str = "subscriptionGroup.json";
    const MEMBER: &'static str = "subscriptionGroupTable";

    fn name(&self) -> &str {
        &self.name
    }

    fn from_json(name: &str, value: &Value) -> Result<SubscriptionGroup, String> {
        check_name(name)?;
        if !value.is_object() {
            return Err("it is no object".into());
        }
        Ok(SubscriptionGroup {
            name: name.to_owned(),
            consume_enable: dialect::flag(value, "consumeEnable", true),
            broadcast_enable: dialect::flag(value, "consumeBroadcastEnable", true),
            notify_changes: dialect::flag(value, "notifyConsumerIdsChangedEnable", true),
            retry_queues: integer(value, "retryQueueNums", 1),
            retry_max: integer(value, "retryMaxTimes", 16),
            broker_id: dialect::number(value, "brokerId").unwrap_or(0),
            slow_broker_id: dialect::number(value, "whichBrokerWhenConsumeSlowly").unwrap_or(1),
            others: other_members(
                value,
                &[
                    "groupName",
                    "consumeEnable",
                    "consumeBroadcastEnable",
                    "notifyConsumerIdsChangedEnable",
                    "retryQueueNums",
                    "retryMaxTimes",
                    "brokerId",
                    "whichBrokerWhenConsumeSlowly",
                ],
            ),
        })
    }

    fn to_json(&self) -> Value {
        let mut members = self.others.clone();
        let own = json!({
            "groupName": self.name,
            "consumeEnable": self.consume_enable,
            "consumeBroadcastEnable": self.broadcast_enable,
            "notifyConsumerIdsChangedEnable": self.notify_changes,
            "retryQueueNums": self.retry_queues,
            "retryMaxTimes": self.retry_max,
            "brokerId": self.broker_id,
            "whichBrokerWhenConsumeSlowly": self.slow_broker_id,
        });
        members.extend(
            own.as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.clone(), v.clone())),
        );
        Value::Object(members)
    }
}

pub struct Groups {
    table: Table<SubscriptionGroup>,
    /// `autoCreateSubscriptionGroup`.
    auto_create: bool,
}

impl Groups {
    pub fn open(directory: &Path, auto_create: bool, slave: bool) -> io::Result<Groups> {
        let builtin = BUILTIN
            .iter()
            .map(|name| SubscriptionGroup::new(name))
            .collect();
        Ok(Groups {
            table: Table::open(directory, builtin, slave)?,
            auto_create,
        })
    }

    /// What both tables can do: versions, the wrapper, saving, the change hook.
    pub fn table(&self) -> &Table<SubscriptionGroup> {
        &self.table
    }

    pub fn get(&self, group: &str) -> Option<Arc<SubscriptionGroup>> {
        self.table.get(group)
    }

    /// The group, made on the way where that is allowed.
    pub fn find_or_create(&self, group: &str) -> Option<Arc<SubscriptionGroup>> {
        self.table.get_or_insert(group, || {
            let allowed = self.auto_create || group.starts_with(SYSTEM_GROUP_PREFIX);
            if !allowed || check_name(group).is_err() {
                return None;
            }
            log::info!("subscription group {group} created");
            Some(SubscriptionGroup::new(group))
        })
    }

    /// An administrator's group: the JSON object of one configuration.
    pub fn update(&self, config: &Value) -> Result<String, String> {
        let name = dialect::text(config, "groupName").ok_or("groupName is missing")?;
        let group = SubscriptionGroup::from_json(name, config)?;
        log::info!("subscription group {name} set: {}", group.to_json());
        self.table.put(group);
        Ok(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_created_on_demand_where_that_is_allowed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let open = Groups::open(dir.path(), true, false).expect("groups");
        assert_eq!(open.find_or_create("G").expect("made").retry_max, 16);
        assert!(open.find_or_create("a b").is_none());
        assert!(open.get("TOOLS_CONSUMER").is_some());
        let closed = Groups::open(dir.path(), false, false).expect("groups");
        assert!(closed.find_or_create("G").is_none());
        assert!(closed.find_or_create("CID_RMQ_SYS_X").is_some());
    }

    #[test]
    fn a_group_written_by_5_x_keeps_its_members() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let groups = Groups::open(dir.path(), true, false).expect("groups");
        let wrapper = json!({"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 3},
            "forbiddenTable": {"G": {"T": 1}},
            "subscriptionGroupTable": {"G": {"consumeTimeoutMinute": 15, "groupName": "G",
                "groupRetryPolicy": {"type": "CUSTOMIZED"}, "retryMaxTimes": 5}}});
        assert_eq!(groups.table().replace_all(&wrapper), Ok(true));
        assert_eq!(groups.get("G").expect("G").retry_max, 5);
        groups.table().save_if_changed().expect("saved");
        let again = Groups::open(dir.path(), true, true).expect("groups");
        assert_eq!(again.table().version().timestamp, 3);
        let text = again.table().wrapper();
        assert_eq!(text["forbiddenTable"], json!({"G": {"T": 1}}));
        let group = &text["subscriptionGroupTable"]["G"];
        assert_eq!(group["groupRetryPolicy"], json!({"type": "CUSTOMIZED"}));
        assert_eq!(
            (&group["consumeTimeoutMinute"], &group["brokerId"]),
            (&json!(15), &json!(0))
        );
    }

    #[test]
    fn an_update_replaces_the_whole_configuration() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let groups = Groups::open(dir.path(), true, false).expect("groups");
        let set = |text| groups.update(&text);
        assert_eq!(
            set(json!({"groupName": "G", "retryMaxTimes": 3})),
            Ok("G".into())
        );
        assert_eq!(
            set(json!({"groupName": "G", "consumeEnable": false})),
            Ok("G".into())
        );
        let group = groups.get("G").expect("G");
        assert_eq!((group.retry_max, group.consume_enable), (16, false));
        assert!(set(json!({"groupName": "../G"})).is_err());
        assert!(set(json!({"retryMaxTimes": 3})).is_err());
    }
}
