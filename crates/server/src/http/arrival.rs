//! The arrival of a request body.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::header,
};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};

/// How much of the unread rest of a body is read and dropped, in bytes.
const UNWANTED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How long the unread rest of a body is read and dropped.
const UNWANTED_FOR_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Arrival(Arc<AtomicBool>);

impl Arrival {
    pub fn of(request: &mut Request) -> Self {
        let arrival = Self(Arc::new(AtomicBool::new(request.body().is_end_stream())));
        if !arrival.is_complete() {
            // A client that expects `100 Continue` sends no body if the request is rejected.
            let is_sent = !request.headers().contains_key(header::EXPECT);
            let body = std::mem::take(request.body_mut());
            *request.body_mut() = Body::new(ArrivingBody { body, arrival: arrival.clone(), is_sent });
        }
        arrival
    }

    pub fn is_complete(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A body that reports when all of it has arrived.
///
/// A request may be answered before its body was read: the key is wrong, or the body is too large. A client that is
/// still sending would then find the connection closed, and might never see the answer. So the rest of the body is
/// read, within bounds, and dropped.
struct ArrivingBody {
    body: Body,
    arrival: Arrival,
    /// Whether the client sends the body without waiting for `100 Continue`.
    is_sent: bool,
}

impl HttpBody for ArrivingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // After an error nothing more will arrive.
        if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
            self.arrival.0.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ArrivingBody {
    fn drop(&mut self) {
        if self.is_sent
            && !self.arrival.is_complete()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime
                .spawn(tokio::time::timeout(UNWANTED_FOR_MAX, read_unwanted(std::mem::take(&mut self.body))));
        }
    }
}

async fn read_unwanted(mut body: Body) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > UNWANTED_BYTES_MAX {
            return;
        }
    }
}
