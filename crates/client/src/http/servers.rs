//! Several servers, one after the other: the one that answered last is asked first.

use std::{
    pin::{Pin, pin},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url, header};
use secrecy::ExposeSecret;
use serde::{Serialize, de::DeserializeOwned};
use solehold_api::{
    problem::{ErrorCode, Problem},
    sessions::IDEMPOTENCY_KEY,
};
use solehold_core::key::SessionId;
use tokio::time::timeout;

use super::{
    config::HttpConfig,
    transport::{self, HttpError, NoAnswer, root_cause},
};
use crate::authority::{AuthorityError, RefusalReason, Reply};

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// A server that has not answered for this long is no longer waited for alone: the next one is asked beside it.
const BESIDE_AFTER: Duration = Duration::from_millis(500);

/// Which connections a request goes over. Heartbeats have their own, so that no slow request delays them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Opening and keeping sessions.
    Beats,
    /// Everything else that is answered at once.
    Work,
    /// Waiting in line: each wait has a connection of its own.
    Waits,
}

/// A request, before a server is chosen for it.
#[derive(Debug, Clone)]
pub struct Call {
    method: Method,
    path: String,
    body: Option<Vec<u8>>,
    within: Duration,
    /// How long all servers may take together.
    in_all: Option<Duration>,
    /// The first server to ask, counted from the one that answered last.
    beside: u32,
    once: bool,
    /// The id of the session that it opens.
    opens: Option<SessionId>,
    /// The parts of the query string.
    pub query: Vec<(&'static str, String)>,
}

impl Call {
    pub fn new(method: Method, path: String) -> Self {
        let within = Duration::from_secs(5);
        Self {
            method,
            path,
            body: None,
            within,
            in_all: None,
            beside: 0,
            once: false,
            opens: None,
            query: Vec::new(),
        }
    }

    /// How long one server may take to answer.
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// How long all servers may take together: the first one may use all of it.
    pub fn in_all(self, in_all: Duration) -> Self {
        Self { within: in_all, in_all: Some(in_all), ..self }
    }

    /// So many servers are passed over at first, since they are being asked already.
    pub fn beside(self, beside: u32) -> Self {
        Self { beside, ..self }
    }

    /// No other server is asked when the outcome is unknown: it could not tell that the request is a repeat.
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }

    /// It opens the session with this id: any server can tell a repeat by it.
    pub fn idempotent(self, opens: SessionId) -> Self {
        Self { opens: Some(opens), ..self }
    }

    pub fn body(self, body: &impl Serialize) -> Result<Self, AuthorityError> {
        let body = serde_json::to_vec(body);
        let body = body.map_err(|error| {
            AuthorityError::unreachable(format!("the request cannot be written: {error}"))
        })?;
        Ok(Self { body: Some(body), ..self })
    }
}

/// The servers, and the connections to them.
#[derive(Debug)]
pub struct Servers {
    bases: Vec<String>,
    tenant: Option<String>,
    beats: LaneClient,
    work: LaneClient,
    waits: LaneClient,
}

/// Connections, and the server that answered last over them.
#[derive(Debug)]
struct LaneClient {
    http: Client,
    preferred: AtomicUsize,
}

impl Servers {
    pub fn new(config: &HttpConfig) -> Result<Self, HttpError> {
        let urls = transport::server_urls(&config.servers)?;
        let bases = urls.iter().map(transport::base).collect();
        let lane = || {
            let http = client(config, &urls, Some(CONNECT_MAX))?;
            Ok::<_, HttpError>(LaneClient { http, preferred: AtomicUsize::new(0) })
        };
        // A heartbeat has another one beside it where a server is away: its time is not cut.
        let beats = LaneClient { http: client(config, &urls, None)?, preferred: AtomicUsize::new(0) };
        let tenant = config.tenant.clone().filter(|tenant| !tenant.is_empty());
        Ok(Self { bases, tenant, beats, work: lane()?, waits: lane()? })
    }

