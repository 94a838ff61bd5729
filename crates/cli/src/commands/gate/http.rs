//! `solehold gate http`: a reverse proxy in front of a service that cannot change.
//!
//! ```text
//!   request ── headers and body, bounded ──> judge ──> wait for lower tokens ──> service ──> answer, bounded
//!                                              |412, 409, 503       |503            |504: unknown
//! ```
//! A request runs until the service has given its whole answer or closed the connection. Until then requests with a
//! higher token stay out, whether or not its caller was answered 504 or has hung up. A connection to the service
//! carries one request at a time (HTTP/1.1), so its end says something about one request.

use std::{convert::Infallible, error::Error, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use reqwest::Url;
use solehold_client::{
    gate::{Ending, FlightLimits, Flights, GateLayer, Refused, WhenOlder},
    transport::root_cause,
};
use solehold_process::manager::{self, ServiceManager};
use solehold_server::{Acceptor, Protocols, Tls, TlsFiles};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Semaphore,
};

use super::{
    GateArgs,
    health::{self, HttpHealth},
    refusals::{Asked, Refusals},
};
use crate::{
    client::ServerArgs,
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    output,
    times::duration,
};

const HEAD_BYTES_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 100;
/// How long the headers of a request may take to arrive, and its body.
const ARRIVAL_MAX: Duration = Duration::from_secs(30);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long requests that are under way may take when the proxy stops.
const STOP_MAX: Duration = Duration::from_secs(30);
const PROTOCOLS: Protocols = &[b"http/1.1"];
/// Forwarding headers. The gate appends to them and trusts none of them.
const FORWARDED: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-host"),
];
/// Headers that are for one connection only.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

#[derive(Debug, Args)]
pub struct HttpArgs {
    /// Service to forward requests to
    #[arg(long, value_name = "URL")]
    upstream: Url,
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7080")]
    listen: SocketAddr,
    /// Time to wait for the service; after that the response is 504 (outcome unknown), and newer tokens are rejected
    /// until the service has finished the request
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    answer_within: Duration,
    /// Time that a request waits for requests with a lower token to finish; after that it is rejected with 503
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    patience: Duration,
    /// After --patience, abort requests with a lower token and forward the newer one; work that the service has begun
    /// may still take effect after it
    #[arg(long)]
    cut: bool,
    /// Maximum number of requests with tokens in progress or waiting per resource; more are rejected with 503
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight_per_resource: u32,
    /// Maximum number of requests with tokens in progress or waiting in total
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight: u32,
    /// Maximum size of the body of a request or response, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 8 * 1024 * 1024)]
    body_max: usize,
    /// Maximum number of connections
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Address for /healthz, /readyz and /metrics [default: none]
    #[arg(long, value_name = "ADDR")]
    metrics_listen: Option<SocketAddr>,
    /// PEM file of the TLS certificate and its chain; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    gate: GateArgs,
}

