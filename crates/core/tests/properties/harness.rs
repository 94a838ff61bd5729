//! Plays a script and asks every invariant after every command.

use std::sync::Arc;

use solehold_core::{
    Decision, apply,
    call::{Actor, Call},
    command::{Command, Footprint},
    decide, forget,
    key::RequestKey,
    ledger::{FoundLate, Ledger},
    limits, resume,
    time::{Moment, Revision, StoreTime},
};

use crate::{
    common::{World, name},
    invariants,
    load::{Depth, Loaded, only_rows},
    memory::{Memory, actor, holder, resource},
    promises::Promises,
    script::{Act, Ask, Wait},
    step::{Invariant, Step},
};

pub struct Harness {
    world: World,
    memory: Memory,
    promises: Promises,
    invariants: Vec<Box<dyn Invariant>>,
}

impl Default for Harness {
    fn default() -> Self {
        Self {
            world: World::new(),
            memory: Memory::default(),
            promises: Promises::default(),
            invariants: invariants::all(),
        }
    }
}

impl Harness {
    /// Plays an act; what was decided in it, in order.
    pub fn play(&mut self, act: &Act) -> Vec<Decision> {
        match act {
            Act::Wait(wait) => pass(&mut self.world, wait),
            Act::Batch(asks) => return self.batch(asks),
            Act::Restart { gap_ms } => self.restart(*gap_ms),
            Act::Forget => {
                forget(&mut self.world.state, self.world.moment.now);
                self.world.state.take_dirty();
            }
            Act::SetBack => self.set_back(),
            Act::By(who) => self.world.by = actor(*who),
            Act::CancelInvented { what, who, count } => {
                return self
                    .decide_together(&(0..*count).map(|n| cancel(*what, *who, n)).collect::<Vec<_>>());
            }
        }
        Vec::new()
    }

    fn batch(&mut self, asks: &[Ask]) -> Vec<Decision> {
        let commands: Vec<_> = asks.iter().map(|ask| self.memory.command(&mut self.world, ask)).collect();
        self.decide_together(&commands)
    }

    /// Decides a batch as engines do, on what its footprints name and in a layer over the whole state; both must come
    /// to the same as on the whole state.
    fn decide_together(&mut self, commands: &[Command]) -> Vec<Decision> {
        let mut footprint = Footprint::default();
        commands.iter().for_each(|command| command.footprint(&mut footprint));
        let before = self.world.state.clone();
        let moment = self.world.moment;
        let decisions: Vec<_> = commands.iter().map(|command| self.step(command)).collect();
        let (loaded, mut part, decided) = on_a_part(&before, &footprint, commands, &self.world.by, moment);
        assert_eq!(decided, decisions, "the batch of {commands:?}");
        let dirty = part.take_dirty();
        loaded.assert_covers(&dirty, &before);
        let (layer, decided) = in_a_layer(&before, commands, &self.world.by, moment);
        assert_eq!(decided, decisions, "the batch of {commands:?}, in a layer");
        let (changes, changed) = layer.into_changes();
        assert_eq!(changed, dirty, "the batch of {commands:?}");
        for part in [part, changes] {
            let mut absorbed = before.clone();
            absorbed.absorb(&part, &dirty);
            assert_eq!(absorbed, self.world.state, "the batch of {commands:?}, absorbed");
        }
        decisions
    }

    fn step(&mut self, command: &Command) -> Decision {
        let before = self.world.state.clone();
        let at = self.world.moment;
        let promised = self.promises.clone();
        let decision = self.world.run(command);
        self.world.state.take_dirty();
        self.promises.learn(command, &decision.changes, decision.outcome.as_ref().map_err(|_| ()), at.now);
        let step = Step {
            command,
            by: &self.world.by,
            at,
            before: &before,
            after: &self.world.state,
            decision: &decision,
            promised: &promised,
            promises: &self.promises,
        };
        self.invariants.iter_mut().for_each(|invariant| invariant.check(&step));
        self.memory.learn(&step);
        decision
    }

    fn restart(&mut self, gap_ms: u64) {
        let rows = only_rows(&self.world.state);
        assert_eq!(rows, self.world.state, "the rows are all there is");
        let stopped_at = self.world.moment.now;
        let grace_ms = limits::RESTART_GRACE_MS;
        self.world.state = rows;
        self.world.wait(gap_ms);
        resume(&mut self.world.state, stopped_at, gap_ms, self.world.moment.now, grace_ms);
        self.world.state.take_dirty();
        self.promises.restart(stopped_at, gap_ms, self.world.moment.now, grace_ms);
    }

