//! What a server assigns to a runner: the real plan (`core::placement`), made from the store's rows when it is asked.

use std::collections::{BTreeMap, BTreeSet};

use solehold_client::{Embedded, ResourceName, assignments::Want};
use solehold_core::{
    command::Footprint,
    key::{HolderKey, Name},
    ledger::Ledger,
    outcome::LeaseView,
    placement::{self, PendingMove, PlacementResource, Presence, Runner, Snapshot, Step},
    time::StoreTime,
};

use crate::{
    brief::Brief,
    world::{AGENTS, CAMERAS, agent_name, resource_key, tenant},
};

/// How long a runner has been away, as far as placement cares: longer than any window in which it may return.
const GONE_MS: u64 = 600_000;

/// What a runner is to acquire, keep and release.
#[derive(Debug, Default)]
pub struct Assigned {
    pub acquire: BTreeMap<ResourceName, Want>,
    pub keep: BTreeSet<ResourceName>,
}

impl Brief for Assigned {
    fn brief(&self) -> String {
        let acquire: Vec<String> =
            self.acquire.iter().map(|(what, want)| format!("{what} {want:?}")).collect();
        let keep: Vec<String> = self.keep.iter().map(ToString::to_string).collect();
        format!("acquire [{}], keep [{}]", acquire.join(", "), keep.join(", "))
    }
}

fn holder(name: &str) -> HolderKey {
    HolderKey { tenant: tenant(), name: Name::new(name).expect("a good name") }
}

fn runner(rows: &Ledger, now: StoreTime, name: &str) -> Runner {
    let key = holder(name);
    let row = rows.holder(&key);
    let session = row.and_then(|row| rows.session(row.session?)).filter(|session| session.is_live(now));
    let capacity = session.and_then(|session| session.capacity).unwrap_or(1);
    let presence = match session {
        Some(session) => Presence::Here { up_ms: now.ms_after(session.opened_at), returned: false },
        None => Presence::Away { gone_ms: GONE_MS },
    };
    Runner { presence, ..Runner::new(key, capacity) }
}

fn resource(rows: &Ledger, now: StoreTime, name: &ResourceName) -> PlacementResource {
    let key = resource_key(name);
    let mut placed = PlacementResource::new(key.clone());
    let Some(row) = rows.resource(&key) else { return placed };
    if let Ok(Some(view)) = LeaseView::of(rows, row, now)
        && view.ttl_left_ms() > 0
    {
        placed.holder = Some(view.lease.holder.clone());
        placed.held = true;
    }
    let pending = row.pending.as_ref().filter(|pending| pending.deadline > now);
    placed.pending = pending
        .map(|pending| PendingMove { to: pending.holder.clone(), for_ms: now.ms_after(pending.asked_at) });
    placed
}

/// Asks a server what is assigned to a runner.
pub async fn assigned(to: &Embedded, name: &str) -> Result<Assigned, String> {
    let cameras = CAMERAS.map(|(kind, key)| ResourceName::new(kind, key).expect("good names"));
    let footprint = Footprint {
        holders: (0..AGENTS).map(|n| holder(&agent_name(n))).collect(),
        resources: cameras.iter().map(resource_key).collect(),
        ..Footprint::default()
    };
    let loaded = to.engine().load(&footprint).await.map_err(|error| error.to_string())?;
    let rows = &loaded.state;
    let runners = (0..AGENTS).map(|n| runner(rows, loaded.now, &agent_name(n))).collect();
    let resources = cameras.iter().map(|name| resource(rows, loaded.now, name)).collect();
    let plan = placement::plan(&Snapshot { runners, resources, ..Snapshot::default() });
    let mut assigned = Assigned::default();
    for camera in cameras {
        let Some(placement) = plan.placement(&resource_key(&camera)) else { continue };
        let is_held = placement.holder.as_ref().is_some_and(|holder| holder.as_str() == name);
        let is_target = placement.target.as_ref().is_some_and(|target| target.as_str() == name);
        let is_now = matches!(placement.step, Step::Acquire | Step::Move | Step::Moving);
        if is_held {
            // What another runner takes over is kept until that one asks for it.
            assigned.keep.insert(camera);
        } else if is_target && is_now {
            let want = if placement.holder.is_some() { Want::Moves } else { Want::Free };
            assigned.acquire.insert(camera, want);
        }
    }
    Ok(assigned)
}
