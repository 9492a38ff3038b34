//! One master, two slaves and the sends that wait for them, in one thread, driven by a seed: links
//! that split, delay and cut, half-open ends, slaves that crash, impostors at the HA port.
//!
//! `SIM_SEED=n` runs one seed, `SIM_SEEDS=n` the first n; a failure prints its seed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use twinmq::ha::byte_log::{Log, LogRange};
use twinmq::ha::connection::{Connection, EmptySlaveFrom, Heard, Rules};
use twinmq::ha::group_transfer::{Demand, Ledger, Replicated};
use twinmq::ha::replica::{Replica, Timing};

// Each test binary uses a part of it.
#[allow(dead_code)]
#[path = "common/memory_log.rs"]
mod memory_log;
#[path = "common/pipe.rs"]
mod pipe;

use memory_log::MemoryLog;
use pipe::Pipe;

const FILE: u64 = 4096;
const STEPS: usize = 3000;
const SLAVES: usize = 2;
const DEFAULT_SEEDS: u64 = 12;
const SLAVE_TIMEOUT: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_secs(5);
const HOUSEKEEPING: Duration = Duration::from_secs(20);

/// Always: a slave's log is the master's from where it begins (I7), what it reports is in its log
/// and never falls within a connection (I8), and no send hears "replicated" before as many slaves
/// as are required have its bytes. Once the faults stop, everything catches up.
#[test]
fn slaves_are_always_prefixes_acks_are_true_and_all_catch_up() {
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..STEPS {
                world.step();
                world.check();
            }
            world.heal_and_catch_up();
        });
        assert!(run.is_ok(), "run it again with SIM_SEED={seed}");
    }
}

fn seeds() -> Vec<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text: String| text.parse().ok())
    };
    match (number("SIM_SEED"), number("SIM_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, count) => (1..=count.unwrap_or(DEFAULT_SEEDS)).collect(),
    }
}

/// The whole system.
struct World {
    random: Random,
    now: Instant,
    log: MemoryLog,
    /// Every byte that the master ever appended.
    history: Vec<u8>,
    ledger: Ledger<u64>,
    required: usize,
    /// Sends that were not answered yet.
    waiting: BTreeMap<u64, Send>,
    next_send: u64,
    next_connection: u64,
    slaves: Vec<Slave>,
    /// Ends of connections that the master has and nobody serves any more, impostors' included.
    orphans: Vec<MasterEnd>,
}

struct Send {
    end: u64,
    deadline: Instant,
}

struct Slave {
    log: MemoryLog,
    replica: Replica,
    link: Option<Link>,
    /// The furthest that its log ever reached: what a crash loses was there when it was reported.
    reached: u64,
    /// Its log was compared with the master's up to here.
    compared: u64,
    reported: u64,
}

/// A connection with both ends. Bytes move from one end's output to the other's input.
struct Link {
    master: MasterEnd,
    slave_input: Vec<u8>,
}

