//! Who the broker is, where it listens, and the name servers it tells.

use super::super::key::{INT_MAX, Key, Kind, int, key, millis};

pub const NAMES: &[Key] = &[
    key("brokerClusterName", Kind::Text, "DefaultCluster",
        "The cluster's name, the same on all its brokers."),
    key("brokerName", Kind::Text, "",
        "The name a master and its slaves share. Clients know a queue by it.")
        .derived("the host's name"),
    key("brokerId", int(i64::MIN, i64::MAX), "0",
        "0 for a master; above 0, and different for each, on slaves. A master always has 0, \
         whatever is written here."),
    key("brokerRole", Kind::Choice(&["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]), "ASYNC_MASTER",
        "`ASYNC_MASTER` answers producers when it has stored a message, `SYNC_MASTER` when a slave \
         has it too, and `SLAVE` follows its master and refuses writes."),
    key("listenPort", int(0, 65535), "10911",
        "The port for clients. The fast port is two below it and serves everything but pulls. \
         0 takes any free port and has no fast port, which is of use in tests only."),
    key("brokerIP1", Kind::Host, "",
        "The address clients are told to use, together with `listenPort`. It is also stored in each \
         message.")
        .derived("the local address from which the first name server is reached, else 127.0.0.1"),
    key("brokerIP2", Kind::Host, "",
        "The address slaves are told to use, together with `haListenPort`.")
        .derived("`brokerIP1`"),
    key("bindAddress", Kind::Host, "",
        "The local address on which clients are served.")
        .derived("127.0.0.1 if `brokerIP1` is a loopback address, else all addresses"),
    key("haListenPort", int(0, 65535), "",
        "The port for slaves; 0 stands for the default. RocketMQ 4.9 ignores the key and always \
         uses the default.")
        .derived("`listenPort` + 1"),
    key("haBindAddress", Kind::Host, "",
        "The local address on which slaves are served.")
        .ours()
        .derived("`brokerIP2` if that is set, else `bindAddress`"),
];

pub const REGISTRATION: &[Key] = &[
    key(
        "namesrvAddr",
        Kind::Peers(';'),
        "",
        "The name servers. The broker registers with every one of them.",
    )
    .derived("the environment's NAMESRV_ADDR, else none"),
    key(
        "registerNameServerPeriod",
        Kind::Time {
            unit: super::super::key::Unit::Millis,
            min: 10_000,
            max: 60_000,
        },
        "30000",
        "How often the broker registers anew. A name server forgets a broker after 120 seconds.",
    )
    .clamped(),
    key(
        "registerBrokerTimeoutMills",
        millis(1),
        "6000",
        "How long the broker waits for one name server's answer.",
    )
    .later(),
    key(
        "forceRegister",
        Kind::Flag,
        "true",
        "Whether each period registers in full. With false the name server is asked first whether \
         anything has changed.",
    )
    .later(),
    key(
        "compressedRegister",
        Kind::Flag,
        "false",
        "Whether registrations are compressed. Brokers of RocketMQ 5.3 break with it; this one \
         never compresses what it sends.",
    )
    .later(),
];

pub const LOGGING: &[Key] = &[
    key(
        "logLevel",
        Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        "info",
        "What is logged to standard error. RUST_LOG in the environment overrules it.",
    )
    .ours()
    .reloadable(),
    key(
        "regionId",
        Kind::Text,
        "DefaultRegion",
        "The region that producers are told with each answer, for message traces.",
    ),
    key(
        "traceOn",
        Kind::Flag,
        "true",
        "Whether clients that can trace messages are told to do so.",
    ),
    key(
        "defaultQueryMaxNum",
        int(1, INT_MAX),
        "32",
        "Most messages in the answer to a query by key.",
    )
    .later(),
];
