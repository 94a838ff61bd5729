//! The last step before the command: what only a process itself can ask of the kernel.

use std::{
    ffi::OsString,
    io::{self, ErrorKind, Write, stderr, stdin},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, exit},
};

use rustix::process::{
    Pid, Signal, getpid, getppid, set_parent_process_death_signal, setpriority_process, setsid,
};

use super::{cgroup, signals, terminal};

/// The codes that a shell gives for a command that it cannot run, and for a mistake of its own.
const NO_COMMAND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;
const FAILED: i32 = 1;
/// What stands for nothing in the arguments.
const NONE: &str = "-";

/// Where the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a process group of its own.
    Group,
    /// In one that takes the terminal.
    Terminal,
    /// In a session of its own: without a terminal, and scheduled apart from the keeper.
    Session,
}

impl Place {
    const ALL: [Self; 3] = [Self::Group, Self::Terminal, Self::Session];

    fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Terminal => "terminal",
            Self::Session => "session",
        }
    }
}

/// Arguments of the shim: the keeper's pid, where to run, the cgroup, how nice to be, then the command.
pub fn arguments(keeper: Pid, place: Place, cgroup: Option<&Path>, nice: i32) -> [OsString; 5] {
    let cgroup = cgroup.map_or_else(|| NONE.into(), |folder| folder.as_os_str().to_owned());
    [super::SHIM.into(), keeper.to_string().into(), place.name().into(), cgroup, nice.to_string().into()]
}

/// Becomes the command.
pub fn main(args: Vec<OsString>) -> ! {
    let [keeper, place, cgroup, nice, program, args @ ..] = args.as_slice() else {
        note("the shim is started by the keeper alone");
        exit(FAILED)
    };
    if cgroup != NONE {
        // Outside of it the command can still be found as a descendant of the keeper.
        let _ = cgroup::enter(Path::new(cgroup));
    }
    if let Some(nice) = nice.to_str().and_then(|nice| nice.parse().ok()) {
        // The keeper is in a hurry, the command is not.
        let _ = setpriority_process(None, nice);
    }
    let place = Place::ALL.into_iter().find(|known| place == known.name()).unwrap_or(Place::Group);
    let error = become_command(keeper, place, program, args);
    let why = match error.kind() {
        ErrorKind::NotFound => "there is no such command".to_owned(),
        ErrorKind::PermissionDenied => "the file is not executable".to_owned(),
        _ => error.to_string(),
    };
    note(&format!("cannot run {}: {why}", program.display()));
    exit(if error.kind() == ErrorKind::NotFound { NO_COMMAND } else { NOT_EXECUTABLE })
}

/// On stderr, which may be closed.
fn note(what: &str) {
    let _ = writeln!(stderr(), "error: {}", what.replace(['\r', '\n'], " "));
}

/// Comes back only with an error.
fn become_command(keeper: &OsString, place: Place, program: &OsString, args: &[OsString]) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // A keeper that ended before that call sends no signal.
    if getppid().is_none_or(|parent| parent.to_string() != keeper.to_string_lossy()) {
        exit(FAILED);
    }
    match place {
        Place::Group => {}
        Place::Terminal => terminal::give(stdin(), getpid()),
        Place::Session => {
            if let Err(error) = setsid() {
                return error.into();
            }
        }
    }
    // Holder and keeper read signals instead of being interrupted; the command must be interrupted as usual.
    signals::unblock_all();
    Command::new(program).args(args).exec()
}
