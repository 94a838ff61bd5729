//! Whether PostgreSQL's clock keeps pace with this machine's (rule 2). Pure: readings in, a verdict out.
//!
//! ```text
//!   pace      store time - true time, which each machine's boot time stands for, whenever it began
//!
//!   ceiling   no replica gives a time of a higher pace                                    shared, rises by 1 %
//!   floor     the lowest pace at which a replica gives a time: its claim - 500 ms         its own, rises by 1 %
//! ```
//!
//! Safety needs one thing: a lease that was granted at one pace is not judged at a pace that is more than 500 ms
//! higher, by whichever replica. Replicas cannot compare their boot times, so they share the ceiling by a number of
//! store time in the database: when that is read, the true ceiling is at least as high, since it rises with time.
//!
//! Before a replica gives any time it *claims* a ceiling: it takes the highest that it knows to be safe, and writes it
//! down under the next number. A replica that reads a new number lowers its own ceiling to it, so a replica that has
//! read a claim stays below it: **the claim bounds all others, and the claimant knows by its own clock where it is**.
//! So does every replica that has looked shortly before. A grant within 500 ms below the claim is safe. And whoever
//! judges that grant has read the claim, since it has read the rows of the grant before it reads the clock.
//!
//! Within one number, replicas write their ceilings down again and again. Each value that is read is a bound that was
//! true then, so the highest one counts: that is how a replica that starts, or has read a claim late, knows the ceiling
//! as well as the others do.
//!
//! Forward, which is the direction that could end a lease early, the round trip costs nothing: a grant counts from the
//! latest moment at which its time can have been read, an expiry from the earliest. So between sending a request that
//! is granted and receiving the answer that says expired, store time gains at most 500 ms and 1 %, however slow the
//! network, whatever becomes of the wall clock, and whichever replicas start, stop or pause meanwhile.

/// How much unexplained difference may add up. It is part of every holder's margin.
pub const TOLERANCE_MS: i64 = 500;
/// The stated drift bound: one part in this many.
const DRIFT: i64 = 100;
/// Microseconds in a millisecond. Paces are kept in microseconds: the drift of a few milliseconds must not round to
/// nothing.
const US: i64 = 1_000;
const TOLERANCE: i64 = TOLERANCE_MS * US;
/// As much as a quick round trip may blur a reading.
const BLUR: i64 = 10 * US;
/// A claim is renewed at least this often.
const CLAIM_EVERY_MS: i64 = 60_000;
/// After a claim, the others need this long to know the ceiling as well as the claimant does.
const SETTLE_MS: i64 = 1_000;
/// A claim is renewed when there is less room than this above its floor.
const ROOM_BELOW: i64 = TOLERANCE / 10;
/// A ceiling in the database that is this much below the one known here is written down again.
const RESTATE_MS: i64 = 100;
/// How far below the ceiling a correction aims, and how far above an honest clock the ceiling is claimed. There is less
/// room below: a clock that falls behind only takes the ceiling down with it.
const ROOM: i64 = 320 * US;
/// A ceiling is not claimed with less room below it.
const ROOM_LEAST: i64 = 80 * US;
/// A replica that starts looks again for a ceiling if there is less room below the one that it knows.
const ROOM_TO_START: i64 = ROOM - 2 * BLUR;
/// A new claim is not learned from a reading that took longer: another one finds the ceiling written down again.
const SLOW_MS: i64 = 100;

/// Which claim a ceiling belongs to. Where store time was moved on purpose, all claims start over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub moves: i64,
    pub number: i64,
}

/// Store time as one reading has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// By the wall clock and the offset alone.
    pub by_wall_ms: i64,
    /// The last time that any replica is known to have given.
    pub last_ms: i64,
    pub version: Version,
    /// The ceiling, in store time, when it was last written down, and when it was claimed.
    pub ceiling_ms: i64,
    pub claimed_ms: i64,
    /// The reading was made between these, in milliseconds of boot time, rounded down.
    pub asked_ms: i64,
    pub answered_ms: i64,
}

