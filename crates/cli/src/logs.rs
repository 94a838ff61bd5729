//! Logs: to stderr, one line each, with the node's name on every line.

use std::fmt;

use clap::ValueEnum;
use serde::Deserialize;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, JsonFields, Writer},
    },
    registry::LookupSpan,
};

use crate::error::ValueError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("{text:?} is not a log format; write text or json").into())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// A level, or directives as in `info,solehold_engine=debug`.
    pub level: String,
    pub format: LogFormat,
}

impl LogConfig {
    pub fn filter(&self) -> Result<EnvFilter, ValueError> {
        EnvFilter::try_new(&self.level).map_err(|error| {
            let level = &self.level;
            format!("log level {level:?} {error}; write error, warn, info, debug or trace, or as in info,solehold_engine=debug").into()
        })
    }

    /// Without what lapin says of each message that RabbitMQ returns, byte by byte: the relay says it in a line. Unless
    /// that is asked for.
    fn quiet_filter(&self) -> Result<EnvFilter, ValueError> {
        let filter = self.filter()?;
        match "lapin=error".parse() {
            Ok(quiet) if !self.level.contains("lapin") => Ok(filter.add_directive(quiet)),
            _ => Ok(filter),
        }
    }

    /// Logs from now on. Once is enough: later calls change nothing.
    pub fn start(&self, node_id: &str) -> Result<(), ValueError> {
        let filter = self.quiet_filter()?;
        let base =
            tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_env_filter(filter);
        let node_id = node_id.to_owned();
        let _ = match self.format {
            LogFormat::Text => {
                let inner = Format::default().with_ansi(false);
                base.event_format(Named { inner, node_id, json: false }).try_init()
            }
            LogFormat::Json => {
                let inner = Format::default().json().flatten_event(true);
                base.fmt_fields(JsonFields::new())
                    .event_format(Named { inner, node_id, json: true })
                    .try_init()
            }
        };
        Ok(())
    }
}

/// A format with the node's name added at the end of each line. Spans would not do: tasks that are spawned have none.
struct Named<F> {
    inner: F,
    node_id: String,
    json: bool,
}

impl<F, S, N> FormatEvent<S, N> for Named<F>
where
    F: FormatEvent<S, N>,
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::with_capacity(256);
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        let line = line.trim_end();
        match line.strip_suffix('}').filter(|_| self.json) {
            Some(open) => {
                let node_id = serde_json::to_string(&self.node_id).map_err(|_| fmt::Error)?;
                writeln!(writer, "{open},\"node_id\":{node_id}}}")
            }
            None => writeln!(writer, "{line} node_id={}", self.node_id),
        }
    }
}
