//! How the agent is configured: one YAML file, checked whole, with the line of what is wrong.

mod command;
mod file;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use solehold_api::{
    limits::{CAPACITY_MAX, CAPACITY_MIN},
    runners::RegisterRunner,
};
use solehold_client::{Http, HttpConfig, Policy, ResourceName, transport};
use solehold_clock::Backoff;
use solehold_core::limits::{TTL_MS_MAX, TTL_MS_MIN};
pub use solehold_process::config::ConfigError;
use solehold_process::config::{InvalidValue, invalid};

pub use self::file::{AgentFile, OneOrMore, Placement, Seconds};
use crate::{machine::WORKERS_PART, worker::Bounds};

/// What service managers give a program between SIGTERM and SIGKILL unless they are told otherwise: Kubernetes by
/// `terminationGracePeriodSeconds`, and units of systemd that set `TimeoutStopSec` as most do.
pub const MANAGERS_WAIT: Duration = Duration::from_secs(30);
/// How long a worker has to end unless the file says: this long, and at most this part of the drain budget.
const STOP_SECONDS: f64 = 20.0;
const STOP_PART: f64 = 0.8;
/// How often heartbeats are sent unless the file says, or the ttl needs it more often.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Settings {
    pub runner: RegisterRunner,
    pub server: HttpConfig,
    /// The file with the certificates to trust besides the system's.
    pub ca_file: Option<PathBuf>,
    pub lease: LeaseSettings,
    pub source: Source,
    pub worker: WorkerSettings,
    /// How long everything may take from SIGTERM to the end.
    pub drain: Duration,
    /// Where health and metrics are served.
    pub metrics: Option<(String, u16)>,
    /// A folder in which configurations are kept.
    pub cache: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// How long a heartbeat keeps it.
    pub ttl: Duration,
    /// How often to send one.
    pub every: Duration,
    /// How often to ask again for what was refused.
    pub retry: Duration,
    /// What to do when no server answers.
    pub policy: Policy,
}

/// Where the agent learns what to work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The server assigns it.
    Assigned,
    /// It is in the file.
    Static(BTreeSet<ResourceName>),
}

/// What is run.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerSettings {
    /// The command and its arguments, with placeholders.
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The fields that each worker's configuration begins with.
    pub template: Map<String, Value>,
    pub bounds: Bounds,
    pub max: usize,
    pub per_worker: usize,
    /// The key of the file that says so.
    pub per_worker_key: &'static str,
    /// How long this runner does not ask again for what its workers failed at.
    pub penalty: Duration,
}

impl WorkerSettings {
    /// How many resources all workers together can work on.
    fn room(&self) -> u64 {
        (self.max as u64).saturating_mul(self.per_worker as u64)
    }
}

/// Reads a file; `change` may change what it says, such as by flags.
pub fn load(path: &Path, change: impl FnOnce(&mut AgentFile)) -> Result<Settings, ConfigError> {
    solehold_process::config::load(path, change, settle)
}

/// Checks everything and fills in the defaults.
fn settle(file: AgentFile) -> Result<Settings, InvalidValue> {
    let drain = seconds(file.drain_budget_seconds, 25.0);
    let lease = lease(&file)?;
    let worker = worker(&file, drain)?;
    if drain.is_zero() {
        return invalid("drain_budget_seconds", "drain_budget_seconds is 0: nothing could be drained");
    }
    let source = source(&file)?;
    let server = server(&file)?;
    let room = worker.room();
    let capacity = file.capacity.unwrap_or(room.min(CAPACITY_MAX.into()) as u32);
    if !(CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity) {
        return invalid(
            "capacity",
            format!("capacity is {capacity}; it must be {CAPACITY_MIN} to {CAPACITY_MAX}"),
        );
    }
    if u64::from(capacity) > room {
        let what = format!(
            "capacity is {capacity}, more than the {room} that max_workers times {} can take",
            worker.per_worker_key
        );
        return invalid("capacity", what);
    }
    let host = file.host.clone().unwrap_or_else(solehold_process::name::host);
    let runner = RegisterRunner {
        runner_id: file.runner_id.clone().unwrap_or_else(solehold_process::name::host),
        tenant_id: file.tenant.clone(),
        site_id: file.site.clone(),
        deployment_group: file.deployment_group.clone(),
        deployment_version: file.deployment_version.clone(),
        host: Some(host),
        port: file.port.map(i64::from),
        metrics_port: file.metrics_port.map(i64::from),
        capacity: Some(capacity.into()),
        capabilities: file.capabilities.clone(),
        labels: file.labels.clone(),
        kinds: file.kinds.clone(),
        ..Default::default()
    };
    if let Err(faults) = runner.terms() {
        let fault = faults.first().map(|fault| format!("{} {}", fault.field, fault.message));
        return Err(InvalidValue::of_file(fault.unwrap_or_default()));
    }
    let metrics_host = file.metrics_host.unwrap_or_else(|| "127.0.0.1".to_owned());
    let metrics = file.metrics_port.map(|port| (metrics_host, port));
    let ca_file = file.ca_cert;
    Ok(Settings { runner, server, ca_file, lease, source, worker, drain, metrics, cache: file.cache_dir })
}

