//! Locks: one at a time, in the order of asking, and a line that is left clean.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use common::{Behind, PATIENCE, Sort};
use solehold_client::{
    AcquireError, Authority, AuthorityError, LeaseId, LockConfig, Locks, Metrics, ResourceName, SessionId,
    authority::{
        AcquireRequest, Attributes, Beat, Completion, GrantedLease, HeartbeatAttempt, HeldLease, Node,
        Opening, Operation, Reply, StateDocument, StateWrite,
    },
};
use solehold_core::{key::Name, time::Token};
use solehold_testkit::wait_for;
use uuid::Uuid;

fn config() -> LockConfig {
    LockConfig { acquire_timeout: PATIENCE, ..LockConfig::default() }
}

async fn locks(behind: &Behind, holder: &str) -> Locks {
    Locks::open(behind.authority.clone(), holder, config()).await.expect("locks")
}

async fn for_all(test: impl AsyncFn(&Behind)) {
    for sort in Sort::ALL {
        println!("{sort:?}");
        test(&sort.start().await).await;
    }
}

/// Waits until so many stand in line.
async fn in_line(behind: &Behind, lock: &str, count: u32) {
    let are_there = async || behind.queued("lock", lock).await == Some(count);
    wait_for(&format!("{count} in line"), PATIENCE, are_there).await.expect("they come");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_in_the_order_of_their_coming() {
    for_all(async |behind| {
        let nodes = [locks(behind, "a").await, locks(behind, "b").await, locks(behind, "c").await];
        let held = nodes[0].acquire("chat/7").await.expect("free");
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for n in 0..12 {
            let locks = nodes[n % 3].clone();
            let order = order.clone();
            waiting.push(tokio::spawn(async move {
                let guard = locks.acquire("chat/7").await.expect("its turn");
                order.lock().expect("unhurt").push((n, guard.token()));
                assert!(guard.is_live());
                guard.release().await.expect("released");
            }));
            in_line(behind, "chat/7", n as u32 + 1).await;
        }
        held.release().await.expect("released");
        for task in waiting {
            task.await.expect("it ends");
        }
        let order = order.lock().expect("unhurt").clone();
        let (who, tokens): (Vec<_>, Vec<_>) = order.iter().copied().unzip();
        assert_eq!(who, (0..12).collect::<Vec<_>>());
        assert!(tokens.is_sorted());
        in_line(behind, "chat/7", 0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_process_exclude_each_other() {
    for_all(async |behind| {
        let locks = locks(behind, "one").await;
        let inside = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..40)
            .map(|_| {
                let locks = locks.clone();
                let inside = inside.clone();
                let most = most.clone();
                tokio::spawn(async move {
                    let guard = locks.acquire("one at a time").await.expect("its turn");
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("released");
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it ends");
        }
        assert_eq!(most.load(Ordering::SeqCst), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_leaves_the_line_clean() {
    for_all(async |behind| {
        let one = locks(behind, "one").await;
        let two = locks(behind, "two").await;
        let held = one.acquire("a").await.expect("free");
        let gone: Vec<_> = (0..5)
            .map(|_| {
                let two = two.clone();
                tokio::spawn(async move { two.acquire("a").await.map(drop) })
            })
            .collect();
        in_line(behind, "a", 5).await;
        let last = tokio::spawn({
            let two = two.clone();
            async move { two.acquire("a").await.expect("its turn") }
        });
        in_line(behind, "a", 6).await;
        for task in gone {
            task.abort();
        }
        in_line(behind, "a", 1).await;
        held.release().await.expect("released");
        let guard = tokio::time::timeout(PATIENCE, last).await.expect("in time").expect("it ends");
        guard.release().await.expect("released");
        in_line(behind, "a", 0).await;
        one.try_acquire("a").await.expect("free again").release().await.expect("released");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_too_long_names_who_holds_it() {
    for_all(async |behind| {
        let one = locks(behind, "one").await;
        let two = locks(behind, "two").await;
        let held = one.acquire("a").await.expect("free");
        // On a busy machine no answer may come in time, and so no name.
        wait_for("an answer in time", PATIENCE, async || {
            let error = two.acquire_within("a", Duration::from_millis(300)).await.expect_err("held");
            assert!(matches!(error, AcquireError::TimedOut { .. }));
            error.to_string() == "lock/a was not acquired in time: one holds it"
        })
        .await
        .expect("the holder's name");
        in_line(behind, "a", 0).await;
        assert!(held.is_live());
        let error = two.acquire("").await.expect_err("no name");
        assert_eq!(error.to_string(), "the name of the lock is empty; a name has 1 to 255 bytes");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_resource_can_be_waited_for_in_line() {
    for_all(async |behind| {
        let one = behind.session("one").await;
        let two = behind.session("two").await;
        let held = one.try_acquire("job", "a").await.expect("free");
        let error = two.acquire_within("job", "a", Duration::from_millis(300)).await.expect_err("held");
        assert_eq!(error.to_string(), "job/a was not acquired in time: one holds it");
        let next = tokio::spawn({
            let two = two.clone();
            async move { two.acquire_within("job", "a", PATIENCE).await }
        });
        let is_waiting = async || behind.queued("job", "a").await == Some(1);
        wait_for("someone in line", PATIENCE, is_waiting).await.expect("in line");
        let token = held.token();
        held.release().await.expect("released");
        let guard = next.await.expect("no panic").expect("its turn");
        assert!(guard.token() > token && guard.is_live());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_dies_makes_room_for_the_next() {
    for_all(async |behind| {
        let short = LockConfig {
            ttl: Duration::from_secs(1),
            refresh_interval: Duration::from_millis(300),
            ..config()
        };
        // A session that nobody keeps: opened straight at the authority.
        let holder = Name::new("dead").expect("a name");
        let id = SessionId(Uuid::now_v7());
        let ttl = short.ttl;
        let metrics = Metrics::new();
        let opening = Opening { id, holder: holder.clone(), ttl, metrics, follows: None };
        let opened = behind.authority.open(&opening).await;
        let session = opened.expect("an outcome").expect("open").session;
        let resource = ResourceName::new("lock", "a").expect("names");
        let request = Name::new("r").expect("a name");
        let attributes = Attributes::new();
        let ask = Operation::Acquire(AcquireRequest {
            resource,
            holder,
            session,
            request,
            attributes,
            slots: None,
        });
        behind.authority.submit(vec![ask]).await.remove(0).expect("an outcome").expect("granted");
        let two = Locks::open(behind.authority.clone(), "two", short).await.expect("locks");
        let guard = two.acquire("a").await.expect("after the ttl");
        assert!(guard.is_live());
    })
    .await;
}

/// A thousand in line, handed over in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waiters() {
    for sort in [Sort::Memory, Sort::HttpMemory, Sort::HttpPostgres] {
        let behind = sort.start().await;
        let config = LockConfig { acquire_timeout: PATIENCE * 5, ..config() };
        let locks = Locks::open(behind.authority.clone(), "crowd", config).await.expect("locks");
        let held = locks.acquire("a").await.expect("free");
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..1_000)
            .map(|_| {
                let locks = locks.clone();
                let order = order.clone();
                tokio::spawn(async move {
                    let guard = locks.acquire("a").await.expect("its turn");
                    order.lock().expect("unhurt").push(guard.token());
                    guard.release().await.expect("released");
                })
            })
            .collect();
        in_line(&behind, "a", 1_000).await;
        held.release().await.expect("released");
        for task in tasks {
            task.await.expect("it ends");
        }
        let order = order.lock().expect("unhurt").clone();
        assert!(order.len() == 1_000 && order.is_sorted(), "{sort:?}: in the order of their tokens");
        in_line(&behind, "a", 0).await;
    }
}

/// An authority that has no line to wait in, as an older server.
struct Lineless(Arc<dyn Authority>);

#[async_trait]
impl Authority for Lineless {
    async fn open(&self, opening: &Opening) -> Reply<Beat> {
        self.0.open(opening).await
    }
    async fn heartbeat(
        &self,
        session: SessionId,
        metrics: &Metrics,
        sealed_cursor: Option<&str>,
        known: Option<&Beat>,
        attempt: HeartbeatAttempt,
    ) -> Reply<Beat> {
        self.0.heartbeat(session, metrics, sealed_cursor, known, attempt).await
    }
    async fn close(&self, session: SessionId) -> Reply<()> {
        self.0.close(session).await
    }
    async fn submit(&self, operations: Vec<Operation>) -> Vec<Reply<Completion>> {
        self.0.submit(operations).await
    }
    async fn acquire_waiting(&self, _: &AcquireRequest, _: Duration) -> Option<Reply<GrantedLease>> {
        None
    }
    async fn cancel(&self, resource: &ResourceName, holder: &Name, request: &Name) -> Reply<()> {
        self.0.cancel(resource, holder, request).await
    }
    async fn write_state(&self, held: &HeldLease, write: &StateWrite) -> Reply<()> {
        self.0.write_state(held, write).await
    }
    async fn read_state(&self, resource: &ResourceName) -> Reply<Option<StateDocument>> {
        self.0.read_state(resource).await
    }
    async fn token_before(&self, resource: &ResourceName, grant: Token) -> Reply<Option<Token>> {
        self.0.token_before(resource, grant).await
    }
    async fn hand_over(
        &self,
        resource: &ResourceName,
        request: Uuid,
        to: SessionId,
        within: Duration,
        attributes: &Attributes,
    ) -> Reply<LeaseId> {
        self.0.hand_over(resource, request, to, within, attributes).await
    }
    async fn call_off(&self, resource: &ResourceName, pending: LeaseId) -> Reply<()> {
        self.0.call_off(resource, pending).await
    }
    async fn nodes(&self) -> Result<Vec<Node>, AuthorityError> {
        self.0.nodes().await
    }
    fn wait_max(&self) -> Duration {
        self.0.wait_max()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_line_it_is_asked_for_every_now_and_then() {
    let behind = Sort::HttpMemory.start().await;
    let authority = Arc::new(Lineless(behind.authority.clone()));
    let quick = LockConfig { poll_interval: Duration::from_millis(20), ..config() };
    let one = Locks::open(authority.clone(), "one", quick).await.expect("locks");
    let two = Locks::open(authority, "two", quick).await.expect("locks");
    let held = one.acquire("a").await.expect("free");
    let error = two.acquire_within("a", Duration::from_millis(100)).await.expect_err("held");
    assert_eq!(error.to_string(), "lock/a was not acquired in time: one holds it");
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.acquire("a").await.expect("its turn").token() }
    });
    let token = held.token();
    held.release().await.expect("released");
    assert!(waiting.await.expect("it ends") > token);
}
