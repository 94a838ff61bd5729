//! Several servers, one after the other: the one that answered last is asked first.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use reqwest::{Certificate, Client, Method, RequestBuilder, Url, header};
use secrecy::ExposeSecret;
use serde::{Serialize, de::DeserializeOwned};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
};

use super::{HttpConfig, HttpError};
use crate::authority::{AuthorityError, Refusal, Reply};

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Most servers that may be configured.
const SERVERS_MAX: usize = 32;

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

/// A request, before it is known whom it goes to.
#[derive(Debug, Clone)]
pub struct Call {
    method: Method,
    path: String,
    body: Option<Vec<u8>>,
    within: Duration,
    once: bool,
    /// The parts of the query string.
    pub query: Vec<(&'static str, String)>,
}

impl Call {
    pub fn new(method: Method, path: String) -> Self {
        Self { method, path, body: None, within: Duration::from_secs(5), once: false, query: Vec::new() }
    }

    /// How long one server may take to answer.
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Nobody else is asked when the outcome is unknown: a repeat would not be known as one.
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }

    pub fn body(self, body: &impl Serialize) -> Result<Self, AuthorityError> {
        let body = serde_json::to_vec(body);
        let body = body.map_err(|error| unreachable(format!("the request cannot be written: {error}")))?;
        Ok(Self { body: Some(body), ..self })
    }
}

fn unreachable(why: String) -> AuthorityError {
    AuthorityError::Unreachable { why, retry_after: None }
}

/// The servers, and who shows which key to them.
#[derive(Debug)]
pub struct Servers {
    bases: Vec<String>,
    tenant: Option<String>,
    beats: Way,
    work: Way,
    waits: Way,
}

/// Connections, and the server that answered last over them.
#[derive(Debug)]
struct Way {
    http: Client,
    preferred: AtomicUsize,
}

impl Servers {
    pub fn new(config: &HttpConfig) -> Result<Self, HttpError> {
        if config.servers.is_empty() || config.servers.len() > SERVERS_MAX {
            let count = config.servers.len();
            return Err(HttpError(format!("{count} servers are given: name 1 to {SERVERS_MAX}")));
        }
        let urls: Vec<Url> = config.servers.iter().map(|url| checked_url(url)).collect::<Result<_, _>>()?;
        let bases = urls.iter().map(|url| url.as_str().trim_end_matches('/').to_owned()).collect();
        let way = || Ok::<_, HttpError>(Way { http: client(config, &urls)?, preferred: AtomicUsize::new(0) });
        let tenant = config.tenant.clone().filter(|tenant| !tenant.is_empty());
        Ok(Self { bases, tenant, beats: way()?, work: way()?, waits: way()? })
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.bases.len() as u32
    }

    /// Asks the servers in turn until one gives an outcome.
    pub async fn ask<T: DeserializeOwned>(&self, lane: Lane, call: &Call) -> Reply<T> {
        let way = match lane {
            Lane::Beats => &self.beats,
            Lane::Work => &self.work,
            Lane::Waits => &self.waits,
        };
        let first = way.preferred.load(Ordering::Relaxed);
        let mut failures: Vec<AuthorityError> = Vec::new();
        for turn in 0..self.bases.len() {
            let at = (first + turn) % self.bases.len();
            match answer(&self.bases[at], self.request(way, at, call)).await {
                Ok(outcome) => {
                    way.preferred.store(at, Ordering::Relaxed);
                    return Ok(outcome);
                }
                Err(error) => {
                    // Whoever asks next begins with another server than one that just failed.
                    let next = (at + 1) % self.bases.len();
                    let _ = way.preferred.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
                    let is_unknown = matches!(error, AuthorityError::Unknown(_));
                    failures.push(error);
                    if is_unknown && call.once {
                        break;
                    }
                }
            }
        }
        Err(summed_up(failures))
    }

    fn request(&self, way: &Way, at: usize, call: &Call) -> RequestBuilder {
        let mut query = call.query.clone();
        query.extend(self.tenant.clone().map(|tenant| ("tenant", tenant)));
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", paths::segment(value))).collect();
        let question = if query.is_empty() { "" } else { "?" };
        let url = format!("{}{}{question}{}", self.bases[at], call.path, query.join("&"));
        let request = way.http.request(call.method.clone(), url).timeout(call.within);
        match &call.body {
            Some(body) => request.header(header::CONTENT_TYPE, "application/json").body(body.clone()),
            None => request,
        }
    }
}

/// One server's answer.
async fn answer<T: DeserializeOwned>(base: &str, request: RequestBuilder) -> Reply<T> {
    let response = request.send().await.map_err(|error| lost(base, &error))?;
    let status = response.status();
    let bytes = response.bytes().await.map_err(|error| lost(base, &error))?;
    if status.is_success() {
        let text: &[u8] = if bytes.trim_ascii().is_empty() { b"null" } else { &bytes };
        let odd = |error| AuthorityError::Unknown(format!("{base} answered something odd ({error})"));
        return Ok(Ok(serde_json::from_slice(text).map_err(odd)?));
    }
    match serde_json::from_slice::<Problem>(&bytes) {
        Ok(problem) => judged(problem),
        Err(_) if status.is_server_error() => {
            Err(AuthorityError::Unknown(format!("{base} answered {status} without saying why")))
        }
        Err(_) => Err(unreachable(format!("{base} answered {status}: is it a solehold server?"))),
    }
}

