//! Runs an orchestrator: everything put together.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use secrecy::ExposeSecret;
use tokio_postgres::NoTls;

use solehold_client::Http;
use solehold_clock::BootTime;
use solehold_engine::postgres::Target;
use tokio::sync::watch;

use crate::running::{Flags, RunError};
use crate::{
    Desk, Jobs, Parts,
    config::{self, ConfigError, OrchestratorFile, Ownership, PostgresSettings, Settings},
    dispatch::Reports,
    http::{self, Readiness},
    publish::KafkaPublisher,
    sender::Channel,
    store::{EVENTS, LETTERS, Store},
};
use solehold_kafka::{Consumer, ConsumerError, ConsumerSettings, PartitionAssignment};

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How often a database that is not there yet is tried again.
const TRY_EVERY: Duration = Duration::from_millis(500);
/// After a way to workers gave up.
const REPORTS_PAUSE: Duration = Duration::from_secs(1);

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.0)
    }
}

/// Flags and variables override the file.
pub(super) fn apply(flags: Flags, file: &mut OrchestratorFile) {
    let leases = &mut file.leases;
    let Flags { server, api_key, tenant, ca_cert } = flags;
    leases.server = server.or(leases.server.take());
    if api_key.is_some() {
        (leases.api_key, leases.api_key_file) = (api_key, None);
    }
    leases.tenant = tenant.or(leases.tenant.take());
    leases.ca_cert = ca_cert.or(leases.ca_cert.take());
}

/// Connections to the database.
fn pool(settings: &PostgresSettings) -> Result<(Pool, Target), RunError> {
    let mut target: Target = settings
        .url
        .expose_secret()
        .parse()
        .map_err(|error| RunError::Usage(format!("postgres.url: {error}")))?;
    target.config.connect_timeout(CONNECT_WITHIN);
    if target.config.get_application_name().is_none() {
        target.config.application_name("solehold-orchestrator");
    }
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let config = target.config.clone();
    let manager = match target.tls.clone() {
        Some(tls) => Manager::from_config(config, tls, recycling),
        None => Manager::from_config(config, NoTls, recycling),
    };
    let pool = Pool::builder(manager)
        .max_size(settings.connections)
        .wait_timeout(Some(CONNECT_WITHIN))
        .create_timeout(Some(CONNECT_WITHIN))
        .runtime(Runtime::Tokio1)
        .build();
    pool.map(|pool| (pool, target)).map_err(|error| RunError::Failed(error.to_string()))
}

/// The store, with its tables. A database that is not there yet is waited for until `wait` is over.
pub(super) async fn open(settings: &Settings, wait: Duration) -> Result<(Arc<Store>, Target), RunError> {
    let (pool, target) = pool(&settings.postgres)?;
    let store = Store::new(pool, &settings.postgres.schema);
    let store = store.map_err(|error| RunError::Usage(error.to_string()))?;
    let until = BootTime::now().plus(wait);
    let mut is_told = false;
    loop {
        let error = match store.prepare(&settings.kafka.group, &settings.kafka.topic).await {
            Ok(prepared) => {
                prepared?;
                return Ok((Arc::new(store), target));
            }
            Err(error) => error,
        };
        let left = until.since(BootTime::now());
        if !may_pass(&error) || left.is_zero() {
            return Err(RunError::Unavailable(format!("the database of jobs: {error}")));
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!(%error, ?wait, "the database of jobs is not there yet; waiting for it");
        }
        tokio::time::sleep(TRY_EVERY.min(left)).await;
    }
}

/// Whether it is worth while to try again: the database cannot be reached, or is starting, stopping or overloaded. A
/// password, a role, a database or a right that is wrong stays wrong.
fn may_pass(error: &solehold_sql::Error) -> bool {
    // 25P0 is a transaction that was ended because this process stood still.
    let passing = ["08", "25P0", "40", "53", "55", "57", "58", "XX"];
    let is_passing = |code: &str| passing.iter().any(|start| code.starts_with(start));
    match error {
        // Without a code it comes from this side: the connection was lost or not made, or there is no password to give.
        solehold_sql::Error::Postgres(cause) => error.code().map_or_else(
            || cause.is_closed() || cause.source().is_some_and(|source| source.is::<std::io::Error>()),
            is_passing,
        ),
        solehold_sql::Error::Connection(_) => true,
        _ => false,
    }
}

