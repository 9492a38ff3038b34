//! The channel between a master and its slaves. twinmq-ha(7) tells the protocol.

use super::super::key::{INT_MAX, Key, Kind, Unit, bytes, int, key, millis};

/// Most body bytes in one frame: an original slave's buffer is 4 MiB with the header.
const FRAME_BODY_MAX: i64 = 4 * 1024 * 1024 - 12;

pub const BOTH: &[Key] = &[
    key(
        "haSendHeartbeatInterval",
        millis(1),
        "5000",
        "How long a side of the link may be silent before it sends a heartbeat: the master an empty \
         frame, the slave its report.",
    ),
    key(
        "haHousekeepingInterval",
        millis(1),
        "20000",
        "How long the other side may be silent before the link is closed.",
    ),
    key(
        "haMaxRate",
        bytes(0, i64::MAX),
        "0",
        "Most bytes a second on the link; 0 is no limit.",
    )
    .ours()
    .reloadable()
    .later(),
    key(
        "haPoll",
        Kind::Time {
            unit: Unit::Micros,
            min: 0,
            max: 1_000_000,
        },
        "0",
        "How long the link's thread looks for events before it sleeps, while requests are in \
         flight. It trades processor time for latency.",
    )
    .ours()
    .later(),
];

pub const MASTER: &[Key] = &[
    key("slaveTimeout", millis(1), "3000",
        "How long a producer waits for the slave when `brokerRole` is `SYNC_MASTER`. When it ends, \
         the message is stored and the producer is told FLUSH_SLAVE_TIMEOUT. A stock producer gives \
         up after 3000 itself (sendMsgTimeout), so it sees that answer only if one of the two is \
         changed."),
    key("inSyncReplicas", int(0, 128), "1",
        "How many replicas, the master among them, must have a message before a `SYNC_MASTER` \
         answers SEND_OK. 1 acts as 2 there: synchronous means at least one slave."),
    key("haSlaveFallbehindMax", bytes(0, INT_MAX), "268435456",
        "A slave that lacks this many bytes or more does not count as one: a `SYNC_MASTER` answers \
         SLAVE_NOT_AVAILABLE at once.")
        .aliases(&["haMaxGapNotInSync"]),
    key("haTransferBatchSize", bytes(0, FRAME_BODY_MAX), "32768",
        "Most log bytes in one frame."),
    key("haEmptySlaveFrom", Kind::Choice(&["min", "last-file"]), "min",
        "Where a slave without any log begins: at the oldest file, or at the newest as the original \
         has it. With `last-file` such a slave never gets what is older.")
        .ours(),
    key("haAllowedSlaves", Kind::List(','), "",
        "There is no list of slaves yet that may connect. Whoever reaches the HA port can read the \
         whole log: bind it with `haBindAddress` to a network that only slaves can reach.")
        .ours()
        .refused(),
    key("haMaxConnections", int(1, 10_000), "16",
        "Most connections to the HA port.")
        .ours(),
    key("haFirstReportTimeout", Kind::Time { unit: Unit::Millis, min: 0, max: INT_MAX }, "",
        "A connection that has not said by then where it wants to start is closed; 0 stands for \
         the default. An original slave of 4.9 takes up to six seconds.")
        .ours()
        .derived("`haHousekeepingInterval`"),
    key("haRetainFor", Kind::List(','), "",
        "Slaves whose position holds back the deletion of old files.")
        .ours()
        .later(),
    key("haRetainMaxBytes", bytes(0, i64::MAX), "0",
        "The cap on what `haRetainFor` holds back.")
        .ours()
        .later(),
];

pub const SLAVE: &[Key] = &[
    key(
        "haMasterAddress",
        Kind::Peer,
        "",
        "The master's HA address. Empty asks the name server.",
    ),
    key(
        "masterRpcAddress",
        Kind::Peer,
        "",
        "The master's address for clients, used for the fork check and for metadata.",
    )
    .ours()
    .derived("what the name server says"),
    key(
        "haSlaveAck",
        Kind::Choice(&["write", "flush", "dispatch"]),
        "write",
        "The slave's report covers what is written into its log, not yet what is flushed to its \
         disk or entered into its consume queues.",
    )
    .ours()
    .refused(),
    key(
        "haResync",
        Kind::Choice(&["stop", "seed", "last-file"]),
        "stop",
        "What a slave does when the master no longer has the bytes it needs. `stop` keeps all and \
         waits for the operator.",
    )
    .ours()
    .later(),
    key(
        "haSeedFrom",
        Kind::Text,
        "min",
        "Where an empty slave begins: `min` for the master's oldest file, `last-file` for its \
         newest.",
    )
    .ours()
    .later(),
    key(
        "slaveReadEnable",
        Kind::Flag,
        "false",
        "Whether consumers that are far behind are sent to the slave, and whether the slave serves \
         pulls that ask a master's broker id.",
    ),
    key(
        "offsetCheckInSlave",
        Kind::Flag,
        "false",
        "Whether a slave corrects the offset of a pull that is outside the queue. Without it the \
         consumer keeps the offset it asked for, since the slave may only be behind.",
    ),
    key(
        "accessMessageInMemoryMaxRatio",
        int(0, 100),
        "40",
        "The share of memory, in percent, that counts as recently written. A consumer that lags \
         by more is told to read from the slave.",
    ),
];
