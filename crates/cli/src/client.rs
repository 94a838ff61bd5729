//! Requests to servers: the options that name them, and what their answers mean for a command.

use std::{ffi::OsString, ops::Deref, path::Path, time::Duration};

use clap::Args;
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
use solehold_api::{
    admin::{ApiKey, AuditEntry, AuditList, KeyList, Tenant, TenantList},
    leases::{LeaseBody, LeaseHistory, LeaseList},
    locks::{Lock, LockList},
    page::PageCursor,
    paths,
    problem::ErrorCode,
    resources::{ResourceBody, ResourceHistory, ResourceList},
    runners::{Runner, RunnerList},
    sessions::{Node, NodeList},
    watch::LeaseEvent,
};
use solehold_client::{
    Http, HttpConfig, HttpError, Obstacle,
    pool::{Call, Effect, Failure, NoAnswer, Pool, PoolOptions, Response, ServerAnswer},
    transport,
};
pub use solehold_client::{
    pool::{Body, Method},
    transport::Url,
};

use crate::{
    error::{Cause, CommandError, CommandResult},
    exit::Exit,
    files,
};

/// Where `solehold serve` listens without flags.
const DEFAULT: &str = "127.0.0.1:7070";
/// The default of `--timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A stream that is silent for this long is dead; a live one sends progress marks more often.
const SILENCE_MAX: Duration = Duration::from_secs(30);

const CONNECTIONS: PoolOptions = PoolOptions {
    connect_timeout: Some(Duration::from_secs(5)),
    user_agent: concat!("solehold/", env!("CARGO_PKG_VERSION")),
    races: false,
    effect,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Peer {
    #[default]
    Server,
    Orchestrator,
}

impl Peer {
    fn option(self) -> &'static str {
        match self {
            Self::Server => "--server",
            Self::Orchestrator => "--orchestrator",
        }
    }

    /// What to do about what stands in the way.
    fn hint(self, obstacle: Obstacle) -> Option<&'static str> {
        match (obstacle, self) {
            (Obstacle::NoServer, Self::Server) => {
                Some("is `solehold serve` running there? --server or SOLEHOLD_SERVER names another")
            }
            (Obstacle::NoServer, Self::Orchestrator) => Some(
                "is `solehold orchestrator` running there? --orchestrator or SOLEHOLD_ORCHESTRATOR names another",
            ),
            (Obstacle::Untrusted, _) => Some("--ca-cert FILE trusts it, or the authority that signed it"),
            (Obstacle::WrongScheme, _) => None,
        }
    }
}

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
    #[arg(skip)]
    pub peer: Peer,
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
        Http::new(self.config()?).map_err(unusable)
    }

    fn config(&self) -> CommandResult<HttpConfig> {
        self.urls()?;
        Ok(HttpConfig {
            api_key: given(&self.api_key).map(SecretString::from),
            tenant: given(&self.tenant),
            ca_certs: self.ca_certs()?,
            request_timeout: self.timeout()?,
            ..HttpConfig::new([self.servers()])
        })
    }

    pub fn timeout(&self) -> CommandResult<Duration> {
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

    pub fn urls(&self) -> CommandResult<Vec<Url>> {
        let urls = transport::server_urls([self.servers()]);
        urls.map_err(|error| CommandError::usage(format!("{}: {error}", self.peer.option())))
    }

    pub fn ca_certs(&self) -> CommandResult<Option<Vec<u8>>> {
        let path = self.ca_cert.as_ref().filter(|path| !path.is_empty()).map(Path::new);
        path.map(|path| files::certificates("--ca-cert", path)).transpose()
    }
}

/// Servers and certificates have been checked before, under the names of their options.
fn unusable(error: HttpError) -> CommandError {
    match error {
        HttpError::ApiKey => {
            CommandError::usage(error.to_string()).hint("check --api-key or SOLEHOLD_API_KEY")
        }
        error => CommandError::broken(error.to_string()),
    }
}