/// Runs the proxy until SIGTERM or Ctrl-C.
pub async fn run(args: HttpArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    global.logs("info")?.start("gate").map_err(CommandError::usage)?;
    let _traces = global.traces("solehold-gate", "gate")?;
    let upstream = checked(&args.upstream)?;
    let service = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_MAX)
        .http1_only()
        .no_proxy()
        .build()
        .map_err(|error| CommandError::broken(root_cause(&error)))?;
    let limits =
        FlightLimits { per_resource: args.in_flight_per_resource as usize, total: args.in_flight as usize };
    let gate = args.gate.open(server, limits)?;
    let when_older = if args.cut { WhenOlder::Cut } else { WhenOlder::Refuse };
    let layer = GateLayer::new(gate.clone()).patience(args.patience).when_older(when_older);
    let tls = match (args.tls_cert, args.tls_key) {
        (Some(cert), Some(key)) => {
            let tls = Tls::open(TlsFiles { cert, key, client_ca: None }, PROTOCOLS).await;
            Some(tls.map_err(|error| CommandError::usage(error.to_string()))?)
        }
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        CommandError::usage(format!("--listen {}: {error}; choose another address", args.listen))
    })?;
    let refusals = Arc::new(Refusals::default());
    let its_health = HttpHealth { gate: gate.clone(), refusals: refusals.clone() };
    if let Some(address) = args.metrics_listen {
        health::serve("http", address, its_health.clone()).await?;
    }
    let upstream = Upstream { service, url: upstream, body_max: args.body_max };
    let proxy = Proxy {
        layer,
        upstream: Arc::new(upstream),
        answer_within: args.answer_within,
        acceptor: tls.as_ref().map(Tls::acceptor),
        scheme,
        refusals,
    };
    if let Some(tls) = tls {
        tokio::spawn(tls.follow());
    }
    let proxy = Arc::new(proxy);
    let address = listener.local_addr().unwrap_or(args.listen);
    output::say(format!(
        "solehold gate http listening on {scheme}://{address}, in front of {}",
        proxy.upstream.url
    ));
    let connections = Arc::new(Semaphore::new(args.connections as usize));
    let mut signals = super::super::ending_signals()?;
    let manager = ServiceManager::of_process();
    tokio::select! {
        () = accept(&listener, &proxy, &connections) => {}
        () = signals.next() => {}
        never = health::report_ready(&manager, &its_health, "HTTP") => match never {},
        never = manager.keep_alive(manager::turns) => match never {},
    }
    drop(listener);
    manager.stopping("waiting for requests in progress");
    tokio::select! {
        () = stop(&connections, args.connections, gate.flights()) => {}
        never = manager.keep_alive(manager::turns) => match never {},
    }
    output::say("solehold gate http stopped");
    Ok(())
}

/// Lets requests end, within bounds.
async fn stop(connections: &Semaphore, permits: u32, flights: &Flights) {
    let all_ended = async {
        // All permits are back when no caller waits.
        let _ = connections.acquire_many(permits).await;
        flights.all_ended().await;
    };
    let _ = tokio::time::timeout(STOP_MAX, all_ended).await;
    let requests = flights.status().running;
    if requests > 0 {
        tracing::warn!(
            requests,
            "the gate stops while requests have not ended in the service; its next start does not wait for them"
        );
    }
}

/// The service's URL without a slash at its end.
fn checked(upstream: &Url) -> CommandResult<String> {
    let has_user = !upstream.username().is_empty() || upstream.password().is_some();
    let fault = match upstream.scheme() {
        "http" | "https" if has_user => Some("has a user or a password".to_owned()),
        "http" | "https" if upstream.query().is_some() => Some("has a query".to_owned()),
        "http" | "https" if upstream.fragment().is_some() => Some("has a fragment".to_owned()),
        "http" | "https" => None,
        scheme => Some(format!("is a URL of the scheme {scheme:?}")),
    };
    if let Some(fault) = fault {
        // The URL is not repeated: it may have a password in it.
        let message = format!("--upstream {fault}; write http://HOST:PORT/PATH or https://HOST/PATH");
        return Err(CommandError::usage(message));
    }
    Ok(upstream.as_str().trim_end_matches('/').to_owned())
}

async fn accept(listener: &TcpListener, proxy: &Arc<Proxy>, connections: &Arc<Semaphore>) {
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Files may have run out: those that are under way will give some back.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let proxy = proxy.clone();
        tokio::spawn(async move {
            let _permit = permit;
            match &proxy.acceptor {
                None => proxy.clone().serve(stream, peer).await,
                Some(acceptor) => match tokio::time::timeout(ARRIVAL_MAX, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => proxy.clone().serve(stream, peer).await,
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
                },
            }
        });
    }
}

struct Proxy {
    layer: GateLayer,
    upstream: Arc<Upstream>,
    answer_within: Duration,
    acceptor: Option<Acceptor>,
    scheme: &'static str,
    refusals: Arc<Refusals>,
}

