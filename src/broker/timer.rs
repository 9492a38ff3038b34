//! What a broker does by the clock: save tables, sample rates, deliver delayed messages. One
//! thread that sleeps until the next thing is due, or until somebody has changed something that
//! should be saved soon.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::base::sys;

/// One job; it says how long it wants to rest until its next turn.
type Job = Box<dyn FnMut(Instant) -> Duration + Send>;

struct Task {
    due: Instant,
    /// It also runs when the timer is called.
    on_call: bool,
    job: Job,
}

/// The jobs, before the thread starts.
#[derive(Default)]
pub struct Schedule(Vec<Task>);

impl Schedule {
    /// A job that runs every now and then, first after one interval.
    pub fn every(&mut self, interval: Duration, mut job: impl FnMut(Instant) + Send + 'static) {
        let job = Box::new(move |now| {
            job(now);
            interval
        });
        self.0.push(Task {
            due: Instant::now() + interval,
            on_call: false,
            job,
        });
    }

    /// A job that says itself when it is due again, and runs when it is called.
    pub fn when_due(&mut self, job: impl FnMut(Instant) -> Duration + Send + 'static) {
        self.0.push(Task {
            due: Instant::now(),
            on_call: true,
            job: Box::new(job),
        });
    }
}

#[derive(Default)]
struct Calls {
    called: bool,
    stopped: bool,
}

/// Calls the timer from other threads.
#[derive(Default)]
pub struct Bell {
    calls: Mutex<Calls>,
    rung: Condvar,
}

impl Bell {
    /// Something is to be done soon.
    pub fn ring(&self) {
        self.lock().called = true;
        self.rung.notify_one();
    }

    /// Sleeps until `due` or a call. True if it was called; `None` when the timer stops.
    fn wait(&self, due: Instant) -> Option<bool> {
        let mut calls = self.lock();
        loop {
            if calls.stopped {
                return None;
            }
            if std::mem::take(&mut calls.called) {
                return Some(true);
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(false);
            }
            calls = self
                .rung
                .wait_timeout(calls, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Timer {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

impl Timer {
    /// Starts the thread `timer`.
    pub fn start(schedule: Schedule, bell: Arc<Bell>) -> io::Result<Timer> {
        let called = bell.clone();
        let thread = sys::spawn("timer", move || run(schedule.0, &called))?;
        Ok(Timer { bell, thread })
    }

    pub fn stop(self) {
        self.bell.lock().stopped = true;
        self.bell.rung.notify_one();
        self.thread.join().expect("the timer does not panic");
    }
}

fn run(mut tasks: Vec<Task>, bell: &Bell) {
    const FOREVER: Duration = Duration::from_secs(3600);
    loop {
        let due = tasks
            .iter()
            .map(|task| task.due)
            .min()
            .unwrap_or_else(|| Instant::now() + FOREVER);
        let Some(called) = bell.wait(due) else { return };
        let now = Instant::now();
        for task in &mut tasks {
            if now >= task.due || (called && task.on_call) {
                task.due = now + (task.job)(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_call_runs_what_asked_for_it_and_the_clock_runs_the_rest() {
        let (heard, said) = mpsc::channel();
        let mut schedule = Schedule::default();
        let tell = heard.clone();
        schedule.every(Duration::from_millis(10), move |_| {
            tell.send("clock").unwrap_or(())
        });
        let mut times = 0;
        schedule.when_due(move |_| {
            times += 1;
            heard
                .send(if times == 1 { "first" } else { "called" })
                .unwrap_or(());
            Duration::from_secs(3600)
        });
        let bell = Arc::new(Bell::default());
        let timer = Timer::start(schedule, bell.clone()).expect("a thread");
        let next = || {
            said.recv_timeout(Duration::from_secs(20))
                .expect("a job ran")
        };
        assert_eq!(next(), "first");
        bell.ring();
        let mut heard: Vec<&str> = Vec::new();
        while !(heard.contains(&"called") && heard.contains(&"clock")) {
            heard.push(next());
        }
        timer.stop();
    }
}