/// The server whose leases say who has which partition, if leases do.
pub(super) fn lease_server(settings: &Settings) -> Result<Option<Http>, RunError> {
    let Ownership::Leases(leases) = &settings.ownership else { return Ok(None) };
    let http = Http::new(leases.http());
    http.map(Some).map_err(|error| RunError::Usage(format!("leases: {error}")))
}

fn consumer_settings(settings: &Settings) -> ConsumerSettings {
    let (kafka, limits) = (&settings.kafka, &settings.limits);
    let defaults = ConsumerSettings::default();
    let (assignment, capacity, session_timeout) = match &settings.ownership {
        Ownership::Group => (PartitionAssignment::Group, defaults.capacity, kafka.session_timeout),
        Ownership::Leases(leases) => (PartitionAssignment::Leases, leases.capacity, leases.ttl),
    };
    ConsumerSettings {
        topic: kafka.topic.clone(),
        group: kafka.group.clone(),
        partitions: kafka.partitions,
        partition_assignment: assignment,
        group_instance_id: kafka.static_member.clone(),
        auto_offset_reset: kafka.auto_offset_reset,
        lost_messages: kafka.lost_messages,
        session_timeout,
        capacity,
        parallel: limits.parallel,
        span: limits.span,
        batch: limits.batch,
        attempts: limits.attempts,
        leave_timeout: defaults.leave_timeout.min(session_timeout / 2),
        ..defaults
    }
}

/// Everything that an orchestrator is made of.
pub(super) struct Made {
    pub settings: Settings,
    pub jobs: Jobs,
    listen: Target,
    consumer: ConsumerSettings,
}

/// Makes it. It waits for its database at the start only `at_start`.
pub(super) async fn make(path: &Path, flags: Flags, at_start: bool) -> Result<Made, RunError> {
    let settings = config::load(path, |file| apply(flags, file))?;
    let consumer = consumer_settings(&settings);
    if let Some(fault) = consumer.fault() {
        return Err(RunError::Usage(format!("{}: {fault}", path.display())));
    }
    let wait = if at_start { settings.postgres.wait } else { Duration::ZERO };
    let (store, listen) = open(&settings, wait).await?;
    let desk = Arc::new(Desk::new(store));
    let publisher = KafkaPublisher::new(&settings.kafka.brokers, settings.kafka.headers);
    let publisher = publisher.map_err(|error| RunError::Usage(format!("kafka: {error}")))?;
    let reports: Arc<dyn Reports> = desk.clone();
    let parts = Parts {
        dispatchers: settings.dispatchers.open(&settings.kafka, &reports).map_err(RunError::Usage)?,
        desk,
        commands: settings.commands.clone(),
        pipeline: settings.pipeline.clone(),
        publisher: Arc::new(publisher),
        events_topic: settings.kafka.events_topic.clone(),
        dead_letter_topic: settings.kafka.dead_letter_topic.clone(),
        inbox_retention: settings.limits.inbox_retention,
        job_retention: settings.limits.job_retention,
    };
    let jobs = Jobs::new(parts);
    check_channels(&jobs).await?;
    Ok(Made { settings, jobs, listen, consumer })
}

/// What jobs in flight wait for must still have a way out.
async fn check_channels(jobs: &Jobs) -> Result<(), RunError> {
    let waiting = jobs.store().channels().await;
    let waiting = waiting.map_err(|error| RunError::Unavailable(format!("the database of jobs: {error}")))?;
    let ways = Channel::of(jobs);
    let Some(missing) = waiting.iter().find(|name| !ways.iter().any(|way| way.name() == name.as_str()))
    else {
        return Ok(());
    };
    let key = match missing.as_str() {
        EVENTS => "kafka.events_topic".to_owned(),
        LETTERS => "kafka.dead_letter_topic".to_owned(),
        way => format!("dispatchers.{way}"),
    };
    Err(RunError::Usage(format!(
        "jobs in flight have something to send by {key}, which the file no longer has"
    )))
}

