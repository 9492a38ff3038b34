//! Which brokers there are: asked of a name server, or named on the command line.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::Failure;
use super::options::{Opt, Options, flag, opt};
use crate::base::json;
use crate::remoting::codes::{request, response};
use crate::remoting::{Client, Command, Fields};

/// Options that several commands have.
pub const NAMESRV: Opt = opt(
    "n",
    "namesrv",
    "HOST:PORT[;...]",
    "The name servers; the first that answers is believed. Default: the environment variable \
     NAMESRV_ADDR, or 127.0.0.1:9876.",
);
pub const BROKER: Opt = opt(
    "b",
    "broker",
    "HOST:PORT",
    "Talks to this broker and asks no name server.",
);
pub const JSON: Opt = flag("", "json", "Writes JSON, one object a line.");
pub const TIMEOUT: Opt = opt(
    "",
    "timeout",
    "SECONDS",
    "How long an answer is waited for. Default: 10.",
);

const NAMESRV_DEFAULT: &str = "127.0.0.1:9876";
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The topic whose route a producer uses for a topic that does not exist yet.
const TEMPLATE_TOPIC: &str = "TBW102";
/// A topic that a client brings to life has no more queues than this.
const TEMPLATE_QUEUES: i32 = 4;
const PERM_READ: i64 = 4;
const PERM_WRITE: i64 = 2;

/// The brokers of one name: a master under id 0, slaves under others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerGroup {
    pub name: String,
    pub cluster: Option<String>,
    pub addresses: BTreeMap<i64, String>,
}

/// The queues of one topic on the brokers of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteQueues {
    pub broker: String,
    /// How many may be read, 0 if none.
    pub readable: i32,
    pub writable: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    pub queues: Vec<RouteQueues>,
    pub groups: Vec<BrokerGroup>,
}

/// One queue that takes messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub broker: String,
    pub address: String,
    /// -1 lets the broker choose.
    pub queue_id: i32,
}

/// Where the command line says to look.
#[derive(Clone, Debug)]
pub struct Peers {
    place: Place,
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
enum Place {
    NameServers(Vec<String>),
    Broker(String),
}

impl Peers {
    pub fn of(options: &Options) -> Result<Peers, Failure> {
        let timeout = options.seconds("timeout")?.unwrap_or(TIMEOUT_DEFAULT);
        if let Some(address) = options.text("broker") {
            return Ok(Peers::broker(&address, timeout));
        }
        let configured = options
            .text("namesrv")
            .or_else(|| std::env::var("NAMESRV_ADDR").ok());
        let list = configured.unwrap_or_else(|| NAMESRV_DEFAULT.to_owned());
        let peers = Peers::name_servers(&list, timeout);
        match &peers.place {
            Place::NameServers(servers) if servers.is_empty() => {
                Err(Failure::usage("no name server is named"))
            }
            _ => Ok(peers),
        }
    }

    pub fn broker(address: &str, timeout: Duration) -> Peers {
        Peers {
            place: Place::Broker(address.to_owned()),
            timeout,
        }
    }

    /// `list` has semicolons between the addresses.
    pub fn name_servers(list: &str, timeout: Duration) -> Peers {
        let parts = list
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        Peers {
            place: Place::NameServers(parts.map(str::to_owned).collect()),
            timeout,
        }
    }

    pub fn connect(&self, address: &str) -> Result<Client, Failure> {
        Ok(Client::connect(address, self.timeout)?)
    }

    /// All brokers, by name. A broker that was named on the command line has no name here.
    pub fn groups(&self) -> Result<Vec<BrokerGroup>, Failure> {
        match &self.place {
            Place::Broker(address) => Ok(vec![BrokerGroup::alone(address)]),
            Place::NameServers(servers) => {
                let request = Command::request(request::GET_BROKER_CLUSTER_INFO, Fields::default());
                let reply = self.ask_first(servers, request)?;
                let body = body_of(&reply)?;
                Ok(parse_cluster(&body))
            }
        }
    }

    /// Who has a topic; `None` if nobody does. With a broker that was named on the command line
    /// the queues are not known.
    pub fn route(&self, topic: &str) -> Result<Option<Route>, Failure> {
        match &self.place {
            Place::Broker(address) => Ok(Some(Route {
                queues: vec![],
                groups: vec![BrokerGroup::alone(address)],
            })),
            Place::NameServers(servers) => {
                let fields = Fields::default().with("topic", topic);
                let request = Command::request(request::GET_ROUTEINFO_BY_TOPIC, fields);
                let reply = self.ask_first(servers, request)?;
                match reply.code() {
                    response::TOPIC_NOT_EXIST => Ok(None),
                    _ => Ok(Some(parse_route(&body_of(&reply)?))),
                }
            }
        }
    }

    /// The queues that a message for `topic` may go to, those of different brokers in turn.
    pub fn targets(&self, topic: &str, queue_id: Option<i32>) -> Result<Vec<Target>, Failure> {
        if let Place::Broker(address) = &self.place {
            let target = Target {
                broker: address.clone(),
                address: address.clone(),
                queue_id: queue_id.unwrap_or(-1),
            };
            return Ok(vec![target]);
        }
        let targets = match self.route(topic)? {
            Some(route) => targets_of(&route, i32::MAX),
            None => {
                let template = self.route(TEMPLATE_TOPIC)?.unwrap_or_default();
                targets_of(&template, TEMPLATE_QUEUES)
            }
        };
        let wanted = |target: &Target| queue_id.is_none_or(|id| id == target.queue_id);
        let targets: Vec<Target> = targets.into_iter().filter(wanted).collect();
        if targets.is_empty() {
            return Err(Failure::peer(format!(
                "no broker takes messages for the topic {topic}"
            )));
        }
        Ok(targets)
    }

