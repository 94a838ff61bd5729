//! Gateways on one database: who starts beside whom, who is there, and who serves what.

mod common;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use common::{Behind, PATIENCE, Sort};
use serde_json::json;
use solehold_client::{Cluster, ClusterConfig, ClusterError, Lost, Metrics, SessionLocksConfig};
use solehold_testkit::{package_file, wait_for};

/// What becomes of a gateway that starts alone, and of a second one of the same configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Starts,
    StartsWithWarning,
    IsRefused,
}

use Start::{IsRefused, Starts, StartsWithWarning};

impl Start {
    fn in_words(self) -> &'static str {
        match self {
            Starts => "starts",
            StartsWithWarning => "starts, with a warning",
            IsRefused => "is refused; the error names the other",
        }
    }
}

/// `enabled`, `allow_multiple_gateways`, `session_locks.enabled`: alone, a second gateway. The guide has the same
/// table.
const TABLE: [([bool; 3], [Start; 2]); 8] = [
    ([false, false, false], [Starts, IsRefused]),
    ([false, false, true], [StartsWithWarning, IsRefused]),
    ([false, true, false], [StartsWithWarning, IsRefused]),
    ([false, true, true], [StartsWithWarning, IsRefused]),
    ([true, false, false], [StartsWithWarning, IsRefused]),
    ([true, false, true], [Starts, Starts]),
    ([true, true, false], [StartsWithWarning, StartsWithWarning]),
    ([true, true, true], [Starts, Starts]),
];

fn config([enabled, allow_multiple_gateways, locks]: [bool; 3], node_id: &str) -> ClusterConfig {
    let session_locks = SessionLocksConfig {
        enabled: locks,
        ttl: Duration::from_secs(6),
        refresh_interval: Duration::from_secs(1),
        acquire_timeout: PATIENCE,
        ..SessionLocksConfig::default()
    };
    ClusterConfig { enabled, allow_multiple_gateways, session_locks, node_id: Some(node_id.to_owned()) }
}

const CLUSTERED: [bool; 3] = [true, false, true];
const ALONE: [bool; 3] = [false, false, false];

async fn start(behind: &Behind, flags: [bool; 3], node_id: &str) -> Result<Cluster, ClusterError> {
    Cluster::start(behind.authority.clone(), config(flags, node_id)).await
}

