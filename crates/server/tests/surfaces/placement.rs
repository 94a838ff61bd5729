//! What runners are told to work on, why a resource is where it is, and shifts between deployment groups.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use solehold_testkit::wait_for;

use crate::common::Api;

/// Plans are made again within a second.
const SOON: Duration = Duration::from_secs(20);

async fn declare(api: &Api, jobs: usize) {
    for n in 0..jobs {
        api.put(&format!("/resources/job/{n}"), json!({})).await.is(201);
    }
}

/// Registers a runner; returns its session.
async fn register(api: &Api, name: &str, more: Value) -> Value {
    let mut body = json!({"runner_id": name, "capacity": 100});
    body.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
    api.post("/runners/register", body).await.is(200)["session_id"].clone()
}

async fn told(api: &Api, runner: &str) -> Value {
    api.get(&format!("/runners/{runner}/assignments/")).await.is(200)
}

fn keys(list: &Value) -> BTreeSet<String> {
    let items = list.as_array().expect("a list").iter();
    items.map(|item| item["key"].as_str().expect("a key").to_owned()).collect()
}

/// What a runner is told, as soon as it is as it should be.
async fn told_when(api: &Api, runner: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let look = || async {
        let told = told(api, runner).await;
        is_so(&told).then_some(told)
    };
    wait_for(what, SOON, look).await.expect(what)
}

/// Does what a runner is told until there is nothing left to do: acquires what is free, and releases what it should.
async fn follow(api: &Api, runners: &[(&str, &Value)]) {
    let step = || async {
        let mut is_done = true;
        for (runner, session) in runners {
            let told = told(api, runner).await;
            for key in keys(&told["release"]) {
                api.call("DELETE", &format!("/resources/job/{key}/lease"), json!({"session_id": session}))
                    .await;
            }
            for key in keys(&told["acquire"]) {
                let body = json!({"holder": runner, "session_id": session});
                api.post(&format!("/resources/job/{key}/lease"), body).await;
            }
            is_done &= told["acquire"] == json!([]) && told["release"] == json!([]);
        }
        is_done
    };
    wait_for("nothing is left to do", SOON, step).await.expect("an end");
}

#[tokio::test]
async fn runners_get_resources_to_acquire_keep_and_hand_over() {
    let api = Api::start().await;
    declare(&api, 12).await;
    let one = register(&api, "r1", json!({})).await;
    let two = register(&api, "r2", json!({})).await;
    let first = told_when(&api, "r1", "half of it", |told| keys(&told["acquire"]).len() == 6).await;
    let second = told(&api, "r2").await;
    assert!(keys(&first["acquire"]).is_disjoint(&keys(&second["acquire"])));
    assert_eq!(keys(&second["acquire"]).len(), 6);
    assert_eq!((&first["acquire"][0]["reason"], &first["algorithm"]), (&json!("unowned"), &json!(1)));
    assert!(first["plan_revision"].as_u64() <= first["revision"].as_u64());
    follow(&api, &[("r1", &one), ("r2", &two)]).await;
    let kept = told(&api, "r1").await;
    assert_eq!(keys(&kept["keep"]), keys(&first["acquire"]), "what it was told, it has");
    assert_eq!(kept["leases"].as_array().expect("leases").len(), 6);

    // A third one gets its share, two from each, by hand-over.
    let three = register(&api, "r3", json!({})).await;
    let giving = told_when(&api, "r1", "something to hand over", |told| told["release"] != json!([])).await;
    let released = &giving["release"][0];
    assert_eq!((&released["next"], &released["reason"]), (&json!("r3"), &json!("balance")));
    assert_eq!(released["next_session_id"], three);
    let taking = told(&api, "r3").await;
    assert!(taking["acquire"].as_array().expect("a list").iter().all(|item| item["holder"] != json!(null)));
    follow(&api, &[("r1", &one), ("r2", &two), ("r3", &three)]).await;
    let load = keys(&told(&api, "r3").await["keep"]).len();
    assert!((3..=5).contains(&load), "{load} of 12 for one of three");

    // One that drains hands over everything.
    api.put("/runners/r2/status", json!({"status": "draining"})).await.is(200);
    told_when(&api, "r2", "everything to hand over", |told| told["keep"] == json!([])).await;
    follow(&api, &[("r1", &one), ("r2", &two), ("r3", &three)]).await;
    assert_eq!(told(&api, "r2").await["leases"], json!([]));
}

