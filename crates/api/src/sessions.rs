//! Sessions: one incarnation of a holder, renewed by one heartbeat with everything attached to it. Ours, so unknown
//! fields are refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use solehold_core::{
    key::{Document, Name},
    outcome::{LeaseView, PendingView},
    route::{Candidate, WEIGHT_ONE},
    session as core,
    time::StoreTime,
};
use uuid::Uuid;

use crate::{
    cursor::Cursor,
    document::{to_document, to_fields},
    field::{Checked, Faults},
    hand_over::OfferedLease,
    limits::{SESSION_TTL, WEIGHT_MAX},
    page::PageCursor,
    resources::HeldLease,
    time::Timestamp,
};

/// The header with which a client chooses the id of the session that it opens, a UUID that is used for nothing else. A
/// repeat of the request, even one that arrives late, then finds the session instead of opening another that supersedes
/// it.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Opens a session. The holder's former session is superseded, and its leases expire.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OpenSession {
    pub holder: String,
    /// Time to live in milliseconds; 30 s if not given.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub ttl_ms: Option<Number>,
    /// Time to live in seconds.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttl_seconds: Option<Number>,
    /// Any JSON that it reports about itself.
    pub metrics: Option<BTreeMap<String, Value>>,
    /// The former session, to be closed at once.
    pub replace: Option<Uuid>,
    /// The replaced session is known to be fenced off, so the next holder need not wait for its deadline.
    #[serde(default)]
    pub fenced: bool,
    /// The last session of the process that asks, which comes back after it has ended: refused with
    /// `session_superseded` if another session of this name is live by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Uuid>,
}

/// An opening that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTerms {
    pub holder: Name,
    pub ttl_ms: u64,
    /// Any JSON that it reports about itself.
    pub metrics: Option<Document>,
}

impl OpenSession {
    pub fn terms(&self) -> Checked<SessionTerms> {
        let mut faults = Faults::default();
        let holder = faults.name("holder", &self.holder);
        let ttl_ms = faults.take(SESSION_TTL.resolve(self.ttl_ms.as_ref(), self.ttl_seconds.as_ref()));
        let metrics = faults.take(self.metrics.as_ref().map(|m| to_document("metrics", m)).transpose());
        faults.finish(|| Some(SessionTerms { holder: holder?, ttl_ms: ttl_ms?, metrics: metrics? }))
    }
}

/// Renews a session and everything attached to it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatSession {
    /// Any JSON that it reports about itself.
    pub metrics: Option<BTreeMap<String, Value>>,
    /// The last `sealed_cursor` that this holder received: a store that is behind it knows that it was set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_cursor: Option<String>,
    /// The `set_cursor` of the set that this holder knows, as of its last answer with `leases`. If that is the set
    /// still, the answer leaves it out. Only for a server that has sent a `set_cursor`: an older one refuses the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub known_set: Option<Cursor>,
}

impl HeartbeatSession {
    pub fn metrics(&self) -> Checked<Option<Document>> {
        let metrics = self.metrics.as_ref().map(|metrics| to_document("metrics", metrics));
        metrics.transpose().map_err(|fault| vec![fault])
    }
}

/// A session and everything attached to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Session))]
pub struct SessionBody {
    pub session_id: Uuid,
    pub tenant: String,
    pub holder: String,
    /// A `current` session may renew and acquire, a `draining` one only renew, a `superseded` one neither.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::schema::standing))]
    pub standing: core::Standing,
    /// Milliseconds until it expires.
    pub ttl_ms: u64,
    /// Milliseconds for which a heartbeat extends it.
    pub full_ttl_ms: u64,
    /// How far the store's clock may run ahead of yours unnoticed: subtract it from `ttl_ms`, in addition to your own
    /// margin.
    pub slack_ms: u64,
    pub opened_at: Timestamp,
    pub renewed_at: Timestamp,
    /// When it expires by the store's clock, unless it is renewed. Do not compare it with your own clock: count from
    /// `ttl_ms`.
    pub expires_at: Timestamp,
    /// The epoch of the store's history. An answer with a lower one than was seen before comes from an older history:
    /// take up nothing of it, and treat the session's leases as lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The revision of the set below: never apply an older set over a newer grant. Compare the epoch first.
    pub revision: u64,
    /// The store's position in its history, sealed by the store. Send it with the next heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_cursor: Option<String>,
    /// The name of the set below. Send it with the next heartbeat as `known_set`, and the answer has `leases` and
    /// `pending` only if they have changed. Not there while a lease is still to be confirmed or being handed over,
    /// which may end as time passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub set_cursor: Option<Cursor>,
    /// All leases attached to it; it holds nothing else. Left out only in the answer to a heartbeat whose `known_set`
    /// names the present set: then it has the same leases as before, renewed by this heartbeat, none of them is asked
    /// for by another holder, and nothing is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<Vec<HeldLease>>,
    /// Leases that it gets as soon as the present holders release them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<OfferedLease>,
}

impl SessionBody {
    /// A session without the set of its leases.
    pub fn of(session: &core::Session, now: StoreTime, slack_ms: u64) -> Self {
        Self {
            session_id: session.id.0,
            tenant: session.holder.tenant.to_string(),
            holder: session.holder.name.to_string(),
            standing: session.standing,
            ttl_ms: session.deadline.ms_after(now),
            full_ttl_ms: session.ttl_ms,
            slack_ms,
            opened_at: session.opened_at.into(),
            renewed_at: session.renewed_at.into(),
            expires_at: session.deadline.into(),
            epoch: None,
            revision: session.lease_revision.0,
            sealed_cursor: None,
            set_cursor: None,
            leases: None,
            pending: Vec::new(),
        }
    }

