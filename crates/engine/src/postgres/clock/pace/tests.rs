use proptest::prelude::*;

use super::*;

/// Something that happens to the clock or to a replica.
#[derive(Debug, Clone)]
enum Act {
    Pass {
        ms: i64,
    },
    /// The wall clock is set by this much.
    Step {
        ms: i64,
    },
    /// From now on the wall clock gains this much in a thousand.
    Slew {
        per_mille: i64,
    },
    /// A replica reads the clock; the request and the answer each take a while. Only some store the time.
    Read {
        replica: usize,
        out_ms: i64,
        back_ms: i64,
        is_stored: bool,
    },
    /// A replica stops, and another one starts in its place. One that is paused only does not read.
    Restart {
        replica: usize,
    },
}

/// Time given to a decision.
#[derive(Debug, Clone, Copy)]
struct Given {
    asked: i64,
    answered: i64,
    store: i64,
}

struct Replica {
    keeper: Timekeeper,
    /// Its boot time, when true time is zero.
    booted: i64,
}

/// PostgreSQL's misbehaving clock, its one offset, the ceiling, and replicas that keep time by it.
struct World {
    true_ms: i64,
    wall_us: i64,
    per_mille: i64,
    offset: i64,
    last: i64,
    /// The newest number, the highest ceiling that was written down under it, and the one that was claimed.
    ceiling: (i64, i64, i64),
    replicas: Vec<Replica>,
    given: Vec<Given>,
    corrections: usize,
}

const START: i64 = 1_000_000;

impl World {
    fn new(replicas: usize) -> Self {
        let replica = |n: usize| Replica { keeper: Timekeeper::default(), booted: n as i64 * 777_777 };
        let mut world = Self {
            true_ms: 5_000,
            wall_us: START * US,
            per_mille: 0,
            offset: 0,
            last: START,
            ceiling: (0, START + ROOM / US, START + ROOM / US),
            replicas: (0..replicas).map(replica).collect(),
            given: Vec::new(),
            corrections: 0,
        };
        (0..replicas).for_each(|replica| world.read(replica, 0, 0, true));
        world
    }

    fn pass(&mut self, ms: i64) {
        self.true_ms += ms;
        self.wall_us += ms * (US + self.per_mille);
    }

    /// Lets time pass in which every replica keeps time, as housekeeping does, several times per second.
    fn pass_while_all_read(&mut self, mut ms: i64) {
        while ms > 0 {
            let step = ms.min(300);
            self.pass(step);
            ms -= step;
            (0..self.replicas.len()).for_each(|replica| self.read(replica, 0, 0, true));
        }
    }

    fn boot_ms(&self, replica: usize) -> i64 {
        self.true_ms + self.replicas[replica].booted
    }

    fn sample(&mut self, replica: usize, out_ms: i64, back_ms: i64) -> Sample {
        let asked_ms = self.boot_ms(replica);
        self.pass(out_ms);
        let by_wall_ms = self.wall_us / US + self.offset;
        let last_ms = self.last;
        let (number, ceiling_ms, claimed_ms) = self.ceiling;
        self.pass(back_ms);
        let version = Version { moves: 0, number };
        let answered_ms = self.boot_ms(replica);
        Sample { by_wall_ms, last_ms, version, ceiling_ms, claimed_ms, asked_ms, answered_ms }
    }

    /// Reads the clock as the store does: corrects it and claims the ceiling, and reads again, until it fits.
    fn read(&mut self, replica: usize, out_ms: i64, back_ms: i64, is_stored: bool) {
        for _ in 0..8 {
            let sample = self.sample(replica, out_ms, back_ms);
            let booted = self.replicas[replica].booted;
            if let Ok(store) = self.replicas[replica].keeper.time(&sample) {
                let asked = sample.asked_ms - booted;
                let answered = sample.answered_ms - booted;
                self.given.push(Given { asked, answered, store });
                if is_stored {
                    self.last = self.last.max(store);
                    let now_ms = self.boot_ms(replica);
                    let restated = self.replicas[replica].keeper.restated(&sample, now_ms);
                    if let Some(ceiling_ms) = restated {
                        let number = sample.version.number;
                        self.ceiling = self.ceiling.max((number, ceiling_ms, sample.claimed_ms));
                    }
                }
                return;
            }
            self.mend(replica, false);
        }
        panic!("replica {replica} cannot keep time");
    }

