//! Moving over from a system with marks in Redis, and back: `import-marks`, `export-marks` and `drain`.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::json;
use solehold_testkit::{Program, Redis, Solehold, wait_for};

use crate::world::{PATIENCE, World};

struct Keys {
    redis: Redis,
}

impl Keys {
    fn url(&self, database: u8) -> String {
        format!("redis://{}/{database}", self.redis.address())
    }

    async fn ask<T: redis::FromRedisValue>(&self, database: u8, command: &[&str]) -> Result<T> {
        let client = redis::Client::open(self.url(database))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        Ok(redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await?)
    }
}

#[tokio::test]
async fn jobs_move_over_from_a_system_with_marks_in_redis_and_back() -> Result<()> {
    let mut world = World::start().await?;
    let keys = Keys { redis: Redis::start().await? };
    what_cannot_be_read_is_refused(&world, &keys).await?;
    marks_are_imported_once(&world, &keys).await?;
    commands_of_the_former_system_are_not_done_again(&world).await?;
    marks_are_exported_once(&world, &keys).await?;
    jobs_are_finished_without_taking_commands(&mut world).await
}

async fn what_cannot_be_read_is_refused(world: &World, keys: &Keys) -> Result<()> {
    let url = keys.url(0);
    for (command, (arguments, code, told)) in
        ["import-marks", "shadow --until-caught-up"].iter().flat_map(|command| {
            [
                (format!("--redis {url} --pattern done:{{offset}}"), 2, "does not identify a command"),
                (format!("--redis {url} --pattern done"), 2, "--pattern: \"done\" identifies no command"),
                ("--redis http://127.0.0.1:1".to_owned(), 2, "--redis, as in redis://HOST:PORT/DATABASE"),
                ("--redis redis://127.0.0.1:1".to_owned(), 5, "Redis: "),
            ]
            .map(|case| (command, case))
        })
    {
        let ordered = format!("orchestrator {command} --config {} {arguments}", world.own_file());
        let (found, line, _) = world.refused(&ordered).await?;
        assert_eq!((found, line.contains(told)), (code, true), "{line}");
    }
    Ok(())
}

async fn marks_are_imported_once(world: &World, keys: &Keys) -> Result<()> {
    let import = format!("orchestrator import-marks --config {} --redis {}", world.own_file(), keys.url(0));
    let nothing = world.run(&import).await?;
    assert_eq!(nothing.stdout, "found 0 keys: imported 0, 0 already known, skipped 0\n");
    assert!(nothing.stderr.contains("no key matches job:processed:*"), "{nothing:?}");
    // More than one page.
    let many: Vec<String> = (0..2_500).map(|number| format!("job:processed:old-{number}")).collect();
    let more = ["job:processed:a", "job:processed:b", "job:processed:", "other:z"];
    for key in many.iter().map(String::as_str).chain(more) {
        keys.ask::<()>(0, &["SET", key, "1"]).await?;
    }
    assert_eq!(
        world.seen(&format!("{import} --dry-run")).await?,
        "found 2503 keys: 2502 identify a command, 1 do not; nothing was written"
    );
    assert_eq!(world.seen("job marks ls --id a").await?, "");
    let first = world.run(&import).await?;
    assert_eq!(first.stdout, "found 2503 keys: imported 2502, 0 already known, skipped 1\n");
    assert!(
        first.stderr.contains("skipped \"job:processed:\": the parts of the key are not a job id"),
        "{first:?}"
    );
    let again = world.json(&import).await?;
    assert_eq!([&again["imported"], &again["known"], &again["skipped"]], [0, 2502, 1], "{again}");
    assert_eq!(
        world.seen("job marks ls --id a").await?,
        "JOB ID TYPE PARTITION OFFSET AT\na a CREATE imported - TIME"
    );
    Ok(())
}

