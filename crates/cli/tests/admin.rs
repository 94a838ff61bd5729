//! Administration, through a server and straight against its store.

mod common;

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};
use common::{Ran, ask, ask_args, command, ran, run, server, write};
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Solehold, TempDir};
use tokio::io::AsyncWriteExt;

/// The ids of the keys.
async fn ids(place: &[&str]) -> Result<Vec<String>> {
    let keys = run(["admin", "key", "ls", "--json"].iter().chain(place)).await?.json()?;
    let keys = keys["keys"].as_array().context("keys")?;
    Ok(keys.iter().filter_map(|key| key["id"].as_str().map(str::to_owned)).collect())
}

/// Makes, lists, rotates and revokes keys at a place where one administers already.
async fn manage_keys(place: &[&str]) -> Result<()> {
    let admin = async |args: &[&str]| run(["admin", "key"].iter().chain(args).chain(place)).await;
    let before = ids(place).await?.len();
    let made =
        admin(&["create", "--name", "ci", "--role", "runner", "--tenant", "acme", "--expires", "90days"])
            .await?;
    assert!(made.stderr.contains("(\"ci\", role runner, tenant acme); keep it now"), "{}", made.stderr);
    let text = made.good()?;
    assert!(text.starts_with("shk_") && text.lines().count() == 1, "{text}");
    let made = admin(&["create", "--name", "board", "--role", "reader", "--json"]).await?.json()?;
    assert_eq!(
        (&made["name"], &made["role"], &made["tenant"]),
        (&json!("board"), &json!("reader"), &Value::Null)
    );
    let id = made["id"].as_str().context("an id")?;

    let listed = admin(&["ls"]).await?.good()?;
    assert!(listed.starts_with("ID"), "{listed}");
    let line = listed.lines().find(|line| line.contains(" ci ")).context("the key's line")?;
    assert!(line.contains("runner") && line.contains("acme") && line.contains("in 89d 23h"), "{line}");
    assert!(!listed.contains("shk_"), "{listed}");
    assert_eq!(ids(place).await?.len(), before + 2);

    let rotated = admin(&["rotate", id, "--grace", "0s", "--json"]).await?.json()?;
    assert_eq!(rotated["id"], made["id"]);
    assert_ne!(rotated["key"], made["key"]);
    assert_eq!(admin(&["revoke", id]).await?.good()?, format!("revoked key {id}\n"));
    assert_eq!(ids(place).await?.len(), before + 1);
    assert_eq!(admin(&["rotate", "nosuchkey"]).await?.code, Some(4));
    assert_eq!(admin(&["create", "--name", "", "--role", "reader"]).await?.code, Some(2));
    let roleless = admin(&["create", "--name", "x"]).await?;
    assert!(roleless.code == Some(2) && roleless.stderr.contains("--role <ROLE>"), "{roleless:?}");
    Ok(())
}

#[tokio::test]
async fn keys_straight_against_the_store() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().display().to_string();
    server().data_dir(folder.path()).start().await?.terminate().await?;
    let none = run(["admin", "key", "ls", "--data-dir", &data]).await?;
    assert!(none.stdout.is_empty() && none.stderr.contains("there are no keys"), "{none:?}");
    manage_keys(&["--data-dir", &data]).await
}

#[tokio::test]
async fn keys_through_a_server() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().display().to_string();
    let key = run(["admin", "key", "create", "--name", "root", "--role", "admin", "--data-dir", &data])
        .await?
        .good()?;
    let server = server().data_dir(folder.path()).start().await?;
    manage_keys(&["--server", server.url(), "--api-key", key.trim()]).await?;
    let reader = ["admin", "key", "create", "--name", "r", "--role", "reader", "--server", server.url()];
    let reader = run(reader.iter().chain(&["--api-key", key.trim()])).await?.good()?;
    let forbidden =
        run(["resource", "put", "a/b", "--server", server.url(), "--api-key", reader.trim()]).await?;
    assert_eq!(forbidden.code, Some(6), "{}", forbidden.stderr);
    let unknown = run(["lease", "ls", "--server", server.url(), "--api-key", "shk_0_0"]).await?;
    assert_eq!(unknown.code, Some(6), "{}", unknown.stderr);
    Ok(())
}