    /// As the store does under the clock's lock.
    fn mend(&mut self, replica: usize, renew: bool) {
        let sample = self.sample(replica, 1, 1);
        match self.replicas[replica].keeper.remedy(&sample, renew) {
            Remedy::Nothing => {}
            Remedy::Wait { ms } => self.pass(ms),
            Remedy::Claim { ahead_ms } => {
                self.offset -= ahead_ms;
                self.corrections += usize::from(ahead_ms != 0);
                let now_ms = self.boot_ms(replica);
                let keeper = &mut self.replicas[replica].keeper;
                let (version, ceiling_ms) = keeper.ceiling(now_ms).expect("a ceiling");
                let version = Version { number: version.number + 1, ..version };
                self.pass(1);
                self.ceiling = (version.number, ceiling_ms, ceiling_ms);
                self.pass(1);
                let known_ms = self.boot_ms(replica);
                self.replicas[replica].keeper.claimed(version, ceiling_ms, now_ms, known_ms);
            }
        }
    }

    fn act(&mut self, act: &Act) {
        let replicas = self.replicas.len();
        match *act {
            Act::Pass { ms } => self.pass(ms),
            Act::Step { ms } => self.wall_us += ms * US,
            Act::Slew { per_mille } => self.per_mille = per_mille,
            Act::Read { replica, out_ms, back_ms, is_stored } => {
                self.read(replica % replicas, out_ms, back_ms, is_stored);
            }
            Act::Restart { replica } => {
                let booted = self.replicas[replica % replicas].booted + 12_345;
                self.replicas[replica % replicas] = Replica { keeper: Timekeeper::default(), booted };
            }
        }
    }
}

const ROUNDING: i64 = 10;

/// Time given never gains more than the tolerance and 1 % on time that passed: measured from before the first was asked
/// for until after the second was answered.
fn is_never_early(given: &[Given]) -> Result<(), TestCaseError> {
    for (n, first) in given.iter().enumerate() {
        for second in &given[n..] {
            let store = second.store - first.store;
            let passed = second.answered - first.asked;
            let most = passed + passed / DRIFT + TOLERANCE_MS + ROUNDING;
            prop_assert!(store <= most, "early: {store} ms in {passed}: {first:?} {second:?}");
        }
    }
    Ok(())
}

/// The other way round: time that passed never gains more on time given.
fn is_never_late(given: &[Given]) -> Result<(), TestCaseError> {
    for (n, first) in given.iter().enumerate() {
        for second in &given[n..] {
            let store = second.store - first.store;
            let passed = second.asked - first.answered;
            let most = second.answered - first.asked;
            let least = passed - most / DRIFT - TOLERANCE_MS - ROUNDING;
            prop_assert!(store >= least, "late: {store} ms in {passed}: {first:?} {second:?}");
            prop_assert!(store >= 0 || passed < 0, "back: {first:?} {second:?}");
        }
    }
    Ok(())
}

/// How long before the end of its ttl a holder stops (rule 4).
fn margin_ms(ttl_ms: i64) -> i64 {
    (ttl_ms / 50).max(100) + TOLERANCE_MS
}

/// Every reading grants a lease, and every later one judges it. Its holder counts by true time, from before it asked.
fn nobody_ends_a_lease_that_is_worked_on(given: &[Given], ttl_ms: i64) -> Result<(), TestCaseError> {
    for (n, granted) in given.iter().enumerate() {
        let stops_at = granted.asked + ttl_ms - margin_ms(ttl_ms);
        let over = given[n..].iter().find(|judged| judged.store >= granted.store + ttl_ms);
        if let Some(judged) = over {
            let overlap_ms = stops_at - judged.answered;
            prop_assert!(overlap_ms <= 0, "{overlap_ms} ms of overlap: {granted:?} {judged:?}");
        }
    }
    Ok(())
}