async fn commands_of_the_former_system_are_not_done_again(world: &World) -> Result<()> {
    world.send(0, "CREATE", "a", "m-1").await?;
    world.send(0, "CREATE", "c", "m-1").await?;
    world.state_when("c", "running").await?;
    assert!(world.get("/jobs/a").await.is_err(), "the former system has done it");
    // The job is the former system's, and whoever reads the letter knows what to do.
    world.send(0, "CANCEL", "b", "m-2").await?;
    world.send(0, "CANCEL", "c", "m-2").await?;
    world.send(1, "RETRY", "x", "m-3").await?;
    world.letters_when(3).await?;
    assert_eq!(
        world.seen("job letters").await?,
        "LETTER KEY STATE SINCE REASON\n\
         0-2 acme:m-2 dead TIME CANCEL of job b: there is no such job. The former system has the job, by an imported \
         mark: send the command there, and discard this letter\n\
         0-3 acme:m-2 parked TIME an earlier command of the same key is a dead letter\n\
         1-0 acme:m-3 dead TIME RETRY of job x: there is no such job"
    );
    world.seen("job discard 0-2").await?;
    world.letters_when(2).await?;
    world.seen("job discard 0-3").await?;
    world.seen("job discard 1-0").await?;
    world.letters_when(0).await?;
    // A job that the former system will not finish is begun here.
    world.seen("job marks clear a --type CREATE").await?;
    world.send(0, "CREATE", "a", "m-1").await?;
    world.state_when("a", "running").await?;
    Ok(())
}

async fn marks_are_exported_once(world: &World, keys: &Keys) -> Result<()> {
    let export = format!("orchestrator export-marks --config {} --redis {}", world.own_file(), keys.url(1));
    keys.ask::<()>(1, &["SET", "job:processed:c", "theirs"]).await?;
    assert_eq!(
        world.seen(&format!("{export} --dry-run")).await?,
        "found 2 marks: 2 have a key, 0 do not; nothing was written"
    );
    assert_eq!(
        world.seen(&format!("{export} --ttl 1h")).await?,
        "found 2 marks: exported 1, 1 already known, skipped 0"
    );
    let left: i64 = keys.ask(1, &["TTL", "job:processed:a"]).await?;
    ensure!((3_000..=3_600).contains(&left), "{left}");
    assert_eq!(keys.ask::<String>(1, &["GET", "job:processed:c"]).await?, "theirs");
    Ok(())
}

async fn jobs_are_finished_without_taking_commands(world: &mut World) -> Result<()> {
    // Beside a process that runs, it does not go on.
    let drain = format!("orchestrator drain --config {}", world.own_file());
    let ended = world.run(&drain).await?;
    assert!(ended.code == Some(2) && ended.stderr.contains("stop every other process"), "{ended:?}");
    world.program.terminate().await?;
    world.send(0, "CREATE", "d", "m-4").await?;
    let mut command = Command::new(Solehold::binary()?);
    command.args(drain.split_whitespace());
    let draining = Program::start("drain", &command, "solehold orchestrator pod-1 serves jobs on ").await?;
    world.url = draining.said().to_owned();
    world.seen("job cancel c").await?;
    for stage in ["decode", "detect"] {
        let queued = |job: &serde_json::Value| {
            let stages = job["stages"].as_array().cloned().unwrap_or_default();
            stages.iter().any(|found| found["stage"] == stage && found["state"] != "waiting")
        };
        world.job_when("a", queued).await?;
        world.report("a", stage, 1, json!({ "kind": "succeeded", "result": {} })).await?;
    }
    let is_over =
        async || draining.logs().contains("jobs running: 0; messages to send: 0; unresolved letters: 0");
    wait_for("the jobs to end", PATIENCE, is_over).await?;
    world.start_again().await?;
    // What it did not take is taken now.
    world.state_when("d", "running").await?;
    world.state_when("a", "succeeded").await?;
    world.state_when("c", "cancelled").await?;
    Ok(())
}
