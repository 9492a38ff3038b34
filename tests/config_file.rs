//! A broker's configuration from outside: Java's own files load, `-p` reads back, and what
//! cannot work is refused with its reason.

use std::path::Path;
use std::time::Duration;

use twinmq::config::{
    Config, ConfigError, Effect, KEYS, Key, Kind, NAMESRV_KEYS, NamesrvConfig, Role, Warning,
};

/// Loads a file's text with a name server on loopback, so that the host's own addresses and the
/// environment do not matter.
fn load(text: &str) -> Result<(Config, Vec<Warning>), ConfigError> {
    load_with(text, &[])
}

fn load_with(text: &str, arguments: &[&str]) -> Result<(Config, Vec<Warning>), ConfigError> {
    let arguments: Vec<String> = arguments
        .iter()
        .map(|argument| argument.to_string())
        .collect();
    Config::load(
        Some((Path::new("broker.conf"), text)),
        &arguments,
        Some("127.0.0.1:9876"),
    )
}

fn good(text: &str) -> Config {
    match load(text) {
        Ok((config, _)) => config,
        Err(error) => panic!("{text:?} is refused: {error}"),
    }
}

fn warnings(text: &str) -> String {
    let (_, warnings) = load(text).unwrap_or_else(|error| panic!("{text:?} is refused: {error}"));
    warnings
        .iter()
        .map(|warning| format!("{warning}\n"))
        .collect()
}

fn refusal(text: &str) -> String {
    match load(text) {
        Ok(_) => panic!("{text:?} is not refused"),
        Err(error) => error.to_string(),
    }
}

/// The settings of the files that RocketMQ 4.9 and 5.x deliver for a pair with static roles.
const STOCK_FILES: [&str; 4] = [
    "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n\
     fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n",
    "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\ndeleteWhen=04\n\
     fileReservedTime=48\nbrokerRole=SYNC_MASTER\nflushDiskType=ASYNC_FLUSH\n",
    "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=1\ndeleteWhen=04\n\
     fileReservedTime=48\nbrokerRole=SLAVE\nflushDiskType=ASYNC_FLUSH\n",
    "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=1\nbrokerRole=SLAVE\n\
     flushDiskType=ASYNC_FLUSH\nstorePathRootDir=/root/broker-a/store\n\
     storePathCommitLog=/root/broker-a/store/commitlog\nlistenPort=10911\nhaListenPort=10912\n\
     totalReplicas=2\ninSyncReplicas=2\nminInSyncReplicas=1\nenableAutoInSyncReplicas=true\n\
     slaveReadEnable=true\nbrokerHeartbeatInterval=1000\nbrokerNotActiveTimeoutMillis=5000\n\
     sendHeartbeatTimeoutMillis=1000\nenableSlaveActingMaster=true\n",
];

/// A file with keys of both lines, thread pools, fast failure and warm-up among them.
const FULL_FILE: &str = "\
namesrvAddr = 127.0.0.1:9876;127.0.0.1:9877
brokerName : broker-b
brokerRole   SYNC_MASTER
listenPort = 10921
slaveTimeout=2000
haMaxGapNotInSync=1048576
mappedFileSizeConsumeQueue=6000001
warmMapedFileEnable=true
sendMessageThreadPoolNums=16
brokerFastFailureEnable=false
timerWheelEnable=false
haMaxConnections = 0x10
haFirstReportTimeout = 8s
autoCreateTopicEnable = TRUE
";

#[test]
fn files_of_the_original_load() {
    for text in STOCK_FILES {
        let config = good(text);
        assert_eq!(config.text("brokerName"), "broker-a");
    }
    assert_eq!(good(STOCK_FILES[0]).role(), Role::AsyncMaster);
    assert_eq!(good(STOCK_FILES[1]).role(), Role::SyncMaster);
    assert_eq!(
        good(STOCK_FILES[0]).duration("fileReservedTime"),
        Duration::from_secs(48 * 3600)
    );
    let slave = good(STOCK_FILES[2]);
    assert!(slave.is_slave() && slave.int("brokerId") == 1);
    // Only what would have changed the pair's behaviour is warned about.
    assert_eq!(warnings(STOCK_FILES[0]), "");
    let container = warnings(STOCK_FILES[3]);
    assert_eq!(container.lines().count(), 2, "{container}");
    assert!(
        container.contains("enableAutoInSyncReplicas")
            && container.contains("enableSlaveActingMaster")
    );
}

