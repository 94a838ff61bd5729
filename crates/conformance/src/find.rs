//! Finding resources, holders and records.

use std::collections::BTreeSet;

use solehold_core::{
    call::{Call, Note},
    command::*,
    key::*,
    lease::Declaration,
    outcome::*,
    record::Record,
    time::Revision,
};

use crate::{Fixture, kit::*, waiting::waits};
use solehold_engine::store::{HolderQuery, ResourceQuery, Usage};

impl Bench<'_> {
    pub(crate) async fn found(&self, query: ResourceQuery) -> Vec<ResourceKey> {
        let found = self.store.find_resources(&query).await.expect("the store reads");
        assert!(found.keys.len() <= query.limit);
        for key in &found.keys {
            let resource = found.loaded.state.resource(key).expect("a key comes with its row");
            for session in resource.sessions() {
                assert!(found.loaded.state.session(session).is_some(), "a row comes with its sessions");
            }
        }
        found.keys
    }

    /// The short names of what is found within the tenant `acme`.
    async fn names_found(&self, query: ResourceQuery) -> Vec<String> {
        let query = ResourceQuery { tenant: Some(name("acme")), limit: 100, ..query };
        self.found(query).await.iter().map(|key| key.key.to_string()).collect()
    }
}

fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

fn at(site: &str, pairs: &[(&str, &str)]) -> Declaration {
    Declaration { site: Some(name(site)), labels: labels(pairs).into_iter().collect(), ..Default::default() }
}

/// Each filter alone, and some together.
pub async fn every_filter(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let session = bench.session("ann", LONG_MS).await;
    let next = bench.session("bea", LONG_MS).await;
    let camera = |k: &str| ResourceKey { kind: name("camera"), ..key(k) };
    bench
        .all(vec![
            declare(&key("a"), at("north", &[("tier", "gold"), ("os", "linux")])),
            declare(&key("b"), at("south", &[("tier", "gold")])),
            declare(&key("c"), Declaration::default()),
            declare(&camera("a"), at("north", &[("tier", "o'tin \"\\ü")])),
            declare(&ResourceKey { tenant: name("other"), ..key("a") }, at("north", &[])),
            ask_on(&key("a"), &session).command(),
            ask_on(&key("undeclared"), &session).command(),
            ask(&key("c"), "carl").command(),
            hand_over(&key("c"), next.id, LONG_MS),
            ask_for(&key("ran-out"), "dan", SHORT_MS).command(),
            declare(&key("ran-out"), Declaration::default()),
        ])
        .await;
    let query = ResourceQuery::default;
    bench.pass(SHORT_MS).await;
    assert_eq!(bench.names_found(query()).await, ["a", "a", "b", "c", "ran-out"], "camera/a, then job/a");
    let all = bench.found(ResourceQuery { limit: 100, ..query() }).await;
    assert_eq!(all.len(), 6, "of all tenants");
    assert_eq!(all.last().expect("six").tenant, name("other"));
    let undeclared = ResourceQuery { undeclared: true, ..query() };
    assert_eq!(bench.names_found(undeclared.clone()).await, ["a", "a", "b", "c", "ran-out", "undeclared"]);
    let kind = Some(name("job"));
    assert_eq!(
        bench.names_found(ResourceQuery { kind: kind.clone(), ..query() }).await,
        ["a", "b", "c", "ran-out"]
    );
    let site = Some(name("north"));
    assert_eq!(bench.names_found(ResourceQuery { site: site.clone(), ..query() }).await, ["a", "a"]);
    assert_eq!(bench.names_found(ResourceQuery { site, kind, ..query() }).await, ["a"]);
    for (holder, found) in [("ann", vec!["a"]), ("carl", vec!["c"]), ("bea", vec![]), ("x", vec![])] {
        assert_eq!(bench.names_found(ResourceQuery { holder: Some(name(holder)), ..query() }).await, found);
    }
    let session = Some(session.id);
    assert_eq!(bench.names_found(ResourceQuery { session, ..query() }).await, ["a"]);
    assert_eq!(bench.names_found(ResourceQuery { session, ..undeclared }).await, ["a", "undeclared"]);
    let waits = ResourceQuery { session: Some(next.id), ..query() };
    assert_eq!(bench.names_found(waits).await, ["c"], "a pending lease hangs there, too");
    assert_eq!(bench.names_found(ResourceQuery { leased: Some(true), ..query() }).await, ["a", "c"]);
    let free = ResourceQuery { leased: Some(false), ..query() };
    assert_eq!(bench.names_found(free).await, ["a", "b", "ran-out"], "judged by time, not by a sweep");
    for (pairs, found) in [
        (&[("tier", "gold")][..], vec!["a", "b"]),
        (&[("tier", "gold"), ("os", "linux")], vec!["a"]),
        (&[("tier", "o'tin \"\\ü")], vec!["a"]),
        (&[("tier", "silver")], vec![]),
        (&[("os", "gold")], vec![]),
    ] {
        assert_eq!(
            bench.names_found(ResourceQuery { labels: labels(pairs), ..query() }).await,
            found,
            "{pairs:?}"
        );
    }
    assert_eq!(bench.found(ResourceQuery { limit: 0, ..query() }).await, []);
}

