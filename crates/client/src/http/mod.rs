//! The authority behind REST: one Solehold server, or several over one store with failover between them.

mod config;
mod error;
mod no_answer;
mod servers;
pub mod transport;
mod trust;
mod wire;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::RwLock;
use reqwest::Method;
use solehold_api::{
    batch::{AcquireItem, Batch, BatchResults, ReleaseItem, RenewItem},
    hand_over::{self, AskNews, KnownSession, OfferResource, OfferedLease},
    limits::{OFFER_TTL, WAIT_MS_MAX},
    paths,
    problem::ErrorCode,
    resources::{self, CancelRequest, PutState, ReleaseResource},
    runners::{RegisterRunner, RegisteredRunner},
    sessions::{ClosedSession, HeartbeatSession, NodeList, OpenSession, SessionBody},
    watch::Cursor,
};
use solehold_core::{
    key::{LeaseId, Name, SessionId},
    time::{Revision, Token},
};
use uuid::Uuid;

use self::servers::Servers;
pub(crate) use self::servers::{Call, Lane};
pub use self::{config::HttpConfig, error::HttpError};
use crate::{
    authority::{
        AcquireRequest, Attributes, Authority, AuthorityError, Beat, Completion, EVENTS_BEFORE_GRANT_MAX,
        GrantedLease, HeartbeatAttempt, HeldLease, LOCK_KIND, Metrics, Node, Opening, Operation,
        RefusalReason, Reply, ResourceName, StateDocument, StateWrite,
    },
    news::{News, Newsroom},
};

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
            return Err(HttpError("request_timeout is 0: no server could answer in time".to_owned()));
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

    /// Reads something that is not part of keeping leases, such as what a runner is assigned.
    pub async fn get<T: serde::de::DeserializeOwned>(&self, path: String) -> Reply<T> {
        self.servers().ask(Lane::Work, &self.call(Method::GET, path)).await
    }

    /// Reads something like that which may be answered only after a while.
    pub async fn get_waiting<T: serde::de::DeserializeOwned>(
        &self,
        path: String,
        wait: Duration,
    ) -> Reply<T> {
        let call = self.call(Method::GET, path).within(wait + self.timeout);
        self.servers().ask(Lane::Waits, &call).await
    }

    /// Writes something that is not part of keeping leases, such as the status of a runner.
    pub async fn put(&self, path: String, body: &impl serde::Serialize) -> Reply<()> {
        let call = self.call(Method::PUT, path).body(body)?;
        Ok(self.servers().ask::<serde_json::Value>(Lane::Work, &call).await?.map(|_| ()))
    }

    /// Tells the server something that is not part of keeping leases, such as that work failed.
    pub async fn post(&self, path: String, body: &impl serde::Serialize) -> Reply<()> {
        let call = self.call(Method::POST, path).body(body)?.once();
        Ok(self.servers().ask::<serde_json::Value>(Lane::Work, &call).await?.map(|_| ()))
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
        let call = self.call(Method::POST, paths::runner_register()).idempotent(*id).body(&body)?;
        let registered = match self.servers().ask::<RegisteredRunner>(Lane::Beats, &call).await? {
            Ok(registered) => registered,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let session = SessionId(registered.session_id);
        let attempt = HeartbeatAttempt::within(*ttl / 3);
        self.heartbeat(session, metrics, registered.sealed_cursor.as_deref(), attempt).await
    }

    /// One server, without a key.
    pub fn to(url: impl Into<String>) -> Result<Self, HttpError> {
        Self::new(HttpConfig::new([url]))
    }

    pub(crate) fn call(&self, method: Method, path: String) -> Call {
        Call::new(method, path).within(self.timeout)
    }

    /// One request for operations of one sort.
    async fn batch<T: serde::Serialize>(
        &self,
        call: Call,
        resources: Vec<ResourceName>,
        items: Vec<T>,
    ) -> Vec<Reply<Completion>> {
        let count = items.len();
        let call = match call.body(&Batch { items }) {
            Ok(call) => call,
            Err(error) => return vec![Err(error); count],
        };
        match self.servers().ask::<BatchResults>(Lane::Work, &call).await {
            Err(error) => vec![Err(error); count],
            Ok(Err(refusal)) => vec![Ok(Err(refusal)); count],
            Ok(Ok(results)) if results.results.len() != count => {
                let odd = format!("{} results for {count} items", results.results.len());
                vec![Err(AuthorityError::Unknown(odd)); count]
            }
            Ok(Ok(results)) => {
                resources.into_iter().zip(results.results).map(|(r, item)| wire::outcome(r, item)).collect()
            }
        }
    }
}