fn acts(replicas: usize, restarts: u32) -> impl Strategy<Value = Vec<Act>> {
    let delay = || prop_oneof![8 => 0..5_i64, 1 => 0..3_000_i64];
    let read = (0..replicas, delay(), delay(), any::<bool>());
    let act = prop_oneof![
        4 => (1..2_000_i64).prop_map(|ms| Act::Pass { ms }),
        2 => prop_oneof![-600..600_i64, -3_600_000..3_600_000_i64].prop_map(|ms| Act::Step { ms }),
        1 => prop_oneof![-100..100_i64, -9..9_i64].prop_map(|per_mille| Act::Slew { per_mille }),
        6 => read.prop_map(|(replica, out_ms, back_ms, is_stored)| {
            Act::Read { replica, out_ms, back_ms, is_stored }
        }),
        restarts => (0..replicas).prop_map(|replica| Act::Restart { replica }),
    ];
    proptest::collection::vec(act, 1..200)
}

fn replicas_and_acts() -> impl Strategy<Value = (usize, Vec<Act>)> {
    (1..5_usize).prop_flat_map(|replicas| (Just(replicas), acts(replicas, 2)))
}

proptest! {
    /// The whole promise of rule 2, for any clock: one budget, whatever uses it up.
    #[test]
    fn store_time_differs_from_true_time_by_half_a_second_and_one_per_cent(acts in acts(1, 0)) {
        let mut world = World::new(1);
        acts.iter().for_each(|act| world.act(act));
        is_never_early(&world.given)?;
        is_never_late(&world.given)?;
    }

    /// Any number of replicas that start, stop and pause have one budget together, the one that holders are told.
    #[test]
    fn replicas_share_the_budget_that_holders_are_told((replicas, acts) in replicas_and_acts()) {
        let mut world = World::new(replicas);
        acts.iter().for_each(|act| world.act(act));
        is_never_early(&world.given)?;
        for ttl_ms in [1_500, 5_000, 30_000] {
            nobody_ends_a_lease_that_is_worked_on(&world.given, ttl_ms)?;
        }
    }

    /// Replicas that have one offset agree within ten seconds of the clock behaving again: nobody undoes what another
    /// one has corrected.
    #[test]
    fn replicas_that_correct_one_offset_do_not_fight(acts in acts(3, 0)) {
        let mut world = World::new(3);
        for act in &acts {
            match *act {
                Act::Pass { ms } => world.pass_while_all_read(ms),
                _ => world.act(act),
            }
        }
        is_never_early(&world.given)?;
        world.per_mille = 0;
        let mut corrections = 0;
        for (turn, replica) in (0..3).cycle().take(900).enumerate() {
            world.pass(15 + turn as i64 % 5);
            world.read(replica, 1, 1, true);
            let sample = world.sample(replica, 0, 0);
            if world.replicas[replica].keeper.is_claim_due(&sample) {
                world.mend(replica, true);
            }
            if turn == 600 {
                corrections = world.corrections;
            }
        }
        prop_assert_eq!(world.corrections, corrections, "they agree");
    }
}

/// A lease of `ttl_ms` granted now is over, by store time, after how long? The clock is read every `every_ms`.
fn lives_for(world: &mut World, ttl_ms: i64, every_ms: i64, mut meanwhile: impl FnMut(&mut World)) -> i64 {
    world.read(0, 0, 1, true);
    let granted = world.true_ms;
    let store = world.given.last().expect("a reading").store;
    while world.true_ms - granted < 10 * ttl_ms {
        world.pass(every_ms);
        meanwhile(world);
        world.read(0, 0, 1, true);
        if world.given.last().expect("a reading").store >= store + ttl_ms {
            return world.true_ms - granted;
        }
    }
    panic!("a lease of {ttl_ms} ms never ends");
}

/// The holder stops after its ttl less 500 ms and 2 %: nobody else gets the lease before.
fn is_in_margin(lived: i64, ttl_ms: i64) -> bool {
    (ttl_ms - TOLERANCE_MS - ttl_ms / 50..=ttl_ms + 2 * TOLERANCE_MS + ttl_ms / 50).contains(&lived)
}

#[test]
fn many_small_steps_neither_end_a_lease_early_nor_keep_it_for_ever() {
    for (step, every) in [(400, 500), (400, 100), (-400, 300), (499, 50), (-499, 50), (10, 50), (-10, 50)] {
        let lived = lives_for(&mut World::new(1), 6_000, every, |world| world.wall_us += step * US);
        assert!(is_in_margin(lived, 6_000), "{step} ms every {every} ms: {lived} ms");
    }
}

