//! A cgroup of version 2 for one command: where the kernel lets us make one, everything in it is killed at once, also
//! what forks faster than it can be found.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// How often the removal of a group is tried.
const REMOVAL_ATTEMPTS: usize = 20;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);

/// A folder for a group below our own, under this name; none where version 2 is not mounted.
pub fn folder(name: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    Some(own(&mounts, &groups)?.join(name))
}

fn own(mounts: &str, groups: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let mut fields = mount.split(' ').skip(3);
    let root = fields.next()?;
    let at = fields.next()?;
    // In a container only a part of the tree may be mounted.
    let below = Path::new(path).strip_prefix(root).ok()?;
    Some(Path::new(at).join(below))
}

/// Makes a group that can be killed at once; the error is left to the caller, who does without.
pub fn make(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    let is_killable = folder.join("cgroup.kill").exists() && folder.join("cgroup.procs").exists();
    if is_killable {
        return Ok(());
    }
    remove(folder);
    Err(io::Error::other("the kernel has no cgroup.kill"))
}

/// Moves this process into a group, and so all that it starts from now on.
pub fn enter(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.procs"), "0")
}

pub fn kill(folder: &Path) {
    // What cannot be killed this way is killed one by one.
    let _ = fs::write(folder.join("cgroup.kill"), "1");
}

/// Removes a group of which nothing is left. The kernel may take a moment to see that.
pub fn remove(folder: &Path) {
    for _ in 0..REMOVAL_ATTEMPTS {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(BETWEEN_ATTEMPTS),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_group_is_found_in_every_layout() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let found = own(unified, "0::/system.slice/agent.service\n");
        assert_eq!(found, Some("/sys/fs/cgroup/system.slice/agent.service".into()));
        let hybrid = "40 23 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 23 0:4 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n";
        assert_eq!(own(hybrid, "1:cpu:/\n0::/\n"), Some("/sys/fs/cgroup/unified/".into()));
        let container = "41 23 0:4 /pod7 /sys/fs/cgroup rw - cgroup2 none rw\n";
        assert_eq!(own(container, "0::/pod7/app\n"), Some("/sys/fs/cgroup/app".into()));
        assert_eq!(own(container, "0::/elsewhere\n"), None, "it cannot be seen from here");
        assert_eq!(own("", "0::/\n"), None);
        assert_eq!(own(unified, "1:cpu:/\n"), None);
    }
}
