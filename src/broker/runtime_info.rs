//! Runtime info (28): the table of texts that tools print, and the figures of replication (907).
//!
//! `clusterList` and the Dashboard cut some values apart, so their form matters. Keys that start
//! with `twinmq.` are our own; `twinmq status` reads them. A figure that this broker does not
//! have is left out: the tools take absence for unknown, and 0 for a fact.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::admin::AdminContext;
use super::stats::Counts;
use crate::base::clock::wall_ms;
use crate::base::sys::DiskSpace;
use crate::ha::{LinkFigures, SlaveFigures};
use crate::remoting::codes::{VERSION, VERSION_TEXT};
use crate::store::StoreFigures;

/// Requests that wait for one kind of thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueFigures {
    pub waiting: usize,
    pub capacity: usize,
    /// For how long the oldest one has waited.
    pub head_wait: Duration,
}

/// What only the running broker knows; asked anew for each request.
pub struct LiveFigures {
    /// `recovering`, `ready`, `read-only` or `stopping`.
    pub state: &'static str,
    pub sends: QueueFigures,
    pub pulls: QueueFigures,
    pub slaves: Vec<SlaveFigures>,
    /// On a slave.
    pub link: Option<LinkFigures>,
}

struct TextTable(Map<String, Value>);

impl TextTable {
    fn put(&mut self, key: impl Into<String>, value: impl ToString) {
        self.0.insert(key.into(), Value::String(value.to_string()));
    }
}

/// The body of 28.
pub fn runtime_info(context: &AdminContext) -> Value {
    let store = context.store.figures();
    let live = (context.live)();
    let mut table = TextTable(Map::new());
    put_identity(&mut table, context, &live);
    put_rates(&mut table, context);
    put_queue(&mut table, "send", &live.sends);
    // One kind of thread serves pulls of both codes and what else may touch the disk.
    for name in ["pull", "litePull", "query"] {
        put_queue(&mut table, name, &live.pulls);
    }
    put_log(&mut table, &store);
    put_disks(&mut table, context, &store);
    for (level, offset, end) in context.delays.positions(&*context.store) {
        table.put(
            format!("scheduleMessageOffset_{level}"),
            format!("{offset},{end}"),
        );
    }
    put_own(&mut table, context, &live, &store);
    json!({ "table": table.0 })
}

fn put_identity(table: &mut TextTable, context: &AdminContext, live: &LiveFigures) {
    let up = (wall_ms() - context.started_ms).max(0) / 1000;
    let (days, hours, minutes) = (up / 86_400, up / 3600 % 24, up / 60 % 60);
    table.put("brokerVersionDesc", VERSION_TEXT);
    table.put("brokerVersion", VERSION);
    table.put("bootTimestamp", context.started_ms);
    table.put(
        "runtime",
        format!(
            "[ {days} days, {hours} hours, {minutes} minutes, {} seconds ]",
            up % 60
        ),
    );
    table.put("brokerActive", !context.slave && live.state == "ready");
    table.put("startAcceptSendRequestTimeStamp", context.started_ms);
}

fn put_rates(table: &mut TextTable, context: &AdminContext) {
    let (counts, mornings) = (context.stats.counts(), context.stats.mornings());
    let rates = |count: fn(&Counts) -> u64| context.stats.rates(count);
    table.put("putTps", rates(|c| c.put));
    table.put("getFoundTps", rates(|c| c.found));
    table.put("getMissTps", rates(|c| c.miss));
    table.put("getTotalTps", rates(|c| c.found + c.miss));
    // 4.9's spelling and 5.x's.
    for key in ["getTransferedTps", "getTransferredTps"] {
        table.put(key, rates(|c| c.transferred));
    }
    table.put("msgPutTotalTodayNow", counts.put);
    table.put("msgPutTotalTodayMorning", mornings.put_today);
    table.put("msgPutTotalYesterdayMorning", mornings.put_yesterday);
    table.put("msgGetTotalTodayNow", counts.transferred);
    table.put("msgGetTotalTodayMorning", mornings.got_today);
    table.put("msgGetTotalYesterdayMorning", mornings.got_yesterday);
    table.put("putMessageTimesTotal", counts.put);
    table.put("putMessageFailedTimes", counts.put_failed);
    table.put("putMessageSizeTotal", counts.put_bytes);
    let average = counts.put_bytes as f64 / counts.put.max(1) as f64;
    table.put("putMessageAverageSize", format!("{average:?}"));
    table.put("getMessageEntireTimeMax", counts.pull_max_ms);
}

fn put_queue(table: &mut TextTable, name: &str, queue: &QueueFigures) {
    table.put(format!("{name}ThreadPoolQueueSize"), queue.waiting);
    table.put(format!("{name}ThreadPoolQueueCapacity"), queue.capacity);
    table.put(
        format!("{name}ThreadPoolQueueHeadWaitTimeMills"),
        queue.head_wait.as_millis(),
    );
}

fn put_log(table: &mut TextTable, store: &StoreFigures) {
    table.put("commitLogMinOffset", store.log_min);
    table.put("commitLogMaxOffset", store.log_max);
    table.put("dispatchBehindBytes", store.dispatch_behind);
    table.put(
        "remainHowManyDataToFlush",
        readable_size(store.log_max.saturating_sub(store.flushed)),
    );
    table.put("pageCacheLockTimeMills", store.append_busy_ms);
    table.put(
        "earliestMessageTimeStamp",
        store.earliest_stored_ms.unwrap_or(-1),
    );
}

