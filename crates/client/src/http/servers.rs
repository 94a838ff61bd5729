//! What the answers of servers mean for leases, over connections for heartbeats, for work and for waiting.

use std::time::Duration;

use reqwest::{Response, StatusCode};
use serde::de::DeserializeOwned;
use solehold_api::problem::ErrorCode;

use super::{
    config::HttpConfig,
    error::HttpError,
    no_answer::NoAnswer,
    pool::{Call, Effect, Failure, Pool, PoolOptions},
};
use crate::authority::{AuthorityError, RefusalReason, Reply};

/// Connections for requests that are answered at once.
const WORK: PoolOptions = PoolOptions {
    connect_timeout: Some(Duration::from_secs(2)),
    user_agent: concat!("solehold-client/", env!("CARGO_PKG_VERSION")),
    races: true,
    effect,
};

/// Which connections a request goes over. Heartbeats have their own, so that no slow request delays them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Opening and keeping sessions.
    Beats,
    /// Everything else that is answered at once.
    Work,
    /// Waiting in line: each wait has a connection of its own, and is not begun twice.
    Waits,
}

#[derive(Debug)]
pub struct Servers {
    beats: Pool,
    work: Pool,
    waits: Pool,
}

impl Servers {
    pub fn new(config: &HttpConfig) -> Result<Self, HttpError> {
        Ok(Self {
            // A heartbeat has another one beside it where a server is away: its time is not cut.
            beats: Pool::new(config, PoolOptions { connect_timeout: None, ..WORK })?,
            work: Pool::new(config, WORK)?,
            waits: Pool::new(config, PoolOptions { races: false, ..WORK })?,
        })
    }

    /// Asks the servers in turn until one gives an outcome.
    pub async fn ask<T: DeserializeOwned>(&self, lane: Lane, call: &Call) -> Reply<T> {
        let pool = match lane {
            Lane::Beats => &self.beats,
            Lane::Work => &self.work,
            Lane::Waits => &self.waits,
        };
        match pool.ask(call).await {
            Ok(answer) => answer.json().map(Ok).map_err(|error| {
                AuthorityError::Unknown(format!("{} gave an unexpected answer ({error})", answer.base))
            }),
            Err(failures) => summed_up(failures),
        }
    }

    /// Asks the servers in turn until one begins to answer; the rest of the answer comes as a stream.
    pub async fn stream(&self, call: &Call) -> Reply<Response> {
        match self.waits.stream(call).await {
            Ok(response) => Ok(Ok(response)),
            Err(failures) => summed_up(failures),
        }
    }

    /// Whether the servers are asked for one tenant.
    pub fn has_tenant(&self) -> bool {
        self.work.tenant().is_some()
    }
}

fn effect(failure: &Failure) -> Effect {
    match failure {
        Failure::Problem(problem) => match problem.code {
            ErrorCode::Unavailable | ErrorCode::Overloaded | ErrorCode::TooManyRequests => Effect::None,
            ErrorCode::UnknownOutcome | ErrorCode::Internal => Effect::Unknown,
            _ => Effect::Settled,
        },
        Failure::Unexplained { status, .. } if status.is_server_error() => Effect::Unknown,
        Failure::NoAnswer(NoAnswer { is_undone: false, .. }) => Effect::Unknown,
        Failure::Unexplained { .. } | Failure::NoAnswer(_) => Effect::None,
    }
}

/// Whether a failure is a refusal, or means that there is no outcome.
pub fn judged<T>(failure: Failure) -> Reply<T> {
    let effect = effect(&failure);
    let mut retry_after = None;
    let mut obstacle = None;
    let why = match failure {
        Failure::Problem(problem) if effect == Effect::Settled => {
            return Ok(Err(RefusalReason::from(*problem)));
        }
        Failure::Problem(problem) => {
            retry_after = problem.retry_after_ms.map(Duration::from_millis);
            format!("{}: {}", problem.code, problem.detail)
        }
        Failure::Unexplained { base, status } if status.is_server_error() => {
            format!("{base} answered {status} without saying why")
        }
        Failure::Unexplained { base, status } => {
            let why = format!("{base} answered {status}: is it a solehold server?");
            // Something in front of the server wants to know who asks.
            if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return Err(AuthorityError::Denied { why, retry_after });
            }
            why
        }
        Failure::NoAnswer(no_answer) => {
            obstacle = no_answer.obstacle;
            no_answer.why
        }
    };
    Err(match effect {
        Effect::Unknown => AuthorityError::Unknown(why),
        Effect::None | Effect::Settled => AuthorityError::Unreachable { why, retry_after, obstacle },
    })
}

