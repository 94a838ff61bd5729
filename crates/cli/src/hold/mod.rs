//! Holding a lease for a command of the user's: what `run`, `lock` and `elect` share. The command itself is kept by
//! [`solehold_agent::keep`]; `tenure` is the lease, `restart` starts the command again, and `notes` is what people are
//! told.

mod notes;
mod restart;
mod tenure;

use nix::sys::signal::Signal as SignalName;
use solehold_agent::keep::{self, SignalStream};

pub use restart::{Restart, supervise};
pub use tenure::{HeldAbove, Patience, Tenure, Terms, close, policy};

/// Waits for a signal that ends this process, while no command is running that it could be forwarded to.
pub async fn ending_signal(signals: &mut SignalStream) -> i32 {
    let harmless = [SignalName::SIGCHLD, SignalName::SIGCONT, SignalName::SIGURG, SignalName::SIGWINCH];
    let stopping = [SignalName::SIGTSTP, SignalName::SIGTTIN, SignalName::SIGTTOU];
    let is_one = |named: &[SignalName], number| named.iter().any(|named| *named as i32 == number);
    loop {
        match signals.next().await {
            number if is_one(&harmless, number) => {}
            number if is_one(&stopping, number) => keep::stop_here(),
            number => return number,
        }
    }
}
