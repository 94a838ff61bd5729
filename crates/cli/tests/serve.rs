//! `solehold serve` as a process: how it starts, refuses to, and ends.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use common::{BINARY, SOON, ask, command, ran, run, server, write};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Program, SmallDisk, Solehold, TempDir, free_port, wait_for};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout};
use tokio::task::JoinSet;

/// `solehold serve` with these arguments, and its stdout line by line.
fn serve(args: &[&str]) -> Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let mut child = command(["serve", "--listen", "127.0.0.1:0"].iter().chain(args)).spawn()?;
    let stdout = child.stdout.take().context("a stdout")?;
    Ok((child, BufReader::new(stdout).lines()))
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("it runs")?;
    Ok(kill_process(pid, signal)?)
}

#[tokio::test]
async fn it_says_where_and_stops_cleanly_by_either_signal() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().join("data").display().to_string();
    let mut tokens = Vec::new();
    for ending in [Signal::TERM, Signal::INT, Signal::TERM] {
        let (mut child, mut stdout) = serve(&["--data-dir", &data])?;
        let first = stdout.next_line().await?.context("a first line")?;
        let url = first.strip_prefix("solehold listening on ").and_then(|rest| rest.split(' ').next());
        let url = url.context(first.clone())?;
        assert!(url.starts_with("http://127.0.0.1:") && !url.ends_with(":0"), "{first}");
        let found = match tokens.last() {
            None => "new store".to_owned(),
            Some((_, token)) if tokens.len() == 1 => format!("1 lease, next token above {token}"),
            Some((_, token)) => format!("{} leases, next token above {token}", tokens.len()),
        };
        assert_eq!(first, format!("solehold listening on {url} (engine embedded, data {data}; {found})"));
        let name = format!("job/{ending:?}{}", tokens.len());
        let acquire =
            run(["lease", "acquire", &name, "--ttl", "5m", "--json", "--server", url]).await?.json()?;
        tokens.push((name, acquire["token"].as_u64().context("a token")?));
        for (name, token) in &tokens {
            let lease = run(["lease", "get", name, "--json", "--server", url]).await?.json()?;
            assert_eq!(lease["token"], *token, "{name}");
        }
        signal(&child, ending)?;
        assert_eq!(stdout.next_line().await?.as_deref(), Some("solehold stopped"));
        assert_eq!(stdout.next_line().await?, None);
        let status = tokio::time::timeout(SOON, child.wait()).await??;
        assert_eq!(status.code(), Some(0), "{ending:?}");
    }
    assert!(tokens.is_sorted_by(|a, b| a.1 < b.1), "{tokens:?}");
    Ok(())
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().display().to_string();
    let (mut child, mut stdout) = serve(&["--data-dir", &data])?;
    let first = stdout.next_line().await?.context("a first line")?;
    let address = first.split(['/', ' ']).find(|part| part.starts_with("127.")).context("an address")?;
    // A request whose body never comes keeps the server from stopping; it says when it waits for the body.
    let mut request = TcpStream::connect(address).await?;
    let head = "POST /api/v1/resources/job/x/lease HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n";
    request.write_all(format!("{head}expect: 100-continue\r\n\r\n").as_bytes()).await?;
    let mut answer = [0; 12];
    tokio::time::timeout(SOON, request.read_exact(&mut answer)).await??;
    assert_eq!(&answer, b"HTTP/1.1 100");
    signal(&child, Signal::TERM)?;
    let refuses = async || TcpStream::connect(address).await.is_err();
    wait_for("the server to stop listening", SOON, refuses).await?;
    signal(&child, Signal::INT)?;
    let status = tokio::time::timeout(SOON, child.wait()).await??;
    assert_eq!(status.code(), Some(130));
    Ok(())
}

