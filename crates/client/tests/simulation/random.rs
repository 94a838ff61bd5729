//! Holders in any weather: whatever the network does, however long machines sleep and however their clocks drift, whatever
//! is revoked and however often the store fails over, no two guards on a resource are ever live at once.
//!
//! `SOLEHOLD_SEED=n` runs the world of that seed alone, which is the one that a failure names.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex},
    time::Duration,
};

use solehold_client::{Guard, Policy, Session};

use crate::{
    network::{Network, Weather},
    world::{DRIFT_PPM_MAX, SeededChance, TTL, World},
};

const HOLDERS: usize = 3;
const TURNS: usize = 200;
/// Worlds of each run, besides those that are kept.
const WORLDS: u64 = 150;
/// How often it is looked at who works.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const RESOURCES: [(&str, &str); 3] = [("job", "a"), ("job", "b"), ("lock", "c")];
/// Seeds of worlds that have found something once: one per line, and what it was.
const KEPT: &str = include_str!("seeds.txt");

/// Everything that anyone holds, and what has come of it.
#[derive(Default)]
struct Held {
    guards: Vec<(usize, Guard)>,
    last_tokens: BTreeMap<String, u64>,
    grants: u64,
    waited: u64,
    revoked: u64,
}

impl Held {
    /// The one thing that must never be seen.
    fn look(&self, seed: u64) {
        for (kind, key) in RESOURCES {
            let is_it = |guard: &&(usize, Guard)| guard.1.resource().to_string() == format!("{kind}/{key}");
            let live: Vec<_> = self.guards.iter().filter(is_it).filter(|(_, guard)| guard.is_live()).collect();
            assert!(live.len() <= 1, "two work on {kind}/{key} at once, seed {seed}: {live:?}");
        }
    }

    fn take(&mut self, holder: usize, guard: Guard, seed: u64) {
        let last = self.last_tokens.entry(guard.resource().to_string()).or_default();
        assert!(*last < guard.token().0, "tokens grow, seed {seed}: {} after {last}", guard.token());
        *last = guard.token().0;
        self.grants += 1;
        self.guards.push((holder, guard));
        self.look(seed);
    }
}

struct Run {
    seed: u64,
    world: World,
    chance: SeededChance,
    holders: Vec<(Session, Arc<Network>)>,
    held: Arc<Mutex<Held>>,
    tasks: tokio::task::JoinSet<()>,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let (world, chance) = (World::new(seed), SeededChance::new(!seed));
        let mut holders = Vec::new();
        for n in 0..HOLDERS {
            let ppm = (chance.number() % (2 * DRIFT_PPM_MAX as u64 + 1)) as i64 - DRIFT_PPM_MAX;
            let policy = if chance.number() % 4 == 0 { Policy::Immediate } else { Policy::Deadline };
            holders.push(world.drifting_holder(&format!("holder-{n}"), policy, ppm).await);
        }
        let (held, tasks) = (Arc::default(), tokio::task::JoinSet::new());
        Self { seed, world, chance, holders, held, tasks }
    }

    fn below(&self, bound: u64) -> u64 {
        self.chance.number() % bound
    }

    /// Lets time pass, and looks all the while.
    async fn pass(&mut self, time: Duration) {
        let until = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < until {
            self.world.pass(LOOK_EVERY).await;
            self.held.lock().expect("unhurt").look(self.seed);
            while let Some(done) = self.tasks.try_join_next() {
                done.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            }
        }
    }

    /// Someone asks for something, and waits for it in line or by asking again.
    fn ask(&mut self, n: usize) {
        let ((kind, key), seed) = (RESOURCES[self.below(RESOURCES.len() as u64) as usize], self.seed);
        let (session, held) = (self.holders[n].0.clone(), self.held.clone());
        let (wait, in_line) = (Duration::from_secs(5 + self.below(90)), self.below(3) > 0);
        self.tasks.spawn(async move {
            let guard = if in_line {
                session.acquire_within(kind, key, wait).await.ok()
            } else {
                tokio::time::timeout(wait, session.acquire(kind, key)).await.ok().and_then(Result::ok)
            };
            if let Some(guard) = guard {
                let mut held = held.lock().expect("unhurt");
                held.waited += u64::from(in_line);
                held.take(n, guard, seed);
            }
        });
    }

    fn let_go(&mut self, n: usize) {
        let mut held = self.held.lock().expect("unhurt");
        if let Some(at) = held.guards.iter().position(|(holder, _)| *holder == n) {
            drop(held.guards.remove(at));
        }
    }

    async fn turn(&mut self) {
        let n = self.below(HOLDERS as u64) as usize;
        let network = self.holders[n].1.clone();
        match self.below(32) {
            0..=8 => self.ask(n),
            9..=11 => self.let_go(n),
            12..=14 => {
                let (kind, key) = RESOURCES[self.below(RESOURCES.len() as u64) as usize];
                let is_revoked = self.world.revoke(kind, key).await;
                self.held.lock().expect("unhurt").revoked += u64::from(is_revoked);
            }
            15..=16 => network.turns(Weather::Away),
            17 => network.turns(Weather::Silent),
            18 => network.turns(Weather::AnswersLost),
            19 => network.turns(Weather::Late(Duration::from_millis(self.below(20_000)))),
            20..=23 => network.turns(Weather::Fair),
            24 => self.world.clock.suspend(Duration::from_millis(self.below(50_000))),
            25 if self.below(4) == 0 => {
                self.world.fail_over().await;
            }
            // To the newest store, or back to one that was failed over.
            26 => network.leads_to(self.world.stores.newest()),
            27 => network.leads_to(1 + self.below(self.world.stores.newest())),
            28 => self.pass(TTL).await,
            _ => self.pass(Duration::from_millis(self.below(4_000))).await,
        }
        self.held.lock().expect("unhurt").look(self.seed);
    }
}

