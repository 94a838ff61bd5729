//! The watch, as server-sent events.
//!
//! Nothing is kept for a reader here: a frame is asked of the engine when the connection can take it, so that a slow
//! reader holds up only itself. What is wrong before the first frame is a problem document; afterwards it is a frame.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, stream};
use solehold_api::{
    field,
    limits::SNAPSHOT_RESOURCES_MAX,
    paths,
    problem::{ErrorCode, Problem},
    sse,
    watch::{Compacted, Cursor, LeaseEvent, Ownership, Progress, Snapshot, WatchFrame, WatchQuery},
};
use solehold_core::{
    key::{Name, ResourceKey},
    outcome::LeaseView,
    time::Revision,
};
use solehold_engine::{
    store::{self, EventQuery, LoadedRows, ResourcePage},
    watch::{Filter, Frame, SNAPSHOT_RESOURCES_AT_ONCE, Watch, WatchError},
};
use tokio::sync;

use crate::{
    http::{ApiError, Caller, Context, Identity, Params, role},
    state::quota::OpenWatch,
};

/// A silent stream gets a comment this often.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const _: () = assert!(SNAPSHOT_RESOURCES_AT_ONCE <= SNAPSHOT_RESOURCES_MAX, "a page is a frame");
/// The last comment of a server that stops.
const STOPPING: &str = ": the server is stopping\n\n";
/// What a browser reads a stream of events by.
const LAST_EVENT_ID: &str = "last-event-id";

routes!["watch": watch];

/// Streams who owns what, then every change.
///
/// Without `from` the stream begins with `snapshot` frames, of which the last has `more: false`. Then come `event`
/// frames and `progress` marks. Each frame's `id` is a cursor to resume from, with `from` or `Last-Event-ID`, which
/// goes first. After a `compacted` frame the stream ends: begin again without a cursor.
#[utoipa::path(
    get, path = paths::WATCH, params(WatchQuery),
    responses(
        (status = 200, description = "The frames of the watch", body = WatchFrame, content_type = "text/event-stream"),
        (status = 400, description = "A parameter is wrong, or the cursor is ahead of this store"),
        (status = 410, description = "The events after the cursor are no longer kept"),
    )
)]
async fn watch(
    caller: Caller<role::Reader>,
    headers: HeaderMap,
    Params(query): Params<WatchQuery>,
) -> Result<Response, ApiError> {
    let context = caller.context();
    let filter = filter(&caller, &query)?;
    let open = context.open_watch(filter.tenant.as_ref())?;
    let from = match last_event_id(&headers)?.or(query.from) {
        Some(cursor) => Some(check(context, cursor).await?),
        None => None,
    };
    let watch = context.engine().watch(from, filter).await.map_err(failed)?;
    let at = watch.cursor();
    let stopping = context.stopping();
    let context = context.clone();
    let key = caller.key_id().cloned();
    let stream = WatchStream { context, watch, at, key, stopping, is_over: false, _open: open };
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(stream.stream())).into_response())
}

/// The filter of a query, limited to resources that the caller may see.
fn filter(caller: &Identity, query: &WatchQuery) -> Result<Filter, ApiError> {
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    let kind = field::maybe_name("kind", query.kind.as_deref())?;
    let holder = field::maybe_name("holder", query.holder.as_deref())?;
    Ok(Filter { tenant, kind, holder, renewals: query.renewals })
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<Cursor>, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() { Ok(None) } else { Ok(Some(text.parse()?)) }
}

/// A cursor that the watch can resume from.
async fn check(context: &Context, given: Cursor) -> Result<store::Cursor, ApiError> {
    let from = store_cursor(given);
    let query = EventQuery { after: from.revision, limit: 1, ..Default::default() };
    let page = context.engine().events(&query).await?;
    if from > page.head {
        return Err(failed(WatchError::Ahead { given: from, head: page.head }));
    }
    if from.epoch < page.head.epoch || from.revision < page.floor {
        let floor = wire_cursor(store::Cursor { epoch: page.head.epoch, revision: page.floor });
        let detail = format!(
            "events after {given} are no longer kept; the oldest cursor is {floor}; restart without a cursor"
        );
        return Err(Problem::new(ErrorCode::Compacted, detail).into());
    }
    Ok(from)
}

