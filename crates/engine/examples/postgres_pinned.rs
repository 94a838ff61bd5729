//! What a long snapshot, as a dump or an export holds it, costs batches and renewals: both are run without one and then
//! under one, and the ratio is printed: of the time, and of the pages that PostgreSQL looks at, which no other load on
//! the machine can change.
//!
//! ```text
//! cargo run --release -p solehold-engine --example postgres_pinned -- postgres://... [rows] [batches]
//! ```
//! Each batch touches other rows than the last ones, so that what shows is what all of them share: the clock.

use std::time::Duration;

use solehold_core::{
    call::Call, command::*, decide_all, key::*, lease::Declaration, ledger::FoundLate, ledger::Ledger,
    outcome::Answer, outcome::Outcome, time::Moment,
};
use solehold_engine::{
    clock::BootTime,
    observe::Lane,
    postgres::{PostgresOptions, PostgresStore},
    store::{BatchDecision, Decider, Store},
};
use tokio_postgres::NoTls;
use uuid::Uuid;

#[derive(Default)]
struct PinnedBatch {
    calls: Vec<Call>,
    outcomes: Vec<Outcome>,
}

impl Decider for PinnedBatch {
    fn decide(&mut self, ledger: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
        let decisions = decide_all(ledger, &self.calls, moment)?;
        let decided = BatchDecision::from(&decisions);
        self.outcomes = decisions.outcomes;
        Ok(decided)
    }
}

async fn run(store: &PostgresStore, command: Command) -> Answer {
    let mut footprint = Footprint::default();
    command.footprint(&mut footprint);
    let lane = Lane::of([&command]);
    let mut batch = PinnedBatch { calls: vec![command.into()], ..Default::default() };
    store.transact(&footprint, lane, &mut batch).await.expect("the store answers");
    batch.outcomes.remove(0).expect("not refused")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn session(n: usize) -> SessionId {
    SessionId(Uuid::from_u128(n as u128 + 1))
}

fn each(pages: i64, batches: usize) -> i64 {
    pages / batches as i64
}

/// The middle one of many durations.
fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// Runs as many batches, each with a renewal after it; tells how long the last half of them took each.
async fn measure(store: &PostgresStore, rows: usize, batches: usize) -> [Duration; 2] {
    let mut took = [Vec::new(), Vec::new()];
    for n in 0..batches {
        let key =
            ResourceKey { tenant: name("bench"), kind: name("job"), key: name(&format!("job-{}", n % rows)) };
        // Something else each time it comes round.
        let declaration = Declaration { lock_delay_ms: (n / rows % 2) as u64, ..Default::default() };
        let declare = Command::Declare { key, declaration, only_new: false };
        let tenant = name("bench");
        let session = session(n % rows);
        let beat = Command::Heartbeat { tenant, session, holder: None, metrics: None };
        for (took, command) in took.iter_mut().zip([declare, beat]) {
            let began = BootTime::now();
            run(store, command).await;
            if n >= batches / 2 {
                took.push(BootTime::now().since(began));
            }
        }
    }
    took.map(median)
}

/// The pages that PostgreSQL has looked at in this database so far. Other connections report theirs within a second.
async fn pages(client: &tokio_postgres::Client) -> i64 {
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let sum =
        "SELECT (blks_hit + blks_read)::bigint FROM pg_stat_database WHERE datname = current_database()";
    client.query_one(sum, &[]).await.expect("statistics").get(0)
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let url = args.next().expect("a connection string");
    let mut number = |or: usize| args.next().map_or(or, |n| n.parse().expect("a number"));
    let rows = number(2_000);
    let batches = number(20_000);
    let store = PostgresStore::open(&url, PostgresOptions::default()).await.expect("a store");
    for n in 0..rows {
        let open = Command::OpenSession(OpenSession {
            id: session(n),
            holder: HolderKey { tenant: name("bench"), name: name(&format!("holder-{n}")) },
            ttl_ms: 24 * 3_600_000,
            replace: None,
            fenced: false,
            follows: None,
            registration: None,
            metrics: None,
        });
        run(&store, open).await;
    }
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    let (reader, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    // Once over all rows before it counts: they are all new.
    measure(&store, rows, rows).await;
    let began = pages(&reader).await;
    let [batch, renewal] = measure(&store, rows, batches).await;
    let without = pages(&reader).await - began;
    println!(
        "without a snapshot: batch {batch:?}, renewal {renewal:?}, {} pages for both",
        each(without, batches)
    );
    let level = tokio_postgres::IsolationLevel::RepeatableRead;
    let pinned = client.build_transaction().isolation_level(level).start().await.expect("a transaction");
    pinned.query("SELECT count(*) FROM solehold.clock", &[]).await.expect("a snapshot");
    let began = pages(&reader).await;
    let [slow_batch, slow_renewal] = measure(&store, rows, batches).await;
    let under = pages(&reader).await - began;
    println!(
        "after {batches} batches under one: batch {slow_batch:?}, renewal {slow_renewal:?}, {} pages for both",
        each(under, batches)
    );
    println!(
        "ratio: batch {:.2}, renewal {:.2}, pages {:.2}",
        slow_batch.as_secs_f64() / batch.as_secs_f64(),
        slow_renewal.as_secs_f64() / renewal.as_secs_f64(),
        under as f64 / without as f64
    );
}
