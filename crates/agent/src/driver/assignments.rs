//! The assignments of this runner: the resources that the server wants it to keep, to acquire and to release.

use std::{collections::BTreeSet, sync::Arc};

use solehold_api::paths;
use solehold_client::{
    Http, ResourceName, SessionId,
    assignments::{Assigned, AssignmentError, Want},
};
use tokio::{sync::mpsc, task::AbortHandle};

use super::{Driver, leases::LeaseNews};
use crate::{config::Source, machine::Input};

impl Driver {
    /// What this agent is to work on.
    pub(super) fn follow_source(&mut self) {
        match &self.settings.source {
            Source::Static(resources) => {
                let wanted = resources.iter().map(|resource| (resource.clone(), Want::Free)).collect();
                self.tell(Input::Wanted(wanted));
            }
            Source::Assigned if self.asking.is_some() => {}
            Source::Assigned => {
                let http = self.http.clone();
                let runner = self.settings.runner.runner_id.clone();
                let known = self.known_version.clone();
                let news = self.requests.news.clone();
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

    pub(super) fn take_assignments(&mut self, told: Result<Assigned, AssignmentError>, as_draining: bool) {
        self.asking = None;
        let assigned = match told {
            Ok(assigned) => assigned,
            Err(why) => {
                if self.no_assignments.as_ref() != Some(&why) {
                    tracing::warn!(%why, "cannot read this runner's assignments; keeping the current leases");
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
        let Assigned { wanted, held: mut keep, unwanted, stays, version } = assigned;
        // While draining, do not wait for resources that no other runner will take over.
        let stays = stays.into_iter().filter(|_| as_draining && self.machine.is_draining());
        let release: BTreeSet<ResourceName> = unwanted.into_iter().chain(stays).collect();
        keep.retain(|resource| !release.contains(resource));
        let is_got = |resource: &ResourceName| !keep.contains(resource) && !release.contains(resource);
        let acquire = wanted.into_iter().filter(|(resource, _)| is_got(resource)).collect();
        self.tell(Input::Assigned { acquire, keep, release });
        // The next one at once, unless the server has not waited.
        if std::mem::replace(&mut self.known_version, version.clone()) != version {
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
        let told = http.assignments(&runner, known.as_deref()).await;
        let _ = news.send(LeaseNews::Assigned { told, as_draining }).await;
    });
    asking.abort_handle()
}

/// Reports to the server that the workers of this runner failed at a resource that the session holds, or has just
/// released.
pub fn report_failure(
    http: Arc<Http>,
    runner: String,
    session: Option<SessionId>,
    resource: ResourceName,
    why: String,
) {
    tokio::spawn(async move {
        let path = format!("{}/failures", paths::resource(resource.kind.as_str(), resource.key.as_str()));
        let session = session.map(|id| id.to_string());
        let body = serde_json::json!({ "runner_id": runner, "session_id": session, "reason": why });
        match http.post(path, &body).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => {
                tracing::debug!(%resource, %refusal, "cannot report a failed resource to the server")
            }
            Err(error) => tracing::debug!(%resource, %error, "cannot report a failed resource to the server"),
        }
    });
}

/// Reports to the server that this runner is draining, so that it moves the runner's resources.
pub fn report_draining(http: Arc<Http>, runner: String, session: SessionId, news: mpsc::Sender<LeaseNews>) {
    tokio::spawn(async move {
        let told = http.report_draining(&runner, Some(session)).await;
        let _ = news.send(LeaseNews::Draining(told)).await;
    });
}
