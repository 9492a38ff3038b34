//! The two loops of replication over real sockets, with logs in memory.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use twinmq::ha::byte_log::{AppendError, Log};
use twinmq::ha::connection::State;
use twinmq::ha::{GroupTransfer, HaConfig, LinkState, MasterService, Replicated, SlaveService};
use twinmq::store::{Message, Store, StoreConfig};

#[path = "common/fake_master.rs"]
mod fake_master;
#[path = "common/fake_slave.rs"]
mod fake_slave;
// Each test binary uses a part of it.
#[allow(dead_code)]
#[path = "common/memory_log.rs"]
mod memory_log;

use fake_master::FakeMaster;
use fake_slave::FakeSlave;
use memory_log::MemoryLog;

const FILE: u64 = 1 << 16;
const PATIENCE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

fn config() -> HaConfig {
    HaConfig {
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..HaConfig::default()
    }
}

/// A master without a broker around it.
struct Master {
    log: Arc<MemoryLog>,
    group: Arc<GroupTransfer>,
    service: MasterService,
}

impl Master {
    fn start(config: &HaConfig) -> Master {
        Master::with_log(config, Arc::new(MemoryLog::new(FILE)))
    }

    fn with_log(config: &HaConfig, log: Arc<MemoryLog>) -> Master {
        let group = GroupTransfer::start(config.demand()).expect("a thread");
        let service = MasterService::start(config, log.clone(), group.clone());
        Master {
            log,
            group,
            service: service.expect("a free port"),
        }
    }

    fn append(&self, body: &[u8]) -> u64 {
        let end = self.log.append_message(body);
        self.log.wake();
        end
    }

    /// A synchronous send.
    fn send(&self, body: &[u8], patience: Duration) -> Receiver<Replicated> {
        let end = self.append(body);
        let (send, receive) = mpsc::channel();
        let deadline = Instant::now() + patience;
        let done = move |how| {
            // A test that has ended listens no more.
            let _ = send.send(how);
        };
        self.group.submit(end, deadline, Box::new(done));
        receive
    }

    fn slaves(&self) -> usize {
        self.service.figures().len()
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.service.stop();
        self.group.stop();
    }
}

fn slave_of(address: SocketAddr, config: &HaConfig) -> (Arc<MemoryLog>, SlaveService) {
    let log = Arc::new(MemoryLog::new(FILE));
    let slave = SlaveService::start(config, log.clone()).expect("a thread");
    slave.set_master(Some(address.to_string()));
    (log, slave)
}

/// Waits for a condition rather than for a time.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_slave_catches_up_over_files_and_follows() {
    // C-6, C-8, C-16, C-18.
    let master = Master::start(&config());
    (0..500).for_each(|n| {
        master.append(&vec![n as u8; n * 7]);
    });
    assert!(master.log.end() > 10 * FILE);
    let (log, slave) = slave_of(master.service.address(), &config());
    eventually("caught up", || log.end() == master.log.end());
    assert_eq!(log.bytes(), master.log.bytes());
    let sent = master.send(b"live", PATIENCE);
    assert_eq!(sent.recv(), Ok(Replicated::Yes));
    assert_eq!(log.bytes(), master.log.bytes());
    eventually("streaming on both sides", || {
        let figures = master.service.figures();
        slave.figures().state == LinkState::Streaming
            && figures
                .iter()
                .all(|f| f.state == State::Streaming && f.lag_bytes == 0)
    });
    let figures = master.service.figures()[0];
    assert_eq!(figures.reported, Some(master.log.end()));
    assert!(figures.in_sync);
    slave.stop();
    // B132: the master knows at once.
    eventually("no slave", || master.slaves() == 0);
    let sent = master.send(b"nobody", PATIENCE);
    assert_eq!(sent.recv(), Ok(Replicated::NoSlave));
}

#[test]
fn a_slave_that_was_up_to_date_acknowledges_soon_after_it_came_back() {
    // DECISIONS 1: its first report counts for nothing, the second comes with the first unit.
    let master = Master::start(&config());
    let log = Arc::new(MemoryLog::new(FILE));
    for log in [&master.log, &log] {
        log.append_message(b"both have it");
    }
    let slave = SlaveService::start(&config(), log).expect("a thread");
    slave.set_master(Some(master.service.address().to_string()));
    let end = master.log.end();
    let start = Instant::now();
    eventually("acknowledged", || {
        master
            .service
            .figures()
            .iter()
            .any(|f| f.reported == Some(end))
    });
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "before a heartbeat is due"
    );
    slave.stop();
}