struct MasterEnd {
    core: Connection<Vec<u8>>,
    socket: Pipe,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let required = 1 + random.below(SLAVES as u64) as usize;
        let now = Instant::now();
        World {
            random,
            now,
            log: MemoryLog::new(FILE),
            history: Vec::new(),
            ledger: Ledger::new(demand(required)),
            required,
            waiting: BTreeMap::new(),
            next_send: 0,
            next_connection: 0,
            slaves: (0..SLAVES).map(|_| Slave::new(now)).collect(),
            orphans: Vec::new(),
        }
    }

    fn step(&mut self) {
        let slave = self.random.below(SLAVES as u64) as usize;
        match self.random.below(100) {
            0..20 => self.send(),
            20..45 => self.master_turn(slave),
            45..70 => self.slave_turn(slave),
            70..84 => self.deliver(slave),
            84..88 => self.connect(slave),
            88..94 => self.pass_up_to(2500),
            94 => self.pass_up_to(25_000),
            95 => self.cut(slave),
            96 => self.crash_slave(slave),
            97 => self.impostor(),
            98 => self.delete_files(),
            _ if self.random.below(10) == 0 => self.restart_master(),
            _ => self.serve_orphans(),
        }
    }

    /// A producer's message: appended, and waited for.
    fn send(&mut self) {
        let size = self.random.below(1500) as usize;
        let body: Vec<u8> = (0..size).map(|_| self.random.next() as u8).collect();
        let end = self.log.append_message(&body);
        self.history
            .extend(self.log.tail(self.history.len() as u64));
        let id = self.next_send;
        self.next_send += 1;
        let deadline = self.now + SLAVE_TIMEOUT;
        self.waiting.insert(id, Send { end, deadline });
        if let Some((id, how)) = self.ledger.submit(end, deadline, id) {
            self.answered(id, how);
        }
    }

    /// The master's turn for one slave: what came is read, and what fits is written.
    fn master_turn(&mut self, slave: usize) {
        let room = self.random.size();
        if let Some(link) = &mut self.slaves[slave].link {
            link.master.socket.room = room;
            link.master.turn(&self.log, &mut self.ledger, self.now);
        }
        self.drop_closed();
    }

    fn slave_turn(&mut self, number: usize) {
        let slave = &mut self.slaves[number];
        let Some(link) = &mut slave.link else { return };
        let bytes = std::mem::take(&mut link.slave_input);
        let ended = bytes.is_empty() && link.master.core.is_closed();
        let taken = match bytes.is_empty() {
            true => slave.replica.on_tick(&slave.log, self.now),
            false => slave.replica.on_bytes(&bytes, &slave.log, self.now),
        };
        slave.reached = slave.reached.max(slave.log.end());
        assert!(
            slave.replica.reported() <= slave.log.end(),
            "I8: it is there"
        );
        assert!(
            slave.replica.reported() >= slave.reported,
            "I8: it never falls"
        );
        slave.reported = slave.replica.reported();
        let written = slave.replica.output().len();
        link.master.socket.input.extend(slave.replica.output());
        slave.replica.on_written(written);
        if let Err(refusal) = &taken {
            // No byte is ever damaged here, so only silence may end a link.
            let silent = matches!(refusal, twinmq::ha::replica::Refusal::Silent(_));
            assert!(silent, "a true master is refused: {refusal}");
        }
        if taken.is_err() || ended {
            self.cut(number);
        }
    }

    /// Some of what the master wrote reaches the slave.
    fn deliver(&mut self, slave: usize) {
        let size = self.random.size();
        if let Some(link) = &mut self.slaves[slave].link {
            let output = &mut link.master.socket.output;
            let size = size.min(output.len());
            link.slave_input.extend(output.drain(..size));
        }
    }

    fn connect(&mut self, number: usize) {
        if self.slaves[number].link.is_some() {
            return;
        }
        let master = self.accept(number as u8);
        let slave = &mut self.slaves[number];
        slave.replica.on_connect(&slave.log, self.now);
        slave.reported = 0;
        slave.link = Some(Link {
            master,
            slave_input: Vec::new(),
        });
    }

    fn accept(&mut self, host: u8) -> MasterEnd {
        self.next_connection += 1;
        let id = self.next_connection;
        let peer = SocketAddr::from(([10, 0, 0, host], 40_000));
        MasterEnd {
            core: Connection::new(id, peer, rules(), self.now),
            socket: Pipe::open(),
        }
    }

    /// The slave's end is gone. The master's hears of it, or of nothing (half-open), and may
    /// still have reports to read.
    fn cut(&mut self, slave: usize) {
        let Some(link) = self.slaves[slave].link.take() else {
            return;
        };
        let mut end = link.master;
        if self.random.below(2) == 0 {
            end.socket.input.clear();
        }
        end.socket.ended = self.random.below(3) > 0;
        self.orphans.push(end);
    }

    /// The slave's process ends, and with the machine's power some whole records too; but none
    /// that the master has deleted, which would be the end of this slave.
    fn crash_slave(&mut self, number: usize) {
        self.cut(number);
        let lose = self.random.below(2) == 0;
        let slave = &mut self.slaves[number];
        if lose && !slave.log.is_empty() {
            let mut ends = slave.log.record_ends();
            ends.retain(|end| *end >= self.log.start());
            let lost = self.random.below(ends.len().min(4) as u64) as usize;
            let kept = ends[ends.len() - 1 - lost];
            slave.log.truncate(kept);
            slave.compared = slave.compared.min(kept);
        }
        slave.replica = Replica::new(timing(), self.now);
    }

    /// Somebody at the HA port who is no slave. It sends one burst and reads nothing.
    fn impostor(&mut self) {
        let mut end = self.accept(99);
        let burst = match self.random.below(4) {
            0 => (0..3)
                .flat_map(|_| self.random.next().to_be_bytes())
                .collect(),
            1 => self.log.end().to_be_bytes().to_vec(),
            2 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            _ => i64::MAX.to_be_bytes().to_vec(),
        };
        end.socket.input.extend(burst);
        end.socket.ended = self.random.below(2) == 0;
        end.socket.room = 0;
        self.orphans.push(end);
    }

    /// Old files go, but none that a slave still needs.
    fn delete_files(&mut self) {
        let all_have_some = self.slaves.iter().all(|slave| !slave.log.is_empty());
        let needed = self.slaves.iter().map(|slave| slave.log.end()).min();
        let base = needed.expect("there are slaves") / FILE * FILE;
        if all_have_some && base > self.log.start() {
            self.log.delete_before(base);
        }
    }

    /// The master's process ends and starts again: connections and waits are gone, the log is not.
    fn restart_master(&mut self) {
        self.orphans.clear();
        for slave in &mut self.slaves {
            slave.link = None;
        }
        self.ledger = Ledger::new(demand(self.required));
        self.waiting.clear();
    }

    fn serve_orphans(&mut self) {
        for end in &mut self.orphans {
            end.turn(&self.log, &mut self.ledger, self.now);
        }
        self.drop_closed();
    }

    fn pass_up_to(&mut self, max_ms: u64) {
        let time = Duration::from_millis(self.random.below(max_ms));
        self.pass(time);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let links = self
            .slaves
            .iter_mut()
            .filter_map(|slave| slave.link.as_mut());
        let ends = links.map(|link| &mut link.master);
        for end in ends.chain(&mut self.orphans) {
            end.core.on_tick(self.now);
        }
        self.drop_closed();
        self.ledger.on_tick(self.now);
    }

    fn drop_closed(&mut self) {
        for link in self.slaves.iter().filter_map(|slave| slave.link.as_ref()) {
            if link.master.core.is_closed() {
                self.ledger.on_gone(link.master.core.id());
            }
        }
        for end in self.orphans.iter().filter(|end| end.core.is_closed()) {
            self.ledger.on_gone(end.core.id());
        }
        self.orphans.retain(|end| !end.core.is_closed());
    }

    fn check(&mut self) {
        for (id, how) in self.ledger.take_finished() {
            self.answered(id, how);
        }
        assert_eq!(self.ledger.waiting(), self.waiting.len(), "each waits once");
        for slave in &mut self.slaves {
            slave.compare(&self.history);
            if let Some(link) = &slave.link {
                let core = &link.master.core;
                assert!(core.acked() <= core.sent() && core.sent() <= self.log.end());
            }
        }
    }

    fn answered(&mut self, id: u64, how: Replicated) {
        let send = self
            .waiting
            .remove(&id)
            .expect("each send is answered once");
        let have = self.slaves.iter().filter(|slave| slave.reached >= send.end);
        // A half-open end counts beside its slave's new connection until it has been silent for
        // longer than a heartbeat interval: two slaves on one host look the same (DECISIONS 10).
        let doubles = self
            .orphans
            .iter()
            .filter(|end| end.core.acked() >= send.end);
        let have = have.count();
        assert!(have > 0 || how != Replicated::Yes, "a false ack");
        match how {
            Replicated::Yes => assert!(have + doubles.count() >= self.required, "a false ack"),
            Replicated::Timeout => assert!(self.now >= send.deadline, "a timeout too early"),
            Replicated::NoSlave => {}
        }
    }

    /// No more faults: within a minute of this world's time all is equal and acknowledged.
    fn heal_and_catch_up(&mut self) {
        for _ in 0..60 {
            self.serve_orphans();
            for number in 0..SLAVES {
                self.connect(number);
                for _ in 0..8 {
                    self.slave_turn(number);
                    let Some(link) = &mut self.slaves[number].link else {
                        break;
                    };
                    link.master.socket.room = usize::MAX;
                    link.master.turn(&self.log, &mut self.ledger, self.now);
                    let output = std::mem::take(&mut link.master.socket.output);
                    link.slave_input.extend(output);
                }
            }
            self.pass(Duration::from_secs(1));
            self.check();
        }
        for slave in &self.slaves {
            let link = slave.link.as_ref().expect("a healed link stays");
            let state = link.master.core.state();
            assert_eq!(slave.log.end(), self.log.end(), "not caught up: {state:?}");
            assert_eq!(link.master.core.acked(), self.log.end());
        }
        assert_eq!(self.waiting.len(), 0);
        assert!(self.orphans.is_empty(), "half-open ends are gone by now");
    }
}

