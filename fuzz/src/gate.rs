//! The MQTT gate: payloads of publishers, and topics.

use bytes::Bytes;
use solehold_mqtt_gate::{Reason, message, topic::Pattern};

const FIELD: &str = "token";

/// A payload whose token was read has none after it was stripped.
pub fn payload(bytes: &[u8]) {
    let payload = Bytes::copy_from_slice(bytes);
    let stripped = message::without(&payload, FIELD);
    if message::token(&payload, FIELD).is_ok() {
        assert_eq!(message::token(&stripped, FIELD), Err(Reason::NoToken));
    }
}

/// Pattern, zero byte, topic.
pub fn topic(bytes: &[u8]) {
    let Some((pattern, topic)) = super::two_texts(bytes) else { return };
    let Ok(pattern) = pattern.parse::<Pattern>() else { return };
    assert!(!pattern.filter().is_empty());
    let _ = pattern.reads_below(topic);
    if let Some(named) = pattern.find(topic) {
        assert!(topic.contains(named.key), "a key is a part of its topic");
        assert_eq!(named.kind.is_some(), pattern.names_kind());
    }
}