#[test]
fn the_master_is_silent_until_the_first_report_is_complete() {
    // C-1, C-2.
    let master = Master::start(&config());
    master.append(b"x");
    let mut slave = FakeSlave::connect(master.service.address());
    assert!(matches!(slave.transfer(SHORT), Ok(None)));
    slave.raw(&[0; 3]);
    assert!(matches!(slave.transfer(SHORT), Ok(None)));
    slave.raw(&[0; 5]);
    let (start, body) = slave.transfer(PATIENCE).expect("open").expect("a transfer");
    assert_eq!((start, body), (0, master.log.bytes()));
}

#[test]
fn of_two_reports_in_one_segment_the_last_one_is_the_request() {
    // C-5.
    let master = Master::start(&config());
    let first = master.append(b"1");
    let second = master.append(b"2");
    master.append(b"3");
    let mut slave = FakeSlave::connect(master.service.address());
    slave.raw(&[first.to_be_bytes(), second.to_be_bytes()].concat());
    let (start, _) = slave.transfer(PATIENCE).expect("open").expect("a transfer");
    assert_eq!(start as u64, second);
}

#[test]
fn stray_bytes_never_let_a_send_succeed() {
    // J1, J2, B19.
    let master = Master::start(&config());
    let end = master.append(b"first");
    let beyond = [end.to_be_bytes(), (end + 1_000_000).to_be_bytes()];
    let strays: [&[u8]; 7] = [
        b"",
        &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x12, 0x9a, 0x55, 0x01, 0x77, 0xee, 0x03, 0x9c],
        b"_SERVICE",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[
            0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0x55, 0x55, 0x55, 0x55, 0x55,
        ],
        &beyond.concat(),
    ];
    for stray in strays {
        let mut peer = FakeSlave::connect(master.service.address());
        peer.raw(stray);
        if !stray.is_empty() {
            assert!(peer.is_closed_within(PATIENCE), "{stray:02x?}");
        }
        let sent = master.send(b"x", SHORT);
        assert_ne!(sent.recv(), Ok(Replicated::Yes), "{stray:02x?}");
        drop(peer);
        let sent = master.send(b"x", SHORT);
        assert_ne!(sent.recv(), Ok(Replicated::Yes), "after {stray:02x?}");
    }
    // A true slave that joins now shows a lag that is none.
    let (log, slave) = slave_of(master.service.address(), &config());
    eventually("caught up", || log.end() == master.log.end());
    let sent = master.send(b"x", PATIENCE);
    assert_eq!(sent.recv(), Ok(Replicated::Yes));
    slave.stop();
}

#[test]
fn an_ack_beyond_what_was_sent_does_not_count_though_the_request_was_valid() {
    let master = Master::start(&config());
    let end = master.append(b"first");
    let mut peer = FakeSlave::connect(master.service.address());
    peer.report(end as i64);
    peer.transfer(PATIENCE).expect("open").expect("a heartbeat");
    let sent = master.send(b"x", PATIENCE);
    peer.report(end as i64 + 1_000_000);
    assert_eq!(sent.recv(), Ok(Replicated::NoSlave));
    assert!(peer.is_closed_within(PATIENCE));
}

#[test]
fn a_send_waits_its_time_for_a_slave_that_says_nothing_and_no_longer_for_one_that_left() {
    // C-61, J7.
    let master = Master::start(&config());
    let end = master.append(b"first");
    let mut slave = FakeSlave::connect(master.service.address());
    slave.report(end as i64);
    slave
        .transfer(PATIENCE)
        .expect("open")
        .expect("a heartbeat");
    let start = Instant::now();
    let sent = master.send(b"x", SHORT);
    assert_eq!(sent.recv(), Ok(Replicated::Timeout));
    assert!(start.elapsed() >= SHORT);
    let sent = master.send(b"x", 10 * PATIENCE);
    drop(slave);
    assert_eq!(sent.recv_timeout(PATIENCE), Ok(Replicated::NoSlave));
}

#[test]
fn a_request_outside_the_log_is_closed_at_once() {
    // J8, C-13, C-14.
    let log = Arc::new(MemoryLog::starting_at(FILE, 3 * FILE));
    let master = Master::with_log(&config(), log);
    let end = master.append(b"x");
    for bad in [end as i64 + 1, 3 * FILE as i64 - 1, 4711, -2] {
        let mut slave = FakeSlave::connect(master.service.address());
        slave.report(bad);
        assert!(slave.is_closed_within(PATIENCE), "{bad}");
    }
}

