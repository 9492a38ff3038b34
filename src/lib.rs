//! TwinMQ: a master and a slave message broker, and the name server between them and their
//! clients. Wire- and file-compatible with Apache RocketMQ 4.9 and 5.x.
//!
//! The modules from bottom to top; each uses only those above it in this list.
//!
//! | module     | knows                                                                      |
//! |------------|----------------------------------------------------------------------------|
//! | `base`     | nothing about brokers: bounded reads, JSON dialect, watermarks, the system |
//! | `net`      | one socket's plumbing: listener, buffers, connection slots                 |
//! | `store`    | bytes on disk: commit log, consume queues, index, recovery                 |
//! | `remoting` | the client protocol without sockets, and one blocking client               |
//! | `ha`       | replication: the master's and the slave's side, group transfer             |
//! | `config`   | every configuration key, once                                              |
//! | `broker`   | what a client can ask of a broker                                          |
//! | `namesrv`  | routes: who serves which topic                                             |
//! | `cli`      | one file a subcommand                                                      |
//!
//! Two spines hold it together: `broker::send::serve` (a message comes in) and
//! `ha::client::turn` (the slave receives it). twinmq-ha(7) and twinmq-store(5) have the bytes.

// Test helpers in tests/common serve unit tests too, and know the crate by its name.
#[cfg(test)]
extern crate self as twinmq;

pub mod base;
pub mod broker;
pub mod cli;
pub mod config;
pub mod ha;
pub mod namesrv;
pub mod net;
pub mod remoting;
pub mod store;