/// By a name that several tenants use: resources by kind and key, what holders of a name hold, and holders.
pub async fn of_every_tenant(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let long = "x".repeat(255);
    let tenants = ["acme", "acme ", "b", &long, "z"];
    let of = |tenant: &str, k: &str| ResourceKey { tenant: name(tenant), ..key(k) };
    for tenant in tenants {
        bench.done(declare(&of(tenant, "other"), Declaration::default())).await;
    }
    for tenant in ["acme", &long, "z"] {
        bench.done(declare(&of(tenant, "door"), Declaration::default())).await;
    }
    bench.all(["z", "b"].map(|tenant| ask(&of(tenant, "held"), "ann").command()).to_vec()).await;
    let found = async |query: ResourceQuery| {
        let keys = bench.found(ResourceQuery { limit: 10, undeclared: true, ..query }).await;
        keys.iter().map(|key| key.tenant.to_string()).collect::<Vec<_>>()
    };
    let kind = Some(name("job"));
    let door = Some(name("door"));
    let query = ResourceQuery { kind, key: door, ..Default::default() };
    assert_eq!(found(query.clone()).await, ["acme", &long, "z"]);
    assert_eq!(found(ResourceQuery { tenant: Some(name("z")), ..query.clone() }).await, ["z"]);
    assert_eq!(found(ResourceQuery { tenant: Some(name("b")), ..query.clone() }).await, [""; 0]);
    assert_eq!(found(ResourceQuery { key: Some(name("no")), ..query.clone() }).await, [""; 0]);
    assert_eq!(found(ResourceQuery { kind: Some(name("no")), ..query }).await, [""; 0]);
    let by_ann = ResourceQuery { holder: Some(name("ann")), ..Default::default() };
    assert_eq!(found(by_ann).await, ["b", "z"]);
    let first = ResourceQuery { limit: 1, ..Default::default() };
    assert_eq!(bench.found(first).await, [of("acme", "door")]);
    bench.done(register("ann", LONG_MS, None)).await;
    let by_name = |text: &str| HolderQuery { name: Some(name(text)), limit: 10, ..Default::default() };
    for (text, expected) in [("ann", 1), ("bea", 0)] {
        let holders = bench.store.find_holders(&by_name(text)).await.expect("the store reads");
        assert_eq!(holders.keys.len(), expected, "{text}");
    }
}

