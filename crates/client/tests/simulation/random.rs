//! Holders in any weather: whatever the network does, however long machines sleep and however their clocks drift,
//! whatever is revoked and however often the store fails over, no two guards on a resource are ever live at once.
//!
//! `SOLEHOLD_SEED=n` runs the world of that seed alone, which is the one that a failure names. A seed fixes what
//! happens and when; only the order in which tokio wakes tasks that wait for the same thing is its own, so such a world
//! is run repeatedly.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use solehold_client::{ClientSession, Guard, LeaseId, Policy, SessionConfig, chance::Chance};

use crate::{
    network::{Kind, Network, Weather},
    world::{DRIFT_PPM_MAX, SeededChance, TTL, World},
};

const HOLDERS: usize = 3;
const TURNS: usize = 200;
/// Worlds of each run, besides those that are kept.
const WORLDS: u64 = 60;
/// How often a world is run that is kept or was asked for.
const REPEATS: usize = 10;
/// How often it is looked at who works.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Most that one holder asks for at once.
const ASKED_MAX: usize = 4;
const RESOURCES: [(&str, &str); 3] = [("job", "a"), ("job", "b"), ("lock", "c")];
/// The kinds of requests that may have a weather of their own.
const KINDS: [Kind; 7] =
    [Kind::Heartbeat, Kind::Acquire, Kind::Renew, Kind::Release, Kind::Cancel, Kind::HandOver, Kind::CallOff];
/// Seeds of worlds that have found something once: one per line, and what it was.
const KEPT: &str = include_str!("seeds.txt");

/// Everything that anyone holds, and what has come of it.
#[derive(Default)]
struct Held {
    guards: Vec<(usize, Guard)>,
    /// The last token on each resource, and who got it.
    last_tokens: BTreeMap<String, (u64, usize)>,
    grants: u64,
    waited: u64,
    revoked: u64,
    taken_over: u64,
    adopted: u64,
}

impl Held {
    /// The one thing that must never be seen.
    fn look(&self, seed: u64) {
        let live = self.guards.iter().filter(|(_, guard)| guard.is_live());
        let mut holders = BTreeMap::new();
        for (holder, guard) in live {
            let other = holders.insert(guard.resource(), (holder, guard.token()));
            let resource = guard.resource();
            let token = guard.token();
            assert_eq!(other, None, "two work on {resource} at once, {holder} under {token}, seed {seed}");
        }
    }

    fn take(&mut self, holder: usize, guard: Guard, seed: u64) {
        let last = self.last_tokens.get(&guard.resource().to_string()).map_or(0, |(token, _)| *token);
        let token = guard.token().0;
        assert!(last < token, "tokens grow, seed {seed}: {token} after {last}");
        self.keep(holder, guard, seed);
    }

    /// A release that went to a store of the past leaves the lease to its session, which may adopt it again under its
    /// own token.
    fn take_adopted(&mut self, holder: usize, guard: Guard, seed: u64) {
        self.adopted += 1;
        let last = self.last_tokens.get(&guard.resource().to_string());
        if last == Some(&(guard.token().0, holder)) {
            self.keep(holder, guard, seed);
        } else {
            self.take(holder, guard, seed);
        }
    }

    fn keep(&mut self, holder: usize, guard: Guard, seed: u64) {
        self.last_tokens.insert(guard.resource().to_string(), (guard.token().0, holder));
        self.grants += 1;
        self.guards.push((holder, guard));
        self.look(seed);
    }
}

