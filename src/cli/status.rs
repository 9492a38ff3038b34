//! `twinmq status`: what brokers say about themselves, their log, their slaves or their master.
//!
//! Built from GET_BROKER_RUNTIME_INFO, which every broker answers; GET_BROKER_HA_STATUS and
//! GET_BROKER_CONFIG fill in what an original broker does not tell there. What nobody tells is
//! null, never 0.

mod text;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::options::{Usage, flag};
use super::output::{is_terminal, write_json_line};
use super::peers::{BROKER, BrokerGroup, JSON, NAMESRV, Peers, TIMEOUT};
use super::{Done, Failure, Outcome};
use crate::base::json as dialect;
use crate::remoting::codes::request;
use crate::remoting::{Client, Command, Fields};

pub const USAGE: Usage = Usage {
    name: "status",
    arguments: "",
    about: "Shows all brokers that the name server knows, or the one that --broker names. Exits \
            with 1 if one is not ready, a slave is not in sync or without its link, or a \
            SYNC_MASTER has no slave; with 3 if one cannot be reached.",
    options: &[
        NAMESRV,
        BROKER,
        flag("w", "watch", "Repaints every second, on a terminal."),
        TIMEOUT,
        JSON,
    ],
};

const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Cursor to the upper left corner, and everything below it cleared.
const REPAINT: &str = "\x1b[H\x1b[J";

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let peers = Peers::of(&options)?;
    let as_json = options.has("json");
    if !options.has("watch") {
        return show(&peers, as_json, &mut io::stdout().lock());
    }
    if !is_terminal() {
        return Err(Failure::usage("--watch needs a terminal"));
    }
    loop {
        let mut screen = REPAINT.as_bytes().to_vec();
        if let Err(failure) = show(&peers, as_json, &mut screen) {
            screen.extend_from_slice(format!("{failure}\n").as_bytes());
        }
        io::stdout().write_all(&screen)?;
        thread::sleep(WATCH_INTERVAL);
    }
}

/// Every broker in turn. One that cannot be reached does not hide the others.
fn show(peers: &Peers, as_json: bool, out: &mut impl Write) -> Outcome {
    let groups = peers.groups()?;
    if groups.is_empty() {
        return Err(Failure::peer("the name server knows no broker"));
    }
    let (mut done, mut failures) = (Done::Fine, Vec::new());
    for group in &groups {
        let mut master_end = None;
        for (&id, address) in &group.addresses {
            match ask(peers, group, id, address) {
                Ok(answers) => {
                    let status = build(&answers, master_end);
                    if answers.id == Some(0) {
                        master_end = status["log"]["max"].as_i64();
                    }
                    write_status(out, &status, as_json)?;
                    done = done.and(judge(&status));
                }
                Err(failure) if group.name.is_empty() => failures.push(failure.to_string()),
                Err(failure) => failures.push(format!("{} {id}: {failure}", group.name)),
            }
        }
    }
    match failures.is_empty() {
        true => Ok(done),
        false => Err(Failure::peer(failures.join("; "))),
    }
}

fn write_status(out: &mut impl Write, status: &Value, as_json: bool) -> io::Result<()> {
    match as_json {
        true => write_json_line(out, status),
        false => out.write_all(text::render(status).as_bytes()),
    }
}

/// What one broker answered.
#[derive(Default)]
struct Answers {
    address: String,
    /// From the name server, or the broker's configuration.
    name: Option<String>,
    cluster: Option<String>,
    id: Option<i64>,
    /// Runtime info.
    info: BTreeMap<String, String>,
    /// GET_BROKER_HA_STATUS; null from a broker without it.
    ha: Value,
    config: BTreeMap<String, String>,
}

fn ask(peers: &Peers, group: &BrokerGroup, id: i64, address: &str) -> Result<Answers, Failure> {
    let mut client = peers.connect(address)?;
    let call = |client: &mut Client, code| {
        client.call(Command::request(code, Fields::default()), peers.timeout)
    };
    let info = client.ask(
        Command::request(request::GET_BROKER_RUNTIME_INFO, Fields::default()),
        peers.timeout,
    )?;
    let info = parse_table(info.body())
        .ok_or_else(|| Failure::peer(format!("{address}: its runtime info is no table")))?;
    let ha = call(&mut client, request::GET_BROKER_HA_STATUS)?;
    let config = call(&mut client, request::GET_BROKER_CONFIG)?;
    let config = match config.is_success() {
        true => parse_properties(&String::from_utf8_lossy(config.body())),
        false => BTreeMap::new(),
    };
    let named = !group.name.is_empty();
    Ok(Answers {
        address: address.to_owned(),
        name: named
            .then(|| group.name.clone())
            .or_else(|| config.get("brokerName").cloned()),
        cluster: group
            .cluster
            .clone()
            .or_else(|| config.get("brokerClusterName").cloned()),
        id: match named {
            true => Some(id),
            false => config.get("brokerId").and_then(|text| text.parse().ok()),
        },
        info,
        ha: ha
            .is_success()
            .then(|| dialect::parse(ha.body()).ok())
            .flatten()
            .unwrap_or_default(),
        config,
    })
}