type Answer = Response<Full<Bytes>>;

impl Proxy {
    /// Answers the requests of a connection, one after the other.
    async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
    ) {
        let answer = service_fn(move |request| {
            let proxy = self.clone();
            async move { Ok::<_, Infallible>(proxy.answer(request, peer).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(ARRIVAL_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), answer);
        if let Err(error) = served.await {
            tracing::debug!(%error, "a connection broke off");
        }
    }

    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Answer {
        let asked = Asked::of(&request);
        match self.judged(request, peer).await {
            Ok(answer) => {
                let status = answer.status().as_u16();
                let Asked { method, path, .. } = asked;
                tracing::debug!(%method, path, status, "answered");
                answer
            }
            Err(refused) => {
                self.refusals.refused(&asked, &refused).await;
                refused.response()
            }
        }
    }

    /// Reads a request, has it judged, and passes it on.
    async fn judged(&self, request: Request<Incoming>, peer: SocketAddr) -> Result<Answer, Refused> {
        let (head, body) = request.into_parts();
        if head.method == Method::CONNECT || head.headers.contains_key(header::UPGRADE) {
            return Err(refused(
                StatusCode::NOT_IMPLEMENTED,
                "no_upgrade",
                "the gate passes on plain requests only",
            ));
        }
        let body = self.upstream.body(body).await?;
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let url = format!("{}{path}", self.upstream.url);
        let request = self.upstream.service.request(head.method.clone(), url);
        let headers = forwarded(&head.headers, peer, self.scheme);
        let request = request.headers(headers).body(body);
        let flight = self.layer.admit(&head.method, &head.headers).await?;
        let upstream = self.upstream.clone();
        let passed = async move { upstream.pass(request).await };
        let answered = async {
            match flight {
                None => match passed.await {
                    Ending::Over(answer) | Ending::Unknown(answer) => answer,
                },
                // From here on until it has ended, requests with a higher token stay out.
                Some(flight) => flight.run(passed).await?,
            }
        };
        match tokio::time::timeout(self.answer_within, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(unknown(&format!("the service did not answer within {:?}", self.answer_within))),
        }
    }
}

/// The service, and the limits of its requests and responses.
struct Upstream {
    service: reqwest::Client,
    url: String,
    body_max: usize,
}

impl Upstream {
    async fn body(&self, body: Incoming) -> Result<Bytes, Refused> {
        let read = Limited::new(body, self.body_max).collect();
        match tokio::time::timeout(ARRIVAL_MAX, read).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let detail = format!("the body has more than {} bytes (--body-max)", self.body_max);
                Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &detail))
            }
            Ok(Err(_)) => Err(refused(StatusCode::BAD_REQUEST, "bad_request", "the body broke off")),
            Err(_) => Err(refused(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not arrive in time")),
        }
    }

    /// Passes a request on to the service, and gives its whole answer: it is over then.
    async fn pass(&self, request: reqwest::RequestBuilder) -> Ending<Result<Answer, Refused>> {
        let mut answered = match request.send().await {
            Ok(answered) => answered,
            Err(error) => return failed(&error),
        };
        let mut answer = Response::new(Full::default());
        *answer.status_mut() = answered.status();
        *answer.headers_mut() = passed_on(answered.headers());
        let mut body = Vec::new();
        let mut is_too_large = false;
        loop {
            match answered.chunk().await {
                Err(error) => return failed(&error),
                Ok(None) => break,
                // The rest is read, because the service may work for as long as it writes.
                Ok(Some(piece)) if is_too_large || body.len() + piece.len() > self.body_max => {
                    (body, is_too_large) = (Vec::new(), true);
                }
                Ok(Some(piece)) => body.extend_from_slice(&piece),
            }
        }
        if is_too_large {
            let detail = "the service answered with more than --body-max bytes; it has done the request";
            return Ending::Over(Err(refused(StatusCode::BAD_GATEWAY, "answer_too_large", detail)));
        }
        *answer.body_mut() = Full::from(body);
        Ending::Over(Ok(answer))
    }
}

