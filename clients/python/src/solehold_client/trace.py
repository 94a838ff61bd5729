"""Which span of a trace a request belongs to, for its `traceparent` header (W3C Trace Context)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def of_opentelemetry() -> str | None:
    """The current span of OpenTelemetry, if this program uses it. It is not imported for this."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def header(traceparent: Callable[[], str | None]) -> str:
    """The header with its line end; nothing if there is no span, or if what is given is no `traceparent`."""
    value = traceparent()
    if value is None or _TRACEPARENT.fullmatch(value) is None:
        return ""
    return f"traceparent: {value}\r\n"
