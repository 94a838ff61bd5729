//! Exit codes: what a script can tell from how a command ended. `--help` and `docs/cli.md` show the same table.

use solehold_api::problem::ErrorCode;

/// One row per code: its name in Rust, its number, what it means.
macro_rules! exits {
    ($($exit:ident $code:literal $meaning:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Exit {
            $(#[doc = $meaning] $exit,)*
        }

        impl Exit {
            pub const ALL: &[Self] = &[$(Self::$exit),*];

            pub fn code(self) -> u8 {
                match self { $(Self::$exit => $code,)* }
            }

            pub fn meaning(self) -> &'static str {
                match self { $(Self::$exit => $meaning,)* }
            }
        }
    };
}

exits! {
    Done 0 "done";
    Failed 1 "failed for another reason than those below";
    Usage 2 "bad usage or configuration; nothing was done";
    Refused 3 "refused: held, held back, lost, not yours, in use, not empty, differs, ...; nothing was done";
    NotFound 4 "not found: no such lease, resource, runner, session or key";
    Unavailable 5 "unavailable or unknown: server, store, port or data folder; try again";
    Unauthorized 6 "no valid key, or one that may not do this";
    NotRunFailed 101 "run, lock, elect, keep: solehold failed; the command was not run, or was killed";
    NotRunUsage 102 "run, lock, elect, keep: bad usage; the command was not run";
    NotRunRefused 103 "run, lock, elect, keep: held by another, or refused; the command was not run";
    NotRunNotFound 104 "run, lock, elect, keep: not found; the command was not run";
    NotRunUnavailable 105 "run, lock, elect, keep: the server does not answer; the command was not run";
    NotRunUnauthorized 106 "run, lock, elect, keep: no valid key; the command was not run";
    LeaseLost 107 "run, lock, elect, keep: the lease was lost or ran out; the command was ended";
    NotExecutable 126 "run, lock, elect, keep: the command is not executable";
    NoCommand 127 "run, lock, elect, keep: there is no such command";
    Interrupted 130 "interrupted by a signal before it was done";
}

impl Exit {
    /// The same failure of `run`, `lock`, `elect` and `lease keep`, told apart from the codes that commands end with.
    pub fn before_the_command(self) -> Self {
        match self {
            Self::Failed => Self::NotRunFailed,
            Self::Usage => Self::NotRunUsage,
            Self::Refused => Self::NotRunRefused,
            Self::NotFound => Self::NotRunNotFound,
            Self::Unavailable => Self::NotRunUnavailable,
            Self::Unauthorized => Self::NotRunUnauthorized,
            other => other,
        }
    }

    /// The number for an end by a signal, as shells say it.
    pub fn of_signal(signal: i32) -> u8 {
        128_u8.saturating_add(u8::try_from(signal).unwrap_or_default())
    }
}

impl From<ErrorCode> for Exit {
    fn from(code: ErrorCode) -> Self {
        use ErrorCode as Code;
        match code {
            Code::BadRequest
            | Code::InvalidJson
            | Code::InvalidField
            | Code::OutOfBounds
            | Code::NoProof
            | Code::MethodNotAllowed
            | Code::PayloadTooLarge => Self::Usage,
            Code::Unauthorized | Code::Forbidden => Self::Unauthorized,
            Code::NotFound | Code::NoSession | Code::SessionSuperseded => Self::NotFound,
            Code::QuotaExceeded
            | Code::Conflict
            | Code::Held
            | Code::HeldBack
            | Code::Lost
            | Code::NotYours
            | Code::RequestSpent
            | Code::Draining
            | Code::AtCapacity
            | Code::StaleSequence
            | Code::AlreadyPending
            | Code::OverBudget
            | Code::InUse
            | Code::Exists
            | Code::Compacted => Self::Refused,
            Code::RequestTimeout
            | Code::TooManyRequests
            | Code::Overloaded
            | Code::Unavailable
            | Code::OrchestratorUnavailable
            | Code::UnknownOutcome => Self::Unavailable,
            Code::NoSuchRoute | Code::Internal => Self::Failed,
        }
    }
}

pub fn table() -> String {
    let rows = Exit::ALL.iter().map(|exit| format!("\n  {:>3}  {}", exit.code(), exit.meaning()));
    format!("Exit codes:{}", rows.collect::<String>())
}
