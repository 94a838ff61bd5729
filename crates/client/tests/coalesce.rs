//! A thousand tasks make a few requests, and a lone one does not wait: counted by the server.

mod common;

use common::{Behind, Sort};
use solehold_client::ClientSession;

/// How many requests the server has served on a path.
async fn requests(behind: &Behind, path: &str) -> u64 {
    let url = format!("{}/metrics", behind.running.as_ref().expect("a server").url());
    let metrics = reqwest::get(url).await.expect("an answer").text().await.expect("text");
    let is_count = |line: &&str| {
        line.starts_with("solehold_http_requests_total{") && line.contains(&format!("route=\"{path}\""))
    };
    let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
    metrics.lines().filter(is_count).filter_map(value).sum::<f64>() as u64
}

const ACQUIRE: &str = "/api/v1/leases/batch/acquire";
const RELEASE: &str = "/api/v1/leases/batch/release";

async fn acquire_all(session: &ClientSession, count: usize) -> Vec<solehold_client::Guard> {
    let tasks: Vec<_> = (0..count)
        .map(|n| {
            let session = session.clone();
            tokio::spawn(async move { session.acquire("job", &format!("job-{n}")).await.expect("granted") })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.expect("it ends"));
    }
    guards
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_tasks_make_a_few_requests() {
    let behind = Sort::HttpPostgres.start().await;
    let session = behind.session("one").await;
    // Makes the connection.
    session.acquire("job", "first").await.expect("granted").release().await.expect("released");
    let before = requests(&behind, ACQUIRE).await;
    assert!(before >= 1, "the counter is there");
    let guards = acquire_all(&session, 1_000).await;
    let asked = requests(&behind, ACQUIRE).await - before;
    assert_eq!(guards.len(), 1_000);
    println!("{asked} requests for 1000 acquires");
    assert!(asked <= 50, "{asked} requests for 1000 acquires");
    let before = requests(&behind, RELEASE).await;
    let releasing: Vec<_> = guards.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    for task in releasing {
        task.await.expect("it ends").expect("released");
    }
    let asked = requests(&behind, RELEASE).await - before;
    println!("{asked} requests for 1000 releases");
    assert!(asked <= 50, "{asked} requests for 1000 releases");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_operation_is_one_request_and_goes_at_once() {
    let behind = Sort::HttpMemory.start().await;
    let session = behind.session("one").await;
    for n in 0..20 {
        let before = requests(&behind, ACQUIRE).await;
        let guard = session.acquire("job", &format!("job-{n}")).await.expect("granted");
        assert_eq!(requests(&behind, ACQUIRE).await - before, 1);
        guard.release().await.expect("released");
    }
}
