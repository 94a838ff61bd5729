//! Who may call what: every operation that the router describes, called by everyone. `support/access.txt` is the
//! specification; the table of `docs/reference/access.md` is made from it.

#[path = "support/access_page.rs"]
mod access_page;
mod support;

use std::collections::{BTreeMap, BTreeSet};

use axum::http::header;
use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_engine::store::Row;
use solehold_server::Role;
use solehold_testkit::golden;
use support::{
    Answer, Asking,
    world::{Operation, SECRET, SECRET_OF_RESOURCES, Things, World, call, issue, operations},
};

/// The specification: a line for each operation, with the status for each caller.
const SPECIFICATION: &str = include_str!("support/access.txt");
/// The callers, in the order of the columns.
const CALLERS: [&str; 10] = [
    "none",
    "revoked",
    "reader",
    "runner",
    "holder",
    "admin",
    "limited",
    "foreign",
    "reader-all",
    "admin-all",
];
/// Operations that are tried at the same time, each on a server of its own.
const AT_ONCE: usize = 4;

/// What a refusal changes.
const NOTHING: [&str; 0] = [];

type Statuses = [u16; CALLERS.len()];

/// The rows of the specification, by method and path.
fn specified() -> BTreeMap<String, Statuses> {
    let mut lines = SPECIFICATION.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let columns: Vec<_> = lines.next().expect("the columns").split_whitespace().skip(2).collect();
    assert_eq!(columns, CALLERS, "the columns of access.txt");
    let row = |line: &str| {
        let (operation, statuses) =
            line.split_at(line.match_indices(' ').nth(1).map_or(line.len(), |at| at.0));
        let statuses: Vec<u16> =
            statuses.split_whitespace().map(|status| status.parse().expect("a status")).collect();
        (
            operation.to_owned(),
            statuses.try_into().unwrap_or_else(|_| panic!("not a status for each caller: {line}")),
        )
    };
    lines.map(|line| row(&line.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// A line of the specification.
fn line(operation: &str, statuses: &Statuses) -> String {
    let (method, path) = operation.split_once(' ').expect("a method and a path");
    let columns =
        CALLERS.iter().zip(statuses).map(|(caller, status)| format!(" {status:>0$}", caller.len().max(4)));
    format!("{method:<6} {path:<64}{}\n", columns.collect::<String>())
}

/// The things of acme, and everyone who calls.
struct Stage {
    world: World,
    callers: [Asking; CALLERS.len()],
    /// The rows of the store when the stage was set.
    rows: BTreeSet<String>,
}

impl Stage {
    /// Sets the stage for one operation.
    async fn set(operation: &Operation) -> Self {
        let world = World::new().await;
        let asking = &world.asking;
        let keyed =
            async |role: &str, tenant: Option<&str>| issue(&world.root, role, tenant, json!([])).await.1;
        let (id, revoked) = issue(&world.root, "admin", Some("acme"), json!([])).await;
        let done = world.root.send(Method::DELETE, &format!("/api/v1/admin/keys/{id}"), "").await;
        assert_eq!(done.status, 204, "{done:?}");
        let elsewhere = json!([{"kind": "lock", "key_prefix": "nightly-"}]);
        let callers = [
            asking.with_no_key(),
            revoked,
            keyed("reader", Some("acme")).await,
            keyed("runner", Some("acme")).await,
            world.one.again(),
            world.admin.again(),
            issue(&world.root, "runner", Some("acme"), elsewhere).await.1,
            keyed("admin", Some("other")).await,
            keyed("reader", None).await,
            world.root.again(),
        ];
        prepare(&world, operation).await;
        let rows = rows(&world).await;
        Self { world, callers, rows }
    }

    /// Calls the operation. Whatever is refused must leave the store as it was.
    async fn call(&self, at: usize, operation: &Operation) -> u16 {
        let is_of_all_tenants = CALLERS[at].ends_with("-all");
        let query = if is_of_all_tenants && operation.takes_tenant { "?tenant=acme" } else { "" };
        let (status, text) = self.world.call(&self.callers[at], operation, query).await;
        let status = of_only_item(&text).unwrap_or(status);
        let is_refused = (400..500).contains(&status);
        assert!(status < 300 || is_refused, "{} by {}: {status} {text}", operation.id, CALLERS[at]);
        if is_refused {
            assert_eq!(self.changes().await, NOTHING, "{} by {}: {status} {text}", operation.id, CALLERS[at]);
        }
        let is_for_others = CALLERS[at] == "limited";
        assert!(!is_for_others || !text.contains(SECRET_OF_RESOURCES), "{} shows {text}", operation.id);
        status
    }

    /// The rows that are not what they were.
    async fn changes(&self) -> Vec<String> {
        rows(&self.world).await.symmetric_difference(&self.rows).cloned().collect()
    }
}

/// A batch is answered with 200, and its items one by one: the status of the only item, if it was refused.
fn of_only_item(text: &str) -> Option<u16> {
    let answer: Value = serde_json::from_str(text).ok()?;
    answer["results"][0]["problem"]["status"].as_u64()?.try_into().ok()
}

/// Makes what an operation needs to succeed, beside acme's things.
async fn prepare(world: &World, operation: &Operation) {
    if matches!(operation.id.as_str(), "get_hand_over" | "call_off_hand_over") {
        let offer = json!({"to": "w2"}).to_string();
        let offered = world.one.send(Method::POST, "/api/v1/resources/job/nightly/handover", &offer).await;
        assert_eq!(offered.status, 201, "{offered:?}");
    }
}

/// All that the store keeps but for what a server writes by itself: its revision, and the version of its planner.
async fn rows(world: &World) -> BTreeSet<String> {
    let rows = world.asking.running.engine().export().expect("a store").collect().await.expect("rows");
    let is_written_by_itself = |row: &Row| match row {
        Row::Header(_) | Row::End { .. } => true,
        Row::Record(record) => record.collection.as_str() == "planner",
        _ => false,
    };
    rows.iter().filter(|row| !is_written_by_itself(row)).map(|row| format!("{row:?}")).collect()
}

/// What every caller is answered. An operation that changed something is called by the next one on a new stage.
async fn observed(operation: Operation) -> (Operation, Statuses) {
    let mut statuses = Statuses::default();
    let mut stage = Stage::set(&operation).await;
    for (at, status) in statuses.iter_mut().enumerate() {
        if stage.changes().await != NOTHING {
            stage = Stage::set(&operation).await;
        }
        *status = stage.call(at, &operation).await;
    }
    (operation, statuses)
}

/// What follows from the role that an operation declares, whatever the specification says.
fn check_role(operation: &Operation, statuses: &Statuses) {
    let roles = [
        ("reader", Role::Reader),
        ("runner", Role::Runner),
        ("limited", Role::Runner),
        ("reader-all", Role::Reader),
    ];
    let status = |caller: &str| statuses[CALLERS.iter().position(|one| *one == caller).expect("a caller")];
    let Some(needed) = operation.role else {
        return assert_eq!(status("none"), 200, "{} is open to all", operation.id);
    };
    assert_eq!((status("none"), status("revoked")), (401, 401), "{}", operation.id);
    for (caller, _) in roles.iter().filter(|(_, role)| *role < needed) {
        assert_eq!(status(caller), 403, "{} by {caller}", operation.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_may_call_what_the_specification_says() {
    let mut specified = specified();
    let mut report = String::new();
    let mut all =
        stream::iter(operations()).map(|operation| tokio::spawn(observed(operation))).buffered(AT_ONCE);
    while let Some(observed) = all.next().await {
        let (operation, statuses) = observed.expect("an operation");
        check_role(&operation, &statuses);
        let label = operation.label();
        let expected = specified.remove(&label);
        if expected != Some(statuses) {
            let expected = expected.map_or("nothing\n".to_owned(), |expected| line(&label, &expected));
            report += &format!("specified: {expected} observed: {}", line(&label, &statuses));
        }
    }
    assert!(specified.is_empty(), "there are no such operations: {:?}", specified.keys());
    assert!(report.is_empty(), "access.txt does not say what the server does:\n{report}");
}

/// That something exists is a secret, too: a foreign tenant is answered as if it did not.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_tenant_cannot_tell_what_exists() {
    let world = World::new().await;
    let (_, foreign) = issue(&world.root, "admin", Some("other"), json!([])).await;
    let absent = world.things.absent();
    for operation in operations().iter().filter(|operation| operation.role.is_some()) {
        let real = call(&foreign, operation, &world.things, "").await;
        let unreal = call(&foreign, operation, &absent, "").await;
        assert_eq!(told(&real, &world.things), told(&unreal, &world.things), "{}", operation.id);
        assert!(!real.1.contains(SECRET), "{}: {}", operation.id, real.1);
        if operation.takes_tenant {
            let named = call(&foreign, operation, &world.things, "?tenant=acme").await;
            let unnamed = call(&foreign, operation, &absent, "?tenant=no-acme").await;
            assert_eq!(
                (named.0, told(&named, &world.things)),
                (404, told(&unnamed, &world.things)),
                "{}",
                operation.id
            );
        }
    }
}

/// The status, and why something was refused, in the names of things that exist.
fn told((status, text): &(u16, String), things: &Things) -> (u16, String) {
    if *status < 400 {
        return (*status, String::new());
    }
    let problem: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let ids = [&things.session, &things.lease];
    let word = |word: &str| {
        if word.len() == ids[0].len() && word.contains('-') {
            "ID".to_owned()
        } else {
            word.replace("no-", "")
        }
    };
    let detail: Vec<_> = problem["detail"].as_str().expect("a detail").split(' ').map(word).collect();
    (*status, format!("{}: {}", problem["code"], detail.join(" ")))
}

/// A path whose methods are not all described would have operations that nobody has specified. Tidy sees to it that no
/// other path is mounted.
#[tokio::test]
async fn every_method_that_is_served_is_described() {
    let world = World::new().await;
    let mut described: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for operation in operations() {
        let methods = described.entry(world.things.path(&operation)).or_default();
        methods.insert(operation.method.to_string());
    }
    for (path, methods) in described {
        let request = world.root.request(Method::from_bytes(b"NO-SUCH").expect("a method"), &path);
        let refused = Answer::of(request).await;
        assert_eq!(refused.status, 405, "{path}");
        let allowed =
            refused.header(header::ALLOW.as_str()).split(',').map(|method| method.trim().to_owned());
        let allowed: BTreeSet<_> = allowed.filter(|method| method != "HEAD").collect();
        assert_eq!(allowed, methods, "{path}");
    }
}

#[test]
fn the_reference_of_access_is_kept() {
    golden("reference/access.md", &access_page::render(&operations(), &CALLERS, &specified()));
}
