//! The name server's own keys.

use super::super::key::{Key, Kind, int, key, millis};

pub const KEYS: &[Key] = &[
    key(
        "listenPort",
        int(0, 65535),
        "9876",
        "The port for brokers and clients. 0 takes any free port.",
    ),
    key(
        "bindAddress",
        Kind::Host,
        "0.0.0.0",
        "The local address on which the name server listens.",
    ),
    key(
        "scanNotActiveBrokerInterval",
        millis(1),
        "5000",
        "How often brokers are looked for that have been silent for 120 seconds, or for the time \
         they registered with.",
    )
    .later(),
    key(
        "serverChannelMaxIdleTimeSeconds",
        Kind::Time {
            unit: super::super::key::Unit::Seconds,
            min: 1,
            max: super::super::key::INT_MAX,
        },
        "120",
        "A connection on which nothing comes or goes for so long is closed.",
    ),
    key(
        "orderMessageEnable",
        Kind::Flag,
        "false",
        "Whether routes carry the order configuration of topics.",
    )
    .later(),
    key(
        "returnOrderTopicConfigToBroker",
        Kind::Flag,
        "true",
        "Whether a broker that registers is told the order configuration.",
    )
    .later(),
    key(
        "enableAllTopicList",
        Kind::Flag,
        "true",
        "Whether the list of all topics is given out.",
    )
    .later(),
    key(
        "enableTopicList",
        Kind::Flag,
        "true",
        "Whether the topic lists of a cluster and of units are given out.",
    )
    .later(),
    key(
        "deleteTopicWithBrokerRegistration",
        Kind::Flag,
        "false",
        "Whether a topic that a broker no longer registers is taken out of that broker's routes.",
    )
    .later(),
    key(
        "clusterTest",
        Kind::Flag,
        "false",
        "Asks another name server about unknown topics, in the original.",
    )
    .later(),
    key(
        "supportActingMaster",
        Kind::Flag,
        "false",
        "Lets a slave stand in for its master's topics.",
    )
    .later(),
    key(
        "notifyMinBrokerIdChanged",
        Kind::Flag,
        "false",
        "Tells brokers when the lowest broker id of their group changes.",
    )
    .later(),
    key(
        "enableControllerInNamesrv",
        Kind::Flag,
        "false",
        "the controller is not part of this product; pairs have fixed roles",
    )
    .refused(),
    key(
        "logLevel",
        Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        "info",
        "What is logged to standard error. RUST_LOG in the environment overrules it.",
    )
    .ours()
    .reloadable(),
];
