//! What a batch has to lock, as far as can be told before any lock is taken.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use solehold_core::{
    command::Footprint,
    key::{HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    ledger::FoundLate,
    limits::{WAITERS_LOADED, WAITERS_MAX},
};
use tokio::join;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::postgres::{
    PostgresStore,
    batch::{
        cache::Known,
        line::{self, LinesAsk},
    },
    connection::pool::{Conn, ROUND_TRIP, in_time},
    fault::Fault,
    statements::Sql,
    tables::rows::{self, Columns, DESCRIBED_COLUMNS},
};

/// A footprint without repetitions, in the shape of parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ask {
    pub(crate) keys: Vec<ResourceKey>,
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) sessions: BTreeSet<SessionId>,
    pub(crate) whole: BTreeSet<SessionId>,
    pub(crate) holders: BTreeSet<HolderKey>,
    pub(crate) whole_holders: BTreeSet<HolderKey>,
    pub(crate) requests: Vec<RequestKey>,
    pub(crate) records: Vec<(Name, Name)>,
    pub(crate) waiters: Vec<(ResourceKey, LeaseId)>,
    /// How much of a line was found to be needed, where it is more than usual.
    pub(crate) lines: BTreeMap<ResourceKey, usize>,
    /// Sessions of which all waiters were found to be needed.
    pub(crate) waiters_on: BTreeSet<SessionId>,
}

impl Ask {
    /// The leases, and the marks that they have.
    pub(crate) fn lease_columns(&self) -> (Vec<Uuid>, Vec<i32>) {
        self.leases.iter().map(|id| (id.0, id.mark() as i32)).unzip()
    }

    pub(crate) fn of(footprint: &Footprint) -> Self {
        let whole_holders: BTreeSet<_> = footprint.whole_holders.iter().cloned().collect();
        let whole: BTreeSet<_> = footprint.whole_sessions.iter().copied().collect();
        Self {
            keys: once_each(&footprint.resources),
            leases: once_each(&footprint.leases),
            sessions: footprint.sessions.iter().chain(&whole).copied().collect(),
            whole,
            holders: footprint.holders.iter().chain(&whole_holders).cloned().collect(),
            whole_holders,
            requests: once_each(&footprint.requests),
            records: once_each(&footprint.records),
            waiters: once_each(&footprint.waiters),
            ..Self::default()
        }
    }

    /// Asks for what was found late, too.
    pub(crate) fn add(&mut self, late: &FoundLate) {
        match late {
            FoundLate::Session(id) => drop(self.sessions.insert(*id)),
            FoundLate::WaitersOn(id) => drop(self.waiters_on.insert(*id)),
            FoundLate::Line(key) => {
                let most = self.lines.entry(key.clone()).or_insert(WAITERS_LOADED);
                *most = most.saturating_mul(WAITERS_LOADED).min(2 * WAITERS_MAX as usize);
            }
        }
    }
}

fn once_each<T: Ord + Clone>(all: &[T]) -> Vec<T> {
    let mut all = all.to_vec();
    all.sort_unstable();
    all.dedup();
    all
}

/// Keys as three arrays.
pub(crate) struct KeyColumns<'a>(pub(crate) [Vec<&'a str>; 3]);

impl<'a> KeyColumns<'a> {
    pub(crate) fn of(keys: impl Iterator<Item = &'a ResourceKey>) -> Self {
        let mut columns: [Vec<&str>; 3] = Default::default();
        for key in keys {
            for (column, part) in columns.iter_mut().zip([&key.tenant, &key.kind, &key.key]) {
                column.push(part.as_str());
            }
        }
        Self(columns)
    }
}

/// Names in pairs as two arrays.
pub(crate) struct PairColumns<'a>(pub(crate) [Vec<&'a str>; 2]);

impl<'a> PairColumns<'a> {
    pub(crate) fn of(pairs: impl Iterator<Item = (&'a Name, &'a Name)>) -> Self {
        let (first, second) = pairs.map(|(a, b)| (a.as_str(), b.as_str())).unzip();
        Self([first, second])
    }

    pub(crate) fn of_holders(holders: impl Iterator<Item = &'a HolderKey>) -> Self {
        Self::of(holders.map(|h| (&h.tenant, &h.name)))
    }
}

/// Requests as five arrays.
pub(crate) struct RequestColumns<'a>(pub(crate) [Vec<&'a str>; 5]);

impl<'a> RequestColumns<'a> {
    pub(crate) fn of(requests: impl Iterator<Item = &'a RequestKey>) -> Self {
        let mut columns: [Vec<&str>; 5] = Default::default();
        for r in requests {
            let parts = [&r.resource.tenant, &r.resource.kind, &r.resource.key, &r.holder, &r.request];
            for (column, part) in columns.iter_mut().zip(parts) {
                column.push(part.as_str());
            }
        }
        Self(columns)
    }
}

/// What is known of a resource, and the leases on it.
type Seen = (Arc<Known>, [Option<LeaseId>; 2]);

/// What to lock. All of it is borne out by the locked rows, or the batch begins again.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Resources that exist.
    pub(crate) known: HashMap<i64, Arc<Known>>,
    /// Resources that do not.
    pub(crate) missing: Vec<ResourceKey>,
    pub(crate) sessions: BTreeSet<SessionId>,
    /// Sessions whose hanging resources are wanted, too.
    pub(crate) whole: Vec<Uuid>,
    pub(crate) holders: BTreeSet<HolderKey>,
    /// Whether waiters may hang on the whole sessions.
    has_waiters: bool,
}