/// Pages follow one another in byte order, whatever the names are, with nothing twice and nothing left out.
pub async fn pages_in_byte_order(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let long = "x".repeat(255);
    let names = [
        "a/b", "a", "a\u{301}", "é", "Z", "a b", &long, "a//b", "../..", "%2F", "z", "ß", "🚦", "数", "A",
        "_", "-", "'", "\"", "\\", "10", "9", "a-b", " ", "a ", "İ", "i",
    ];
    let mut all = BTreeSet::new();
    let mut commands = Vec::new();
    for tenant in ["acme", "acme-2", "Acme", "ac"] {
        for n in &names {
            let key = ResourceKey { tenant: name(tenant), ..key(n) };
            commands.push(declare(&key, Declaration::default()));
            all.insert(key);
        }
    }
    bench.all(commands).await;
    for limit in [1, 7, 1_000] {
        for tenant in [None, Some(name("acme"))] {
            let expected: Vec<_> =
                all.iter().filter(|k| tenant.as_ref().is_none_or(|t| *t == k.tenant)).cloned().collect();
            let mut seen = Vec::new();
            let mut after = None;
            loop {
                let query = ResourceQuery { tenant: tenant.clone(), after, limit, ..Default::default() };
                let page = bench.store.find_resources(&query).await.expect("the store reads");
                seen.extend(page.keys.iter().cloned());
                after = seen.last().cloned();
                assert_eq!(page.more, seen.len() < expected.len(), "{} of {}", seen.len(), expected.len());
                if !page.more {
                    break;
                }
            }
            assert_eq!(seen, expected);
        }
    }
    let after = Some(key("a0 is not there"));
    let query =
        ResourceQuery { tenant: Some(name("acme")), after: after.clone(), limit: 1, ..Default::default() };
    let next = all.iter().find(|k| **k > key("a0 is not there") && k.tenant == name("acme")).cloned();
    assert_eq!(bench.found(query).await, Vec::from_iter(next));
}

/// Holders by page, registered or not, with their sessions.
pub async fn holders(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let mut commands = Vec::new();
    for n in 0..10 {
        commands.push(register(&format!("runner-{n}"), LONG_MS, None));
    }
    for n in ["é", "Z", "a/b"] {
        commands.push(open(n, LONG_MS));
    }
    bench.all(commands).await;
    let mut expected: Vec<_> = (0..10).map(|n| format!("runner-{n}")).collect();
    let page = |after, limit, registered| {
        let query = HolderQuery { tenant: Some(name("acme")), name: None, registered, after, limit };
        let store = bench.store.clone();
        async move { store.find_holders(&query).await.expect("the store reads") }
    };
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let found = page(after, 3, true).await;
        for key in &found.keys {
            let session = found.loaded.state.holder(key).expect("its row").session.expect("open");
            assert!(found.loaded.state.session(session).is_some());
            seen.push(key.name.to_string());
        }
        after = found.keys.last().cloned();
        if !found.more {
            break;
        }
    }
    assert_eq!(seen, expected);
    expected.extend(["é", "Z", "a/b"].map(str::to_owned));
    expected.sort();
    let found = page(None, 100, false).await;
    assert_eq!(found.keys.iter().map(|k| k.name.to_string()).collect::<Vec<_>>(), expected);
    let elsewhere = HolderQuery { tenant: Some(name("other")), limit: 10, ..Default::default() };
    assert!(bench.store.find_holders(&elsewhere).await.expect("the store reads").keys.is_empty());
}

/// A note commits with the command that it is about; what is refused leaves none.
pub async fn a_note_commits_with_its_command(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let noted = |command, unique, document: &str| {
        let note = Note { collection: name("audit"), unique, document: text(document) };
        Call { note: Some(note), ..Call::from(command) }
    };
    let remove = |id: &str| Command::RemoveRecord { collection: name("keys"), id: name(id) };
    let record = Record { collection: name("keys"), id: name("a"), document: text("1") };
    let put = Command::PutRecord { record, over: Over::Nothing };
    let began = bench.now().await;
    let outcomes =
        bench.all(vec![noted(put, 1, "1"), noted(remove("b"), 2, "2"), noted(remove("a"), 3, "3")]).await;
    assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    bench.pass(1).await;
    bench.done(Command::RaiseRevision { above: Revision(7) }).await;
    bench.all(vec![noted(Command::RaiseRevision { above: Revision(9) }, 0, "4")]).await;
    let stored = bench.store.records(&name("audit")).await.expect("the store reads");
    let documents: Vec<_> = stored.iter().map(|record| record.document.clone()).collect();
    assert_eq!(documents, ["1", "3", "4"].map(text), "in order of time");
    let now = bench.now().await;
    for record in &stored {
        let at = Note::time(&record.id).expect("a time");
        assert!(began <= at && at <= now, "{at:?}");
    }
}

