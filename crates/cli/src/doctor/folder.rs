//! The folder of an embedded store: the store itself, its permissions and its disk.

use std::path::PathBuf;

use super::Finding;

const STORE: &str = "store";
const PERMISSIONS: &str = "permissions";
const DISK: &str = "disk";

/// Less than this, and a store is about to stop: its log grows to 8 MiB before it is folded, written twice.
const FREE_BYTES_MIN: u64 = 64 * 1024 * 1024;
const FREE_BYTES_FEW: u64 = 1024 * 1024 * 1024;
const FREE_PERCENT_FEW: u64 = 5;
/// The store has five files.
const FREE_INODES_MIN: u64 = 16;

#[derive(Debug, Clone)]
pub struct FolderFacts {
    pub path: PathBuf,
    /// What is there; none if there is no such folder yet.
    pub there: Option<There>,
    /// The disk of the folder, or of the nearest folder above it.
    pub disk: Result<Disk, String>,
}

#[derive(Debug, Clone)]
pub struct There {
    pub mode: u32,
    pub owner: u32,
    /// The user that this runs as.
    pub user: u32,
    /// Whether this user can write there.
    pub is_writable: bool,
    pub lock: LockState,
    /// The version of the schema in the file; none if there is no store in it, or why it cannot be read.
    pub schema: Result<Option<u32>, String>,
    /// The version that this program writes.
    pub schema_known: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockState {
    Free,
    /// By this process, if it has written its id down.
    Taken(Option<u32>),
    Unknown(String),
}

#[derive(Debug, Clone)]
pub struct Disk {
    /// The magic number of the file system.
    pub kind: u64,
    pub bytes: u64,
    pub free_bytes: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

/// File systems that do not keep what was synced, or whose locks other machines do not see.
const DOUBTFUL: &[(u64, &str, bool, &str)] = &[
    (0x0102_1994, "tmpfs", true, "it is memory: a restart of the machine loses every lease and token"),
    (0x8584_58f6, "ramfs", true, "it is memory: a restart of the machine loses every lease and token"),
    (0x794c_7630, "overlayfs", true, "it ends with its container: a new container begins with token 1 again"),
    (0x6969, "NFS", true, "locks and syncs may not hold: two servers could open the folder at once"),
    (0xff53_4d42, "CIFS", true, "locks and syncs may not hold: two servers could open the folder at once"),
    (0xfe53_4d42, "SMB", true, "locks and syncs may not hold: two servers could open the folder at once"),
    (0x6573_5546, "FUSE", false, "whether a sync reaches a disk depends on the program behind it"),
    (0x0102_1997, "9p", false, "whether a sync reaches a disk depends on the host"),
];

pub fn judge(facts: &FolderFacts) -> Vec<Finding> {
    let path = facts.path.display();
    let mut findings = match &facts.there {
        Some(there) => judge_there(facts, there),
        None => vec![Finding::ok(STORE, format!("{path} does not exist yet; `serve` creates it"))],
    };
    findings.extend(match &facts.disk {
        Ok(disk) => judge_disk(facts, disk),
        Err(error) => vec![Finding::problem(
            DISK,
            format!("the disk of {path} cannot be looked at: {error}"),
            "the server keeps its leases there",
            "correct the path, or mount the disk",
        )],
    });
    findings
}

fn judge_there(facts: &FolderFacts, there: &There) -> Vec<Finding> {
    let path = facts.path.display();
    vec![schema(facts, there), lock(facts, there), permissions(facts, there), {
        let mode = there.mode & 0o777;
        if mode & 0o077 == 0 {
            Finding::ok(PERMISSIONS, format!("only its owner can read {path}"))
        } else {
            Finding::warning(
                PERMISSIONS,
                format!("other users can read {path} (mode {mode:03o})"),
                "it has leases, state documents and the hashes of keys",
                format!("chmod 700 {path}"),
            )
        }
    }]
}

fn schema(facts: &FolderFacts, there: &There) -> Finding {
    let path = facts.path.display();
    let known = there.schema_known;
    match &there.schema {
        Ok(None) => Finding::ok(STORE, format!("there is no store in {path} yet; `serve` creates it")),
        Ok(Some(version)) if *version > known => Finding::problem(
            STORE,
            format!("the store in {path} has schema {version}, and this program knows {known}"),
            "a newer version has migrated it; this one refuses to open it",
            "use the newer version",
        ),
        Ok(Some(version)) if *version < known => Finding::warning(
            STORE,
            format!("the store in {path} has schema {version}, and this program writes {known}"),
            "the next `serve` of this version migrates it, and older versions cannot open it afterwards",
            "make a backup by `solehold admin export` first",
        ),
        Ok(Some(version)) => Finding::ok(STORE, format!("the store in {path} has schema {version}")),
        Err(error) => Finding::problem(
            STORE,
            format!("the store in {path} cannot be read: {error}"),
            "the server could not start",
            "let the user that runs the server read it, or restore it from a backup",
        ),
    }
}

fn lock(facts: &FolderFacts, there: &There) -> Finding {
    let path = facts.path.display();
    match &there.lock {
        LockState::Free => Finding::ok(STORE, format!("no process has {path}; a server can be started")),
        LockState::Taken(Some(pid)) => Finding::ok(STORE, format!("process {pid} has {path}")),
        LockState::Taken(None) => Finding::ok(STORE, format!("a process has {path}")),
        LockState::Unknown(error) => Finding::not_checked(
            STORE,
            format!("whether a process has {path} is not known: {error}"),
            "one process at a time may have it",
            "run `solehold doctor` as the user that runs the server",
        ),
    }
}

fn permissions(facts: &FolderFacts, there: &There) -> Finding {
    let path = facts.path.display();
    let There { owner, user, .. } = there;
    if there.is_writable {
        return Finding::ok(PERMISSIONS, format!("{path} can be written"));
    }
    let remedy = format!("chown -R the user that runs the server to {path}, or start it as user {owner}");
    if owner == user {
        let seen = format!("{path} cannot be written by its owner, user {owner}");
        return Finding::problem(
            PERMISSIONS,
            seen,
            "the server could not start",
            format!("chmod 700 {path}"),
        );
    }
    Finding::not_checked(
        PERMISSIONS,
        format!("{path} belongs to user {owner}, and user {user} cannot write it"),
        "a server that runs as this user could not start",
        remedy,
    )
}

fn judge_disk(facts: &FolderFacts, disk: &Disk) -> Vec<Finding> {
    let path = facts.path.display();
    let mut findings = Vec::new();
    let doubtful = DOUBTFUL.iter().find(|(kind, ..)| *kind == disk.kind);
    if let Some((_, name, is_wrong, why)) = doubtful {
        let seen = format!("{path} is on {name}");
        let remedy = "use a folder on a local disk, as in /var/lib/solehold, or PostgreSQL";
        findings.push(if *is_wrong {
            Finding::problem(DISK, seen, *why, remedy)
        } else {
            Finding::warning(DISK, seen, *why, remedy)
        });
    }
    let percent = disk.free_bytes.saturating_mul(100) / disk.bytes.max(1);
    let seen = format!("{} are free on the disk of {path} ({percent} %)", bytes(disk.free_bytes));
    let why = "a store that cannot write grants and renews nothing, and every holder stops at its deadline";
    findings.push(if disk.free_bytes < FREE_BYTES_MIN {
        Finding::problem(DISK, seen, why, "free space, or enlarge the file system")
    } else if percent < FREE_PERCENT_FEW && disk.free_bytes < FREE_BYTES_FEW {
        Finding::warning(DISK, seen, why, "free space, or lower `events.keep` and `events.keep_max`")
    } else {
        Finding::ok(DISK, seen)
    });
    // Some file systems make inodes as they need them, and count none.
    if disk.inodes > 0 && disk.free_inodes < FREE_INODES_MIN {
        let seen = format!("{} inodes are free on the disk of {path}", disk.free_inodes);
        findings.push(Finding::problem(DISK, seen, why, "delete files that are not needed"));
    }
    findings
}

fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{}.{} {unit}", bytes / size, bytes % size * 10 / size),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        Severity,
        testing::{told, worst},
    };