#[tokio::test]
async fn a_folder_in_use_is_refused_with_the_pid() -> Result<()> {
    let folder = TempDir::new()?;
    let first = server().data_dir(folder.path()).start().await?;
    let data = folder.path().display().to_string();
    let second = run(["serve", "--listen", "127.0.0.1:0", "--data-dir", &data]).await?;
    assert_eq!((second.code, second.stdout.as_str()), (Some(5), ""));
    assert_eq!(second.stderr, format!("error: data folder {data} is in use by process {}\n", first.pid()?));
    let admin = run(["admin", "key", "ls", "--data-dir", &data]).await?;
    assert_eq!(admin.code, Some(5));
    assert!(admin.stderr.contains(&format!("process {}; ", first.pid()?)), "{}", admin.stderr);
    assert!(admin.stderr.contains("use --server"), "{}", admin.stderr);
    Ok(())
}

#[tokio::test]
async fn what_keeps_it_from_starting_is_one_line() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().join("data").display().to_string();
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let in_use = listener.local_addr()?.to_string();
    let cases: [(&[&str], i32, &str); 9] = [
        (
            &["--listen", &in_use, "--data-dir", &data],
            5,
            "the address is already in use; stop the other process, or choose another",
        ),
        (&["--data-dir", "/dev/null/data"], 2, "data folder /dev/null/data: Not a directory"),
        (&["--engine", "postgres://u:hunter2@db:port/x"], 2, "postgres://USER@HOST/DATABASE"),
        (&["--engine", "./folder"], 2, "for a data folder use the data dir"),
        (&["--listen", "everywhere"], 2, "write IP:PORT, as in 127.0.0.1:7070"),
        (&["--listen", "0.0.0.0:0", "--data-dir", &data], 2, "solehold admin key create --data-dir"),
        (&["--tls-cert", "x.pem", "--data-dir", &data], 2, "a certificate and no key"),
        (&["--tls-cert", "x.pem", "--tls-key", "y.pem", "--data-dir", &data], 2, "cannot read x.pem"),
        (&["--log-level", "loud,,=", "--data-dir", &data], 2, "write error, warn, info, debug or trace"),
    ];
    for (args, code, words) in cases {
        let ran = run(["serve"].iter().chain(args)).await?;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{args:?}: {}", ran.stderr);
        let errors: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("hunter2") && !ran.stderr.contains("backtrace"), "{}", ran.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn with_a_key_it_may_be_reached_by_others() -> Result<()> {
    let folder = TempDir::new()?;
    let data = folder.path().display().to_string();
    let key = run(["admin", "key", "create", "--name", "first", "--role", "admin", "--data-dir", &data])
        .await?
        .good()?;
    let server = server().data_dir(folder.path()).listen("0.0.0.0:0".parse()?).start().await?;
    let url = server.url().replace("0.0.0.0", "127.0.0.1");
    let without = run(["lease", "ls", "--server", &url]).await?;
    assert_eq!(without.code, Some(6), "{}", without.stderr);
    assert!(without.stderr.contains("SOLEHOLD_API_KEY"), "{}", without.stderr);
    run(["lease", "ls", "--server", &url, "--api-key", key.trim()]).await?.good()?;
    let mut by_variable = command(["lease", "ls", "--server", &url]);
    by_variable.env("SOLEHOLD_API_KEY", key.trim());
    ran(by_variable).await?.good()?;
    let help = command(["lease", "ls", "--help"]).env("SOLEHOLD_API_KEY", key.trim()).output().await?;
    assert!(!String::from_utf8_lossy(&help.stdout).contains(key.trim()), "the key is in the help");
    Ok(())
}

#[tokio::test]
async fn every_log_line_names_the_node() -> Result<()> {
    let text = server().arg("--node-id").arg("rack-7").env("SOLEHOLD_DATA_DRI", "x").start().await?;
    let warned = async || {
        text.logs().contains("SOLEHOLD_DATA_DRI is set, and nothing reads it; is SOLEHOLD_DATA_DIR meant?")
    };
    wait_for("the warning", SOON, warned).await?;
    let logged = |logs: String| -> Vec<String> {
        logs.lines().filter(|l| !l.starts_with("solehold ")).map(str::to_owned).collect()
    };
    let lines = logged(text.logs());
    assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with(" node_id=rack-7")), "{lines:?}");

    let json = server().arg("--log-format").arg("json").arg("--log-level").arg("debug").start().await?;
    ask(&json, "lease ls").await?.good()?;
    wait_for("a log line", SOON, async || logged(json.logs()).len() > 1).await?;
    for line in logged(json.logs()) {
        let line: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        assert!(line["node_id"].as_str().is_some_and(|id| id.contains('-')), "{line}");
        assert!(line["level"].is_string() && line["timestamp"].is_string(), "{line}");
    }
    Ok(())
}

