//! The lease sets of sessions, kept between heartbeats.
//!
//! A heartbeat answers with all leases attached to its session. Which leases these are is told by the session's
//! `lease_revision`: the same revision, the same set. So a set is read from the store only after it has changed, and a
//! heartbeat costs one session row however many leases are attached to it (rule 19). How long the leases last is never
//! kept here: that comes with the session each time.
//!
//! A holder that names the set that it knows is not given it again, and then nothing is read or kept here. This needs
//! more than the same revision: two things happen to a set without one. A lease that was waited for is confirmed, and
//! one that is not, or a hand-over, lapses as time passes. So only a [settled](LeaseSet::cursor) set has a name: while
//! its revision stays, nothing of it can change.
//!
//! What is kept is bounded by [`KEPT_BYTES_MAX`], in two generations: when the young one is full it becomes the old
//! one, and what was in the old one and has not been asked for since is dropped. By hand, since these few lines bound
//! bytes rather than entries, and no cache is among the crates that every user of the engine compiles anyway.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use solehold_core::{
    command::Footprint,
    key::{Document, SessionId},
    outcome::{LeaseView, PendingView, SessionView},
    session::{SessionOver, Standing},
    time::Revision,
};

use crate::store::{Cursor, LoadedRows};

/// Most bytes that kept sets may have, about.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The size of a set without anything in it, about.
const EMPTY_BYTES: usize = 128;
/// The size of a lease beside its attributes, about.
const LEASE_BYTES: usize = 512;

/// All leases attached to a session, as of a revision (rule 9).
#[derive(Debug, Clone, Default)]
pub struct LeaseSet {
    /// The leases. Their deadlines are of when the set was read: see [`LeaseSet::lasting`].
    pub leases: Arc<[LeaseView]>,
    /// The leases that are pending for the session (rule 16).
    pub pending: Arc<[PendingView]>,
    pub revision: Revision,
    /// Whether no lease of it is still to be confirmed or being handed over, not even in vain: then nothing but an
    /// event changes it, and an event changes its revision.
    pub is_settled: bool,
}

/// The lease set of a session, or why the session is over.
pub type LeaseSetOutcome = Result<LeaseSet, SessionOver>;

impl LeaseSet {
    /// The leases, with the time left that their session has just been given; one that is still to be confirmed has no
    /// more than until then (rule 15).
    pub fn lasting(&self, view: &SessionView) -> impl Iterator<Item = LeaseView> {
        let session = &view.session;
        let now = view.now;
        self.leases.iter().map(move |lease| LeaseView {
            deadline: lease.lease.dead_from(session.deadline),
            ttl_ms: session.ttl_ms,
            renewed_at: Some(session.renewed_at).filter(|at| *at > lease.lease.acquired_at),
            next: lease.next.clone().filter(|pending| now < pending.deadline),
            now,
            ..lease.clone()
        })
    }

    /// The pending leases that have not lapsed.
    pub fn lasting_pending(&self, view: &SessionView) -> impl Iterator<Item = &PendingView> {
        self.pending.iter().filter(|offer| view.now < offer.pending.deadline)
    }

    /// The name of the set within the history of `epoch`, for its holder to show; none if the set may change while its
    /// revision stays.
    pub fn cursor(&self, epoch: u64) -> Option<Cursor> {
        self.is_settled.then_some(Cursor { epoch, revision: self.revision })
    }

    /// What to load for the set of a session.
    pub(crate) fn footprint(view: &SessionView) -> Footprint {
        Footprint { whole_sessions: vec![view.session.id], ..Default::default() }
    }