    /// The answer of the first name server that gives one.
    fn ask_first(&self, servers: &[String], request: Command) -> Result<Command, Failure> {
        let mut last = Failure::usage("no name server is named");
        for server in servers {
            let asked = Client::connect(server, self.timeout)
                .and_then(|mut client| client.call(request.clone(), self.timeout));
            match asked {
                Ok(reply) => return Ok(reply),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }
}

impl BrokerGroup {
    fn alone(address: &str) -> BrokerGroup {
        BrokerGroup {
            name: String::new(),
            cluster: None,
            addresses: BTreeMap::from([(0, address.to_owned())]),
        }
    }
}

fn body_of(reply: &Command) -> Result<Value, Failure> {
    if !reply.is_success() {
        let (code, remark) = (reply.code(), reply.remark());
        return Err(Failure::peer(format!(
            "the name server answered code {code}: {remark}"
        )));
    }
    let parsed = json::parse(reply.body());
    parsed.map_err(|error| Failure::peer(format!("the name server's answer is {error}")))
}

fn parse_group(value: &Value) -> Option<BrokerGroup> {
    let addresses = value.get("brokerAddrs")?.as_object()?;
    let pair =
        |(id, address): (&String, &Value)| Some((id.parse().ok()?, address.as_str()?.to_owned()));
    Some(BrokerGroup {
        name: json::text(value, "brokerName")?.to_owned(),
        cluster: json::text(value, "cluster").map(str::to_owned),
        addresses: addresses.iter().filter_map(pair).collect(),
    })
}

fn parse_cluster(body: &Value) -> Vec<BrokerGroup> {
    let table = body.get("brokerAddrTable").and_then(Value::as_object);
    table
        .into_iter()
        .flat_map(|table| table.values())
        .filter_map(parse_group)
        .collect()
}

fn parse_route(body: &Value) -> Route {
    let list = |name| {
        body.get(name)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let queues = |value: &Value| {
        let perm = json::number(value, "perm")?;
        let count = |name, bit| match perm & bit {
            0 => 0,
            _ => json::number(value, name)
                .and_then(|n| i32::try_from(n).ok())
                .unwrap_or(0),
        };
        Some(RouteQueues {
            broker: json::text(value, "brokerName")?.to_owned(),
            readable: count("readQueueNums", PERM_READ),
            writable: count("writeQueueNums", PERM_WRITE),
        })
    };
    Route {
        queues: list("queueDatas").filter_map(queues).collect(),
        groups: list("brokerDatas").filter_map(parse_group).collect(),
    }
}

fn targets_of(route: &Route, queues_max: i32) -> Vec<Target> {
    let mut targets = Vec::new();
    for queues in &route.queues {
        let group = route
            .groups
            .iter()
            .find(|group| group.name == queues.broker);
        let Some(address) = group.and_then(|group| group.addresses.get(&0)) else {
            continue; // without a master nobody writes there
        };
        targets.extend((0..queues.writable.min(queues_max)).map(|queue_id| Target {
            broker: queues.broker.clone(),
            address: address.clone(),
            queue_id,
        }));
    }
    targets.sort_by(|a, b| (a.queue_id, &a.broker).cmp(&(b.queue_id, &b.broker)));
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: &str = r#"{"brokerDatas":[
        {"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"C"},
        {"brokerAddrs":{"1":"10.0.0.4:10911"},"brokerName":"b","cluster":"C"},
        {"brokerAddrs":{"0":"10.0.0.5:10911"},"brokerName":"c","cluster":"C"}],
      "filterServerTable":{},"queueDatas":[
        {"brokerName":"a","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2},
        {"brokerName":"b","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2},
        {"brokerName":"c","perm":4,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":1}]}"#;

    #[test]
    fn only_masters_with_write_permission_are_targets() {
        let route = parse_route(&json::parse(ROUTE.as_bytes()).expect("both forms of keys"));
        assert_eq!(route.groups[0].addresses[&1], "10.0.0.2:10911");
        assert_eq!((route.queues[2].readable, route.queues[2].writable), (1, 0));
        let targets = targets_of(&route, i32::MAX);
        let ids: Vec<_> = targets
            .iter()
            .map(|t| (t.broker.as_str(), t.queue_id))
            .collect();
        assert_eq!(ids, [("a", 0), ("a", 1)]);
    }

    #[test]
    fn cluster_info_is_read_in_the_dialect_of_the_original() {
        let text = r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:20911"},
            "brokerName":"broker-a","cluster":"DefaultCluster"}},
            "clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#;
        let groups = parse_cluster(&json::parse(text.as_bytes()).expect("the dialect"));
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].cluster.as_deref(), Some("DefaultCluster"));
    }

    #[test]
    fn answers_without_sense_are_no_brokers_and_no_panic() {
        for text in [
            "{}",
            "[]",
            r#"{"brokerAddrTable":7}"#,
            r#"{"queueDatas":[{"perm":"x"}]}"#,
        ] {
            let body = json::parse(text.as_bytes()).expect("JSON");
            assert_eq!(parse_cluster(&body), []);
            assert_eq!(parse_route(&body), Route::default());
        }
    }
}
