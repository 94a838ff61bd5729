//! The HTTP API: bodies, cursors, the event stream, names.

use serde::de::DeserializeOwned;
use solehold_api::{
    admin, batch, body, config, cursor, hand_over, leases, locks, page, placement, resources, runners,
    scenes, sessions, sse, time, watch,
};
use solehold_core::key::Name;
use solehold_sql::RowId;

type Parser = fn(&[u8]);

fn parse<T: DeserializeOwned>(bytes: &[u8]) {
    let _ = body::parse::<T>(bytes);
}

/// The bodies that clients send.
const BODIES: [Parser; 32] = [
    parse::<admin::CreateKey>,
    parse::<admin::PutTenant>,
    parse::<admin::RaiseToken>,
    parse::<admin::RotateKey>,
    parse::<batch::Batch<batch::AcquireItem>>,
    parse::<batch::Batch<batch::ReleaseItem>>,
    parse::<batch::Batch<batch::RenewItem>>,
    parse::<config::Camera>,
    parse::<config::Zone>,
    parse::<hand_over::HandOver>,
    parse::<leases::AcquireLease>,
    parse::<leases::HeartbeatLease>,
    parse::<leases::ReleaseLease>,
    parse::<leases::RenewLease>,
    parse::<leases::RevokeLease>,
    parse::<locks::Lock>,
    parse::<placement::PutPlacement>,
    parse::<placement::ReportFailure>,
    parse::<resources::AcquireResource>,
    parse::<resources::CancelRequest>,
    parse::<resources::PutResource>,
    parse::<resources::PutState>,
    parse::<resources::ReleaseResource>,
    parse::<resources::RenewResource>,
    parse::<resources::RevokeResource>,
    parse::<runners::HeartbeatRunner>,
    parse::<runners::PutRunnerStatus>,
    parse::<runners::RegisterRunner>,
    parse::<scenes::PutScene>,
    parse::<scenes::SceneLeaseRequest>,
    parse::<sessions::HeartbeatSession>,
    parse::<sessions::OpenSession>,
];

/// Every body type sees the same bytes.
pub fn body(bytes: &[u8]) {
    for parse in BODIES {
        parse(bytes);
    }
}

/// A cursor or time that was read is written so that it is read the same.
pub fn cursor(bytes: &[u8]) {
    let Some(text) = super::text(bytes) else { return };
    if let Ok(cursor) = text.parse::<cursor::Cursor>() {
        assert_eq!(cursor.to_string().parse().ok(), Some(cursor));
    }
    if let Ok(cursor) = text.parse::<page::PageCursor>() {
        assert_eq!(cursor.to_string().parse().ok(), Some(cursor));
    }
    if let Ok(time) = text.parse::<time::Timestamp>() {
        let written = time.to_string();
        let again = written.parse::<time::Timestamp>().expect("a time that was written is read");
        assert_eq!(again.to_string(), written);
    }
}

/// The stream of a watch yields the same frames in pieces of any size.
pub fn events(bytes: &[u8]) {
    let mut whole = sse::Decoder::default();
    let frames = whole.push(bytes);
    let mut pieces = sse::Decoder::default();
    let in_pieces: Result<Vec<_>, _> = bytes.chunks(3).map(|piece| pieces.push(piece)).collect();
    assert_eq!(frames, in_pieces.map(|pieces| pieces.concat()));
    for frame in frames.into_iter().flatten() {
        let _ = watch::WatchFrame::from_sse(&frame);
    }
}

/// A name that was taken can be stored; ids of rows are read for every type of column.
pub fn names(bytes: &[u8]) {
    let Some(text) = super::text(bytes) else { return };
    if let Ok(name) = Name::new(text) {
        assert_eq!(name.as_str(), text);
        assert!(Name::stored(text).is_ok(), "a valid name can be stored");
    }
    for column_type in ["bigint", "integer", "text", "uuid", "bytea"] {
        let _ = RowId::parse(text, column_type);
    }
}
