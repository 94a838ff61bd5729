//! Celery's own worker, from PyPI, over both brokers.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lapin::{Connection, ConnectionProperties, options::QueueDeleteOptions};
use serde_json::{Value, json};
use solehold_orchestrator::{
    dispatch::{
        Dispatch as _, DispatchError, Finding, Weight,
        celery::{Celery, CeleryConfig},
    },
    model::{pipeline::StagePlan, task::ReportKind},
};
use solehold_testkit::{RabbitMq, Redis, TempDir, wait_for};

use crate::world::{Kept, PATIENCE, Worker, deliver, id, refusal, send, stage, task};

fn celery(broker: &str) -> Result<Arc<Celery>> {
    open(&CeleryConfig::new(broker))
}

fn open(config: &CeleryConfig) -> Result<Arc<Celery>> {
    Ok(Arc::new(Celery::new(config).map_err(anyhow::Error::msg)?))
}

/// What Python's `ssl` calls so.
const CERT_REQUIRED: u8 = 2;

/// A certificate of localhost, which is its own authority.
struct Authority {
    certificate: String,
    key: String,
    folder: TempDir,
}

impl Authority {
    fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let certificate = made.cert.pem();
        let key = made.signing_key.serialize_pem();
        let folder = TempDir::new()?;
        fs::write(folder.path().join("ca.pem"), &certificate)?;
        Ok(Self { certificate, key, folder })
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

fn succeeded(result: Value) -> ReportKind {
    ReportKind::Succeeded { result }
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).unwrap_or_default().lines().count()
}

/// What holds with either broker. It leaves no worker behind.
async fn everything_comes_back(config: &CeleryConfig, worker: &Worker) -> Result<()> {
    let sender = open(config)?;
    let kept = Kept::default();
    let _delivering = deliver(&sender, &kept);
    let worker = worker.start().await?;

    let sum = id("j", "sum", 1);
    let length = id("j", "length", 1);
    let known = id("a:b", "known", 7);
    let failing = id("j", "fail", 1);
    let nan = id("j", "nan", 1);
    let batch = [
        task(sum.clone(), "video.add", json!({ "a": 2, "b": 3 })),
        task(length.clone(), "video.length", json!([1, 2, 3])),
        task(known.clone(), "video.known", json!({})),
        task(failing.clone(), "video.fail", json!({ "file": "a.mp4" })),
        task(nan.clone(), "video.nan", json!({})),
        task(id(&"j".repeat(300), "sum", 1), "video.add", json!({})),
    ];
    let sent = wait_for("the broker to take tasks", PATIENCE, async || {
        let sent = sender.send(&batch).await;
        sent[0].is_ok().then_some(sent)
    })
    .await?;
    ensure!(sent[..5].iter().all(Result::is_ok), "{sent:?}");
    ensure!(matches!(&sent[5], Err(DispatchError::Refused(why)) if why.contains("255 bytes")), "{sent:?}");

    ensure!(kept.end(&sum).await? == succeeded(json!(5)));
    ensure!(kept.of(&sum)[0] == ReportKind::Started, "{:?}", kept.of(&sum));
    ensure!(kept.end(&length).await? == succeeded(json!(3)));
    ensure!(kept.end(&known).await? == succeeded(json!(["a:b:known:7", "a:b", "known", 7, 120.0])));
    let reason = "FileNotFoundError: a.mp4".to_owned();
    ensure!(kept.end(&failing).await? == ReportKind::Failed { reason });
    let end = kept.end(&nan).await?;
    ensure!(matches!(&end, ReportKind::Failed { reason } if reason.contains("not JSON")), "{end:?}");
    worker.terminate().await?;
    Ok(())
}

/// The same over TLS; and a broker whose authority nobody trusts is sent nothing.
async fn everything_comes_back_over_tls(url: &str, authority: &Authority, settings: Value) -> Result<()> {
    let trusting = CeleryConfig { ca_cert: Some(authority.file()), ..CeleryConfig::new(url) };
    let worker = Worker { settings, ..Worker::new(url, "first") };
    everything_comes_back(&trusting, &worker).await?;
    let refused = refusal(celery(url)?.as_ref(), &task(id("t", "add", 1), "video.add", json!({}))).await;
    let is_told = matches!(&refused, Some(DispatchError::Unreachable(why)) if why.contains("UnknownIssuer"));
    ensure!(is_told, "{refused:?}");
    let plain = url.replacen("s://", "://", 1);
    let unused = open(&CeleryConfig { ca_cert: Some(authority.file()), ..CeleryConfig::new(plain) });
    ensure!(unused.is_err_and(|error| error.to_string().contains("`ca_cert` is for a broker over TLS")));
    Ok(())
}