/// An empty flag or variable counts as not given.
fn given(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

pub fn unreachable(why: impl Into<String>, obstacle: Option<Obstacle>) -> CommandError {
    let failure = CommandError::new(ErrorCode::Unavailable, why).caused_by(obstacle.map(Cause::Server));
    with_hint(failure, Peer::Server)
}

fn with_hint(failure: CommandError, peer: Peer) -> CommandError {
    let Some(Cause::Server(obstacle)) = failure.cause else { return failure };
    match peer.hint(obstacle) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The code that a failure counts as.
fn code(failure: &Failure) -> ErrorCode {
    match failure {
        Failure::Problem(problem) => problem.code,
        Failure::Unexplained { status, .. } if status.as_u16() == 503 => ErrorCode::Unavailable,
        // A proxy cannot tell whether the server behind it has carried the request out.
        Failure::Unexplained { status, .. } if status.is_server_error() => ErrorCode::UnknownOutcome,
        Failure::Unexplained { .. } => ErrorCode::Internal,
        Failure::NoAnswer(NoAnswer { is_undone: true, .. }) => ErrorCode::Unavailable,
        Failure::NoAnswer(_) => ErrorCode::UnknownOutcome,
    }
}

fn effect(failure: &Failure) -> Effect {
    match code(failure) {
        ErrorCode::Unavailable => Effect::None,
        ErrorCode::UnknownOutcome => Effect::Unknown,
        _ => Effect::Settled,
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        let code = code(&failure);
        match failure {
            Failure::Problem(problem) => (*problem).into(),
            Failure::Unexplained { base, status } => {
                Self::new(code, format!("{base} answered {status} without saying why"))
                    .hint("is it a solehold server?")
            }
            Failure::NoAnswer(NoAnswer { why, obstacle, .. }) => {
                Self::new(code, why).caused_by(obstacle.map(Cause::Server))
            }
        }
    }
}

/// Sends requests to one server, or to several over one store: the next one only gets a request that was not carried
/// out, or one that only reads.
#[derive(Debug)]
pub struct Client {
    pool: Pool,
    timeout: Duration,
    peer: Peer,
}

/// A response that is read as it comes. It may last forever, but not be silent for longer than [`SILENCE_MAX`].
#[derive(Debug)]
pub struct Stream(Response);

/// A stream ended before its end.
#[derive(Debug)]
pub struct BrokeOff;

impl Stream {
    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<impl Deref<Target = [u8]> + use<>>, BrokeOff> {
        // Not reqwest's `read_timeout`, which also counts while a long body is sent.
        let piece = tokio::time::timeout(SILENCE_MAX, self.0.chunk()).await;
        piece.map_err(|_| BrokeOff)?.map_err(|_| BrokeOff)
    }
}

/// The parameters of a query string; those without a value are left out.
pub type Query<'a> = &'a [(&'static str, Option<String>)];

pub trait Page: DeserializeOwned {
    type Item;
    /// The items, and where the next page begins.
    fn into_parts(self) -> (Vec<Self::Item>, Option<PageCursor>);
}

macro_rules! pages {
    ($($page:ident { $items:ident: $item:ident })*) => {$(
        impl Page for $page {
            type Item = $item;
            fn into_parts(self) -> (Vec<$item>, Option<PageCursor>) {
                (self.$items, self.next)
            }
        }
    )*};
}

pages! {
    AuditList { entries: AuditEntry }
    KeyList { keys: ApiKey }
    LeaseHistory { events: LeaseEvent }
    LeaseList { leases: LeaseBody }
    LockList { locks: Lock }
    NodeList { nodes: Node }
    ResourceHistory { events: LeaseEvent }
    ResourceList { resources: ResourceBody }
    RunnerList { runners: Runner }
    TenantList { tenants: Tenant }
}

impl Client {
    pub fn new(args: &ServerArgs) -> CommandResult<Self> {
        let config = args.config()?;
        let pool = Pool::new(&config, CONNECTIONS).map_err(unusable)?;
        Ok(Self { pool, timeout: config.request_timeout, peer: args.peer })
    }

    /// The URL of the server that responded last.
    pub fn base(&self) -> &str {
        self.pool.base()
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
        let Some(tenant) = self.pool.tenant() else { return Ok(()) };
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
        let mut call = self.request(method, path, query, self.timeout);
        if !is_read {
            call = call.once();
        }
        if let Some(body) = body {
            call = call.body(body);
        }
        self.parsed(self.pool.ask(&call).await)
    }

    pub async fn stream(&self, path: &str, query: Query<'_>) -> CommandResult<Stream> {
        let call = self.request(Method::GET, path, query, SILENCE_MAX);
        self.pool.stream(&call).await.map(Stream).map_err(|failures| self.summed_up(failures))
    }

    /// Sends a long body that cannot be sent twice, and parses the JSON of the response.
    pub async fn upload<T: DeserializeOwned>(&self, path: &str, body: Body) -> CommandResult<T> {
        self.parsed(self.pool.upload(path, body, self.timeout).await)
    }

    fn request(&self, method: Method, path: &str, query: Query<'_>, within: Duration) -> Call {
        let mut call = Call::new(method, path.to_owned(), within);
        call.query.extend(query.iter().filter_map(|(name, value)| Some((*name, value.clone()?))));
        call
    }

    fn parsed<T: DeserializeOwned>(&self, answer: Result<ServerAnswer, Vec<Failure>>) -> CommandResult<T> {
        let answer = answer.map_err(|failures| self.summed_up(failures))?;
        answer.json().map_err(|error| {
            let message = format!("{} gave an unexpected answer ({error})", answer.base);
            CommandError::broken(message).hint("is this server a solehold of the same version?")
        })
    }

    /// Combines the failures of all servers. The outcome is unknown if it is unknown for any of them.
    fn summed_up(&self, failures: Vec<Failure>) -> CommandError {
        let unknown = failures.iter().position(|failure| effect(failure) == Effect::Unknown);
        let at = unknown.unwrap_or(failures.len().saturating_sub(1));
        let mut failures: Vec<CommandError> = failures.into_iter().map(Into::into).collect();
        let message = failures.iter().map(|failure| failure.message.as_str()).collect::<Vec<_>>().join("; ");
        let cause = failures.iter().filter_map(|failure| failure.cause).max();
        with_hint(CommandError { message, cause, ..failures.swap_remove(at) }, self.peer)
    }
}

#[cfg(test)]
mod tests {
    use solehold_client::pool::StatusCode;

    use super::*;

    #[test]
    fn a_write_that_a_proxy_may_have_passed_on_is_not_sent_to_another_server() {
        let of = |status| {
            let base = "http://proxy".to_owned();
            effect(&Failure::Unexplained { base, status })
        };
        assert_eq!(of(StatusCode::BAD_GATEWAY), Effect::Unknown);
        assert_eq!(of(StatusCode::GATEWAY_TIMEOUT), Effect::Unknown);
        assert_eq!(of(StatusCode::SERVICE_UNAVAILABLE), Effect::None);
        assert_eq!(of(StatusCode::NOT_FOUND), Effect::Settled);
    }
}