impl Slave {
    fn new(now: Instant) -> Slave {
        Slave {
            log: MemoryLog::new(FILE),
            replica: Replica::new(timing(), now),
            link: None,
            reached: 0,
            compared: 0,
            reported: 0,
        }
    }

    /// I7, for the bytes that came since the last time.
    fn compare(&mut self, history: &[u8]) {
        let from = self.compared.max(self.log.start());
        let tail = self.log.tail(from);
        let end = from as usize + tail.len();
        assert!(end <= history.len(), "I7: the slave is ahead");
        assert_eq!(tail, history[from as usize..end], "I7: the slave differs");
        self.compared = end as u64;
    }
}

impl MasterEnd {
    fn turn(&mut self, log: &MemoryLog, ledger: &mut Ledger<u64>, now: Instant) {
        let range = LogRange::of(log);
        match self.core.read(&mut self.socket, range, FILE, now).0 {
            Heard::Nothing => {}
            Heard::Request(request) => ledger.on_slave(self.core.id(), request),
            Heard::Acked(acked) => ledger.on_report(self.core.id(), acked),
        }
        self.core.write(&mut self.socket, log, now);
        self.core.on_tick(now);
        self.core.take_transitions();
        if self.core.is_closed() {
            ledger.on_gone(self.core.id());
        }
    }
}

fn rules() -> Rules {
    Rules {
        heartbeat: HEARTBEAT,
        housekeeping: HOUSEKEEPING,
        first_report: HOUSEKEEPING,
        transfer_body_max: 700,
        empty_slave_from: EmptySlaveFrom::Min,
        fallbehind_max: 100_000,
    }
}

fn timing() -> Timing {
    Timing {
        heartbeat: HEARTBEAT,
        housekeeping: HOUSEKEEPING,
    }
}

fn demand(slaves: usize) -> Demand {
    Demand {
        slaves,
        fallbehind_max: 100_000,
    }
}

/// xorshift64*: enough to choose faults with, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    /// Mostly small, sometimes everything.
    fn size(&mut self) -> usize {
        match self.below(4) {
            0 => self.below(16) as usize,
            1 => self.below(200) as usize,
            2 => self.below(5000) as usize,
            _ => usize::MAX,
        }
    }
}
