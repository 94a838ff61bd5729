//! The keepers of this process, known by pid: whatever else comes to be its child was orphaned by a keeper that died.

use std::{
    collections::BTreeSet,
    io,
    process::{Child, Command},
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};

use super::proc;

/// All keepers that this process has started. Clones share them.
#[derive(Debug, Clone)]
pub struct Keepers {
    /// Also the children that this process had before, from a shell that became it.
    known: Arc<Mutex<BTreeSet<i32>>>,
}

impl Keepers {
    /// From now on, whatever is left when a keeper is killed comes to this process.
    pub fn new() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let before = proc::children(getpid()).iter().map(|pid| raw(*pid)).collect();
        Ok(Self { known: Arc::new(Mutex::new(before)) })
    }

    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        // Under the lock: a child that is not known yet would be taken for an orphan.
        let mut known = self.known.lock();
        let child = command.spawn()?;
        known.insert(raw(Pid::from_child(&child)));
        Ok(child)
    }

    /// Waits for a keeper that has ended or is about to.
    pub(super) fn wait(&self, keeper: &mut Child) {
        let mut known = self.known.lock();
        let _ = keeper.wait();
        known.remove(&raw(Pid::from_child(keeper)));
    }

    /// Kills what keepers that died have left; true while something of it may still be there.
    pub(super) fn kill_orphans(&self) -> bool {
        let known = self.known.lock();
        if !proc::any_below(getpid(), &known) {
            return false;
        }
        proc::kill_below(getpid(), &known);
        for pid in proc::children(getpid()) {
            if !known.contains(&raw(pid)) {
                // One by one: a keeper is reaped by its own holder.
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        true
    }
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
