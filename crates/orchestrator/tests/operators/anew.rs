//! A topic that was deleted and made anew, and `solehold orchestrator begin-anew`.

use anyhow::Result;
use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn a_topic_that_was_made_anew_is_taken_up_again() -> Result<()> {
    let mut world = World::start().await?;
    let begin_anew = format!("orchestrator begin-anew --config {}", world.own_file());
    let (code, line, _) = world.refused(&begin_anew).await?;
    assert_eq!(
        (code, line.contains("cannot verify that topic jobs.commands was created again")),
        (2, true),
        "{line}"
    );
    world.send(0, "CANCEL", "x", "m-0").await?;
    world.send(0, "CREATE", "a", "m-1").await?;
    world.state_when("a", "running").await?;
    world.letters_when(1).await?;
    let (code, line, _) = world.refused(&begin_anew).await?;
    let told = "topic jobs.commands was not created again: partition 0 has a message that took effect. Nothing was changed";
    assert_eq!((code, line.starts_with(told)), (2, true), "{line}");

    world.program.terminate().await?;
    world.make_topic_anew().await?;
    world.send(0, "CREATE", "b", "m-2").await?;
    let ended = world.run(&format!("orchestrator --config {}", world.own_file())).await?;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.stderr.contains("begin anew with what is there: `solehold orchestrator begin-anew`"),
        "{ended:?}"
    );
    assert_eq!(
        world.seen(&begin_anew).await?,
        "2 partitions of jobs.commands start at their first command, in group operators\n\
         kept letters of the former topic: 1 dead, 0 parked; `solehold job letters` lists them"
    );
    world.start_again().await?;
    // It has the offset of a letter of the former topic.
    world.state_when("b", "running").await?;
    world.send(0, "CANCEL", "y", "m-0").await?;
    world.send(0, "CANCEL", "z", "m-3").await?;
    world.letters_when(3).await?;
    assert_eq!(
        world.seen("job letters").await?,
        "LETTER KEY STATE SINCE REASON\n0-0 acme:m-0 dead TIME CANCEL of job x: there is no such job\n\
         0-1-1 acme:m-0 parked TIME an earlier command of the same key is a dead letter\n\
         0-2-1 acme:m-3 dead TIME CANCEL of job z: there is no such job"
    );
    let page = world.get("/letters?limit=1&after=0-0").await?;
    assert_eq!((&page["letters"][0]["letter"], &page["next"]), (&json!("0-1-1"), &json!("0-1-1")));
    let (_, line, _) = world.refused("job redrive 0-1-1").await?;
    assert!(line.contains("letter 0-1-1 is parked behind letter 0-0"), "{line}");
    world.seen("job discard 0-0").await?;
    world.seen("job discard 0-2-1").await?;
    world.letters_when(1).await?;
    assert_eq!(world.get("/letters/0-0").await?["state"], "discarded");
    assert_eq!(world.get("/letters/0-2-1").await?["state"], "discarded");
    assert_eq!(world.get("/letters/0-1-1").await?["state"], "dead");
    // By force, whatever the topic is: its commands come again, and have no effect again.
    let forced = world.json(&format!("{begin_anew} --force")).await?;
    let expected =
        json!({ "topic": "jobs.commands", "group": "operators", "partitions": 2, "dead": 1, "parked": 0 });
    assert_eq!(forced, expected);
    world.send(1, "CREATE", "c", "m-4").await?;
    world.state_when("c", "running").await?;
    assert_eq!(world.get("/jobs").await?["jobs"].as_array().map(Vec::len), Some(3));
    Ok(())
}
