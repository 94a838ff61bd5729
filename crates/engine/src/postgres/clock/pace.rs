//! Whether PostgreSQL's clock keeps pace with this machine's (rule 2). Pure: readings in, a verdict out.
//!
//! ```text
//!   pace  = store time by the wall clock - this machine's boot time      a reading knows it to within its round trip
//!
//!   every pace that was ever accepted bounds the next one:   |pace - earlier pace| <= 500 ms + 1 % of the time between
//! ```
//!
//! The bounds of all earlier readings move apart at the same rate, so only the tightest pair has to be kept: the
//! [`Allowance`]. It is one budget for the life of the process. A step spends some of it, the stated drift refills it,
//! and a reading outside it is refused until the offset is corrected. Many small steps and a slew are no different from
//! one large step.
//!
//! Forward, which is the direction that could end a lease early, the round trip costs nothing: a grant counts from the
//! latest moment at which its time can have been read, an expiry from the earliest. So between sending a request that
//! is granted and receiving the answer that says expired, store time gains at most 500 ms and 1 %, however slow the
//! network.

/// How much unexplained difference may add up. It is part of every holder's margin.
pub(crate) const TOLERANCE_MS: i64 = 500;
/// The stated drift bound: one part in this many.
const DRIFT: i64 = 100;
/// Microseconds in a millisecond. Paces are kept in microseconds: the drift of a few milliseconds must not round to
/// nothing.
const US: i64 = 1_000;
/// Store time that another replica has given may be ahead of the most that this one allows by a replica's own tolerance
/// at its start and another one since. If it is further ahead, this machine's clock stood still (a paused virtual
/// machine).
const OTHERS_AHEAD_MS: i64 = 2 * TOLERANCE_MS;

/// Another replica has undone a correction if the offset is not as it was left this long ago. The next one is as small
/// as it can be.
const UNDONE_MS: i64 = 2_000;
/// But clear of the bounds by as much as a quick round trip may blur it.
const BLUR_MS: i64 = 10;

/// Store time as one reading has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// By the wall clock and the offset alone.
    pub(crate) by_wall_ms: i64,
    pub(crate) offset_ms: i64,
    /// The last time that any replica is known to have given.
    pub(crate) last_ms: i64,
    /// How many times store time had been moved on purpose.
    pub(crate) moves: i64,
    /// The reading was made between these, in milliseconds of boot time, rounded down.
    pub(crate) asked_ms: i64,
    pub(crate) answered_ms: i64,
}

/// A range of paces, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    least: i64,
    most: i64,
}

impl Pace {
    fn of(sample: &Sample) -> Self {
        Self {
            least: (sample.by_wall_ms - sample.answered_ms - 1) * US,
            most: (sample.by_wall_ms - sample.asked_ms + 1) * US,
        }
    }

    fn middle(self) -> i64 {
        self.least.midpoint(self.most)
    }

    fn nearest(self, pace: i64) -> i64 {
        if self.least <= self.most { pace.clamp(self.least, self.most) } else { self.middle() }
    }
}

/// The paces that can be accepted, given all that were accepted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Allowance {
    range: Pace,
    at_ms: i64,
}

impl Allowance {
    /// What a first reading allows. The last time that any replica gave counts as a reading, too: as far as this
    /// replica can tell, all that passed since then may have been a step.
    fn starting_at(sample: &Sample) -> Self {
        let pace = Pace::of(sample);
        let since_mark = (sample.last_ms - sample.asked_ms + 1 + TOLERANCE_MS) * US;
        let most = since_mark.clamp(pace.most, pace.most + TOLERANCE_MS * US);
        Self { range: Pace { least: pace.least - TOLERANCE_MS * US, most }, at_ms: sample.answered_ms }
    }

    /// What drift has made of it by `at_ms`.
    fn by(self, at_ms: i64) -> Self {
        let drift = (at_ms - self.at_ms).max(0) * US / DRIFT;
        let range = Pace { least: self.range.least - drift, most: self.range.most + drift };
        Self { range, at_ms: at_ms.max(self.at_ms) }
    }

    fn admits(self, pace: Pace) -> bool {
        pace.least <= self.range.most && pace.most >= self.range.least
    }

