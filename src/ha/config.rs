//! What replication is told by the configuration.

use std::net::SocketAddr;
use std::time::Duration;

use super::connection::{EmptySlaveFrom, Rules};
use super::group_transfer::Demand;
use super::replica::Timing;
use super::wire::{TRANSFER_BODY_DEFAULT, TRANSFER_BODY_MAX};

/// The keys that concern replication, as numbers and times. Both sides read the same ones.
#[derive(Clone, Debug)]
pub struct HaConfig {
    /// Where the HA port listens. Port 0 lets the system choose.
    pub bind: SocketAddr,
    /// `haSendHeartbeatInterval`
    pub heartbeat: Duration,
    /// `haHousekeepingInterval`
    pub housekeeping: Duration,
    /// `haFirstReportTimeout`
    pub first_report: Duration,
    /// `haTransferBatchSize`, as it stands in the file.
    pub transfer_batch: i64,
    /// `haSlaveFallbehindMax`, in 5.x `haMaxGapNotInSync`.
    pub fallbehind_max: u64,
    /// `haMaxConnections`
    pub max_connections: usize,
    /// `haEmptySlaveFrom`
    pub empty_slave_from: EmptySlaveFrom,
    /// `inSyncReplicas`: copies of a message that a synchronous send needs, the master's included.
    pub in_sync_replicas: usize,
}

impl Default for HaConfig {
    fn default() -> Self {
        HaConfig {
            bind: SocketAddr::from(([127, 0, 0, 1], 10912)),
            heartbeat: Duration::from_secs(5),
            housekeeping: Duration::from_secs(20),
            first_report: Duration::from_secs(20),
            transfer_batch: TRANSFER_BODY_DEFAULT as i64,
            fallbehind_max: 256 * 1024 * 1024,
            max_connections: 16,
            empty_slave_from: EmptySlaveFrom::Min,
            in_sync_replicas: 2,
        }
    }
}

impl HaConfig {
    pub(super) fn rules(&self) -> Rules {
        Rules {
            heartbeat: self.heartbeat,
            housekeeping: self.housekeeping,
            first_report: self.first_report,
            transfer_body_max: self.transfer_body_max(),
            empty_slave_from: self.empty_slave_from,
            fallbehind_max: self.fallbehind_max,
        }
    }

    pub(super) fn timing(&self) -> Timing {
        Timing {
            heartbeat: self.heartbeat,
            housekeeping: self.housekeeping,
        }
    }

    /// What a synchronous send demands. SYNC means at least one slave, whatever
    /// `inSyncReplicas` says.
    pub fn demand(&self) -> Demand {
        Demand {
            slaves: self.in_sync_replicas.saturating_sub(1).max(1),
            fallbehind_max: self.fallbehind_max,
        }
    }

    /// Bodies of 0 bytes would make no progress, and larger ones than 4 MiB stop an original
    /// slave for ever, so neither is taken from the file (B55, C-7).
    fn transfer_body_max(&self) -> usize {
        match usize::try_from(self.transfer_batch) {
            Ok(size) if size > TRANSFER_BODY_MAX => {
                log::warn!(
                    "haTransferBatchSize {size} is more than {TRANSFER_BODY_MAX}, which is used"
                );
                TRANSFER_BODY_MAX
            }
            Ok(size) if size > 0 => size,
            _ => {
                let given = self.transfer_batch;
                log::warn!(
                    "haTransferBatchSize {given} sends nothing; {TRANSFER_BODY_DEFAULT} is used"
                );
                TRANSFER_BODY_DEFAULT
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_size_that_cannot_work_is_replaced() {
        for (given, used) in [
            (0, TRANSFER_BODY_DEFAULT),
            (-1, TRANSFER_BODY_DEFAULT),
            (100, 100),
            (i64::MAX, TRANSFER_BODY_MAX),
        ] {
            let config = HaConfig {
                transfer_batch: given,
                ..HaConfig::default()
            };
            assert_eq!(config.rules().transfer_body_max, used, "{given}");
        }
    }

    #[test]
    fn synchronous_means_at_least_one_slave() {
        // J17, B12.
        for (replicas, slaves) in [(0, 1), (1, 1), (2, 1), (3, 2)] {
            let config = HaConfig {
                in_sync_replicas: replicas,
                ..HaConfig::default()
            };
            assert_eq!(config.demand().slaves, slaves, "inSyncReplicas={replicas}");
        }
    }
}