#[test]
fn silence_is_closed_before_and_after_the_first_report_and_a_quiet_link_has_heartbeats() {
    // C-9, C-11, J9.
    let config = HaConfig {
        heartbeat: Duration::from_millis(50),
        housekeeping: Duration::from_millis(400),
        first_report: Duration::from_millis(400),
        ..config()
    };
    let master = Master::start(&config);
    let end = master.append(b"x") as i64;
    let start = Instant::now();
    let mut mute = FakeSlave::connect(master.service.address());
    let mut slave = FakeSlave::connect(master.service.address());
    for _ in 0..20 {
        slave.report(end);
        let unit = slave
            .transfer(PATIENCE)
            .expect("a slave that reports stays");
        assert_eq!(unit, Some((end, vec![])));
    }
    assert!(
        start.elapsed() > config.housekeeping,
        "it outlived the limit"
    );
    assert!(mute.is_closed_within(PATIENCE));
    assert!(slave.is_closed_within(PATIENCE));
    eventually("no slave", || master.slaves() == 0);
}

#[test]
fn a_slow_slave_stays_and_gets_everything_in_order() {
    // C-10, B134, P19: others are served meanwhile, and little is held for it.
    let master = Master::start(&config());
    for _ in 0..600 {
        master.append(&[7; 30_000]);
    }
    let mut slow = FakeSlave::connect(master.service.address());
    slow.report(0);
    let (log, quick) = slave_of(master.service.address(), &config());
    eventually("the other one caught up", || log.end() == master.log.end());
    let sent = master.send(b"live", PATIENCE);
    assert_eq!(sent.recv(), Ok(Replicated::Yes));
    let mut got = Vec::new();
    while (got.len() as u64) < master.log.end() {
        let (start, body) = slow.transfer(PATIENCE).expect("open").expect("more");
        assert_eq!(start as usize, got.len());
        assert!(body.len() <= 32 * 1024);
        got.extend(body);
    }
    assert!(got == master.log.bytes());
    quick.stop();
}

#[test]
fn a_thousand_probes_leave_no_descriptor_behind() {
    // B128, B129, B131: some with a few bytes, some reset.
    let master = Master::start(&config());
    let before = descriptors();
    for n in 0..1000 {
        let socket = TcpStream::connect(master.service.address()).expect("it accepts");
        let mut probe = socket;
        if n % 3 == 1 {
            std::io::Write::write_all(&mut probe, &vec![0; n % 8]).expect("it reads");
        }
        if n % 5 == 0 {
            let linger = Some(Duration::ZERO);
            socket2::SockRef::from(&probe)
                .set_linger(linger)
                .expect("a reset");
        }
    }
    eventually("all gone", || master.slaves() == 0);
    eventually("descriptors", || descriptors() <= before + 20);
    let (log, slave) = slave_of(master.service.address(), &config());
    master.append(b"x");
    eventually("a slave gets in", || log.end() == master.log.end());
    slave.stop();
}

/// Of this process; the tests beside this one have some too.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}

#[test]
fn at_the_limit_the_oldest_connection_without_a_report_yields_and_slaves_do_not() {
    // J2, DECISIONS 10.
    let config = HaConfig {
        max_connections: 3,
        ..config()
    };
    let master = Master::start(&config);
    let end = master.append(b"x") as i64;
    let mut slave = FakeSlave::connect(master.service.address());
    slave.report(end);
    slave
        .transfer(PATIENCE)
        .expect("open")
        .expect("a heartbeat");
    let mut mutes: Vec<_> = (0..3)
        .map(|_| FakeSlave::connect(master.service.address()))
        .collect();
    assert!(mutes[0].is_closed_within(PATIENCE), "the oldest mute one");
    for mute in &mut mutes[1..] {
        mute.report(end);
        mute.transfer(PATIENCE).expect("open").expect("a heartbeat");
    }
    let mut late = FakeSlave::connect(master.service.address());
    assert!(late.is_closed_within(PATIENCE), "all places are taken");
    slave.report(end);
    eventually("three", || master.slaves() == 3);
}

#[test]
fn the_slave_reports_first_then_record_ends_and_never_half_of_one() {
    // C-40, C-43, C-47: every header split is in the unit tests; here the sockets take part.
    let source = MemoryLog::new(FILE);
    let end = source.append_message(&[9; 3000]);
    let master = FakeMaster::listen();
    let (log, slave) = slave_of(master.address, &config());
    let mut link = master.accept();
    assert_eq!(link.report(PATIENCE).expect("a report"), 0);
    let bytes = source.bytes();
    link.transfer(0, &bytes[..1000]);
    link.transfer(1000, &bytes[1000..2999]);
    assert!(link.report(SHORT).is_err(), "nothing is whole yet");
    assert!(log.is_empty());
    link.transfer(2999, &bytes[2999..]);
    assert_eq!(link.report(PATIENCE).expect("a report"), end);
    assert_eq!(log.bytes(), bytes);
    slave.stop();
    assert!(link.is_closed_within(PATIENCE));
}

