//! The configuration of a broker and of a name server.
//!
//! [`KEYS`] has every key once. A configuration is read from Java's `broker.conf` as it is, then
//! from `KEY=VALUE` arguments; what follows from other keys is filled in, and what cannot work is
//! refused with its reason. After that every value is there and in its range: a lookup cannot
//! fail, except by asking for a name that is not in the table, which is our own mistake.

mod check;
mod key;
mod keys;
mod manual;
mod properties;
mod settings;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::Path;

pub use key::{Effect, Key, Kind, Unit, Value};
pub use keys::{KEYS, NAMESRV_KEYS};
pub use manual::mdoc_items;
pub use settings::{ConfigError, Place, Problem, Section, Settings, Table, Unused, Warning};

use settings::Reading;

/// What a broker is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    AsyncMaster,
    SyncMaster,
    Slave,
}

impl Role {
    /// The value of `brokerRole`.
    pub fn name(self) -> &'static str {
        match self {
            Role::AsyncMaster => "ASYNC_MASTER",
            Role::SyncMaster => "SYNC_MASTER",
            Role::Slave => "SLAVE",
        }
    }
}

/// A broker's effective configuration. Values are looked up by key name: see [`Settings`].
#[derive(PartialEq, Debug)]
pub struct Config(Settings);

impl Config {
    /// Reads a file (its path is for messages only), then `KEY=VALUE` arguments, then the name
    /// servers of `-n`. Later ones overrule earlier ones.
    pub fn load(
        file: Option<(&Path, &str)>,
        arguments: &[String],
        namesrv: Option<&str>,
    ) -> Result<(Config, Vec<Warning>), ConfigError> {
        let mut reading = Reading::new(&KEYS);
        if let Some((path, text)) = file {
            reading.file(path, text);
        }
        reading.arguments(arguments);
        if let Some(namesrv) = namesrv {
            reading.arguments(&[format!("namesrvAddr={namesrv}")]);
        }
        check::complete_broker(&mut reading);
        let (settings, warnings) = reading.finish()?;
        Ok((Config(settings), warnings))
    }

    pub fn role(&self) -> Role {
        check::role(&self.0)
    }

    pub fn is_slave(&self) -> bool {
        self.role() == Role::Slave
    }

    /// Where clients are served; port 0 if the system chooses.
    pub fn listen_address(&self) -> SocketAddr {
        SocketAddr::new(self.ip("bindAddress"), self.port("listenPort"))
    }

    /// Where everything but pulls is served too: two ports below. None if the system chooses the
    /// port, since clients could not compute it.
    pub fn fast_address(&self) -> Option<SocketAddr> {
        let port = self.port("listenPort").checked_sub(2)?;
        Some(SocketAddr::new(self.ip("bindAddress"), port))
    }

    /// Where slaves are served.
    pub fn ha_address(&self) -> SocketAddr {
        SocketAddr::new(self.ip("haBindAddress"), self.port("haListenPort"))
    }

    /// What clients are told to connect to. `port` is the one that was bound.
    pub fn advertised(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip("brokerIP1"), port)
    }

    /// What slaves are told to connect to.
    pub fn ha_advertised(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip("brokerIP2"), port)
    }

    fn ip(&self, name: &str) -> IpAddr {
        self.text(name)
            .parse()
            .expect("complete_broker() leaves numeric addresses only")
    }

    fn port(&self, name: &str) -> u16 {
        u16::try_from(self.int(name)).expect("the table bounds ports")
    }
}

impl Deref for Config {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.0
    }
}

/// A name server's effective configuration.
#[derive(PartialEq, Debug)]
pub struct NamesrvConfig(Settings);

impl NamesrvConfig {
    pub fn load(
        file: Option<(&Path, &str)>,
        arguments: &[String],
    ) -> Result<(NamesrvConfig, Vec<Warning>), ConfigError> {
        let mut reading = Reading::new(&NAMESRV_KEYS);
        if let Some((path, text)) = file {
            reading.file(path, text);
        }
        reading.arguments(arguments);
        check::complete_namesrv(&mut reading);
        let (settings, warnings) = reading.finish()?;
        Ok((NamesrvConfig(settings), warnings))
    }

    pub fn listen_address(&self) -> SocketAddr {
        let ip = self.text("bindAddress").parse();
        let port = u16::try_from(self.int("listenPort")).expect("the table bounds ports");
        SocketAddr::new(
            ip.expect("complete_namesrv() leaves numeric addresses only"),
            port,
        )
    }
}

impl Deref for NamesrvConfig {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.0
    }
}

/// The text of a configuration file. Java takes these files for Latin-1, editors write UTF-8:
/// what is not UTF-8 is read as Java does.
pub fn read_file(path: &Path) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| {
        error
            .into_bytes()
            .iter()
            .map(|&byte| char::from(byte))
            .collect()
    }))
}
