//! An inbox in Redis, for effects that are not in PostgreSQL: an e-mail, a file, a call to another service.
//!
//! Whoever wants to work on a message claims its key first. A claim that is not finished in time passes to the next who
//! asks, under a higher epoch; what is done stays marked as done for [`MARK_TTL`].
//!
//! ```text
//!            claim: epoch 1              done                        7 days
//!   unknown ───────────────> in progress ────> done ─────────────────────────> unknown
//!                              │     ^
//!                      run out │     │ claim: epoch 2, 3, ...
//!                              v     │
//!                            free ───┘
//! ```
//!
//! # What it does not promise
//!
//! - Two never work at the same time within a claim's time, and nothing is done again that was marked. But whoever dies
//!   between the effect and its mark leaves an effect without a mark, and the next one repeats it. Where that matters,
//!   let the receiver of the effect compare [`Claim::epoch`], or give it the key, so that it can tell a repetition.
//! - A claimant that was paused past its time learns that its claim is lost only when it asks. It must not rely on its
//!   own clock: [`RedisInbox::renew`] before the effect narrows the window, and only the receiver can close it.
//! - Redis may lose marks: a failover to a replica that lags, a restart without `appendfsync always`, eviction under
//!   any `maxmemory-policy` but `noeviction`. What is lost is worked on again. Effects in PostgreSQL have none of these
//!   holes, because mark and effect are one transaction.

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, RedisResult, Script, aio::MultiplexedConnection};
use tokio::sync::Mutex;
use xxhash_rust::xxh3::xxh3_128;

/// How long a mark is kept: as long as Kafka keeps messages by default.
pub const MARK_TTL: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The shortest and the longest time of a claim.
pub const CLAIM_MIN: Duration = Duration::from_millis(100);
/// See [`CLAIM_MIN`].
pub const CLAIM_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How many keys Redis looks at in one step of a list.
const SCAN_COUNT: usize = 500;

/// KEYS: the mark. ARGV: hash of the payload, ms of the claim, ms of the mark.
/// Epochs grow though a mark is lost: they begin with the time in microseconds.
const CLAIM: &str = "
local mark = redis.call('HMGET', KEYS[1], 'state', 'hash', 'epoch', 'until')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if mark[1] then
  if mark[2] ~= ARGV[1] then return {'other', '0', '0'} end
  if mark[1] == 'done' then return {'done', mark[3], '0'} end
  local left = tonumber(mark[4]) - now
  if left > 0 then return {'busy', mark[3], tostring(left)} end
end
local epoch = string.format('%.0f', math.max(time[1] * 1000000 + time[2], tonumber(mark[3] or '0') + 1))
redis.call('HSET', KEYS[1], 'state', 'claimed', 'hash', ARGV[1], 'epoch', epoch,
  'until', string.format('%.0f', now + ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'yours', epoch, '0'}";

/// KEYS: the mark. ARGV: epoch, ms of the claim, ms of the mark.
const RENEW: &str = "
local mark = redis.call('HMGET', KEYS[1], 'state', 'epoch')
if mark[1] ~= 'claimed' or mark[2] ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1";

/// KEYS: the mark. ARGV: epoch, ms of the mark. A claim that has run out and was not taken over is still good.
const FINISH: &str = "
local mark = redis.call('HMGET', KEYS[1], 'state', 'epoch')
if mark[2] ~= ARGV[1] then return 0 end
if mark[1] == 'done' then return 1 end
redis.call('HSET', KEYS[1], 'state', 'done')
redis.call('HDEL', KEYS[1], 'until')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";

/// KEYS: the mark. ARGV: epoch.
const GIVE_BACK: &str = "
local mark = redis.call('HMGET', KEYS[1], 'state', 'epoch')
if mark[1] ~= 'claimed' or mark[2] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'until', '0')
return 1";

/// Why Redis could not be asked: the outcome is unknown.
#[derive(Debug, thiserror::Error)]
#[error("the inbox in Redis: {0}")]
pub struct InboxError(#[from] redis::RedisError);

/// The right to work on a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The message's key.
    pub key: String,
    /// Larger with each claim of the key. A receiver that compares it refuses a claimant that was succeeded.
    pub epoch: u64,
}

/// What became of asking for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// Work on it, then call [`RedisInbox::finish`].
    Yours(Claim),
    /// Someone works on it: ask again when this time has passed.
    Busy(Duration),
    /// It was done before.
    Done,
    /// The key was used for another payload: one of the two is a mistake.
    OtherPayload,
}