#[test]
fn a_slew_neither_ends_a_lease_early_nor_keeps_it_for_ever() {
    for (per_mille, ttl_ms) in [(83, 60_000), (-83, 60_000), (500, 10_000), (-500, 10_000), (20, 3_600_000)] {
        let mut world = World::new(1);
        world.per_mille = per_mille;
        let lived = lives_for(&mut world, ttl_ms, 50, |_| ());
        assert!(is_in_margin(lived, ttl_ms), "{per_mille} per mille: {lived} of {ttl_ms} ms");
    }
}

#[test]
fn an_honest_clock_is_followed() {
    for (per_mille, replicas) in [(-9, 2), (-5, 4), (0, 10), (5, 4), (9, 2)] {
        let mut world = World::new(replicas);
        let corrections = world.corrections;
        world.per_mille = per_mille;
        for turn in 0..20_000_usize {
            // Each replica reads about twenty times per second, and no two keep step.
            world.pass((turn as i64 * 7_919) % (100 / replicas as i64));
            let replica = turn * turn % 7_919 % replicas;
            if turn % 70 == 0 {
                // The network is slow now and then, and the others go on meanwhile.
                let slow = world.sample(replica, 1, 0);
                for _ in 0..4 {
                    world.pass(100);
                    (0..replicas).filter(|n| *n != replica).for_each(|n| world.read(n, 1, 2, true));
                }
                let answered_ms = world.boot_ms(replica);
                let _ = world.replicas[replica].keeper.time(&Sample { answered_ms, ..slow });
            }
            world.read(replica, 1, 2, turn % 2 == 0);
            // Each replica renews its claim now and then.
            let sample = world.sample(replica, 1, 1);
            if world.replicas[replica].keeper.is_claim_due(&sample) {
                world.mend(replica, true);
            }
        }
        assert_eq!(world.corrections, corrections, "{per_mille} per mille is drift, for {replicas} replicas");
    }
}

/// Rolling restarts of replicas while the others keep time do not move it.
#[test]
fn a_replica_that_starts_beside_others_moves_no_time() {
    let mut world = World::new(3);
    for turn in 0..3_000 {
        if turn % 100 == 0 {
            world.act(&Act::Restart { replica: turn / 100 });
        }
        for replica in 0..3 {
            world.pass(20);
            world.read(replica, 1, 1, true);
        }
    }
    let ahead = world.wall_us / US - START - (world.true_ms - 5_000) + world.offset;
    assert!(ahead.abs() <= 250, "{ahead} ms after 30 restarts");
}

fn keeper_at(sample: &Sample) -> Timekeeper {
    let mut keeper = Timekeeper::default();
    assert_eq!(keeper.time(sample), Err(OutOfPace), "nothing was claimed yet");
    assert_eq!(keeper.remedy(sample, false), Remedy::Claim { ahead_ms: 0 });
    let (version, ceiling_ms) = keeper.ceiling(sample.answered_ms).expect("a ceiling");
    let version = Version { number: version.number + 1, ..version };
    keeper.claimed(version, ceiling_ms, sample.answered_ms, sample.answered_ms);
    keeper
}

fn sample(by_wall_ms: i64, asked_ms: i64, answered_ms: i64) -> Sample {
    let version = Version { moves: 0, number: 1 };
    let ceiling_ms = 1_000_250;
    let claimed_ms = 1_000_250;
    Sample { by_wall_ms, last_ms: 1_000_000, version, ceiling_ms, claimed_ms, asked_ms, answered_ms }
}

#[test]
fn a_step_is_seen_either_way() {
    for step in [-3_600_000, -2_000, 2_000, 3_600_000] {
        let mut keeper =
            keeper_at(&Sample { version: Version::default(), ..sample(1_000_000, 1_000, 1_002) });
        keeper.time(&sample(1_000_500, 1_500, 1_502)).expect("half a second later");
        let stepped = sample(1_001_000 + step, 2_000, 2_002);
        assert_eq!(keeper.time(&stepped), Err(OutOfPace));
        let Remedy::Claim { ahead_ms } = keeper.remedy(&stepped, false) else { panic!("no remedy") };
        assert!((ahead_ms - step).abs() <= TOLERANCE_MS, "{ahead_ms} of {step} ms");
    }
}