    /// The part of it where a correction is sure to fit.
    fn inner(self) -> Pace {
        Pace { least: self.range.least + BLUR_MS * US, most: self.range.most - BLUR_MS * US }
    }

    /// What is left once `pace` is accepted.
    fn after(self, pace: Pace) -> Self {
        let least = self.range.least.max(pace.least - TOLERANCE_MS * US);
        let most = self.range.most.min(pace.most + TOLERANCE_MS * US);
        Self { range: Pace { least, most }, at_ms: self.at_ms }
    }
}

/// The clocks are further apart than the allowance: the offset has to be corrected before anything is decided.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfPace;

/// What to do about a clock that seemed to be out of pace, looked at once more under its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Nothing: it is in pace, perhaps because another replica has corrected it.
    Nothing,
    /// Store time is ahead by this much (behind, if negative): take it off the offset.
    Correct { ahead_ms: i64 },
    /// Other replicas have witnessed time that this machine has not: take a new anchor.
    Follow { ahead_ms: i64 },
}

/// What one replica knows of store time.
#[derive(Debug, Default)]
pub(crate) struct Timekeeper {
    allowance: Option<Allowance>,
    moves: i64,
    /// The offset as it was last corrected here, and when, by boot time.
    corrected: Option<(i64, i64)>,
    /// The latest time given: store time does not go back within a process, either.
    given_ms: i64,
}

impl Timekeeper {
    /// The latest time given.
    pub(crate) fn given_ms(&self) -> i64 {
        self.given_ms
    }

    /// Store time by a reading.
    pub(crate) fn time(&mut self, sample: &Sample) -> Result<i64, OutOfPace> {
        let pace = Pace::of(sample);
        match self.allowance {
            // From before store time was moved: what has been given since counts.
            Some(_) if sample.moves < self.moves => {}
            Some(allowance) if sample.moves == self.moves => {
                let allowance = allowance.by(sample.answered_ms);
                if !allowance.admits(pace) {
                    return Err(OutOfPace);
                }
                self.allowance = Some(allowance.after(pace));
                self.given_ms = self.given_ms.max(sample.by_wall_ms);
            }
            // The first, or the first since store time was moved on purpose, and all deadlines with it.
            _ => {
                self.allowance = Some(Allowance::starting_at(sample));
                self.moves = sample.moves;
                self.given_ms = self.given_ms.max(sample.by_wall_ms);
            }
        }
        self.given_ms = self.given_ms.max(sample.last_ms);
        Ok(self.given_ms)
    }

    /// What to do about a clock that is out of pace. A correction aims at the middle of what is allowed: after a step
    /// that is where store time was. If another replica undoes that, it allows something else, having read at other
    /// moments. All allowances go back to the same pace, so they overlap or soon will, and the smallest correction that
    /// fits here fits there, too. So replicas come to an agreement, and none has to give up its own bounds for it.
    pub(crate) fn remedy(&mut self, sample: &Sample) -> Remedy {
        let Some(allowance) = self.allowance.filter(|_| sample.moves == self.moves) else {
            return Remedy::Nothing;
        };
        let (allowance, pace) = (allowance.by(sample.answered_ms), Pace::of(sample));
        // A blurred reading that may or may not fit is no reason to leave things as they are.
        if pace.least >= allowance.range.least && pace.most <= allowance.range.most {
            return Remedy::Nothing;
        }
        let ahead_ms = (pace.middle() - allowance.range.most) / US;
        if sample.last_ms > sample.by_wall_ms - ahead_ms + OTHERS_AHEAD_MS {
            self.allowance = Some(Allowance::starting_at(sample));
            return Remedy::Follow { ahead_ms };
        }
        let is_undone = self.corrected.is_some_and(|(offset_ms, at_ms)| {
            offset_ms != sample.offset_ms && sample.answered_ms - at_ms < UNDONE_MS
        });
        let aim = if is_undone { allowance.inner().nearest(pace.middle()) } else { allowance.range.middle() };
        let ahead_ms = (pace.middle() - aim) / US;
        self.corrected = Some((sample.offset_ms - ahead_ms, sample.answered_ms));
        Remedy::Correct { ahead_ms }
    }
}

