//! CPU time: our own, that of named processes, and what the rest of the machine used meanwhile.

use std::fs;

use serde_json::{Map, Value, json};

use crate::cli::Failure;

/// Linux tells CPU times in hundredths of a second on every common architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU times at the start of a measurement.
pub struct CpuWatch {
    /// Processes by name in the report; `self` is this one.
    processes: Vec<(String, f64)>,
    machine: Machine,
}

/// Seconds of the whole machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Machine {
    busy: f64,
    steal: f64,
}

/// CPU seconds during a measurement.
pub struct CpuUse {
    processes: Vec<(String, f64)>,
    others: f64,
    steal: f64,
}

impl CpuWatch {
    /// `pids` has commas between the numbers; a process that is not there is an error.
    pub fn start(pids: Option<&str>) -> Result<CpuWatch, Failure> {
        let named = pids.unwrap_or("").split(',').filter(|pid| !pid.is_empty());
        let mut processes = Vec::new();
        for pid in ["self"].into_iter().chain(named) {
            let seconds = process_seconds(pid)
                .ok_or_else(|| Failure::usage(format!("there is no process {pid:?}")))?;
            processes.push((pid.to_owned(), seconds));
        }
        Ok(CpuWatch {
            processes,
            machine: machine(),
        })
    }

    pub fn finish(self) -> CpuUse {
        let now = machine();
        let used = |(pid, before): (String, f64)| {
            // A process that ended meanwhile has an unknown figure; NaN becomes null.
            let seconds = process_seconds(&pid).map_or(f64::NAN, |after| after - before);
            (pid, seconds)
        };
        let processes: Vec<_> = self.processes.into_iter().map(used).collect();
        let known: f64 = processes
            .iter()
            .map(|(_, seconds)| seconds)
            .filter(|s| !s.is_nan())
            .sum();
        CpuUse {
            processes,
            others: (now.busy - self.machine.busy - known).max(0.0),
            steal: now.steal - self.machine.steal,
        }
    }
}

impl CpuUse {
    pub fn own(&self) -> f64 {
        self.processes[0].1
    }

    pub fn to_json(&self) -> Value {
        let mut seconds: Map<String, Value> = self
            .processes
            .iter()
            .map(|(pid, used)| (pid.clone(), rounded(*used)))
            .collect();
        seconds.insert("others".to_owned(), rounded(self.others));
        seconds.insert("steal".to_owned(), rounded(self.steal));
        Value::Object(seconds)
    }
}

fn rounded(seconds: f64) -> Value {
    json!((seconds * 100.0).round() / 100.0)
}

/// User and system seconds of a process and all its threads.
fn process_seconds(pid: &str) -> Option<f64> {
    if pid != "self" && pid.parse::<u32>().is_err() {
        return None;
    }
    parse_process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The 14th and 15th field; the second is a name in brackets that may have spaces in it.
fn parse_process(text: &str) -> Option<f64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

fn machine() -> Machine {
    fs::read_to_string("/proc/stat")
        .map_or_else(|_| Machine::default(), |text| parse_machine(&text))
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal.
fn parse_machine(text: &str) -> Machine {
    let line = text.lines().next().unwrap_or("");
    let fields = line
        .split_whitespace()
        .skip(1)
        .map_while(|field| field.parse::<f64>().ok());
    match fields.collect::<Vec<_>>()[..] {
        [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] => Machine {
            busy: (user + nice + system + irq + softirq) / TICKS_PER_SECOND,
            steal: steal / TICKS_PER_SECOND,
        },
        _ => Machine::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_found_in_the_systems_texts() {
        let stat = "12 (a (b) c) S 1 12 12 0 -1 4194560 100 0 0 0 150 50 7 8 20 0 1 0 100 0";
        assert_eq!(parse_process(stat), Some(2.0));
        assert_eq!(parse_process("nonsense"), None);
        let text = "cpu  100 10 200 5000 7 20 30 40 0 0\ncpu0 1 2 3\n";
        assert_eq!(
            parse_machine(text),
            Machine {
                busy: 3.6,
                steal: 0.4
            }
        );
    }

    #[test]
    fn a_process_that_is_not_there_is_refused() {
        assert!(CpuWatch::start(Some("self")).is_ok());
        for bad in ["1x", "-1", "../1", "4294967295"] {
            assert!(CpuWatch::start(Some(bad)).is_err(), "{bad}");
        }
    }
}
