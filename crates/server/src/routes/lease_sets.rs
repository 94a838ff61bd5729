//! The lease sets of sessions, kept between heartbeats.
//!
//! A heartbeat answers with everything that hangs on its session. Which leases these are is told by the session's
//! `lease_revision`: the same revision, the same set. So a set is read from the store only after it has changed, and a
//! heartbeat costs one session row however many leases hang on it (rule 19). How long the leases last is never kept here:
//! that comes with the session each time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use solehold_core::{
    key::{Document, SessionId},
    outcome::{LeaseView, SessionView},
    session::Standing,
    time::Revision,
};
use solehold_engine::{Engine, EngineError, SessionLeases};

/// Most bytes that kept sets may have, about.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What a lease has beside its attributes, about.
const LEASE_BYTES: usize = 512;

/// All leases that hang on a session, as of a revision (rule 9).
#[derive(Debug, Clone, Default)]
pub struct LeaseSet {
    pub leases: Arc<[LeaseView]>,
    pub revision: Revision,
}

impl LeaseSet {
    /// The leases, with the time left that their session has just been given; one that is still to be confirmed has no more
    /// than until then (rule 15).
    pub fn lasting(&self, view: &SessionView) -> impl Iterator<Item = LeaseView> {
        let (session, now) = (&view.session, view.now);
        self.leases.iter().map(move |lease| LeaseView {
            deadline: lease.lease.dead_from(session.deadline),
            ttl_ms: session.ttl_ms,
            renewed_at: Some(session.renewed_at).filter(|at| *at > lease.lease.acquired_at),
            now,
            ..lease.clone()
        })
    }

    fn bytes(&self) -> usize {
        let bytes = |l: &LeaseView| LEASE_BYTES + l.lease.attributes.as_str().len();
        self.leases.iter().map(bytes).sum::<usize>() + LEASE_BYTES
    }
}

/// Sets that were read before: the young generation, and the one before it, which is dropped when the young is full.
#[derive(Debug, Default)]
pub struct LeaseSets(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<SessionId, LeaseSet>,
    old: HashMap<SessionId, LeaseSet>,
    young_bytes: usize,
}

impl Generations {
    fn get(&mut self, id: SessionId, revision: Revision) -> Option<LeaseSet> {
        if let Some(set) = self.young.get(&id) {
            return Some(set.clone()).filter(|set| set.revision == revision);
        }
        let set = self.old.remove(&id).filter(|set| set.revision == revision)?;
        self.put(id, set.clone());
        Some(set)
    }

    fn put(&mut self, id: SessionId, set: LeaseSet) {
        let bytes = set.bytes();
        if self.young_bytes + bytes > KEPT_BYTES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        // A set larger than a generation is not worth the others.
        if bytes <= KEPT_BYTES_MAX / 2 {
            let before = self.young.insert(id, set).map_or(0, |set| set.bytes());
            self.young_bytes = self.young_bytes + bytes - before;
        }
    }
}

impl LeaseSets {
    /// The leases that hang on a session that was just opened or renewed. None if the session was ended or superseded
    /// before they could be read: the answer must not be a session that lives and holds nothing.
    pub async fn of(&self, engine: &Engine, view: &SessionView) -> Result<Option<LeaseSet>, EngineError> {
        let (id, revision) = (view.session.id, view.session.lease_revision);
        if view.session.lease_count == 0 {
            return Ok(Some(LeaseSet { revision, ..Default::default() }));
        }
        if let Some(set) = self.generations(|kept| kept.get(id, revision)) {
            return Ok(Some(set));
        }
        let Some(SessionLeases { session, mut leases }) = engine.leases_of_session(id).await? else {
            return Ok(None);
        };
        if session.standing == Standing::Superseded && view.session.standing != Standing::Superseded {
            return Ok(None);
        }
        for lease in &mut leases {
            // Stats change without a change of the set, and whoever told them knows them.
            lease.lease.stats = Document::default();
        }
        // Meanwhile the set may have changed again, so its revision is what was read beside it.
        let set = LeaseSet { leases: leases.into(), revision: session.lease_revision };
        // A confirmation does not change the set's revision: what is still to be confirmed is read again until it is.
        if set.leases.iter().all(|lease| lease.lease.confirm_by.is_none()) {
            self.generations(|kept| kept.put(id, set.clone()));
        }
        Ok(Some(set))
    }

