//! What real brokers of both lines sent their slaves, and what real clients sent real brokers, given
//! to our tables: all of it is understood, and what we would pass on is what came in.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use mio::{Poll, Token, Waker};
use serde_json::Value;
use twinmq::base::json;
use twinmq::broker::clients::Clients;
use twinmq::broker::delay::Delays;
use twinmq::broker::groups::Groups;
use twinmq::broker::offsets::Offsets;
use twinmq::broker::outbox::{Outbox, Peer};
use twinmq::broker::topics::{BuiltinTopics, Topics};
use twinmq::remoting::codes::request;
use twinmq::remoting::{Command, frame};
use twinmq::store::DelayLevels;

const VERSIONS: [&str; 2] = ["4.9.7", "5.3.3"];

/// Both directions of one connection to a master: requests, and replies by their opaque.
struct Connection {
    requests: Vec<Command>,
    replies: BTreeMap<i32, Command>,
}

fn archive(version: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("TWINMQ_SHARED").map_or("../shared".into(), PathBuf::from);
    let path = shared.join(format!("golden/wire-{version}.tar.gz"));
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there", path.display());
    None
}

fn connections(version: &str) -> Option<Vec<Connection>> {
    let mut streams: BTreeMap<String, [Vec<Command>; 2]> = BTreeMap::new();
    let file = File::open(archive(version)?).expect("the archive");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    for entry in archive.entries().expect("a tar file") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a name").display().to_string();
        let is_master = name.contains("-master.") || name.contains("-masterfast.");
        let Some(stream) = name.strip_suffix(".bin").filter(|_| is_master) else {
            continue;
        };
        let (connection, direction) = stream.rsplit_once('.').expect("a direction");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its bytes");
        let at = usize::from(direction == "s2c");
        streams.entry(connection.to_owned()).or_default()[at] = commands(&bytes);
    }
    let both = streams
        .into_values()
        .map(|[from_client, from_server]| Connection {
            requests: from_client
                .into_iter()
                .filter(|c| !c.is_response())
                .collect(),
            replies: from_server
                .into_iter()
                .filter(Command::is_response)
                .map(|reply| (reply.header.opaque, reply))
                .collect(),
        });
    Some(both.collect())
}

fn commands(mut bytes: &[u8]) -> Vec<Command> {
    let mut commands = Vec::new();
    while let Some(length) = frame::complete(bytes).expect("a frame") {
        let (first, rest) = bytes.split_at(length);
        commands.push(Command::decode(first.to_vec()).expect("a command"));
        bytes = rest;
    }
    commands
}

/// Bodies of the successful replies to this request, in the order of the connections.
fn bodies(connections: &[Connection], code: i32) -> Vec<Value> {
    let mut bodies = Vec::new();
    for connection in connections {
        let requests = connection
            .requests
            .iter()
            .filter(|request| request.code() == code);
        let replies = requests.filter_map(|request| connection.replies.get(&request.header.opaque));
        for reply in replies.filter(|reply| reply.is_success()) {
            bodies.push(json::parse(reply.body()).expect("a body"));
        }
    }
    assert!(!bodies.is_empty(), "no reply to {code} was recorded");
    bodies
}

fn open_topics(dir: &Path) -> Topics {
    let builtin = BuiltinTopics {
        cluster: "C".into(),
        broker_name: "b".into(),
        auto_create: true,
        default_queues: 8,
        cluster_topic: true,
        broker_topic: true,
        trace_topic: None,
    };
    Topics::open(dir, &builtin, true).expect("topics")
}

