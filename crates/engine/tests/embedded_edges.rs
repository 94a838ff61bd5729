//! The embedded store where it is easily got wrong: folders that were put back, disks that are full, many who read.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod common;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command as Process, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::Embedded;
use solehold_conformance::kit::*;
use solehold_core::{command::Footprint, time::*};
use solehold_engine::{
    Engine, EngineError, EngineOptions,
    clock::BootClock,
    embedded::Folder,
    flow,
    history::{JUMP, TTL_MAX_MS},
    observe::Lane,
    resident::ResidentStore,
    store::{Cursor, Retention, Store, StoreError},
    watch::{Filter, Frame},
};
use solehold_testkit::TempDir;

const KEEP: Retention =
    Retention { events_ms: 24 * 60 * 60 * 1_000, events_max: 1_000_000, unsent_after: None };

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::write(to.join(file.file_name()), fs::read(file.path()).unwrap()).unwrap();
    }
}

fn empty(folder: &Path) {
    for file in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        fs::remove_file(file.path()).unwrap();
    }
}

async fn is_barred(bench: &Bench<'_>) -> bool {
    let mut judge = Judge::of(vec![ask(&key("probe"), "x").command()]);
    let mut footprint = Footprint::default();
    judge.calls[0].command.footprint(&mut footprint);
    match bench.store.transact(&footprint, Lane::News, &mut judge).await {
        Ok(_) => false,
        Err(StoreError::Barred { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

/// Grants on, past a backup that was made of the folder; tells where the history stands then.
async fn go_on(bench: &Bench<'_>) -> Cursor {
    for n in 0..5 {
        bench.grant(ask(&key(&format!("later-{n}")), "bea")).await;
    }
    bench.pass(1_100).await;
    bench.store.maintain(&KEEP).await.unwrap();
    bench.head().await
}

/// Opened after it was put back: nothing is granted until every lost lease has run out, and no token is given twice.
async fn is_noticed(fixture: &Embedded, lost: Cursor) {
    let bench = Bench::new(fixture).await;
    let head = bench.head().await;
    assert!(head.epoch > lost.epoch, "{head:?} after {lost:?}");
    assert!(head.revision.0 >= JUMP, "{head:?}");
    assert!(is_barred(&bench).await);
    bench.pass(TTL_MAX_MS).await;
    let next = bench.grant(ask(&key("after"), "carl")).await;
    assert!(token(&next).0 > lost.revision.0 && token(&next).0 > JUMP);
    // Known from now on.
    let bench = bench.reopen().await;
    assert!(bench.head().await.epoch == head.epoch && !is_barred(&bench).await);
}

/// The whole folder from a backup that was made while it was closed.
#[tokio::test]
async fn a_folder_from_a_backup_is_not_taken_for_the_one_that_was_left() {
    let fixture = Embedded::new();
    let backup = TempDir::new().unwrap();
    let bench = Bench::new(&fixture).await;
    bench.grant(ask(&key("before"), "ann")).await;
    bench.store.close().await;
    copy(fixture.folder.path(), backup.path());
    let bench = Bench::new(&fixture).await;
    let lost = go_on(&bench).await;
    bench.store.close().await;
    drop(bench);
    empty(fixture.folder.path());
    copy(backup.path(), fixture.folder.path());
    is_noticed(&fixture, Cursor { revision: Revision(1), ..lost }).await;
}

/// The database alone, over the file that was there: of an earlier run, and of the run that was killed last.
#[tokio::test]
async fn a_database_put_back_in_place_is_not_taken_for_the_one_that_was_left() {
    for is_of_this_run in [false, true] {
        let fixture = Embedded::new();
        let bench = Bench::new(&fixture).await;
        bench.grant(ask(&key("before"), "ann")).await;
        let bench = if is_of_this_run { bench } else { bench.reopen().await };
        let file = fixture.folder.path().join("solehold.db");
        let copy = fixture.folder.path().join("copy");
        let db = rusqlite::Connection::open(&file).unwrap();
        db.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        drop(db);
        let bench = if is_of_this_run { bench } else { bench.reopen().await };
        let lost = go_on(&bench).await;
        // Not closed: it was killed.
        drop(bench);
        for beside in ["solehold.db-wal", "solehold.db-shm"] {
            let _ = fs::remove_file(fixture.folder.path().join(beside));
        }
        // The same file, other content.
        fs::write(&file, fs::read(&copy).unwrap()).unwrap();
        is_noticed(&fixture, lost).await;
    }
}

/// What was left is what is found, cleanly stopped or not, moved to another name or not: nobody is barred.
#[tokio::test]
async fn a_folder_that_was_left_is_known_again() {
    let fixture = Embedded::new();
    let mut bench = Bench::new(&fixture).await;
    let before = bench.head().await;
    for round in 0..4 {
        go_on_round(&bench, round).await;
        if round % 2 == 0 {
            bench.store.close().await;
        }
        drop(bench);
        bench = Bench::new(&fixture).await;
        assert_eq!(bench.head().await.epoch, before.epoch, "round {round}");
    }
    bench.store.close().await;
    drop(bench);
    let elsewhere = TempDir::new().unwrap();
    let moved = elsewhere.path().join("moved");
    fs::rename(fixture.folder.path(), &moved).unwrap();
    let store = ResidentStore::embedded(Folder::open(&moved).unwrap()).unwrap();
    assert_eq!(store.load(&Footprint::default()).await.unwrap().cursor.epoch, before.epoch);
    store.close().await;
    fs::rename(&moved, fixture.folder.path()).unwrap();
}

async fn go_on_round(bench: &Bench<'_>, round: u32) {
    bench.grant(ask(&key(&format!("round-{round}")), "ann")).await;
    bench.pass(1_100).await;
    bench.store.maintain(&KEEP).await.unwrap();
    bench.grant(ask(&key(&format!("round-{round}-last")), "ann")).await;
}

/// A small disk of its own, in memory.
struct Disk(PathBuf, #[allow(dead_code, reason = "lives as long")] TempDir);

impl Disk {
    fn of(bytes: usize) -> Self {
        let place = TempDir::new().unwrap();
        let path = place.path().join("disk");
        fs::create_dir(&path).unwrap();
        let size = format!("size={bytes}");
        let mount = Process::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).status();
        assert!(mount.unwrap().success(), "this test mounts a small disk and needs to be allowed to");
        Self(path, place)
    }

    /// Leaves no room.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Process::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Not a test of its own: the process that the next test kills.
#[test]
fn child_that_acquires_until_the_disk_is_full() {
    let Ok(folder) = std::env::var("SOLEHOLD_TEST_CHILD_FOLDER") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = ResidentStore::embedded(Folder::open(folder.as_ref()).unwrap()).unwrap();
        let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
        for n in 0.. {
            let job = format!("job-{n}");
            match engine.submit(ask_for(&key(&job), "ann", TTL_MAX_MS).command()).await {
                Ok(outcome) => println!("answered {job} {} .", token(&granted(outcome))),
                Err(error) => {
                    println!("full {error} .");
                    break;
                }
            }
        }
        std::future::pending::<()>().await;
    });
}

/// Killed while the disk is full, it starts all the same: it answers what it has, refuses to write, and goes on by
/// itself when there is room.
#[tokio::test]
async fn a_full_disk_does_not_keep_it_from_starting() {
    let disk = Disk::of(2 * 1024 * 1024);
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![0; 1024 * 1024]).unwrap();
    let folder = disk.0.join("data");
    let mut child = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_acquires_until_the_disk_is_full", "--nocapture"])
        .env("SOLEHOLD_TEST_CHILD_FOLDER", &folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answered = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        match line.split(' ').collect::<Vec<_>>()[..] {
            [.., "answered", job, number, "."] => {
                answered.push((key(job), Token(number.parse().unwrap())));
            }
            [.., "."] if line.contains("full ") => break,
            _ => {}
        }
    }
    disk.fill();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!answered.is_empty());
    let store = ResidentStore::embedded(Folder::open(&folder).unwrap()).unwrap();
    let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
    let token_of = async |key| {
        let loaded = engine.resource(key).await.unwrap();
        loaded.state.resource(key).and_then(|r| r.lease.as_ref()).map(|lease| lease.token)
    };
    for (key, token) in &answered {
        assert_eq!(token_of(key).await, Some(*token), "{key} was answered");
    }
    let refused = engine.submit(ask(&key("more"), "bea").command()).await;
    is!(refused, Err(EngineError::Store(StoreError::Unavailable(text))) if text.contains("full"));
    fs::remove_file(ballast).unwrap();
    let next = solehold_testkit::wait_for("room", Duration::from_secs(60), || async {
        engine.submit(ask_as(&key("more"), "bea", "r").command()).await.is_ok()
    });
    next.await.unwrap();
    let last = answered.last().map(|(_, token)| *token);
    assert!(token_of(&key("more")).await > last);
    engine.stop().await;
    let store = ResidentStore::embedded(Folder::open(&folder).unwrap()).unwrap();
    for (key, token) in &answered {
        let loaded =
            store.load(&Footprint { resources: vec![key.clone()], ..Default::default() }).await.unwrap();
        assert_eq!(loaded.state.resource(key).and_then(|r| r.lease.as_ref()).map(|l| l.token), Some(*token));
    }
}

/// A hundred who open snapshots of a large store at once, and four who export it, take no lease from a holder who
/// renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_take_no_lease_from_a_holder_who_renews() {
    let folder = TempDir::new().unwrap();
    let store = ResidentStore::embedded(Folder::open(folder.path()).unwrap()).unwrap();
    let engine = Engine::start(store.clone(), EngineOptions::default(), Arc::new(()));
    let resources = 5_000;
    let readers = 100;
    for from in (0..resources).step_by(500) {
        let asks =
            (from..from + 500).map(|n| ask_for(&key(&format!("job-{n:05}")), "ann", TTL_MAX_MS).command());
        assert!(engine.submit_all(asks.collect()).await.into_iter().all(|o| o.is_ok_and(|o| o.is_ok())));
    }
    let own = granted(engine.submit(ask_for(&key("own"), "bea", 10_000).command()).await.unwrap());
    let reading = Arc::new(AtomicUsize::new(readers));
    let mut tasks = Vec::new();
    for _ in 0..readers {
        let engine = engine.clone();
        let reading = reading.clone();
        tasks.push(tokio::spawn(async move {
            let mut watch = engine.watch(None, Filter::default()).await.unwrap();
            let mut seen = 0;
            loop {
                let Some(Frame::Snapshot(page)) = watch.next().await else { panic!("cut off") };
                seen += page.leases().len();
                if !page.more {
                    break;
                }
            }
            reading.fetch_sub(1, Ordering::SeqCst);
            seen
        }));
    }
    for _ in 0..4 {
        let store: Arc<dyn Store> = store.clone();
        tasks.push(tokio::spawn(async move {
            let mut export = flow::export(store);
            let mut resources = 0;
            while let Some(rows) = export.next().await {
                let is_lease =
                    |row: &&_| matches!(row, solehold_engine::store::Row::Resource(r) if r.lease.is_some());
                resources += rows.unwrap().iter().filter(is_lease).count();
            }
            resources
        }));
    }
    let mut renewals = 0;
    while reading.load(Ordering::SeqCst) > 0 {
        renewed(engine.submit(renew(its(&own))).await.unwrap());
        renewals += 1;
    }
    assert!(renewals > 10, "they went on while others read: {renewals}");
    for task in tasks {
        assert_eq!(task.await.unwrap(), resources + 1, "each read all of it");
    }
    engine.stop().await;
}

#[tokio::test]
async fn nobody_but_its_owner_may_read_the_folder() {
    use std::os::unix::fs::PermissionsExt;
    let above = TempDir::new().unwrap();
    let folder = above.path().join("data");
    let open = || ResidentStore::embedded_with(Folder::open(&folder).unwrap(), BootClock, Default::default());
    let modes = || {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        (mode(&folder), files.map(|path| (mode(&path), path)).collect::<Vec<_>>())
    };
    let engine = Engine::start(open().unwrap(), EngineOptions::default(), Arc::new(()));
    granted(engine.submit(ask(&key("a"), "ann").command()).await.unwrap());
    let (of_folder, files) = modes();
    engine.stop().await;
    assert_eq!(of_folder, 0o700);
    assert!(files.len() >= 3 && files.iter().all(|(mode, _)| *mode == 0o600), "{files:?}");
    // A folder that an older program made.
    let database = folder.join("solehold.db");
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o644)).unwrap();
    open().unwrap().close().await;
    assert!(modes().1.iter().all(|(mode, _)| *mode == 0o600));
}
