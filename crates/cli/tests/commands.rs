//! Every command that asks a server, as people and as programs see it.

mod common;

use anyhow::{Context, Result};
use common::{ask, ask_args, command, json_of, refused, run, seen, server};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

#[tokio::test]
async fn leases() -> Result<()> {
    let server = server().start().await?;
    let none = ask(&server, "lease ls").await?;
    assert_eq!(
        (none.code, none.stdout.as_str(), none.stderr.as_str()),
        (Some(0), "", "no leases are held\n")
    );
    assert_eq!(json_of(&server, "lease ls").await?, json!({ "leases": [] }));

    assert_eq!(
        seen(&server, "lease acquire job/nightly --holder w1 --ttl 5m").await?,
        "acquired job/nightly\nlease ID\ntoken 1\nholder w1\nexpires in TTL (TIME)\nacquired just now (TIME)"
    );
    let held = json_of(&server, "lease get job/nightly").await?;
    for (field, value) in [
        ("kind", json!("job")),
        ("key", json!("nightly")),
        ("holder", json!("w1")),
        ("token", json!(1)),
        ("tenant", json!("default")),
        ("status", json!("active")),
    ] {
        assert_eq!(held[field], value, "{held}");
    }
    let id = held["lease_id"].as_str().context("an id")?;
    let facts = seen(&server, "lease get job/nightly").await?;
    assert!(
        facts.starts_with("job/nightly\nlease ID\ntoken 1\nholder w1\nexpires in TTL (TIME)\n"),
        "{facts}"
    );
    let by_id = json_of(&server, &format!("lease get {id}")).await?;
    assert_eq!(
        by_id.as_object().map(|o| o.keys().collect::<Vec<_>>()),
        held.as_object().map(|o| o.keys().collect())
    );
    assert_eq!((&by_id["lease_id"], &by_id["token"]), (&held["lease_id"], &held["token"]));

    assert_eq!(
        seen(&server, "lease ls").await?,
        "RESOURCE HOLDER TOKEN EXPIRES HELD FOR LEASE\njob/nightly w1 1 in TTL TTL ID"
    );
    let listed = json_of(&server, "lease ls --kind job --holder w1").await?;
    assert_eq!(
        (listed["leases"].as_array().map(Vec::len), &listed["leases"][0]["key"]),
        (Some(1), &json!("nightly"))
    );
    assert_eq!(json_of(&server, "lease ls --holder w2").await?, json!({ "leases": [] }));

    let renewed = seen(&server, &format!("lease renew {id} --ttl 5m")).await?;
    assert!(
        renewed.starts_with("renewed job/nightly\nlease ID\ntoken 1\nholder w1\nexpires in TTL (TIME)\n"),
        "{renewed}"
    );
    let renewed = json_of(&server, "lease renew job/nightly --token 1").await?;
    assert!(renewed["ttl_ms"].as_u64() > Some(250_000) && renewed["revision"].is_u64(), "{renewed}");

    assert_eq!(seen(&server, "lease release job/nightly --token 1").await?, "released job/nightly");
    let history = seen(&server, &format!("lease history {id}")).await?;
    assert_eq!(
        history,
        "TIME AFTER EVENT HOLDER TOKEN DETAILS\nTIME - lease_acquired w1 1 ttl TTL\nTIME +TTL lease_released w1 1"
    );
    assert_eq!(
        seen(&server, "lease history job/nightly").await?,
        history,
        "ended, and still told by its resource"
    );
    let history = json_of(&server, &format!("lease history {id}")).await?;
    let events: Vec<_> =
        history["events"].as_array().context("events")?.iter().map(|e| &e["event_type"]).collect();
    assert_eq!(events, ["lease_acquired", "lease_released"]);

    let again = json_of(&server, "lease acquire job/nightly --holder w2 --request-id r1").await?;
    let repeat = json_of(&server, "lease acquire job/nightly --holder w2 --request-id r1").await?;
    assert_eq!((&again["lease_id"], &again["repeated"]), (&repeat["lease_id"], &json!(false)));
    assert_eq!(repeat["repeated"], json!(true));
    assert!(again["token"].as_u64() > Some(1), "{again}");
    assert_eq!(
        seen(&server, "lease revoke job/nightly --reason gone").await?,
        "revoked job/nightly: it is held back for TTL, until the old deadline; once its holder has stopped, \
         `solehold lease revoke job/nightly --fenced` frees it"
    );
    let shown = seen(&server, "resource get job/nightly").await?;
    assert!(shown.contains("nobody, held back for TTL"), "{shown}");
    assert_eq!(
        seen(&server, "lease revoke job/nightly --fenced").await?,
        "job/nightly is not held back any longer: it is free"
    );
    assert_eq!(refused(&server, "resource get job/nightly").await?.0, 4);
    let other = json_of(&server, "lease acquire job/other").await?;
    let id = other["lease_id"].as_str().context("an id")?;
    assert_eq!(seen(&server, &format!("lease revoke {id} --fenced")).await?, "revoked lease ID: it is free");
    // What it says to type can be typed.
    let held = json_of(&server, "lease acquire job/held").await?;
    let id = held["lease_id"].as_str().context("an id")?;
    let told = ask(&server, &format!("lease revoke {id}")).await?.good()?;
    let hint = told.split('`').nth(1).and_then(|hint| hint.strip_prefix("solehold ")).context("a hint")?;
    assert_eq!(seen(&server, hint).await?, "revoked lease ID: it is free");
    let third = json_of(&server, "lease acquire job/third").await?;
    let released =
        json_of(&server, &format!("lease release {}", third["lease_id"].as_str().context("an id")?)).await?;
    assert_eq!(released["lease_id"], third["lease_id"]);
    Ok(())
}