#[tokio::test]
async fn a_waiting_runner_is_notified_when_its_assignments_change() {
    let api = Api::start().await;
    declare(&api, 4).await;
    let one = register(&api, "r1", json!({})).await;
    follow(&api, &[("r1", &one)]).await;
    let known = told(&api, "r1").await["version"].as_str().expect("a version").to_owned();
    let wait = |runner: &str, known: &str, ms: u64| {
        let api = &api;
        let path = format!("/runners/{runner}/assignments?known={known}&wait_ms={ms}");
        async move { api.get(&path).await }
    };
    assert_eq!(wait("r1", &known, 200).await.is(200)["version"], known, "nothing has changed");
    wait("r1", &known, 30_001).await.problem(400, "invalid_field");

    // It is answered by what happens, long before its time is over.
    let (answer, ()) = tokio::join!(tokio::time::timeout(SOON, wait("r1", &known, 30_000)), async {
        register(&api, "r2", json!({})).await;
    });
    let answer = answer.expect("at once").is(200);
    assert_ne!(answer["version"], known);
    let given = |told: &Value| keys(&told["release"]).len() + keys(&told["keep"]).len();
    assert_eq!(given(&answer), 4, "nothing is forgotten: {answer:#}");
    let moving = told_when(&api, "r1", "a share to hand over", |told| told["release"] != json!([])).await;
    let taken = told(&api, "r2").await;
    let known = taken["version"].as_str().expect("a version");
    let (answer, ()) = tokio::join!(tokio::time::timeout(SOON, wait("r2", known, 30_000)), async {
        let key = keys(&moving["release"]).pop_first().expect("one");
        api.call("DELETE", &format!("/resources/job/{key}/lease"), json!({"session_id": one})).await;
    });
    assert_ne!(answer.expect("at once").is(200)["version"], known);
}

/// Callers that hang up while a plan is made, as they all do in an outage, make nobody forget who held what.
#[tokio::test]
async fn runners_that_return_after_an_outage_get_their_resources_back() {
    let api = Api::start().await;
    declare(&api, 12).await;
    let one = register(&api, "r1", json!({})).await;
    let two = register(&api, "r2", json!({})).await;
    follow(&api, &[("r1", &one), ("r2", &two)]).await;
    let held = [keys(&told(&api, "r1").await["keep"]), keys(&told(&api, "r2").await["keep"])];
    assert_eq!(held.each_ref().map(BTreeSet::len), [6, 6]);
    for n in 0..600 {
        // The store goes on, so every now and then a plan is made again.
        api.put(&format!("/resources/lock/{n}"), json!({})).await.is(201);
        let _ = tokio::time::timeout(Duration::from_micros(100 * (n % 30)), told(&api, "r1")).await;
    }
    // Nobody is heard of for five minutes.
    api.pass_seconds(300);
    register(&api, "r1", json!({})).await;
    assert_eq!(keys(&told(&api, "r1").await["acquire"]), held[0], "its own, and no more");
    register(&api, "r2", json!({})).await;
    told_when(&api, "r2", "what it held", |told| keys(&told["acquire"]) == held[1]).await;
}

