//! Dead letters and inbox marks.

use anyhow::Result;
use reqwest::Method;
use serde_json::json;

use crate::world::World;

/// A CANCEL of a job that is not there, and what is parked behind it.
pub async fn are_decided_on(world: &World) -> Result<()> {
    world.send(1, "CANCEL", "x", "m-9").await?;
    let found = world.letters_when(1).await?;
    let dead = found["letters"][0]["letter"].as_str().unwrap_or_default().to_owned();
    world.send(1, "CREATE", "d", "m-9").await?;
    let found = world.letters_when(2).await?;
    let parked = found["letters"][1]["letter"].as_str().unwrap_or_default().to_owned();
    assert_eq!((dead.as_str(), parked.as_str()), ("1-1", "1-2"));
    assert_eq!(
        world.seen("job letters").await?,
        "LETTER KEY STATE SINCE REASON\n1-1 acme:m-9 dead TIME CANCEL of job x: there is no such job\n\
         1-2 acme:m-9 parked TIME an earlier command of the same key is a dead letter"
    );
    assert_eq!(world.json("job letters --limit 1").await?["letters"].as_array().map(Vec::len), Some(1));
    let page = world.get("/letters?limit=1").await?;
    assert_eq!(page["next"], "1-1");
    let page = world.get("/letters?limit=1&after=1-1").await?;
    assert_eq!((&page["letters"][0]["letter"], &page["next"]), (&json!("1-2"), &json!("1-2")));
    let letter = world.get("/letters/1-2").await?;
    assert!(letter["payload"].as_str().unwrap_or_default().contains("\"CREATE\""), "{letter}");

    let refused = world.refused("job redrive 1-2").await?;
    let line = "cannot redrive letter 1-2: letter 1-2 is parked behind letter 1-1: redrive or discard that one first";
    assert_eq!(refused, (3, line.to_owned(), "conflict".to_owned()));
    for what in ["redrive", "discard"] {
        let refused = world.refused(&format!("job {what} 7-7")).await?;
        let line = format!("cannot {what} letter 7-7: there is no letter 7-7");
        assert_eq!(refused, (4, line, "not_found".to_owned()));
        let odd = world.refused(&format!("job {what} seven")).await?;
        assert_eq!((odd.0, odd.2.as_str()), (2, "invalid_field"));
        assert!(
            odd.1.ends_with("invalid letter id \"seven\": use PARTITION-OFFSET, as in 3-1207"),
            "{odd:?}"
        );
    }
    assert_eq!(world.refusal(Method::GET, "/letters/7-7", "").await?.0, 404);

    // Nothing has changed: it is dead again, and its key waits. Mail is read in the order of its arrival.
    assert_eq!(world.seen("job redrive 1-1").await?, "asked the owner of letter 1-1 to apply it again");
    assert_eq!(world.json("job discard 1-1").await?, json!({ "letter": "1-1", "asked": "discard" }));
    world.state_when("d", "running").await?;
    world.letters_when(0).await?;
    assert_eq!(world.get("/letters/1-1").await?["state"], "discarded");
    assert_eq!(world.get("/letters/1-2").await?["state"], "redriven");
    let refused = world.refused("job discard 1-1").await?;
    assert_eq!(refused.1, "cannot discard letter 1-1: letter 1-1 was already discarded");
    let refused = world.refused("job redrive 1-2").await?;
    assert_eq!(refused.1, "cannot redrive letter 1-2: letter 1-2 was already redriven");
    Ok(())
}

pub async fn marks_are_listed_and_cleared(world: &World) -> Result<()> {
    // The command of a job that has succeeded comes again.
    world.send(0, "CREATE", "a", "m-0").await?;
    world.send(0, "CREATE", "e", "m-0").await?;
    world.state_when("e", "running").await?;
    assert_eq!(world.get("/jobs/a").await?["state"], "succeeded");
    assert_eq!(
        world.seen("job marks ls --id a").await?,
        "JOB ID TYPE PARTITION OFFSET AT\na a CREATE 0 0 TIME"
    );
    let marks = world.json("job marks ls").await?;
    let ids = |marks: &serde_json::Value| {
        let marks = marks["marks"].as_array().cloned().unwrap_or_default();
        marks.iter().filter_map(|mark| mark["id"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(ids(&marks), ["a", "c/ü", "e", "b", "d"], "by partition");
    let mut paged = Vec::new();
    let mut after = String::new();
    loop {
        let page = world.get(&format!("/marks?limit=2&after={after}")).await?;
        paged.extend(ids(&page));
        match page["next"].as_str() {
            Some(next) => after = next.replace('/', "%2F").replace('ü', "%C3%BC"),
            None => break,
        }
    }
    assert_eq!(paged, ids(&marks));
    let refused = world.refused("job marks clear a --type CANCEL").await?;
    let line = "cannot clear the marks of a: there is no mark of a CANCEL of a";
    assert_eq!(refused, (4, line.to_owned(), "not_found".to_owned()));
    let odd = world.refusal(Method::DELETE, "/marks/a?type=create", "").await?;
    assert_eq!(odd.2, "invalid type \"create\": use one of CREATE, CANCEL, RETRY");
    assert_eq!(
        world.seen("job marks clear a --type CREATE").await?,
        "cleared 1 of a: its commands take effect again if they come again"
    );
    assert_eq!(world.json("job marks clear c/ü").await?, json!({ "id": "c/ü", "cleared": 1 }));
    let refused = world.refused("job marks clear a").await?;
    assert_eq!(refused.1, "cannot clear the marks of a: there is no mark of a");
    assert_eq!(world.json("job marks ls --id a").await?, json!({ "marks": [] }));
    Ok(())
}
