//! What a name server answers, request by request. No sockets: a request and the time come in,
//! the reply goes out.
//!
//! Answers are always compact: the Go client cuts `brokerAddrs` out of the route's text and splits
//! it at commas. Integer keys are bare, `{0:"..."}`, unless the requester can read standard JSON
//! only or is new enough to prefer it.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::kv::{KvConfig, ORDER_TOPIC_CONFIG};
use super::registration_body::{RegistrationBody, queue_data};
use super::routes::{BrokerData, BrokerId, Registration, Routes, TopicRoute, UnitList};
use crate::base::data_version::DataVersion;
use crate::base::json::{self, bare_key};
use crate::remoting::codes::{request as code, response};
use crate::remoting::fields::FieldError;
use crate::remoting::{Command, Fields};

/// Requesters from 4.9.4 on get quoted integer keys in a route.
const VERSION_STANDARD_JSON: i32 = 401;
/// Names and addresses that a broker gives itself.
const NAME_LENGTH_MAX: usize = 255;
/// Bounds for the limit of silence that a broker asks for.
const SILENCE_RANGE_MS: std::ops::RangeInclusive<u64> = 1_000..=3_600_000;

/// All that the name server knows.
pub struct State {
    pub routes: Routes,
    pub kv: KvConfig,
    /// What 319 shows: the settings in force, `key=value`.
    pub properties: Vec<(&'static str, String)>,
}

/// Why a request is answered with another code than 0.
struct Refusal(i32, String);

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Refusal {
        Refusal(response::SYSTEM_ERROR, error.to_string())
    }
}

fn error(remark: impl ToString) -> Refusal {
    Refusal(response::SYSTEM_ERROR, remark.to_string())
}

type Answer = Result<(Fields, Vec<u8>), Refusal>;

fn done() -> Answer {
    Ok((Fields::default(), Vec::new()))
}

fn body(value: &Value) -> Answer {
    Ok((Fields::default(), json::write(value)))
}

fn ext(ext: Fields) -> Answer {
    Ok((ext, Vec::new()))
}