/// One outcome of all: a refusal, which settles it; otherwise unknown if any of them is, or denied if any of them is.
fn summed_up<T>(failures: Vec<Failure>) -> Reply<T> {
    let mut errors = Vec::new();
    for failure in failures {
        match judged(failure) {
            Err(error) => errors.push(error),
            outcome => return outcome,
        }
    }
    let retry_after = errors.iter().filter_map(AuthorityError::retry_after).max();
    let obstacle = errors.iter().filter_map(AuthorityError::obstacle).max();
    let why = errors.iter().map(AuthorityError::why).collect::<Vec<_>>().join("; ");
    if errors.iter().any(|error| matches!(error, AuthorityError::Unknown(_))) {
        return Err(AuthorityError::Unknown(why));
    }
    if errors.iter().any(|error| matches!(error, AuthorityError::Denied { .. })) {
        return Err(AuthorityError::Denied { why, retry_after });
    }
    Err(AuthorityError::Unreachable { why, retry_after, obstacle })
}

#[cfg(test)]
mod tests {
    use reqwest::Method;
    use solehold_api::problem::Problem;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::timeout,
    };

    use super::{super::pool::BESIDE_AFTER, *};

    fn refused(servers: &[&str]) -> String {
        Servers::new(&HttpConfig::new(servers.to_vec())).expect_err("odd").to_string()
    }

    #[test]
    fn odd_servers_are_named() {
        assert!(refused(&[]).starts_with("0 servers are given"));
        assert!(refused(&["http://ok:1", "ftp://x"]).contains("\"ftp://x\" is neither http:// nor https://"));
        assert!(refused(&["http://a/?b=c"]).contains("query"));
        let secret = refused(&["http://me:hunter2@host"]);
        assert!(secret.contains("use an API key") && !secret.contains("hunter2"), "{secret}");
        let config = HttpConfig { ca_certs: Some(b"nonsense".to_vec()), ..HttpConfig::new(["http://a"]) };
        assert!(Servers::new(&config).is_err());
        let config = HttpConfig { api_key: Some("a\nb".into()), ..HttpConfig::new(["http://a"]) };
        assert!(!Servers::new(&config).expect_err("odd").to_string().contains("a\nb"));
    }

    /// It accepts connections, as a process that is stopped does, and never answers.
    #[tokio::test]
    async fn a_server_that_hangs_is_not_waited_for_alone() {
        let hangs = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let answers = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let urls = [&hangs, &answers].map(|server| server.local_addr().expect("bound").to_string());
        let answering = tokio::spawn(async move {
            loop {
                let (mut stream, _) = answers.accept().await.expect("a connection");
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7").await;
            }
        });
        let servers = Servers::new(&HttpConfig::new(urls)).expect("good");
        let call = || Call::new(Method::GET, "/x".to_owned(), Duration::from_secs(3_600));
        for lane in [Lane::Work, Lane::Beats] {
            let asked = timeout(Duration::from_secs(60), servers.ask::<u64>(lane, &call())).await;
            assert_eq!(asked.expect("the other one answers"), Ok(Ok(7)));
        }
        let beside = timeout(BESIDE_AFTER * 3, servers.ask::<u64>(Lane::Waits, &call())).await;
        assert!(beside.is_err(), "nobody waits in line twice");
        answering.abort();
    }

    #[test]
    fn unknown_outweighs_unreachable() {
        let summed = |failures: &[&Failure]| summed_up::<()>(failures.iter().copied().cloned().collect());
        let unexplained = |status| Failure::Unexplained { base: "a".to_owned(), status };
        let unknown = unexplained(StatusCode::BAD_GATEWAY);
        let away = Failure::Problem(Box::new(Problem::new(ErrorCode::Unavailable, "away")));
        let why = "unavailable: away";
        let lost = format!("{why}; a answered 502 Bad Gateway without saying why");
        assert_eq!(summed(&[&away, &unknown]), Err(AuthorityError::Unknown(lost)));
        assert_eq!(summed(&[&away]), Err(AuthorityError::unreachable(why)));
        let both = summed(&[&away, &unexplained(StatusCode::UNAUTHORIZED)]);
        assert!(matches!(both, Err(AuthorityError::Denied { .. })), "{both:?}");
    }

    #[test]
    fn a_problem_is_a_refusal_or_no_outcome() {
        let judge = |code| judged::<()>(Failure::Problem(Box::new(Problem::new(code, "why"))));
        assert!(matches!(judge(ErrorCode::Unavailable), Err(AuthorityError::Unreachable { .. })));
        assert!(matches!(judge(ErrorCode::UnknownOutcome), Err(AuthorityError::Unknown(_))));
        assert!(matches!(judge(ErrorCode::Held), Ok(Err(refusal)) if refusal.is_worth_another_try()));
        assert!(matches!(judge(ErrorCode::Unauthorized), Ok(Err(refusal)) if !refusal.ends_session()));
    }
}
