//! How a broker makes itself known: it registers with every name server, and hears from them where
//! its master is.
//!
//! Each name server has its own thread, `outbound-n`, so that a dead one delays no other. A
//! registration is always the full table: at start, every period, at once when topics change, and
//! as soon as a name server that closed the connection (a restart) answers again. The connection
//! stays open in between, because a name server removes a broker whose connection closes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use serde_json::{Value, json};

use crate::base::clock::wall_ms;
use crate::base::failure_log::FailureLog;
use crate::base::{json, sys};
use crate::remoting::client::ClientError;
use crate::remoting::codes::request as code;
use crate::remoting::{Client, Command, Fields};

const CONNECT_TIME: Duration = Duration::from_secs(3);
const REGISTER_TIME: Duration = Duration::from_secs(6);
/// A name server that is well answers at once; one that is not shall not hold up the stop.
const UNREGISTER_TIME: Duration = Duration::from_millis(500);
const STOP_TIME: Duration = Duration::from_secs(1);
/// Topics that are created one after the other are told together, twice a second at most.
const SPACING: Duration = Duration::from_millis(500);
/// A slave whose master is not there yet asks again soon: it may come any moment, and until then
/// nothing is replicated. The original asks after its whole period.
const MASTERLESS_PERIOD: Duration = Duration::from_secs(1);
const BACK_OFF_FIRST: Duration = Duration::from_secs(1);
/// `registerNameServerPeriod` within these, as in the original: name servers wait for 120 s.
const PERIOD_RANGE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

const WAKER: Token = Token(0);
const SOCKET: Token = Token(1);

/// What a broker calls itself.
#[derive(Clone, Debug)]
pub struct Identity {
    pub cluster: String,
    pub name: String,
    pub id: i64,
    /// Where clients connect to.
    pub address: String,
    /// Where slaves connect to: `brokerIP2` and the HA port, and never the above.
    pub ha_address: String,
}

pub struct RegistrationConfig {
    /// `host:port` each; names are looked up at every connect.
    pub name_servers: Vec<String>,
    pub identity: Identity,
    pub period: Duration,
}

/// Where a slave finds its master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddress {
    /// For clients, and for the slave's copying of metadata.
    pub address: String,
    /// For the HA link; `None` if the master did not say.
    pub ha_address: Option<String>,
}

/// One name server as `status` shows it. Times are in milliseconds since 1970.
#[derive(Clone, Debug, Default)]
pub struct NameServerState {
    pub address: String,
    /// Since when every round went well; `None` while the last one did not.
    pub registered_since_ms: Option<i64>,
    pub last_success_ms: Option<i64>,
    /// Why the last round failed, if it did.
    pub last_error: Option<String>,
    /// The master it named last.
    pub master: Option<MasterAddress>,
}

/// The table as code 21 answers it: `dataVersion` and `topicConfigTable`.
pub type TopicsSource = Box<dyn Fn() -> Value + Send + Sync>;
/// Hears of another master than the last one. It is not called when no name server knows a
/// master: the slave goes on trying the last one, which may just be restarting.
pub type MasterSink = Box<dyn Fn(&MasterAddress) + Send + Sync>;

struct Shared {
    identity: Identity,
    period: Duration,
    topics: TopicsSource,
    on_master: MasterSink,
    /// Counts topic changes.
    changes: AtomicU64,
    stopping: AtomicBool,
    states: Mutex<States>,
}

struct States {
    name_servers: Vec<NameServerState>,
    /// What `on_master` was told last.
    told: Option<MasterAddress>,
}

pub struct Registration {
    shared: Arc<Shared>,
    wakers: Vec<Arc<Waker>>,
    /// Each thread sends one message when it ends.
    ended: Mutex<Receiver<()>>,
}

impl Registration {
    /// Starts registering; the first round is under way when this returns.
    pub fn start(
        config: RegistrationConfig,
        topics: TopicsSource,
        on_master: MasterSink,
    ) -> io::Result<Registration> {
        let states = config.name_servers.iter().map(|address| NameServerState {
            address: address.clone(),
            ..NameServerState::default()
        });
        let shared = Arc::new(Shared {
            identity: config.identity,
            period: config.period.clamp(PERIOD_RANGE.0, PERIOD_RANGE.1),
            topics,
            on_master,
            changes: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            states: Mutex::new(States {
                name_servers: states.collect(),
                told: None,
            }),
        });
        let (sender, ended) = mpsc::channel();
        let mut wakers = Vec::new();
        for (index, address) in config.name_servers.into_iter().enumerate() {
            let link = Link::new(index, address, shared.clone())?;
            wakers.push(link.waker.clone());
            link.spawn(sender.clone())?;
        }
        Ok(Registration {
            shared,
            wakers,
            ended: Mutex::new(ended),
        })
    }

