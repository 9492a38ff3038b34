//! Putting a broker together, opening it, and stopping it.
//!
//! Start: the ports are free; recover the log, dispatch the backlog, rebuild the queue offsets
//! (`Store::open`); load the tables; then open the ports, and register last. Stop: nobody is sent
//! here any more, what is in hand is finished and answered, then the disk is brought up to date.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::admin::AdminContext;
use super::client_loop::{ClientLoop, Ports};
use super::clients::Clients;
use super::locks::Locks;
use super::outbox::Outbox;
use super::pull_queue::{self, PullQueue};
use super::registration::{Identity, MasterAddress, Registration, RegistrationConfig};
use super::replication::Replication;
use super::runtime_info::{LiveFigures, QueueFigures};
use super::sender::Sender;
use super::slave_sync::{Sinks, SlaveSync, SlaveSyncConfig};
use super::stats::Stats;
use super::tables::Tables;
use super::timer::Timer;
use super::topics::{PERM_READ, PERM_WRITE, Topics};
use super::{Broker, from_config, jobs, requests, send};
use crate::base::clock::wall_ms;
use crate::base::sys;
use crate::config::Config;
use crate::net::listener::Listener;
use crate::store::{Store, StoreError};

/// They wait for cold pages, not for the processor.
const PULL_THREADS: usize = 4;
/// A slave asks for its master's tables this often; the original's 4.9 does too.
const SLAVE_SYNC_EVERY: Duration = Duration::from_secs(10);
/// How long a stop waits for slaves to take the last bytes.
const DRAIN_TIME: Duration = Duration::from_millis(500);

/// Why a broker does not start. Each says what to do about it.
#[derive(Debug)]
pub enum BrokerError {
    /// A port is taken, or an address is not one of this machine's.
    Listen(io::Error),
    Store(StoreError),
    /// A table in the config directory cannot be read.
    Table(io::Error),
    /// The system refused a thread or a poll.
    System(io::Error),
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrokerError::Listen(error) | BrokerError::Table(error) => write!(f, "{error}"),
            BrokerError::Store(error) => write!(f, "{error}"),
            BrokerError::System(error) => write!(f, "the broker cannot start: {error}"),
        }
    }
}

impl std::error::Error for BrokerError {}

/// A broker that serves.
pub struct Running {
    broker: Arc<Broker>,
    address: SocketAddr,
    ha_address: SocketAddr,
    stop_clients: Arc<AtomicBool>,
    client_loop: JoinHandle<()>,
    send: JoinHandle<()>,
    pulls: Vec<JoinHandle<()>>,
    replication: Replication,
    slave_sync: Option<Arc<SlaveSync>>,
    registration: Arc<Registration>,
    timer: Timer,
    tables: Arc<Tables>,
}

/// Starts a broker: returns when it serves, or says why it cannot.
pub fn start(config: &Config) -> Result<Running, BrokerError> {
    check_ports(config)?;
    sys::raise_file_limit();
    let store = Store::open(from_config::store(config)).map_err(BrokerError::Store)?;
    start_on(config, store.clone()).inspect_err(|_| {
        // Nothing was taken yet: the next start need not recover as after a crash.
        if let Err(error) = store.close() {
            log::error!("the store was not closed well: {error}");
        }
    })
}

fn start_on(config: &Config, store: Arc<Store>) -> Result<Running, BrokerError> {
    let tables = Tables::open(config, &store).map_err(BrokerError::Table)?;
    let replication = Replication::start(config, store.clone())?;
    let (ports, outbox) =
        Ports::bind(config.listen_address(), config.fast_address()).map_err(BrokerError::Listen)?;
    let address = config.advertised(ports.address().map_err(BrokerError::Listen)?.port());
    let ha_address = config.ha_advertised(replication.master.address().port());
    let parts = Parts {
        store,
        tables,
        replication,
        outbox: Arc::new(outbox),
        address,
        ha_address,
    };
    let broker = Arc::new(parts.assemble(config));
    open(config, broker, ports, parts).map_err(BrokerError::System)
}

/// A taken port is said before recovery, which may take long. The ports open after it.
fn check_ports(config: &Config) -> Result<(), BrokerError> {
    let ports = [
        Some(config.listen_address()),
        config.fast_address(),
        Some(config.ha_address()),
    ];
    for address in ports.into_iter().flatten() {
        Listener::bind(&address.to_string()).map_err(BrokerError::Listen)?;
    }
    Ok(())
}

/// What is there before the threads that serve.
struct Parts {
    store: Arc<Store>,
    tables: Tables,
    replication: Replication,
    outbox: Arc<Outbox>,
    address: SocketAddr,
    ha_address: SocketAddr,
}

