//! Power loss of the embedded store: what a real server wrote and synced is recorded, and the states that a power loss
//! could have left of it are opened.
//!
//! ```text
//!   strace ── client ── solehold serve      system calls and answers, in one order
//!               │             │
//!            answers     data folder ── disk: what is durable at each moment ── a state ── opened and judged
//!
//!   client     a workload, and what it was answered        record      runs it under strace
//!   trace      the system calls as strace prints them      disk        what they do to a disk, and what a disk may keep
//!   promises   what must be there after these answers      judge       opens a state and compares
//!   unsynced   syncs that are left out on purpose          run         all of it, and its tables
//! ```
//! A power loss is judged before and after every sync, and at moments between them that a seed chooses. Each time a
//! disk may keep nothing of what is not durable, all of it, or parts.

mod client;
mod disk;
mod judge;
mod promises;
mod record;
mod run;
mod trace;
mod unsynced;

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use rand::{SeedableRng as _, rngs::StdRng, seq::IteratorRandom as _};

pub use self::{
    client::{ClientOptions, Workload, run as run_client},
    record::Recording,
    run::run,
    unsynced::Unsynced,
};
use self::{
    disk::{Disk, Effect, Survival},
    judge::{Bench, Opener},
    promises::Promises,
};

/// The data folder, in the folder whose states are judged. Neither it nor the one above it is there before.
const DATA: &str = "outer/data";

/// Wrong states that are shown; all are counted.
const SHOWN: usize = 10;

/// Which states of a recording are judged.
#[derive(Debug, Clone, Args)]
pub struct Selection {
    /// At most this many moments before and after a sync; all of them if not given
    #[arg(long)]
    pub boundaries: Option<usize>,
    /// This many moments between syncs
    #[arg(long, default_value_t = 400)]
    pub between: usize,
    /// For each moment this many states in which parts survive, besides those in which nothing and everything does
    #[arg(long, default_value_t = 3)]
    pub parts: usize,
    /// At this many moments it is a server that is started on each state
    #[arg(long, default_value_t = 10)]
    pub servers: usize,
}

/// What a recording has shown.
#[derive(Debug, Default)]
pub struct Verdict {
    pub calls: usize,
    pub syncs: usize,
    pub answers: usize,
    pub moments: usize,
    pub states: usize,
    pub wrong: usize,
    /// The first of them, in words.
    pub shown: Vec<String>,
}

/// How far to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    End,
    FirstWrong,
}

/// Judges the states that a power loss could have left of a recording, or of one in which some syncs are left out.
pub async fn judge(
    recording: &Recording,
    selection: &Selection,
    seed: u64,
    without: Option<Unsynced>,
    until: Until,
) -> Result<Verdict> {
    let moments = Moments::choose(recording, selection, seed, without)?;
    let calls = recording.calls.len();
    let mut trial = Trial {
        bench: Bench::new(recording.root(), recording.database()),
        disk: Disk::new(&recording.root(), without),
        promises: Promises::default(),
        verdict: Verdict { calls, syncs: moments.syncs, ..Verdict::default() },
        parts: selection.parts,
        seed,
    };
    for moment in 0..=calls {
        if moments.chosen.contains(&moment) {
            let opener = if moments.servers.contains(&moment) { Opener::Server } else { Opener::Store };
            trial.judge_moment(moment, opener).await?;
        }
        if until == Until::FirstWrong && trial.verdict.wrong > 0 {
            break;
        }
        if let Some(call) = recording.calls.get(moment) {
            trial.disk.apply(call)?;
            recording.answer(call)?.map_or(Ok(()), |line| trial.promises.take(line))?;
        }
    }
    Ok(Verdict { answers: trial.promises.answers(), ..trial.verdict })
}

/// When the power is lost, as the number of the call that is not made any more.
struct Moments {
    chosen: BTreeSet<usize>,
    /// Those at which a server is started.
    servers: BTreeSet<usize>,
    syncs: usize,
}

impl Moments {
    fn choose(
        recording: &Recording,
        selection: &Selection,
        seed: u64,
        without: Option<Unsynced>,
    ) -> Result<Self> {
        let mut disk = Disk::new(&recording.root(), without);
        let mut boundaries = BTreeSet::from([recording.calls.len()]);
        let mut between = BTreeSet::new();
        // The first boundary after a sync that is left out: what was answered meanwhile may not be durable.
        let mut exposed = BTreeSet::new();
        let mut is_exposed = false;
        let mut syncs = 0;
        for (number, call) in recording.calls.iter().enumerate() {
            let effect = disk.apply(call)?;
            match effect {
                Effect::Nothing => {}
                Effect::Changed => drop(between.insert(number + 1)),
                Effect::Synced | Effect::LeftOut => {
                    syncs += 1;
                    boundaries.extend([number, number + 1]);
                    if is_exposed {
                        exposed.insert(number);
                    }
                    is_exposed = effect == Effect::LeftOut;
                }
            }
        }
        if is_exposed {
            exposed.insert(recording.calls.len());
        }
        let mut chance = StdRng::seed_from_u64(seed);
        let most = selection.boundaries.unwrap_or(boundaries.len());
        let mut chosen = exposed.into_iter().sample(&mut chance, most);
        chosen.extend(between.difference(&boundaries).copied().sample(&mut chance, selection.between));
        chosen.extend(boundaries.into_iter().sample(&mut chance, most));
        let chosen: BTreeSet<usize> = chosen.into_iter().collect();
        let servers = chosen.iter().copied().sample(&mut chance, selection.servers).into_iter().collect();
        Ok(Self { chosen, servers, syncs })
    }
}

/// A recording that is gone through.
struct Trial {
    bench: Bench,
    disk: Disk,
    promises: Promises,
    verdict: Verdict,
    parts: usize,
    seed: u64,
}

impl Trial {
    /// Judges states that the disk may have at this moment.
    async fn judge_moment(&mut self, moment: usize, opener: Opener) -> Result<()> {
        self.verdict.moments += 1;
        let part = |part: usize| {
            let chance = StdRng::seed_from_u64(self.seed ^ ((moment as u64) << 16 | part as u64));
            (format!("part {part}"), Survival::Part(Box::new(chance)))
        };
        let whole =
            [("nothing".to_owned(), Survival::Nothing), ("everything".to_owned(), Survival::Everything)];
        let states: Vec<_> = whole.into_iter().chain((0..self.parts).map(part)).collect();
        let mut judged = Vec::new();
        for (name, mut survival) in states {
            let tree = self.disk.after_power_loss(&mut survival);
            if judged.contains(&tree) {
                continue;
            }
            self.verdict.states += 1;
            let wrong = self.bench.judge(&tree, &self.promises, opener).await?;
            self.verdict.wrong += usize::from(!wrong.is_empty());
            if !wrong.is_empty() && self.verdict.shown.len() < SHOWN {
                let more =
                    if wrong.len() > 1 { format!(" (and {} more)", wrong.len() - 1) } else { String::new() };
                let wrong = &wrong[0];
                self.verdict.shown.push(format!("before call {moment}, {name} survives: {wrong}{more}"));
            }
            judged.push(tree);
        }
        Ok(())
    }
}
