//! Requests to one server, or to several over one store: the one that answered last is asked first.
//!
//! The pool knows HTTP and the API's problem documents, and nothing of leases: what a failure means is up to its user
//! ([`PoolOptions::effect`]): the library's own requests here, and the command line elsewhere.

use std::{
    pin::{Pin, pin},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

pub use reqwest::{Body, Method, Response, StatusCode};
use reqwest::{Client, RequestBuilder, header};
use secrecy::ExposeSecret;
use serde::{Serialize, de::DeserializeOwned};
use solehold_api::{paths, problem::Problem, sessions::IDEMPOTENCY_KEY};
use solehold_core::key::SessionId;
use solehold_trace::{Span, SpanKind, TRACEPARENT, TraceContext};
use tokio::time::timeout;

pub use super::no_answer::NoAnswer;
use super::{
    config::HttpConfig,
    error::{HttpError, root_cause},
    no_answer::no_answer,
    transport,
};

/// A server that has not answered for this long is no longer waited for alone, where requests may race.
pub(super) const BESIDE_AFTER: Duration = Duration::from_millis(500);

/// A problem may list the faults of each item of a batch.
const PROBLEM_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A request, before a server is chosen for it.
#[derive(Debug)]
pub struct Call {
    method: Method,
    path: String,
    /// As JSON, or why it cannot be written as such.
    body: Option<serde_json::Result<Vec<u8>>>,
    within: Duration,
    /// How long all servers may take together.
    in_all: Option<Duration>,
    /// The first server to ask, counted from the one that answered last.
    beside: u32,
    once: bool,
    /// The next server is asked beside one that is slow, if the pool's requests [race](PoolOptions::races).
    races: bool,
    /// The id of the session that it opens.
    opens: Option<SessionId>,
    pub query: Vec<(&'static str, String)>,
}

impl Call {
    /// A request that each server has to answer `within`; a stream has to begin by then.
    pub fn new(method: Method, path: String, within: Duration) -> Self {
        Self {
            method,
            path,
            body: None,
            within,
            in_all: None,
            beside: 0,
            once: false,
            races: true,
            opens: None,
            query: Vec::new(),
        }
    }

    /// How long all servers may take together: the first one may use all of it, since the caller sends the next request
    /// beside it. `beside` servers are passed over at first: they are being asked already.
    pub(super) fn in_all(self, beside: u32) -> Self {
        Self { in_all: Some(self.within), beside, races: false, ..self }
    }

    /// The caller sends no other request beside it.
    pub(super) fn racing(self) -> Self {
        Self { races: true, ..self }
    }

    /// No other server is asked when the outcome is unknown: it could not tell that the request is a repeat.
    #[must_use]
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }

    /// It opens the session with this id: any server can tell a repeat by it.
    pub(super) fn idempotent(self, opens: SessionId) -> Self {
        Self { opens: Some(opens), ..self }
    }

    #[must_use]
    pub fn body(self, body: &impl Serialize) -> Self {
        Self { body: Some(serde_json::to_vec(body)), ..self }
    }
}

/// What the failure of one server says about the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It has had no effect: another server may be asked.
    None,
    /// It may have had an effect: another server is asked only if a repeat does no harm.
    Unknown,
    /// This is the answer.
    Settled,
}

/// Why one server did not do what it was asked.
#[derive(Debug, Clone)]
pub enum Failure {
    /// It says why.
    Problem(Box<Problem>),
    /// It answered, and not as a Solehold server does.
    Unexplained {
        base: String,
        status: StatusCode,
    },
    NoAnswer(NoAnswer),
}

/// How a pool connects and what it repeats.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    pub connect_timeout: Option<Duration>,
    /// What the servers' logs show.
    pub user_agent: &'static str,
    /// The next server is asked beside one that is slow, and not only after it; never a request that is sent
    /// [once](Call::once).
    pub races: bool,
    /// Which failures another server may make good.
    pub effect: fn(&Failure) -> Effect,
}

#[derive(Debug)]
pub struct ServerAnswer {
    pub base: String,
    body: Vec<u8>,
}

impl ServerAnswer {
    /// Its JSON; an empty body is null.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(if self.body.trim_ascii().is_empty() { b"null" } else { &self.body })
    }
}

/// Connections to servers, and which of them answered last.
#[derive(Debug)]
pub struct Pool {
    http: Client,
    bases: Vec<String>,
    tenant: Option<String>,
    preferred: AtomicUsize,
    options: PoolOptions,
}

