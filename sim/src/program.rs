//! A program that uses leases by itself: it acquires, hands over, adopts what it is given, and writes while it holds.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_client::{
    AcquireError, ClientSession, Guard, Policy, ResourceName, SessionConfig, Surroundings,
    clock::{AlarmClock, Clock},
};

use crate::{
    chance::SeededChance,
    chronicle::{Chronicle, Working},
    process::Process,
    remote::Remote,
    sink::{LINGER_MAX, Sink, WRITE_MS},
    virtual_time::pass,
    wire::Wire,
    world::TTL,
};

/// How often a program looks at what it holds, and writes.
const TURN_MS: (u64, u64) = (100, 500);
/// Most that a program waits for at once.
const ASKED_MAX: usize = 3;

/// How a program asks for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    InLine,
    Repeatedly,
    Once,
}

/// What a program has in common with the tasks that work for it.
pub struct Program {
    pub process: Arc<Process>,
    pub session: ClientSession,
    chronicle: Arc<Chronicle>,
    sink: Arc<Sink>,
    chance: SeededChance,
    guards: Mutex<Vec<Arc<Guard>>>,
    asked: Mutex<usize>,
}

impl Program {
    /// Starts a program; none if it could not open its session, and ended.
    pub async fn start(
        wire: &Arc<Wire>,
        chronicle: Arc<Chronicle>,
        sink: Arc<Sink>,
        chance: SeededChance,
        capacity: Option<u32>,
    ) -> Option<Arc<Self>> {
        let process = wire.process.clone();
        let policy = if chance.one_in(4) { Policy::Immediate } else { Policy::Deadline };
        let every = Some(TTL.mul_f64(0.1 + 0.003 * chance.below(100) as f64));
        let config = SessionConfig { ttl: TTL, every, policy, ..SessionConfig::new(&process.name) };
        let surroundings = Surroundings { clock: process.clone(), chance: Arc::new(chance.branch()) };
        let remote = Remote::new(wire.clone(), capacity);
        let session = ClientSession::open_in(surroundings, remote, config).await.ok()?;
        let guards = Mutex::default();
        let asked = Mutex::default();
        let program = Arc::new(Self { process, session, chronicle, sink, chance, guards, asked });
        tokio::spawn(program.clone().live());
        Some(program)
    }

    async fn live(self: Arc<Self>) {
        loop {
            let turn = self.chance.millis(TURN_MS.0, TURN_MS.1);
            self.process.wait_until(self.process.now().plus(turn)).await;
            self.drop_lost();
            self.adopt();
            self.write();
        }
    }

    fn take(&self, guard: Guard, how: &'static str) {
        let working = Working {
            who: self.process.name.clone(),
            resource: guard.resource().clone(),
            token: guard.token().0,
        };
        let guard = Arc::new(guard);
        let process = self.process.clone();
        let probed = Arc::downgrade(&guard);
        self.guards.lock().push(guard);
        let probe = move || !process.is_dead() && probed.upgrade().is_some_and(|guard| guard.is_live());
        self.chronicle.begins(working, how, Box::new(probe));
    }

    /// Stops to work under a guard, which comes back to be released or dropped.
    fn stop(&self, guard: Arc<Guard>, why: &'static str) -> Option<Guard> {
        self.chronicle.ends(&self.process.name, guard.resource(), guard.token().0, why);
        Arc::into_inner(guard)
    }

    fn drop_lost(&self) {
        let (live, lost) = self.guards.lock().drain(..).partition(|guard| guard.is_live());
        *self.guards.lock() = live;
        let lost: Vec<Arc<Guard>> = lost;
        lost.into_iter().for_each(|guard| drop(self.stop(guard, "lost")));
    }

    fn adopt(self: &Arc<Self>) {
        for lease in self.session.unclaimed() {
            let program = self.clone();
            tokio::spawn(async move {
                if let Ok(Some(guard)) = program.session.adopt(&lease).await {
                    program.take(guard, "adopted");
                }
            });
        }
    }

    fn write(&self) {
        for guard in self.guards.lock().iter().filter(|guard| guard.is_live()) {
            let delay = match self.chance.below(40) {
                0 => LINGER_MAX.mul_f64(self.chance.below(100) as f64 / 100.0),
                _ => self.chance.millis(WRITE_MS.0, WRITE_MS.1),
            };
            let sink = self.sink.clone();
            let who = self.process.name.clone();
            let resource = guard.resource().clone();
            let token = guard.token().0;
            tokio::spawn(async move {
                pass(delay).await;
                sink.take(&who, &resource, token).await;
            });
        }
    }

    /// Asks for a resource, for some time.
    pub fn ask(self: &Arc<Self>, resource: ResourceName, how: Asking, wait: Duration) {
        if *self.asked.lock() < ASKED_MAX {
            self.ask_anyway(resource, how, wait);
        }
    }

    /// The same, however much it waits for already.
    pub fn ask_anyway(self: &Arc<Self>, resource: ResourceName, how: Asking, wait: Duration) {
        *self.asked.lock() += 1;
        let program = self.clone();
        tokio::spawn(async move {
            let got = program.got(&resource, how, wait).await;
            *program.asked.lock() -= 1;
            if let Some(guard) = got {
                program.process.running().await;
                program.take(guard, "acquired");
            }
        });
    }

    async fn got(&self, resource: &ResourceName, how: Asking, wait: Duration) -> Option<Guard> {
        let kind = resource.kind.as_str();
        let key = resource.key.as_str();
        let within =
            async |asking: &mut (dyn Future<Output = Result<Guard, AcquireError>> + Send + Unpin)| {
                tokio::time::timeout(wait, asking).await.ok().and_then(Result::ok)
            };
        match how {
            Asking::InLine => self.session.acquire_within(kind, key, wait).await.ok(),
            Asking::Repeatedly => within(&mut Box::pin(self.session.acquire(kind, key))).await,
            Asking::Once => within(&mut Box::pin(self.session.try_acquire(kind, key))).await,
        }
    }

    /// Asks the holder of a resource to hand it over, and may give up before it has.
    pub fn take_over(self: &Arc<Self>, resource: ResourceName, within: Duration, patience: Duration) {
        let program = self.clone();
        tokio::spawn(async move {
            let asking = program.session.take_over(resource.kind.as_str(), resource.key.as_str(), within);
            if let Ok(Ok(Some(guard))) = tokio::time::timeout(patience, asking).await {
                program.process.running().await;
                program.take(guard, "taken over");
            }
        });
    }

    fn live_guard(&self) -> Option<Arc<Guard>> {
        let mut guards = self.guards.lock();
        let at = guards.iter().position(|guard| guard.is_live())?;
        Some(guards.remove(at))
    }

    /// Releases something, and waits for the answer for a while.
    pub fn release(&self, patience: Duration) {
        let Some(guard) = self.live_guard().and_then(|guard| self.stop(guard, "releases it")) else { return };
        tokio::spawn(async move {
            let _ = tokio::time::timeout(patience, guard.release()).await;
        });
    }

    /// Drops a guard: what it held is released in the background.
    pub fn let_go(&self) {
        if let Some(guard) = self.live_guard() {
            drop(self.stop(guard, "drops it"));
        }
    }
}
