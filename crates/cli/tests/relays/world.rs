//! A server with a relay, its history, and what a consumer got of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use reqwest::Client;
use serde_json::{Value, json};
use solehold_testkit::{Solehold, SoleholdBuilder, TempDir, wait_for};

/// Long enough for anything that a busy machine does.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const SECRET: &str = "a secret of thirty-two bytes or more";

/// What a consumer got, in the order in which it came.
#[derive(Debug, Clone, Default)]
pub struct Inbox(Arc<Mutex<Vec<Value>>>);

impl Inbox {
    pub fn put(&self, body: Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(body);
    }

    pub fn all(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until something was delivered for each event of the history, and checks all that was.
    pub async fn is_exactly(&self, api: &Api) -> Result<Checked> {
        let history = api.history().await?;
        let revisions: BTreeSet<u64> = history.keys().copied().collect();
        let is_all =
            || self.all().iter().filter_map(revision).collect::<BTreeSet<_>>().is_superset(&revisions);
        let all = wait_for("all events to arrive", PATIENCE, async || is_all()).await;
        if all.is_err() {
            let came: BTreeSet<u64> = self.all().iter().filter_map(revision).collect();
            let lacks: Vec<_> = revisions.difference(&came).collect();
            anyhow::bail!("{} of {} events never came: {lacks:?}", lacks.len(), revisions.len());
        }
        check(&self.all(), &history)
    }
}

/// What a check found.
#[derive(Debug, PartialEq, Eq)]
pub struct Checked {
    /// Events in the history.
    pub events: usize,
    /// Deliveries beyond the first of an event.
    pub duplicates: usize,
}

fn revision(body: &Value) -> Option<u64> {
    body["details"]["revision"].as_u64()
}

/// An event of a job names its kind, key, holder and token, and has no word of camera pipelines.
pub fn is_generic(body: &Value) -> Result<()> {
    let text = |field: &str| body[field].as_str().unwrap_or_default();
    ensure!((text("tenant"), text("kind"), text("holder")) == ("default", "job", "ann"), "{body}");
    ensure!(body["token"].is_u64() && body["token"] == body["details"]["token"], "{body}");
    let found = ["camera", "shard", "runner"].into_iter().find(|word| body.to_string().contains(word));
    ensure!(found.is_none(), "{found:?} in the event of a job: {body}");
    Ok(())
}

/// Without duplicates, what came is the history, and what came of each resource is in order.
fn check(came: &[Value], history: &BTreeMap<u64, (String, String)>) -> Result<Checked> {
    let mut ids: BTreeMap<u64, &str> = BTreeMap::new();
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for body in came {
        let revision = revision(body).context("no revision")?;
        let id = body["event_id"].as_str().context("no id")?;
        let (key, event) = history.get(&revision).with_context(|| format!("not in the history: {body}"))?;
        ensure!(body["key"] == json!(key) && body["event_type"] == json!(event), "another event: {body}");
        is_generic(body)?;
        if let Some(known) = ids.insert(revision, id) {
            ensure!(known == id, "{revision} came under two ids, {known} and {id}");
            continue;
        }
        let before = last.insert(key, revision).unwrap_or_default();
        ensure!(before < revision, "{revision} of {key} came after {before}");
    }
    ensure!(ids.values().collect::<BTreeSet<_>>().len() == ids.len(), "two events have one id");
    ensure!(ids.len() == history.len(), "{} of {} events came", ids.len(), history.len());
    Ok(Checked { events: history.len(), duplicates: came.len() - ids.len() })
}

/// A server's surface.
#[derive(Debug, Clone)]
pub struct Api {
    client: Client,
    url: String,
}

impl Api {
    pub fn new(server: &Solehold) -> Result<Self> {
        let client = Client::builder().timeout(Duration::from_secs(30)).build()?;
        Ok(Self { client, url: server.url().to_owned() })
    }