    /// Asks the servers in turn until one gives an outcome. One that is slow, or hangs, holds up nothing: the next one
    /// is asked beside it, and the first outcome counts. A wait in line is not begun twice.
    pub async fn ask<T: DeserializeOwned>(&self, lane: Lane, call: &Call) -> Reply<T> {
        let (lane, is_wait) = match lane {
            Lane::Beats => (&self.beats, false),
            Lane::Work => (&self.work, false),
            Lane::Waits => (&self.waits, true),
        };
        let first = lane.preferred.load(Ordering::Relaxed) + call.beside as usize;
        // The sender of a heartbeat sends the next one beside it.
        let turns = ServerOrder { first, beside: !is_wait && !call.once && call.in_all.is_none() };
        let asked = self.ask_from(lane, call, turns, 0);
        let asked = match call.in_all {
            Some(in_all) => timeout(in_all, asked)
                .await
                .map_err(|_| AuthorityError::Unknown(format!("no answer within {in_all:?}")))?,
            None => asked.await,
        };
        let (at, outcome) = asked.map_err(summed_up)?;
        let bytes = match outcome {
            Ok(bytes) => bytes,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let text: &[u8] = if bytes.trim_ascii().is_empty() { b"null" } else { &bytes };
        let odd = |error| {
            AuthorityError::Unknown(format!("{} gave an unexpected answer ({error})", self.bases[at]))
        };
        Ok(Ok(serde_json::from_slice(text).map_err(odd)?))
    }

    /// Asks the server whose turn it is, and those after it when it has failed, or is slow.
    fn ask_from<'a>(
        &'a self,
        lane: &'a LaneClient,
        call: &'a Call,
        turns: ServerOrder,
        turn: usize,
    ) -> Asking<'a> {
        Box::pin(async move {
            let at = (turns.first + turn) % self.bases.len();
            let is_last = turn + 1 >= self.bases.len();
            let mut own = pin!(self.ask_one(lane, call, at));
            let others = || self.ask_from(lane, call, turns, turn + 1);
            let in_time = if is_last || !turns.beside {
                Some(own.as_mut().await)
            } else {
                timeout(BESIDE_AFTER, own.as_mut()).await.ok()
            };
            let failed = match in_time {
                Some(Ok(outcome)) => return Ok((at, outcome)),
                Some(Err(error)) if is_last => return Err(vec![error]),
                Some(Err(error)) if call.once && matches!(error, AuthorityError::Unknown(_)) => {
                    return Err(vec![error]);
                }
                Some(Err(error)) => return others().await.map_err(|more| chained(error, more)),
                None => {
                    let mut others = others();
                    tokio::select! {
                        outcome = own.as_mut() => match outcome {
                            Ok(outcome) => return Ok((at, outcome)),
                            Err(error) => return others.await.map_err(|more| chained(error, more)),
                        },
                        outcome = others.as_mut() => match outcome {
                            Ok(outcome) => return Ok(outcome),
                            Err(failed) => failed,
                        },
                    }
                }
            };
            own.await.map(|outcome| (at, outcome)).map_err(|error| chained(error, failed))
        })
    }

    /// Asks one server, and notes whether to begin with it the next time.
    async fn ask_one(&self, lane: &LaneClient, call: &Call, at: usize) -> Reply<Vec<u8>> {
        let answered = answer(&self.bases[at], self.request(lane, at, call), call.within).await;
        if answered.is_ok() {
            lane.preferred.store(at, Ordering::Relaxed);
        } else {
            // The next request begins with another server than the one that just failed.
            let next = (at + 1) % self.bases.len();
            let _ = lane.preferred.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        answered
    }

    /// Asks the servers in turn until one begins to answer; the rest of the answer comes as a stream.
    pub async fn stream(&self, call: &Call) -> Reply<Response> {
        let lane = &self.waits;
        let first = lane.preferred.load(Ordering::Relaxed);
        let mut failures: Vec<AuthorityError> = Vec::new();
        for turn in 0..self.bases.len() {
            let at = (first + turn) % self.bases.len();
            let url = transport::url(&self.bases[at], &call.path, &self.query(call));
            let sent = lane.http.request(call.method.clone(), url).send();
            let slow = || {
                AuthorityError::unreachable(format!(
                    "{} did not answer within {:?}",
                    self.bases[at], call.within
                ))
            };
            let response = match tokio::time::timeout(call.within, sent).await {
                Err(_) => Err(slow()),
                Ok(Err(error)) => Err(lost(transport::no_answer(&self.bases[at], &error, call.within).await)),
                Ok(Ok(response)) => Ok(response),
            };
            match response {
                Ok(response) if response.status().is_success() => {
                    lane.preferred.store(at, Ordering::Relaxed);
                    return Ok(Ok(response));
                }
                Ok(response) => {
                    let status = response.status();
                    let body = tokio::time::timeout(call.within, response.bytes()).await;
                    let bytes = body.ok().and_then(Result::ok).unwrap_or_default();
                    match refused::<Response>(&self.bases[at], status, &bytes) {
                        Ok(outcome) => return Ok(outcome),
                        Err(error) => failures.push(error),
                    }
                }
                Err(error) => failures.push(error),
            }
        }
        Err(summed_up(failures))
    }

    /// Whether the servers are asked for one tenant.
    pub fn has_tenant(&self) -> bool {
        self.tenant.is_some()
    }

    fn query(&self, call: &Call) -> Vec<(&'static str, String)> {
        let mut query = call.query.clone();
        query.extend(self.tenant.clone().map(|tenant| ("tenant", tenant)));
        query
    }

    fn request(&self, lane: &LaneClient, at: usize, call: &Call) -> RequestBuilder {
        let url = transport::url(&self.bases[at], &call.path, &self.query(call));
        let mut request = lane.http.request(call.method.clone(), url).timeout(call.within);
        if let Some(id) = call.opens {
            request = request.header(IDEMPOTENCY_KEY, id.to_string());
        }
        match &call.body {
            Some(body) => request.header(header::CONTENT_TYPE, "application/json").body(body.clone()),
            None => request,
        }
    }
}

