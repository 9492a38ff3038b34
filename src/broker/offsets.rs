//! How far each consumer group has come in each queue; consumerOffset.json.
//!
//! A commit is taken as it comes, smaller ones too: that is how an offset is reset. What a slave
//! hears of its master is merged, and does not undo what consumers committed here while the
//! master was away.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use super::groups::{self, Groups};
use super::refusal::{Refusal, reply};
use super::topics::{self, Topics};
use crate::base::clock::wall_ms;
use crate::base::data_version::DataVersion;
use crate::base::json;
use crate::base::json_file::SavedFile;
use crate::remoting::codes::response;
use crate::remoting::{Command, Fields};

const FILE: &str = "consumerOffset.json";
const MEMBER: &str = "offsetTable";
/// The version moves once in so many commits, as in 5.x (`consumerOffsetUpdateVersionStep`).
const VERSION_STEP: u64 = 500;

/// Queue id to the next queue offset the group wants.
pub type QueueOffsets = BTreeMap<i32, i64>;

pub struct Offsets {
    file: SavedFile,
    state: Mutex<State>,
    /// A slave remembers what was committed at itself.
    slave: bool,
}

struct State {
    /// By `topic@group`.
    table: HashMap<String, QueueOffsets>,
    version: DataVersion,
    /// Members of 5.x beside these two, kept as they came.
    rest: Map<String, Value>,
    commits: u64,
    generation: u64,
    /// On a slave: commits that the master does not know.
    local: HashMap<(String, i32), LocalCommit>,
}

/// Consumers commit to a slave only while they cannot reach the master.
struct LocalCommit {
    offset: i64,
    /// What the master said since: if that falls, somebody reset it there.
    master: Option<i64>,
}

impl Offsets {
    /// A broken file stops the start of a master; a slave gets the offsets again.
    pub fn open(directory: &Path, slave: bool) -> io::Result<Offsets> {
        std::fs::create_dir_all(directory)?;
        let (file, value) = SavedFile::open(directory.join(FILE), slave)?;
        Ok(Offsets {
            file,
            state: Mutex::new(State::from_json(value)),
            slave,
        })
    }

    /// QUERY_CONSUMER_OFFSET (14). A group without an offset starts at 0 where the queue is young:
    /// `is_young` tells whether its first message is still there and in memory, or it has none.
    pub fn query(&self, request: &Command, is_young: impl FnOnce(&str, i32) -> bool) -> Command {
        let answer = || {
            let ext = request.ext();
            let (group, topic) = (ext.need("consumerGroup")?, ext.need("topic")?);
            let queue_id = ext.parse::<i32>("queueId")?;
            let zero_allowed =
                ext.get("setZeroIfNotFound").is_none() || ext.flag("setZeroIfNotFound");
            let offset = match self.get(group, topic, queue_id) {
                Some(offset) => offset,
                None if zero_allowed && is_young(topic, queue_id) => 0,
                None => {
                    return Err(Refusal::new(
                        response::QUERY_NOT_FOUND,
                        "no offset is stored",
                    ));
                }
            };
            let ext = Fields::default().with("offset", offset);
            Ok(Command::reply(request, response::SUCCESS).with_ext(ext))
        };
        reply(request, answer())
    }

    /// UPDATE_CONSUMER_OFFSET (15).
    pub fn update(&self, request: &Command, topics: &Topics, groups: &Groups) -> Command {
        let answer = || {
            let ext = request.ext();
            let (group, topic) = (ext.need("consumerGroup")?, ext.need("topic")?);
            let (queue_id, offset) = (ext.parse("queueId")?, ext.parse("commitOffset")?);
            check_commit(group, topic, queue_id, offset, topics, groups)?;
            self.commit(group, topic, queue_id, offset);
            Ok(Command::reply(request, response::SUCCESS))
        };
        reply(request, answer())
    }

