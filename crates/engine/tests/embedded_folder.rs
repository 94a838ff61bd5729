//! What is special about the embedded store: its folder, its log, its clock over restarts (rules 3 and 24).
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod common;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use common::Embedded;
use rusqlite::Connection;
use solehold_conformance::kit::*;
use solehold_core::{
    lease::Declaration,
    ledger::{Dirty, Ledger},
    outcome::*,
    record::Record,
    time::*,
};
use solehold_engine::{
    Engine, EngineError, EngineOptions,
    clock::{BootClock, ManualClock, wall_ms},
    embedded::{Folder, FolderLimits},
    observe::Lane,
    resident::{Entry, Fold, Image, Journal, JournaledEvents, Mark, ResidentStore, Unfolded},
    store::{EventQuery, Retention, Store, StoreError},
};
use solehold_testkit::{TempDir, wait_for};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

fn database(folder: &Path) -> Connection {
    Connection::open(folder.join("solehold.db")).unwrap()
}

/// Rewrites the clock's mark, as if it were of another boot or another time.
fn edit_mark(folder: &Path, edit: impl FnOnce(&mut Mark)) {
    let db = database(folder);
    let text: String = db.query_row("SELECT value FROM meta WHERE name = 'mark'", [], |r| r.get(0)).unwrap();
    let mut mark: Mark = serde_json::from_str(&text).unwrap();
    edit(&mut mark);
    let text = serde_json::to_string(&mark).unwrap();
    db.execute("UPDATE meta SET value = ?1 WHERE name = 'mark'", [text]).unwrap();
    // As if this were how it was left.
    db.execute("DELETE FROM meta WHERE name = 'incarnation'", []).unwrap();
    std::fs::remove_file(folder.join("incarnation")).unwrap();
}

/// A store that was closed can be opened again at once, in the same process; one that is open cannot.
#[tokio::test]
async fn one_at_a_time() {
    let fixture = Embedded::new();
    let bench = Bench::new(&fixture).await;
    let refusal = Folder::open(fixture.folder.path()).unwrap_err().to_string();
    assert!(refusal.contains(&format!("process {}", std::process::id())), "{refusal}");
    bench.store.close().await;
    is!(
        bench.store.transact(&Default::default(), Lane::News, &mut Judge::default()).await,
        Err(StoreError::Unavailable(_))
    );
    let again = Bench::new(&fixture).await;
    again.grant(ask(&key("a"), "ann")).await;
}

/// On the same boot time goes on by the tick, and each live session gets at least `min(ttl, 5 s)`; clean stop or not.
#[tokio::test]
async fn restart_on_the_same_boot() {
    for is_clean in [true, false] {
        let fixture = Embedded::new();
        let bench = Bench::new(&fixture).await;
        bench.grant(ask_for(&key("long"), "ann", 60_000)).await;
        let session = bench.session("bea", 60_000).await;
        bench.grant(ask_on(&key("hangs"), &session)).await;
        bench.pass(58_000).await;
        bench.grant(ask_for(&key("short"), "ann", 1_000)).await;
        let fresh = bench.grant(ask_for(&key("fresh"), "ann", 30_000)).await;
        bench.pass(500).await;
        if is_clean {
            bench.store.close().await;
        }
        drop(bench);
        fixture.ticks.advance_ms(200);
        let bench = Bench::new(&fixture).await;
        let now = bench.now().await;
        assert_eq!(now, fresh.lease.now.plus_ms(700), "by the tick");
        let deadline = async |text| bench.lease(&key(text)).await.unwrap().deadline;
        assert_eq!(deadline("long").await, now.plus_ms(5_000), "1.3 s were left");
        assert_eq!(deadline("hangs").await, now.plus_ms(5_000), "1.3 s were left");
        assert_eq!(deadline("short").await, now.plus_ms(1_000), "its whole ttl");
        assert_eq!(deadline("fresh").await, fresh.lease.deadline, "no more than it had");
    }
}

