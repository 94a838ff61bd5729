//! Whatever happens, in whatever order: what is held is worked on soon, and nothing is released that is worked on.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// As many rounds as the longest way to work takes: a start, its startup time, the end, the pause and another start.
const ROUNDS_MAX: usize = 100;

/// Something that happens; the number says to what.
#[derive(Debug, Clone)]
enum Step {
    Want(BTreeSet<usize>),
    Assign(BTreeSet<usize>),
    Answer(usize, bool),
    Release(usize),
    Connect(usize),
    Ready(usize),
    Drained(usize),
    Crash(usize),
    TooLate(usize),
    Gone(usize),
    Lose(usize),
    WinBack(usize),
    Ask(usize, u64),
    CallOff(usize),
    Find(usize),
    Renew(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let some = || prop::collection::btree_set(0..KEYS.len(), 0..=KEYS.len());
    let n = || 0..8_usize;
    prop_oneof![
        3 => some().prop_map(Step::Want),
        2 => some().prop_map(Step::Assign),
        6 => (n(), prop::bool::weighted(0.8)).prop_map(|(n, is_won)| Step::Answer(n, is_won)),
        3 => n().prop_map(Step::Release),
        3 => n().prop_map(Step::Connect),
        3 => n().prop_map(Step::Ready),
        3 => n().prop_map(Step::Drained),
        2 => n().prop_map(Step::Crash),
        1 => n().prop_map(Step::TooLate),
        3 => n().prop_map(Step::Gone),
        1 => n().prop_map(Step::Lose),
        1 => n().prop_map(Step::WinBack),
        2 => (n(), 0..30_u64).prop_map(|(n, within)| Step::Ask(n, within)),
        1 => n().prop_map(Step::CallOff),
        1 => n().prop_map(Step::Find),
        2 => (0..40_u64).prop_map(Step::Renew),
        4 => (0..20_u64).prop_map(Step::Pass),
    ]
}

/// A process, as it is by what it was told.
#[derive(Debug, Default)]
struct Process {
    run: u32,
    /// What it works on, and under which token.
    works_on: BTreeMap<String, u64>,
    /// What it was asked to finish, by the id of the question.
    asked: BTreeMap<String, String>,
    is_stopping: bool,
    is_connected: bool,
}

struct Scene {
    machine: Machine,
    now: u64,
    speaks: bool,
    tokens: u64,
    asked: Vec<ResourceName>,
    releasing: Vec<ResourceName>,
    processes: BTreeMap<WorkerId, Process>,
}

fn nth<T: Clone>(all: impl IntoIterator<Item = T>, n: usize) -> Option<T> {
    let all: Vec<T> = all.into_iter().collect();
    (!all.is_empty()).then(|| all[n % all.len()].clone())
}

impl Scene {
    fn new(rules: Rules, speaks: bool) -> Self {
        let machine = Machine::new(rules, at(60));
        let asked = Vec::new();
        let releasing = Vec::new();
        let processes = BTreeMap::new();
        Self { machine, now: 0, speaks, tokens: 0, asked, releasing, processes }
    }

