//! A process with an embedded store that is killed loses nothing that it has answered (rule 24).
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod common;

use std::{
    io::{BufRead, BufReader},
    process::{Command as Process, Stdio},
    sync::Arc,
    time::Duration,
};

use common::Embedded;
use solehold_conformance::kit::*;
use solehold_core::time::Token;
use solehold_engine::{
    Engine, EngineOptions,
    embedded::{Folder, FolderLimits},
    resident::ResidentStore,
};
use solehold_testkit::TempDir;

const CHILD_FOLDER: &str = "SOLEHOLD_TEST_CHILD_FOLDER";
const CHILD_TASKS: &str = "SOLEHOLD_TEST_CHILD_TASKS";

/// Not a test of its own: the process that the next tests kill. To it every disk is quick.
#[test]
fn child_that_acquires_until_it_is_killed() {
    let Ok(folder) = std::env::var(CHILD_FOLDER) else { return };
    let tasks: usize = std::env::var(CHILD_TASKS).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let limits = FolderLimits { quick: Duration::MAX, ..FolderLimits::default() };
        let store = ResidentStore::embedded(Folder::open_with(folder.as_ref(), limits).unwrap()).unwrap();
        let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
        let workers: Vec<_> = (0..tasks)
            .map(|worker| {
                let engine = engine.clone();
                tokio::spawn(async move {
                    for n in 0.. {
                        let text = format!("job-{worker}-{n}");
                        let outcome = engine.submit(ask(&key(&text), "ann").command()).await.unwrap();
                        println!("answered {text} {} .", token(&granted(outcome)));
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
    });
}

/// The batches of many callers are written by another thread.
#[tokio::test]
async fn sigkill_loses_nothing_that_was_answered() {
    is_killed_while_tasks_acquire(32).await;
}

/// The batches of a lone caller are written in place after a while.
#[tokio::test]
async fn sigkill_loses_nothing_that_a_lone_caller_was_answered() {
    is_killed_while_tasks_acquire(1).await;
}

/// Killed in the middle of acquires: every one that was answered is there, and tokens go on from above. While it lives,
/// its folder is refused to others with its pid.
async fn is_killed_while_tasks_acquire(tasks: usize) {
    let folder = TempDir::new().unwrap();
    let mut child = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_acquires_until_it_is_killed", "--nocapture"])
        .env(CHILD_FOLDER, folder.path())
        .env(CHILD_TASKS, tasks.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answered = Vec::new();
    let mut refusal = None;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        // A line that the kill cut off lacks its full stop.
        let words: Vec<_> = line.split(' ').collect();
        let [.., "answered", text, number, "."] = words[..] else { continue };
        answered.push((key(text), Token(number.parse().unwrap())));
        if answered.len() == 1_000 {
            refusal = Folder::open(folder.path()).err();
            child.kill().unwrap();
        }
    }
    let pid = child.id();
    child.wait().unwrap();
    let refusal = refusal.expect("another process has the folder").to_string();
    assert!(refusal.contains(&format!("is in use by process {pid}")), "{refusal}");
    let store = ResidentStore::embedded(Folder::open(folder.path()).unwrap()).unwrap();
    let fixture = Embedded::new();
    let bench = Bench { fixture: &fixture, store };
    assert!(answered.len() >= 1_000);
    for (key, token) in &answered {
        let lease = bench.lease(key).await.unwrap_or_else(|| panic!("{key} was answered and is gone"));
        assert_eq!(lease.lease.token, *token);
    }
    let next = bench.grant(ask(&key("after"), "bea")).await;
    assert!(answered.iter().all(|(_, before)| token(&next) > *before));
}
