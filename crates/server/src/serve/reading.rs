//! A connection whose client has stopped reading is closed.
//!
//! Hyper bounds how long the head of a request may take, but not how long an answer may: a client that asks and never
//! reads would keep its connection, and the memory of what it was answered, for as long as it likes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// A stream on which a write fails once the peer has taken nothing for `patience`. Whatever it takes, however little,
/// begins a new wait.
pub struct ReadingPeer<S> {
    stream: S,
    patience: Duration,
    /// Runs while the peer takes nothing of what is to be written.
    wait: Option<Pin<Box<Sleep>>>,
}

impl<S> ReadingPeer<S> {
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, wait: None }
    }

    /// What has become of a write: an error in place of a wait that has lasted too long.
    fn within<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.wait = None;
            return written;
        }
        let patience = self.patience;
        let wait = self.wait.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(wait.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read what it is sent")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadingPeer<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadingPeer<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.within(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.within(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.within(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.within(cx, ended)
    }
}
