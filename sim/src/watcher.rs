//! A watcher: it follows every event through its own wire, and begins again where it was when the stream ends.

use std::{sync::Arc, time::Duration};

use solehold_api::watch::{Cursor, WatchFrame};
use solehold_client::gate::{NoWatch, Source};
use tokio::time::timeout;

use crate::{
    chronicle::Happening,
    sink::GateSource,
    virtual_time::pass,
    wire::{Kind, Wire},
    world::tenant,
};

/// How long to wait before it begins again.
const AGAIN: Duration = Duration::from_millis(300);
/// A stream that says nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(3);

pub async fn watch(wire: Arc<Wire>) {
    let source = GateSource { wire: wire.clone() };
    let mut cursor: Option<Cursor> = None;
    loop {
        if follow(&source, &wire, &mut cursor).await == Some(NoWatch::Compacted) {
            cursor = None;
        }
        pass(AGAIN).await;
        wire.process.running().await;
    }
}

/// One stream, from the cursor on; why there was none, or none if it ended.
async fn follow(source: &GateSource, wire: &Wire, cursor: &mut Option<Cursor>) -> Option<NoWatch> {
    let mut frames = match source.watch(&tenant(), None, *cursor).await {
        Ok(frames) => frames,
        Err(why) => return Some(why),
    };
    loop {
        // A store that was failed over has nothing more to tell.
        if wire.is_cut_off(Kind::Watch) {
            return None;
        }
        let frame = match timeout(SILENCE_MAX, frames.next()).await {
            Ok(Ok(Some(frame))) => frame,
            Ok(Ok(None) | Err(_)) | Err(_) => return None,
        };
        match frame {
            WatchFrame::Event(event) => {
                *cursor = Some(event.cursor);
                wire.note(Happening::Saw(event.cursor.epoch, event.cursor.revision));
            }
            WatchFrame::Snapshot(part) => *cursor = Some(part.cursor),
            WatchFrame::Progress(progress) => *cursor = Some(progress.cursor),
            WatchFrame::Compacted(_) => return Some(NoWatch::Compacted),
            WatchFrame::Resync(_) => return None,
        }
    }
}