#[tokio::test]
async fn resources() -> Result<()> {
    let server = server().start().await?;
    assert_eq!(
        seen(&server, "resource put camera/cam-1 --site berlin --label gpu=yes --attribute fps=30 --attribute name=door --lock-delay 5s").await?,
        "declared camera/cam-1\nheld by nobody\nsite berlin\nlabels gpu=yes\nattributes {\"fps\":30,\"name\":\"door\"}\nlock delay TTL\ndeclared yes"
    );
    ask(&server, "lease acquire camera/cam-1 --holder w1 --ttl 5m").await?.good()?;
    ask(&server, "resource put job/a").await?.good()?;
    assert_eq!(
        seen(&server, "resource ls").await?,
        "RESOURCE HOLDER TOKEN EXPIRES SITE LABELS\ncamera/cam-1 w1 2 in TTL berlin gpu=yes\njob/a - - - - -"
    );
    let keys = async |arguments: &str| -> Result<Vec<String>> {
        let listed = json_of(&server, arguments).await?;
        let listed = listed["resources"].as_array().context("resources")?;
        Ok(listed.iter().filter_map(|r| r["key"].as_str().map(str::to_owned)).collect())
    };
    assert_eq!(keys("resource ls").await?, ["cam-1", "a"]);
    assert_eq!(keys("resource ls --held").await?, ["cam-1"]);
    assert_eq!(keys("resource ls --free").await?, ["a"]);
    assert_eq!(keys("resource ls --kind job").await?, ["a"]);
    assert_eq!(keys("resource ls --site berlin").await?, ["cam-1"]);
    assert_eq!(keys("resource ls --limit 1").await?, ["cam-1"]);
    let got = json_of(&server, "resource get camera/cam-1").await?;
    assert_eq!((&got["labels"], &got["lease"]["holder"]), (&json!({"gpu": "yes"}), &json!("w1")));
    let put = json_of(&server, "resource put job/a --label x=1").await?;
    assert_eq!(put["labels"], json!({"x": "1"}));

    let (code, line, problem) = refused(&server, "resource rm camera/cam-1").await?;
    assert_eq!((code, problem.as_str()), (3, "in_use"), "{line}");
    assert_eq!(seen(&server, "resource rm camera/cam-1 --force").await?, "removed camera/cam-1");
    assert_eq!(json_of(&server, "resource rm job/a").await?, json!({"kind": "job", "key": "a"}));
    Ok(())
}

