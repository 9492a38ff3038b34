//! The subcommands, one file each, and what they share: options, how they end, finding brokers,
//! sending and pulling. Data goes to stdout, everything else to stderr.

pub mod bench;
pub mod broker;
pub mod consume;
pub mod message;
pub mod namesrv;
pub mod options;
pub mod output;
pub mod peers;
pub mod producer;
pub mod puller;
pub mod send;
pub mod server;
pub mod status;
pub mod times;

use std::fmt;
use std::io;

use crate::remoting::client::ClientError;

/// Exit codes, the same for all commands.
pub const EXIT_NEGATIVE: u8 = 1;
pub const EXIT_USAGE: u8 = 2;
pub const EXIT_PEER: u8 = 3;
pub const EXIT_UNSAFE: u8 = 4;

/// How a command ends that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Fine,
    /// The answer is no: damage was found, stores differ, a slave is not in sync.
    Negative,
}

/// Why a command could not do its work.
#[derive(Debug)]
pub enum Failure {
    /// Wrong options, input or configuration.
    Usage(String),
    /// A peer could not be reached or answered wrongly.
    Peer(String),
    /// Going on could harm data, so it was refused.
    Unsafe(String),
    /// This machine refused: a port is taken, a file cannot be written.
    System(String),
    /// Our own output cannot be written.
    Output(io::Error),
}

pub type Outcome = Result<Done, Failure>;

impl Done {
    pub fn exit_code(self) -> u8 {
        match self {
            Done::Fine => 0,
            Done::Negative => EXIT_NEGATIVE,
        }
    }

    /// `Negative` as soon as one of two is.
    pub fn and(self, other: Done) -> Done {
        match (self, other) {
            (Done::Fine, Done::Fine) => Done::Fine,
            _ => Done::Negative,
        }
    }
}

impl Failure {
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::Usage(text.into())
    }

    pub fn peer(text: impl Into<String>) -> Failure {
        Failure::Peer(text.into())
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => EXIT_USAGE,
            Failure::Peer(_) => EXIT_PEER,
            Failure::Unsafe(_) => EXIT_UNSAFE,
            Failure::System(_) | Failure::Output(_) => EXIT_NEGATIVE,
        }
    }

    /// Whoever read our output has seen enough: no reason to complain.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text)
            | Failure::Peer(text)
            | Failure::Unsafe(text)
            | Failure::System(text) => f.write_str(text),
            Failure::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

/// What `?` makes of an I/O error in this module: only our own output is written without saying
/// more about it.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Peer(error.to_string())
    }
}
