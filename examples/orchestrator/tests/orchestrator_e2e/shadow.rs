//! A shadow beside the control: it shows which commands the control drops, does twice, or does although the
//! orchestrator would not, and leaves no trace.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
};
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Program, Solehold, TempDir, wait_for};
use tokio_postgres::Client;

use crate::{
    broker::{PATIENCE, client},
    control::{Control, says},
    world::GROUP,
};

const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

struct Shadowed {
    control: Control,
    /// Where the server runs that `sql` is connected to.
    _postgres: Postgres,
    sql: Client,
    files: TempDir,
}

impl Shadowed {
    async fn new() -> Result<Self> {
        let (control, postgres) = tokio::try_join!(Control::new(), Postgres::start())?;
        let config = json!({
            "kafka": {
                "brokers": control.kafka.address(), "topic": control.topic, "group": GROUP, "partitions": 1,
                "broker_version": control.kafka.broker_version(),
            },
            "commands": { "type": "command" },
            "postgres": { "url": postgres.url() },
            // Nothing is sent, so nothing has to be there.
            "dispatchers": { "http": { "url": "http://127.0.0.1:1" } },
            "stages": { "decode": { "task": "/work", "dispatch": "http" } },
        });
        let files = TempDir::new()?;
        fs::write(files.path().join("orchestrator.yaml"), config.to_string())?;
        let sql = postgres.connect().await?;
        Ok(Self { control, _postgres: postgres, sql, files })
    }

    fn command(&self, more: &[&str]) -> Result<Command> {
        let mut command = Command::new(Solehold::binary()?);
        command.args(["orchestrator", "shadow", "--redis", &self.control.redis_url(), "--config"]);
        command.arg(self.files.path().join("orchestrator.yaml")).args(more);
        Ok(command)
    }

    /// Runs a shadow to its end: its exit code, and what it says on stdout and on stderr.
    async fn run(&self, more: &[&str]) -> Result<(Option<i32>, String, String)> {
        let mut command = tokio::process::Command::from(self.command(more)?);
        let output = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output()).await?;
        let output = output?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }

    /// Waits until the control has committed everything, and returns how much.
    async fn committed(&self) -> Result<i64> {
        let asking: BaseConsumer = client(&self.control.kafka).set("group.id", GROUP).create()?;
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.control.topic, 0);
        let look = async || {
            let (_, high) = asking.fetch_watermarks(&self.control.topic, 0, ANSWERED_WITHIN).ok()?;
            let committed = asking.committed_offsets(list.clone(), ANSWERED_WITHIN).ok()?;
            let offset = committed.find_partition(&self.control.topic, 0)?.offset();
            (offset == Offset::Offset(high)).then_some(high)
        };
        wait_for("everything to be committed", PATIENCE, look).await
    }

    /// The members of the group. Each gets a new id when it joins again.
    fn members(&self) -> Result<Vec<String>> {
        let asking: BaseConsumer = client(&self.control.kafka).set("group.id", "asking").create()?;
        let groups = asking.fetch_group_list(Some(GROUP), ANSWERED_WITHIN)?;
        let group = groups.groups().first().context("the group")?;
        ensure!(group.state() == "Stable", "{}", group.state());
        Ok(group.members().iter().map(|member| member.id().to_owned()).collect())
    }

    async fn schemas(&self) -> Result<Vec<String>> {
        let find = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'orchestrator%'";
        Ok(self.sql.query(find, &[]).await?.iter().map(|row| row.get(0)).collect())
    }
}