/// A task outlives its sender and its worker; what it reports waits until it is kept.
async fn tasks_outlive_everyone(broker: &str, worker: &Worker) -> Result<()> {
    let folder = TempDir::new()?;
    let started = folder.path().join("started");
    let go = folder.path().join("go");
    let long = id("long", "begin", 1);
    let first = worker.start().await?;
    let sender = celery(broker)?;
    send(sender.as_ref(), &task(long.clone(), "video.begin", json!({ "started": started, "go": go })))
        .await?;
    wait_for("the task to begin", PATIENCE, async || lines(&started) == 1).await?;
    drop(sender);
    // acks_late: the task is delivered again, to another worker.
    first.kill9().await?;
    let second = worker.start().await?;
    wait_for("the task to begin again", PATIENCE, async || lines(&started) == 2).await?;
    fs::write(&go, "")?;

    let other = celery(broker)?;
    let kept = Kept::default();
    kept.go_away();
    let delivering = deliver(&other, &kept);
    wait_for("a report that is not kept", PATIENCE, async || kept.refused() > 0).await?;
    drop(delivering);
    kept.come_back();
    let _delivering = deliver(&other, &kept);
    let pid = fs::read_to_string(&started)?.lines().last().and_then(|pid| pid.parse::<i64>().ok());
    ensure!(kept.end(&long).await? == succeeded(json!(pid.context("a pid")?)));
    kept.said(&long, &ReportKind::Progress { fraction: 0.5 }).await?;
    second.terminate().await?;
    Ok(())
}

/// A task that waits behind another one is dropped.
async fn revoked_tasks_are_dropped(broker: &str) -> Result<()> {
    let folder = TempDir::new()?;
    let started = folder.path().join("started");
    let go = folder.path().join("go");
    let never = folder.path().join("never");
    let sender = celery(broker)?;
    let kept = Kept::default();
    let _delivering = deliver(&sender, &kept);
    let running = id("r", "begin", 1);
    let waiting = id("r", "take", 1);
    // A pool of processes listens to its broker while tasks run.
    let worker = Worker { pool: "prefork", ..Worker::new(broker, "revoked") }.start().await?;
    send(sender.as_ref(), &task(running.clone(), "video.begin", json!({ "started": started, "go": go })))
        .await?;
    wait_for("a task to run", PATIENCE, async || lines(&started) == 1).await?;
    send(sender.as_ref(), &task(waiting.clone(), "video.take", json!({ "started": never, "seconds": 0 })))
        .await?;
    sender.revoke(&waiting).await;
    wait_for("the worker to be told", PATIENCE, async || worker.logs().contains("flagged as revoked"))
        .await?;
    fs::write(&go, "")?;
    kept.end(&running).await?;
    let end = kept.end(&waiting).await?;
    ensure!(matches!(&end, ReportKind::Failed { reason } if reason.starts_with("revoked")), "{end:?}");
    ensure!(!never.exists(), "it ran");
    worker.terminate().await?;
    Ok(())
}

fn stages(seconds: u64) -> [StagePlan; 2] {
    let timeout = Duration::from_secs(seconds);
    [stage("take", "video.take", timeout), stage("unknown", "video.unknown", timeout)]
}

fn has(findings: &[Finding], weight: Weight, part: &str) -> Result<()> {
    let is_told = findings.iter().any(|finding| finding.weight == weight && finding.text.contains(part));
    let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
    ensure!(is_told, "no {weight:?} says {part:?} among:\n{}", all.join("\n"));
    Ok(())
}

#[tokio::test]
async fn a_celery_worker_works_over_rabbitmq() -> Result<()> {
    let authority = Authority::new()?;
    let rabbit = RabbitMq::start_tls(&authority.certificate, &authority.key).await?;
    let settings = json!({ "broker_use_ssl": { "ca_certs": authority.file(), "cert_reqs": CERT_REQUIRED } });
    everything_comes_back_over_tls(&rabbit.tls_url(), &authority, settings).await?;
    let url = rabbit.url();
    tasks_outlive_everyone(&url, &Worker::new(&url, "second")).await?;
    revoked_tasks_are_dropped(&url).await?;
    settings_are_compared_over_rabbitmq(&url).await?;
    // Its queues have been there for a while: RabbitMQ keeps the declaration of a new one in memory for two seconds.
    a_restart_of_rabbitmq_loses_nothing(&rabbit).await?;
    a_queue_that_was_deleted_is_declared_again(&url).await
}