    fn good() -> FolderFacts {
        let there = There {
            mode: 0o40_700,
            owner: 7,
            user: 7,
            is_writable: true,
            lock: LockState::Taken(Some(12)),
            schema: Ok(Some(5)),
            schema_known: 5,
        };
        let disk =
            Disk { kind: 0xef53, bytes: 100 << 30, free_bytes: 50 << 30, inodes: 1_000, free_inodes: 900 };
        FolderFacts { path: "/data".into(), there: Some(there), disk: Ok(disk) }
    }

    fn with(change: impl FnOnce(&mut There)) -> Vec<Finding> {
        let mut facts = good();
        facts.there.as_mut().map(change);
        judge(&facts)
    }

    fn with_disk(change: impl FnOnce(&mut Disk)) -> Vec<Finding> {
        let mut facts = good();
        facts.disk.as_mut().map(change).expect("a disk");
        judge(&facts)
    }

    #[test]
    fn a_good_folder_has_nothing_to_say() {
        assert_eq!(worst(&judge(&good())), Severity::Ok);
        assert_eq!(worst(&judge(&FolderFacts { there: None, ..good() })), Severity::Ok, "not made yet");
        let is_new = with(|there| (there.schema, there.lock) = (Ok(None), LockState::Free));
        assert_eq!(worst(&is_new), Severity::Ok);
    }

