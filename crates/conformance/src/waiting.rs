//! Waiting in line: first come, first served, and a line costs nothing to other callers (rule 15).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use solehold_core::{
    call::Actor,
    command::*,
    event::EventName,
    key::*,
    lease::{Declaration, Resource},
    ledger::{FoundLate, Ledger},
    limits::{CONFIRM_MS, WAITERS_LOADED},
    outcome::*,
    session::Session,
    time::*,
};
use solehold_testkit::wait_for;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::{Fixture, kit::*, moving::retired};
use solehold_engine::{
    Engine, EngineError, EngineOptions,
    observe::{Lane, Observer},
    store::{BatchDecision, Decider, HolderQuery, Nominations, Row},
};

/// Longer than a busy machine takes.
const SOON: Duration = Duration::from_secs(60);

impl Bench<'_> {
    pub(crate) async fn room(&self, ttl_ms: u64) -> Session {
        match self.done(Command::OpenRoom { id: SessionId(Uuid::new_v4()), ttl_ms }).await {
            Answer::Session(view) => view.session,
            other => panic!("{other:?}"),
        }
    }

    /// Stands in line; must not be granted at once.
    async fn stand(&self, room: &Session, ask: Acquire) -> Place {
        match self.done(waits(room, ask)).await {
            Answer::Waiting(place) => place,
            other => panic!("not waiting: {other:?}"),
        }
    }

    async fn holder_of(&self, key: &ResourceKey) -> Option<String> {
        let lease = self.lease(key).await.filter(|l| l.ttl_left_ms() > 0)?;
        Some(lease.lease.holder.to_string())
    }

    /// Those who stand first in line.
    async fn line(&self, key: &ResourceKey) -> Vec<String> {
        let footprint = Footprint { resources: vec![key.clone()], ..Default::default() };
        let state = self.load(footprint).await.state;
        state.waiters_for(key).map(|w| w.holder.to_string()).collect()
    }

    async fn queued(&self, key: &ResourceKey) -> u32 {
        self.resource(key).await.map_or(0, |r| r.queued)
    }

    async fn sweep_once(&self) -> Nominations {
        let due = self.store.due(1_000).await.expect("the store reads");
        self.all(due.commands.clone()).await;
        due
    }
}

pub(crate) fn waits(room: &Session, ask: Acquire) -> Acquire {
    Acquire { wait: Some(Wait { room: room.id, wait_ms: LONG_MS }), ..ask }
}

fn leave(key: &ResourceKey, lease: LeaseId) -> Command {
    Command::LeaveQueue { key: key.clone(), lease }
}

fn cancel(key: &ResourceKey, holder: &str, request: &str) -> Command {
    let resource = key.clone();
    let holder = name(holder);
    let request = name(request);
    Command::CancelRequest(RequestKey { resource, holder, request })
}

/// More wait than are loaded at once: each gets it in turn, in the commit that frees it.
pub async fn first_come_first_served(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("line");
    let room = bench.room(LONG_MS).await;
    let first = bench.grant(ask(&job, "ann")).await;
    let count = 3 * WAITERS_LOADED;
    let mut places = Vec::new();
    for n in 0..count {
        let place = bench.stand(&room, ask(&job, &format!("w{n:02}"))).await;
        assert_eq!(place.ahead as usize, n);
        places.push(place);
    }
    assert!(places.windows(2).all(|pair| pair[0].arrival < pair[1].arrival));
    is!(bench.refused(ask(&job, "late")).await, Refusal::Held { holder, .. } if *holder == name("ann"));
    bench.done(release(its(&first))).await;
    let mut last = token(&first);
    for (n, place) in places.iter().enumerate() {
        let lease = bench.lease(&job).await.expect("no unowned gap");
        assert_eq!((lease.lease.id, lease.lease.holder.as_str()), (place.lease, &*format!("w{n:02}")));
        assert!(lease.lease.token > last, "tokens grow");
        assert!(
            lease.confirm_within_ms().is_some_and(|ms| ms <= CONFIRM_MS) && lease.ttl_left_ms() <= CONFIRM_MS
        );
        last = lease.lease.token;
        let confirmed = renewed(bench.run(renew(by_token(&job, last))).await);
        assert_eq!(confirmed.lease.confirm_within_ms(), None);
        assert!(confirmed.lease.ttl_left_ms() > CONFIRM_MS);
        assert_eq!(bench.queued(&job).await as usize, count - n - 1);
        bench.done(release(by_token(&job, last))).await;
    }
    assert!(bench.resource(&job).await.is_none(), "nothing is left of it");
    use EventName::{LeaseAcquired, LeaseReleased};
    let names = bench.names(&job).await;
    assert_eq!(names, [LeaseAcquired, LeaseReleased].repeat(count + 1));
}

