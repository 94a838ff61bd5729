//! A process that is stopped in the middle of its work for longer than its ttl: when it goes on, its guard is dead
//! before it does anything. It starts itself as that process, so it has a `main` of its own.

mod common;

use std::{process::Command, sync::Arc, time::Duration};

use common::{PATIENCE, Sort};
use solehold_client::{ClientSession, Http, SessionConfig};
use solehold_testkit::{Program, wait_for};

const SERVER: &str = "SUSPENDED_TEST_SERVER";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    match std::env::var(SERVER) {
        Ok(server) => runtime.block_on(hold(server)),
        Err(_) => common::only_test("a_stopped_process_finds_its_guard_dead", || {
            // A server in this process must be able to work beside the test.
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(a_stopped_process_finds_its_guard_dead());
        }),
    }
}

fn config(holder: &str) -> SessionConfig {
    SessionConfig { ttl: Duration::from_secs(2), ..SessionConfig::new(holder) }
}

/// The process that is stopped.
async fn hold(server: String) {
    let authority = Arc::new(Http::to(server).expect("a URL"));
    let session = ClientSession::open(authority, config("holder")).await.expect("a session");
    let guard = session.acquire("job", "a").await.expect("granted");
    println!("holds {}", guard.token());
    let ran = guard.run(async {
        println!("works");
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, rustix::process::Signal::STOP).expect("stopped");
        // Here it goes on, and nothing else has run since.
        println!("resumed, live: {}", guard.is_live());
        tokio::task::yield_now().await;
        println!("works again");
    });
    println!("ended: {:?}", ran.await);
    let again = session.acquire("job", "a").await.expect("granted anew");
    println!("holds again {}", again.token());
    std::future::pending::<()>().await
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

async fn a_stopped_process_finds_its_guard_dead() {
    let behind = Sort::HttpMemory.start().await;
    let url = behind.running.as_ref().expect("a server").url();
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.env(SERVER, url);
    let holder = Program::start("holder", &command, "holds ").await.expect("it holds");
    let first: u64 = holder.said().parse().expect("a token");
    let pid = holder.pid().expect("it runs");
    wait_for("it to stop itself", PATIENCE, async || is_stopped(pid)).await.expect("stopped");
    // Past its ttl someone else has the lease, and is at work when the stopped one goes on.
    let other = behind.session_with(config("other")).await;
    let guard =
        tokio::time::timeout(PATIENCE, other.acquire("job", "a")).await.expect("in time").expect("granted");
    assert!(guard.token().0 > first);
    holder.resume().expect("resumed");
    wait_for("its end", PATIENCE, async || holder.logs().contains("ended: ")).await.expect("told");
    let logs = holder.logs();
    assert!(logs.contains("resumed, live: false"), "{logs}");
    assert!(logs.contains("ended: Err(Deadline)"), "{logs}");
    assert!(!logs.contains("works again"), "{logs}");
    assert!(guard.is_live());
    let token = guard.token();
    guard.release().await.expect("released");
    let holds_again =
        async || holder.logs().lines().find_map(|line| line.strip_prefix("holds again ")?.parse().ok());
    let last: u64 = wait_for("it to hold again", PATIENCE, holds_again).await.expect("a new session");
    assert!(last > token.0);
}
