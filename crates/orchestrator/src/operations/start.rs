//! Opens the database and assembles an orchestrator from its configuration. Nothing runs yet.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use secrecy::ExposeSecret;
use solehold_client::Http;
use solehold_clock::BootTime;
use solehold_engine::postgres::Target;
use tokio_postgres::NoTls;

use crate::{
    config::{self, Flags, PostgresSettings, Settings},
    dispatch::{self, Reports},
    error::RunError,
    mailbox::Mailbox,
    orchestrator::{Orchestrator, Parts},
    outbox::Channel,
    publish::KafkaPublisher,
    store::{EVENTS, LETTERS, Prepared, Store},
};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two attempts to reach the database at the start.
const TRY_EVERY: Duration = Duration::from_millis(500);

pub(super) fn pool(settings: &PostgresSettings) -> Result<(Pool, Target), RunError> {
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

/// The store, with its tables. Waits for the database until `wait` is over.
pub(super) async fn open(settings: &Settings, wait: Duration) -> Result<(Arc<Store>, Target), RunError> {
    let (pool, target) = pool(&settings.postgres)?;
    let schema = &settings.postgres.schema;
    let store = Store::new(pool, schema).map_err(|error| RunError::Usage(error.to_string()))?;
    let until = BootTime::now().plus(wait);
    let mut is_logged = false;
    loop {
        let group = &settings.consumer.group;
        let topic = &settings.consumer.topic;
        let error = match store.prepare(group, topic).await {
            Ok(Prepared::Ready) => return Ok((Arc::new(store), target)),
            Ok(Prepared::InUse { group: its_group, topic: its_topic }) => {
                return Err(RunError::Usage(format!(
                    "the schema {schema} has the jobs of group {its_group} and topic {its_topic}, not of {group} and \
                     {topic}: give postgres.schema another name, or name them in kafka.group and kafka.topic"
                )));
            }
            Err(error) => error,
        };
        let left = until.since(BootTime::now());
        if !is_transient(&error) || left.is_zero() {
            return Err(RunError::database(error));
        }
        if !is_logged {
            tracing::warn!(%error, ?wait, "cannot reach the database of jobs; waiting for it");
            is_logged = true;
        }
        tokio::time::sleep(TRY_EVERY.min(left)).await;
    }
}

/// Whether a retry may succeed: the database cannot be reached, or is starting, stopping or overloaded. A wrong
/// password, role, database or permission stays wrong.
fn is_transient(error: &solehold_sql::Error) -> bool {
    // 25P0: a transaction that was ended because this process was paused.
    let transient = ["08", "25P0", "40", "53", "55", "57", "58", "XX"];
    let has_transient_code = |code: &str| transient.iter().any(|start| code.starts_with(start));
    match error {
        // Errors without a code come from the client: a failed connection, or a missing password.
        solehold_sql::Error::Postgres(cause) => error.code().map_or_else(
            || cause.is_closed() || cause.source().is_some_and(|source| source.is::<std::io::Error>()),
            has_transient_code,
        ),
        solehold_sql::Error::Connection(_) => true,
        _ => false,
    }
}

/// The server that leases partitions, if partitions are leased.
pub(super) fn lease_server(settings: &Settings) -> Result<Option<Http>, RunError> {
    let http = settings.leases.clone().map(Http::new).transpose();
    http.map_err(|error| RunError::Usage(format!("leases: {error}")))
}

/// An orchestrator that is ready to run.
pub(super) struct Assembled {
    pub settings: Settings,
    pub orchestrator: Orchestrator,
    pub listen: Target,
}

/// Assembles an orchestrator. Waits for its database only if `waits`.
pub(super) async fn assemble(path: &Path, flags: Flags, waits: bool) -> Result<Assembled, RunError> {
    let settings = config::load(path, |file| flags.apply(file))?;
    let checked = settings.consumer.check();
    checked.map_err(|error| RunError::Usage(format!("{}: {error}", path.display())))?;
    let wait = if waits { settings.postgres.wait } else { Duration::ZERO };
    let (store, listen) = open(&settings, wait).await?;
    let mailbox = Arc::new(Mailbox::new(store));
    let publisher = KafkaPublisher::new(&settings.kafka.brokers, settings.kafka.headers);
    let publisher = publisher.map_err(|error| RunError::Usage(format!("kafka: {error}")))?;
    let reports: Arc<dyn Reports> = mailbox.clone();
    let dispatchers = dispatch::open(&settings, &reports);
    let orchestrator = Orchestrator::new(Parts {
        mailbox,
        commands: settings.commands.clone(),
        pipeline: settings.pipeline.clone(),
        dispatchers: dispatchers.map_err(|error| RunError::Usage(error.to_string()))?,
        publisher: Arc::new(publisher),
        events_topic: settings.kafka.events_topic.clone(),
        dead_letter_topic: settings.kafka.dead_letter_topic.clone(),
        inbox_retention: settings.inbox_retention,
        job_retention: settings.job_retention,
    });
    check_channels(&orchestrator).await?;
    Ok(Assembled { settings, orchestrator, listen })
}

/// Rejects a configuration without a channel that rows of the outbox need.
async fn check_channels(orchestrator: &Orchestrator) -> Result<(), RunError> {
    let needed = orchestrator.store().channels().await.map_err(RunError::database)?;
    let channels = Channel::all(&orchestrator.parts);
    let is_missing = |name: &&String| !channels.iter().any(|channel| channel.name() == name.as_str());
    let Some(missing) = needed.iter().find(is_missing) else { return Ok(()) };
    let key = match missing.as_str() {
        EVENTS => "kafka.events_topic".to_owned(),
        LETTERS => "kafka.dead_letter_topic".to_owned(),
        dispatcher => format!("dispatchers.{dispatcher}"),
    };
    Err(RunError::Usage(format!(
        "{key} is missing from the configuration, and jobs in flight still have messages to send by it: put it back"
    )))
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
            assert_eq!(settings.consumer.check(), Ok(()), "{assignment}");
        }
    }
}
