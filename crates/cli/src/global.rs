//! The flags of every command.

use clap::Args;

use crate::{
    config::Variables,
    error::CommandResult,
    logs::{LogConfig, LogFormat},
};

/// What every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct GlobalArgs {
    /// Print JSON for programs: one document, or one per line for endless output; errors as problem documents on stderr
    #[arg(long, global = true, hide_short_help = true)]
    pub json: bool,
    /// What to log to stderr: error, warn, info, debug, trace, or directives such as `info,solehold_engine=debug`
    /// [env: SOLEHOLD_LOG_LEVEL] [default: info for serve and agent, off for run and lock, warn
    /// otherwise]
    #[arg(long, global = true, hide_short_help = true, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// What a log line looks like [env: SOLEHOLD_LOG_FORMAT] [default: text]
    #[arg(long, global = true, hide_short_help = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl GlobalArgs {
    /// How commands other than `serve` log, unless they are told.
    pub fn logs(&self, default_level: &str) -> CommandResult<LogConfig> {
        let mut variables: Variables = std::env::vars_os().collect();
        let level = self.log_level.clone().or(variables.get("SOLEHOLD_LOG_LEVEL")?);
        let format = self.log_format.or(variables.get("SOLEHOLD_LOG_FORMAT")?);
        Ok(LogConfig {
            level: level.unwrap_or_else(|| default_level.to_owned()),
            format: format.unwrap_or_default(),
        })
    }
}
