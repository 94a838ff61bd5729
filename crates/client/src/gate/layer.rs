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
    admission::{Refused, Shown},
    flights::{Ending, Flight, NotBegun, WhenOlder},
    judge::Gate,
};

/// Judges requests by their headers `Solehold-Resource: KIND/KEY` and `Solehold-Token: N` before they reach a service.
/// Those of a holder that shares the resource also have `Solehold-Slot: N`.
///
/// A stale token is answered with 412, one that is undecidable now with 503 and `Retry-After`, one that the store never
/// gave with 409, each with a problem document. A request that does not only read needs the headers; one that only
/// reads is judged if it has them. A request with a higher token waits until those with a lower one have ended, for its
/// [patience](Self::patience), and is then answered with 503.
///
/// A request has ended when the service's future is ready. That future runs in a task of its own, so a caller that goes
/// away (a client that disconnects, a timeout in a layer around this one) neither ends the work nor lets a newer token
/// pass. What tower cannot know is work that outlives the future: a service must do all its work before it responds,
/// and what it spawns, or streams in the body of its response, is not fenced. A panic ends the future.
#[derive(Debug, Clone)]
pub struct GateLayer {
    gate: Arc<Gate>,
    patience: Duration,
    when_older: WhenOlder,
}

impl GateLayer {
    /// All layers over one gate wait for each other's requests.
    pub fn new(gate: Arc<Gate>) -> Self {
        Self { gate, patience: Duration::from_secs(10), when_older: WhenOlder::default() }
    }

    /// How long a request waits for those with a lower token.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// What happens when they have not ended by then.
    #[must_use]
    pub fn when_older(self, when_older: WhenOlder) -> Self {
        Self { when_older, ..self }
    }

    /// Whether a request may pass. Do the work within [`Flight::run`].
    pub async fn admit(
        &self,
        method: &http::Method,
        headers: &http::HeaderMap,
    ) -> Result<Option<Flight>, Refused> {
        let Some(shown) = Shown::of(&self.gate, method, headers)? else { return Ok(None) };
        let Shown { key, token, session } = &shown;
        let verdict = self.gate.decide(key, *token, *session).await;
        if let Some(refused) = Refused::by(verdict, &shown) {
            return Err(refused.with_trouble(self.gate.trouble()));
        }
        let flight = self.gate.flights.board(key, *token, self.patience, self.when_older).await;
        let flight = flight.map_err(|why| {
            let code = match why {
                NotBegun::OlderRuns { .. } => "in_flight",
                NotBegun::TooMany(..) => "too_many_in_flight",
            };
            Refused::later(code, format!("{}/{}: {why}; nothing was done, retry later", key.kind, key.key))
        })?;
        // Another may have come while it waited.
        match Refused::by(self.gate.judge(key, *token, *session), &shown) {
            Some(refused) => Err(refused.with_trouble(self.gate.trouble())),
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
            let work = async move { Ending::Over(service.call(request).await) };
            flight.run(work).await.unwrap_or_else(|was_cut| Ok(Refused::from(was_cut).response()))
        })
    }
}