/// Operations of one sort each, with the places that their outcomes go to.
#[derive(Default)]
struct OperationsByKind {
    acquires: (Vec<usize>, Vec<ResourceName>, Vec<AcquireItem>),
    renewals: (Vec<usize>, Vec<ResourceName>, Vec<RenewItem>),
    releases: (Vec<usize>, Vec<ResourceName>, Vec<ReleaseItem>),
}

impl OperationsByKind {
    fn sort(operations: Vec<Operation>) -> Self {
        let mut sorted = Self::default();
        for (at, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Acquire(ask) => {
                    sorted.acquires.0.push(at);
                    sorted.acquires.2.push(wire::acquire(&ask));
                    sorted.acquires.1.push(ask.resource);
                }
                Operation::Renew(held) => {
                    sorted.renewals.0.push(at);
                    sorted.renewals.2.push(wire::renew(&held));
                    sorted.renewals.1.push(held.resource);
                }
                Operation::Release { held, state } => {
                    sorted.releases.0.push(at);
                    sorted.releases.2.push(wire::release(&held, state));
                    sorted.releases.1.push(held.resource);
                }
            }
        }
        sorted
    }
}

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
        let call = self.call(Method::POST, paths::sessions()).idempotent(*id).body(&body)?;
        Ok(self.servers().ask::<SessionBody>(Lane::Beats, &call).await?.map(wire::beat))
    }

    async fn heartbeat(
        &self,
        session: SessionId,
        metrics: &Metrics,
        sealed_cursor: Option<&str>,
        attempt: HeartbeatAttempt,
    ) -> Reply<Beat> {
        let sealed_cursor = sealed_cursor.map(str::to_owned);
        let body = HeartbeatSession { metrics: Some(wire::metrics(metrics)), sealed_cursor };
        let path = paths::session_heartbeat(&session.to_string());
        let call = Call::new(Method::PUT, path).in_all(attempt.within).beside(attempt.beside).body(&body)?;
        Ok(self.servers().ask::<SessionBody>(Lane::Beats, &call).await?.map(wire::beat))
    }

    async fn close(&self, session: SessionId) -> Reply<()> {
        let call = self.call(Method::DELETE, paths::session(&session.to_string()));
        Ok(self.servers().ask::<ClosedSession>(Lane::Work, &call).await?.map(|_| ()))
    }

    async fn submit(&self, operations: Vec<Operation>) -> Vec<Reply<Completion>> {
        let unanswered = || Err(AuthorityError::Unknown("it was not answered".to_owned()));
        let mut outcomes: Vec<Reply<Completion>> = operations.iter().map(|_| unanswered()).collect();
        let OperationsByKind { acquires, renewals, releases } = OperationsByKind::sort(operations);
        let mut take = |places: Vec<usize>, got: Vec<Reply<Completion>>| {
            for (at, outcome) in places.into_iter().zip(got) {
                outcomes[at] = outcome;
            }
        };
        if !acquires.0.is_empty() {
            let call = self.call(Method::POST, paths::batch_acquire());
            take(acquires.0, self.batch(call, acquires.1, acquires.2).await);
        }
        if !renewals.0.is_empty() {
            let call = self.call(Method::POST, paths::batch_renew());
            take(renewals.0, self.batch(call, renewals.1, renewals.2).await);
        }
        if !releases.0.is_empty() {
            let call = self.call(Method::POST, paths::batch_release()).once();
            take(releases.0, self.batch(call, releases.1, releases.2).await);
        }
        outcomes
    }

    async fn acquire_waiting(&self, ask: &AcquireRequest, wait: Duration) -> Option<Reply<GrantedLease>> {
        let resource = &ask.resource;
        let path = match resource.kind.as_str() {
            LOCK_KIND => paths::lock(resource.key.as_str()),
            kind => paths::resource_lease(kind, resource.key.as_str()),
        };
        let wait = wait.min(self.wait_max());
        let call = match Call::new(Method::POST, path).body(&wire::waiting(ask, wait)) {
            Ok(call) => call.within(wait + self.timeout),
            Err(error) => return Some(Err(error)),
        };
        match self.servers().ask::<resources::GrantBody>(Lane::Waits, &call).await {
            Ok(Err(refusal)) if refusal.code == ErrorCode::NoSuchRoute => None,
            answer => Some(answer.map(|outcome| outcome.map(|grant| wire::granted(resource.clone(), grant)))),
        }
    }

    async fn cancel(&self, resource: &ResourceName, holder: &Name, request: &Name) -> Reply<()> {
        let body = CancelRequest { holder: holder.to_string(), request_id: request.to_string() };
        let path = paths::resource_lease_cancel(resource.kind.as_str(), resource.key.as_str());
        let call = self.call(Method::POST, path).body(&body)?;
        Ok(self.servers().ask::<serde_json::Value>(Lane::Work, &call).await?.map(|_| ()))
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
        let call = self.call(Method::PUT, path).body(&body)?.once();
        Ok(self.servers().ask::<serde_json::Value>(Lane::Work, &call).await?.map(|_| ()))
    }

    async fn read_state(&self, resource: &ResourceName) -> Reply<Option<StateDocument>> {
        let path = paths::resource_state(resource.kind.as_str(), resource.key.as_str());
        let read =
            self.servers().ask::<resources::StateDocument>(Lane::Work, &self.call(Method::GET, path)).await?;
        Ok(match read {
            Err(refusal) if refusal.code == ErrorCode::NotFound => Ok(None),
            read => read.map(|state| Some(wire::state(state))),
        })
    }

    async fn token_before(&self, resource: &ResourceName, grant: Token) -> Reply<Option<Token>> {
        let path = paths::resource_history(resource.kind.as_str(), resource.key.as_str());
        let mut call = self.call(Method::GET, path);
        call.query =
            vec![("newest_first", "true".to_owned()), ("limit", EVENTS_BEFORE_GRANT_MAX.to_string())];
        let history = self.servers().ask::<resources::ResourceHistory>(Lane::Work, &call).await?;
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
        let call = self.call(Method::POST, path).body(&body)?;
        let offered = self.servers().ask::<OfferedLease>(Lane::Work, &call).await?;
        Ok(offered.map(|pending| LeaseId(pending.lease_id)))
    }

    async fn call_off(&self, resource: &ResourceName, pending: LeaseId) -> Reply<()> {
        let body = ReleaseResource { lease_id: Some(pending.0), ..Default::default() };
        let path = paths::resource_lease(resource.kind.as_str(), resource.key.as_str());
        let call = self.call(Method::DELETE, path).body(&body)?;
        Ok(self.servers().ask::<serde_json::Value>(Lane::Work, &call).await?.map(|_| ()))
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
        let call = match Call::new(Method::POST, paths::session_news()).body(&body) {
            Ok(call) => call.within(wait + self.timeout),
            Err(error) => return Some(Err(error)),
        };
        match self.servers().ask::<hand_over::News>(Lane::Waits, &call).await {
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
            let page = self.servers().ask::<NodeList>(Lane::Work, &call).await?.map_err(denied)?;
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
