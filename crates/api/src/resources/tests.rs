use serde_json::json;
use solehold_core::{
    command::AskedTenure,
    key::SessionId,
    lease::{LeaseStatus, Pending, StateDocument},
    outcome::LeaseView,
    time::{Revision, Token},
};

use super::*;
use crate::{
    body,
    limits::REASON_BYTES_MAX,
    testing::{document, key, lease_view, name, resource, round_trip, session_id},
};

fn fields<T: std::fmt::Debug>(checked: Checked<T>) -> Vec<String> {
    checked.expect_err("odd").into_iter().map(|fault| fault.field).collect()
}

#[test]
fn a_declaration_is_checked_whole() {
    let put: PutResource =
        body::parse(br#"{"site": "s", "labels": {"gpu": ""}, "attributes": {"n": 1}, "lock_delay_ms": 5}"#)
            .expect("good");
    round_trip(&put);
    let declared = put.declaration().expect("good");
    assert_eq!(declared.attributes.as_str(), r#"{"n":1}"#);
    assert_eq!((declared.site, declared.lock_delay_ms), (Some(name("s")), 5));
    let odd = PutResource {
        site: Some(String::new()),
        labels: [("a\n".to_owned(), "x".repeat(300))].into(),
        attributes: [("big".to_owned(), json!("x".repeat(70_000)))].into(),
        lock_delay_ms: 0,
    };
    assert_eq!(fields(odd.declaration()), ["site", "labels.a\n", "labels.a\n", "attributes"]);
}

#[test]
fn an_acquire_asks_for_its_own_or_a_session_s_time() {
    let ask: AcquireResource =
        body::parse(br#"{"holder": "w", "ttl_seconds": 1.5, "attributes": {"a": [1]}}"#).expect("good");
    let asked = ask.terms().expect("good");
    assert_eq!(asked.tenure, AskedTenure::Own { ttl_ms: 1_500 });
    assert_eq!(asked.attributes.as_str(), r#"{"a":[1]}"#);
    let with_session = AcquireResource { session_id: Some(session_id().0), ..ask.clone() };
    assert_eq!(with_session.terms().expect("good").tenure, AskedTenure::Session(session_id()));
    let odd = AcquireResource { holder: "x".repeat(10_000), ttl_ms: Some(5.into()), ..Default::default() };
    assert_eq!(fields(odd.terms()), ["holder", "ttl_ms"]);
    let both = AcquireResource { ttl_ms: Some(5_000.into()), ..ask };
    assert_eq!(fields(both.terms()), ["ttl_ms"]);

    let lease = LeaseId(Uuid::from_u128(3));
    let command = with_session.terms().expect("good").acquire(
        key("k"),
        lease,
        solehold_core::command::Undeclared::Allow,
    );
    assert_eq!((command.key, command.lease, command.holder), (key("k"), lease, name("w")));
}

#[test]
fn a_claim_names_its_lease() {
    let renew = RenewResource { token: Some(7), session_id: Some(session_id().0), ..Default::default() };
    let claim = renew.claim(key("k")).expect("good");
    assert_eq!(claim.target, Target::Resource(key("k")));
    assert_eq!((claim.token, claim.session, claim.holder), (Some(Token(7)), Some(session_id()), None));
    let id = Uuid::from_u128(9);
    let release = ReleaseResource { lease_id: Some(id), holder: Some("w".into()), ..Default::default() };
    let claim = release.claim(key("k")).expect("good");
    assert_eq!(claim.target, Target::Lease { tenant: name("t"), id: LeaseId(id) });
    assert_eq!(claim.holder, Some(name("w")));
    let odd = RevokeResource {
        holder: Some(String::new()),
        reason: Some("x".repeat(REASON_BYTES_MAX + 1)),
        ..Default::default()
    };
    assert_eq!(fields(odd.claim(key("k"))), ["holder"]);
    assert_eq!(fields(odd.reason()), ["reason"]);
    assert_eq!(renew.ttl_ms(), Ok(None));
    let negative = RenewResource { ttl_ms: Some((-1).into()), ..renew };
    assert_eq!(fields(negative.ttl_ms()), ["ttl_ms"]);
}

#[test]
fn a_lost_acquire_is_cancelled_by_its_name() {
    let cancel: CancelRequest = body::parse(br#"{"holder": "w", "request_id": "r"}"#).expect("good");
    let request = cancel.request(key("k")).expect("good");
    assert_eq!((request.resource, request.holder, request.request), (key("k"), name("w"), name("r")));
    let odd = CancelRequest { holder: String::new(), request_id: "x".repeat(256) };
    assert_eq!(fields(odd.request(key("k"))), ["holder", "request_id"]);
}

#[test]
fn state_is_any_json_within_bounds() {
    let put: PutState = body::parse(br#"{"token": 7, "sequence": 1, "document": [1, null]}"#).expect("good");
    round_trip(&put);
    assert_eq!(put.write().expect("good").document.as_str(), "[1,null]");
    let large = PutState { document: json!("x".repeat(70_000)), ..put };
    assert_eq!(fields(large.write()), ["document"]);
    let state = Some(FinalState { sequence: 2, document: json!("x".repeat(70_000)) });
    assert_eq!(fields(ReleaseResource { state, ..Default::default() }.state()), ["state.document"]);
    assert_eq!(ReleaseResource::default().state(), Ok(None));
    assert!(body::parse::<PutState>(br#"{"token": 7, "document": 1}"#).is_err());
}

#[test]
fn a_grant_and_a_resource_are_shown() {
    let view = lease_view(key("a/b"), r#"{"shard": 1}"#);
    let state = StateDocument {
        document: document(r#"{"offset":5}"#),
        sequence: 3,
        token: Token(41),
        written_at: StoreTime(900),
    };
    let grant = outcome::Grant {
        lease: view.clone(),
        state: Some(state.clone()),
        revision: Revision(50),
        repeated: false,
    };
    let shown = GrantBody::of(&grant, 500);
    round_trip(&shown);
    let json = serde_json::to_value(&shown).expect("a grant");
    assert_eq!(
        (&json["token"], &json["ttl_ms"], &json["status"]),
        (&json!(42), &json!(29_000), &json!("active"))
    );
    assert_eq!(json["state"]["document"], json!({"offset": 5}));
    assert_eq!((&json["key"], &json["attributes"]), (&json!("a/b"), &json!({"shard": 1})));
    assert_eq!(json["expires_at"], json!("1970-01-01T00:00:31.000Z"));

    let mut held = resource(&view, r#"{"n": 1}"#);
    held.state = Some(state);
    held.pending = Some(Box::new(Pending {
        id: LeaseId(Uuid::from_u128(10)),
        holder: name("next"),
        session: SessionId(Uuid::from_u128(6)),
        asked_at: StoreTime(1_500),
        deadline: StoreTime(2_500),
        attributes: document("{}"),
    }));
    let shown = ResourceBody::of(&held, Some(&view), StoreTime(2_000));
    round_trip(&shown);
    assert_eq!(shown.lease.as_ref().map(|l| l.token), Some(42));
    assert_eq!(shown.pending.map(|p| p.holder), Some("next".to_owned()));
    assert_eq!(shown.state.map(|s| (s.sequence, s.document)), Some((3, None)));
    assert!(ResourceBody::of(&held, Some(&view), StoreTime(2_500)).pending.is_none(), "it has lapsed");
}

#[test]
fn a_held_back_resource_shows_for_how_long() {
    let view = lease_view(key("k"), "{}");
    let mut free = resource(&view, "{}");
    (free.lease, free.held_back_until) = (None, Some(StoreTime(5_000)));
    assert_eq!(ResourceBody::of(&free, None, StoreTime(2_000)).held_back_ms, 3_000);
    assert_eq!(ResourceBody::of(&free, None, StoreTime(9_000)).held_back_ms, 0);

    let expired = LeaseView { status: LeaseStatus::Expired, now: StoreTime(32_000), ..view.clone() };
    let mut unswept = resource(&view, "{}");
    if let Some(declared) = &mut unswept.declared {
        std::sync::Arc::make_mut(declared).lock_delay_ms = 4_000;
    }
    let shown = ResourceBody::of(&unswept, Some(&expired), expired.now);
    assert_eq!((shown.lease, shown.held_back_ms), (None, 3_000));
}
