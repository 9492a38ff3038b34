//! `twinmq namesrv`: a name server, until it is told to stop.

use std::path::Path;

use super::broker::{level, read};
use super::options::{Usage, opt};
use super::{Failure, Outcome, server};
use crate::base::sys::{self, Signals};
use crate::config::{NamesrvConfig, Warning};
use crate::namesrv::{Namesrv, NamesrvSettings};

pub const USAGE: Usage = Usage {
    name: "namesrv",
    arguments: "",
    about: "Runs a name server in the foreground. Prints one line when it is ready and one when it \
            has stopped; SIGTERM and SIGINT stop it. It keeps nothing on disk.",
    options: &[
        opt("p", "port", "PORT", "The port. Default: 9876."),
        opt(
            "b",
            "bind",
            "ADDRESS",
            "The local address. Default: all addresses.",
        ),
        opt(
            "c",
            "config",
            "FILE",
            "The configuration, in the form of the original's namesrv.conf.",
        ),
    ],
};

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let path = options.text("config");
    let text = path
        .as_deref()
        .map(|path| read(Path::new(path)))
        .transpose()?;
    let given = [("port", "listenPort"), ("bind", "bindAddress")];
    let given = given
        .iter()
        .filter_map(|(option, key)| Some(format!("{key}={}", options.text(option)?)));
    let file = path.as_deref().map(Path::new).zip(text.as_deref());
    let (config, warnings) = NamesrvConfig::load(file, &given.collect::<Vec<_>>())
        .map_err(|error| Failure::usage(error.to_string()))?;
    serve(&config, &warnings)
}

fn serve(config: &NamesrvConfig, warnings: &[Warning]) -> Outcome {
    server::start_log(level(config.text("logLevel")));
    sys::abort_on_panic();
    warnings.iter().for_each(|warning| log::warn!("{warning}"));
    let system = |what: &str, error: std::io::Error| Failure::System(format!("{what}{error}"));
    let signals = Signals::install().map_err(|error| system("signals: ", error))?;
    let settings = NamesrvSettings {
        address: config.listen_address().to_string(),
        idle_max: config.duration("serverChannelMaxIdleTimeSeconds"),
        ..NamesrvSettings::default()
    };
    let namesrv = Namesrv::start(settings).map_err(|error| system("", error))?;
    let ready = format!("namesrv {}", namesrv.address());
    let reload = || log::warn!("SIGHUP: a name server has no key that can change while it runs");
    server::serve(&signals, &ready, reload, || {
        namesrv.stop();
        Ok(())
    })
}