#[tokio::test]
async fn tokens_are_raised() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().display().to_string();
    server().data_dir(folder.path()).start().await?.terminate().await?;
    let raised = run(["admin", "raise-token", "--above", "1000", "--data-dir", &data]).await?.good()?;
    assert_eq!(raised, "tokens go on from above 1000\n");
    let server = server().data_dir(folder.path()).start().await?;
    assert_eq!(ask(&server, "lease acquire job/a --json").await?.json()?["token"], json!(1001));
    let raised = ask(&server, "admin raise-token --above 5000 --json").await?.json()?;
    assert_eq!(raised, json!({"above": 5000}));
    assert_eq!(ask(&server, "lease acquire job/b --json").await?.json()?["token"], json!(5001));
    Ok(())
}

/// A server's data to move: leases, a runner's session, keys, and a token to go on from.
async fn furnish(server: &Solehold) -> Result<u64> {
    ask(server, "resource put camera/cam-1 --site berlin --label gpu=yes").await?.good()?;
    for number in 0..5 {
        ask(server, &format!("lease acquire job/{number} --holder w{number} --ttl 5m")).await?.good()?;
    }
    ask(server, "lease release job/4 --holder w4").await?.good()?;
    ask_args(server, ["resource", "put", "söhne/数/🚦"]).await?.good()?;
    let last = ask(server, "lease acquire camera/cam-1 --holder w --ttl 5m --json").await?.json()?;
    last["token"].as_u64().context("a token")
}

/// What a server shows, but for times that pass.
async fn shown(server: &Solehold) -> Result<Value> {
    let mut all = ask(server, "resource ls --json").await?.json()?;
    for resource in all["resources"].as_array_mut().context("resources")? {
        for field in ["ttl_ms", "expires_at", "acquired_at"] {
            if let Some(lease) = resource["lease"].as_object_mut() {
                lease.remove(field);
            }
        }
        resource.as_object_mut().context("a resource")?.remove("created_at");
    }
    Ok(all)
}

/// `solehold admin export --retire WHERE FROM | solehold admin import TO`.
async fn pipe(from: &[&str], to: &[&str]) -> Result<(Ran, Ran)> {
    pipe_with(&["--retire", "the new place"], from, to).await
}

async fn pipe_with(options: &[&str], from: &[&str], to: &[&str]) -> Result<(Ran, Ran)> {
    let export = ran(command(["admin", "export"].iter().chain(options).chain(from))).await?;
    let mut import = command(["admin", "import"].iter().chain(to)).stdin(Stdio::piped()).spawn()?;
    let mut stdin = import.stdin.take().context("a stdin")?;
    // It may refuse before it has read everything.
    let _ = stdin.write_all(export.stdout.as_bytes()).await;
    drop(stdin);
    let output = import.wait_with_output().await?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let import =
        Ran { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) };
    Ok((export, import))
}

async fn moved(from: &Path, to: &[&str], start: impl AsyncFn() -> Result<Solehold>) -> Result<()> {
    let old = server().data_dir(from).start().await?;
    let last = furnish(&old).await?;
    let before = shown(&old).await?;
    old.terminate().await?;
    let (export, import) = pipe(&["--data-dir", from.to_str().context("UTF-8")?], to).await?;
    assert_eq!(export.code, Some(0), "{}", export.stderr);
    assert!(export.stderr.contains("exported ") && export.stderr.contains(" rows"), "{}", export.stderr);
    assert_eq!(import.code, Some(0), "{}", import.stderr);
    assert!(
        import.stdout.contains(&format!("tokens go on from above {last}; grants begin at once\n")),
        "{}",
        import.stdout
    );

    let new = start().await?;
    assert_eq!(shown(&new).await?, before);
    let next = ask(&new, "lease acquire job/next --json").await?.json()?;
    assert!(next["token"].as_u64() > Some(last), "{next} after {last}");
    let held = ask(&new, "lease acquire job/0 --holder other").await?;
    assert_eq!(held.code, Some(3), "{}", held.stderr);
    ask(&new, "lease renew job/0 --holder w0").await?.good()?;
    new.terminate().await?;

    let (_, again) = pipe(&["--data-dir", from.to_str().context("UTF-8")?], to).await?;
    assert_eq!(again.code, Some(3), "{}", again.stderr);
    assert!(again.stderr.contains("cannot import: the store is not empty"), "{}", again.stderr);
    Ok(())
}

