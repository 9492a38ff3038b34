//! How many client connections there may be, in all and from one address.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    pub total: usize,
    pub per_address: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Total(usize),
    PerAddress(usize),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Total(max) => write!(f, "maxConnections={max} is reached"),
            Limit::PerAddress(max) => write!(f, "maxConnectionsPerAddress={max} is reached"),
        }
    }
}

pub struct Connections {
    limits: ConnectionLimits,
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Connections {
    pub fn new(limits: ConnectionLimits) -> Connections {
        Connections {
            limits,
            total: 0,
            by_address: HashMap::new(),
        }
    }

    /// Counts one more, or says which limit it would break.
    pub fn admit(&mut self, address: IpAddr) -> Result<(), Limit> {
        if self.total >= self.limits.total {
            return Err(Limit::Total(self.limits.total));
        }
        let count = self.by_address.entry(address).or_default();
        if *count >= self.limits.per_address {
            return Err(Limit::PerAddress(self.limits.per_address));
        }
        *count += 1;
        self.total += 1;
        Ok(())
    }

    pub fn leave(&mut self, address: IpAddr) {
        let count = self
            .by_address
            .get_mut(&address)
            .expect("a connection leaves after it was admitted");
        *count -= 1;
        if *count == 0 {
            self.by_address.remove(&address);
        }
        self.total -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_places_come_back() {
        let mut connections = Connections::new(ConnectionLimits {
            total: 3,
            per_address: 2,
        });
        let (a, b) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        assert_eq!(connections.admit(a), Ok(()));
        assert_eq!(connections.admit(a), Ok(()));
        assert_eq!(connections.admit(a), Err(Limit::PerAddress(2)));
        assert_eq!(connections.admit(b), Ok(()));
        assert_eq!(connections.admit(b), Err(Limit::Total(3)));
        connections.leave(a);
        assert_eq!(connections.admit(b), Ok(()));
    }
}
