//! What follows from several keys: defaults that depend on others, and combinations that
//! cannot work.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use super::Role;
use super::key::{INT_MAX, Value};
use super::settings::{Reading, Settings};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Most replicas that an operator can mean; the table's bound for `inSyncReplicas` is higher.
const MASTER_AND_ONE_SLAVE: i64 = 2;

/// Fills in what follows from other keys, then refuses what cannot work. Every rule of the
/// broker's configuration is named here.
pub fn complete_broker(reading: &mut Reading) {
    names(reading);
    // As the original does when the file has no name servers.
    reading.environment("NAMESRV_ADDR", "namesrvAddr");
    identity(reading);
    addresses(reading);
    ports(reading);
    paths(reading);
    sizes(reading);
    replication(reading);
    cleaning(reading);
}

pub fn complete_namesrv(reading: &mut Reading) {
    numeric_address(reading, "bindAddress");
}

pub fn role(settings: &Settings) -> Role {
    match settings.text("brokerRole") {
        "ASYNC_MASTER" => Role::AsyncMaster,
        "SYNC_MASTER" => Role::SyncMaster,
        "SLAVE" => Role::Slave,
        other => unreachable!("{other} is not in the table"),
    }
}

fn names(reading: &mut Reading) {
    if !reading.settings.is_given("brokerName") {
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        reading.set_text("brokerName", host);
    }
    for name in ["brokerName", "brokerClusterName", "msgTraceTopicName"] {
        if reading.settings.text(name).is_empty() {
            reading.refuse(format!("{name} is empty"));
        }
    }
}

fn identity(reading: &mut Reading) {
    let id = reading.settings.int("brokerId");
    match role(&reading.settings) {
        Role::Slave if id <= 0 => {
            reading.refuse(format!(
                "a SLAVE needs a brokerId above 0, and this is {id}"
            ));
        }
        Role::Slave => {}
        _ if id == 0 => {}
        _ => {
            reading.warn(format!(
                "brokerId={id} on a master counts as 0, as in RocketMQ"
            ));
            reading.set("brokerId", Value::Int(0));
        }
    }
    let settings = &reading.settings;
    let no_master =
        settings.text("haMasterAddress").is_empty() && settings.list("namesrvAddr").is_empty();
    if role(settings) == Role::Slave && no_master {
        reading.refuse("a SLAVE needs namesrvAddr or haMasterAddress to find its master");
    }
}

fn addresses(reading: &mut Reading) {
    let ip2_given = is_set(reading, "brokerIP2");
    default_text(reading, "brokerIP1", |settings| {
        local_address(settings).to_string()
    });
    let Some(ip1) = numeric_address(reading, "brokerIP1") else {
        return;
    };
    default_text(reading, "brokerIP2", |_| ip1.to_string());
    numeric_address(reading, "brokerIP2");
    default_text(reading, "bindAddress", |_| bind_for(ip1).to_string());
    numeric_address(reading, "bindAddress");
    default_text(reading, "haBindAddress", |settings| {
        let from = if ip2_given {
            "brokerIP2"
        } else {
            "bindAddress"
        };
        settings.text(from).to_owned()
    });
    numeric_address(reading, "haBindAddress");
    for name in ["brokerIP1", "brokerIP2"] {
        let text = reading.settings.text(name);
        if text.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
            reading.refuse(format!(
                "{name}={text} is no address that others can connect to"
            ));
        }
    }
}

fn is_set(reading: &Reading, name: &str) -> bool {
    !reading.settings.text(name).is_empty()
}

fn default_text(reading: &mut Reading, name: &str, default: impl Fn(&Settings) -> String) {
    if !is_set(reading, name) {
        let text = default(&reading.settings);
        reading.set_text(name, text);
    }
}

/// Resolves a host name once, so that everybody sees the same address from here on.
fn numeric_address(reading: &mut Reading, name: &str) -> Option<IpAddr> {
    let text = reading.settings.text(name).to_owned();
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    match (text.as_str(), 0)
        .to_socket_addrs()
        .map(|mut found| found.next())
    {
        Ok(Some(found)) => {
            reading.set_text(name, found.ip().to_string());
            Some(found.ip())
        }
        Ok(None) => {
            reading.refuse(format!("{name}={text}: the name has no address"));
            None
        }
        Err(error) => {
            reading.refuse(format!("{name}={text}: {error}"));
            None
        }
    }
}

/// The address this machine has towards the first name server. Connecting a UDP socket only
/// asks the routing table; nothing is sent.
fn local_address(settings: &Settings) -> IpAddr {
    let servers = settings.list("namesrvAddr");
    let first = servers
        .first()
        .and_then(|server| server.to_socket_addrs().ok())
        // Clients of the original know IPv4 best: `localhost` is not ::1 here.
        .and_then(|found| found.min_by_key(SocketAddr::is_ipv6));
    let Some(server) = first else { return LOOPBACK };
    let from: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let local = UdpSocket::bind(from).and_then(|socket| {
        socket.connect(server)?;
        socket.local_addr()
    });
    local.map_or(LOOPBACK, |address| address.ip())
}

