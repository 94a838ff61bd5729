//! Random scripts of commands, and what must hold after every one of them.
//!
//! `script` makes up symbolic steps ("renew the lobby with a former token"), `memory` turns them into commands against
//! what has happened so far, `harness` runs them, and each file under `invariants` is one property. `PROPTEST_CASES`
//! sets the number of scripts.
//!
//! A script that fails is kept as a seed in `crates/core/proptest-regressions`, which is printed, too: commit it with
//! the fix. Kept seeds are replayed before anything new is made up. They stand for other scripts once the generators in
//! `script` change, so what was learnt from one is also told as a story under `tests/rules`.

#[path = "../common/mod.rs"]
mod common;

mod harness;
mod invariants;
mod load;
mod memory;
mod promises;
mod reach;
mod scenes;
mod script;
mod step;
mod sweeping;

use harness::Harness;
use proptest::{prelude::*, test_runner::FileFailurePersistence};

/// Enough scripts for every build; `PROPTEST_CASES` asks for more. Failures are kept in a file, and replayed first.
fn config(cases: u32, kept: &'static str) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(kept))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(400, "proptest-regressions/invariants.txt"))]

    #[test]
    fn the_invariants_hold_after_every_command(script in script::script(1..60)) {
        let mut harness = Harness::default();
        for act in &script {
            harness.play(act);
        }
    }
}

proptest! {
    #![proptest_config(config(250, "proptest-regressions/sweeping.txt"))]

    #[test]
    fn sweeping_decides_nothing(script in sweeping::script()) {
        sweeping::check(&script);
    }
}
