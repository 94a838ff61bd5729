//! `solehold orchestrator --check`.

use anyhow::Result;
use serde_json::{Value, json};
use solehold_testkit::{Solehold, free_port};

use crate::world::{Ran, TOPIC, World};

async fn check(world: &World, change: impl FnOnce(&mut Value)) -> Result<Ran> {
    let file = world.file(change)?;
    world.run(&format!("orchestrator --check --config {file}")).await
}

/// Nobody is asked anything before the file is good.
async fn mistakes_have_a_line(world: &World) -> Result<()> {
    let path = world.files.path().join("mistakes.yaml");
    let file = "kafka: {brokers: nobody:9}
commands:
  labels: {customer: customer}
  key: '{labels.customer}:{job_id}'
postgres: {url: postgres://nobody@nobody/nobody}
dispatchers: {celery: {broker: amqp://nobody}}
stages:
  decode:
    task: video.decode
    dispatch: celery
    kwargs:
      path: '{input.video}'
";
    for (good, bad, told) in [
        (
            "{job_id}",
            "{match_id}",
            ":4: commands.key has {match_id}, which is not one of {job_id}, {labels.customer}",
        ),
        (
            "{input.video}",
            "{input.video",
            ":11: kwargs of stage decode: \"{input.video\" has a single {: write {{ for a brace",
        ),
        (
            "{input.video}",
            "{results.scan}",
            ":11: kwargs of stage decode: kwargs.path has {results.scan}, and decode",
        ),
    ] {
        std::fs::write(&path, file.replace(good, bad))?;
        let path = path.display().to_string();
        let ran = world.run(&format!("orchestrator --check --config {path}")).await?;
        let told = format!("error: {path}{told}");
        assert!(ran.code == Some(2) && ran.stderr.starts_with(&told), "{told}: {ran:?}");
    }
    Ok(())
}

pub async fn says_what_it_found(world: &World) -> Result<()> {
    let good = check(world, |_| {}).await?.good()?;
    assert_eq!(
        good,
        format!(
            "commands: note: the broker responds, and topic {TOPIC} has 2 partitions, as configured\n\
             the configuration is good: commands from {TOPIC} in group operators, stages decode, detect"
        )
    );
    let missing = |config: &mut Value| {
        config["kafka"]["events_topic"] = json!("no.events");
        config["kafka"]["dead_letter_topic"] = json!(TOPIC);
    };
    let said = check(world, missing).await?.good()?;
    let warning =
        "commands: warning: topic no.events (kafka.events_topic) does not exist: events wait in the outbox";
    assert!(said.contains(warning) && !said.contains("dead_letter_topic"), "{said}");

    let more = check(world, |config| config["kafka"]["partitions"] = json!(12)).await?;
    assert_eq!(more.code, Some(2), "{more:?}");
    let said = format!(
        "problem: topic {TOPIC} has 2 partitions, and kafka.partitions is 12: an orchestrator would not"
    );
    assert!(more.stderr.contains(&said), "{more:?}");
    let absent = |config: &mut Value| {
        config["kafka"]["topic"] = json!("no.commands");
        config["postgres"]["schema"] = json!("other");
    };
    let absent = check(world, absent).await?;
    let said = "problem: topic no.commands does not exist: create it with 2 partitions";
    assert!(absent.code == Some(2) && absent.stderr.contains(said), "{absent:?}");
    // Asking has not made it.
    let good = check(world, |_| {}).await?;
    assert_eq!(good.code, Some(0), "{good:?}");

    mistakes_have_a_line(world).await?;

    let server = Solehold::builder().start().await?;
    let by_leases = |server: &str| {
        let leases = json!({ "server": server });
        move |config: &mut Value| {
            (config["kafka"]["partition_assignment"], config["leases"]) = (json!("leases"), leases);
        }
    };
    let file = world.file(by_leases(server.url()))?;
    let without_key = [("SOLEHOLD_API_KEY", "")];
    let said = world.run_as(&format!("orchestrator --check --config {file}"), &without_key).await?.good()?;
    assert!(said.contains("leases: note: the Solehold server responds"), "{said}");
    // Now it has keys, and that of the orchestrator is none of them.
    let create = format!("admin key create --name other --role admin --server {}", server.url());
    world.run_as(&create, &without_key).await?.good()?;
    let refused = check(world, by_leases(server.url())).await?;
    assert!(
        refused.code == Some(2) && refused.stderr.starts_with("error: leases: the key is unknown"),
        "{refused:?}"
    );
    let nobody = format!("http://127.0.0.1:{}", free_port()?);
    let away = check(world, by_leases(&nobody)).await?;
    assert!(away.code == Some(5) && away.stderr.starts_with("error: leases: "), "{away:?}");
    assert!(away.stderr.lines().count() == 1 && away.stderr.contains(&nobody), "{away:?}");

    let brokers = format!("127.0.0.1:{}", free_port()?);
    let away = |config: &mut Value| config["kafka"]["brokers"] = json!(brokers);
    let away = check(world, away).await?;
    let said = format!("error: no broker of kafka.brokers ({brokers}) responds: ");
    assert!(away.code == Some(5) && away.stderr.starts_with(&said), "{away:?}");
    assert!(away.stderr.lines().count() == 1 && away.stderr.contains("Connection refused"), "{away:?}");
    Ok(())
}