#[test]
fn keys_of_both_lines_and_of_our_own_are_read() {
    let config = good(FULL_FILE);
    assert_eq!(config.bytes("haSlaveFallbehindMax"), 1 << 20);
    assert_eq!(config.bytes("mappedFileSizeConsumeQueue"), 6_000_020);
    assert_eq!(config.int("haMaxConnections"), 16);
    assert_eq!(
        config.duration("haFirstReportTimeout"),
        Duration::from_secs(8)
    );
    assert!(config.flag("autoCreateTopicEnable"));
    assert_eq!(config.list("deleteWhen"), ["04"]);
}

#[test]
fn what_is_printed_reads_back_as_the_same() {
    for text in STOCK_FILES
        .into_iter()
        .chain([FULL_FILE, "brokerName=a\\ b\\u00e9\\\\"])
    {
        let config = good(text);
        let printed = config.print();
        let (again, warnings) = Config::load(Some((Path::new("printed"), &printed)), &[], None)
            .unwrap_or_else(|error| panic!("{printed}\nis refused: {error}"));
        assert_eq!(warnings, [], "{printed}");
        assert!(
            again == config,
            "{printed}\nreads back as\n{}",
            again.print()
        );
        assert_eq!(again.print(), printed);
    }
}

#[test]
fn a_key_that_changes_nothing_says_so_in_print() {
    let printed = good("warmMapedFileEnable=true\n").print();
    let at = printed
        .find("warmMapedFileEnable=true")
        .expect("it is printed");
    let before = printed[..at].lines().last().expect("a line before it");
    assert!(
        before.starts_with("# known in RocketMQ, changes nothing here:"),
        "{before}"
    );
}

#[test]
fn defaults_are_the_originals() {
    let config = good("");
    assert_eq!(config.duration("slaveTimeout"), Duration::from_secs(3));
    assert_eq!(config.duration("syncFlushTimeout"), Duration::from_secs(5));
    assert_eq!(config.bytes("haTransferBatchSize"), 32 * 1024);
    assert_eq!(config.bytes("mappedFileSizeCommitLog"), 1 << 30);
    assert_eq!(config.bytes("maxMessageSize"), 4 << 20);
    assert_eq!(config.text("flushDiskType"), "ASYNC_FLUSH");
    assert_eq!(
        config.duration("haFirstReportTimeout"),
        Duration::from_secs(20)
    );
    assert_eq!(config.text("haSlaveAck"), "write");
    assert!(
        config
            .text("storePathCommitLog")
            .ends_with("/store/commitlog")
    );
}

#[test]
fn addresses_follow_from_one_another() {
    let config = good("");
    assert_eq!(config.listen_address().to_string(), "127.0.0.1:10911");
    assert_eq!(
        config.fast_address().expect("a fast port").to_string(),
        "127.0.0.1:10909"
    );
    assert_eq!(config.ha_address().to_string(), "127.0.0.1:10912");
    let config =
        good("brokerIP1=10.0.0.1\nbrokerIP2=127.0.0.3\nlistenPort=20000\nhaListenPort=30000");
    assert_eq!(config.listen_address().to_string(), "0.0.0.0:20000");
    assert_eq!(config.ha_address().to_string(), "127.0.0.3:30000");
    assert_eq!(config.advertised(20000).to_string(), "10.0.0.1:20000");
    assert_eq!(config.ha_advertised(30000).to_string(), "127.0.0.3:30000");
    let config = good("bindAddress=127.0.0.2\nlistenPort=0");
    assert_eq!(config.ha_address().to_string(), "127.0.0.2:0");
    assert_eq!(config.fast_address(), None);
    let alone = Config::load(None, &["brokerIP1=::1".into()], None)
        .expect("a usable configuration")
        .0;
    assert_eq!(alone.listen_address().to_string(), "[::1]:10911");
}

