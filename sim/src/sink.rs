//! What work has an effect on: a sink behind a gate, and one without, which is only there to show the difference.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use solehold_api::watch::{Cursor, Ownership, Snapshot, WatchFrame};
use solehold_client::{
    AuthorityError, ResourceName, Token,
    gate::{Frames, Gate, GateClock, GateOptions, NoWatch, Source, Verdict},
};
use solehold_core::{
    fence::MarkLookup,
    key::{Name, ResourceKey},
    outcome::LeaseView,
};

use crate::{
    brief::Brief,
    broker::Broker,
    chronicle::{Chronicle, Happening},
    server::Server,
    virtual_time::pass,
    wire::{Kind, REQUEST_TIMEOUT, Wire},
    world::{KINDS, TTL, resource_key, resources},
};

/// A gate that reaches the servers by this wire.
pub fn gate_over(wire: &Arc<Wire>) -> Gate {
    let options = GateOptions {
        cache_ttl: TTL,
        refresh_within: REQUEST_TIMEOUT,
        clock: GateClock(wire.process.clone()),
        ..GateOptions::new(KINDS).expect("good names")
    };
    let source = Arc::new(GateSource { wire: wire.clone() });
    Gate::open(source, options).expect("good options")
}

pub struct Sink {
    gate: Gate,
    broker: Arc<Broker>,
    chronicle: Arc<Chronicle>,
}

impl Sink {
    /// A sink whose gate reaches the servers by this wire.
    pub fn new(wire: &Arc<Wire>, chronicle: Arc<Chronicle>, broker: Arc<Broker>) -> Arc<Self> {
        Arc::new(Self { gate: gate_over(wire), broker, chronicle })
    }

    pub async fn ready(&self) {
        self.gate.ready().await;
    }

    /// A write arrives: at the gate in front of the sink, at the sink without one, and at the MQTT broker.
    pub async fn take(&self, who: &str, resource: &ResourceName, token: u64) {
        self.chronicle.note(who, Happening::Unfenced(resource.clone(), token));
        self.broker.publish(resource, token);
        let key = resource_key(resource);
        let what = match self.gate.decide(&key, Token(token), None).await {
            Verdict::Admit => Happening::Admitted(resource.clone(), token),
            refused => Happening::Refused(resource.clone(), token, format!("{refused:?}")),
        };
        self.chronicle.note(who, what);
    }
}

/// What the gate learns from the servers.
pub struct GateSource {
    pub wire: Arc<Wire>,
}

impl Brief for Cursor {
    fn brief(&self) -> String {
        format!("at {}", self.revision)
    }
}

impl Brief for (MarkLookup, Option<u64>) {
    fn brief(&self) -> String {
        match &self.0 {
            MarkLookup::Newest(mark) => format!("token {}", mark.token),
            _ => "nothing".to_owned(),
        }
    }
}

impl Brief for NoWatch {
    fn brief(&self) -> String {
        self.to_string()
    }
}

/// A watch that was opened, and what it begins with.
struct Opened {
    snapshot: Option<WatchFrame>,
    frames: Box<dyn Frames>,
}

impl Brief for Opened {
    fn brief(&self) -> String {
        "watches".to_owned()
    }
}

/// Who owns what, read resource by resource: the events since the cursor, which come next, change nothing that is read
/// here already.
async fn snapshot(to: &Server, at: Cursor, epoch: u64) -> Result<WatchFrame, AuthorityError> {
    let mut owned = Vec::new();
    for resource in resources() {
        let key = resource_key(&resource);
        let read = to.engine().resource(&key).await;
        let loaded = read.map_err(|error| AuthorityError::Unknown(error.to_string()))?;
        let Some(row) = loaded.state.resource(&key) else { continue };
        let lease = LeaseView::of(&loaded.state, row, loaded.now).ok().flatten();
        owned.push(Ownership::of(row, lease.as_ref()));
    }
    Ok(WatchFrame::Snapshot(Snapshot { cursor: Cursor { epoch, ..at }, resources: owned, more: false }))
}

