//! `twinmq broker`: a broker, until it is told to stop.

use std::path::Path;

use super::options::{Options, Usage, flag, opt};
use super::{Done, Failure, Outcome, server};
use crate::base::sys::{self, Signals};
use crate::broker::run::{self, BrokerError};
use crate::config::{self, Config, Warning};
use crate::store::StoreError;

pub const USAGE: Usage = Usage {
    name: "broker",
    arguments: "[KEY=VALUE ...]",
    about: "Runs a broker in the foreground: a master or, with brokerRole=SLAVE, a slave. Prints \
            one line when it is ready and one when it has stopped; SIGTERM and SIGINT stop it. Keys \
            given as KEY=VALUE win over those of the file.",
    options: &[
        opt(
            "c",
            "config",
            "FILE",
            "The configuration, in the form of the original's broker.conf.",
        ),
        opt(
            "n",
            "namesrv",
            "ADDRESS",
            "The name servers, HOST:PORT, with semicolons between.",
        ),
        flag(
            "p",
            "print",
            "Prints the effective configuration, which can be read back, and exits.",
        ),
        flag("t", "test", "Checks the configuration and exits."),
    ],
};

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let (config, warnings) = load(&options)?;
    if options.has("print") || options.has("test") {
        warnings.iter().for_each(|warning| eprintln!("{warning}"));
        if options.has("print") {
            print!("{}", config.print());
        }
        return Ok(Done::Fine);
    }
    server::start_log(level(config.text("logLevel")));
    sys::abort_on_panic();
    warnings.iter().for_each(|warning| log::warn!("{warning}"));
    // Before anything else is started: a stop signal during a long recovery is not lost.
    let signals =
        Signals::install().map_err(|error| Failure::System(format!("signals: {error}")))?;
    let running = run::start(&config).map_err(failure)?;
    let ready = running.ready_line();
    let reload = || log::warn!("SIGHUP: no key of this version can change while the broker runs");
    server::serve(&signals, &ready, reload, || {
        running.stop().map_err(store_failure)
    })
}

fn load(options: &Options) -> Result<(Config, Vec<Warning>), Failure> {
    let path = options.text("config");
    let text = path
        .as_deref()
        .map(|path| read(Path::new(path)))
        .transpose()?;
    let file = path.as_deref().map(Path::new).zip(text.as_deref());
    let namesrv = options.text("namesrv");
    Config::load(file, &options.words, namesrv.as_deref())
        .map_err(|error| Failure::usage(error.to_string()))
}

pub fn read(path: &Path) -> Result<String, Failure> {
    config::read_file(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

pub fn level(name: &str) -> log::LevelFilter {
    name.parse().unwrap_or(log::LevelFilter::Info)
}

fn failure(error: BrokerError) -> Failure {
    match error {
        BrokerError::Store(error) => store_failure(error),
        other => Failure::System(other.to_string()),
    }
}

/// A store that belongs to a running broker, or that cannot be opened without losing something, is
/// left alone.
fn store_failure(error: StoreError) -> Failure {
    match error {
        StoreError::InUse(_) | StoreError::Refused(_) => Failure::Unsafe(error.to_string()),
        other => Failure::System(other.to_string()),
    }
}
