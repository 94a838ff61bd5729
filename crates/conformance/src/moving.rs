//! Moving a store: export and import, stop and start (rules 3 and 5).

use solehold_core::{command::*, key::*, lease::*, outcome::*, record::Record, time::*};

use crate::{Fixture, kit::*};
use solehold_engine::{
    clock::ManualClock,
    flow,
    history::{Bar, JUMP},
    observe::Lane,
    resident,
    store::{Cursor, EventQuery, Header, Import, Row, StoreError},
};

impl Bench<'_> {
    /// Something of everything; tells the grants that live.
    async fn furnish(&self) -> Vec<Grant> {
        let session = self.session("ann", LONG_MS).await;
        self.done(register("bea", LONG_MS, Some(7))).await;
        let next = self.session("next", LONG_MS).await;
        let site = Some(name("north"));
        let declaration = Declaration { site, lock_delay_ms: 50, ..Default::default() };
        self.done(declare(&key("declared/ü"), declaration)).await;
        let hanging = self.grant(ask_on(&key("declared/ü"), &session)).await;
        let own = self.grant(ask_as(&key("own"), "carl", "live")).await;
        let write = StateWrite { sequence: 3, document: text("left for the next") };
        self.done(Command::WriteState { claim: its(&own), write }).await;
        self.done(hand_over(&key("own"), next.id, LONG_MS)).await;
        let spent = self.grant(ask_as(&key("spent"), "dan", "r1")).await;
        self.done(release(its(&spent))).await;
        let revoked = self.grant(ask(&key("revoked"), "eve")).await;
        self.done(revoke(its(&revoked), false)).await;
        let record = Record { collection: name("keys"), id: name("k"), document: text("{}") };
        self.done(Command::PutRecord { record, over: Over::Nothing }).await;
        vec![hanging, own]
    }

    async fn rows(&self) -> Vec<Row> {
        self.exported().await
    }

    /// What must be so wherever the furniture was moved to.
    async fn check_furniture(&self, grants: &[Grant], last: Revision) {
        for grant in grants {
            let lease = self.lease(&grant.lease.key).await.expect("still held");
            assert_eq!((lease.lease.id, lease.lease.token), (grant.lease.lease.id, token(grant)));
            assert!(
                (LONG_MS / 2..=LONG_MS).contains(&lease.ttl_left_ms()),
                "{} ms left",
                lease.ttl_left_ms()
            );
        }
        assert!(self.grant(ask_as(&key("own"), "carl", "live")).await.repeated);
        renewed(self.run(renew(its(&grants[0]))).await);
        is!(self.refused(ask_as(&key("spent"), "dan", "r1")).await, Refusal::RequestSpent(_));
        is!(self.refused(ask(&key("revoked"), "x")).await, Refusal::HeldBack { .. });
        let state = self.resource(&key("own")).await.expect("held").state.expect("written");
        assert_eq!((state.sequence, state.document.as_str()), (3, "left for the next"));
        self.done(release(its(&grants[1]))).await;
        let activated = self.lease(&key("own")).await.expect("activated").lease;
        assert_eq!(activated.holder, name("next"));
        assert!(activated.token.0 > last.0);
        assert_eq!(self.store.records(&name("keys")).await.expect("reads").len(), 1);
        assert!(token(&self.grant(ask(&key("new"), "x")).await).0 > last.0);
    }
}

fn header(rows: &[Row]) -> Header {
    match &rows[0] {
        Row::Header(header) => header.clone(),
        other => panic!("{other:?}"),
    }
}

/// As `admin export | import` moves it: line by line, as text.
fn through_a_pipe(rows: &[Row]) -> Import {
    let lines = rows.iter().map(|row| serde_json::to_string(row).expect("a row can be written"));
    read_export(lines.map(|line| serde_json::from_str(&line).expect("and read"))).expect("a whole export")
}

/// As the store would have exported them once it was retired.
pub(super) fn retired(mut rows: Vec<Row>) -> Vec<Row> {
    if let Row::Header(header) = &mut rows[0] {
        header.retired = true;
    }
    rows
}

