//! The gate's judgement against a simple model of what it may say (rule 21).

mod cases;
mod stories;
mod world;

use proptest::prelude::*;
use world::{Step, World, rules, steps};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Whatever happens, in whatever order: no token below one that was admitted or learned is admitted, none that the
    /// store had superseded longer ago than the cache's ttl, and none that it never gave.
    #[test]
    fn what_is_admitted_was_the_newest_a_moment_ago(rules in rules(), steps in steps()) {
        let mut world = World::new(rules);
        for step in steps {
            world.take(step);
        }
        world.can_still_decide();
    }
}

/// The script above reaches every verdict, so that the properties are not vacuous.
#[test]
fn random_steps_reach_every_verdict() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..2_000 {
        let rules = rules().new_tree(&mut runner).expect("rules").current();
        let steps: Vec<Step> = steps().new_tree(&mut runner).expect("steps").current();
        let mut world = World::new(rules);
        for step in steps {
            world.take(step);
        }
        for word in world.said {
            *seen.entry(word).or_default() += 1;
        }
    }
    println!("{seen:?}");
    let words = [
        "admit",
        "stale",
        "unknown",
        "forgotten",
        "newer",
        "expired",
        "unconfirmed",
        "unsaved",
        "never_given",
        "no_such_resource",
        "older_history",
    ];
    for word in words {
        assert!(seen.get(word).is_some_and(|count| *count >= 20), "{word} is hardly ever said: {seen:?}");
    }
}
