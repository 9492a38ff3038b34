//! `twinmq namesrv`: the name server.

use std::path::Path;
use std::time::Duration;

use super::options::{Options, Usage, opt};
use super::server::{self, Server};
use super::{Failure, Outcome};
use crate::config::{NamesrvConfig, Warning};
use crate::namesrv::{Namesrv, NamesrvSettings};

pub const USAGE: Usage = Usage {
    name: "namesrv",
    arguments: "",
    about: "Tells clients which broker serves which topic, as the brokers register it. Prints a \
            line with `ready` and its address when it serves; SIGTERM and SIGINT stop it.",
    options: &[
        opt("p", "port", "PORT", "The port. Default: 9876."),
        opt(
            "b",
            "bind",
            "ADDRESS",
            "The local address on which to listen. Default: all.",
        ),
        opt(
            "c",
            "config",
            "FILE",
            "Reads keys from FILE; the other options overrule it.",
        ),
    ],
};

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let (config, warnings) = load(&options)?;
    let signals = server::prepare(&config, &warnings)?;
    let namesrv =
        Namesrv::start(settings(&config)).map_err(|error| Failure::System(error.to_string()))?;
    log::info!("the name server listens on {}", namesrv.address());
    let ready = format!("namesrv {}", namesrv.address());
    let mut current = config;
    let on_reload = || match load(&options) {
        Ok((newer, warnings)) => {
            server::reload(&current, &newer, &warnings);
            current = newer;
        }
        Err(failure) => log::error!("the configuration stays as it is: {failure}"),
    };
    server::serve(&signals, &ready, on_reload, namesrv)
}

impl Server for Namesrv {
    fn is_alive(&self) -> bool {
        Namesrv::is_alive(self)
    }

    fn stop(self) -> Result<(), Failure> {
        Namesrv::stop(self);
        Ok(())
    }
}

fn load(options: &Options) -> Result<(NamesrvConfig, Vec<Warning>), Failure> {
    let path = options.text("config");
    let text = server::read_config(path.as_deref())?;
    let file = path.as_deref().map(Path::new).zip(text.as_deref());
    let mut overrules = Vec::new();
    for (option, key) in [("port", "listenPort"), ("bind", "bindAddress")] {
        overrules.extend(options.text(option).map(|value| format!("{key}={value}")));
    }
    NamesrvConfig::load(file, &overrules).map_err(|error| Failure::usage(error.to_string()))
}

fn settings(config: &NamesrvConfig) -> NamesrvSettings {
    let idle: Duration = config.duration("serverChannelMaxIdleTimeSeconds");
    NamesrvSettings {
        address: config.listen_address().to_string(),
        idle_max: idle,
        ..NamesrvSettings::default()
    }
}
