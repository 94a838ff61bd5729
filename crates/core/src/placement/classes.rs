//! Resources that the same runners may hold form a class.

use std::collections::{BTreeSet, HashMap};

use super::{Needs, PlacementResource, Policy, fleet::Fleet, runner_set::RunnerSet};
use crate::key::Name;

/// What the resources of a class have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Class {
    /// The runners that meet the demands, whether or not they are there.
    pub fit: RunnerSet,
    /// Those of them that can be given work.
    pub allowed: RunnerSet,
    /// Those of them that should have it, by the shift between groups and by where it failed before. Empty only if
    /// nobody is allowed.
    pub preferred: RunnerSet,
    /// The weight of each resource.
    pub weight: u64,
}

/// Everything that a resource's class depends on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Signature<'a> {
    tenant: &'a str,
    kind: &'a str,
    site: Option<&'a str>,
    needs: &'a Needs,
    weight: u64,
    side: Option<bool>,
    pin: Option<&'a Name>,
    avoid: &'a BTreeSet<Name>,
    barred: Option<RunnerSet>,
}

#[derive(Default)]
pub struct Classes<'a> {
    pub all: Vec<Class>,
    by_class: HashMap<Class, usize>,
    by_signature: HashMap<Signature<'a>, usize>,
    /// The last resource and its class: neighbours mostly ask for the same.
    last: Option<(Signature<'a>, usize)>,
}

impl<'a> Classes<'a> {
    pub fn of(&mut self, fleet: &Fleet<'a>, policy: &Policy, resource: &'a PlacementResource) -> usize {
        let signature = Signature {
            tenant: resource.key.tenant.as_str(),
            kind: resource.key.kind.as_str(),
            site: resource.site.as_ref().map(Name::as_str),
            needs: &resource.needs,
            weight: weight(resource),
            side: side(fleet, policy, resource),
            pin: fleet.pin(resource),
            avoid: &resource.avoid,
            barred: fleet.barred(resource),
        };
        if let Some((_, class)) = self.last.as_ref().filter(|(last, _)| *last == signature) {
            return *class;
        }
        let at = self.find(fleet, policy, resource, &signature);
        self.last = Some((signature, at));
        at
    }

    fn find(
        &mut self,
        fleet: &Fleet<'a>,
        policy: &Policy,
        resource: &'a PlacementResource,
        signature: &Signature<'a>,
    ) -> usize {
        if let Some(class) = self.by_signature.get(signature) {
            return *class;
        }
        let class = class(fleet, policy, resource, signature.side);
        let next = self.all.len();
        let at = *self.by_class.entry(class).or_insert_with_key(|class| {
            self.all.push(class.clone());
            next
        });
        self.by_signature.insert(signature.clone(), at);
        at
    }
}

pub fn weight(resource: &PlacementResource) -> u64 {
    resource.weight.clamp(1, super::WEIGHT_MAX).into()
}

/// Whether a shift wants a resource in the group that is shifted to, or outside of it. A shift that has halted leaves
/// everything on the side where it is, and keeps unowned work out of the group.
fn side(fleet: &Fleet<'_>, policy: &Policy, resource: &PlacementResource) -> Option<bool> {
    let shift = policy.shift.as_ref()?;
    let holder = resource.holder.as_ref().filter(|_| resource.held);
    let is_there = |holder| fleet.find(resource, holder).is_some_and(|at| fleet.group(&shift.to).has(at));
    Some(match shift.halted {
        None => shift.takes(&resource.key),
        Some(_) => holder.is_some_and(is_there),
    })
}

fn class(fleet: &Fleet<'_>, policy: &Policy, resource: &PlacementResource, side: Option<bool>) -> Class {
    let fit = fleet.fit(resource);
    let allowed = fit.clone().and(&fleet.receivers);
    let group = policy.shift.as_ref().map(|shift| fleet.group(&shift.to));
    let on_side = match (group, side) {
        (Some(group), Some(true)) => allowed.clone().and(group),
        (Some(group), Some(false)) => allowed.clone().without(group),
        _ => allowed.clone(),
    };
    let on_side = on_side.or_if_empty(&allowed);
    let failed = RunnerSet::of(fleet.runners.len(), |at| {
        !resource.avoid.is_empty() && resource.avoid.contains(&fleet.runners[at].key.name)
    });
    let elsewhere = on_side.clone().without(&failed).or_if_empty(&allowed.clone().without(&failed));
    Class { preferred: elsewhere.or_if_empty(&on_side), fit, allowed, weight: weight(resource) }
}
