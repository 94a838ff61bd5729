//! A snapshot of the registry for planning, read from the store.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use solehold_api::{
    admin::Role,
    document::{read, to_fields},
    kind,
    placement::{ATTRIBUTE, PlacementNeeds},
    problem::{ErrorCode, Problem},
    runners::RunnerAttributes,
};
use solehold_core::{
    call::ResourceScope,
    key::{Name, ResourceKey, SessionId},
    lease::{self, Declaration, Tenure},
    placement::{PendingMove, PlacementResource, Presence, Runner, Snapshot},
    session::{Holder, Session, Standing},
    time::StoreTime,
};
use solehold_engine::{
    Engine,
    store::{HolderPage, HolderQuery, ResourcePage, ResourceQuery},
};

use super::records::Rules;
use crate::{
    error::ApiError,
    state::keys::{self, Key},
};

const RESOURCES_MAX: usize = 100_000;
const RUNNERS_MAX: usize = 10_000;
/// How often holders and resources are read again until both are as of one revision; then they are taken as they are.
const ATTEMPTS: usize = 3;
/// Kinds that are never placed: zones are configuration, and locks are taken as they are needed.
const UNPLACED: [&str; 2] = [kind::ZONE, "lock"];

/// Facts that a replica remembers between two snapshots, because the store does not keep them. Another replica may
/// remember less; then its plan differs for as long as a return window lasts, and the first runner to acquire wins.
#[derive(Debug, Default)]
pub struct Memory {
    /// The last holder of each free resource.
    holders: HashMap<ResourceKey, Name>,
    runners: HashMap<Name, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    session: Option<SessionId>,
    /// When it was there.
    here_at: Option<StoreTime>,
    /// Since when it has been gone.
    gone: Option<StoreTime>,
    /// Whether it has opened another session since it was first seen.
    returned: bool,
}

/// A snapshot, and what is not in it but is needed to follow the plan.
#[derive(Debug)]
pub(super) struct Facts {
    pub snapshot: Snapshot,
    pub revision: u64,
    /// The session of each runner that has one.
    pub sessions: BTreeMap<Name, SessionId>,
    /// Milliseconds that each held resource's lease has left.
    pub left_ms: BTreeMap<ResourceKey, u64>,
}

#[derive(Debug)]
pub struct Rows {
    rules: Rules,
    holders: HolderPage,
    resources: ResourcePage,
    /// The keys of the runners, by id.
    keys: HashMap<Name, Key>,
}

impl Rows {
    pub async fn read(engine: &Engine, tenant: &Name) -> Result<Self, ApiError> {
        let rules = Rules::read(engine, tenant).await?;
        let (holders, resources) = rows(engine, tenant).await?;
        if resources.more || holders.more {
            let most = format!("{RESOURCES_MAX} resources and {RUNNERS_MAX} runners");
            let detail = format!(
                "tenant {tenant} exceeds the planning limit of {most}; exclude kinds in its placement settings"
            );
            return Err(Problem::new(ErrorCode::Conflict, detail).into());
        }
        let keys = keys_of(engine, &holders).await?;
        Ok(Self { rules, holders, resources, keys })
    }

    /// The store's time when it was read.
    pub fn now(&self) -> StoreTime {
        self.resources.loaded.now
    }

    /// What to plan from. It takes a while for a large fleet.
    pub(super) fn facts(self, memory: &mut Memory) -> Facts {
        let Self { rules, holders, resources, keys } = self;
        let now = resources.loaded.now;
        let revision = resources.loaded.cursor.revision.0;
        let mut reader = Reader { rules, keys, memory, now, held: BTreeMap::new(), left_ms: BTreeMap::new() };
        let placed = reader.resources(&resources);
        let (runners, sessions) = reader.runners(&holders, &placed);
        let Reader { rules, left_ms, .. } = reader;
        let snapshot = Snapshot { policy: rules.policy, runners, resources: placed };
        Facts { snapshot, revision, sessions, left_ms }
    }
}

