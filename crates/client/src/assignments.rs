//! The assignments of a runner: the resources that the server wants it to keep, to acquire and to release.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Deserialize;
use solehold_api::{
    paths,
    runners::{PutRunnerStatus, RunnerStatus},
};
use solehold_core::key::SessionId;

use crate::{
    authority::{AuthorityError, RefusalReason, Reply, ResourceName},
    http::Http,
};

/// How long the server may wait until it plans something else for a runner.
const CHANGE_MAX: Duration = Duration::from_secs(10);

/// Why a runner's assignments cannot be read, or its status cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    #[error("the server is of an older version and assigns nothing")]
    Unsupported,
    #[error(transparent)]
    Refused(#[from] RefusalReason),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// It is free, or will be.
    Free,
    /// Another runner holds it, and hands it over.
    Moves,
}

/// What a runner should work on, and what it should stop working on. It keeps what is in neither: the server may not
/// have seen yet that it was granted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// To be had, or kept.
    pub wanted: BTreeMap<ResourceName, Want>,
    /// Those of them that the runner holds, as far as the server knows: to be kept, and not to be acquired once they
    /// are lost.
    pub held: BTreeSet<ResourceName>,
    /// To be released, without waiting for another runner.
    pub unwanted: Vec<ResourceName>,
    /// Held, and no other runner is planned to take it over.
    pub stays: Vec<ResourceName>,
    /// Changes with the answer.
    pub version: Option<String>,
}

/// The answer of `GET /runners/{id}/assignments`, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
struct Answer {
    keep: Option<Vec<Item>>,
    /// None from a server that cannot be asked to wait.
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    acquire: Vec<Item>,
    #[serde(default)]
    release: Vec<Item>,
}

#[derive(Debug, Deserialize)]
struct Item {
    kind: String,
    key: String,
    /// In `acquire`: its present holder, which hands it over.
    #[serde(default)]
    holder: Option<String>,
    /// In `release`: the runner that takes it over now; in `keep`: the one that takes it over later.
    #[serde(default)]
    next: Option<String>,
}

impl Item {
    fn resource(&self) -> Option<ResourceName> {
        ResourceName::new(&self.kind, &self.key).ok()
    }
}

impl Assigned {
    fn of(answer: &Answer) -> Self {
        let stays = answer.keep.iter().flatten().filter(|item| item.next.is_none());
        let stays = stays.filter_map(Item::resource).collect();
        let mut assigned = Self { stays, version: answer.version.clone(), ..Self::default() };
        let keep = answer.keep.iter().flatten().filter_map(|item| Some((item.resource()?, Want::Free)));
        let want = |item: &Item| if item.holder.is_some() { Want::Moves } else { Want::Free };
        let acquire = answer.acquire.iter().filter_map(|item| Some((item.resource()?, want(item))));
        assigned.held.extend(answer.keep.iter().flatten().filter_map(Item::resource));
        assigned.wanted.extend(keep.chain(acquire));
        for item in &answer.release {
            let Some(resource) = item.resource() else { continue };
            match item.next {
                Some(_) => {
                    assigned.held.insert(resource.clone());
                    assigned.wanted.insert(resource, Want::Free);
                }
                None => assigned.unwanted.push(resource),
            }
        }
        assigned
    }
}

impl Http {
    /// Reads a runner's assignments. With a version, the server may wait a while until they differ from it; without one
    /// it responds at once.
    pub async fn assignments(&self, runner: &str, known: Option<&str>) -> Result<Assigned, AssignmentError> {
        let path = paths::runner_assignments(runner);
        let reply: Reply<Answer> = match known {
            None => self.get(path).await,
            Some(known) => {
                let path = format!("{path}?wait_ms={}&known={known}", CHANGE_MAX.as_millis());
                self.get_waiting(path, CHANGE_MAX).await
            }
        };
        let answer = reply??;
        if answer.keep.is_some() { Ok(Assigned::of(&answer)) } else { Err(AssignmentError::Unsupported) }
    }

    /// Reports to the server that a runner is draining, so that it moves the runner's resources.
    pub async fn report_draining(
        &self,
        runner: &str,
        session: Option<SessionId>,
    ) -> Result<(), AssignmentError> {
        let session_id = session.map(|session| session.0);
        let body = PutRunnerStatus { status: RunnerStatus::Draining, session_id };
        Ok(self.put(paths::runner_status(runner), &body).await??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_is_prepared_for_and_kept_until_it_is_taken_over() {
        let answer = r#"{"keep": [{"kind": "camera", "key": "a", "token": 7}, {"kind": "camera", "key": "f", "next": "other"}],
            "acquire": [{"kind": "camera", "key": "b"}, {"kind": "camera", "key": "c", "holder": "other"}],
            "release": [{"kind": "camera", "key": "d", "next": "other"}, {"kind": "camera", "key": "e"}], "revision": 3}"#;
        let assigned = Assigned::of(&serde_json::from_str(answer).expect("an answer"));
        let camera = |key: &str| ResourceName::new("camera", key).expect("a name");
        let wanted =
            [("a", Want::Free), ("b", Want::Free), ("c", Want::Moves), ("d", Want::Free), ("f", Want::Free)];
        assert_eq!(assigned.wanted, wanted.map(|(key, want)| (camera(key), want)).into());
        assert_eq!(assigned.held, ["a", "d", "f"].map(camera).into());
        assert_eq!((assigned.unwanted, assigned.stays), (vec![camera("e")], vec![camera("a")]));
    }
}