#[test]
fn the_slave_closes_on_wrong_bytes_comes_back_and_is_not_wedged() {
    // J13, C-45, DECISIONS 4.
    let source = MemoryLog::new(FILE);
    let first = source.append_message(b"hello");
    source.append_message(b"second");
    let record = source.tail(first);
    let mut magic = record.clone();
    magic[4] ^= 1;
    let mut body = record.clone();
    body[90] ^= 1;
    let header = |length: i32| [&first.to_be_bytes()[..], &length.to_be_bytes()].concat();
    let unit = |body: &[u8]| [&header(body.len() as i32)[..], body].concat();
    let elsewhere = [&(first + 100).to_be_bytes()[..], &[0; 4]].concat();
    let evil = [
        header(-1),
        header(i32::MIN),
        header(64 << 20),
        unit(&magic),
        unit(&body),
        elsewhere,
    ];
    let master = FakeMaster::listen();
    let (log, slave) = slave_of(master.address, &config());
    let mut link = master.accept();
    assert_eq!(link.report(PATIENCE).expect("a report"), 0);
    link.transfer(0, &source.bytes()[..first as usize]);
    assert!(link.wait_report(first, PATIENCE));
    for (n, bytes) in evil.iter().enumerate() {
        link.raw(bytes);
        assert!(link.is_closed_within(PATIENCE), "case {n}");
        // Within ten seconds in all cases, though it pauses longer each time.
        let again = master.try_accept(Duration::from_secs(10));
        link = again.expect("the slave comes back");
        assert_eq!(link.report(PATIENCE).expect("a report"), first, "case {n}");
    }
    assert_eq!(log.end(), first);
    link.transfer(first, &record);
    assert!(link.wait_report(source.end(), PATIENCE));
    assert_eq!(log.bytes(), source.bytes());
    slave.stop();
}

#[test]
fn a_master_that_half_closes_is_left_and_found_again() {
    // B125: no spinning on a socket that stays readable.
    let master = FakeMaster::listen();
    let (_log, slave) = slave_of(master.address, &config());
    let link = master.accept();
    link.socket.shutdown(Shutdown::Write).expect("a socket");
    let mut next = master.accept();
    assert_eq!(next.report(PATIENCE).expect("a report"), 0);
    eventually("a reason", || slave.figures().last_error.is_some());
    slave.stop();
}

#[test]
fn a_silent_master_is_left() {
    // C-49, W-15.
    let config = HaConfig {
        heartbeat: Duration::from_millis(50),
        housekeeping: Duration::from_millis(300),
        ..config()
    };
    let master = FakeMaster::listen();
    let (_log, slave) = slave_of(master.address, &config);
    let mut link = master.accept();
    for _ in 0..4 {
        assert_eq!(link.report(PATIENCE).expect("a report each interval"), 0);
    }
    assert!(link.is_closed_within(PATIENCE));
    master.accept();
    slave.stop();
}

#[test]
fn another_address_ends_the_old_link_at_once() {
    // C-52, W-16.
    let (old, new) = (FakeMaster::listen(), FakeMaster::listen());
    let (_log, slave) = slave_of(old.address, &config());
    let mut link = old.accept();
    assert_eq!(link.report(PATIENCE).expect("a report"), 0);
    slave.set_master(Some(new.address.to_string()));
    assert!(link.is_closed_within(Duration::from_secs(1)));
    assert_eq!(new.accept().report(PATIENCE).expect("a report"), 0);
    slave.set_master(None);
    eventually("no master", || slave.figures().state == LinkState::NoMaster);
    slave.stop();
    assert_eq!(slave.figures().state, LinkState::Stopped);
}

#[test]
fn an_unreachable_master_is_named_with_the_reason() {
    // B29.
    let (_log, slave) = slave_of(SocketAddr::from(([127, 0, 0, 1], 1)), &config());
    eventually("a reason", || {
        let figures = slave.figures();
        let reason = figures.last_error.unwrap_or_default();
        figures.state == LinkState::Connecting && reason.contains("127.0.0.1:1")
    });
    slave.set_master(Some("no port in here".to_string()));
    eventually("another reason", || {
        let reason = slave.figures().last_error.unwrap_or_default();
        reason.contains("no port in here")
    });
    slave.stop();
}