/// Everything but time, which goes on.
fn timeless(rows: &[Row]) -> Vec<Row> {
    let mut rows = rows.to_vec();
    for row in &mut rows {
        match row {
            Row::Header(header) => {
                (header.now, header.epoch, header.retired) = (StoreTime(0), 0, false);
            }
            Row::Session(session) => session.deadline = StoreTime(0),
            Row::Resource(resource) => {
                if let Some(Tenure::Own { deadline, .. }) = resource.lease.as_mut().map(|l| &mut l.tenure) {
                    *deadline = StoreTime(0);
                }
                if let Some(pending) = &mut resource.pending {
                    pending.deadline = StoreTime(0);
                }
                resource.held_back_until = resource.held_back_until.map(|_| StoreTime(0));
            }
            Row::Request { spent, .. } => spent.until = StoreTime(0),
            _ => {}
        }
    }
    rows
}

/// Retired, and into another store of the same sort: nothing is lost, tokens go on, time left is kept.
pub async fn export_and_import(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let grants = bench.furnish().await;
    let left = async |bench: &Bench<'_>| {
        let lease = bench.lease(&key("declared/ü")).await.expect("held");
        lease.deadline.ms_after(header(&bench.rows().await).now)
    };
    let events = bench.events(Revision(0)).await;
    let head = bench.head().await;
    let before = left(&bench).await;
    bench.store.retire("elsewhere").await.expect("the store retires");
    let rows = bench.rows().await;
    let there = Bench { fixture, store: fixture.open_fresh().await };
    there.store.import(through_a_pipe(&rows)).await.expect("the store imports");
    assert!(there.head().await.epoch > head.epoch, "cursors of the old store are of no use here");
    assert_eq!(timeless(&there.rows().await), timeless(&rows));
    assert_eq!(there.events(Revision(0)).await, events);
    let after = left(&there).await;
    assert!(before.abs_diff(after) <= 30_000, "{before} ms left here, {after} ms there");
    there.check_furniture(&grants, header(&rows).revision).await;
}

/// Into memory and out of it.
pub async fn import_into_memory(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let grants = bench.furnish().await;
    let rows = retired(bench.rows().await);
    let memory = resident::memory(ManualClock::default()).expect("memory");
    let there = Bench { fixture, store: memory };
    there.store.import(through_a_pipe(&rows)).await.expect("memory imports");
    assert_eq!(timeless(&there.rows().await), timeless(&rows));
    let back = Bench { fixture, store: fixture.open_fresh().await };
    back.store.import(through_a_pipe(&retired(there.rows().await))).await.expect("the store imports");
    assert_eq!(timeless(&back.rows().await), timeless(&rows));
    there.check_furniture(&grants, header(&rows).revision).await;
    back.check_furniture(&grants, header(&rows).revision).await;
}

/// The old store was not retired and may grant on: the new one gives none of its tokens, and grants nothing that it may
/// have granted.
pub async fn import_of_a_store_that_may_live_on_jumps_and_bars(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let grants = bench.furnish().await;
    let rows = bench.rows().await;
    let old = bench.head().await;
    let there = Bench { fixture, store: fixture.open_fresh().await };
    there.store.import(through_a_pipe(&rows)).await.expect("the store imports");
    let head = there.head().await;
    assert!(head.epoch > old.epoch && head.revision.0 >= old.revision.0 + JUMP, "{head:?} after {old:?}");
    for command in [ask(&key("new"), "x").command(), renew(its(&grants[0]))] {
        let mut footprint = Footprint::default();
        command.footprint(&mut footprint);
        let mut judge = Judge::of(vec![command]);
        is!(there.store.transact(&footprint, Lane::News, &mut judge).await, Err(StoreError::Barred { .. }));
    }
    bench.grant(ask(&key("new"), "x")).await;
}

