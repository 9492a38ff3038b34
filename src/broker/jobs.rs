//! The jobs that a broker gives its timer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Broker;
use super::registration::Registration;
use super::tables::Tables;
use super::timer::{Bell, Schedule, Timer};
use super::topics::SCHEDULE_TOPIC;
use crate::base::clock::wall_ms;
use crate::config::Config;

/// A table that could not be saved is tried again after this.
const SAVE_AGAIN_AFTER: Duration = Duration::from_secs(10);
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
const LOCKS_EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// Nothing waits in the delay queues: arrivals ring the bell.
const NOTHING_DELAYED: Duration = Duration::from_secs(3600);

/// What goes by the clock. Tables are saved as soon as they have changed: a topic made by a send
/// is on disk a moment later.
pub fn start(
    config: &Config,
    broker: &Arc<Broker>,
    tables: &Arc<Tables>,
    registration: Arc<Registration>,
) -> io::Result<Timer> {
    let bell = Arc::new(Bell::default());
    let (changed, told) = (bell.clone(), registration.clone());
    broker.topics.table().on_change(move || {
        told.topics_changed();
        changed.ring();
    });
    // A topic that was made since the port opened told nobody.
    registration.topics_changed();
    let changed = bell.clone();
    broker.groups.table().on_change(move || changed.ring());
    let mut schedule = Schedule::default();
    let saved = tables.clone();
    schedule.when_due(move |_| {
        saved.save();
        SAVE_AGAIN_AFTER
    });
    let saved = tables.clone();
    schedule.every(config.duration("flushConsumerOffsetInterval"), move |_| {
        saved.save_offsets()
    });
    let saved = tables.clone();
    schedule.every(config.duration("flushDelayOffsetInterval"), move |_| {
        saved.save_delays()
    });
    let stats = broker.stats.clone();
    schedule.every(SAMPLE_EVERY, move |_| stats.sample(wall_ms()));
    let sampled = broker.clone();
    schedule.every(LOCKS_EXPIRE_EVERY, move |now| {
        sampled.admin.locks.expire(now)
    });
    if !config.is_slave() {
        deliver_delayed(broker.clone(), &mut schedule, &bell);
    }
    Timer::start(schedule, bell)
}

/// The bell rings when something comes into a delay queue, so an idle broker has no timer for it.
fn deliver_delayed(broker: Arc<Broker>, schedule: &mut Schedule, bell: &Arc<Bell>) {
    let came = bell.clone();
    broker.store.on_arrival(move |arrived| {
        if arrived
            .iter()
            .any(|arrival| &*arrival.topic == SCHEDULE_TOPIC)
        {
            came.ring();
        }
    });
    schedule.when_due(move |_| {
        let now_ms = wall_ms();
        let next = broker.delays.deliver(&*broker.store, now_ms);
        let rest = next.map_or(NOTHING_DELAYED, |due| {
            Duration::from_millis((due - now_ms).max(1) as u64)
        });
        rest.min(NOTHING_DELAYED)
    });
}