/// After another boot whatever was live keeps the time that it had left, whether the wall's clock has jumped ahead,
/// fell behind or does not move; and store time never goes back.
#[tokio::test]
async fn restart_on_another_boot() {
    for (begin, sort) in [
        (wall_ms() - 10 * DAY_MS, "the wall's clock is ten days ahead"),
        (wall_ms() + 10 * DAY_MS, "the wall's clock is ten days behind"),
        (wall_ms(), "the wall's clock is right"),
    ] {
        for is_clean in [true, false] {
            let fixture = Embedded::new();
            Bench::new(&fixture).await.grant(ask(&key("first"), "ann")).await;
            // Closed by nobody: the mark is in the log, which is folded at the next start.
            drop(Bench::new(&fixture).await);
            edit_mark(fixture.folder.path(), |mark| mark.now = StoreTime(begin));
            let bench = Bench::new(&fixture).await;
            let grant = bench.grant(ask_for(&key("live"), "ann", 60_000)).await;
            let dead = bench.grant(ask_for(&key("dead"), "ann", 1_000)).await;
            let spent = bench.grant(ask_as(&key("spent"), "ann", "r1")).await;
            bench.done(release(its(&spent))).await;
            bench.pass(20_000).await;
            bench.grant(ask(&key("last"), "bea")).await;
            let before = bench.now().await;
            assert!(before.0.abs_diff(begin) < DAY_MS, "{sort}");
            if is_clean {
                bench.store.close().await;
            }
            drop(bench);
            let other = |mark: &mut Mark| mark.boot_id = "another".to_owned();
            if !is_clean {
                let db = database(fixture.folder.path());
                let sql = "UPDATE log SET entry = json_set(entry, '$.mark.boot_id', 'another')";
                db.execute(sql, []).unwrap();
            }
            edit_mark(fixture.folder.path(), other);
            fixture.ticks.advance_ms(3_000_000);
            let bench = Bench::new(&fixture).await;
            let now = bench.now().await;
            assert!(now >= before, "{sort}: {now:?} after {before:?}");
            assert!(
                now.0.abs_diff(before.0.max(wall_ms())) < DAY_MS,
                "{sort}: time goes on from the later one"
            );
            let left = bench.lease(&key("live")).await.unwrap().ttl_left_ms();
            assert_eq!(left, grant.lease.deadline.ms_after(before), "{sort}: 40 s were left");
            is!(bench.refused(renew(its(&dead))).await, Refusal::Lost { .. });
            is!(bench.refused(ask_as(&key("spent"), "ann", "r1")).await, Refusal::RequestSpent(_));
            renewed(bench.run(renew(its(&grant))).await);
        }
    }
}

/// The mark is written while nothing happens, so that an idle store loses no time either.
#[tokio::test]
async fn the_mark_goes_on_while_nothing_happens() {
    let fixture = Embedded::new();
    let bench = Bench::new(&fixture).await;
    bench.grant(ask_for(&key("idle"), "ann", 600_000)).await;
    bench.pass(100_000).await;
    let keep = Retention { events_ms: DAY_MS, events_max: 1_000, unsent_after: None };
    bench.store.maintain(&keep).await.unwrap();
    let before = bench.now().await;
    drop(bench);
    edit_mark(fixture.folder.path(), |mark| mark.boot_id = "another".to_owned());
    let bench = Bench::new(&fixture).await;
    assert_eq!(bench.lease(&key("idle")).await.unwrap().ttl_left_ms(), 500_000, "since {before:?}");
}

