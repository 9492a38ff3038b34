//! What a client can ask of a broker, and what a broker does by itself.
//!
//! `Broker` is what all of its threads share; `run::start` puts it together and opens it.

pub mod admin;
mod client;
mod client_loop;
pub mod clients;
mod connections;
pub mod delay;
mod from_config;
pub mod groups;
mod jobs;
pub mod locks;
pub mod offsets;
pub mod outbox;
mod pull;
mod pull_queue;
pub mod refusal;
pub mod registration;
mod replication;
mod requests;
pub mod run;
pub mod runtime_info;
mod send;
mod send_back;
mod send_check;
mod send_request;
mod sender;
pub mod slave_sync;
pub mod stats;
pub mod subscription;
pub mod table;
mod tables;
mod timer;
pub mod topics;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::connections::{ConnectionLimits, Limit};
use self::outbox::{Outbox, Peer};
use self::pull_queue::{Attempt, Job, PullQueue};
use self::refusal::Refusal;
use self::sender::Sender;
use crate::config::Role;
use crate::ha::GroupTransfer;
use crate::remoting::Command;
use crate::remoting::codes::response;
use crate::store::{PullLimits, Store};

/// What the threads of a broker share. Each table has a lock of its own, a leaf.
pub struct Broker {
    pub role: Role,
    pub cluster: String,
    /// Address of this broker in records and message ids: the one it is registered under.
    pub store_host: SocketAddr,
    pub store: Arc<Store>,
    pub topics: Arc<topics::Topics>,
    pub groups: Arc<groups::Groups>,
    pub clients: Arc<clients::Clients>,
    pub offsets: Arc<offsets::Offsets>,
    pub delays: Arc<delay::Delays>,
    pub admin: admin::AdminContext,
    pub outbox: Arc<Outbox>,
    pub sender: Arc<Sender>,
    pub pulls: Arc<PullQueue>,
    pub group_transfer: Arc<GroupTransfer>,
    pub stats: Arc<stats::Stats>,
    pub settings: Settings,
    /// A slave's: whether the link to its master works at present.
    pub master_is_up: Box<dyn Fn() -> bool + Send + Sync>,
}

/// The keys that the paths of messages look at, as numbers and times.
#[derive(Clone, Debug)]
pub struct Settings {
    pub max_message_size: usize,
    pub slave_timeout: Duration,
    pub sync_flush_timeout: Duration,
    pub slave_read_enable: bool,
    pub offset_check_in_slave: bool,
    /// Bytes of the log that memory is taken to hold (`accessMessageInMemoryMaxRatio`): who reads
    /// further back is sent to the slave and gets smaller answers.
    pub memory_share: u64,
    /// Most messages and bytes of an answer, for readers of what memory holds and for others.
    pub in_memory: PullLimits,
    pub on_disk: PullLimits,
    /// Without `longPollingEnable`, how long a pull is held at most.
    pub short_poll: Option<Duration>,
    /// `brokerPermission`: 4 reading, 2 writing.
    pub permission: i32,
    /// A client that is silent for longer is disconnected.
    pub idle_max: Duration,
    /// What every answer to a send carries: `regionId` and `traceOn`.
    pub region: String,
    pub trace_on: bool,
    /// Most sends that wait to be stored.
    pub sends_queued_max: usize,
    pub limits: ConnectionLimits,
}

impl Broker {
    pub fn is_slave(&self) -> bool {
        self.role == Role::Slave
    }

    /// Whether sends wait for a slave.
    pub fn waits_for_slaves(&self) -> bool {
        self.role == Role::SyncMaster
    }

    /// A slave stores nothing but what its master sends.
    pub fn may_write(&self) -> Result<(), Refusal> {
        if self.is_slave() {
            let remark = "this broker is a slave, it takes no messages";
            return Err(Refusal::new(response::SERVICE_NOT_AVAILABLE, remark));
        }
        if self.settings.permission & topics::PERM_WRITE == 0 {
            let remark = "the broker's permission does not allow writing";
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        Ok(())
    }

    /// A slave whose master is there: readers who have seen everything go back to the master.
    pub fn sends_readers_to_master(&self) -> bool {
        self.is_slave() && (self.master_is_up)()
    }

    /// A slave whose master is away: it serves its readers alone.
    pub fn stands_in(&self) -> bool {
        self.is_slave() && !(self.master_is_up)()
    }

    /// Hands a request to the pull threads, or answers "busy".
    fn submit(&self, peer: Peer, request: Command, arrived: Instant) {
        let job = Job {
            peer,
            request,
            arrived,
            attempt: Attempt::First,
        };
        if let Err(job) = self.pulls.submit(job) {
            let remark = "[OVERLOAD] too many requests wait to be served, try again";
            let busy = Command::refusal(&job.request, response::SYSTEM_BUSY, remark);
            self.answer(&job.peer, &job.request, &busy);
        }
    }

    /// Leaves the answer to one request with the client loop.
    fn answer(&self, peer: &Peer, request: &Command, reply: &Command) {
        self.outbox
            .reply(peer, (!request.is_oneway()).then_some(reply));
    }

    fn refused_connection(&self, address: SocketAddr, limit: Limit) {
        log::warn!("client {address}: refused, {limit}");
    }
}