    fn tell(&mut self, event: Input) {
        for action in self.machine.handle(at(self.now), UNIT, event) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Acquire(resource) | Action::TakeOver(resource) | Action::Adopt(resource) => {
                self.asked.push(resource);
            }
            Action::Release { resource, .. } => {
                let name = resource.to_string();
                let works = self.processes.values().find(|process| process.works_on.contains_key(&name));
                assert!(works.is_none(), "{name} is released while {works:?} works on it");
                self.releasing.push(resource);
            }
            Action::Start { worker, run, assignments } => {
                let works_on = assignments.into_iter().map(|a| (a.resource, a.token)).collect();
                let started = Process { run, works_on, ..Process::default() };
                assert!(self.processes.insert(worker, started).is_none(), "{worker} runs twice");
            }
            Action::Tell { worker, message } => {
                let Some(process) = self.processes.get_mut(&worker) else { return };
                match message {
                    ToWorker::Assign(a) => drop(process.works_on.insert(a.resource, a.token)),
                    ToWorker::Revoke { id, resource, .. } => drop(process.asked.insert(id, resource)),
                    ToWorker::Prepare { .. } | ToWorker::Config { .. } | ToWorker::Error { .. } => {}
                }
            }
            Action::Stop { worker, .. } => {
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.is_stopping = true;
                }
            }
            Action::WriteState { .. } | Action::Report { .. } | Action::Note(_) | Action::Finish => {}
        }
    }

    fn of_worker(&mut self, id: WorkerId, news: News) {
        let Some(run) = self.processes.get(&id).map(|process| process.run) else { return };
        self.tell(Input::Worker { id, run, news });
    }

    fn ends(&mut self, id: WorkerId, end: JobEnd) {
        let Some(process) = self.processes.remove(&id) else { return };
        self.tell(Input::Worker { id, run: process.run, news: News::Ended(end) });
    }

    fn connect(&mut self, id: WorkerId) {
        let process = self.processes.get_mut(&id).filter(|process| self.speaks && !process.is_stopping);
        if let Some(process) = process {
            process.is_connected = true;
            self.of_worker(id, News::Connected);
        }
    }

    fn finish(&mut self, id: WorkerId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some((id_asked, resource)) = process.asked.pop_first() else { return };
        process.works_on.remove(&resource);
        self.of_worker(id, News::Said(FromWorker::Drained { id: id_asked, state: None }));
    }

    fn answer(&mut self, resource: ResourceName, is_won: bool) {
        self.asked.retain(|asked| *asked != resource);
        if !is_won {
            return self.tell(Input::NotGranted { resource, retry_after: None });
        }
        self.tokens += 1;
        let granted = Granted {
            token: self.tokens,
            lease_id: Uuid::from_u128(self.tokens.into()),
            state: None,
            sequence: None,
            config: None,
            trusted_until: at(self.now + 60),
        };
        self.tell(Input::Granted { resource, granted });
    }

    fn held(&self) -> Vec<ResourceName> {
        self.machine.those(|slot| matches!(slot.lease, LeaseState::Held(_)))
    }

    fn renew(&mut self, by: u64) {
        let until = at(self.now + by);
        let leases = self.held().into_iter().map(|resource| (resource, until)).collect();
        self.tell(Input::Renewed { session: until, leases });
    }

    fn apply(&mut self, step: Step) {
        let wanted =
            |keys: BTreeSet<usize>| keys.into_iter().map(|n| (camera(KEYS[n]), Want::Free)).collect();
        let ids: Vec<WorkerId> = self.processes.keys().copied().collect();
        match step {
            Step::Want(keys) => self.tell(Input::Wanted(wanted(keys))),
            Step::Assign(keys) => {
                let keep = BTreeSet::new();
                let release = BTreeSet::new();
                self.tell(Input::Assigned { acquire: wanted(keys), keep, release });
            }
            Step::Answer(n, is_won) => {
                nth(self.asked.clone(), n).into_iter().for_each(|asked| self.answer(asked, is_won));
            }
            Step::Release(n) => {
                if let Some(resource) = nth(self.releasing.clone(), n) {
                    self.releasing.retain(|releasing| *releasing != resource);
                    self.tell(Input::Released(resource));
                }
            }
            Step::Connect(n) => nth(ids, n).into_iter().for_each(|id| self.connect(id)),
            Step::Ready(n) => {
                if let Some(id) = nth(ids, n).filter(|id| self.processes[id].is_connected) {
                    self.of_worker(id, News::Said(FromWorker::Ready {}));
                }
            }
            Step::Drained(n) => nth(ids, n).into_iter().for_each(|id| self.finish(id)),
            Step::Crash(n) => nth(ids, n).into_iter().for_each(|id| self.ends(id, JobEnd::Exited(1))),
            Step::TooLate(n) => nth(ids, n).into_iter().for_each(|id| self.ends(id, JobEnd::TooLate)),
            Step::Gone(n) => {
                let stopping = ids.into_iter().filter(|id| self.processes[id].is_stopping);
                nth(stopping, n).into_iter().for_each(|id| self.ends(id, JobEnd::Lost(None)));
            }
            Step::Lose(n) => {
                if let Some(resource) = nth(self.held(), n) {
                    self.tell(Input::Lost { resource, why: "lost".into(), until: at(self.now + 3) });
                }
            }
            Step::WinBack(n) => {
                if let Some(resource) = nth(self.held(), n) {
                    self.tokens += 1;
                    let token = self.tokens;
                    let lease_id = Uuid::from_u128(self.tokens.into());
                    self.tell(Input::WonBack { resource, token, lease_id });
                }
            }
            Step::Ask(n, within) => {
                let until = at(self.now + within);
                if let Some(resource) = nth(self.held(), n) {
                    self.tell(Input::Asked { resource, id: None, why: "moved".into(), until });
                }
            }
            Step::CallOff(n) => self.tell(Input::CalledOff(camera(KEYS[n % KEYS.len()]))),
            Step::Find(n) => {
                let resource = camera(KEYS[n % KEYS.len()]);
                if !self.machine.is_busy_with(&resource) {
                    self.tell(Input::Found(resource));
                }
            }
            Step::Renew(by) => self.renew(by),
            Step::Pass(by) => {
                self.now += by;
                self.tell(Input::Tick);
            }
        }
    }

    /// One round in which everyone does what is asked for, and time passes until something is due.
    fn round(&mut self) {
        self.renew(60);
        for resource in std::mem::take(&mut self.releasing) {
            self.tell(Input::Released(resource));
        }
        for resource in self.asked.clone() {
            self.answer(resource, true);
        }
        let ids: Vec<WorkerId> = self.processes.keys().copied().collect();
        for id in ids {
            self.finish(id);
            if self.processes.get(&id).is_some_and(|process| process.is_stopping) {
                self.ends(id, JobEnd::Lost(None));
            } else if self.processes.get(&id).is_some_and(|process| !process.is_connected) {
                self.connect(id);
            }
            if self.processes.get(&id).is_some_and(|process| process.is_connected) {
                self.of_worker(id, News::Said(FromWorker::Ready {}));
            }
        }
        let due_ms = self.machine.due().map_or(0, |due| due.since(at(0)).as_millis() as u64);
        self.now = (self.now + 1).max((due_ms / 1_000).min(self.now + 30));
        self.tell(Input::Tick);
    }

    fn idle(&self) -> Vec<String> {
        let is_worked_on = |view: &ResourceView| {
            let process = view.worker.and_then(|id| self.processes.get(&id));
            process.is_some_and(|process| process.works_on.get(&view.resource) == view.token.as_ref())
        };
        let views = self.machine.resources().into_iter();
        views.filter(|view| view.lease == "held" && !is_worked_on(view)).map(|view| view.resource).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_lease_that_is_held_is_worked_on_soon_and_none_is_released_before(
        steps in prop::collection::vec(step(), 0..80),
        (workers, each) in (1..4_usize, 1..4_usize),
        protocol in prop_oneof![Just(Protocol::Auto), Just(Protocol::None), Just(Protocol::Required)],
        (speaks, hands_over) in (any::<bool>(), any::<bool>()),
    ) {
        let mut rules = Rules { hands_over, ..rules(workers, each) };
        rules.bounds.protocol = protocol;
        // A plain process where all must speak fails for ever.
        let speaks = speaks || protocol == Protocol::Required;
        let mut scene = Scene::new(rules, speaks && protocol != Protocol::None);
        for step in steps {
            scene.apply(step);
        }
        let mut rounds = 0;
        while rounds < 3 || !scene.idle().is_empty() {
            prop_assert!(rounds < ROUNDS_MAX, "held, and worked on by nobody: {:?}", scene.idle());
            scene.round();
            rounds += 1;
        }
    }
}
