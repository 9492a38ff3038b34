//! Who waits for a slave, and who may go.
//!
//! `Ledger` knows the waiting sends and what each slave acknowledged; it has no clock and no
//! thread. `GroupTransfer` is the thread around it: reports of the `ha` loop go in, and the
//! callbacks of sends that may go are called here, in the order of their offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::connection::Request;
use crate::base::sys;

/// How a wait for the slaves ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicated {
    /// As many slaves as are required have every byte.
    Yes,
    /// They did not say so in time: FLUSH_SLAVE_TIMEOUT.
    Timeout,
    /// Too few slaves are there, or near enough: SLAVE_NOT_AVAILABLE.
    NoSlave,
}

/// Called once, outside all locks.
pub type Done = Box<dyn FnOnce(Replicated) + Send>;

/// What is required of the slaves.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Slaves that must have a message; at least 1.
    pub slaves: usize,
    /// A slave that is this far behind is not waited for.
    pub fallbehind_max: u64,
}

/// The waiting sends and the slaves they wait for. `W` is what the owner knows a send by.
///
/// Invariant between calls: no waiter in `waiters` is satisfied, and none waits while fewer
/// slaves than required are connected.
pub struct Ledger<W> {
    demand: Demand,
    slaves: Vec<Slave>,
    waiters: BTreeMap<Key, Waiter<W>>,
    deadlines: BTreeSet<(Instant, Key)>,
    serial: u64,
    /// Those that may go, in the order in which that was found.
    finished: Vec<(W, Replicated)>,
    counts: Counts,
}

/// End offset of what was appended, and a number that makes it unique.
type Key = (u64, u64);

struct Waiter<W> {
    deadline: Instant,
    token: W,
}

struct Slave {
    connection: u64,
    request: Request,
    acked: u64,
}

impl Slave {
    /// All bytes before `end` that a message could lie in are on this slave, by its word. One
    /// that began empty has nothing below where it was made to begin.
    fn holds(&self, end: u64) -> bool {
        self.acked >= end && !(self.request.empty && end <= self.request.start)
    }

    /// How far it is at best. Its request counts here, unlike for acknowledgements: a slave that
    /// comes back to a large log is near, not hundreds of megabytes behind.
    fn position(&self) -> u64 {
        self.acked.max(self.request.start)
    }
}

/// How the waits ended since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub replicated: u64,
    pub timeouts: u64,
    pub no_slave: u64,
}

