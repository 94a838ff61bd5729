//! The runners of a snapshot, indexed by the needs of resources.

use std::collections::{BTreeMap, HashMap};

use super::{
    PlacementResource, Policy, Runner, Snapshot, Unplaceable, runner_set::RunnerSet, version::Rollouts,
};
use crate::{call::ResourceScope, key::Name};

/// The runners, by key; elsewhere a runner is its position here.
pub struct Fleet<'a> {
    pub runners: Vec<&'a Runner>,
    /// Those that can be given work.
    pub receivers: RunnerSet,
    pub rollouts: Rollouts,
    by_key: HashMap<(&'a str, &'a str), usize>,
    tenants: Index<&'a str>,
    kinds: Index<&'a str>,
    sites: Index<&'a str>,
    labels: Index<(&'a str, &'a str)>,
    capabilities: Index<&'a str>,
    groups: Index<&'a str>,
    /// Which runner a static list names for a kind and key.
    pins: HashMap<(&'a str, &'a str), &'a Name>,
    /// Runners with a static list.
    is_static: RunnerSet,
    /// Runners whose keys are limited, by what the keys may touch.
    limited: BTreeMap<Vec<(&'a str, &'a str)>, Limited<'a>>,
}

/// Runners whose keys may touch the same resources, and no others.
struct Limited<'a> {
    scopes: &'a [ResourceScope],
    runners: RunnerSet,
}

/// Sets of runners by something that they have.
struct Index<K> {
    of: BTreeMap<K, RunnerSet>,
    /// Those that stand for every `K`, because they named none.
    any: RunnerSet,
}

impl<K: Ord + Copy> Index<K> {
    /// Runners by what `has` says of each; those that have nothing stand for all, if `or_any`.
    fn of<'a, I>(runners: &[&'a Runner], or_any: bool, has: impl Fn(&'a Runner) -> I) -> Self
    where
        I: Iterator<Item = K>,
    {
        let count = runners.len();
        let mut of = BTreeMap::new();
        let mut any = RunnerSet::none(count);
        for (at, runner) in runners.iter().enumerate() {
            let mut nothing = true;
            for key in has(runner) {
                of.entry(key).or_insert_with(|| RunnerSet::none(count)).insert(at);
                nothing = false;
            }
            if nothing && or_any {
                any.insert(at);
            }
        }
        for set in of.values_mut() {
            any.iter().for_each(|runner| set.insert(runner));
        }
        Self { of, any }
    }

    fn get(&self, key: K) -> &RunnerSet {
        self.of.get(&key).unwrap_or(&self.any)
    }
}

impl<'a> Fleet<'a> {
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let mut runners: Vec<&Runner> = snapshot.runners.iter().collect();
        runners.sort_by(|a, b| a.key.cmp(&b.key));
        let by_key = |(at, runner): (usize, &&'a Runner)| ((tenant(runner), runner.key.name.as_str()), at);
        let policy: &'a Policy = &snapshot.policy;
        let pairs =
            |runner: &'a Runner| runner.labels.iter().map(|(label, value)| (label.as_str(), value.as_str()));
        Self {
            receivers: RunnerSet::of(runners.len(), |at| runners[at].receives()),
            rollouts: Rollouts::of(&runners),
            by_key: runners.iter().enumerate().map(by_key).collect(),
            tenants: Index::of(&runners, false, |runner| std::iter::once(tenant(runner))),
            kinds: Index::of(&runners, true, |runner| runner.kinds.iter().map(String::as_str)),
            sites: Index::of(&runners, true, |runner| runner.site.iter().map(Name::as_str)),
            labels: Index::of(&runners, false, pairs),
            capabilities: Index::of(&runners, false, |r| r.capabilities.iter().map(String::as_str)),
            groups: Index::of(&runners, false, |runner| runner.group.as_deref().into_iter()),
            pins: pins(policy),
            is_static: RunnerSet::of(runners.len(), |at| {
                policy.static_lists.contains_key(&runners[at].key.name)
            }),
            limited: limited(&runners),
            runners,
        }
    }

    /// The runners whose keys may not touch a resource (rule 26); none, if there are none.
    pub fn barred(&self, resource: &PlacementResource) -> Option<RunnerSet> {
        let is_barred = |of: &&Limited<'_>| !of.scopes.iter().any(|scope| scope.contains(&resource.key));
        let sets = self.limited.values().filter(is_barred).map(|of| &of.runners);
        sets.fold(None, |barred: Option<RunnerSet>, set| Some(barred.unwrap_or_default().or(set)))
    }

    /// The runner of that name in the tenant of a resource.
    pub fn find(&self, resource: &PlacementResource, name: &Name) -> Option<usize> {
        self.by_key.get(&(resource.key.tenant.as_str(), name.as_str())).copied()
    }