/// What cannot be read stops the start and says where; nothing is left out silently.
#[tokio::test]
async fn damage_is_told() {
    let refused = async |damage: &dyn Fn(&Path)| {
        let fixture = Embedded::new();
        let bench = Bench::new(&fixture).await;
        bench.grant(ask(&key("folded"), "ann")).await;
        let bench = bench.reopen().await;
        for n in 0..5 {
            bench.grant(ask(&key(&format!("job-{n}")), "ann")).await;
        }
        drop(bench);
        damage(fixture.folder.path());
        let journal = match Folder::open(fixture.folder.path()) {
            Ok(journal) => journal,
            Err(error) => return error,
        };
        ResidentStore::embedded(journal).expect_err("damage is found")
    };
    let sql = |sql: &'static str| move |folder: &Path| database(folder).execute_batch(sql).unwrap();
    for (damage, place) in [
        ("UPDATE log SET entry = substr(entry, 1, 80) WHERE seq = (SELECT max(seq) FROM log)", "log entry"),
        ("UPDATE log SET entry = '{}' WHERE seq = (SELECT min(seq) FROM log)", "log entry"),
        ("DELETE FROM log WHERE seq = (SELECT min(seq) + 1 FROM log)", "missing"),
        ("UPDATE rows SET row = 'x'", "resource"),
        ("UPDATE meta SET value = 'x' WHERE name = 'mark'", "mark"),
        ("UPDATE meta SET value = 'x' WHERE name = 'revision'", "revision"),
        ("UPDATE event_batches SET events = '[{' WHERE last = 3", "events 3 to 3"),
        ("UPDATE event_batches SET events = '[]' WHERE last = 3", "0 events in place of 1"),
        ("PRAGMA user_version = 99", "use a newer one"),
    ] {
        let error = refused(&sql(damage)).await;
        is!(error, StoreError::Unusable(text) if text.contains(place));
    }
    let garbage = |folder: &Path| std::fs::write(folder.join("solehold.db"), vec![b'x'; 8_192]).unwrap();
    is!(refused(&garbage).await, StoreError::Unusable(text) if text.contains("not a database"));
}

/// A journal that fails when it is told to.
struct Flaky {
    folder: Folder,
    fault: Arc<AtomicU8>,
}

const BEFORE_WRITING: u8 = 1;
const AFTER_WRITING: u8 = 2;
const ALTOGETHER: u8 = 3;

#[async_trait]
impl Journal for Flaky {
    fn history(&self) -> Option<Arc<dyn JournaledEvents>> {
        self.folder.history()
    }
    fn load(&mut self) -> Result<Image, StoreError> {
        match self.fault.load(Ordering::SeqCst) {
            ALTOGETHER => Err(StoreError::Unknown("no disk".to_owned())),
            _ => self.folder.load(),
        }
    }
    async fn append(&mut self, entry: Entry) -> Result<(), StoreError> {
        let fault = self.fault.load(Ordering::SeqCst);
        if fault == 0 || fault == AFTER_WRITING {
            self.folder.append(entry).await?;
        }
        if fault == 0 { Ok(()) } else { Err(StoreError::Unknown("the disk failed".to_owned())) }
    }
    fn unfolded(&mut self) -> Option<&Unfolded> {
        self.folder.unfolded()
    }
    fn fold(&mut self, state: &Ledger, more: Dirty, mark: Mark) -> Result<(), StoreError> {
        self.folder.fold(state, more, mark)
    }
    async fn tidy(
        &mut self,
        folded: Option<Fold>,
        mark: Mark,
        keep: &Retention,
    ) -> Result<Option<Revision>, StoreError> {
        self.folder.tidy(folded, mark, keep).await
    }
    fn set_floor(&mut self, floor: Revision) -> Result<(), StoreError> {
        self.folder.set_floor(floor)
    }
    fn close(&mut self) -> Result<(), StoreError> {
        self.folder.close()
    }
}