/// One page of who owns what.
fn snapshot_frame(found: &ResourcePage) -> WatchFrame {
    let LoadedRows { state, now, cursor, .. } = &found.loaded;
    let resources = found.keys.iter().filter_map(|key| state.resource(key));
    let owned = resources.map(|r| Ownership::of(r, LeaseView::of(state, r, *now).ok().flatten().as_ref()));
    WatchFrame::Snapshot(Snapshot {
        cursor: wire_cursor(*cursor),
        resources: owned.collect(),
        more: found.more,
    })
}

fn failed(error: WatchError) -> ApiError {
    match error {
        WatchError::Engine(error) => error.into(),
        WatchError::Ahead { .. } => Problem::new(ErrorCode::BadRequest, error.to_string()).into(),
    }
}

pub fn wire_cursor(cursor: store::Cursor) -> Cursor {
    Cursor { epoch: cursor.epoch, revision: cursor.revision.0 }
}

pub fn store_cursor(cursor: Cursor) -> store::Cursor {
    store::Cursor { epoch: cursor.epoch, revision: Revision(cursor.revision) }
}

struct WatchStream {
    context: Context,
    watch: Watch,
    at: store::Cursor,
    key: Option<Name>,
    stopping: sync::watch::Receiver<bool>,
    is_over: bool,
    /// Counts as open until the stream is dropped.
    _open: OpenWatch,
}

impl WatchStream {
    fn stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
        stream::unfold(self, async |mut stream| Some((Ok(stream.next().await?.into()), stream)))
    }

    /// The next piece of the stream; none when it is over.
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        loop {
            let next = tokio::time::timeout(KEEP_ALIVE_EVERY, async {
                tokio::select! {
                    _ = self.stopping.wait_for(|stopping| *stopping) => None,
                    frame = self.watch.next() => frame,
                }
            });
            let Ok(frame) = next.await else { return self.allowed(sse::KEEP_ALIVE.to_owned()) };
            let Some(frame) = frame else {
                self.is_over = true;
                return Some(STOPPING.to_owned());
            };
            if let Some(frame) = self.tell(frame) {
                return self.allowed(frame.to_sse().encode());
            }
        }
    }

    /// The text, as long as the watch would still be admitted: by its key, or without one.
    fn allowed(&self, text: String) -> Option<String> {
        let ring = &self.context.ring;
        let is_allowed = self.key.as_ref().map_or_else(|| ring.is_open(), |key| ring.is_good(key));
        is_allowed.then_some(text)
    }

    /// A frame as the caller may see it; none, if it is about a resource that its key is not for.
    fn tell(&mut self, frame: Frame) -> Option<WatchFrame> {
        let sees = |key: &ResourceKey| self.context.caller().may_see(key);
        Some(match frame {
            Frame::Event { event, cursor } => {
                self.at = cursor;
                if !sees(&event.key) {
                    return None;
                }
                WatchFrame::Event(Box::new(LeaseEvent::of(&event, cursor.epoch)))
            }
            Frame::Renewed(lease) if !sees(&lease.key) => return None,
            Frame::Renewed(lease) => {
                WatchFrame::Event(Box::new(LeaseEvent::renewed(&lease, self.at.epoch, self.at.revision)))
            }
            Frame::Progress(cursor) => {
                self.at = cursor;
                let timestamp = self.context.ring.now().into();
                WatchFrame::Progress(Progress { cursor: wire_cursor(cursor), timestamp })
            }
            Frame::Compacted { floor } => {
                self.is_over = true;
                WatchFrame::Compacted(Compacted { floor: wire_cursor(floor) })
            }
            Frame::Snapshot(mut found) => {
                self.at = found.loaded.cursor;
                found.keys.retain(sees);
                snapshot_frame(&found)
            }
        })
    }
}
