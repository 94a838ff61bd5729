//! The servers as a session sees them, through the [`Wire`] of its process.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use solehold_api::{document::to_document, runners::RunnerAttributes, watch::Cursor};
use solehold_client::{
    Authority, AuthorityError, LeaseId, Metrics, ResourceName, SessionId, Token,
    authority::{
        AcquireRequest, Attributes, Beat, Completion, GrantedLease, HeartbeatAttempt, HeldLease, Node,
        Opening, Operation, Reply, StateDocument, StateWrite,
    },
    news::{News, Newsroom},
};
use solehold_core::{
    command::{Command, OpenSession, Registration},
    key::{HolderKey, Name},
    time::Revision,
};
use uuid::Uuid;

use crate::{
    chronicle::Happening,
    server::Server,
    wire::{Kind, REQUEST_TIMEOUT, Wire},
    world::{AGENTS, agent_name, tenant},
};

/// The longest that one call may wait in line or for news.
const WAIT_MAX: Duration = Duration::from_secs(6);
/// How long a client waits for the answer to a wait beyond the wait itself.
const WAIT_LEEWAY: Duration = Duration::from_secs(2);

pub struct Remote {
    wire: Arc<Wire>,
    newsroom: Newsroom,
    /// How many leases the process registers for, if it registers.
    capacity: Option<u32>,
}

impl Remote {
    pub fn new(wire: Arc<Wire>, capacity: Option<u32>) -> Arc<Self> {
        if let Some(capacity) = capacity {
            wire.note(Happening::Registers(capacity));
        }
        Arc::new(Self { wire, newsroom: Newsroom::default(), capacity })
    }

    fn beat(&self, (epoch, answer): (u64, Reply<Beat>)) -> Reply<Beat> {
        Ok(answer?.map(|beat| Beat { epoch: self.wire.stamped(epoch), ..beat }))
    }

    fn granted(&self, epoch: u64, granted: GrantedLease) -> GrantedLease {
        GrantedLease { epoch: self.wire.stamped(epoch), ..granted }
    }
}

/// Registers the holder as it opens its session, as runners do.
async fn register(to: &Server, opening: &Opening, capacity: u32) {
    let is_agent = (0..AGENTS).any(|n| agent_name(n) == opening.holder.as_str());
    let kinds = vec![if is_agent { "camera" } else { "job" }.to_owned()];
    let about = RunnerAttributes { capacity, kinds, ..RunnerAttributes::default() };
    let attributes = to_document("attributes", &about).expect("a document");
    let registration = Registration { site: None, capacity: Some(capacity), attributes };
    let open = Command::OpenSession(OpenSession {
        id: opening.id,
        holder: HolderKey { tenant: tenant(), name: opening.holder.clone() },
        ttl_ms: opening.ttl.as_millis() as u64,
        replace: None,
        fenced: false,
        follows: opening.follows,
        registration: Some(registration),
        metrics: None,
    });
    // A refusal is told by the repeat, which finds the session, or is refused in the same way.
    let _ = to.decide(open).await;
    to.planner.registry_changed();
}

/// Writes down how long a session lives, as far as a holder may trust the store's clock (rules 2 and 4).
fn promised(wire: &Wire, answer: Reply<Beat>) -> Reply<Beat> {
    if let Ok(Ok(beat)) = &answer {
        let unsure = if beat.slack.is_zero() { Duration::ZERO } else { beat.slack + beat.ttl_left / 50 };
        wire.note(Happening::Promised(beat.session.to_string(), beat.ttl_left.saturating_sub(unsure)));
    }
    answer
}