/// Runs until `ending`, and then hands its partitions over.
pub async fn run(
    path: &Path,
    flags: Flags,
    say: impl Fn(&str),
    ending: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let mut ending = Box::pin(ending);
    let made = tokio::select! {
        made = make(path, flags, true) => made?,
        () = &mut ending => return Ok(()),
    };
    let figures = made.jobs.figures().consumer().clone();
    let ready = figures.clone();
    let readiness: Readiness = Arc::new(move || ready.ready(BootTime::now()).err());
    let jobs = &made.jobs;
    let consumer = Consumer {
        settings: made.consumer.clone(),
        brokers: made.settings.kafka.brokers.clone(),
        pool: jobs.store().pool().clone(),
        partitions: jobs.store().partitions().clone(),
        handler: Arc::new(jobs.clone()),
        figures,
        name: made.settings.name.clone(),
        leases: lease_server(&made.settings)?,
        hook: None,
    };
    let (end, ended) = watch::channel(false);
    let consume = async {
        let consuming = consumer.run(ended);
        let told = async {
            ending.await;
            end.send_replace(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = consuming => ended.map_err(of_error),
            () = told => Ok(()),
        }
    };
    with_services(made, readiness, &say, consume).await
}

/// Does something while jobs can be read and steered, hints of mail arrive, and workers report.
pub(super) async fn with_services<T>(
    made: Made,
    readiness: Readiness,
    say: &impl Fn(&str),
    work: impl Future<Output = Result<T, RunError>>,
) -> Result<T, RunError> {
    let Made { settings, jobs, listen, .. } = made;
    let address = http::serve(jobs.clone(), &settings.http, readiness).await.map_err(|error| {
        RunError::Unavailable(format!(
            "cannot listen on {}: {error}; http.listen names another",
            settings.http.listen
        ))
    })?;
    say(&format!("solehold orchestrator {} serves jobs on http://{address}", settings.name));
    let ended = |what: &str| Err(RunError::Failed(format!("{what} ended by themselves")));
    tokio::select! {
        done = work => done,
        () = jobs.desk().wakes().connect(jobs.store(), &listen) => ended("hints of mail"),
        () = report(&jobs) => ended("reports"),
    }
}

/// Takes reports from all ways to workers. Never ends.
async fn report(jobs: &Jobs) {
    let reports = jobs.parts().dispatchers.iter().map(|(kind, way)| async move {
        loop {
            let error = way.reports(jobs.desk().as_ref()).await;
            tracing::warn!(channel = kind.name(), %error, "reports wait");
            tokio::time::sleep(REPORTS_PAUSE).await;
        }
    });
    futures_util::future::join_all(reports).await;
    // Without any, there is nothing to wait for.
    std::future::pending::<()>().await;
}

fn of_error(error: ConsumerError) -> RunError {
    match error {
        ConsumerError::Settings(_) | ConsumerError::Topic(_) => RunError::Usage(error.to_string()),
        ConsumerError::Open(_) => RunError::Unavailable(error.to_string()),
        ConsumerError::Failed(_) => RunError::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_file_gives_settings_that_a_consumer_takes() {
        let file = "kafka: {brokers: 'localhost:9092'}
postgres: {url: 'postgres://me@localhost/jobs'}
dispatchers: {http: {url: 'http://localhost:8000'}}
stages: {decode: {task: /decode, dispatch: http}}
";
        let folder = tempfile::tempdir().expect("a folder");
        for assignment in ["group", "leases"] {
            let path = folder.path().join("o.yaml");
            let text = file.replace("9092'", &format!("9092', partition_assignment: {assignment}"));
            std::fs::write(&path, text).expect("written");
            let settings = config::load(&path, |_| {}).expect("good");
            assert_eq!(consumer_settings(&settings).fault(), None, "{assignment}");
        }
    }
}
