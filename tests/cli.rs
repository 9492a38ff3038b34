//! The program as a script sees it: exit codes, what goes to which stream, help. Needs no broker.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn twinmq(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_twinmq"))
        .args(arguments)
        .env_remove("NAMESRV_ADDR")
        .stdin(Stdio::null())
        .output()
        .expect("the program runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("the program was not killed")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The names in `twinmq help`.
fn commands() -> Vec<String> {
    let help = text(&twinmq(&["help"]).stdout);
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// A port where nobody listens.
fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").to_string()
}

#[test]
fn help_and_version_go_to_stdout() {
    for arguments in [
        &["help"][..],
        &["--help"],
        &["-h"],
        &["help", "send"],
        &["send", "--help"],
    ] {
        let output = twinmq(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}");
        assert!(
            text(&output.stdout).starts_with("usage: twinmq "),
            "{arguments:?}"
        );
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
    let version = text(&twinmq(&["--version"]).stdout);
    assert_eq!(version, format!("twinmq {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_ends_with_2_and_says_why_on_stderr() {
    for (arguments, why) in [
        (&[][..], "usage: twinmq"),
        (&["nonsense"], "no command \"nonsense\""),
        (&["help", "nonsense"], "no command \"nonsense\""),
        (&["send"], "--topic is needed"),
        (&["send", "-t", "T", "--nonsense"], "nonsense"),
        (&["send", "-t", "T", "-p", "novalue", "x"], "not NAME=VALUE"),
        (
            &["send", "-t", "T", "-f", "/nonexistent/file"],
            "cannot read /nonexistent/file",
        ),
        (
            &["send", "-t", "T", "--count", "0", "x"],
            "--count cannot be 0",
        ),
        (
            &["consume", "-t", "T", "--from", "yesterday"],
            "--from cannot be \"yesterday\"",
        ),
        (&["consume", "-t", "T", "word"], "\"word\""),
        (
            &["consume", "-t", "T", "--timeout", "-1"],
            "--timeout cannot be",
        ),
        (&["status", "--watch"], "needs a terminal"),
        (&["status", "-n", ";"], "no name server is named"),
        (&["bench"], "send, pull, pipe or chain"),
        (&["bench", "nonsense"], "none of send, pull, pipe and chain"),
        (&["bench", "chain", "--window", "2000"], "at most 1024"),
        (&["bench", "pipe", "--pids", "0x1"], "no process \"0x1\""),
    ] {
        let output = twinmq(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}");
        let complaint = text(&output.stderr);
        assert!(complaint.contains(why), "{arguments:?}: {complaint}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}

#[test]
fn peers_that_cannot_be_reached_end_a_command_with_3() {
    let closed = closed_port();
    for command in [
        &["send", "-t", "T", "x"][..],
        &["consume", "-t", "T"],
        &["status"],
        &["bench", "send"],
        &["bench", "pull"],
    ] {
        for place in ["-n", "-b"] {
            let output = twinmq(&[command, &[place, &closed]].concat());
            assert_eq!(code(&output), 3, "{command:?} {place}");
            let complaint = text(&output.stderr);
            assert!(
                complaint.contains(&closed),
                "{command:?} {place}: {complaint}"
            );
        }
    }
}

#[test]
fn a_peer_that_speaks_something_else_ends_a_command_with_3() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    let server = std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.expect("a client");
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).expect("a request");
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .expect("an answer");
        }
    });
    for place in ["-n", "-b"] {
        let output = twinmq(&["status", place, &address]);
        assert_eq!(code(&output), 3, "{place}");
        assert!(text(&output.stderr).contains("frame length"), "{place}");
    }
    server.join().expect("both came");
}

#[test]
fn the_bare_programs_measure_something() {
    let output = twinmq(&["bench", "chain", "--count", "200", "-w", "4", "--json"]);
    let chain: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!((code(&output), chain["messages"].as_u64()), (0, Some(200)));
    assert!(chain["latencyUs"]["p50"].as_f64() > Some(0.0), "{chain}");
    let output = twinmq(&["bench", "pipe", "-s", "0.2", "--json"]);
    let pipe: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(code(&output), 0);
    assert!(pipe["mbPerSecond"].as_f64() > Some(0.0), "{pipe}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_twinmq"))
        .arg("help")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("its end");
    assert_eq!((code(&output), text(&output.stderr)), (0, String::new()));
}

#[test]
fn every_option_is_in_the_commands_manual_page() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    if !pages.is_dir() {
        println!("skipped: there are no manual pages");
        return;
    }
    for command in commands() {
        let page = ["1", "8"]
            .iter()
            .find_map(|section| {
                fs::read_to_string(pages.join(format!("twinmq-{command}.{section}"))).ok()
            })
            .unwrap_or_else(|| panic!("{command} has no page"));
        let help = text(&twinmq(&["help", &command]).stdout);
        let long = help.lines().filter(|line| line.starts_with("  -"));
        for option in long
            .filter_map(|line| line.split_once("--"))
            .map(|(_, rest)| rest)
        {
            let name = option
                .split_whitespace()
                .next()
                .expect("an option has a name");
            assert!(
                page.contains(&format!("Fl Fl {name}")),
                "twinmq-{command} lacks --{name}"
            );
        }
    }
}
