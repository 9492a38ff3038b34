//! The tables of a broker's config directory: opened together, saved together.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::delay::Delays;
use super::groups::Groups;
use super::offsets::Offsets;
use super::topics::Topics;
use super::{admin, from_config};
use crate::config::Config;
use crate::store::Store;

/// The tables of the config directory.
pub struct Tables {
    pub topics: Arc<Topics>,
    pub groups: Arc<Groups>,
    pub offsets: Arc<Offsets>,
    pub delays: Arc<Delays>,
}

impl Tables {
    pub fn open(config: &Config, store: &Store) -> io::Result<Tables> {
        let directory = Path::new(config.text("storePathRootDir")).join("config");
        let slave = config.is_slave();
        let topics = Topics::open(&directory, &from_config::builtin_topics(config), slave)?;
        let groups = Groups::open(
            &directory,
            config.flag("autoCreateSubscriptionGroup"),
            slave,
        )?;
        let offsets = Offsets::open(&directory, slave)?;
        let delays = Delays::open(&directory, from_config::delay_levels(config), slave)?;
        admin::adopt_topics(&topics, store);
        if !slave {
            // Recovery may have cut the log: an offset behind the queue's end would skip what
            // comes next.
            offsets.clamp(|topic, queue| Some(store.queue_bounds(topic, queue)?.max));
        }
        Ok(Tables {
            topics: Arc::new(topics),
            groups: Arc::new(groups),
            offsets: Arc::new(offsets),
            delays: Arc::new(delays),
        })
    }

    /// Writes what has changed. A table that cannot be written is tried again at the next turn.
    pub fn save(&self) {
        report("topics", self.topics.table().save_if_changed());
        report("subscription groups", self.groups.table().save_if_changed());
    }

    pub fn save_offsets(&self) {
        report("consumer offsets", self.offsets.save_if_changed());
    }

    pub fn save_delays(&self) {
        report("delay offsets", self.delays.save_if_changed());
    }
}

fn report(what: &str, saved: io::Result<bool>) {
    if let Err(error) = saved {
        log::error!("{what} could not be saved: {error}");
    }
}
