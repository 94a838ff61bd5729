//! One world under one fault or two, from its start to its judgement.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use solehold_clock::BootTime;

use crate::{
    fault::Fault,
    history::{Action, History, Outcome},
    judge::{self, Violation},
    world::{Setup, World},
};

/// What a section has shown.
#[derive(Debug)]
pub struct Section {
    pub name: String,
    /// How often the fault began.
    pub strikes: usize,
    pub figures: Figures,
    pub violations: Vec<Violation>,
}

/// The figures of a history.
#[derive(Debug, Default, PartialEq)]
pub struct Figures {
    pub operations: usize,
    pub unknown: usize,
    pub refused: usize,
    pub lost: usize,
    /// Writes under an older token after the first under a newer one.
    pub overlap_fenced: Duration,
    pub overlap_unfenced: Duration,
    /// From the last write of a holder that lost its lease to the first of the next one, in order of length.
    pub takeovers: Vec<Duration>,
    /// The longest time in which a resource was not written.
    pub silence: Duration,
}

/// Runs a world under these faults, again and again until `lasts` is over, and judges what happened.
pub async fn run(setup: Setup, faults: &[Fault], lasts: Duration) -> Result<Section> {
    let name = faults.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(" + ");
    let setup = faults.iter().fold(setup, |setup, fault| fault.prepare(setup));
    let mut world = World::start(setup).await.with_context(|| name.clone())?;
    let began = BootTime::now();
    let mut strikes = 0;
    while strikes == 0
        || (BootTime::now().since(began) < lasts && !faults.iter().any(|fault| fault.is_final()))
    {
        strike(&mut world, faults, strikes).await.with_context(|| name.clone())?;
        strikes += 1;
    }
    let history = world.finish().await.with_context(|| name.clone())?;
    let figures = Figures::of(&history);
    let mut violations = judge::judge(&history);
    if faults.iter().all(|fault| fault.keeps_leases()) {
        violations.extend(judge::keeps_leases(figures.takeovers.len()));
    }
    Ok(Section { name, strikes, figures, violations })
}

/// All begin, last for longer than any lease, and are healed; then everything has to be written again. What needs most
/// begins first and is healed last: a server cannot start while its database is away.
async fn strike(world: &mut World, faults: &[Fault], turn: usize) -> Result<()> {
    let mut faults = faults.to_vec();
    faults.sort_by_key(|fault| Reverse(fault.part()));
    let mut wounds = Vec::new();
    for fault in faults {
        wounds.push((fault, fault.begin(world, turn).await?));
    }
    world.lasts(world.setup.ttl * 3 / 2).await;
    for (fault, wound) in &wounds {
        fault.works(world, wound).await?;
    }
    for (fault, wound) in wounds.into_iter().rev() {
        fault.heal(world, wound).await?;
    }
    world.is_written().await
}

impl Figures {
    pub fn of(history: &History) -> Self {
        let mut takeovers = takeovers(history);
        takeovers.sort();
        let count = |wanted: Outcome| {
            history.operations.iter().filter(|operation| operation.outcome() == wanted).count()
        };
        Self {
            operations: history.operations.len(),
            unknown: count(Outcome::Unknown),
            refused: count(Outcome::Refused),
            lost: judge::lost(history),
            overlap_fenced: judge::overlap(&history.taken),
            overlap_unfenced: judge::overlap(&history.arrived),
            takeovers,
            silence: silence(history),
        }
    }

    /// The time within which this part of the takeovers was over, if there were any.
    pub fn takeover(&self, part: f64) -> Option<Duration> {
        let last = self.takeovers.len().checked_sub(1)?;
        self.takeovers.get((last as f64 * part).ceil() as usize).copied()
    }
}

/// Changes of the token without a release of the former one.
fn takeovers(history: &History) -> Vec<Duration> {
    let released: Vec<(&str, u64)> = history
        .operations
        .iter()
        .filter_map(|operation| match &operation.action {
            Action::Release { resource, token } => Some((resource.as_str(), *token)),
            _ => None,
        })
        .collect();
    let mut last: BTreeMap<&str, (u64, BootTime)> = BTreeMap::new();
    let mut takeovers = Vec::new();
    for taken in &history.taken {
        let resource = taken.write.resource.as_str();
        if let Some((token, at)) = last.insert(resource, (taken.write.token, taken.at))
            && token < taken.write.token
            && !released.contains(&(resource, token))
        {
            takeovers.push(taken.at.since(at));
        }
    }
    takeovers
}

fn silence(history: &History) -> Duration {
    let mut last: BTreeMap<&str, BootTime> = BTreeMap::new();
    let gaps = history.taken.iter().filter_map(|taken| {
        last.insert(&taken.write.resource, taken.at).map(|before| taken.at.since(before))
    });
    gaps.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Operation, SinkWrite, Write};

    fn taken(ms: u64, token: u64) -> SinkWrite {
        let write = Write { resource: "a".to_owned(), token, id: ms.to_string() };
        SinkWrite { at: BootTime::from_ms(ms), write }
    }

    #[test]
    fn a_takeover_is_a_change_of_holder_that_was_not_released() {
        let action = Action::Release { resource: "a".to_owned(), token: 5 };
        let release = Operation { by: "x".to_owned(), action, start: BootTime::from_ms(40), end: None };
        let history = History {
            operations: vec![release],
            taken: vec![taken(10, 2), taken(20, 2), taken(35, 5), taken(80, 7), taken(90, 9)],
            ..History::default()
        };
        let figures = Figures::of(&history);
        assert_eq!(figures.takeovers, [Duration::from_millis(10), Duration::from_millis(15)]);
        assert_eq!(figures.takeover(0.5), Some(Duration::from_millis(15)));
        assert_eq!((figures.silence, figures.unknown), (Duration::from_millis(45), 1));
        assert_eq!(Figures::default().takeover(0.5), None);
    }
}
