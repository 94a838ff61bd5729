//! A fixed number of worlds breaks no invariant, and a seed replays to the same log.

use std::process::{Command, Output};

/// Worlds of each run of the tests.
const SEEDS: &str = "20";

fn sim(args: &[&str]) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_solehold-sim")).args(args).output();
    run.expect("the simulator starts")
}

#[test]
fn no_invariant_is_violated() {
    let run = sim(&["--seeds", SEEDS]);
    let told = String::from_utf8_lossy(&run.stdout);
    println!("{told}");
    assert!(run.status.success(), "{told}");
}

#[test]
fn a_seed_replays_to_the_same_log() {
    for seed in ["3", "11"] {
        let first = sim(&["--seed", seed, "--log"]);
        let second = sim(&["--seed", seed, "--log"]);
        assert!(first.status.success());
        assert!(first.stdout.len() > 10_000, "hardly anything happens");
        assert_eq!(first.stdout, second.stdout, "seed {seed}");
    }
}