    /// The store may have lost commits: revisions jump, and nothing is decided, renewals included, before the latest
    /// promise that anyone was given is over.
    fn set_back(&mut self) {
        let now = self.world.moment.now;
        let revision = Revision(self.world.moment.revision.0 + (1 << 32));
        self.promises.learn(&Command::RaiseRevision { above: revision }, &[], Err(()), now);
        self.world.moment = Moment { now: self.promises.latest().max(now), revision };
    }
}

/// Cancels a request that nobody made.
fn cancel(what: u8, who: u8, n: u16) -> Command {
    let request = name(&format!("invented-{n}"));
    Command::CancelRequest(RequestKey { resource: resource(what), holder: holder(who).name, request })
}

/// Decides a batch in a layer over the whole state, which lacks nothing.
fn in_a_layer(full: &Ledger, commands: &[Command], by: &Actor, at: Moment) -> (Ledger, Vec<Decision>) {
    let mut layer = Ledger::over(Arc::new(full.clone()));
    let mut moment = at;
    let mut decisions = Vec::new();
    for command in commands {
        let call = Call::new(command.clone(), by.clone());
        let decision = decide(&layer, &call, moment).expect("nothing is found late");
        decision.changes.iter().for_each(|change| apply(&mut layer, change));
        moment = decision.moment;
        decisions.push(decision);
    }
    (layer, decisions)
}

/// Decides a batch on what its footprint names; more of a line is loaded when it turns out to be needed.
pub fn on_a_part(
    full: &Ledger,
    footprint: &Footprint,
    commands: &[Command],
    by: &Actor,
    at: Moment,
) -> (Loaded, Ledger, Vec<Decision>) {
    'depth: for depth in (0..).map(|n| Depth(1 << n)) {
        let loaded = Loaded::of(full, footprint.clone(), depth);
        let mut part = loaded.part(full);
        let mut moment = at;
        let mut decisions = Vec::new();
        for command in commands {
            let call = Call::new(command.clone(), by.clone());
            match decide(&part, &call, moment) {
                Ok(decision) => {
                    decision.changes.iter().for_each(|change| apply(&mut part, change));
                    moment = decision.moment;
                    decisions.push(decision);
                }
                Err(FoundLate::Session(id)) => panic!("session {id} is found late"),
                Err(late) => {
                    assert!(depth.0 <= full.waiters().count(), "{late} though all of it is loaded");
                    continue 'depth;
                }
            }
        }
        return (loaded, part, decisions);
    }
    unreachable!("lines are finite")
}

/// Lets time pass.
pub fn pass(world: &mut World, wait: &Wait) {
    let now = world.moment.now;
    let to = match wait {
        Wait::Ms(ms) => now.plus_ms(*ms),
        Wait::Deadline { nth, beside } => {
            let ahead = deadlines(&world.state, now);
            match ahead.len() {
                0 => now,
                len => StoreTime(ahead[usize::from(*nth) % len].0.saturating_add_signed((*beside).into())),
            }
        }
        Wait::End { before_ms } => StoreTime(u64::MAX - before_ms),
    };
    world.moment.now = now.max(to);
}

/// Every time ahead at which something runs out.
fn deadlines(state: &Ledger, now: StoreTime) -> Vec<StoreTime> {
    let mut all: Vec<_> = state.sessions().map(|s| s.deadline).collect();
    for resource in state.resources() {
        let lease = resource.lease.as_ref().map(|l| state.deadline_of(l).expect("its session is there"));
        all.extend(lease);
        all.extend(lease.map(|deadline| deadline.plus_ms(resource.lock_delay_ms())));
        all.extend(resource.pending.as_ref().map(|p| p.deadline));
        all.extend(resource.held_back_until);
    }
    all.extend(state.waiters().map(|w| w.deadline));
    all.retain(|deadline| *deadline > now);
    all.sort();
    all.dedup();
    all
}

/// Decides a step once more, on `state`.
pub fn decide_and_apply(state: &mut Ledger, step: &Step<'_>) -> Decision {
    let call = Call::new(step.command.clone(), step.by.clone());
    let decision = decide(state, &call, step.at).expect("nothing is found late");
    decision.changes.iter().for_each(|change| apply(state, change));
    decision
}