/// A server to which a shell gave bounds on its files, and its address.
async fn with_files(ulimit: &str, data: &TempDir) -> Result<(Program, String)> {
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        &format!("{ulimit} && exec \"$0\" \"$@\""),
        BINARY,
        "serve",
        "--listen",
        "127.0.0.1:0",
    ]);
    command.arg("--data-dir").arg(data.path());
    let program = Program::start("solehold", &command, "solehold listening on http://").await?;
    let address = program.said().split(' ').next().context("an address")?.to_owned();
    Ok((program, address))
}

/// Asks on a connection of its own, which stays open.
async fn asked(address: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await?;
    Ok(stream)
}

async fn answered(stream: &mut TcpStream) -> Result<()> {
    let mut answer = [0; 12];
    tokio::time::timeout(SOON, stream.read_exact(&mut answer)).await??;
    anyhow::ensure!(&answer == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

#[tokio::test]
async fn connections_do_not_take_the_files_that_the_store_needs() -> Result<()> {
    let one = TempDir::new()?;
    let two = TempDir::new()?;
    // It may have more files than it has at first, and takes them.
    let (raised, address) = with_files("ulimit -S -n 64", &one).await?;
    let mut open = Vec::new();
    for _ in 0..200 {
        let mut stream = asked(&address).await?;
        answered(&mut stream).await?;
        open.push(stream);
    }
    drop((open, raised));
    // It may not: the next ones wait, and it says why.
    let (bound, address) = with_files("ulimit -n 200", &two).await?;
    let warned = async || bound.logs().contains("open-file limit is too low for connections_max");
    wait_for("the warning", SOON, warned).await?;
    let mut open = Vec::new();
    for _ in 0..400 {
        open.push(asked(&address).await?);
    }
    for mut stream in open {
        answered(&mut stream).await?;
    }
    // Its log is read to the end once it has ended.
    assert_eq!(bound.terminate().await?.code(), Some(0));
    assert!(!bound.logs().contains("could not be accepted"), "{}", bound.logs());
    Ok(())
}

/// Acquires `job/N` over HTTP; nothing, when no answer came.
async fn acquire(http: &reqwest::Client, url: &str, number: usize) -> Option<(usize, Value)> {
    let url = format!("{url}/api/v1/resources/job/{number}/lease");
    let body = json!({ "holder": "crash", "ttl_seconds": 300 });
    let response = http.post(url).json(&body).send().await.ok()?;
    assert_eq!(response.status(), 201);
    Some((number, response.json().await.ok()?))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_sigkill_amid_a_thousand_acquires() -> Result<()> {
    let folder = TempDir::new()?;
    let server: Arc<Solehold> = Arc::new(common::server().data_dir(folder.path()).start().await?);
    let answered = Arc::new(AtomicUsize::new(0));
    let http = reqwest::Client::builder().no_proxy().build()?;
    let mut acquires = JoinSet::new();
    for number in 0..1_000 {
        let http = http.clone();
        let url = server.url().to_owned();
        let answered = answered.clone();
        acquires.spawn(async move {
            let got = acquire(&http, &url, number).await?;
            answered.fetch_add(1, Ordering::SeqCst);
            Some(got)
        });
    }
    wait_for("the first answers", SOON, async || answered.load(Ordering::SeqCst) >= 50).await?;
    server.kill9().await?;
    let got: Vec<(usize, Value)> = acquires.join_all().await.into_iter().flatten().collect();
    assert!(got.len() >= 50, "only {} were answered", got.len());

    let server = common::server().data_dir(folder.path()).start().await?;
    let mut largest = 0;
    for (number, grant) in &got {
        let lease = http.get(format!("{}/api/v1/resources/job/{number}/lease", server.url())).send().await?;
        let lease: Value = lease.json().await?;
        assert_eq!(
            (&lease["lease_id"], &lease["token"]),
            (&grant["lease_id"], &grant["token"]),
            "job/{number}"
        );
        largest = largest.max(grant["token"].as_u64().context("a token")?);
    }
    let (_, next) = acquire(&http, server.url(), 5_000).await.context("an answer")?;
    assert!(next["token"].as_u64() > Some(largest), "{next} after {largest}");
    Ok(())
}

/// Killed while the disk is full, it starts all the same: reads are answered, writes are refused with the reason, and
/// it goes on by itself when there is room.
#[tokio::test]
async fn a_full_disk_does_not_keep_it_from_starting_and_is_named_to_those_who_write() -> Result<()> {
    let disk = SmallDisk::mount(2 << 20)?;
    let data = disk.path().join("data");
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![0; 1 << 20])?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let lease = |url: &str, number: usize| format!("{url}/api/v1/resources/job/{number}/lease");
    let acquire = async |url: &str, number: usize| -> Result<(u16, Value)> {
        let body = json!({ "holder": "ann", "ttl_seconds": 300, "request_id": "r" });
        let response = http.post(lease(url, number)).json(&body).send().await?;
        Ok((response.status().as_u16(), response.json().await?))
    };
    let get = async |url: String| -> Result<(u16, Value)> {
        let response = http.get(url).send().await?;
        Ok((response.status().as_u16(), response.json().await?))
    };

    let full = common::server().data_dir(&data).start().await?;
    let mut tokens = Vec::new();
    loop {
        match acquire(full.url(), tokens.len()).await? {
            (201, grant) => tokens.push(grant["token"].clone()),
            (status, problem) => {
                assert_eq!(status, 503, "{problem}");
                break;
            }
        }
    }
    assert!(!tokens.is_empty());
    let mut filler = std::fs::File::create(disk.path().join("filler"))?;
    while std::io::Write::write_all(&mut filler, &[0; 512]).is_ok() {}
    full.kill9().await?;

    let server = common::server().data_dir(&data).start().await?;
    for (number, token) in tokens.iter().enumerate() {
        let (status, found) = get(lease(server.url(), number)).await?;
        assert_eq!((status, &found["token"]), (200, token), "{found}");
    }
    // Reads are answered, and it is known that nothing can be written.
    let readyz = || get(format!("{}/readyz", server.url()));
    wait_for("the full disk to be noticed", SOON, async || readyz().await.is_ok_and(|(code, _)| code == 503))
        .await?;
    let more = tokens.len() + 1;
    let (status, problem) = acquire(server.url(), more).await?;
    assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("disk is full")), "{problem}");

    std::fs::remove_file(ballast)?;
    let has_room =
        async || acquire(server.url(), more).await.is_ok_and(|(status, _)| status == 201 || status == 200);
    wait_for("room", SOON, has_room).await?;
    let (_, granted) = get(lease(server.url(), more)).await?;
    assert!(granted["token"].as_u64() > tokens.last().and_then(Value::as_u64), "{granted}");
    assert_eq!(get(lease(server.url(), 0)).await?.1["token"], tokens[0]);
    wait_for("it to be ready", SOON, async || readyz().await.is_ok_and(|(code, _)| code == 200)).await
}

