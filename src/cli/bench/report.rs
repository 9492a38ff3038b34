//! What a measurement found: `name value` pairs, as text or as one JSON object.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::cpu::CpuUse;
use super::{Histogram, Tally};

pub struct Report {
    figures: Vec<(&'static str, Value)>,
}

impl Report {
    pub fn new(bench: &'static str) -> Report {
        Report {
            figures: vec![("bench", json!(bench))],
        }
    }

    pub fn add(&mut self, name: &'static str, value: impl Into<Value>) -> &mut Report {
        self.figures.push((name, value.into()));
        self
    }

    /// A number with as many digits as a reader wants.
    pub fn number(&mut self, name: &'static str, value: f64) -> &mut Report {
        let digits = if value.abs() >= 100.0 { 0 } else { 3 };
        let scale = 10_f64.powi(digits);
        self.add(name, json!((value * scale).round() / scale))
    }

    pub fn times(&mut self, name: &'static str, times: &Histogram) -> &mut Report {
        let micros = |time: Duration| json!(time.as_nanos() as f64 / 1000.0);
        self.add(
            name,
            json!({
                "p50": micros(times.quantile(0.5)),
                "p90": micros(times.quantile(0.9)),
                "p99": micros(times.quantile(0.99)),
                "p999": micros(times.quantile(0.999)),
                "max": micros(times.max()),
            }),
        )
    }

    /// How many answers had which code.
    pub fn codes(&mut self, tally: &Tally) -> &mut Report {
        let pair = |(code, count): (&i32, &u64)| (code.to_string(), json!(count));
        let codes: Map<String, Value> = tally.codes.iter().map(pair).collect();
        self.add("codes", Value::Object(codes))
            .add("unanswered", tally.unanswered)
    }

    pub fn cpu(&mut self, used: &CpuUse) -> &mut Report {
        self.add("cpuSeconds", used.to_json())
    }

    pub fn write(&self, as_json: bool) -> io::Result<()> {
        let text = match as_json {
            true => format!("{}\n", self.to_json()),
            false => self.to_text(),
        };
        io::stdout().write_all(text.as_bytes())
    }

    fn to_json(&self) -> Value {
        let figures = self.figures.iter();
        Value::Object(
            figures
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
        )
    }

    /// Plain figures on the first line, groups of figures on a line each.
    fn to_text(&self) -> String {
        let mut first = Vec::new();
        let mut lines = String::new();
        for (name, value) in &self.figures {
            match value {
                Value::Object(group) => {
                    lines += &format!("  {name}");
                    for (part, figure) in group {
                        lines += &format!(" {part}={figure}");
                    }
                    lines.push('\n');
                }
                Value::String(text) => first.push(format!("{name}={text}")),
                figure => first.push(format!("{name}={figure}")),
            }
        }
        format!("{}\n{lines}", first.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_report_is_one_object_or_a_few_lines() {
        let mut latency = Histogram::default();
        latency.record(Duration::from_micros(50));
        let tally = Tally {
            codes: BTreeMap::from([(0, 7), (12, 1)]),
            ..Tally::default()
        };
        let mut report = Report::new("send");
        report
            .add("connections", 2)
            .number("perSecond", 1234.56)
            .number("cpu", 0.12345);
        report.times("latencyUs", &latency).codes(&tally);
        let value = report.to_json();
        assert_eq!(value["perSecond"], 1235.0);
        assert_eq!(
            (&value["latencyUs"]["max"], &value["codes"]["12"]),
            (&json!(50.0), &json!(1))
        );
        let text = report.to_text();
        assert!(
            text.starts_with("bench=send connections=2 perSecond=1235.0 cpu=0.123 "),
            "{text}"
        );
        assert!(text.contains("\n  codes 0=7 12=1\n"), "{text}");
    }
}