    fn generations<T>(&self, work: impl FnOnce(&mut Generations) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use solehold_core::{
        command::{Acquire, AskedTenure, Claim, Command, OpenSession, Target, Undeclared, Wait},
        key::{HolderKey, LeaseId, Name, ResourceKey},
        limits::CONFIRM_MS,
        outcome::Answer,
    };
    use solehold_engine::{EngineOptions, clock::ManualClock, resident};
    use uuid::Uuid;

    use super::*;

    fn engine(ticks: &Arc<ManualClock>) -> Engine {
        let store = resident::memory(ticks.clone()).expect("a store in memory");
        Engine::start(store, EngineOptions::default(), Arc::new(()))
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("a short name")
    }

    const SESSION: SessionId = SessionId(Uuid::from_u128(1));

    async fn ask(engine: &Engine, command: Command) -> SessionView {
        match engine.submit(command).await.expect("an outcome") {
            Ok(Answer::Session(view)) => view,
            other => panic!("{other:?}"),
        }
    }

    async fn open(engine: &Engine) -> SessionView {
        open_as(engine, SESSION).await
    }

    async fn open_as(engine: &Engine, id: SessionId) -> SessionView {
        let (holder, ttl_ms) = (HolderKey { tenant: name("t"), name: name("w") }, 10_000);
        let (replace, registration, metrics, fenced) = (None, None, None, false);
        ask(
            engine,
            Command::OpenSession(OpenSession { id, holder, ttl_ms, replace, fenced, registration, metrics }),
        )
        .await
    }

    async fn heartbeat(engine: &Engine) -> SessionView {
        ask(engine, Command::Heartbeat { tenant: name("t"), session: SESSION, holder: None, metrics: None })
            .await
    }

    fn asks(key: &str) -> Acquire {
        let key = ResourceKey { tenant: name("t"), kind: name("job"), key: name(key) };
        Acquire {
            lease: LeaseId::new(&key, Uuid::new_v4()),
            key,
            holder: name("w"),
            tenure: AskedTenure::Session(SESSION),
            request: None,
            attributes: Document::default(),
            undeclared: Undeclared::Allow,
            wait: None,
        }
    }

    async fn done(engine: &Engine, command: Command) -> Answer {
        engine.submit(command).await.expect("an outcome").expect("it is done")
    }

    async fn hold(engine: &Engine, key: &str) {
        done(engine, Command::Acquire(asks(key))).await;
    }

    /// A claim of a lease by its id.
    fn lease(id: LeaseId) -> Claim {
        let target = Target::Lease { tenant: name("t"), id };
        Claim { target, token: None, session: None, holder: None }
    }

    #[tokio::test]
    async fn a_set_is_read_once_and_again_after_a_change() {
        let ticks = Arc::new(ManualClock::default());
        // The second store knows nothing: what comes from it was not kept.
        let (full, empty) = (engine(&ticks), engine(&ticks));
        let sets = LeaseSets::default();
        assert!(
            sets.of(&full, &open(&full).await).await.expect("an answer").expect("a set").leases.is_empty()
        );
        hold(&full, "a").await;
        let set = sets.of(&full, &heartbeat(&full).await).await.expect("an answer").expect("a set");
        assert_eq!((set.leases.len(), set.revision), (1, Revision(1)));

        ticks.advance_ms(9_000);
        let view = heartbeat(&full).await;
        let kept = sets.of(&empty, &view).await.expect("an answer").expect("a set");
        assert_eq!((kept.leases.len(), kept.revision), (1, Revision(1)), "the same revision, the same set");
        let lasting: Vec<_> = kept.lasting(&view).collect();
        assert_eq!(
            (lasting[0].ttl_left_ms(), lasting[0].renewed_at),
            (10_000, Some(view.session.renewed_at))
        );

        hold(&full, "b").await;
        let view = heartbeat(&full).await;
        let anew = sets.of(&empty, &view).await.expect("an answer");
        assert!(anew.is_none(), "it changed, and was read anew");
        assert_eq!(sets.of(&full, &view).await.expect("an answer").expect("a set").leases.len(), 2);
    }

    #[tokio::test]
    async fn a_session_that_ends_before_its_set_is_read_is_not_told_to_live_and_hold_nothing() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        let sets = LeaseSets::default();
        open(&engine).await;
        hold(&engine, "a").await;
        let renewed = heartbeat(&engine).await;
        let close = Command::CloseSession { tenant: name("t"), session: SESSION };
        engine.submit(close).await.expect("an outcome").expect("it closes");
        assert!(sets.of(&engine, &renewed).await.expect("an answer").is_none(), "it is over");
    }