/// Whatever ends a lease grants to the first in line: expiry, a hold-back that passes, a closed session, a cancelled
/// request.
pub async fn whatever_ends_a_lease(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let room = bench.room(10 * LONG_MS).await;
    let expired = key("expired");
    let held_back = key("held-back");
    let closed = key("closed");
    let cancelled = key("cancelled");
    let fenced = key("fenced");
    let all = [&expired, &held_back, &closed, &cancelled, &fenced];
    let dies = bench.grant(ask_for(&expired, "ann", SHORT_MS)).await;
    let revoked = bench.grant(ask_for(&held_back, "ann", 2 * SHORT_MS)).await;
    let session = bench.session("ann", LONG_MS).await;
    bench.grant(ask_on(&closed, &session)).await;
    bench.grant(ask_as(&cancelled, "ann", "r")).await;
    let forced = bench.grant(ask(&fenced, "ann")).await;
    for key in all {
        bench.stand(&room, ask(key, "bea")).await;
    }
    bench.done(revoke(its(&revoked), false)).await;
    bench.done(revoke(its(&forced), true)).await;
    bench.done(close(session.id)).await;
    bench.done(cancel(&cancelled, "ann", "r")).await;
    for key in [&closed, &cancelled, &fenced] {
        assert_eq!(bench.holder_of(key).await.as_deref(), Some("bea"), "{key}");
        renewed(bench.run(renew(by_id("acme", bench.lease(key).await.expect("held").lease.id))).await);
    }
    assert_eq!(bench.queued(&held_back).await, 1, "nobody gets it yet");
    bench.pass_until(dies.lease.deadline).await;
    assert!(bench.sweep_once().await.commands.contains(&Command::Expire { key: expired.clone() }));
    let lease = bench.lease(&expired).await.expect("granted").lease;
    assert_eq!(lease.holder, name("bea"));
    renewed(bench.run(renew(by_id("acme", lease.id))).await);
    bench.pass_until(revoked.lease.deadline).await;
    assert!(bench.sweep_once().await.commands.contains(&Command::Expire { key: held_back.clone() }));
    assert_eq!(bench.holder_of(&held_back).await.as_deref(), Some("bea"));
}