/// A mark, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The message's key.
    pub key: String,
    /// Whether the work is done, or only claimed.
    pub is_done: bool,
    /// Of the last claim.
    pub epoch: u64,
}

/// An inbox in Redis.
pub struct RedisInbox {
    client: Client,
    prefix: String,
    claim: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl RedisInbox {
    /// Marks are keys under `prefix`; a claim lasts for `claim`, within [`CLAIM_MIN`] and [`CLAIM_MAX`]. Nothing is
    /// connected yet.
    pub fn new(url: &str, prefix: &str, claim: Duration) -> Result<Self, InboxError> {
        let (client, prefix) = (Client::open(url)?, prefix.to_owned());
        Ok(Self { client, prefix, claim: claim.clamp(CLAIM_MIN, CLAIM_MAX), connection: Mutex::default() })
    }

    /// Asks to work on a message.
    pub async fn claim(&self, key: &str, payload: &[u8]) -> Result<Claimed, InboxError> {
        let hash = format!("{:032x}", xxh3_128(payload));
        let answer: (String, u64, u64) = self
            .run(async |connection| {
                let script = Script::new(CLAIM);
                let mut invocation = script.key(self.name(key));
                invocation.arg(hash).arg(ms(self.claim)).arg(ms(MARK_TTL)).invoke_async(connection).await
            })
            .await?;
        Ok(match answer {
            (state, epoch, _) if state == "yours" => Claimed::Yours(Claim { key: key.to_owned(), epoch }),
            (state, _, left) if state == "busy" => Claimed::Busy(Duration::from_millis(left)),
            (state, ..) if state == "done" => Claimed::Done,
            _ => Claimed::OtherPayload,
        })
    }

    /// Extends a claim. False: it is lost, stop.
    pub async fn renew(&self, claim: &Claim) -> Result<bool, InboxError> {
        self.run(async |connection| {
            let script = Script::new(RENEW);
            let mut invocation = script.key(self.name(&claim.key));
            invocation.arg(claim.epoch).arg(ms(self.claim)).arg(ms(MARK_TTL)).invoke_async(connection).await
        })
        .await
    }

    /// Marks the work as done. False: the claim was lost, and someone else may have done the work as well.
    pub async fn finish(&self, claim: &Claim) -> Result<bool, InboxError> {
        self.run(async |connection| {
            let script = Script::new(FINISH);
            let mut invocation = script.key(self.name(&claim.key));
            invocation.arg(claim.epoch).arg(ms(MARK_TTL)).invoke_async(connection).await
        })
        .await
    }

    /// Gives a claim back before its time, because the work failed without an effect.
    pub async fn give_back(&self, claim: &Claim) -> Result<bool, InboxError> {
        self.run(async |connection| {
            let script = Script::new(GIVE_BACK);
            script.key(self.name(&claim.key)).arg(claim.epoch).invoke_async(connection).await
        })
        .await
    }

    /// Some of the marks, and where to go on: from 0, until it is 0 again. As Redis scans, a mark may be listed twice.
    pub async fn list(&self, from: u64) -> Result<(Vec<Mark>, u64), InboxError> {
        let pattern = format!("{}*", escape(&self.prefix));
        self.run(async |connection| {
            let mut scan = redis::cmd("SCAN");
            scan.arg(from).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg("hash");
            let (next, names): (u64, Vec<String>) = scan.query_async(connection).await?;
            let mut asking = redis::pipe();
            for name in &names {
                asking.cmd("HMGET").arg(name).arg("state").arg("epoch");
            }
            let found: Vec<(Option<String>, Option<u64>)> = asking.query_async(connection).await?;
            let mark = |(name, (state, epoch)): (&String, (Option<String>, Option<u64>))| {
                let key = name.strip_prefix(&self.prefix)?.to_owned();
                Some(Mark { key, is_done: state? == "done", epoch: epoch? })
            };
            Ok((names.iter().zip(found).filter_map(mark).collect(), next))
        })
        .await
    }

    /// Forgets a mark, so that its message is worked on again when it comes again. Whether there was one.
    pub async fn clear(&self, key: &str) -> Result<bool, InboxError> {
        let name = self.name(key);
        self.run(async |connection| redis::cmd("DEL").arg(name).query_async(connection).await).await
    }

    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    async fn run<T>(
        &self,
        command: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, InboxError> {
        let mut connection = self.connection().await?;
        let done = command(&mut connection).await;
        if done.is_err() {
            *self.connection.lock().await = None;
        }
        Ok(done?)
    }

    async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = connection.as_ref() {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let fresh = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(connection.insert(fresh).clone())
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A prefix in a pattern of Redis means itself.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if "*?[]\\^".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
