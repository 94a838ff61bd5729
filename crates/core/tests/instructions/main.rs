//! How many instructions a decision, a renewal and a judgement take, so that a loss of speed shows the day it happens,
//! on a busy machine too. Valgrind counts them in this program, started again for one work and a number of rounds. Two
//! such runs are compared, so that what comes before the first round does not count.
//!
//! A count that grew for a good reason is written down here, with the change that made it grow. One that shrank by a
//! quarter is written down as well, and is the new measure.

#[path = "../common/mod.rs"]
mod common;

use std::{env, process::Command as Program, sync::Arc};

use common::{TENANT, World, holder, key, lease, name};
use solehold_core::{
    call::Call,
    command::{Acquire, Command},
    decide_all,
    fence::{Fence, Mark, Rules, Tick, Verdict},
    key::{LeaseId, SessionId},
    ledger::Ledger,
    time::{Moment, Revision, Token},
};

/// A work, and how many instructions one round of it took when it was last looked at.
struct Work {
    name: &'static str,
    instructions: u64,
    run: fn(rounds: u64),
}

const WORKS: [Work; 4] = [
    Work { name: "cycle", instructions: 47_400, run: |rounds| cycles(1, rounds) },
    Work { name: "cycle among many", instructions: 62_000, run: |rounds| cycles(10_000, rounds) },
    Work { name: "renewal", instructions: 10_400, run: renewals },
    Work { name: "judgement", instructions: 698, run: judgements },
];

/// What a round may take more or less than when it was last looked at, of 100. Another compiler takes a few more or
/// less for the same code.
const TOLERANCE: u64 = 25;
const ROUNDS: u64 = 1_000;

/// Names the work, in the program under valgrind.
const WORK: &str = "SOLEHOLD_COUNTED_WORK";
/// How many rounds of it.
const TIMES: &str = "SOLEHOLD_COUNTED_ROUNDS";

#[test]
fn decisions_take_as_many_instructions_as_when_last_looked_at() {
    if let Ok(name) = env::var(WORK) {
        let rounds = env::var(TIMES).expect("a number of rounds").parse().expect("a number");
        let work = WORKS.iter().find(|work| work.name == name).expect("a work");
        return (work.run)(rounds);
    }
    let mut changed = Vec::new();
    for Work { name, instructions, .. } in WORKS {
        let took = (counted(name, 2 * ROUNDS) - counted(name, ROUNDS)) / ROUNDS;
        println!("{name}: {took} instructions a round");
        if took.abs_diff(instructions) * 100 > instructions * TOLERANCE {
            changed.push(format!("{name}: {took} instructions a round, {instructions} when last looked at"));
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("; "));
}

/// The instructions of this program from its start to its end.
fn counted(work: &str, rounds: u64) -> u64 {
    let this = env::current_exe().expect("the path of this program");
    let output = Program::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(this)
        .arg("--test-threads=1")
        .env(WORK, work)
        .env(TIMES, rounds.to_string())
        .output()
        .expect("valgrind, which `make deps` installs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
    // As in "==12== I   refs:      1,234,567".
    let line =
        said.lines().find(|line| line.contains("refs:")).unwrap_or_else(|| panic!("no count in {said}"));
    let count = line.rsplit("refs:").next().expect("a count").trim().replace(',', "");
    count.parse().unwrap_or_else(|_| panic!("no count in {line}"))
}

/// The rows of a store that keeps all of them in memory.
struct Rows {
    all: Arc<Ledger>,
    moment: Moment,
}

impl From<World> for Rows {
    fn from(world: World) -> Self {
        let mut state = world.state;
        state.take_dirty();
        Self { all: Arc::new(state), moment: world.moment }
    }
}

impl Rows {
    /// One batch: decided in a layer over the rows, then absorbed.
    fn run(&mut self, command: Command) {
        let mut layer = Ledger::over(self.all.clone());
        let decided =
            decide_all(&mut layer, [&Call::from(command)], self.moment).expect("all rows are there");
        assert!(decided.outcomes[0].is_ok(), "{:?}", decided.outcomes);
        let (changes, dirty) = layer.into_changes();
        Arc::make_mut(&mut self.all).absorb(&changes, &dirty);
        self.moment = decided.moment;
    }
}

/// A resource is acquired by a named request and released, while another holder has `others`.
fn cycles(others: usize, rounds: u64) {
    let mut world = World::new();
    for n in 0..others {
        world.acquire("ann", &format!("other-{n:06}"));
    }
    let asked = world.asks("bob", "scene-1");
    let ids: Vec<_> = (0..rounds).map(|_| world.fresh()).collect();
    let mut rows = Rows::from(world);
    for id in ids.into_iter().map(LeaseId) {
        rows.run(Command::Acquire(Acquire {
            lease: id,
            request: Some(name(&id.to_string())),
            ..asked.clone()
        }));
        rows.run(Command::Release { claim: lease(id), state: None });
    }
}

/// A session of 100 leases is renewed.
fn renewals(rounds: u64) {
    let mut world = World::new();
    let session = world.opens("ann");
    for n in 0..100 {
        world.acquire_in(session, "ann", &format!("scene-{n}"));
    }
    let mut rows = Rows::from(world);
    let heartbeat = |session: SessionId| {
        let holder = Some(holder("ann").name);
        Command::Heartbeat { tenant: name(TENANT), session, holder, metrics: None }
    };
    for _ in 0..rounds {
        rows.moment.now = rows.moment.now.plus_ms(1_000);
        rows.run(heartbeat(session));
    }
}

/// Messages are judged, one of them stale.
fn judgements(rounds: u64) {
    let keys: Vec<_> = (0..100).map(|n| key(&format!("scene-{n}"))).collect();
    let mut fence = Fence::new(Rules::default());
    fence.snapshot_begins(1);
    keys.iter().for_each(|key| fence.granted(key, Mark { token: Token(1_000), session: None }));
    fence.snapshot_ends(Revision(1_000), Tick(0));
    let mut admitted = 0;
    for n in 0..rounds {
        let token = Token(1_000 - u64::from(n == 7));
        let verdict = fence.judge(&keys[n as usize % keys.len()], token, None, Tick(n));
        admitted += u64::from(verdict == Some(Verdict::Admit));
    }
    assert_eq!(admitted, rounds - 1);
}
