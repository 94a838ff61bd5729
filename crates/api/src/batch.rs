//! Many leases in one request. Items are decided one by one, in order, and a refusal does not affect the others. If
//! any item cannot be read, the whole request is refused, and nothing is done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use solehold_core::{
    command::{Claim, StateWrite, Target},
    key::{Document, LeaseId, Name, ResourceKey},
    limits::ACQUIRED_TOGETHER_MAX,
};
use uuid::Uuid;

use crate::{
    document::to_document,
    field::{Checked, Faults, FieldError},
    leases::stats_document,
    limits::{BATCH_ITEMS_MAX, RESOURCE_TTL},
    problem::Problem,
    resources::GrantBody,
    terms::{AcquireFields, AcquireTerms, FinalState, Proof, lease_requests},
};

/// Items, at most [`BATCH_ITEMS_MAX`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Batch<T> {
    pub items: Vec<T>,
}

impl<T> Batch<T> {
    /// Every item as `convert` makes it, or all that is wrong with any of them.
    pub fn checked<U>(&self, convert: impl Fn(&T) -> Checked<U>) -> Checked<Vec<U>> {
        checked(&self.items, BATCH_ITEMS_MAX, convert)
    }
}

impl AcquireBatch {
    /// Each resource, and the terms on which it is acquired.
    pub fn terms(&self, tenant: &Name) -> Checked<Vec<(ResourceKey, AcquireTerms)>> {
        let most = if self.all_or_none { ACQUIRED_TOGETHER_MAX } else { BATCH_ITEMS_MAX };
        checked(&self.items, most, |item| item.terms(tenant))
    }
}

fn checked<T, U>(items: &[T], most: usize, convert: impl Fn(&T) -> Checked<U>) -> Checked<Vec<U>> {
    if items.len() > most {
        let message = format!("has {} items; it may have {most}", items.len());
        return Err(vec![FieldError::new("items", message)]);
    }
    let mut faults = Faults::default();
    let mut item = |(at, item)| faults.take_all(&format!("items[{at}]"), convert(item));
    let converted: Vec<Option<U>> = items.iter().enumerate().map(&mut item).collect();
    faults.finish(|| converted.into_iter().collect())
}

/// Acquires, at most [`BATCH_ITEMS_MAX`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcquireBatch {
    pub items: Vec<AcquireItem>,
    /// Acquire all of them or none: if one cannot be acquired, the answer is that refusal, which names it, and nothing
    /// was acquired. At most 100 items.
    #[serde(default)]
    pub all_or_none: bool,
}

/// One acquire.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcquireItem {
    pub kind: String,
    pub key: String,
    pub holder: String,
    /// Time to live in milliseconds; 30 s if not given.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub ttl_ms: Option<Number>,
    /// Time to live in seconds.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttl_seconds: Option<Number>,
    /// The session to attach the lease to; one of its own if not given.
    pub session_id: Option<Uuid>,
    /// The client's name for this acquire.
    pub request_id: Option<String>,
    /// Share it with others: one of this many slots, each with a token of its own. Without it the lease is exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Any JSON that the holder keeps with the lease.
    #[serde(default)]
    pub attributes: BTreeMap<String, Value>,
}

impl AcquireItem {
    pub fn terms(&self, tenant: &Name) -> Checked<(ResourceKey, AcquireTerms)> {
        let mut faults = Faults::default();
        let key = faults.take_all("", resource_key(tenant, &self.kind, &self.key));
        let attributes = faults.take(to_document("attributes", &self.attributes));
        let fields = AcquireFields {
            holder: ("holder", &self.holder),
            ttl_ms: self.ttl_ms.as_ref(),
            ttl_seconds: self.ttl_seconds.as_ref(),
            session_id: self.session_id,
            request_id: self.request_id.as_deref(),
            slots: self.slots,
        };
        let terms = fields.checked(RESOURCE_TTL, faults, attributes)?;
        // A key that is wrong is among the faults.
        key.map(|key| (key, terms)).ok_or_else(Vec::new)
    }
}