impl Parts {
    fn assemble(&self, config: &Config) -> Broker {
        let settings = from_config::settings(config);
        let Tables {
            topics,
            groups,
            offsets,
            delays,
        } = &self.tables;
        let clients = Arc::new(Clients::new(
            topics.clone(),
            groups.clone(),
            self.outbox.clone(),
        ));
        let sender = Arc::new(Sender::new(settings.sends_queued_max));
        let pulls = Arc::new(PullQueue::default());
        let stats = Arc::new(Stats::default());
        let admin = AdminContext {
            topics: topics.clone(),
            groups: groups.clone(),
            clients: clients.clone(),
            locks: Arc::new(Locks::default()),
            offsets: offsets.clone(),
            delays: delays.clone(),
            store: self.store.clone(),
            stats: stats.clone(),
            broker_name: config.text("brokerName").to_owned(),
            role: config.role().name(),
            slave: config.is_slave(),
            address: self.address.to_string(),
            ha_address: self.ha_address.to_string(),
            started_ms: wall_ms(),
            commit_log_dirs: from_config::store(config).commit_log_dirs,
            config_text: config.print(),
            memory_bytes: settings.memory_share,
            live: self.live_figures(&sender, &pulls, settings.sends_queued_max),
        };
        let link = self.replication.clone();
        Broker {
            role: config.role(),
            cluster: config.text("brokerClusterName").to_owned(),
            store_host: self.address,
            store: self.store.clone(),
            topics: topics.clone(),
            groups: groups.clone(),
            clients,
            offsets: offsets.clone(),
            delays: delays.clone(),
            admin,
            outbox: self.outbox.clone(),
            sender,
            pulls,
            group_transfer: self.replication.group_transfer.clone(),
            stats,
            settings,
            master_is_up: Box::new(move || link.master_is_up()),
        }
    }

    fn live_figures(
        &self,
        sender: &Arc<Sender>,
        pulls: &Arc<PullQueue>,
        sends_max: usize,
    ) -> Box<dyn Fn() -> LiveFigures + Send + Sync> {
        let (sender, pulls, store) = (sender.clone(), pulls.clone(), self.store.clone());
        let replication = self.replication.clone();
        Box::new(move || LiveFigures {
            state: if store.figures().disk_full {
                "read-only"
            } else {
                "ready"
            },
            sends: QueueFigures {
                waiting: sender.queued(),
                capacity: sends_max,
                ..QueueFigures::default()
            },
            pulls: QueueFigures {
                waiting: pulls.counts().0,
                capacity: pull_queue::QUEUED_MAX,
                ..QueueFigures::default()
            },
            slaves: replication.master.figures(),
            link: replication.slave.as_ref().map(|slave| slave.figures()),
        })
    }
}

/// Starts what serves, then registers.
fn open(config: &Config, broker: Arc<Broker>, ports: Ports, parts: Parts) -> io::Result<Running> {
    let Parts {
        tables,
        replication,
        address,
        ha_address,
        ..
    } = parts;
    let arrivals = broker.pulls.clone();
    broker
        .store
        .on_arrival(move |arrived| arrivals.on_arrival(arrived));
    let stop_clients = Arc::new(AtomicBool::new(false));
    let looping = ClientLoop::new(ports, broker.clone(), stop_clients.clone())?;
    let send = {
        let broker = broker.clone();
        sys::spawn("send", move || send::run(&broker))?
    };
    let pulls = (0..PULL_THREADS).map(|n| {
        let broker = broker.clone();
        sys::spawn(format!("pull-{n}"), move || requests::run(&broker))
    });
    let pulls = pulls.collect::<io::Result<_>>()?;
    let client_loop = sys::spawn("clients", move || looping.run())?;
    let slave_sync = start_slave_sync(config, &tables, address)?;
    if let Some(sync) = &slave_sync {
        sync_unknown_topics(&broker, sync.clone());
    }
    let registration = register(
        config,
        &broker,
        &replication,
        slave_sync.clone(),
        ha_address,
    )?;
    let tables = Arc::new(tables);
    let timer = jobs::start(config, &broker, &tables, registration.clone())?;
    Ok(Running {
        broker,
        address,
        ha_address,
        stop_clients,
        client_loop,
        send,
        pulls,
        replication,
        slave_sync,
        registration,
        timer,
        tables,
    })
}

