//! The reconciler's environment variables. A bad value stops the start with the name of its variable.

use std::{ops::RangeInclusive, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use solehold_sql::{Owner, ReconcilerConfig};

const PREFIX: &str = "PAYMENT_REQUEST_RECONCILER_";

/// How the reconciler runs here.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether it runs at all.
    pub enabled: bool,
    /// How.
    pub reconciler: ReconcilerConfig,
}

impl Settings {
    /// From variables, such as `std::env::var(name).ok()` gives.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let get = |name: &str| variable(&format!("{PREFIX}{name}"));
        let worker = get("WORKER_ID").unwrap_or_else(default_worker);
        let worker = Owner::new(&worker).with_context(|| format!("{PREFIX}WORKER_ID"))?;
        let poll = seconds(&get, "POLL_INTERVAL_SECONDS", 15.0, 0.01, 86_400.0)?;
        let config = ReconcilerConfig {
            poll_interval: poll,
            recheck: poll,
            batch_size: number(&get, "BATCH_SIZE", 100, 1..=10_000)? as usize,
            attempts_max: number(&get, "ATTEMPTS_MAX", 20, 1..=1_000_000)?,
            burials_per_hour: number(&get, "BURIALS_PER_HOUR", 100, 0..=1_000_000)?,
            unreachable_backoff_max: seconds(&get, "UNREACHABLE_BACKOFF_MAX_SECONDS", 30.0, 0.01, 3_600.0)?,
            lease: seconds(&get, "LEASE_SECONDS", 30.0, 0.05, 86_400.0)?,
            states: ["confirmed", "detected", "expired", "reorged"].map(str::to_owned).into(),
            ..ReconcilerConfig::new(worker)
        };
        Ok(Self { enabled: enabled(&get)?, reconciler: config })
    }
}

fn enabled(get: &impl Fn(&str) -> Option<String>) -> Result<bool> {
    match get("ENABLED").as_deref() {
        None | Some("false" | "0") => Ok(false),
        Some("true" | "1") => Ok(true),
        Some(other) => bail!("{PREFIX}ENABLED is {other:?}: use true or false"),
    }
}

fn number(
    get: &impl Fn(&str) -> Option<String>,
    name: &str,
    default: u32,
    range: RangeInclusive<u32>,
) -> Result<u32> {
    let Some(text) = get(name) else { return Ok(default) };
    let number = text.parse().ok().filter(|number| range.contains(number));
    let first = range.start();
    let last = range.end();
    number.with_context(|| format!("{PREFIX}{name} is {text:?}: use a number from {first} to {last}"))
}

fn seconds(
    get: &impl Fn(&str) -> Option<String>,
    name: &str,
    default: f64,
    min: f64,
    max: f64,
) -> Result<Duration> {
    let Some(text) = get(name) else { return Ok(Duration::from_secs_f64(default)) };
    let value: f64 = text.trim().parse().unwrap_or(f64::NAN);
    ensure!(value >= min && value <= max, "{PREFIX}{name} is {text:?}: use seconds from {min} to {max}");
    Ok(Duration::from_secs_f64(value))
}

/// Host and pid.
fn default_worker() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Settings> {
        Settings::read(|name| {
            let found = set.iter().find(|(key, _)| name == format!("{PREFIX}{key}"));
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_defaults() {
        let settings = read(&[]).expect("nothing set is fine");
        let config = settings.reconciler;
        assert!(!settings.enabled);
        assert_eq!(
            (config.poll_interval.as_secs(), config.lease.as_secs(), config.batch_size),
            (15, 30, 100)
        );
        assert_eq!((config.attempts_max, config.burials_per_hour), (20, 100));
        assert!(config.worker.as_str().ends_with(&std::process::id().to_string()));
    }

    #[test]
    fn a_bad_value_is_named() {
        for (name, value) in [
            ("ENABLED", "yes please"),
            ("POLL_INTERVAL_SECONDS", "soon"),
            ("POLL_INTERVAL_SECONDS", "0"),
            ("POLL_INTERVAL_SECONDS", "NaN"),
            ("BATCH_SIZE", "0"),
            ("BATCH_SIZE", "-1"),
            ("BATCH_SIZE", "1e3"),
            ("ATTEMPTS_MAX", "0"),
            ("BURIALS_PER_HOUR", "few"),
            ("UNREACHABLE_BACKOFF_MAX_SECONDS", "0"),
            ("LEASE_SECONDS", "-30"),
            ("LEASE_SECONDS", "inf"),
            ("LEASE_SECONDS", ""),
            ("WORKER_ID", ""),
        ] {
            let error = format!("{:#}", read(&[(name, value)]).expect_err(value));
            assert!(error.contains(&format!("{PREFIX}{name}")), "{error}");
        }
        let good =
            read(&[("ENABLED", "true"), ("LEASE_SECONDS", "2.5"), ("WORKER_ID", "w1")]).expect("good values");
        assert!(good.enabled && good.reconciler.lease == Duration::from_millis(2500));
    }
}