/// A grant that nobody confirms lapses, whichever command notices, and the next in line gets it.
pub async fn unconfirmed_grants_lapse(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("unconfirmed");
    let room = bench.room(10 * LONG_MS).await;
    let session = bench.session("bea", 10 * LONG_MS).await;
    let first = bench.grant(ask(&job, "ann")).await;
    bench.stand(&room, ask_on(&job, &session)).await;
    bench.stand(&room, ask(&job, "carl")).await;
    bench.stand(&room, ask(&job, "dan")).await;
    bench.done(release(its(&first))).await;
    let bea = bench.lease(&job).await.expect("granted");
    assert_eq!(bea.lease.tenure.session(), Some(session.id));
    bench.done(heartbeat(session.id)).await;
    assert_eq!(bench.lease(&job).await.expect("held").deadline, bea.deadline, "a heartbeat confirms nothing");
    assert_eq!(bench.store.usage(None).await.expect("reads").live_leases, 1);
    bench.pass_until(bea.deadline).await;
    assert_eq!(bench.holder_of(&job).await, None, "judged by time");
    assert_eq!(bench.store.usage(None).await.expect("reads").live_leases, 0);
    assert!(bench.sweep_once().await.commands.contains(&Command::Expire { key: job.clone() }));
    let carl = bench.lease(&job).await.expect("granted");
    assert_eq!(carl.lease.holder, name("carl"));
    let state = bench.load(Footprint { sessions: vec![session.id], ..Default::default() }).await.state;
    assert_eq!(state.session(session.id).map(|s| (s.lease_count, s.waiting)), Some((0, 0)));
    bench.pass_until(carl.deadline).await;
    // Nobody swept this time: the next acquire finds the next in line.
    is!(bench.refused(ask(&job, "late")).await, Refusal::Held { holder, .. } if *holder == name("dan"));
    let dan = renewed(bench.run(renew(by_holder(&job, "dan"))).await);
    assert!(dan.lease.ttl_left_ms() <= CONFIRM_MS, "a name alone is not proof");
    let dan = renewed(bench.run(renew(its(&dan))).await);
    assert!(dan.lease.ttl_left_ms() > CONFIRM_MS && bench.sweep_once().await.commands.is_empty());
}

/// A replica that died takes its waiters with it; those of others come up, however many stood before them.
pub async fn a_dead_room_is_skipped(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("skipped");
    let other = key("other");
    let dead = bench.room(SHORT_MS).await;
    let live = bench.room(10 * LONG_MS).await;
    let held = bench.grant(ask(&job, "ann")).await;
    let kept = bench.grant(ask(&other, "ann")).await;
    let mut commands: Vec<_> =
        (0..9 * WAITERS_LOADED).map(|n| waits(&dead, ask(&job, &format!("dead-{n}"))).command()).collect();
    commands.push(waits(&dead, ask(&other, "dead")).command());
    commands.push(waits(&live, ask(&job, "live")).command());
    assert!(bench.all(commands).await.iter().all(|o| matches!(o, Ok(Answer::Waiting(_)))));
    bench.pass_until(dead.deadline).await;
    bench.done(release(its(&held))).await;
    assert_eq!(bench.holder_of(&job).await.as_deref(), Some("live"));
    assert_eq!((bench.queued(&job).await, bench.queued(&other).await), (0, 1));
    bench.sweep_once().await;
    let state = bench.load(Footprint { sessions: vec![dead.id], ..Default::default() }).await.state;
    assert!(state.session(dead.id).is_none(), "the dead room is gone");
    assert_eq!(bench.queued(&other).await, 0, "and so is who was in it");
    renewed(bench.run(renew(its(&kept))).await);
}

/// The same request keeps its place, whichever room it asks from; its former grant id gets nothing.
pub async fn the_same_request_keeps_its_place(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("again");
    let here = bench.room(LONG_MS).await;
    let there = bench.room(LONG_MS).await;
    let held = bench.grant(ask(&job, "ann")).await;
    for n in 0..2 * WAITERS_LOADED {
        bench.stand(&here, ask(&job, &format!("w{n}"))).await;
    }
    // It stands deeper than what is loaded from the head.
    let first = bench.stand(&here, ask_as(&job, "bea", "r")).await;
    bench.stand(&here, ask(&job, "carl")).await;
    let again = bench.stand(&there, ask_as(&job, "bea", "r")).await;
    assert_eq!((first.arrival, bench.queued(&job).await as usize), (again.arrival, 2 * WAITERS_LOADED + 2));
    is!(bench.refused(leave(&job, first.lease)).await, Refusal::NoLease(_));
    bench.done(Command::CloseSession { tenant: Name::rooms(), session: here.id }).await;
    assert_eq!(bench.line(&job).await, ["bea"], "all others were in the room that was closed");
    bench.done(release(its(&held))).await;
    let grant = bench.grant(waits(&there, ask_as(&job, "bea", "r"))).await;
    assert!(grant.repeated && grant.lease.lease.id == again.lease);
    renewed(bench.run(renew(its(&grant))).await);
    bench.done(release(its(&grant))).await;
    is!(bench.refused(waits(&there, ask_as(&job, "bea", "r"))).await, Refusal::RequestSpent(_));
}