impl Sample {
    /// A pace that the ceiling is not below. A time that was stored was below the ceiling of its replica.
    fn ceiling(&self) -> i64 {
        (self.ceiling_ms.max(self.last_ms) - self.answered_ms - 1) * US
    }

    /// The paces between which a time lies that was read with this sample.
    fn pace_of(&self, time_ms: i64) -> Pace {
        Pace { least: (time_ms - self.answered_ms - 1) * US, most: (time_ms - self.asked_ms + 1) * US }
    }
}

/// A range of paces, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    least: i64,
    most: i64,
}

impl Pace {
    fn middle(self) -> i64 {
        self.least.midpoint(self.most)
    }
}

/// A pace that rises by the stated drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rising {
    pace: i64,
    at_ms: i64,
}

impl Rising {
    fn at(self, ms: i64) -> i64 {
        self.pace + (ms - self.at_ms) * US / DRIFT
    }

    fn lowered_to(self, pace: i64, at_ms: i64) -> Self {
        if pace < self.at(at_ms) { Self { pace, at_ms } } else { self }
    }

    fn raised_to(self, pace: i64, at_ms: i64) -> Self {
        if pace > self.at(at_ms) { Self { pace, at_ms } } else { self }
    }
}

/// What this machine knows of the paces, by its own boot time.
#[derive(Debug, Clone, Copy)]
struct LocalPace {
    ceiling: Rising,
    /// All who have read the newest claim stay below this.
    claim: Option<Rising>,
    /// The highest pace that was accepted here, sinking by the stated drift. A wall clock that is further behind it
    /// than the tolerance was set back. That ends no lease early, but it would keep leases forever.
    reached: Option<Rising>,
}

impl LocalPace {
    /// The lowest pace of a wall clock that was not set back.
    fn least(&self, at_ms: i64) -> Option<i64> {
        let reached = self.reached.map(|reached| reached.pace - (at_ms - reached.at_ms) * US / DRIFT);
        reached.map(|reached| reached.min(self.ceiling.at(at_ms)) - TOLERANCE)
    }

    fn reach(&mut self, pace: i64, at_ms: i64) {
        if self.least(at_ms).is_none_or(|least| pace - TOLERANCE > least) {
            self.reached = Some(Rising { pace, at_ms });
        }
    }

    /// Whether a time may be given that was read with this sample.
    fn admits(&self, sample: &Sample, time_ms: i64) -> bool {
        let Some(claim) = self.claim else { return false };
        let pace = sample.pace_of(time_ms);
        pace.least <= self.ceiling.at(sample.answered_ms)
            && pace.most >= claim.at(sample.asked_ms) - TOLERANCE
    }

    /// Whether the wall clock was not set back.
    fn is_kept_up(&self, sample: &Sample) -> bool {
        let most = sample.pace_of(sample.by_wall_ms).most;
        self.least(sample.answered_ms).is_none_or(|least| most >= least)
    }
}

/// The clocks are further apart than is allowed, or no ceiling was claimed yet: that comes before anything is decided.
#[derive(Debug, PartialEq, Eq)]
pub struct OutOfPace;

/// What to do about a time that was refused, looked at once more under the clock's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing: it is in pace, perhaps because another replica has corrected it.
    Nothing,
    /// This process has given a time that is above the ceiling by now, which will have risen to it after this long.
    Wait { ms: i64 },
    /// Store time is ahead by this much (behind, if negative): take it off the offset. Then claim the ceiling.
    Claim { ahead_ms: i64 },
}

/// What one replica knows of store time.
#[derive(Debug, Default)]
pub struct Timekeeper {
    frame: Option<LocalPace>,
    version: Version,
    /// When the version was known, and when a later one was not there yet.
    known_ms: i64,
    unclaimed_ms: i64,
    /// The latest time given: store time does not go back within a process, either.
    given_ms: i64,
}

