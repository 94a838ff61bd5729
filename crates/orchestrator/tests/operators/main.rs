//! What operators of an orchestrator see: `solehold job`, its HTTP, and `solehold orchestrator --check`.
//!
//! One orchestrator for all of it, since its broker takes seconds to start.

mod anew;
mod check;
mod letters;
mod moving;
mod passed_on;
mod tls;
mod waiting;
mod world;

use anyhow::{Result, anyhow};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_testkit::{free_port, metrics_exported, metrics_named};

use crate::world::{KEY, World};

#[tokio::test]
async fn operators_see_and_steer_jobs() -> Result<()> {
    let world = World::start().await?;
    nothing_is_there(&world).await?;
    for (partition, job) in [(0, "a"), (1, "b"), (0, "c/ü")] {
        world.send(partition, "CREATE", job, &format!("m-{partition}")).await?;
    }
    for job in ["a", "b", "c%2F%C3%BC"] {
        world.state_when(job, "running").await?;
    }
    progress_is_shown(&world).await?;
    jobs_are_cancelled_and_retried(&world).await?;
    lists_have_pages(&world).await?;
    what_is_not_there_is_said(&world).await?;
    keys_are_asked_for(&world).await?;
    odd_requests_are_refused(&world).await?;
    letters::are_decided_on(&world).await?;
    letters::marks_are_listed_and_cleared(&world).await?;
    check::says_what_it_found(&world).await?;
    tls::is_used_and_checked(&world).await?;
    figures_count_what_was_committed(&world).await
}

async fn nothing_is_there(world: &World) -> Result<()> {
    for (arguments, note, name) in [
        ("job ls", "there are no such jobs\n", "jobs"),
        ("job letters", "there are no dead letters\n", "letters"),
        ("job marks ls", "there are no such marks\n", "marks"),
    ] {
        let ran = world.run(arguments).await?;
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", note), "{arguments}");
        assert_eq!(world.json(arguments).await?, json!({ name: [] }));
    }
    Ok(())
}

async fn progress_is_shown(world: &World) -> Result<()> {
    world.report("a", "decode", 1, json!({ "kind": "progress", "fraction": 0.5 })).await?;
    let job = world.job_when("a", |job| job["stages"][0]["progress"] == 0.5).await?;
    assert_eq!(
        (&job["progress"], &job["state"], &job["partition"]),
        (&json!(0.25), &json!("running"), &json!(0))
    );
    assert_eq!((&job["key"], &job["labels"]), (&json!("acme:m-0"), &json!({ "customer": "acme" })));
    let stage = |at: usize, name: &str| job["stages"][at][name].clone();
    assert_eq!(
        [stage(0, "stage"), stage(0, "state"), stage(0, "attempt")],
        [json!("decode"), json!("running"), json!(1)]
    );
    assert_eq!(
        [stage(1, "state"), stage(1, "after"), stage(1, "progress")],
        [json!("waiting"), json!(["decode"]), json!(0.0)]
    );
    assert!(stage(0, "started_at").is_string() && stage(0, "deadline").is_string(), "{job}");
    assert_eq!(
        world.seen("job get a").await?,
        "job a\nkey acme:m-0\nlabels customer=acme\nstate running, 25% done\ncreated TIME\npartition 0\n\n\
         STAGE STATE PROGRESS ATTEMPT STARTED FINISHED REASON\n\
         decode running 50% 1 TIME - -\ndetect waiting 0% 0 - - -"
    );
    assert_eq!(world.json("job get a").await?, world.get("/jobs/a").await?);
    assert_eq!(
        world.seen("job ls").await?,
        "JOB KEY STATE PROGRESS CREATED REASON\na acme:m-0 running 25% TIME -\nb acme:m-1 running 0% TIME -\n\
         c/ü acme:m-0 running 0% TIME -"
    );
    world.report("a", "decode", 1, json!({ "kind": "succeeded", "result": { "frames": 9 } })).await?;
    world.job_when("a", |job| job["stages"][1]["state"] == "queued").await?;
    world.report("a", "detect", 1, json!({ "kind": "succeeded", "result": null })).await?;
    let job = world.state_when("a", "succeeded").await?;
    assert_eq!((&job["progress"], &job["stages"][0]["result"]), (&json!(1.0), &json!({ "frames": 9 })));
    let shown = world.seen("job get a").await?;
    assert!(shown.contains("\nstate succeeded, 100% done\ncreated TIME\nfinished TIME\n"), "{shown}");
    Ok(())
}

