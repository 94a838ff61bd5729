//! Spans of a distributed trace, from a client through the server to its store.
//!
//! ```text
//!   TraceContext   which trace, and which span in it: what a `traceparent` header says (W3C Trace Context)
//!   within         runs a future under a context; `current` is the context that runs now
//!   Span           something that took time; recorded when it is dropped
//!   Exporter       sends recorded spans to a collector (OTLP over HTTP, as JSON)
//! ```
//!
//! Nothing is recorded until an exporter is started: a span then costs one atomic load. With an exporter, a span is put
//! into a bounded queue, and dropped and counted if that is full: no request ever waits for a collector.

mod context;
#[cfg(feature = "export")]
mod export;
#[cfg(feature = "export")]
mod otlp;
mod recorder;
mod span;

pub use context::{InvalidTraceparent, TraceContext, current, within};
#[cfg(feature = "export")]
pub use export::{ExportConfig, Exporter, ExporterError};
pub use recorder::{Sampler, SpanCounts, counts, is_on};
pub use span::{Span, SpanKind, Value};

/// The header that carries a [`TraceContext`] from one process to another.
pub const TRACEPARENT: &str = "traceparent";