lease_requests! {
    /// One renewal: of the lease of this id, or of the one on `kind` and `key` that is proven by token, session or
    /// holder.
    pub struct RenewItem {
        pub kind: Option<String>,
        pub key: Option<String>,
        /// A new time to live in milliseconds, for a lease with a session of its own.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub ttl_ms: Option<Number>,
        /// The same in seconds.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
        pub ttl_seconds: Option<Number>,
        /// Any JSON about the progress of the work; without it the last report stays.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub stats: Option<BTreeMap<String, Value>>,
    }
}

impl RenewItem {
    pub fn stats(&self) -> Checked<Option<Document>> {
        stats_document(self.stats.as_ref())
    }

    pub fn claim(&self, tenant: &Name) -> Checked<(Claim, Option<u64>)> {
        let mut faults = Faults::default();
        let target = faults.take_all("", target(tenant, &self.kind, &self.key, self.lease_id));
        let ttl_ms = faults.take(RESOURCE_TTL.given(self.ttl_ms.as_ref(), self.ttl_seconds.as_ref()));
        let claim = target.and_then(|target| faults.take_all("", self.proof().claim(target)));
        faults.finish(|| Some((claim?, ttl_ms?)))
    }
}

lease_requests! {
    /// One release; the lease is identified as on renewal.
    pub struct ReleaseItem {
        pub kind: Option<String>,
        pub key: Option<String>,
        /// The final state document for the next holder.
        pub state: Option<FinalState>,
    }
}

impl ReleaseItem {
    pub fn claim(&self, tenant: &Name) -> Checked<(Claim, Option<StateWrite>)> {
        let mut faults = Faults::default();
        let target = faults.take_all("", target(tenant, &self.kind, &self.key, self.lease_id));
        let state = faults.take_all("", self.state.as_ref().map(FinalState::write).transpose());
        let claim = target.and_then(|target| faults.take_all("", self.proof().claim(target)));
        faults.finish(|| Some((claim?, state?)))
    }
}

fn resource_key(tenant: &Name, kind: &str, key: &str) -> Checked<ResourceKey> {
    let mut faults = Faults::default();
    let kind = faults.name("kind", kind);
    let key = faults.name("key", key);
    faults.finish(|| Some(ResourceKey::new(tenant.clone(), kind?, key?)))
}

fn target(
    tenant: &Name,
    kind: &Option<String>,
    key: &Option<String>,
    lease_id: Option<Uuid>,
) -> Checked<Target> {
    match (kind, key, lease_id) {
        (Some(kind), Some(key), None) => resource_key(tenant, kind, key).map(Target::Resource),
        (None, None, Some(id)) => Ok(Target::Lease { tenant: tenant.clone(), id: LeaseId(id) }),
        _ => Err(vec![FieldError::new("lease_id", "must be given, or else kind and key, but not all three")]),
    }
}

/// The result of one item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BatchItem {
    /// It was granted, now or earlier to the same request id.
    Granted { lease: Box<GrantBody> },
    /// It was renewed.
    Renewed { lease: Box<GrantBody> },
    /// It was released.
    Released { lease_id: Uuid },
    /// It was refused; nothing was changed.
    Refused { problem: Box<Problem> },
    /// It failed; the problem's code says whether the outcome is known.
    Failed { problem: Box<Problem> },
}

/// The results of the items, in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchResults {
    /// One result for each item.
    pub results: Vec<BatchItem>,
}

#[cfg(test)]
mod tests {
    use solehold_core::{command::AskedTenure, outcome, outcome::Refusal, time::*};

    use super::*;
    use crate::{
        body,
        testing::{key, lease_view, name, round_trip},
    };

