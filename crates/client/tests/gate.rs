//! The gate over every sort of authority, and over a server that goes away.

mod common;

use std::{sync::Arc, time::Duration};

use common::{PATIENCE, database, http, memory, postgres_store, serve};
use solehold_client::{
    Authority, ClientSession, Embedded, SessionConfig, Token,
    gate::{Doubt, Fail, Gate, GateOptions, Source, Verdict},
};
use solehold_core::key::ResourceKey;
use solehold_testkit::{Proxy, TempDir};

fn options() -> GateOptions {
    GateOptions::new(["scene"]).expect("a kind")
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("no {what}"))
}

/// Waits for a verdict that comes without anyone asking the store.
async fn told(gate: &Gate, key: &ResourceKey, token: Token, verdict: Verdict) {
    in_time("verdict", async {
        loop {
            let changed = gate.changed();
            if gate.judge(key, token, None) == verdict {
                return;
            }
            changed.await;
        }
    })
    .await;
}

async fn session(authority: Arc<dyn Authority>, holder: &str) -> ClientSession {
    ClientSession::open(authority, SessionConfig::new(holder)).await.expect("a session")
}

/// A paused holder is one that does not know that another has taken over.
async fn a_paused_holder_is_refused<S: Source + Authority>(source: Arc<S>) {
    let gate = Gate::open(source.clone(), options()).expect("a gate");
    let scene = gate.key("scene", "lobby").expect("names");
    assert_eq!(gate.judge(&scene, Token(1), None), Verdict::Undecidable(Doubt::Unknown));
    let one = session(source.clone(), "one").await;
    let two = session(source.clone(), "two").await;

    let first = one.acquire("scene", "lobby").await.expect("granted");
    // A token that comes before its event is asked for.
    assert_eq!(gate.decide(&scene, first.token(), one.id()).await, Verdict::Admit);
    told(&gate, &scene, first.token(), Verdict::Admit).await;
    let paused = first.token();
    first.release().await.expect("released");
    told(&gate, &scene, paused, Verdict::Admit).await;

    let second = two.acquire("scene", "lobby").await.expect("granted");
    told(&gate, &scene, paused, Verdict::Stale { newest: second.token() }).await;
    assert_eq!(
        gate.decide(&scene, second.token(), one.id()).await,
        Verdict::Stale { newest: second.token() }
    );
    assert_eq!(gate.decide(&scene, second.token(), two.id()).await, Verdict::Admit);
    let forged = Token(second.token().0 + 1_000);
    let never = Verdict::Undecidable(Doubt::NeverGiven { newest: second.token() });
    assert_eq!(gate.decide(&scene, forged, None).await, never);
    let nowhere = gate.key("scene", "nowhere").expect("names");
    let nothing = Verdict::Undecidable(Doubt::NoSuchResource);
    assert_eq!(in_time("verdict", gate.decide(&nowhere, Token(1), None)).await, nothing);
    assert!(gate.lag().is_some_and(|lag| lag < PATIENCE));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_holder_is_refused_whatever_the_gate_learns_from() {
    a_paused_holder_is_refused(Arc::new(Embedded::open("memory:").await.expect("an engine"))).await;
    let server = serve(memory()).await;
    a_paused_holder_is_refused(http(&[&server])).await;
    let server = serve(postgres_store(&database().await).await).await;
    a_paused_holder_is_refused(http(&[&server])).await;
}

/// A server behind a proxy that can be cut off.
async fn behind_a_proxy() -> (solehold_server::Running, Proxy, Arc<solehold_client::Http>) {
    let server = serve(memory()).await;
    let url = server.url();
    let address = url.strip_prefix("http://").and_then(|address| address.parse().ok()).expect("an address");
    let proxy = Proxy::start(address).await.expect("a proxy");
    let through = solehold_client::Http::to(format!("http://{}", proxy.addr())).expect("a URL");
    (server, proxy, Arc::new(through))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_cut_off_admits_for_its_ttl_and_recovers() {
    let (server, proxy, through) = behind_a_proxy().await;
    let ttl = Duration::from_secs(2);
    let closed = Gate::open(through.clone(), GateOptions { cache_ttl: ttl, ..options() }).expect("a gate");
    let open = GateOptions { cache_ttl: ttl, fail: Fail::Open, ..options() };
    let open = Gate::open(through, open).expect("a gate");
    let scene = closed.key("scene", "lobby").expect("names");
    let holder = session(http(&[&server]), "one").await;
    let first = holder.acquire("scene", "lobby").await.expect("granted");
    for gate in [&closed, &open] {
        in_time("snapshot", gate.ready()).await;
        assert_eq!(gate.decide(&scene, first.token(), None).await, Verdict::Admit);
    }

    proxy.cut().await;
    told(&closed, &scene, first.token(), Verdict::Undecidable(Doubt::Expired)).await;
    assert_eq!(closed.decide(&scene, first.token(), None).await, Verdict::Undecidable(Doubt::Expired));
    assert!(closed.status().is_away && closed.lag() > Some(ttl));
    // One that fails open goes on, upwards only.
    let paused = first.token();
    first.release().await.expect("released");
    let second = holder.acquire("scene", "lobby").await.expect("granted");
    assert_eq!(open.decide(&scene, paused, None).await, Verdict::Admit, "this is what failing open means");
    assert_eq!(open.decide(&scene, second.token(), None).await, Verdict::Admit);
    assert_eq!(open.decide(&scene, paused, None).await, Verdict::Stale { newest: second.token() });
    let newer = Verdict::Undecidable(Doubt::Newer { known: paused });
    assert_eq!(closed.decide(&scene, second.token(), None).await, newer);

    proxy.restore().await.expect("restored");
    told(&closed, &scene, second.token(), Verdict::Admit).await;
    assert_eq!(closed.judge(&scene, paused, None), Verdict::Stale { newest: second.token() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_restarts_remembers_without_a_server() {
    let folder = TempDir::new().expect("a folder");
    let remembering = GateOptions { memory: Some(folder.path().join("marks")), ..options() };
    let (server, proxy, through) = behind_a_proxy().await;
    let holder = session(http(&[&server]), "one").await;
    let gate = Gate::open(through.clone(), remembering.clone()).expect("a gate");
    let scene = gate.key("scene", "lobby").expect("names");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = holder.acquire("scene", "lobby").await.expect("granted");
        assert_eq!(gate.decide(&scene, guard.token(), holder.id()).await, Verdict::Admit);
        tokens.push(guard.token());
        guard.release().await.expect("released");
    }
    let held = holder.acquire("scene", "lobby").await.expect("granted");
    assert_eq!(gate.decide(&scene, held.token(), holder.id()).await, Verdict::Admit);
    tokens.push(held.token());
    let in_use = Gate::open(through.clone(), remembering.clone()).expect_err("one gate per file").to_string();
    assert!(in_use.contains("give each gate a file of its own"), "{in_use}");
    drop(gate);

    proxy.cut().await;
    let gate = in_time("end of the first gate", async {
        loop {
            match Gate::open(through.clone(), remembering.clone()) {
                Ok(gate) => return gate,
                // Its tasks end when they are next polled.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!(gate.judge(&scene, tokens[1], None), Verdict::Stale { newest: tokens[2] });
    assert_eq!(gate.judge(&scene, tokens[2], None), Verdict::Undecidable(Doubt::Unknown));
    proxy.restore().await.expect("restored");
    told(&gate, &scene, tokens[2], Verdict::Admit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_gate_reads_the_store_for_each_new_token() {
    let engine = Arc::new(Embedded::open("memory:").await.expect("an engine"));
    let strict = GateOptions { strict: true, ..options() };
    let gate = Gate::open(engine.clone(), strict).expect("a gate");
    let scene = gate.key("scene", "lobby").expect("names");
    let holder = session(engine, "one").await;
    let guard = holder.acquire("scene", "lobby").await.expect("granted");
    told(&gate, &scene, guard.token(), Verdict::Undecidable(Doubt::Unconfirmed)).await;
    assert_eq!(gate.decide(&scene, guard.token(), None).await, Verdict::Admit);
    assert_eq!(gate.judge(&scene, guard.token(), None), Verdict::Admit);
}

#[tokio::test]
async fn odd_options_are_refused() {
    let engine = Arc::new(Embedded::open("memory:").await.expect("an engine"));
    let refused = |options: GateOptions| Gate::open(engine.clone(), options).expect_err("odd").to_string();
    assert!(refused(GateOptions { kinds: Vec::new(), ..options() }).contains("name 1 to 32"));
    assert!(refused(GateOptions { cache_ttl: Duration::ZERO, ..options() }).contains("above 0"));
    assert!(refused(GateOptions { marks_max: 0, ..options() }).contains("marks_max is 0"));
    assert!(GateOptions::new([""]).is_err());
}
