//! The gate as a layer of a tower service: requests that carry an old token do not reach the service.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tower::{Layer, Service};

use super::{
    Gate,
    admission::{Refused, Shown},
    flights::{Flight, Flights},
};

/// Judges requests by their headers `Solehold-Resource: KIND/KEY` and `Solehold-Token: N` before they reach a service.
///
/// A stale token is answered with 412, one that is undecidable now with 503 and `Retry-After`, one that the store never
/// gave with 409, each with a problem document. A request that does not only read needs the headers; one that only
/// reads is judged if it has them. A request with a higher token waits until those with a lower one are done.
///
/// The service must do all its work before it answers: what it leaves for later is not fenced.
#[derive(Debug, Clone)]
pub struct GateLayer {
    gate: Arc<Gate>,
    flights: Arc<Flights>,
    patience: Duration,
}

impl GateLayer {
    /// Over a gate.
    pub fn new(gate: Arc<Gate>) -> Self {
        Self { gate, flights: Arc::default(), patience: Duration::from_secs(10) }
    }

    /// How long a request waits for those with a lower token; then they are dropped.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Whether a request may pass. Keep the flight until the service has answered.
    pub async fn admit(
        &self,
        method: &http::Method,
        headers: &http::HeaderMap,
    ) -> Result<Option<Flight>, Refused> {
        let Some(shown) = Shown::of(&self.gate, method, headers)? else { return Ok(None) };
        let Shown { key, token, session } = &shown;
        let verdict = self.gate.decide(key, *token, *session).await;
        if let Some(refused) = Refused::by(verdict, &shown) {
            return Err(refused);
        }
        let flight = self.flights.board(key, *token, self.patience).await;
        let flight = flight.map_err(|still| Refused::later("in_flight", still.to_string()))?;
        // Another may have come while it waited.
        match Refused::by(self.gate.judge(key, *token, *session), &shown) {
            Some(refused) => Err(refused),
            None => Ok(Some(flight)),
        }
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = Gated<S>;

    fn layer(&self, service: S) -> Gated<S> {
        Gated { layer: self.clone(), service }
    }
}

/// A service behind a gate.
#[derive(Debug, Clone)]
pub struct Gated<S> {
    layer: GateLayer,
    service: S,
}

impl<S, Q, B> Service<Request<Q>> for Gated<S>
where
    S: Service<Request<Q>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    Q: Send + 'static,
    B: From<String> + Send + 'static,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        // The one that was polled is the one that is ready.
        let next = self.service.clone();
        let mut service = std::mem::replace(&mut self.service, next);
        let layer = self.layer.clone();
        Box::pin(async move {
            let flight = match layer.admit(request.method(), request.headers()).await {
                Err(refused) => return Ok(refused.response()),
                Ok(None) => return service.call(request).await,
                Ok(Some(flight)) => flight,
            };
            tokio::select! {
                answered = service.call(request) => answered,
                () = flight.cut() => {
                    let detail = "it took too long, and a request with a newer token came; it may have taken effect";
                    Ok(Refused::later("cut", detail.to_owned()).response())
                }
            }
        })
    }
}