#[tokio::test]
async fn a_full_disk_at_the_first_start_is_named_and_is_no_fault_of_the_configuration() -> Result<()> {
    let disk = SmallDisk::mount(64 << 10)?;
    for left in [0, 4 << 10, 16 << 10, 32 << 10] {
        let data = disk.path().join("data");
        let filler = disk.path().join("filler");
        std::fs::write(&filler, vec![0; (64 << 10) - left])?;
        let data_dir = data.display().to_string();
        let ran = run(["serve", "--listen", "127.0.0.1:0", "--data-dir", &data_dir]).await?;
        assert_eq!(ran.code, Some(5), "{left} bytes left: {}", ran.stderr);
        let said = format!("the disk of data folder {data_dir} is full");
        assert!(ran.stderr.contains(&said), "{left} bytes left: {}", ran.stderr);
        std::fs::remove_dir_all(&data)?;
        std::fs::remove_file(&filler)?;
    }
    Ok(())
}

/// A caller that asks to wait is not served slowly.
#[tokio::test]
async fn waiting_in_line_or_for_a_plan_is_no_slow_request() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let api = format!("{}/api/v1", server.url());
    let post = async |path: &str, body: Value| -> Result<(u16, Value)> {
        let response = http.post(format!("{api}{path}")).json(&body).send().await?;
        Ok((response.status().as_u16(), response.json().await?))
    };
    let (status, lock) = post("/locks/deploy", json!({ "holder": "ann", "ttl_ms": 60_000 })).await?;
    assert_eq!(status, 201, "{lock}");
    for path in ["/locks/deploy", "/resources/lock/deploy/lease"] {
        let (status, held) = post(path, json!({ "holder": "bob", "wait_ms": 1_500 })).await?;
        assert_eq!((status, &held["code"]), (409, &json!("held")), "{held}");
    }
    let runner = json!({ "runner_id": "r", "site_id": "s", "capacity": 1 });
    let (status, registered) = post("/runners/register", runner).await?;
    assert!(status < 300, "{status} {registered}");
    let assignments = async |query: &str| -> Result<Value> {
        let response = http.get(format!("{api}/runners/r/assignments{query}")).send().await?;
        Ok(response.error_for_status()?.json().await?)
    };
    let version = assignments("").await?["version"].as_str().context("a version")?.to_owned();
    assert_eq!(assignments(&format!("?known={version}&wait_ms=1500")).await?["version"], json!(version));
    let logs = server.logs();
    let slow: Vec<&str> =
        logs.lines().filter(|line| line.contains("WARN") && line.contains("took_us")).collect();
    assert!(slow.is_empty(), "{slow:#?}");
    Ok(())
}

