//! The `SOLEHOLD_*` variables.

use std::{collections::BTreeMap, ffi::OsString, fmt::Display, str::FromStr};

use super::layer::{EventsLayer, Layer, LimitsLayer, LogLayer, QuotasLayer, TlsLayer};
use crate::error::{CommandError, CommandResult};

/// Every variable that any command knows. A test checks it against the code and `docs/cli.md`.
pub const KNOWN: &[&str] = &[
    "SOLEHOLD_API_KEY",
    "SOLEHOLD_BOOTSTRAP_KEY",
    "SOLEHOLD_CA_CERT",
    "SOLEHOLD_CONFIG",
    "SOLEHOLD_DATA_DIR",
    "SOLEHOLD_ENGINE",
    "SOLEHOLD_EVENTS_KEEP",
    "SOLEHOLD_EVENTS_KEEP_MAX",
    "SOLEHOLD_FAILOVER",
    "SOLEHOLD_GUARD_METRICS",
    "SOLEHOLD_LIMITS_CAPACITY_MAX",
    "SOLEHOLD_LIMITS_CONNECTIONS_MAX",
    "SOLEHOLD_LIMITS_IDLE_TIMEOUT",
    "SOLEHOLD_LIMITS_QUOTAS_RESOURCES",
    "SOLEHOLD_LIMITS_QUOTAS_SESSIONS",
    "SOLEHOLD_LIMITS_QUOTAS_WATCHES",
    "SOLEHOLD_LIMITS_REQUESTS_BURST",
    "SOLEHOLD_LIMITS_REQUESTS_PER_SECOND",
    "SOLEHOLD_LIMITS_REQUEST_TIMEOUT",
    "SOLEHOLD_LIMITS_SHUTDOWN_GRACE",
    "SOLEHOLD_LIMITS_WATCHES_MAX",
    "SOLEHOLD_LISTEN",
    "SOLEHOLD_LOG_FORMAT",
    "SOLEHOLD_LOG_LEVEL",
    "SOLEHOLD_MQTT_URL",
    "SOLEHOLD_NODE_ID",
    "SOLEHOLD_ORCHESTRATOR",
    "SOLEHOLD_REDIS",
    "SOLEHOLD_SERVER",
    "SOLEHOLD_STORE_WAIT",
    "SOLEHOLD_TENANT",
    "SOLEHOLD_TIMEOUT",
    "SOLEHOLD_TLS_CERT",
    "SOLEHOLD_TLS_CLIENT_CA",
    "SOLEHOLD_TLS_KEY",
    "SOLEHOLD_TTL_MAX",
];

/// What `run`, `lock` and the agent set for their commands. They are not read here, and they cause no warning.
pub const GIVEN: [&str; 13] = [
    "SOLEHOLD_ASSIGNMENTS_FILE",
    "SOLEHOLD_DEADLINE_BOOTTIME_MS",
    "SOLEHOLD_HELD",
    "SOLEHOLD_HOLDER",
    "SOLEHOLD_LEASE_FILE",
    "SOLEHOLD_LEASE_ID",
    "SOLEHOLD_LOCK",
    "SOLEHOLD_RESOURCE",
    "SOLEHOLD_RUNNER_ID",
    "SOLEHOLD_TOKEN",
    "SOLEHOLD_WORKER",
    "SOLEHOLD_WORKER_FD",
    "SOLEHOLD_WORKER_SOCKET",
];

/// The variables of the environment that begin with `SOLEHOLD_`.
#[derive(Debug, Clone, Default)]
pub struct Variables(BTreeMap<String, OsString>);

impl FromIterator<(OsString, OsString)> for Variables {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(all: I) -> Self {
        let ours = |(name, value): (OsString, OsString)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("SOLEHOLD_"))?;
            Some((name, value)).filter(|(_, value)| !value.is_empty())
        };
        Self(all.into_iter().filter_map(ours).collect())
    }
}