fn seconds(given: Option<Seconds>, default: f64) -> Duration {
    given.map_or_else(|| Duration::from_secs_f64(default), |Seconds(time)| time)
}

fn server(file: &AgentFile) -> Result<HttpConfig, InvalidValue> {
    let servers =
        file.server.as_ref().map(OneOrMore::list).unwrap_or_else(|| vec!["127.0.0.1:7070".to_owned()]);
    if let Err(error) = transport::server_urls(&servers) {
        return invalid("server", format!("server: {error}"));
    }
    let api_key = match (&file.api_key, &file.api_key_file) {
        (Some(_), Some(_)) => {
            return invalid("api_key_file", "api_key and api_key_file are both given: give one of them");
        }
        (Some(key), None) => Some(key.clone()),
        (None, Some(path)) => Some(found("api_key_file", path, fs::read_to_string(path))?.trim().to_owned()),
        (None, None) => None,
    };
    let ca_certs = file.ca_cert.as_ref().map(|path| found("ca_cert", path, fs::read(path))).transpose()?;
    let api_key = api_key.filter(|key| !key.is_empty()).map(SecretString::from);
    let config = HttpConfig { api_key, tenant: file.tenant.clone(), ca_certs, ..HttpConfig::new(servers) };
    match Http::new(config.clone()) {
        Ok(_) => Ok(config),
        Err(error) => invalid("api_key", error.to_string()),
    }
}

/// The content of the file that a key names.
fn found<T>(key: &str, path: &Path, read: io::Result<T>) -> Result<T, InvalidValue> {
    read.or_else(|error| invalid(key, format!("{key} {}: {error}", path.display())))
}

fn lease(file: &AgentFile) -> Result<LeaseSettings, InvalidValue> {
    let ttl = seconds(file.lease_ttl_seconds, 60.0);
    let least = Duration::from_millis(TTL_MS_MIN);
    let most = Duration::from_millis(TTL_MS_MAX);
    if ttl < least || ttl > most {
        let shown = |time| humantime::format_duration(time).to_string();
        let what =
            format!("lease_ttl_seconds is {}; it must be {} to {}", shown(ttl), shown(least), shown(most));
        return invalid("lease_ttl_seconds", what);
    }
    let interval = match file.heartbeat_interval_seconds {
        Some(Seconds(given)) => given,
        None => HEARTBEAT_INTERVAL.min(ttl / 3),
    };
    if interval.is_zero() || interval >= ttl {
        let what = "heartbeat_interval_seconds must be above 0 and below lease_ttl_seconds";
        return invalid("heartbeat_interval_seconds", what);
    }
    let retry = seconds(file.lease_retry_interval_seconds, 10.0);
    if retry < Duration::from_millis(50) {
        return invalid("lease_retry_interval_seconds", "lease_retry_interval_seconds must be 0.05 or more");
    }
    let policy = file.grace_seconds.map_or(Policy::Deadline, |Seconds(grace)| Policy::Grace(grace));
    // Half of the ttl, as the defaults say, leaves no time to repeat a heartbeat that failed.
    Ok(LeaseSettings { ttl, every: interval.min(ttl / 3), retry, policy })
}

fn source(file: &AgentFile) -> Result<Source, InvalidValue> {
    let default = if file.resources.is_empty() { Placement::Assigned } else { Placement::Static };
    let placement = file.placement.unwrap_or(default);
    let mut resources = BTreeSet::new();
    for text in &file.resources {
        let resource = text.split_once('/').map(|(kind, key)| ResourceName::new(kind, key));
        match resource {
            Some(Ok(resource)) => drop(resources.insert(resource)),
            Some(Err(error)) => return invalid("resources", format!("resources: {text:?}: {error}")),
            None => {
                return invalid(
                    "resources",
                    format!("resources: {text:?} is not KIND/KEY, as in job/nightly"),
                );
            }
        }
    }
    match placement {
        Placement::Static if resources.is_empty() => invalid(
            "placement",
            "placement is static and resources is empty: list them, as in resources: [job/nightly]",
        ),
        Placement::Static => Ok(Source::Static(resources)),
        Placement::Assigned if resources.is_empty() => Ok(Source::Assigned),
        Placement::Assigned => invalid("resources", "resources is for placement: static"),
    }
}

