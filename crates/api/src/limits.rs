//! Every bound of the surface, in one place and by name (rule 25). What the machine bounds by itself is in
//! [`solehold_core::limits`].

use solehold_core::limits::{NAME_BYTES_MAX, PENDING_MS_MAX, SESSION_LEASES_MAX, TTL_MS_MAX, TTL_MS_MIN};

/// How long a reported failure of a resource counts: after this time it is forgotten. A quarantine stays.
pub const FAILURE_WINDOW_MS: u64 = 60 * 60 * 1_000;
/// How long after the end of a lease its holder may still report that it failed at the resource.
pub const FAILURE_REPORT_MS: u64 = 60 * 1_000;
/// A resource that has failed this often within [`FAILURE_WINDOW_MS`] is in quarantine.
pub const FAILURES_MAX: usize = 5;
/// Failures of one resource that are remembered; beyond it the oldest are forgotten before their time. With names of
/// the greatest length they fit into one record.
pub const FAILURES_KEPT_MAX: usize = 32;
/// Largest body of a request, in bytes; an import is a stream and has a bound for each line.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
pub const EXPORT_LINE_BYTES_MAX: usize = 1024 * 1024;
/// Items on a page, when the request does not say.
pub const PAGE_SIZE_DEFAULT: usize = 100;
pub const PAGE_SIZE_MAX: usize = 1_000;
pub const BATCH_ITEMS_MAX: usize = 1_000;
pub const LABELS_MAX: usize = 64;
/// Longest list of labels to select by, in bytes.
pub const LABEL_QUERY_BYTES_MAX: usize = 4_096;
/// Most that a coordinate of a zone's corner is away from 0.
pub const COORDINATE_MAX: f64 = 1e9;
pub const URL_BYTES_MAX: usize = 8_192;
/// Longest cursor of a page, in bytes: three names, every byte of them escaped.
pub const PAGE_CURSOR_BYTES_MAX: usize = 3 * 3 * NAME_BYTES_MAX + 2;
/// Longest sealed cursor that a holder may show, in bytes.
pub const SEALED_CURSOR_BYTES_MAX: usize = 1_024;
/// Longest reason that may be given for a revocation, in bytes.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Deepest nesting of a document; answers wrap it further, and readers stop at 128.
pub const DOCUMENT_DEPTH_MAX: usize = 64;

/// Most resources in one `snapshot` frame of a watch; a larger snapshot is several frames.
pub const SNAPSHOT_RESOURCES_MAX: usize = 500;
/// Largest frame that a watch sends or a reader takes, in bytes.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Longest that one request may wait in line, in milliseconds. A client that wants to wait longer asks again with the
/// same request id before the former request ends, and keeps its place; when it has ended, the place is lost.
pub const WAIT_MS_MAX: u64 = 30_000;

pub const NEWS_SESSIONS_MAX: usize = 1_000;

/// Most weight of a node among those that keys are routed to.
pub const WEIGHT_MAX: f64 = 1_000.0;
/// Most nodes of a tenant among which a key is routed.
pub const ROUTED_NODES_MAX: usize = 10_000;

pub const CAPACITY_MIN: u32 = 1;
/// Most capacity of a runner: as much as one session may hold. A server may be configured to allow less.
pub const CAPACITY_MAX: u32 = SESSION_LEASES_MAX;
/// Capacity of a runner that does not say.
pub const CAPACITY_DEFAULT: u32 = 16;
/// A runner without a live session counts as inactive when nothing was heard of it for this long: three heartbeats.
pub const RUNNER_SILENCE_MS_MAX: u64 = 90_000;

/// Widest band around a fair share within which nothing is moved, in percent.
pub const PLACEMENT_BAND_PERCENT_MAX: u32 = 100;
pub const PLACEMENT_MOVES_MAX: u32 = 10_000;
/// Longest return window, and longest time for which a runner that came back gets nothing for balance: an hour.
pub const PLACEMENT_WINDOW_MS_MAX: u64 = 60 * 60 * 1_000;
pub const STATIC_RUNNERS_MAX: usize = 256;
pub const STATIC_RESOURCES_MAX: usize = 1_000;

pub const KEY_SCOPES_MAX: u64 = 64;
/// Longest life of an API key that has one: ten years.
pub const KEY_EXPIRY_SECONDS_MAX: u64 = 10 * 366 * 24 * 60 * 60;
/// How long the old key works on after a rotation, when the request does not say.
pub const KEY_GRACE_SECONDS_DEFAULT: u64 = 60 * 60;
/// The longest that an old key may work on after a rotation: thirty days.
pub const KEY_GRACE_SECONDS_MAX: u64 = 30 * 24 * 60 * 60;

/// The bounds of a time to live on some route. A request gives it as `ttl_ms` (whole) or `ttl_seconds` (may be
/// fractional).
///
/// ```
/// use solehold_api::limits::CAMERA_TTL;
///
/// let ask = |json: &str| CAMERA_TTL.resolve(None, Some(&json.parse().expect("a number")));
/// assert_eq!(CAMERA_TTL.resolve(None, None), Ok(60_000));
/// assert_eq!(ask("45.5"), Ok(45_500));
/// assert_eq!(ask("0.5").expect_err("too short").to_string(), "ttl_seconds is 0.5; it must be 1 to 86400");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TtlBounds {
    pub least_ms: u64,
    pub most_ms: u64,
    /// The value when the request gives none.
    pub default_ms: u64,
}

pub const SCENE_TTL: TtlBounds = TtlBounds { least_ms: TTL_MS_MIN, most_ms: TTL_MS_MAX, default_ms: 30_000 };
pub const CAMERA_TTL: TtlBounds = TtlBounds { least_ms: TTL_MS_MIN, most_ms: TTL_MS_MAX, default_ms: 60_000 };
pub const RESOURCE_TTL: TtlBounds =
    TtlBounds { least_ms: TTL_MS_MIN, most_ms: TTL_MS_MAX, default_ms: 30_000 };
pub const SESSION_TTL: TtlBounds =
    TtlBounds { least_ms: TTL_MS_MIN, most_ms: TTL_MS_MAX, default_ms: 30_000 };
/// How long a resource may be on offer to its next holder.
pub const OFFER_TTL: TtlBounds =
    TtlBounds { least_ms: TTL_MS_MIN, most_ms: PENDING_MS_MAX, default_ms: 30_000 };
/// Time to live of the session that a runner gets when it registers.
pub const RUNNER_SESSION_TTL: TtlBounds =
    TtlBounds { least_ms: TTL_MS_MIN, most_ms: TTL_MS_MAX, default_ms: 60_000 };
