//! What a client was answered, and what must therefore be there after a power loss.
//!
//! Each resource is used by one task, which sends a request when the former one was answered. So what a resource has is
//! what the answered requests have made of it, or that and the one request that is under way.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use solehold_core::{key::ResourceKey, lease::Tenure};
use solehold_engine::resident::Image;

/// One line of the file in which the client writes down what happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerLine {
    /// A request is about to be sent.
    Sent { resource: String, request: Request },
    /// The request was answered; a grant with its token.
    Answered { resource: String, token: Option<u64> },
    /// A watcher was told of a change.
    Watched { epoch: u64, revision: u64 },
}

/// What is asked for. Times to live and sequences grow, so that each says which request it is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Declare,
    Acquire { ttl_ms: u64 },
    Renew { ttl_ms: u64 },
    Write { sequence: u64, bytes: usize },
    Release,
}

/// The document of a state write.
pub fn document(sequence: u64, bytes: usize) -> Value {
    json!({ "sequence": sequence, "text": "x".repeat(bytes) })
}

/// What a resource has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Kept {
    is_declared: bool,
    /// Token and time to live.
    lease: Option<(u64, u64)>,
    /// The token under which the state document was written, and the document.
    state: Option<(u64, Value)>,
}

impl Kept {
    fn of(image: &Image, key: &ResourceKey) -> Result<Self> {
        let Some(resource) = image.state.resource(key) else { return Ok(Self::default()) };
        let lease = resource.lease.as_ref().and_then(|lease| match lease.tenure {
            Tenure::Own { ttl_ms, .. } => Some((lease.token.0, ttl_ms)),
            Tenure::Session(_) => None,
        });
        let state = resource
            .state
            .as_ref()
            .map(|state| anyhow::Ok((state.token.0, serde_json::from_str(state.document.as_str())?)));
        Ok(Self { is_declared: resource.declared.is_some(), lease, state: state.transpose()? })
    }

    /// What it has once a request was done.
    fn after(&self, request: Request, token: Option<u64>) -> Self {
        let mut after = self.clone();
        match request {
            Request::Declare => after.is_declared = true,
            Request::Acquire { ttl_ms } => after.lease = token.map(|token| (token, ttl_ms)),
            Request::Renew { ttl_ms } => after.lease = self.lease.map(|(token, _)| (token, ttl_ms)),
            Request::Write { sequence, bytes } => {
                after.state = self.lease.map(|(token, _)| (token, document(sequence, bytes)));
            }
            Request::Release => after.lease = None,
        }
        after
    }
}

/// What was answered so far.
#[derive(Debug, Clone, Default)]
pub struct Promises {
    kept: BTreeMap<String, Kept>,
    /// Requests that were sent and not answered yet.
    under_way: BTreeMap<String, Request>,
    epoch: u64,
    revision: u64,
    token: u64,
    answers: usize,
}

impl Promises {
    pub fn take(&mut self, line: AnswerLine) -> Result<()> {
        match line {
            AnswerLine::Sent { resource, request } => {
                ensure!(self.under_way.insert(resource, request).is_none(), "two requests at a time");
            }
            AnswerLine::Answered { resource, token } => {
                let request = self.under_way.remove(&resource).context("an answer without a request")?;
                let kept = self.kept.entry(resource).or_default();
                *kept = kept.after(request, token);
                self.token = self.token.max(token.unwrap_or_default());
                self.answers += 1;
            }
            AnswerLine::Watched { epoch, revision } => {
                self.epoch = epoch;
                self.revision = self.revision.max(revision);
            }
        }
        Ok(())
    }

    /// How many requests were answered.
    pub fn answers(&self) -> usize {
        self.answers
    }

    /// The greatest token that was answered.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// What was answered and is not there.
    pub fn broken(&self, image: &Image, key: impl Fn(&str) -> Result<ResourceKey>) -> Result<Vec<String>> {
        let mut broken = Vec::new();
        let names: BTreeSet<&String> = self.kept.keys().chain(self.under_way.keys()).collect();
        for name in names {
            let kept = self.kept.get(name).cloned().unwrap_or_default();
            let found = Kept::of(image, &key(name)?)?;
            let token = found.lease.map(|(token, _)| token).filter(|token| *token > self.last_token(name));
            let may_be = self.under_way.get(name).map(|request| kept.after(*request, token));
            if found != kept && may_be.as_ref() != Some(&found) {
                broken.push(format!("{name} is {}, and was {}", found.shown(), kept.shown()));
            }
        }
        let cursor = image.cursor;
        if cursor.epoch < self.epoch || cursor.revision.0 < self.revision {
            let Self { epoch, revision, .. } = self;
            broken.push(format!("the history ends at {cursor:?}, and {epoch}.{revision} was told"));
        }
        Ok(broken)
    }

    /// The token that a resource was last known to have.
    fn last_token(&self, name: &str) -> u64 {
        self.kept.get(name).and_then(|kept| kept.lease).map_or(0, |(token, _)| token)
    }
}

impl Kept {
    fn shown(&self) -> String {
        let Self { is_declared, lease, state } = self;
        if self == &Self::default() {
            return "gone".to_owned();
        }
        let lease =
            lease.map_or("free".to_owned(), |(token, ttl_ms)| format!("held by {token} for {ttl_ms} ms"));
        let state = state.as_ref().map_or("no state".to_owned(), |(token, document)| {
            format!("state {} of {token}", document["sequence"])
        });
        format!("{lease} with {state}{}", if *is_declared { "" } else { ", undeclared" })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use solehold_core::{key::Name, ledger::Ledger, time::Revision};
    use solehold_engine::store::Cursor;

    use super::*;

    fn image(revision: u64) -> Image {
        let cursor = Cursor { epoch: 1, revision: Revision(revision) };
        let state = Ledger::default();
        Image { state, events: VecDeque::new(), cursor, floor: Revision(0), mark: None, set_back: None }
    }

    fn broken(lines: Vec<AnswerLine>, image: &Image) -> usize {
        let mut promises = Promises::default();
        for line in lines {
            promises.take(line).expect("a line in its order");
        }
        let name = |text: &str| Name::new(text).expect("a name");
        let key = |text: &str| Ok(ResourceKey::new(name("t"), name("k"), name(text)));
        promises.broken(image, key).expect("documents").len()
    }

    #[test]
    fn what_was_answered_must_be_there_and_what_was_sent_may() {
        let sent = || AnswerLine::Sent { resource: "a".to_owned(), request: Request::Declare };
        let answered = || AnswerLine::Answered { resource: "a".to_owned(), token: None };
        let watched = || AnswerLine::Watched { epoch: 1, revision: 7 };
        assert_eq!(broken(vec![sent()], &image(0)), 0);
        assert_eq!(broken(vec![sent(), answered()], &image(0)), 1);
        assert_eq!(broken(vec![watched()], &image(7)), 0);
        assert_eq!(broken(vec![watched()], &image(6)), 1);
        let mut promises = Promises::default();
        promises.take(answered()).expect_err("no request");
    }

    #[test]
    fn a_resource_has_what_the_requests_have_made_of_it() {
        let held = Kept::default().after(Request::Acquire { ttl_ms: 5 }, Some(3));
        let renewed = held.after(Request::Renew { ttl_ms: 6 }, None);
        let written = renewed.after(Request::Write { sequence: 2, bytes: 1 }, None);
        let released = written.after(Request::Release, None);
        assert_eq!((held.lease, renewed.lease, released.lease), (Some((3, 5)), Some((3, 6)), None));
        assert_eq!(released.state, Some((3, document(2, 1))));
    }
}