async fn jobs_are_cancelled_and_retried(world: &World) -> Result<()> {
    assert_eq!(world.seen("job cancel b").await?, "asked the owner of job b to cancel it");
    world.state_when("b", "cancelled").await?;
    for (what, job, why) in
        [("cancel", "b", "was cancelled"), ("cancel", "a", "has succeeded"), ("retry", "a", "has succeeded")]
    {
        let refused = world.refused(&format!("job {what} {job}")).await?;
        let line = format!("cannot {what} job {job}: job {job} {why}: there is nothing to {what}");
        assert_eq!(refused, (3, line, "conflict".to_owned()));
    }
    assert_eq!(world.json("job retry b").await?, json!({ "job_id": "b", "asked": "retry" }));
    // Raised by the cancel, and by the retry.
    world.job_when("b", |job| job["stages"][0]["attempt"] == 3).await?;
    let refused = world.refused("job retry b").await?;
    assert_eq!((refused.0, refused.1.contains("job b is running")), (3, true), "{refused:?}");
    // An id needs no care: neither slashes nor umlauts.
    world.report("c/ü", "decode", 1, json!({ "kind": "failed", "reason": "no GPU" })).await?;
    world.state_when("c%2F%C3%BC", "failed").await?;
    let shown = world.seen("job get c/ü").await?;
    assert!(shown.contains("\nreason stage decode: no GPU\n"), "{shown}");
    assert!(shown.contains("\ndecode failed 0% 2 - TIME no GPU\n"), "{shown}");
    assert_eq!(world.seen("job retry c/ü").await?, "asked the owner of job c/ü to try it again");
    world.state_when("c%2F%C3%BC", "running").await?;
    assert_eq!(world.json("job cancel c/ü").await?, json!({ "job_id": "c/ü", "asked": "cancel" }));
    world.state_when("c%2F%C3%BC", "cancelled").await?;
    Ok(())
}