impl Pool {
    /// Checks the configuration. No server is asked yet.
    pub fn new(config: &HttpConfig, options: PoolOptions) -> Result<Self, HttpError> {
        let urls = transport::server_urls(&config.servers)?;
        let api_key = config.api_key.as_ref().map(|key| key.expose_secret()).filter(|key| !key.is_empty());
        let mut http = transport::builder(&urls, api_key, config.ca_certs.as_deref())?
            .tcp_nodelay(true)
            .user_agent(options.user_agent);
        if let Some(time) = options.connect_timeout {
            http = http.connect_timeout(time);
        }
        Ok(Self {
            http: http.build().map_err(|error| HttpError::Client(root_cause(&error)))?,
            bases: urls.iter().map(transport::base).collect(),
            tenant: config.tenant.clone().filter(|tenant| !tenant.is_empty()),
            preferred: AtomicUsize::new(0),
            options,
        })
    }

    /// The tenant that the servers are asked for.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// The URL of the server that is asked first.
    pub fn base(&self) -> &str {
        &self.bases[self.preferred.load(Ordering::Relaxed)]
    }

    /// Asks the servers in turn until one settles it. The failures of all that were asked, otherwise; just the one that
    /// settles it, if there is one.
    pub async fn ask(&self, call: &Call) -> Result<ServerAnswer, Vec<Failure>> {
        let (at, body) = self.in_turn(call, whole).await?;
        Ok(ServerAnswer { base: self.bases[at].clone(), body })
    }

    /// The same; the answer is read by the caller, for as long as it takes.
    pub async fn stream(&self, call: &Call) -> Result<Response, Vec<Failure>> {
        Ok(self.in_turn(call, |response| Box::pin(async { Ok(response) })).await?.1)
    }

    /// Sends a long body, which cannot be sent twice, to a server that answers within that time.
    pub async fn upload(
        &self,
        path: &str,
        body: Body,
        within: Duration,
    ) -> Result<ServerAnswer, Vec<Failure>> {
        let ServerAnswer { base, .. } =
            self.ask(&Call::new(Method::GET, paths::HEALTH.to_owned(), within)).await?;
        let call = Call::new(Method::POST, path.to_owned(), Duration::MAX);
        let request = self.request(&base, &call).header(header::CONTENT_TYPE, "application/x-ndjson");
        let body = exchange(&base, request.body(body), call.within, whole).await;
        Ok(ServerAnswer { body: body.map_err(|failure| vec![failure])?, base })
    }

    async fn in_turn<T: Send>(&self, call: &Call, read: Read<T>) -> Result<(usize, T), Vec<Failure>> {
        let first = self.preferred.load(Ordering::Relaxed) + call.beside as usize;
        let asked = self.ask_from(call, read, first, 0);
        let settled = match call.in_all {
            Some(in_all) => timeout(in_all, asked).await.unwrap_or_else(|_| {
                Err(vec![Failure::NoAnswer(NoAnswer::unknown(format!("no answer within {in_all:?}")))])
            }),
            None => asked.await,
        };
        let (at, outcome) = settled?;
        Ok((at, outcome.map_err(|failure| vec![failure])?))
    }

