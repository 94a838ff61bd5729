//! `docs/reference` is what the programs say of themselves. `make reference` writes it.

mod common;

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use common::{BINARY, SOON, run, server, write};
use solehold_testkit::{Program, TempDir, docs, free_port, golden, golden_part, metrics_table, wait_for};

/// Every command, option and variable, from the definitions of the commands; the contents of the book list each page.
#[tokio::test]
async fn the_reference_of_commands_is_kept() -> Result<()> {
    let folder = TempDir::new()?;
    let into = folder.path().to_str().context("a path in UTF-8")?;
    run(["man", "--markdown", into]).await?.good()?;
    golden("reference/commands.md", &fs::read_to_string(folder.path().join("commands.md"))?);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.path().join("commands"))? {
        let name = entry?.file_name().into_string().ok().context("a name in UTF-8")?;
        golden(
            &format!("reference/commands/{name}"),
            &fs::read_to_string(folder.path().join("commands").join(&name))?,
        );
        names.push(name.trim_end_matches(".md").to_owned());
    }
    ensure!(names.len() > 15, "{names:?}");
    for entry in fs::read_dir(docs().join("reference/commands"))? {
        let name = entry?.file_name().into_string().ok().context("a name in UTF-8")?;
        let is_known = names.iter().any(|known| format!("{known}.md") == name);
        ensure!(is_known, "docs/reference/commands/{name} is of no command: delete it");
    }
    names.sort();
    let contents = names.iter().map(|name| format!("  - [{name}](reference/commands/{name}.md)\n"));
    golden_part("SUMMARY.md", "commands", &contents.collect::<String>());
    Ok(())
}

/// The configuration file is the one that `crates/cli/tests/config.rs` reads.
#[test]
fn the_reference_of_the_configuration_is_kept() -> Result<()> {
    let file = fs::read_to_string(docs().join("solehold.yaml"))?;
    let page = format!(
        "# The configuration file\n\n<!-- Made from the code: make reference -->\n\n\
         `solehold serve --config FILE` reads one YAML file, [solehold.yaml](../solehold.yaml): every key, with its \
         default.\nAn unknown or bad key stops the start, and the message names the line and what would be right. \
         `serve --check` reads it\nand does nothing else. [Flags and variables](commands/serve.md) override it. The \
         files of [agents](../guides/workers.md),\n[orchestrators](../guides/orchestrator.md) and \
         [relays](../guides/events.md) are described in their guides.\n\n```yaml\n{file}```\n"
    );
    golden("reference/configuration.md", &page);
    Ok(())
}

/// What a server with a relay, both gates and an agent with a worker export.
#[tokio::test]
async fn the_reference_of_metrics_is_kept() -> Result<()> {
    let folder = TempDir::new()?;
    // No broker listens there: relays and gates have their metrics before they can reach anything.
    let broker = format!("mqtt://127.0.0.1:{}", free_port()?);
    let relay = format!("relays: [{{name: away, mqtt: {{url: '{broker}'}}}}]\n");
    let config = write(folder.path(), "solehold.yaml", &relay)?;
    let server = server().arg("--config").arg(config).start().await?;
    let http = reqwest::Client::builder().no_proxy().timeout(SOON).build()?;
    http.post(format!("{}/api/v1/locks/a", server.url())).body(r#"{"holder": "ann"}"#).send().await?;
    kept(&http, server.url(), "server", &["solehold_relay_lag_seconds", "solehold_store_seconds"]).await?;

    let mut command = Command::new(BINARY);
    command.args(["gate", "http", "--kind", "job", "--server", server.url(), "--upstream", server.url()]);
    command.args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]);
    let gate = Program::start("gate", &command, "solehold gate http listening on ").await?;
    let proxy = gate.said().split(',').next().context("an address")?.to_owned();
    // Without a token it is refused, and refusals are counted.
    http.put(format!("{proxy}/x")).send().await?;
    let logs = gate.logs();
    let metrics = logs.lines().find_map(|l| l.strip_prefix("solehold gate http serves metrics on "));
    let seen = ["solehold_gate_requests_refused", "solehold_gate_lag_seconds"];
    kept(&http, metrics.context("an address")?, "gate-http", &seen).await?;

    let mut command = Command::new(BINARY);
    command.args(["gate", "mqtt", "--server", server.url(), "--broker", &broker, "--kind", "job"]);
    command.args(["--topics", "raw/{key}", "--listen", "127.0.0.1:0"]);
    let gate = Program::start("gate", &command, "solehold gate mqtt serves metrics on ").await?;
    kept(&http, gate.said().trim(), "gate-mqtt", &["solehold_gate_messages_refused"]).await?;

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
    let metrics = format!("http://127.0.0.1:{port}");
    kept(&http, &metrics, "agent", &["solehold_agent_worker_memory_bytes"]).await
}

/// Compares the metrics at `url` with a part of the page, as soon as those that take a moment are there.
async fn kept(http: &reqwest::Client, url: &str, part: &str, last: &[&str]) -> Result<()> {
    let exported = async || {
        let text = http.get(format!("{url}/metrics")).send().await.ok()?.text().await.ok()?;
        let has = |metric: &&str| text.contains(&format!("# TYPE {metric} "));
        last.iter().all(has).then_some(text)
    };
    let text = wait_for(&format!("the metrics of {part}"), SOON, exported).await?;
    golden_part("reference/metrics.md", part, &metrics_table(&text));
    Ok(())
}