#[tokio::test]
async fn flags_go_over_variables_and_variables_over_the_file() -> Result<()> {
    let folder = TempDir::new()?;
    let port = free_port()?;
    let file_data = folder.path().join("of-file");
    let env_data = folder.path().join("of-env");
    let text = format!("listen: 127.0.0.1:{port}\ndata_dir: {}\nnode_id: of-file\n", file_data.display());
    let config = write(folder.path(), "solehold.yaml", &text)?;
    let check = async |args: &[&str], vars: &[(&str, &str)]| {
        let mut command = command(["serve", "--check"].iter().chain(args));
        command.envs(vars.iter().copied());
        ran(command).await?.good()
    };
    let is = |listen: &str, store: &str| format!("the configuration is good: http://{listen} ({store})\n");
    let of_file = format!("127.0.0.1:{port}");
    let embedded = |path: &std::path::Path| format!("engine embedded, data {}", path.display());
    let default = std::path::absolute("solehold-data")?;
    assert_eq!(check(&[], &[]).await?, is("127.0.0.1:7070", &embedded(&default)));
    assert_eq!(check(&["--config", &config], &[]).await?, is(&of_file, &embedded(&file_data)));
    assert_eq!(check(&[], &[("SOLEHOLD_CONFIG", &config)]).await?, is(&of_file, &embedded(&file_data)));
    let vars = [
        ("SOLEHOLD_CONFIG", config.as_str()),
        ("SOLEHOLD_LISTEN", "127.0.0.1:1"),
        ("SOLEHOLD_DATA_DIR", env_data.to_str().context("UTF-8")?),
    ];
    assert_eq!(check(&[], &vars).await?, is("127.0.0.1:1", &embedded(&env_data)));
    assert_eq!(check(&["--listen", "[::1]:2"], &vars).await?, is("[::1]:2", &embedded(&env_data)));
    let engine = ["--engine", "postgres://u:hunter2@db.local:5433/orders"];
    assert_eq!(check(&engine, &vars).await?, is("127.0.0.1:1", "engine postgres, db.local:5433/orders"));
    assert!(!file_data.exists() && !env_data.exists(), "a check makes nothing");
    Ok(())
}

