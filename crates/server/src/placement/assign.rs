//! The assignments of one runner according to a plan.

use std::collections::BTreeSet;

use solehold_api::placement::{Assignments, PlannedResource};
use solehold_core::{
    key::{Name, ResourceKey},
    outcome::LeaseView,
    placement::Placement,
};

use super::planned::{Planned, is_now};

impl Planned {
    /// What a runner should keep, acquire and release. `leases` is what it holds, read after the plan was made; what
    /// the caller must not see is left out.
    pub fn assignments(
        &self,
        runner: &Name,
        leases: &[LeaseView],
        may_see: impl Fn(&ResourceKey) -> bool,
    ) -> Assignments {
        let mut answer = Assignments {
            runner_id: runner.to_string(),
            assigned_cameras: None,
            leases: Vec::new(),
            revision: self.revision,
            algorithm: self.plan.algorithm,
            plan_revision: self.revision,
            version: self.version(runner),
            keep: Vec::new(),
            acquire: Vec::new(),
            release: Vec::new(),
        };
        // What a former session holds is not renewed by the present one: it is acquired again.
        let is_present = |lease: &&LeaseView| {
            let session = lease.lease.tenure.session();
            session.is_none_or(|session| self.sessions.get(runner).is_none_or(|present| *present == session))
        };
        let held: BTreeSet<&ResourceKey> = leases.iter().filter(is_present).map(|lease| &lease.key).collect();
        let is_its = |placement: &&Placement| {
            let is_target = placement.target.as_ref() == Some(runner);
            (is_target && is_now(placement.step) && !held.contains(&placement.key)) && may_see(&placement.key)
        };
        for placement in self.plan.placements.iter().filter(is_its) {
            let holder = placement.holder.as_ref().map(ToString::to_string);
            answer.acquire.push(PlannedResource { holder, ..PlannedResource::of(placement) });
        }
        for key in held.into_iter().filter(|key| may_see(key)) {
            let placement = self.plan.placement(key);
            match placement.and_then(|placement| self.next(runner, placement)) {
                Some(released) => answer.release.push(released),
                None => answer.keep.push(kept(runner, key, placement)),
            }
        }
        answer
    }

    /// A resource that the runner should hand over.
    fn next(&self, runner: &Name, placement: &Placement) -> Option<PlannedResource> {
        let next = placement.target.as_ref().filter(|target| *target != runner)?;
        let is_leaving = placement.holder.as_ref() == Some(runner) && is_now(placement.step);
        let next_session_id = self.sessions.get(next).map(|session| session.0);
        let next = Some(next.to_string());
        is_leaving.then(|| PlannedResource { next, next_session_id, ..PlannedResource::of(placement) })
    }
}

/// What is held and not planned, or was acquired since, is kept, too. What is to move later says where to.
fn kept(runner: &Name, key: &ResourceKey, placement: Option<&Placement>) -> PlannedResource {
    let Some(placement) = placement else { return PlannedResource::unplanned(key) };
    let later = placement.target.as_ref().filter(|target| *target != runner);
    PlannedResource { next: later.map(ToString::to_string), ..PlannedResource::of(placement) }
}
