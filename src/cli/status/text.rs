//! A broker's status for people.

use std::fmt::Write;

use serde_json::Value;

use crate::cli::output::{bytes, span};

/// A few lines on one broker; `-` is what is not known.
pub fn render(status: &Value) -> String {
    let broker = &status["broker"];
    let mut text = format!(
        "{} {}  {}  {}  {}  up {}  {}\n",
        plain(&broker["name"]),
        plain(&broker["id"]),
        plain(&broker["role"]),
        plain(&broker["address"]),
        plain(&broker["state"]),
        broker["upSeconds"].as_u64().map_or_else(unknown, span),
        plain(&broker["version"]),
    );
    let log = &status["log"];
    line(
        &mut text,
        "log",
        format_args!(
            "{} .. {}  flushed {}  dispatched {}",
            plain(&log["min"]),
            plain(&log["max"]),
            plain(&log["flushed"]),
            plain(&log["dispatched"]),
        ),
    );
    match &status["slaves"] {
        Value::Array(slaves) if slaves.is_empty() => line(&mut text, "slave", format_args!("none")),
        Value::Array(slaves) => {
            for slave in slaves {
                line(&mut text, "slave", format_args!("{}", slave_words(slave)));
            }
        }
        _ if status.get("link").is_none() => line(&mut text, "slave", format_args!("not told")),
        _ => {}
    }
    if let Some(link) = status.get("link") {
        line(&mut text, "link", format_args!("{}", link_words(link)));
    }
    text
}

fn line(text: &mut String, name: &str, words: std::fmt::Arguments<'_>) {
    writeln!(text, "  {name:<6} {words}").expect("writing to a string cannot fail");
}

fn slave_words(slave: &Value) -> String {
    let sync = match slave["inSync"].as_bool() {
        Some(true) => "in sync",
        Some(false) => "not in sync",
        None => "in sync?",
    };
    format!(
        "{}  {}  reported {}  lag {}  {sync}  since {}",
        plain(&slave["address"]),
        plain(&slave["state"]),
        plain(&slave["reported"]),
        lag(slave),
        since(slave),
    )
}

fn link_words(link: &Value) -> String {
    let mut words = format!(
        "to {}  {}  received {}  reported {}  lag {}  since {}",
        plain(&link["master"]),
        plain(&link["state"]),
        plain(&link["received"]),
        plain(&link["reported"]),
        lag(link),
        since(link),
    );
    if let Some(error) = link["lastError"].as_str() {
        words += &format!("  last error: {error}");
    }
    words
}

fn lag(side: &Value) -> String {
    let size = side["lagBytes"].as_u64().map_or_else(unknown, bytes);
    match side["lagSeconds"].as_f64() {
        Some(seconds) if seconds > 0.0 => format!("{size} ({seconds:.1}s)"),
        _ => size,
    }
}

fn since(side: &Value) -> String {
    side["sinceSeconds"]
        .as_f64()
        .map_or_else(unknown, |seconds| span(seconds as u64))
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => unknown(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pair_reads_as_a_few_lines() {
        let master = json!({
            "broker": {"name": "broker-a", "id": 0, "role": "SYNC_MASTER", "state": "ready",
                "address": "127.0.0.1:10911", "version": "V4_9_8", "upSeconds": 75},
            "log": {"min": 0, "max": 4096, "flushed": 4096, "dispatched": null},
            "slaves": [{"address": "127.0.0.1:40112", "state": "streaming", "reported": 2048,
                "lagBytes": 2048, "lagSeconds": 0.5, "inSync": true, "sinceSeconds": 10}],
        });
        assert_eq!(
            render(&master),
            "broker-a 0  SYNC_MASTER  127.0.0.1:10911  ready  up 1m15s  V4_9_8\n\
             \x20 log    0 .. 4096  flushed 4096  dispatched -\n\
             \x20 slave  127.0.0.1:40112  streaming  reported 2048  lag 2.0 KiB (0.5s)  in sync  since 10s\n"
        );
    }

    #[test]
    fn a_slave_shows_its_link_and_its_last_error() {
        let slave = json!({"broker": {}, "log": {},
            "link": {"master": "127.0.0.1:10912", "state": "stalled", "lastError": "timed out"}});
        let text = render(&slave);
        assert!(
            text.contains("link   to 127.0.0.1:10912  stalled"),
            "{text}"
        );
        assert!(
            text.ends_with("last error: timed out\n") && !text.contains("slave "),
            "{text}"
        );
    }
}
