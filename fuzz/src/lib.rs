//! Fuzz targets: one for each parser of input that somebody else wrote.
//!
//! A target takes any bytes and must not panic. Where a parser has a property beyond that (a text that was read is
//! written back the same, the size of the pieces does not matter), the target asserts it. `make test` runs each target
//! over its inputs (`fuzz/inputs/TARGET/`) and some thousand mutations of them; `make fuzz` runs libFuzzer.

mod api;
mod config;
mod gate;
mod orchestrator;
mod worker;

/// A parser under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of its folder of inputs.
    pub name: &'static str,
    /// Parses these bytes; panics if the parser is wrong.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 13] = [
    Target { name: "api_body", run: api::body },
    Target { name: "api_cursor", run: api::cursor },
    Target { name: "api_events", run: api::events },
    Target { name: "names", run: api::names },
    Target { name: "mqtt_payload", run: gate::payload },
    Target { name: "mqtt_topic", run: gate::topic },
    Target { name: "kafka_command", run: orchestrator::command },
    Target { name: "celery_result", run: orchestrator::celery_result },
    Target { name: "task_report", run: orchestrator::task_report },
    Target { name: "template", run: orchestrator::template },
    Target { name: "worker_line", run: worker::line },
    Target { name: "yaml", run: config::yaml },
    Target { name: "connection_string", run: config::connection_string },
];

/// The bytes as text; none if they are not UTF-8, which parsers of text never see.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// The two parts of an input that has a zero byte between them.
fn two_texts(bytes: &[u8]) -> Option<(&str, &str)> {
    text(bytes)?.split_once('\0')
}