    /// The runner that a static list names for a resource.
    pub fn pin(&self, resource: &PlacementResource) -> Option<&'a Name> {
        self.pins.get(&(resource.key.kind.as_str(), resource.key.key.as_str())).copied()
    }

    pub fn group<'s>(&'s self, name: &'s str) -> &'s RunnerSet {
        self.groups.get(name)
    }

    /// The runners that meet what a resource asks for, whether or not they are there.
    pub fn fit(&self, resource: &PlacementResource) -> RunnerSet {
        if let Some(name) = self.pin(resource) {
            let pinned = self.find(resource, name);
            return self.unbarred(resource, RunnerSet::of(self.runners.len(), |at| Some(at) == pinned));
        }
        let able = self.demands(resource).fold(self.of_tenant(resource), |fit, (meet, _)| fit.and(meet));
        self.unbarred(resource, able)
    }

    /// Those of `runners` whose keys may touch a resource.
    fn unbarred(&self, resource: &PlacementResource, runners: RunnerSet) -> RunnerSet {
        match self.barred(resource) {
            Some(barred) => runners.without(&barred),
            None => runners,
        }
    }

    /// Why no runner meets what a resource asks for.
    pub fn why_unfit(&self, resource: &PlacementResource) -> Unplaceable {
        if let Some(name) = self.pin(resource) {
            let is_barred = |at| self.barred(resource).is_some_and(|barred| barred.has(at));
            return match self.find(resource, name) {
                Some(at) if is_barred(at) => Unplaceable::NoRunnerWithKey,
                _ => Unplaceable::StaticRunnerAway(name.clone()),
            };
        }
        let all = self.of_tenant(resource);
        if all.is_empty() {
            return Unplaceable::NoRunner;
        }
        if self.unbarred(resource, all.clone()).is_empty() {
            return Unplaceable::NoRunnerWithKey;
        }
        let unmet = self.demands(resource).find(|(meet, _)| all.clone().and(meet).is_empty());
        unmet.map_or(Unplaceable::NoRunnerWithAll, |(_, why)| why())
    }

    fn of_tenant(&self, resource: &PlacementResource) -> RunnerSet {
        self.tenants.get(resource.key.tenant.as_str()).clone().without(&self.is_static)
    }

    /// What a resource asks for: the runners that meet each demand, and what to say if there are none.
    fn demands<'s>(
        &'s self,
        resource: &'s PlacementResource,
    ) -> impl Iterator<Item = (&'s RunnerSet, Box<dyn Fn() -> Unplaceable + 's>)> {
        type Why<'s> = Box<dyn Fn() -> Unplaceable + 's>;
        let kind = (
            self.kinds.get(resource.key.kind.as_str()),
            Box::new(|| Unplaceable::NoRunnerForKind(resource.key.kind.clone())) as Why<'s>,
        );
        let site = resource.site.iter().map(|site| {
            let why: Why<'s> = Box::new(|| Unplaceable::NoRunnerAtSite(site.clone()));
            (self.sites.get(site.as_str()), why)
        });
        let labels = resource.needs.labels.iter().map(|(label, value)| {
            let why: Why<'s> =
                Box::new(|| Unplaceable::NoRunnerWithLabel { label: label.clone(), value: value.clone() });
            (self.labels.get((label.as_str(), value.as_str())), why)
        });
        let capabilities = resource.needs.capabilities.iter().map(|capability| {
            let why: Why<'s> = Box::new(|| Unplaceable::NoRunnerWithCapability(capability.clone()));
            (self.capabilities.get(capability.as_str()), why)
        });
        std::iter::once(kind).chain(site).chain(labels).chain(capabilities)
    }
}

fn tenant(runner: &Runner) -> &str {
    runner.key.tenant.as_str()
}

fn limited<'a>(runners: &[&'a Runner]) -> BTreeMap<Vec<(&'a str, &'a str)>, Limited<'a>> {
    let mut limited = BTreeMap::new();
    for (at, runner) in runners.iter().enumerate() {
        let Some(scopes) = runner.scopes.as_deref() else { continue };
        let by = scopes.iter().map(|scope| (scope.kind.as_str(), scope.key_prefix.as_str())).collect();
        let same =
            limited.entry(by).or_insert_with(|| Limited { scopes, runners: RunnerSet::none(runners.len()) });
        same.runners.insert(at);
    }
    limited
}

/// Of two runners that list the same resource the first by name has it.
fn pins(policy: &Policy) -> HashMap<(&str, &str), &Name> {
    let mut pins = HashMap::new();
    for (runner, list) in &policy.static_lists {
        for (kind, key) in list {
            pins.entry((kind.as_str(), key.as_str())).or_insert(runner);
        }
    }
    pins
}