    /// Stores an offset that was checked: of a request 15, or of a pull that commits.
    pub fn commit(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        let key = key(topic, group);
        let mut state = self.state();
        if self.slave {
            let local = LocalCommit {
                offset,
                master: None,
            };
            let known = state.local.entry((key.clone(), queue_id)).or_insert(local);
            known.offset = offset;
        }
        state.set(key, queue_id, offset);
        state.commits += 1;
        if state.commits.is_multiple_of(VERSION_STEP) {
            state.version.advance(wall_ms());
        }
    }

    pub fn get(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.state()
            .table
            .get(&key(topic, group))?
            .get(&queue_id)
            .copied()
    }

    /// All queues of a topic that the group has an offset in.
    pub fn of(&self, group: &str, topic: &str) -> QueueOffsets {
        self.state()
            .table
            .get(&key(topic, group))
            .cloned()
            .unwrap_or_default()
    }

    /// The topics that a group has offsets in.
    pub fn topics_of(&self, group: &str) -> Vec<String> {
        let state = self.state();
        let pairs = state.table.keys().filter_map(|key| key.split_once('@'));
        let mut topics: Vec<_> = pairs
            .filter(|(_, owner)| *owner == group)
            .map(|(topic, _)| topic.to_owned())
            .collect();
        topics.sort_unstable();
        topics
    }

    /// The groups that have an offset in a topic.
    pub fn groups_of(&self, topic: &str) -> Vec<String> {
        let state = self.state();
        let pairs = state.table.keys().filter_map(|key| key.split_once('@'));
        let mut groups: Vec<_> = pairs
            .filter(|(name, _)| *name == topic)
            .map(|(_, group)| group.to_owned())
            .collect();
        groups.sort_unstable();
        groups
    }

    pub fn remove_topic(&self, topic: &str) {
        self.remove(|name, _| name == topic);
    }

    pub fn remove_group(&self, group: &str) {
        self.remove(|_, name| name == group);
    }

    fn remove(&self, goes: impl Fn(&str, &str) -> bool) {
        let mut state = self.state();
        let stays = |key: &str| {
            !key.split_once('@')
                .is_some_and(|(topic, group)| goes(topic, group))
        };
        let before = state.table.len();
        state.table.retain(|key, _| stays(key));
        state.local.retain(|(key, _), _| stays(key));
        if state.table.len() < before {
            state.version.advance(wall_ms());
            state.generation += 1;
        }
    }

    /// After a recovery that cut the log: offsets beyond a queue's end go back to it, or the next
    /// messages would be skipped. For masters only; a slave's log may just be late.
    pub fn clamp(&self, end_of: impl Fn(&str, i32) -> Option<i64>) -> usize {
        let mut state = self.state();
        let mut clamped = 0;
        for (key, queues) in &mut state.table {
            let Some((topic, _)) = key.split_once('@') else {
                continue;
            };
            for (queue_id, offset) in queues {
                if let Some(end) = end_of(topic, *queue_id)
                    && *offset > end
                {
                    log::warn!("offset {offset} of {key} queue {queue_id} is beyond its end {end}");
                    *offset = end;
                    clamped += 1;
                }
            }
        }
        state.generation += u64::from(clamped > 0);
        clamped
    }

    /// GET_ALL_CONSUMER_OFFSET (43): queue ids stand bare, and the version is always there, since
    /// a 5.3.3 slave stores nothing without it.
    pub fn body(&self) -> Vec<u8> {
        json::write(&self.state().to_json(json::bare_key))
    }

    /// A slave takes over its master's offsets. What was committed here, while consumers could
    /// not reach the master, stays until the master has come as far, or was reset by hand.
    pub fn merge_from_master(&self, body: &Value) -> Result<(), String> {
        let table = read_table(body)?;
        let mut state = self.state();
        for (key, queues) in table {
            for (queue_id, offset) in queues {
                if state.master_wins(&key, queue_id, offset) {
                    state.set(key.clone(), queue_id, offset);
                }
            }
        }
        state.version = DataVersion::of(body).unwrap_or(state.version);
        Ok(())
    }

