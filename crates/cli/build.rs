//! Tells the program which commit it is built from, if that can be seen: the files of `.git` are read, git is not run.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn main() {
    println!("cargo::rerun-if-env-changed=SOLEHOLD_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let commit = std::env::var("SOLEHOLD_COMMIT").ok().or_else(read_commit);
    let version = env!("CARGO_PKG_VERSION");
    // `cargo run` hands this variable to the program, which warns of unknown ones that begin with SOLEHOLD.
    match commit.filter(|commit| is_commit(commit)) {
        Some(commit) => println!("cargo::rustc-env=BUILT_VERSION={version} (commit {})", &commit[..12]),
        None => println!("cargo::rustc-env=BUILT_VERSION={version}"),
    }
}

fn is_commit(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The commit that HEAD is at.
fn read_commit() -> Option<String> {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    let root = package.ancestors().nth(2)?;
    let git = git_folder(&root.join(".git"))?;
    let head = read(&git.join("HEAD"))?;
    let Some(branch) = head.strip_prefix("ref: ") else { return Some(head) };
    // A linked worktree keeps its branches with the main one.
    let common = read(&git.join("commondir")).map_or_else(|| git.clone(), |path| git.join(path));
    // The first commit makes a file that is not there yet.
    println!("cargo::rerun-if-changed={}", common.join("refs").display());
    read(&common.join(branch)).or_else(|| {
        let packed = read(&common.join("packed-refs"))?;
        let line =
            packed.lines().find(|line| line.split_once(' ').is_some_and(|(_, name)| name == branch))?;
        line.split_once(' ').map(|(commit, _)| commit.to_owned())
    })
}

/// `.git` is a folder, or a file that says where the folder is.
fn git_folder(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let text = read(path)?;
    Some(path.parent()?.join(text.strip_prefix("gitdir: ")?))
}

/// What a file says, which is read again when it changes.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}
