//! KEYS: every configuration key of a broker and of a name server, once. Parsing, checking,
//! `-p` and twinmq.conf(5) all come from here.

mod clients;
mod namesrv;
mod replication;
mod server;
mod store;
mod unused;

use super::settings::{Section, Table};

/// The broker's keys.
pub static KEYS: Table = Table {
    sections: &[
        Section {
            title: "Names and addresses",
            keys: server::NAMES,
        },
        Section {
            title: "Name servers",
            keys: server::REGISTRATION,
        },
        Section {
            title: "Replication: both sides",
            keys: replication::BOTH,
        },
        Section {
            title: "Replication: the master",
            keys: replication::MASTER,
        },
        Section {
            title: "Replication: the slave",
            keys: replication::SLAVE,
        },
        Section {
            title: "Store files",
            keys: store::FILES,
        },
        Section {
            title: "Flushing",
            keys: store::FLUSHING,
        },
        Section {
            title: "Deleting old files",
            keys: store::CLEANING,
        },
        Section {
            title: "Clients: connections and pulls",
            keys: clients::CONNECTIONS,
        },
        Section {
            title: "Clients: topics and groups",
            keys: clients::TOPICS,
        },
        Section {
            title: "Logging",
            keys: server::LOGGING,
        },
        Section {
            title: "Parts of RocketMQ that are not here",
            keys: unused::FEATURES,
        },
    ],
    unused: unused::BROKER,
};

/// The name server's keys.
pub static NAMESRV_KEYS: Table = Table {
    sections: &[Section {
        title: "Name server",
        keys: namesrv::KEYS,
    }],
    unused: unused::NAMESRV,
};
