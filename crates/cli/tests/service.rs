//! What processes report to the service manager that started them, and the units that start them.

mod common;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use common::{BINARY, SOON, ask, command, ran, server, write};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use solehold_testkit::{Kafka, Mosquitto, Postgres, TempDir, free_port, package_file, wait_for};
use tokio::{
    net::UnixDatagram,
    process::{Child, Command},
    time::timeout,
};

/// The watchdog of processes under test: a report is due every half of it.
const WATCHDOG: Duration = Duration::from_secs(1);

/// A service manager.
struct Manager {
    socket: UnixDatagram,
    folder: TempDir,
}

impl Manager {
    fn new() -> Result<Self> {
        let folder = TempDir::new()?;
        Ok(Self { socket: UnixDatagram::bind(folder.path().join("notify"))?, folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("notify")
    }

    fn start(&self, args: &[&str]) -> Result<Child> {
        let mut command = command(args);
        command.env("NOTIFY_SOCKET", self.path()).env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        // What is not read must not fill a pipe.
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    async fn next(&self) -> Result<String> {
        let mut buffer = [0; 4_096];
        let length = timeout(SOON, self.socket.recv(&mut buffer)).await.context("no report")??;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// The reports up to the first that begins so, this one included.
    async fn until(&self, start: &str) -> Result<Vec<String>> {
        let mut reports = Vec::new();
        loop {
            reports.push(self.next().await.with_context(|| format!("no {start} after {reports:?}"))?);
            if reports.last().is_some_and(|last| last.starts_with(start)) {
                return Ok(reports);
            }
        }
    }

    /// What has been reported already.
    fn reported(&self) -> usize {
        let mut buffer = [0; 4_096];
        std::iter::from_fn(|| self.socket.try_recv(&mut buffer).ok()).count()
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("it runs")?;
    Ok(kill_process(pid, signal)?)
}

async fn status(url: &str) -> Option<u16> {
    Some(reqwest::get(url).await.ok()?.status().as_u16())
}

async fn ends_well(mut child: Child) -> Result<()> {
    let status = timeout(SOON, child.wait()).await.context("it does not end")??;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// The state of a process in `/proc`: `T` if it is stopped.
fn is_stopped(child: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id().unwrap_or_default()));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
}

#[tokio::test]
async fn a_server_is_alive_until_it_stands_still() -> Result<()> {
    let manager = Manager::new()?;
    let data = manager.folder.path().join("data").display().to_string();
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let child = manager.start(&["serve", "--listen", &listen, "--data-dir", &data])?;
    let ready = manager.next().await?;
    let expected =
        format!("READY=1\nSTATUS=listening on http://{listen} (engine embedded, data {data}; new store)");
    assert_eq!(ready, expected);
    assert_eq!(status(&format!("http://{listen}/readyz")).await, Some(200));
    for _ in 0..3 {
        assert_eq!(manager.next().await?, "WATCHDOG=1");
    }
    signal(&child, Signal::STOP)?;
    wait_for("it to be stopped", SOON, async || is_stopped(&child)).await?;
    manager.reported();
    let more = timeout(WATCHDOG * 2, manager.next()).await;
    assert!(more.is_err(), "a process that stands still reports {more:?}");
    signal(&child, Signal::CONT)?;
    assert_eq!(manager.next().await?, "WATCHDOG=1");
    signal(&child, Signal::TERM)?;
    let reports = manager.until("STOPPING=1").await?;
    assert!(reports.iter().rev().skip(1).all(|report| report == "WATCHDOG=1"), "{reports:?}");
    ends_well(child).await
}

/// The watchdog is about the process, and not about its database: a restart would not bring that back.
#[tokio::test]
async fn a_server_is_ready_with_its_database_and_alive_without_it() -> Result<()> {
    let postgres = Postgres::start().await?;
    let url = postgres.create_database("service").await?;
    postgres.stop().await?;
    let manager = Manager::new()?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let child = manager.start(&["serve", "--listen", &listen, "--engine", &url])?;
    let readyz = format!("http://{listen}/readyz");
    let waiting = manager.next().await?;
    assert!(waiting.starts_with("STATUS=the store is not available yet: "), "{waiting}");
    assert_eq!(status(&readyz).await, Some(503));
    postgres.start_again().await?;
    let reports = manager.until("READY=1").await?;
    let (_, before) = reports.split_last().context("a report")?;
    assert!(before.iter().all(|report| report.starts_with("STATUS=")), "{reports:?}");
    assert_eq!(status(&readyz).await, Some(200));
    postgres.stop().await?;
    wait_for("the server to miss its database", SOON, async || status(&readyz).await == Some(503)).await?;
    manager.reported();
    for _ in 0..3 {
        assert_eq!(manager.next().await?, "WATCHDOG=1");
    }
    signal(&child, Signal::TERM)?;
    manager.until("STOPPING=1").await?;
    ends_well(child).await
}

#[tokio::test]
async fn an_agent_is_ready_when_it_is_registered_and_speaks_for_itself_alone() -> Result<()> {
    let manager = Manager::new()?;
    let folder = TempDir::new()?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let seen = folder.path().join("seen").display().to_string();
    let worker = format!("env > {seen}.next; mv {seen}.next {seen}; exec sleep 600");
    let file = format!(
        "runner_id: first\nserver: http://{listen}\nresources: [job/a]\nworker:\n  command: [sh, -c, {}]\n",
        serde_json::to_string(&worker)?
    );
    let file = write(folder.path(), "agent.yaml", &file)?;
    let child = manager.start(&["agent", "--config", &file])?;
    assert_eq!(manager.next().await?, "STATUS=registering runner first");
    let server = server().listen(listen.parse()?).start().await?;
    let reports = manager.until("READY=1").await?;
    assert_eq!(reports.last().map(String::as_str), Some("READY=1\nSTATUS=runner first is registered"));
    ask(&server, "runner get first").await?.good()?;
    manager.until("WATCHDOG=1").await?;
    wait_for("the worker", SOON, async || Path::new(&seen).exists()).await?;
    let variables = std::fs::read_to_string(&seen)?;
    let notify = variables.lines().find_map(|line| line.strip_prefix("NOTIFY_SOCKET="));
    assert!(notify.is_some_and(|path| Path::new(path) != manager.path()), "{notify:?}");
    assert!(!variables.contains("WATCHDOG_PID="), "{variables}");
    signal(&child, Signal::TERM)?;
    let reports = manager.until("STOPPING=1").await?;
    assert_eq!(reports.last().map(String::as_str), Some("STOPPING=1\nSTATUS=draining"));
    ends_well(child).await
}

#[tokio::test]
async fn a_gate_is_ready_when_it_can_judge() -> Result<()> {
    let manager = Manager::new()?;
    let server_at = format!("127.0.0.1:{}", free_port()?);
    let listen = format!("127.0.0.1:{}", free_port()?);
    let args = ["gate", "http", "--upstream", "http://127.0.0.1:9", "--kind", "job", "--listen", &listen];
    let child = manager.start(&[&args[..], &["--server", &server_at]].concat())?;
    let waiting = manager.next().await?;
    assert!(waiting.starts_with("STATUS="), "{waiting}");
    let _server = server().listen(server_at.parse()?).start().await?;
    let reports = manager.until("READY=1").await?;
    assert_eq!(reports.last().map(String::as_str), Some("READY=1\nSTATUS=the HTTP gate is up to date"));
    manager.until("WATCHDOG=1").await?;
    signal(&child, Signal::TERM)?;
    manager.until("STOPPING=1").await?;
    ends_well(child).await
}

/// The watchdog is about the process, and not about its broker.
#[tokio::test]
async fn an_mqtt_gate_is_ready_when_it_can_judge_and_alive_without_its_broker() -> Result<()> {
    let manager = Manager::new()?;
    let broker = Mosquitto::start().await?;
    let url = broker.url();
    let server_at = format!("127.0.0.1:{}", free_port()?);
    let listen = format!("127.0.0.1:{}", free_port()?);
    let readyz = format!("http://{listen}/readyz");
    let args = ["gate", "mqtt", "--broker", &url, "--topics", "plant/{key}/+", "--kind", "job"];
    let more = ["--metrics-listen", &listen, "--server", &server_at];
    let child = manager.start(&[&args[..], &more[..]].concat())?;
    let reports = manager.until("STATUS=").await?;
    let waiting = reports.last().context("a report")?;
    assert!(waiting.starts_with("STATUS=the knowledge of the gate is too old: "), "{waiting}");
    assert_eq!(status(&readyz).await, Some(503));
    let _server = server().listen(server_at.parse()?).start().await?;
    let reports = manager.until("READY=1").await?;
    assert_eq!(reports.last().map(String::as_str), Some("READY=1\nSTATUS=the MQTT gate is up to date"));
    assert_eq!(status(&readyz).await, Some(200));
    broker.stop().await?;
    wait_for("the gate to miss its broker", SOON, async || status(&readyz).await == Some(503)).await?;
    manager.reported();
    for _ in 0..3 {
        assert_eq!(manager.next().await?, "WATCHDOG=1");
    }
    signal(&child, Signal::TERM)?;
    let reports = manager.until("STOPPING=1").await?;
    let stopping = "STOPPING=1\nSTATUS=waiting for confirmations of the broker";
    assert_eq!(reports.last().map(String::as_str), Some(stopping));
    ends_well(child).await
}

#[tokio::test]
async fn an_orchestrator_is_ready_when_it_consumes_commands_and_alive_before() -> Result<()> {
    let manager = Manager::new()?;
    let (kafka, postgres) = tokio::try_join!(Kafka::start(), Postgres::start())?;
    for (topic, partitions) in [("commands", 2), ("tasks", 2), ("reports", 1)] {
        kafka.create_topic_named(topic, partitions).await?;
    }
    kafka.stop().await?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let readyz = format!("http://{listen}/readyz");
    let file = json!({
        "name": "pod-1",
        "kafka": {
            "brokers": kafka.address(),
            "topic": "commands",
            "partitions": 2,
            "session_timeout": "6s",
            "broker_version": kafka.broker_version(),
        },
        "postgres": { "url": postgres.url() },
        "dispatchers": { "kafka": { "reports_topic": "reports" } },
        "stages": { "decode": { "task": "tasks", "dispatch": "kafka" } },
        "http": { "listen": listen },
    });
    // YAML takes JSON.
    let file = write(manager.folder.path(), "orchestrator.yaml", &file.to_string())?;
    let child = manager.start(&["orchestrator", "--config", &file])?;
    let reports = manager.until("STATUS=").await?;
    let serving = format!("STATUS=solehold orchestrator pod-1 serves jobs on http://{listen}");
    assert_eq!(reports.last(), Some(&serving));
    assert_eq!(status(&readyz).await, Some(503));
    for _ in 0..3 {
        assert_eq!(manager.next().await?, "WATCHDOG=1");
    }
    kafka.start_again().await?;
    let reports = manager.until("READY=1").await?;
    assert_eq!(reports.last().map(String::as_str), Some("READY=1\nSTATUS=consuming commands"));
    assert_eq!(status(&readyz).await, Some(200));
    signal(&child, Signal::TERM)?;
    let reports = manager.until("STOPPING=1").await?;
    assert_eq!(reports.last().map(String::as_str), Some("STOPPING=1\nSTATUS=handing partitions over"));
    ends_well(child).await
}

#[tokio::test]
async fn a_command_under_a_lease_does_not_report_for_solehold() -> Result<()> {
    let server = server().start().await?;
    let mut lock = command(["lock", "nightly", "--", "env"]);
    lock.env("SOLEHOLD_SERVER", server.url()).env("NOTIFY_SOCKET", "/none").env("WATCHDOG_USEC", "1000000");
    lock.env("WATCHDOG_PID", "1");
    let variables = ran(lock).await?.good()?;
    assert!(variables.contains("SOLEHOLD_LOCK=nightly"), "{variables}");
    assert!(!variables.contains("NOTIFY_SOCKET") && !variables.contains("WATCHDOG"), "{variables}");
    Ok(())
}

#[tokio::test]
async fn a_key_may_be_in_a_file() -> Result<()> {
    let folder = TempDir::new()?;
    let key = "the text of a first key, long enough to be one";
    let key_file = write(folder.path(), "key", &format!("{key}\n"))?;
    let server = server().env("SOLEHOLD_BOOTSTRAP_KEY_FILE", &key_file).start().await?;
    let ls = |variables: &[(&str, &str)]| {
        let mut command = command(["lease", "ls"]);
        command.env("SOLEHOLD_SERVER", server.url()).envs(variables.iter().copied());
        ran(command)
    };
    assert_eq!(ls(&[]).await?.code, Some(6));
    ls(&[("SOLEHOLD_API_KEY_FILE", &key_file)]).await?.good()?;
    ls(&[("SOLEHOLD_API_KEY_FILE", "/none"), ("SOLEHOLD_API_KEY", key)]).await?.good()?;
    let missing = ls(&[("SOLEHOLD_API_KEY_FILE", "/none")]).await?;
    assert_eq!(missing.code, Some(2));
    let why = "error: SOLEHOLD_API_KEY_FILE: the file /none cannot be read: No such file or directory (os error 2)\n";
    assert_eq!(missing.stderr, why);
    Ok(())
}

/// The folder of the units.
fn units() -> PathBuf {
    package_file("../../deploy/systemd")
}

/// A unit as it is, but for the path of the program, which is not installed here.
fn unit_here(folder: &Path, name: &str, installed_as: &str) -> Result<String> {
    let text = std::fs::read_to_string(units().join(name))?;
    ensure!(text.contains("ExecStart=/usr/bin/solehold "), "{name} starts something else");
    write(folder, installed_as, &text.replace("/usr/bin/solehold ", &format!("{BINARY} ")))
}

async fn analyze(args: &[&str]) -> Result<std::process::Output> {
    let mut command = Command::new("systemd-analyze");
    command.args(args).stdin(Stdio::null()).env("SYSTEMD_LOG_LEVEL", "warning").kill_on_drop(true);
    let output = timeout(SOON, command.output()).await.context("systemd-analyze does not end")?;
    output.context("systemd-analyze does not run; Debian's package systemd has it")
}

#[tokio::test]
async fn units_are_valid() -> Result<()> {
    for (name, installed_as) in
        [("solehold.service", "solehold.service"), ("solehold-agent@.service", "solehold-agent@gpu.service")]
    {
        let folder = TempDir::new()?;
        let unit = &unit_here(folder.path(), name, installed_as)?;
        let output = analyze(&["verify", "--man=no", unit]).await?;
        let said = String::from_utf8_lossy(&output.stderr);
        // Other units of this machine may be wrong.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("solehold")).collect();
        assert!(ours.is_empty(), "{ours:#?}");
        // A mistake would be found: a line that does not exist, in the same unit.
        let text = std::fs::read_to_string(unit)?;
        std::fs::write(unit, text.replace("[Service]", "[Service]\nNoSuchLine=yes"))?;
        let output = analyze(&["verify", "--man=no", unit]).await?;
        assert!(String::from_utf8_lossy(&output.stderr).contains("NoSuchLine"), "{output:?}");
    }
    Ok(())
}

/// How exposed each unit is by systemd's own count, from 0 to 100: the most that is allowed.
#[tokio::test]
async fn units_are_sandboxed() -> Result<()> {
    let folder = TempDir::new()?;
    for (name, installed_as, most) in [
        ("solehold.service", "solehold.service", 15),
        ("solehold-agent@.service", "solehold-agent@gpu.service", 35),
    ] {
        let unit = unit_here(folder.path(), name, installed_as)?;
        let allowed = |most: u32| {
            let threshold = format!("--threshold={most}");
            let unit = unit.clone();
            async move { analyze(&["security", "--offline=yes", "--no-pager", &threshold, &unit]).await }
        };
        let output = allowed(most).await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{name} is more exposed than {most}: {said}");
        assert!(!allowed(0).await?.status.success(), "a threshold of 0 was passed: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn every_command_has_a_manual_page_without_warnings() -> Result<()> {
    let folder = TempDir::new()?;
    let mut man = command(["man"]);
    man.arg(folder.path()).env("SOURCE_DATE_EPOCH", "86400");
    ran(man).await?.good()?;
    let mut paths: Vec<Vec<String>> = vec![Vec::new()];
    let mut pages = Vec::new();
    while let Some(path) = paths.pop() {
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        let below = common::below(&parts).await?;
        paths.extend(below.into_iter().map(|name| path.iter().cloned().chain([name]).collect()));
        let name = ["solehold"].into_iter().chain(parts).collect::<Vec<_>>().join("-");
        pages.push(folder.path().join(format!("{name}.1")));
    }
    assert!(pages.len() > 50, "only {pages:?}");
    let mut groff = Command::new("groff");
    let groff = groff.args(["-man", "-Tutf8", "-ww", "-z"]).args(&pages).kill_on_drop(true);
    let output = timeout(SOON, groff.output()).await?.context("groff does not run")?;
    ensure!(output.status.success(), "a page is missing: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let serve = std::fs::read_to_string(folder.path().join("solehold-serve.1"))?;
    for part in [
        "1970-01-02",
        "SOLEHOLD_ENGINE_FILE",
        "SOLEHOLD_LIMITS_REQUESTS_BURST",
        "/etc/solehold/solehold.yaml",
        "bad usage or configuration",
        "PEM file of the private key",
    ] {
        assert!(serve.contains(part) || serve.contains(&part.replace('_', "\\_")), "no {part} in {serve}");
    }
    assert!(!serve.contains("run, lock, elect, keep:"), "exit codes of other commands: {serve}");
    Ok(())
}