async fn rows(engine: &Engine, tenant: &Name) -> Result<(HolderPage, ResourcePage), ApiError> {
    let holders = HolderQuery {
        tenant: Some(tenant.clone()),
        registered: true,
        limit: RUNNERS_MAX,
        ..Default::default()
    };
    let resources =
        ResourceQuery { tenant: Some(tenant.clone()), limit: RESOURCES_MAX, ..Default::default() };
    let mut found = engine.find_holders(&holders).await?;
    let mut attempt = 1;
    loop {
        let resources = engine.find_resources(&resources).await?;
        if resources.loaded.cursor == found.loaded.cursor || attempt == ATTEMPTS {
            return Ok((found, resources));
        }
        attempt += 1;
        found = engine.find_holders(&holders).await?;
    }
}

/// The keys that the sessions of holders belong to. They are read with each plan, so that a key that was revoked counts
/// from the next one on.
async fn keys_of(engine: &Engine, page: &HolderPage) -> Result<HashMap<Name, Key>, ApiError> {
    let sessions = page.keys.iter().filter_map(|key| page.loaded.state.holder(key)?.session);
    let mut of = sessions.filter_map(|id| page.loaded.state.session(id)?.by.as_ref());
    if of.next().is_none() {
        return Ok(HashMap::new());
    }
    Ok(keys::list(engine).await?.into_iter().map(|key| (key.id.clone(), key)).collect())
}

struct Reader<'m> {
    rules: Rules,
    keys: HashMap<Name, Key>,
    memory: &'m mut Memory,
    now: StoreTime,
    /// How many placed resources are attached to each session.
    held: BTreeMap<SessionId, u32>,
    left_ms: BTreeMap<ResourceKey, u64>,
}