async fn open(
    to: &Server,
    tenant: &Name,
    kind: Option<&Name>,
    from: Option<Cursor>,
    epoch: u64,
) -> Result<Opened, NoWatch> {
    let head = Source::head(&**to).await?;
    if from.is_some_and(|from| from.epoch != epoch) {
        return Err(NoWatch::Compacted);
    }
    let snapshot = match from {
        Some(_) => None,
        None => Some(snapshot(to, head, epoch).await?),
    };
    // The store counts its own histories; those of the world are counted by failovers.
    let from = from.map_or(head, |from| Cursor { epoch: head.epoch, ..from });
    Ok(Opened { snapshot, frames: to.watch(tenant, kind, Some(from)).await? })
}

#[async_trait]
impl Source for GateSource {
    async fn head(&self) -> Result<Cursor, AuthorityError> {
        let head = |to: Arc<Server>| async move { Source::head(&**to).await };
        let (epoch, head) = self.wire.through(Kind::Head, String::new(), REQUEST_TIMEOUT, head).await?;
        head.map(|head| Cursor { epoch, ..head })
    }

    async fn newest(&self, key: &ResourceKey) -> Result<(MarkLookup, Option<u64>), AuthorityError> {
        let key = key.clone();
        let about = format!("{}/{}", key.kind, key.key);
        let newest = move |to: Arc<Server>| {
            let key = key.clone();
            async move { to.newest(&key).await }
        };
        let (epoch, told) = self.wire.through(Kind::Head, about, REQUEST_TIMEOUT, newest).await?;
        told.map(|(answer, _)| (answer, Some(epoch)))
    }

    async fn watch(
        &self,
        tenant: &Name,
        kind: Option<&Name>,
        from: Option<Cursor>,
    ) -> Result<Box<dyn Frames>, NoWatch> {
        let tenant = tenant.clone();
        let kind = kind.cloned();
        let leads_to = self.wire.epoch();
        let watch = move |to: Arc<Server>| {
            let tenant = tenant.clone();
            let kind = kind.clone();
            async move { open(&to, &tenant, kind.as_ref(), from, leads_to).await }
        };
        let through = self.wire.through(Kind::Watch, String::new(), REQUEST_TIMEOUT, watch);
        let (epoch, opened) = through.await.map_err(NoWatch::Failed)?;
        let Opened { snapshot, frames } = opened?;
        if epoch != leads_to {
            return Err(NoWatch::Compacted);
        }
        Ok(Box::new(WiredFrames { wire: self.wire.clone(), epoch, snapshot, frames }))
    }
}

/// The frames of a watch, in order, through the wire.
struct WiredFrames {
    wire: Arc<Wire>,
    epoch: u64,
    snapshot: Option<WatchFrame>,
    frames: Box<dyn Frames>,
}

impl WiredFrames {
    fn stamped(&self, frame: WatchFrame) -> WatchFrame {
        match frame {
            WatchFrame::Event(mut event) => {
                event.cursor.epoch = self.epoch;
                WatchFrame::Event(event)
            }
            WatchFrame::Progress(mut progress) => {
                progress.cursor.epoch = self.epoch;
                WatchFrame::Progress(progress)
            }
            other => other,
        }
    }

    fn note(&self, frame: &WatchFrame) {
        let tell = |kind: &str, key: &str, token: Option<u64>| {
            if let (Some(token), Ok(resource)) = (token, ResourceName::new(kind, key)) {
                self.wire.note(Happening::Told(resource, token));
            }
        };
        match frame {
            WatchFrame::Event(event) => tell(&event.kind, &event.key, event.token),
            WatchFrame::Snapshot(part) => {
                part.resources.iter().for_each(|owned| tell(&owned.kind, &owned.key, Some(owned.token)));
            }
            _ => {}
        }
    }
}

#[async_trait]
impl Frames for WiredFrames {
    async fn next(&mut self) -> Result<Option<WatchFrame>, AuthorityError> {
        let frame = match self.snapshot.take() {
            Some(frame) => frame,
            None => {
                let Some(frame) = self.frames.next().await? else { return Ok(None) };
                pass(self.wire.delay(Kind::Watch).await?).await;
                self.stamped(frame)
            }
        };
        self.wire.process.running().await;
        self.note(&frame);
        Ok(Some(frame))
    }
}

/// How long a write takes to arrive, at least and at most.
pub const WRITE_MS: (u64, u64) = (1, 40);
/// How long one that lingers takes.
pub const LINGER_MAX: Duration = Duration::from_secs(9);
