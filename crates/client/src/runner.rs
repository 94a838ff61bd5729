//! A program that is given work by the server: it registers as a runner, holds what is placed on it, and hands it over
//! when the plan changes. What the agent does for programs that know nothing of leases, this does inside one that does.
//!
//! ```text
//!   the server's plan ──> acquire, or take over ──> work(assignment) ──> handed over, or released
//!        ^                                                                      |
//!        └──────────────── long poll, asked anew when something ended ──────────┘
//! ```

use std::{
    collections::BTreeMap,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use solehold_api::runners::RegisterRunner;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use solehold_clock::Backoff;

use crate::{
    assignments::{Assigned, AssignmentError, Want},
    authority::ResourceName,
    http::Http,
    renewer::Lost,
    session::{AcquireError, ClientSession, Guard, OpenError, SessionConfig},
};

/// Between questions to a server that does not answer, and after something was not granted.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(5) };

#[derive(Debug, Clone)]
pub struct RunnerConfig {
    /// What it registers with. Name the kinds that it works on; its session's ttl is that of `session`.
    pub runner: RegisterRunner,
    pub session: SessionConfig,
    /// How long the present holder of something that moves here may take to hand it over.
    pub hand_over_within: Duration,
    /// How long others get to take over what it holds when it ends. What is left then is released.
    pub drain_within: Duration,
}

impl RunnerConfig {
    /// A runner of that name, for these kinds, that holds up to `capacity` resources.
    pub fn new(id: &str, kinds: &[&str], capacity: u32) -> Self {
        let runner = RegisterRunner {
            runner_id: id.to_owned(),
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            capacity: Some(capacity.into()),
            ..RegisterRunner::default()
        };
        Self {
            runner,
            session: SessionConfig::new(id),
            hand_over_within: Duration::from_secs(3),
            drain_within: Duration::from_secs(10),
        }
    }
}

/// Something to work on: a lease that is held, until it should be given up.
#[derive(Debug)]
pub struct Assignment {
    guard: Guard,
    release: watch::Receiver<bool>,
}

impl Assignment {
    /// The lease, its token and state. Run the work under it, so that it stops when the lease is lost.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Waits until this should be given up: another runner takes it over, or it is no longer placed here. Finish what
    /// is under way and release the guard; until then it is not anyone else's.
    pub async fn should_end(&self) {
        let mut release = self.release.clone();
        tokio::select! {
            _ = self.guard.hand_over_asked() => {}
            _ = release.wait_for(|release| *release) => {}
        }
    }

    /// The lease alone, to release it.
    pub fn into_guard(self) -> Guard {
        self.guard
    }
}

#[derive(Debug)]
pub struct Runner {
    http: Arc<Http>,
    session: ClientSession,
    config: RunnerConfig,
}

impl Runner {
    pub async fn open(http: Http, config: RunnerConfig) -> Result<Self, OpenError> {
        let http = Arc::new(http.registering(config.runner.clone()));
        let session = ClientSession::open(http.clone(), config.session.clone()).await?;
        Ok(Self { http, session, config })
    }

    pub fn session(&self) -> &ClientSession {
        &self.session
    }

    /// Holds what is placed on it, and calls `work` for each, until `ending`. Then it drains: other runners take over
    /// what it holds, without a gap, and the rest is released. It fails if another program took its name.
    pub async fn run<F>(
        self,
        work: impl Fn(Assignment) -> F,
        ending: impl Future<Output = ()>,
    ) -> Result<(), Lost>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut turns = RunnerState::new(self);
        let ended = turns.run(&work, ending).await;
        turns.getting.shutdown().await;
        // Work that is still there after an error stops with its guard.
        turns.working.detach_all();
        turns.runner.session.close().await;
        ended
    }
}

type Question = Pin<Box<dyn Future<Output = Result<Assigned, AssignmentError>> + Send>>;
type Got = Result<(ResourceName, Guard), Lost>;