impl State {
    pub fn new(properties: Vec<(&'static str, String)>) -> State {
        State {
            routes: Routes::default(),
            kv: KvConfig::default(),
            properties,
        }
    }

    /// Serves one request of one connection.
    pub fn serve(&mut self, request: &Command, connection: usize, now: Instant) -> Command {
        match self.answer(request, connection, now) {
            Ok((ext, body)) => Command::reply(request, response::SUCCESS)
                .with_ext(ext)
                .with_body(body),
            Err(Refusal(code, remark)) => Command::refusal(request, code, remark),
        }
    }

    fn answer(&mut self, request: &Command, connection: usize, now: Instant) -> Answer {
        match request.code() {
            code::REGISTER_BROKER => self.register(request, connection, now),
            code::UNREGISTER_BROKER => self.unregister(request),
            code::BROKER_HEARTBEAT => self.heartbeat(request, now),
            code::QUERY_DATA_VERSION => self.query_data_version(request, now),
            code::REGISTER_TOPIC_IN_NAMESRV => self.register_topic(request),
            code::GET_ROUTEINFO_BY_TOPIC => self.route(request),
            code::GET_BROKER_CLUSTER_INFO => self.cluster_info(),
            code::GET_BROKER_MEMBER_GROUP => self.member_group(request),
            code::WIPE_WRITE_PERM_OF_BROKER => self.wipe_write_perm(request),
            code::ADD_WRITE_PERM_OF_BROKER => self.add_write_perm(request),
            code::DELETE_TOPIC_IN_NAMESRV => self.delete_topic(request),
            code::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => topic_list(self.routes.topics()),
            code::GET_TOPICS_BY_CLUSTER => self.topics_by_cluster(request),
            code::GET_SYSTEM_TOPIC_LIST_FROM_NS => self.system_topics(),
            code::GET_UNIT_TOPIC_LIST => self.unit_topics(UnitList::Unit),
            code::GET_HAS_UNIT_SUB_TOPIC_LIST => self.unit_topics(UnitList::HasUnitSub),
            code::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => {
                self.unit_topics(UnitList::HasUnitSubButNoUnit)
            }
            code::PUT_KV_CONFIG => self.put_kv(request),
            code::GET_KV_CONFIG => self.get_kv(request),
            code::DELETE_KV_CONFIG => self.delete_kv(request),
            code::GET_KVLIST_BY_NAMESPACE => self.kv_list(request),
            code::GET_NAMESRV_CONFIG => self.config(),
            // So does 318: changing the configuration from outside let intruders into the
            // original (CVE-2023-37582).
            _ => Err(not_supported(request)),
        }
    }

    fn register(&mut self, request: &Command, connection: usize, now: Instant) -> Answer {
        let fields = request.ext();
        let crc = fields.parse_or("bodyCrc32", 0)?;
        let registration = Registration {
            broker: broker_id(request)?,
            ha_address: optional_name(request, "haServerAddr")?,
            silence_max: silence_max(fields)?,
            acting_master: fields
                .get("enableActingMaster")
                .map(|_| fields.flag("enableActingMaster")),
            body: RegistrationBody::decode(request.body(), crc).map_err(error)?,
            connection,
        };
        let master = self.routes.register(registration, now).map_err(error)?;
        let mut ext = Fields::default();
        if let Some(master) = master {
            ext.add("masterAddr", master.address);
            if !master.ha_address.is_empty() {
                ext.add("haServerAddr", master.ha_address);
            }
        }
        let order = self.kv.table(ORDER_TOPIC_CONFIG);
        Ok((
            ext,
            order.map(|table| json::write(&table)).unwrap_or_default(),
        ))
    }

    fn unregister(&mut self, request: &Command) -> Answer {
        self.routes.unregister(&broker_id(request)?);
        done()
    }

    fn heartbeat(&mut self, request: &Command, now: Instant) -> Answer {
        self.routes.heard(request.ext().need("brokerAddr")?, now);
        done()
    }

    /// Whether the broker has something that is not known here. Also a sign of life.
    fn query_data_version(&mut self, request: &Command, now: Instant) -> Answer {
        let asked = match request.body() {
            [] => Value::Null,
            text => json::parse(text).map_err(error)?,
        };
        let known = self.routes.heard(request.ext().need("brokerAddr")?, now);
        let changed = known != Some(DataVersion::read(&asked));
        let text = known.map(|version| {
            json::write(&json!({
                "counter": version.counter,
                "stateVersion": version.state_version,
                "timestamp": version.timestamp,
            }))
        });
        let ext = Fields::default().with("changed", changed);
        Ok((ext, text.unwrap_or_default()))
    }

    fn register_topic(&mut self, request: &Command) -> Answer {
        let topic = name(request, "topic")?;
        let route = json::parse(request.body()).map_err(error)?;
        let queues = route["queueDatas"].as_array().into_iter().flatten();
        let queues: Vec<_> = queues
            .filter_map(|data| {
                let broker_name = json::text(data, "brokerName")?;
                Some((broker_name.to_owned(), queue_data(data)))
            })
            .collect();
        self.routes.register_topic(&topic, &queues).map_err(error)?;
        done()
    }

    fn route(&self, request: &Command) -> Answer {
        let topic = request.ext().need("topic")?;
        let route = self.routes.route(topic);
        if route.is_empty() {
            let remark = format!("no route of topic {topic} is known here");
            return Err(Refusal(response::TOPIC_NOT_EXIST, remark));
        }
        let quoted = request.header.version >= VERSION_STANDARD_JSON
            || request.ext().flag("acceptStandardJsonOnly");
        body(&self.route_data(&route, quoted))
    }

    fn route_data(&self, route: &TopicRoute<'_>, quoted: bool) -> Value {
        let brokers: Vec<Value> = route
            .iter()
            .map(|(name, data, _)| broker_data(name, data, quoted))
            .collect();
        // A misspelling of old that older clients still read stands beside the right word.
        let queues: Vec<Value> = route
            .iter()
            .map(|(name, _, queues)| {
                json!({
                    "brokerName": name,
                    "perm": queues.perm,
                    "readQueueNums": queues.read_queues,
                    "topicSynFlag": queues.sys_flag,
                    "topicSysFlag": queues.sys_flag,
                    "writeQueueNums": queues.write_queues,
                })
            })
            .collect();
        let addresses = route
            .iter()
            .flat_map(|(_, data, _)| data.addresses.values());
        let filters: Map<String, Value> = addresses
            .map(|address| (address.clone(), json!(self.routes.filter_servers(address))))
            .filter(|(_, servers)| servers != &json!([]))
            .collect();
        json!({ "brokerDatas": brokers, "filterServerTable": filters, "queueDatas": queues })
    }

    fn cluster_info(&self) -> Answer {
        let brokers: Map<String, Value> = self
            .routes
            .brokers()
            .map(|(name, data)| (name.to_owned(), broker_data(name, data, false)))
            .collect();
        body(&json!({ "brokerAddrTable": brokers, "clusterAddrTable": self.routes.clusters() }))
    }

    fn member_group(&self, request: &Command) -> Answer {
        let cluster = request.ext().need("clusterName")?;
        let name = request.ext().need("brokerName")?;
        let known = self.routes.broker(name);
        let known = known.filter(|data| data.cluster == cluster);
        let addresses = known.map(|data| addresses(data, false)).unwrap_or_default();
        let group = json!({ "brokerAddrs": addresses, "brokerName": name, "cluster": cluster });
        body(&json!({ "brokerMemberGroup": group }))
    }

    fn wipe_write_perm(&mut self, request: &Command) -> Answer {
        let name = request.ext().need("brokerName")?;
        let count = self.routes.wipe_write_perm(name);
        log::info!("write permission of broker {name} is wiped from {count} topics");
        ext(Fields::default().with("wipeTopicCount", count))
    }

    fn add_write_perm(&mut self, request: &Command) -> Answer {
        let name = request.ext().need("brokerName")?;
        let count = self.routes.add_write_perm(name);
        log::info!("write permission of broker {name} is given to {count} topics");
        ext(Fields::default().with("addTopicCount", count))
    }

    fn delete_topic(&mut self, request: &Command) -> Answer {
        let topic = request.ext().need("topic")?;
        let cluster = request.ext().get("clusterName");
        self.routes
            .delete_topic(topic, cluster.filter(|name| !name.is_empty()));
        log::info!("topic {topic} is deleted by request");
        done()
    }

    fn topics_by_cluster(&self, request: &Command) -> Answer {
        let cluster = request.ext().need("cluster")?;
        topic_list(self.routes.topics_of_cluster(cluster))
    }

    /// The topics that are named after clusters and brokers, and one broker to ask for the rest.
    fn system_topics(&self) -> Answer {
        let clusters = self.routes.clusters();
        let names = clusters
            .iter()
            .flat_map(|(cluster, names)| std::iter::once(cluster).chain(names));
        let mut list = json!({ "topicList": names.collect::<Vec<_>>() });
        let any = self
            .routes
            .brokers()
            .find_map(|(_, data)| data.addresses.values().next());
        if let Some(address) = any {
            list["brokerAddr"] = json!(address);
        }
        body(&list)
    }

    fn unit_topics(&self, list: UnitList) -> Answer {
        topic_list(self.routes.topics_by_unit(list))
    }

    fn put_kv(&mut self, request: &Command) -> Answer {
        let fields = request.ext();
        let (namespace, key) = (fields.need("namespace")?, fields.need("key")?);
        if !self.kv.put(namespace, key, fields.need("value")?) {
            return Err(error("the name server has no room for more pairs"));
        }
        done()
    }

    fn get_kv(&self, request: &Command) -> Answer {
        let fields = request.ext();
        let (namespace, key) = (fields.need("namespace")?, fields.need("key")?);
        match self.kv.get(namespace, key) {
            Some(value) => ext(Fields::default().with("value", value)),
            None => Err(not_found(format!("no value of {key} in {namespace}"))),
        }
    }

    fn delete_kv(&mut self, request: &Command) -> Answer {
        let fields = request.ext();
        self.kv
            .delete(fields.need("namespace")?, fields.need("key")?);
        done()
    }

    fn kv_list(&self, request: &Command) -> Answer {
        let namespace = request.ext().need("namespace")?;
        match self.kv.table(namespace) {
            Some(table) => body(&table),
            None => Err(not_found(format!("no values in {namespace}"))),
        }
    }

    fn config(&self) -> Answer {
        let lines = self.properties.iter();
        let text: String = lines
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        Ok((Fields::default(), text.into_bytes()))
    }
}

fn not_supported(request: &Command) -> Refusal {
    Refusal(
        response::REQUEST_CODE_NOT_SUPPORTED,
        format!("request type {} not supported", request.code()),
    )
}

fn not_found(remark: String) -> Refusal {
    Refusal(response::QUERY_NOT_FOUND, remark)
}

fn broker_id(request: &Command) -> Result<BrokerId, Refusal> {
    Ok(BrokerId {
        cluster: name(request, "clusterName")?,
        name: name(request, "brokerName")?,
        id: request.ext().parse("brokerId")?,
        address: name(request, "brokerAddr")?,
    })
}

/// A field that becomes a key of a table.
fn name(request: &Command, field: &str) -> Result<String, Refusal> {
    let value = request.ext().need(field)?;
    if !(1..=NAME_LENGTH_MAX).contains(&value.len()) {
        return Err(error(format!(
            "the field {field} has {} bytes, not 1 to {NAME_LENGTH_MAX}",
            value.len()
        )));
    }
    Ok(value.to_owned())
}

fn optional_name(request: &Command, field: &str) -> Result<String, Refusal> {
    match request.ext().get(field) {
        None | Some("") => Ok(String::new()),
        Some(_) => name(request, field),
    }
}

fn silence_max(fields: &Fields) -> Result<Option<Duration>, Refusal> {
    let asked = match fields.get("heartbeatTimeoutMillis") {
        None | Some("") => return Ok(None),
        Some(_) => fields.parse::<i64>("heartbeatTimeoutMillis")?,
    };
    let (low, high) = SILENCE_RANGE_MS.into_inner();
    let asked = u64::try_from(asked).unwrap_or(0).clamp(low, high);
    Ok(Some(Duration::from_millis(asked)))
}

fn broker_data(name: &str, data: &BrokerData, quoted: bool) -> Value {
    let mut value = json!({
        "brokerAddrs": addresses(data, quoted),
        "brokerName": name,
        "cluster": data.cluster,
    });
    // Known of 5.x brokers only; a 4.x name server does not write it.
    if let Some(acting) = data.acting_master {
        value["enableActingMaster"] = json!(acting);
    }
    value
}

fn addresses(data: &BrokerData, quoted: bool) -> Map<String, Value> {
    let key = |id: &i64| {
        if quoted { id.to_string() } else { bare_key(id) }
    };
    data.addresses
        .iter()
        .map(|(id, address)| (key(id), json!(address)))
        .collect()
}

fn topic_list<'a>(topics: impl Iterator<Item = &'a str>) -> Answer {
    body(&json!({ "topicList": topics.collect::<Vec<_>>() }))
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
