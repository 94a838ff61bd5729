//! What the server assigns to this runner: what it keeps, what it acquires, and what it releases.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Deserialize;
use solehold_api::{
    paths,
    runners::{PutRunnerStatus, RunnerStatus},
};
use solehold_client::{Http, Resource, SessionId};
use tokio::{sync::mpsc, task::AbortHandle};

use super::{Driver, leases::LeaseNews};
use crate::{
    config::Source,
    machine::{Event, Want},
};

/// How long the server may wait until it plans something else for this runner.
const CHANGE_MAX: Duration = Duration::from_secs(10);

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
    fn resource(&self) -> Option<Resource> {
        Resource::new(&self.kind, &self.key).ok()
    }
}

/// What a runner is to work on, and what it is not to work on any more. It keeps what is in neither: the server may not
/// have seen yet that it was granted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// To be had.
    pub wanted: BTreeMap<Resource, Want>,
    /// To be released, without waiting for anybody.
    pub unwanted: Vec<Resource>,
    /// Held, and nobody is planned to take it over.
    pub stays: Vec<Resource>,
    /// Changes with the answer.
    pub version: Option<String>,
}

impl Assigned {
    fn of(answer: &Answer) -> Self {
        let stays = answer.keep.iter().flatten().filter(|item| item.next.is_none());
        let stays = stays.filter_map(Item::resource).collect();
        let mut assigned = Self { stays, version: answer.version.clone(), ..Self::default() };
        let keep = answer.keep.iter().flatten().filter_map(|item| Some((item.resource()?, Want::Free)));
        let want = |item: &Item| if item.holder.is_some() { Want::Moves } else { Want::Free };
        let acquire = answer.acquire.iter().filter_map(|item| Some((item.resource()?, want(item))));
        assigned.wanted.extend(keep.chain(acquire));
        for item in &answer.release {
            let Some(resource) = item.resource() else { continue };
            match item.next {
                Some(_) => drop(assigned.wanted.insert(resource, Want::Free)),
                None => assigned.unwanted.push(resource),
            }
        }
        assigned
    }
}

impl Driver {
    /// What this agent is to work on.
    pub(super) fn follow_source(&mut self) {
        match &self.settings.source {
            Source::Static(resources) => {
                let wanted = resources.iter().map(|resource| (resource.clone(), Want::Free)).collect();
                self.tell(Event::Wanted(wanted));
            }
            Source::Assigned if self.asking.is_some() => {}
            Source::Assigned => {
                let (http, runner) = (self.http.clone(), self.settings.runner.runner_id.clone());
                let (known, news) = (self.known_version.clone(), self.lease_news.0.clone());
                self.asking = Some(ask(http, runner, known, self.is_drain_known, news));
            }
        }
    }

    /// Asks for an answer at once, in place of one that may take a while.
    pub(super) fn ask_anew(&mut self) {
        if let Some(asking) = self.asking.take() {
            asking.abort();
        }
        self.known_version = None;
        self.follow_source();
    }

    pub(super) fn take_assignments(&mut self, told: Result<Assigned, String>, as_draining: bool) {
        self.asking = None;
        let assigned = match told {
            Ok(assigned) => assigned,
            Err(why) => {
                if self.no_assignments.as_ref() != Some(&why) {
                    tracing::warn!(why, "the server does not say what to work on; what is held is kept");
                }
                self.no_assignments = Some(why);
                self.known_version = None;
                if self.machine.is_draining() {
                    self.hand_over_nothing();
                }
                return;
            }
        };
        self.no_assignments = None;
        let mut wanted: BTreeMap<Resource, Want> =
            self.leases.keys().map(|resource| (resource.clone(), Want::Free)).collect();
        wanted.extend(assigned.wanted);
        // While it drains, what nobody will take over is not waited for.
        let stays = assigned.stays.iter().filter(|_| as_draining && self.machine.is_draining());
        for resource in assigned.unwanted.iter().chain(stays) {
            wanted.remove(resource);
        }
        self.tell(Event::Wanted(wanted));
        // The next one at once, unless the server has not waited.
        if std::mem::replace(&mut self.known_version, assigned.version.clone()) != assigned.version {
            self.follow_source();
        }
    }
}

/// Asks the server for another answer than the one of version `known`, and tells what it said. Without a version it
/// answers at once. `as_draining` comes back with the answer: whether the server knew then that this runner drains.
pub fn ask(
    http: Arc<Http>,
    runner: String,
    known: Option<String>,
    as_draining: bool,
    news: mpsc::Sender<LeaseNews>,
) -> AbortHandle {
    let asking = tokio::spawn(async move {
        let path = paths::runner_assignments(&runner);
        let asked = match known {
            None => http.get::<Answer>(path).await,
            Some(known) => {
                let path = format!("{path}?wait_ms={}&known={known}", CHANGE_MAX.as_millis());
                http.get_waiting(path, CHANGE_MAX).await
            }
        };
        let told = match asked {
            Ok(Ok(answer)) if answer.keep.is_some() => Ok(Assigned::of(&answer)),
            Ok(Ok(_)) => Err("the server assigns nothing: it is of an older version".to_owned()),
            Ok(Err(refusal)) => Err(refusal.detail),
            Err(error) => Err(error.to_string()),
        };
        let _ = news.send(LeaseNews::Assigned { told, as_draining }).await;
    });
    asking.abort_handle()
}

/// Tells the server that the workers of this runner failed at a resource.
pub fn report_failure(http: Arc<Http>, runner: String, resource: Resource, why: String) {
    tokio::spawn(async move {
        let path = format!("{}/failures", paths::resource(resource.kind.as_str(), resource.key.as_str()));
        let body = serde_json::json!({ "runner_id": runner, "reason": why });
        match http.post(path, &body).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => tracing::debug!(%resource, %refusal, "the failure is not reported"),
            Err(error) => tracing::debug!(%resource, %error, "the failure is not reported"),
        }
    });
}

/// Tells the server that this runner is draining, so that it moves what the runner holds.
pub fn say_draining(
    http: Arc<Http>,
    runner: String,
    session: Option<SessionId>,
    news: mpsc::Sender<LeaseNews>,
) {
    tokio::spawn(async move {
        let session_id = session.map(|session| session.0);
        let body = PutRunnerStatus { status: RunnerStatus::Draining, session_id };
        let told = match http.put(paths::runner_status(&runner), &body).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(refusal)) => Err(refusal.detail),
            Err(error) => Err(error.to_string()),
        };
        let _ = news.send(LeaseNews::Draining(told)).await;
    });
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
        let camera = |key: &str| Resource::new("camera", key).expect("a name");
        let wanted =
            [("a", Want::Free), ("b", Want::Free), ("c", Want::Moves), ("d", Want::Free), ("f", Want::Free)];
        assert_eq!(assigned.wanted, wanted.map(|(key, want)| (camera(key), want)).into());
        assert_eq!((assigned.unwanted, assigned.stays), (vec![camera("e")], vec![camera("a")]));
    }
}
