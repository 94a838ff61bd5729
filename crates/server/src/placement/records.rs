//! What placement keeps in records: settings and the shift of each tenant, failures of resources, and which algorithm
//! each replica plans by.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use solehold_api::{
    limits::{FAILURE_WINDOW_MS, FAILURES_KEPT_MAX, FAILURES_MAX},
    placement::{Failures, LastFailure, Penalty, PlacementSettings, PutPlacement, ShiftState},
};
use solehold_core::{
    command::Command,
    key::{Name, ResourceKey},
    outcome::{Outcome, Refusal},
    placement::{ALGORITHM_VERSION, Policy, Shift},
    record::Record,
    time::StoreTime,
};
use solehold_engine::Engine;

use crate::{
    error::ApiError,
    state::{
        audit::Deed,
        operator::Operator,
        records::{self, collection, record},
    },
};

/// The collection of tenants' settings and shifts.
const PLACEMENT: &str = "placement";
/// The collection of resources' failures.
const FAILURES: &str = "failures";
/// The collection of the replicas that plan.
const PLANNERS: &str = "planner";
/// A shift halts when the runners of the new group have reported this many failures.
const SHIFT_FAILURES_MAX: u32 = 5;
/// A replica that plans announces itself this often, and counts as live for three times as long.
const SAID_EVERY_MS: u64 = 30_000;
/// The record of a replica that has not announced itself for this long is removed: the replica was stopped, and has
/// another name when it starts again.
const PLANNER_KEPT_MS: u64 = 10 * 60_000;
/// How many records of stopped replicas are removed at once.
const FORGOTTEN_MAX: usize = 64;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TenantRecord {
    pub settings: PlacementSettings,
    pub shift: Option<ShiftState>,
}

/// The failures of one resource. Its key is kept with them, because the name of the record is a hash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct FailureRecord {
    key: ResourceKey,
    /// The counts at the time of the last write.
    #[serde(flatten)]
    failures: Failures,
    /// The newest reports, oldest first. Earlier versions kept no times: what they counted no longer counts.
    #[serde(default)]
    reports: Vec<FailureReport>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct FailureReport {
    at: StoreTime,
    runner: String,
}

impl FailureRecord {
    fn new(key: ResourceKey) -> Self {
        Self { key, failures: Failures::default(), reports: Vec::new() }
    }

    /// What counts at `now`: reports within [`FAILURE_WINDOW_MS`], and a quarantine until it is cleared.
    pub fn counted_at(&self, now: StoreTime) -> Failures {
        let counts = |report: &&FailureReport| now.ms_after(report.at) < FAILURE_WINDOW_MS;
        let mut runners: Vec<String> = Vec::new();
        let mut count = 0;
        for report in self.reports.iter().filter(counts) {
            count += 1;
            if !runners.contains(&report.runner) {
                runners.push(report.runner.clone());
            }
        }
        let is_recent = |last: &&LastFailure| now.ms_after(last.at.into()) < FAILURE_WINDOW_MS;
        let last_failure = self.failures.last_failure.as_ref().filter(is_recent).cloned();
        Failures { failures: count, runners, last_failure, ..self.failures.clone() }
    }

    /// The runners that it failed on lately, and for how long others are preferred.
    fn penalties(&self, now: StoreTime) -> Vec<Penalty> {
        let newest: BTreeMap<&str, StoreTime> =
            self.reports.iter().map(|report| (report.runner.as_str(), report.at)).collect();
        let left = |at: StoreTime| FAILURE_WINDOW_MS.saturating_sub(now.ms_after(at));
        let penalty = |(runner, at): (&str, StoreTime)| Penalty {
            runner_id: runner.to_owned(),
            for_ms: left(at),
            declines: None,
        };
        newest.into_iter().map(penalty).filter(|penalty| penalty.for_ms > 0).collect()
    }

    fn because(&mut self, reason: Option<&str>) {
        self.failures.reason = reason.map(str::to_owned).or(self.failures.reason.take());
    }

