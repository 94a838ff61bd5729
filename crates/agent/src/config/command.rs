//! The command line of the workers: its placeholders, and whether its program exists.

use std::{env, path::Path};

use rustix::fs::{Access, access};
use solehold_process::config::{InvalidValue, invalid};

use super::file::WorkerFile;

const PLACEHOLDERS: [&str; 6] =
    ["{config}", "{runner_id}", "{shard_id}", "{manager_pid}", "{resource}", "{worker}"];
/// What `manager_mode` adds to a command line without placeholders.
const MANAGER_FLAGS: [&str; 8] = [
    "--config",
    "{config}",
    "--runner-id",
    "{runner_id}",
    "--shard-id",
    "{shard_id}",
    "--manager-pid",
    "{manager_pid}",
];

pub fn settle(asked: &WorkerFile, manager_mode: bool) -> Result<Vec<String>, InvalidValue> {
    let mut command = asked.command.clone();
    let Some(program) = command.first() else {
        return invalid(
            "worker",
            "worker.command is missing: write it as a list, as in command: [python3, worker.py]",
        );
    };
    for word in &command {
        if let Some(odd) = unknown_placeholder(word) {
            let what = format!("worker.command has {odd}; the placeholders are {}", PLACEHOLDERS.join(" "));
            return invalid("command", what);
        }
    }
    if !has_placeholder(program)
        && let Some(why) = missing(program, asked.env.get("PATH").map(String::as_str))
    {
        return invalid("command", format!("worker.command: {why}"));
    }
    if manager_mode && !command.iter().any(|word| has_placeholder(word)) {
        command.extend(MANAGER_FLAGS.map(str::to_owned));
    }
    Ok(command)
}

fn has_placeholder(word: &str) -> bool {
    PLACEHOLDERS.iter().any(|known| word.contains(known))
}

/// A word in braces that stands for nothing.
fn unknown_placeholder(word: &str) -> Option<&str> {
    let start = word.find('{')?;
    let end = start + word[start..].find('}')? + 1;
    let found = &word[start..end];
    let is_name = found[1..found.len() - 1].chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (is_name && found.len() > 2 && !PLACEHOLDERS.contains(&found)).then_some(found)
}

/// Why a program cannot be started, if it cannot: found as the system will find it, by the worker's own PATH if the
/// file sets one.
fn missing(program: &str, path: Option<&str>) -> Option<String> {
    if program.contains('/') {
        let told = || format!("{program} does not exist or cannot be executed");
        return (!is_executable(Path::new(program))).then(told);
    }
    let path = path.map(Into::into).or_else(|| env::var_os("PATH")).unwrap_or_default();
    let is_found = env::split_paths(&path).any(|folder| is_executable(&folder.join(program)));
    (!is_found).then(|| format!("there is no program {program} in PATH"))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}