#[test]
fn arguments_overrule_the_file() {
    let (config, warnings) = load_with("slaveTimeout=1\n", &["slaveTimeout=2", "haMaxRate = 0"])
        .expect("a usable configuration");
    assert_eq!(config.int("slaveTimeout"), 2);
    assert_eq!(warnings, []);
    assert_eq!(config.list("namesrvAddr"), ["127.0.0.1:9876"]);
    let error = load_with("", &["slaveTimeout"]).expect_err("no value");
    assert_eq!(
        error.to_string(),
        "argument: \"slaveTimeout\" is not KEY=VALUE"
    );
}

#[test]
fn unknown_keys_are_warned_about_once_by_name() {
    let said = warnings("slaveTimout=1\nwibbleWobble=2\nslaveTimout=3\n");
    assert_eq!(
        said,
        "broker.conf:1: unknown key \"slaveTimout\" is ignored (did you mean slaveTimeout?)\n\
         broker.conf:2: unknown key \"wibbleWobble\" is ignored\n"
    );
}

#[test]
fn doubtful_settings_are_warned_about() {
    let cases = [
        ("brokerId=3", "brokerId=3 on a master counts as 0"),
        ("brokerRole=SYNC_MASTER", "inSyncReplicas below 2 acts as 2"),
        (
            "diskMaxUsedSpaceRatio=99",
            "99 is outside 10 to 95; 95 is used",
        ),
        ("registerNameServerPeriod=1000", "10000 is used"),
        (
            "slaveReadEnable=yes",
            "neither true nor false and counts as false",
        ),
        (
            "slaveTimeout=1\nslaveTimeout=2",
            "broker.conf:2: slaveTimeout was set before",
        ),
        (
            "haSlaveFallbehindMax=1\nhaMaxGapNotInSync=2",
            "haMaxGapNotInSync was set before",
        ),
        (
            "transientStorePoolEnable=true",
            "transientStorePoolEnable=true has no effect in this version",
        ),
        ("enableSlaveActingMaster=true", "goes on with false"),
    ];
    for (text, wanted) in cases {
        let said = warnings(text);
        assert!(said.contains(wanted), "{text:?} says {said:?}");
    }
    let config = good("brokerRole=SYNC_MASTER\nbrokerId=3\ntransientStorePoolEnable=true");
    assert_eq!(config.int("inSyncReplicas"), 2);
    assert_eq!(config.int("brokerId"), 0);
    assert!(!config.flag("transientStorePoolEnable"));
    assert_eq!(warnings("brokerRole=SYNC_MASTER\ninSyncReplicas=3"), "");
}

