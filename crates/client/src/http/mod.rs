//! The authority behind REST: one Solehold server, or several over one store with failover between them.

mod config;
mod error;
mod no_answer;
pub mod pool;
mod servers;
pub mod transport;
mod trust;
mod wire;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::RwLock;
use reqwest::Method;
use serde::de::IgnoredAny;
use solehold_api::{
    batch::Batch,
    hand_over::{self, AskNews, KnownSession, OfferResource, OfferedLease},
    limits::{OFFER_TTL, WAIT_MS_MAX},
    paths,
    problem::ErrorCode,
    resources::{self, CancelRequest, PutState, ReleaseResource},
    runners::{RegisterRunner, RegisteredRunner},
    sessions::{HeartbeatSession, NodeList, OpenSession, SessionBody},
    watch::Cursor,
};
use solehold_core::{
    key::{LeaseId, Name, SessionId},
    time::{Revision, Token},
};
use uuid::Uuid;

pub(crate) use self::servers::Lane;
pub use self::{
    config::HttpConfig,
    error::{HttpError, ServerFault},
};
use self::{pool::Call, servers::Servers};
use crate::{
    authority::{
        AcquireRequest, Attributes, Authority, AuthorityError, Beat, Completion, EVENTS_BEFORE_GRANT_MAX,
        GrantedLease, HeartbeatAttempt, HeldLease, LOCK_KIND, Metrics, Node, Opening, Operation,
        RefusalReason, Reply, ResourceName, StateDocument, StateWrite,
    },
    news::{News, Newsroom},
};

/// The field of a heartbeat that servers up to 0.2 refuse.
const KNOWN_SET: &str = "known_set";

/// Most pages of nodes that are read: a tenant has at most as many sessions by quota.
const NODE_PAGES_MAX: usize = 1_000;

/// Solehold servers.
///
/// ```
/// use solehold_client::{Http, HttpConfig};
///
/// let authority = Http::new(HttpConfig::new(["https://10.0.0.1:7070", "https://10.0.0.2:7070"]))?;
/// let refused = Http::new(HttpConfig::new(["ftp://10.0.0.1:7070"])).expect_err("neither HTTP nor HTTPS");
/// assert!(refused.to_string().contains("as in 127.0.0.1:7070"), "{refused}");
/// # Ok::<(), solehold_client::HttpError>(())
/// ```
#[derive(Debug)]
pub struct Http {
    servers: RwLock<Arc<Servers>>,
    timeout: Duration,
    runner: Option<RegisterRunner>,
    newsroom: Newsroom,
}

impl Http {
    /// Checks the configuration. No server is asked yet.
    pub fn new(config: HttpConfig) -> Result<Self, HttpError> {
        let timeout = config.request_timeout;
        if timeout.is_zero() {
            return Err(HttpError::NoTimeout);
        }
        let servers = RwLock::new(Arc::new(Servers::new(&config)?));
        Ok(Self { servers, timeout, runner: None, newsroom: Newsroom::default() })
    }

    /// Opens sessions by registering this runner, under its own name and with its own ttl.
    #[must_use]
    pub fn registering(self, runner: RegisterRunner) -> Self {
        Self { runner: Some(runner), ..self }
    }

    /// Asks these servers from now on, with this key. What is under way goes on as it was sent.
    pub fn reconfigure(&self, config: &HttpConfig) -> Result<(), HttpError> {
        let next = Arc::new(Servers::new(config)?);
        *self.servers.write() = next;
        Ok(())
    }

    pub(crate) fn servers(&self) -> Arc<Servers> {
        self.servers.read().clone()
    }

    pub(crate) async fn ask<T: serde::de::DeserializeOwned>(&self, lane: Lane, call: Call) -> Reply<T> {
        self.servers().ask(lane, &call).await
    }

    /// Sends what is answered with nothing of interest.
    async fn tell(&self, call: Call) -> Reply<()> {
        Ok(self.ask::<IgnoredAny>(Lane::Work, call).await?.map(|_| ()))
    }

    /// Reads something that is not part of keeping leases, such as what a runner is assigned.
    pub async fn get<T: serde::de::DeserializeOwned>(&self, path: String) -> Reply<T> {
        self.ask(Lane::Work, self.call(Method::GET, path)).await
    }

