//! Asks an orchestrator for its jobs, on behalf of those who look at the dashboard.
//!
//! The page may ask only the server that it came from, and the orchestrator has a key of its own. So the server asks,
//! with that key, and only what [`crate::routes`] names: nothing that a caller sends is passed on but a checked filter,
//! a position in a list and the id of a job. (And the trace that it belongs to, as with every request of the pool.)

use std::time::Duration;

use serde::de::DeserializeOwned;
use solehold_api::problem::{ErrorCode, Problem};
use solehold_client::{
    HttpConfig, HttpError,
    pool::{Call, Effect, Failure, Method, Pool, PoolOptions, Response},
};
use tokio::{sync::Semaphore, time::timeout};

use crate::error::ApiError;

/// How long all processes of the orchestrator may take together. A page waits for 15 seconds.
const WITHIN: Duration = Duration::from_secs(10);
/// A longer answer is dropped. A job's input has up to 1 MiB, and each result up to 256 KiB.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How many questions may be open at once, so that the answers have a bound in memory.
const OPEN_MAX: usize = 16;
const RETRY_AFTER_MS: u64 = 1_000;

const POOL: PoolOptions = PoolOptions {
    connect_timeout: Some(Duration::from_secs(2)),
    user_agent: concat!("solehold/", env!("CARGO_PKG_VERSION")),
    races: true,
    effect,
};

/// Connections to the processes of an orchestrator. They share one database, so any of them can answer.
#[derive(Debug)]
pub(crate) struct OrchestratorClient {
    pool: Pool,
    /// How long one process may take.
    each: Duration,
    open: Semaphore,
}

impl OrchestratorClient {
    /// Checks the configuration. Nothing is asked yet.
    pub fn new(config: &HttpConfig) -> Result<Self, HttpError> {
        let pool = Pool::new(config, POOL)?;
        Ok(Self { pool, each: config.request_timeout, open: Semaphore::new(OPEN_MAX) })
    }

    /// What a path of the orchestrator answers.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: String,
        query: Vec<(&'static str, String)>,
    ) -> Result<T, ApiError> {
        let Ok(_open) = self.open.try_acquire() else {
            let detail = format!("{OPEN_MAX} requests to the orchestrator are already open; try again");
            return Err(Problem::new(ErrorCode::Overloaded, detail).retry_after_ms(RETRY_AFTER_MS).into());
        };
        let mut call = Call::new(Method::GET, path, self.each);
        call.query = query;
        let answered = timeout(WITHIN, async {
            let response = self.pool.stream(&call).await.map_err(failed)?;
            whole(response).await
        });
        let body = answered.await.unwrap_or_else(|_| {
            Err(unavailable(format!("it did not answer within {WITHIN:?} ({})", self.pool.base())))
        })?;
        serde_json::from_slice(&body).map_err(|error| {
            unavailable(format!(
                "{} gave an answer that is not of an orchestrator: {error}",
                self.pool.base()
            ))
        })
    }
}

async fn whole(mut response: Response) -> Result<Vec<u8>, ApiError> {
    let mut body = Vec::new();
    loop {
        let piece = response.chunk().await;
        match piece.map_err(|error| unavailable(format!("its answer broke off: {}", error.without_url())))? {
            None => return Ok(body),
            Some(piece) if body.len() + piece.len() > ANSWER_BYTES_MAX => {
                let detail = format!(
                    "its answer has more than {ANSWER_BYTES_MAX} bytes; ask for less, or ask it with `solehold job`"
                );
                return Err(unavailable(detail));
            }
            Some(piece) => body.extend_from_slice(&piece),
        }
    }
}

/// Whether another process may know better.
fn effect(failure: &Failure) -> Effect {
    match failure {
        Failure::Problem(problem) if problem.code.status() < 500 => Effect::Settled,
        Failure::Unexplained { status, .. } if !status.is_server_error() => Effect::Settled,
        Failure::Problem(_) | Failure::Unexplained { .. } | Failure::NoAnswer(_) => Effect::None,
    }
}

/// What the failures of all processes mean for the caller, whose own key and request were good.
fn failed(failures: Vec<Failure>) -> ApiError {
    if let [Failure::Problem(problem)] = failures.as_slice()
        && matches!(problem.code, ErrorCode::NotFound | ErrorCode::InvalidField | ErrorCode::OutOfBounds)
    {
        return Problem::new(problem.code, problem.detail.clone()).into();
    }
    unavailable(failures.iter().map(words).collect::<Vec<_>>().join("; "))
}

fn words(failure: &Failure) -> String {
    match failure {
        Failure::Problem(problem) if problem.code == ErrorCode::Unauthorized => {
            "it refuses the key of this server: check --orchestrator-key-file".to_owned()
        }
        Failure::Problem(problem) => format!("it answered {}: {}", problem.code, problem.detail),
        Failure::Unexplained { base, status } => {
            format!("{base} answered {status} without saying why: is it an orchestrator?")
        }
        Failure::NoAnswer(no_answer) => no_answer.why.clone(),
    }
}

fn unavailable(why: String) -> ApiError {
    let detail = format!("cannot ask the orchestrator: {why}");
    Problem::new(ErrorCode::OrchestratorUnavailable, detail).retry_after_ms(RETRY_AFTER_MS).into()
}

#[cfg(test)]
mod tests {
    use solehold_client::pool::StatusCode;

    use super::*;

    fn problem(code: ErrorCode) -> Failure {
        Failure::Problem(Box::new(Problem::new(code, "why")))
    }

    #[test]
    fn a_process_that_is_ill_is_passed_over() {
        let strange = |status| Failure::Unexplained { base: "http://a".to_owned(), status };
        for ill in [problem(ErrorCode::Unavailable), strange(StatusCode::BAD_GATEWAY)] {
            assert_eq!(effect(&ill), Effect::None, "{ill:?}");
        }
        for answer in [problem(ErrorCode::NotFound), strange(StatusCode::NOT_FOUND)] {
            assert_eq!(effect(&answer), Effect::Settled, "{answer:?}");
        }
    }

    #[test]
    fn the_caller_is_not_blamed_for_the_key_of_the_server() {
        let code = |code| failed(vec![problem(code)]).0.code;
        assert_eq!(code(ErrorCode::NotFound), ErrorCode::NotFound);
        for other in [ErrorCode::Unauthorized, ErrorCode::NoSuchRoute, ErrorCode::Unavailable] {
            assert_eq!(code(other), ErrorCode::OrchestratorUnavailable);
        }
    }
}
