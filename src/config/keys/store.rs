//! Files on disk: sizes, flushing, deleting. twinmq-store(5) tells what is in them.

use super::super::key::{INT_MAX, Key, Kind, Unit, bytes, int, key, millis};

/// A record must fit a frame of 16 MiB together with a request's header and properties.
const MESSAGE_MAX: i64 = 16 * 1024 * 1024 - 128 * 1024;

pub const FILES: &[Key] = &[
    key(
        "storePathRootDir",
        Kind::Text,
        "",
        "The directory that holds the store.",
    )
    .derived("store in the home directory"),
    key(
        "storePathCommitLog",
        Kind::List(','),
        "",
        "The directory of the commit log, or several, which take turns file by file.",
    )
    .derived("commitlog in `storePathRootDir`"),
    key(
        "readOnlyCommitLogStorePaths",
        Kind::List(','),
        "",
        "More directories of the commit log, which are read and never written.",
    ),
    key(
        "mappedFileSizeCommitLog",
        bytes(4096, INT_MAX),
        "1073741824",
        "The size of each commit log file. It must be the same on a master and its slaves, and on \
         all starts with one store. A message that does not fit one file is refused.",
    ),
    key(
        "mappedFileSizeConsumeQueue",
        bytes(20, INT_MAX),
        "6000000",
        "The size of each consume queue file, rounded up to a multiple of 20.",
    ),
    key(
        "maxHashSlotNum",
        int(1, INT_MAX),
        "5000000",
        "Hash slots in an index file.",
    ),
    key(
        "maxIndexNum",
        int(2, INT_MAX),
        "20000000",
        "Entries in an index file.",
    ),
    key(
        "messageIndexEnable",
        Kind::Flag,
        "true",
        "Whether messages can be queried by key.",
    ),
    key(
        "maxMessageSize",
        bytes(10, MESSAGE_MAX),
        "4194304",
        "The largest body that is stored.",
    ),
    key(
        "checkCRCOnRecover",
        Kind::Flag,
        "true",
        "Whether recovery verifies the checksum of each body it passes.",
    ),
    key(
        "messageDelayLevel",
        Kind::Text,
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "The delays that retries go through, one a level.",
    ),
    key(
        "pageCacheRelease",
        Kind::Flag,
        "false",
        "Whether pages of the log behind the slowest reader are given back to the system.",
    )
    .ours()
    .later(),
];

pub const FLUSHING: &[Key] = &[
    key(
        "flushDiskType",
        Kind::Choice(&["ASYNC_FLUSH", "SYNC_FLUSH"]),
        "ASYNC_FLUSH",
        "Whether a producer is answered before or after its message is on disk. With `SYNC_FLUSH` \
         consumers and slaves get only what is on disk.",
    ),
    key(
        "syncFlushTimeout",
        millis(1),
        "5000",
        "How long a producer waits for the disk with `SYNC_FLUSH`. When it ends, the producer is \
         told FLUSH_DISK_TIMEOUT.",
    ),
    key(
        "flushIntervalCommitLog",
        millis(1),
        "500",
        "How often the commit log is flushed with `ASYNC_FLUSH`.",
    ),
    key(
        "flushCommitLogLeastPages",
        int(0, INT_MAX),
        "4",
        "A flush of the commit log waits until so many pages of 4096 bytes are new.",
    ),
    key(
        "flushCommitLogThoroughInterval",
        millis(0),
        "10000",
        "After this time the commit log is flushed however little is new.",
    ),
    key(
        "flushConsumeQueueThoroughInterval",
        millis(1),
        "60000",
        "How often the consume queues and the index are brought to the disk, and the checkpoint is \
         written. After a crash what is newer is built again from the commit log.",
    ),
    key(
        "flushConsumerOffsetInterval",
        millis(1),
        "5000",
        "How often consumer offsets are saved.",
    ),
    key(
        "flushDelayOffsetInterval",
        millis(1),
        "10000",
        "How often the positions of the delay levels are saved.",
    ),
];

pub const CLEANING: &[Key] = &[
    key(
        "fileReservedTime",
        Kind::Time {
            unit: Unit::Hours,
            min: 0,
            max: INT_MAX,
        },
        "72",
        "How long a commit log file is kept after its last change. The newest file always stays.",
    ),
    key(
        "deleteWhen",
        Kind::List(';'),
        "04",
        "The hours of the day, 00 to 23 in local time, in which old files are deleted.",
    ),
    key(
        "diskMaxUsedSpaceRatio",
        int(10, 95),
        "75",
        "When the disk is fuller than this percentage, old files are deleted at any hour.",
    )
    .clamped(),
    key(
        "diskSpaceCleanForciblyRatio",
        int(30, 85),
        "85",
        "When the disk is fuller than this percentage and `cleanFileForciblyEnable` is set, the \
         oldest files are deleted whatever their age.",
    )
    .clamped(),
    key(
        "diskSpaceWarningLevelRatio",
        int(35, 90),
        "90",
        "When the disk is fuller than this percentage, writes are refused.",
    )
    .clamped(),
    key(
        "cleanFileForciblyEnable",
        Kind::Flag,
        "true",
        "Whether a full disk may cost files that are not old.",
    ),
    key(
        "cleanResourceInterval",
        millis(1),
        "10000",
        "How often the above is looked at.",
    ),
    key(
        "deleteFileBatchMax",
        int(1, INT_MAX),
        "10",
        "Most commit log files that one look deletes.",
    ),
];
