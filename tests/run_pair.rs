//! tools/run-pair, with a script in the place of the servers: it starts all or nothing, says
//! what went wrong, and leaves nothing running.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Says that it is ready and then sleeps; one that plays the slave ends at once if
/// SLAVE_DIES is set.
const SERVER: &str = "#!/bin/sh
echo \"$$ $*\"
case \"$SLAVE_DIES $*\" in yes*/broker-a-s/*) echo 'disk on fire'; exit 4;; esac
echo 'ready 127.0.0.1'
exec sleep 60
";

struct Trial {
    dir: tempfile::TempDir,
    command: Command,
}

/// A run in a directory of its own; `None`, and a word, where there is no Python.
fn trial(base: u16) -> Option<Trial> {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = dir.path().join("server");
    std::fs::write(&server, SERVER).expect("a script");
    std::fs::set_permissions(&server, PermissionsExt::from_mode(0o755)).expect("a mode");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/run-pair");
    let mut command = Command::new(script);
    command
        .args(["--ports", &base.to_string(), "--dir"])
        .arg(dir.path().join("run"));
    command
        .env("TWINMQ", server)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Some(Trial { dir, command })
}

/// A port that is free with those behind it, as far as one look can tell.
fn free_base() -> u16 {
    let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    for _ in 0..100 {
        let probe = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let base = probe.local_addr().expect("its number").port();
        drop(probe);
        if base < 65000 && (base..base + 30).all(free) {
            return base;
        }
    }
    panic!("no thirty free ports in a row");
}

impl Trial {
    fn log(&self, name: &str) -> PathBuf {
        self.dir.path().join("run").join(name).join("log")
    }

    /// Process ids that the servers wrote into their logs.
    fn servers(&self) -> Vec<Pid> {
        let names = ["namesrv", "broker-a", "broker-a-s"];
        let logs = names
            .iter()
            .filter_map(|name| std::fs::read_to_string(self.log(name)).ok());
        let ids = logs.filter_map(|log| log.split(' ').next()?.parse().ok());
        ids.filter_map(Pid::from_raw).collect()
    }

    fn nothing_is_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self
            .servers()
            .iter()
            .any(|server| test_kill_process(*server).is_ok())
        {
            assert!(Instant::now() < deadline, "a server is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn wait_for_line(child: &mut Child, wanted: &str) {
    let out = child.stdout.as_mut().expect("it is piped");
    let found = BufReader::new(out)
        .lines()
        .map_while(Result::ok)
        .any(|line| line == wanted);
    if !found {
        let mut said = String::new();
        let _ = child
            .stderr
            .as_mut()
            .expect("it is piped")
            .read_to_string(&mut said);
        panic!("it ended without {wanted:?}: {said}");
    }
}

#[test]
fn an_interrupt_stops_every_server() {
    let Some(mut trial) = trial(free_base()) else {
        return;
    };
    let mut child = trial.command.spawn().expect("run-pair starts");
    wait_for_line(&mut child, "Ctrl-C stops all.");
    assert_eq!(trial.servers().len(), 3);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("it is there");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    trial.nothing_is_left();
    let conf = trial.dir.path().join("run/broker-a-s/broker.conf");
    let text = std::fs::read_to_string(&conf).expect("it is written");
    let (config, warnings) =
        twinmq::config::Config::load(Some((&conf, &text)), &[], None).expect("it is usable");
    assert!(config.is_slave() && warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_server_that_ends_is_named_with_its_last_words_and_ends_the_others() {
    let Some(mut trial) = trial(free_base()) else {
        return;
    };
    let output = trial
        .command
        .env("SLAVE_DIES", "yes")
        .output()
        .expect("run-pair starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("broker-a-s ended before it was ready with status 4"),
        "{said}"
    );
    assert!(said.contains("disk on fire"), "{said}");
    trial.nothing_is_left();
}

#[test]
fn a_taken_port_is_told_before_anything_starts() {
    let base = free_base();
    let taken = TcpListener::bind(("127.0.0.1", base + 13)).expect("it was free");
    let Some(mut trial) = trial(base) else { return };
    let output = trial.command.output().expect("run-pair starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let wanted = format!(
        "port {} for broker-a",
        taken.local_addr().expect("a number").port()
    );
    assert!(
        said.contains(&wanted) && said.contains("--ports BASE"),
        "{said}"
    );
    assert!(trial.servers().is_empty());
}