    /// Reads something like that which may be answered only after a while.
    pub async fn get_waiting<T: serde::de::DeserializeOwned>(
        &self,
        path: String,
        wait: Duration,
    ) -> Reply<T> {
        self.ask(Lane::Waits, Call::new(Method::GET, path, wait + self.timeout)).await
    }

    /// Writes something that is not part of keeping leases, such as the status of a runner.
    pub async fn put(&self, path: String, body: &impl serde::Serialize) -> Reply<()> {
        self.tell(self.call(Method::PUT, path).body(body)).await
    }

    /// Tells the server something that is not part of keeping leases, such as that work failed.
    pub async fn post(&self, path: String, body: &impl serde::Serialize) -> Reply<()> {
        self.tell(self.call(Method::POST, path).body(body).once()).await
    }

    /// Registers the runner. The answer says nothing of the slack of the store's clock, so a heartbeat follows.
    async fn register(&self, runner: &RegisterRunner, opening: &Opening) -> Reply<Beat> {
        let Opening { id, ttl, metrics, follows, .. } = opening;
        let body = RegisterRunner {
            session_ttl_seconds: serde_json::Number::from_f64(ttl.as_secs_f64()),
            metrics: Some(wire::metrics(metrics)),
            follows: follows.map(|session| session.0),
            ..runner.clone()
        };
        let call = self.call(Method::POST, paths::runner_register()).idempotent(*id).body(&body);
        let registered = match self.ask::<RegisteredRunner>(Lane::Beats, call).await? {
            Ok(registered) => registered,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let session = SessionId(registered.session_id);
        let attempt = HeartbeatAttempt::within(*ttl / 3);
        self.heartbeat(session, metrics, registered.sealed_cursor.as_deref(), None, attempt).await
    }

    /// One server, without a key.
    pub fn to(url: impl Into<String>) -> Result<Self, HttpError> {
        Self::new(HttpConfig::new([url]))
    }

    pub(crate) fn call(&self, method: Method, path: String) -> Call {
        Call::new(method, path, self.timeout)
    }

    /// One request for operations of one sort.
    async fn batch<T: serde::Serialize>(
        &self,
        call: Call,
        operations: BatchOf<T>,
        outcomes: &mut [Reply<Completion>],
    ) {
        if operations.is_empty() {
            return;
        }
        let (places, items): (Vec<_>, Vec<T>) = operations.into_iter().unzip();
        let got = match self.ask::<wire::BatchResults>(Lane::Work, call.body(&Batch { items })).await {
            Err(error) => vec![Err(error); places.len()],
            Ok(Err(refusal)) => vec![Ok(Err(refusal)); places.len()],
            Ok(Ok(wire::BatchResults { results })) if results.len() != places.len() => {
                let odd = format!("{} results for {} items", results.len(), places.len());
                vec![Err(AuthorityError::Unknown(odd)); places.len()]
            }
            Ok(Ok(wire::BatchResults { results })) => {
                let resources = places.iter().map(|(_, resource)| resource.clone());
                resources.zip(results).map(|(resource, item)| wire::outcome(resource, item)).collect()
            }
        };
        for ((at, _), outcome) in places.into_iter().zip(got) {
            outcomes[at] = outcome;
        }
    }
}

/// Operations of one sort, each with the place that its outcome goes to.
type BatchOf<T> = Vec<((usize, ResourceName), T)>;

#[async_trait]
impl Authority for Http {
    async fn open(&self, opening: &Opening) -> Reply<Beat> {
        if let Some(runner) = &self.runner {
            return self.register(runner, opening).await;
        }
        let Opening { id, holder, ttl, metrics, follows } = opening;
        let body = OpenSession {
            holder: holder.to_string(),
            ttl_ms: Some((ttl.as_millis() as u64).into()),
            metrics: Some(wire::metrics(metrics)),
            follows: follows.map(|session| session.0),
            ..Default::default()
        };
        let call = self.call(Method::POST, paths::sessions()).idempotent(*id).body(&body);
        match self.ask::<SessionBody>(Lane::Beats, call).await? {
            Ok(opened) => wire::beat(opened, None).map(Ok),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    async fn heartbeat(
        &self,
        session: SessionId,
        metrics: &Metrics,
        sealed_cursor: Option<&str>,
        known: Option<&Beat>,
        attempt: HeartbeatAttempt,
    ) -> Reply<Beat> {
        let path = paths::session_heartbeat(&session.to_string());
        let mut body = HeartbeatSession {
            metrics: Some(wire::metrics(metrics)),
            sealed_cursor: sealed_cursor.map(str::to_owned),
            known_set: known.and_then(|known| known.set_cursor),
        };
        loop {
            let call =
                Call::new(Method::PUT, path.clone(), attempt.within).in_all(attempt.beside).body(&body);
            let call = if attempt.is_alone { call.racing() } else { call };
            match self.ask::<SessionBody>(Lane::Beats, call).await? {
                Ok(renewed) => return wire::beat(renewed, known).map(Ok),
                // An older server than the one that named the set, as while servers are replaced one by one.
                Err(refusal) if body.known_set.is_some() && refusal.is_about(KNOWN_SET) => {
                    body.known_set = None;
                }
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
    }

    async fn close(&self, session: SessionId) -> Reply<()> {
        self.tell(self.call(Method::DELETE, paths::session(&session.to_string()))).await
    }

    async fn submit(&self, operations: Vec<Operation>) -> Vec<Reply<Completion>> {
        let unanswered = Err(AuthorityError::Unknown("it was not answered".to_owned()));
        let mut outcomes = vec![unanswered; operations.len()];
        let mut acquires = BatchOf::new();
        let mut renewals = BatchOf::new();
        let mut releases = BatchOf::new();
        for (at, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Acquire(ask) => acquires.push(((at, ask.resource.clone()), wire::acquire(&ask))),
                Operation::Renew(held) => renewals.push(((at, held.resource.clone()), wire::renew(&held))),
                Operation::Release { held, state } => {
                    releases.push(((at, held.resource.clone()), wire::release(&held, state)));
                }
            }
        }
        self.batch(self.call(Method::POST, paths::batch_acquire()), acquires, &mut outcomes).await;
        self.batch(self.call(Method::POST, paths::batch_renew()), renewals, &mut outcomes).await;
        self.batch(self.call(Method::POST, paths::batch_release()).once(), releases, &mut outcomes).await;
        outcomes
    }

    async fn acquire_waiting(&self, ask: &AcquireRequest, wait: Duration) -> Option<Reply<GrantedLease>> {
        let resource = &ask.resource;
        let path = match resource.kind.as_str() {
            LOCK_KIND => paths::lock(resource.key.as_str()),
            kind => paths::resource_lease(kind, resource.key.as_str()),
        };
        let wait = wait.min(self.wait_max());
        let call = Call::new(Method::POST, path, wait + self.timeout).body(&wire::waiting(ask, wait));
        match self.ask::<wire::BriefGrant>(Lane::Waits, call).await {
            Ok(Err(refusal)) if refusal.code == ErrorCode::NoSuchRoute => None,
            answer => Some(answer.map(|outcome| outcome.map(|grant| wire::granted(resource.clone(), grant)))),
        }
    }

    async fn cancel(&self, resource: &ResourceName, holder: &Name, request: &Name) -> Reply<()> {
        let body = CancelRequest { holder: holder.to_string(), request_id: request.to_string() };
        let path = paths::resource_lease_cancel(resource.kind.as_str(), resource.key.as_str());
        self.tell(self.call(Method::POST, path).body(&body)).await
    }

    async fn write_state(&self, held: &HeldLease, write: &StateWrite) -> Reply<()> {
        let body = PutState {
            token: Some(held.token.0),
            lease_id: Some(held.lease.0),
            sequence: write.sequence,
            document: write.document.clone(),
            ..Default::default()
        };
        let path = paths::resource_state(held.resource.kind.as_str(), held.resource.key.as_str());
        self.tell(self.call(Method::PUT, path).body(&body).once()).await
    }

    async fn read_state(&self, resource: &ResourceName) -> Reply<Option<StateDocument>> {
        let path = paths::resource_state(resource.kind.as_str(), resource.key.as_str());
        Ok(match self.get::<resources::StateDocument>(path).await? {
            Err(refusal) if refusal.code == ErrorCode::NotFound => Ok(None),
            read => read.map(|state| Some(wire::state(state))),
        })
    }

    async fn token_before(&self, resource: &ResourceName, grant: Token) -> Reply<Option<Token>> {
        let path = paths::resource_history(resource.kind.as_str(), resource.key.as_str());
        let mut call = self.call(Method::GET, path);
        call.query =
            vec![("newest_first", "true".to_owned()), ("limit", EVENTS_BEFORE_GRANT_MAX.to_string())];
        let history = self.ask::<resources::ResourceHistory>(Lane::Work, call).await?;
        Ok(history.map(|history| {
            let mut before = history.events.iter().filter(|event| event.revision < grant.0);
            before.find_map(|event| event.token).map(Token)
        }))
    }

    async fn hand_over(
        &self,
        resource: &ResourceName,
        request: Uuid,
        to: SessionId,
        within: Duration,
        attributes: &Attributes,
    ) -> Reply<LeaseId> {
        // The server waits a second at least; who gives up sooner calls it off.
        let ttl_ms = Some((within.as_millis() as u64).max(OFFER_TTL.least_ms).into());
        let request_id = Some(request);
        let session_id = Some(to.0);
        let attributes = Some(attributes.clone().into_iter().collect());
        let body = OfferResource { request_id, session_id, ttl_ms, attributes, ..Default::default() };
        let path = paths::resource_handover(resource.kind.as_str(), resource.key.as_str());
        let call = self.call(Method::POST, path).body(&body);
        let offered = self.ask::<OfferedLease>(Lane::Work, call).await?;
        Ok(offered.map(|pending| LeaseId(pending.lease_id)))
    }

    async fn call_off(&self, resource: &ResourceName, pending: LeaseId) -> Reply<()> {
        let body = ReleaseResource { lease_id: Some(pending.0), ..Default::default() };
        let path = paths::resource_lease(resource.kind.as_str(), resource.key.as_str());
        self.tell(self.call(Method::DELETE, path).body(&body)).await
    }

    async fn news(
        &self,
        asked: &[(SessionId, Revision)],
        from: Option<Cursor>,
        wait: Duration,
    ) -> Option<Result<News, AuthorityError>> {
        let known =
            |(id, revision): &(SessionId, Revision)| KnownSession { session_id: id.0, revision: revision.0 };
        let wait_ms = Some((wait.as_millis() as u64).into());
        let body = AskNews { sessions: asked.iter().map(known).collect(), from, wait_ms };
        let call = Call::new(Method::POST, paths::session_news(), wait + self.timeout).body(&body);
        match self.ask::<hand_over::News>(Lane::Waits, call).await {
            Ok(Ok(news)) => {
                let sessions = news.sessions.into_iter().map(SessionId).collect();
                Some(Ok(News { sessions, cursor: news.cursor }))
            }
            // A server that does not know this route yet, and one where such a path is a session's.
            Ok(Err(refusal)) if is_unknown_route(refusal.code) => None,
            Ok(Err(refusal)) => Some(Err(denied(refusal))),
            Err(error) => Some(Err(error)),
        }
    }

    fn newsroom(&self) -> Option<&Newsroom> {
        Some(&self.newsroom)
    }

    async fn nodes(&self) -> Result<Vec<Node>, AuthorityError> {
        let mut nodes = Vec::new();
        let mut cursor = None::<String>;
        for _ in 0..NODE_PAGES_MAX {
            let mut call = self.call(Method::GET, paths::nodes());
            call.query.push(("limit", solehold_api::limits::PAGE_SIZE_MAX.to_string()));
            call.query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let page = self.ask::<NodeList>(Lane::Work, call).await?.map_err(denied)?;
            nodes.extend(page.nodes);
            match page.next {
                Some(next) => cursor = Some(next.to_string()),
                None => break,
            }
        }
        Ok(nodes)
    }

    fn wait_max(&self) -> Duration {
        Duration::from_millis(WAIT_MS_MAX)
    }
}

fn is_unknown_route(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::NoSuchRoute | ErrorCode::MethodNotAllowed)
}

/// A read that is refused has no outcome: nothing was read.
pub(crate) fn denied(refusal: RefusalReason) -> AuthorityError {
    let why = format!("{}: {}", ErrorCode::as_str(refusal.code), refusal.detail);
    AuthorityError::Denied { why, retry_after: refusal.retry_after }
}