/// A failed append is answered with unknown, nothing is served from rows that may be stale, and the store recovers from
/// its log by itself: what was written is there, what was not is not, and the request id tells which.
#[tokio::test]
async fn failed_append_is_unknown_then_recovers() {
    for fault in [BEFORE_WRITING, AFTER_WRITING, ALTOGETHER] {
        let folder = TempDir::new().unwrap();
        let switch = Arc::new(AtomicU8::new(0));
        let journal = Flaky { folder: Folder::open(folder.path()).unwrap(), fault: switch.clone() };
        let store =
            ResidentStore::embedded_with(journal, Arc::new(ManualClock::default()), Default::default())
                .unwrap();
        let engine = Engine::start(store.clone(), EngineOptions::default(), Arc::new(()));
        let submit = async |command| engine.submit(command).await;
        let first = granted(submit(ask(&key("before"), "ann").command()).await.unwrap());
        let mut watch = engine.watch(None, Default::default()).await.unwrap();
        watch.next().await.unwrap();
        switch.store(fault, Ordering::SeqCst);
        let lost = submit(ask_as(&key("job"), "ann", "r1").command()).await;
        is!(lost, Err(EngineError::Store(StoreError::Unknown(_))));
        if fault == ALTOGETHER {
            is!(store.load(&Default::default()).await, Err(StoreError::Unavailable(_)));
            is!(
                engine.submit(ask(&key("x"), "ann").command()).await,
                Err(EngineError::Store(StoreError::Unavailable(_)))
            );
        }
        switch.store(0, Ordering::SeqCst);
        let healed = wait_for("the store to answer again", Duration::from_secs(30), || async {
            engine.check().is_ok()
        });
        healed.await.unwrap();
        let again = granted(submit(ask_as(&key("job"), "ann", "r1").command()).await.unwrap());
        assert_eq!(again.repeated, fault == AFTER_WRITING);
        assert_eq!(token(&again), Token(token(&first).0 + 1), "one grant, whatever happened");
        renewed(submit(renew(its(&first))).await.unwrap());
        let told = loop {
            match watch.next().await.unwrap() {
                solehold_engine::watch::Frame::Event { event, .. } => break event,
                _ => continue,
            }
        };
        assert_eq!(told.token(), Some(token(&again)), "told once, by whichever way it came to be");
        engine.stop().await;
        drop((engine, store, watch));
        let fixture = Embedded::new();
        let store = ResidentStore::embedded(Folder::open(folder.path()).unwrap()).unwrap();
        let bench = Bench { fixture: &fixture, store };
        assert_eq!(bench.lease(&key("job")).await.unwrap().lease.token, token(&again));
        assert_eq!(bench.events(Revision(0)).await.len(), 2);
    }
}

/// A disk that is full makes outcomes unknown and loses nothing; with room again the store goes on.
#[tokio::test]
async fn full_disk() {
    let mut fixture = Embedded::with(FolderLimits { pages_max: Some(40), ..Default::default() });
    let bench = Bench::new(&fixture).await;
    let engine = bench.engine();
    let mut kept = Vec::new();
    let mut failures = 0;
    for n in 0..2_000 {
        match engine.submit(ask(&key(&format!("job-{n}")), "ann").command()).await {
            Ok(outcome) => kept.push(granted(outcome)),
            Err(EngineError::Store(StoreError::Unknown(_) | StoreError::Unavailable(_))) => failures += 1,
            Err(other) => panic!("{other:?}"),
        }
        if failures > 3 {
            break;
        }
    }
    assert!(failures > 3 && !kept.is_empty(), "{} kept, {failures} failed", kept.len());
    engine.stop().await;
    drop((engine, bench));
    fixture.limits = FolderLimits::default();
    let bench = Bench::new(&fixture).await;
    for grant in &kept {
        assert_eq!(bench.lease(&grant.lease.key).await.unwrap().lease.token, token(grant));
    }
    let next = bench.grant(ask(&key("room"), "ann")).await;
    assert!(token(&next) > token(kept.last().unwrap()));
}

/// Folding the log into the snapshot, again and again, with kills in between, loses nothing.
#[tokio::test]
async fn folding_loses_nothing() {
    let fixture = Embedded::with(FolderLimits { log_bytes_max: 2_000, ..Default::default() });
    let keep = Retention { events_ms: DAY_MS, events_max: 1_000_000, unsent_after: None };
    let mut bench = Bench::new(&fixture).await;
    let mut held = std::collections::BTreeMap::new();
    for round in 0..60 {
        for n in 0..10 {
            let job = key(&format!("job-{}", (round * 7 + n * 3) % 40));
            if let Some(token) = held.remove(&job) {
                bench.done(release(by_token(&job, token))).await;
            } else {
                let grant = bench.grant(ask_for(&job, "ann", 3_600_000)).await;
                held.insert(job, token(&grant));
            }
        }
        bench.pass(1_000).await;
        bench.store.maintain(&keep).await.unwrap();
        if round % 5 == 4 {
            drop(bench);
            bench = Bench::new(&fixture).await;
            for n in 0..40 {
                let job = key(&format!("job-{n}"));
                let found = bench.lease(&job).await.map(|l| l.lease.token);
                assert_eq!(found, held.get(&job).copied(), "{job} after round {round}");
            }
        }
    }
    assert_eq!(bench.events(Revision(0)).await.len(), 600);
    let lines: i64 =
        database(fixture.folder.path()).query_row("SELECT count(*) FROM log", [], |r| r.get(0)).unwrap();
    assert!(lines < 100, "{lines} lines in the log");
}