#[cfg(test)]
mod tests {
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
        /// A replica reads the clock; the request and the answer each take a while.
        Read {
            replica: usize,
            out_ms: i64,
            back_ms: i64,
        },
    }

    /// Time given to a decision.
    #[derive(Debug, Clone, Copy)]
    struct Given {
        asked: i64,
        answered: i64,
        store: i64,
    }

    /// PostgreSQL's misbehaving clock, its one offset, and replicas that keep time by it.
    struct World {
        true_ms: i64,
        wall_us: i64,
        per_mille: i64,
        offset: i64,
        last: i64,
        keepers: Vec<Timekeeper>,
        given: Vec<Given>,
        corrections: usize,
    }

    impl World {
        fn new(replicas: usize) -> Self {
            let start = 1_000_000;
            let mut world = Self {
                true_ms: 5_000,
                wall_us: start * US,
                per_mille: 0,
                offset: 0,
                last: start,
                keepers: (0..replicas).map(|_| Timekeeper::default()).collect(),
                given: Vec::new(),
                corrections: 0,
            };
            (0..replicas).for_each(|replica| world.read(replica, 0, 0));
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
                (0..self.keepers.len()).for_each(|replica| self.read(replica, 0, 0));
            }
        }

        fn sample(&mut self, out_ms: i64, back_ms: i64) -> Sample {
            let asked_ms = self.true_ms;
            self.pass(out_ms);
            let by_wall_ms = self.wall_us / US + self.offset;
            self.pass(back_ms);
            Sample {
                by_wall_ms,
                offset_ms: self.offset,
                last_ms: self.last,
                moves: 0,
                asked_ms,
                answered_ms: self.true_ms,
            }
        }

        /// Reads the clock as the store does: corrects it, and reads again, until it fits.
        fn read(&mut self, replica: usize, out_ms: i64, back_ms: i64) {
            for _ in 0..8 {
                let sample = self.sample(out_ms, back_ms);
                if let Ok(store) = self.keepers[replica].time(&sample) {
                    let Sample { asked_ms: asked, answered_ms: answered, .. } = sample;
                    self.given.push(Given { asked, answered, store });
                    self.last = self.last.max(store);
                    return;
                }
                let sample = self.sample(1, 1);
                match self.keepers[replica].remedy(&sample) {
                    Remedy::Nothing => {}
                    Remedy::Correct { ahead_ms } => {
                        self.offset -= ahead_ms;
                        self.corrections += 1;
                    }
                    Remedy::Follow { .. } => {
                        panic!("all clocks of this world run: there is nobody to follow")
                    }
                }
            }
            panic!("replica {replica} cannot keep time");
        }

        fn act(&mut self, act: &Act) {
            match *act {
                Act::Pass { ms } if self.keepers.len() > 1 => self.pass_while_all_read(ms),
                Act::Pass { ms } => self.pass(ms),
                Act::Step { ms } => self.wall_us += ms * US,
                Act::Slew { per_mille } => self.per_mille = per_mille,
                Act::Read { replica, out_ms, back_ms } => {
                    let replica = replica % self.keepers.len();
                    self.read(replica, out_ms, back_ms);
                }
            }
        }
    }

    /// Time given never differs from time that passed by more than `tolerance` and 1 %: measured from before the first
    /// was asked for until after the second was answered, and the other way round.
    fn is_fair(given: &[Given], tolerance: i64) -> Result<(), TestCaseError> {
        const ROUNDING: i64 = 10;
        for (n, first) in given.iter().enumerate() {
            for second in &given[n..] {
                let store = second.store - first.store;
                let most = second.answered - first.asked;
                prop_assert!(
                    store <= most + most / DRIFT + tolerance + ROUNDING,
                    "early: {store} ms in {most}: {first:?} {second:?}"
                );
                let least = second.asked - first.answered;
                prop_assert!(
                    store >= least - most / DRIFT - tolerance - ROUNDING,
                    "late: {store} ms in {least}: {first:?} {second:?}"
                );
                prop_assert!(store >= 0 || least < 0, "back: {first:?} {second:?}");
            }
        }
        Ok(())
    }

    fn acts(replicas: usize) -> impl Strategy<Value = Vec<Act>> {
        let delay = || prop_oneof![8 => 0..5_i64, 1 => 0..3_000_i64];
        let act = prop_oneof![
            4 => (1..2_000_i64).prop_map(|ms| Act::Pass { ms }),
            2 => prop_oneof![-600..600_i64, -3_600_000..3_600_000_i64].prop_map(|ms| Act::Step { ms }),
            1 => prop_oneof![-100..100_i64, -9..9_i64].prop_map(|per_mille| Act::Slew { per_mille }),
            6 => (0..replicas, delay(), delay())
                .prop_map(|(replica, out_ms, back_ms)| Act::Read { replica, out_ms, back_ms }),
        ];
        proptest::collection::vec(act, 1..200)
    }

    proptest! {
        /// The whole promise of rule 2, for any clock: one budget, whatever uses it up.
        #[test]
        fn store_time_differs_from_true_time_by_half_a_second_and_one_per_cent(acts in acts(1)) {
            let mut world = World::new(1);
            acts.iter().for_each(|act| world.act(act));
            is_fair(&world.given, TOLERANCE_MS)?;
        }

        /// Three replicas and one offset: none takes time from what another has granted, but for what it did not see.
        /// And within ten seconds of the clock behaving again they agree: nobody undoes what another one has corrected.
        #[test]
        fn replicas_that_correct_one_offset_do_not_fight(acts in acts(3)) {
            let mut world = World::new(3);
            acts.iter().for_each(|act| world.act(act));
            // Each has its own budget, and reads at other moments.
            is_fair(&world.given, 2 * TOLERANCE_MS)?;
            world.per_mille = 0;
            let mut corrections = 0;
            for (turn, replica) in (0..3).cycle().take(900).enumerate() {
                world.pass(17);
                world.read(replica, 1, 1);
                if turn == 600 {
                    corrections = world.corrections;
                }
            }
            prop_assert_eq!(world.corrections, corrections, "they agree");
        }
    }

    /// A lease of `ttl_ms` granted now is over, by store time, after how long? The clock is read every `every_ms`.
    fn lives_for(
        world: &mut World,
        ttl_ms: i64,
        every_ms: i64,
        mut meanwhile: impl FnMut(&mut World),
    ) -> i64 {
        world.read(0, 0, 1);
        let (granted, store) = (world.true_ms, world.given.last().expect("a reading").store);
        while world.true_ms - granted < 10 * ttl_ms {
            world.pass(every_ms);
            meanwhile(world);
            world.read(0, 0, 1);
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
        for (step, every) in [(400, 500), (400, 100), (-400, 300), (499, 50), (-499, 50), (10, 50), (-10, 50)]
        {
            let lived = lives_for(&mut World::new(1), 6_000, every, |world| world.wall_us += step * US);
            assert!(is_in_margin(lived, 6_000), "{step} ms every {every} ms: {lived} ms");
        }
    }

    #[test]
    fn a_slew_neither_ends_a_lease_early_nor_keeps_it_for_ever() {
        for (per_mille, ttl_ms) in
            [(83, 60_000), (-83, 60_000), (500, 10_000), (-500, 10_000), (20, 3_600_000)]
        {
            let mut world = World::new(1);
            world.per_mille = per_mille;
            let lived = lives_for(&mut world, ttl_ms, 50, |_| ());
            assert!(is_in_margin(lived, ttl_ms), "{per_mille} per mille: {lived} of {ttl_ms} ms");
        }
    }

    #[test]
    fn an_honest_clock_is_followed() {
        for per_mille in [-9, -5, 0, 5, 9] {
            let mut world = World::new(2);
            world.per_mille = per_mille;
            for second in 0..2_000 {
                world.pass(500);
                // The network is slow now and then.
                world.read(second % 2, 1, if second % 7 == 0 { 400 } else { 2 });
            }
            assert_eq!(world.corrections, 0, "{per_mille} per mille is drift");
        }
    }

    fn sample(by_wall_ms: i64, asked_ms: i64, answered_ms: i64) -> Sample {
        Sample { by_wall_ms, offset_ms: 0, last_ms: by_wall_ms, moves: 0, asked_ms, answered_ms }
    }

    #[test]
    fn a_step_is_seen_either_way() {
        for step in [-3_600_000, -2_000, 2_000, 3_600_000] {
            let mut keeper = Timekeeper::default();
            keeper.time(&sample(1_000_000, 1_000, 1_002)).expect("the first");
            keeper.time(&sample(1_000_500, 1_500, 1_502)).expect("half a second later");
            let last_ms = 1_000_500;
            let stepped = Sample { last_ms, ..sample(1_001_000 + step, 2_000, 2_002) };
            assert_eq!(keeper.time(&stepped), Err(OutOfPace));
            assert!(
                matches!(keeper.remedy(&stepped), Remedy::Correct { ahead_ms } if (ahead_ms - step).abs() < 10)
            );
            assert!(keeper.time(&sample(1_001_000, 2_000, 2_002)).is_ok(), "the step left no trace");
        }
    }

    #[test]
    fn a_step_forward_is_seen_behind_a_long_wait() {
        let mut keeper = Timekeeper::default();
        keeper.time(&sample(1_000_000, 1_000, 1_002)).expect("the first");
        assert_eq!(keeper.time(&sample(1_003_000 + 1_000, 2_000, 4_000)), Err(OutOfPace));
        assert!(keeper.time(&sample(1_003_000, 2_000, 4_000)).is_ok());
    }

    #[test]
    fn time_never_goes_back() {
        let mut keeper = Timekeeper::default();
        let first = keeper.time(&sample(1_000_400, 1_000, 1_002)).expect("the first");
        let back = Sample { last_ms: 0, ..sample(1_000_100, 1_010, 1_012) };
        assert_eq!(keeper.time(&back), Ok(first), "a small step");
    }

    /// What passed since the last mark may have been a step, so a replica that has just started allows that much less.
    #[test]
    fn a_restart_does_not_refill_the_budget() {
        let mut keeper = Timekeeper::default();
        let first = Sample { last_ms: 1_000_000, ..sample(1_000_400, 1_000, 1_002) };
        keeper.time(&first).expect("the first");
        assert_eq!(
            keeper.time(&sample(1_000_400 + 250, 1_050, 1_052)),
            Err(OutOfPace),
            "600 ms since the mark"
        );
        assert!(keeper.time(&sample(1_000_400 + 100, 1_050, 1_052)).is_ok());
    }

    #[test]
    fn time_moved_on_purpose_is_followed() {
        let mut keeper = Timekeeper::default();
        keeper.time(&sample(1_000_000, 1_000, 1_002)).expect("the first");
        let moved = Sample { moves: 1, ..sample(5_000_000, 1_100, 1_102) };
        assert_eq!(keeper.time(&moved), Ok(5_000_000));
        assert_eq!(keeper.time(&sample(1_000_100, 1_100, 1_102)), Ok(5_000_000), "read before it was moved");
        assert_eq!(keeper.remedy(&sample(1_000_100, 1_100, 1_102)), Remedy::Nothing);
        let stepped = Sample { moves: 1, ..sample(5_002_000, 1_200, 1_202) };
        assert_eq!(keeper.time(&stepped), Err(OutOfPace), "it is watched again");
    }

    /// A virtual machine that was paused for an hour finds that others have kept the time.
    #[test]
    fn time_that_others_witnessed_is_followed() {
        let mut keeper = Timekeeper::default();
        keeper.time(&sample(1_000_000, 1_000, 1_002)).expect("the first");
        let later = Sample { last_ms: 4_599_900, ..sample(4_600_000, 1_100, 1_102) };
        assert_eq!(keeper.time(&later), Err(OutOfPace));
        assert!(matches!(keeper.remedy(&later), Remedy::Follow { .. }));
        assert_eq!(keeper.time(&later), Ok(4_600_000));
        // Nobody else has witnessed it: the pause does not count.
        let mut alone = Timekeeper::default();
        alone.time(&sample(1_000_000, 1_000, 1_002)).expect("the first");
        let later = Sample { last_ms: 1_000_000, ..later };
        assert!(matches!(alone.remedy(&later), Remedy::Correct { ahead_ms } if ahead_ms > 3_599_000));
    }
}
