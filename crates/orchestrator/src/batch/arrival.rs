//! A message before it is judged.

use solehold_kafka::Message;

use crate::model::{command::Command, limits};

#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub position: i64,
    pub key: String,
    pub payload: Option<Vec<u8>>,
    /// Distinguishes it from another message at its position.
    pub digest: i64,
    /// The generation of its topic if it is a dead letter already; otherwise it is of the present one.
    pub generation: Option<i64>,
    /// The command, or why it is invalid.
    pub command: Result<Command, String>,
}

impl Arrival {
    /// A message that was just read.
    pub fn of(message: &Message, command: Result<Command, String>) -> Self {
        Self {
            position: message.offset,
            key: key_of(message),
            payload: message.payload.as_ref().map(|payload| payload.to_vec()),
            digest: message.digest(),
            generation: None,
            command,
        }
    }
}

/// The key of a message as text that fits into an index. PostgreSQL stores no zero characters.
fn key_of(message: &Message) -> String {
    let key = message.key.as_deref().unwrap_or_default();
    let text = String::from_utf8_lossy(key).replace('\0', "\u{fffd}");
    if text.len() <= limits::KEY_BYTES_MAX {
        return text;
    }
    let kept: String = text.chars().take(limits::KEY_CHARS_KEPT).collect();
    format!("{kept}... ({} bytes)", key.len())
}