#[tokio::test]
async fn runners() -> Result<()> {
    let server = server().start().await?;
    let none = ask(&server, "runner ls").await?;
    assert_eq!(none.stderr, "no runners are registered\n");
    let http = reqwest::Client::builder().no_proxy().build()?;
    let register = json!({"runner_id": "runner-1", "capacity": 4, "deployment_group": "blue", "deployment_version": "v2"});
    let registered =
        http.post(format!("{}/api/v1/runners/register/", server.url())).json(&register).send().await?;
    let session: Value = registered.error_for_status()?.json().await?;
    let session = session["session_id"].as_str().context("a session")?;
    ask(&server, &format!("lease acquire job/a --holder runner-1 --session {session}")).await?.good()?;

    let listed = seen(&server, "runner ls").await?;
    assert!(
        listed.starts_with("RUNNER STATUS LOAD LAST SEEN EXPIRES DEPLOYMENT SITE\nrunner-1 active 1/4 "),
        "{listed}"
    );
    assert!(listed.ends_with("in TTL blue v2 -"), "{listed}");
    assert_eq!(json_of(&server, "runner ls").await?["runners"][0]["runner_id"], json!("runner-1"));
    let got = seen(&server, "runner get runner-1").await?;
    assert!(got.starts_with("runner-1\nstatus active\nload 1 of 4\nsession ID, expires in TTL\n"), "{got}");
    assert!(got.contains("\njob/a runner-1 "), "{got}");
    let got = json_of(&server, "runner get runner-1").await?;
    assert_eq!((&got["runner"]["capacity"], &got["leases"][0]["key"]), (&json!(4), &json!("a")));

    assert_eq!(
        seen(&server, "runner drain runner-1").await?,
        "runner-1 is draining: it gets no new leases, and hands 1 lease over to other runners as they have room"
    );
    let (code, line, problem) =
        refused(&server, &format!("lease acquire job/b --holder runner-1 --session {session}")).await?;
    assert_eq!((code, problem.as_str()), (3, "draining"), "{line}");
    assert_eq!(
        json_of(&server, "runner drain runner-1 --maintenance").await?["status"],
        json!("maintenance")
    );
    assert_eq!(seen(&server, "runner drain runner-1 --undo").await?, "runner-1 takes work again");
    assert_eq!(refused(&server, "runner get nobody").await?.0, 4);

    assert_eq!(
        seen(&server, "runner rm runner-1").await?,
        "removed runner-1: 1 lease revoked, and held back until the deadline that it had"
    );
    assert_eq!(refused(&server, "runner get runner-1").await?.0, 4);
    assert_eq!(refused(&server, "runner rm runner-1").await?.0, 4);
    let registered =
        http.post(format!("{}/api/v1/runners/register/", server.url())).json(&register).send().await?;
    let session: Value = registered.error_for_status()?.json().await?;
    let session = session["session_id"].as_str().context("a session")?;
    assert_eq!(
        seen(&server, "runner drain runner-1").await?,
        "runner-1 is draining: it gets no new leases, and holds no leases"
    );
    let removed = json_of(&server, &format!("runner rm runner-1 --session {session}")).await?;
    assert_eq!((&removed["released"], &removed["revoked"]), (&json!(0), &json!(0)));
    Ok(())
}