/// JournaledEvents older than what memory keeps is read from the file, across restarts, and dropped by retention.
#[tokio::test]
async fn history_beyond_memory() {
    let fixture = Embedded::with(FolderLimits { drop_events_max: 4_000, ..Default::default() });
    let bench = Bench::new(&fixture).await;
    for round in 0..10 {
        let mut commands = Vec::new();
        for n in 0..1_000 {
            let ask = ask(&key(&format!("job-{round}-{n}")), "ann");
            let lease = ask.lease;
            commands.extend([ask.command(), release(by_id("acme", lease))]);
        }
        bench.all(commands).await;
    }
    let bench = bench.reopen().await;
    let mut at = Revision(0);
    let mut pages = 0;
    while at < Revision(20_000) {
        let page =
            bench.store.events(&EventQuery { after: at, limit: 999, ..Default::default() }).await.unwrap();
        for event in &page.events {
            assert_eq!(event.revision, at.next());
            at = event.revision;
        }
        assert_eq!((page.head.revision, page.floor), (Revision(20_000), Revision(0)));
        pages += 1;
    }
    assert_eq!(pages, 21);
    // By resource and by lease, entered in the index or not yet.
    for round in 0..3 {
        for job in [key("job-0-0"), key("job-5-999"), key("job-9-999")] {
            assert_eq!(bench.names(&job).await.len(), 2, "{job} in round {round}");
            let query = EventQuery { resource: Some(job), limit: 1, ..Default::default() };
            let first = bench.store.events(&query).await.unwrap().events.remove(0);
            let query = EventQuery { lease: first.lease(), limit: 9, ..Default::default() };
            let both = bench.store.events(&query).await.unwrap().events;
            assert_eq!((both.len(), &both[0]), (2, &first));
            let later = EventQuery { after: first.revision, ..query };
            assert_eq!(bench.store.events(&later).await.unwrap().events, both[1..]);
            let newest = EventQuery { limit: 1, after: Revision(0), ..later }.newest();
            assert_eq!(bench.store.events(&newest).await.unwrap().events, both[1..], "the newest");
        }
        bench.pass(1_100).await;
        bench
            .store
            .maintain(&Retention { events_ms: DAY_MS, events_max: 100_000, unsent_after: None })
            .await
            .unwrap();
    }
    // A jump of the revision is not history: nothing is dropped for it.
    bench.done(solehold_core::command::Command::RaiseRevision { above: Revision(1 << 34) }).await;
    let maintained = async |events_max| {
        bench.pass(1_100).await;
        bench.store.maintain(&Retention { events_ms: DAY_MS, events_max, unsent_after: None }).await.unwrap();
        let page = bench.store.events(&EventQuery { limit: 1, ..Default::default() }).await.unwrap();
        (page.floor, page.events[0].revision)
    };
    assert_eq!(maintained(20_000).await, (Revision(0), Revision(1)));
    assert_eq!(maintained(10_000).await, (Revision(4_000), Revision(4_001)), "a bounded number per round");
    assert_eq!(maintained(10_000).await, (Revision(8_000), Revision(8_001)));
    assert_eq!(maintained(10_000).await, (Revision(10_000), Revision(10_001)));
    assert_eq!(maintained(10_000).await, (Revision(10_000), Revision(10_001)));
    let bench = bench.reopen().await;
    let page = bench.store.events(&EventQuery { limit: 1, ..Default::default() }).await.unwrap();
    assert_eq!((page.floor, page.head.revision), (Revision(10_000), Revision(1 << 34)));
    let count = |sql| database(fixture.folder.path()).query_row(sql, [], |r| r.get::<_, i64>(0)).unwrap();
    let gone = count("SELECT count(*) FROM event_index WHERE last <= 10000");
    assert_eq!(gone, 0, "dropped with their events");
    let entered = count("SELECT count(DISTINCT hash) FROM event_index");
    assert_eq!(entered, 10_000, "each by lease and by resource");
}

