//! Everything that real brokers, clients and mqadmin asked a real name server in one run, asked of
//! ours in the same order: the answers must be those that were recorded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use twinmq::base::json;
use twinmq::namesrv::requests::State;
use twinmq::remoting::codes::request;
use twinmq::remoting::{Command, Fields};

/// One thing that happened on a connection of the name server.
enum Event {
    Request {
        frame: Vec<u8>,
        answer: Option<Vec<u8>>,
    },
    Closed,
}

struct Happened {
    at_ms: f64,
    connection: usize,
    event: Event,
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

/// The files of the archive by name, those of connections to a name server only.
fn files(path: &PathBuf) -> BTreeMap<String, Vec<u8>> {
    let file = File::open(path).expect("the archive");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in archive.entries().expect("a tar file") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a name").display().to_string();
        if name.contains("-namesrv.") {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("its bytes");
            files.insert(name, bytes);
        }
    }
    files
}

fn events(files: &BTreeMap<String, Vec<u8>>) -> Vec<Happened> {
    let indexes = files.iter().filter(|(name, _)| name.ends_with(".json"));
    let mut events = Vec::new();
    for (connection, (name, index)) in indexes.enumerate() {
        let index: Value = serde_json::from_slice(index).expect("an index");
        let stem = name.trim_end_matches(".json");
        let stream = |dir| &files[&format!("{stem}.{dir}.bin")];
        add_events(
            &index,
            connection,
            stream("c2s"),
            stream("s2c"),
            &mut events,
        );
    }
    events.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    events
}

fn add_events(
    index: &Value,
    connection: usize,
    asked: &[u8],
    answered: &[u8],
    out: &mut Vec<Happened>,
) {
    let opened = index["openedAtMs"].as_f64().expect("a time");
    let cut = |frame: &Value, stream: &[u8]| {
        let at = frame["off"].as_u64().expect("an offset") as usize;
        stream[at..at + frame["len"].as_u64().expect("a length") as usize].to_vec()
    };
    let frames = index["frames"].as_array().expect("frames");
    for frame in frames.iter().filter(|frame| frame["dir"] == "c2s") {
        let answer = frames
            .iter()
            .find(|other| other["dir"] == "s2c" && other["opaque"] == frame["opaque"]);
        let event = Event::Request {
            frame: cut(frame, asked),
            answer: answer.map(|answer| cut(answer, answered)),
        };
        // Its server had several threads: requests count in the order in which they were answered.
        let time = &answer.unwrap_or(frame)["t"];
        let at_ms = opened + time.as_f64().expect("a time");
        out.push(Happened {
            at_ms,
            connection,
            event,
        });
    }
    let closed = index["closedAfterMs"].as_f64().unwrap_or(f64::MAX / 4.0);
    out.push(Happened {
        at_ms: opened + closed,
        connection,
        event: Event::Closed,
    });
}

/// What may differ is taken out: the order of a list, and a member that we write beside the
/// original's.
fn essence(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(essence);
            items.sort_by_key(Value::to_string);
        }
        Value::Object(members) => {
            members.remove("topicSynFlag");
            members.values_mut().for_each(essence);
        }
        _ => {}
    }
}

fn body(command: &Command) -> Option<Value> {
    let text = command.body();
    if text.is_empty() {
        return None;
    }
    let mut value = json::parse(text).expect("a JSON body");
    essence(&mut value);
    Some(value)
}

fn sorted(fields: &Fields) -> BTreeMap<String, String> {
    fields
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn compare(request: &Command, ours: &Command, theirs: &Command) {
    let code = request.code();
    assert_eq!(ours.code(), theirs.code(), "{request:?} {ours:?}");
    assert_eq!(ours.header.opaque, theirs.header.opaque);
    assert_eq!(sorted(ours.ext()), sorted(theirs.ext()), "code {code}");
    if code != request::GET_NAMESRV_CONFIG {
        assert_eq!(body(ours), body(theirs), "code {code} {request:?}");
    }
}

/// Codes asked and answered alike, with their counts.
fn replay(version: &str) -> BTreeMap<i32, usize> {
    let Some(path) = archive(version) else {
        return BTreeMap::new();
    };
    let start = Instant::now();
    let events = events(&files(&path));
    let first = events.first().expect("something happened").at_ms;
    let mut state = State::new(Vec::new());
    let mut counts = BTreeMap::new();
    for happened in events {
        let passed = Duration::from_secs_f64((happened.at_ms - first).min(1e9) / 1000.0);
        assert_eq!(state.routes.expire(start + passed), Vec::<usize>::new());
        match happened.event {
            Event::Closed => state.routes.on_closed(happened.connection),
            Event::Request { frame, answer } => {
                let request = Command::decode(frame).expect("a real frame");
                let ours = state.serve(&request, happened.connection, start + passed);
                let ours = Command::decode(ours.to_bytes()).expect("our own frame");
                assert!(
                    ours.is_success() || ours.code() == 17,
                    "{request:?}: {ours:?}"
                );
                if let Some(answer) = answer {
                    let theirs = Command::decode(answer).expect("a real frame");
                    compare(&request, &ours, &theirs);
                    *counts.entry(request.code()).or_default() += 1;
                }
            }
        }
    }
    counts
}

fn check(version: &str) {
    let counts = replay(version);
    println!("{version}: {counts:?}");
    for code in [100, 102, 103, 104, 105, 106, 205, 206, 216, 319, 327] {
        assert!(
            counts.is_empty() || counts.contains_key(&code),
            "{code} was never asked"
        );
    }
}

#[test]
fn a_4_9_cluster_hears_from_us_what_it_heard_from_its_own_name_server() {
    check("4.9.7");
}

#[test]
fn a_5_3_cluster_hears_from_us_what_it_heard_from_its_own_name_server() {
    check("5.3.3");
}
