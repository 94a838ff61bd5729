//! Asks a server over HTTP. It sends a request, and returns the answer. It retries nothing.

use std::{fs, path::PathBuf, time::Duration};

use clap::Args;
use reqwest::{Method, Response, Url, header};
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
use solehold_api::{
    page::PageCursor,
    problem::{ErrorCode, Problem},
};
use solehold_client::{
    Http, HttpConfig, HttpError,
    transport::{self, root_cause},
};

use crate::error::{CommandError, CommandResult};

/// Where `solehold serve` listens without flags.
const DEFAULT: &str = "http://127.0.0.1:7070";
/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A stream that is silent for this long is dead; a live one sends progress marks more often.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Where the server is and how to speak to it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The server to ask [default: http://127.0.0.1:7070]
    #[arg(long, global = true, env = "SOLEHOLD_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// The API key; better given by the variable, since other users can see the arguments of a process
    #[arg(long, global = true, env = "SOLEHOLD_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// The tenant to act for, with a key for several
    #[arg(long, global = true, env = "SOLEHOLD_TENANT", value_name = "NAME")]
    pub tenant: Option<String>,
    /// A certificate authority to trust in addition to the system's, as a PEM file
    #[arg(long, global = true, env = "SOLEHOLD_CA_CERT", value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
    /// How long to wait for an answer
    #[arg(long, global = true, env = "SOLEHOLD_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

impl ServerArgs {
    /// The same for the library that keeps sessions. Several servers over one store may be given, with commas between.
    pub fn authority(&self) -> CommandResult<Http> {
        let servers = given(&self.server).unwrap_or_else(|| DEFAULT.to_owned());
        let config = HttpConfig {
            api_key: given(&self.api_key).map(SecretString::from),
            tenant: given(&self.tenant),
            ca_certs: self.ca_certs()?,
            request_timeout: self.timeout,
            ..HttpConfig::new(servers.split(',').map(str::trim))
        };
        config.servers.iter().try_for_each(|server| server_url(server).map(drop))?;
        Http::new(config).map_err(|error| CommandError::usage(error.to_string()))
    }

    fn ca_certs(&self) -> CommandResult<Option<Vec<u8>>> {
        let Some(path) = self.ca_cert.as_ref().filter(|path| !path.as_os_str().is_empty()) else {
            return Ok(None);
        };
        let odd = |error: &dyn std::fmt::Display| {
            CommandError::usage(format!("--ca-cert {}: {error}; give a PEM file", path.display()))
        };
        let pem = fs::read(path).map_err(|error| odd(&error))?;
        transport::certificates(&pem).map_err(|error| odd(&error))?;
        Ok(Some(pem))
    }
}

fn server_url(server: &str) -> CommandResult<Url> {
    transport::server_url(server).map_err(|error| CommandError::usage(format!("--server: {error}")))
}

/// Server and certificates have been checked, so what is left is the key.
fn odd_key(error: HttpError) -> CommandError {
    CommandError::usage(error.to_string()).hint("check --api-key or SOLEHOLD_API_KEY")
}

/// An empty flag or variable says nothing.
fn given(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

/// A server to ask.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    tenant: Option<String>,
    timeout: Duration,
}

/// The parts of a query string; what is not given is left out.
pub type Query<'a> = &'a [(&'a str, Option<String>)];

/// One page of a list.
pub trait Page: DeserializeOwned {
    /// What the list is of.
    type Item;
    /// The items, and where the next page begins.
    fn into_parts(self) -> (Vec<Self::Item>, Option<PageCursor>);
}

impl Client {
    /// A client as the arguments say.
    pub fn new(args: &ServerArgs) -> CommandResult<Self> {
        let server = given(&args.server).unwrap_or_else(|| DEFAULT.to_owned());
        let url = server_url(&server)?;
        let base = url.as_str().trim_end_matches('/').to_owned();
        let (key, ca_certs) = (given(&args.api_key), args.ca_certs()?);
        let http = transport::builder(&[url], key.as_deref(), ca_certs.as_deref())
            .map_err(odd_key)?
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .user_agent(concat!("solehold/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| CommandError::broken(root_cause(&error)))?;
        Ok(Self { http, base, tenant: given(&args.tenant), timeout: args.timeout })
    }

    /// Where the server is.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Reads something.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: Query<'_>) -> CommandResult<T> {
        self.call(Method::GET, path, query, None::<&()>).await
    }

    /// Asks for something to be done, with a body.
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
        let (mut items, mut cursor) = (Vec::new(), None::<PageCursor>);
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

    /// Sends a request and reads the JSON of its answer; an empty one is null.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: Query<'_>,
        body: Option<&impl Serialize>,
    ) -> CommandResult<T> {
        let mut request = self.request(method, path, query).timeout(self.timeout);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = self.sent(request).await?;
        let bytes = response.bytes().await.map_err(|error| self.lost(&error))?;
        let text: &[u8] = if bytes.trim_ascii().is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text).map_err(|error| self.odd_answer(&error))
    }

    /// Opens a stream, which has no bound in time but one for silence.
    pub async fn stream(&self, path: &str, query: Query<'_>) -> CommandResult<Response> {
        self.sent(self.request(Method::GET, path, query)).await
    }

    /// Sends a body that may take long, and reads the JSON of its answer.
    pub async fn upload<T: DeserializeOwned>(&self, path: &str, body: reqwest::Body) -> CommandResult<T> {
        let request =
            self.request(Method::POST, path, &[]).header(header::CONTENT_TYPE, "application/x-ndjson");
        let response = self.sent(request.body(body)).await?;
        let bytes = response.bytes().await.map_err(|error| self.lost(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| self.odd_answer(&error))
    }

    fn request(&self, method: Method, path: &str, query: Query<'_>) -> reqwest::RequestBuilder {
        let tenant = [("tenant", self.tenant.clone())];
        let given = query.iter().chain(&tenant).filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        self.http.request(method, transport::url(&self.base, path, &given.collect::<Vec<_>>()))
    }

    /// The answer to a request, if it is good; otherwise what it says is wrong.
    async fn sent(&self, request: reqwest::RequestBuilder) -> CommandResult<Response> {
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = response.bytes().await.map_err(|error| self.lost(&error))?;
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(problem.into()),
            Err(_) => {
                let code =
                    if status.is_server_error() { ErrorCode::Unavailable } else { ErrorCode::Internal };
                let message = format!("{} answered {status} without saying why", self.base);
                Err(CommandError::new(code, message).hint("is it a solehold server?"))
            }
        }
    }

    /// No answer: nothing was done if no connection was made; otherwise it is unknown.
    fn lost(&self, error: &reqwest::Error) -> CommandError {
        if error.is_connect() {
            let message = format!("no server at {} ({})", self.base, root_cause(error));
            let failure = CommandError::new(ErrorCode::Unavailable, message);
            return failure
                .hint("is `solehold serve` running there? --server or SOLEHOLD_SERVER names another");
        }
        let why = if error.is_timeout() {
            format!("no answer from {} within {}", self.base, humantime::format_duration(self.timeout))
        } else {
            format!("the connection to {} was lost ({})", self.base, root_cause(error))
        };
        CommandError::new(ErrorCode::UnknownOutcome, why)
    }

    fn odd_answer(&self, error: &serde_json::Error) -> CommandError {
        let message = format!("{} gave an unexpected answer ({error})", self.base);
        CommandError::broken(message).hint("is this server a solehold of the same version?")
    }
}
