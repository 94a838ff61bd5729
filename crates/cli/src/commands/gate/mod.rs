//! `solehold gate`: refuses work that bears an old token, in front of something that cannot do so itself.

mod mqtt;

use clap::Subcommand;

use crate::{client::ServerArgs, error::CommandResult, global::GlobalArgs};

/// The gates.
#[derive(Debug, Subcommand)]
pub enum GateCommand {
    /// Pass on only those MQTT messages that bear the newest token of their resource
    Mqtt(Box<mqtt::MqttArgs>),
}

/// Runs one.
pub async fn run(command: GateCommand, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    match command {
        GateCommand::Mqtt(args) => mqtt::run(*args, server, global).await,
    }
}