#[tokio::test]
async fn over_tls_it_is_known_by_its_authority() -> Result<()> {
    let folder = TempDir::new()?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let cert = write(folder.path(), "cert.pem", &made.cert.pem())?;
    let key = write(folder.path(), "key.pem", &made.signing_key.serialize_pem())?;
    let server = server().arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key).start().await?;
    assert!(server.url().starts_with("https://127.0.0.1:"), "{}", server.url());
    let stranger = ask(&server, "lease ls").await?;
    assert_eq!(stranger.code, Some(5), "{}", stranger.stderr);
    let known = ask(&server, &format!("lease acquire job/a --ca-cert {cert}")).await?;
    assert!(known.stdout.starts_with("acquired job/a\n"), "{}", known.stderr);
    let odd = ask(&server, &format!("lease ls --ca-cert {key}x")).await?;
    assert_eq!(odd.code, Some(2), "{}", odd.stderr);
    Ok(())
}

#[tokio::test]
async fn over_postgres_it_says_so_without_the_password() -> Result<()> {
    let url = Postgres::shared().await?.create_database("serve").await?;
    let with_password = url.replace("postgres@", "postgres:hunter2@");
    assert_ne!(url, with_password);
    let server = server().engine(&with_password).start().await?;
    let shown = url.strip_prefix("postgres://postgres@").context(url.clone())?;
    let words = format!("solehold listening on {} (engine postgres, {shown}; new store)\n", server.url());
    assert!(server.logs().contains(&words), "{}", server.logs());
    ask(&server, "lease acquire job/a --ttl 5m").await?.good()?;
    assert_eq!(server.terminate().await?.code(), Some(0));
    assert!(!server.logs().contains("hunter2"), "{}", server.logs());
    let again = common::server().engine(&url).start().await?;
    assert!(again.logs().contains(&format!("{shown}; 1 lease, next token above 1)\n")), "{}", again.logs());
    assert_eq!(ask(&again, "lease get job/a --json").await?.json()?["token"], json!(1));

    let nowhere = "postgres://u:hunter2@127.0.0.1:1/x";
    let gone = run(["serve", "--listen", "127.0.0.1:0", "--engine", nowhere, "--store-wait", "0s"]).await?;
    assert_eq!(gone.code, Some(5), "{}", gone.stderr);
    assert!(!gone.stderr.contains("hunter2"), "{}", gone.stderr);
    assert!(gone.stderr.starts_with("error: PostgreSQL at 127.0.0.1:1, database x: "), "{}", gone.stderr);

    let host = url.rsplit_once('/').context("a database")?.0;
    let no_database = run(["serve", "--listen", "127.0.0.1:0", "--engine", host]).await?;
    assert_eq!(no_database.code, Some(2), "{}", no_database.stderr);
    assert!(no_database.stderr.contains("names no database; write postgres://"), "{}", no_database.stderr);
    Ok(())
}

