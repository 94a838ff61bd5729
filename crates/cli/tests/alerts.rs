//! The alert rules are rules that Prometheus takes, they fire when they should, and they and the dashboard ask for
//! nothing that the programs do not export. `crates/orchestrator/tests/operators` has the same for the orchestrator.

mod common;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, ensure};
use common::{BINARY, SOON, server, write};
use serde_json::{Value, json};
use solehold_testkit::{
    Program, TempDir, free_port, metrics_exported, metrics_named, package_file, wait_for,
};

fn deploy() -> PathBuf {
    package_file("../../deploy")
}

/// The files of a folder whose names end so.
fn files(folder: &str, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(deploy().join(folder))?.map(|entry| Ok(entry?.path()));
    let mut files: Vec<PathBuf> = entries.collect::<Result<_>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    Ok(files)
}

fn promtool(what: &str, file: &str, folder: &Path) -> Result<()> {
    let output = Command::new("promtool").args([what, "rules", file]).current_dir(folder).output();
    let output = output.context("promtool is in Debian's package prometheus: scripts/install-test-deps")?;
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    ensure!(output.status.success(), "promtool {what} rules {file}: {}", String::from_utf8_lossy(&said));
    Ok(())
}

/// Each file of rules is checked, has tests, and passes them; each alert is expected by one of them.
#[test]
fn promtool_accepts_the_alert_rules_and_their_tests() -> Result<()> {
    let folder = deploy().join("prometheus");
    let rules = files("prometheus", ".rules.yaml")?;
    assert!(rules.len() >= 4, "{rules:?}");
    for rules in rules {
        let tests = rules.to_string_lossy().replace(".rules.yaml", ".test.yaml");
        promtool("check", &rules.to_string_lossy(), &folder)?;
        promtool("test", &tests, &folder)?;
        let tests = fs::read_to_string(tests)?;
        let rules = fs::read_to_string(&rules)?;
        for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
            let fires = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels");
            ensure!(tests.contains(&fires), "no test expects {alert} to fire");
        }
    }
    Ok(())
}

/// Everything that rules and dashboards ask the programs of this crate for: their metrics all begin with `solehold_`.
fn asked_for() -> Result<BTreeSet<String>> {
    let mut named = BTreeSet::new();
    for path in files("prometheus", ".rules.yaml")? {
        let rules = solehold_process::config::parse(&fs::read_to_string(&path)?);
        let rules: Value = rules.map_err(|error| anyhow!("{}: {}", path.display(), error.message))?;
        named.extend(metrics_named(&rules));
    }
    for path in files("grafana", ".json")? {
        let board: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let on_board = metrics_named(&board);
        ensure!(!on_board.is_empty(), "{} asks for nothing", path.display());
        named.extend(on_board);
    }
    named.retain(|name| name.starts_with("solehold_"));
    Ok(named)
}

/// Every query of a dashboard is PromQL, once Grafana has filled in its variables.
#[test]
fn promtool_accepts_the_queries_of_the_dashboards() -> Result<()> {
    let folder = TempDir::new()?;
    for path in files("grafana", ".json")? {
        let board: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let panels = board["panels"].as_array().context("panels")?;
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        let queries: Vec<_> = targets.filter_map(|target| target["expr"].as_str()).collect();
        ensure!(queries.len() > 30, "{} has {} queries", path.display(), queries.len());
        let rules = queries.iter().map(|query| {
            let query = query.replace("$__rate_interval", "5m").replace("$job", ".*");
            json!({"record": "x", "expr": query})
        });
        let rules = json!({"groups": [{"name": "board", "rules": rules.collect::<Vec<_>>()}]});
        let file = write(folder.path(), "board.yaml", &rules.to_string())?;
        promtool("check", &file, folder.path())?;
    }
    Ok(())
}

/// A server with a relay, both gates and an agent with a worker export every metric that is asked for.
#[tokio::test]
async fn rules_and_dashboards_name_metrics_that_exist() -> Result<()> {
    let asked_for = asked_for()?;
    assert!(asked_for.len() > 30, "{asked_for:?}");

    let folder = TempDir::new()?;
    // No broker listens there: relays and gates have their metrics before they can reach anything.
    let broker = format!("mqtt://127.0.0.1:{}", free_port()?);
    let relay = format!("relays: [{{name: away, mqtt: {{url: '{broker}'}}}}]\n");
    let config = write(folder.path(), "solehold.yaml", &relay)?;
    let server = server().arg("--config").arg(config).start().await?;
    let http = reqwest::Client::builder().no_proxy().timeout(SOON).build()?;
    http.post(format!("{}/api/v1/locks/a", server.url())).body(r#"{"holder": "ann"}"#).send().await?;

    let mut command = Command::new(BINARY);
    command.args(["gate", "http", "--kind", "job", "--server", server.url(), "--upstream", server.url()]);
    command.args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]);
    let http_gate = Program::start("gate", &command, "solehold gate http listening on ").await?;
    let proxy = http_gate.said().split(',').next().context("an address")?.to_owned();
    // Without a token it is refused, and refusals are counted.
    http.put(format!("{proxy}/x")).send().await?;
    let logs = http_gate.logs();
    let http_gate_metrics =
        logs.lines().find_map(|l| l.strip_prefix("solehold gate http serves metrics on "));
    let http_gate_metrics = http_gate_metrics.context("an address")?.to_owned();

    let mut command = Command::new(BINARY);
    command.args(["gate", "mqtt", "--server", server.url(), "--broker", &broker, "--kind", "job"]);
    command.args(["--topics", "raw/{key}", "--listen", "127.0.0.1:0"]);
    let mqtt_gate = Program::start("gate", &command, "solehold gate mqtt serves metrics on ").await?;

    let port = free_port()?;
    let agent = format!(
        "runner_id: one\nserver: {}\nmetrics_port: {port}\nresources: [job/nightly]\n\
         worker:\n  command: [sleep, '600']\n",
        server.url()
    );
    let agent = write(folder.path(), "agent.yaml", &agent)?;
    let mut command = Command::new(BINARY);
    command.args(["agent", "--config", &agent]).env("TMPDIR", folder.path());
    let _agent = Program::start("agent", &command, "solehold agent ").await?;

    let sources = [
        server.url().to_owned(),
        http_gate_metrics,
        mqtt_gate.said().trim().to_owned(),
        format!("http://127.0.0.1:{port}"),
    ];
    let missing = async || {
        let mut missing = asked_for.clone();
        for source in &sources {
            let Ok(answer) = http.get(format!("{source}/metrics")).send().await else { continue };
            let exported = metrics_exported(&answer.text().await.unwrap_or_default());
            missing.retain(|name| !exported.contains(name));
        }
        missing
    };
    let waited = wait_for("every metric to be exported", SOON, async || missing().await.is_empty()).await;
    ensure!(waited.is_ok(), "rules or dashboards ask for what no program exports: {:?}", missing().await);
    Ok(())
}