#[test]
fn a_masters_tables_are_taken_over_and_passed_on_as_they_are() {
    for version in VERSIONS {
        let Some(connections) = connections(version) else {
            return;
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        let topics = open_topics(dir.path());
        for body in bodies(&connections, request::GET_ALL_TOPIC_CONFIG) {
            topics.table().replace_all(&body).expect("a table");
            let ours = topics.table().wrapper();
            assert_eq!(
                ours["topicConfigTable"], body["topicConfigTable"],
                "{version}"
            );
            for member in ["counter", "timestamp"] {
                assert_eq!(ours["dataVersion"][member], body["dataVersion"][member]);
            }
        }
        let groups = Groups::open(dir.path(), true, true).expect("groups");
        for body in bodies(&connections, request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG) {
            groups.table().replace_all(&body).expect("a table");
            let ours = groups.table().wrapper();
            assert_eq!(
                ours["subscriptionGroupTable"], body["subscriptionGroupTable"],
                "{version}"
            );
        }
        // What was saved comes back; only built-in entries that the master lacks are added.
        topics.table().save_if_changed().expect("saved");
        groups.table().save_if_changed().expect("saved");
        let again = (
            open_topics(dir.path()),
            Groups::open(dir.path(), true, true).expect("groups"),
        );
        for topic in topics.table().all() {
            assert_eq!(again.0.get(&topic.name), Some(topic));
        }
        for group in groups.table().all() {
            assert_eq!(again.1.get(&group.name), Some(group));
        }
    }
}

#[test]
fn a_masters_offsets_are_taken_over_and_passed_on_as_they_are() {
    for version in VERSIONS {
        let Some(connections) = connections(version) else {
            return;
        };
        for body in bodies(&connections, request::GET_ALL_CONSUMER_OFFSET) {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let offsets = Offsets::open(dir.path(), true).expect("offsets");
            offsets.merge_from_master(&body).expect("merged");
            offsets.save_if_changed().expect("saved");
            for offsets in [
                &offsets,
                &Offsets::open(dir.path(), false).expect("offsets"),
            ] {
                let ours = json::parse(&offsets.body()).expect("a body");
                assert_eq!(ours["offsetTable"], body["offsetTable"], "{version}");
                assert!(ours["dataVersion"].is_object());
            }
        }
        for body in bodies(&connections, request::GET_ALL_DELAY_OFFSET) {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let delays = Delays::open(dir.path(), DelayLevels::default(), true).expect("delays");
            delays.store_from_master(&body).expect("stored");
            let ours = json::parse(&delays.body()).expect("a body");
            assert_eq!(ours["offsetTable"], body["offsetTable"], "{version}");
        }
    }
}

#[test]
fn heartbeats_of_real_clients_are_understood() {
    for version in VERSIONS {
        let Some(connections) = connections(version) else {
            return;
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        let topics = Arc::new(open_topics(dir.path()));
        let groups = Arc::new(Groups::open(dir.path(), true, false).expect("groups"));
        let poll = Poll::new().expect("a poll");
        let outbox = Outbox::new(Waker::new(poll.registry(), Token(1)).expect("a waker"));
        let clients = Clients::new(topics.clone(), groups.clone(), Arc::new(outbox));
        let mut consumers = 0;
        for (index, connection) in connections.iter().enumerate() {
            let peer = Peer {
                connection: Token(100 + index),
                address: ([127, 0, 0, 1], 9).into(),
                fast: false,
            };
            let beats = connection
                .requests
                .iter()
                .filter(|r| r.code() == request::HEART_BEAT);
            for beat in beats {
                let reply = clients.heartbeat(beat, &peer, Instant::now());
                assert!(
                    reply.is_success(),
                    "{version}: {beat:?}: {}",
                    reply.remark()
                );
                let body = json::parse(beat.body()).expect("a heartbeat");
                for consumer in body["consumerDataSet"].as_array().into_iter().flatten() {
                    consumers += 1;
                    check_consumer(consumer, &clients, &topics, &groups);
                }
            }
        }
        assert!(consumers > 0, "no consumer was recorded");
    }
}

/// The group exists, and each subscription that was just sent is found and matches its tags.
fn check_consumer(consumer: &Value, clients: &Clients, topics: &Topics, groups: &Groups) {
    let group = consumer["groupName"].as_str().expect("a name");
    let config = groups.get(group).expect("a group");
    assert!(topics.get(&format!("%RETRY%{group}")).is_some());
    for wanted in consumer["subscriptionDataSet"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let topic = wanted["topic"].as_str().expect("a topic");
        let version = wanted["subVersion"].as_i64().expect("a version");
        let found = clients
            .subscription(&config, topic, version)
            .expect("it was just sent");
        for code in wanted["codeSet"].as_array().into_iter().flatten() {
            assert!(found.matches(code.as_i64().expect("a code")));
        }
        assert_eq!(
            found.matches(0x1234_5678),
            wanted["subString"] == "*",
            "{wanted}"
        );
    }
}