/// Out of the line by grant id, by request, with the session: none of them is granted.
pub async fn leaving(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("leaving");
    let room = bench.room(LONG_MS).await;
    let session = bench.session("dan", LONG_MS).await;
    let held = bench.grant(ask(&job, "ann")).await;
    let mut places = Vec::new();
    for n in 0..2 * WAITERS_LOADED {
        places.push(bench.stand(&room, ask_as(&job, &format!("w{n}"), "r")).await);
    }
    bench.stand(&room, ask_on(&job, &session)).await;
    bench.stand(&room, ask(&job, "last")).await;
    for (n, place) in places.iter().enumerate() {
        // From the end, so that most of them stand deeper than what is loaded.
        let n = places.len() - 1 - n;
        match n % 2 {
            0 => is!(bench.done(leave(&job, places[n].lease)).await, Answer::Left),
            _ => is!(bench.done(cancel(&job, &format!("w{n}"), "r")).await, Answer::Spent),
        }
        assert!(place.arrival > Revision(0));
    }
    is!(bench.refused(waits(&room, ask_as(&job, "w1", "r"))).await, Refusal::RequestSpent(_));
    bench.done(close(session.id)).await;
    assert_eq!((bench.line(&job).await, bench.queued(&job).await), (vec!["last".to_owned()], 1));
    bench.done(release(its(&held))).await;
    let lease = bench.lease(&job).await.expect("granted").lease;
    assert_eq!(lease.holder, name("last"));
    is!(bench.done(leave(&job, lease.id)).await, Answer::Granted(_));
    bench.done(release(by_id("acme", lease.id))).await;
    assert!(bench.resource(&job).await.is_none());
}

/// What is pending comes first; a resource that was deleted goes to those who take it undeclared.
pub async fn hand_over_and_delete(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("planned");
    let room = bench.room(LONG_MS).await;
    bench.done(declare(&job, Declaration::default())).await;
    let held = bench.grant(ask(&job, "ann")).await;
    let strict = Acquire { undeclared: Undeclared::Refuse, ..ask(&job, "strict") };
    bench.stand(&room, strict).await;
    bench.stand(&room, ask(&job, "bea")).await;
    let next = bench.session("next", LONG_MS).await;
    bench.done(hand_over(&job, next.id, LONG_MS)).await;
    bench.done(release(its(&held))).await;
    assert_eq!(bench.holder_of(&job).await.as_deref(), Some("next"));
    bench.done(Command::Delete { key: job.clone(), force: true, fenced: true }).await;
    assert_eq!(bench.holder_of(&job).await.as_deref(), Some("bea"));
    assert_eq!(bench.queued(&job).await, 0);
}

