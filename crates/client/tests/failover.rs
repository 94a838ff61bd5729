//! Two servers as processes over one PostgreSQL: one is killed, one is stopped, and holders keep their leases.
//! It starts itself as those servers, so it has a `main` of its own.

mod common;

use std::{process::Command, sync::Arc, time::Duration};

use common::{PATIENCE, database, postgres_store};
use solehold_client::{ClientSession, Guard, Http, HttpConfig, LockConfig, Locks, SessionConfig};
use solehold_server::{Server, ServerConfig};
use solehold_testkit::{Program, wait_for};

const DATABASE: &str = "FAILOVER_TEST_DATABASE";
const LISTEN: &str = "FAILOVER_TEST_LISTEN";

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match (std::env::var(DATABASE), std::env::var(LISTEN)) {
        (Ok(database), Ok(listen)) => runtime.block_on(serve(&database, &listen)),
        _ => common::only_test("a_server_is_killed_and_another_is_stopped", || {
            runtime.block_on(a_server_is_killed_and_another_is_stopped());
        }),
    }
}

/// The process that is killed or stopped.
async fn serve(database: &str, listen: &str) {
    let config = ServerConfig { listen: listen.parse().expect("an address"), ..ServerConfig::default() };
    let running = Server::start(config, postgres_store(database).await).await.expect("a server");
    println!("listening on {}", running.url());
    std::future::pending::<()>().await
}

async fn server(database: &str, listen: &str) -> Program {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.env(DATABASE, database).env(LISTEN, listen);
    Program::start("server", &command, "listening on ").await.expect("a server")
}

/// Waits until heartbeats have moved the deadline by more than the ttl.
async fn is_kept(guard: &Guard, ttl: Duration) {
    let from = guard.deadline();
    let has_moved = async || guard.deadline() > from.plus(ttl);
    wait_for("heartbeats", PATIENCE, has_moved).await.expect("kept");
    assert!(guard.is_live());
}

async fn a_server_is_killed_and_another_is_stopped() {
    let url = database().await;
    let first = server(&url, "127.0.0.1:0").await;
    let second = server(&url, "127.0.0.1:0").await;
    let ttl = Duration::from_secs(6);
    let urls = [first.said().to_owned(), second.said().to_owned()];
    let http = |urls: &[String]| Arc::new(Http::new(HttpConfig::new(urls.to_vec())).expect("good URLs"));
    let session = ClientSession::open(http(&urls), SessionConfig { ttl, ..SessionConfig::new("one") });
    let session = session.await.expect("a session");
    let locks = Locks::over(session.clone(), LockConfig { acquire_timeout: PATIENCE, ..Default::default() });
    let guard = session.acquire("job", "a").await.expect("granted");
    let id = session.id();

    // Someone waits in line at the first server when it is killed, and is served by the second.
    let elsewhere =
        ClientSession::open(http(&urls[1..]), SessionConfig::new("two")).await.expect("a session");
    let elsewhere = Locks::over(elsewhere, LockConfig::default());
    let held = elsewhere.acquire("chat").await.expect("free");
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("chat").await.expect("its turn") }
    });
    let is_in_line = async || {
        let lock = reqwest::get(format!("{}/api/v1/locks/chat", urls[1])).await.expect("an answer");
        lock.json::<serde_json::Value>().await.expect("JSON")["waiting"] == 1
    };
    wait_for("it to stand in line", PATIENCE, is_in_line).await.expect("in line");
    first.kill9().await.expect("killed");
    is_kept(&guard, ttl).await;
    held.release().await.expect("released");
    let waited = tokio::time::timeout(PATIENCE, waiting).await.expect("in time").expect("it ends");
    assert!(waited.is_live());
    session.acquire("job", "b").await.expect("granted").release().await.expect("released");

    // Another first server comes, and the second is stopped without a word: heartbeats go elsewhere in time.
    let third = server(&url, urls[0].trim_start_matches("http://")).await;
    second.pause().await.expect("stopped");
    is_kept(&guard, ttl).await;
    assert_eq!(session.id(), id, "all the while it was one session");
    second.resume().expect("resumed");
    third.kill9().await.expect("killed");
    is_kept(&guard, ttl).await;
}
