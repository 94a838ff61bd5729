//! Which trace something belongs to, as W3C Trace Context defines it.

use std::{fmt, str::FromStr};

/// A span of a trace, by its ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace. Never zero.
    pub trace_id: u128,
    /// The span. Never zero.
    pub span_id: u64,
    /// Whether the spans of this trace are recorded.
    pub is_sampled: bool,
}

/// A `traceparent` that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidTraceparent;

impl fmt::Display for InvalidTraceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a traceparent, as in 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    }
}

impl std::error::Error for InvalidTraceparent {}

/// The length of a header of version 00, in bytes.
const LENGTH: usize = 55;

impl FromStr for TraceContext {
    type Err = InvalidTraceparent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceparent> {
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let mut parts = text.split('-');
        let mut part = |length: usize| {
            parts.next().filter(|part| part.len() == length && is_plain(part)).ok_or(InvalidTraceparent)
        };
        let version = part(2)?;
        let trace = part(32)?;
        let span = part(16)?;
        let flags = part(2)?;
        // Later versions may have more parts.
        if version == "ff" || version == "00" && text.len() != LENGTH {
            return Err(InvalidTraceparent);
        }
        let trace_id = u128::from_str_radix(trace, 16).map_err(|_| InvalidTraceparent)?;
        let span_id = u64::from_str_radix(span, 16).map_err(|_| InvalidTraceparent)?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| InvalidTraceparent)?;
        if trace_id == 0 || span_id == 0 {
            return Err(InvalidTraceparent);
        }
        Ok(Self { trace_id, span_id, is_sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, span_id, is_sampled } = self;
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{:02x}", u8::from(*is_sampled))
    }
}

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// The context under which the present task runs, if there is one.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

/// Runs `work` under a context, if there is one: requests that it sends carry it.
///
/// ```
/// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
/// let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().ok();
/// let seen = solehold_trace::within(context, async { solehold_trace::current() }).await;
/// assert_eq!(seen, context);
/// # });
/// ```
pub async fn within<F: Future>(context: Option<TraceContext>, work: F) -> F::Output {
    match context {
        Some(context) => CURRENT.scope(context, work).await,
        None => work.await,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_is_read_and_written() {
        let context: TraceContext = GOOD.parse().expect("good");
        assert_eq!((context.span_id, context.is_sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(context.to_string(), GOOD);
        // A later version, with flags that are unknown here and another part.
        let later: TraceContext =
            GOOD.replacen("00-", "cc-", 1).replace("-01", "-09-more").parse().expect("good");
        assert_eq!(later, context);
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let zero_trace = format!("00-{:032x}-00f067aa0ba902b7-01", 0);
        let zero_span = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016x}-01", 0);
        let upper = GOOD.to_uppercase();
        let long = format!("{GOOD}-more");
        let former = GOOD.replacen("00-", "ff-", 1);
        for text in ["", "00", "é", &zero_trace, &zero_span, &upper, &long, &former, &GOOD[1..]] {
            assert_eq!(text.parse::<TraceContext>(), Err(InvalidTraceparent), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_context_survives_the_header(trace_id in 1u128.., span_id in 1u64.., is_sampled: bool) {
            let context = TraceContext { trace_id, span_id, is_sampled };
            prop_assert_eq!(context.to_string().parse(), Ok(context));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = text.parse::<TraceContext>();
        }
    }
}