fn worker(file: &AgentFile, drain: Duration) -> Result<WorkerSettings, InvalidValue> {
    let asked = &file.worker;
    let command = command::settle(asked, file.manager_mode == Some(true))?;
    let restart = &asked.restart;
    let bounds = Bounds {
        protocol: asked.protocol.unwrap_or_default(),
        startup: seconds(asked.startup_timeout_seconds, 30.0),
        watchdog: seconds(asked.watchdog_seconds, 60.0),
        stop: seconds(asked.stop_timeout_seconds, STOP_SECONDS.min(drain.mul_f64(STOP_PART).as_secs_f64())),
        restart: Backoff {
            first: seconds(restart.first_seconds, 1.0),
            cap: seconds(restart.cap_seconds, 30.0),
        },
        good_run: seconds(restart.good_run_seconds, 10.0),
        burst: restart.burst.unwrap_or(5),
    };
    if bounds.watchdog.is_zero() {
        return invalid("watchdog_seconds", "watchdog_seconds is 0: no worker could be in time");
    }
    if bounds.restart.first > bounds.restart.cap || bounds.restart.first.is_zero() {
        return invalid("restart", "restart.first_seconds must be above 0 and at most restart.cap_seconds");
    }
    let count = |key: &'static str, given: Option<u32>, default: u32| match given.unwrap_or(default) {
        0 => invalid(key, format!("{key} is 0; it must be 1 or more")),
        count => Ok(count as usize),
    };
    count("burst", restart.burst, 5)?;
    let (per_worker_key, per_worker) = match (file.max_resources_per_worker, file.max_cameras_per_worker) {
        (Some(_), Some(_)) => {
            return invalid(
                "max_cameras_per_worker",
                "max_resources_per_worker and max_cameras_per_worker are both given: give one of them",
            );
        }
        (None, Some(given)) => ("max_cameras_per_worker", Some(given)),
        (given, None) => ("max_resources_per_worker", given),
    };
    Ok(WorkerSettings {
        command,
        env: asked.env.clone(),
        template: template(asked.config_template.as_deref())?,
        bounds,
        max: count("max_workers", file.max_workers, 4)?,
        per_worker: count(per_worker_key, per_worker, 16)?,
        per_worker_key,
        penalty: seconds(restart.penalty_seconds, 60.0),
    })
}

fn template(path: Option<&Path>) -> Result<Map<String, Value>, InvalidValue> {
    let Some(path) = path else { return Ok(Map::new()) };
    let shown = path.display();
    let text = found("config_template", path, fs::read_to_string(path))?;
    solehold_process::config::parse(&text).or_else(|error| {
        let line = error.line.map(|line| format!(":{line}")).unwrap_or_default();
        invalid("config_template", format!("config_template {shown}{line}: {}", error.message))
    })
}

impl Settings {
    /// Whether both settings reach the same servers with the same credentials.
    pub fn has_same_server(&self, other: &Self) -> bool {
        let one = &self.server;
        let other = &other.server;
        let key = |config: &HttpConfig| config.api_key.as_ref().map(|key| key.expose_secret().to_owned());
        one.servers == other.servers
            && key(one) == key(other)
            && one.tenant == other.tenant
            && one.ca_certs == other.ca_certs
    }

    /// What cannot be changed while the agent runs, if the next settings change it.
    pub fn fixed_change(&self, next: &Self) -> Option<&'static str> {
        let now = &self.runner;
        let then = &next.runner;
        let changes = [
            ("runner_id", now.runner_id != then.runner_id),
            ("tenant", now.tenant_id != then.tenant_id),
            ("site", now.site_id != then.site_id),
            ("deployment_group", now.deployment_group != then.deployment_group),
            ("deployment_version", now.deployment_version != then.deployment_version),
            ("host", now.host != then.host),
            ("port", now.port != then.port),
            ("metrics_port", self.metrics != next.metrics),
            ("capacity", now.capacity != then.capacity),
            ("capabilities", now.capabilities != then.capabilities),
            ("labels", now.labels != then.labels),
            ("kinds", now.kinds != then.kinds),
            ("cache_dir", self.cache != next.cache),
            ("grace_seconds", self.lease.policy != next.lease.policy),
            ("placement", matches!(self.source, Source::Assigned) != matches!(next.source, Source::Assigned)),
        ];
        changes.iter().find(|(_, is_changed)| *is_changed).map(|(key, _)| *key)
    }

    /// What people should know who start it, one line each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let shown = |time: Duration| humantime::format_duration(time).to_string();
        if self.drain > MANAGERS_WAIT {
            remarks.push(format!(
                "drain_budget_seconds is {}, but Kubernetes kills after {} (terminationGracePeriodSeconds) and so do many units of systemd (TimeoutStopSec): raise those, or lower it",
                shown(self.drain),
                shown(MANAGERS_WAIT)
            ));
        }
        let room = self.worker.room();
        let capacity = self.runner.capacity.unwrap_or_default();
        if room > CAPACITY_MAX.into() && capacity == i64::from(CAPACITY_MAX) {
            remarks.push(format!(
                "max_workers times {} is {room}, but a runner holds at most {CAPACITY_MAX} resources: lower them, or set capacity",
                self.worker.per_worker_key
            ));
        }
        let stop = self.worker.bounds.stop;
        let most = self.drain.mul_f64(WORKERS_PART);
        if stop > most {
            remarks.push(format!(
                "worker.stop_timeout_seconds is {}, but when the agent drains, workers are killed after {} (of drain_budget_seconds, {}): raise that, or lower it",
                shown(stop),
                shown(most),
                shown(self.drain)
            ));
        }
        remarks
    }
}

#[cfg(test)]
mod tests;