/// A replica's room is no holder, no session of anyone's, and in no export; nor are those who wait.
pub async fn rooms_are_nobodys(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("private");
    let room = bench.room(LONG_MS).await;
    let session = bench.session("bea", LONG_MS).await;
    let held = bench.grant(ask(&job, "ann")).await;
    bench.stand(&room, ask_on(&job, &session)).await;
    let usage = bench.store.usage(None).await.expect("reads");
    assert_eq!((usage.sessions, usage.resources, usage.live_leases), (1, 1, 1));
    let holders =
        bench.store.find_holders(&HolderQuery { limit: 10, ..Default::default() }).await.expect("reads");
    assert_eq!(holders.keys, [holder("bea")]);
    let rows = bench.exported().await;
    assert!(rows.iter().all(|row| match row {
        Row::Session(session) => !session.is_room() && session.waiting == 0,
        Row::Resource(resource) => resource.queued == 0,
        Row::Waiter(_) => false,
        _ => true,
    }));
    let there = Bench { fixture, store: fixture.open_fresh().await };
    there.store.import(read_export(retired(rows)).expect("whole")).await.expect("imports");
    there.done(release(its(&held))).await;
    assert!(there.resource(&job).await.is_none(), "nobody waits there");
    let room = there.room(LONG_MS).await;
    let held = there.grant(ask(&job, "ann")).await;
    there.stand(&room, ask_on(&job, &session)).await;
    there.done(release(its(&held))).await;
    assert_eq!(there.holder_of(&job).await.as_deref(), Some("bea"));
}

/// A line outlives a restart, for as long as its rooms do.
pub async fn a_line_outlives_a_restart(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("kept");
    let room = bench.room(LONG_MS).await;
    let held = bench.grant(ask(&job, "ann")).await;
    let places = [bench.stand(&room, ask(&job, "bea")).await, bench.stand(&room, ask(&job, "carl")).await];
    let bench = bench.reopen().await;
    assert_eq!(bench.line(&job).await, ["bea", "carl"]);
    bench.done(release(its(&held))).await;
    let bench = bench.reopen().await;
    let lease = bench.lease(&job).await.expect("granted");
    assert!(lease.lease.id == places[0].lease && lease.lease.confirm_by.is_some());
    assert_eq!(bench.line(&job).await, ["carl"]);
}

/// Counts the waiters that a batch is given.
struct Counts {
    judge: Judge,
    most: usize,
}

impl Decider for Counts {
    fn decide(&mut self, state: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
        self.most = self.most.max(state.waiters().count());
        self.judge.decide(state, moment)
    }
}

/// A thousand wait for one lock: a release loads the first few, and none when nobody waits.
pub async fn a_long_line_is_not_loaded(fixture: &dyn Fixture) {
    const WAITERS: usize = 1_000;
    let bench = Bench::new(fixture).await;
    let job = key("popular");
    let room = bench.room(10 * LONG_MS).await;
    let mut held = token(&bench.grant(ask(&job, "ann")).await);
    let all: Vec<_> = (0..WAITERS).map(|n| waits(&room, ask(&job, &format!("w{n:04}"))).command()).collect();
    for chunk in all.chunks(250) {
        assert!(bench.all(chunk.to_vec()).await.iter().all(|o| matches!(o, Ok(Answer::Waiting(_)))));
    }
    let mut most = 0;
    for n in 0..30 {
        let commands = vec![release(by_token(&job, held))];
        let mut counts = Counts { judge: Judge::of(commands), most: 0 };
        let mut footprint = Footprint::default();
        counts.judge.calls[0].command.footprint(&mut footprint);
        bench.store.transact(&footprint, Lane::News, &mut counts).await.expect("commits");
        most = most.max(counts.most);
        let Resource { lease, queued, .. } = bench.resource(&job).await.expect("held");
        let lease = lease.expect("granted");
        assert_eq!((lease.holder, queued as usize), (name(&format!("w{n:04}")), WAITERS - n - 1));
        held = lease.token;
    }
    assert!(most <= WAITERS_LOADED, "{most} waiters were loaded for a release");
}

fn waiting(engine: &Engine, ask: Acquire, wait: Duration) -> JoinHandle<Result<Outcome, EngineError>> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.acquire_waiting(ask, Actor::Unnamed, wait).await })
}

/// Submits to an engine what must not be refused.
async fn done(engine: &Engine, command: Command) -> Answer {
    engine.submit(command).await.expect("answers").expect("not refused")
}

