//! The `SOLEHOLD_*` variables.

use std::{collections::BTreeMap, ffi::OsString, fmt::Display, str::FromStr};

use crate::error::{CommandError, CommandResult};

/// The variables that other commands read, or that are not part of a configuration file.
const OTHERS: &[&str] = &[
    "SOLEHOLD_API_KEY",
    "SOLEHOLD_BOOTSTRAP_KEY",
    "SOLEHOLD_CA_CERT",
    "SOLEHOLD_CONFIG",
    "SOLEHOLD_MQTT_URL",
    "SOLEHOLD_ORCHESTRATOR",
    "SOLEHOLD_REDIS",
    "SOLEHOLD_SERVER",
    "SOLEHOLD_TENANT",
    "SOLEHOLD_TIMEOUT",
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
    pub fn get<T: FromStr<Err: Display>>(&self, name: &str) -> CommandResult<Option<T>> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let text = value.to_str().ok_or_else(|| CommandError::usage(format!("{name} is not UTF-8")))?;
        text.parse().map(Some).map_err(|error| CommandError::usage(format!("{name}: {error}")))
    }

    /// The variables that neither `known` nor this module names, each with the known one that may be meant.
    pub fn strangers(
        &self,
        known: &'static [&'static str],
    ) -> impl Iterator<Item = (&String, Option<&'static str>)> {
        let known = move || known.iter().chain(OTHERS);
        let unknown = self.0.keys().filter(move |name| !known().chain(&GIVEN).any(|known| known == name));
        unknown.map(move |name| {
            let near = known().map(|known| (strsim::jaro_winkler(known, name), *known));
            let nearest = near.max_by(|(a, _), (b, _)| a.total_cmp(b)).filter(|(near, _)| *near > 0.93);
            (name, nearest.map(|(_, known)| known))
        })
    }
}