/// Started together, as by a service manager, either of the two may be up first.
#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_postgres_that_is_not_there_yet() -> Result<()> {
    let postgres = Postgres::start().await?;
    postgres.stop().await?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let starting = tokio::spawn({
        let builder = server().engine(postgres.url()).listen(listen.parse()?).arg("--store-wait").arg("10m");
        async move { builder.start().await }
    });
    let get = async |path: &str| -> Result<(u16, Value)> {
        let response = reqwest::get(format!("http://{listen}{path}")).await?;
        Ok((response.status().as_u16(), response.json().await?))
    };
    let reason = wait_for("the reason why it is not ready", SOON, async || {
        let (status, problem) = get("/readyz").await.ok()?;
        let detail = problem["detail"].as_str().unwrap_or_default().to_owned();
        assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{problem}");
        (detail.contains("Connection refused")).then_some(detail)
    })
    .await?;
    assert!(reason.starts_with("the store is not available yet: PostgreSQL at 127.0.0.1:"), "{reason}");
    let (status, health) = get("/healthz").await?;
    assert_eq!((status, &health["status"]), (200, &json!("ok")), "{health}");
    let (status, problem) = get("/api/v1/resources").await?;
    assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{problem}");
    assert!(problem["retry_after_ms"].is_u64() && problem["title"].is_string(), "{problem}");
    postgres.start_again().await?;
    let server = starting.await??;
    assert_eq!(get("/readyz").await?.0, 200);
    ask(&server, "lease acquire job/a --ttl 5m").await?.good()?;
    let logs = server.logs();
    assert_eq!(logs.matches("store is not available yet; retrying").count(), 1, "{logs}");
    assert_eq!(server.terminate().await?.code(), Some(0));
    Ok(())
}

/// No time makes these right, so no time is spent on them.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_database_or_role_fails_at_once() -> Result<()> {
    let url = Postgres::shared().await?.create_database("serve").await?;
    let (host, _) = url.rsplit_once('/').context("a database")?;
    let wrong =
        [(format!("{host}/nowhere"), "[3D000]"), (url.replace("postgres@", "nobody-knows@"), "[28000]")];
    for (engine, code) in wrong {
        let ran =
            run(["serve", "--listen", "127.0.0.1:0", "--engine", &engine, "--store-wait", "1h"]).await?;
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(code), "{}", ran.stderr);
        assert!(!ran.stderr.contains("waiting"), "{}", ran.stderr);
    }
    Ok(())
}

/// The password is a part of the URL; nothing else is asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_or_missing_password_fails_at_once() -> Result<()> {
    let postgres = Postgres::builder().password("hunter2").start().await?;
    let url = postgres.create_database("serve").await?;
    for (engine, said) in
        [(url.replace("hunter2", "wr0ng"), "[28P01]"), (url.replace(":hunter2", ""), "password missing")]
    {
        let ran =
            run(["serve", "--listen", "127.0.0.1:0", "--engine", &engine, "--store-wait", "1h"]).await?;
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
        assert!(!ran.stderr.contains("waiting") && !ran.stderr.contains("wr0ng"), "{}", ran.stderr);
    }
    let server = server().engine(&url).start().await?;
    ask(&server, "lease acquire job/a --ttl 5m").await?.good()?;
    assert!(!server.logs().contains("hunter2"), "{}", server.logs());
    assert_eq!(server.terminate().await?.code(), Some(0));
    Ok(())
}

/// A signal ends a server that still waits.
#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_stopped_while_it_waits() -> Result<()> {
    let engine = format!("postgres://postgres@127.0.0.1:{}/nowhere", free_port()?);
    let listen = format!("127.0.0.1:{}", free_port()?);
    let mut child =
        command(["serve", "--listen", &listen, "--engine", &engine, "--store-wait", "10m"]).spawn()?;
    wait_for("it to listen", SOON, async || TcpStream::connect(&listen).await.is_ok()).await?;
    signal(&child, Signal::TERM)?;
    let status = tokio::time::timeout(SOON, child.wait()).await??;
    assert_eq!(status.code(), Some(0));
    Ok(())
}