fn described(operations: &[Operation]) -> String {
    let one = |operation: &Operation| match operation {
        Operation::Acquire(ask) => format!("{} as {}", ask.resource, ask.request),
        Operation::Renew(held) | Operation::Release { held, .. } => {
            format!("{} token {}", held.resource, held.token)
        }
    };
    operations.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[async_trait]
impl Authority for Remote {
    async fn open(&self, opening: &Opening) -> Reply<Beat> {
        let opening = opening.clone();
        let capacity = self.capacity;
        let wire = self.wire.clone();
        let open = move |to: Arc<Server>| {
            let opening = opening.clone();
            let wire = wire.clone();
            async move {
                if let Some(capacity) = capacity {
                    register(&to, &opening, capacity).await;
                }
                promised(&wire, to.open(&opening).await)
            }
        };
        self.beat(self.wire.through(Kind::Open, String::new(), REQUEST_TIMEOUT, open).await?)
    }

    async fn heartbeat(
        &self,
        session: SessionId,
        metrics: &Metrics,
        sealed_cursor: Option<&str>,
        known: Option<&Beat>,
        attempt: HeartbeatAttempt,
    ) -> Reply<Beat> {
        let metrics = metrics.clone();
        let sealed = sealed_cursor.map(str::to_owned);
        // A store knows its sets by its own epoch.
        let known = known.filter(|known| known.epoch == Some(self.wire.epoch())).cloned();
        let wire = self.wire.clone();
        let beat = move |to: Arc<Server>| {
            let metrics = metrics.clone();
            let sealed = sealed.clone();
            let known = known.clone();
            let wire = wire.clone();
            async move {
                let beat = to.heartbeat(session, &metrics, sealed.as_deref(), known.as_ref(), attempt).await;
                promised(&wire, beat)
            }
        };
        self.beat(self.wire.through(Kind::Heartbeat, String::new(), attempt.within, beat).await?)
    }

    async fn close(&self, session: SessionId) -> Reply<()> {
        let close = move |to: Arc<Server>| async move { to.close(session).await };
        self.wire.through(Kind::Close, String::new(), REQUEST_TIMEOUT, close).await?.1
    }

    async fn submit(&self, operations: Vec<Operation>) -> Vec<Reply<Completion>> {
        let count = operations.len();
        let kind = Kind::of(&operations);
        let about = described(&operations);
        let submit = move |to: Arc<Server>| {
            let operations = operations.clone();
            async move { to.submit(operations).await }
        };
        let (epoch, outcomes) = match self.wire.through(kind, about, REQUEST_TIMEOUT, submit).await {
            Ok(done) => done,
            Err(error) => return vec![Err(error); count],
        };
        let stamped = |outcome: Reply<Completion>| {
            Ok(outcome?.map(|done| match done {
                Completion::Held(granted) => Completion::Held(self.granted(epoch, granted)),
                Completion::Released => Completion::Released,
            }))
        };
        outcomes.into_iter().map(stamped).collect()
    }

    async fn acquire_waiting(&self, ask: &AcquireRequest, wait: Duration) -> Option<Reply<GrantedLease>> {
        let ask = ask.clone();
        let about = format!("{} as {}", ask.resource, ask.request);
        let acquire = move |to: Arc<Server>| {
            let ask = ask.clone();
            async move { to.acquire_waiting(&ask, wait).await }
        };
        match self.wire.through(Kind::Wait, about, wait + WAIT_LEEWAY, acquire).await {
            Ok((epoch, answer)) => {
                Some(answer?.map(|outcome| outcome.map(|granted| self.granted(epoch, granted))))
            }
            Err(error) => Some(Err(error)),
        }
    }

    async fn cancel(&self, resource: &ResourceName, holder: &Name, request: &Name) -> Reply<()> {
        let resource = resource.clone();
        let holder = holder.clone();
        let request = request.clone();
        let about = format!("{resource} as {request}");
        let wire = self.wire.clone();
        let cancel = move |to: Arc<Server>| {
            let resource = resource.clone();
            let holder = holder.clone();
            let request = request.clone();
            let wire = wire.clone();
            async move {
                let told = to.cancel(&resource, &holder, &request).await;
                if matches!(told, Ok(Ok(()))) {
                    wire.note(Happening::Cancelled(wire.epoch(), request.to_string()));
                }
                told
            }
        };
        self.wire.through(Kind::Cancel, about, REQUEST_TIMEOUT, cancel).await?.1
    }

    async fn write_state(&self, held: &HeldLease, write: &StateWrite) -> Reply<()> {
        let held = held.clone();
        let write = write.clone();
        let about = format!("{} token {}", held.resource, held.token);
        let write = move |to: Arc<Server>| {
            let held = held.clone();
            let write = write.clone();
            async move { to.write_state(&held, &write).await }
        };
        self.wire.through(Kind::State, about, REQUEST_TIMEOUT, write).await?.1
    }

    async fn read_state(&self, resource: &ResourceName) -> Reply<Option<StateDocument>> {
        let resource = resource.clone();
        let about = resource.to_string();
        let read = move |to: Arc<Server>| {
            let resource = resource.clone();
            async move { to.read_state(&resource).await }
        };
        self.wire.through(Kind::State, about, REQUEST_TIMEOUT, read).await?.1
    }

    async fn token_before(&self, resource: &ResourceName, grant: Token) -> Reply<Option<Token>> {
        let resource = resource.clone();
        let about = resource.to_string();
        let read = move |to: Arc<Server>| {
            let resource = resource.clone();
            async move { to.token_before(&resource, grant).await }
        };
        self.wire.through(Kind::State, about, REQUEST_TIMEOUT, read).await?.1
    }

    async fn hand_over(
        &self,
        resource: &ResourceName,
        request: Uuid,
        to: SessionId,
        within: Duration,
        _: &Attributes,
    ) -> Reply<LeaseId> {
        let resource = resource.clone();
        let about = format!("{resource} within {within:?}");
        let ask = move |server: Arc<Server>| {
            let resource = resource.clone();
            async move { server.hand_over_planned(&resource, request, to, within).await }
        };
        self.wire.through(Kind::HandOver, about, REQUEST_TIMEOUT, ask).await?.1
    }

    async fn call_off(&self, resource: &ResourceName, pending: LeaseId) -> Reply<()> {
        let resource = resource.clone();
        let about = resource.to_string();
        let call_off = move |to: Arc<Server>| {
            let resource = resource.clone();
            async move { to.call_off(&resource, pending).await }
        };
        self.wire.through(Kind::CallOff, about, REQUEST_TIMEOUT, call_off).await?.1
    }

    async fn news(
        &self,
        known: &[(SessionId, Revision)],
        from: Option<Cursor>,
        wait: Duration,
    ) -> Option<Result<News, AuthorityError>> {
        let known = known.to_vec();
        // A cursor of another history is no use to a store: it reads the rows.
        let from = from.filter(|_| self.wire.epoch() == 1);
        let news = move |to: Arc<Server>| {
            let known = known.clone();
            async move { to.news(&known, from, wait).await }
        };
        match self.wire.through(Kind::News, String::new(), wait + WAIT_LEEWAY, news).await {
            Ok((_, told)) => told,
            Err(error) => Some(Err(error)),
        }
    }

    fn newsroom(&self) -> Option<&Newsroom> {
        Some(&self.newsroom)
    }

    async fn nodes(&self) -> Result<Vec<Node>, AuthorityError> {
        let nodes = move |to: Arc<Server>| async move { to.nodes().await };
        self.wire.through(Kind::Plan, String::new(), REQUEST_TIMEOUT, nodes).await?.1
    }

    fn wait_max(&self) -> Duration {
        WAIT_MAX
    }
}