/// Only a store that was never used takes an import.
pub async fn import_refused(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    bench.furnish().await;
    let rows = bench.rows().await;
    is!(bench.store.import(through_a_pipe(&rows)).await, Err(StoreError::NotEmpty));
    let used = Bench { fixture, store: fixture.open_fresh().await };
    let grant = used.grant(ask(&key("x"), "ann")).await;
    used.done(release(its(&grant))).await;
    is!(used.store.import(through_a_pipe(&rows)).await, Err(StoreError::NotEmpty));
    assert_eq!(used.head().await.revision, Revision(2), "nothing was changed");
    let once = Bench { fixture, store: fixture.open_fresh().await };
    once.store.import(through_a_pipe(&rows)).await.expect("the store imports");
    is!(once.store.import(through_a_pipe(&rows)).await, Err(StoreError::NotEmpty));
}

/// An export that is cut off, garbled or of another format is refused whole.
pub async fn cut_off_export(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    bench.furnish().await;
    let rows = bench.rows().await;
    let mut broken =
        vec![Vec::new(), rows[..rows.len() - 1].to_vec(), rows[1..].to_vec(), rows[..1].to_vec()];
    let mut lacks_one = rows.clone();
    lacks_one.remove(rows.len() / 2);
    let mut lacks_session = rows.clone();
    lacks_session.retain(|row| !matches!(row, Row::Session(_)));
    let end = lacks_session.len();
    lacks_session[end - 1] = Row::End { rows: end as u64 - 2 };
    let mut other_format = rows.clone();
    other_format[0] = Row::Header(Header { format: 99, ..header(&rows) });
    broken.extend([lacks_one, lacks_session, other_format, [rows.clone(), rows.clone()].concat()]);
    for lines in broken {
        is!(read_export(lines), Err(StoreError::Unusable(_)));
    }
    let there = fixture.open_fresh().await;
    there.import(through_a_pipe(&rows)).await.expect("the whole one is taken");
}

/// Stopped and started: everything is there.
pub async fn reopen_keeps_everything(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let grants = bench.furnish().await;
    let now = bench.now().await;
    // A commit witnesses that time. What passes after the last commit may be given back (rule 3).
    let record = Record { collection: name("marks"), id: name("later"), document: text("{}") };
    bench.done(Command::PutRecord { record, over: Over::Nothing }).await;
    let rows = bench.rows().await;
    let bench = bench.reopen().await;
    assert_eq!(timeless(&bench.rows().await), timeless(&rows));
    assert!(bench.now().await >= now, "store time never goes back");
    assert_eq!(header(&bench.rows().await).epoch, header(&rows).epoch);
    bench.check_furniture(&grants, header(&rows).revision).await;
    let bench = bench.reopen().await;
    let all = bench.store.events(&EventQuery { limit: 1_000, ..Default::default() }).await.expect("reads");
    assert!(all.events.windows(2).all(|pair| pair[0].revision < pair[1].revision));
    assert_eq!(all.events.last().map(|e| e.revision), Some(all.head.revision));
}

/// A restart takes no time away, and gives none to what had run out.
pub async fn reopen_keeps_time_left(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let dead = bench.grant(ask_for(&key("dead"), "ann", SHORT_MS)).await;
    bench.pass_until(dead.lease.deadline).await;
    let live = bench.grant(ask(&key("live"), "ann")).await;
    let session = bench.session("bea", LONG_MS).await;
    let hanging = bench.grant(ask_on(&key("hangs"), &session)).await;
    let bench = bench.reopen().await;
    let after = async |key: &ResourceKey| bench.lease(key).await.expect("still there");
    assert_eq!(after(&key("dead")).await.status, LeaseStatus::Expired);
    for grant in [&live, &hanging] {
        let lease = after(&grant.lease.key).await;
        assert!(lease.deadline >= grant.lease.deadline, "{:?} {:?}", lease.deadline, grant.lease.deadline);
        assert!(lease.ttl_left_ms() <= LONG_MS);
    }
    is!(bench.refused(renew(its(&dead))).await, Refusal::Lost { .. });
    renewed(bench.run(renew(its(&live))).await);
    renewed(bench.run(renew(its(&hanging))).await);
}

