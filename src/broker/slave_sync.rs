//! A slave's copies of its master's tables: topics, consumer offsets, delay offsets, groups.
//!
//! Once the master's address is known, and then every few seconds, the slave asks for each table
//! and hands it to its own, which replaces or merges it in one step and refuses what cannot be. Each
//! table is by itself: one that fails keeps what it had, and the others go on.
//!
//! | code | table           | asked at                                                      |
//! |-----:|-----------------|---------------------------------------------------------------|
//! |   21 | topics          | the fast port (listenPort - 2), else listenPort               |
//! |   43 | consumer offsets| listenPort                                                    |
//! |   45 | delay offsets   | listenPort                                                    |
//! |  201 | groups          | listenPort                                                    |
//!
//! Topics are asked for where a slave of the original asks. Where a firewall closes that port,
//! which it never says, any port of the master will do.

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::base::clock::wall_ms;
use crate::base::failure_log::FailureLog;
use crate::base::{json, sys};
use crate::remoting::codes::request as code;
use crate::remoting::{Client, Command, Fields};

/// As the original: a call and a connect take at most this.
const CALL_TIME: Duration = Duration::from_secs(3);
const STOP_TIME: Duration = Duration::from_secs(1);
/// Between a round and the next one that an unknown topic asks for.
const SOONEST: Duration = Duration::from_millis(500);
/// After a round in which something failed.
const RETRY: Duration = Duration::from_secs(3);
/// Between rounds, as a 4.9 slave does it.
pub const PERIOD: Duration = Duration::from_secs(10);
const FOREVER: Duration = Duration::from_secs(24 * 3600);
const FAST_PORT_BELOW: u16 = 2;

/// Takes over one table that the master sent. It checks the value, and changes all or nothing.
pub type Sink = Box<dyn Fn(&Value) -> Result<(), String> + Send + Sync>;

pub struct Sinks {
    pub topics: Sink,
    pub consumer_offsets: Sink,
    pub delay_offsets: Sink,
    pub groups: Sink,
}

pub struct SlaveSyncConfig {
    /// `masterRpcAddress`: what name servers say is then ignored.
    pub master: Option<String>,
    /// A master that is this broker itself is not asked.
    pub own_address: String,
    pub period: Duration,
}

/// One table as `status` shows it.
#[derive(Clone, Debug)]
pub struct ItemState {
    pub name: &'static str,
    pub last_success_ms: Option<i64>,
    /// Why the last round failed, if it did.
    pub last_error: Option<String>,
}

#[derive(Clone, Debug)]
pub struct SyncState {
    pub master: Option<String>,
    pub items: Vec<ItemState>,
}

struct Item {
    name: &'static str,
    code: i32,
    sink: Sink,
    log: FailureLog,
}

struct Inner {
    state: SyncState,
    /// The address is fixed by the configuration.
    fixed: bool,
    /// Another master than in the last round.
    is_news: bool,
    /// Something has come that the tables here do not know.
    is_wanted: bool,
    stopping: bool,
}

struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

pub struct SlaveSync {
    shared: Arc<Shared>,
    ended: Mutex<Receiver<()>>,
}

impl SlaveSync {
    pub fn start(config: SlaveSyncConfig, sinks: Sinks) -> io::Result<SlaveSync> {
        let items = items(sinks);
        let states = items.iter().map(|item| ItemState {
            name: item.name,
            last_success_ms: None,
            last_error: None,
        });
        let inner = Inner {
            state: SyncState {
                master: config.master.clone(),
                items: states.collect(),
            },
            fixed: config.master.is_some(),
            is_news: true,
            is_wanted: false,
            stopping: false,
        };
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        });
        let (sender, ended) = mpsc::channel();
        let mut rounds = Rounds {
            shared: shared.clone(),
            own_address: config.own_address,
            period: config.period,
            items,
        };
        sys::spawn("outbound-sync", move || {
            rounds.run();
            // Nobody listens any more if the stop did not wait for us.
            let _ = sender.send(());
        })?;
        Ok(SlaveSync {
            shared,
            ended: Mutex::new(ended),
        })
    }

    /// What a name server answered. Another address than before is asked at once.
    pub fn set_master(&self, address: &str) {
        let mut inner = self.shared.lock();
        if inner.fixed || inner.state.master.as_deref() == Some(address) {
            return;
        }
        inner.state.master = Some(address.to_owned());
        inner.is_news = true;
        self.shared.changed.notify_all();
    }

    /// The log has messages of a topic that is not in the table: the next round comes soon, not
    /// after a whole period. Otherwise a master that dies just then would leave the topic behind.
    pub fn sync_soon(&self) {
        let mut inner = self.shared.lock();
        if !inner.is_wanted {
            inner.is_wanted = true;
            self.shared.changed.notify_all();
        }
    }

    pub fn state(&self) -> SyncState {
        self.shared.lock().state.clone()
    }

    /// Nothing is taken over after this, also if an answer still comes.
    pub fn stop(&self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(STOP_TIME).is_err() {
            log::warn!("the master did not answer within {STOP_TIME:?} of the stop");
        }
    }
}

