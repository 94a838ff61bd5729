//! What `agent.yaml` may say. Everything may be missing; nothing may be unknown. The settings in [`super`] describe
//! most of the keys.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::worker::Protocol;

/// The longest time that may be configured.
const SECONDS_MAX: f64 = 24.0 * 60.0 * 60.0;

/// The file. Some keys have a second name, which the managers of camera pipelines use.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentFile {
    #[serde(alias = "name")]
    pub runner_id: Option<String>,
    #[serde(alias = "servers", alias = "control_plane_url")]
    pub server: Option<OneOrMore>,
    pub api_key: Option<String>,
    pub api_key_file: Option<PathBuf>,
    pub ca_cert: Option<PathBuf>,
    /// The tenant to act for, with a key for several.
    #[serde(alias = "tenant_id")]
    pub tenant: Option<String>,
    #[serde(alias = "site_id")]
    pub site: Option<String>,
    #[serde(alias = "group")]
    pub deployment_group: Option<String>,
    #[serde(alias = "version")]
    pub deployment_version: Option<String>,
    /// How others reach it.
    pub host: Option<String>,
    /// The port of the workers' own API, for others.
    pub port: Option<u16>,
    pub metrics_port: Option<u16>,
    pub metrics_host: Option<String>,
    pub capacity: Option<u32>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// Labels to select it by.
    pub labels: BTreeMap<String, String>,
    /// The kinds of resources that are placed on it; all, if none are given.
    pub kinds: Vec<String>,
    pub placement: Option<Placement>,
    /// Those resources, as `KIND/KEY`, where placement is static.
    pub resources: Vec<String>,
    pub max_workers: Option<u32>,
    pub max_resources_per_worker: Option<u32>,
    /// The same, as managers of camera pipelines call it.
    pub max_cameras_per_worker: Option<u32>,
    pub lease_ttl_seconds: Option<Seconds>,
    /// How often it sends one, at least.
    pub heartbeat_interval_seconds: Option<Seconds>,
    /// How often it asks again for what it did not get.
    pub lease_retry_interval_seconds: Option<Seconds>,
    /// How long workers go on past the deadline while no server answers.
    pub grace_seconds: Option<Seconds>,
    pub cache_dir: Option<PathBuf>,
    pub drain_budget_seconds: Option<Seconds>,
    /// The workers' command line ends with `--config`, `--runner-id`, `--shard-id` and `--manager-pid`.
    pub manager_mode: Option<bool>,
    /// Accepted and not used: the server keeps what a manager would keep there.
    pub database_url: Option<String>,
    pub worker: WorkerFile,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerFile {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// A file with the fields of each worker's configuration, YAML or JSON.
    pub config_template: Option<PathBuf>,
    pub protocol: Option<Protocol>,
    pub startup_timeout_seconds: Option<Seconds>,
    pub watchdog_seconds: Option<Seconds>,
    pub stop_timeout_seconds: Option<Seconds>,
    pub restart: RestartFile,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RestartFile {
    /// The pause before the second restart in a row; it doubles from there.
    pub first_seconds: Option<Seconds>,
    pub cap_seconds: Option<Seconds>,
    pub good_run_seconds: Option<Seconds>,
    /// After this many failures in a row its leases go to another runner.
    pub burst: Option<u32>,
    /// How long this runner does not ask for them again.
    pub penalty_seconds: Option<Seconds>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Those that the server assigns to it.
    Assigned,
    /// Those in the file.
    Static,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one.clone()],
            Self::More(more) => more.clone(),
        }
    }
}

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