#[test]
fn what_cannot_work_is_refused_with_its_reason() {
    let cases = [
        (
            "brokerRole=SLAVE",
            "a SLAVE needs a brokerId above 0, and this is 0",
        ),
        (
            "brokerRole=slave",
            "broker.conf:1: brokerRole: \"slave\" is not one of ASYNC_MASTER",
        ),
        ("brokerName=", "brokerName is empty"),
        (
            "slaveTimeout=3s",
            "slaveTimeout: \"3s\" is not a whole number",
        ),
        ("slaveTimeout=0", "0 is outside 1 to 2147483647"),
        ("haMaxRate=fast", "is not a number with an optional unit"),
        (
            "haTransferBatchSize=0",
            "haTransferBatchSize=0 would never transfer anything",
        ),
        (
            "haTransferBatchSize=4194293",
            "4194293 is outside 0 to 4194292",
        ),
        (
            "mappedFileSizeCommitLog=100",
            "100 is outside 4096 to 2147483647",
        ),
        ("maxMessageSize=16777216", "is outside 10 to"),
        ("maxIndexNum=2147483647", "index files of"),
        ("listenPort=65536", "65536 is outside 0 to 65535"),
        ("listenPort=2", "leaves no room for the fast port"),
        ("listenPort=65535", "leaves no room for the HA port"),
        (
            "haListenPort=10911",
            "haListenPort=10911 is also listenPort",
        ),
        (
            "haListenPort=10909",
            "haListenPort=10909 is also the fast port",
        ),
        ("storePathRootDir=", "storePathRootDir is empty"),
        (
            "storePathRootDir=/s\nstorePathCommitLog=/s/config",
            "is config, which holds other files",
        ),
        (
            "storePathRootDir=/s\nstorePathCommitLog=/s",
            "is storePathRootDir",
        ),
        ("namesrvAddr=somewhere", "\"somewhere\" is not HOST:PORT"),
        ("haMasterAddress=10.0.0.1", "\"10.0.0.1\" is not HOST:PORT"),
        ("brokerIP1=0.0.0.0", "no address that others can connect to"),
        ("bindAddress=a b", "is not an address or a host name"),
        (
            "brokerRole=SYNC_MASTER\ninSyncReplicas=20",
            "needs 19 slaves, and haMaxConnections=16",
        ),
        (
            "haAllowedSlaves=10.0.0.0/8",
            "haAllowedSlaves=10.0.0.0/8 is not supported: there is no list",
        ),
        ("deleteWhen=04;25", "\"25\" is not an hour from 00 to 23"),
        (
            "messageDelayLevel=1s x",
            "\"x\" is not a number followed by",
        ),
        (
            "enableControllerMode=true",
            "enableControllerMode=true is not supported: roles are fixed",
        ),
        (
            "enableDLegerCommitLog=true",
            "enableDLegerCommitLog=true is not supported",
        ),
        (
            "storeType=defaultRocksDB",
            "storeType=defaultRocksDB is not supported",
        ),
        (
            "aclEnable=true",
            "aclEnable=true is not supported: there is no access control",
        ),
        ("useTLS=true", "useTLS=true is not supported"),
        (
            "haSlaveAck=flush",
            "haSlaveAck=flush is not supported: the slave's report covers",
        ),
        (
            "brokerName=\\u12",
            "broker.conf:1: \\u needs four hexadecimal digits",
        ),
    ];
    for (text, wanted) in cases {
        let said = refusal(text);
        assert!(said.contains(wanted), "{text:?} says {said:?}");
    }
    // All reasons are told at once.
    assert_eq!(
        refusal("listenPort=x\nslaveTimeout=y\nbrokerRole=SLAVE")
            .lines()
            .count(),
        3
    );
}

#[test]
fn a_slave_without_a_way_to_its_master_is_refused() {
    // The environment may name a name server; then there is a way.
    if std::env::var("NAMESRV_ADDR").is_ok() {
        println!("skipped: NAMESRV_ADDR is set");
        return;
    }
    let arguments = |more: &str| ["brokerRole=SLAVE".into(), "brokerId=1".into(), more.into()];
    let error = Config::load(None, &arguments("brokerName=a"), None).expect_err("no master");
    assert!(
        error
            .to_string()
            .contains("needs namesrvAddr or haMasterAddress"),
        "{error}"
    );
    Config::load(None, &arguments("haMasterAddress=127.0.0.1:1"), None)
        .expect("a way to its master");
}

#[test]
fn a_file_as_test_tools_write_it_loads_without_a_word() {
    let text = "brokerClusterName=KitCluster\nbrokerName=kit\nbrokerId=1\nbrokerRole=SLAVE\nlistenPort=30002\n\
                haListenPort=30003\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nstorePathRootDir=/h/store\n\
                storePathCommitLog=/h/store/commitlog\nflushDiskType=ASYNC_FLUSH\nmappedFileSizeCommitLog=16777216\n\
                mappedFileSizeConsumeQueue=200000\nmaxHashSlotNum=10000\nmaxIndexNum=100000\n\
                autoCreateTopicEnable=false\nslaveReadEnable=true\nnamesrvAddr=127.0.0.1:30000\n";
    assert_eq!(warnings(text), "");
}

