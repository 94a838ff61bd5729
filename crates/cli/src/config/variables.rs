//! The `SOLEHOLD_*` variables.

use std::{collections::BTreeMap, ffi::OsString, fmt::Display, fs, path::PathBuf, str::FromStr};

use crate::error::{CommandError, CommandResult};

/// The variables that other commands read, or that are not part of a configuration file.
const OTHERS: &[&str] = &[
    "SOLEHOLD_API_KEY",
    "SOLEHOLD_API_KEY_FILE",
    "SOLEHOLD_BOOTSTRAP_KEY",
    "SOLEHOLD_BOOTSTRAP_KEY_FILE",
    "SOLEHOLD_CA_CERT",
    "SOLEHOLD_CONFIG",
    "SOLEHOLD_ENGINE_FILE",
    "SOLEHOLD_IMPORT_AUTHORIZATION",
    "SOLEHOLD_MQTT_URL",
    "SOLEHOLD_REDIS",
    "SOLEHOLD_SERVER",
    "SOLEHOLD_TENANT",
    "SOLEHOLD_TIMEOUT",
];

/// The variables whose values are secret. Each may be in a file, which a variable with `_FILE` at its end names:
/// service managers and containers hand secrets over in files.
pub const SECRETS: [&str; 3] = ["SOLEHOLD_API_KEY", "SOLEHOLD_BOOTSTRAP_KEY", "SOLEHOLD_ENGINE"];

/// What `run`, `lock` and the agent set for their commands. They are not read here, and they cause no warning.
pub const GIVEN: [&str; 14] = [
    "SOLEHOLD_ASSIGNMENTS_FILE",
    "SOLEHOLD_DEADLINE_BOOTTIME_MS",
    "SOLEHOLD_HELD",
    "SOLEHOLD_HOLDER",
    "SOLEHOLD_LEASE_FILE",
    "SOLEHOLD_LEASE_ID",
    "SOLEHOLD_LOCK",
    "SOLEHOLD_RESOURCE",
    "SOLEHOLD_RUNNER_ID",
    "SOLEHOLD_SLOT",
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
    /// What a variable says, or the file that holds its value; an empty variable says nothing.
    pub fn get<T: FromStr<Err: Display>>(&self, name: &str) -> CommandResult<Option<T>> {
        let Some(value) = self.0.get(name) else { return self.get_from_file(name) };
        let text = value.to_str().ok_or_else(|| CommandError::usage(format!("{name} is not UTF-8")))?;
        text.parse().map(Some).map_err(|error| CommandError::usage(format!("{name}: {error}")))
    }

    /// An empty file is refused: if the URL of a database gets lost, the server must not start with another store.
    fn get_from_file<T: FromStr<Err: Display>>(&self, name: &str) -> CommandResult<Option<T>> {
        let variable = format!("{name}_FILE");
        let Some(path) = self.0.get(&variable).filter(|_| SECRETS.contains(&name)) else { return Ok(None) };
        let invalid =
            |why: &dyn Display| CommandError::usage(format!("{variable}: the file {} {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| invalid(&format!("cannot be read: {error}")))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(invalid(&"is empty")),
            text => text.parse().map(Some).map_err(|error: T::Err| invalid(&format!("has {error}"))),
        }
    }

    /// The file that a variable names, if it is set.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get(name).map(PathBuf::from)
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