#[tokio::test]
async fn who_is_there() -> Result<()> {
    let server = server().start().await?;
    for (command, nobody) in [
        ("session ls", "no sessions are open\n"),
        ("node ls", "no nodes are there\n"),
        ("lock ls", "no locks are held\n"),
    ] {
        let ran = ask(&server, command).await?;
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", nobody), "{command}");
    }
    let http = reqwest::Client::new();
    let sessions = format!("{}/api/v1/sessions", server.url());
    let open = json!({"holder": "gateway-1", "ttl_seconds": 60, "metrics": {"group": "eu", "weight": 2}});
    let opened: Value =
        serde_json::from_str(&http.post(&sessions).body(open.to_string()).send().await?.text().await?)?;
    let id = opened["session_id"].as_str().context("an id")?;
    ask(&server, &format!("lease acquire lock/deploy --holder gateway-1 --session {id}")).await?.good()?;
    let lock = format!("{}/api/v1/locks/deploy", server.url());
    let wait = json!({"holder": "ann", "wait_ms": 30_000}).to_string();
    let waiting = tokio::spawn(http.post(lock).body(wait).send());
    let waits = async || json_of(&server, "lock ls").await.is_ok_and(|l| l["locks"][0]["waiting"] == 1);
    solehold_testkit::wait_for("a waiter", common::SOON, waits).await?;
    assert_eq!(
        seen(&server, "session ls").await?,
        "SESSION HOLDER STANDING LEASES EXPIRES OPENED\nID gateway-1 current 1 in TTL just now"
    );
    let node = "NODE GROUP STANDING LEASES WEIGHT EXPIRES REPORTS\n\
                gateway-1 eu current 1 2 in TTL {\"group\":\"eu\",\"weight\":2}";
    assert_eq!(seen(&server, "node ls").await?, node);
    assert_eq!(seen(&server, "node ls --group eu --limit 1").await?, node);
    assert_eq!(json_of(&server, "node ls --group us").await?, json!({"nodes": []}));
    let shown = seen(&server, &format!("session get {id}")).await?;
    assert!(shown.starts_with("session ID\n"), "{shown}");
    assert!(
        shown.contains("holder gateway-1") && shown.contains("lock/deploy gateway-1 1 in TTL"),
        "{shown}"
    );
    let locks = seen(&server, "lock ls").await?;
    assert!(locks.contains("deploy gateway-1 1 TIME in TTL 1\nann waits"), "{locks}");
    assert_eq!(
        seen(&server, &format!("session close {id}")).await?,
        "closed session ID and released 1 lease"
    );
    assert!(waiting.await??.status().is_success(), "it was the next");
    let (code, line, problem) = refused(&server, &format!("session get {id}")).await?;
    assert_eq!((code, problem.as_str()), (4, "no_session"), "{line}");
    assert_eq!(refused(&server, &format!("session close {id}")).await?.0, 4);
    Ok(())
}

#[tokio::test]
async fn health_is_an_exit_code() -> Result<()> {
    let server = server().start().await?;
    let address = server.url();
    assert_eq!(ask(&server, "health").await?.good()?, format!("{address} is ready\n"));
    let elsewhere = format!("health {address} --server 127.0.0.1:1 --api-key of-another");
    let found: Value = serde_json::from_str(&run(elsewhere.split(' ').chain(["--json"])).await?.good()?)?;
    assert_eq!(found, json!({"server": address, "ready": true}));
    let ran = ask(&server, "health 127.0.0.1:1").await?;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(5), ""));
    assert!(ran.stderr.starts_with("error: not ready: no server at http://127.0.0.1:1"), "{}", ran.stderr);
    // Text, as agents, gates and orchestrators respond.
    let not_ready = TcpListener::bind("127.0.0.1:0").await?;
    let address = not_ready.local_addr()?.to_string();
    let responds = tokio::spawn(async move {
        let (mut stream, _) = not_ready.accept().await?;
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await?;
        stream.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nno.\n").await
    });
    let ran = run(["health", address.as_str()]).await?;
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    responds.await??;
    Ok(())
}

#[tokio::test]
async fn the_newest_of_a_history_and_what_follows() -> Result<()> {
    let server = server().start().await?;
    for _ in 0..3 {
        let lease = json_of(&server, "lease acquire job/a").await?;
        ask(&server, &format!("lease release job/a --token {}", lease["token"])).await?.good()?;
    }
    let newest = json_of(&server, "lease history job/a --limit 3").await?;
    let revisions: Vec<_> =
        newest["events"].as_array().context("events")?.iter().map(|e| e["revision"].as_u64()).collect();
    assert_eq!(revisions, [Some(4), Some(5), Some(6)], "the newest, in order");
    let mut following = command(["lease", "history", "job/a", "--limit", "1", "--follow"]);
    following.env("SOLEHOLD_SERVER", server.url());
    let mut following = following.spawn()?;
    let lines = tokio::io::BufReader::new(following.stdout.take().context("stdout")?);
    let mut lines = tokio::io::AsyncBufReadExt::lines(lines);
    let mut next = async || -> Result<String> {
        let line = tokio::time::timeout(common::SOON, lines.next_line()).await?;
        line?.context("it goes on")
    };
    assert!(next().await?.contains("lease_released"));
    ask(&server, "lease acquire job/other").await?.good()?;
    ask(&server, "lease acquire job/a --holder later").await?.good()?;
    let line = next().await?;
    assert!(line.contains("lease_acquired") && line.contains("later"), "{line}");
    following.kill().await?;
    Ok(())
}

