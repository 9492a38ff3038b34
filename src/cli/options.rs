//! Options: a table for each command, from which its arguments are read and its help is written.
//! The manual pages are compared with what the help says.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use getopts::{HasArg, Matches, Occur, ParsingStyle};

use super::Failure;

/// One option with its sentence.
pub struct Opt {
    /// One letter, or empty.
    pub short: &'static str,
    pub long: &'static str,
    /// What its value is called in the help; empty for a flag.
    pub value: &'static str,
    pub help: &'static str,
    pub many: bool,
}

/// An option with a value.
pub const fn opt(
    short: &'static str,
    long: &'static str,
    value: &'static str,
    help: &'static str,
) -> Opt {
    Opt {
        short,
        long,
        value,
        help,
        many: false,
    }
}

/// An option without a value.
pub const fn flag(short: &'static str, long: &'static str, help: &'static str) -> Opt {
    opt(short, long, "", help)
}

impl Opt {
    /// The option may be given several times.
    pub const fn many(mut self) -> Opt {
        self.many = true;
        self
    }
}

/// What a command takes.
pub struct Usage {
    pub name: &'static str,
    /// What stands behind the options.
    pub arguments: &'static str,
    /// One or two sentences.
    pub about: &'static str,
    pub options: &'static [Opt],
}

/// The options of one call, and its words.
pub struct Options {
    matches: Matches,
    pub words: Vec<String>,
}

impl Usage {
    pub fn parse(&self, arguments: &[String]) -> Result<Options, Failure> {
        let mut parser = getopts::Options::new();
        parser.parsing_style(ParsingStyle::FloatingFrees);
        for option in self.options {
            let (takes, occurs) = match (option.value.is_empty(), option.many) {
                (true, false) => (HasArg::No, Occur::Optional),
                (false, false) => (HasArg::Yes, Occur::Optional),
                (_, true) => (HasArg::Yes, Occur::Multi),
            };
            parser.opt(
                option.short,
                option.long,
                option.help,
                option.value,
                takes,
                occurs,
            );
        }
        let matches = parser
            .parse(arguments)
            .map_err(|fail| Failure::usage(fail.to_string()))?;
        let words = matches.free.clone();
        if self.arguments.is_empty() && !words.is_empty() {
            return Err(Failure::usage(format!("what is {:?} for?", words[0])));
        }
        Ok(Options { matches, words })
    }
}

/// The help: usage line, what it does, one paragraph an option.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.arguments.is_empty() { "" } else { " " };
        writeln!(
            f,
            "usage: twinmq {} [OPTIONS]{separator}{}",
            self.name, self.arguments
        )?;
        write_wrapped(f, "", self.about)?;
        for option in self.options {
            let short = match option.short {
                "" => String::new(),
                letter => format!("-{letter}, "),
            };
            let gap = if option.value.is_empty() { "" } else { " " };
            writeln!(f, "\n  {short}--{}{gap}{}", option.long, option.value)?;
            write_wrapped(f, "      ", option.help)?;
        }
        Ok(())
    }
}

const WIDTH: usize = 88;

fn write_wrapped(f: &mut fmt::Formatter<'_>, indent: &str, text: &str) -> fmt::Result {
    let mut line = indent.to_owned();
    for word in text.split_whitespace() {
        if line.len() > indent.len() && line.len() + 1 + word.len() > WIDTH {
            writeln!(f, "{line}")?;
            line.truncate(indent.len());
        }
        if line.len() > indent.len() {
            line.push(' ');
        }
        line += word;
    }
    writeln!(f, "{line}")
}

impl Options {
    pub fn has(&self, name: &str) -> bool {
        self.matches.opt_present(name)
    }

    pub fn text(&self, name: &str) -> Option<String> {
        self.matches.opt_str(name)
    }

    pub fn need(&self, name: &str) -> Result<String, Failure> {
        self.text(name)
            .ok_or_else(|| Failure::usage(format!("the option --{name} is needed")))
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        self.matches.opt_strs(name)
    }

    /// A number or another value that says itself how it is read.
    pub fn value<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failure> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let bad = |_| Failure::usage(format!("--{name} cannot be {text:?}"));
        text.parse().map(Some).map_err(bad)
    }

    /// A number of at least 1.
    pub fn count(&self, name: &str) -> Result<Option<u64>, Failure> {
        match self.value(name)? {
            Some(0) => Err(Failure::usage(format!("--{name} cannot be 0"))),
            number => Ok(number),
        }
    }

    /// Seconds, possibly with a fraction; more than 0.
    pub fn seconds(&self, name: &str) -> Result<Option<Duration>, Failure> {
        let Some(seconds) = self.value::<f64>(name)? else {
            return Ok(None);
        };
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
            _ => Err(Failure::usage(format!("--{name} cannot be {seconds}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage {
        name: "try",
        arguments: "",
        about: "Tries.",
        options: &[
            opt("t", "topic", "TOPIC", "The topic."),
            opt("p", "property", "NAME=VALUE", "A property.").many(),
            opt("", "timeout", "SECONDS", "How long."),
            flag("f", "follow", "Goes on."),
        ],
    };

    fn parse(arguments: &[&str]) -> Result<Options, Failure> {
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        USAGE.parse(&arguments)
    }

    #[test]
    fn long_and_short_options_are_the_same() {
        for arguments in [["-t", "T", "-f"], ["--topic", "T", "--follow"]] {
            let options = parse(&arguments).expect("options of the table");
            assert_eq!(options.text("topic").as_deref(), Some("T"));
            assert!(options.has("follow"));
        }
        let options = parse(&["-p", "a=1", "--property=b=2"]).expect("a repeated option");
        assert_eq!(options.all("property"), ["a=1", "b=2"]);
    }

    #[test]
    fn what_cannot_be_understood_is_a_usage_error() {
        for arguments in [
            &["--nonsense"][..],
            &["word"],
            &["-t"],
            &["-t", "a", "-t", "b"],
        ] {
            assert!(
                matches!(parse(arguments), Err(Failure::Usage(_))),
                "{arguments:?}"
            );
        }
        for bad in ["0", "-1", "x", "1e300", "nan"] {
            let options = parse(&["--timeout", bad]).expect("a value of any kind");
            assert!(options.seconds("timeout").is_err(), "{bad}");
        }
        let options = parse(&["--timeout", "0.25"]).expect("a fraction");
        assert_eq!(
            options.seconds("timeout").expect("a time"),
            Some(Duration::from_millis(250))
        );
    }

    #[test]
    fn the_help_has_every_option_with_its_sentence() {
        let help = USAGE.to_string();
        for part in [
            "usage: twinmq try [OPTIONS]",
            "-t, --topic TOPIC",
            "      The topic.",
        ] {
            assert!(help.contains(part), "{part} in {help}");
        }
    }
}