#[test]
fn a_step_forward_is_seen_behind_a_long_wait() {
    let mut keeper = keeper_at(&Sample { version: Version::default(), ..sample(1_000_000, 1_000, 1_002) });
    assert_eq!(keeper.time(&sample(1_003_000 + 1_000, 2_000, 4_000)), Err(OutOfPace));
    assert!(keeper.time(&sample(1_003_000, 2_000, 4_000)).is_ok());
}

#[test]
fn time_never_goes_back() {
    let mut keeper = keeper_at(&Sample { version: Version::default(), ..sample(1_000_000, 1_000, 1_002) });
    let first = keeper.time(&sample(1_000_200, 1_000, 1_002)).expect("the first");
    let back = Sample { last_ms: 0, ..sample(1_000_100, 1_010, 1_012) };
    assert_eq!(keeper.time(&back), Ok(first), "a small step");
}

/// All that passed since the ceiling was written down may have been a step, so a replica that starts allows that much
/// less.
#[test]
fn a_restart_does_not_refill_the_budget() {
    let mut keeper = Timekeeper::default();
    let high = Sample { version: Version::default(), ..sample(1_000_400, 1_000, 1_002) };
    let Remedy::Claim { ahead_ms } = keeper.remedy(&high, false) else { panic!("no remedy") };
    assert!((450..650).contains(&ahead_ms), "{ahead_ms} ms");
}

#[test]
fn time_moved_on_purpose_is_followed() {
    let mut keeper = keeper_at(&Sample { version: Version::default(), ..sample(1_000_000, 1_000, 1_002) });
    let version = Version { moves: 1, number: 2 };
    let moved =
        Sample { version, last_ms: 5_000_000, ceiling_ms: 5_000_000, ..sample(5_000_000, 1_100, 1_102) };
    assert_eq!(keeper.time(&moved), Err(OutOfPace), "claimed first");
    let Remedy::Claim { ahead_ms } = keeper.remedy(&moved, false) else { panic!("no remedy") };
    assert!((0..=TOLERANCE_MS).contains(&ahead_ms), "{ahead_ms} ms");
    keeper.claimed(Version { number: 3, ..version }, 5_000_000, 1_102, 1_103);
    assert_eq!(keeper.time(&Sample { version: Version { number: 3, ..version }, ..moved }), Ok(5_000_000));
    let stale = Sample { asked_ms: 1_100, answered_ms: 1_104, ..sample(1_000_100, 1_100, 1_104) };
    assert_eq!(keeper.time(&stale), Ok(5_000_000), "read before it was moved");
}

/// A store that was restored has an earlier claim than the one that is known.
#[test]
fn a_store_that_was_set_back_is_taken_up_again() {
    let mut keeper =
        keeper_at(&Sample { version: Version { moves: 0, number: 8 }, ..sample(1_000_000, 1_000, 1_002) });
    let restored = Sample { version: Version { moves: 0, number: 5 }, ..sample(1_000_100, 1_100, 1_102) };
    assert_eq!(keeper.time(&restored), Err(OutOfPace));
    assert!(matches!(keeper.remedy(&restored, false), Remedy::Claim { .. }));
}

/// A virtual machine that was paused for an hour finds that others have kept the time.
#[test]
fn time_that_others_witnessed_is_followed() {
    let start = Sample { version: Version::default(), ..sample(1_000_000, 1_000, 1_002) };
    let mut keeper = keeper_at(&start);
    let later = Sample { last_ms: 4_600_000, ceiling_ms: 4_600_250, ..sample(4_600_000, 1_100, 1_102) };
    assert_eq!(keeper.time(&later), Err(OutOfPace));
    assert_eq!(keeper.remedy(&later, false), Remedy::Claim { ahead_ms: 0 });
    let (_, ceiling_ms) = keeper.ceiling(1_102).expect("a ceiling");
    keeper.claimed(Version { moves: 0, number: 2 }, ceiling_ms, 1_102, 1_103);
    assert_eq!(keeper.time(&Sample { version: Version { moves: 0, number: 2 }, ..later }), Ok(4_600_000));
    // Nobody else has witnessed it: the pause does not count.
    let mut alone = keeper_at(&start);
    let later = sample(4_600_000, 1_100, 1_102);
    assert!(matches!(alone.remedy(&later, false), Remedy::Claim { ahead_ms } if ahead_ms > 3_599_000));
}
