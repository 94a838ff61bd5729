//! How gateways start beside each other, and what a node shows of itself and of the others.

use std::{process::Command, time::Duration};

use serde_json::{Value, json};
use solehold_testkit::{Postgres, Program, TempDir, wait_for};

const READY: &str = "gateway listening on ";
const SOON: Duration = Duration::from_secs(60);

fn command(database: &str, config: Option<&std::path::Path>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.args(["--listen", "127.0.0.1:0", "--database", database, "--work", "1ms"]);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command
}

fn url(program: &Program) -> String {
    program.said().split(' ').next().expect("an address").to_owned()
}

async fn json(url: &str) -> Value {
    reqwest::get(url).await.expect("an answer").json().await.expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_cluster_mode_there_is_one() {
    let database =
        Postgres::shared().await.expect("PostgreSQL").create_database("alone").await.expect("a database");
    let first = Program::start("gateway", &command(&database, None), READY).await.expect("the first");
    let node_id = first.said().rsplit(' ').next().expect("a name");
    let second = command(&database, None).output().expect("it ends");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains(node_id) && said.contains("cluster.enabled"), "{said}");

    let send = json!({"id": "m1", "text": "hello"});
    let messages = format!("{}/sessions/s%2F1/messages", url(&first));
    let http = reqwest::Client::new();
    for _ in 0..2 {
        let answer = http.post(&messages).json(&send).send().await.expect("an answer");
        let answer: Value = answer.error_for_status().expect("a reply").json().await.expect("JSON");
        assert_eq!(answer["reply"], "you said: hello");
    }
    assert_eq!(
        json(&messages).await["messages"].as_array().map(Vec::len),
        Some(1),
        "sent twice, it is one message"
    );
    let odd = http.post(&messages).json(&json!({"id": "", "text": "x"})).send().await.expect("an answer");
    assert_eq!(odd.status(), 400);
    assert!(odd.text().await.expect("a text").contains("the id has 0 bytes"));

    assert!(first.terminate().await.expect("it ends").success());
    // A busy machine may need more than one attempt; a place that was not left would be taken for 15 s.
    let mut after = Err(anyhow::anyhow!("it was not started"));
    for _ in 0..3 {
        after = Program::start("gateway", &command(&database, None), READY).await;
        if after.is_ok() {
            break;
        }
    }
    after.expect("a gateway that was stopped leaves its place at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_sees_all() {
    let database =
        Postgres::shared().await.expect("PostgreSQL").create_database("seen").await.expect("a database");
    let folder = TempDir::new().expect("a folder");
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let file = folder.path().join(name);
        let text =
            format!("cluster:\n  enabled: true\n  node_id: gw-{name}\n  session_locks:\n    enabled: true\n");
        std::fs::write(&file, text).expect("a file");
        let node = Program::start("gateway", &command(&database, Some(&file)), READY).await;
        nodes.push(node.expect("a gateway"));
    }
    let a = url(&nodes[0]);
    let b = url(&nodes[1]);
    assert_eq!(json(&format!("{a}/health")).await["node_id"], "gw-a");
    wait_for("both to be seen from b", SOON, async || {
        let health = json(&format!("{b}/health")).await;
        let names: Vec<_> = health["nodes"].as_array()?.iter().map(|n| n["node_id"].as_str()).collect();
        (names == [Some("gw-a"), Some("gw-b")]).then_some(())
    })
    .await
    .expect("presence");
    for n in 0..10 {
        let path = format!("route/chat-{n}");
        assert_eq!(
            json(&format!("{a}/{path}")).await,
            json(&format!("{b}/{path}")).await,
            "one answer from all"
        );
    }
}

#[test]
fn a_bad_configuration_is_named() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("gateway.yaml");
    std::fs::write(&file, "cluster:\n  session_locks:\n    ttl: 10s\n    refresh_interval: 5s\n")
        .expect("a file");
    let ended = command("postgres://nobody@127.0.0.1:1/none", Some(&file)).output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("refresh_interval"), "{said}");
}
