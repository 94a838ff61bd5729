//! What `agent.yaml` may say. Everything may be missing; nothing may be unknown.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::worker::Protocol;

/// The longest time that may be configured.
const SECONDS_MAX: f64 = 24.0 * 60.0 * 60.0;

/// The file. Some keys have a second name, which the managers of camera pipelines use.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentFile {
    /// The name of this runner.
    #[serde(alias = "name")]
    pub runner_id: Option<String>,
    /// The servers.
    #[serde(alias = "servers", alias = "control_plane_url")]
    pub server: Option<OneOrMore>,
    /// The key to show them.
    pub api_key: Option<String>,
    /// The file with that key.
    pub api_key_file: Option<PathBuf>,
    /// Certificates to trust besides the system's.
    pub ca_cert: Option<PathBuf>,
    /// The tenant to act for, with a key for several.
    #[serde(alias = "tenant_id")]
    pub tenant: Option<String>,
    /// Where it is.
    #[serde(alias = "site_id")]
    pub site: Option<String>,
    /// Which deployment it belongs to.
    #[serde(alias = "group")]
    pub deployment_group: Option<String>,
    /// In which version.
    #[serde(alias = "version")]
    pub deployment_version: Option<String>,
    /// How others reach it.
    pub host: Option<String>,
    /// The port of the workers' own API, for others.
    pub port: Option<u16>,
    /// The port of health and metrics.
    pub metrics_port: Option<u16>,
    /// The address for health and metrics.
    pub metrics_host: Option<String>,
    /// How many resources it takes.
    pub capacity: Option<u32>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// Labels to select it by.
    pub labels: BTreeMap<String, String>,
    /// The kinds of resources that are placed on it; all, if none are given.
    pub kinds: Vec<String>,
    /// Which resources it works on.
    pub placement: Option<Placement>,
    /// Those resources, as `KIND/KEY`, where placement is static.
    pub resources: Vec<String>,
    /// How many workers run at once.
    pub max_workers: Option<u32>,
    /// How many resources one of them works on.
    pub max_resources_per_worker: Option<u32>,
    /// The same, as managers of camera pipelines call it.
    pub max_cameras_per_worker: Option<u32>,
    /// How long a heartbeat keeps what it holds.
    pub lease_ttl_seconds: Option<Seconds>,
    /// How often it sends one, at least.
    pub heartbeat_interval_seconds: Option<Seconds>,
    /// How often it asks again for what it did not get.
    pub lease_retry_interval_seconds: Option<Seconds>,
    /// How long workers go on past the deadline while no server answers.
    pub grace_seconds: Option<Seconds>,
    /// A folder in which configurations are kept.
    pub cache_dir: Option<PathBuf>,
    /// How long everything may take from SIGTERM to the end.
    pub drain_budget_seconds: Option<Seconds>,
    /// The workers' command line ends with `--config`, `--runner-id`, `--shard-id` and `--manager-pid`.
    pub manager_mode: Option<bool>,
    /// Accepted and not used: the server keeps what a manager would keep there.
    pub database_url: Option<String>,
    /// The workers.
    pub worker: WorkerFile,
}

/// The workers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerFile {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// What is added to its environment.
    pub env: BTreeMap<String, String>,
    /// A file with the fields of each worker's configuration, YAML or JSON.
    pub config_template: Option<PathBuf>,
    /// Whether workers speak the protocol.
    pub protocol: Option<Protocol>,
    /// How long one may take to be ready.
    pub startup_timeout_seconds: Option<Seconds>,
    /// How long one may be silent.
    pub watchdog_seconds: Option<Seconds>,
    /// How long one has to end.
    pub stop_timeout_seconds: Option<Seconds>,
    /// When one is started again.
    pub restart: RestartFile,
}

/// When a worker is started again.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RestartFile {
    /// The pause before the second restart in a row; it doubles from there.
    pub first_seconds: Option<Seconds>,
    /// The longest pause.
    pub cap_seconds: Option<Seconds>,
    /// A run of at least this time forgets the failures before it.
    pub good_run_seconds: Option<Seconds>,
    /// After this many failures in a row its leases go to another runner.
    pub burst: Option<u32>,
    /// How long this runner does not ask for them again.
    pub penalty_seconds: Option<Seconds>,
}

/// Which resources a runner works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Those that the server assigns to it.
    Assigned,
    /// Those in the file.
    Static,
}

/// One text, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// One.
    One(String),
    /// Several.
    More(Vec<String>),
}

impl OneOrMore {
    /// As a list.
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one.clone()],
            Self::More(more) => more.clone(),
        }
    }
}

/// A time in seconds, whole or not.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Seconds(pub Duration);

impl TryFrom<f64> for Seconds {
    type Error = String;

    fn try_from(seconds: f64) -> Result<Self, String> {
        if !(0.0..=SECONDS_MAX).contains(&seconds) {
            return Err(format!("{seconds} is not a number of seconds from 0 to {SECONDS_MAX}"));
        }
        Ok(Self(Duration::from_secs_f64(seconds)))
    }
}
