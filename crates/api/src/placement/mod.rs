//! Where resources are placed, why, and how work is shifted between deployments (rule 27).

mod words;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use solehold_core::{
    command::{Claim, Target},
    key::{LeaseId, Name, ResourceKey, SessionId},
    placement::{Band, MoveBudget, Needs, Placement, Policy, WEIGHT_MAX},
    time::Token,
};
use uuid::Uuid;

pub use self::words::{sentence, step_word, word};
use crate::{
    body::given,
    document::to_document,
    field::{Checked, Faults, reason},
    leases::LeaseBody,
    limits::{
        LABELS_MAX, PLACEMENT_BAND_PERCENT_MAX, PLACEMENT_MOVES_MAX, PLACEMENT_WINDOW_MS_MAX,
        REASON_BYTES_MAX, STATIC_RESOURCES_MAX, STATIC_RUNNERS_MAX,
    },
    time::Timestamp,
};

/// The attribute of a resource with its placement needs.
pub const ATTRIBUTE: &str = "placement";

/// How a resource is placed: the attribute `placement` of its declaration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlacementNeeds {
    /// Whether it is placed at all.
    pub placed: bool,
    /// How much of a runner's capacity it takes.
    pub weight: u32,
    /// Labels that its runner must have.
    pub labels: BTreeMap<String, String>,
    /// Capabilities that its runner must have.
    pub capabilities: BTreeSet<String>,
}

impl Default for PlacementNeeds {
    fn default() -> Self {
        Self { placed: true, weight: 1, labels: BTreeMap::new(), capabilities: BTreeSet::new() }
    }
}

impl PlacementNeeds {
    /// What the attributes of a resource say. What cannot be read counts as not said; it was checked when it was
    /// declared, but not every surface checks it.
    pub fn of(attributes: &BTreeMap<String, Value>) -> Self {
        let said = attributes.get(ATTRIBUTE).cloned();
        said.and_then(|said| serde_json::from_value(said).ok()).unwrap_or_default()
    }

    pub fn check(attributes: &BTreeMap<String, Value>, faults: &mut Faults) {
        let Some(said) = attributes.get(ATTRIBUTE) else { return };
        match serde_json::from_value::<Self>(said.clone()) {
            Err(error) => faults.note("attributes.placement", error.to_string()),
            Ok(needs) => {
                faults.within("attributes.placement.weight", needs.weight, 1, WEIGHT_MAX);
                faults.labels("attributes.placement.labels", &needs.labels);
                let count = needs.capabilities.len();
                let message = format!("has {count} entries; it may have {LABELS_MAX}");
                faults.check(count <= LABELS_MAX, "attributes.placement.capabilities", message);
            }
        }
    }

    pub fn needs(&self) -> Needs {
        Needs { labels: self.labels.clone(), capabilities: self.capabilities.clone() }
    }
}

/// One resource in the assignments of a runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlannedResource {
    pub kind: String,
    pub key: String,
    /// Why, in one word.
    pub reason: String,
    /// Its present holder, who hands it over; null if it is free. Only in `acquire`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The runner that it is handed over to: now, in `release`, or later, in `keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The session of that runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_session_id: Option<Uuid>,
}

impl PlannedResource {
    pub fn of(placement: &Placement) -> Self {
        Self { reason: word(&placement.reason).to_owned(), ..Self::unplanned(&placement.key) }
    }

    /// A resource that is not placed.
    pub fn unplanned(key: &ResourceKey) -> Self {
        Self {
            kind: key.kind.to_string(),
            key: key.key.to_string(),
            reason: "not_placed".to_owned(),
            holder: None,
            next: None,
            next_session_id: None,
        }
    }
}

