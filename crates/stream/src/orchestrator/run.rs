//! Runs an orchestrator: everything put together.

use std::{path::Path, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use secrecy::ExposeSecret;
use tokio_postgres::NoTls;

use super::{
    config::{self, ConfigError, OrchestratorFile, PostgresSettings, Settings},
    store::Store,
};
use crate::running::{Flags, RunError};

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.0)
    }
}

/// Flags and variables override the file.
fn apply(flags: Flags, file: &mut OrchestratorFile) {
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
fn pool(settings: &PostgresSettings) -> Result<(Pool, tokio_postgres::Config), RunError> {
    let url = settings.url.expose_secret().parse::<tokio_postgres::Config>();
    let mut config = url.map_err(|_| RunError::Usage("postgres.url is not a URL".to_owned()))?;
    config.connect_timeout(CONNECT_WITHIN);
    if config.get_application_name().is_none() {
        config.application_name("solehold-orchestrator");
    }
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(config.clone(), NoTls, recycling);
    let pool = Pool::builder(manager)
        .max_size(settings.connections)
        .wait_timeout(Some(CONNECT_WITHIN))
        .create_timeout(Some(CONNECT_WITHIN))
        .runtime(Runtime::Tokio1)
        .build();
    pool.map(|pool| (pool, config)).map_err(|error| RunError::Failed(error.to_string()))
}

/// The store, with its tables.
async fn open(settings: &Settings) -> Result<(Arc<Store>, tokio_postgres::Config), RunError> {
    let (pool, config) = pool(&settings.postgres)?;
    let store = Store::new(pool, &settings.postgres.schema);
    let store = store.map_err(|error| RunError::Usage(error.to_string()))?;
    let prepared = store.prepare(&settings.kafka.group, &settings.kafka.topic).await;
    prepared.map_err(|error| RunError::Unavailable(format!("the database of jobs: {error}")))??;
    Ok((Arc::new(store), config))
}

/// Reads the file, and makes sure of everything that it names.
pub async fn check(path: &Path, flags: Flags) -> Result<Vec<String>, RunError> {
    let settings = config::load(path, |file| apply(flags, file))?;
    open(&settings).await?;
    let stages: Vec<&str> = settings.pipeline.stages().iter().map(|stage| stage.name.as_str()).collect();
    Ok(vec![format!(
        "the configuration is good: commands from {} in group {}, stages {}",
        settings.kafka.topic,
        settings.kafka.group,
        stages.join(", "),
    )])
}

/// Runs until `ending`.
pub async fn run(
    path: &Path,
    flags: Flags,
    _say: impl Fn(&str),
    _ending: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let settings = config::load(path, |file| apply(flags, file))?;
    open(&settings).await?;
    Err(RunError::Failed("the consumer is not built yet".to_owned()))
}
