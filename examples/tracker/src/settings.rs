//! What a tracker is told.

use std::{convert::Infallible, fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use secrecy::SecretString;
use solehold_client::{HttpConfig, Policy, transport::check_certificates};

use crate::broker::BrokerArgs;

/// Follows the objects in scenes, one tracker per scene
#[derive(Debug, Clone, Parser)]
#[command(name = "tracker")]
pub struct Settings {
    /// The Solehold server, or several with commas between
    #[arg(long, env = "SOLEHOLD_SERVER", default_value = "http://127.0.0.1:7070")]
    pub server: String,
    /// The API key; better given by the variable, since other users can see the arguments of a process
    #[arg(
        long,
        visible_alias = "key",
        env = "SOLEHOLD_API_KEY",
        value_name = "KEY",
        value_parser = secret,
        hide_env_values = true
    )]
    pub api_key: Option<SecretString>,
    /// A certificate to trust in addition to the system's, as a PEM file: of an authority, or the server's own
    #[arg(long, env = "SOLEHOLD_CA_CERT", value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
    /// Where it publishes
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// The name of this tracker; no two may have the same
    #[arg(long)]
    pub id: String,
    /// How many scenes it takes at most
    #[arg(long, default_value_t = 8)]
    pub capacity: u32,
    /// How long the scenes of a tracker that was killed wait
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub ttl: Duration,
    /// How often it renews
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub renew_every: Duration,
    /// What to do when a renewal fails: immediate, deadline, or grace=TIME
    #[arg(long, default_value = "immediate", value_parser = policy)]
    pub policy: Policy,
    /// How often it publishes where the objects of a scene are
    #[arg(long, default_value = "100ms", value_parser = humantime::parse_duration)]
    pub publish_every: Duration,
    /// How often it keeps the tracks of a scene for its next tracker
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub keep_every: Duration,
    /// How long others get to take its scenes over when it is told to end
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub drain: Duration,
}

impl Settings {
    /// How the servers are reached.
    pub fn http(&self) -> Result<HttpConfig> {
        let mut config = HttpConfig::new([self.server.as_str()]);
        config.api_key = self.api_key.clone();
        if let Some(path) = &self.ca_cert {
            let flag = || format!("--ca-cert {}: give a PEM file", path.display());
            let pem = fs::read(path).with_context(flag)?;
            check_certificates(&pem).with_context(flag)?;
            config.ca_certs = Some(pem);
        }
        Ok(config)
    }
}

/// Something that is not shown when settings are.
pub(crate) fn secret(text: &str) -> Result<SecretString, Infallible> {
    Ok(SecretString::from(text))
}

fn policy(text: &str) -> Result<Policy, String> {
    match text.split_once('=') {
        None if text == "immediate" => Ok(Policy::Immediate),
        None if text == "deadline" => Ok(Policy::Deadline),
        Some(("grace", time)) => {
            humantime::parse_duration(time).map(Policy::Grace).map_err(|e| e.to_string())
        }
        _ => Err("write immediate, deadline or grace=TIME".to_owned()),
    }
}