impl Variables {
    /// What a variable says; an empty one says nothing.
    pub fn get<T>(&mut self, name: &'static str) -> CommandResult<Option<T>>
    where
        T: FromStr<Err: Display>,
    {
        debug_assert!(KNOWN.contains(&name), "{name} is not among the known ones");
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let text = value.to_str().ok_or_else(|| CommandError::usage(format!("{name} is not UTF-8")))?;
        text.parse().map(Some).map_err(|error| CommandError::usage(format!("{name}: {error}")))
    }

    /// A warning for each unknown variable, with the one that may be meant.
    pub fn unknown(&self) -> Vec<String> {
        self.strangers().map(|(name, meant)| warning(name, meant)).collect()
    }

    /// A warning for each unknown variable that is close to a known one: others may be of other programs.
    pub fn misspelt(&self) -> impl Iterator<Item = String> {
        self.strangers().filter(|(_, meant)| meant.is_some()).map(|(name, meant)| warning(name, meant))
    }

    /// The unknown variables, each with the known one that may be meant.
    fn strangers(&self) -> impl Iterator<Item = (&String, Option<&'static str>)> {
        let is_known = |name: &str| KNOWN.contains(&name) || GIVEN.contains(&name);
        let unknown = self.0.keys().filter(move |name| !is_known(name));
        unknown.map(|name| {
            let near = KNOWN.iter().map(|known| (strsim::jaro_winkler(known, name), *known));
            let nearest = near.max_by(|(a, _), (b, _)| a.total_cmp(b)).filter(|(near, _)| *near > 0.93);
            (name, nearest.map(|(_, known)| known))
        })
    }
}

fn warning(name: &str, meant: Option<&str>) -> String {
    let meant = meant.map_or_else(String::new, |known| format!("; is {known} meant?"));
    format!("{name} is set, and nothing reads it{meant}")
}

impl Layer {
    /// What the variables say.
    pub fn from_variables(variables: &mut Variables) -> CommandResult<Self> {
        let layer = Self {
            listen: variables.get("SOLEHOLD_LISTEN")?,
            data_dir: variables.get("SOLEHOLD_DATA_DIR")?,
            engine: variables.get("SOLEHOLD_ENGINE")?,
            node_id: variables.get("SOLEHOLD_NODE_ID")?,
            ttl_max: variables.get("SOLEHOLD_TTL_MAX")?,
            failover: variables.get("SOLEHOLD_FAILOVER")?,
            store_wait: variables.get("SOLEHOLD_STORE_WAIT")?,
            guard_metrics: variables.get("SOLEHOLD_GUARD_METRICS")?,
            log: LogLayer {
                level: variables.get("SOLEHOLD_LOG_LEVEL")?,
                format: variables.get("SOLEHOLD_LOG_FORMAT")?,
            },
            tls: TlsLayer {
                cert: variables.get("SOLEHOLD_TLS_CERT")?,
                key: variables.get("SOLEHOLD_TLS_KEY")?,
                client_ca: variables.get("SOLEHOLD_TLS_CLIENT_CA")?,
            },
            limits: LimitsLayer {
                requests_per_second: variables.get("SOLEHOLD_LIMITS_REQUESTS_PER_SECOND")?,
                requests_burst: variables.get("SOLEHOLD_LIMITS_REQUESTS_BURST")?,
                capacity_max: variables.get("SOLEHOLD_LIMITS_CAPACITY_MAX")?,
                watches_max: variables.get("SOLEHOLD_LIMITS_WATCHES_MAX")?,
                connections_max: variables.get("SOLEHOLD_LIMITS_CONNECTIONS_MAX")?,
                request_timeout: variables.get("SOLEHOLD_LIMITS_REQUEST_TIMEOUT")?,
                idle_timeout: variables.get("SOLEHOLD_LIMITS_IDLE_TIMEOUT")?,
                shutdown_grace: variables.get("SOLEHOLD_LIMITS_SHUTDOWN_GRACE")?,
                quotas: QuotasLayer {
                    resources: variables.get("SOLEHOLD_LIMITS_QUOTAS_RESOURCES")?,
                    sessions: variables.get("SOLEHOLD_LIMITS_QUOTAS_SESSIONS")?,
                    watches: variables.get("SOLEHOLD_LIMITS_QUOTAS_WATCHES")?,
                },
            },
            events: EventsLayer {
                keep: variables.get("SOLEHOLD_EVENTS_KEEP")?,
                keep_max: variables.get("SOLEHOLD_EVENTS_KEEP_MAX")?,
            },
            relays: None,
        };
        layer.check().map_err(|what| CommandError::usage(format!("the SOLEHOLD_ variables: {what}")))?;
        Ok(layer)
    }
}
