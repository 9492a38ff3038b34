//! Replication: how a slave's log becomes a copy of its master's, and who waits for that.
//!
//! The parts and names of the original design. Cores without sockets and clocks:
//!
//! | file                | what                                                            |
//! |---------------------|-----------------------------------------------------------------|
//! | `wire`              | the two units on the wire                                       |
//! | `byte_log`          | the commit log as bytes                                         |
//! | `connection`        | one slave as the master sees it                                 |
//! | `read_handler`      | reports in                                                      |
//! | `write_handler`     | transfers and heartbeats out                                    |
//! | `replica`, `intake` | the slave's side: units, checked records, reports               |
//!
//! and around them `service` (the master's event loop), `client` (the slave's) and
//! `group_transfer` (sends that wait for slaves). A slave runs both loops: every broker listens
//! on its HA port, and the two know nothing of each other.

pub mod byte_log;
pub mod client;
mod config;
pub mod connection;
pub mod group_transfer;
pub mod intake;
mod meter;
pub mod read_handler;
pub mod repeats;
pub mod replica;
pub mod service;
mod socket;
pub mod wire;
pub mod write_handler;

pub use client::{LinkFigures, LinkState, SlaveService};
pub use config::HaConfig;
pub use connection::EmptySlaveFrom;
pub use group_transfer::{GroupTransfer, Replicated};
pub use service::{MasterService, SlaveFigures};

#[cfg(test)]
#[allow(dead_code)] // each user of the helper uses a part of it
#[path = "../../tests/common/memory_log.rs"]
mod memory_log;
#[cfg(test)]
#[path = "../../tests/common/pipe.rs"]
mod pipe;
