//! A span: something that took time.

use std::borrow::Cow;

use solehold_clock::BootTime;

use crate::{TraceContext, recorder};

/// The most links of a span.
const LINKS_MAX: usize = 128;

/// What a span is to the spans around it, by the numbers of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work within a process.
    Internal = 1,
    /// A request that is answered.
    Server = 2,
    /// A request that is sent.
    Client = 3,
}

/// A value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A string.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(not(feature = "export"), allow(dead_code))]
pub(crate) struct FinishedSpan {
    pub context: TraceContext,
    pub parent: Option<u64>,
    pub name: Cow<'static, str>,
    pub kind: SpanKind,
    pub began: BootTime,
    pub ended: BootTime,
    pub attributes: Vec<(&'static str, Value)>,
    pub links: Vec<TraceContext>,
    pub has_failed: bool,
}

/// A span that goes on until it is dropped. Without a recorder, or in a trace that is not sampled, it is nothing.
#[derive(Debug, Default)]
#[must_use]
pub struct Span {
    context: Option<TraceContext>,
    span: Option<Box<FinishedSpan>>,
}

impl Span {
    /// A span below `parent`, or the first of a new trace.
    pub fn begin(
        kind: SpanKind,
        parent: Option<TraceContext>,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Self {
        let Some(recorder) = recorder::get() else { return Self::default() };
        let trace_id = parent.map_or_else(|| rand::random::<u128>().max(1), |parent| parent.trace_id);
        let is_sampled = recorder.sampler.is_sampled(trace_id, parent);
        let context = TraceContext { trace_id, span_id: rand::random::<u64>().max(1), is_sampled };
        if !is_sampled {
            return Self {
                context: Some(parent.map_or(context, |parent| TraceContext { is_sampled, ..parent })),
                span: None,
            };
        }
        let now = BootTime::now();
        let span = FinishedSpan {
            context,
            parent: parent.map(|parent| parent.span_id),
            name: name(),
            kind,
            began: now,
            ended: now,
            attributes: Vec::new(),
            links: Vec::new(),
            has_failed: false,
        };
        Self { context: Some(context), span: Some(Box::new(span)) }
    }

    /// A span within one that is recorded; nothing if there is none.
    pub fn child(name: &'static str, parent: Option<TraceContext>) -> Self {
        match parent.filter(|parent| parent.is_sampled) {
            Some(parent) => Self::begin(SpanKind::Internal, Some(parent), || name.into()),
            None => Self::default(),
        }
    }

    /// The context of what happens within the span. Without a recorder there is none.
    pub fn context(&self) -> Option<TraceContext> {
        self.context
    }

    /// Whether it is recorded: what describes it need not be computed otherwise.
    pub fn is_recorded(&self) -> bool {
        self.span.is_some()
    }

    /// Describes it.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.span {
            span.attributes.push((name, value.into()));
        }
    }

    /// Links it to another span that it also works for.
    pub fn link(&mut self, context: TraceContext) {
        if let Some(span) = self.span.as_mut().filter(|span| span.links.len() < LINKS_MAX) {
            span.links.push(context);
        }
    }

    /// Marks it as failed.
    pub fn fail(&mut self) {
        if let Some(span) = &mut self.span {
            span.has_failed = true;
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let (Some(mut span), Some(recorder)) = (self.span.take(), recorder::get()) {
            span.ended = BootTime::now();
            recorder.record(*span);
        }
    }
}
