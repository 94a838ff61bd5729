//! Two ways through the states of a scope.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
};

use crate::{action::Action, invariants::Invariant, scope::Scope, variant::Variant, world::World};

/// What a complete search has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    pub states: u64,
    pub steps: u64,
    /// The longest path from the first state.
    pub depth: usize,
}

/// A violation, and the way to it.
#[derive(Clone)]
pub struct Violation {
    pub invariant: Invariant,
    pub trace: Vec<Action>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "violated after {} steps: {}", self.trace.len(), self.invariant.name)?;
        self.trace.iter().try_for_each(|action| write!(f, "\n    {action}"))
    }
}

/// Visits every state of the scope, depth first: only the fingerprints of states are kept, so that there can be
/// hundreds of millions. Every action uses up a bound or a message, so there are no circles.
pub fn exhaust(
    scope: &Scope,
    variant: Variant,
    invariants: &[Invariant],
) -> Result<Coverage, Box<Violation>> {
    let first = World::new(scope, variant);
    let mut seen = HashSet::from([first.fingerprint()]);
    let mut coverage = Coverage { states: 1, ..Coverage::default() };
    let mut trace: Vec<Action> = Vec::new();
    let actions = first.actions(scope, variant);
    let mut stack = vec![(first, actions)];
    while let Some((world, actions)) = stack.last_mut() {
        let Some(action) = actions.pop() else {
            stack.pop();
            trace.pop();
            continue;
        };
        coverage.steps += 1;
        let next = world.after(&action, scope, variant);
        if !seen.insert(next.fingerprint()) {
            continue;
        }
        trace.push(action);
        if let Some(invariant) = violated(invariants, &next) {
            return Err(Box::new(Violation { invariant, trace }));
        }
        coverage.states += 1;
        coverage.depth = coverage.depth.max(trace.len());
        let actions = next.actions(scope, variant);
        stack.push((next, actions));
    }
    Ok(coverage)
}

/// The first that does not hold.
fn violated(invariants: &[Invariant], world: &World) -> Option<Invariant> {
    invariants.iter().copied().find(|invariant| !(invariant.holds)(world))
}

/// The shortest way to a violation, breadth first. None if there is none.
pub fn shortest(scope: &Scope, variant: Variant, invariant: Invariant) -> Option<Violation> {
    let first = World::new(scope, variant);
    let start = first.fingerprint();
    // How each state was reached first.
    let mut seen: HashMap<u64, Option<(u64, Action)>> = HashMap::from([(start, None)]);
    let mut queue = VecDeque::from([(start, first)]);
    while let Some((from, world)) = queue.pop_front() {
        for action in world.actions(scope, variant) {
            let next = world.after(&action, scope, variant);
            let print = next.fingerprint();
            if seen.contains_key(&print) {
                continue;
            }
            seen.insert(print, Some((from, action)));
            if !(invariant.holds)(&next) {
                return Some(Violation { invariant, trace: way_to(print, &seen) });
            }
            queue.push_back((print, next));
        }
    }
    None
}

fn way_to(state: u64, seen: &HashMap<u64, Option<(u64, Action)>>) -> Vec<Action> {
    let before = |step: &(u64, Action)| seen.get(&step.0).copied().flatten();
    let mut trace: Vec<Action> = std::iter::successors(seen.get(&state).copied().flatten(), before)
        .map(|(_, action)| action)
        .collect();
    trace.reverse();
    trace
}
