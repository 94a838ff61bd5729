//! Spans as OTLP has them, in JSON.

use serde_json::{Value as Json, json};

use crate::{
    recorder::Recorder,
    span::{FinishedSpan, Value},
};

/// The body of one request to a collector.
pub(crate) fn request(recorder: &Recorder, resource: &[(&str, String)], spans: &[FinishedSpan]) -> Json {
    let text = |(name, value): &(&str, String)| attribute(name, &Value::Text(value.clone().into()));
    let resource: Vec<Json> = resource.iter().map(text).collect();
    let spans: Vec<Json> = spans.iter().map(|span| written(recorder, span)).collect();
    let scope = json!({ "name": "solehold", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }]})
}

fn written(recorder: &Recorder, span: &FinishedSpan) -> Json {
    let attributes: Vec<Json> = span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    let link =
        |link: &crate::TraceContext| json!({ "traceId": trace(link.trace_id), "spanId": id(link.span_id) });
    let links: Vec<Json> = span.links.iter().map(link).collect();
    let mut written = json!({
        "traceId": trace(span.context.trace_id),
        "spanId": id(span.context.span_id),
        "name": span.name,
        "kind": span.kind as u8,
        // Numbers of 64 bits are strings in the JSON of protocol buffers.
        "startTimeUnixNano": recorder.unix_ns(span.began).to_string(),
        "endTimeUnixNano": recorder.unix_ns(span.ended).to_string(),
        "attributes": attributes,
        "links": links,
        "status": if span.has_failed { json!({ "code": 2 }) } else { json!({}) },
    });
    if let Some(parent) = span.parent {
        written["parentSpanId"] = id(parent).into();
    }
    written
}

fn attribute(name: &str, value: &Value) -> Json {
    let value = match value {
        Value::Text(text) => json!({ "stringValue": text }),
        Value::Number(number) => json!({ "intValue": number.to_string() }),
    };
    json!({ "key": name, "value": value })
}

fn trace(id: u128) -> String {
    format!("{id:032x}")
}

fn id(id: u64) -> String {
    format!("{id:016x}")
}
