//! Between the wire's types and ours.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use solehold_api::{
    batch::{AcquireItem, ReleaseItem, RenewItem},
    hand_over::{HandOver, OfferedLease},
    problem::Problem,
    resources::{self, AcquireResource},
    sessions,
    terms::FinalState,
    watch::Cursor,
};
use solehold_core::{
    key::{LeaseId, Name, SessionId},
    time::{Revision, Token},
};
use uuid::Uuid;

use super::{pool::Failure, servers::judged};
use crate::authority::{
    self, AcquireRequest, AuthorityError, Beat, Completion, GrantedLease, HeldLease, Metrics, RefusalReason,
    Reply, ResourceName, StateDocument, StateWrite,
};

pub fn metrics(metrics: &Metrics) -> BTreeMap<String, Value> {
    metrics.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

pub fn acquire(ask: &AcquireRequest) -> AcquireItem {
    AcquireItem {
        kind: ask.resource.kind.to_string(),
        key: ask.resource.key.to_string(),
        holder: ask.holder.to_string(),
        session_id: Some(ask.session.0),
        request_id: Some(ask.request.to_string()),
        slots: ask.slots.map(u64::from),
        attributes: ask.attributes.clone().into_iter().collect(),
        ..Default::default()
    }
}

pub fn waiting(ask: &AcquireRequest, wait: Duration) -> AcquireResource {
    AcquireResource {
        holder: ask.holder.to_string(),
        session_id: Some(ask.session.0),
        request_id: Some(ask.request.to_string()),
        wait_ms: Some((wait.as_millis() as u64).into()),
        slots: ask.slots.map(u64::from),
        attributes: ask.attributes.clone().into_iter().collect(),
        ..Default::default()
    }
}

pub fn renew(held: &HeldLease) -> RenewItem {
    RenewItem {
        kind: Some(held.resource.kind.to_string()),
        key: Some(held.resource.key.to_string()),
        token: Some(held.token.0),
        ..Default::default()
    }
}

pub fn release(held: &HeldLease, state: Option<StateWrite>) -> ReleaseItem {
    ReleaseItem {
        kind: Some(held.resource.kind.to_string()),
        key: Some(held.resource.key.to_string()),
        token: Some(held.token.0),
        state: state.map(|write| FinalState { sequence: write.sequence, document: write.document }),
        ..Default::default()
    }
}

/// A [`resources::GrantBody`], as far as a client goes by it. What it passes over is neither kept nor looked at, which
/// takes a fraction of the time.
#[derive(Debug, Deserialize)]
pub struct BriefGrant {
    lease_id: Uuid,
    token: u64,
    slot: Option<u32>,
    ttl_ms: u64,
    slack_ms: u64,
    epoch: Option<u64>,
    state: Option<resources::StateDocument>,
    confirm_within_ms: Option<u64>,
}

/// [`solehold_api::batch::BatchResults`], with such grants.
#[derive(Debug, Deserialize)]
pub struct BatchResults {
    pub results: Vec<BatchItem>,
}

/// [`solehold_api::batch::BatchItem`], with such a grant.
#[derive(Debug, Deserialize)]
pub struct BatchItem {
    status: ItemStatus,
    lease: Option<BriefGrant>,
    problem: Option<Box<Problem>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ItemStatus {
    Granted,
    Renewed,
    Released,
    Refused,
    Failed,
}

pub fn outcome(resource: ResourceName, item: BatchItem) -> Reply<Completion> {
    match item {
        BatchItem { status: ItemStatus::Granted | ItemStatus::Renewed, lease: Some(lease), .. } => {
            Ok(Ok(Completion::Held(granted(resource, lease))))
        }
        BatchItem { status: ItemStatus::Released, .. } => Ok(Ok(Completion::Released)),
        BatchItem { status: ItemStatus::Refused, problem: Some(problem), .. } => {
            Ok(Err(RefusalReason::from(*problem)))
        }
        BatchItem { status: ItemStatus::Failed, problem: Some(problem), .. } => {
            match judged(Failure::Problem(problem)) {
                // It failed without a code that says so: the outcome is unknown.
                Ok(Err(refusal)) => Err(AuthorityError::Unknown(refusal.detail)),
                other => other,
            }
        }
        BatchItem { status, .. } => {
            let odd = format!("the server answered {status:?} and gave neither a lease nor a problem");
            Err(AuthorityError::Unknown(odd))
        }
    }
}

pub fn state(state: resources::StateDocument) -> StateDocument {
    StateDocument {
        document: state.document.unwrap_or_default(),
        token: Token(state.token),
        sequence: state.sequence,
    }
}

pub fn granted(resource: ResourceName, grant: BriefGrant) -> GrantedLease {
    GrantedLease {
        held: HeldLease {
            resource,
            lease: LeaseId(grant.lease_id),
            token: Token(grant.token),
            slot: grant.slot,
        },
        ttl_left: Duration::from_millis(grant.ttl_ms),
        slack: Duration::from_millis(grant.slack_ms),
        epoch: grant.epoch,
        state: grant.state.map(state),
        confirm_within: grant.confirm_within_ms.map(Duration::from_millis),
    }
}

/// The answer when a session was opened or renewed. One without a set says that it is the one that was named, and must
/// name it as well: nothing else is taken for it.
pub fn beat(session: sessions::SessionBody, known: Option<&Beat>) -> Result<Beat, AuthorityError> {
    let asked = |lease: &resources::HeldLease| {
        let HandOver { to, ttl_ms, .. } = lease.hand_over.clone()?;
        let asked = authority::HandOver { to, within: Duration::from_millis(ttl_ms) };
        Some((LeaseId(lease.lease_id), asked))
    };
    let leases = session.leases.as_deref().unwrap_or_default();
    let beat = Beat {
        hand_overs: leases.iter().filter_map(asked).collect(),
        leases: leases.iter().filter_map(held).collect(),
        pending: session.pending.into_iter().filter_map(pending).collect(),
        session: SessionId(session.session_id),
        ttl_left: Duration::from_millis(session.ttl_ms),
        slack: Duration::from_millis(session.slack_ms),
        epoch: session.epoch,
        revision: Revision(session.revision),
        sealed_cursor: session.sealed_cursor,
        set_cursor: session.set_cursor,
    };
    if session.leases.is_some() {
        return Ok(beat);
    }
    let told = beat.epoch.map(|epoch| Cursor { epoch, revision: beat.revision.0 });
    let is_named =
        |known: &&Beat| told.is_some() && known.set_cursor == told && known.session == beat.session;
    let Some(known) = known.filter(is_named) else {
        let why = "the server answered without the session's leases, and not for the set that was named";
        return Err(AuthorityError::Unknown(why.to_owned()));
    };
    Ok(beat.with_set_of(known))
}

/// A lease that the session will have.
fn pending(offered: OfferedLease) -> Option<(LeaseId, ResourceName)> {
    let resource = ResourceName { kind: Name::new(offered.kind).ok()?, key: Name::new(offered.key).ok()? };
    Some((LeaseId(offered.lease_id), resource))
}

/// A lease of a set. One under a name that cannot be is none that this client could hold.
fn held(lease: &resources::HeldLease) -> Option<HeldLease> {
    let resource = ResourceName { kind: Name::new(&lease.kind).ok()?, key: Name::new(&lease.key).ok()? };
    let slot = lease.slot;
    Some(HeldLease { resource, lease: LeaseId(lease.lease_id), token: Token(lease.token), slot })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use solehold_api::{batch, problem::ErrorCode};

    use super::*;

    /// The answer to a heartbeat without a set, with some fields changed.
    fn answer(changed: Value) -> sessions::SessionBody {
        let at = "2026-11-17T12:00:00Z";
        let mut fields = json!({
            "session_id": "0190aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", "tenant": "t", "holder": "h",
            "standing": "current", "ttl_ms": 9_000, "full_ttl_ms": 10_000, "slack_ms": 0,
            "opened_at": at, "renewed_at": at, "expires_at": at,
            "epoch": 2, "revision": 7, "set_cursor": "2.7",
        });
        let Value::Object(changed) = changed else { panic!("{changed}") };
        fields.as_object_mut().expect("fields").extend(changed);
        serde_json::from_value(fields).expect("a session")
    }

    /// An answer with a set, as it is known afterwards.
    fn known(changed: Value) -> Beat {
        let mut body = answer(changed);
        body.leases = Some(Vec::new());
        let beat = beat(body, None).expect("it has a set");
        let resource = ResourceName::new("job", "a").expect("a name");
        let lease = LeaseId(uuid::Uuid::from_u128(1));
        let held = HeldLease { resource, lease, token: Token(7), slot: None };
        Beat { leases: [held].into(), ..beat }
    }

    #[test]
    fn of_the_results_of_a_batch_a_client_reads_what_the_server_wrote() {
        let at = "2026-11-17T12:00:00.000Z";
        let granted = |status: &str, more: Value| {
            let mut lease = json!({
                "lease_id": "0190aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", "tenant": "t", "kind": "job", "key": "a",
                "holder": "h", "token": 7, "session_id": null, "acquired_at": at, "renewed_at": null,
                "expires_at": at, "ttl_ms": 9_000, "status": "active", "attributes": {"n": {"m": []}}, "stats": {},
                "state": null, "revision": 8, "repeated": false, "slack_ms": 500,
            });
            let Value::Object(more) = more else { panic!("{more}") };
            lease.as_object_mut().expect("fields").extend(more);
            json!({"status": status, "lease": lease})
        };
        let state = json!({"sequence": 3, "token": 6, "written_at": at, "document": [1]});
        let refusal = Problem::new(ErrorCode::Held, "another has it");
        let failure = Problem::new(ErrorCode::Unavailable, "not now");
        let results = json!({"results": [
            granted("granted", json!({"state": state, "epoch": 2, "slot": 1, "confirm_within_ms": 2_000})),
            granted("renewed", json!({})),
            {"status": "released", "lease_id": "0190aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"},
            {"status": "refused", "problem": refusal},
            {"status": "failed", "problem": failure},
        ]});
        let written: batch::BatchResults = serde_json::from_value(results).expect("as a server answers");
        let written = serde_json::to_vec(&written).expect("JSON");
        let read: BatchResults = serde_json::from_slice(&written).expect("as a client reads it");
        let resource = ResourceName::new("job", "a").expect("a name");
        let outcomes: Vec<_> = read.results.into_iter().map(|item| outcome(resource.clone(), item)).collect();
        let lease = LeaseId("0190aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee".parse().expect("an id"));
        let [Ok(Ok(Completion::Held(first))), Ok(Ok(Completion::Held(second))), released, refused, failed] =
            &outcomes[..]
        else {
            panic!("{outcomes:?}")
        };
        let held = HeldLease { resource, lease, token: Token(7), slot: Some(1) };
        assert_eq!((&first.held, first.epoch), (&held, Some(2)));
        assert_eq!((first.ttl_left, first.slack), (Duration::from_secs(9), Duration::from_millis(500)));
        assert_eq!(first.confirm_within, Some(Duration::from_secs(2)));
        let left = StateDocument { document: json!([1]), token: Token(6), sequence: 3 };
        assert_eq!(first.state.as_ref(), Some(&left));
        assert_eq!(second.held, HeldLease { slot: None, ..held });
        assert_eq!((second.epoch, second.confirm_within, &second.state), (None, None, &None));
        assert_eq!(released, &Ok(Ok(Completion::Released)));
        assert!(matches!(refused, Ok(Err(refusal)) if refusal.code == ErrorCode::Held), "{refused:?}");
        assert!(matches!(failed, Err(AuthorityError::Unreachable { .. })), "{failed:?}");
    }

    #[test]
    fn a_result_without_what_it_speaks_of_leaves_the_outcome_unknown() {
        for status in ["granted", "renewed", "refused", "failed"] {
            let item = serde_json::from_value(json!({"status": status})).expect("a result");
            let outcome = outcome(ResourceName::new("job", "a").expect("a name"), item);
            assert!(matches!(outcome, Err(AuthorityError::Unknown(_))), "{status}: {outcome:?}");
        }
    }

    #[test]
    fn an_answer_without_a_set_is_about_the_set_that_was_named_and_no_other() {
        let same = known(json!({}));
        let kept = beat(answer(json!({"ttl_ms": 5_000})), Some(&same)).expect("the set that was named");
        assert_eq!((&kept.leases, kept.set_cursor), (&same.leases, same.set_cursor));
        assert_eq!((kept.ttl_left, kept.revision), (Duration::from_secs(5), Revision(7)));
        let other = "0190aaaa-bbbb-4ccc-8ddd-ffffffffffff";
        for changed in [
            json!({"session_id": other}),
            json!({"epoch": 1}),
            json!({"epoch": null}),
            json!({"revision": 8}),
        ] {
            let odd = beat(answer(changed.clone()), Some(&same));
            assert!(matches!(odd, Err(AuthorityError::Unknown(_))), "{changed}: {odd:?}");
        }
        let unnamed = known(json!({"set_cursor": null}));
        for known in [None, Some(&unnamed)] {
            assert!(matches!(beat(answer(json!({})), known), Err(AuthorityError::Unknown(_))));
        }
        let empty = beat(answer(json!({"leases": []})), Some(&same)).expect("a set");
        assert!(empty.leases.is_empty(), "an empty set is another one");
    }
}