/// Why the service did not respond, the status for the caller, and whether the service may still be at work.
fn failed(error: &reqwest::Error) -> Ending<Result<Answer, Refused>> {
    if error.is_connect() {
        let detail = format!("the service cannot be reached, nothing was done: {}", root_cause(error));
        return Ending::Over(Err(refused(StatusCode::BAD_GATEWAY, "unreachable", &detail)));
    }
    let answer = Err(unknown(&format!("the service broke off: {}", root_cause(error))));
    if is_closed_by_the_service(error) { Ending::Over(answer) } else { Ending::Unknown(answer) }
}

/// Whether the connection was closed or reset from the other side. Otherwise, as when no packet arrives any more or the
/// answer is not HTTP, the service may still be at work.
fn is_closed_by_the_service(error: &reqwest::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let mut causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.any(|cause| {
        let is_cut_off = cause.downcast_ref().is_some_and(hyper::Error::is_incomplete_message);
        let kind = cause.downcast_ref().map(io::Error::kind);
        let is_closed =
            matches!(kind, Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof));
        is_cut_off || is_closed
    })
}

fn refused(status: StatusCode, code: &'static str, detail: &str) -> Refused {
    Refused { status, code, detail: detail.to_owned(), newest: None }
}

fn unknown(why: &str) -> Refused {
    Refused::unknown("unknown_outcome", format!("{why}; the request may have taken effect or not"))
}

/// The headers that are meant for the other side.
fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let is_passed_on = |name: &HeaderName| {
        let is_ours = [header::HOST, header::CONTENT_LENGTH, header::EXPECT].contains(name);
        !is_ours && !HOP_BY_HOP.contains(name) && !named.iter().any(|named| named == name.as_str())
    };
    let passed = headers.iter().filter(|(name, _)| is_passed_on(name));
    passed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The headers of a request that are meant for the service, with who asked added at the end of the lists that other
/// proxies may have begun: whoever reads them knows which of the last entries to believe.
fn forwarded(headers: &HeaderMap, peer: SocketAddr, scheme: &str) -> HeaderMap {
    let mut passed = passed_on(headers);
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let ours = [peer.ip().to_canonical().to_string(), scheme.to_owned(), host.to_owned()];
    for (name, ours) in FORWARDED.into_iter().zip(ours) {
        let before = passed.get_all(&name).iter().filter_map(|value| value.to_str().ok());
        let list: Vec<&str> = before.chain([ours.as_str()]).filter(|entry| !entry.is_empty()).collect();
        match HeaderValue::try_from(list.join(", ")) {
            Ok(list) if !list.is_empty() => drop(passed.insert(name, list)),
            _ => drop(passed.remove(name)),
        }
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asked_is_added_behind_what_other_proxies_have_said() {
        let mut headers = HeaderMap::new();
        let peer: SocketAddr = "[::ffff:192.0.2.7]:4711".parse().expect("an address");
        let shown = |headers: &HeaderMap| {
            let passed = forwarded(headers, peer, "https");
            FORWARDED.map(|name| passed.get(name).map(|value| value.to_str().expect("text").to_owned()))
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(shown(&headers), [text("192.0.2.7"), text("https"), None]);
        headers.insert(header::HOST, HeaderValue::from_static("svc.local"));
        headers.append(&FORWARDED[0], HeaderValue::from_static("198.51.100.1"));
        headers.append(&FORWARDED[0], HeaderValue::from_static("203.0.113.5, 10.0.0.1"));
        headers.append(&FORWARDED[1], HeaderValue::from_static("http"));
        let for_ = text("198.51.100.1, 203.0.113.5, 10.0.0.1, 192.0.2.7");
        assert_eq!(shown(&headers), [for_, text("http, https"), text("svc.local")]);
    }
}