/// Whether a problem is a refusal, or says that there is no outcome.
pub fn judged<T>(problem: Problem) -> Reply<T> {
    let why = || format!("{}: {}", problem.code, problem.detail);
    let retry_after = problem.retry_after_ms.map(Duration::from_millis);
    match problem.code {
        ErrorCode::Unavailable | ErrorCode::Overloaded | ErrorCode::TooManyRequests => {
            Err(AuthorityError::Unreachable { why: why(), retry_after })
        }
        ErrorCode::UnknownOutcome | ErrorCode::Internal => Err(AuthorityError::Unknown(why())),
        _ => Ok(Err(Refusal::from(problem))),
    }
}

/// No answer: nothing was done if no connection was made, otherwise nobody knows.
fn lost(base: &str, error: &reqwest::Error) -> AuthorityError {
    if error.is_connect() {
        return unreachable(format!("nobody answers at {base} ({})", deepest(error)));
    }
    let why = if error.is_timeout() { "no answer in time".to_owned() } else { deepest(error) };
    AuthorityError::Unknown(format!("{base}: {why}"))
}

/// What lies at the bottom of an error, which says most.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let text = deepest.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// One error of all: unknown if any of them is.
fn summed_up(failures: Vec<AuthorityError>) -> AuthorityError {
    let retry_after = failures.iter().filter_map(AuthorityError::retry_after).max();
    let is_unknown = failures.iter().any(|error| matches!(error, AuthorityError::Unknown(_)));
    let said = failures.into_iter().map(|error| match error {
        AuthorityError::Unreachable { why, .. } | AuthorityError::Unknown(why) => why,
    });
    let why = said.collect::<Vec<_>>().join("; ");
    if is_unknown { AuthorityError::Unknown(why) } else { AuthorityError::Unreachable { why, retry_after } }
}

fn checked_url(server: &str) -> Result<Url, HttpError> {
    let odd = |why: String| HttpError(format!("server {server:?} {why}, as in http://127.0.0.1:7070"));
    let url = Url::parse(server).map_err(|error| odd(format!("is not a URL ({error}): write one")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(odd("is neither http:// nor https://: write one of them".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // The URL is left out: it has a secret in it.
        return Err(HttpError("a server's URL has a user or password in it: use api_key".to_owned()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(odd("has a query or a fragment: leave it out".to_owned()));
    }
    Ok(url)
}

fn client(config: &HttpConfig, urls: &[Url]) -> Result<Client, HttpError> {
    let mut headers = header::HeaderMap::new();
    if let Some(key) = config.api_key.as_ref().filter(|key| !key.expose_secret().is_empty()) {
        let bearer = header::HeaderValue::try_from(format!("Bearer {}", key.expose_secret()));
        let odd = |_| HttpError("the API key has characters that no key has".to_owned());
        let mut bearer = bearer.map_err(odd)?;
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
    }
    let mut builder = Client::builder()
        .connect_timeout(CONNECT_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .default_headers(headers)
        .user_agent(concat!("solehold-client/", env!("CARGO_PKG_VERSION")));
    if urls.iter().all(is_loopback) {
        // A proxy has its own loopback.
        builder = builder.no_proxy();
    }
    if let Some(pem) = &config.ca_certs {
        let odd = |error: reqwest::Error| HttpError(format!("ca_certs is no PEM: {}", deepest(&error)));
        let certs = Certificate::from_pem_bundle(pem).map_err(odd)?;
        if certs.is_empty() {
            return Err(HttpError("ca_certs has no certificate in it: give PEM".to_owned()));
        }
        builder = builder.tls_certs_merge(certs);
    }
    builder.build().map_err(|error| HttpError(deepest(&error)))
}

fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
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
        assert!(secret.contains("use api_key") && !secret.contains("hunter2"), "{secret}");
        let config = HttpConfig { ca_certs: Some(b"nonsense".to_vec()), ..HttpConfig::new(["http://a"]) };
        assert!(Servers::new(&config).is_err());
        let config = HttpConfig { api_key: Some("a\nb".into()), ..HttpConfig::new(["http://a"]) };
        assert!(!Servers::new(&config).expect_err("odd").to_string().contains("a\nb"));
    }

    #[test]
    fn unknown_outweighs_unreachable() {
        let unknown = AuthorityError::Unknown("lost".to_owned());
        let away = unreachable("away".to_owned());
        assert_eq!(summed_up(vec![away.clone(), unknown]), AuthorityError::Unknown("away; lost".to_owned()));
        assert_eq!(summed_up(vec![away.clone()]), away);
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
