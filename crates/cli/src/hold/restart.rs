//! Starts a command again that has ended, while its lease is held: under the same token.

use std::{io, time::Duration};

use clap::ValueEnum;
use solehold_agent::keep::{self, Job, JobEnd, SignalStream};
use solehold_clock::{Backoff, BootTime};

use super::{Tenure, ending_signal};
use crate::{exit::Exit, human::duration_ms, output};

/// The pauses between runs.
const PAUSES: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(30) };
/// A run of at least this time forgets the failures before it.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// When a command is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Restart {
    /// When it has failed: it ended with another code than 0, or by a signal other than SIGHUP, SIGINT and SIGTERM
    OnFailure,
    /// Whenever it has ended, unless by SIGINT, as by Ctrl-C
    Always,
}

impl Restart {
    /// Whether a command that ended with `code` is started again. One that cannot be executed never is.
    fn applies(self, code: u8) -> bool {
        const SIGHUP: u8 = 129;
        const SIGINT: u8 = 130;
        const SIGTERM: u8 = 143;
        let never = [SIGINT, Exit::NotExecutable.code(), Exit::NoCommand.code()];
        match self {
            _ if never.contains(&code) => false,
            Self::OnFailure => ![0, SIGHUP, SIGTERM].contains(&code),
            Self::Always => true,
        }
    }
}

/// Runs the command while the lease is held, as often as `restart` says; returns how the last run ended.
pub async fn supervise(
    job: impl Fn() -> Job,
    tenure: &Tenure,
    restart: Option<Restart>,
    signals: &mut SignalStream,
) -> io::Result<JobEnd> {
    let mut failures = 0;
    loop {
        let began = BootTime::now();
        let ended = keep::supervise(job(), tenure.standing(), signals).await?;
        let JobEnd::Exited(code) = ended else { return Ok(ended) };
        let mut standing = tenure.standing();
        let is_over = standing.borrow().lost.is_some() || standing.borrow().is_asked_for;
        let is_again = restart.is_some_and(|restart| restart.applies(code));
        if !is_again || is_over || signals.ending().is_some() {
            return Ok(ended);
        }
        failures = if BootTime::now().since(began) >= GOOD_RUN { 1 } else { failures + 1 };
        let pause = PAUSES.wait(failures, 0.5);
        let shown = duration_ms(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        output::note(format!("solehold: the command ended with {code}; starting it again in {shown}"));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            number = ending_signal(signals) => return Ok(JobEnd::Exited(Exit::of_signal(number))),
            status = standing.wait_for(|status| status.lost.is_some() || status.is_asked_for) => {
                let is_lost = status.is_ok_and(|status| status.lost.is_some());
                return Ok(if is_lost { JobEnd::Lost(Some(code)) } else { ended });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_started_again_by_how_it_ended() {
        for (code, on_failure, always) in [
            (0, false, true),
            (1, true, true),
            (9, true, true),
            (137, true, true),  // SIGKILL
            (143, false, true), // SIGTERM
            (129, false, true), // SIGHUP
            (130, false, false),
            (126, false, false),
            (127, false, false),
        ] {
            assert_eq!(Restart::OnFailure.applies(code), on_failure, "{code}");
            assert_eq!(Restart::Always.applies(code), always, "{code}");
        }
    }
}