#[tokio::test]
async fn exit_codes_and_what_is_said() -> Result<()> {
    let server = server().start().await?;
    ask(&server, "lease acquire job/a --holder w1 --ttl 5m").await?.good()?;
    let cases = [
        (
            "lease acquire job/a --holder w2",
            3,
            "held",
            "cannot acquire job/a: held by w1 with token 1; it is free when its holder releases it, or in TTL",
        ),
        ("lease renew job/a --token 99", 3, "lost", "cannot renew job/a: the lease is not active"),
        ("lease renew job/a", 2, "no_proof", "job/a alone does not say which grant is meant; add --token"),
        ("lease release job/zzz --token 1", 4, "not_found", "cannot release job/zzz: resource job/zzz"),
        ("lease get job/zzz", 4, "not_found", "cannot show job/zzz: nobody holds job/zzz"),
        ("lease get 01a1dd78-2bc7-73c7-bd63-4d79ca90ec8a", 4, "not_found", "cannot show lease ID: "),
        (
            "lease acquire job/b --ttl 10h",
            2,
            "out_of_bounds",
            "cannot acquire job/b: --ttl must be TTL to TTL, which is `ttl_max` here",
        ),
        ("resource rm job/zzz", 4, "not_found", "cannot remove job/zzz: resource job/zzz"),
        ("lease ls --tenant \u{7}", 2, "invalid_field", "cannot list the leases: "),
        ("watch --from 9.9", 2, "", "cannot watch: "),
    ];
    for (arguments, code, problem, line) in cases {
        let (got, said, coded) = refused(&server, arguments).await.context(arguments)?;
        assert_eq!(got, code, "{arguments}: {said}");
        assert!(said.starts_with(line), "{arguments}: {said}");
        assert!(problem.is_empty() || coded == problem, "{arguments}: {coded}");
    }
    for usage in [
        "lease acquire nightly",
        "lease acquire job/..",
        "lease get x",
        "lease ls --kindd x",
        "lease",
        "resource put a/b --label x",
    ] {
        let ran = ask(&server, usage).await?;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{usage}");
        assert!(!ran.stderr.is_empty());
    }
    let nobody = run(["lease", "ls", "--server", "http://127.0.0.1:1"]).await?;
    assert_eq!(nobody.code, Some(5));
    assert!(
        nobody.stderr.contains("no server at http://127.0.0.1:1 (Connection refused)"),
        "{}",
        nobody.stderr
    );
    assert!(nobody.stderr.contains("is `solehold serve` running there?"), "{}", nobody.stderr);
    for odd in ["nowhere", "ftp://x"] {
        assert_eq!(run(["lease", "ls", "--server", odd]).await?.code, Some(2), "{odd}");
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_does_not_come_can_be_asked_for() -> Result<()> {
    let server = server().start().await?;
    server.pause().await?;
    let lost = ask(&server, "lease acquire job/a --holder w1 --ttl 5m --timeout 300ms").await?;
    assert_eq!(lost.code, Some(5));
    let again =
        lost.stderr.split_once("ask again with ").and_then(|(_, rest)| rest.split_once(" to find out"));
    let (again, _) = again.context(lost.stderr.clone())?;
    server.resume()?;
    let got = json_of(&server, &format!("lease acquire job/a --ttl 5m {again}")).await?;
    assert_eq!(got["token"], json!(1), "{got}");
    Ok(())
}

#[tokio::test]
async fn names_of_all_sorts_go_there_and_back() -> Result<()> {
    let server = server().start().await?;
    let longest = format!("job/{}", "x".repeat(255));
    for name in
        ["söhne/数/🚦 & Söhne?#%2F", "job/a/b//c/", "a b/ c ", "job/%", "job/{key}", "job/-", &longest]
    {
        ask_args(&server, ["resource", "put", name, "--site", "gare de l'Est"]).await?.good()?;
        ask_args(&server, ["lease", "acquire", name, "--holder", "Müller 🚦", "--ttl", "1m"])
            .await?
            .good()?;
        let lease = ask_args(&server, ["lease", "get", name, "--json"]).await?.json()?;
        let (kind, key) = name.split_once('/').context("a name")?;
        assert_eq!((&lease["kind"], &lease["key"]), (&json!(kind), &json!(key)));
        let token = lease["token"].to_string();
        ask_args(&server, ["lease", "renew", name, "--token", &token]).await?.good()?;
        let listed = ask_args(&server, ["lease", "ls", "--kind", kind]).await?.good()?;
        assert!(listed.contains(name) && listed.contains("Müller 🚦"), "{listed}");
        assert_eq!(
            ask_args(&server, ["lease", "release", name, "--token", &token]).await?.good()?,
            format!("released {name}\n")
        );
        ask_args(&server, ["resource", "rm", name]).await?.good()?;
    }
    let too_long = format!("job/{}", "x".repeat(10_000));
    let too_long = ask_args(&server, ["lease", "acquire", too_long.as_str()]).await?;
    assert_eq!(too_long.code, Some(2));
    assert!(too_long.stderr.contains("10000 bytes; a name has at most 255"), "{}", too_long.stderr);
    Ok(())
}

#[tokio::test]
async fn tenants_are_apart() -> Result<()> {
    let server = server().start().await?;
    let one = json_of(&server, "lease acquire job/a --tenant one").await?;
    let two = json_of(&server, "lease acquire job/a --tenant two").await?;
    assert_eq!((&one["tenant"], &two["tenant"]), (&json!("one"), &json!("two")));
    assert_eq!(refused(&server, "lease get job/a").await?.0, 4);
    assert_eq!(json_of(&server, "lease ls --tenant two").await?["leases"][0]["lease_id"], two["lease_id"]);
    let wrong = format!("lease release {} --tenant two", one["lease_id"].as_str().context("an id")?);
    assert_eq!(refused(&server, &wrong).await?.0, 4);
    Ok(())
}

#[tokio::test]
async fn long_lists_come_whole_and_a_reader_may_leave() -> Result<()> {
    let server = server().start().await?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    for part in 0..3 {
        let item =
            |n| json!({"kind": "job", "key": format!("k{part}-{n}"), "holder": "w", "ttl_seconds": 300});
        let items: Vec<Value> = (0..1_000).map(item).collect();
        let batch = http
            .post(format!("{}/api/v1/leases/batch/acquire", server.url()))
            .json(&json!({ "items": items }));
        batch.send().await?.error_for_status()?;
    }
    let all = json_of(&server, "lease ls").await?;
    assert_eq!(all["leases"].as_array().map(Vec::len), Some(3_000));
    let some = json_of(&server, "lease ls --limit 1500").await?;
    assert_eq!(some["leases"].as_array().map(Vec::len), Some(1_500));
    for arguments in ["lease ls", "lease ls --json", "resource ls"] {
        let shell = format!(
            "{} {arguments} --server {} | head -c 100; echo \"[${{PIPESTATUS[0]}}]\"",
            common::BINARY,
            server.url()
        );
        let output = tokio::process::Command::new("bash").args(["-c", &shell]).output().await?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stdout.ends_with("[0]\n") && stderr.is_empty(), "{arguments}: {stdout} {stderr}");
    }
    Ok(())
}

#[tokio::test]
async fn every_shell_has_completions() -> Result<()> {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(["completions", shell]).await?.good()?;
        assert!(script.contains("solehold") && script.contains("raise-token"), "{shell}");
    }
    assert_eq!(run(["completions", "tcsh"]).await?.code, Some(2));
    let version = run(["--version"]).await?.good()?;
    assert!(version.starts_with(concat!("solehold ", env!("CARGO_PKG_VERSION"))), "{version}");
    let json = command(["completions", "bash", "--json"]).output().await?;
    assert!(json.status.success());
    Ok(())
}
