//! The terminal goes to the command's process group while it runs, so that it can read and Ctrl-C reaches it, once.

use std::os::fd::AsFd;

use nix::sys::signal::Signal as SignalName;
use rustix::{
    process::{Pid, getpgrp, test_kill_process_group},
    termios::{tcgetpgrp, tcsetpgrp},
};

use super::{proc, signals};

/// Our process group, if the terminal at `stdin` is its own to give away: it is in the foreground, and not as a part of
/// a pipeline, whose other parts would lose the terminal.
pub fn ours(stdin: impl AsFd) -> Option<Pid> {
    let group = getpgrp();
    let is_ours = is_foreground(stdin, group) && !proc::is_in_pipeline();
    is_ours.then_some(group)
}

pub fn is_foreground(stdin: impl AsFd, group: Pid) -> bool {
    tcgetpgrp(stdin).is_ok_and(|foreground| foreground == group)
}

/// Gives the terminal to a group, from the background too.
pub fn give(stdin: impl AsFd, group: Pid) {
    // Otherwise the kernel would stop a background process that does this.
    signals::block(SignalName::SIGTTOU);
    // A terminal that hung up, or a group that has ended, leaves nothing to do.
    let _ = tcsetpgrp(stdin, group);
}

/// Gives the terminal back to `group`, if the command's group still has it, or one of which nothing is left.
pub fn take_back(stdin: impl AsFd, command: Pid, group: Pid) {
    let Ok(foreground) = tcgetpgrp(&stdin) else { return };
    // Meanwhile a shell may have taken it for something else.
    if foreground == command || test_kill_process_group(foreground).is_err() {
        give(stdin, group);
    }
}
