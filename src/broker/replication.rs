//! The HA protocol's two ends in a broker, and the sends that wait between them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::from_config;
use super::run::BrokerError;
use crate::config::Config;
use crate::ha::{GroupTransfer, LinkState, MasterService, SlaveService};
use crate::store::Store;

/// Both ends of the HA protocol: every broker listens, a slave follows as well.
#[derive(Clone)]
pub struct Replication {
    pub master: Arc<MasterService>,
    pub slave: Option<Arc<SlaveService>>,
    pub group_transfer: Arc<GroupTransfer>,
}

impl Replication {
    pub fn start(config: &Config, store: Arc<Store>) -> Result<Replication, BrokerError> {
        let ha = from_config::ha(config);
        let group_transfer = GroupTransfer::start(ha.demand()).map_err(BrokerError::System)?;
        let master =
            MasterService::start(&ha, store.clone(), group_transfer.clone()).map_err(|error| {
                let text = format!("cannot listen on {}: {error}", ha.bind);
                BrokerError::Listen(io::Error::new(error.kind(), text))
            })?;
        let mut slave = None;
        if config.is_slave() {
            let service = SlaveService::start(&ha, store).map_err(BrokerError::System)?;
            let fixed = config.text("haMasterAddress");
            if !fixed.is_empty() {
                service.set_master(Some(fixed.to_owned()));
            }
            slave = Some(Arc::new(service));
        }
        Ok(Replication {
            master: Arc::new(master),
            slave,
            group_transfer,
        })
    }

    pub fn stop(&self) {
        if let Some(slave) = &self.slave {
            slave.stop();
        }
        self.master.stop();
        self.group_transfer.stop();
    }

    /// Waits until every slave has reported the log's end.
    pub fn drain(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let behind = || {
            self.master
                .figures()
                .iter()
                .any(|slave| slave.lag_bytes > 0)
        };
        while behind() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// On a slave: the link to its master works.
    pub fn master_is_up(&self) -> bool {
        let works = [LinkState::CatchingUp, LinkState::Streaming];
        self.slave
            .as_ref()
            .is_some_and(|slave| works.contains(&slave.figures().state))
    }
}