impl Plan {
    /// What to read of lines.
    pub(crate) fn lines<'a>(&'a self, ask: &'a Ask) -> LinesAsk<'a> {
        let queued = self.known.values().filter(|k| k.is_queued).map(|k| (&k.is.key, k.is.id)).collect();
        LinesAsk::of(ask, &queued, if self.has_waiters { &self.whole } else { &[] })
    }

    /// Adds a resource; tells what to remember of it.
    fn know(&mut self, row: &Row) -> Result<Seen, Fault> {
        let is = rows::described(row)?;
        let mut c = Columns::from(row, DESCRIBED_COLUMNS);
        let (held, held_by) = (c.lease_id()?, c.session_id()?);
        let (waiting, waiting_for) = (c.lease_id()?, c.session_id()?);
        let (has_state, is_queued) = (c.next()?, c.number()? > 0);
        let known = Arc::new(Known { is, sessions: [held_by, waiting_for], has_state, is_queued });
        self.known.insert(known.is.id, known.clone());
        Ok((known, [held, waiting]))
    }

    /// Adds the sessions that the resources hang on, by what is known.
    fn with_hanging(mut self) -> Self {
        self.sessions.extend(self.known.values().flat_map(|k| k.sessions).flatten());
        self
    }
}

impl PostgresStore {
    /// Plans a batch: by what is remembered, or, if something is not or `fresh` is asked for, by one look at the store.
    pub(crate) async fn plan(&self, conn: &Conn, ask: &Ask, fresh: bool, news: bool) -> Result<Plan, Fault> {
        let is_simple = ask.holders.is_empty() && ask.whole.is_empty();
        if !fresh
            && is_simple
            && let Some(found) = self.cache.all(ask.keys.iter(), ask.leases.iter())
        {
            let known = found.into_values().map(|k| (k.is.id, k)).collect();
            let plan = Plan { known, sessions: ask.sessions.clone(), ..Plan::default() }.with_hanging();
            return self.with_lines(conn, ask, plan, news).await;
        }
        let plan = in_time("looking rows up", ROUND_TRIP, self.look_up(conn, ask)).await?;
        self.with_lines(conn, ask, plan, news).await
    }

    /// Adds what lines bring with them. Where there is none, as mostly, nothing is asked; renewals do not care.
    async fn with_lines(&self, conn: &Conn, ask: &Ask, mut plan: Plan, news: bool) -> Result<Plan, Fault> {
        if news && (plan.has_waiters || plan.known.values().any(|k| k.is_queued)) {
            in_time("looking lines up", ROUND_TRIP, self.look_up_lines(conn, ask, &mut plan)).await?;
        }
        Ok(plan)
    }

    /// Adds the sessions that those in line hang on, and the resources of those who hang on whole sessions.
    async fn look_up_lines(&self, conn: &Conn, ask: &Ask, plan: &mut Plan) -> Result<(), Fault> {
        let (resources, sessions) = line::touched(&plan.lines(ask).read(conn).await?)?;
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

    async fn look_up(&self, conn: &Conn, ask: &Ask) -> Result<Plan, Fault> {
        let [tenants, kinds, keys] = KeyColumns::of(ask.keys.iter()).0;
        let (leases, marks) = ask.lease_columns();
        let whole: Vec<Uuid> = ask.whole.iter().map(|id| id.0).collect();
        let [whole_tenants, whole_names] = PairColumns::of_holders(ask.whole_holders.iter()).0;
        let [holder_tenants, holder_names] = PairColumns::of_holders(ask.holders.iter()).0;
        let (resources, holders, sessions) = join!(biased;
            async {
                conn.query(
                    Sql::Resolve,
                    &[&tenants, &kinds, &keys, &leases, &whole, &whole_tenants, &whole_names, &marks],
                )
                .await
            },
            async {
                conn.query_if(!ask.holders.is_empty(), Sql::ResolveHolders, &[&holder_tenants, &holder_names]).await
            },
            async { conn.query_if(!whole.is_empty(), Sql::ResolveSessions, &[&whole]).await },
        );
        let mut plan =
            Plan { sessions: ask.sessions.clone(), holders: ask.holders.clone(), ..Plan::default() };
        let mut whole = ask.whole.clone();
        for row in holders? {
            let mut c = Columns::from(&row, 0);
            let holder = c.holder_key()?;
            let Some(session) = c.session_id()? else { continue };
            plan.sessions.insert(session);
            if ask.whole_holders.contains(&holder) {
                whole.insert(session);
            }
        }
        plan.has_waiters = !ask.whole_holders.is_empty();
        for row in sessions? {
            let mut c = Columns::from(&row, 1);
            plan.holders.insert(c.holder_key()?);
            plan.has_waiters |= c.number()? > 0;
        }
        plan.whole = whole.into_iter().map(|id| id.0).collect();
        let mut seen = Vec::new();
        let mut found = HashSet::new();
        for row in resources? {
            let (known, leases) = plan.know(&row)?;
            found.insert(known.is.key.clone());
            seen.push((known, leases));
        }
        self.cache.learn(seen.into_iter());
        plan.missing = ask.keys.iter().filter(|key| !found.contains(*key)).cloned().collect();
        Ok(plan.with_hanging())
    }
}
