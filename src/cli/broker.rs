//! `twinmq broker`: a broker, master or slave.

use std::io::Write;
use std::path::Path;

use super::options::{Options, Usage, flag, opt};
use super::server::{self, Server};
use super::{Done, Failure, Outcome};
use crate::broker::run::{self, BrokerError, Running};
use crate::config::{Config, Warning};
use crate::store::StoreError;

pub const USAGE: Usage = Usage {
    name: "broker",
    arguments: "[KEY=VALUE ...]",
    about: "Runs a broker from an unmodified broker.conf of RocketMQ; KEY=VALUE overrules it. \
            Prints a line with `ready` and its addresses when it serves; SIGTERM and SIGINT stop \
            it, SIGHUP reads the configuration again.",
    options: &[
        opt("c", "config", "FILE", "Reads the configuration from FILE."),
        opt(
            "n",
            "namesrv",
            "HOST:PORT[;...]",
            "The name servers; overrules namesrvAddr.",
        ),
        flag(
            "p",
            "print",
            "Prints the effective configuration, so that it can be read back.",
        ),
        flag(
            "t",
            "test",
            "Checks the configuration: exits with 0 if it is good, else with 2.",
        ),
    ],
};

pub fn run(arguments: &[String]) -> Outcome {
    let options = USAGE.parse(arguments)?;
    let (config, warnings) = load(&options)?;
    if options.has("print") || options.has("test") {
        for warning in &warnings {
            eprintln!("twinmq broker: warning: {warning}");
        }
        if options.has("print") {
            std::io::stdout().write_all(config.print().as_bytes())?;
        }
        return Ok(Done::Fine);
    }
    // Before anything else is started: a stop signal during a long recovery is not lost.
    let signals = server::prepare(&config, &warnings)?;
    let running = run::start(&config).map_err(failure)?;
    let ready = running.ready_line();
    let mut current = config;
    let on_reload = || match load(&options) {
        Ok((newer, warnings)) => {
            server::reload(&current, &newer, &warnings);
            current = newer;
        }
        Err(failure) => log::error!("the configuration stays as it is: {failure}"),
    };
    server::serve(&signals, &ready, on_reload, running)
}

impl Server for Running {
    fn is_alive(&self) -> bool {
        Running::is_alive(self)
    }

    fn stop(self) -> Result<(), Failure> {
        Running::stop(self).map_err(store_failure)
    }
}

fn load(options: &Options) -> Result<(Config, Vec<Warning>), Failure> {
    let path = options.text("config");
    let text = server::read_config(path.as_deref())?;
    let file = path.as_deref().map(Path::new).zip(text.as_deref());
    let namesrv = options.text("namesrv");
    Config::load(file, &options.words, namesrv.as_deref())
        .map_err(|error| Failure::usage(error.to_string()))
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