#[tokio::test]
async fn everything_moves_from_folder_to_folder() -> Result<()> {
    let from = TempDir::new()?;
    let to = TempDir::new()?;
    let target = to.path().to_str().context("UTF-8")?;
    moved(from.path(), &["--data-dir", target], async || server().data_dir(to.path()).start().await).await
}

#[tokio::test]
async fn everything_moves_from_folder_to_postgres() -> Result<()> {
    let from = TempDir::new()?;
    let url = Postgres::shared().await?.create_database("moved").await?;
    moved(from.path(), &["--engine", &url], async || server().engine(&url).start().await).await
}

#[tokio::test]
async fn everything_moves_through_servers() -> Result<()> {
    let old = server().start().await?;
    let new = server().start().await?;
    let last = furnish(&old).await?;
    let before = shown(&old).await?;
    let (export, import) = pipe(&["--server", old.url()], &["--server", new.url()]).await?;
    assert_eq!((export.code, import.code), (Some(0), Some(0)), "{}{}", export.stderr, import.stderr);
    assert_eq!(shown(&new).await?, before);
    for refused in ["lease acquire job/next", "resource ls", "lease renew job/0 --holder w0"] {
        let refused = ask(&old, refused).await?;
        assert_eq!(refused.code, Some(5), "{}", refused.stderr);
        assert!(refused.stderr.contains("its data moved to the new place"), "{}", refused.stderr);
    }
    let next = ask(&new, "lease acquire job/next --json").await?.json()?;
    assert!(next["token"].as_u64() > Some(last), "{next} after {last}");
    let (_, again) = pipe(&["--server", old.url()], &["--server", new.url()]).await?;
    assert_eq!(again.code, Some(3), "{}", again.stderr);
    Ok(())
}

/// The old store lives on: neither its tokens nor its leases are given again.
#[tokio::test]
async fn an_import_from_a_store_that_lives_on_gives_no_token_and_no_lease_again() -> Result<()> {
    let folder = TempDir::new()?;
    let url = Postgres::shared().await?.create_database("forked").await?;
    let old = server().start().await?;
    let last = furnish(&old).await?;
    for (place, start) in [
        (["--data-dir", folder.path().to_str().context("UTF-8")?], server().data_dir(folder.path())),
        (["--engine", &url], server().engine(&url)),
    ] {
        let (export, import) = pipe_with(&[], &["--server", old.url()], &place).await?;
        assert_eq!((export.code, import.code), (Some(0), Some(0)), "{}{}", export.stderr, import.stderr);
        assert!(import.stdout.contains("nothing is granted or renewed for 5m"), "{}", import.stdout);
        let new = start.start().await?;
        for barred in ["lease acquire job/next", "lease renew job/0 --holder w0"] {
            let barred = ask(&new, barred).await?;
            assert_eq!(barred.code, Some(5), "{}", barred.stderr);
        }
        let told = ask(&new, "admin restored --holders-stopped --json").await?.json()?;
        assert!(told["above"].as_u64() > Some(last + (1 << 33)) && told["barred_ms"] == json!(0), "{told}");
        let next = ask(&new, "lease acquire job/next --json").await?.json()?;
        assert!(next["token"].as_u64() > told["above"].as_u64(), "{next} after {told}");
    }
    ask(&old, "lease acquire job/next").await?.good()?;
    Ok(())
}

/// The file and its name are synced before the command ends, so that the store can be deleted then.
#[tokio::test]
async fn an_export_to_a_file_survives_a_power_loss() -> Result<()> {
    let folder = TempDir::new()?;
    let folder = std::fs::canonicalize(folder.path())?;
    let server = server().start().await?;
    furnish(&server).await?;
    let place = |name: &str| folder.join(name).display().to_string();
    let [trace, file] = [place("trace"), place("all.jsonl")];
    let calls = "trace=?rename,renameat,renameat2,fsync";
    let mut strace = tokio::process::Command::new("strace");
    strace.args([
        "-f",
        "-qq",
        "-y",
        "-s",
        "4096",
        "-e",
        "signal=none",
        "-e",
        calls,
        "-o",
        &trace,
        common::BINARY,
    ]);
    strace.args(["admin", "export", "--server", server.url(), "--output", &file]);
    ran(strace).await?.good()?;
    let trace = std::fs::read_to_string(trace)?;
    let synced = trace.find(&format!("<{file}.partial>")).context("the file is synced")?;
    let renamed = trace.rfind(&format!("\"{file}\"")).context("the file is renamed")?;
    let named = trace.rfind(&format!("<{}>", folder.display())).context("the folder is synced")?;
    assert!(synced < renamed && renamed < named, "{trace}");
    Ok(())
}

