//! What the embedded store has synced before it answers anyone, by its system calls. `make power-loss` goes through the
//! states that a power loss can leave; these are the defects that it found.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::{fs, path::Path, process::Command as Process};

use solehold_engine::{
    embedded::{Folder, SCHEMA_VERSION, schema_version},
    resident::ResidentStore,
};
use solehold_testkit::TempDir;

/// Not a test of its own: the process whose system calls are looked at.
#[test]
fn child_that_opens_a_folder() {
    let Ok(folder) = std::env::var("SOLEHOLD_TEST_CHILD_FOLDER") else { return };
    ResidentStore::embedded(Folder::open(folder.as_ref()).unwrap()).unwrap();
}

/// The system calls of a store that opens a folder, one line each.
fn calls(folder: &Path) -> Vec<String> {
    let place = TempDir::new().unwrap();
    let trace = place.path().join("trace");
    let calls = "trace=?mkdir,mkdirat,?rename,renameat,renameat2,fsync,fdatasync";
    let status = Process::new("strace")
        .args(["-f", "-qq", "-y", "-s", "4096", "-e", calls, "-e", "signal=none", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_opens_a_folder"])
        .env("SOLEHOLD_TEST_CHILD_FOLDER", folder)
        .status();
    assert!(status.expect("strace is installed").success());
    fs::read_to_string(trace).unwrap().lines().map(str::to_owned).collect()
}

/// The first line from `begin` on that has each of these in it.
fn position(calls: &[String], begin: usize, parts: &[&str]) -> usize {
    let found = calls[begin..].iter().position(|call| parts.iter().all(|part| call.contains(part)));
    begin + found.unwrap_or_else(|| panic!("no {parts:?} after line {begin} of {calls:#?}"))
}

/// A folder that was made has its name in the one above it before anything is made in it, and at every start.
#[test]
fn a_new_data_folder_survives_a_power_loss() {
    let place = TempDir::new().unwrap();
    let place = fs::canonicalize(place.path()).unwrap();
    let [outer, folder] = [place.join("outer"), place.join("outer/data")];
    let quoted = |path: &Path| format!("\"{}\"", path.display());
    let opened = |path: &Path| format!("<{}>", path.display());
    let first = calls(&folder);
    let made = position(&first, 0, &["mkdir", &quoted(&outer)]);
    let kept = position(&first, made, &["fsync(", &opened(&place)]);
    let made = position(&first, kept, &["mkdir", &quoted(&folder)]);
    let kept = position(&first, made, &["fsync(", &opened(&outer)]);
    let database = position(&first, 0, &["sync(", "solehold.db"]);
    assert!(kept < database, "{first:#?}");
    let again = calls(&folder);
    let kept = position(&again, 0, &["fsync(", &opened(&outer)]);
    assert!(kept < position(&again, 0, &["sync(", "solehold.db"]), "{again:#?}");
}

/// The database gets the number of this run after the file beside it has it for good.
#[test]
fn a_power_loss_is_not_taken_for_a_restored_folder() {
    let folder = TempDir::new().unwrap();
    let path = fs::canonicalize(folder.path()).unwrap();
    for start in ["the first start", "a later start"] {
        let calls = calls(&path);
        let written = position(&calls, 0, &["rename", "incarnation.partial"]);
        let kept = position(&calls, written, &["fsync(", &format!("<{}>", path.display())]);
        let database = position(&calls, written, &["sync(", "solehold.db"]);
        assert!(kept < database, "{start}: {calls:#?}");
    }
}

/// The power was lost while the database was being made: the next start makes it, so that nothing is wrong.
#[test]
fn a_store_that_was_not_made_to_the_end_has_no_version() {
    let folder = TempDir::new().unwrap();
    let is_new = || assert_eq!(schema_version(folder.path()).unwrap(), None);
    let [database, journal] = ["solehold.db", "solehold.db-journal"].map(|name| folder.path().join(name));
    is_new();
    fs::write(&database, []).unwrap();
    is_new();
    fs::write(&journal, [0; 512]).unwrap();
    fs::write(&database, [0; 4096]).unwrap();
    is_new();
    fs::remove_file(&journal).unwrap();
    schema_version(folder.path()).expect_err("this is no database");
    fs::write(&database, []).unwrap();
    drop(Folder::open(folder.path()).unwrap());
    assert_eq!(schema_version(folder.path()).unwrap(), Some(SCHEMA_VERSION));
}

/// What stands in the way is said as the system says it.
#[test]
fn a_folder_that_cannot_be_made_is_refused() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("file");
    fs::write(&file, []).unwrap();
    for folder in [file.join("data"), file.join("outer/data")] {
        let refusal = Folder::open(&folder).unwrap_err().to_string();
        assert!(refusal.contains("Not a directory"), "{refusal}");
    }
    let refusal = Folder::open(&file).unwrap_err().to_string();
    assert!(refusal.contains("File exists"), "{refusal}");
}