/// In which order servers are asked.
#[derive(Debug, Clone, Copy)]
struct ServerOrder {
    first: usize,
    /// The next one is asked beside one that is slow, and not only after it.
    beside: bool,
}

/// The server that gave the outcome, and the outcome; otherwise what became of each.
type Asking<'a> = Pin<
    Box<
        dyn Future<Output = Result<(usize, Result<Vec<u8>, RefusalReason>), Vec<AuthorityError>>> + Send + 'a,
    >,
>;

fn chained(first: AuthorityError, more: Vec<AuthorityError>) -> Vec<AuthorityError> {
    std::iter::once(first).chain(more).collect()
}

/// One server's answer.
async fn answer(base: &str, request: RequestBuilder, within: Duration) -> Reply<Vec<u8>> {
    let sent = async {
        let response = request.send().await?;
        Ok((response.status(), response.bytes().await?.to_vec()))
    };
    let (status, bytes) = match sent.await {
        Ok(answered) => answered,
        Err(error) => return Err(lost(transport::no_answer(base, &error, within).await)),
    };
    if status.is_success() {
        return Ok(Ok(bytes));
    }
    refused(base, status, &bytes)
}

/// What a server says that does not do what it was asked.
fn refused<T>(base: &str, status: StatusCode, bytes: &[u8]) -> Reply<T> {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => judged(problem),
        Err(_) if status.is_server_error() => {
            Err(AuthorityError::Unknown(format!("{base} answered {status} without saying why")))
        }
        Err(_) => {
            let why = format!("{base} answered {status}: is it a solehold server?");
            // Something in front of the server wants to know who asks.
            let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            Err(if is_denied {
                AuthorityError::Denied { why, retry_after: None }
            } else {
                AuthorityError::unreachable(why)
            })
        }
    }
}

/// Whether a problem is a refusal, or says that there is no outcome.
pub fn judged<T>(problem: Problem) -> Reply<T> {
    let why = || format!("{}: {}", problem.code, problem.detail);
    let retry_after = problem.retry_after_ms.map(Duration::from_millis);
    match problem.code {
        ErrorCode::Unavailable | ErrorCode::Overloaded | ErrorCode::TooManyRequests => {
            Err(AuthorityError::Unreachable { why: why(), retry_after, obstacle: None })
        }
        ErrorCode::UnknownOutcome | ErrorCode::Internal => Err(AuthorityError::Unknown(why())),
        _ => Ok(Err(RefusalReason::from(problem))),
    }
}

fn lost(no_answer: NoAnswer) -> AuthorityError {
    let NoAnswer { why, is_undone, obstacle } = no_answer;
    if is_undone {
        AuthorityError::Unreachable { why, retry_after: None, obstacle }
    } else {
        AuthorityError::Unknown(why)
    }
}

/// One error of all: unknown if any of them is, otherwise a refusal if any of them is.
fn summed_up(failures: Vec<AuthorityError>) -> AuthorityError {
    let retry_after = failures.iter().filter_map(AuthorityError::retry_after).max();
    let obstacle = failures.iter().filter_map(AuthorityError::obstacle).max();
    let is_unknown = failures.iter().any(|error| matches!(error, AuthorityError::Unknown(_)));
    let is_denied = failures.iter().any(|error| matches!(error, AuthorityError::Denied { .. }));
    let why = failures.iter().map(AuthorityError::why).collect::<Vec<_>>().join("; ");
    match (is_unknown, is_denied) {
        (true, _) => AuthorityError::Unknown(why),
        (false, true) => AuthorityError::Denied { why, retry_after },
        (false, false) => AuthorityError::Unreachable { why, retry_after, obstacle },
    }
}

