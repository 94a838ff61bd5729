//! A fleet with a hand-written lock table is migrated node by node, without stopping: real PostgreSQL, old and new
//! nodes side by side.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use solehold_client::{Authority, Cluster, ClusterConfig, Embedded, SessionLocksConfig, clock::BootTime};
use solehold_testkit::{Postgres, wait_for};
use tokio_postgres::NoTls;

use super::{LegacyTable, LockLost, LockedSession, RowError, RowState, lock_session};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);
const TABLE: &str = "CREATE TABLE session_locks (session_id TEXT PRIMARY KEY, owner_id TEXT, \
                     acquired_at TIMESTAMPTZ, expires_at TIMESTAMPTZ)";
const SESSIONS: usize = 4;

async fn database() -> String {
    Postgres::shared().await.expect("a server").create_database("gateway").await.expect("a database")
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// A node as it was before: the table, and nothing else.
struct OldNode {
    client: tokio_postgres::Client,
    owner: String,
}

impl OldNode {
    async fn try_lock(&self, session: &str) -> bool {
        let sql = "INSERT INTO session_locks VALUES ($1, $2, now(), now() + interval '5 seconds') \
                   ON CONFLICT (session_id) DO UPDATE SET owner_id = $2, acquired_at = now(), \
                   expires_at = now() + interval '5 seconds' WHERE session_locks.expires_at < now()";
        self.client.execute(sql, &[&session, &self.owner]).await.expect("an answer") > 0
    }

    async fn lock(&self, session: &str) {
        wait_for("a row", PATIENCE, async || self.try_lock(session).await).await.expect("its turn");
    }

    async fn unlock(&self, session: &str) {
        let sql = "DELETE FROM session_locks WHERE session_id = $1 AND owner_id = $2";
        assert_eq!(self.client.execute(sql, &[&session, &self.owner]).await.expect("an answer"), 1);
    }
}

/// Who works on which session now, and how much was done.
#[derive(Default)]
struct Work {
    now: Mutex<HashMap<String, String>>,
    done: AtomicUsize,
}

impl Work {
    /// Works on a session for a moment.
    async fn on(&self, session: &str, node: &str) {
        let other = self.now.lock().expect("unhurt").insert(session.to_owned(), node.to_owned());
        assert_eq!(other, None, "{node} works on {session} beside another");
        tokio::task::yield_now().await;
        self.now.lock().expect("unhurt").remove(session);
        self.done.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Generation {
    Old,
    Bridging,
    New,
}

/// A node that works on all sessions in turn until it is told to stop.
struct Worker {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
    turns: Arc<AtomicUsize>,
}

fn config(node_id: &str) -> ClusterConfig {
    let session_locks = SessionLocksConfig {
        enabled: true,
        ttl: Duration::from_secs(5),
        refresh_interval: Duration::from_secs(1),
        acquire_timeout: PATIENCE,
        poll_interval: Duration::from_millis(10),
    };
    let node_id = Some(node_id.to_owned());
    ClusterConfig { enabled: true, node_id, session_locks, ..ClusterConfig::default() }
}

/// A node of this gateway.
struct Node {
    cluster: Cluster,
    table: Option<LegacyTable>,
}

impl Node {
    async fn start(authority: &Arc<dyn Authority>, url: &str, name: &str, generation: Generation) -> Self {
        let cluster = Cluster::start(authority.clone(), config(name)).await.expect("a node");
        let is_bridging = generation == Generation::Bridging;
        Self { cluster, table: is_bridging.then(|| LegacyTable::at(url).expect("a URL")) }
    }

    async fn lock(&self, session: &str) -> LockedSession {
        let locked = lock_session(&self.cluster, self.table.as_ref(), session).await;
        locked.expect("its turn").expect("enabled")
    }

    async fn can_lock(&self, session: &str) -> bool {
        self.cluster.locks().expect("enabled").try_acquire(session).await.is_ok()
    }
}

impl LockedSession {
    fn deadline(&self) -> BootTime {
        match self.row.as_ref().map(|row| row.borrow()).as_deref() {
            Some(RowState::Held(until)) => self.guard.deadline().min(*until),
            Some(RowState::Waiting | RowState::Over(_)) | None => self.guard.deadline(),
        }
    }
}

async fn start(
    authority: &Arc<dyn Authority>,
    url: &str,
    work: &Arc<Work>,
    generation: Generation,
    number: usize,
) -> Worker {
    let name = format!("{generation:?}-{number}");
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicUsize::new(0));
    let work = work.clone();
    let stopped = stop.clone();
    let turned = turns.clone();
    let task = if generation == Generation::Old {
        let node = OldNode { client: connect(url).await, owner: name.clone() };
        tokio::spawn(async move {
            for session in (0..).map(|n| format!("chat-{}", n % SESSIONS)) {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                node.lock(&session).await;
                work.on(&session, &name).await;
                node.unlock(&session).await;
                turned.fetch_add(1, Ordering::SeqCst);
            }
        })
    } else {
        let node = Node::start(authority, url, &name, generation).await;
        tokio::spawn(async move {
            for session in (0..).map(|n| format!("chat-{}", n % SESSIONS)) {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let locked = node.lock(&session).await;
                locked.run(work.on(&session, &name)).await.expect("held");
                locked.release().await.expect("released");
                turned.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    Worker { stop, task, turns }
}

impl Worker {
    async fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("it worked without fault");
    }
}

async fn all_go_on(workers: &[Worker]) {
    let before: Vec<_> = workers.iter().map(|worker| worker.turns.load(Ordering::SeqCst)).collect();
    let go_on = async || {
        let turns = workers.iter().map(|worker| worker.turns.load(Ordering::SeqCst));
        turns.zip(&before).all(|(now, before)| now >= before + 2 * SESSIONS)
    };
    wait_for("every node to work on", PATIENCE, go_on).await.expect("nobody starves");
    assert!(workers.iter().all(|worker| !worker.task.is_finished()), "a node has failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_migrated_node_by_node() {
    let url = database().await;
    connect(&url).await.batch_execute(TABLE).await.expect("the old table");
    let authority: Arc<dyn Authority> = Arc::new(Embedded::open(&url).await.expect("an engine"));
    let work = Arc::new(Work::default());
    let mut fleet = Vec::new();
    for number in 0..3 {
        fleet.push(start(&authority, &url, &work, Generation::Old, number).await);
    }
    all_go_on(&fleet).await;
    // Every step of the guide: all nodes to the next generation, one after the other, never an old one beside a new
    // one.
    for generation in [Generation::Bridging, Generation::New] {
        for number in 0..3 {
            fleet.remove(0).stop().await;
            fleet.push(start(&authority, &url, &work, generation, number).await);
            all_go_on(&fleet).await;
        }
    }
    for worker in fleet {
        worker.stop().await;
    }
    println!("{} pieces of work", work.done.load(Ordering::SeqCst));
    let is_clean = async || {
        let rows = connect(&url).await.query_one("SELECT count(*) FROM session_locks", &[]).await;
        rows.expect("an answer").get::<_, i64>(0) == 0
    };
    wait_for("the old table to be empty", PATIENCE, is_clean).await.expect("nothing is left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridging_node_holds_both_locks_or_neither() {
    let url = database().await;
    let client = connect(&url).await;
    client.batch_execute(TABLE).await.expect("the old table");
    let authority: Arc<dyn Authority> = Arc::new(Embedded::open(&url).await.expect("an engine"));
    let bridge = Node::start(&authority, &url, "bridge", Generation::Bridging).await;
    let new = Node::start(&authority, &url, "new", Generation::New).await;
    let old = OldNode { client: connect(&url).await, owner: "old".to_owned() };

    // The row excludes an old node, the lock a new one.
    let locked = bridge.lock("a").await;
    assert!(!old.try_lock("a").await);
    assert!(!new.can_lock("a").await);
    let first = locked.deadline();
    let is_renewed =
        async || locked.deadline() > first.plus(Duration::from_secs(5)) && !old.try_lock("a").await;
    wait_for("both to be renewed", PATIENCE, is_renewed).await.expect("renewed");
    locked.release().await.expect("released");
    wait_for("the row", PATIENCE, async || old.try_lock("a").await).await.expect("deleted");
    old.unlock("a").await;

    // A lost row ends the work; the lock is free when the session is dropped.
    let locked = bridge.lock("a").await;
    client.execute("UPDATE session_locks SET owner_id = 'thief'", &[]).await.expect("an answer");
    let lost =
        tokio::time::timeout(PATIENCE, locked.run(std::future::pending::<()>())).await.expect("dropped");
    assert!(matches!(lost, Err(LockLost::Row(RowError::Taken))), "{lost:?}");
    assert!(locked.check().is_err() && locked.run(async {}).await.is_err());
    drop(locked);
    wait_for("the lock", PATIENCE, async || new.can_lock("a").await).await.expect("free");
    let thief = client.query_one("SELECT owner_id FROM session_locks", &[]).await.expect("a row");
    assert_eq!(thief.get::<_, String>(0), "thief", "another owner's row is left alone");
    client.execute("DELETE FROM session_locks", &[]).await.expect("an answer");

    // A cancelled wait leaves neither.
    let held = new.lock("a").await;
    let waiting = tokio::spawn(async move { drop(bridge.lock("a").await) });
    wait_for("the row to be taken", PATIENCE, async || !old.try_lock("a").await).await.expect("taken");
    waiting.abort();
    wait_for("the row to be deleted", PATIENCE, async || old.try_lock("a").await).await.expect("free");
    held.release().await.expect("released");
}
