//! How fast the PostgreSQL store commits batches, without HTTP or driver around it.
//!
//! ```text
//! cargo run --release -p solehold-engine --example postgres_batches -- postgres://... [resources] [batch] [seconds] [heartbeats]
//! ```
//! A round acquires a batch of declared resources in one commit and releases them in the next. With a number of
//! heartbeats, the quiet lane renews that many sessions at a time beside it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use solehold_core::{
    call::Call,
    command::*,
    decide_all,
    key::*,
    lease::Declaration,
    ledger::{FoundLate, Ledger},
    outcome::{Answer, Outcome},
    time::Moment,
};
use solehold_engine::{
    clock::BootTime,
    observe::Lane,
    postgres::{PostgresOptions, PostgresStore},
    store::{BatchDecision, Decider, Store, StoreError},
};
use uuid::Uuid;

struct TimedBatch {
    calls: Vec<Call>,
    outcomes: Vec<Outcome>,
}

impl Decider for TimedBatch {
    fn decide(&mut self, ledger: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
        let decisions = decide_all(ledger, &self.calls, moment)?;
        let decided = BatchDecision::from(&decisions);
        self.outcomes = decisions.outcomes;
        Ok(decided)
    }
}

async fn run(store: &PostgresStore, commands: Vec<Command>) -> Result<Vec<Outcome>, StoreError> {
    let mut footprint = Footprint::default();
    commands.iter().for_each(|command| command.footprint(&mut footprint));
    let lane = Lane::of(&commands);
    let mut batch =
        TimedBatch { calls: commands.into_iter().map(Into::into).collect(), outcomes: Vec::new() };
    store.transact(&footprint, lane, &mut batch).await?;
    Ok(batch.outcomes)
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn key(n: usize) -> ResourceKey {
    ResourceKey { tenant: name("bench"), kind: name("job"), key: name(&format!("job-{n:06}")) }
}

fn acquire(n: usize) -> Command {
    Command::Acquire(Acquire {
        key: key(n),
        lease: LeaseId::new(&key(n), Uuid::new_v4()),
        holder: name("worker-17"),
        tenure: AskedTenure::Own { ttl_ms: 30_000 },
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Refuse,
        wait: None,
        holds_at_most: None,
    })
}

/// Opens sessions and renews all of them, one batch after the other, until told to stop.
async fn beat(store: Arc<PostgresStore>, sessions: usize, stop: Arc<AtomicBool>, beats: Arc<AtomicU64>) {
    let tenant = name("bench");
    let mut ids = Vec::new();
    for n in 0..sessions {
        let id = SessionId(Uuid::now_v7());
        ids.push(id);
        let holder = HolderKey { tenant: tenant.clone(), name: name(&format!("holder-{n}")) };
        let open = Command::OpenSession(OpenSession {
            id,
            holder,
            ttl_ms: 30_000,
            replace: None,
            fenced: false,
            follows: None,
            registration: None,
            metrics: None,
        });
        run(&store, vec![open]).await.expect("opened");
    }
    while !stop.load(Ordering::Relaxed) && sessions > 0 {
        let beat = |id: &SessionId| Command::Heartbeat {
            tenant: tenant.clone(),
            session: *id,
            holder: None,
            metrics: None,
        };
        run(&store, ids.iter().map(beat).collect()).await.expect("renewed");
        beats.fetch_add(sessions as u64, Ordering::Relaxed);
    }
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let url = args.next().expect("a connection string");
    let mut number = |or: usize| args.next().map_or(or, |n| n.parse().expect("a number"));
    let resources = number(1_000);
    let batch = number(64);
    let seconds = number(5);
    let heartbeats = number(0);
    let store = PostgresStore::open(&url, PostgresOptions::default()).await.expect("a store");
    let declare = |n| Command::Declare { key: key(n), declaration: Declaration::default(), only_new: false };
    for from in (0..resources).step_by(1_000) {
        run(&store, (from..resources.min(from + 1_000)).map(declare).collect()).await.expect("declared");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let beats = Arc::new(AtomicU64::new(0));
    let beating = tokio::spawn(beat(store.clone(), heartbeats, stop.clone(), beats.clone()));
    let began = BootTime::now();
    let mut batches = 0_u32;
    let mut slowest = Duration::ZERO;
    let mut at = 0;
    while BootTime::now().since(began) < Duration::from_secs(seconds as u64) {
        let round = BootTime::now();
        let keys: Vec<_> = (0..batch).map(|n| (at + n * 7) % resources).collect();
        at = (at + batch * 7 + 1) % resources;
        let mut granted: Vec<_> = Vec::new();
        for outcome in run(&store, keys.into_iter().map(acquire).collect()).await.expect("acquired") {
            if let Ok(Answer::Granted(grant)) = outcome {
                granted.push((grant.lease.key, grant.lease.lease.token));
            }
        }
        let release = |(key, token)| {
            let claim =
                Claim { target: Target::Resource(key), token: Some(token), session: None, holder: None };
            Command::Release { claim, state: None }
        };
        run(&store, granted.into_iter().map(release).collect()).await.expect("released");
        slowest = slowest.max(BootTime::now().since(round));
        batches += 2;
    }
    let took = BootTime::now().since(began).as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    beating.await.expect("beats");
    let batches_s = f64::from(batches) / took;
    let beats = beats.load(Ordering::Relaxed) as f64 / took;
    println!(
        "{batches_s:.0} batches/s of {batch}: {:.0} acquire+release cycles/s; slowest round {slowest:?}; {beats:.0} heartbeats/s",
        batches_s * batch as f64 / 2.0
    );
}