struct Run {
    seed: u64,
    world: World,
    chance: SeededChance,
    /// For what holders do beside acquiring, so that it does not change the rest of a world.
    habits: SeededChance,
    holders: Vec<(ClientSession, Arc<Network>)>,
    held: Arc<Mutex<Held>>,
    /// How many things each holder waits for.
    asked: [Arc<AtomicUsize>; HOLDERS],
    tasks: tokio::task::JoinSet<()>,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let chance = SeededChance::new(!seed);
        let mut holders = Vec::new();
        for n in 0..HOLDERS {
            let ppm = (chance.number() % (2 * DRIFT_PPM_MAX as u64 + 1)) as i64 - DRIFT_PPM_MAX;
            let policy = if chance.number().is_multiple_of(4) { Policy::Immediate } else { Policy::Deadline };
            let every = Some(TTL.mul_f64(0.1 + 0.35 * chance.unit()));
            let config =
                SessionConfig { ttl: TTL, every, policy, ..SessionConfig::new(format!("holder-{n}")) };
            holders.push(world.holder_with(config, ppm).await);
        }
        let held = Arc::default();
        let asked = Default::default();
        let tasks = tokio::task::JoinSet::new();
        let habits = SeededChance::new(seed.rotate_left(32));
        Self { seed, world, chance, habits, holders, held, asked, tasks }
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
            self.adopt();
            while let Some(done) = self.tasks.try_join_next() {
                done.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            }
        }
    }

    /// Someone asks for something, and waits for it in line or by asking again.
    fn ask(&mut self, n: usize) {
        if self.asked[n].load(Ordering::Relaxed) >= ASKED_MAX {
            return;
        }
        let asked = self.asked[n].clone();
        asked.fetch_add(1, Ordering::Relaxed);
        let (kind, key) = RESOURCES[self.below(RESOURCES.len() as u64) as usize];
        let seed = self.seed;
        let session = self.holders[n].0.clone();
        let held = self.held.clone();
        let wait = Duration::from_secs(5 + self.below(90));
        let in_line = self.below(4) > 0;
        self.tasks.spawn(async move {
            let guard = if in_line {
                session.acquire_within(kind, key, wait).await.ok()
            } else {
                tokio::time::timeout(wait, session.acquire(kind, key)).await.ok().and_then(Result::ok)
            };
            asked.fetch_sub(1, Ordering::Relaxed);
            if let Some(guard) = guard {
                let mut held = held.lock().expect("unhurt");
                held.waited += u64::from(in_line);
                held.take(n, guard, seed);
            }
        });
    }

    /// Everyone takes up what it holds and has not asked for.
    fn adopt(&mut self) {
        for n in 0..HOLDERS {
            for lease in self.holders[n].0.unclaimed() {
                let session = self.holders[n].0.clone();
                let held = self.held.clone();
                let seed = self.seed;
                self.tasks.spawn(async move {
                    if let Ok(Some(guard)) = session.adopt(&lease).await {
                        let mut held = held.lock().expect("unhurt");
                        held.take_adopted(n, guard, seed);
                    }
                });
            }
        }
    }

    /// Someone asks a holder to hand over, and may give up before it has.
    fn take_over(&mut self, n: usize) {
        let (kind, key) = RESOURCES[(self.habits.number() % RESOURCES.len() as u64) as usize];
        let within = Duration::from_millis(1_000 + self.habits.number() % 20_000);
        let patience = within.mul_f64(2.0 * self.habits.unit());
        let session = self.holders[n].0.clone();
        let held = self.held.clone();
        let seed = self.seed;
        self.tasks.spawn(async move {
            let asked = tokio::time::timeout(patience, session.take_over(kind, key, within)).await;
            if let Ok(Ok(Some(guard))) = asked {
                let mut held = held.lock().expect("unhurt");
                held.taken_over += 1;
                held.take(n, guard, seed);
            }
        });
    }

    /// An operator hands something over to someone who has not asked for it.
    async fn offer(&mut self, n: usize) {
        let (kind, key) = RESOURCES[(self.habits.number() % RESOURCES.len() as u64) as usize];
        let Some(session) = self.holders[n].0.id() else { return };
        let lease = LeaseId::new(&self.world.key(kind, key), self.habits.id());
        self.world.offer(kind, key, lease, session).await;
    }

    /// Someone releases something, and waits for the answer for a while.
    fn release(&mut self, n: usize) {
        let mut held = self.held.lock().expect("unhurt");
        let Some(at) = held.guards.iter().position(|(holder, guard)| *holder == n && guard.is_live()) else {
            return;
        };
        let (_, guard) = held.guards.remove(at);
        let patience = Duration::from_millis(self.habits.number() % 20_000);
        self.tasks.spawn(async move {
            let _ = tokio::time::timeout(patience, guard.release()).await;
        });
    }

    /// What holders and networks do beside acquiring and failing altogether.
    async fn habit(&mut self) {
        let n = (self.habits.number() % HOLDERS as u64) as usize;
        let network = self.holders[n].1.clone();
        let kind = KINDS[(self.habits.number() % KINDS.len() as u64) as usize];
        let delay = Duration::from_millis(self.habits.number() % 20_000);
        match self.habits.number() % 17 {
            0..=3 => self.take_over(n),
            4..=5 => self.release(n),
            6..=7 => network.turns_for(kind, Weather::Slow(delay)),
            8 => network.turns_for(kind, Weather::Late(delay)),
            9 => network.turns_for(kind, Weather::AnswersLost),
            10..=11 => network.turns_for(kind, Weather::Fair),
            12..=14 => self.offer(n).await,
            15 => self.end_slowly_and_cut_off(n).await,
            _ => {}
        }
    }

    fn let_go(&mut self, n: usize) {
        let mut held = self.held.lock().expect("unhurt");
        held.guards.retain(|(_, guard)| guard.is_live());
        if let Some(at) = held.guards.iter().position(|(holder, _)| *holder == n) {
            drop(held.guards.remove(at));
        }
    }

    /// Somebody takes something away from its holder, which is told.
    async fn revoke(&mut self) -> Option<usize> {
        let (kind, key) = RESOURCES[self.below(RESOURCES.len() as u64) as usize];
        if !self.world.revoke(kind, key).await {
            return None;
        }
        let mut held = self.held.lock().expect("unhurt");
        held.revoked += 1;
        let is_it =
            |guard: &Guard| guard.is_live() && guard.resource().to_string() == format!("{kind}/{key}");
        held.guards.iter().find(|(_, guard)| is_it(guard)).map(|(holder, _)| *holder)
    }

    /// Things rarely go wrong in this order by chance: something is taken away from a holder, which then gets something
    /// else that it has waited for, and is cut off before it hears of its loss, while others wait for what it has lost.
    async fn revoke_and_cut_off(&mut self) {
        for n in 0..HOLDERS {
            self.holders[n].1.turns(Weather::Fair);
            self.ask(n);
            self.ask(n);
        }
        self.pass(Duration::from_millis(self.below(10_000))).await;
        let Some(loser) = self.revoke().await else { return };
        self.pass(Duration::from_millis(self.below(10_000))).await;
        self.let_go((loser + 1) % HOLDERS);
        self.let_go((loser + 2) % HOLDERS);
        self.pass(Duration::from_millis(self.below(1_000))).await;
        self.holders[loser].1.turns(Weather::Away);
        self.pass(Duration::from_millis(self.below(40_000))).await;
    }

    /// This, too, is rare by chance: the request that ends a lease is slow, its holder does not wait for it, and is
    /// cut off before it arrives, while others wait for the resource.
    async fn end_slowly_and_cut_off(&mut self, n: usize) {
        let network = self.holders[n].1.clone();
        network.turns(Weather::Fair);
        let delay = Duration::from_millis(5_000 + self.habits.number() % 20_000);
        for kind in [Kind::Cancel, Kind::CallOff, Kind::Release] {
            network.turns_for(kind, Weather::Slow(delay));
        }
        match self.habits.number() % 3 {
            0 => {
                network.turns_for(Kind::Acquire, Weather::AnswersLost);
                let (kind, key) = RESOURCES[(self.habits.number() % RESOURCES.len() as u64) as usize];
                let session = self.holders[n].0.clone();
                self.tasks.spawn(async move { drop(session.try_acquire(kind, key).await) });
            }
            1 => {
                self.take_over(n);
                self.pass(Duration::from_millis(self.habits.number() % 2_000)).await;
                self.let_go((n + 1) % HOLDERS);
                self.let_go((n + 2) % HOLDERS);
            }
            _ => self.release(n),
        }
        self.holders[n].0.refresh();
        self.pass(delay.mul_f64(self.habits.unit())).await;
        network.turns_for(Kind::Heartbeat, Weather::Away);
        self.ask((n + 1) % HOLDERS);
        self.ask((n + 2) % HOLDERS);
        self.pass(delay).await;
    }

    async fn turn(&mut self) {
        self.habit().await;
        let n = self.below(HOLDERS as u64) as usize;
        let network = self.holders[n].1.clone();
        match self.below(32) {
            0..=8 => self.ask(n),
            9..=12 => self.let_go(n),
            13 => {
                self.revoke().await;
            }
            14 => self.revoke_and_cut_off().await,
            15 => network.turns(Weather::Away),
            16 => network.turns(if self.below(2) == 0 { Weather::Silent } else { Weather::AnswersLost }),
            17 => network.turns(Weather::Late(Duration::from_millis(self.below(20_000)))),
            18..=22 => network.turns(Weather::Fair),
            23 if self.below(4) == 0 => {
                self.world.clock.suspend(Duration::from_millis(self.below(50_000)));
            }
            // Every other world keeps its store.
            24 if self.seed.is_multiple_of(2) && self.below(4) == 0 => {
                self.world.fail_over().await;
            }
            // To the newest store, or back to one that was failed over.
            25..=26 => network.leads_to(self.world.stores.newest()),
            27 => network.leads_to(1 + self.below(self.world.stores.newest())),
            _ => self.pass(Duration::from_millis(self.below(8_000))).await,
        }
        self.held.lock().expect("unhurt").look(self.seed);
    }
}

