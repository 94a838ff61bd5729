//! Object stores: the token is the first line of the object, and a conditional put compares and writes in one step.
//!
//! The token must be part of the *content*. Most stores derive an ETag from the content alone, so with the token in the
//! metadata an object that was changed and changed back has its old ETag again, and a writer that slept through both
//! changes gets through.
//!
//! Requests here are anonymous; a service uses the signed client that it has. What matters are the two headers.

use anyhow::{Context, Result, bail, ensure};
use reqwest::{
    Client, Response, StatusCode,
    header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH},
};

/// How often a writer begins again because another one was faster.
const ATTEMPTS_MAX: usize = 10;

/// A bucket.
#[derive(Debug, Clone)]
pub struct Bucket {
    http: Client,
    url: String,
}

/// An object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    etag: String,
    /// The token under which it was written.
    pub token: u64,
    /// What was written.
    pub content: String,
}

/// How a write ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is there.
    InPlace,
    /// Nothing was written: the object was written under this newer token.
    Stale(u64),
}

impl Bucket {
    /// The bucket at `http://HOST:PORT/BUCKET`. Fails if the store ignores the condition of a put, because then nothing
    /// here is safe.
    pub async fn open(http: Client, url: &str) -> Result<Self> {
        let bucket = Self { http, url: url.trim_end_matches('/').to_owned() };
        let probe = bucket.put("solehold-probe", IF_MATCH, "\"no-such-version\"", "probe").await?.status();
        let refusals = [StatusCode::PRECONDITION_FAILED, StatusCode::NOT_FOUND];
        ensure!(
            refusals.contains(&probe),
            "{url} answers {probe} to a put that must fail: it ignores If-Match"
        );
        Ok(bucket)
    }

    /// Writes under a token, unless the object has a newer one.
    pub async fn write_fenced(&self, key: &str, token: u64, content: &str) -> Result<Written> {
        for _ in 0..ATTEMPTS_MAX {
            let seen = self.read(key).await?;
            if let Some(written) = self.write_over(key, seen.as_ref(), token, content).await? {
                return Ok(written);
            }
        }
        bail!("{key}: others wrote {ATTEMPTS_MAX} times in between")
    }

    /// Writes over what was seen; none if that has changed since, so that it must be read again.
    pub async fn write_over(
        &self,
        key: &str,
        seen: Option<&Object>,
        token: u64,
        content: &str,
    ) -> Result<Option<Written>> {
        if let Some(newer) = seen.filter(|seen| seen.token > token) {
            return Ok(Some(Written::Stale(newer.token)));
        }
        if seen.is_some_and(|seen| seen.token == token && seen.content == content) {
            // Also our own write whose answer was lost.
            return Ok(Some(Written::InPlace));
        }
        let body = format!("{token}\n{content}");
        let answer = match seen {
            Some(seen) => self.put(key, IF_MATCH, &seen.etag, &body).await?,
            None => self.put(key, IF_NONE_MATCH, "*", &body).await?,
        };
        match answer.status() {
            status if status.is_success() => Ok(Some(Written::InPlace)),
            // Changed, being changed, or deleted since.
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT | StatusCode::NOT_FOUND => Ok(None),
            status => bail!("{key}: the store answered {status}"),
        }
    }

    /// Reads an object with its version.
    pub async fn read(&self, key: &str) -> Result<Option<Object>> {
        let answer = self.http.get(format!("{}/{key}", self.url)).send().await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let answer = answer.error_for_status()?;
        let etag = answer.headers().get(ETAG).context("an object without an ETag")?.to_str()?.to_owned();
        let body = answer.text().await?;
        let (token, content) =
            body.split_once('\n').context("an object without a token in its first line")?;
        Ok(Some(Object { etag, token: token.parse()?, content: content.to_owned() }))
    }

    async fn put(&self, key: &str, condition: HeaderName, value: &str, body: &str) -> Result<Response> {
        let request = self.http.put(format!("{}/{key}", self.url)).header(condition, value);
        Ok(request.body(body.to_owned()).send().await?)
    }
}