#[tokio::test]
async fn an_export_to_a_file_is_whole_or_not_there() -> Result<()> {
    let folder = TempDir::new()?;
    let server = server().start().await?;
    furnish(&server).await?;
    let file = folder.path().join("all.jsonl");
    let export = ask_args(&server, ["admin", "export", "--output", file.to_str().context("UTF-8")?]).await?;
    assert_eq!((export.code, export.stdout.as_str()), (Some(0), ""), "{}", export.stderr);
    let text = std::fs::read_to_string(&file)?;
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1, "nothing partial is left");
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));

    let target = folder.path().join("data").display().to_string();
    let import = async |name: &str, text: &str| -> Result<Ran> {
        let path = write(folder.path(), name, text)?;
        run(["admin", "import", &path, "--data-dir", &target]).await
    };
    let (cut, _) = text.trim_end().rsplit_once('\n').context("many lines")?;
    let cut = import("cut", cut).await?;
    assert_eq!(cut.code, Some(2), "{}", cut.stderr);
    assert!(cut.stderr.contains("it is cut off after line"), "{}", cut.stderr);
    let odd = import("odd", &text.replacen("\n{", "\nx{", 1)).await?;
    assert_eq!(odd.code, Some(2), "{}", odd.stderr);
    assert!(odd.stderr.contains("line 2 is not one of an export"), "{}", odd.stderr);
    assert_eq!(import("empty", "").await?.code, Some(2));
    assert_eq!(import("good", &text).await?.code, Some(0));

    let broken = format!("{} admin export --server {} | head -c 10", common::BINARY, server.url());
    let shell = format!("{broken}; echo \"[${{PIPESTATUS[0]}}]\"");
    let output = tokio::process::Command::new("bash").args(["-c", &shell]).output().await?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    // So little fits into the pipe whole: then all of it was written. Otherwise it is an error.
    assert!(stdout.ends_with("[1]\n") || stdout.ends_with("[0]\n"), "{stdout}");
    Ok(())
}

/// The wait after a failover is as long as the longest ttl that any server ever allowed.
#[tokio::test(flavor = "multi_thread")]
async fn ttl_max_is_lowered_only_when_nothing_is_held_for_longer() -> Result<()> {
    let url = Postgres::shared().await?.create_database("lowered").await?;
    let lower = async || run(["admin", "lower-ttl-max", "30s", "--engine", &url]).await;
    let server = server().engine(&url).env("SOLEHOLD_TTL_MAX", "10m").start().await?;
    let grant = ask(&server, "lease acquire job/a --ttl 8m --json").await?.json()?;
    let held = lower().await?;
    assert_eq!(held.code, Some(2), "{held:?}");
    assert!(held.stderr.contains("480000 ms, which is above 30000 ms"), "{held:?}");
    ask(&server, &format!("lease release job/a --token {}", grant["token"])).await?.good()?;
    server.terminate().await?;
    let said = lower().await?.good()?;
    assert!(said.contains("nothing is granted for 30s"), "{said}");
    let restored = run(["admin", "restored", "--engine", &url, "--json"]).await?.json()?;
    assert!(restored["barred_ms"].as_u64().is_some_and(|ms| ms <= 30_000), "{restored}");

    let folder = TempDir::new()?;
    let data = folder.path().display().to_string();
    run(["admin", "key", "create", "--name", "x", "--role", "admin", "--data-dir", &data]).await?.good()?;
    let embedded = run(["admin", "lower-ttl-max", "30s", "--data-dir", &data]).await?;
    assert!(embedded.code == Some(2) && embedded.stderr.contains("does not store ttl_max"), "{embedded:?}");
    let odd = run(["admin", "lower-ttl-max", "2d", "--engine", &url]).await?;
    assert!(odd.code == Some(2) && odd.stderr.contains("write a time from 1s to 24h"), "{odd:?}");
    Ok(())
}

