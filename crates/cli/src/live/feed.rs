//! The watch as a stream of news: it resumes by itself, and says when it is cut off.

use std::{sync::Arc, time::Duration};

use solehold_api::{
    paths,
    sse::Decoder,
    watch::{Cursor, LeaseEvent, WatchFrame},
};
use tokio::sync::mpsc;

use crate::{
    client::{Client, Stream},
    error::{CommandError, CommandResult},
    exit::Exit,
};

/// The first wait before another try to connect, which doubles with each.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// News that a view has not taken yet; then the server waits.
pub const NEWS_MAX: usize = 1_024;
/// How long to wait for events of the past.
const PAST_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub enum FeedNews {
    /// A frame that has not been seen before. A snapshot replaces everything.
    Frame(WatchFrame),
    /// No server is heard; the feed goes on trying.
    Lost(String),
    /// The server refuses: there will be no more news.
    Refused(CommandError),
}

/// Follows the watch until it is refused, or nobody takes the news.
pub async fn follow(client: Arc<Client>, renewals: bool, news: mpsc::Sender<FeedNews>) {
    let mut cursor = None;
    let mut wait = RETRY_FIRST;
    loop {
        let ended = match connect(&client, cursor, renewals).await {
            Ok(stream) => {
                wait = RETRY_FIRST;
                read(stream, &mut cursor, &news).await
            }
            Err(failure) => Err(failure),
        };
        let told = match ended {
            Ok(()) => FeedNews::Lost("the server closed the connection".to_owned()),
            Err(failure) if failure.exit == Exit::Unavailable => FeedNews::Lost(failure.message),
            Err(failure) => FeedNews::Refused(failure),
        };
        let is_over = matches!(told, FeedNews::Refused(_));
        if news.send(told).await.is_err() || is_over {
            return;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
}

/// The last events up to `cursor`, as far as the server still has them.
pub async fn past(client: &Client, cursor: Cursor, count: u64) -> CommandResult<Vec<LeaseEvent>> {
    let from = Cursor { revision: cursor.revision.saturating_sub(count), ..cursor };
    if from.revision == cursor.revision {
        return Ok(Vec::new());
    }
    let (sender, mut news) = mpsc::channel(NEWS_MAX);
    let stream = connect(client, Some(from), false).await?;
    let mut events = Vec::new();
    let take = async {
        let mut position = Some(from);
        tokio::select! {
            _ = read(stream, &mut position, &sender) => {}
            () = async {
                while let Some(FeedNews::Frame(frame)) = news.recv().await {
                    let at = frame.cursor();
                    match frame {
                        WatchFrame::Event(event) if event.cursor <= cursor => events.push(*event),
                        WatchFrame::Compacted(_) => return,
                        _ => {}
                    }
                    if at.is_some_and(|at| at >= cursor) {
                        return;
                    }
                }
            } => {}
        }
    };
    // Without them the view is still whole.
    let _ = tokio::time::timeout(PAST_MAX, take).await;
    Ok(events)
}

async fn connect(client: &Client, from: Option<Cursor>, renewals: bool) -> CommandResult<Stream> {
    let from = from.map(|cursor| cursor.to_string());
    let query = [("from", from), ("renewals", renewals.then(|| "true".to_owned()))];
    client.stream(&paths::watch(), &query).await
}

/// Passes the frames of a connection on, and keeps the place to go on from; none if that is a new snapshot.
async fn read(
    mut stream: Stream,
    cursor: &mut Option<Cursor>,
    news: &mpsc::Sender<FeedNews>,
) -> CommandResult {
    let broken =
        |why: &dyn std::fmt::Display| CommandError::broken(format!("the stream cannot be read: {why}"));
    let mut decoder = Decoder::default();
    while let Ok(Some(piece)) = stream.next().await {
        for frame in decoder.push(&piece).map_err(|error| broken(&error))? {
            let Some(frame) = WatchFrame::from_sse(&frame).map_err(|error| broken(&error))? else { continue };
            let was_seen = match &frame {
                WatchFrame::Event(event)
                    if event.event_type == solehold_core::event::EventName::LeaseRenewed =>
                {
                    false
                }
                WatchFrame::Event(event) => cursor.is_some_and(|cursor| event.cursor <= cursor),
                _ => false,
            };
            let is_restart = matches!(frame, WatchFrame::Compacted(_) | WatchFrame::Resync(_));
            *cursor = if is_restart { None } else { (*cursor).max(frame.cursor()) };
            if !was_seen && news.send(FeedNews::Frame(frame)).await.is_err() {
                return Ok(());
            }
            if is_restart {
                return Ok(());
            }
        }
    }
    Ok(())
}
