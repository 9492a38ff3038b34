//! What the parts of a broker are told, read from the configuration's keys.

use std::path::{Path, PathBuf};

use super::Settings;
use super::connections::ConnectionLimits;
use super::topics::BuiltinTopics;
use crate::base::sys;
use crate::config::Config;
use crate::ha::{EmptySlaveFrom, HaConfig};
use crate::store::{Cleaning, DelayLevels, PullLimits, StoreConfig};

/// The store's settings. The configuration has checked each value by itself.
pub fn store(config: &Config) -> StoreConfig {
    let root = PathBuf::from(config.text("storePathRootDir"));
    StoreConfig {
        commit_log_dirs: log_directories(config, &root),
        read_only_log_dirs: paths(config, "readOnlyCommitLogStorePaths"),
        log_file_size: config.bytes("mappedFileSizeCommitLog"),
        queue_file_size: config
            .bytes("mappedFileSizeConsumeQueue")
            .next_multiple_of(20),
        hash_slots: config.int("maxHashSlotNum") as u32,
        index_entries: config.int("maxIndexNum") as u32,
        index_enabled: config.flag("messageIndexEnable"),
        sync_flush: config.text("flushDiskType") == "SYNC_FLUSH",
        flush_interval: config.duration("flushIntervalCommitLog"),
        flush_least_pages: config.int("flushCommitLogLeastPages") as u64,
        flush_thorough_interval: config.duration("flushCommitLogThoroughInterval"),
        checkpoint_interval: config.duration("flushConsumeQueueThoroughInterval"),
        max_message_size: config.bytes("maxMessageSize") as usize,
        slave: config.is_slave(),
        delay_levels: delay_levels(config),
        check_crc_on_recover: config.flag("checkCRCOnRecover"),
        cleaning: cleaning(config),
        ..StoreConfig::new(&root)
    }
}

fn log_directories(config: &Config, root: &Path) -> Vec<PathBuf> {
    match paths(config, "storePathCommitLog") {
        given if given.is_empty() => vec![root.join("commitlog")],
        given => given,
    }
}

fn paths(config: &Config, key: &str) -> Vec<PathBuf> {
    config.list(key).into_iter().map(PathBuf::from).collect()
}

pub fn delay_levels(config: &Config) -> DelayLevels {
    DelayLevels::parse(config.text("messageDelayLevel")).unwrap_or_else(|| {
        log::error!("messageDelayLevel cannot be read, the original's levels are used");
        DelayLevels::default()
    })
}

fn cleaning(config: &Config) -> Cleaning {
    let ratio = |key| config.int(key) as f64 / 100.0;
    Cleaning {
        reserved: config.duration("fileReservedTime"),
        delete_when: config
            .list("deleteWhen")
            .iter()
            .filter_map(|hour| hour.trim().parse().ok())
            .collect(),
        disk_max_used_ratio: ratio("diskMaxUsedSpaceRatio"),
        clean_forcibly_ratio: ratio("diskSpaceCleanForciblyRatio"),
        warning_ratio: ratio("diskSpaceWarningLevelRatio"),
        clean_forcibly: config.flag("cleanFileForciblyEnable"),
        interval: config.duration("cleanResourceInterval"),
        files_per_run: config.int("deleteFileBatchMax") as usize,
    }
}

pub fn ha(config: &Config) -> HaConfig {
    HaConfig {
        bind: config.ha_address(),
        heartbeat: config.duration("haSendHeartbeatInterval"),
        housekeeping: config.duration("haHousekeepingInterval"),
        first_report: config.duration("haFirstReportTimeout"),
        transfer_batch: config.int("haTransferBatchSize"),
        fallbehind_max: config.bytes("haSlaveFallbehindMax"),
        max_connections: config.int("haMaxConnections") as usize,
        empty_slave_from: match config.text("haEmptySlaveFrom") {
            "last-file" => EmptySlaveFrom::LastFile,
            _ => EmptySlaveFrom::Min,
        },
        in_sync_replicas: config.int("inSyncReplicas") as usize,
    }
}

pub fn builtin_topics(config: &Config) -> BuiltinTopics {
    let trace = config.flag("traceTopicEnable");
    BuiltinTopics {
        cluster: config.text("brokerClusterName").to_owned(),
        broker_name: config.text("brokerName").to_owned(),
        auto_create: config.flag("autoCreateTopicEnable"),
        default_queues: config.int("defaultTopicQueueNums") as i32,
        cluster_topic: config.flag("clusterTopicEnable"),
        broker_topic: config.flag("brokerTopicEnable"),
        trace_topic: trace.then(|| config.text("msgTraceTopicName").to_owned()),
    }
}

pub fn settings(config: &Config) -> Settings {
    let limits = |messages, bytes| PullLimits {
        max_messages: config.int(messages) as usize,
        max_bytes: config.bytes(bytes) as usize,
    };
    let memory = sys::memory_total() / 100 * config.int("accessMessageInMemoryMaxRatio") as u64;
    Settings {
        max_message_size: config.bytes("maxMessageSize") as usize,
        slave_timeout: config.duration("slaveTimeout"),
        sync_flush_timeout: config.duration("syncFlushTimeout"),
        slave_read_enable: config.flag("slaveReadEnable"),
        offset_check_in_slave: config.flag("offsetCheckInSlave"),
        memory_share: memory,
        in_memory: limits(
            "maxTransferCountOnMessageInMemory",
            "maxTransferBytesOnMessageInMemory",
        ),
        on_disk: limits(
            "maxTransferCountOnMessageInDisk",
            "maxTransferBytesOnMessageInDisk",
        ),
        short_poll: (!config.flag("longPollingEnable"))
            .then(|| config.duration("shortPollingTimeMills")),
        permission: config.int("brokerPermission") as i32,
        idle_max: config.duration("serverChannelMaxIdleTimeSeconds"),
        region: config.text("regionId").to_owned(),
        trace_on: config.flag("traceOn"),
        sends_queued_max: config.int("sendThreadPoolQueueCapacity") as usize,
        limits: ConnectionLimits {
            total: config.int("maxConnections") as usize,
            per_address: config.int("maxConnectionsPerAddress") as usize,
        },
    }
}
