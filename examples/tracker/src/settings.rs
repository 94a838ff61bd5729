//! What a tracker is told.

use std::time::Duration;

use clap::Parser;
use solehold_client::Policy;

/// Follows the objects in scenes, one tracker per scene
#[derive(Debug, Clone, Parser)]
#[command(name = "tracker")]
pub struct Settings {
    /// The Solehold server, or several with commas between
    #[arg(long, default_value = "http://127.0.0.1:7070")]
    pub server: String,
    /// The MQTT broker, HOST:PORT
    #[arg(long, default_value = "127.0.0.1:1883")]
    pub broker: String,
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