/// What a world came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Story {
    grants: u64,
    waited: u64,
    revoked: u64,
    failovers: u64,
    tokens: Vec<u64>,
}

/// Runs one world from beginning to end.
fn run(seed: u64) -> Story {
    let story = async {
        let mut run = Run::new(seed).await;
        for _ in 0..TURNS {
            run.turn().await;
        }
        let held = run.held.lock().expect("unhurt");
        Story {
            grants: held.grants,
            waited: held.waited,
            revoked: held.revoked,
            failovers: run.world.stores.newest() - 1,
            tokens: held.last_tokens.values().copied().collect(),
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    catch_unwind(AssertUnwindSafe(|| runtime.block_on(story))).unwrap_or_else(|panic| {
        eprintln!("to see it again: SOLEHOLD_SEED={seed} cargo test -p solehold-client --test simulation no_two");
        eprintln!("to keep it: add {seed} to crates/client/tests/simulation/seeds.txt, and what it has found");
        resume_unwind(panic)
    })
}

/// The seed that was asked for, or those that are kept and then new ones.
fn seeds() -> Vec<u64> {
    if let Ok(asked) = std::env::var("SOLEHOLD_SEED") {
        return vec![asked.parse().expect("SOLEHOLD_SEED is a number")];
    }
    let first = uuid::Uuid::new_v4().as_u64_pair().0;
    println!("{WORLDS} worlds from seed {first}");
    kept().chain((0..WORLDS).map(|n| first.wrapping_add(n))).collect()
}

fn kept() -> impl Iterator<Item = u64> {
    let lines = KEPT.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(' ').next().and_then(|n| n.parse().ok()).expect("a seed begins the line"))
}

#[test]
fn no_two_work_at_once() {
    let mut all = Story::default();
    for seed in seeds() {
        let story = run(seed);
        all.grants += story.grants;
        all.waited += story.waited;
        all.revoked += story.revoked;
        all.failovers += story.failovers;
    }
    println!("{all:?}");
}

/// The worlds have in them what they are there for, and a seed is enough to see one again.
#[test]
fn worlds_are_worth_running_and_can_be_run_again() {
    let mut all = Story::default();
    for seed in 0..10 {
        let story = run(seed);
        assert_eq!(story, run(seed), "seed {seed}");
        all.grants += story.grants;
        all.waited += story.waited;
        all.revoked += story.revoked;
        all.failovers += story.failovers;
    }
    println!("{all:?}");
    assert!(all.grants > 100 && all.waited > 50, "{all:?}");
    assert!(all.revoked > 20 && all.failovers > 5, "{all:?}");
}
