//! Replicas over one PostgreSQL, and the few calls that the tests make.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Solehold, SoleholdBuilder, wait_for};

/// Long enough for anything that a busy machine does.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An answer: its status and its body, null if there is none.
pub type Answer = (u16, Value);

/// One server's surface.
#[derive(Clone)]
pub struct Api {
    client: Client,
    base: String,
}

impl Api {
    /// Speaks to the server at `url`.
    pub fn new(url: &str) -> Result<Self> {
        let client = Client::builder().timeout(Duration::from_secs(20)).build()?;
        Ok(Self { client, base: format!("{url}/api/v1") })
    }

    /// Asks; an error means that no answer came.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> Result<Answer> {
        let response = self.client.request(method, format!("{}{path}", self.base)).json(&body).send().await?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).context(text)? };
        Ok((status, body))
    }

    /// Asks and insists on a status.
    pub async fn expect(&self, status: u16, method: Method, path: &str, body: Value) -> Result<Value> {
        let (got, answer) = self.call(method, path, body).await?;
        ensure!(got == status, "{path} answered {got} where {status} was due: {answer}");
        Ok(answer)
    }

    /// Acquires `kind/key` for a holder.
    pub async fn acquire(&self, key: &str, holder: &str, ttl_ms: u64) -> Result<Answer> {
        self.call(
            Method::POST,
            &format!("/resources/{key}/lease"),
            json!({ "holder": holder, "ttl_ms": ttl_ms }),
        )
        .await
    }

    /// Reads the lease on `kind/key`.
    pub async fn lease(&self, key: &str) -> Result<Answer> {
        self.call(Method::GET, &format!("/resources/{key}/lease"), Value::Null).await
    }
}

/// Starts `count` replicas over a database.
pub async fn replicas(url: &str, count: usize) -> Result<Vec<(Solehold, Api)>> {
    replicas_of(&Solehold::builder().engine(url), count).await
}

/// Starts `count` replicas with the same settings.
pub async fn replicas_of(builder: &SoleholdBuilder, count: usize) -> Result<Vec<(Solehold, Api)>> {
    let mut replicas = Vec::new();
    for _ in 0..count {
        let replica = builder.start().await?;
        let api = Api::new(replica.url())?;
        replicas.push((replica, api));
    }
    Ok(replicas)
}

/// A fresh database of the PostgreSQL that this process shares.
pub async fn database() -> Result<String> {
    Postgres::shared().await?.create_database("faults").await
}

/// Waits until nobody holds `kind/key` any more.
pub async fn wait_until_free(api: &Api, key: &str) -> Result<()> {
    let is_free = async || matches!(api.lease(key).await, Ok((404, _))) || is_unheld(api.lease(key).await);
    wait_for(&format!("{key} to be free"), PATIENCE, is_free).await
}

fn is_unheld(answer: Result<Answer>) -> bool {
    answer.is_ok_and(|(status, body)| status == 200 && body["holder"].is_null())
}

/// The token in an answer.
pub fn token(answer: &Value) -> Result<u64> {
    answer["token"].as_u64().with_context(|| format!("no token in {answer}"))
}