    /// One acquire and its release, which are two events.
    pub async fn cycle(&self, key: &str) -> Result<()> {
        let lease = format!("{}/api/v1/resources/job/{key}/lease", self.url);
        let ask = json!({ "holder": "ann", "ttl_ms": 60_000 });
        let answer = self.client.post(&lease).json(&ask).send().await?;
        let status = answer.status();
        let granted = answer.json::<Value>().await?;
        ensure!(status.is_success(), "{key} was not acquired: {granted}");
        let proof = json!({ "token": granted["token"] });
        let answer = self.client.delete(&lease).json(&proof).send().await?;
        ensure!(answer.status().is_success(), "{key} was not released: {}", answer.text().await?);
        Ok(())
    }

    /// `rounds` cycles of each key, the keys at the same time.
    pub async fn churn(&self, keys: &[&str], rounds: usize) -> Result<()> {
        let each = keys.iter().map(async |key| {
            for _ in 0..rounds {
                self.cycle(key).await?;
            }
            anyhow::Ok(())
        });
        try_join_all(each).await.map(|_| ())
    }

    /// Every event of the store that relays send, by revision: the key and the name of the event.
    pub async fn history(&self) -> Result<BTreeMap<u64, (String, String)>> {
        let rows = self.export().await?;
        let events = rows.iter().filter_map(|row| row.get("event"));
        let ours = events.filter(|event| event["key"]["kind"] != json!("relay"));
        let told = ours.map(|event| {
            let what = event["what"].as_object().and_then(|what| what.keys().next()).context("no event")?;
            let key = event["key"]["key"].as_str().context("no key")?;
            let revision = event["revision"].as_u64().context("no revision")?;
            Ok((revision, (key.to_owned(), format!("lease_{what}"))))
        });
        told.collect()
    }

    /// Everything in the store.
    pub async fn export(&self) -> Result<Vec<Value>> {
        let answer = self.client.get(format!("{}/api/v1/admin/export", self.url)).send().await?;
        let text = answer.error_for_status()?.text().await?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// What is measured of a relay; 0 if nothing was yet.
    pub async fn measured(&self, metric: &str) -> Result<f64> {
        let text = self.client.get(format!("{}/metrics", self.url)).send().await?.text().await?;
        let line = text.lines().find(|line| line.starts_with(&format!("solehold_{metric}{{")));
        let value = line.and_then(|line| line.rsplit(' ').next()).map(str::parse).transpose()?;
        Ok(value.unwrap_or_default())
    }

    /// Waits until a metric of the relay has come to a value.
    pub async fn measures(&self, metric: &str, is_good: impl Fn(f64) -> bool) -> Result<f64> {
        let what = format!("{metric} to be as it should");
        wait_for(&what, PATIENCE, async || self.measured(metric).await.ok().filter(|value| is_good(*value)))
            .await
    }
}

/// A folder with a configuration, a secret and the data of a server.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
}

impl Place {
    /// The lines of `relay` are the keys of its one relay, `name` excepted.
    pub fn new(more: &str, relay: &str) -> Result<Self> {
        let folder = TempDir::new()?;
        let secret = folder.path().join("secret");
        fs::write(&secret, format!("{SECRET}\n"))?;
        let relay = relay.replace("SECRET_FILE", &secret.display().to_string());
        let relay: String = relay.lines().map(|line| format!("    {}\n", line)).collect();
        fs::write(folder.path().join("solehold.yaml"), format!("{more}relays:\n  - name: test\n{relay}"))?;
        Ok(Self { folder })
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("solehold.yaml")
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Writes a file beside the configuration.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// A server on the data of this place.
    pub fn server(&self) -> SoleholdBuilder {
        Solehold::builder().data_dir(self.data()).arg("--config").arg(self.config())
    }

    /// Starts it.
    pub async fn start(&self) -> Result<(Solehold, Api)> {
        let server = self.server().start().await?;
        let api = Api::new(&server)?;
        Ok((server, api))
    }
}
