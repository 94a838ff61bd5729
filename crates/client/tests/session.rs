//! Sessions and guards against every sort of authority: the same rules for all of them.

mod common;

use std::{sync::Arc, time::Duration};

use common::{Behind, PATIENCE, Sort, database, http, memory, postgres_store, serve};
use serde_json::json;
use solehold_api::problem::ErrorCode;
use solehold_client::{
    AcquireError, Authority, ClientSession, GuardError, Http, HttpConfig, LockConfig, Locks, Lost, Policy,
    SessionConfig,
    authority::{HeartbeatAttempt, Opening},
};
use solehold_core::key::{Name, SessionId};
use solehold_testkit::{Proxy, wait_for};
use uuid::Uuid;

/// Runs a test against every sort of authority, one after the other.
async fn for_all(test: impl AsyncFn(&Behind)) {
    for sort in Sort::ALL {
        println!("{sort:?}");
        test(&sort.start().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_from_hand_to_hand() {
    for_all(async |behind| {
        let one = behind.session("one").await;
        let two = behind.session("two").await;
        let first = one.acquire("job", "a/ä b").await.expect("granted");
        assert!(first.is_live() && !first.is_in_grace());
        assert_eq!((first.resource().to_string().as_str(), first.state()), ("job/a/ä b", None));
        let refused = two.try_acquire("job", "a/ä b").await.expect_err("held");
        let AcquireError::Refused { refusal, .. } = refused else { panic!("{refused}") };
        assert_eq!((refusal.code, refusal.token), (ErrorCode::Held, Some(first.token())));
        assert_eq!(refusal.holder.as_deref(), Some("one"));
        assert!(refusal.retry_after.is_some_and(|after| after <= Duration::from_secs(30)));

        first.write_state(&json!({"seen": 1})).await.expect("written");
        first.write_state(&json!({"seen": 2})).await.expect("written");
        assert_eq!(first.state(), Some(json!({"seen": 2})));
        let token = first.token();
        first.release_with(&json!({"seen": 3})).await.expect("released");

        let second = two.acquire("job", "a/ä b").await.expect("granted");
        assert!(second.token() > token);
        assert_eq!(second.state(), Some(json!({"seen": 3})));
        second.write_state(&json!("mine")).await.expect("written");
        drop(second);
        let third = tokio::time::timeout(PATIENCE, one.acquire("job", "a/ä b")).await;
        assert_eq!(third.expect("dropping releases").expect("granted").state(), Some(json!("mine")));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_keep_what_is_held_and_tell_of_what_is_not() {
    for_all(async |behind| {
        let config = SessionConfig { ttl: Duration::from_secs(2), ..SessionConfig::new("one") };
        let session = behind.session_with(config).await;
        let other = behind.session("other").await;
        let guard = session.acquire("job", "a").await.expect("granted");
        let first = guard.deadline();
        let has_moved = async || guard.deadline() > first.plus(Duration::from_secs(3));
        wait_for("heartbeats past the first ttl", PATIENCE, has_moved).await.expect("kept");
        assert!(guard.is_live());
        assert!(other.try_acquire("job", "a").await.is_err());
        // Someone closes the session behind its back.
        behind.authority.close(session.id().expect("open")).await.expect("an outcome").expect("closed");
        let lost = tokio::time::timeout(PATIENCE, guard.lost()).await.expect("told");
        assert!(matches!(&lost, Lost::Refused(refusal) if refusal.ends_session()), "{lost}");
        let again = tokio::time::timeout(PATIENCE, session.acquire("job", "a")).await.expect("in time");
        assert!(again.expect("granted").token() > guard.token());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_under_the_same_name_supersedes() {
    for_all(async |behind| {
        let config = SessionConfig { ttl: Duration::from_secs(2), ..SessionConfig::new("twin") };
        let first = behind.session_with(config.clone()).await;
        let guard = first.acquire("job", "a").await.expect("granted");
        let second = behind.session_with(config).await;
        let lost = tokio::time::timeout(PATIENCE, guard.lost()).await.expect("told");
        // The words of the authority are looked at to tell this from a session that ran out.
        assert!(matches!(&lost, Lost::Refused(refusal) if refusal.is_superseded()), "{lost}");
        assert_eq!(first.ready().await, Err(lost));
        assert!(second.is_live());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_is_given_up_holds_nothing() {
    for_all(async |behind| {
        let one = behind.session("one").await;
        let two = behind.session("two").await;
        for _ in 0..20 {
            // Polled once or twice, then dropped, at whatever point that is.
            let acquire = one.acquire("job", "a");
            let _ = tokio::time::timeout(Duration::from_micros(300), acquire).await;
        }
        let guard = tokio::time::timeout(PATIENCE, two.acquire("job", "a")).await;
        drop(guard.expect("nothing is held by accident").expect("granted"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_named() {
    let behind = Sort::Memory.start().await;
    let session = behind.session("one").await;
    let message = |error: AcquireError| error.to_string();
    assert_eq!(
        message(session.acquire("", "a").await.expect_err("empty")),
        "the kind is empty; a name has 1 to 255 bytes"
    );
    assert!(message(session.acquire("job", "a\nb").await.expect_err("odd")).contains("control character"));
    let open = async |config: SessionConfig| {
        ClientSession::open(behind.authority.clone(), config).await.expect_err("bad").to_string()
    };
    let named = |name: &str| SessionConfig::new(name);
    assert!(open(named("")).await.contains("the holder is empty"));
    let short = SessionConfig { ttl: Duration::from_millis(1), ..named("x") };
    assert!(open(short).await.contains("it must be 1s to 86400s"));
    let rare = SessionConfig { every: Some(Duration::from_secs(15)), ..named("x") };
    assert!(open(rare).await.contains("not below half of the ttl"));
    let guard = session.acquire("job", "a").await.expect("granted");
    let large = guard.write_state(&"x".repeat(100_000)).await.expect_err("too large");
    assert!(matches!(&large, GuardError::Refused(refusal) if refusal.detail.contains("65536")), "{large}");
    guard.write_state(&1).await.expect("and it goes on");
}

/// An opening under the name "one".
fn opening(id: SessionId, follows: Option<SessionId>) -> Opening {
    let holder = Name::new("one").expect("a name");
    let ttl = Duration::from_secs(30);
    Opening { id, holder, ttl, metrics: Default::default(), follows }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_comes_back_does_not_supersede_its_successor() {
    for sort in Sort::ALL {
        let behind = sort.start().await;
        let ids = [(); 4].map(|()| SessionId(Uuid::now_v7()));
        let open = async |id, follows| {
            let opened = behind.authority.open(&opening(id, follows)).await.expect("an outcome");
            opened.map(|beat| beat.session)
        };
        assert_eq!(open(ids[0], None).await, Ok(ids[0]), "{sort:?}");
        assert_eq!(open(ids[1], Some(ids[0])).await, Ok(ids[1]), "{sort:?}: it follows its own");
        assert_eq!(open(ids[2], None).await, Ok(ids[2]), "{sort:?}: another process takes its place at once");
        let refusal = open(ids[3], Some(ids[1])).await.expect_err("it was superseded");
        assert!(refusal.is_superseded(), "{sort:?}: {refusal}");
        behind.authority.close(ids[2]).await.expect("an outcome").expect("closed");
        assert_eq!(open(ids[3], Some(ids[1])).await, Ok(ids[3]), "{sort:?}: nobody is in its place any more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_the_request_to_open_finds_the_session() {
    for sort in Sort::ALL {
        let behind = sort.start().await;
        let chosen = SessionId(Uuid::now_v7());
        let other = SessionId(Uuid::now_v7());
        let open = async |id| {
            let opened = behind.authority.open(&opening(id, None)).await;
            opened.expect("an outcome").expect("open").session
        };
        let renew = async |id| {
            let attempt = HeartbeatAttempt::within(Duration::from_secs(10));
            let renewed = behind.authority.heartbeat(id, &Default::default(), None, None, attempt).await;
            renewed.expect("an outcome")
        };
        assert_eq!((open(chosen).await, open(chosen).await), (chosen, chosen), "{sort:?}");
        renew(chosen).await.expect("it was not superseded");
        assert_eq!(open(other).await, other, "{sort:?}");
        let refusal = renew(chosen).await.expect_err("superseded by another");
        assert!(refusal.is_superseded(), "{sort:?}: {refusal}");
        // One that arrives even later changes nothing either.
        assert_eq!(open(chosen).await, chosen, "{sort:?}");
        renew(other).await.expect("it was not superseded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_margin_follows_the_store() {
    for sort in Sort::ALL {
        let behind = sort.start().await;
        let opened = behind.authority.open(&opening(SessionId(Uuid::now_v7()), None)).await;
        let slack = opened.expect("an outcome").expect("open").slack;
        let is_wall = matches!(sort, Sort::Postgres | Sort::HttpPostgres);
        assert_eq!(slack, Duration::from_millis(if is_wall { 500 } else { 0 }), "{sort:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_and_one_of_them_goes() {
    let url = database().await;
    let first = serve(postgres_store(&url).await).await;
    let second = serve(postgres_store(&url).await).await;
    let proxy = Proxy::start(first.local_addr()).await.expect("a proxy");
    let servers = [format!("http://{}", proxy.addr()), second.url()];
    let authority = Arc::new(Http::new(HttpConfig::new(servers)).expect("good URLs"));
    let config =
        SessionConfig { ttl: Duration::from_secs(3), policy: Policy::Immediate, ..SessionConfig::new("one") };
    let session = ClientSession::open(authority, config).await.expect("a session");
    let guard = session.acquire("job", "a").await.expect("granted");
    // Not even `immediate` notices that a server is gone, while another one answers.
    proxy.cut().await;
    let from = guard.deadline();
    let has_moved = async || guard.deadline() > from.plus(Duration::from_secs(4));
    wait_for("heartbeats by the other server", PATIENCE, has_moved).await.expect("kept");
    assert!(guard.is_live());
    session.acquire("job", "b").await.expect("granted").release().await.expect("released");
    // The first comes back, the second goes.
    proxy.restore().await.expect("a listener");
    second.shutdown().await;
    let from = guard.deadline();
    let has_moved = async || guard.deadline() > from.plus(Duration::from_secs(4));
    wait_for("heartbeats by the first server", PATIENCE, has_moved).await.expect("kept");
    session.acquire("job", "c").await.expect("granted").release().await.expect("released");
    assert!(guard.is_live());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_network_swallows_is_asked_for_again() {
    let running = serve(memory()).await;
    let proxy = Proxy::start(running.local_addr()).await.expect("a proxy");
    let direct = http(&[&running]);
    let far = Arc::new(Http::to(format!("http://{}", proxy.addr())).expect("a URL"));
    let session = ClientSession::open(far, SessionConfig::new("one")).await.expect("a session");
    proxy.drop_responses();
    let acquiring = tokio::spawn({
        let session = session.clone();
        async move { session.acquire("job", "a").await.expect("granted") }
    });
    let is_held = async || {
        let nodes = direct.nodes().await.expect("nodes");
        nodes.iter().any(|node| node.lease_count == 1)
    };
    wait_for("the grant that nobody hears of", PATIENCE, is_held).await.expect("granted");
    proxy.restore().await.expect("fair weather");
    let guard = acquiring.await.expect("it ends");
    assert!(guard.is_live());
    assert_eq!(direct.nodes().await.expect("nodes")[0].lease_count, 1, "one grant, not two");
    // And one that is given up while its answers are lost is spent.
    proxy.drop_responses();
    let acquire = session.acquire("job", "b");
    let _ = tokio::time::timeout(Duration::from_millis(300), acquire).await;
    proxy.restore().await.expect("fair weather");
    let other = ClientSession::open(direct.clone(), SessionConfig::new("two")).await.expect("a session");
    let guard = tokio::time::timeout(PATIENCE, other.acquire("job", "b")).await;
    drop(guard.expect("nothing is held by accident").expect("granted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_requests_do_not_delay_a_heartbeat() {
    let behind = Sort::HttpMemory.start().await;
    let config = SessionConfig { ttl: Duration::from_secs(2), ..SessionConfig::new("one") };
    let session = behind.session_with(config).await;
    let locks =
        Locks::over(session.clone(), LockConfig { acquire_timeout: PATIENCE * 5, ..Default::default() });
    let guard = locks.acquire("a").await.expect("free");
    // A hundred requests that nobody answers for now, and many more that come and go.
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.acquire("a").await.map(drop) })
        })
        .collect();
    wait_for("all to stand in line", PATIENCE, async || behind.queued("lock", "a").await == Some(100))
        .await
        .expect("in line");
    for n in 0..500 {
        let session = session.clone();
        tokio::spawn(async move { session.acquire("job", &format!("job-{n}")).await.map(drop) });
    }
    let from = guard.deadline();
    let has_moved = async || guard.deadline() > from.plus(Duration::from_secs(4));
    wait_for("heartbeats", PATIENCE, has_moved).await.expect("kept");
    assert!(guard.is_live() && waiting.iter().all(|task| !task.is_finished()));
    guard.release().await.expect("released");
    for task in waiting {
        task.await.expect("it ends").expect("its turn");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_tenants_are_honoured() {
    use solehold_server::{Role, keys};
    let running = serve(memory()).await;
    let name = |text: &str| Name::new(text).expect("a name");
    let new = keys::NewKey { tenant: Some(name("acme")), ..keys::NewKey::new(name("t"), Role::Runner) };
    let key = keys::create(running.engine(), new).await.expect("a key").text;
    let with = |api_key: Option<secrecy::SecretString>| {
        Arc::new(Http::new(HttpConfig { api_key, ..HttpConfig::new([running.url()]) }).expect("good"))
    };
    let is_closed = async || with(None).nodes().await.is_err();
    wait_for("keys to be required", PATIENCE, is_closed).await.expect("401");
    let quick = SessionConfig { open_timeout: Duration::ZERO, ..SessionConfig::new("one") };
    let refused = ClientSession::open(with(None), quick.clone()).await.expect_err("no key");
    assert!(refused.to_string().contains("refused to open a session"), "{refused}");
    let session = ClientSession::open(with(Some(key.clone())), quick).await.expect("a session");
    let guard = session.acquire("job", "a").await.expect("granted");
    assert!(guard.is_live());
    assert_eq!(with(Some(key)).nodes().await.expect("nodes")[0].node_id, "one");
}

/// The first way to the server loses answers: what it did is asked about the other way, and refused there.
#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_was_taken_is_never_called_lost_because_another_server_was_asked() {
    let running = serve(memory()).await;
    let address = running.url().trim_start_matches("http://").parse().expect("an address");
    let proxy = Proxy::start(address).await.expect("a proxy");
    let servers = [format!("http://{}", proxy.addr()), running.url()];
    let http = Http::new(HttpConfig::new(servers)).expect("good URLs");
    let session = ClientSession::open(Arc::new(http), SessionConfig::new("one")).await.expect("a session");
    let guard = session.acquire("job", "a").await.expect("granted by the first");
    proxy.drop_responses();
    guard.release_with(&json!("last")).await.expect("it was taken");
    let next = session.acquire("job", "a").await.expect("granted");
    assert_eq!(next.state(), Some(json!("last")));
}

/// Answers take a twelfth of the ttl, with a short interval and two servers: no lease is lost, and others can be
/// acquired.
#[tokio::test(flavor = "multi_thread")]
async fn slow_servers_cost_no_lease() {
    let running = serve(memory()).await;
    let one = Proxy::start(running.local_addr()).await;
    let two = Proxy::start(running.local_addr()).await;
    let one = one.expect("a proxy");
    let two = two.expect("a proxy");
    let ttl = Duration::from_secs(6);
    let urls = [&one, &two].map(|proxy| format!("http://{}", proxy.addr()));
    let authority = Arc::new(Http::new(HttpConfig::new(urls)).expect("good URLs"));
    let every = Some(Duration::from_millis(200));
    let session = ClientSession::open(authority, SessionConfig { ttl, every, ..SessionConfig::new("one") });
    let session = session.await.expect("a session");
    let guard = session.acquire("job", "a").await.expect("granted");
    let id = session.id();
    for proxy in [&one, &two] {
        // Each way.
        proxy.latency(ttl / 24);
    }
    let until = guard.deadline().plus(ttl * 2);
    wait_for("heartbeats", PATIENCE, async || guard.deadline() > until || !guard.is_live())
        .await
        .expect("kept");
    assert!(guard.is_live() && session.id() == id);
    let other = session.try_acquire("job", "b").await.expect("granted while answers are slow");
    assert!(other.is_live() && guard.is_live());
}

/// A machine that is gone refuses no connection: what is sent to it is never answered. With the policy `immediate` no
/// other heartbeat is sent beside one that waits, so it waits for the other server, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_costs_no_lease_that_ends_at_the_first_failure() {
    let running = serve(memory()).await;
    let one = Proxy::start(running.local_addr()).await.expect("a proxy");
    let two = Proxy::start(running.local_addr()).await.expect("a proxy");
    let urls = [&one, &two].map(|proxy| format!("http://{}", proxy.addr()));
    let authority = Arc::new(Http::new(HttpConfig::new(urls)).expect("good URLs"));
    let ttl = Duration::from_secs(9);
    let every = Some(Duration::from_millis(500));
    let config = SessionConfig { ttl, every, policy: Policy::Immediate, ..SessionConfig::new("one") };
    let session = ClientSession::open(authority, config).await.expect("a session");
    let guard = session.acquire("job", "a").await.expect("granted");
    for (silent, other) in [(&one, &two), (&two, &one)] {
        other.unstall();
        silent.stall();
        let until = guard.deadline().plus(ttl);
        let is_known = async || guard.deadline() > until || !guard.is_live();
        wait_for("heartbeats by the other server", PATIENCE, is_known).await.expect("known");
        assert!(guard.is_live());
    }
}