#[test]
fn every_key_has_a_lookup_of_its_kind() {
    let config = good("");
    for key in KEYS.keys() {
        // Each of these panics if the value is of another kind.
        match key.kind {
            Kind::Flag => println!("{}", config.flag(key.name)),
            Kind::Int { .. } => println!("{}", config.int(key.name)),
            Kind::Bytes { .. } => println!("{}", config.bytes(key.name)),
            Kind::Time { .. } => println!("{:?}", config.duration(key.name)),
            Kind::List(_) | Kind::Peers(_) => println!("{:?}", config.list(key.name)),
            _ => println!("{}", config.text(key.name)),
        }
        assert!(!key.help.is_empty(), "{} has no help", key.name);
    }
}

#[test]
#[should_panic(expected = "slaveTimout is not a key of this table")]
fn a_lookup_of_a_name_that_is_no_key_is_a_mistake() {
    good("").int("slaveTimout");
}

#[test]
fn every_name_is_in_its_table_once() {
    for table in [&KEYS, &NAMESRV_KEYS] {
        let unused = table.unused.iter().flat_map(|group| group.names());
        let mut names: Vec<&str> = table.keys().flat_map(Key::names).chain(unused).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None);
    }
}

#[test]
fn a_key_of_a_later_version_has_no_effect_yet() {
    let later = KEYS
        .keys()
        .filter(|key| matches!(key.effect, Effect::Later { .. }));
    assert!(later.count() > 10);
    let config = good("haPoll=50us\nhaMaxRate=1m");
    assert_eq!((config.int("haPoll"), config.bytes("haMaxRate")), (0, 0));
}

#[test]
fn a_reload_finds_what_has_changed() {
    let (old, new) = (
        good("slaveTimeout=1"),
        good("slaveTimeout=2\nlogLevel=debug"),
    );
    let changed: Vec<_> = old
        .changed(&new)
        .map(|key| (key.name, key.reloadable))
        .collect();
    assert_eq!(changed, [("slaveTimeout", false), ("logLevel", true)]);
}

#[test]
fn a_name_server_has_its_own_keys() {
    let text =
        "listenPort = 9886\nkvConfigPath=/x\nbindAddress=127.0.0.1\nsupportActingMaster=true\n";
    let (config, warnings) = NamesrvConfig::load(Some((Path::new("ns.conf"), text)), &[])
        .expect("a usable configuration");
    assert_eq!(config.listen_address().to_string(), "127.0.0.1:9886");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let printed = config.print();
    let (again, _) =
        NamesrvConfig::load(Some((Path::new("p"), &printed)), &[]).expect("it reads back");
    assert!(again == config);
    let (plain, _) = NamesrvConfig::load(None, &["listenPort=9876".into()]).expect("defaults");
    assert_eq!(plain.listen_address().to_string(), "0.0.0.0:9876");
    assert!(NamesrvConfig::load(None, &["enableControllerInNamesrv=true".into()]).is_err());
}

/// A key that is said to work and that nothing reads would be the worst kind of setting.
#[test]
fn every_key_that_is_said_to_work_is_read() {
    let mut code = String::new();
    collect(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut code,
    );
    let used = |key: &&Key| matches!(key.effect, Effect::Used);
    let keys = KEYS.keys().chain(NAMESRV_KEYS.keys()).filter(used);
    let unread: Vec<&str> = keys
        .map(|key| key.name)
        .filter(|name| !code.contains(&format!("\"{name}\"")))
        .collect();
    assert_eq!(unread, [] as [&str; 0]);
}

/// The text of all sources but the table of keys itself.
fn collect(dir: &Path, code: &mut String) {
    for entry in std::fs::read_dir(dir).expect("a source directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("config/keys") {
            collect(&path, code);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *code += &std::fs::read_to_string(&path).expect("a source file");
        }
    }
}
