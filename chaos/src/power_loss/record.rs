//! A recording: a client and its server under `strace`, and the folder that they leave behind.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::{
    DATA,
    client::Workload,
    disk::{Disk, Survival, Tree},
    promises::AnswerLine,
    trace::{self, CALLS, Call},
};

/// How often a recording is tried. If a system call was under way when the server was killed, its effect is unknown,
/// and the recording cannot be used.
const ATTEMPTS: usize = 5;

/// What was recorded, in a folder of its own:
///
/// ```text
///   trace          the system calls
///   answers        what the client was answered; it stands among the system calls, too
///   log            of the server
///   place          the folder whose states are judged, which is there before the recording
///     outer/data   the data folder, which is not
///   solehold.db    the database of the recording: a store knows its database by its inode
/// ```
#[derive(Debug)]
pub struct Recording {
    folder: PathBuf,
    pub calls: Vec<Call>,
}

impl Recording {
    /// Records a workload of `program`, which is this program, into a folder.
    pub async fn make(program: &Path, folder: &Path, workload: &Workload) -> Result<Self> {
        let folder = fs::canonicalize(folder)?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            record(program, &folder, workload).await?;
            match Self::read_new(&folder) {
                Ok(recording) => return Ok(recording),
                Err(error) if attempts == ATTEMPTS => return Err(error),
                Err(error) => eprintln!("power-loss: recording again: {error:#}"),
            }
        }
    }

    /// Reads one that was made before, in the same place.
    pub fn read(folder: &Path) -> Result<Self> {
        let folder = fs::canonicalize(folder)?;
        let text = fs::read(folder.join("trace")).context("no recording")?;
        let paths = [folder.join("place"), folder.join("answers")];
        let calls = trace::parse(&String::from_utf8_lossy(&text), &paths.each_ref().map(PathBuf::as_path))?;
        Ok(Self { folder, calls })
    }

    /// Reads one that was just made. What the calls have done must be what is there, or they are not understood.
    fn read_new(folder: &Path) -> Result<Self> {
        let recording = Self::read(folder)?;
        let mut disk = Disk::new(&recording.root(), None);
        for call in &recording.calls {
            disk.apply(call)?;
        }
        let left = Tree::read(&recording.root())?;
        let differences = disk.after_power_loss(&mut Survival::Everything).differences(&left, Path::new(""));
        ensure!(differences.is_empty(), "the recorded calls do not explain what is in {differences:?}");
        fs::rename(recording.root().join(DATA).join("solehold.db"), recording.database())?;
        Ok(recording)
    }

    /// The folder whose states are judged.
    pub fn root(&self) -> PathBuf {
        self.folder.join("place")
    }

    /// The file that the recorded server had as its database.
    pub fn database(&self) -> PathBuf {
        self.folder.join("solehold.db")
    }

    /// What a call tells of the answers, if it writes them down.
    pub fn answer(&self, call: &Call) -> Result<Option<AnswerLine>> {
        let is_answer = call.name == "write"
            && call
                .file(0)
                .is_ok_and(|(_, path)| path.is_some_and(|path| path == self.folder.join("answers")));
        if !is_answer {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(call.bytes(1)?)?))
    }
}

async fn record(program: &Path, folder: &Path, workload: &Workload) -> Result<()> {
    for name in ["place", "trace", "answers", "log", "solehold.db"] {
        let path = folder.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        ensure!(removed.is_ok() || !path.exists(), "cannot remove {}", path.display());
    }
    fs::create_dir(folder.join("place"))?;
    // Each ends with the one before it, so that nothing is left behind however this program ends.
    let [first, second] = [["setpriv", "--pdeathsig", "KILL", "--"]; 2];
    let calls = format!("trace={CALLS}");
    let strace =
        ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-s", "268435456", "-e", "signal=none", "-e", &calls];
    let output = Command::new(first[0])
        .args(&first[1..])
        .args(strace)
        .arg("-o")
        .arg(folder.join("trace"))
        .args(second)
        .arg(program)
        .arg("power-loss-client")
        .arg("--data")
        .arg(folder.join("place").join(DATA))
        .arg("--answers")
        .arg(folder.join("answers"))
        .arg("--log")
        .arg(folder.join("log"))
        .args(workload.arguments())
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot start strace; `make deps` installs it")?;
    let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "the recording failed: {}\n{}", said(), log());
    Ok(())
}