fn items(sinks: Sinks) -> Vec<Item> {
    let item = |name, code, sink| Item {
        name,
        code,
        sink,
        log: FailureLog::default(),
    };
    vec![
        item("topics", code::GET_ALL_TOPIC_CONFIG, sinks.topics),
        item(
            "consumer offsets",
            code::GET_ALL_CONSUMER_OFFSET,
            sinks.consumer_offsets,
        ),
        item(
            "delay offsets",
            code::GET_ALL_DELAY_OFFSET,
            sinks.delay_offsets,
        ),
        item(
            "groups",
            code::GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            sinks.groups,
        ),
    ]
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's own part.
struct Rounds {
    shared: Arc<Shared>,
    own_address: String,
    period: Duration,
    items: Vec<Item>,
}

impl Rounds {
    fn run(&mut self) {
        let mut due = Instant::now();
        let mut soonest = due;
        while let Some(master) = self.wait(due, soonest) {
            let good = self.round(&master);
            soonest = Instant::now() + SOONEST;
            due = Instant::now()
                + if good {
                    self.period
                } else {
                    RETRY.min(self.period)
                };
        }
    }

    /// The master to ask, once a round is due or there is another one; `None` when the broker
    /// stops.
    fn wait(&self, due: Instant, soonest: Instant) -> Option<String> {
        let mut inner = self.shared.lock();
        loop {
            if inner.stopping {
                return None;
            }
            let master = inner.state.master.clone();
            let master = master.filter(|master| *master != self.own_address);
            let due = if inner.is_wanted {
                due.min(soonest)
            } else {
                due
            };
            let left = due.saturating_duration_since(Instant::now());
            if let Some(master) = master
                && (left.is_zero() || inner.is_news)
            {
                inner.is_news = false;
                inner.is_wanted = false;
                return Some(master);
            }
            // Without a master only news can end the wait.
            let patience = if left.is_zero() { FOREVER } else { left };
            let waited = self.shared.changed.wait_timeout(inner, patience);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// True if every table was taken over.
    fn round(&mut self, master: &str) -> bool {
        let mut main = Port::new(master.to_owned());
        let mut good = true;
        for index in 0..self.items.len() {
            let item = &self.items[index];
            let answer = match item.code {
                code::GET_ALL_TOPIC_CONFIG => ask_topics(&mut main),
                code => main.ask(code),
            };
            if self.is_outdated(master) {
                return false;
            }
            let result = answer.and_then(|value| {
                (item.sink)(&value).map_err(|error| format!("{master}: {error}"))
            });
            good &= result.is_ok();
            self.note(index, master, result);
        }
        good
    }

    /// The broker stops, or has another master now: what still comes is dropped.
    fn is_outdated(&self, master: &str) -> bool {
        let inner = self.shared.lock();
        inner.stopping || inner.state.master.as_deref() != Some(master)
    }

    fn note(&mut self, index: usize, master: &str, result: Result<(), String>) {
        let item = &mut self.items[index];
        let mut inner = self.shared.lock();
        let state = &mut inner.state.items[index];
        if result.is_ok() {
            state.last_success_ms = Some(wall_ms());
        }
        state.last_error = result.clone().err();
        drop(inner);
        match result {
            Ok(()) if item.log.succeeded() => {
                log::info!("{} are copied from the master {master} again", item.name);
            }
            Ok(()) => {}
            Err(error) if item.log.failed(&error, Instant::now()) => {
                log::warn!("{} are not copied from the master: {error}", item.name);
            }
            Err(_) => {}
        }
    }
}

/// One port of the master during one round.
struct Port {
    address: String,
    client: Option<Client>,
    /// It could not be reached: the other tables need not wait for the same.
    unreachable: Option<String>,
}

impl Port {
    fn new(address: String) -> Port {
        Port {
            address,
            client: None,
            unreachable: None,
        }
    }

    fn ask(&mut self, code: i32) -> Result<Value, String> {
        let client = self.connected()?;
        let request = Command::request(code, Fields::default());
        let reply = client.ask(request, CALL_TIME).map_err(|e| e.to_string());
        // After a failure there may still come something: the next table gets a new connection.
        let reply = reply.inspect_err(|_| self.client = None)?;
        json::parse(reply.body()).map_err(|e| format!("{}: code {code}: {e}", self.address))
    }

    fn connected(&mut self) -> Result<&mut Client, String> {
        if let Some(why) = &self.unreachable {
            return Err(why.clone());
        }
        match &mut self.client {
            Some(client) => Ok(client),
            none => {
                let client = Client::connect(&self.address, CALL_TIME)
                    .map_err(|e| e.to_string())
                    .inspect_err(|why| self.unreachable = Some(why.clone()))?;
                Ok(none.insert(client))
            }
        }
    }
}

/// Asks at the fast port, and at the ordinary one if that fails in any way.
fn ask_topics(main: &mut Port) -> Result<Value, String> {
    let code = code::GET_ALL_TOPIC_CONFIG;
    let Some(fast) = fast_address(&main.address) else {
        return main.ask(code);
    };
    match Port::new(fast).ask(code) {
        Ok(value) => Ok(value),
        Err(fast) => main.ask(code).map_err(|error| format!("{fast}; {error}")),
    }
}

/// The same host, two ports below.
fn fast_address(master: &str) -> Option<String> {
    let (host, port) = master.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let fast = port.checked_sub(FAST_PORT_BELOW).filter(|port| *port > 0)?;
    Some(format!("{host}:{fast}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_port_is_two_below() {
        assert_eq!(fast_address("h:10911").as_deref(), Some("h:10909"));
        assert_eq!(fast_address("[::1]:3").as_deref(), Some("[::1]:1"));
        for none in ["h:2", "h:1", "h:x", "h", "h:70000"] {
            assert_eq!(fast_address(none), None, "{none}");
        }
    }
}