struct RunningWork {
    task: tokio::task::Id,
    release: watch::Sender<bool>,
}

/// What is being got. How may change meanwhile; a hand-over that is under way is not called off for that.
struct Getting {
    want: watch::Sender<Want>,
    task: AbortHandle,
}

struct RunnerState {
    runner: Runner,
    question: Question,
    known: Option<String>,
    /// Questions without an answer.
    failures: u32,
    holdings: BTreeMap<ResourceName, RunningWork>,
    working: JoinSet<()>,
    getting: JoinSet<Got>,
    wanted: BTreeMap<ResourceName, Getting>,
    is_draining: bool,
    is_released: bool,
    logged: Option<AssignmentError>,
}

impl RunnerState {
    fn new(runner: Runner) -> Self {
        let question = ask(&runner, None, Duration::ZERO);
        Self {
            runner,
            question,
            known: None,
            failures: 0,
            holdings: BTreeMap::new(),
            working: JoinSet::new(),
            getting: JoinSet::new(),
            wanted: BTreeMap::new(),
            is_draining: false,
            is_released: false,
            logged: None,
        }
    }

    async fn run<F>(
        &mut self,
        work: &impl Fn(Assignment) -> F,
        ending: impl Future<Output = ()>,
    ) -> Result<(), Lost>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut ending = pin!(ending);
        let mut drained = pin!(sleep(Duration::MAX));
        let session = self.runner.session.clone();
        let mut over = pin!(session.over());
        while !self.is_draining || !self.holdings.is_empty() {
            tokio::select! {
                assigned = &mut self.question => self.follow(assigned),
                Some(ended) = self.working.join_next_with_id() => {
                    self.has_ended(ended.map_or_else(|error| error.id(), |(task, ())| task));
                }
                Some(got) = self.getting.join_next() => if let Ok(got) = got {
                    self.has_got(got?, work);
                },
                // The program that took the name may hold everything by now: nothing is left to ask for and be refused.
                lost = &mut over, if !self.is_draining => return Err(lost),
                () = &mut ending, if !self.is_draining => {
                    drained.set(sleep(self.runner.config.drain_within));
                    self.drain().await;
                }
                () = &mut drained, if !self.is_released => self.release_all(),
            }
        }
        Ok(())
    }

    /// Asks for an answer at once, or after a pause if there was none.
    fn ask_anew(&mut self) {
        let pause =
            if self.failures == 0 { Duration::ZERO } else { AGAIN.wait(self.failures, rand::random()) };
        self.known = None;
        self.question = ask(&self.runner, None, pause);
    }

    fn follow(&mut self, assigned: Result<Assigned, AssignmentError>) {
        let assigned = match assigned {
            Ok(assigned) => assigned,
            Err(why) => {
                if self.logged.as_ref() != Some(&why) {
                    tracing::warn!(%why, "cannot read this runner's assignments; keeping the current leases");
                }
                self.logged = Some(why);
                self.failures += 1;
                if self.is_draining {
                    self.release_all();
                }
                return self.ask_anew();
            }
        };
        self.logged = None;
        self.failures = 0;
        let unwanted = assigned.unwanted.iter();
        // While it drains, what no other runner will take over is not waited for.
        for resource in unwanted.chain(assigned.stays.iter().filter(|_| self.is_draining)) {
            self.release(resource);
        }
        self.wanted.retain(|resource, getting| match assigned.wanted.get(resource) {
            Some(want) => {
                getting.want.send_replace(*want);
                true
            }
            None => {
                getting.task.abort();
                false
            }
        });
        for (resource, want) in assigned.wanted {
            let is_at_it = self.holdings.contains_key(&resource) || self.wanted.contains_key(&resource);
            if !self.is_draining && !is_at_it {
                self.get(resource, want);
            }
        }
        let has_waited = self.known != assigned.version;
        self.known = assigned.version;
        // A server that does not wait is not asked all the time.
        let pause = if has_waited && self.known.is_some() { Duration::ZERO } else { AGAIN.first };
        self.question = ask(&self.runner, self.known.clone(), pause);
    }

    fn get(&mut self, resource: ResourceName, want: Want) {
        let session = self.runner.session.clone();
        let within = self.runner.config.hand_over_within;
        let (want, wanted) = watch::channel(want);
        let asked = resource.clone();
        let task = self.getting.spawn(async move {
            let guard = get(&session, &asked, wanted, within).await?;
            Ok((asked, guard))
        });
        self.wanted.insert(resource, Getting { want, task });
    }

    fn has_got<F>(&mut self, (resource, guard): (ResourceName, Guard), work: &impl Fn(Assignment) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.wanted.remove(&resource).is_none() {
            // No longer wanted: dropping the guard releases it.
            return;
        }
        let (release, released) = watch::channel(false);
        let task = self.working.spawn(work(Assignment { guard, release: released })).id();
        self.holdings.insert(resource, RunningWork { task, release });
    }

    fn has_ended(&mut self, task: tokio::task::Id) {
        self.holdings.retain(|_, holding| holding.task != task);
        if !self.is_draining {
            self.ask_anew();
        }
    }

    fn release(&self, resource: &ResourceName) {
        if let Some(holding) = self.holdings.get(resource) {
            holding.release.send_replace(true);
        }
    }

    fn release_all(&mut self) {
        self.is_released = true;
        self.holdings.values().for_each(|holding| {
            holding.release.send_replace(true);
        });
    }

    /// Nothing new is begun, and the server is told, so that it plans without this runner.
    async fn drain(&mut self) {
        self.is_draining = true;
        self.wanted.clear();
        self.getting.abort_all();
        let runner = &self.runner.config.runner.runner_id;
        let session = self.runner.session.id();
        if let Err(why) = self.runner.http.report_draining(runner, session).await {
            tracing::info!(%why, "server cannot move this runner's leases; releasing them");
            return self.release_all();
        }
        self.ask_anew();
    }
}