fn register(
    config: &Config,
    broker: &Arc<Broker>,
    replication: &Replication,
    slave_sync: Option<Arc<SlaveSync>>,
    ha_address: SocketAddr,
) -> io::Result<Arc<Registration>> {
    let identity = Identity {
        cluster: broker.cluster.clone(),
        name: config.text("brokerName").to_owned(),
        id: config.int("brokerId"),
        address: broker.store_host.to_string(),
        ha_address: ha_address.to_string(),
    };
    let settings = RegistrationConfig {
        name_servers: config
            .list("namesrvAddr")
            .into_iter()
            .map(str::to_owned)
            .collect(),
        identity,
        period: config.duration("registerNameServerPeriod"),
    };
    let (topics, permission) = (broker.topics.clone(), broker.settings.permission);
    let source = Box::new(move || registered_topics(&topics, permission));
    let link = replication
        .slave
        .clone()
        .filter(|_| config.text("haMasterAddress").is_empty());
    let on_master = Box::new(move |master: &MasterAddress| {
        if let (Some(link), Some(ha_address)) = (&link, &master.ha_address) {
            link.set_master(Some(ha_address.clone()));
        }
        if let Some(slave_sync) = &slave_sync {
            slave_sync.set_master(&master.address);
        }
    });
    Registration::start(settings, source, on_master).map(Arc::new)
}

/// The topic table as it is registered. A broker that may not be read or written says so of each
/// topic.
fn registered_topics(topics: &Topics, permission: i32) -> Value {
    let mut wrapper = topics.table().wrapper();
    if permission & (PERM_READ | PERM_WRITE) == PERM_READ | PERM_WRITE {
        return wrapper;
    }
    let table = wrapper["topicConfigTable"]
        .as_object_mut()
        .into_iter()
        .flatten();
    for (_, topic) in table {
        let perm = topic["perm"].as_i64().unwrap_or(0) & i64::from(permission);
        topic["perm"] = perm.into();
    }
    wrapper
}

fn start_slave_sync(
    config: &Config,
    tables: &Tables,
    address: SocketAddr,
) -> io::Result<Option<Arc<SlaveSync>>> {
    if !config.is_slave() {
        return Ok(None);
    }
    let fixed = config.text("masterRpcAddress");
    let settings = SlaveSyncConfig {
        master: (!fixed.is_empty()).then(|| fixed.to_owned()),
        own_address: address.to_string(),
        period: SLAVE_SYNC_EVERY,
    };
    let Tables {
        topics,
        groups,
        offsets,
        delays,
    } = tables;
    let (topics, groups, offsets, delays) = (
        topics.clone(),
        groups.clone(),
        offsets.clone(),
        delays.clone(),
    );
    let said = |error: io::Error| error.to_string();
    let sinks = Sinks {
        topics: Box::new(move |body| {
            topics.table().replace_all(body)?;
            topics.table().save_if_changed().map(drop).map_err(said)
        }),
        groups: Box::new(move |body| {
            groups.table().replace_all(body)?;
            groups.table().save_if_changed().map(drop).map_err(said)
        }),
        consumer_offsets: Box::new(move |body| {
            offsets.merge_from_master(body)?;
            offsets.save_if_changed().map(drop).map_err(said)
        }),
        delay_offsets: Box::new(move |body| {
            delays.store_from_master(body)?;
            delays.save_if_changed().map(drop).map_err(said)
        }),
    };
    SlaveSync::start(settings, sinks).map(|sync| Some(Arc::new(sync)))
}

/// A message of a topic that the slave does not know yet brings the next round forward.
fn sync_unknown_topics(broker: &Broker, sync: Arc<SlaveSync>) {
    let topics = broker.topics.clone();
    broker.store.on_arrival(move |arrived| {
        if arrived
            .iter()
            .any(|arrival| topics.get(&arrival.topic).is_none())
        {
            sync.sync_soon();
        }
    });
}

impl Running {
    /// One line for whoever waits for the broker: where it serves, and as what.
    pub fn ready_line(&self) -> String {
        let (name, role) = (&self.broker.admin.broker_name, self.broker.admin.role);
        format!("{name} {} ha {} {role}", self.address, self.ha_address)
    }

    /// Whether all threads still serve; one that ended takes the process with it.
    pub fn is_alive(&self) -> bool {
        !self.client_loop.is_finished() && !self.send.is_finished()
    }

    /// Stops politely: says what it waits for, answers what it has taken, leaves everything on
    /// disk.
    pub fn stop(self) -> Result<(), StoreError> {
        log::info!("stopping: leaving the name servers");
        self.registration.stop();
        log::info!("stopping: storing what was received");
        self.broker.sender.stop();
        join(self.send);
        self.timer.stop();
        log::info!("stopping: waiting for slaves");
        self.replication.drain(DRAIN_TIME);
        // Producers that still wait hear that there is no slave, and their answers go out below.
        self.replication.stop();
        self.broker.pulls.stop();
        self.pulls.into_iter().for_each(join);
        self.stop_clients.store(true, Ordering::Release);
        self.broker.outbox.wake();
        join(self.client_loop);
        if let Some(sync) = &self.slave_sync {
            sync.stop();
        }
        log::info!("stopping: writing the log, the queues and the tables to disk");
        self.tables.save();
        self.tables.save_offsets();
        self.tables.save_delays();
        self.broker.store.close()
    }
}

fn join(thread: JoinHandle<()>) {
    thread
        .join()
        .expect("a panic in any thread ends the process");
}