/// The assignments of a runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Assignments {
    pub runner_id: String,
    /// The cameras that it holds. Not there for a runner that registered with `kinds` and takes no cameras.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_cameras: Option<Vec<String>>,
    /// Everything that it holds.
    pub leases: Vec<LeaseBody>,
    /// The revision at which this was read.
    pub revision: u64,
    /// The version of the algorithm that planned what follows.
    pub algorithm: u32,
    /// The revision that was planned from.
    pub plan_revision: u64,
    /// Changes with what is planned for this runner. Give it as `known` to wait for a change.
    pub version: String,
    /// Resources that it holds and should keep.
    pub keep: Vec<PlannedResource>,
    /// Resources that it should acquire, or get from their holders.
    pub acquire: Vec<PlannedResource>,
    /// Resources that it holds and should hand over.
    pub release: Vec<PlannedResource>,
}

/// Why a resource is where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    pub tenant: String,
    pub kind: String,
    pub key: String,
    /// Whether it is placed: declared, of a kind that is placed, and not excepted.
    pub placed: bool,
    /// Its present holder.
    pub holder: Option<String>,
    /// The runner that should hold it.
    pub target: Option<String>,
    /// The next step: `keep`, `acquire`, `move`, `moving`, `later` or `nothing`.
    pub step: String,
    /// Why, in one word.
    pub reason: String,
    /// The same in sentences.
    pub detail: String,
    /// What happens if its holder dies now.
    pub if_holder_dies: Option<IfHolderDies>,
    /// How often it failed, by the runners that reported it.
    pub failures: u32,
    /// Whether it is in quarantine.
    pub quarantined: bool,
    /// The last failure within the last hour; null if there was none.
    pub last_failure: Option<LastFailure>,
    /// The runners that it failed on within the last hour: others are preferred.
    pub penalties: Vec<Penalty>,
    /// For how long a runner that came back gets nothing for balance.
    pub settle_ms: u64,
    /// Runners that came back and get nothing for balance yet; the first few of them.
    pub settling: Vec<Settling>,
    /// The version of the algorithm.
    pub algorithm: u32,
    /// The revision that was planned from.
    pub plan_revision: u64,
}

/// A failure of a resource that a runner has reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LastFailure {
    pub runner_id: String,
    pub at: Timestamp,
    /// The failure, if the runner reported a reason.
    pub reason: Option<String>,
}

/// A runner that a resource failed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Penalty {
    pub runner_id: String,
    /// Milliseconds for which others are still preferred.
    pub for_ms: u64,
    /// Why the runner itself does not request the resource at present; null if it does.
    pub declines: Option<String>,
}

/// A runner that came back and gets nothing for balance yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Settling {
    pub runner_id: String,
    /// Milliseconds for which it gets nothing yet.
    pub for_ms: u64,
}

/// What happens to a resource if its holder dies now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IfHolderDies {
    /// The runner that would get it.
    pub target: Option<String>,
    /// Milliseconds until its lease would run out, at the earliest.
    pub after_ms: u64,
    /// Why, in one word.
    pub reason: String,
    pub detail: String,
}

/// Reports that the worker of a resource died, or that its runner gives it up. The runner must hold the resource, or
/// have held it until a minute ago, by the key of the caller. Everything that is shown as proof must match; without
/// any, the runner's name is the weaker promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportFailure {
    /// The runner that it failed on.
    pub runner_id: String,
    /// The session that it holds the resource with, or held it.
    pub session_id: Option<Uuid>,
    /// The lease that it holds the resource by, or held it.
    pub lease_id: Option<Uuid>,
    /// The token of that lease.
    pub token: Option<u64>,
    /// The failure, in words.
    pub reason: Option<String>,
}

impl ReportFailure {
    /// The runner, and its claim to a resource.
    pub fn terms(&self, key: &ResourceKey) -> Checked<(Name, Claim)> {
        let mut faults = Faults::default();
        let runner = faults.name("runner_id", &self.runner_id);
        faults.text("reason", self.reason.as_deref(), REASON_BYTES_MAX);
        let target = match self.lease_id.map(LeaseId) {
            Some(id) => Target::Lease { tenant: key.tenant.clone(), id },
            None => Target::Resource(key.clone()),
        };
        let token = self.token.map(Token);
        let session = self.session_id.map(SessionId);
        faults.finish(|| {
            let runner = runner?;
            Some((runner.clone(), Claim { target, token, session, holder: Some(runner) }))
        })
    }
}

