//! Sends requests to one server, or to several over one store: the next one only gets a request that was not carried
//! out, or one that only reads.

use std::{
    ffi::OsString,
    fs,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use clap::Args;
use reqwest::{Method, Response, Url, header};
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
use solehold_api::{
    admin::{Tenant, TenantList},
    page::PageCursor,
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_client::{
    Http, HttpConfig, HttpError, Obstacle,
    transport::{self, NoAnswer, root_cause},
};

use crate::{
    error::{Cause, CommandError, CommandResult},
    exit::Exit,
};

/// Where `solehold serve` listens without flags.
const DEFAULT: &str = "127.0.0.1:7070";
/// The default of `--timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A stream that is silent for this long is dead; a live one sends progress marks more often.
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Server to connect to, as HOST:PORT or a URL; several servers over one store are separated by commas and tried in
    /// turn [default: 127.0.0.1:7070]
    #[arg(long, global = true, hide_short_help = true, env = "SOLEHOLD_SERVER", value_name = "SERVER")]
    pub server: Option<String>,
    /// API key; prefer the variable, since other users can see the arguments of a process
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "SOLEHOLD_API_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    pub api_key: Option<String>,
    /// Tenant to act for, with a key that is valid for several
    #[arg(long, global = true, hide_short_help = true, env = "SOLEHOLD_TENANT", value_name = "NAME")]
    pub tenant: Option<String>,
    /// PEM file of a certificate to trust in addition to the system's: an authority's, or the server's own
    #[arg(long, global = true, hide_short_help = true, env = "SOLEHOLD_CA_CERT", value_name = "FILE")]
    pub ca_cert: Option<OsString>,
    /// Time to wait for a response [default: 10s]
    #[arg(long, global = true, hide_short_help = true, env = "SOLEHOLD_TIMEOUT", value_name = "TIME")]
    pub timeout: Option<String>,
}

impl ServerArgs {
    /// The options, by the names of their fields.
    pub const NAMES: [&str; 5] = ["server", "api_key", "tenant", "ca_cert", "timeout"];

    /// The same as variables, for another process of this binary.
    pub fn variables(&self) -> Vec<(String, OsString)> {
        let text = |text: &Option<String>| text.clone().map(OsString::from);
        let all = [
            ("SOLEHOLD_SERVER", text(&self.server)),
            ("SOLEHOLD_API_KEY", text(&self.api_key)),
            ("SOLEHOLD_TENANT", text(&self.tenant)),
            ("SOLEHOLD_CA_CERT", self.ca_cert.clone()),
            ("SOLEHOLD_TIMEOUT", text(&self.timeout)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// The client that keeps sessions.
    pub fn authority(&self) -> CommandResult<Http> {
        self.urls()?;
        let config = HttpConfig {
            api_key: given(&self.api_key).map(SecretString::from),
            tenant: given(&self.tenant),
            ca_certs: self.ca_certs()?,
            request_timeout: self.timeout()?,
            ..HttpConfig::new([self.servers()])
        };
        Http::new(config).map_err(odd_key)
    }

    fn timeout(&self) -> CommandResult<Duration> {
        let Some(text) = given(&self.timeout) else { return Ok(TIMEOUT) };
        let odd = |why: &dyn std::fmt::Display| CommandError::usage(format!("--timeout {text}: {why}"));
        match humantime::parse_duration(&text) {
            Ok(Duration::ZERO) => Err(odd(&"the timeout must be greater than zero")),
            Ok(time) => Ok(time),
            Err(error) => Err(odd(&error)),
        }
    }

    fn servers(&self) -> String {
        given(&self.server).unwrap_or_else(|| DEFAULT.to_owned())
    }

    /// The servers, one by one.
    pub fn urls(&self) -> CommandResult<Vec<Url>> {
        let urls = transport::server_urls([self.servers()]);
        urls.map_err(|error| CommandError::usage(format!("--server: {error}")))
    }

    fn ca_certs(&self) -> CommandResult<Option<Vec<u8>>> {
        let Some(path) = self.ca_cert.as_ref().filter(|path| !path.is_empty()).map(Path::new) else {
            return Ok(None);
        };
        let odd = |error: &dyn std::fmt::Display| {
            CommandError::usage(format!("--ca-cert {}: {error}; give a PEM file", path.display()))
        };
        let pem = fs::read(path).map_err(|error| odd(&error))?;
        transport::check_certificates(&pem).map_err(|error| odd(&error))?;
        Ok(Some(pem))
    }
}

/// Server and certificates have been checked, so what is left is the key.
fn odd_key(error: HttpError) -> CommandError {
    CommandError::usage(error.to_string()).hint("check --api-key or SOLEHOLD_API_KEY")
}

/// An empty flag or variable counts as not given.
fn given(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

/// A hint for a server that did not respond.
fn hint(cause: Cause) -> Option<&'static str> {
    match cause {
        Cause::Server(Obstacle::NoServer) => {
            Some("is `solehold serve` running there? --server or SOLEHOLD_SERVER names another")
        }
        Cause::Server(Obstacle::Untrusted) => {
            Some("--ca-cert FILE trusts it, or the authority that signed it")
        }
        _ => None,
    }
}

/// The error for a request that reached no server.
pub fn unreachable(why: impl Into<String>, obstacle: Option<Obstacle>) -> CommandError {
    let failure = CommandError::new(ErrorCode::Unavailable, why).caused_by(obstacle.map(Cause::Server));
    with_hint(failure)
}

fn with_hint(failure: CommandError) -> CommandError {
    match failure.cause.and_then(hint) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    bases: Vec<String>,
    /// The server that responded last.
    preferred: AtomicUsize,
    tenant: Option<String>,
    timeout: Duration,
}

/// The parameters of a query string; those without a value are left out.
pub type Query<'a> = &'a [(&'a str, Option<String>)];

/// One page of a list.
pub trait Page: DeserializeOwned {
    type Item;
    /// The items, and where the next page begins.
    fn into_parts(self) -> (Vec<Self::Item>, Option<PageCursor>);
}

impl Page for TenantList {
    type Item = Tenant;
    fn into_parts(self) -> (Vec<Tenant>, Option<PageCursor>) {
        (self.tenants, self.next)
    }
}

impl Client {
    pub fn new(args: &ServerArgs) -> CommandResult<Self> {
        let urls = args.urls()?;
        let bases = urls.iter().map(transport::base).collect();
        let key = given(&args.api_key);
        let ca_certs = args.ca_certs()?;
        let http = transport::builder(&urls, key.as_deref(), ca_certs.as_deref())
            .map_err(odd_key)?
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .user_agent(concat!("solehold/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| CommandError::broken(root_cause(&error)))?;
        let preferred = AtomicUsize::new(0);
        let tenant = given(&args.tenant);
        Ok(Self { http, bases, preferred, tenant, timeout: args.timeout()? })
    }

    /// The URL of the server that responded last.
    pub fn base(&self) -> &str {
        &self.bases[self.preferred.load(Ordering::Relaxed)]
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: Query<'_>) -> CommandResult<T> {
        self.call(Method::GET, path, query, None::<&()>).await
    }

    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> CommandResult<T> {
        self.call(method, path, &[], Some(body)).await
    }

    /// All items of a list, page by page, at most `limit`.
    pub async fn list<P: Page>(
        &self,
        path: &str,
        query: Query<'_>,
        limit: Option<usize>,
    ) -> CommandResult<Vec<P::Item>> {
        let limit = limit.unwrap_or(usize::MAX);
        let mut items = Vec::new();
        let mut cursor = None::<PageCursor>;
        while items.len() < limit {
            let size = (limit - items.len()).min(solehold_api::limits::PAGE_SIZE_MAX);
            let mut query = query.to_vec();
            query.extend([
                ("limit", Some(size.to_string())),
                ("cursor", cursor.as_ref().map(ToString::to_string)),
            ]);
            let (page, next) = self.get::<P>(path, &query).await?.into_parts();
            items.extend(page);
            cursor = match next {
                Some(next) => Some(next),
                None => break,
            };
        }
        items.truncate(limit);
        Ok(items)
    }

    /// Fails if `--tenant` names a tenant that does not exist. Called when a list of its resources is empty.
    pub async fn check_tenant(&self) -> CommandResult {
        let Some(tenant) = &self.tenant else { return Ok(()) };
        let is_known = match self.knows(tenant).await {
            Ok(is_known) => is_known,
            // Only an administrator of all tenants may read it.
            Err(failure) if failure.exit == Exit::Unauthorized => true,
            Err(failure) => return Err(failure),
        };
        if is_known {
            return Ok(());
        }
        let message = format!("tenant {tenant} does not exist: it has no resource, session, key or quota");
        Err(CommandError::new(ErrorCode::NotFound, message).hint("check --tenant and SOLEHOLD_TENANT"))
    }

    async fn knows(&self, tenant: &str) -> CommandResult<bool> {
        let found: Tenant = self.get(&paths::tenant(tenant), &[]).await?;
        if found.usage.resources > 0 || found.usage.sessions > 0 {
            return Ok(true);
        }
        let all = self.list::<TenantList>(&paths::tenants(), &[], None).await?;
        Ok(all.iter().any(|known| known.tenant == tenant))
    }

    /// Sends a request and parses the JSON of the response; an empty body is null.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: Query<'_>,
        body: Option<&impl Serialize>,
    ) -> CommandResult<T> {
        let is_read = method == Method::GET;
        let bytes = self.in_turn(is_read, async |base: &str| {
            let mut request = self.request(base, method.clone(), path, query).timeout(self.timeout);
            if let Some(body) = body {
                request = request.json(body);
            }
            self.read(base, self.answer(base, request).await?).await
        });
        self.parsed(&bytes.await?)
    }

    /// Opens a stream. It may last forever, but not be silent for longer than [`SILENCE_MAX`].
    pub async fn stream(&self, path: &str, query: Query<'_>) -> CommandResult<Response> {
        let ask = async |base: &str| self.answer(base, self.request(base, Method::GET, path, query)).await;
        self.in_turn(true, ask).await
    }

    /// Sends a long body that cannot be sent twice, and parses the JSON of the response.
    pub async fn upload<T: DeserializeOwned>(&self, path: &str, body: reqwest::Body) -> CommandResult<T> {
        let is_there = async |base: &str| {
            self.answer(base, self.http.get(format!("{base}/healthz")).timeout(self.timeout)).await
        };
        self.in_turn(true, is_there).await?;
        let base = self.base();
        let request =
            self.request(base, Method::POST, path, &[]).header(header::CONTENT_TYPE, "application/x-ndjson");
        let response = self.answer(base, request.body(body)).await?;
        self.parsed(&self.read(base, response).await?)
    }

    fn request(&self, base: &str, method: Method, path: &str, query: Query<'_>) -> reqwest::RequestBuilder {
        let tenant = [("tenant", self.tenant.clone())];
        let given = query.iter().chain(&tenant).filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        self.http.request(method, transport::url(base, path, &given.collect::<Vec<_>>()))
    }

    /// Tries one server after the other, starting with the one that responded last, until there is an outcome. If the
    /// outcome of an attempt is unknown, only a read is tried again.
    async fn in_turn<T>(
        &self,
        is_read: bool,
        ask: impl AsyncFn(&str) -> CommandResult<T>,
    ) -> CommandResult<T> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failures: Vec<CommandError> = Vec::new();
        for turn in 0..self.bases.len() {
            let at = (first + turn) % self.bases.len();
            let answer = ask(&self.bases[at]).await;
            let code = answer.as_ref().err().map(|failure| failure.problem.code);
            match answer {
                Err(failure) if matches!(code, Some(ErrorCode::Unavailable | ErrorCode::UnknownOutcome)) => {
                    failures.push(failure);
                }
                answer => {
                    self.preferred.store(at, Ordering::Relaxed);
                    return answer;
                }
            }
            if code == Some(ErrorCode::UnknownOutcome) && !is_read {
                break;
            }
        }
        Err(summed_up(failures))
    }

    /// The response, if it is a success; otherwise the problem that it reports.
    async fn answer(&self, base: &str, request: reqwest::RequestBuilder) -> CommandResult<Response> {
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Err(self.lost(base, &error).await),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = self.read(base, response).await?;
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(problem.into()),
            Err(_) => {
                let code =
                    if status.is_server_error() { ErrorCode::Unavailable } else { ErrorCode::Internal };
                let message = format!("{base} answered {status} without saying why");
                Err(CommandError::new(code, message).hint("is it a solehold server?"))
            }
        }
    }

    async fn read(&self, base: &str, response: Response) -> CommandResult<Vec<u8>> {
        match response.bytes().await {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err(self.lost(base, &error).await),
        }
    }

    /// The error for a request without a response: either nothing was done, or the outcome is unknown.
    async fn lost(&self, base: &str, error: &reqwest::Error) -> CommandError {
        let NoAnswer { why, is_undone, obstacle } = transport::no_answer(base, error, self.timeout).await;
        let code = if is_undone { ErrorCode::Unavailable } else { ErrorCode::UnknownOutcome };
        CommandError::new(code, why).caused_by(obstacle.map(Cause::Server))
    }

    fn parsed<T: DeserializeOwned>(&self, bytes: &[u8]) -> CommandResult<T> {
        let text: &[u8] = if bytes.trim_ascii().is_empty() { b"null" } else { bytes };
        serde_json::from_slice(text).map_err(|error| {
            let message = format!("{} gave an unexpected answer ({error})", self.base());
            CommandError::broken(message).hint("is this server a solehold of the same version?")
        })
    }
}

/// Combines the failures of all servers. The outcome is unknown if it is unknown for any of them.
fn summed_up(mut failures: Vec<CommandError>) -> CommandError {
    let messages: Vec<String> = failures.iter().map(|failure| failure.message.clone()).collect();
    let unknown = failures.iter().position(|failure| failure.problem.code == ErrorCode::UnknownOutcome);
    let at = unknown.unwrap_or(failures.len().saturating_sub(1));
    let cause = failures.iter().filter_map(|failure| failure.cause).max();
    with_hint(CommandError { message: messages.join("; "), cause, ..failures.swap_remove(at) })
}
