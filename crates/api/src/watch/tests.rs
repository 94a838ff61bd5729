use solehold_core::{
    event::Ended,
    key::{LeaseId, SessionId},
    lease::{Declaration, Pending, StateDocument},
    time::{StoreTime, Token},
};

use super::*;
use crate::testing::{document, key, lease_view, name, resource, round_trip, session_id};

fn camera_key() -> ResourceKey {
    ResourceKey { kind: name(kind::CAMERA), ..key("cam-1") }
}

fn event(what: What) -> LeaseEvent {
    let event = Event {
        revision: Revision(50),
        at: StoreTime(2_000),
        key: camera_key(),
        by: Some(name("k1")),
        holder_session: None,
        what,
    };
    let told = LeaseEvent::of(&event, 3);
    round_trip(&told);
    assert_eq!(told.event_type, event.name());
    told
}

#[test]
fn cursors_are_an_epoch_and_a_revision() {
    for cursor in [Cursor { epoch: 0, revision: 0 }, Cursor { epoch: u64::MAX, revision: u64::MAX }] {
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        round_trip(&cursor);
    }
    for odd in ["", "1", "1.", ".1", "1.2.3", "-1.2", "+1.2", "1.x", "1,2", "18446744073709551616.1", " 1.2"]
    {
        assert!(odd.parse::<Cursor>().is_err(), "{odd}");
    }
    assert!(Cursor { epoch: 1, revision: 9 } < Cursor { epoch: 2, revision: 0 });
}

