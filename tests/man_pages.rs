//! The manual pages agree with the program.
//!
//! The keys in twinmq.conf(5) are those of the program, word for word. After a change to a key,
//! `TWINMQ_WRITE_PAGES=1 cargo test --test man_pages` writes them into the page.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use twinmq::config::{KEYS, NAMESRV_KEYS, Table, mdoc_items};

const COMMANDS: [(&str, &str); 6] = [
    ("namesrv", "8"),
    ("broker", "8"),
    ("send", "1"),
    ("consume", "1"),
    ("status", "1"),
    ("bench", "1"),
];

fn page_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("man").join(name)
}

fn page(name: &str) -> String {
    let path = page_path(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Where a table's keys stand: between the two comments that mark them.
fn marked(page: &str, title: &str) -> Range<usize> {
    let (begin, end) = (
        format!(".\\\" BEGIN {title}\n"),
        format!(".\\\" END {title}\n"),
    );
    let from = page.find(&begin).expect("the page has the first mark") + begin.len();
    let to = page.find(&end).expect("the page has the second mark");
    from..to
}

/// The item of one key in a list: up to the next item or the list's end.
fn item<'a>(text: &'a str, key: &str) -> &'a str {
    let start = text
        .find(&format!(".It Ic {key} Ar "))
        .unwrap_or_else(|| panic!("{key} has no item"));
    let rest = &text[start + 1..];
    let end = ["\n.It ", "\n.El"]
        .iter()
        .filter_map(|mark| rest.find(mark))
        .min();
    &rest[..end.expect("an item ends")]
}

fn every_key_is_told(table: &Table, title: &str) {
    let mut text = page("twinmq.conf.5");
    let generated = mdoc_items(table);
    if std::env::var_os("TWINMQ_WRITE_PAGES").is_some() {
        text.replace_range(marked(&text, title), &generated);
        fs::write(page_path("twinmq.conf.5"), &text).expect("the page can be written");
    }
    let told = &text[marked(&text, title)];
    for key in table.keys() {
        let item = item(told, key.name);
        if !key.default.is_empty() && key.derived.is_none() {
            let default = format!("The default is {}.", key.default);
            assert!(
                item.contains(&default),
                "{} does not say: {default}",
                key.name
            );
        }
    }
    assert!(
        told == generated,
        "{title} differ from the program; see this file's first lines"
    );
}

#[test]
fn every_key_is_in_twinmq_conf_5() {
    // One after the other: both may write the page.
    every_key_is_told(&KEYS, "BROKER KEYS");
    every_key_is_told(&NAMESRV_KEYS, "NAME SERVER KEYS");
}

#[test]
fn every_command_has_a_page() {
    let overview = page("twinmq.8");
    for (command, section) in COMMANDS {
        let text = page(&format!("twinmq-{command}.{section}"));
        assert!(
            text.contains(&format!("\n.Nm twinmq {command}\n")),
            "{command}"
        );
        assert!(
            overview.contains(&format!("\n.It Cm {command}\n")),
            "{command}"
        );
        assert!(
            overview.contains(&format!(".Xr twinmq-{command} {section}")),
            "{command}"
        );
    }
}

#[test]
fn pages_refer_to_pages_that_exist() {
    let names: Vec<String> = fs::read_dir(page_path(""))
        .expect("the directory of pages")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert!(names.len() > COMMANDS.len());
    for name in &names {
        let text = page(name);
        for reference in text.lines().filter_map(|line| line.strip_prefix(".Xr ")) {
            let mut words = reference.split(' ');
            let (to, section) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let ours = to.starts_with("twinmq");
            let exists = names.contains(&format!("{to}.{section}"));
            assert!(!ours || exists, "{name} refers to {to}({section})");
        }
    }
}

/// The options that `twinmq help COMMAND` tells: lines of two blanks, `-x, ` if there is a
/// letter, and `--long`.
fn options_of_the_program(command: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_twinmq"))
        .args(["help", command])
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "twinmq help {command}: {output:?}");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    let options = lines.filter(|line| line.starts_with('-')).map(|line| {
        let words = line
            .split([' ', ',', '='])
            .take_while(|word| word.is_empty() || word.starts_with('-'));
        words
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    });
    sorted(options.collect())
}

/// The options in a page: items such as `.It Fl x , Fl Fl long Ar value`.
fn options_of_the_page(name: &str) -> Vec<String> {
    let text = page(name);
    let items = text.lines().filter_map(|line| line.strip_prefix(".It Fl "));
    let options = items.map(|item| {
        let words: Vec<&str> = item.split(' ').collect();
        match words[..] {
            ["Fl", long, ..] => format!("--{long}"),
            [short, ",", "Fl", "Fl", long, ..] => format!("-{short} --{long}"),
            _ => panic!("{name}: {item:?} is no option as the pages write them"),
        }
    });
    sorted(options.collect())
}

fn sorted(mut options: Vec<String>) -> Vec<String> {
    options.sort();
    options.dedup();
    options
}

#[test]
fn every_option_is_in_its_page() {
    for (command, section) in COMMANDS {
        let told = options_of_the_page(&format!("twinmq-{command}.{section}"));
        let wanted = options_of_the_program(command);
        assert!(!wanted.is_empty(), "twinmq help {command} tells no option");
        assert_eq!(told, wanted, "{command}");
    }
}