    #[tokio::test]
    async fn a_session_that_is_superseded_before_its_set_is_read_is_over_for_who_renewed_it() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        let sets = LeaseSets::default();
        open(&engine).await;
        hold(&engine, "a").await;
        let renewed = heartbeat(&engine).await;
        open_as(&engine, SessionId(Uuid::from_u128(2))).await;
        assert!(sets.of(&engine, &renewed).await.expect("an answer").is_none(), "it is over");
    }

    #[tokio::test]
    async fn an_unconfirmed_lease_is_not_promised_its_sessions_time_nor_a_confirmed_one_less() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        let sets = LeaseSets::default();
        open(&engine).await;
        let room = SessionId(Uuid::from_u128(2));
        ask(&engine, Command::OpenRoom { id: room, ttl_ms: 10_000 }).await;
        let (tenure, waited) = (AskedTenure::Own { ttl_ms: 10_000 }, asks("a"));
        let before = Acquire { holder: name("other"), tenure, ..asks("a") };
        let wait = Some(Wait { room, wait_ms: 10_000 });
        done(&engine, Command::Acquire(before.clone())).await;
        done(&engine, Command::Acquire(Acquire { wait, ..waited.clone() })).await;
        done(&engine, Command::Release { claim: lease(before.lease), state: None }).await;

        let time_left = async || {
            let view = heartbeat(&engine).await;
            let set = sets.of(&engine, &view).await.expect("an answer").expect("a set");
            set.lasting(&view).map(|lease| lease.ttl_left_ms()).collect::<Vec<_>>()
        };
        assert_eq!(time_left().await, [CONFIRM_MS]);
        done(&engine, Command::Renew { claim: lease(waited.lease), ttl_ms: None, stats: None }).await;
        assert_eq!(time_left().await, [10_000], "the same revision, and confirmed since");
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        open(&engine).await;
        hold(&engine, "a").await;
        let sets = LeaseSets::default();
        let one = sets.of(&engine, &heartbeat(&engine).await).await.expect("an answer").expect("a set");
        let large = LeaseSet { leases: vec![one.leases[0].clone(); 10_000].into(), revision: Revision(1) };
        let mut kept = Generations::default();
        let id = |n: u128| SessionId(Uuid::from_u128(n));
        for n in 0..50 {
            kept.put(id(n), large.clone());
            kept.put(id(n), large.clone());
            let bytes: usize = kept.young.values().chain(kept.old.values()).map(LeaseSet::bytes).sum();
            assert!(bytes <= KEPT_BYTES_MAX && kept.young_bytes <= KEPT_BYTES_MAX / 2, "{n}: {bytes}");
            assert!(kept.get(id(0), Revision(1)).is_some(), "what is used stays");
        }
        assert!(kept.get(id(1), Revision(1)).is_none() && kept.get(id(49), Revision(2)).is_none());
    }
}