#[test]
fn a_grant_has_the_pipelines_names_on_cameras() {
    let lease = lease_view(camera_key(), r#"{"shard_id":"shard-1"}"#).lease;
    let told = serde_json::to_value(event(What::Acquired(lease.clone()))).expect("an event");
    for (field, value) in [
        ("event_type", json!("lease_acquired")),
        ("cursor", json!("3.50")),
        ("timestamp", json!("1970-01-01T00:00:02.000Z")),
        ("camera_uuid", json!("cam-1")),
        ("runner_id", json!("worker")),
        ("shard_id", json!("shard-1")),
        ("token", json!(42)),
        ("session_id", json!(session_id())),
        ("by", json!("k1")),
    ] {
        assert_eq!(told[field], value, "{field}");
    }
    let other = Event {
        revision: Revision(1),
        at: StoreTime(1),
        key: key("k"),
        by: None,
        holder_session: None,
        what: What::Acquired(lease),
    };
    let other = serde_json::to_value(LeaseEvent::of(&other, 1)).expect("an event");
    assert_eq!((other.get("camera_uuid"), &other["holder"]), (None, &json!("worker")));
}

#[test]
fn every_event_is_sent() {
    let lease = lease_view(camera_key(), r#"{"shard_id":"s"}"#).lease;
    let mut ended = Ended::of(&lease);
    (ended.held_back_until, ended.reason) = (Some(StoreTime(31_000)), Some("broken".into()));
    for what in [What::Released(ended.clone()), What::Expired(ended.clone()), What::Stolen(ended.clone())] {
        assert_eq!(event(what).shard_id.as_deref(), Some("s"));
    }
    let revoked = event(What::Revoked(ended));
    assert_eq!(revoked.details["reason"], json!("broken"));
    assert_eq!(revoked.details["held_back_until"], json!("1970-01-01T00:00:31.000Z"));
    let pending = Pending {
        id: LeaseId(Uuid::from_u128(10)),
        holder: name("next"),
        session: SessionId(Uuid::from_u128(6)),
        asked_at: StoreTime(1_500),
        deadline: StoreTime(2_500),
        attributes: document("{}"),
    };
    let pending = event(What::Pending(pending));
    assert_eq!((pending.token, pending.holder.as_deref()), (None, Some("next")));
    let state = StateDocument {
        document: document("[1]"),
        sequence: 3,
        token: Token(42),
        written_at: StoreTime(900),
    };
    assert_eq!(event(What::StateChanged(state)).details["document"], json!([1]));
    let declared = Declaration { site: Some(name("s")), ..Declaration::default() };
    assert_eq!(event(What::Declared(declared)).details["site"], json!("s"));
    assert_eq!(event(What::Deleted).details, BTreeMap::new());
    let renewed = LeaseEvent::renewed(&lease_view(camera_key(), "{}"), 3, Revision(50));
    assert_eq!(renewed.details["ttl_ms"], json!(29_000));
    assert_eq!(renewed.event_type, EventName::LeaseRenewed);
}

/// One event of every name.
fn one_of_each() -> Vec<LeaseEvent> {
    let view = lease_view(key("nightly"), "{}");
    let ended = Ended::of(&view.lease);
    let pending = Pending {
        id: LeaseId(Uuid::from_u128(10)),
        holder: name("next"),
        session: SessionId(Uuid::from_u128(6)),
        asked_at: StoreTime(1_500),
        deadline: StoreTime(2_500),
        attributes: document("{}"),
    };
    let state = StateDocument {
        document: document("[1]"),
        sequence: 3,
        token: Token(42),
        written_at: StoreTime(900),
    };
    let stored = [
        What::Pending(pending),
        What::Acquired(view.lease.clone()),
        What::Released(ended.clone()),
        What::Expired(ended.clone()),
        What::Revoked(ended.clone()),
        What::Stolen(ended),
        What::HoldBackLifted { token: Token(42), reason: None },
        What::StateChanged(state),
        What::Declared(Declaration::default()),
        What::Deleted,
        What::ConfigChanged(document("{}")),
    ];
    stored.map(event).into_iter().chain([LeaseEvent::renewed(&view, 3, Revision(50))]).collect()
}

#[test]
fn the_reference_of_events_is_kept() {
    let events = one_of_each();
    let mut page = String::from(
        "# Events\n\n<!-- Made from the code: make reference -->\n\n\
         What a [watch](../api.md), a history and a [relay](../guides/events.md) report, in the one order of all \
         events. Every event\nhas the [same fields](../api.md#leaseevent); `token`, `holder`, `lease_id` and \
         `session_id` are null where they say nothing,\nand `details` has more, depending on the event.\n\n\
         | `event_type` | when | `token` | `details` |\n|---|---|---|---|\n",
    );
    for name in EventName::ALL {
        let event = events.iter().find(|event| event.event_type == name).expect("one of each");
        let details: Vec<_> = event.details.keys().map(|field| format!("`{field}`")).collect();
        let details =
            if name == EventName::ConfigChanged { "what has changed".to_owned() } else { details.join(", ") };
        let token = if event.token.is_some() { "yes" } else { "" };
        assert!(name.about().ends_with(['.', ')']), "{name}: {}", name.about());
        page += &format!("| `{name}` | {} | {token} | {details} |\n", name.about());
    }
    solehold_testkit::golden("reference/events.md", &page);
}

#[test]
fn ownership_keeps_the_last_token() {
    let view = lease_view(key("k"), "{}");
    let row = resource(&view, "{}");
    let held = Ownership::of(&row, Some(&view));
    assert_eq!((held.token, held.holder.as_deref(), held.ttl_ms), (42, Some("worker"), 29_000));
    let expired = LeaseView { status: LeaseStatus::Expired, ..view };
    let free = Ownership::of(&row, Some(&expired));
    assert_eq!((free.token, free.holder, free.expires_at), (42, None, None));
}

#[test]
fn frames_survive_the_stream() {
    let view = lease_view(key("söhne\u{2028}/k"), "{}");
    let cursor = Cursor { epoch: 1, revision: 50 };
    let part = |more| {
        let resources = vec![Ownership::of(&resource(&view, "{}"), Some(&view))];
        WatchFrame::Snapshot(Snapshot { cursor, resources, more })
    };
    let frames = [
        part(true),
        part(false),
        WatchFrame::Event(Box::new(LeaseEvent::renewed(&view, 1, Revision(50)))),
        WatchFrame::Progress(Progress { cursor, timestamp: StoreTime(5).into() }),
        WatchFrame::Compacted(Compacted { floor: cursor }),
        WatchFrame::Resync(Resync { cursor, reason: "buffer\nfull".into() }),
    ];
    let stream: String = frames.iter().map(|frame| frame.to_sse().encode()).collect();
    let mut decoder = sse::Decoder::default();
    let pieces = stream.as_bytes().chunks(7);
    let read: Vec<sse::Frame> = pieces.flat_map(|piece| decoder.push(piece).expect("small")).collect();
    let ids: Vec<Option<&str>> = read.iter().map(|frame| frame.id.as_deref()).collect();
    assert_eq!(ids, [None, Some("1.50"), Some("1.50"), Some("1.50"), None, None]);
    let back: Vec<WatchFrame> =
        read.iter().filter_map(|frame| WatchFrame::from_sse(frame).expect("ours")).collect();
    assert_eq!(back, frames);
    for frame in &frames {
        round_trip(frame);
    }
}

#[test]
fn odd_frames_are_told_apart() {
    let frame =
        |event: &str, data: &str| sse::Frame { event: Some(event.into()), id: None, data: data.into() };
    assert!(WatchFrame::from_sse(&frame("new_sort", "{")).expect("unknown").is_none());
    let odd = WatchFrame::from_sse(&frame("progress", "{")).expect_err("not JSON");
    assert!(odd.to_string().starts_with("a \"progress\" frame of the watch cannot be read: EOF"), "{odd}");
}