/// Tokens go on from above, even of a resource that left no row.
pub async fn tokens_grow_through_reopen(fixture: &dyn Fixture) {
    let mut bench = Bench::new(fixture).await;
    let mut last = Token(0);
    for _ in 0..3 {
        let grant = bench.grant(ask(&key("same"), "ann")).await;
        assert!(token(&grant) > last);
        last = token(&grant);
        bench.done(release(its(&grant))).await;
        bench = bench.reopen().await;
    }
}

/// Many resources, in few batches.
pub(super) async fn fill(bench: &Bench<'_>, count: usize) {
    let asks: Vec<_> = (0..count).map(|n| ask(&key(&format!("job-{n:05}")), "ann").command()).collect();
    for asks in asks.chunks(500) {
        assert!(bench.all(asks.to_vec()).await.iter().all(Result::is_ok));
    }
}

/// While someone reads an export, leases are granted, renewed and released, and the export is of the moment it began.
pub async fn an_export_under_way_is_in_nobodys_way(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    fill(&bench, 1_500).await;
    let own = bench.grant(ask(&key("own"), "bea")).await;
    let mut export = flow::export(bench.store.clone());
    let mut lines = export.next().await.expect("a piece").expect("rows");
    // The reader takes no more for now. Were it in the way, this would never end.
    renewed(bench.run(renew(its(&own))).await);
    let new = bench.grant(ask(&key("new"), "carl")).await;
    bench.done(release(its(&own))).await;
    assert!(lines.len() < 500, "it was read only in part");
    while let Some(piece) = export.next().await {
        lines.append(&mut piece.expect("rows"));
    }
    let import = read_export(lines).expect("a whole export");
    assert_eq!(import.header.revision, own.revision);
    assert!(import.state.resource(&own.lease.key).is_some_and(|r| r.lease.is_some()), "held when it began");
    assert!(import.state.resource(&new.lease.key).is_none(), "granted later");
    assert_eq!(import.events.len(), 1_501);
}

/// A store that was set back grants nothing that the lost history may have granted, and no token twice.
pub async fn set_back_jumps_and_bars(fixture: &dyn Fixture, ttl_max_ms: u64) {
    let bench = Bench::new(fixture).await;
    let before = bench.grant(ask_for(&key("before"), "ann", SHORT_MS)).await;
    let seen = Cursor { epoch: 3, revision: Revision(9_000) };
    bench.store.set_back(Some(seen), Bar::LongestTtl).await.expect("it is told");
    let head = bench.head().await;
    assert!(head.epoch > seen.epoch && head.revision.0 >= 9_000 + JUMP, "{head:?}");
    let mut judge = Judge::of(vec![ask(&key("lost"), "bea").command()]);
    let mut footprint = Footprint::default();
    judge.calls[0].command.footprint(&mut footprint);
    let mut renewal = Judge::of(vec![renew(its(&before))]);
    let mut of_renewal = Footprint::default();
    renewal.calls[0].command.footprint(&mut of_renewal);
    let revived = bench.store.transact(&of_renewal, Lane::Quiet, &mut renewal).await;
    assert!(matches!(revived, Err(StoreError::Barred { .. })), "nothing is revived: {revived:?}");
    let barred = bench.store.transact(&footprint, Lane::News, &mut judge).await;
    let Err(StoreError::Barred { retry_after_ms }) = barred else { panic!("{barred:?}") };
    assert!(retry_after_ms <= ttl_max_ms && retry_after_ms > ttl_max_ms / 2, "{retry_after_ms} ms");
    let bench = if fixture.is_durable() { bench.reopen().await } else { bench };
    let still = bench.store.transact(&footprint, Lane::News, &mut judge).await;
    is!(still, Err(StoreError::Barred { .. }));
    assert_eq!(bench.head().await, head, "a restart neither forgets it nor jumps again");
    bench.pass(ttl_max_ms).await;
    let after = bench.grant(ask(&key("lost"), "bea")).await;
    assert!(token(&after).0 > head.revision.0 && token(&after) > token(&before));
}
