//! Plans the locks of a batch, as far as they can be known before any is taken.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use solehold_core::key::{HolderKey, LeaseId, ResourceKey, SessionId};
use tokio::join;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    cache::KnownResource,
    lines::{self, WantedWaiters},
    wanted::{WantedRows, of_holders, of_keys},
};
use crate::{
    observe::Lane,
    postgres::{
        PostgresStore,
        connection::pool::{Conn, ROUND_TRIP, in_time},
        fault::Fault,
        statements::Sql,
        tables::{
            columns::SessionOwnerPart,
            part,
            rows::{DescribedResource, KnownResourceColumns, PresentSessionColumns},
        },
    },
};

/// A resource as it is known, and the leases on it: the one that holds it, and the pending one.
pub(crate) type KnownLeases = (Arc<KnownResource>, [Option<LeaseId>; 2]);

/// What to lock. The locked rows must confirm all of it, or the batch begins again.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Resources that exist.
    pub(crate) known: HashMap<i64, Arc<KnownResource>>,
    /// Resources that do not.
    pub(crate) missing: Vec<ResourceKey>,
    pub(crate) sessions: BTreeSet<SessionId>,
    /// Sessions that are wanted with all resources attached to them.
    pub(crate) whole: Vec<Uuid>,
    pub(crate) holders: BTreeSet<HolderKey>,
    /// Whether waiters may be attached to the whole sessions.
    has_waiters: bool,
}

impl Plan {
    pub(crate) fn lines<'a>(&'a self, wanted: &'a WantedRows) -> WantedWaiters<'a> {
        let queued = self.known.values().filter(|k| k.is_queued).map(|k| (&k.is.key, k.is.id)).collect();
        WantedWaiters::of(wanted, &queued, if self.has_waiters { &self.whole } else { &[] })
    }

    /// Adds a resource; gives what to remember of it.
    fn know(&mut self, row: &Row) -> Result<KnownLeases, Fault> {
        let (is, attached) = part::read::<KnownResourceColumns>(row)?;
        let is = DescribedResource::from(is);
        let known = Arc::new(KnownResource {
            is_shared: attached.taken > 0 || is.key.is_slot(),
            is,
            sessions: [attached.session_of_lease, attached.pending_session_id],
            has_state: attached.has_state,
            is_queued: attached.queued > 0,
        });
        self.known.insert(known.is.id, known.clone());
        Ok((known, [attached.lease_id, attached.pending_lease_id]))
    }

    /// Adds the sessions that the resources are attached to, by what is known.
    fn with_sessions(mut self) -> Self {
        self.sessions.extend(self.known.values().flat_map(|k| k.sessions).flatten());
        self
    }
}

impl PostgresStore {
    /// Plans a batch: by what is remembered, or, if something is not or `fresh` is asked for, by one look at the store.
    pub(crate) async fn plan(
        &self,
        conn: &Conn,
        wanted: &WantedRows,
        fresh: bool,
        lane: Lane,
    ) -> Result<Plan, Fault> {
        let is_simple = wanted.holders.is_empty() && wanted.whole.is_empty() && wanted.holdings.is_empty();
        let remembered =
            if fresh || !is_simple { None } else { self.cache.all(wanted.keys.iter(), wanted.leases.iter()) };
        // What is shared is looked up with all of its slots, except for renewals.
        let is_whole = |known: &Arc<KnownResource>| lane == Lane::Quiet || !known.is_shared;
        let mut plan = match remembered.filter(|found| found.values().all(is_whole)) {
            Some(found) => {
                let known = found.into_values().map(|k| (k.is.id, k)).collect();
                Plan { known, sessions: wanted.sessions.clone(), ..Plan::default() }.with_sessions()
            }
            None => in_time("looking rows up", ROUND_TRIP, self.look_up(conn, wanted)).await?,
        };
        // Where there is no line, as mostly, nothing is asked; renewals do not care.
        if lane == Lane::News && (plan.has_waiters || plan.known.values().any(|k| k.is_queued)) {
            in_time("looking lines up", ROUND_TRIP, self.look_up_lines(conn, wanted, &mut plan)).await?;
        }
        Ok(plan)
    }

