//! The last step before the command: what only a process itself can ask of the kernel.

use std::{
    ffi::OsString,
    io::{self, ErrorKind, stdin},
    os::unix::process::CommandExt,
    process::{Command, exit},
};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::{signals, terminal};
use crate::{error::CommandError, exit::Exit, output};

/// Arguments of the shim: the keeper's pid, whether to take the terminal, then the command.
pub fn arguments(keeper: Pid, takes_terminal: bool) -> [String; 3] {
    let terminal = if takes_terminal { "terminal" } else { "-" };
    [super::SHIM.to_owned(), keeper.to_string(), terminal.to_owned()]
}

/// Becomes the command.
pub fn main(args: Vec<OsString>) -> ! {
    let [keeper, terminal, program, args @ ..] = args.as_slice() else {
        output::note("error: the shim is started by the keeper alone");
        exit(Exit::Usage.code().into())
    };
    let error = become_command(keeper, terminal == "terminal", program, args);
    let why = match error.kind() {
        ErrorKind::NotFound => "there is no such command".to_owned(),
        ErrorKind::PermissionDenied => "it is not executable".to_owned(),
        _ => error.to_string(),
    };
    output::note(CommandError::broken(format!("cannot run {}: {why}", program.display())).show(false));
    let code = if error.kind() == ErrorKind::NotFound { Exit::NoCommand } else { Exit::NotExecutable };
    exit(code.code().into())
}

/// Comes back only with an error.
fn become_command(
    keeper: &OsString,
    takes_terminal: bool,
    program: &OsString,
    args: &[OsString],
) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // A keeper that ended before that call sends no signal.
    if getppid().is_none_or(|parent| parent.to_string() != keeper.to_string_lossy()) {
        exit(Exit::Failed.code().into());
    }
    if takes_terminal {
        terminal::give(stdin(), getpid());
    }
    // Holder and keeper read signals instead of being interrupted; the command is to be.
    signals::unblock_all();
    Command::new(program).args(args).exec()
}
