//! Why a request is refused: the code and the sentence its sender hears.

use crate::remoting::Command;
use crate::remoting::codes::response;
use crate::remoting::fields::FieldError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: i32,
    pub remark: String,
}

impl Refusal {
    pub fn new(code: i32, remark: impl Into<String>) -> Refusal {
        Refusal {
            code,
            remark: remark.into(),
        }
    }

    /// The general failure, for what has no code of its own.
    pub fn error(remark: impl Into<String>) -> Refusal {
        Refusal::new(response::SYSTEM_ERROR, remark)
    }

    pub fn to_reply(&self, request: &Command) -> Command {
        Command::refusal(request, self.code, self.remark.clone())
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Refusal {
        Refusal::error(error.to_string())
    }
}

/// The reply to a request, or its refusal as one.
pub fn reply(request: &Command, result: Result<Command, Refusal>) -> Command {
    result.unwrap_or_else(|refusal| refusal.to_reply(request))
}
