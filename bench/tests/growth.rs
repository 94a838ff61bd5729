//! The curves of growth, in their shortest form.

use std::process::Command;

/// The first cell of each row of all tables, in order.
fn first_cells(args: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = Command::new(env!("CARGO_BIN_EXE_solehold-bench"));
    let program = program.args(["growth", "--seconds", "1", "--store"]).arg(folder.path()).args(args);
    let ran = program.output().expect("started");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let stdout = String::from_utf8(ran.stdout).expect("text");
    let rows = stdout.lines().filter(|line| line.starts_with("| "));
    rows.map(|row| row.trim_matches('|').split('|').next().expect("a cell").trim().to_owned()).collect()
}

const FLOOR: [&str; 3] =
    ["physical limit", "fsync of an append of 1 kB, same disk", "round trip of one byte over loopback TCP"];

#[test]
fn leases_are_measured_in_a_process_of_their_own() {
    let cells = first_cells(&["--only", "leases", "--most", "1000"]);
    assert_eq!(cells, [&FLOOR[..], &["leases held", "1,000"]].concat());
}

#[test]
fn the_other_curves_have_a_row_for_each_size() {
    let cells = first_cells(&["--only", "runners,batch,watchers", "--most", "10"]);
    let rows = ["runners", "10", "acquires submitted together", "1", "10", "watchers", "0", "1", "10"];
    assert_eq!(cells, [&FLOOR[..], &rows].concat());
}