#[tokio::test]
async fn constraints_come_from_the_declaration() {
    let api = Api::start().await;
    let needs = json!({"weight": 2, "labels": {"gpu": "yes"}, "capabilities": ["night"]});
    api.put("/resources/job/picky", json!({"site": "north", "attributes": {"placement": needs}}))
        .await
        .is(201);
    api.put("/resources/job/never", json!({"attributes": {"placement": {"placed": false}}})).await.is(201);
    api.put("/resources/zone/z1", json!({})).await.is(201);
    register(&api, "r1", json!({"site_id": "south"})).await;
    let why = async |reason: &str| {
        let look = || async {
            let explained = api.get("/resources/job/picky/explain").await.is(200);
            (explained["reason"] == reason).then_some(explained)
        };
        wait_for(reason, SOON, look).await.expect(reason)
    };
    let explained = why("no_runner_at_site").await;
    assert_eq!((&explained["target"], &explained["step"]), (&json!(null), &json!("nothing")));
    assert!(explained["detail"].as_str().expect("text").contains("no runner serves the site north"));
    register(&api, "r2", json!({"site_id": "north"})).await;
    why("no_runner_with_label").await;
    register(&api, "r2", json!({"site_id": "north", "labels": {"gpu": "yes"}})).await;
    why("no_runner_with_capability").await;
    let able =
        json!({"site_id": "north", "labels": {"gpu": "yes"}, "capabilities": ["night"], "capacity": 1});
    register(&api, "r2", able.clone()).await;
    why("all_at_capacity").await;
    let mut able = able;
    able["capacity"] = json!(2);
    able["kinds"] = json!(["other"]);
    register(&api, "r2", able.clone()).await;
    why("no_runner_with_all").await;
    able["kinds"] = json!(["job"]);
    register(&api, "r2", able).await;
    assert_eq!(why("unowned").await["target"], "r2");
    assert_eq!(
        keys(&told(&api, "r1").await["acquire"]),
        BTreeSet::new(),
        "neither a zone nor what is excepted"
    );
    for key in ["/resources/job/never", "/resources/zone/z1"] {
        let explained = api.get(&format!("{key}/explain")).await.is(200);
        assert_eq!((&explained["placed"], &explained["reason"]), (&json!(false), &json!("not_placed")));
    }
    api.get("/resources/job/nothing/explain").await.problem(404, "not_found");
    let odd = json!({"attributes": {"placement": {"weight": 0, "labels": {"": "x"}}}});
    let problem = api.put("/resources/job/odd", odd).await.problem(400, "invalid_field");
    assert_eq!(problem["errors"][0]["field"], "attributes.placement.weight");
    let unknown = json!({"attributes": {"placement": {"wieght": 1}}});
    let problem = api.put("/resources/job/odd", unknown).await.problem(400, "invalid_field");
    assert!(problem["errors"][0]["message"].as_str().expect("text").contains("wieght"), "{problem}");
}

#[tokio::test]
async fn an_explanation_predicts_the_death_of_the_holder() {
    let api = Api::start().await;
    declare(&api, 1).await;
    let one = register(&api, "r1", json!({})).await;
    register(&api, "r2", json!({"kinds": ["job"]})).await;
    api.post("/resources/job/0/lease", json!({"holder": "r1", "session_id": one})).await.is(201);
    let look = || async {
        let explained = api.get("/resources/job/0/explain").await.is(200);
        (explained["reason"] == "held").then_some(explained)
    };
    let explained = wait_for("it is held", SOON, look).await.expect("an explanation");
    assert_eq!((&explained["holder"], &explained["target"]), (&json!("r1"), &json!("r1")));
    assert!(
        explained["detail"].as_str().expect("text").contains("r1 holds 1 of 100, and its fair share is 0.5")
    );
    let then = &explained["if_holder_dies"];
    assert_eq!((&then["target"], &then["after_ms"]), (&json!("r2"), &json!(60_000)));
    assert!(then["detail"].as_str().expect("text").contains("its lease runs out in 60.0 s"), "{then}");
}

#[tokio::test]
async fn a_resource_that_fails_is_tried_elsewhere_and_then_nowhere() {
    let api = Api::start().await;
    declare(&api, 1).await;
    let sessions = [register(&api, "r1", json!({})).await, register(&api, "r2", json!({})).await];
    let target = async |wanted: Value| {
        let look = || async {
            let explained = api.get("/resources/job/0/explain").await.is(200);
            (explained["target"] == wanted).then_some(explained)
        };
        wait_for("the target", SOON, look).await.expect("the target")
    };
    let failures = "/resources/job/0/failures";
    let fail = async |runner: &str, session: &Value| {
        let proof = json!({"holder": runner, "session_id": session});
        api.post("/resources/job/0/lease", proof).await.is(201);
        let report = json!({"runner_id": runner, "session_id": session, "reason": "exit 3"});
        api.post(failures, report).await.is(200);
        api.call("DELETE", "/resources/job/0/lease", json!({"session_id": session})).await.is(204);
    };
    fail("r1", &sessions[0]).await;
    target(json!("r2")).await;
    fail("r2", &sessions[1]).await;
    for _ in 0..3 {
        fail("r1", &sessions[0]).await;
    }
    let explained = target(json!(null)).await;
    assert_eq!((&explained["reason"], &explained["failures"]), (&json!("quarantined"), &json!(5)));
    assert_eq!(explained["quarantined"], true);
    api.delete("/resources/job/0/quarantine").await.is(204);
    let look = || async { api.get("/resources/job/0/explain").await.is(200)["reason"] == "unowned" };
    wait_for("it is placed again", SOON, look).await.expect("it is placed again");
    let put = api.put("/resources/job/0/quarantine", json!({"reason": "noisy"})).await.is(200);
    assert_eq!((&put["quarantined"], &put["reason"]), (&json!(true), &json!("noisy")));
    target(json!(null)).await;
    api.post(failures, json!({"runner_id": "nobody"})).await.problem(404, "not_found");
    api.post("/resources/job/none/failures", json!({"runner_id": "r1"})).await.problem(404, "not_found");
    api.put("/resources/job/none/quarantine", json!({})).await.problem(404, "not_found");
}

