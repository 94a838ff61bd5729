//! Which scenes this tracker follows: those that the server places on it, up to its capacity. Scenes are spread evenly
//! over the trackers, and move without a gap when a tracker joins or ends.

use std::{sync::Arc, time::Duration};

use anyhow::{Error, Result, anyhow};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::IgnoredAny;
use solehold_client::{
    Contact, Http, OpenError, RefusalReason, Runner, RunnerConfig, SessionConfig, clock::Backoff,
};
use tokio::sync::watch;

use crate::{scene, settings::Settings, wire::Wire};

/// Between attempts to reach a server: longer after each failure.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(5) };

/// Runs a tracker until `ending` comes; then its scenes are handed over, or released. A server that refuses the
/// tracker's key ends it as well, with an error.
pub async fn run(settings: Settings, ending: impl Future<Output = ()>) -> Result<()> {
    let mut ending = std::pin::pin!(ending);
    let http = Http::new(settings.http()?)?;
    let wire = Wire::new(settings.broker.options(&settings.id)?);
    let settings = Arc::new(settings);
    let runner = tokio::select! {
        runner = open(&settings) => runner?,
        () = &mut ending => return Ok(()),
    };
    println!("tracker {} is registered", settings.id);
    let id = settings.id.clone();
    let contact = runner.session().contact();
    let follow = move |assignment| {
        let settings = settings.clone();
        let wire = wire.clone();
        async move {
            let (scene, ended) = scene::follow(&settings, &wire, assignment).await;
            println!("scene {scene} has ended: {ended:?}");
        }
    };
    let mut refused = None;
    let ending = async {
        tokio::select! {
            () = ending => {}
            why = until_refused(&http, &id, contact) => refused = Some(why),
        }
    };
    runner.run(follow, ending).await?;
    println!("tracker {id} stopped");
    refused.map_or(Ok(()), Err)
}

/// Registers; a server that is away is waited for, longer after each failure.
async fn open(settings: &Settings) -> Result<Runner> {
    let mut config = RunnerConfig::new(&settings.id, &["scene"], settings.capacity);
    config.session = SessionConfig {
        ttl: settings.ttl,
        every: Some(settings.renew_every),
        policy: settings.policy,
        open_timeout: Duration::ZERO,
        ..config.session
    };
    config.drain_within = settings.drain;
    for failures in 1.. {
        let http = Http::new(settings.http()?)?;
        match Runner::open(http, config.clone()).await {
            Ok(runner) => return Ok(runner),
            Err(OpenError::Authority(error)) => {
                let pause = AGAIN.wait(failures, 0.5);
                println!("no server yet, attempt {failures}: again in {} ms", pause.as_millis());
                tracing::info!(%error, "no server yet");
                tokio::time::sleep(pause).await;
            }
            Err(OpenError::Refused(refusal)) => return Err(refuses(&refusal)),
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("it tries for ever")
}

/// Says when the server does not answer, and when it does again. Returns when it does answer, and refuses the tracker's
/// key: it was revoked, or may no longer do this.
async fn until_refused(http: &Http, id: &str, mut contact: watch::Receiver<Contact>) -> Error {
    let path = format!("/api/v1/runners/{}/assignments", utf8_percent_encode(id, NON_ALPHANUMERIC));
    let mut was_kept = true;
    let mut failures = 0;
    loop {
        let is_kept = *contact.borrow_and_update() == Contact::Kept;
        match (was_kept, is_kept) {
            (true, false) => println!("the server does not answer"),
            (false, true) => println!("the server answers"),
            _ => {}
        }
        was_kept = is_kept;
        if is_kept {
            failures = 0;
            if contact.changed().await.is_err() {
                return std::future::pending().await;
            }
            continue;
        }
        if let Ok(Err(refusal)) = http.get::<IgnoredAny>(path.clone()).await
            && matches!(refusal.code.status(), 401 | 403)
        {
            return refuses(&refusal);
        }
        failures += 1;
        tokio::time::sleep(AGAIN.wait(failures, 0.5)).await;
    }
}

fn refuses(refusal: &RefusalReason) -> Error {
    let hint = if refusal.code.status() == 401 { "; check --api-key or SOLEHOLD_API_KEY" } else { "" };
    anyhow!("the server refuses this tracker: {}: {}{hint}", refusal.code, refusal.detail)
}
