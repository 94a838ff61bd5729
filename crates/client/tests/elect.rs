//! One leader at a time, and another when it goes.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{PATIENCE, Sort};
use solehold_client::{SessionConfig, elect};
use solehold_testkit::wait_for;
use tokio::sync::mpsc;

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_the_next_follows() {
    for sort in [Sort::Memory, Sort::HttpMemory] {
        let behind = sort.start().await;
        let leading = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let (elected, mut leaders) = mpsc::channel(16);
        let mut candidates = Vec::new();
        for n in 0..3 {
            let config =
                SessionConfig { ttl: Duration::from_secs(2), ..SessionConfig::new(format!("node-{n}")) };
            let session = behind.session_with(config).await;
            let leading = leading.clone();
            let most = most.clone();
            let elected = elected.clone();
            candidates.push((
                session.clone(),
                tokio::spawn(async move {
                    let lead = |guard: Arc<solehold_client::Guard>| {
                        let leading = leading.clone();
                        let most = most.clone();
                        let elected = elected.clone();
                        async move {
                            let _in_office = InOffice::take(leading, &most);
                            elected.send((n, guard.token())).await.expect("someone counts");
                            std::future::pending::<()>().await
                        }
                    };
                    elect(&session, "compactor", lead).await.map(drop)
                }),
            ));
        }
        let (first, token) = leaders.recv().await.expect("a leader");
        // Its session is closed behind its back: it stands again, and another one leads meanwhile.
        let session = candidates[first].0.id().expect("open");
        behind.authority.close(session).await.expect("an outcome").expect("closed");
        let (second, later) =
            tokio::time::timeout(PATIENCE, leaders.recv()).await.expect("in time").expect("a leader");
        assert!(second != first && later > token);
        // A leader that is gone for good makes room at once.
        candidates[second].1.abort();
        let (third, last) =
            tokio::time::timeout(PATIENCE, leaders.recv()).await.expect("in time").expect("a leader");
        assert!(third != second && last > later);
        let is_alone = async || leading.load(Ordering::SeqCst) == 1;
        wait_for("the former leaders to be gone", PATIENCE, is_alone).await.expect("alone");
    }
}

struct InOffice(Arc<AtomicUsize>);

impl InOffice {
    fn take(leading: Arc<AtomicUsize>, most: &AtomicUsize) -> Self {
        most.fetch_max(leading.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Self(leading)
    }
}

impl Drop for InOffice {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_done_gives_its_answer() {
    let behind = Sort::Memory.start().await;
    let session = behind.session("one").await;
    let done = elect(&session, "report", |guard| async move { guard.token().0 * 2 }).await.expect("elected");
    assert!(done > 0);
    assert!(session.try_acquire("role", "report").await.is_ok(), "the role is free again");
    let bad = elect(&session, "", |_| async {}).await.expect_err("no name");
    assert_eq!(bad.to_string(), "the role is empty; a name has 1 to 255 bytes");
}