impl Timekeeper {
    pub fn given_ms(&self) -> i64 {
        self.given_ms
    }

    /// The number of the last claim that is known.
    pub fn claim_number(&self) -> i64 {
        self.version.number
    }

    /// Whether any ceiling is known.
    pub fn is_taken_up(&self) -> bool {
        self.frame.is_some()
    }

    /// Store time by a reading.
    pub fn time(&mut self, sample: &Sample) -> Result<i64, OutOfPace> {
        let is_slow = sample.answered_ms - sample.asked_ms > SLOW_MS;
        if is_slow && sample.version > self.version {
            return Err(OutOfPace);
        }
        self.see(sample);
        let Some(frame) = &mut self.frame else { return Err(OutOfPace) };
        // From before a claim that is known, or before store time was moved: what has been given since counts.
        let is_stale = sample.version < self.version;
        let by_wall_ms = if is_stale { i64::MIN } else { sample.by_wall_ms };
        let time_ms = self.given_ms.max(sample.last_ms).max(by_wall_ms);
        if !frame.admits(sample, time_ms) || !(is_stale || frame.is_kept_up(sample)) {
            return Err(OutOfPace);
        }
        frame.reach(sample.pace_of(time_ms).least, sample.answered_ms);
        self.given_ms = time_ms;
        Ok(time_ms)
    }

    /// Learns what a reading says about the ceiling.
    fn see(&mut self, sample: &Sample) {
        let pace = sample.ceiling();
        let at_ms = sample.answered_ms;
        let is_new = sample.version > self.version;
        // Asked for after a later version was known: the store was set back.
        let is_set_back = sample.version < self.version && sample.asked_ms > self.known_ms;
        if is_set_back || sample.version.moves > self.version.moves {
            self.frame = None;
        }
        if is_new || is_set_back {
            (self.version, self.known_ms) = (sample.version, at_ms);
        }
        let unclaimed_ms = self.unclaimed_ms;
        if sample.version == self.version {
            self.unclaimed_ms = unclaimed_ms.max(sample.asked_ms);
        }
        let Some(frame) = &mut self.frame else { return };
        if is_new {
            frame.ceiling = frame.ceiling.lowered_to(pace, at_ms);
            // It was not there yet when this replica last looked: no replica has read it before.
            let claim = (sample.claimed_ms - unclaimed_ms) * US;
            frame.claim = frame.claim.map(|own| own.lowered_to(claim, unclaimed_ms));
        } else if sample.version == self.version {
            frame.ceiling = frame.ceiling.raised_to(pace, at_ms);
            // Above what this replica has claimed: its machine's clock has stood still (a paused virtual machine).
            if frame.claim.is_some_and(|claim| pace > claim.at(at_ms) + BLUR) {
                self.frame = None;
            }
        }
    }

    /// Takes up the ceiling when a store is opened. True if another look, soon, could find a better one.
    pub fn look(&mut self, sample: &Sample) -> bool {
        self.see(sample);
        let frame = self.frame.get_or_insert_with(|| {
            (self.version, self.known_ms) = (sample.version, sample.answered_ms);
            let ceiling = Rising { pace: sample.ceiling(), at_ms: sample.answered_ms };
            LocalPace { ceiling, claim: None, reached: None }
        });
        sample.pace_of(sample.by_wall_ms).most > frame.ceiling.at(sample.answered_ms) - ROOM_TO_START
    }