async fn settings_are_compared_over_rabbitmq(url: &str) -> Result<()> {
    let sender = celery(url)?;
    has(&sender.check(&stages(60)).await?, Weight::Warning, "no Celery worker replied")?;
    let settings = json!({ "task_acks_late": false, "result_persistent": false });
    let worker = Worker { settings, ..Worker::new(url, "checked") }.start().await?;
    let findings = sender.check(&stages(60)).await?;
    has(&findings, Weight::Warning, "stage take at worker checked@test: acks_late is off")?;
    has(&findings, Weight::Warning, "set result_persistent = True")?;
    has(&findings, Weight::Problem, "does not know the task video.unknown")?;
    worker.terminate().await?;
    let worker = Worker::new(url, "checked").start().await?;
    let findings = sender.check(&stages(3_600)).await?;
    has(
        &findings,
        Weight::Warning,
        "stage take at worker checked@test: consumer_timeout (1800s) is shorter",
    )?;
    worker.terminate().await?;
    Ok(())
}

async fn a_queue_that_was_deleted_is_declared_again(url: &str) -> Result<()> {
    let sender = celery(url)?;
    let waiting = task(id("d", "add", 1), "video.add", json!({ "a": 1, "b": 1 }));
    send(sender.as_ref(), &waiting).await?;
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.queue_delete("celery".into(), QueueDeleteOptions::default()).await?;
    let refused = refusal(sender.as_ref(), &waiting).await;
    let is_told =
        matches!(&refused, Some(DispatchError::Unreachable(why)) if why.contains("no queue \"celery\""));
    ensure!(is_told, "{refused:?}");
    send(sender.as_ref(), &waiting).await
}

async fn a_restart_of_rabbitmq_loses_nothing(rabbit: &RabbitMq) -> Result<()> {
    let sender = celery(&rabbit.url())?;
    let kept = Kept::default();
    let _delivering = deliver(&sender, &kept);
    let before = id("before", "add", 1);
    let after = id("after", "add", 1);
    send(sender.as_ref(), &task(before.clone(), "video.add", json!({ "a": 1, "b": 1 }))).await?;
    rabbit.kill9().await?;
    let away = refusal(sender.as_ref(), &task(after.clone(), "video.add", json!({ "a": 1, "b": 2 }))).await;
    ensure!(matches!(away, Some(DispatchError::Unreachable(_))), "{away:?}");
    rabbit.restart().await?;
    send(sender.as_ref(), &task(after.clone(), "video.add", json!({ "a": 1, "b": 2 }))).await?;
    let worker = Worker::new(&rabbit.url(), "restarted").start().await?;
    ensure!(kept.end(&before).await? == succeeded(json!(2)));
    ensure!(kept.end(&after).await? == succeeded(json!(3)));
    worker.terminate().await?;
    Ok(())
}

#[tokio::test]
async fn a_celery_worker_works_over_redis() -> Result<()> {
    let authority = Authority::new()?;
    let redis = Redis::start_tls(&authority.certificate, &authority.key).await?;
    let settings =
        json!({ "broker_use_ssl": { "ssl_ca_certs": authority.file(), "ssl_cert_reqs": "required" } });
    let tls_url = format!("rediss://{}/2", redis.tls_address());
    everything_comes_back_over_tls(&tls_url, &authority, settings).await?;
    let url = format!("redis://{}/3", redis.address());
    let soon =
        json!({ "visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1 });
    let worker = Worker { transport_options: soon, ..Worker::new(&url, "second") };
    tasks_outlive_everyone(&url, &worker).await?;
    revoked_tasks_are_dropped(&url).await?;
    let sender = celery(&url)?;
    let options = json!({ "visibility_timeout": 5 });
    let worker = Worker { transport_options: options, ..Worker::new(&url, "checked") }.start().await?;
    // A busy worker may answer one of the questions too late.
    wait_for("the worker to tell what it is set to", PATIENCE, async || {
        let findings = sender.check(&stages(12)).await.unwrap_or_default();
        let shorter = "stage take at worker checked@test: visibility_timeout (5s) is shorter";
        has(&findings, Weight::Warning, shorter).is_ok()
            && has(&findings, Weight::Problem, "does not know the task video.unknown").is_ok()
    })
    .await?;
    worker.terminate().await?;
    Ok(())
}