impl<W> Ledger<W> {
    pub fn new(demand: Demand) -> Ledger<W> {
        assert!(demand.slaves > 0, "synchronous means at least one slave");
        Ledger {
            demand,
            slaves: Vec::new(),
            waiters: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            serial: 0,
            finished: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// A send waits until its bytes, which end at `end`, are on the slaves. `Some` if that is
    /// decided already.
    pub fn submit(&mut self, end: u64, deadline: Instant, token: W) -> Option<(W, Replicated)> {
        let decided = if self.is_replicated(end) {
            Replicated::Yes
        } else if self.slaves_near(end) < self.demand.slaves {
            Replicated::NoSlave
        } else {
            self.serial += 1;
            let key = (end, self.serial);
            self.deadlines.insert((deadline, key));
            self.waiters.insert(key, Waiter { deadline, token });
            return None;
        };
        self.count(decided);
        Some((token, decided))
    }

    /// As many slaves as are required have everything before `end`.
    pub fn is_replicated(&self, end: u64) -> bool {
        self.holders(end) >= self.demand.slaves
    }

    /// A connection's first report was valid.
    pub fn on_slave(&mut self, connection: u64, request: Request) {
        self.slaves.retain(|slave| slave.connection != connection);
        self.slaves.push(Slave {
            connection,
            request,
            acked: 0,
        });
    }

    /// A slave has everything before `acked`.
    pub fn on_report(&mut self, connection: u64, acked: u64) {
        let slave = self.slaves.iter_mut().find(|s| s.connection == connection);
        if let Some(slave) = slave {
            slave.acked = slave.acked.max(acked);
            self.release(acked);
        }
    }

    /// A connection ended, and what it acknowledged is forgotten with it. Where too few are left,
    /// nobody waits for the deadline: those sends end now.
    pub fn on_gone(&mut self, connection: u64) {
        self.slaves.retain(|slave| slave.connection != connection);
        if self.slaves.len() < self.demand.slaves {
            self.end_all();
        }
    }

    /// Ends the waits whose deadline has passed.
    pub fn on_tick(&mut self, now: Instant) {
        let passed = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        let mut keys: Vec<Key> = passed.map(|(_, key)| *key).collect();
        keys.sort_unstable();
        self.finish(keys, Replicated::Timeout);
    }

    /// Ends all waits: the broker stops.
    pub fn end_all(&mut self) {
        let keys = self.waiters.keys().copied().collect();
        self.finish(keys, Replicated::NoSlave);
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The sends that may go.
    pub fn take_finished(&mut self) -> Vec<(W, Replicated)> {
        std::mem::take(&mut self.finished)
    }

    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    pub fn slaves(&self) -> usize {
        self.slaves.len()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn holders(&self, end: u64) -> usize {
        self.slaves.iter().filter(|slave| slave.holds(end)).count()
    }

    fn slaves_near(&self, end: u64) -> usize {
        let near =
            |slave: &&Slave| end.saturating_sub(slave.position()) < self.demand.fallbehind_max;
        self.slaves.iter().filter(near).count()
    }

    /// Lets those go that end at or before `acked` and are on enough slaves.
    fn release(&mut self, acked: u64) {
        let candidates = self.waiters.range(..=(acked, u64::MAX));
        let enough = |end: u64| self.holders(end) >= self.demand.slaves;
        let keys = candidates.map(|(key, _)| *key).filter(|key| enough(key.0));
        let keys = keys.collect();
        self.finish(keys, Replicated::Yes);
    }

    fn finish(&mut self, keys: Vec<Key>, how: Replicated) {
        for key in keys {
            let waiter = self.waiters.remove(&key).expect("a key of the table");
            self.deadlines.remove(&(waiter.deadline, key));
            self.finished.push((waiter.token, how));
            self.count(how);
        }
    }

    fn count(&mut self, how: Replicated) {
        match how {
            Replicated::Yes => self.counts.replicated += 1,
            Replicated::Timeout => self.counts.timeouts += 1,
            Replicated::NoSlave => self.counts.no_slave += 1,
        }
    }
}

/// How long the thread's alarm stays set after the last wait, so that the next send need not wake
/// it only to set one. Then it sleeps for good.
const LINGER: Duration = Duration::from_millis(50);

/// The ledger, its lock and its thread.
pub struct GroupTransfer {
    inner: Mutex<Inner>,
    news: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    ledger: Ledger<Done>,
    /// When the thread looks up by itself; `None` while it sleeps until it is called.
    alarm: Option<Instant>,
    /// Somebody came since the thread last looked.
    busy: bool,
    stopped: bool,
}

/// Figures for `status` and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTransferFigures {
    pub waiting: usize,
    pub slaves: usize,
    pub counts: Counts,
}

impl GroupTransfer {
    /// Starts the thread `group-transfer`.
    pub fn start(demand: Demand) -> io::Result<Arc<GroupTransfer>> {
        let group = Arc::new(GroupTransfer {
            inner: Mutex::new(Inner {
                ledger: Ledger::new(demand),
                alarm: None,
                busy: false,
                stopped: false,
            }),
            news: Condvar::new(),
            thread: Mutex::new(None),
        });
        let body = group.clone();
        let thread = sys::spawn("group-transfer", move || body.run())?;
        *group.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(group)
    }

    /// Calls `done` once the bytes that end at `end` are on enough slaves, or it is clear that
    /// this does not happen in time. What is decided at once is called in here.
    pub fn submit(&self, end: u64, deadline: Instant, done: Done) {
        let mut inner = self.lock();
        let decided = if inner.stopped {
            Some((done, Replicated::NoSlave))
        } else {
            inner.ledger.submit(end, deadline, done)
        };
        inner.busy |= decided.is_none();
        let earlier = inner.alarm.is_none_or(|alarm| deadline < alarm);
        drop(inner);
        match decided {
            Some((done, how)) => done(how),
            None if earlier => self.news.notify_one(),
            None => {}
        }
    }

    /// Whether as many slaves as are required have everything before `end` by now. For a batch
    /// whose wait timed out: its first messages may be there.
    pub fn is_replicated(&self, end: u64) -> bool {
        self.lock().ledger.is_replicated(end)
    }

    /// A connection's first report was valid: it counts from now on.
    pub fn on_slave(&self, connection: u64, request: Request) {
        self.lock().ledger.on_slave(connection, request);
    }

    pub fn on_report(&self, connection: u64, acked: u64) {
        self.change(|ledger| ledger.on_report(connection, acked));
    }

    pub fn on_gone(&self, connection: u64) {
        self.change(|ledger| ledger.on_gone(connection));
    }

    pub fn figures(&self) -> GroupTransferFigures {
        let inner = self.lock();
        GroupTransferFigures {
            waiting: inner.ledger.waiting(),
            slaves: inner.ledger.slaves(),
            counts: inner.ledger.counts(),
        }
    }

    /// Ends the thread. Who still waits hears that there is no slave.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.news.notify_one();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            thread
                .join()
                .expect("the group-transfer thread does not panic");
        }
    }

    fn change(&self, what: impl FnOnce(&mut Ledger<Done>)) {
        let mut inner = self.lock();
        what(&mut inner.ledger);
        let some = !inner.ledger.finished.is_empty();
        drop(inner);
        if some {
            self.news.notify_one();
        }
    }

    fn run(&self) {
        let mut inner = self.lock();
        loop {
            inner.ledger.on_tick(Instant::now());
            if inner.stopped {
                inner.ledger.end_all();
            }
            let finished = inner.ledger.take_finished();
            if !finished.is_empty() {
                drop(inner);
                finished.into_iter().for_each(|(done, how)| done(how));
                inner = self.lock();
                continue; // more may have come while the callbacks ran
            }
            if inner.stopped {
                return;
            }
            inner = self.sleep(inner);
        }
    }

    /// Sleeps until somebody may go, a deadline passes, or nobody has come for a while.
    fn sleep<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        let now = Instant::now();
        let busy = std::mem::take(&mut inner.busy);
        let linger = busy.then(|| now + LINGER);
        inner.alarm = inner.ledger.next_deadline().or(linger);
        match inner.alarm {
            Some(alarm) => {
                let left = alarm.saturating_duration_since(now);
                let waited = self.news.wait_timeout(inner, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self
                .news
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SECOND: Duration = Duration::from_secs(1);
    const FAR: u64 = 1000;

    fn ledger(slaves: usize) -> Ledger<&'static str> {
        Ledger::new(Demand {
            slaves,
            fallbehind_max: FAR,
        })
    }

    fn from(start: u64) -> Request {
        Request {
            start,
            empty: false,
        }
    }

    #[test]
    fn without_a_slave_nobody_waits() {
        // C-60, J2: open connections are no slaves, so they do not show up here at all.
        let mut ledger = ledger(1);
        let decided = ledger.submit(100, Instant::now() + SECOND, "a");
        assert_eq!(decided, Some(("a", Replicated::NoSlave)));
    }

    #[test]
    fn a_wait_ends_exactly_when_the_ack_reaches_the_end_offset() {
        // C-66.
        let mut ledger = ledger(1);
        ledger.on_slave(1, from(0));
        assert_eq!(ledger.submit(100, Instant::now() + SECOND, "a"), None);
        ledger.on_report(1, 99);
        assert_eq!(ledger.take_finished(), []);
        ledger.on_report(1, 100);
        assert_eq!(ledger.take_finished(), [("a", Replicated::Yes)]);
        let late = ledger.submit(100, Instant::now(), "b");
        assert_eq!(late, Some(("b", Replicated::Yes)));
        assert_eq!(ledger.submit(101, Instant::now() + SECOND, "c"), None);
    }

    #[test]
    fn a_request_is_no_acknowledgement_but_tells_that_a_slave_is_near() {
        // J1, and a caught-up slave that reconnects to a log longer than the fall-behind limit.
        let mut ledger = ledger(1);
        ledger.on_slave(1, from(5 * FAR));
        assert_eq!(ledger.submit(5 * FAR, Instant::now() + SECOND, "a"), None);
        assert_eq!(ledger.take_finished(), []);
    }

    #[test]
    fn a_slave_too_far_behind_is_not_waited_for() {
        let mut ledger = ledger(1);
        ledger.on_slave(1, from(0));
        let deadline = Instant::now() + SECOND;
        let decided = ledger.submit(FAR, deadline, "a");
        assert_eq!(decided, Some(("a", Replicated::NoSlave)));
        assert_eq!(ledger.submit(FAR - 1, deadline, "b"), None);
    }

    #[test]
    fn those_that_may_go_leave_in_offset_order_each_once() {
        // B14, B133.
        let mut ledger = ledger(1);
        ledger.on_slave(1, from(0));
        let deadline = Instant::now() + SECOND;
        for (end, token) in [(30, "c"), (10, "a"), (20, "b"), (40, "d")] {
            assert_eq!(ledger.submit(end, deadline, token), None);
        }
        ledger.on_report(1, 30);
        ledger.on_report(1, 30);
        let finished: Vec<_> = ledger.take_finished().iter().map(|f| f.0).collect();
        assert_eq!(finished, ["a", "b", "c"]);
        assert_eq!((ledger.waiting(), ledger.deadlines.len()), (1, 1));
    }

    #[test]
    fn each_waiter_has_its_own_deadline() {
        // C-65, B02: a late one in front holds nobody up, and one that is replicated succeeds.
        let mut ledger = ledger(1);
        ledger.on_slave(1, from(0));
        let now = Instant::now();
        ledger.submit(20, now + SECOND, "soon");
        ledger.submit(10, now + 2 * SECOND, "later");
        assert_eq!(ledger.next_deadline(), Some(now + SECOND));
        ledger.on_tick(now + SECOND);
        assert_eq!(ledger.take_finished(), [("soon", Replicated::Timeout)]);
        ledger.on_report(1, 15);
        assert_eq!(ledger.take_finished(), [("later", Replicated::Yes)]);
        assert_eq!(ledger.next_deadline(), None);
    }

    #[test]
    fn when_the_last_needed_slave_goes_its_waiters_end_at_once() {
        // J7; and B19: its acknowledgements go with it.
        let mut ledger = ledger(1);
        ledger.on_slave(1, from(0));
        ledger.on_slave(2, from(0));
        let deadline = Instant::now() + SECOND;
        ledger.submit(100, deadline, "a");
        ledger.on_report(1, 50);
        ledger.on_gone(1);
        assert_eq!(ledger.take_finished(), []);
        ledger.on_gone(2);
        assert_eq!(ledger.take_finished(), [("a", Replicated::NoSlave)]);
        let decided = ledger.submit(50, deadline, "b");
        assert_eq!(decided, Some(("b", Replicated::NoSlave)));
    }

    #[test]
    fn an_ack_just_before_the_end_of_the_connection_counts() {
        let mut ledger = ledger(1);
        ledger.on_slave(1, from(0));
        ledger.submit(100, Instant::now() + SECOND, "a");
        ledger.on_report(1, 100);
        ledger.on_gone(1);
        assert_eq!(ledger.take_finished(), [("a", Replicated::Yes)]);
    }

    #[test]
    fn two_required_slaves_must_both_have_it() {
        // B11, B09: the second slave's ack releases though the highest did not move.
        let mut ledger = ledger(2);
        ledger.on_slave(1, from(0));
        let deadline = Instant::now() + SECOND;
        let decided = ledger.submit(100, deadline, "early");
        assert_eq!(decided, Some(("early", Replicated::NoSlave)));
        ledger.on_slave(2, from(0));
        assert_eq!(ledger.submit(100, deadline, "a"), None);
        ledger.on_report(1, 200);
        assert_eq!(ledger.take_finished(), []);
        ledger.on_report(2, 100);
        assert_eq!(ledger.take_finished(), [("a", Replicated::Yes)]);
    }

    #[test]
    fn a_slave_that_began_empty_holds_nothing_below_its_beginning() {
        // W-24: with `last-file` it acknowledges the base of a file before it holds a byte.
        let mut ledger = ledger(1);
        let request = Request {
            start: 500,
            empty: true,
        };
        ledger.on_slave(1, request);
        ledger.submit(400, Instant::now() + SECOND, "before");
        ledger.submit(600, Instant::now() + SECOND, "after");
        ledger.on_report(1, 600);
        assert_eq!(ledger.take_finished(), [("after", Replicated::Yes)]);
    }

    fn submit(group: &GroupTransfer, end: u64, patience: Duration) -> mpsc::Receiver<Replicated> {
        let (send, receive) = mpsc::channel();
        let done = Box::new(move |how| send.send(how).expect("the test listens"));
        group.submit(end, Instant::now() + patience, done);
        receive
    }

    fn group() -> Arc<GroupTransfer> {
        GroupTransfer::start(Demand {
            slaves: 1,
            fallbehind_max: u64::MAX,
        })
        .expect("a thread")
    }

    #[test]
    fn the_thread_times_out_on_time_and_wakes_for_a_report() {
        // C-61: not more than 100 ms late; a longer wait in front must not set the pace.
        let group = group();
        group.on_slave(1, from(0));
        let long = submit(&group, 10, 60 * SECOND);
        let start = Instant::now();
        let short = submit(&group, 20, Duration::from_millis(80));
        assert_eq!(short.recv_timeout(20 * SECOND), Ok(Replicated::Timeout));
        assert!(start.elapsed() >= Duration::from_millis(80));
        assert!(long.try_recv().is_err());
        group.on_report(1, 10);
        assert_eq!(long.recv_timeout(20 * SECOND), Ok(Replicated::Yes));
        group.stop();
    }

    #[test]
    fn stopping_ends_all_waits() {
        let group = group();
        group.on_slave(1, from(0));
        let waits = submit(&group, 10, 60 * SECOND);
        group.stop();
        assert_eq!(waits.recv(), Ok(Replicated::NoSlave));
        let late = submit(&group, 10, 60 * SECOND);
        assert_eq!(late.recv(), Ok(Replicated::NoSlave));
    }

    #[test]
    fn no_wake_up_is_lost_between_submitting_and_reporting_threads() {
        // B14: every accepted wait ends exactly once.
        const SENDS: u64 = 20_000;
        let group = group();
        group.on_slave(1, from(0));
        let end = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let slave = {
            let (group, end) = (group.clone(), end.clone());
            std::thread::spawn(move || {
                let mut acked = 0;
                while acked < SENDS {
                    let now = end.load(std::sync::atomic::Ordering::SeqCst);
                    if now > acked {
                        acked = now;
                        group.on_report(1, acked);
                    }
                    std::thread::yield_now();
                }
            })
        };
        let (send, receive) = mpsc::channel();
        for offset in 1..=SENDS {
            let send = send.clone();
            let deadline = Instant::now() + 60 * SECOND;
            let done = Box::new(move |how| send.send((offset, how)).expect("the test listens"));
            group.submit(offset, deadline, done);
            end.store(offset, std::sync::atomic::Ordering::SeqCst);
        }
        slave.join().expect("the slave ends");
        drop(send);
        let mut heard: Vec<u64> = receive
            .iter()
            .map(|(offset, how)| {
                assert_eq!(how, Replicated::Yes);
                offset
            })
            .collect();
        heard.sort_unstable();
        assert_eq!(heard, (1..=SENDS).collect::<Vec<_>>());
        group.stop();
    }
}