    /// What to do about a time that was refused. All replicas have the same ceiling, so none undoes what another one
    /// has corrected.
    ///
    /// With `renew`, a claim is made even if all is well.
    pub fn remedy(&mut self, sample: &Sample, renew: bool) -> Remedy {
        self.look(sample);
        let at_ms = sample.answered_ms;
        let Some(frame) = &mut self.frame else { return Remedy::Nothing };
        let ceiling = frame.ceiling.at(at_ms);
        let given = sample.pace_of(self.given_ms);
        if given.least > ceiling {
            return Remedy::Wait { ms: (given.least - ceiling) / US + 1 };
        }
        let pace = sample.pace_of(sample.by_wall_ms);
        // Clear of the bounds, as far as the round trip can show: otherwise the next reading is refused again.
        // The others need some room, too: they know a ceiling that was claimed only when they read it.
        let is_high = pace.middle() > ceiling - ROOM_LEAST;
        let is_behind = frame.least(at_ms).is_some_and(|least| pace.middle() < least + BLUR);
        let time_ms = sample.by_wall_ms.max(sample.last_ms).max(self.given_ms);
        let floor = frame.claim.map(|claim| claim.at(at_ms) - TOLERANCE);
        let is_above_floor = floor.is_some_and(|floor| sample.pace_of(time_ms).middle() >= floor + BLUR);
        if !renew && !is_high && !is_behind && is_above_floor {
            return Remedy::Nothing;
        }
        let ahead_ms = if is_high || is_behind { (pace.middle() - (ceiling - ROOM)) / US } else { 0 };
        // An honest clock falls behind a ceiling that rises; it takes the ceiling down with it, but not below where it
        // was.
        let time_ms = (sample.by_wall_ms - ahead_ms).max(sample.last_ms).max(self.given_ms);
        let most = sample.pace_of(time_ms).most;
        let reached = frame.least(at_ms).map_or(most, |least| least + TOLERANCE);
        let lowest = reached.clamp(most + ROOM, most + TOLERANCE - 3 * BLUR);
        frame.ceiling = frame.ceiling.lowered_to(lowest, at_ms);
        Remedy::Claim { ahead_ms }
    }

    /// Whether the claim should be renewed: its floor has nearly risen to an honest clock, or it is old. Not right
    /// after another one: by then this replica knows the ceiling less well than the others.
    pub fn is_claim_due(&self, sample: &Sample) -> bool {
        self.frame.and_then(|frame| frame.claim).is_some_and(|claim| {
            let floor = claim.at(sample.answered_ms) - TOLERANCE;
            let room = sample.pace_of(sample.by_wall_ms).middle() - floor;
            let is_old = sample.answered_ms - claim.at_ms >= CLAIM_EVERY_MS;
            (room < ROOM_BELOW || is_old) && sample.answered_ms - self.known_ms >= SETTLE_MS
        })
    }

    /// The ceiling in store time, as it is written down at `now_ms` of boot time, and the version it belongs to.
    pub fn ceiling(&self, now_ms: i64) -> Option<(Version, i64)> {
        let ceiling = self.frame?.ceiling.at(now_ms);
        Some((self.version, ceiling.div_euclid(US) + now_ms))
    }

    /// As [`Self::ceiling`], if that would tell others more than this reading did.
    pub fn restated(&self, sample: &Sample, now_ms: i64) -> Option<i64> {
        let (version, ceiling_ms) = self.ceiling(now_ms)?;
        (version == sample.version && ceiling_ms - sample.ceiling_ms >= RESTATE_MS).then_some(ceiling_ms)
    }

    /// The ceiling `ceiling_ms` was claimed under `version`, after `now_ms` and before `known_ms`.
    pub fn claimed(&mut self, version: Version, ceiling_ms: i64, now_ms: i64, known_ms: i64) {
        let Some(frame) = &mut self.frame else { return };
        frame.claim = Some(Rising { pace: (ceiling_ms - now_ms) * US, at_ms: now_ms });
        // As every replica that reads it does.
        frame.ceiling = frame.ceiling.lowered_to((ceiling_ms - known_ms - 1) * US, known_ms);
        if version > self.version {
            (self.version, self.known_ms) = (version, known_ms);
        }
    }
}

#[cfg(test)]
mod tests;
