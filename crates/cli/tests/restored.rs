//! A data folder that was put back to an earlier state, as only its holders can tell.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use common::{SOON, ask, server};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use solehold_testkit::{Solehold, TempDir, wait_for};

/// The bytes of all files of a folder.
fn bytes_of(folder: &Path) -> Result<BTreeMap<OsString, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        files.insert(file.file_name(), fs::read(file.path())?);
    }
    Ok(files)
}

/// Writes bytes into the files that are there, so that each stays the very same file, and removes those that were not.
fn put_back(folder: &Path, files: &BTreeMap<OsString, Vec<u8>>) -> Result<()> {
    for file in fs::read_dir(folder)? {
        let file = file?;
        if !files.contains_key(&file.file_name()) {
            fs::remove_file(file.path())?;
        }
    }
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// Makes a folder with the same files, as a backup does.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for (name, bytes) in bytes_of(from)? {
        fs::write(to.join(name), bytes)?;
    }
    Ok(())
}

/// A holder with its session, who speaks HTTP to whichever server runs.
struct Holder {
    http: Client,
    session: String,
}

impl Holder {
    async fn open(server: &Solehold) -> Result<Self> {
        let http = Client::builder().no_proxy().build()?;
        let body = json!({ "holder": "ann", "ttl_ms": 30_000 });
        let opened = http.post(format!("{}/api/v1/sessions", server.url())).json(&body).send().await?;
        let opened: Value = opened.error_for_status()?.json().await?;
        Ok(Self { http, session: opened["session_id"].as_str().context("a session")?.to_owned() })
    }

    /// The token of a grant.
    async fn acquire(&self, server: &Solehold, job: &str) -> Result<u64> {
        let url = format!("{}/api/v1/resources/job/{job}/lease", server.url());
        let body = json!({ "session_id": self.session, "holder": "ann" });
        let grant = self.http.post(url).json(&body).send().await?;
        let status = grant.status();
        let grant = grant.json::<Value>().await?;
        assert_eq!(status, StatusCode::CREATED, "{grant}");
        grant["token"].as_u64().context("a token")
    }

    async fn heartbeat(&self, server: &Solehold, body: &Value) -> Result<(StatusCode, Value)> {
        let url = format!("{}/api/v1/sessions/{}/heartbeat", server.url(), self.session);
        let answer = self.http.put(url).json(body).send().await?;
        Ok((answer.status(), answer.json().await?))
    }

    /// The epoch that the server is in.
    async fn epoch(&self, server: &Solehold) -> Result<u64> {
        let ready = self.http.get(format!("{}/readyz", server.url())).send().await?;
        let ready: Value = ready.error_for_status()?.json().await?;
        let cursor = ready["cursor"].as_str().with_context(|| format!("a cursor in {ready}"))?;
        Ok(cursor.split('.').next().unwrap_or_default().parse()?)
    }
}

fn epoch_of(answer: &Value) -> Result<u64> {
    answer["epoch"].as_u64().with_context(|| format!("an epoch in {answer}"))
}