    #[test]
    fn schemas_permissions_and_owners_are_judged() {
        let newer = with(|there| there.schema = Ok(Some(6)));
        assert!(told(&newer, Severity::Problem).contains("schema 6, and this program knows 5"));
        assert_eq!(worst(&with(|there| there.schema = Ok(Some(4)))), Severity::Warning);
        assert_eq!(worst(&with(|there| there.schema = Err("denied".into()))), Severity::Problem);
        assert!(told(&with(|there| there.mode = 0o40_755), Severity::Warning).contains("mode 755"));
        assert_eq!(worst(&with(|there| there.is_writable = false)), Severity::Problem);
        let foreign = with(|there| (there.is_writable, there.user) = (false, 8));
        assert_eq!(worst(&foreign), Severity::NotChecked);
        assert_eq!(
            worst(&with(|there| there.lock = LockState::Unknown("denied".into()))),
            Severity::NotChecked
        );
    }

    #[test]
    fn disks_that_are_full_or_forget_are_problems() {
        for (kind, name) in [(0x0102_1994, "tmpfs"), (0x6969, "NFS"), (0x794c_7630, "overlayfs")] {
            assert!(told(&with_disk(|disk| disk.kind = kind), Severity::Problem).contains(name));
        }
        assert_eq!(worst(&with_disk(|disk| disk.kind = 0x6573_5546)), Severity::Warning);
        let full = with_disk(|disk| disk.free_bytes = 1 << 20);
        assert!(
            told(&full, Severity::Problem).contains("1.0 MiB are free on the disk of /data (0 %)"),
            "{full:?}"
        );
        assert_eq!(worst(&with_disk(|disk| disk.free_bytes = 512 << 20)), Severity::Warning);
        assert_eq!(worst(&with_disk(|disk| disk.free_inodes = 3)), Severity::Problem);
        let uncounted = with_disk(|disk| (disk.inodes, disk.free_inodes) = (0, 0));
        assert_eq!(worst(&uncounted), Severity::Ok);
        assert_eq!(worst(&judge(&FolderFacts { disk: Err("gone".into()), ..good() })), Severity::Problem);
    }
}