#[tokio::test]
async fn a_shadow_shows_where_check_work_mark_would_differ() -> Result<()> {
    let world = Shadowed::new().await?;
    let control = &world.control;
    let pod = control.start(&[]).await?;
    a_system_without_faults_does_not_differ(&world).await?;

    let shadow = Program::start("shadow", &world.command(&[])?, "comparing topic ").await?;
    let (code, _, error) = world.run(&[]).await?;
    ensure!(code == Some(2) && error.contains("another shadow uses the schema"), "{code:?} {error}");

    // A CANCEL that the control drops.
    let members = world.members()?;
    control.send("CANCEL", "a").await?;
    says(&shadow, "0-3  a  not_done  ours: CANCEL of job a takes effect; theirs: passed, and").await?;
    // A command that the orchestrator does not know, which the control does, and what comes after it.
    control.send("PAUSE", "c").await?;
    control.send("CREATE", "c").await?;
    says(&shadow, "0-4  c  dead_letter  ours: dead letter: invalid command \"PAUSE\" (commands.type)")
        .await?;
    says(&shadow, "0-5  c  parked  ours: CREATE of job c is parked").await?;
    ensure!(world.members()? == members, "the shadow has disturbed the group");
    pod.terminate().await?;

    // A pod that is paused past its session sets its mark after its successor has.
    control.send("CREATE", "d").await?;
    let paused = control.start(&["--hold", "work"]).await?;
    says(&paused, "held after work of d").await?;
    paused.pause().await?;
    let _successor = control.start(&[]).await?;
    control.send("CANCEL", "d").await?;
    // The CREATE was compared before.
    says(&shadow, "0-7  d  not_done").await?;
    let ends = async || control.ask::<i64>(&["PEXPIRETIME", "job:processed:d"]).await;
    let before = ends().await?;
    control.release().await?;
    paused.resume()?;
    let is_later = async || ends().await.is_ok_and(|ends| ends > before);
    wait_for("the mark to be set again", PATIENCE, is_later).await?;

    let ended = shadow.terminate().await?;
    let said = shadow.logs();
    println!("{said}");
    ensure!(ended.code() == Some(3), "{ended:?}");
    let again = "0-6  d  done_again  ours: CREATE of job d takes effect once; theirs: its mark was set again";
    ensure!(said.contains(again), "{said}");
    let counts = "5 differ (dead_letter 1, parked 1, not_done 2, done_again 1), 0 cannot be compared";
    ensure!(said.contains(counts), "{said}");
    ensure!(world.schemas().await?.is_empty(), "{:?}", world.schemas().await?);
    a_run_has_bounds(&world).await?;
    a_schema_of_others_is_left_alone(&world).await
}

async fn a_system_without_faults_does_not_differ(world: &Shadowed) -> Result<()> {
    for job in ["a", "b", "a"] {
        world.control.send("CREATE", job).await?;
    }
    ensure!(world.committed().await? == 3);
    let (code, output, error) = world.run(&["--until-caught-up"]).await?;
    let wanted = "compared 3 commands: 0 differ, 0 cannot be compared\n\
                  tasks not sent: 2; commands that the other system has not passed: 0\n";
    ensure!((code, output.as_str()) == (Some(0), wanted), "{code:?} {output}{error}");
    ensure!(world.committed().await? == 3 && world.schemas().await?.is_empty());
    Ok(())
}

async fn a_run_has_bounds(world: &Shadowed) -> Result<()> {
    let committed = world.committed().await?;
    let summary = async |more: &[&str]| -> Result<(Value, usize)> {
        let (_, output, error) = world.run(&[more, &["--json"]].concat()).await?;
        let lines: Vec<Value> = output.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let last = lines.last().with_context(|| error.clone())?;
        Ok((last["summary"].clone(), lines.len() - 1))
    };
    let (all, lines) = summary(&["--until-caught-up"]).await?;
    ensure!(all["ended"] == "caught_up" && all["compared"] == committed, "{all}");
    // Only those who watch see that a mark is set again.
    ensure!(
        lines == 4 && all["differences"] == json!({ "dead_letter": 1, "parked": 1, "not_done": 2 }),
        "{all}"
    );
    let (few, _) = summary(&["--commands-max", "2"]).await?;
    ensure!(few["ended"] == "commands_max" && few["compared"] == 2, "{few}");
    let (brief, _) = summary(&["--for", "1s"]).await?;
    ensure!(brief["ended"] == "time_over", "{brief}");
    // The job of the last command began before the first that is read.
    let (last, lines) = summary(&["--until-caught-up", "--last", "1"]).await?;
    ensure!(lines == 0 && last["compared"] == 1 && last["undecided"] == 1, "{last}");
    Ok(())
}

async fn a_schema_of_others_is_left_alone(world: &Shadowed) -> Result<()> {
    world.sql.batch_execute("CREATE SCHEMA orchestrator_shadow CREATE TABLE mine (a integer)").await?;
    let (code, _, error) = world.run(&["--until-caught-up"]).await?;
    ensure!(code == Some(2) && error.contains("rename or drop it"), "{code:?} {error}");
    world.sql.batch_execute("SELECT a FROM orchestrator_shadow.mine").await?;
    Ok(())
}
