//! The list of keys as it stands in twinmq.conf(5).

use std::fmt::Write;

use super::key::{Effect, Key};
use super::settings::Table;

/// The keys of a table as mdoc list items, section by section, and the names that are known and
/// change nothing.
pub fn mdoc_items(table: &Table) -> String {
    let mut out = String::new();
    for section in table.sections {
        let _ = writeln!(out, ".Ss {}\n.Bl -tag -width Ds", section.title);
        section.keys.iter().for_each(|key| item(&mut out, key));
        out.push_str(".El\n");
    }
    out.push_str(".Ss Keys without effect\n");
    out.push_str("These keys of RocketMQ are known and change nothing here.\n.Bl -tag -width Ds\n");
    for group in table.unused {
        let _ = writeln!(out, ".It {}", capitalized(group.why));
        let names: Vec<&str> = group.names().collect();
        for (index, name) in names.iter().enumerate() {
            let comma = if index + 1 == names.len() { " ." } else { " ," };
            let _ = writeln!(out, ".Ic {name}{comma}");
        }
    }
    out.push_str(".El\n");
    out
}

fn item(out: &mut String, key: &Key) {
    let _ = writeln!(out, ".It Ic {} Ar {}", key.name, key.unit());
    paragraph(out, key.help);
    if let [alias, ..] = key.aliases {
        let _ = writeln!(out, "RocketMQ 5.x calls it\n.Ic {alias} .");
    }
    match key.derived {
        Some(how) => paragraph(out, &format!("The default is {how}.")),
        None if key.default.is_empty() => out.push_str("It is empty by default.\n"),
        None => {
            let _ = writeln!(out, "The default is {}.", key.default);
        }
    }
    match key.effect {
        Effect::Used => {}
        Effect::Later { refuse: true } => out.push_str("Another value is refused.\n"),
        Effect::Later { refuse: false } => {
            out.push_str("Another value has no effect in this version and is warned about.\n");
        }
    }
    if key.reloadable {
        out.push_str("It is read again on\n.Dv SIGHUP .\n");
    }
}

/// A paragraph, each sentence on its own line, `words` in backquotes as literals.
fn paragraph(out: &mut String, text: &str) {
    let text = text.replace(". ", ".\n");
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 0 {
            plain(out, part);
            continue;
        }
        if !out.ends_with('\n') {
            out.push('\n');
        }
        let _ = write!(out, ".Ic {part}");
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
}

/// Text after a literal: its punctuation goes on the macro's line, the rest on the next.
fn plain(out: &mut String, text: &str) {
    let after_macro = out
        .lines()
        .last()
        .is_some_and(|line| line.starts_with(".Ic"))
        && !out.ends_with('\n');
    let text = match after_macro {
        false => text,
        true => {
            let end = text
                .find(|c| !matches!(c, '.' | ',' | ';' | ':' | ')'))
                .unwrap_or(text.len());
            let (marks, rest) = text.split_at(end);
            marks.chars().for_each(|mark| {
                let _ = write!(out, " {mark}");
            });
            out.push('\n');
            rest.trim_start()
        }
    };
    out.push_str(text.trim_end_matches(' '));
}

fn capitalized(text: &str) -> String {
    let mut text = text.to_owned();
    text[..1].make_ascii_uppercase();
    text
}