    /// The set of a session that was just opened or renewed; why there is none, if the session was ended or superseded
    /// before its rows were loaded: the answer must not be a session that is live and holds nothing.
    fn of(view: &SessionView, rows: &LoadedRows) -> Result<Self, SessionOver> {
        let id = view.session.id;
        let ledger = &rows.state;
        let now = rows.now;
        let session = ledger.session(id).ok_or(SessionOver::Unknown)?;
        if !session.is_live(now) {
            return Err(SessionOver::Expired);
        }
        if session.standing == Standing::Superseded && view.session.standing != Standing::Superseded {
            return Err(SessionOver::Superseded);
        }
        let attached = || ledger.attached_to(id).filter_map(|key| ledger.resource(key));
        let offers = attached().filter_map(|resource| PendingView::of(resource, now));
        let pending = offers.filter(|offer| offer.pending.session == id).collect();
        let views = attached().filter_map(|resource| LeaseView::of(ledger, resource, now).ok().flatten());
        let its = views.filter(|view| view.lease.tenure.session() == Some(id) && view.deadline > now);
        let leases = its.map(|mut view| {
            // Stats change without a change of the set, and the holder that sent them knows them.
            view.lease.stats = Document::default();
            view
        });
        // By the rows and not by the time: what has lapsed and was not swept yet was part of the set of this revision.
        let is_settled = attached().all(|resource| {
            let is_confirmed = resource.lease.as_ref().is_none_or(|lease| lease.confirm_by.is_none());
            resource.pending.is_none() && is_confirmed
        });
        // The set may have changed since `view`, so its revision is the one that was loaded beside it.
        Ok(Self { leases: leases.collect(), pending, revision: session.lease_revision, is_settled })
    }

    fn bytes(&self) -> usize {
        let bytes = |l: &LeaseView| LEASE_BYTES + l.lease.attributes.as_str().len();
        let pending = self.pending.len() * LEASE_BYTES;
        self.leases.iter().map(bytes).sum::<usize>() + pending + EMPTY_BYTES
    }
}