fn came_to(started: &Result<Cluster, ClusterError>) -> Start {
    match started {
        Ok(cluster) if cluster.warnings().is_empty() => Starts,
        Ok(_) => StartsWithWarning,
        Err(ClusterError::AnotherGateway { .. }) => IsRefused,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_combination_alone_and_beside_another() {
    for sort in [Sort::Memory, Sort::HttpMemory, Sort::Postgres] {
        for (flags, [alone, second]) in TABLE {
            let behind = sort.start().await;
            let first = start(&behind, flags, "first").await;
            assert_eq!(came_to(&first), alone, "{flags:?} alone");
            let other = start(&behind, flags, "second").await;
            assert_eq!(came_to(&other), second, "{flags:?} beside another");
            if let Err(error) = &other {
                assert!(
                    error.to_string().starts_with("gateway first runs on this database already"),
                    "{error}"
                );
                let remedy = error.to_string().contains("cluster.session_locks.enabled on all of them");
                assert!(remedy, "{error}");
            }
            let first = first.expect("it started");
            assert_eq!(first.locks().is_some(), flags[0] && flags[2]);
            let locked = first.lock_session("chat-1").await.expect("locked, or no need to");
            assert_eq!(locked.is_some(), flags[0] && flags[2]);
        }
    }
}

#[test]
fn the_guide_has_the_same_table() {
    let path = package_file("../../docs/guides/cluster.md");
    let guide = std::fs::read_to_string(path).expect("the guide");
    for ([enabled, allow, locks], [alone, second]) in TABLE {
        let row = format!("| {enabled} | {allow} | {locks} | {} | {} |", alone.in_words(), second.in_words());
        assert!(guide.contains(&row), "the guide lacks: {row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_gateway_makes_room_when_it_goes_and_knows_itself_when_it_comes_back() {
    let behind = Sort::Memory.start().await;
    let first = start(&behind, ALONE, "first").await.expect("alone");
    assert!(start(&behind, ALONE, "second").await.is_err());
    // Restarted under its own name before it was missed: it is no other.
    let again = tokio::time::timeout(PATIENCE, start(&behind, ALONE, "first")).await.expect("in time");
    let again = again.expect("it is the same node");
    let lost = tokio::time::timeout(PATIENCE, first.lost()).await.expect("the former self is told");
    assert!(lost.to_string().contains("superseded"), "{lost}");
    drop((first, again));
    let is_free = async || start(&behind, ALONE, "second").await.is_ok();
    wait_for("the gateway lock", PATIENCE, is_free).await.expect("free");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_makes_room_at_once() {
    for sort in [Sort::Memory, Sort::HttpMemory] {
        let behind = sort.start().await;
        let first = Arc::new(start(&behind, ALONE, "first").await.expect("alone"));
        // A server that has stopped may still keep its handlers, and with them the cluster, for a moment.
        let kept = first.clone();
        first.leave().await;
        start(&behind, ALONE, "second").await.expect("alone again");
        let lost = tokio::time::timeout(PATIENCE, kept.lost()).await.expect("it is not alone any more");
        assert!(matches!(lost, Lost::Closed), "{lost}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_mode_bypasses_the_gateway_lock_and_a_lone_one_sees_the_others() {
    let behind = Sort::Memory.start().await;
    let lone = start(&behind, ALONE, "lone").await.expect("alone");
    let clustered = start(&behind, CLUSTERED, "clustered").await.expect("it does not ask for that lock");
    drop(lone);
    let refused = async || match start(&behind, ALONE, "another").await {
        Err(ClusterError::AnotherGateway { other, .. }) => other == "clustered",
        _ => false,
    };
    wait_for("a lone one to be refused beside it", PATIENCE, refused).await.expect("refused");
    drop(clustered);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_configuration_does_not_start() {
    let behind = Sort::Memory.start().await;
    let mut bad = config(CLUSTERED, "x");
    bad.session_locks.refresh_interval = Duration::from_secs(3);
    let error = Cluster::start(behind.authority.clone(), bad).await.expect_err("not below half");
    assert!(error.to_string().contains("not below half of the ttl"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_locked_across_nodes() {
    for sort in [Sort::Memory, Sort::HttpMemory] {
        let behind = sort.start().await;
        let a = start(&behind, CLUSTERED, "a").await;
        let b = start(&behind, CLUSTERED, "b").await;
        let a = a.expect("a");
        let b = Arc::new(b.expect("b"));
        let held = a.lock_session("chat-7").await.expect("free").expect("enabled");
        let waiting = tokio::spawn({
            let b = b.clone();
            async move { b.lock_session("chat-7").await.expect("its turn").expect("enabled").token() }
        });
        b.lock_session("chat-8")
            .await
            .expect("another session")
            .expect("enabled")
            .release()
            .await
            .expect("released");
        let token = held.token();
        held.release().await.expect("released");
        assert!(waiting.await.expect("it ends") > token);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_sees_every_node_and_routes_alike() {
    for sort in [Sort::Memory, Sort::HttpPostgres] {
        let behind = sort.start().await;
        let mut nodes = Vec::new();
        for name in ["a", "b", "c"] {
            nodes.push(start(&behind, CLUSTERED, name).await.expect(name));
        }
        // Someone else's session is no gateway.
        let _worker = behind.session("worker").await;
        let metrics: Metrics = json!({"cpu": 0.7, "weight": 3}).as_object().cloned().expect("an object");
        nodes[1].set_metrics(&metrics);
        for node in &nodes {
            let is_seen = async || {
                // On a busy machine the server may not answer in time.
                let Ok(seen) = node.nodes().await else { return false };
                let names: Vec<_> = seen.iter().map(|node| node.node_id.as_str()).collect();
                names == ["a", "b", "c"] && seen[1].metrics.get("cpu") == Some(&json!(0.7))
            };
            wait_for("all nodes and their metrics", PATIENCE, is_seen).await.expect("seen");
        }
        let mut shares = std::collections::BTreeMap::new();
        for n in 0..1_000 {
            let key = format!("chat-{n}");
            let homes: BTreeSet<_> = [
                nodes[0].route(&key).await.expect("a route"),
                nodes[1].route(&key).await.expect("a route"),
                nodes[2].route(&key).await.expect("a route"),
            ]
            .into();
            assert_eq!(homes.len(), 1, "{key} goes to {homes:?}");
            if let Some(running) = behind.running.as_ref().filter(|_| n < 50) {
                // And whoever asks the server is told the same.
                let url = format!("{}/api/v1/route/session/{key}?group=gateway", running.url());
                let told: serde_json::Value =
                    reqwest::get(url).await.expect("an answer").json().await.expect("JSON");
                assert_eq!(
                    told["node"]["node_id"].as_str(),
                    homes.first().cloned().flatten().as_deref(),
                    "{told}"
                );
            }
            *shares.entry(homes.into_iter().next().flatten().expect("a node")).or_insert(0) += 1;
        }
        assert!((500..700).contains(&shares["b"]), "three fifths by its weight: {shares:?}");
        // One leaves: only its own keys move.
        let before: Vec<_> = routes(&nodes[0]).await;
        drop(nodes.remove(2));
        let is_gone = async || nodes[0].nodes().await.expect("nodes").len() == 2;
        wait_for("it to be gone", PATIENCE, is_gone).await.expect("gone");
        for (old, new) in before.into_iter().zip(routes(&nodes[0]).await) {
            assert!(old == new || old.as_deref() == Some("c"), "{old:?} to {new:?}");
        }
        let health = nodes[0].health();
        assert_eq!((&health["node_id"], &health["is_live"]), (&json!("a"), &json!(true)));
    }
}

async fn routes(node: &Cluster) -> Vec<Option<String>> {
    let mut routes = Vec::new();
    for n in 0..200 {
        routes.push(node.route(&format!("chat-{n}")).await.expect("a route"));
    }
    routes
}