/// What a world came to.
#[derive(Debug, Default)]
struct Story {
    grants: u64,
    waited: u64,
    revoked: u64,
    failovers: u64,
    taken_over: u64,
    adopted: u64,
}

impl Story {
    fn add(&mut self, other: &Self) {
        self.grants += other.grants;
        self.waited += other.waited;
        self.revoked += other.revoked;
        self.failovers += other.failovers;
        self.taken_over += other.taken_over;
        self.adopted += other.adopted;
    }
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
            taken_over: held.taken_over,
            adopted: held.adopted,
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    catch_unwind(AssertUnwindSafe(|| runtime.block_on(story))).unwrap_or_else(|panic| {
        eprintln!(
            "to see it again: SOLEHOLD_SEED={seed} cargo test -p solehold-client --test simulation no_two"
        );
        eprintln!(
            "to keep it: add {seed} to crates/client/tests/simulation/seeds.txt, and what it has found"
        );
        resume_unwind(panic)
    })
}

/// The random seed that was asked for, or those that are kept and then new ones.
fn seeds() -> Vec<u64> {
    let repeated = |seed| std::iter::repeat_n(seed, REPEATS);
    if let Ok(asked) = std::env::var("SOLEHOLD_SEED") {
        return repeated(asked.parse().expect("SOLEHOLD_SEED is a number")).collect();
    }
    let first = uuid::Uuid::new_v4().as_u64_pair().0;
    println!("{WORLDS} worlds from seed {first}");
    kept().flat_map(repeated).chain((0..WORLDS).map(|n| first.wrapping_add(n))).collect()
}

fn kept() -> impl Iterator<Item = u64> {
    let lines = KEPT.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(' ').next().and_then(|n| n.parse().ok()).expect("a seed begins the line"))
}

#[test]
fn no_two_work_at_once() {
    let mut all = Story::default();
    for seed in seeds() {
        all.add(&run(seed));
    }
    println!("{all:?}");
}

/// The worlds have in them what they are there for.
#[test]
fn worlds_are_worth_running() {
    let mut all = Story::default();
    for seed in 0..20 {
        all.add(&run(seed));
    }
    println!("{all:?}");
    assert!(all.grants > 150 && all.waited > 100, "{all:?}");
    assert!(all.revoked > 40 && all.failovers > 3, "{all:?}");
    assert!(all.taken_over > 10 && all.adopted > 0, "{all:?}");
}