fn bind_for(ip: IpAddr) -> IpAddr {
    match ip {
        _ if ip.is_loopback() => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn ports(reading: &mut Reading) {
    let listen = reading.settings.int("listenPort");
    if listen == 1 || listen == 2 {
        reading.refuse(format!(
            "listenPort={listen} leaves no room for the fast port two below it"
        ));
    }
    if reading.settings.int("haListenPort") == 0 && listen != 0 {
        if listen == 65535 {
            reading.refuse("listenPort=65535 leaves no room for the HA port; set haListenPort");
        }
        reading.set("haListenPort", Value::Int(listen + 1));
    }
    let ha = reading.settings.int("haListenPort");
    if ha != 0 && (ha == listen || ha == listen - 2) {
        let which = if ha == listen {
            "listenPort"
        } else {
            "the fast port, listenPort - 2"
        };
        reading.refuse(format!("haListenPort={ha} is also {which}"));
    }
}

fn paths(reading: &mut Reading) {
    if !reading.settings.is_given("storePathRootDir") {
        match std::env::home_dir() {
            Some(home) if !home.as_os_str().is_empty() => {
                reading.set_text("storePathRootDir", home.join("store").to_string_lossy());
            }
            _ => {
                return reading
                    .refuse("storePathRootDir is not set and there is no home directory");
            }
        }
    }
    let root = PathBuf::from(reading.settings.text("storePathRootDir"));
    if root.as_os_str().is_empty() {
        return reading.refuse("storePathRootDir is empty");
    }
    default_text(reading, "storePathCommitLog", |_| {
        root.join("commitlog").to_string_lossy().into()
    });
    let mut refusals = Vec::new();
    for path in reading.settings.list("storePathCommitLog") {
        if let Some(why) = occupied(&root, Path::new(path)) {
            refusals.push(format!(
                "storePathCommitLog={path} is {why}, which holds other files"
            ));
        }
    }
    refusals
        .into_iter()
        .for_each(|refusal| reading.refuse(refusal));
}

/// A commit log directory holds log files only; the original does not start when it finds others.
fn occupied(root: &Path, log: &Path) -> Option<&'static str> {
    if log == root {
        return Some("storePathRootDir");
    }
    let inside = log.strip_prefix(root).ok()?.components().next()?;
    ["config", "consumequeue", "index"]
        .into_iter()
        .find(|taken| inside.as_os_str() == *taken)
}

fn sizes(reading: &mut Reading) {
    let queue_file = reading.settings.bytes("mappedFileSizeConsumeQueue");
    let rounded = (queue_file.div_ceil(20) * 20).min(INT_MAX as u64 / 20 * 20);
    reading.set("mappedFileSizeConsumeQueue", Value::Int(rounded as i64));
    let (slots, entries) = (
        reading.settings.int("maxHashSlotNum"),
        reading.settings.int("maxIndexNum"),
    );
    let index = 40 + 4 * slots + 20 * entries;
    if index > INT_MAX {
        reading.refuse(format!(
            "maxHashSlotNum={slots} and maxIndexNum={entries} make index files of {index} bytes, \
             and {INT_MAX} are the most"
        ));
    }
    if reading.settings.bytes("haTransferBatchSize") == 0 {
        reading.refuse("haTransferBatchSize=0 would never transfer anything; the default is 32768");
    }
}

fn replication(reading: &mut Reading) {
    let settings = &reading.settings;
    let replicas = settings.int("inSyncReplicas");
    let connections = settings.int("haMaxConnections");
    if settings.int("haFirstReportTimeout") == 0 {
        let interval = settings.int("haHousekeepingInterval");
        reading.set("haFirstReportTimeout", Value::Int(interval));
    }
    if role(&reading.settings) != Role::SyncMaster {
        return;
    }
    if replicas < MASTER_AND_ONE_SLAVE {
        reading.warn("inSyncReplicas below 2 acts as 2 on a SYNC_MASTER: itself and one slave");
        reading.set("inSyncReplicas", Value::Int(MASTER_AND_ONE_SLAVE));
    }
    if replicas - 1 > connections {
        reading.refuse(format!(
            "inSyncReplicas={replicas} needs {} slaves, and haMaxConnections={connections}",
            replicas - 1
        ));
    }
}

fn cleaning(reading: &mut Reading) {
    let hours = reading.settings.list("deleteWhen");
    let bad = hours
        .into_iter()
        .find(|hour| !hour.parse::<u8>().is_ok_and(|hour| hour < 24));
    if let Some(hour) = bad {
        let message = format!("deleteWhen: {hour:?} is not an hour from 00 to 23");
        reading.refuse(message);
    }
    let levels = reading.settings.text("messageDelayLevel");
    let bad = levels.split_whitespace().find(|level| !is_delay(level));
    if let Some(level) = bad {
        let message =
            format!("messageDelayLevel: {level:?} is not a number followed by s, m, h or d");
        reading.refuse(message);
    }
}

fn is_delay(level: &str) -> bool {
    let number = level.strip_suffix(['s', 'm', 'h', 'd']);
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}