fn client(config: &HttpConfig, urls: &[Url], connect_within: Option<Duration>) -> Result<Client, HttpError> {
    let api_key = config.api_key.as_ref().map(|key| key.expose_secret()).filter(|key| !key.is_empty());
    let builder = transport::builder(urls, api_key, config.ca_certs.as_deref())?
        .tcp_nodelay(true)
        .user_agent(concat!("solehold-client/", env!("CARGO_PKG_VERSION")));
    let builder = match connect_within {
        Some(within) => builder.connect_timeout(within),
        None => builder,
    };
    builder.build().map_err(|error| HttpError(root_cause(&error)))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn refused(servers: &[&str]) -> String {
        Servers::new(&HttpConfig::new(servers.to_vec())).expect_err("odd").to_string()
    }

    #[test]
    fn odd_servers_are_named() {
        assert!(refused(&[]).starts_with("0 servers are given"));
        assert!(refused(&["http://ok:1", "ftp://x"]).contains("\"ftp://x\" is neither http:// nor https://"));
        assert!(refused(&["http://a/?b=c"]).contains("query"));
        let secret = refused(&["http://me:hunter2@host"]);
        assert!(secret.contains("use an API key") && !secret.contains("hunter2"), "{secret}");
        let config = HttpConfig { ca_certs: Some(b"nonsense".to_vec()), ..HttpConfig::new(["http://a"]) };
        assert!(Servers::new(&config).is_err());
        let config = HttpConfig { api_key: Some("a\nb".into()), ..HttpConfig::new(["http://a"]) };
        assert!(!Servers::new(&config).expect_err("odd").to_string().contains("a\nb"));
    }

    /// It accepts connections, as a process that is stopped does, and never answers.
    #[tokio::test]
    async fn a_server_that_hangs_is_not_waited_for_alone() {
        let hangs = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let answers = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let urls = [&hangs, &answers].map(|server| server.local_addr().expect("bound").to_string());
        let answering = tokio::spawn(async move {
            loop {
                let (mut stream, _) = answers.accept().await.expect("a connection");
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7").await;
            }
        });
        let servers = Servers::new(&HttpConfig::new(urls)).expect("good");
        let call = || Call::new(Method::GET, "/x".to_owned()).within(Duration::from_secs(3_600));
        for lane in [Lane::Work, Lane::Beats] {
            let asked = timeout(Duration::from_secs(60), servers.ask::<u64>(lane, &call())).await;
            assert_eq!(asked.expect("the other one answers"), Ok(Ok(7)));
        }
        let beside = timeout(BESIDE_AFTER * 3, servers.ask::<u64>(Lane::Waits, &call())).await;
        assert!(beside.is_err(), "nobody waits in line twice");
        answering.abort();
    }

    #[test]
    fn unknown_outweighs_unreachable() {
        let unknown = AuthorityError::Unknown("lost".to_owned());
        let away = AuthorityError::unreachable("away");
        assert_eq!(summed_up(vec![away.clone(), unknown]), AuthorityError::Unknown("away; lost".to_owned()));
        assert_eq!(summed_up(vec![away.clone()]), away);
        let denied = AuthorityError::Denied { why: "who?".to_owned(), retry_after: None };
        let both = AuthorityError::Denied { why: "away; who?".to_owned(), retry_after: None };
        assert_eq!(summed_up(vec![away, denied]), both);
    }

    #[test]
    fn a_problem_is_a_refusal_or_no_outcome() {
        let judge = |code| judged::<()>(Problem::new(code, "why"));
        assert!(matches!(judge(ErrorCode::Unavailable), Err(AuthorityError::Unreachable { .. })));
        assert!(matches!(judge(ErrorCode::UnknownOutcome), Err(AuthorityError::Unknown(_))));
        assert!(matches!(judge(ErrorCode::Held), Ok(Err(refusal)) if refusal.is_worth_another_try()));
        assert!(matches!(judge(ErrorCode::Unauthorized), Ok(Err(refusal)) if !refusal.ends_session()));
    }
}
