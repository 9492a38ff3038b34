//! `twinmq broker`: a broker, master or slave.

use std::io::Write;
use std::path::Path;

use super::options::{Options, Usage, flag, opt};
use super::{Done, Failure, Outcome, server};
use crate::base::sys::Signals;
use crate::config::{Config, Warning};

pub const USAGE: Usage = Usage {
    name: "broker",
    arguments: "[KEY=VALUE ...]",
    about: "Runs a broker from an unmodified broker.conf of RocketMQ; KEY=VALUE overrules it. \
            Prints a line with `ready` and its addresses when it serves; SIGTERM and SIGINT stop \
            it, SIGHUP reads the configuration again.",
    options: &[
        opt("c", "config", "FILE", "Reads the configuration from FILE."),
        opt("n", "namesrv", "HOST:PORT[;...]", "The name servers; overrules namesrvAddr."),
        flag("p", "print", "Prints the effective configuration, so that it can be read back."),
        flag("t", "test", "Checks the configuration: exits with 0 if it is good, else with 2."),
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
    let signals = server::prepare(&config, &warnings)?;
    serve(config, &signals, || load(&options))
}

fn load(options: &Options) -> Result<(Config, Vec<Warning>), Failure> {
    let path = options.text("config");
    let text = server::read_config(path.as_deref())?;
    let file = path.as_deref().map(Path::new).zip(text.as_deref());
    let namesrv = options.text("namesrv");
    Config::load(file, &options.words, namesrv.as_deref())
        .map_err(|error| Failure::usage(error.to_string()))
}

/// Starts the broker, serves until a signal comes, stops it.
fn serve(
    config: Config,
    _signals: &Signals,
    _load_again: impl Fn() -> Result<(Config, Vec<Warning>), Failure>,
) -> Outcome {
    let name = config.text("brokerName");
    Err(Failure::System(format!("{name} cannot serve: this build has no broker yet")))
}
