//! The flags of every command.

use clap::Args;

use crate::{
    config::Variables,
    error::CommandResult,
    logs::{LogConfig, LogFormat},
};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct GlobalArgs {
    /// Print JSON for programs: one document, or one per line for endless output; errors as problem documents on stderr
    #[arg(long, global = true, hide_short_help = true)]
    pub json: bool,
    /// Log level on stderr: error, warn, info, debug, trace, or directives such as `info,solehold_engine=debug`
    /// [env: SOLEHOLD_LOG_LEVEL] [default: info for serve and agent, off for run, lock and elect,
    /// warn otherwise]
    #[arg(long, global = true, hide_short_help = true, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Format of log lines [env: SOLEHOLD_LOG_FORMAT] [default: text]
    #[arg(long, global = true, hide_short_help = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Collector to send traces to, as in http://127.0.0.1:4318 (OTLP over HTTP); for serve, agent, gate and
    /// orchestrator [env: OTEL_EXPORTER_OTLP_ENDPOINT] [default: none]
    #[arg(long, global = true, hide_short_help = true, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

impl GlobalArgs {
    /// The log settings of commands other than `serve`, which has a configuration file.
    pub fn logs(&self, default_level: &str) -> CommandResult<LogConfig> {
        let variables: Variables = std::env::vars_os().collect();
        let level = self.log_level.clone().or(variables.get("SOLEHOLD_LOG_LEVEL")?);
        let format = self.log_format.or(variables.get("SOLEHOLD_LOG_FORMAT")?);
        Ok(LogConfig {
            level: level.unwrap_or_else(|| default_level.to_owned()),
            format: format.unwrap_or_default(),
        })
    }
}
