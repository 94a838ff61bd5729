//! Traces: spans are sent to a collector if one is named, by `--otlp-endpoint` or the variables of OpenTelemetry.

use solehold_trace::{ExportConfig, Exporter, Sampler};

use crate::{
    error::{CommandError, CommandResult, ValueError},
    global::GlobalArgs,
};

/// Below an endpoint that is given for all signals.
const TRACES_PATH: &str = "/v1/traces";

/// The exporter, if traces are on. Dropped, it goes on until the process ends.
#[derive(Debug)]
#[must_use]
pub struct Traces(Option<Exporter>);

impl Traces {
    /// Sends what is recorded, within two seconds.
    pub async fn flush(self) {
        if let Some(exporter) = self.0 {
            exporter.flush().await;
        }
    }
}

impl GlobalArgs {
    /// Starts to export traces, if a collector is named. `service` is the name of this program unless
    /// `OTEL_SERVICE_NAME` has another, and `node` that of this process.
    pub fn traces(&self, service: &str, node: &str) -> CommandResult<Traces> {
        let given = self.otlp_endpoint.as_deref();
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(config) = config(given, read, service, node).map_err(CommandError::usage)? else {
            return Ok(Traces(None));
        };
        let endpoint = config.endpoint.clone();
        let exporter =
            Exporter::start(config).map_err(|error| CommandError::usage(format!("traces: {error}")))?;
        tracing::info!(endpoint, "exporting traces");
        Ok(Traces(Some(exporter)))
    }
}

fn config(
    flag: Option<&str>,
    read: impl Fn(&str) -> Option<String>,
    service: &str,
    node: &str,
) -> Result<Option<ExportConfig>, ValueError> {
    let below = |base: &str| format!("{}{TRACES_PATH}", base.trim_end_matches('/'));
    let by_variable = || {
        let is_disabled = read("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let named = read("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let named = named.or_else(|| read("OTEL_EXPORTER_OTLP_ENDPOINT").as_deref().map(below));
        named.filter(|_| !is_disabled)
    };
    let flag = flag.filter(|flag| !flag.is_empty()).map(below);
    let Some(endpoint) = flag.or_else(by_variable) else { return Ok(None) };
    let headers = read("OTEL_EXPORTER_OTLP_TRACES_HEADERS").or_else(|| read("OTEL_EXPORTER_OTLP_HEADERS"));
    let sampler =
        sampler(read("OTEL_TRACES_SAMPLER").as_deref(), read("OTEL_TRACES_SAMPLER_ARG").as_deref())?;
    let resource = vec![
        ("service.name", read("OTEL_SERVICE_NAME").unwrap_or_else(|| service.to_owned())),
        ("service.instance.id", node.to_owned()),
        ("service.version", env!("BUILT_VERSION").to_owned()),
    ];
    Ok(Some(ExportConfig { endpoint, headers: parse_headers(headers.as_deref())?, resource, sampler }))
}

/// `NAME=VALUE,NAME=VALUE`, with values that may be percent-encoded.
fn parse_headers(text: Option<&str>) -> Result<Vec<(String, String)>, ValueError> {
    let pairs = text.unwrap_or_default().split(',').filter(|pair| !pair.trim().is_empty());
    let pair = |pair: &str| {
        let (name, value) =
            pair.split_once('=').ok_or("OTEL_EXPORTER_OTLP_HEADERS must be NAME=VALUE,NAME=VALUE")?;
        Ok((name.trim().to_owned(), decoded(value.trim())))
    };
    pairs.map(pair).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.first_chunk::<2>().and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn sampler(name: Option<&str>, argument: Option<&str>) -> Result<Sampler, ValueError> {
    let name = name.unwrap_or("parentbased_always_on");
    let is_parent_based = name.starts_with("parentbased_");
    let ratio = match name.trim_start_matches("parentbased_") {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => {
            let ratio = argument.unwrap_or("1").parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.ok_or("OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1")?
        }
        _ => {
            return Err(format!(
                "OTEL_TRACES_SAMPLER is {name:?}; write always_on, always_off or traceidratio, or one of them after \
                 parentbased_"
            )
            .into());
        }
    };
    Ok(Sampler { ratio, is_parent_based })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flag: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<ExportConfig>, ValueError> {
        let read = |name: &str| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        };
        config(flag, read, "solehold", "a")
    }

    fn endpoint(flag: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        of(flag, variables).expect("good").map(|config| config.endpoint)
    }

    #[test]
    fn traces_are_off_unless_a_collector_is_named() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:4318/");
        let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/x");
        assert_eq!(endpoint(None, &[("OTEL_SERVICE_NAME", "x")]), None);
        assert_eq!(endpoint(None, &[base]).as_deref(), Some("http://b:4318/v1/traces"));
        assert_eq!(endpoint(None, &[base, whole]).as_deref(), Some("http://c/x"));
        assert_eq!(endpoint(Some("http://a:1"), &[base]).as_deref(), Some("http://a:1/v1/traces"));
        assert_eq!(endpoint(None, &[base, ("OTEL_SDK_DISABLED", "true")]), None);
    }

    #[test]
    fn headers_and_samplers_are_read_as_opentelemetry_has_them() {
        let read = |text| parse_headers(Some(text)).map_err(String::from);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read("a=b=c, x-key=%C3%BC%20%zz"), Ok(vec![pair("a", "b=c"), pair("x-key", "ü %zz")]));
        assert!(read("a").is_err_and(|error| error.contains("NAME=VALUE")));
        let ratio = |name, argument| {
            sampler(Some(name), argument).map(|sampler| (sampler.ratio, sampler.is_parent_based))
        };
        assert_eq!(ratio("traceidratio", Some("0.25")), Ok((0.25, false)));
        assert_eq!(ratio("parentbased_always_off", None), Ok((0.0, true)));
        assert!(ratio("traceidratio", Some("2")).is_err() && ratio("sometimes", None).is_err());
    }
}
