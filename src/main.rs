//! The command line: which subcommands there are, and how each one ends.

use std::io::Write;
use std::process::ExitCode;

use twinmq::cli::options::Usage;
use twinmq::cli::{self, Failure, Outcome};

struct Subcommand {
    name: &'static str,
    /// One line for `twinmq help`.
    summary: &'static str,
    run: fn(&[String]) -> Outcome,
    /// Its options; several tables where it has kinds of its own.
    usages: &'static [&'static Usage],
}

const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand {
        name: "namesrv",
        summary: "run a name server",
        run: cli::namesrv::run,
        usages: &[&cli::namesrv::USAGE],
    },
    Subcommand {
        name: "broker",
        summary: "run a broker, master or slave",
        run: cli::broker::run,
        usages: &[&cli::broker::USAGE],
    },
    Subcommand {
        name: "send",
        summary: "send lines, files or words to a topic",
        run: cli::send::run,
        usages: &[&cli::send::USAGE],
    },
    Subcommand {
        name: "consume",
        summary: "read a topic",
        run: cli::consume::run,
        usages: &[&cli::consume::USAGE],
    },
    Subcommand {
        name: "status",
        summary: "show the state of brokers and of the slaves behind them",
        run: cli::status::run,
        usages: &[&cli::status::USAGE],
    },
    Subcommand {
        name: "bench",
        summary: "measure brokers, and the bare machine beside them",
        run: cli::bench::run,
        usages: cli::bench::USAGES,
    },
];

fn main() -> ExitCode {
    let mut arguments = Vec::new();
    for argument in std::env::args_os().skip(1) {
        match argument.into_string() {
            Ok(text) => arguments.push(text),
            Err(bytes) => return fail("", Failure::usage(format!("{bytes:?} is not UTF-8"))),
        }
    }
    let Some((name, rest)) = arguments.split_first() else {
        eprint!("{}", overview());
        return ExitCode::from(cli::EXIT_USAGE);
    };
    match name.as_str() {
        "help" | "--help" | "-h" => finish("help", help(rest.first())),
        "--version" | "-V" => finish("", print(&version())),
        _ => match find(name) {
            Some(command) if wants_help(rest) => finish(name, help(Some(&command.name.into()))),
            Some(command) => finish(name, (command.run)(rest)),
            None => finish("", Err(unknown(name))),
        },
    }
}

fn find(name: &str) -> Option<&'static Subcommand> {
    SUBCOMMANDS.iter().find(|command| command.name == name)
}

fn wants_help(arguments: &[String]) -> bool {
    let before_words = arguments.iter().take_while(|argument| *argument != "--");
    before_words
        .into_iter()
        .any(|argument| argument == "--help" || argument == "-h")
}

fn unknown(name: &str) -> Failure {
    Failure::usage(format!("there is no command {name:?}"))
}

fn help(about: Option<&String>) -> Outcome {
    let Some(name) = about else {
        return print(&overview());
    };
    let command = find(name).ok_or_else(|| unknown(name))?;
    let pages: Vec<String> = command
        .usages
        .iter()
        .map(|usage| usage.to_string())
        .collect();
    print(&pages.join("\n"))
}

fn overview() -> String {
    let mut text = "usage: twinmq COMMAND [OPTIONS] [ARGUMENTS]\n\n".to_owned();
    for command in SUBCOMMANDS {
        text += &format!("  {:<10} {}\n", command.name, command.summary);
    }
    text + "\n`twinmq help COMMAND` tells its options, `twinmq --version` the version.\n"
}

fn version() -> String {
    format!("twinmq {}\n", env!("CARGO_PKG_VERSION"))
}

fn print(text: &str) -> Outcome {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(cli::Done::Fine)
}

fn finish(name: &str, outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(done) => ExitCode::from(done.exit_code()),
        Err(failure) => fail(name, failure),
    }
}

fn fail(name: &str, failure: Failure) -> ExitCode {
    if failure.is_closed_output() {
        return ExitCode::SUCCESS;
    }
    let separator = if name.is_empty() { "" } else { " " };
    eprintln!("twinmq{separator}{name}: {failure}");
    if matches!(failure, Failure::Usage(_)) {
        eprintln!("`twinmq help{separator}{name}` tells more");
    }
    ExitCode::from(failure.exit_code())
}