fn parse_table(body: &[u8]) -> Option<BTreeMap<String, String>> {
    let body = dialect::parse(body).ok()?;
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let table = body.get("table")?.as_object()?;
    Some(
        table
            .iter()
            .map(|(key, value)| (key.clone(), text(value)))
            .collect(),
    )
}

/// `key=value` lines; enough for the plain values that are looked up here.
fn parse_properties(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

impl Answers {
    fn info(&self, key: &str) -> Option<&str> {
        self.info.get(key).map(String::as_str)
    }

    fn number(&self, key: &str) -> Option<i64> {
        self.info(key)?.parse().ok()
    }

    /// A value that one of our brokers tells as JSON.
    fn json(&self, key: &str) -> Option<Value> {
        serde_json::from_str(self.info(key)?).ok()
    }

    fn role(&self) -> Option<&str> {
        self.info("twinmq.role")
            .or_else(|| self.config.get("brokerRole").map(String::as_str))
    }

    fn is_slave(&self) -> bool {
        self.role()
            .map_or(self.id.is_some_and(|id| id > 0), |role| role == "SLAVE")
    }

    fn ha_address(&self) -> Option<String> {
        if let Some(address) = self.info("twinmq.haAddress") {
            return Some(address.to_owned());
        }
        let host = self.config.get("brokerIP2")?;
        Some(format!("{host}:{}", self.config.get("haListenPort")?))
    }
}

/// The document of one broker. `master_end` is where its master's log ends, if that was asked.
fn build(answers: &Answers, master_end: Option<i64>) -> Value {
    let max = answers.number("commitLogMaxOffset");
    let mut status = json!({
        "broker": {
            "name": answers.name,
            "id": answers.id,
            "cluster": answers.cluster,
            "role": answers.role(),
            "address": answers.address,
            "haAddress": answers.ha_address(),
            "version": answers.info("brokerVersionDesc"),
            "state": answers.info("twinmq.state"),
            "upSeconds": answers.info("runtime").and_then(parse_runtime),
        },
        "log": {
            "min": answers.number("commitLogMinOffset"),
            "max": max,
            "flushed": flushed(answers, max),
            "dispatched": dispatched(answers, max),
        },
    });
    match answers.is_slave() {
        true => status["link"] = link(answers, max, master_end),
        false => status["slaves"] = slaves(answers),
    }
    status
}

/// An original broker tells in words how much is not flushed; only none of it is exact.
fn flushed(answers: &Answers, max: Option<i64>) -> Option<i64> {
    let all_flushed = answers.info("remainHowManyDataToFlush") == Some("0 B");
    answers
        .number("twinmq.flushed")
        .or(max.filter(|_| all_flushed))
}

fn dispatched(answers: &Answers, max: Option<i64>) -> Option<i64> {
    let told = answers.number("twinmq.dispatched");
    told.or_else(|| Some(max? - answers.number("dispatchBehindBytes")?))
}

/// `[ 0 days, 0 hours, 13 minutes, 53 seconds ]`
fn parse_runtime(text: &str) -> Option<i64> {
    let numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .filter(|part| !part.is_empty());
    let numbers: Vec<i64> = numbers.map_while(|part| part.parse().ok()).collect();
    match numbers[..] {
        [days, hours, minutes, seconds] => {
            Some(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
        }
        _ => None,
    }
}

/// The slaves of a master; null if it does not tell.
fn slaves(answers: &Answers) -> Value {
    if let Some(slaves) = answers.json("twinmq.slaves") {
        return slaves;
    }
    let Some(connections) = answers.ha.get("haConnectionInfo").and_then(Value::as_array) else {
        return Value::Null;
    };
    connections.iter().map(slave_of_connection).collect()
}

/// From GET_BROKER_HA_STATUS, where -1 is what is not known yet.
fn slave_of_connection(connection: &Value) -> Value {
    let known = |name| dialect::number(connection, name).filter(|number| *number >= 0);
    let reported = known("slaveAckOffset");
    json!({
        "address": dialect::text(connection, "addr"),
        "state": null,
        "sent": known("transferFromWhere"),
        "reported": reported,
        "lagBytes": reported.and(known("diff")),
        "lagSeconds": null,
        "inSync": connection.get("inSync").and_then(Value::as_bool),
        "sinceSeconds": null,
    })
}

/// A slave's link to its master.
fn link(answers: &Answers, max: Option<i64>, master_end: Option<i64>) -> Value {
    if let Some(link) = answers.json("twinmq.link") {
        return link;
    }
    let client = answers
        .ha
        .get("haClientRuntimeInfo")
        .unwrap_or(&Value::Null);
    let lag = master_end
        .zip(max)
        .map(|(master, own)| (master - own).max(0));
    let fields: [(&str, Value); 8] = [
        ("master", json!(dialect::text(client, "masterAddr"))),
        ("state", Value::Null),
        ("received", json!(max)),
        ("reported", Value::Null),
        ("lagBytes", json!(lag)),
        ("lagSeconds", Value::Null),
        ("sinceSeconds", Value::Null),
        ("lastError", Value::Null),
    ];
    Value::Object(Map::from_iter(
        fields.map(|(name, value)| (name.to_owned(), value)),
    ))
}

/// What is not known is no reason to complain.
fn judge(status: &Value) -> Done {
    let broker = &status["broker"];
    let ready = broker["state"]
        .as_str()
        .is_none_or(|state| state == "ready");
    let linked = status["link"]["state"]
        .as_str()
        .is_none_or(|state| state == "streaming");
    let slaves = status["slaves"].as_array();
    let in_sync = slaves.is_none_or(|slaves| slaves.iter().all(|slave| slave["inSync"] != false));
    let alone = broker["role"] == "SYNC_MASTER" && slaves.is_some_and(|slaves| slaves.is_empty());
    match ready && linked && in_sync && !alone {
        true => Done::Fine,
        false => Done::Negative,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(info: &[(&str, &str)]) -> Answers {
        let pairs = info
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()));
        Answers {
            address: "127.0.0.1:10911".into(),
            name: Some("broker-a".into()),
            cluster: Some("C".into()),
            id: Some(0),
            info: pairs.collect(),
            ..Answers::default()
        }
    }

    const LOG: [(&str, &str); 4] = [
        ("commitLogMinOffset", "0"),
        ("commitLogMaxOffset", "1234"),
        ("dispatchBehindBytes", "34"),
        ("runtime", "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"),
    ];

    #[test]
    fn an_original_master_tells_its_log_and_the_rest_is_null() {
        let status = build(&answers(&LOG), None);
        assert_eq!(
            status["log"],
            json!({"min": 0, "max": 1234, "flushed": null, "dispatched": 1200})
        );
        assert_eq!(status["broker"]["upSeconds"], 93_784);
        assert_eq!(
            (&status["broker"]["state"], &status["slaves"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(status.get("link"), None);
        assert_eq!(judge(&status), Done::Fine);
    }

    #[test]
    fn our_own_broker_tells_everything() {
        let slaves = r#"[{"address":"127.0.0.1:40112","state":"streaming","inSync":true}]"#;
        let own = [
            ("twinmq.state", "ready"),
            ("twinmq.role", "SYNC_MASTER"),
            ("twinmq.haAddress", "127.0.0.1:10912"),
            ("twinmq.flushed", "1230"),
            ("twinmq.dispatched", "1220"),
            ("twinmq.slaves", slaves),
        ];
        let mut status = build(&answers(&[&LOG[..], &own[..]].concat()), None);
        assert_eq!(
            status["log"],
            json!({"min": 0, "max": 1234, "flushed": 1230, "dispatched": 1220})
        );
        assert_eq!(status["slaves"][0]["state"], "streaming");
        assert_eq!(judge(&status), Done::Fine);
        status["slaves"][0]["inSync"] = json!(false);
        assert_eq!(judge(&status), Done::Negative);
        status["slaves"] = json!([]);
        assert_eq!(
            judge(&status),
            Done::Negative,
            "a SYNC_MASTER without a slave"
        );
        status["broker"]["role"] = json!("ASYNC_MASTER");
        assert_eq!(judge(&status), Done::Fine);
        status["broker"]["state"] = json!("read-only");
        assert_eq!(judge(&status), Done::Negative);
    }

    #[test]
    fn ha_status_shows_a_slave_that_has_not_reported_as_unknown() {
        let ha = json!({"haConnectionInfo": [
            {"addr": "10.0.0.2:4", "diff": 5001, "inSync": true, "slaveAckOffset": -1, "transferFromWhere": -1},
            {"addr": "10.0.0.3:4", "diff": 10, "inSync": true, "slaveAckOffset": 90, "transferFromWhere": 95}]});
        let status = build(
            &Answers {
                ha,
                ..answers(&LOG)
            },
            None,
        );
        let [first, second] = [&status["slaves"][0], &status["slaves"][1]];
        assert_eq!(
            (&first["reported"], &first["lagBytes"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(
            (&second["sent"], &second["lagBytes"]),
            (&json!(95), &json!(10))
        );
    }

    #[test]
    fn a_slave_without_its_link_is_negative() {
        let link = r#"{"master":null,"state":"no-master"}"#;
        let own = [("twinmq.role", "SLAVE"), ("twinmq.link", link)];
        let status = build(&answers(&[&LOG[..], &own[..]].concat()), None);
        assert_eq!(
            (status.get("slaves"), judge(&status)),
            (None, Done::Negative)
        );
        let original = build(
            &Answers {
                id: Some(1),
                ..answers(&LOG)
            },
            Some(1300),
        );
        assert_eq!(original["link"]["lagBytes"], 66);
        assert_eq!(judge(&original), Done::Fine);
    }
}