/// Puts a resource into quarantine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutQuarantine {
    /// Why, in words.
    pub reason: Option<String>,
}

impl PutQuarantine {
    pub fn reason(&self) -> Checked<Option<String>> {
        reason(&self.reason)
    }
}

/// The failures of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failures {
    /// How often it failed within the last hour, and since it was last cleared.
    pub failures: u32,
    /// The runners that it failed on within the last hour, which are avoided.
    pub runners: Vec<String>,
    /// Whether it is in quarantine: placed nowhere until it is cleared.
    pub quarantined: bool,
    /// The last reason that was given.
    pub reason: Option<String>,
    /// The last failure within the last hour; null if there was none.
    #[serde(default)]
    pub last_failure: Option<LastFailure>,
}

/// The deployment groups of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeploymentList {
    pub deployments: Vec<Deployment>,
    /// The present shift; null if there is none.
    pub shift: Option<ShiftState>,
    /// How many moves are left to be made, for whatever reason.
    pub moves_left: usize,
}

/// The runners of one deployment group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Deployment {
    /// The group; null for runners that named none.
    pub deployment_group: Option<String>,
    /// Its versions, the newest first.
    pub versions: Vec<String>,
    pub runners: usize,
    /// Those that can be given work.
    pub active: usize,
    /// Their total capacity.
    pub capacity: u64,
    /// How many placed resources they hold.
    pub held: usize,
}

/// A shift between deployment groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShiftState {
    /// The group that work is shifted to.
    pub to: String,
    /// How much of the resources it should hold.
    pub percent: u32,
    /// Why it halted; null if it did not. Starting a shift again, even the same one, continues it.
    pub halted: Option<String>,
    /// Failures that the group's runners have reported since the shift began.
    pub failures: u32,
}

/// Shifts work to a deployment group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PostShift {
    /// The deployment group.
    pub to: String,
    /// How much of the resources it should hold, 0 to 100.
    pub percent: u32,
}

impl PostShift {
    pub fn terms(&self) -> Checked<ShiftState> {
        let mut faults = Faults::default();
        faults.name("to", &self.to);
        faults.within("percent", self.percent, 0, 100);
        faults.finish(|| {
            Some(ShiftState { to: self.to.clone(), percent: self.percent, halted: None, failures: 0 })
        })
    }
}

/// Changes settings of placement. What is left out stays as it is; null sets a setting back to its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutPlacement {
    /// How far a load may be from its fair share before something moves, in percent; 10 by default.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>))]
    pub band_percent: Option<Option<u32>>,
    /// How many moves may be under way at once; by default 32, or 1 % of the resources if that is more.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>))]
    pub moves_at_once: Option<Option<u32>>,
    /// For how long resources wait for a runner that has gone; 0 by default.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub return_window_ms: Option<Option<u64>>,
    /// For how long a runner that came back gets nothing for balance; 60000 by default.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub settle_ms: Option<Option<u64>>,
    /// Kinds that are not placed, besides zones and locks.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>))]
    pub unplaced_kinds: Option<Option<BTreeSet<String>>>,
    /// Static placement: for each runner all that it should hold, as `kind/key`.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, Vec<String>>>))]
    pub static_lists: Option<Option<BTreeMap<String, BTreeSet<String>>>>,
}

impl PutPlacement {
    pub fn over(&self, before: &PlacementSettings) -> PlacementSettings {
        let kinds = self.unplaced_kinds.clone();
        let lists = self.static_lists.clone();
        PlacementSettings {
            band_percent: self.band_percent.unwrap_or(before.band_percent),
            moves_at_once: self.moves_at_once.unwrap_or(before.moves_at_once),
            return_window_ms: self.return_window_ms.unwrap_or(before.return_window_ms),
            settle_ms: self.settle_ms.unwrap_or(before.settle_ms),
            unplaced_kinds: kinds.map_or_else(|| before.unplaced_kinds.clone(), Option::unwrap_or_default),
            static_lists: lists.map_or_else(|| before.static_lists.clone(), Option::unwrap_or_default),
        }
    }
}