    /// Adds the sessions of waiters in line, and the resources that waiters on whole sessions wait for.
    async fn look_up_lines(&self, conn: &Conn, wanted: &WantedRows, plan: &mut Plan) -> Result<(), Fault> {
        let (resources, sessions) = lines::attached_to(&plan.lines(wanted).read(conn).await?);
        plan.sessions.extend(sessions);
        let more: Vec<i64> = resources.into_iter().filter(|id| !plan.known.contains_key(id)).collect();
        let mut seen = Vec::new();
        for row in conn.query_if(!more.is_empty(), Sql::ResolveIds, &[&more]).await? {
            seen.push(plan.know(&row)?);
        }
        plan.sessions.extend(seen.iter().flat_map(|(known, _)| known.sessions).flatten());
        self.cache.learn(seen.into_iter());
        Ok(())
    }

    /// The resources that slots are of which were found by a lease or a session, with all of their slots.
    async fn look_up_whole(&self, conn: &Conn, found: &HashSet<ResourceKey>) -> Result<Vec<Row>, Fault> {
        let whole: BTreeSet<_> = found.iter().filter(|key| key.is_slot()).map(ResourceKey::whole).collect();
        let missing: Vec<_> = whole.into_iter().filter(|key| !found.contains(key)).collect();
        let [tenants, kinds, keys] = of_keys(&missing);
        conn.query_if(!missing.is_empty(), Sql::ResolveWhole, &[&tenants, &kinds, &keys]).await
    }

    async fn look_up(&self, conn: &Conn, wanted: &WantedRows) -> Result<Plan, Fault> {
        let [tenants, kinds, keys] = of_keys(&wanted.keys);
        let (leases, marks) = wanted.lease_arrays();
        let whole: Vec<Uuid> = wanted.whole.iter().map(|id| id.0).collect();
        let [whole_tenants, whole_names] = of_holders(&wanted.whole_holders);
        let [holder_tenants, holder_names] = of_holders(&wanted.holders);
        let [held_tenants, held_names] = of_holders(&wanted.holdings);
        let (resources, holders, sessions) = join!(biased;
            async {
                conn.query(
                    Sql::Resolve,
                    &[
                        &tenants, &kinds, &keys, &leases, &whole, &whole_tenants, &whole_names, &marks,
                        &held_tenants, &held_names,
                    ],
                )
                .await
            },
            async {
                conn.query_if(!wanted.holders.is_empty(), Sql::ResolveHolders, &[&holder_tenants, &holder_names]).await
            },
            async { conn.query_if(!whole.is_empty(), Sql::ResolveSessions, &[&whole]).await },
        );
        let mut plan =
            Plan { sessions: wanted.sessions.clone(), holders: wanted.holders.clone(), ..Plan::default() };
        let mut whole = wanted.whole.clone();
        for row in holders? {
            let (holder, present) = part::read::<PresentSessionColumns>(&row)?;
            let Some(session) = present.session_id else { continue };
            plan.sessions.insert(session);
            if wanted.whole_holders.contains(&holder) {
                whole.insert(session);
            }
        }
        plan.has_waiters = !wanted.whole_holders.is_empty();
        for row in sessions? {
            let SessionOwnerPart { tenant, holder, waiting } = part::read(&row)?;
            plan.holders.insert(HolderKey { tenant, name: holder });
            plan.has_waiters |= waiting > 0;
        }
        plan.whole = whole.into_iter().map(|id| id.0).collect();
        let mut seen = Vec::new();
        let mut found = HashSet::new();
        for row in resources? {
            let (known, leases) = plan.know(&row)?;
            found.insert(known.is.key.clone());
            seen.push((known, leases));
        }
        for row in self.look_up_whole(conn, &found).await? {
            seen.push(plan.know(&row)?);
        }
        self.cache.learn(seen.into_iter());
        plan.missing = wanted.keys.iter().filter(|key| !found.contains(*key)).cloned().collect();
        Ok(plan.with_sessions())
    }
}