    #[test]
    fn items_are_checked_one_by_one() {
        let batch: Batch<AcquireItem> = body::parse(
            br#"{"items": [
                {"kind": "job", "key": "a", "holder": "w", "ttl_seconds": 5},
                {"kind": "", "key": "b", "holder": "", "ttl_ms": 1}
            ]}"#,
        )
        .expect("good");
        round_trip(&batch);
        let faults = batch.checked(|item| item.terms(&name("t"))).expect_err("odd");
        let fields: Vec<_> = faults.iter().map(|f| f.field.as_str()).collect();
        assert_eq!(fields, ["items[1].kind", "items[1].holder", "items[1].ttl_ms"]);
        let good = Batch { items: vec![batch.items[0].clone(); 2] };
        let asked = good.checked(|item| item.terms(&name("t"))).expect("good");
        assert_eq!(asked.len(), 2);
        assert_eq!((&asked[0].0, asked[0].1.tenure), (&key("a"), AskedTenure::Own { ttl_ms: 5_000 }));
        assert!(body::parse::<Batch<AcquireItem>>(br#"{"items": [{"kind": "a", "hodler": 1}]}"#).is_err());
    }

    #[test]
    fn a_batch_is_bounded() {
        let batch = |n| Batch { items: vec![RenewItem::default(); n] };
        let faults = batch(BATCH_ITEMS_MAX + 1).checked(|_| Ok(())).expect_err("too many");
        assert_eq!(faults[0].to_string(), "items has 1001 items; it may have 1000");
        assert_eq!(batch(BATCH_ITEMS_MAX).checked(|_| Ok(())).map(|all| all.len()), Ok(1_000));
        assert_eq!(batch(0).checked(|_| Ok(())), Ok(vec![]));
    }

    #[test]
    fn a_lease_is_named_in_one_way() {
        let id = Uuid::from_u128(9);
        let by_id = RenewItem { lease_id: Some(id), ttl_ms: Some(5_000.into()), ..Default::default() };
        let (claim, ttl_ms) = by_id.claim(&name("t")).expect("good");
        assert_eq!(claim.target, Target::Lease { tenant: name("t"), id: LeaseId(id) });
        assert_eq!(ttl_ms, Some(5_000));
        let by_key = ReleaseItem {
            kind: Some("job".into()),
            key: Some("k".into()),
            token: Some(3),
            state: Some(FinalState { sequence: 1, document: Value::Null }),
            ..Default::default()
        };
        let (claim, state) = by_key.claim(&name("t")).expect("good");
        assert_eq!((claim.target, claim.token), (Target::Resource(key("k")), Some(Token(3))));
        assert_eq!(state.map(|s| s.sequence), Some(1));
        let both = RenewItem { kind: Some("job".into()), key: Some("k".into()), ..by_id };
        for odd in [both, RenewItem { kind: Some("job".into()), ..Default::default() }, RenewItem::default()]
        {
            assert_eq!(odd.claim(&name("t")).expect_err("odd")[0].field, "lease_id");
        }
    }

    #[test]
    fn results_show_the_outcome_of_each_item() {
        let lease = lease_view(key("k"), "{}");
        let grant = outcome::Grant { lease, state: None, revision: Revision(7), repeated: false };
        let lease = Box::new(GrantBody::of(&grant, 500));
        let problem = Box::new(Problem::from_refusal(&Refusal::Exists));
        let results = BatchResults {
            results: vec![
                BatchItem::Granted { lease: lease.clone() },
                BatchItem::Renewed { lease },
                BatchItem::Released { lease_id: Uuid::from_u128(1) },
                BatchItem::Refused { problem: problem.clone() },
                BatchItem::Failed { problem },
            ],
        };
        round_trip(&results);
        let json = serde_json::to_value(&results).expect("results");
        assert_eq!(
            (&json["results"][0]["status"], &json["results"][0]["lease"]["token"]),
            (&"granted".into(), &42.into())
        );
        assert_eq!(json["results"][3]["problem"]["code"], "exists");
    }
}