async fn lists_have_pages(world: &World) -> Result<()> {
    let ids = |page: &Value| {
        let jobs = page["jobs"].as_array().cloned().unwrap_or_default();
        jobs.iter().filter_map(|job| job["job_id"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let first = world.get("/jobs?limit=2").await?;
    assert_eq!((ids(&first), &first["next"]), (vec!["a".to_owned(), "b".to_owned()], &json!("b")));
    let last = world.get("/jobs?limit=2&after=b").await?;
    assert_eq!((ids(&last), &last["next"]), (vec!["c/ü".to_owned()], &Value::Null));
    assert_eq!(ids(&world.get("/jobs?limit=1000&state=&after=").await?).len(), 3);
    assert_eq!(ids(&world.get("/jobs?state=cancelled").await?), ["c/ü"]);
    assert_eq!(ids(&world.json("job ls --state running").await?), ["b"]);
    assert_eq!(ids(&world.json("job ls --limit 1").await?), ["a"]);
    for limit in ["0", "1001", "-1", "many", "99999999999999999999"] {
        for list in ["jobs", "letters", "marks"] {
            let refusal = world.refusal(Method::GET, &format!("/{list}?limit={limit}"), "").await?;
            let detail = format!("limit is {limit:?}; it must be 1 to 1000");
            assert_eq!(refusal, (400, "out_of_bounds".to_owned(), detail));
        }
    }
    for (path, detail) in [
        ("/jobs?state=done", "invalid state \"done\": use one of running, succeeded, failed, cancelled"),
        ("/jobs?sate=failed", "unknown parameter \"sate\"; this path has state, after, limit"),
        ("/letters?state=dead", "unknown parameter \"state\"; this path has payload, after, limit"),
        ("/letters?after=3", "invalid letter id \"3\": use PARTITION-OFFSET, as in 3-1207"),
        ("/marks?job=a", "unknown parameter \"job\"; this path has id, after, limit"),
        ("/jobs?after=%00", "an id cannot contain a zero character (%00)"),
    ] {
        let refusal = world.refusal(Method::GET, path, "").await?;
        assert_eq!(refusal, (400, "invalid_field".to_owned(), detail.to_owned()), "{path}");
    }
    for arguments in
        ["job ls --limit 0", "job ls --limit many", "job ls --state done", "job marks clear a --type STOP"]
    {
        let ran = world.run(arguments).await?;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error: invalid value"), "{arguments}: {}", ran.stderr);
    }
    Ok(())
}

async fn what_is_not_there_is_said(world: &World) -> Result<()> {
    for what in ["get", "cancel", "retry"] {
        let doing = if what == "get" { "show" } else { what };
        let line = format!("cannot {doing} job nobody: there is no job nobody");
        assert_eq!(world.refused(&format!("job {what} nobody")).await?, (4, line, "not_found".to_owned()));
    }
    let away = format!("127.0.0.1:{}", free_port()?);
    let (code, line, problem) = world.refused_as("job ls", &[("SOLEHOLD_ORCHESTRATOR", &away)]).await?;
    assert_eq!((code, problem.as_str()), (5, "unavailable"));
    assert!(line.starts_with(&format!("cannot list the jobs: no server at http://{away}")), "{line}");
    let hint =
        "is `solehold orchestrator` running there? --orchestrator or SOLEHOLD_ORCHESTRATOR names another";
    assert!(line.ends_with(hint), "{line}");
    // Any of several processes answers.
    let either = format!("{away},{}", world.url);
    assert_eq!(world.run_as("job get a", &[("SOLEHOLD_ORCHESTRATOR", &either)]).await?.code, Some(0));
    let odd = world.refused_as("job ls --orchestrator ftp://a", &[]).await?;
    assert!(odd.0 == 2 && odd.1.starts_with("--orchestrator: "), "{odd:?}");
    Ok(())
}

async fn keys_are_asked_for(world: &World) -> Result<()> {
    for key in ["", "0123456789abcdeF"] {
        let (code, line, problem) = world.refused_as("job get a", &[("SOLEHOLD_API_KEY", key)]).await?;
        assert_eq!((code, problem.as_str()), (6, "unauthorized"));
        assert!(line.starts_with("cannot show job a: send the orchestrator's API key"), "{line}");
        assert!(line.ends_with("give a key with --api-key or SOLEHOLD_API_KEY"), "{line}");
    }
    for (method, path) in [
        (Method::GET, "/jobs"),
        (Method::POST, "/jobs/b/cancel"),
        (Method::POST, "/reports"),
        (Method::DELETE, "/marks/a"),
        (Method::GET, "/no/such/path"),
    ] {
        for headers in [&[][..], &[("authorization", "Bearer wrong")], &[("authorization", KEY)]] {
            let answer = world.ask_as(method.clone(), path, "", headers).await?;
            assert_eq!((answer.status, &answer.body["code"]), (401, &json!("unauthorized")), "{path}");
        }
    }
    let bearer = format!("bearer {KEY}");
    assert_eq!(world.ask_as(Method::GET, "/jobs/a", "", &[("authorization", &bearer)]).await?.status, 200);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(world.ask_as(Method::GET, path, "", &[]).await?.status, 200, "{path}");
    }
    Ok(())
}

async fn odd_requests_are_refused(world: &World) -> Result<()> {
    let good = json!({ "job": "b", "stage": "decode", "attempt": 3, "kind": "started" });
    let with = |name: &str, value: Value| {
        let mut report = good.clone();
        report[name] = value;
        report.to_string()
    };
    for (body, status, code, detail) in [
        ("{".to_owned(), 400, "invalid_json", "a report must be JSON: EOF"),
        ("x".repeat(2 * 1024 * 1024 + 1), 413, "payload_too_large", "the body has more than 2097152 bytes"),
        ("7".to_owned(), 400, "invalid_field", "report 1 of 1 is invalid: "),
        ("[{}, 7]".to_owned(), 400, "invalid_field", "report 1 of 2 is invalid: missing field"),
        (
            with("kind", json!("done")),
            400,
            "invalid_field",
            "report 1 of 1 is invalid: unknown variant `done`",
        ),
        (with("job", json!("b\0")), 400, "invalid_field", "report 1 of 1 is invalid: job has 2 bytes"),
        (
            with("stage", json!("s".repeat(3_000))),
            400,
            "invalid_field",
            "report 1 of 1 is invalid: stage has 3000",
        ),
        (with("attempt", json!(-1)), 400, "invalid_field", "report 1 of 1 is invalid: invalid value"),
    ] {
        let refusal = world.refusal(Method::POST, "/reports", body.clone()).await?;
        let shown: String = body.chars().take(60).collect();
        assert_eq!((refusal.0, refusal.1.as_str()), (status, code), "{shown}: {}", refusal.2);
        assert!(refusal.2.starts_with(detail), "{shown}: {}", refusal.2);
    }
    assert_eq!(world.get("/jobs/b").await?["stages"][0]["state"], "queued", "nothing of that was taken");
    for (method, path, status, code) in [
        (Method::GET, "/job", 404, "no_such_route"),
        (Method::DELETE, "/jobs/a", 405, "method_not_allowed"),
        (Method::GET, "/jobs/%ff", 400, "invalid_field"),
        (Method::POST, "/jobs/a%00/cancel", 400, "invalid_field"),
    ] {
        let refusal = world.refusal(method, path, "").await?;
        assert_eq!((refusal.0, refusal.1.as_str()), (status, code), "{path}: {}", refusal.2);
    }
    // One that is refused is named, and stops none of the others: 20 in one request.
    let large = json!({ "job": "nobody", "stage": "decode", "attempt": 1, "kind": "succeeded",
        "result": "x".repeat(300_000) });
    let mut reports = vec![json!({}); 20];
    (reports[3], reports[7]) = (good.clone(), large.clone());
    let refusal = world.refusal(Method::POST, "/reports", json!(reports).to_string()).await?;
    assert_eq!((refusal.0, refusal.1.as_str()), (400, "invalid_field"), "{}", refusal.2);
    let ends = ". 14 more were rejected. the other reports (1) were accepted";
    assert!(
        refusal.2.starts_with("report 1 of 20 is invalid: ") && refusal.2.ends_with(ends),
        "{}",
        refusal.2
    );
    world.job_when("b", |job| job["stages"][0]["state"] == "running").await?;
    let refusal = world.refusal(Method::POST, "/reports", large.to_string()).await?;
    let detail = "report 1 of 1: the result has 300002 bytes, more than 262144: store it elsewhere, and return its location; the \
                  attempt counts as failed";
    assert_eq!(refusal, (413, "payload_too_large".to_owned(), detail.to_owned()));
    // A report of a job that nobody knows is dropped, as brokers deliver those of jobs that are long gone.
    let answer = world.ask(Method::POST, "/reports", with("job", json!("nobody"))).await?;
    assert_eq!(answer.status, 202);
    Ok(())
}

async fn figures_count_what_was_committed(world: &World) -> Result<()> {
    let text = world.get("/metrics").await?;
    let text = text.as_str().unwrap_or_default();
    for line in ["job_commands_total 7\n", "dead_letters_total 1\n", "idempotency_hits_total 1\n"] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert!(text.contains("job_processing_time_seconds_count{state=\"succeeded\"} 1\n"), "{text}");
    alerts_and_dashboard_name_metrics_that_exist(text)
}

/// The metrics of an orchestrator are those without the prefix of the other programs.
fn alerts_and_dashboard_name_metrics_that_exist(text: &str) -> Result<()> {
    let rules = include_str!("../../../../deploy/prometheus/orchestrator.rules.yaml");
    let board = include_str!("../../../../deploy/grafana/solehold.json");
    let rules = solehold_process::config::parse(rules).map_err(|error| anyhow!(error.message))?;
    let mut named = metrics_named(&rules);
    named.extend(metrics_named(&serde_json::from_str(board)?));
    named.retain(|name| !name.starts_with("solehold_"));
    assert!(named.len() > 5, "{named:?}");
    let missing = &named - &metrics_exported(text);
    assert!(missing.is_empty(), "{missing:?} are asked for and not exported: {text}");
    Ok(())
}
