//! The cluster's configuration, as a gateway has it in its own YAML file.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};
use solehold_core::{
    key::Name,
    limits::{TTL_MS_MAX, TTL_MS_MIN},
};

use solehold_process::{config, name};

use crate::locks::LockConfig;

/// The section `cluster` of a gateway's configuration. All of it is optional, and a gateway without it runs alone.
///
/// ```
/// use std::time::Duration;
/// use solehold_client::ClusterConfig;
///
/// let config = ClusterConfig::from_yaml(
///     r#"
/// cluster:
///   enabled: true
///   node_id: "gateway-us-east-1a"
///   allow_multiple_gateways: true
///   session_locks:
///     enabled: true
///     ttl: 2m
///     refresh_interval: 30s
///     acquire_timeout: 10s
///     poll_interval: 200ms
/// "#,
/// )?;
/// assert_eq!(config.session_locks.ttl, Duration::from_secs(120));
/// assert!(!ClusterConfig::from_yaml("")?.enabled);
///
/// let odd = ClusterConfig::from_yaml("cluster:\n  enabled: true\n  node: a\n").expect_err("no such key");
/// assert!(odd.to_string().starts_with("line 3: "), "{odd}");
/// # Ok::<(), solehold_client::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Whether there may be other gateways on the same database.
    pub enabled: bool,
    /// The name of this node; the host's name and a random suffix if it is not given.
    pub node_id: Option<String>,
    /// Whether there may be others even where nothing keeps them from working on one session at once.
    pub allow_multiple_gateways: bool,
    pub session_locks: SessionLocksConfig,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionLocksConfig {
    /// Whether a session is locked while a message of it is processed.
    pub enabled: bool,
    /// How long a lock outlives a node that stopped renewing it.
    #[serde(deserialize_with = "duration")]
    pub ttl: Duration,
    #[serde(deserialize_with = "duration")]
    pub refresh_interval: Duration,
    #[serde(deserialize_with = "duration")]
    pub acquire_timeout: Duration,
    /// How often to ask where there is no line to wait in.
    #[serde(deserialize_with = "duration")]
    pub poll_interval: Duration,
}

impl Default for SessionLocksConfig {
    fn default() -> Self {
        let LockConfig { ttl, refresh_interval, acquire_timeout, poll_interval } = LockConfig::default();
        Self { enabled: false, ttl, refresh_interval, acquire_timeout, poll_interval }
    }
}

/// A gateway's file: its other sections are its own business.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    cluster: Option<ClusterConfig>,
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let odd = |_| D::Error::custom(format!("{text:?} is not a duration: write one as in 200ms, 30s, 2m"));
    humantime::parse_duration(&text).map_err(odd)
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read as what it should be.
    #[error("line {line}: {what}")]
    Line { line: u64, what: String },
    #[error("{0}")]
    Value(String),
}