/// The file says what is in it to anyone who opens it with `sqlite3`.
#[tokio::test]
async fn people_can_read_the_file() {
    let fixture = Embedded::new();
    let bench = Bench::new(&fixture).await;
    let session = bench.session("ann", LONG_MS).await;
    bench.done(declare(&key("a/ü"), Declaration::default())).await;
    let grant = bench.grant(ask_on(&key("a/ü"), &session)).await;
    let spent = bench.grant(ask_as(&key("b"), "bea", "r1")).await;
    bench.done(release(its(&spent))).await;
    let record = Record { collection: name("keys"), id: name("k"), document: text("{\"x\":1}") };
    bench
        .done(solehold_core::command::Command::PutRecord {
            record,
            over: solehold_core::command::Over::Nothing,
        })
        .await;
    // Readable while the store runs, too: the events are written at once, the rest after a fold.
    let rows = |sql: &str| -> Vec<String> {
        let db = database(fixture.folder.path());
        let mut select = db.prepare(sql).unwrap();
        let count = select.column_count();
        let rows = select.query_map([], |row| {
            let cell = |n| {
                row.get::<_, rusqlite::types::Value>(n).map(|v| match v {
                    rusqlite::types::Value::Null => "-".to_owned(),
                    rusqlite::types::Value::Integer(n) => n.to_string(),
                    rusqlite::types::Value::Text(text) => text,
                    other => format!("{other:?}"),
                })
            };
            Ok((0..count).map(cell).collect::<Result<Vec<_>, _>>()?.join("|"))
        });
        rows.unwrap().map(Result::unwrap).collect()
    };
    let events =
        rows("SELECT revision, event_type, tenant, kind, key, holder, token FROM lease_events ORDER BY 1");
    assert_eq!(
        events,
        [
            "1|resource_declared|acme|job|a/ü|-|-",
            "2|lease_acquired|acme|job|a/ü|ann|2",
            "3|lease_acquired|acme|job|b|bea|3",
            "4|lease_released|acme|job|b|bea|3",
        ]
    );
    assert!(!rows("SELECT seq FROM log").is_empty());
    bench.store.close().await;
    assert_eq!(rows("SELECT seq FROM log"), [""; 0]);
    let id = grant.lease.lease.id;
    assert_eq!(
        rows("SELECT tenant, kind, key, holder, lease_id, token FROM resources"),
        [format!("acme|job|a/ü|ann|{id}|2")]
    );
    assert_eq!(
        rows("SELECT id, tenant, holder, standing, leases FROM sessions"),
        [format!("{}|acme|ann|current|1", session.id)]
    );
    assert_eq!(rows("SELECT tenant, name, registered FROM holders"), ["acme|ann|0"]);
    assert_eq!(rows("SELECT tenant, kind, key, holder, request FROM requests"), ["acme|job|b|bea|r1"]);
    assert_eq!(rows("SELECT collection, id, document FROM records"), ["keys|k|{\"x\":1}"]);
    assert_eq!(
        rows("SELECT name FROM meta ORDER BY name"),
        ["epoch", "incarnation", "mark", "revision", "seal"]
    );
}

/// Over the machine's own clock: time passes by itself and leases run out.
#[tokio::test]
async fn the_machines_own_clock() {
    let folder = TempDir::new().unwrap();
    let store =
        ResidentStore::embedded_with(Folder::open(folder.path()).unwrap(), BootClock, Default::default())
            .unwrap();
    let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
    granted(engine.submit(ask_for(&key("short"), "ann", SHORT_MS).command()).await.unwrap());
    let freed = wait_for("the lease to run out", Duration::from_secs(30), || async {
        engine.resource(&key("short")).await.unwrap().state.resource(&key("short")).is_none()
    });
    freed.await.unwrap();
    engine.stop().await;
}
