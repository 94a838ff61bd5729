//! Which scenes this tracker follows: those that the server places on it, up to its capacity. Scenes are spread evenly
//! over the trackers, and move without a gap when a tracker joins or ends.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use solehold_client::{
    Contact, Http, HttpConfig, OpenError, Runner, RunnerConfig, SessionConfig, clock::Backoff,
};
use tokio::sync::watch;

use crate::{scene, settings::Settings, wire::Wire};

/// Between attempts to reach a server: longer after each failure.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(5) };

/// Runs a tracker until `ending` comes; then its scenes are handed over, or released.
pub async fn run(settings: Settings, ending: impl Future<Output = ()>) -> Result<()> {
    let mut ending = std::pin::pin!(ending);
    let (settings, wire) = (Arc::new(settings.clone()), Wire::new(&settings.broker, &settings.id)?);
    let runner = tokio::select! {
        runner = open(&settings) => runner?,
        () = &mut ending => return Ok(()),
    };
    println!("tracker {} is registered", settings.id);
    tokio::spawn(tell_contact(runner.session().contact()));
    let id = settings.id.clone();
    let follow = move |assignment| {
        let (settings, wire) = (settings.clone(), wire.clone());
        async move {
            let (scene, ended) = scene::follow(&settings, &wire, assignment).await;
            println!("scene {scene} has ended: {ended:?}");
        }
    };
    runner.run(follow, ending).await?;
    println!("tracker {id} stopped");
    Ok(())
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
        let http = Http::new(HttpConfig::new(settings.server.split(',')))?;
        match Runner::open(http, config.clone()).await {
            Ok(runner) => return Ok(runner),
            Err(OpenError::Authority(error)) => {
                let pause = AGAIN.wait(failures, 0.5);
                println!("no server yet, attempt {failures}: again in {} ms", pause.as_millis());
                tracing::info!(%error, "no server yet");
                tokio::time::sleep(pause).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("it tries for ever")
}

/// Says when the server does not answer, and when it does again.
async fn tell_contact(mut contact: watch::Receiver<Contact>) {
    while contact.changed().await.is_ok() {
        match &*contact.borrow_and_update() {
            Contact::Missing(_) => println!("the server does not answer"),
            Contact::Kept => println!("the server answers"),
        }
    }
}