    /// Asks the server whose turn it is, and those after it when it has failed, or is slow.
    fn ask_from<'a, T: Send + 'a>(
        &'a self,
        call: &'a Call,
        read: Read<T>,
        first: usize,
        turn: usize,
    ) -> Asking<'a, T> {
        Box::pin(async move {
            let at = (first + turn) % self.bases.len();
            let is_last = turn + 1 >= self.bases.len();
            let races = self.options.races && !call.once && call.races;
            let mut own = pin!(self.ask_one(call, read, at));
            let others = || self.ask_from(call, read, first, turn + 1);
            let in_time = if is_last || !races {
                Some(own.as_mut().await)
            } else {
                timeout(BESIDE_AFTER, own.as_mut()).await.ok()
            };
            let failed = match in_time {
                Some(Ok(outcome)) => return Ok((at, outcome)),
                Some(Err(failure)) if is_last => return Err(vec![failure]),
                Some(Err(failure)) if call.once && (self.options.effect)(&failure) == Effect::Unknown => {
                    return Err(vec![failure]);
                }
                Some(Err(failure)) => return others().await.map_err(|more| chained(failure, more)),
                None => {
                    let mut others = others();
                    tokio::select! {
                        outcome = own.as_mut() => match outcome {
                            Ok(outcome) => return Ok((at, outcome)),
                            Err(failure) => return others.await.map_err(|more| chained(failure, more)),
                        },
                        outcome = others.as_mut() => match outcome {
                            Ok(outcome) => return Ok(outcome),
                            Err(failed) => failed,
                        },
                    }
                }
            };
            own.await.map(|outcome| (at, outcome)).map_err(|failure| chained(failure, failed))
        })
    }

    /// Asks one server, and notes whether to begin with it the next time. What it answered if that settles it.
    async fn ask_one<T>(&self, call: &Call, read: Read<T>, at: usize) -> Result<Result<T, Failure>, Failure> {
        let base = &self.bases[at];
        let parent = solehold_trace::current();
        let mut span = Span::begin(SpanKind::Client, parent, || call.method.to_string().into());
        if span.is_recorded() {
            span.set("http.request.method", call.method.to_string());
            span.set("url.path", call.path.clone());
            span.set("server.address", base.clone());
        }
        let context = span.context().or(parent);
        let answered = match &call.body {
            Some(Err(error)) => {
                let why = format!("the request cannot be written: {error}");
                Err(Failure::NoAnswer(NoAnswer { why, is_undone: true, obstacle: None }))
            }
            Some(Ok(body)) => {
                let request = traced(self.request(base, call), context);
                let request = request.header(header::CONTENT_TYPE, "application/json");
                exchange(base, request.body(body.clone()), call.within, read).await
            }
            None => exchange(base, traced(self.request(base, call), context), call.within, read).await,
        };
        if answered.is_err() {
            span.fail();
        }
        drop(span);
        match answered {
            Err(failure) if (self.options.effect)(&failure) != Effect::Settled => {
                // The next request begins with another server than the one that just failed.
                let next = (at + 1) % self.bases.len();
                let _ = self.preferred.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
                Err(failure)
            }
            outcome => {
                self.preferred.store(at, Ordering::Relaxed);
                Ok(outcome)
            }
        }
    }

    fn request(&self, base: &str, call: &Call) -> RequestBuilder {
        let tenant = self.tenant.as_ref().map(|tenant| ("tenant", tenant.clone()));
        let query: Vec<_> = call.query.iter().cloned().chain(tenant).collect();
        let request = self.http.request(call.method.clone(), transport::url(base, &call.path, &query));
        match call.opens {
            Some(id) => request.header(IDEMPOTENCY_KEY, id.to_string()),
            None => request,
        }
    }
}

/// A request that says which span it belongs to.
fn traced(request: RequestBuilder, context: Option<TraceContext>) -> RequestBuilder {
    match context {
        Some(context) => request.header(TRACEPARENT, context.to_string()),
        None => request,
    }
}

/// Reads as much of a response as has to be there in time.
type Read<T> = fn(Response) -> Pin<Box<dyn Future<Output = reqwest::Result<T>> + Send>>;

/// The server that settled it, and how; otherwise what became of each.
type Asking<'a, T> =
    Pin<Box<dyn Future<Output = Result<(usize, Result<T, Failure>), Vec<Failure>>> + Send + 'a>>;

fn whole(response: Response) -> Pin<Box<dyn Future<Output = reqwest::Result<Vec<u8>>> + Send>> {
    Box::pin(async { Ok(response.bytes().await?.to_vec()) })
}

/// As much of a response as a problem document may have: what is longer is none.
async fn beginning(mut response: Response) -> reqwest::Result<Vec<u8>> {
    let mut body = Vec::new();
    while body.len() <= PROBLEM_BYTES_MAX
        && let Some(piece) = response.chunk().await?
    {
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn chained(first: Failure, more: Vec<Failure>) -> Vec<Failure> {
    std::iter::once(first).chain(more).collect()
}

/// One server's answer, if it is a success.
async fn exchange<T>(
    base: &str,
    request: RequestBuilder,
    within: Duration,
    read: Read<T>,
) -> Result<T, Failure> {
    let answered = async {
        let response = request.send().await?;
        let status = response.status();
        if status.is_success() {
            return Ok(Ok(read(response).await?));
        }
        Ok(Err((status, beginning(response).await?)))
    };
    match timeout(within, answered).await {
        Err(_) => Err(Failure::NoAnswer(NoAnswer::slow(base, within))),
        Ok(Err(error)) => Err(Failure::NoAnswer(no_answer(base, &error, within).await)),
        Ok(Ok(Ok(answer))) => Ok(answer),
        Ok(Ok(Err((status, body)))) => Err(match serde_json::from_slice(&body) {
            Ok(problem) => Failure::Problem(problem),
            Err(_) => Failure::Unexplained { base: base.to_owned(), status },
        }),
    }
}
