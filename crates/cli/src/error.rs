//! What a command fails with: one line for people, a problem document for programs, and an exit code.

use std::{fmt::Display, io};

use solehold_api::problem::{ErrorCode, Problem, TTL_MAX};
use solehold_client::Obstacle;
use solehold_engine::{EngineError, store::StoreError};

use crate::exit::Exit;

#[derive(Debug, Clone)]
pub struct CommandError {
    pub exit: Exit,
    /// What happened, to what, and what to do, in one line.
    pub message: String,
    /// The problem document: the server's, or one made of the message.
    pub problem: Box<Problem>,
    /// What stands in the way, where there is something to do about it.
    pub cause: Option<Cause>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Of a server that is asked.
    Server(Obstacle),
    /// Another process uses the data folder.
    FolderInUse,
}

/// Why the value of a flag, a variable or a key of a configuration file cannot be used, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

impl From<String> for ValueError {
    fn from(message: String) -> Self {
        Self(message)
    }
}

impl From<&str> for ValueError {
    fn from(message: &str) -> Self {
        Self(message.to_owned())
    }
}

impl From<ValueError> for String {
    fn from(error: ValueError) -> Self {
        error.0
    }
}

pub type CommandResult<T = ()> = Result<T, CommandError>;

/// Says what was being done when it failed.
pub trait Doing {
    #[must_use]
    fn doing(self, what: impl Display) -> Self;
}

impl<T> Doing for CommandResult<T> {
    fn doing(self, what: impl Display) -> Self {
        self.map_err(|failure| failure.doing(what))
    }
}

impl CommandError {
    /// A failure that the code alone tells all about.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let problem = Problem::new(code, message);
        Self { exit: code.into(), message: problem.detail.clone(), problem: Box::new(problem), cause: None }
    }

    /// What was asked makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    pub fn broken(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// Sets what stands in the way.
    #[must_use]
    pub fn caused_by(self, cause: Option<Cause>) -> Self {
        Self { cause, ..self }
    }

    /// Says what was being done when it happened.
    #[must_use]
    pub fn doing(self, what: impl Display) -> Self {
        Self { message: format!("cannot {what}: {}", self.message), ..self }
    }

    #[must_use]
    pub fn hint(self, hint: impl Display) -> Self {
        Self { message: format!("{}; {hint}", self.message), ..self }
    }

    /// The line, or the document, for stderr.
    pub fn show(&self, json: bool) -> String {
        if json {
            let document = Problem { detail: self.message.clone(), ..(*self.problem).clone() };
            return serde_json::to_string(&document).unwrap_or_else(|_| self.message.clone());
        }
        let line = self.message.trim().replace(['\r', '\n'], " ");
        format!("error: {line}")
    }
}

impl From<Problem> for CommandError {
    fn from(problem: Problem) -> Self {
        let message = match (problem.code, &problem.holder, problem.token) {
            // With the time left in units that people read.
            (ErrorCode::Held, Some(holder), Some(token)) => format!("held by {holder} with token {token}"),
            (ErrorCode::HeldBack, _, Some(token)) => {
                format!("held back after token {token}, until its old deadline")
            }
            (ErrorCode::OutOfBounds, ..) => ttl_bounds(&problem).unwrap_or_else(|| problem.detail.clone()),
            _ => problem.detail.clone(),
        };
        let hint = hint(&problem);
        let failure = Self { exit: problem.code.into(), message, problem: Box::new(problem), cause: None };
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<EngineError> for CommandError {
    fn from(error: EngineError) -> Self {
        let code = match &error {
            EngineError::Store(store) => return store.clone().into(),
            EngineError::Overloaded { .. } => ErrorCode::Overloaded,
            EngineError::Stopping => ErrorCode::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Unavailable(_) | StoreError::Barred { .. } | StoreError::Retired { .. } => {
                ErrorCode::Unavailable
            }
            StoreError::Unknown(_) => ErrorCode::UnknownOutcome,
            StoreError::Contended { .. } => ErrorCode::Overloaded,
            StoreError::InUse { .. } => ErrorCode::Unavailable,
            StoreError::NotEmpty => ErrorCode::Conflict,
            StoreError::Unusable(_) => ErrorCode::BadRequest,
        };
        let cause = matches!(error, StoreError::InUse { .. }).then_some(Cause::FolderInUse);
        Self::new(code, error.to_string()).caused_by(cause)
    }
}

/// Output that cannot be written.
impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        Self::broken(format!("cannot write the output: {error}"))
    }
}

/// The bounds that `--ttl` has crossed, by the name and in the units of the option.
fn ttl_bounds(problem: &Problem) -> Option<String> {
    let error = problem.errors.iter().find(|error| error.field == "ttl_ms")?;
    let least = error.minimum?;
    let most = error.maximum?;
    let is_configured = problem.limit.as_ref().is_some_and(|limit| limit.name == TTL_MAX);
    let reason = if is_configured { ", which is `ttl_max` here" } else { "" };
    let shown = crate::human::duration_ms;
    Some(format!("--ttl must be {} to {}{reason}", shown(least), shown(most)))
}

/// What to do about a problem, where its detail does not say.
fn hint(problem: &Problem) -> Option<String> {
    use ErrorCode as Code;
    let after = problem.retry_after_ms.map(crate::human::duration_ms);
    Some(match problem.code {
        // Its holder may renew it for as long as it lives: nobody knows when to try again.
        Code::Held => {
            format!("it is free when its holder releases it, or in {} unless it is renewed", after?)
        }
        Code::HeldBack => format!("try again in {}", after?),
        Code::Unauthorized => "give a key with --api-key or SOLEHOLD_API_KEY".to_owned(),
        Code::TooManyRequests | Code::Overloaded | Code::Unavailable => match after {
            Some(after) => format!("nothing was done, try again in {after}"),
            None => "nothing was done, try again".to_owned(),
        },
        Code::UnknownOutcome => "it may or may not have been done".to_owned(),
        Code::NoSuchRoute => "is this server a solehold of the same version?".to_owned(),
        Code::Compacted => "begin again without --from".to_owned(),
        _ => return None,
    })
}