/// The placement settings of a tenant. A null setting has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlacementSettings {
    /// How far a load may be from its fair share before something moves, in percent; 10 by default.
    pub band_percent: Option<u32>,
    /// How many moves may be under way at once; by default 32, or 1 % of the resources if that is more.
    pub moves_at_once: Option<u32>,
    /// For how long resources wait for a runner that has gone; 0 by default.
    pub return_window_ms: Option<u64>,
    /// For how long a runner that came back gets nothing for balance; 60000 by default.
    pub settle_ms: Option<u64>,
    /// Kinds that are not placed, besides zones and locks.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub unplaced_kinds: BTreeSet<String>,
    /// Static placement: for each runner all that it should hold, as `kind/key`.
    pub static_lists: BTreeMap<String, BTreeSet<String>>,
}

impl PlacementSettings {
    pub fn policy(&self) -> Checked<Policy> {
        let mut faults = Faults::default();
        faults.within("band_percent", self.band_percent.unwrap_or(1), 1, PLACEMENT_BAND_PERCENT_MAX);
        faults.within("moves_at_once", self.moves_at_once.unwrap_or(1), 1, PLACEMENT_MOVES_MAX);
        faults.within("return_window_ms", self.return_window_ms.unwrap_or(0), 0, PLACEMENT_WINDOW_MS_MAX);
        faults.within("settle_ms", self.settle_ms.unwrap_or(0), 0, PLACEMENT_WINDOW_MS_MAX);
        self.unplaced_kinds.iter().for_each(|kind| drop(faults.name("unplaced_kinds", kind)));
        let count = self.unplaced_kinds.len();
        faults.check(
            count <= LABELS_MAX,
            "unplaced_kinds",
            format!("has {count} entries; it may have {LABELS_MAX}"),
        );
        let static_lists = self.static_lists(&mut faults);
        faults.take(to_document("static_lists", self));
        let default = Policy::default();
        let policy = Policy {
            band: Band { percent: self.band_percent.unwrap_or(default.band.percent), ..default.band },
            move_budget: self
                .moves_at_once
                .map_or(default.move_budget, |floor| MoveBudget { floor, percent: 0 }),
            return_window_ms: self.return_window_ms.unwrap_or(default.return_window_ms),
            settle_ms: self.settle_ms.unwrap_or(default.settle_ms),
            static_lists,
            ..default
        };
        faults.finish(|| Some(policy))
    }

    fn static_lists(&self, faults: &mut Faults) -> BTreeMap<Name, BTreeSet<(Name, Name)>> {
        let runners = self.static_lists.len();
        let all: usize = self.static_lists.values().map(BTreeSet::len).sum();
        let most = |of: usize, most: usize| format!("has {of} entries; it may have {most}");
        faults.check(runners <= STATIC_RUNNERS_MAX, "static_lists", most(runners, STATIC_RUNNERS_MAX));
        faults.check(all <= STATIC_RESOURCES_MAX, "static_lists", most(all, STATIC_RESOURCES_MAX));
        let mut lists = BTreeMap::new();
        for (runner, list) in &self.static_lists {
            let mut resources = BTreeSet::new();
            for resource in list {
                let parts = resource
                    .split_once('/')
                    .and_then(|(kind, key)| Some((Name::new(kind).ok()?, Name::new(key).ok()?)));
                match parts {
                    Some(parts) => drop(resources.insert(parts)),
                    None => faults.note("static_lists", format!("names {resource:?}, which is not kind/key")),
                }
            }
            lists.extend(faults.name("static_lists", runner).map(|runner| (runner, resources)));
        }
        lists
    }
}