impl ClusterConfig {
    /// Reads the section `cluster` of a YAML file, and checks it.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let file: File = config::parse(text)
            .map_err(|error| ConfigError::Line { line: error.line.unwrap_or(0), what: error.message })?;
        let config = file.cluster.unwrap_or_default();
        config.check()?;
        Ok(config)
    }

    pub fn check(&self) -> Result<(), ConfigError> {
        let bad = |what: String| Err(ConfigError::Value(what));
        if let Some(node_id) = &self.node_id
            && let Err(why) = Name::new(node_id)
        {
            return bad(format!("cluster.node_id {why}"));
        }
        let locks = &self.session_locks;
        let least = Duration::from_millis(TTL_MS_MIN);
        let most = Duration::from_millis(TTL_MS_MAX);
        let shown = humantime::format_duration;
        if locks.ttl < least || locks.ttl > most {
            let ttl = shown(locks.ttl);
            let least = shown(least);
            let most = shown(most);
            return bad(format!("cluster.session_locks.ttl is {ttl}; it must be {least} to {most}"));
        }
        if locks.refresh_interval * 2 >= locks.ttl {
            let every = shown(locks.refresh_interval);
            let ttl = shown(locks.ttl);
            return bad(format!(
                "cluster.session_locks.refresh_interval is {every}, which is not below half of the ttl, {ttl}: a renewal \
                 that fails could not be repeated in time; set it below {}",
                shown(locks.ttl / 2)
            ));
        }
        for (name, value) in [
            ("refresh_interval", locks.refresh_interval),
            ("acquire_timeout", locks.acquire_timeout),
            ("poll_interval", locks.poll_interval),
        ] {
            if value.is_zero() {
                return bad(format!("cluster.session_locks.{name} is 0; it must be longer"));
            }
        }
        Ok(())
    }

    /// The node's name, or one made of the host's name and a random suffix.
    pub fn node_id_or(&self, random: u32) -> String {
        let made_up = || {
            let host: String = name::host().chars().filter(|c| !c.is_control()).take(64).collect();
            format!("{}-{:06x}", if host.is_empty() { "node" } else { &host }, random >> 8)
        };
        self.node_id.clone().unwrap_or_else(made_up)
    }

    pub fn lock_config(&self) -> LockConfig {
        let SessionLocksConfig { ttl, refresh_interval, acquire_timeout, poll_interval, .. } =
            self.session_locks;
        LockConfig { ttl, refresh_interval, acquire_timeout, poll_interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        ClusterConfig::from_yaml(text).expect_err(text).to_string()
    }

    #[test]
    fn it_is_off_by_default() {
        let config = ClusterConfig::default();
        assert!(!config.enabled && !config.allow_multiple_gateways && !config.session_locks.enabled);
        assert_eq!(config.node_id, None);
        for text in ["", "# nothing\n", "server:\n  port: 80\n", "cluster:\n", "cluster: {}\n"] {
            assert_eq!(ClusterConfig::from_yaml(text), Ok(config.clone()), "{text}");
        }
        assert_eq!(config.lock_config(), LockConfig::default());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let cases = [
            ("cluster:\n  enabled: true\n  nodeid: a\n", "line 3: ", "nodeid"),
            ("cluster:\n  session_locks:\n    ttl: soon\n", "line 3: ", "write one as in 200ms, 30s, 2m"),
            ("cluster:\n  session_locks:\n    enabled: true\n    tll: 2m\n", "line 4: ", "tll"),
            ("a: 1\ncluster:\n  enabled: maybe\n", "line 3: ", ""),
            ("cluster:\n  enabled: [\n", "line ", ""),
        ];
        for (text, line, words) in cases {
            let error = refused(text);
            assert!(error.starts_with(line) && error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn values_must_make_sense() {
        let locks = |rest: &str| format!("cluster:\n  session_locks:\n    {rest}\n");
        let half = refused(&locks("ttl: 1m\n    refresh_interval: 30s"));
        assert!(half.contains("refresh_interval is 30s, which is not below half of the ttl, 1m"), "{half}");
        assert!(refused(&locks("refresh_interval: 5m")).contains("set it below 1m"));
        assert!(refused(&locks("ttl: 10ms")).contains("it must be 1s to 1day"));
        assert!(refused(&locks("acquire_timeout: 0s")).contains("acquire_timeout is 0"));
        assert!(refused("cluster:\n  node_id: \"\"\n").contains("cluster.node_id is empty"));
        assert!(ClusterConfig::from_yaml(&locks("ttl: 1m\n    refresh_interval: 29s")).is_ok());
    }

    #[test]
    fn a_node_has_a_name_of_its_own() {
        let config = ClusterConfig::default();
        let one = config.node_id_or(1 << 20);
        let two = config.node_id_or(2 << 20);
        assert_ne!(one, two);
        assert!(Name::new(&one).is_ok());
        let named = ClusterConfig { node_id: Some("gateway-1".to_owned()), ..config };
        assert_eq!(named.node_id_or(7), "gateway-1");
    }
}