/// Records are written, read, replaced and removed.
pub async fn records(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let record = |id: &str, document: &str| Record {
        collection: name("keys"),
        id: name(id),
        document: text(document),
    };
    let put = |record: Record, over| Command::PutRecord { record, over };
    bench.done(put(record("b", "1"), Over::Nothing)).await;
    bench.done(put(record("a/ü", "2"), Over::Nothing)).await;
    is!(bench.refused(put(record("b", "3"), Over::Nothing)).await, Refusal::Exists);
    bench.done(put(record("b", "4"), Over::Anything)).await;
    let stale = put(record("b", "6"), Over::Document(text("1")));
    is!(bench.refused(stale).await, Refusal::RecordChanged { .. });
    bench.done(put(record("b", "4"), Over::Document(text("4")))).await;
    is!(bench.refused(put(record("c", "6"), Over::Document(text("1")))).await, Refusal::NoRecord { .. });
    let other = Record { collection: name("other"), ..record("b", "5") };
    bench.done(put(other.clone(), Over::Anything)).await;
    let all = async |collection| bench.store.records(&name(collection)).await.expect("the store reads");
    assert_eq!(all("keys").await, [record("a/ü", "2"), record("b", "4")]);
    let remove = || Command::RemoveRecord { collection: name("keys"), id: name("b") };
    is!(bench.done(remove()).await, Answer::Removed);
    is!(bench.refused(remove()).await, Refusal::NoRecord { .. });
    assert_eq!(all("keys").await, [record("a/ü", "2")]);
    assert_eq!(all("other").await, [other]);
    assert_eq!(all("none").await, []);
    let footprint = Footprint { records: vec![(name("keys"), name("a/ü"))], ..Default::default() };
    let state = bench.load(footprint).await.state;
    assert_eq!(state.record(&name("keys"), &name("a/ü")), Some(&record("a/ü", "2")));
}

/// How much there is, judged by time, of one tenant or of all.
pub async fn usage(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let usage = async |tenant: Option<&str>| {
        bench.store.usage(tenant.map(name).as_ref()).await.expect("the store reads")
    };
    assert_eq!(usage(None).await, Usage::default());
    let session = bench.session("ann", SHORT_MS).await;
    bench.session("bea", LONG_MS).await;
    let elsewhere = ResourceKey { tenant: name("other"), ..key("x") };
    let outcomes = bench
        .all(vec![
            declare(&key("free"), Declaration::default()),
            declare(&key("held"), Declaration::default()),
            ask(&key("held"), "carl").command(),
            ask_on(&key("hangs"), &session).command(),
            ask(&elsewhere, "dan").command(),
        ])
        .await;
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(usage(Some("acme")).await, used(2, 3, 2));
    assert_eq!(usage(None).await, used(3, 4, 2));
    assert_eq!(usage(Some("none")).await, Usage::default());
    bench.pass_until(session.deadline).await;
    assert_eq!(usage(Some("acme")).await, used(1, 3, 1));
    bench.all(vec![Command::Expire { key: key("hangs") }, Command::ExpireSession(session.id)]).await;
    bench.done(release(by_holder(&elsewhere, "dan"))).await;
    assert_eq!(usage(None).await, used(1, 2, 1));
    bench.done(Command::Delete { key: key("held"), force: true, fenced: true }).await;
    assert_eq!(usage(None).await, used(0, 1, 1));
    bench.grant(ask(&key("waited"), "ann")).await;
    let room = bench.room(LONG_MS).await;
    for who in ["bea", "carl"] {
        bench.done(waits(&room, ask(&key("waited"), who)).command()).await;
    }
    assert_eq!(usage(Some("acme")).await, Usage { waiters: 2, ..used(1, 2, 1) });
    assert_eq!(usage(Some("other")).await.waiters, 0);
}

fn used(live_leases: u64, resources: u64, sessions: u64) -> Usage {
    Usage { live_leases, resources, sessions, waiters: 0 }
}
