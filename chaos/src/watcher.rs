//! A watcher of all changes, which resumes where it was whatever ends its stream.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use solehold_api::watch::{Cursor, LeaseEvent, WatchFrame};
use solehold_client::{
    Http, HttpConfig,
    gate::{NoWatch, Source},
};
use solehold_core::{event::EventName, key::Name};
use solehold_testkit::wait_for;
use tokio::{sync::watch, task::JoinHandle, time::interval};

use crate::{
    history::{Grantee, Recorder, Sighting},
    writer::KIND,
};

/// The tenant of all that have none.
const TENANT: &str = "default";
/// Between two attempts to watch.
const RETRY_EVERY: Duration = Duration::from_millis(200);
/// How long it may take to see everything after the last change.
const CATCH_UP: Duration = Duration::from_secs(60);

/// A watcher in this process.
#[derive(Debug)]
pub struct Watcher {
    authority: Arc<Http>,
    seen: watch::Receiver<Option<Cursor>>,
    task: JoinHandle<Result<()>>,
}

impl Watcher {
    /// Watches from now on; what is granted after this returns is seen.
    pub async fn start(config: HttpConfig, history: &Path) -> Result<Self> {
        let authority = Arc::new(Http::new(config)?);
        let (sender, mut seen) = watch::channel(None);
        let recorder = Recorder::create(history, "watcher")?;
        let task = tokio::spawn(follow(authority.clone(), recorder, sender));
        seen.wait_for(Option::is_some).await?;
        Ok(Self { authority, seen, task })
    }

    /// Goes on as this says, as after a change of whom to trust.
    pub fn reconfigure(&self, config: &HttpConfig) -> Result<()> {
        Ok(self.authority.reconfigure(config)?)
    }

    /// Waits until it has seen everything up to now, and ends.
    pub async fn finish(self) -> Result<()> {
        let head =
            wait_for("the head of the store", CATCH_UP, async || self.authority.head().await.ok()).await?;
        let has_seen = async || *self.seen.borrow() >= Some(head);
        let caught_up = wait_for("the watcher to see everything", CATCH_UP, has_seen).await;
        self.task.abort();
        caught_up
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(authority: Arc<Http>, recorder: Recorder, seen: watch::Sender<Option<Cursor>>) -> Result<()> {
    let tenant = Name::new(TENANT)?;
    let kind = Name::new(KIND)?;
    let mut from = None;
    let mut retry = interval(RETRY_EVERY);
    loop {
        retry.tick().await;
        let mut frames = match authority.watch(&tenant, Some(&kind), from).await {
            Ok(frames) => frames,
            Err(NoWatch::Compacted) => {
                from = None;
                continue;
            }
            Err(NoWatch::Failed(_)) => continue,
        };
        while let Ok(Some(frame)) = frames.next().await {
            let cursor = frame.cursor();
            match frame {
                WatchFrame::Event(event) => recorder.watched(sighting(&event))?,
                WatchFrame::Snapshot(_) => {
                    if let Some(Cursor { epoch, revision }) = cursor {
                        recorder.watched(Sighting::Snapshot { epoch, revision })?;
                    }
                }
                WatchFrame::Progress(_) => {}
                WatchFrame::Compacted(_) | WatchFrame::Resync(_) => {
                    from = None;
                    break;
                }
            }
            let Some(cursor) = cursor else { continue };
            from = Some(cursor);
            seen.send_replace(from);
        }
    }
}

fn sighting(event: &LeaseEvent) -> Sighting {
    let Cursor { epoch, revision } = event.cursor;
    let grant = (event.event_type == EventName::LeaseAcquired).then(|| Grantee {
        resource: event.key.clone(),
        holder: event.holder.clone().unwrap_or_default(),
        token: event.token.unwrap_or_default(),
    });
    Sighting::Event { epoch, revision, grant }
}