    fn report(&mut self, runner: &Name, reason: Option<&str>, now: StoreTime) {
        self.reports.retain(|report| now.ms_after(report.at) < FAILURE_WINDOW_MS);
        let surplus = (self.reports.len() + 1).saturating_sub(FAILURES_KEPT_MAX);
        self.reports.drain(..surplus);
        self.reports.push(FailureReport { at: now, runner: runner.to_string() });
        let runner_id = runner.to_string();
        let reason = reason.map(str::to_owned);
        self.failures.last_failure = Some(LastFailure { runner_id, at: now.into(), reason });
        self.failures.quarantined |= self.reports.len() >= FAILURES_MAX;
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct PlannerRecord {
    algorithm: u32,
    at: StoreTime,
}

fn read<T: DeserializeOwned>(record: &Record) -> Option<T> {
    let read = serde_json::from_str(record.document.as_str());
    read.inspect_err(|error| {
        let Record { collection, id, .. } = record;
        tracing::error!(%collection, %id, %error, "cannot parse placement record; ignoring it");
    })
    .ok()
}

pub(crate) async fn tenant_record(engine: &Engine, tenant: &Name) -> Result<TenantRecord, ApiError> {
    let all = engine.records(&collection(PLACEMENT)).await?;
    Ok(all.iter().find(|record| record.id == *tenant).and_then(read).unwrap_or_default())
}

/// The record of a tenant after `how`, for one that has `found` now.
fn changed_tenant(
    tenant: &Name,
    found: Option<&Record>,
    how: impl Fn(TenantRecord) -> Result<TenantRecord, ApiError>,
) -> Result<(Record, TenantRecord), ApiError> {
    let changed = how(found.and_then(read).unwrap_or_default())?;
    Ok((record(PLACEMENT, tenant.clone(), &changed)?, changed))
}

/// Changes the settings of a tenant, and returns all of them.
pub(crate) async fn put_settings(
    by: &Operator,
    tenant: &Name,
    change: &PutPlacement,
) -> Result<PlacementSettings, ApiError> {
    let deed = Deed::new("placement", "placement").of(tenant).with_fields(change);
    let put = |record: TenantRecord| {
        let settings = change.over(&record.settings);
        settings.policy()?;
        Ok(TenantRecord { settings, ..record })
    };
    let changed = by.change(PLACEMENT, tenant, &deed, |found, _| changed_tenant(tenant, found, put));
    Ok(changed.await?.settings)
}

/// Begins a shift in place of the present one.
pub(crate) async fn shift(by: &Operator, tenant: &Name, shift: &ShiftState) -> Result<(), ApiError> {
    let target = format!("deployment/{}", shift.to);
    let deed = Deed::new("shift", target).of(tenant).with("percent", shift.percent);
    let begin = |record| Ok(TenantRecord { shift: Some(shift.clone()), ..record });
    by.change(PLACEMENT, tenant, &deed, |found, _| changed_tenant(tenant, found, begin)).await.map(drop)
}

#[derive(Debug)]
pub(super) struct Rules {
    pub policy: Policy,
    pub settings: PlacementSettings,
    pub failures: BTreeMap<ResourceKey, FailureRecord>,
}

impl Rules {
    pub async fn read(engine: &Engine, tenant: &Name) -> Result<Self, ApiError> {
        let TenantRecord { settings, shift } = tenant_record(engine, tenant).await?;
        let shift = shift.map(|s| Shift { to: s.to, percent: s.percent, halted: s.halted });
        // They were checked when they were written.
        let policy = Policy { shift, ..settings.policy().unwrap_or_default() };
        let failures = engine.records(&collection(FAILURES)).await?;
        let failures = failures.iter().filter_map(read::<FailureRecord>);
        let failures = failures.filter(|record| record.key.tenant == *tenant);
        Ok(Self { policy, settings, failures: failures.map(|record| (record.key.clone(), record)).collect() })
    }
}

/// The name of the record of a resource's failures: names can be longer together than one may be.
fn failure_id(key: &ResourceKey) -> Name {
    let parts = [&key.tenant, &key.kind, &key.key].map(Name::as_str);
    Name::new(blake3::hash(parts.join("\0").as_bytes()).to_hex()).expect("64 letters and digits")
}

/// The failures of a resource, and the runners that others are preferred to for them.
pub(crate) async fn failures_of(
    engine: &Engine,
    key: &ResourceKey,
) -> Result<(Failures, Vec<Penalty>), ApiError> {
    let collection = collection(FAILURES);
    let id = failure_id(key);
    let wanted = solehold_core::command::Footprint {
        records: vec![(collection.clone(), id.clone())],
        ..Default::default()
    };
    let loaded = engine.load(&wanted).await?;
    let found = loaded.state.record(&collection, &id).and_then(read::<FailureRecord>);
    let now = loaded.now;
    Ok(found.map(|record| (record.counted_at(now), record.penalties(now))).unwrap_or_default())
}

/// The failures of a resource after `how`, for one that has `found` now.
fn changed_failures(
    key: &ResourceKey,
    found: Option<&Record>,
    now: StoreTime,
    how: impl Fn(&mut FailureRecord),
) -> Result<(Record, Failures), ApiError> {
    let found = found.and_then(read::<FailureRecord>);
    let mut changed = found.unwrap_or_else(|| FailureRecord::new(key.clone()));
    how(&mut changed);
    changed.failures = changed.counted_at(now);
    Ok((record(FAILURES, failure_id(key), &changed)?, changed.failures))
}

/// Counts a failure of a resource on a runner of some group. At [`FAILURES_MAX`] within the window the resource is in
/// quarantine; enough failures in the group that is being shifted to halt the shift.
pub(crate) async fn fail(
    engine: &Engine,
    key: &ResourceKey,
    runner: &Name,
    group: Option<&str>,
    reason: Option<&str>,
) -> Result<Failures, ApiError> {
    let failures = records::change(engine, FAILURES, &failure_id(key), |found, now| {
        changed_failures(key, found, now, |record| {
            record.report(runner, reason, now);
            record.because(reason);
        })
    })
    .await?;
    let shift = tenant_record(engine, &key.tenant).await?.shift;
    if shift.is_some_and(|shift| Some(shift.to.as_str()) == group && shift.halted.is_none()) {
        let one_more = |record: TenantRecord| Ok(TenantRecord { shift: record.shift.map(count), ..record });
        let tenant = &key.tenant;
        records::change(engine, PLACEMENT, tenant, |found, _| changed_tenant(tenant, found, one_more))
            .await?;
    }
    Ok(failures)
}

fn count(mut shift: ShiftState) -> ShiftState {
    shift.failures = shift.failures.saturating_add(1);
    if shift.failures >= SHIFT_FAILURES_MAX && shift.halted.is_none() {
        let why = format!("runners of {} have reported {} failures since it began", shift.to, shift.failures);
        shift.halted = Some(why);
    }
    shift
}

pub(crate) async fn quarantine(
    by: &Operator,
    key: &ResourceKey,
    reason: Option<&str>,
) -> Result<Failures, ApiError> {
    let deed = Deed::to_resource("quarantine", key).with_some("reason", reason);
    by.change(FAILURES, &failure_id(key), &deed, |found, now| {
        changed_failures(key, found, now, |record| {
            record.failures.quarantined = true;
            record.because(reason);
        })
    })
    .await
}

/// Forgets the failures of a resource, and its quarantine.
pub(crate) async fn clear(by: &Operator, key: &ResourceKey) -> Result<(), ApiError> {
    let command = Command::RemoveRecord { collection: collection(FAILURES), id: failure_id(key) };
    removed(by.submit(command, &Deed::to_resource("clear_quarantine", key)).await?)
}

/// Whether a record that had to go is gone; it may not have been there.
fn removed(outcome: Outcome) -> Result<(), ApiError> {
    match outcome {
        Ok(_) | Err(Refusal::NoRecord { .. }) => Ok(()),
        Err(refusal) => Err(refusal.into()),
    }
}

/// Announces that this replica plans, unless it did so recently, and returns the lowest version of the algorithm among
/// the live replicas: two versions of the server must not make two plans.
pub(super) async fn ruling_algorithm(engine: &Engine, node: &str, now: StoreTime) -> Result<u32, ApiError> {
    let all = engine.records(&collection(PLANNERS)).await?;
    let is_live = |planner: &PlannerRecord| now.ms_after(planner.at) < 3 * SAID_EVERY_MS;
    let id = Name::new(node).unwrap_or_else(|_| collection("unnamed"));
    let own = all.iter().find(|record| record.id == id).and_then(read::<PlannerRecord>);
    let is_said =
        own.is_some_and(|own| own.algorithm == ALGORITHM_VERSION && now.ms_after(own.at) < SAID_EVERY_MS);
    if !is_said {
        let said = PlannerRecord { algorithm: ALGORITHM_VERSION, at: now };
        records::change(engine, PLANNERS, &id, |_, _| Ok((record(PLANNERS, id.clone(), &said)?, ()))).await?;
        forget_planners(engine, &all, now).await?;
    }
    let others = all.iter().filter_map(read::<PlannerRecord>).filter(is_live);
    Ok(others.map(|planner| planner.algorithm).chain([ALGORITHM_VERSION]).min().unwrap_or(ALGORITHM_VERSION))
}

/// Removes the records of replicas that were stopped long ago: each start of a server makes one.
async fn forget_planners(engine: &Engine, all: &[Record], now: StoreTime) -> Result<(), ApiError> {
    let is_over = |record: &&Record| {
        read::<PlannerRecord>(record).is_none_or(|planner| now.ms_after(planner.at) >= PLANNER_KEPT_MS)
    };
    for over in all.iter().filter(is_over).take(FORGOTTEN_MAX) {
        let Record { collection, id, .. } = over.clone();
        removed(engine.submit(Command::RemoveRecord { collection, id }).await?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use solehold_api::limits::REASON_BYTES_MAX;
    use solehold_core::limits::NAME_BYTES_MAX;
    use solehold_engine::{EngineOptions, clock::ManualClock, resident};

    use super::*;

    /// One record for each start of a server stayed for ever.
    #[tokio::test]
    async fn servers_that_were_stopped_leave_no_planner_records() {
        let ticks = Arc::new(ManualClock::default());
        let store = resident::memory(ticks.clone()).expect("a store in memory");
        let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
        for start in 0..100 {
            let now = records::store_time(&engine).await.expect("the time");
            ruling_algorithm(&engine, &format!("node-{start}"), now).await.expect("a version");
            ticks.advance_ms(60_000);
        }
        let left = engine.records(&collection(PLANNERS)).await.expect("records");
        let mut left: Vec<_> = left.iter().map(|record| record.id.to_string()).collect();
        left.sort();
        // Those of the last ten minutes, among them any that still runs.
        assert_eq!(left, (90..100).map(|start| format!("node-{start}")).collect::<Vec<_>>());
        engine.stop().await;
    }

    #[test]
    fn failures_of_an_earlier_version_count_no_longer_and_their_quarantine_stays() {
        let old = r#"{"key":{"tenant":"acme","kind":"job","key":"a"},"failures":7,"runners":["r1"],"quarantined":true,
            "reason":"exit 3"}"#;
        let read: FailureRecord = serde_json::from_str(old).expect("it is read");
        let counted = read.counted_at(StoreTime(1));
        assert_eq!(
            (counted.failures, counted.quarantined, counted.reason.as_deref()),
            (0, true, Some("exit 3"))
        );
    }

    #[test]
    fn no_more_failures_are_remembered_than_the_bound() {
        let name = |text: &str| Name::new(text).expect("a name");
        let mut record = FailureRecord::new(ResourceKey::new(name("acme"), name("job"), name("a")));
        // Each letter takes two bytes in JSON.
        let runner = |n: usize| name(&format!("{n:03}{}", "\"".repeat(NAME_BYTES_MAX - 3)));
        let count = 3 * FAILURES_KEPT_MAX;
        for n in 0..count {
            record.report(&runner(n), Some(&"\"".repeat(REASON_BYTES_MAX)), StoreTime(n as u64));
        }
        record.because(Some(&"\"".repeat(REASON_BYTES_MAX)));
        record.failures = record.counted_at(StoreTime(1_000));
        let counted = &record.failures;
        assert_eq!(
            (counted.failures as usize, counted.runners.len()),
            (FAILURES_KEPT_MAX, FAILURES_KEPT_MAX)
        );
        assert_eq!(counted.runners.last().map(String::as_str), Some(runner(count - 1).as_str()));
        records::record(FAILURES, name("a"), &record).expect("a document that can be stored");
    }
}