/// Sets that were read before.
#[derive(Debug, Default)]
pub(crate) struct LeaseSets(Mutex<Generations>);

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

    fn forget(&mut self, id: SessionId) {
        if let Some(set) = self.young.remove(&id) {
            self.young_bytes -= set.bytes();
        }
        self.old.remove(&id);
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
    /// The set of a session that was just opened or renewed, if it is known without a look at the store.
    pub(crate) fn known(&self, view: &SessionView) -> Option<LeaseSet> {
        let revision = view.session.lease_revision;
        // Not by a repeat of the opening: something may be pending for the session by then.
        let is_new = view.holder.is_some() && view.session.opened_at == view.now;
        if is_new && view.session.lease_count == 0 {
            let set = LeaseSet { revision, is_settled: true, ..Default::default() };
            self.0.lock().put(view.session.id, set.clone());
            return Some(set);
        }
        self.0.lock().get(view.session.id, revision)
    }

    /// Drops a set that is not asked for any more: its holder knows it.
    pub(crate) fn forget(&self, id: SessionId) {
        self.0.lock().forget(id);
    }

    /// The set of a session by rows that were loaded since, which is kept.
    pub(crate) fn learn(&self, view: &SessionView, rows: &LoadedRows) -> LeaseSetOutcome {
        let set = LeaseSet::of(view, rows)?;
        // A confirmation does not change the set's revision: what is still to be confirmed is read again until it is.
        if set.leases.iter().all(|lease| lease.lease.confirm_by.is_none()) {
            self.0.lock().put(view.session.id, set.clone());
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{Engine, EngineOptions, clock::ManualClock, resident};
    use solehold_core::{
        command::{Acquire, AskedTenure, Claim, Command, HandOver, OpenSession, Target, Undeclared, Wait},
        key::{HolderKey, LeaseId, Name, ResourceKey},
        limits::CONFIRM_MS,
        outcome::Answer,
    };
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
        let holder = HolderKey { tenant: name("t"), name: name("w") };
        ask(engine, Command::OpenSession(opening(id, holder))).await
    }

    fn opening(id: SessionId, holder: HolderKey) -> OpenSession {
        OpenSession {
            id,
            holder,
            ttl_ms: 10_000,
            replace: None,
            fenced: false,
            follows: None,
            registration: None,
            metrics: None,
        }
    }

    async fn heartbeat(engine: &Engine) -> SessionView {
        ask(engine, Command::Heartbeat { tenant: name("t"), session: SESSION, holder: None, metrics: None })
            .await
    }

    fn asks(key: &str) -> Acquire {
        let key = ResourceKey::new(name("t"), name("job"), name(key));
        Acquire {
            lease: LeaseId::new(&key, Uuid::new_v4()),
            key,
            holder: name("w"),
            tenure: AskedTenure::Session(SESSION),
            request: None,
            attributes: Document::default(),
            undeclared: Undeclared::Allow,
            wait: None,
            slots: None,
            holds_at_most: None,
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

    async fn set_of(engine: &Engine, view: &SessionView) -> LeaseSetOutcome {
        engine.lease_set(view).await.expect("an answer")
    }

    #[tokio::test]
    async fn a_set_is_read_once_and_again_after_a_change() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        let sets = LeaseSets::default();
        let read = async |view: &SessionView| {
            let rows = engine.load(&LeaseSet::footprint(view)).await.expect("rows");
            sets.learn(view, &rows).expect("a set")
        };
        assert!(sets.known(&open(&engine).await).expect("a set").leases.is_empty());
        hold(&engine, "a").await;
        let view = heartbeat(&engine).await;
        assert!(sets.known(&view).is_none(), "it has not been read yet");
        let set = read(&view).await;
        assert_eq!((set.leases.len(), set.revision), (1, Revision(1)));

        ticks.advance_ms(9_000);
        let view = heartbeat(&engine).await;
        let kept = sets.known(&view).expect("a set");
        assert_eq!((kept.leases.len(), kept.revision), (1, Revision(1)), "the same revision, the same set");
        let lasting: Vec<_> = kept.lasting(&view).collect();
        assert_eq!(
            (lasting[0].ttl_left_ms(), lasting[0].renewed_at),
            (10_000, Some(view.session.renewed_at))
        );

        hold(&engine, "b").await;
        let view = heartbeat(&engine).await;
        assert!(sets.known(&view).is_none(), "it changed, and has to be read anew");
        assert_eq!(read(&view).await.leases.len(), 2);
        assert_eq!(set_of(&engine, &view).await.expect("a set").leases.len(), 2);
    }

    /// What its holder hears of the set that it knows.
    async fn changed(engine: &Engine, view: &SessionView, known: Option<Cursor>) -> Option<LeaseSet> {
        engine.changed_lease_set(view, known).await.expect("an answer").expect("a live session")
    }

    #[tokio::test]
    async fn a_set_that_its_holder_names_is_given_again_when_it_has_changed() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        open(&engine).await;
        hold(&engine, "a").await;
        let view = heartbeat(&engine).await;
        let set = changed(&engine, &view, None).await.expect("a holder that names none is given it");
        let known = set.cursor(engine.cursor().epoch);
        assert_eq!(known.map(|known| known.revision), Some(view.session.lease_revision));
        for _ in 0..3 {
            ticks.advance_ms(9_000);
            assert!(changed(&engine, &heartbeat(&engine).await, known).await.is_none());
        }
        let elsewhere = known.map(|known| Cursor { epoch: known.epoch + 1, ..known });
        assert!(changed(&engine, &heartbeat(&engine).await, elsewhere).await.is_some(), "another history");

        hold(&engine, "b").await;
        let view = heartbeat(&engine).await;
        let set = changed(&engine, &view, known).await.expect("it has changed");
        assert_eq!(set.leases.len(), 2);
        let known = set.cursor(engine.cursor().epoch);
        let first = set.leases.iter().find(|lease| lease.key.key == name("a")).expect("held").lease.id;
        done(&engine, Command::Release { claim: lease(first), state: None }).await;
        let set = changed(&engine, &heartbeat(&engine).await, known).await.expect("it has changed again");
        assert_eq!(set.leases.len(), 1);
    }

    #[tokio::test]
    async fn a_set_with_a_hand_over_has_no_name_until_that_is_over() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        open(&engine).await;
        hold(&engine, "a").await;
        let next = SessionId(Uuid::from_u128(2));
        let holder = HolderKey { tenant: name("t"), name: name("next") };
        ask(&engine, Command::OpenSession(opening(next, holder))).await;
        let heartbeat_of = async |session| {
            let tenant = name("t");
            ask(&engine, Command::Heartbeat { tenant, session, holder: None, metrics: None }).await
        };
        let is_named = async |session| {
            let set = set_of(&engine, &heartbeat_of(session).await).await.expect("a set");
            set.cursor(1).is_some()
        };
        assert!(is_named(SESSION).await && is_named(next).await);
        let key = asks("a").key;
        let offer = LeaseId::new(&key, Uuid::new_v4());
        done(&engine, Command::HandOver(HandOver::new(key.clone(), offer, next, 2_000))).await;
        assert!(!is_named(SESSION).await && !is_named(next).await);
        // It lapses by time alone. Whatever was read before, nothing is said of it any more.
        ticks.advance_ms(2_000);
        for session in [SESSION, next] {
            let view = heartbeat_of(session).await;
            let rows = engine.load(&LeaseSet::footprint(&view)).await.expect("rows");
            // Then it is no longer attached to the next one's session, and so not among its rows.
            let is_swept = rows.state.resource(&key).is_none_or(|resource| resource.pending.is_none());
            let set = LeaseSets::default().learn(&view, &rows).expect("a set");
            assert_eq!(set.cursor(1).is_some(), is_swept, "named again only with another revision");
            assert!(set.pending.is_empty() && set.leases.iter().all(|lease| lease.next.is_none()));
        }
    }

    #[tokio::test]
    async fn a_session_that_ends_before_its_set_is_read_is_not_told_to_live_and_hold_nothing() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        open(&engine).await;
        hold(&engine, "a").await;
        let renewed = heartbeat(&engine).await;
        let close = Command::CloseSession { tenant: name("t"), session: SESSION };
        engine.submit(close).await.expect("an outcome").expect("it closes");
        assert_eq!(set_of(&engine, &renewed).await.err(), Some(SessionOver::Unknown));
    }

    #[tokio::test]
    async fn a_session_that_is_superseded_before_its_set_is_read_is_over_for_who_renewed_it() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        open(&engine).await;
        hold(&engine, "a").await;
        let renewed = heartbeat(&engine).await;
        open_as(&engine, SessionId(Uuid::from_u128(2))).await;
        assert_eq!(set_of(&engine, &renewed).await.err(), Some(SessionOver::Superseded));
    }

    #[tokio::test]
    async fn an_unconfirmed_lease_is_not_promised_its_sessions_time_nor_a_confirmed_one_less() {
        let ticks = Arc::new(ManualClock::default());
        let engine = engine(&ticks);
        open(&engine).await;
        let room = SessionId(Uuid::from_u128(2));
        ask(&engine, Command::OpenRoom { id: room, ttl_ms: 10_000 }).await;
        let tenure = AskedTenure::Own { ttl_ms: 10_000 };
        let waited = asks("a");
        let before = Acquire { holder: name("other"), tenure, ..asks("a") };
        let wait = Some(Wait { room, wait_ms: 10_000 });
        done(&engine, Command::Acquire(before.clone())).await;
        done(&engine, Command::Acquire(Acquire { wait, ..waited.clone() })).await;
        done(&engine, Command::Release { claim: lease(before.lease), state: None }).await;

        let time_left = async || {
            let view = heartbeat(&engine).await;
            let set = set_of(&engine, &view).await.expect("a set");
            let is_confirmed = set.leases.iter().all(|lease| lease.lease.confirm_by.is_none());
            assert_eq!(set.cursor(1).is_some(), is_confirmed, "a confirmation changes no revision");
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
        let one = set_of(&engine, &heartbeat(&engine).await).await.expect("a set");
        let large = LeaseSet {
            leases: vec![one.leases[0].clone(); 10_000].into(),
            pending: [].into(),
            revision: Revision(1),
            is_settled: true,
        };
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
        for n in 0..50 {
            kept.forget(id(n));
        }
        assert_eq!((kept.young.len() + kept.old.len(), kept.young_bytes), (0, 0));
    }
}
