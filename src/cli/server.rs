//! What the two servers have in common: the log on stderr, the lines `ready` and `stopped`, the
//! service manager's socket, and the wait for a signal.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use log::{LevelFilter, Record};

use super::{Done, Failure, Outcome};
use crate::base::clock::{Calendar, wall_ms};
use crate::base::sys::{self, Signal, Signals};
use crate::config::{self, Settings, Warning};

/// How often a server that waits for a signal looks whether it still serves.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(5);

/// What `serve` holds while it waits.
pub trait Server {
    /// False once it serves no longer, though nobody has stopped it.
    fn is_alive(&self) -> bool;
    fn stop(self) -> Result<(), Failure>;
}

/// Starts the log. The environment variable RUST_LOG stands above `level`, which can be changed
/// later with `set_log_level`.
pub fn start_log(level: LevelFilter) {
    let mut builder = env_logger::Builder::new();
    match std::env::var("RUST_LOG") {
        Ok(filters) => builder.parse_filters(&filters),
        Err(_) => builder.filter_level(LevelFilter::Trace),
    };
    builder.format(|out, record| {
        let thread = std::thread::current();
        writeln!(
            out,
            "{}",
            log_line(wall_ms(), thread.name().unwrap_or("-"), record)
        )
    });
    builder.target(env_logger::Target::Stderr);
    // A second call, as in tests, keeps the first logger.
    if builder.try_init().is_ok() {
        set_log_level(level);
    }
}

/// A new `logLevel`, unless RUST_LOG decides.
pub fn set_log_level(level: LevelFilter) {
    if std::env::var_os("RUST_LOG").is_none() {
        log::set_max_level(level);
    }
}

/// `2026-11-29 16:40:05.123 INFO  ha ha::service - text`, in UTC.
fn log_line(ms: i64, thread: &str, record: &Record<'_>) -> String {
    let c = Calendar::utc(ms);
    let target = record.target();
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03} {:<5} {thread} {} - {}",
        c.year,
        c.month,
        c.day,
        c.hour,
        c.minute,
        c.second,
        c.millis,
        record.level(),
        target.strip_prefix("twinmq::").unwrap_or(target),
        record.args()
    )
}

/// Reads a configuration file, if one is named.
pub fn read_config(path: Option<&str>) -> Result<Option<String>, Failure> {
    let read = |path: &str| {
        config::read_file(Path::new(path))
            .map_err(|error| Failure::usage(format!("cannot read {path}: {error}")))
    };
    path.map(read).transpose()
}

/// Before anything else a server does: the log, what the configuration is warned about, signals.
pub fn prepare(settings: &Settings, warnings: &[Warning]) -> Result<Signals, Failure> {
    start_log(log_level(settings));
    for warning in warnings {
        log::warn!("{warning}");
    }
    sys::abort_on_panic();
    sys::raise_file_limit();
    Signals::install()
        .map_err(|error| Failure::System(format!("cannot install signal handlers: {error}")))
}

fn log_level(settings: &Settings) -> LevelFilter {
    let text = settings.text("logLevel");
    text.parse().expect("the table has names of levels only")
}

/// Takes over what may change while a server runs, and names what may not.
pub fn reload(old: &Settings, newer: &Settings, warnings: &[Warning]) {
    for warning in warnings {
        log::warn!("{warning}");
    }
    for key in old.changed(newer) {
        match key.name {
            "logLevel" => {
                set_log_level(log_level(newer));
                log::info!("logLevel is {} now", newer.text("logLevel"));
            }
            name => log::warn!("the change of {name} takes effect at the next start"),
        }
    }
}

/// Says that the server serves, waits for a stop signal, stops it and says so. `ready` is the rest
/// of the line; `on_reload` is called on SIGHUP.
pub fn serve(
    signals: &Signals,
    ready: &str,
    mut on_reload: impl FnMut(),
    server: impl Server,
) -> Outcome {
    say(&format!("ready {ready}"));
    notify("READY=1");
    loop {
        match signals.wait(SIGNAL_PATIENCE) {
            Some(Signal::Stop) => break,
            Some(Signal::Reload) => on_reload(),
            None if server.is_alive() => {}
            None => {
                return Err(Failure::System(
                    "it ended by itself; the log says why".into(),
                ));
            }
        }
    }
    log::info!("stopping");
    notify("STOPPING=1");
    server.stop()?;
    say("stopped");
    Ok(Done::Fine)
}

/// One line on stdout. A server goes on serving when nobody reads it.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        log::warn!("the line {line:?} cannot be written to the standard output: {error}");
    }
}

/// Tells the service manager, if it gave us a socket.
fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = notify_address(&name).and_then(|address| send_to(&address, state)) {
        log::warn!("the service manager's socket {}: {error}", name.display());
    }
}

/// A path, or a name that begins with `@` and is no file.
fn notify_address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(name),
    }
}

fn send_to(address: &SocketAddr, state: &str) -> io::Result<()> {
    UnixDatagram::unbound()?
        .send_to_addr(state.as_bytes(), address)
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_has_its_level_between_spaces() {
        let record = Record::builder()
            .level(log::Level::Info)
            .target("twinmq::ha::service")
            .args(format_args!("listening"))
            .build();
        assert_eq!(
            log_line(1_795_970_405_123, "ha", &record),
            "2026-11-29 16:40:05.123 INFO  ha ha::service - listening"
        );
    }

    #[test]
    fn the_service_manager_is_told_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("a socket file");
        send_to(
            &notify_address(path.as_os_str()).expect("a path"),
            "READY=1",
        )
        .expect("sent");
        let name = format!("@twinmq-test-{}", std::process::id());
        let address = notify_address(OsStr::new(&name)).expect("an abstract name");
        let by_name = UnixDatagram::bind_addr(&address).expect("an abstract socket");
        send_to(&address, "READY=1").expect("sent");
        for socket in [by_path, by_name] {
            let mut state = [0; 16];
            let len = socket.recv(&mut state).expect("what was sent");
            assert_eq!(&state[..len], b"READY=1");
        }
    }
}