impl Bench<'_> {
    async fn wait_for_line(&self, key: &ResourceKey, queued: u32) {
        let reached = wait_for("the line", SOON, || async { self.queued(key).await == queued });
        reached.await.unwrap_or_else(|_| panic!("{queued} should wait for {key}"));
    }
}

/// An engine's waiter is woken by the release that grants to it; who does not wait long is refused, and leaves no
/// trace.
pub async fn an_engine_waits(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let job = key("engine");
    let at_once = engine.acquire_waiting(ask(&job, "ann"), Actor::Unnamed, SOON).await.expect("answers");
    let first = granted(at_once);
    assert_eq!(first.lease.confirm_within_ms(), None, "it was free");
    let refused = engine
        .acquire_waiting(ask(&job, "hasty"), Actor::Unnamed, Duration::from_millis(50))
        .await
        .expect("answers");
    is!(refused, Err(Refusal::Held { holder, .. }) if *holder == name("ann"));
    bench.wait_for_line(&job, 0).await;
    let bea = waiting(&engine, ask(&job, "bea"), SOON);
    bench.wait_for_line(&job, 1).await;
    done(&engine, release(its(&first))).await;
    let bea = granted(bea.await.expect("no panic").expect("answers"));
    assert!(bea.lease.lease.holder == name("bea") && token(&bea) > token(&first));
    assert!(bea.lease.confirm_within_ms().is_some());
    done(&engine, renew(its(&bea))).await;
    let refused =
        engine.acquire_waiting(ask(&job, "zero"), Actor::Unnamed, Duration::ZERO).await.expect("answers");
    is!(refused, Err(Refusal::Held { .. }));
    engine.stop().await;
    is!(engine.acquire_waiting(ask(&job, "late"), Actor::Unnamed, SOON).await, Err(EngineError::Stopping));
}

/// Dropping the wait leaves the line, whether or not the grant came first.
pub async fn dropping_leaves_the_line(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let job = key("dropped");
    let held =
        granted(engine.acquire_waiting(ask(&job, "ann"), Actor::Unnamed, SOON).await.expect("answers"));
    let all: Vec<_> = (0..20).map(|n| waiting(&engine, ask(&job, &format!("w{n}")), SOON)).collect();
    bench.wait_for_line(&job, 20).await;
    for task in &all[..10] {
        task.abort();
    }
    bench.wait_for_line(&job, 10).await;
    // The others are dropped while grants are on their way to them.
    done(&engine, release(its(&held))).await;
    for task in all {
        task.abort();
        // A caller that was answered before that has it.
        if let Ok(answered) = task.await {
            done(&engine, release(its(&granted(answered.expect("answers"))))).await;
        }
    }
    let is_free = wait_for("everything to be released", SOON, || async {
        bench.resource(&job).await.is_none_or(|r| r.lease.is_none() && r.queued == 0)
    });
    is_free.await.expect("free");
    granted(engine.acquire_waiting(ask(&job, "next"), Actor::Unnamed, SOON).await.expect("answers"));
    engine.stop().await;
}

/// A room that was lost is opened anew, and everyone in it asks again by the same request.
pub async fn a_lost_room_is_opened_anew(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let job = key("lost");
    let held = granted(
        engine
            .acquire_waiting(ask_for(&job, "ann", 5 * LONG_MS), Actor::Unnamed, SOON)
            .await
            .expect("answers"),
    );
    let bea = waiting(&engine, ask_as(&job, "bea", "r"), SOON);
    bench.wait_for_line(&job, 1).await;
    let room_of = async || {
        let footprint = Footprint { resources: vec![job.clone()], ..Default::default() };
        bench.load(footprint).await.state.waiters_for(&job).next().map(|w| w.room)
    };
    let before = room_of().await.expect("it waits");
    bench.done(Command::CloseSession { tenant: Name::rooms(), session: before }).await;
    let moved =
        wait_for("another room", SOON, || async { room_of().await.is_some_and(|room| room != before) });
    moved.await.expect("it waits elsewhere");
    done(&engine, release(its(&held))).await;
    let bea = granted(bea.await.expect("no panic").expect("answers"));
    assert_eq!(bea.lease.lease.request, Some(name("r")));
    engine.stop().await;
}

