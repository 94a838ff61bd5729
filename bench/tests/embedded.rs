//! The benchmark of the embedded engine, in its shortest form.

use std::process::Command;

#[test]
fn the_embedded_benchmark_prints_figures_and_no_warnings() {
    let args = ["--embedded", "--seconds", "1", "--rounds", "1", "--connections", "1"];
    let ran = Command::new(env!("CARGO_BIN_EXE_solehold-bench")).args(args).output().expect("started");
    let stdout = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
    assert!(stdout.contains("cycles/s") && stdout.contains("heartbeat of a runner"), "{stdout}");
}