fn ask(runner: &Runner, known: Option<String>, pause: Duration) -> Question {
    let http = runner.http.clone();
    let id = runner.config.runner.runner_id.clone();
    Box::pin(async move {
        if !pause.is_zero() {
            sleep(pause).await;
        }
        http.assignments(&id, known.as_deref()).await
    })
}

/// Gets a resource, however often that takes: if the plan changes, this is dropped.
async fn get(
    session: &ClientSession,
    resource: &ResourceName,
    want: watch::Receiver<Want>,
    within: Duration,
) -> Result<Guard, Lost> {
    let kind = resource.kind.as_str();
    let key = resource.key.as_str();
    for failures in 1.. {
        // It may be this session's already: an operator hands it over, or an answer was lost.
        if let Some(guard) = adopt(session, resource).await {
            return Ok(guard);
        }
        let now = *want.borrow();
        let got = match now {
            Want::Free => session.try_acquire(kind, key).await.map(Some),
            Want::Moves => session.take_over(kind, key, within).await,
        };
        match got {
            Ok(Some(guard)) => return Ok(guard),
            Ok(None) => tracing::debug!(%resource, "holder did not hand over in time; retrying"),
            Err(AcquireError::SessionOver(lost)) => return Err(lost),
            Err(error) => tracing::debug!(%resource, %error, "cannot acquire; retrying"),
        }
        sleep(AGAIN.wait(failures, rand::random())).await;
    }
    unreachable!("it tries until it has it")
}

/// Takes up the session's lease on a resource, if there is one that nothing has a claim on.
async fn adopt(session: &ClientSession, resource: &ResourceName) -> Option<Guard> {
    let lease = session.unclaimed().into_iter().find(|lease| lease.resource == *resource)?;
    session.adopt(&lease).await.ok().flatten()
}