fn put_disks(table: &mut TextTable, context: &AdminContext, store: &StoreFigures) {
    table.put("commitLogDiskRatio", format!("{:?}", store.log_disk_ratio));
    table.put(
        "consumeQueueDiskRatio",
        format!("{:?}", store.queue_disk_ratio),
    );
    for (index, directory) in context.commit_log_dirs.iter().enumerate() {
        let Some(space) = disk_space(directory) else {
            continue;
        };
        table.put(
            format!("commitLogDiskRatio_{}", directory.display()),
            format!("{:?}", space.used_ratio()),
        );
        if index == 0 {
            let (total, free) = (readable_size(space.total), readable_size(space.available));
            table.put(
                "commitLogDirCapacity",
                format!("Total : {total}, Free : {free}."),
            );
        }
    }
}

fn disk_space(directory: &Path) -> Option<DiskSpace> {
    DiskSpace::of(directory)
        .map_err(|error| log::warn!("statvfs {}: {error}", directory.display()))
        .ok()
}

fn put_own(
    table: &mut TextTable,
    context: &AdminContext,
    live: &LiveFigures,
    store: &StoreFigures,
) {
    let now = Instant::now();
    table.put("twinmq.version", env!("CARGO_PKG_VERSION"));
    table.put("twinmq.role", context.role);
    table.put("twinmq.state", live.state);
    table.put("twinmq.haAddress", &context.ha_address);
    table.put("twinmq.flushed", store.flushed);
    table.put("twinmq.dispatched", store.dispatched);
    table.put("twinmq.damagedRecords", store.damaged_records);
    table.put("twinmq.steppedOver", store.stepped_over);
    table.put("twinmq.lostRanges", store.lost_ranges);
    table.put("twinmq.clients", context.clients.count());
    match &live.link {
        Some(link) => table.put("twinmq.link", link_row(link, now)),
        None => {
            let rows: Vec<Value> = live
                .slaves
                .iter()
                .map(|slave| slave_row(slave, now))
                .collect();
            table.put("twinmq.slaves", Value::Array(rows));
        }
    }
}

fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

fn slave_row(slave: &SlaveFigures, now: Instant) -> Value {
    let known = slave.reported.is_some();
    json!({
        "address": slave.address.to_string(),
        "state": slave.state.name(),
        "sent": slave.sent,
        "reported": slave.reported,
        "lagBytes": known.then_some(slave.lag_bytes),
        "lagSeconds": known.then_some(seconds(slave.lag)),
        "inSync": slave.in_sync,
        "sinceSeconds": now.saturating_duration_since(slave.since).as_secs(),
    })
}

fn link_row(link: &LinkFigures, now: Instant) -> Value {
    // The link tells bytes, not times: only "nothing is missing" has a time.
    let lag_seconds = (link.lag_bytes == Some(0)).then_some(0.0);
    json!({
        "master": link.master,
        "state": link.state.name(),
        "received": link.received,
        "reported": link.reported,
        "lagBytes": link.lag_bytes,
        "lagSeconds": lag_seconds,
        "sinceSeconds": now.saturating_duration_since(link.since).as_secs(),
        "lastError": link.last_error,
    })
}

/// The body of 907. Rates that this broker does not keep for each slave are left out.
pub fn ha_status(context: &AdminContext) -> Value {
    let live = (context.live)();
    let end = context.store.log().end();
    let connections: Vec<Value> = live
        .slaves
        .iter()
        .map(|slave| connection(slave, end))
        .collect();
    let in_sync = live.slaves.iter().filter(|slave| slave.in_sync).count();
    json!({
        "haClientRuntimeInfo": live.link.as_ref().map_or(json!({}), |link| client_info(link, end)),
        "haConnectionInfo": connections,
        "inSyncSlaveNums": in_sync,
        "master": !context.slave,
        "masterCommitLogMaxOffset": if context.slave { 0 } else { end },
    })
}

/// As the original has it: -1 is a position that is not known yet.
fn connection(slave: &SlaveFigures, end: u64) -> Value {
    let acked = slave.reported.map_or(-1, |reported| reported as i64);
    json!({
        "addr": slave.address.to_string(),
        "diff": end as i64 - acked,
        "inSync": slave.in_sync,
        "slaveAckOffset": acked,
        "transferFromWhere": slave.sent,
    })
}

fn client_info(link: &LinkFigures, end: u64) -> Value {
    let now = (Instant::now(), wall_ms());
    let stamp = |at: Option<Instant>| {
        let since = at.map(|at| now.0.saturating_duration_since(at).as_millis() as i64);
        since.map_or(0, |since| now.1 - since)
    };
    let mut info = json!({
        "activated": link.state.name() == "streaming" || link.state.name() == "catching-up",
        "lastReadTimestamp": stamp(link.last_read_at),
        "lastWriteTimestamp": stamp(link.last_write_at),
        "maxOffset": end,
        "transferredByteInSecond": link.bytes_per_second as i64,
    });
    if let Some(master) = &link.master {
        info["masterAddr"] = json!(master);
    }
    info
}

/// `0 B`, `1.5 KiB`, as the original prints sizes.
fn readable_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = bytes.ilog(1024) as usize;
    let unit = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][exponent - 1];
    format!(
        "{:.1} {unit}B",
        bytes as f64 / 1024f64.powi(exponent as i32)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (53_687_091_200, "50.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(readable_size(bytes), text);
        }
    }
}
