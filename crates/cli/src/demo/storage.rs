//! Where the workers of the demo write: a service behind the gate of the client library, as a service of yours would
//! have it. It refuses what carries an old token, and reports every write.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use solehold_client::gate::{Ending, Gate, GateLayer, GateOptions, RESOURCE, TOKEN};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::KIND;
use crate::{
    client::ServerArgs,
    error::{CommandError, CommandResult},
};

/// The runner that writes, for people.
pub const WRITER: HeaderName = HeaderName::from_static("demo-writer");
const CONNECTIONS_MAX: usize = 1_000;

/// A write that took effect, or was refused.
#[derive(Debug)]
pub struct StorageNews {
    /// As `KIND/KEY`.
    pub resource: String,
    pub writer: String,
    pub token: u64,
    pub refusal: Option<WriteRefusal>,
}

#[derive(Debug)]
pub struct WriteRefusal {
    /// The newest token of the resource, where the write was refused for good; otherwise it may be tried again.
    pub newest: Option<u64>,
}

struct Storage {
    layer: GateLayer,
    news: mpsc::Sender<StorageNews>,
}

/// Serves writes until `tasks` is dropped, and says where.
pub async fn serve(
    server: &ServerArgs,
    news: mpsc::Sender<StorageNews>,
    tasks: &mut JoinSet<()>,
) -> CommandResult<SocketAddr> {
    let broken =
        |error: &dyn std::fmt::Display| CommandError::broken(format!("cannot open the gate: {error}"));
    // Without a server it goes on with what it knows, for as long as the workers do.
    let cache_ttl = std::time::Duration::from_secs(super::GRACE_SECONDS);
    let options = GateOptions::new([KIND]).map_err(|error| broken(&error))?;
    let options = GateOptions { cache_ttl, ..options };
    let gate = Gate::open(Arc::new(server.authority()?), options).map_err(|error| broken(&error))?;
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| broken(&error))?;
    let address = listener.local_addr().map_err(|error| broken(&error))?;
    let storage = Arc::new(Storage { layer: GateLayer::new(Arc::new(gate)), news });
    tasks.spawn(accept(listener, storage));
    Ok(address)
}

async fn accept(listener: TcpListener, storage: Arc<Storage>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Ok(place) = places.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let storage = storage.clone();
        connections.spawn(async move {
            let answer = service_fn(move |request| {
                let storage = storage.clone();
                async move { Ok::<_, Infallible>(storage.answer(request).await) }
            });
            // A writer that was killed breaks its connection off.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
}

impl Storage {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let headers = request.headers();
        let mut written = StorageNews {
            resource: text(headers, &RESOURCE),
            writer: text(headers, &WRITER),
            token: text(headers, &TOKEN).parse().unwrap_or_default(),
            refusal: None,
        };
        let mut answer = Response::new(Full::default());
        let flight = match self.layer.admit(request.method(), headers).await {
            Ok(Some(flight)) => flight,
            // A write without a token is refused by the gate, and there is nothing to read.
            Ok(None) => {
                *answer.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
                return answer;
            }
            Err(refused) => {
                written.refusal = Some(WriteRefusal { newest: refused.newest.map(|token| token.0) });
                let _ = self.news.send(written).await;
                return refused.response::<String>().map(|text| Full::from(Bytes::from(text)));
            }
        };
        let news = self.news.clone();
        let work = async move {
            let is_kept = news.send(written).await.is_ok();
            Ending::Over(is_kept)
        };
        if !matches!(flight.run(work).await, Ok(true)) {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        answer
    }
}

fn text(headers: &HeaderMap, name: &HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}