#[test]
fn a_full_disk_ends_the_link_and_room_brings_it_back() {
    // J7.
    let master = Master::start(&config());
    let (log, slave) = slave_of(master.service.address(), &config());
    assert_ne!(master.append(b"x"), 0);
    eventually("caught up", || log.end() == master.log.end());
    log.refuse_appends(Some(AppendError::Full("no space left".to_string())));
    let sent = master.send(b"y", 10 * PATIENCE);
    assert_eq!(sent.recv_timeout(PATIENCE), Ok(Replicated::NoSlave));
    eventually("it says so", || {
        slave.figures().state == LinkState::DiskFull
    });
    log.refuse_appends(None);
    eventually("room again", || log.end() == master.log.end());
    slave.stop();
}

#[test]
fn a_slave_ahead_of_the_master_is_refused_and_keeps_its_log() {
    // J8, B53.
    let master = Master::start(&config());
    let log = Arc::new(MemoryLog::new(FILE));
    let end = log.append_message(b"only here");
    let slave = SlaveService::start(&config(), log.clone()).expect("a thread");
    slave.set_master(Some(master.service.address().to_string()));
    eventually("refused", || slave.figures().state == LinkState::Refused);
    assert_eq!(log.end(), end);
    let sent = master.send(b"x", SHORT);
    assert_ne!(sent.recv(), Ok(Replicated::Yes));
    slave.stop();
}

#[test]
fn a_slave_serves_slaves_of_its_own() {
    // Every broker listens on its HA port; the wire allows a chain.
    let master = Master::start(&config());
    let (log, middle) = slave_of(master.service.address(), &config());
    let relay = Master::with_log(&config(), log);
    let (last, slave) = slave_of(relay.service.address(), &config());
    for n in 0..100u8 {
        master.append(&[n; 2000]);
    }
    eventually("at the end of the chain", || last.end() == master.log.end());
    assert_eq!(last.bytes(), master.log.bytes());
    middle.stop();
    slave.stop();
}

/// A store with small files, so that their borders come quickly.
fn open_store(root: &std::path::Path, slave: bool) -> Arc<Store> {
    let mut config = StoreConfig::new(root);
    config.log_file_size = FILE;
    config.queue_file_size = 20_000;
    config.hash_slots = 1000;
    config.index_entries = 4000;
    config.slave = slave;
    Store::open(config).expect("a store")
}

fn store_message(store: &Store, body: &[u8]) -> u64 {
    let host = SocketAddr::from(([127, 0, 0, 1], 10911));
    let message = Message {
        topic: "T",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_ms: 1,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties: b"",
    };
    let appended = store.append(&[message]).expect("a legal message");
    store.wake_followers();
    appended.end
}

#[test]
fn two_stores_are_equal_after_the_slave_began_late_and_came_back() {
    // C-56, C-57, I7: the real store instead of the one in memory.
    let (one, two) = (tempfile::tempdir(), tempfile::tempdir());
    let (one, two) = (one.expect("a directory"), two.expect("a directory"));
    let store = open_store(one.path(), false);
    let group = GroupTransfer::start(config().demand()).expect("a thread");
    let service = MasterService::start(&config(), store.clone(), group.clone());
    let service = service.expect("a free port");
    for _ in 0..3 {
        (0..300usize).for_each(|n| {
            store_message(&store, &vec![n as u8; n * 3]);
        });
        let copy = open_store(two.path(), true);
        let slave = SlaveService::start(&config(), copy.clone()).expect("a thread");
        slave.set_master(Some(service.address().to_string()));
        let end = store.log().end();
        eventually("caught up", || copy.log().end() == end);
        eventually("dispatched", || copy.dispatched().get() == end);
        let queues = (store.queue_bounds("T", 0), copy.queue_bounds("T", 0));
        eventually("the same queue", || store.dispatched().get() == end);
        assert_eq!(queues.1, store.queue_bounds("T", 0), "{queues:?}");
        slave.stop();
        copy.close().expect("a clean stop");
    }
    service.stop();
    group.stop();
    let end = store.log().end();
    assert!(end > 3 * FILE);
    let copy = open_store(two.path(), true);
    let mut at = 0;
    while at < end {
        let (ours, theirs) = (store.log().read(at, 4096), copy.log().read(at, 4096));
        let (ours, theirs) = (ours.expect("bytes"), theirs.expect("bytes"));
        assert!(*ours == *theirs, "the logs differ at {at}");
        at += ours.len() as u64;
    }
    assert_eq!(copy.log().end(), end);
}
