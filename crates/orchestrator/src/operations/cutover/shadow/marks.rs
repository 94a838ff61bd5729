//! The former system's marks: whether there is one for a command, and whether it was set again since it was last seen.

use std::collections::{HashMap, VecDeque};

use redis::aio::MultiplexedConnection;

use super::{super::KeyTemplate, ShadowOrders, decide::Decided};
use crate::{
    error::RunError,
    model::command::CommandKind,
    operations::cutover::{PAGE, unreachable},
};

/// How many marks are remembered, to notice that one is set again.
const REMEMBERED_MAX: usize = 100_000;
/// A mark whose end was moved by less was not set again: the end is computed from the time that is left.
const SET_AGAIN_MS: i64 = 20;

/// What the former system's marks tell about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TheirMark {
    /// The message names no job, so that no mark can be looked for.
    Unnamed,
    /// The keys have no form for this command, and its job's mark was not seen to be set again.
    NoForm,
    Absent,
    /// There is none, and the message is older than marks are kept.
    MayHaveExpired,
    Present,
    /// It was set after it was first seen.
    SetAgain,
}

/// The command that a mark was first seen for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marked {
    pub partition: i32,
    pub offset: i64,
    pub key: String,
    pub what: String,
    /// When the mark ends, by the clock of Redis. None if it never does.
    ends_ms: Option<i64>,
}

pub(super) struct TheirMarks {
    redis: MultiplexedConnection,
    template: KeyTemplate,
    ttl_ms: i64,
    remembered: HashMap<String, Marked>,
    /// The keys that are remembered, oldest first.
    order: VecDeque<String>,
}

/// A mark as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    ends_ms: Option<i64>,
}

impl TheirMarks {
    pub fn new(redis: MultiplexedConnection, template: KeyTemplate, orders: &ShadowOrders) -> Self {
        let ttl_ms = i64::try_from(orders.ttl.as_millis()).unwrap_or(i64::MAX);
        Self { redis, template, ttl_ms, remembered: HashMap::new(), order: VecDeque::new() }
    }

    /// Looks for the marks of commands that the former system has passed.
    pub async fn look(&mut self, decided: &[Decided]) -> Result<Vec<TheirMark>, RunError> {
        let keys: Vec<Option<(String, bool)>> = decided.iter().map(|decided| self.key(decided)).collect();
        let named: Vec<&str> = keys.iter().flatten().map(|(key, _)| key.as_str()).collect();
        let (now_ms, found) = self.find(&named).await?;
        let mut found = found.into_iter();
        let mut marks = Vec::with_capacity(decided.len());
        for (decided, key) in decided.iter().zip(keys) {
            let mark = match key {
                None if decided.job.is_some() => TheirMark::NoForm,
                None => TheirMark::Unnamed,
                Some((key, is_own)) => {
                    let found = found.next().flatten();
                    let is_old = decided.timestamp_ms.is_some_and(|written| now_ms - written >= self.ttl_ms);
                    self.judge(decided, key, is_own, found, is_old)
                }
            };
            marks.push(mark);
        }
        Ok(marks)
    }

    /// The key of a command, or else that of its job, and which of them it is.
    fn key(&self, decided: &Decided) -> Option<(String, bool)> {
        let job = decided.job.as_deref()?;
        let of_job = || self.template.key(CommandKind::Create, job, None);
        let Some(command) = &decided.command else { return of_job().map(|key| (key, true)) };
        let own = self.template.key(command.kind, job, command.command_id.as_deref());
        own.map(|key| (key, true)).or_else(|| of_job().map(|key| (key, false)))
    }

    fn judge(
        &mut self,
        decided: &Decided,
        key: String,
        is_own: bool,
        found: Option<Found>,
        is_old: bool,
    ) -> TheirMark {
        let Some(found) = found else {
            return match (is_own, is_old) {
                (false, _) => TheirMark::NoForm,
                (true, true) => TheirMark::MayHaveExpired,
                (true, false) => TheirMark::Absent,
            };
        };
        let is_again = match self.remembered.get_mut(&key) {
            Some(marked) => {
                let is_again = is_later(found.ends_ms, marked.ends_ms);
                marked.ends_ms = found.ends_ms;
                is_again
            }
            None => {
                self.remember(key, decided, found);
                false
            }
        };
        match (is_again, is_own) {
            (true, _) => TheirMark::SetAgain,
            (false, true) => TheirMark::Present,
            (false, false) => TheirMark::NoForm,
        }
    }

    fn remember(&mut self, key: String, decided: &Decided, found: Found) {
        if self.order.len() >= REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.remembered.remove(&oldest);
        }
        let marked = Marked {
            partition: decided.partition,
            offset: decided.offset,
            key: decided.key.clone(),
            what: decided.what(),
            ends_ms: found.ends_ms,
        };
        self.order.push_back(key.clone());
        self.remembered.insert(key, marked);
    }

    /// The commands whose marks were set again since they were last looked at.
    pub async fn set_again_since(&mut self) -> Result<Vec<Marked>, RunError> {
        let keys: Vec<String> = self.order.iter().cloned().collect();
        let mut again = Vec::new();
        for some in keys.chunks(PAGE) {
            let some: Vec<&str> = some.iter().map(String::as_str).collect();
            let (_, found) = self.find(&some).await?;
            for (key, found) in some.iter().zip(found) {
                let Some(marked) = self.remembered.get(*key) else { continue };
                if found.is_some_and(|found| is_later(found.ends_ms, marked.ends_ms)) {
                    again.push(marked.clone());
                }
            }
        }
        Ok(again)
    }

    /// The time of Redis, and the marks at these keys, all at one moment.
    async fn find(&mut self, keys: &[&str]) -> Result<(i64, Vec<Option<Found>>), RunError> {
        let mut look = redis::pipe();
        look.atomic().cmd("TIME");
        for key in keys {
            look.cmd("PTTL").arg(key);
        }
        let values: Vec<redis::Value> = look.query_async(&mut self.redis).await.map_err(unreachable)?;
        let mut values = values.into_iter();
        let time: Option<(i64, i64)> = values.next().and_then(|time| redis::from_redis_value(time).ok());
        let (seconds, micros) =
            time.ok_or_else(|| RunError::Failed("Redis: no answer to TIME".to_owned()))?;
        let now_ms = seconds * 1_000 + micros / 1_000;
        let found = values.map(|left| {
            let left = redis::from_redis_value::<i64>(left).unwrap_or(-2);
            match left {
                // There is no such key.
                -2 => None,
                // It never expires.
                -1 => Some(Found { ends_ms: None }),
                left => Some(Found { ends_ms: Some(now_ms + left) }),
            }
        });
        Ok((now_ms, found.collect()))
    }
}

fn is_later(now: Option<i64>, before: Option<i64>) -> bool {
    now.zip(before).is_some_and(|(now, before)| now > before + SET_AGAIN_MS)
}