    /// Writes the file if an offset changed since it was written; false if not.
    pub fn save_if_changed(&self) -> io::Result<bool> {
        self.file.save_if_changed(|saved| {
            let state = self.state();
            (state.generation != saved)
                .then(|| (state.generation, state.to_json(|id| id.to_string())))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a commit must satisfy: legal names, a group and a topic that exist, one of its queues.
pub fn check_commit(
    group: &str,
    topic: &str,
    queue_id: i32,
    offset: i64,
    topics: &Topics,
    groups: &Groups,
) -> Result<(), Refusal> {
    if groups.find_or_create(group).is_none() {
        let why = "the subscription group does not exist";
        return Err(Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, why));
    }
    let Some(config) = topics.get(topic) else {
        return Err(Refusal::new(
            response::TOPIC_NOT_EXIST,
            "the topic does not exist",
        ));
    };
    if !(0..config.queues()).contains(&queue_id) || offset < 0 {
        return Err(Refusal::new(
            response::INVALID_PARAMETER,
            format!(
                "queue {queue_id}, offset {offset}: the topic has {} queues",
                config.queues()
            ),
        ));
    }
    Ok(())
}

impl State {
    fn from_json(value: Option<Value>) -> State {
        let found = value.is_some();
        let value = value.unwrap_or_default();
        let table = read_table(&value).unwrap_or_else(|why| {
            if found {
                log::warn!("{FILE}: {why}; starting without offsets");
            }
            HashMap::new()
        });
        let others = value.as_object().into_iter().flatten();
        // groupTopicMap only repeats the table's keys.
        let own = ["dataVersion", MEMBER, "groupTopicMap"];
        State {
            table,
            version: DataVersion::of(&value).unwrap_or_else(DataVersion::created_now),
            rest: others
                .filter(|(name, _)| !own.contains(&name.as_str()))
                .map(|(name, member)| (name.clone(), member.clone()))
                .collect(),
            commits: 0,
            generation: 0,
            local: HashMap::new(),
        }
    }

    fn to_json(&self, queue_key: impl Fn(i32) -> String) -> Value {
        let queues = |queues: &QueueOffsets| -> Value {
            let pairs = queues
                .iter()
                .map(|(id, offset)| (queue_key(*id), Value::from(*offset)));
            Value::Object(pairs.collect())
        };
        let table: Map<String, Value> = self
            .table
            .iter()
            .map(|(key, offsets)| (key.clone(), queues(offsets)))
            .collect();
        let mut members = self.rest.clone();
        members.insert("dataVersion".into(), self.version.to_json());
        members.insert(MEMBER.into(), Value::Object(table));
        Value::Object(members)
    }

    fn set(&mut self, key: String, queue_id: i32, offset: i64) {
        let old = self.table.entry(key).or_default().insert(queue_id, offset);
        self.generation += u64::from(old != Some(offset));
    }

    /// Whether the master's offset replaces ours; notes what the master said.
    fn master_wins(&mut self, key: &str, queue_id: i32, offset: i64) -> bool {
        let entry = (key.to_owned(), queue_id);
        let Some(local) = self.local.get_mut(&entry) else {
            return true;
        };
        let was_reset = local.master.is_some_and(|before| offset < before);
        if offset >= local.offset || was_reset {
            self.local.remove(&entry);
            return true;
        }
        local.master = Some(offset);
        false
    }
}

fn key(topic: &str, group: &str) -> String {
    format!("{topic}@{group}")
}

/// Reads `offsetTable`. An entry with an illegal name or offset is left out, with a warning.
fn read_table(value: &Value) -> Result<HashMap<String, QueueOffsets>, String> {
    let members = value
        .get(MEMBER)
        .and_then(Value::as_object)
        .ok_or_else(|| format!("the member {MEMBER} is missing"))?;
    let mut table = HashMap::new();
    for (key, queues) in members {
        match read_entry(key, queues) {
            Some(offsets) => {
                table.insert(key.clone(), offsets);
            }
            None => log::warn!("{FILE}: entry {key:?} is left out"),
        }
    }
    Ok(table)
}

fn read_entry(key: &str, queues: &Value) -> Option<QueueOffsets> {
    let (topic, group) = key.split_once('@')?;
    topics::check_stored_name(topic).ok()?;
    groups::check_name(group).ok()?;
    let pairs = queues.as_object()?.iter();
    pairs
        .map(|(id, offset)| Some((id.parse().ok()?, offset.as_i64()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::json_file;
    use crate::broker::topics::{BuiltinTopics, TopicConfig};
    use crate::remoting::codes::request as code;
    use serde_json::json;

    struct Fixture {
        dir: tempfile::TempDir,
        topics: Topics,
        groups: Groups,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let builtin = BuiltinTopics {
            cluster: "C".into(),
            broker_name: "b".into(),
            auto_create: true,
            default_queues: 8,
            cluster_topic: true,
            broker_topic: true,
            trace_topic: None,
        };
        let topics = Topics::open(dir.path(), &builtin, false).expect("topics");
        topics.update(TopicConfig::new("T", 2, 6)).expect("T");
        let groups = Groups::open(dir.path(), true, false).expect("groups");
        Fixture {
            dir,
            topics,
            groups,
        }
    }

    fn fields(queue_id: i32) -> Fields {
        Fields::default()
            .with("consumerGroup", "G")
            .with("topic", "T")
            .with("queueId", queue_id)
    }

    #[test]
    fn a_commit_is_stored_also_when_it_is_smaller() {
        let f = fixture();
        let offsets = Offsets::open(f.dir.path(), false).expect("offsets");
        for offset in [6, 3] {
            let ext = fields(1).with("commitOffset", offset);
            let request = Command::request(code::UPDATE_CONSUMER_OFFSET, ext);
            assert!(offsets.update(&request, &f.topics, &f.groups).is_success());
            let query = Command::request(code::QUERY_CONSUMER_OFFSET, fields(1));
            let answer = offsets.query(&query, |_, _| panic!("it is stored"));
            assert_eq!(answer.ext().parse::<i64>("offset"), Ok(offset));
        }
    }

    #[test]
    fn commits_that_name_nothing_here_are_refused() {
        let f = fixture();
        let offsets = Offsets::open(f.dir.path(), false).expect("offsets");
        for (group, topic, queue, offset, want) in [
            ("G", "absent", 0, 1, response::TOPIC_NOT_EXIST),
            ("a b", "T", 0, 1, response::SUBSCRIPTION_GROUP_NOT_EXIST),
            ("G", "T", 2, 1, response::INVALID_PARAMETER),
            ("G", "T", -1, 1, response::INVALID_PARAMETER),
            ("G", "T", 0, -1, response::INVALID_PARAMETER),
        ] {
            let found = check_commit(group, topic, queue, offset, &f.topics, &f.groups);
            assert_eq!(
                found.expect_err("refused").code,
                want,
                "{group} {topic} {queue} {offset}"
            );
        }
        assert_eq!(offsets.topics_of("G"), Vec::<String>::new());
    }

    #[test]
    fn a_new_group_starts_at_zero_only_on_a_young_queue() {
        let f = fixture();
        let offsets = Offsets::open(f.dir.path(), false).expect("offsets");
        let ask = |ext: Fields, young: bool| {
            let request = Command::request(code::QUERY_CONSUMER_OFFSET, ext);
            let answer = offsets.query(&request, |_, _| young);
            (answer.code(), answer.ext().get("offset").map(str::to_owned))
        };
        assert_eq!(ask(fields(0), true), (0, Some("0".into())));
        assert_eq!(ask(fields(0), false), (response::QUERY_NOT_FOUND, None));
        let strict = fields(0).with("setZeroIfNotFound", "false");
        assert_eq!(ask(strict, true), (response::QUERY_NOT_FOUND, None));
    }

    #[test]
    fn both_lines_files_are_read_and_the_body_has_bare_keys_and_a_version() {
        let f = fixture();
        let text = b"{\n\t\"offsetTable\":{\n\t\t\"T@G\":{0:5,1:7\n\t\t},\"bad\":{0:1},\"T@X\":{0:\"a\"}\n\t}\n}";
        std::fs::write(f.dir.path().join(FILE), text).expect("written");
        let offsets = Offsets::open(f.dir.path(), false).expect("offsets");
        assert_eq!(offsets.of("G", "T"), QueueOffsets::from([(0, 5), (1, 7)]));
        assert_eq!(
            (offsets.topics_of("G"), offsets.groups_of("T")),
            (vec!["T".into()], vec!["G".into()])
        );
        let body = String::from_utf8(offsets.body()).expect("text");
        assert!(
            body.ends_with(r#""offsetTable":{"T@G":{0:5,1:7}}}"#),
            "{body}"
        );
        assert!(body.contains("dataVersion"), "{body}");

        let newer = json!({"dataVersion": {"counter": 4, "stateVersion": 0, "timestamp": 1},
            "groupTopicMap": {"G": ["T"]}, "pullOffsetTable": {"T@P": {"0": 3}},
            "offsetTable": {"T@G": {"0": 8}}});
        json_file::save(&f.dir.path().join(FILE), &newer).expect("written");
        let offsets = Offsets::open(f.dir.path(), false).expect("offsets");
        offsets.commit("G", "T", 0, 9);
        assert!(offsets.save_if_changed().expect("saved"));
        assert!(!offsets.save_if_changed().expect("not again"));
        let (saved, _) = json_file::load(&f.dir.path().join(FILE))
            .expect("read")
            .expect("there");
        assert_eq!(saved["pullOffsetTable"], newer["pullOffsetTable"]);
        assert_eq!(
            (
                &saved["offsetTable"]["T@G"]["0"],
                &saved["dataVersion"]["counter"]
            ),
            (&json!(9), &json!(4))
        );
    }

    #[test]
    fn a_slave_keeps_what_was_committed_at_it_until_the_master_has_come_as_far() {
        let f = fixture();
        let offsets = Offsets::open(f.dir.path(), true).expect("offsets");
        let says = |offset: i64| {
            let body = json!({"offsetTable": {"T@G": {"0": offset, "1": offset}}});
            offsets.merge_from_master(&body).expect("merged");
            (offsets.get("G", "T", 0), offsets.get("G", "T", 1))
        };
        assert_eq!(says(100), (Some(100), Some(100)));
        // The master dies; consumers go on here; it returns with an older file.
        offsets.commit("G", "T", 0, 150);
        assert_eq!(says(90), (Some(150), Some(90)));
        assert_eq!(says(95), (Some(150), Some(95)));
        assert_eq!(says(160), (Some(160), Some(160)));
        // From here on the master is followed, also backwards.
        assert_eq!(says(10), (Some(10), Some(10)));
    }

    #[test]
    fn a_reset_at_the_returned_master_is_taken() {
        let f = fixture();
        let offsets = Offsets::open(f.dir.path(), true).expect("offsets");
        offsets.commit("G", "T", 0, 150);
        for (says, want) in [(90, 150), (92, 150), (0, 0), (1, 1)] {
            offsets
                .merge_from_master(&json!({"offsetTable": {"T@G": {"0": says}}}))
                .expect("merged");
            assert_eq!(offsets.get("G", "T", 0), Some(want), "{says}");
        }
        assert!(offsets.merge_from_master(&json!({})).is_err());
    }

    #[test]
    fn offsets_go_with_their_topic_or_group_and_never_beyond_a_cut_log() {
        let f = fixture();
        let offsets = Offsets::open(f.dir.path(), false).expect("offsets");
        for (group, topic) in [("G", "T"), ("G", "U"), ("H", "T")] {
            offsets.commit(group, topic, 0, 95);
        }
        offsets.remove_topic("U");
        assert_eq!(offsets.topics_of("G"), ["T"]);
        assert_eq!(offsets.clamp(|_, _| Some(80)), 2);
        assert_eq!(offsets.get("H", "T", 0), Some(80));
        offsets.remove_group("G");
        assert_eq!(offsets.groups_of("T"), ["H"]);
    }
}
