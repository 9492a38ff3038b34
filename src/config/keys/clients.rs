//! What producers and consumers may do, and how much of it.

use super::super::key::{INT_MAX, Key, Kind, Unit, bytes, int, key, millis};

pub const CONNECTIONS: &[Key] = &[
    key(
        "maxConnections",
        int(1, 1_000_000),
        "10000",
        "Most client connections. The port pauses at this number.",
    )
    .ours(),
    key(
        "maxConnectionsPerAddress",
        int(1, 1_000_000),
        "1000",
        "Most client connections from one address.",
    )
    .ours(),
    key(
        "serverChannelMaxIdleTimeSeconds",
        Kind::Time {
            unit: Unit::Seconds,
            min: 1,
            max: INT_MAX,
        },
        "120",
        "A connection on which nothing comes or goes for so long is closed.",
    ),
    key(
        "sendThreadPoolQueueCapacity",
        int(1, INT_MAX),
        "10000",
        "Most sends that wait to be stored. More are answered SYSTEM_BUSY.",
    ),
    key(
        "longPollingEnable",
        Kind::Flag,
        "true",
        "Whether a pull that finds nothing is held until something comes or the client's time is \
         over; else it is held for `shortPollingTimeMills`.",
    ),
    key(
        "shortPollingTimeMills",
        millis(0),
        "1000",
        "How long a pull is held when `longPollingEnable` is false.",
    ),
    key(
        "maxTransferBytesOnMessageInMemory",
        bytes(1, INT_MAX),
        "262144",
        "Most bytes in the answer to one pull, of messages written recently.",
    ),
    key(
        "maxTransferCountOnMessageInMemory",
        int(1, INT_MAX),
        "32",
        "Most messages in the answer to one pull, of messages written recently.",
    ),
    key(
        "maxTransferBytesOnMessageInDisk",
        bytes(1, INT_MAX),
        "65536",
        "Most bytes in the answer to one pull, of messages that must be read from disk.",
    ),
    key(
        "maxTransferCountOnMessageInDisk",
        int(1, INT_MAX),
        "8",
        "Most messages in the answer to one pull, of messages that must be read from disk.",
    ),
    key(
        "notifyConsumerIdsChangedEnable",
        Kind::Flag,
        "true",
        "Whether the members of a group are told when one comes or goes.",
    ),
];

pub const TOPICS: &[Key] = &[
    key(
        "brokerPermission",
        int(0, 7),
        "6",
        "What the broker allows: 4 reading, 2 writing, 6 both.",
    ),
    key(
        "autoCreateTopicEnable",
        Kind::Flag,
        "true",
        "Whether a send may create its topic.",
    ),
    key(
        "autoCreateSubscriptionGroup",
        Kind::Flag,
        "true",
        "Whether a consumer may create its group.",
    ),
    key(
        "defaultTopicQueueNums",
        int(1, 1024),
        "8",
        "Queues in a topic that a send creates, unless the producer wants fewer.",
    ),
    key(
        "clusterTopicEnable",
        Kind::Flag,
        "true",
        "Whether a topic with the cluster's name exists.",
    ),
    key(
        "brokerTopicEnable",
        Kind::Flag,
        "true",
        "Whether a topic with the broker's name exists.",
    ),
    key(
        "traceTopicEnable",
        Kind::Flag,
        "false",
        "Whether the topic for message traces, `msgTraceTopicName`, exists.",
    ),
    key(
        "msgTraceTopicName",
        Kind::Text,
        "RMQ_SYS_TRACE_TOPIC",
        "The topic for message traces.",
    ),
];