/// The same text with its last character changed.
fn forged(sealed: &str) -> String {
    let (rest, last) = sealed.split_at(sealed.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

/// Every file of the folder is overwritten in place with what it was, while no server runs: nothing in the folder
/// tells. The first holder that shows what it was given does.
#[tokio::test]
async fn a_folder_put_back_in_place_gives_no_lease_or_token_again_once_a_holder_shows_its_cursor()
-> Result<()> {
    let folder = TempDir::new()?;
    let start = async || server().data_dir(folder.path()).env("SOLEHOLD_TTL_MAX", "30s").start().await;
    let first = start().await?;
    let holder = Holder::open(&first).await?;
    for job in ["a", "b", "c"] {
        holder.acquire(&first, job).await?;
    }
    first.terminate().await?;
    let backup = bytes_of(folder.path())?;

    let second = start().await?;
    let mut largest = 0;
    for job in ["d", "e", "f"] {
        largest = largest.max(holder.acquire(&second, job).await?);
    }
    let (status, kept) = holder.heartbeat(&second, &json!({})).await?;
    assert_eq!(status, StatusCode::OK, "{kept}");
    assert_eq!(kept["leases"].as_array().map(Vec::len), Some(6), "{kept}");
    let sealed = kept["sealed_cursor"].as_str().context("a sealed cursor")?;
    let epoch = epoch_of(&kept)?;
    second.terminate().await?;
    put_back(folder.path(), &backup)?;

    let third = start().await?;
    // Nobody can tell yet, and what nobody sealed tells nothing: it is kept as before, without what was lost.
    for nothing in [json!({}), json!({ "sealed_cursor": forged(sealed) }), json!({ "sealed_cursor": "" })] {
        let (status, told) = holder.heartbeat(&third, &nothing).await?;
        assert_eq!((status, epoch_of(&told)?), (StatusCode::OK, epoch), "{nothing}: {told}");
        assert_eq!(told["leases"].as_array().map(Vec::len), Some(3), "{told}");
    }
    let (status, refused) = holder.heartbeat(&third, &json!({ "sealed_cursor": sealed })).await?;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")),
        "{refused}"
    );
    let detail = refused["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("leases are neither granted nor renewed"), "{refused}");
    let another = holder.epoch(&third).await?;
    assert!(another > epoch, "{another} after {epoch}");
    // It stays so, whether or not it is shown again, and over a restart.
    let (status, _) = holder.heartbeat(&third, &json!({})).await?;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    third.terminate().await?;
    let fourth = start().await?;
    let (status, refused) = holder.heartbeat(&fourth, &json!({ "sealed_cursor": sealed })).await?;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{refused}");
    assert_eq!(holder.epoch(&fourth).await?, another, "the same is not another history twice");

    let told = ask(&fourth, "admin restored --holders-stopped --json").await?.json()?;
    assert!(epoch_of(&told)? > another, "{told}");
    let holder = Holder::open(&fourth).await?;
    let token = holder.acquire(&fourth, "g").await?;
    assert!(token > largest && token > 1 << 32, "{token} after {largest}");
    Ok(())
}

/// A copy is noticed at its start, and decides nothing for the longest ttl. That is no secret.
#[tokio::test]
async fn a_copied_store_that_grants_nothing_yet_says_so_at_readyz_and_in_a_gauge() -> Result<()> {
    let folder = TempDir::new()?;
    let first = folder.path().join("first");
    let copy = folder.path().join("copy");
    let server = server().data_dir(&first).start().await?;
    let holder = Holder::open(&server).await?;
    holder.acquire(&server, "a").await?;
    let ready = async |server: &Solehold| -> Result<Value> {
        let ready = holder.http.get(format!("{}/readyz", server.url())).send().await?;
        Ok(ready.error_for_status()?.json().await?)
    };
    let gauge = async |server: &Solehold| -> Result<f64> {
        let text = holder.http.get(format!("{}/metrics", server.url())).send().await?.text().await?;
        let value = text.lines().find_map(|line| line.strip_prefix("solehold_store_barred_seconds "));
        Ok(value.with_context(|| format!("no gauge in {text}"))?.parse()?)
    };
    assert_eq!((&ready(&server).await?["reason"], gauge(&server).await?), (&Value::Null, 0.0));
    server.terminate().await?;
    copy_folder(&first, &copy)?;

    let server = common::server().data_dir(&copy).start().await?;
    let barred = ready(&server).await?;
    assert_eq!(barred["ready"], true, "it can be read: {barred}");
    assert!(
        barred["reason"].as_str().is_some_and(|why| why.contains("leases are neither granted nor renewed")),
        "{barred}"
    );
    assert!(barred["barred_ms"].as_u64().is_some_and(|ms| ms > 60_000), "{barred}");
    assert!(gauge(&server).await? > 60.0);
    ask(&server, "admin restored --holders-stopped").await?.good()?;
    let over = ready(&server).await?;
    assert!(over["reason"].is_null() && over.get("barred_ms").is_none(), "{over}");
    wait_for("the gauge to be 0", SOON, async || gauge(&server).await.is_ok_and(|left| left == 0.0)).await?;
    Ok(())
}

/// It said "next token above 1": the revision of the backup, read before the store had gone on as another history.
#[tokio::test]
async fn the_first_line_of_a_restored_store_s_server_tells_the_true_bound_of_tokens() -> Result<()> {
    let folder = TempDir::new()?;
    let first = folder.path().join("first");
    let copy = folder.path().join("copy");
    let server = server().data_dir(&first).start().await?;
    let holder = Holder::open(&server).await?;
    holder.acquire(&server, "a").await?;
    server.terminate().await?;
    copy_folder(&first, &copy)?;

    let server = common::server().data_dir(&copy).start().await?;
    let ready = holder.http.get(format!("{}/readyz", server.url())).send().await?;
    let ready: Value = ready.error_for_status()?.json().await?;
    let (_, revision) = ready["cursor"].as_str().and_then(|at| at.split_once('.')).context("a cursor")?;
    assert!(revision.parse::<u64>()? > 1 << 32, "another history: {ready}");
    let logs = server.logs();
    assert!(logs.contains(&format!("next token above {revision})\n")), "{ready}: {logs}");
    Ok(())
}