    /// The same with everything attached to it.
    #[must_use]
    pub fn with_set<'a>(
        self,
        leases: impl IntoIterator<Item = LeaseView>,
        pending: impl IntoIterator<Item = &'a PendingView>,
        now: StoreTime,
    ) -> Self {
        let leases = leases.into_iter().map(|lease| HeldLease::of(&lease)).collect();
        let pending = pending.into_iter().map(|offer| OfferedLease::of(offer, now)).collect();
        Self { leases: Some(leases), pending, ..self }
    }
}

/// A session was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClosedSession {
    pub session_id: Uuid,
    /// The number of leases that were released with it.
    pub released: u64,
}

/// A live session, with its load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    /// The holder's name.
    pub node_id: String,
    pub tenant: String,
    pub session_id: Uuid,
    /// A `current` session may renew and acquire, a `draining` one only renew, a `superseded` one neither.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::schema::standing))]
    pub standing: core::Standing,
    pub opened_at: Timestamp,
    /// When it expires by the store's clock, unless it is renewed.
    pub expires_at: Timestamp,
    /// Milliseconds until it expires.
    pub ttl_ms: u64,
    /// The number of leases attached to it.
    pub lease_count: u32,
    /// Its group, from `group` in its metrics: keys are routed within a group.
    pub group: Option<String>,
    /// Its share of keys relative to the others of its group, from `weight` in its metrics; 1 if not given.
    pub weight: f64,
    /// The metrics that it last reported.
    pub metrics: BTreeMap<String, Value>,
}

impl Node {
    pub fn of(session: &core::Session, now: StoreTime) -> Self {
        let metrics = to_fields(&session.metrics);
        Self {
            node_id: session.holder.name.to_string(),
            tenant: session.holder.tenant.to_string(),
            session_id: session.id.0,
            standing: session.standing,
            opened_at: session.opened_at.into(),
            expires_at: session.deadline.into(),
            ttl_ms: session.deadline.ms_after(now),
            lease_count: session.lease_count,
            group: metrics.get("group").and_then(Value::as_str).map(str::to_owned),
            weight: metrics
                .get("weight")
                .and_then(Value::as_f64)
                .filter(|w| (0.0..=WEIGHT_MAX).contains(w))
                .unwrap_or(1.0),
            metrics,
        }
    }

    /// The node as one that a key may be routed to. One that drains gets no keys.
    pub fn candidate(&self) -> Candidate<'_> {
        let is_able = self.standing == core::Standing::Current;
        let weight = if is_able { (self.weight * f64::from(WEIGHT_ONE)) as u32 } else { 0 };
        Candidate { name: &self.node_id, weight }
    }
}

/// Where a key should be served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyRoute {
    pub kind: String,
    pub key: String,
    /// The node that should serve the key.
    pub node: Node,
}

/// A page of nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeList {
    pub nodes: Vec<Node>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
    /// The point in the watch at which this was read.
    pub cursor: Cursor,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        body,
        testing::{key, lease_view, name, round_trip, session},
    };

    #[test]
    fn an_opening_is_checked_whole() {
        let open: OpenSession =
            body::parse(br#"{"holder": "w", "ttl_seconds": 2.5, "metrics": {"cpu": 1}}"#).expect("good");
        round_trip(&open);
        let asked = open.terms().expect("good");
        assert_eq!((asked.holder, asked.ttl_ms), (name("w"), 2_500));
        assert_eq!(asked.metrics.map(String::from).as_deref(), Some(r#"{"cpu":1}"#));
        let large = Some([("x".to_owned(), json!("x".repeat(70_000)))].into());
        let odd = OpenSession { ttl_ms: Some((-5).into()), metrics: large.clone(), ..Default::default() };
        let fields: Vec<_> = odd.terms().expect_err("odd").into_iter().map(|f| f.field).collect();
        assert_eq!(fields, ["holder", "ttl_ms", "metrics"]);
        assert!(HeartbeatSession { metrics: large, ..Default::default() }.metrics().is_err());
        assert_eq!(body::parse::<HeartbeatSession>(b"").expect("empty").metrics(), Ok(None));
        let named: HeartbeatSession = body::parse(br#"{"known_set": "1.44"}"#).expect("good");
        assert_eq!(named.known_set, Some(Cursor { epoch: 1, revision: 44 }));
        assert!(body::parse::<HeartbeatSession>(br#"{"known_set": 44}"#).is_err());
        assert!(body::parse::<HeartbeatSession>(br#"{"metric": {}}"#).is_err());
    }

    #[test]
    fn a_session_shows_its_leases() {
        let session = session();
        let now = StoreTime(2_000);
        let known = SessionBody::of(&session, now, 500);
        let fields = serde_json::to_value(&known).expect("JSON");
        assert!(fields.get("leases").is_none() && fields.get("pending").is_none(), "{fields}");
        round_trip(&known);
        let empty = serde_json::to_value(known.clone().with_set([], [], now)).expect("JSON");
        assert_eq!(empty["leases"], json!([]), "an empty set is another answer");
        let shown = known.with_set([lease_view(key("k"), "{}")], [], now);
        round_trip(&shown);
        assert_eq!(
            (shown.ttl_ms, shown.full_ttl_ms, shown.slack_ms, shown.revision),
            (29_000, 30_000, 500, 44)
        );
        assert_eq!(shown.leases.expect("a set")[0].token, 42);
        let node = Node::of(&session, StoreTime(40_000));
        assert_eq!((node.ttl_ms, node.lease_count), (0, 2));
        assert_eq!(node.metrics["cpu"], json!(0.5));
        round_trip(&NodeList { nodes: vec![node], next: None, cursor: Cursor { epoch: 1, revision: 2 } });
        round_trip(&ClosedSession { session_id: Uuid::from_u128(1), released: 3 });
    }
}