#[tokio::test]
async fn work_is_shifted_between_groups_and_halts_when_the_new_one_fails() {
    let api = Api::start().await;
    declare(&api, 40).await;
    let shift = async |percent: u32| {
        api.post("/deployments/shift", json!({"to": "green", "percent": percent})).await.is(200)
    };
    shift(0).await;
    let blue = register(&api, "b1", json!({"deployment_group": "blue", "deployment_version": "1.9"})).await;
    let green =
        register(&api, "g1", json!({"deployment_group": "green", "deployment_version": "1.10"})).await;
    let runners = [("b1", &blue), ("g1", &green)];
    told_when(&api, "b1", "everything for blue", |told| keys(&told["acquire"]).len() == 40).await;
    follow(&api, &runners).await;
    assert_eq!(told(&api, "g1").await["keep"], json!([]));
    shift(25).await;
    told_when(&api, "g1", "a quarter for green", |told| told["acquire"] != json!([])).await;
    follow(&api, &runners).await;
    let quarter = keys(&told(&api, "g1").await["keep"]);
    assert!((4..=16).contains(&quarter.len()), "{} of 40", quarter.len());
    shift(60).await;
    told_when(&api, "g1", "more for green", |told| told["acquire"] != json!([])).await;
    follow(&api, &runners).await;
    let more = keys(&told(&api, "g1").await["keep"]);
    assert!(quarter.is_subset(&more), "only the difference moves");

    shift(100).await;
    let one = more.first().expect("one");
    for _ in 0..5 {
        api.post(&format!("/resources/job/{one}/failures"), json!({"runner_id": "g1"})).await.is(200);
    }
    let listed = api.get("/deployments").await.is(200);
    let why = listed["shift"]["halted"].as_str().expect("a reason");
    assert!(why.contains("runners of green have reported 5 failures"), "{why}");
    let green = &listed["deployments"][1];
    assert_eq!((&green["deployment_group"], &green["versions"]), (&json!("green"), &json!(["1.10"])));
    told_when(&api, "b1", "nothing more is moved", |told| told["release"] == json!([])).await;
    let again = shift(100).await;
    assert_eq!((&again["halted"], &again["failures"]), (&json!(null), &json!(0)));
    told_when(&api, "b1", "it goes on", |told| told["release"] != json!([])).await;
    let odd = json!({"to": "", "percent": 101});
    let problem = api.post("/deployments/shift", odd).await.problem(400, "invalid_field");
    assert_eq!(problem["errors"].as_array().expect("errors").len(), 2);
}

#[tokio::test]
async fn settings_except_kinds_and_pin_resources() {
    let api = Api::start().await;
    declare(&api, 4).await;
    api.put("/resources/task/1", json!({})).await.is(201);
    register(&api, "r1", json!({})).await;
    register(&api, "old", json!({})).await;
    let settings =
        json!({"unplaced_kinds": ["task"], "static_lists": {"old": ["job/2"]}, "band_percent": 20});
    api.put("/placement", settings).await.is(200);
    let told =
        told_when(&api, "old", "its list", |told| keys(&told["acquire"]) == ["2".to_owned()].into()).await;
    assert_eq!(told["acquire"][0]["kind"], "job");
    told_when(&api, "r1", "the others", |told| keys(&told["acquire"]).len() == 3).await;
    let shown = api.get("/placement").await.is(200);
    assert_eq!((&shown["band_percent"], &shown["settle_ms"]), (&json!(20), &json!(null)));
    for (odd, field) in [
        (json!({"band_percent": 0}), "band_percent"),
        (json!({"moves_at_once": 0}), "moves_at_once"),
        (json!({"return_window_ms": 99_999_999}), "return_window_ms"),
        (json!({"static_lists": {"r1": ["job"]}}), "static_lists"),
        (
            json!({"static_lists": {"r1": (0..2_000).map(|n| format!("job/{n}")).collect::<Vec<_>>()}}),
            "static_lists",
        ),
    ] {
        let problem = api.put("/placement", odd).await.problem(400, "invalid_field");
        assert_eq!(problem["errors"][0]["field"], field);
    }
}