/// Not on a terminal: nothing without a level of log that asks for it, and nothing with --json.
#[tokio::test]
async fn an_import_shows_no_progress_where_nobody_looks() -> Result<()> {
    let folder = TempDir::new()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let server = server().start().await?;
    for n in 0..50 {
        ask(&server, &format!("resource put job/{n}")).await?.good()?;
    }
    let exported = ask(&server, &format!("admin export --output {}", path("all.jsonl"))).await?;
    assert_eq!((exported.code, exported.stdout.as_str()), (Some(0), ""), "{}", exported.stderr);
    assert!(
        exported.stderr.starts_with("exported ") && exported.stderr.lines().count() == 1,
        "{}",
        exported.stderr
    );
    let import = ["admin", "import", &path("all.jsonl"), "--data-dir", &path("data"), "--json"];
    let imported = run(import).await?;
    assert_eq!((imported.code, imported.stderr.as_str()), (Some(0), ""), "{}", imported.stdout);
    Ok(())
}

/// On a terminal, of `script` from util-linux: one line that is written over, and removed at the end.
#[tokio::test]
async fn an_import_shows_its_progress_on_a_terminal() -> Result<()> {
    let folder = TempDir::new()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let server = server().start().await?;
    for n in 0..20 {
        ask(&server, &format!("resource put job/{n}")).await?.good()?;
    }
    ask(&server, &format!("admin export --output {}", path("all.jsonl"))).await?.good()?;
    // Time passes between the rows, so that there is progress to show.
    let slow = format!("{{ head -n 9 {0}; sleep 1; tail -n +10 {0}; }}", path("all.jsonl"));
    let import = format!("{slow} | {} admin import - --data-dir {}", common::BINARY, path("data"));
    let mut script = tokio::process::Command::new("script");
    script.args(["-qefc", &import, "/dev/null"]).stdin(Stdio::null()).kill_on_drop(true);
    let shown = ran(script).await?.good()?;
    assert!(shown.contains("\r\x1b[Kread ") && shown.contains(" rows per second"), "{shown:?}");
    assert!(shown.contains("\r\x1b[Kimported "), "the line is gone before the result: {shown:?}");
    Ok(())
}

/// What is done straight to the store is in the same trail as what is done through a server.
#[tokio::test]
async fn what_operators_do_is_in_the_audit_trail() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().display().to_string();
    let url = Postgres::shared().await?.create_database("audited").await?;
    server().data_dir(folder.path()).start().await?.terminate().await?;
    server().engine(&url).start().await?.terminate().await?;
    for (place, start) in [
        (["--data-dir", data.as_str()], server().data_dir(folder.path())),
        (["--engine", url.as_str()], server().engine(&url)),
    ] {
        let admin = async |args: &[&str]| run(["admin"].iter().chain(args).chain(&place)).await;
        let none = admin(&["audit"]).await?;
        assert!(none.stdout.is_empty() && none.stderr.contains("no operator has changed"), "{none:?}");
        let key = admin(&["key", "create", "--name", "ops", "--role", "admin"]).await?.good()?;
        admin(&["raise-token", "--above", "1000"]).await?.good()?;
        let server = start.start().await?;
        let through = ["--server", server.url(), "--api-key", key.trim()];
        let ask = async |args: &[&str]| run(args.iter().chain(&through)).await;
        ask(&["resource", "put", "job/a"]).await?.good()?;
        let grant = ask(&["lease", "acquire", "job/a", "--holder", "w", "--json"]).await?.json()?;
        let token = grant["token"].to_string();
        ask(&["lease", "revoke", "job/a", "--token", &token, "--reason", "it hangs"]).await?.good()?;
        let table = ask(&["admin", "audit"]).await?.good()?;
        assert!(table.starts_with("TIME"), "{table}");
        let line = table.lines().nth(1).context("the newest entry")?;
        let said =
            line.contains(" ops ") && line.contains("revoke_lease") && line.contains("reason=it hangs");
        assert!(said, "{table}");
        server.terminate().await?;
        let all = admin(&["audit", "--json"]).await?.json()?;
        let entries = all["entries"].as_array().context("entries")?;
        let told: Vec<_> = entries.iter().map(|e| [&e["action"], &e["actor"], &e["tenant"]]).collect();
        assert_eq!(
            json!(told),
            json!([
                ["revoke_lease", "ops", "default"],
                ["raise_token", "local", null],
                ["create_key", "local", null]
            ])
        );
        let one = admin(&["audit", "--limit", "1", "--json"]).await?.json()?;
        assert_eq!(one["entries"], json!([entries[0]]));
    }
    Ok(())
}