    /// Topics were created, changed or deleted: every name server hears it, within a second.
    pub fn topics_changed(&self) {
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// One entry for each name server, in the order of the configuration.
    pub fn states(&self) -> Vec<NameServerState> {
        self.shared.states().name_servers.clone()
    }

    /// Unregisters everywhere. A name server that does not answer in time is left: the connection
    /// closes with the process, and that removes the broker as well.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.wake();
        let deadline = Instant::now() + STOP_TIME;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in &self.wakers {
            let left = deadline.saturating_duration_since(Instant::now());
            if ended.recv_timeout(left).is_err() {
                log::warn!("not all name servers answered within {STOP_TIME:?} of the stop");
                return;
            }
        }
    }

    fn wake(&self) {
        for waker in &self.wakers {
            if let Err(error) = waker.wake() {
                log::error!("a registration thread cannot be woken: {error}");
            }
        }
    }
}

impl Shared {
    fn states(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a registration is good for.
    fn period_with(&self, master_is_known: bool) -> Duration {
        if self.identity.id > 0 && !master_is_known {
            return MASTERLESS_PERIOD;
        }
        self.period
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn broker_fields(&self) -> Fields {
        Fields::default()
            .with("brokerName", &self.identity.name)
            .with("brokerAddr", &self.identity.address)
            .with("clusterName", &self.identity.cluster)
            .with("brokerId", self.identity.id)
    }

    /// As a 4.9.8 broker asks, and with the member by which a 5.x name server takes a slave's
    /// topics when it knows no master.
    fn register_request(&self) -> Command {
        let body = json::write(&json!({
            "filterServerList": [],
            "topicConfigSerializeWrapper": (self.topics)(),
        }));
        let ext = self
            .broker_fields()
            .with("haServerAddr", &self.identity.ha_address)
            .with("compressed", false)
            .with("bodyCrc32", crc32fast::hash(&body) & 0x7fff_ffff)
            .with("enableActingMaster", false);
        Command::request(code::REGISTER_BROKER, ext).with_body(body)
    }

    fn unregister_request(&self) -> Command {
        Command::request(code::UNREGISTER_BROKER, self.broker_fields())
    }

    /// Notes a good round. News wins: of two name servers that name different masters, the one
    /// that changed its mind last is right, since the other has not noticed yet.
    fn registered(&self, index: usize, master: Option<MasterAddress>) {
        let mut states = self.states();
        let state = &mut states.name_servers[index];
        let now = wall_ms();
        state.registered_since_ms.get_or_insert(now);
        state.last_success_ms = Some(now);
        state.last_error = None;
        let is_news = master.is_some() && state.master != master;
        if master.is_some() {
            state.master.clone_from(&master);
        }
        if !is_news || states.told == master {
            return;
        }
        states.told.clone_from(&master);
        drop(states);
        if let Some(master) = master {
            log::info!(
                "the master is {}, its HA address {}",
                master.address,
                master.ha_address.as_deref().unwrap_or("unknown")
            );
            (self.on_master)(&master);
        }
    }

    fn failed(&self, index: usize, error: &str) {
        let mut states = self.states();
        let state = &mut states.name_servers[index];
        state.registered_since_ms = None;
        state.last_error = Some(error.to_owned());
    }
}

/// One name server, on its own thread.
struct Link {
    index: usize,
    address: String,
    shared: Arc<Shared>,
    poll: Poll,
    waker: Arc<Waker>,
    client: Option<Client>,
    back_off: Duration,
    log: FailureLog,
}

impl Link {
    fn new(index: usize, address: String, shared: Arc<Shared>) -> io::Result<Link> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        Ok(Link {
            index,
            address,
            shared,
            poll,
            waker,
            client: None,
            back_off: BACK_OFF_FIRST,
            log: FailureLog::default(),
        })
    }

    fn spawn(mut self, ended: Sender<()>) -> io::Result<()> {
        sys::spawn(format!("outbound-{}", self.index), move || {
            self.run();
            // Nobody listens any more if the stop did not wait for us.
            let _ = ended.send(());
        })?;
        Ok(())
    }

    fn run(&mut self) {
        while !self.shared.is_stopping() {
            let began = Instant::now();
            let changes = self.shared.changes.load(Ordering::SeqCst);
            match self.register() {
                Ok(known) => {
                    let period = self.shared.period_with(known);
                    self.rest(began + period, Some(changes));
                    self.rest(began + SPACING, None);
                }
                Err(error) => {
                    self.complain(&error);
                    self.client = None;
                    self.rest(Instant::now() + self.back_off, None);
                    self.back_off = (self.back_off * 2).min(self.shared.period);
                }
            }
        }
        self.unregister();
    }

    /// Registers once. True if the name server knows our master.
    fn register(&mut self) -> Result<bool, ClientError> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(Client::connect(&self.address, CONNECT_TIME)?),
        };
        let reply = client.ask(self.shared.register_request(), REGISTER_TIME)?;
        let field = |name| reply.ext().get(name).filter(|value| !value.is_empty());
        let master = field("masterAddr").map(|address| MasterAddress {
            address: address.to_owned(),
            ha_address: field("haServerAddr").map(str::to_owned),
        });
        let is_known = master.is_some();
        self.shared.registered(self.index, master);
        self.back_off = BACK_OFF_FIRST;
        if self.log.succeeded() {
            log::info!("name server {}: registered again", self.address);
        }
        Ok(is_known)
    }

    fn complain(&mut self, error: &ClientError) {
        let text = error.to_string();
        if self.log.failed(&text, Instant::now()) {
            log::warn!("name server {}: not registered: {text}", self.address);
        }
        self.shared.failed(self.index, &text);
    }

    fn unregister(&mut self) {
        let Some(client) = &mut self.client else {
            return;
        };
        let request = self.shared.unregister_request();
        if let Err(error) = client.ask(request, UNREGISTER_TIME) {
            log::warn!("name server {}: not unregistered: {error}", self.address);
        }
    }

    /// Sleeps until then, or until the broker stops. With `changes` also until the connection is
    /// lost or topics have changed since that count.
    fn rest(&mut self, until: Instant, changes: Option<u64>) {
        let is_over = |shared: &Shared| {
            let news = changes.is_some_and(|seen| seen != shared.changes.load(Ordering::SeqCst));
            news || shared.is_stopping() || Instant::now() >= until
        };
        while !is_over(&self.shared) {
            let watch = changes.is_some() && self.client.is_some();
            let result = if watch {
                self.sleep_watching(until)
            } else {
                self.sleep(until).map(drop)
            };
            if let Err(error) = result {
                log::warn!("name server {}: connection lost: {error}", self.address);
                self.client = None;
                return;
            }
        }
    }

    /// Sleeps, and notices what the name server does meanwhile. An error means it closed the
    /// connection, so it has forgotten this broker.
    fn sleep_watching(&mut self, until: Instant) -> io::Result<()> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        let stream = client.stream().try_clone()?;
        stream.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(stream);
        self.poll
            .registry()
            .register(&mut socket, SOCKET, Interest::READABLE)?;
        let slept = self.sleep(until);
        // Both steps before any error: the copy shares its socket with the client.
        self.poll.registry().deregister(&mut socket)?;
        if let Some(client) = &self.client {
            client.stream().set_nonblocking(false)?;
        }
        if slept? {
            self.take_pushed()?;
        }
        Ok(())
    }

    /// True if the socket had something to read.
    fn sleep(&mut self, until: Instant) -> io::Result<bool> {
        let mut events = Events::with_capacity(4);
        let left = until.saturating_duration_since(Instant::now());
        match self.poll.poll(&mut events, Some(left)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(events.iter().any(|event| event.token() == SOCKET)),
        }
    }

    /// A name server of the 5.x line may push a notice, which is not needed here. Anything else
    /// that is readable is the end of the connection.
    fn take_pushed(&mut self) -> io::Result<()> {
        let Some(client) = &mut self.client else {
            return Ok(());
        };
        match client.receive(Instant::now() + UNREGISTER_TIME) {
            Ok(_) | Err(ClientError::Timeout(_)) => Ok(()),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }
}