impl Reader<'_> {
    fn resources(&mut self, page: &ResourcePage) -> Vec<PlacementResource> {
        let mut holders = HashMap::new();
        let rows = page.keys.iter().filter_map(|key| page.loaded.state.resource(key));
        let placed = rows.filter_map(|row| {
            let resource = self.resource(page, row)?;
            holders.extend(resource.holder.clone().map(|holder| (resource.key.clone(), holder)));
            Some(resource)
        });
        let placed = placed.collect();
        self.memory.holders = holders;
        placed
    }

    /// A resource that is declared and placed.
    fn resource(&mut self, page: &ResourcePage, row: &lease::Resource) -> Option<PlacementResource> {
        let declared = row.declared.as_deref()?;
        let kind = row.key.kind.as_str();
        if UNPLACED.contains(&kind) || self.rules.settings.unplaced_kinds.contains(kind) {
            return None;
        }
        let needs = needs(declared);
        if !needs.placed {
            return None;
        }
        let mut former = None;
        let live = row.lease.as_ref().and_then(|lease| {
            let state = &page.loaded.state;
            let deadline = state.deadline_of(lease).ok().filter(|deadline| self.now < *deadline)?;
            // What a former session held is no longer its runner's: it has to acquire it again.
            let session = lease.tenure.session().and_then(|id| state.session(id));
            if session.is_some_and(|session| session.standing == Standing::Superseded) {
                former = Some(lease.holder.clone());
                return None;
            }
            self.left_ms.insert(row.key.clone(), deadline.ms_after(self.now));
            Some(lease)
        });
        if let Some(Tenure::Session(session)) = live.map(|lease| lease.tenure) {
            *self.held.entry(session).or_default() += 1;
        }
        let pending = row.pending.as_ref().filter(|pending| self.now < pending.deadline);
        let failures = self.rules.failures.get(&row.key).map(|record| record.counted_at(self.now));
        let avoid = failures.iter().flat_map(|failures| &failures.runners);
        Some(PlacementResource {
            key: row.key.clone(),
            site: declared.site.clone(),
            weight: needs.weight,
            needs: needs.needs(),
            held: live.is_some(),
            holder: live
                .map(|lease| lease.holder.clone())
                .or(former)
                .or_else(|| self.memory.holders.get(&row.key).cloned()),
            pending: pending.map(|pending| PendingMove {
                to: pending.holder.clone(),
                for_ms: self.now.ms_after(pending.asked_at),
            }),
            avoid: avoid.filter_map(|runner| Name::new(runner).ok()).collect(),
            quarantined: failures.is_some_and(|failures| failures.quarantined),
        })
    }

    fn runners(
        &mut self,
        page: &HolderPage,
        placed: &[PlacementResource],
    ) -> (Vec<Runner>, BTreeMap<Name, SessionId>) {
        let by_name: std::collections::BTreeSet<&Name> = placed
            .iter()
            .filter(|resource| resource.held)
            .filter_map(|resource| resource.holder.as_ref())
            .collect();
        let mut runners = Vec::new();
        let mut sessions = BTreeMap::new();
        let mut seen = HashMap::new();
        for holder in page.keys.iter().filter_map(|key| page.loaded.state.holder(key)) {
            let session = holder.session.and_then(|id| page.loaded.state.session(id));
            let live = session.filter(|session| session.is_live(self.now));
            let name = holder.key.name.clone();
            let before = self.memory.runners.get(&name).copied();
            let presence = presence(live, session, before, self.now, by_name.contains(&name));
            seen.insert(
                name.clone(),
                Seen {
                    session: live.map(|session| session.id).or(before.and_then(|before| before.session)),
                    here_at: match presence {
                        Presence::Here { .. } => Some(self.now),
                        Presence::Away { .. } | Presence::ByName => before.and_then(|before| before.here_at),
                    },
                    gone: match presence {
                        Presence::Away { gone_ms } => Some(StoreTime(self.now.0.saturating_sub(gone_ms))),
                        Presence::Here { .. } | Presence::ByName => None,
                    },
                    returned: matches!(presence, Presence::Here { returned: true, .. })
                        || before.is_some_and(|before| before.returned),
                },
            );
            sessions.extend(live.map(|session| (name, session.id)));
            runners.push(self.runner(holder, live, presence));
        }
        self.memory.runners = seen;
        (runners, sessions)
    }

    /// The only resources that the key of a session may touch, if it is limited (rule 26).
    fn scopes(&self, session: &Session) -> Option<Arc<[ResourceScope]>> {
        let key = self.keys.get(session.by.as_ref()?);
        match key.filter(|key| key.is_live(self.now) && key.role >= Role::Runner) {
            Some(key) if key.role == Role::Admin || key.scopes.is_empty() => None,
            Some(key) => Some(key.scopes.clone()),
            None => Some(Arc::from([])),
        }
    }

    fn runner(&self, holder: &Holder, live: Option<&Session>, presence: Presence) -> Runner {
        let about: RunnerAttributes = read(&holder.attributes).unwrap_or_default();
        let held = live.and_then(|session| self.held.get(&session.id)).copied().unwrap_or(0);
        Runner {
            presence,
            status: holder.status,
            site: holder.site.clone(),
            group: about.deployment_group,
            version: about.deployment_version,
            other_load: live.map_or(0, |session| session.lease_count.saturating_sub(held)),
            labels: about.labels,
            capabilities: about.capabilities.into_iter().collect(),
            kinds: about.kinds.into_iter().collect(),
            scopes: live.and_then(|session| self.scopes(session)),
            ..Runner::new(holder.key.clone(), about.capacity)
        }
    }
}

/// The placement needs in a declaration. Few have any, so that most documents need not be parsed.
fn needs(declared: &Declaration) -> PlacementNeeds {
    if !declared.attributes.as_str().contains(ATTRIBUTE) {
        return PlacementNeeds::default();
    }
    PlacementNeeds::of(&to_fields(&declared.attributes))
}

fn presence(
    live: Option<&Session>,
    session: Option<&Session>,
    before: Option<Seen>,
    now: StoreTime,
    holds_by_name: bool,
) -> Presence {
    if let Some(live) = live {
        let is_other = |before: Seen| before.returned || before.session.is_some_and(|id| id != live.id);
        return Presence::Here {
            up_ms: now.ms_after(live.opened_at),
            returned: before.is_some_and(is_other),
        };
    }
    if holds_by_name {
        return Presence::ByName;
    }
    // If it was just noticed, it went when its session ran out. If that is forgotten, it went after it was there last.
    let ran_out = session.map(|session| session.deadline);
    let noticed = ran_out.or(before.and_then(|before| before.here_at)).unwrap_or(now);
    let gone = before.and_then(|before| before.gone).unwrap_or(noticed);
    Presence::Away { gone_ms: now.ms_after(gone) }
}
