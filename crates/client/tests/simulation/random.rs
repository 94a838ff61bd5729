//! Holders in any weather: whatever the network does and however long machines sleep, no two of them ever work at once.

use std::time::Duration;

use proptest::prelude::*;
use solehold_client::{Guard, Policy};

use crate::{
    network::Weather,
    world::{TTL, World},
};

const HOLDERS: usize = 3;
const TURNS: usize = 60;

/// Runs one world, and counts how often someone was granted the lease.
async fn run(seed: u64) -> usize {
    let world = World::new(seed);
    let mut holders = Vec::new();
    for n in 0..HOLDERS {
        holders.push(world.holder(&format!("holder-{n}"), Policy::Deadline).await);
    }
    let mut guards: Vec<Option<Guard>> = (0..HOLDERS).map(|_| None).collect();
    let (mut grants, mut last_token) = (0, None);
    for _ in 0..TURNS {
        let chance = world.chance.number();
        let n = (chance % HOLDERS as u64) as usize;
        let (session, network) = &holders[n];
        match chance >> 8 & 15 {
            0..=3 => {
                let acquired =
                    tokio::time::timeout(Duration::from_secs(2), session.acquire("job", "a")).await;
                if let Ok(Ok(guard)) = acquired {
                    grants += 1;
                    assert!(last_token < Some(guard.token()), "tokens grow, seed {seed}");
                    last_token = Some(guard.token());
                    guards[n] = Some(guard);
                }
            }
            4..=5 => guards[n] = None,
            6 => network.turns(Weather::Away),
            7 => network.turns(Weather::Silent),
            8 => network.turns(Weather::AnswersLost),
            9 => network.turns(Weather::Late(Duration::from_millis(chance >> 16 & 0x7fff))),
            10..=12 => network.turns(Weather::Fair),
            13 => world.clock.suspend(Duration::from_millis(chance >> 16 & 0xffff)),
            _ => world.pass(TTL.mul_f64((chance >> 16 & 0xff) as f64 / 256.0)).await,
        }
        let live: Vec<_> = guards.iter().flatten().filter(|guard| guard.is_live()).collect();
        assert!(live.len() <= 1, "two work at once, seed {seed}");
        if let Some(guard) = live.first() {
            // Whoever works holds it by the engine's word, under the same token.
            let held = world.lease("job", "a").await.map(|view| view.lease.token);
            assert_eq!(held, Some(guard.token()), "seed {seed}");
        }
    }
    grants
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn no_two_work_at_once(seed: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(run(seed));
    }
}

#[tokio::test(start_paused = true)]
async fn worlds_are_worth_running() {
    let mut grants = 0;
    for seed in 0..20 {
        grants += run(seed).await;
    }
    assert!(grants > 40, "only {grants} grants in 20 worlds");
}
