//! What a gate learns from the engine in its own process.

use async_trait::async_trait;
use solehold_api::watch::{Compacted, Cursor, LeaseEvent, Ownership, Progress, Snapshot, WatchFrame};
use solehold_core::{
    command::Footprint,
    fence::{Mark, MarkLookup},
    key::{Name, ResourceKey},
    outcome::LeaseView,
    time::{Revision, StoreTime},
};
use solehold_engine::{
    store,
    watch::{Filter, Frame, Watch, WatchError},
};

use super::source::{Frames, NoWatch, Source};
use crate::{authority::AuthorityError, embedded::Embedded};

fn failed(error: &dyn std::fmt::Display) -> AuthorityError {
    AuthorityError::unreachable(error.to_string())
}

fn wire(cursor: store::Cursor) -> Cursor {
    Cursor { epoch: cursor.epoch, revision: cursor.revision.0 }
}

#[async_trait]
impl Source for Embedded {
    async fn head(&self) -> Result<Cursor, AuthorityError> {
        let loaded = self.engine().load(&Footprint::default()).await;
        Ok(wire(loaded.map_err(|error| failed(&error))?.cursor))
    }

    async fn newest(&self, key: &ResourceKey) -> Result<(MarkLookup, Option<u64>), AuthorityError> {
        let loaded = self.engine().resource(key).await.map_err(|error| failed(&error))?;
        let answer = loaded.state.resource(key).map_or(MarkLookup::Nothing, |resource| {
            let session = resource.lease.as_ref().and_then(|lease| lease.tenure.session());
            MarkLookup::Newest(Mark { token: resource.last_token, session })
        });
        Ok((answer, Some(loaded.cursor.epoch)))
    }

    async fn watch(
        &self,
        tenant: &Name,
        kind: Option<&Name>,
        from: Option<Cursor>,
    ) -> Result<Box<dyn Frames>, NoWatch> {
        let from = from.map(|from| store::Cursor { epoch: from.epoch, revision: Revision(from.revision) });
        let filter = Filter { tenant: Some(tenant.clone()), kind: kind.cloned(), ..Filter::default() };
        match self.engine().watch(from, filter).await {
            Ok(watch) => Ok(Box::new(EngineFrames(watch))),
            Err(error @ (WatchError::Ahead { .. } | WatchError::Engine(_))) => Err(failed(&error).into()),
        }
    }
}

struct EngineFrames(Watch);

#[async_trait]
impl Frames for EngineFrames {
    async fn next(&mut self) -> Result<Option<WatchFrame>, AuthorityError> {
        loop {
            let Some(frame) = self.0.next().await else { return Ok(None) };
            if let Some(frame) = told(frame) {
                return Ok(Some(frame));
            }
        }
    }
}

fn told(frame: Frame) -> Option<WatchFrame> {
    Some(match frame {
        Frame::Snapshot(page) => {
            let store::LoadedRows { state, now, cursor, .. } = &page.loaded;
            let resources = page.keys.iter().filter_map(|key| state.resource(key));
            let owned =
                resources.map(|r| Ownership::of(r, LeaseView::of(state, r, *now).ok().flatten().as_ref()));
            WatchFrame::Snapshot(Snapshot {
                cursor: wire(*cursor),
                resources: owned.collect(),
                more: page.more,
            })
        }
        Frame::Event { event, cursor } => WatchFrame::Event(Box::new(LeaseEvent::of(&event, cursor.epoch))),
        // Its time is of no use here: a gate goes by when it asked.
        Frame::Progress(cursor) => {
            WatchFrame::Progress(Progress { cursor: wire(cursor), timestamp: StoreTime(0).into() })
        }
        Frame::Compacted { floor } => WatchFrame::Compacted(Compacted { floor: wire(floor) }),
        Frame::Renewed(_) => return None,
    })
}
