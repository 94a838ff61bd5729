//! `solehold orchestrator`: consumes commands until it is stopped.

use std::{path::Path, sync::Arc, time::Duration};

use solehold_clock::BootTime;
use solehold_kafka::{Consumer, ConsumerError};
use tokio::sync::watch;

use super::start::{Assembled, assemble, lease_server};
use crate::{
    config::Flags,
    error::RunError,
    http::{self, Readiness},
    orchestrator::Orchestrator,
};

/// How often a process that is starting looks whether it is ready.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The pause before a dispatcher receives reports again after a failure.
const REPORTS_PAUSE: Duration = Duration::from_secs(1);

/// Runs until `ending`, and then hands its partitions over. `ready` is called once, when `/readyz` says the same.
pub async fn run(
    path: &Path,
    flags: Flags,
    say: impl Fn(&str),
    ready: impl FnOnce(),
    ending: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let mut ending = Box::pin(ending);
    let assembled = tokio::select! {
        assembled = assemble(path, flags, true) => assembled?,
        () = &mut ending => return Ok(()),
    };
    let orchestrator = &assembled.orchestrator;
    let consumer_metrics = orchestrator.metrics.consumer.clone();
    let its_metrics = consumer_metrics.clone();
    let readiness: Readiness =
        Arc::new(move || its_metrics.ready(BootTime::now()).err().map(|error| error.to_string()));
    let is_ready = readiness.clone();
    let report_ready = async {
        while is_ready().is_some() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        ready();
        std::future::pending::<()>().await;
    };
    let consumer = Consumer {
        settings: assembled.settings.consumer.clone(),
        brokers: assembled.settings.kafka.brokers.clone(),
        pool: orchestrator.store().pool.clone(),
        partitions: orchestrator.store().partitions.clone(),
        handler: Arc::new(orchestrator.clone()),
        metrics: consumer_metrics,
        name: assembled.settings.name.clone(),
        leases: lease_server(&assembled.settings)?,
        hook: None,
    };
    let (end, ended) = watch::channel(false);
    let consume = async {
        let stop = async {
            ending.await;
            end.send_replace(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = consumer.run(ended) => ended.map_err(consumer_error),
            () = stop => Ok(()),
            () = report_ready => Ok(()),
        }
    };
    with_services(assembled, readiness, &say, consume).await
}

/// Does `work` while the HTTP API is served, notifications of mail are exchanged and reports are received.
pub(super) async fn with_services<T>(
    assembled: Assembled,
    readiness: Readiness,
    say: &impl Fn(&str),
    work: impl Future<Output = Result<T, RunError>>,
) -> Result<T, RunError> {
    let Assembled { settings, orchestrator, listen, .. } = assembled;
    let served = http::serve(orchestrator.clone(), &settings.http, readiness).await;
    let address = served.map_err(|error| {
        let address = settings.http.listen;
        RunError::Unavailable(format!(
            "cannot listen on {address}: {error}; set http.listen to another address"
        ))
    })?;
    say(&format!("solehold orchestrator {} serves jobs on http://{address}", settings.name));
    let ended =
        |what: &str| Err(RunError::Failed(format!("the background task for {what} ended unexpectedly")));
    tokio::select! {
        done = work => done,
        () = orchestrator.mailbox().notifier.connect(orchestrator.store(), &listen) => ended("notifications"),
        () = receive_reports(&orchestrator) => ended("task reports"),
    }
}

/// Receives reports from all dispatchers. Never ends.
async fn receive_reports(orchestrator: &Orchestrator) {
    let reports = orchestrator.parts.dispatchers.iter().map(|(kind, dispatcher)| async move {
        loop {
            let error = dispatcher.reports(orchestrator.mailbox().as_ref()).await;
            tracing::warn!(dispatcher = kind.name(), %error, "cannot receive task reports; retrying");
            tokio::time::sleep(REPORTS_PAUSE).await;
        }
    });
    futures_util::future::join_all(reports).await;
    // Without a dispatcher there are no reports.
    std::future::pending::<()>().await;
}

fn consumer_error(error: ConsumerError) -> RunError {
    match error {
        ConsumerError::Settings(_) | ConsumerError::Topic(_) => RunError::Usage(error.to_string()),
        ConsumerError::Open(_) => RunError::Unavailable(error.to_string()),
        ConsumerError::Failed(_) => RunError::Failed(error.to_string()),
    }
}