#[tokio::test]
async fn a_restarted_runner_gets_its_set_again() {
    let api = Api::start().await;
    declare(&api, 4).await;
    let one = register(&api, "r1", json!({})).await;
    let two = register(&api, "r2", json!({})).await;
    follow(&api, &[("r1", &one), ("r2", &two)]).await;
    let before = keys(&told(&api, "r1").await["keep"]);
    assert_eq!(before.len(), 2);
    register(&api, "r1", json!({})).await;
    let told = told_when(&api, "r1", "its set", |told| keys(&told["acquire"]) == before).await;
    assert_eq!((&told["keep"], &told["acquire"][0]["reason"]), (&json!([]), &json!("returned")));
    assert_eq!(
        told_when(&api, "r2", "no more", |told| told["acquire"] == json!([])).await["release"],
        json!([])
    );
}

/// A body with one setting set all others back to their defaults.
#[tokio::test]
async fn a_partial_change_of_the_settings_leaves_the_rest_as_it_was() {
    let api = Api::start().await;
    let first = json!({"band_percent": 20, "settle_ms": 5_000, "unplaced_kinds": ["task"],
        "static_lists": {"old": ["job/2"]}});
    api.put("/placement", first).await.is(200);
    let changed = api.put("/placement", json!({"moves_at_once": 4})).await.is(200);
    let all = json!({"band_percent": 20, "moves_at_once": 4, "return_window_ms": null, "settle_ms": 5_000,
        "unplaced_kinds": ["task"], "static_lists": {"old": ["job/2"]}});
    assert_eq!(changed, all);
    assert_eq!(api.get("/placement").await.is(200), all);
    let back = json!({"band_percent": null, "unplaced_kinds": null, "static_lists": {}});
    let changed = api.put("/placement", back).await.is(200);
    let rest = json!({"band_percent": null, "moves_at_once": 4, "return_window_ms": null, "settle_ms": 5_000,
        "unplaced_kinds": [], "static_lists": {}});
    assert_eq!(changed, rest, "null sets a setting back to its default");
    let odd = json!({"moves_at_once": 5, "band_percent": 0});
    api.put("/placement", odd).await.problem(400, "invalid_field");
    assert_eq!(api.get("/placement").await.is(200), rest, "all of a change, or nothing");
}

#[tokio::test]
async fn an_explanation_has_the_settle_time_the_penalties_and_the_last_failure() {
    let api = Api::start().await;
    declare(&api, 2).await;
    register(&api, "r1", json!({})).await;
    told_when(&api, "r1", "all", |told| keys(&told["acquire"]).len() == 2).await;
    let session = register(&api, "r1", json!({})).await;
    follow(&api, &[("r1", &session)]).await;
    let explain = async || api.get("/resources/job/0/explain").await.is(200);
    let explained = explain().await;
    assert_eq!(explained["settle_ms"], 60_000);
    assert_eq!(explained["settling"][0]["runner_id"], "r1", "{explained}");
    assert!(
        explained["settling"][0]["for_ms"].as_u64().is_some_and(|ms| 0 < ms && ms <= 60_000),
        "{explained}"
    );
    assert_eq!((&explained["penalties"], &explained["last_failure"]), (&json!([]), &json!(null)));
    for reason in ["exit 3", "exit 9"] {
        let body = json!({"runner_id": "r1", "session_id": session, "reason": reason});
        api.post("/resources/job/0/failures", body).await.is(200);
        api.pass_seconds(1);
    }
    api.pass_seconds(9);
    let beat = json!({"session_id": session, "metrics": {"failed_resources": {"job/0": "it ended with 9"}}});
    api.put("/runners/r1/heartbeat", beat).await.is(200);
    let explained = explain().await;
    let last = &explained["last_failure"];
    assert_eq!((&last["runner_id"], &last["reason"]), (&json!("r1"), &json!("exit 9")), "{explained}");
    assert!(last["at"].is_string(), "{explained}");
    let penalty = &explained["penalties"][0];
    assert_eq!((&penalty["runner_id"], &penalty["for_ms"]), (&json!("r1"), &json!(3_590_000)), "{explained}");
    assert_eq!(penalty["declines"], "it ended with 9");
    assert!(explained["penalties"][1].is_null(), "one for each runner");
    api.delete("/resources/job/0/quarantine").await.is(204);
    assert_eq!(explain().await["last_failure"], json!(null), "it was cleared");
}