/// A waiter whose place was cleared by other means than a grant hears of it before its time is out.
pub async fn a_cleared_place_is_noticed(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let job = key("cleared");
    granted(engine.acquire_waiting(ask(&job, "ann"), Actor::Unnamed, SOON).await.expect("answers"));
    let session = bench.session("bea", LONG_MS).await;
    let bea = waiting(&engine, ask_on(&job, &session), 10 * SOON);
    let carl = waiting(&engine, ask_as(&job, "carl", "r"), 10 * SOON);
    bench.wait_for_line(&job, 2).await;
    // Past the engine, as another replica would.
    bench.done(close(session.id)).await;
    bench.done(cancel(&job, "carl", "r")).await;
    let [bea, carl] = [bea, carl].map(|task| tokio::time::timeout(SOON, task));
    is!(bea.await.expect("in time").expect("no panic").expect("answers"), Err(Refusal::NoSession { .. }));
    is!(carl.await.expect("in time").expect("no panic").expect("answers"), Err(Refusal::RequestSpent(_)));
    engine.stop().await;
}

/// Counts the batches of an engine.
#[derive(Default)]
struct Batches(AtomicUsize);

impl Observer for Batches {
    fn batch(&self, _: Lane, _: usize, _: Duration) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Many wait for one lock: each gets it in the order in which they came.
pub async fn many_in_order(fixture: &dyn Fixture) {
    hand_down(fixture, 200).await;
}

/// `count` callers wait for one lock, get it in turn, confirm and release it; the store's work for each is bounded.
pub async fn hand_down(fixture: &dyn Fixture, waiters: usize) {
    let bench = Bench::new(fixture).await;
    let batches = Arc::new(Batches::default());
    let engine = Engine::start(bench.store.clone(), EngineOptions::default(), batches.clone());
    let job = key("busy");
    let held = granted(
        engine
            .acquire_waiting(ask_for(&job, "ann", 5 * LONG_MS), Actor::Unnamed, SOON)
            .await
            .expect("answers"),
    );
    let opener = waiting(&engine, ask(&job, "opener"), 10 * SOON);
    bench.wait_for_line(&job, 1).await;
    let order = std::sync::Mutex::new(Vec::new());
    // Joined, they are asked in this order.
    let all = (0..waiters).map(|n| {
        let engine = &engine;
        let job = &job;
        let order = &order;
        async move {
            let outcome = engine.acquire_waiting(ask(job, &format!("w{n}")), Actor::Unnamed, 10 * SOON).await;
            let grant = granted(outcome.expect("answers"));
            order.lock().expect("no panic").push((n, token(&grant)));
            done(engine, renew(its(&grant))).await;
            done(engine, release(its(&grant))).await;
        }
    });
    let start = async {
        bench.wait_for_line(&job, waiters as u32 + 1).await;
        let before = batches.0.load(Ordering::SeqCst);
        done(&engine, release(its(&held))).await;
        let opener = granted(opener.await.expect("no panic").expect("answers"));
        done(&engine, release(its(&opener))).await;
        before
    };
    let (_, before) = tokio::join!(futures_util::future::join_all(all), start);
    let order = order.into_inner().expect("no panic");
    assert_eq!(order.iter().map(|(n, _)| *n).collect::<Vec<_>>(), Vec::from_iter(0..waiters));
    assert!(order.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens grow");
    // A renewal and a release for each; the rest is the room's heartbeat and the sweeper.
    let took = batches.0.load(Ordering::SeqCst) - before;
    assert!(took <= 3 * waiters + 200, "{took} batches for {waiters} waiters");
    engine.stop().await;
}
