//! The protocol between agent and worker: one JSON document per line, over a Unix socket. `docs/guides/workers.md`
//! describes it for authors of workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use solehold_client::ResourceName;
use uuid::Uuid;

/// The longest line, either way: a state document has at most 64 KiB, and some of it may be written as `\u0000`.
pub const LINE_BYTES_MAX: usize = 512 << 10;
/// How much of a line that is not understood is shown.
const SHOWN_CHARS_MAX: usize = 60;

/// Why a message of a worker is rejected. The worker receives the text in an `error` message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("{shown} is not a JSON document on one line: {why}; write as in {{\"type\":\"ready\"}}")]
    NotJson { shown: String, why: String },
    #[error("{shown} was not understood: {why}")]
    NotUnderstood { shown: String, why: String },
    #[error("a line of more than {} bytes was skipped", LINE_BYTES_MAX)]
    TooLong,
    #[error("state: name the resource, since this worker has several")]
    ResourceMissing,
    #[error("state: this worker does not work on {0}")]
    NotAssigned(String),
    #[error("state: {0} is no longer held")]
    NotHeld(ResourceName),
    #[error("drained: no revoke with the id {0:?} is open")]
    NoRevoke(String),
    #[error("prepared: no prepare with the id {0:?} is open")]
    NoPrepare(String),
}

/// An assignment of a resource to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// As `KIND/KEY`.
    pub resource: String,
    /// To be shown wherever the work has an effect: a gate refuses an older one.
    pub token: u64,
    /// The identity of the grant.
    pub lease_id: Uuid,
    /// The hand-over by which it came, if the worker was asked to prepare for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_id: Option<String>,
    /// What the former holder left; it replaces what the worker prepared with.
    pub state: Option<Value>,
    /// The sequence number under which that was written.
    pub sequence: Option<u64>,
    pub config: Option<Value>,
    /// Until when no other holder works on it, in milliseconds of `CLOCK_BOOTTIME`. It moves with every renewal; the
    /// file that `SOLEHOLD_LEASE_FILE` names always has the last one.
    pub deadline_boottime_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToWorker {
    /// Work on this.
    Assign(Assignment),
    /// Get ready to work on this, and say `prepared`; it is still held by another, so have no effect yet.
    Prepare {
        /// To be echoed.
        id: String,
        resource: String,
        /// The last state document that is known; the final one comes with `assign`.
        state: Option<Value>,
        config: Option<Value>,
        /// When it is given up, in milliseconds of `CLOCK_BOOTTIME`.
        deadline_boottime_ms: u64,
    },
    /// Finish the work on this, and say `drained`.
    Revoke {
        id: String,
        resource: String,
        /// For people.
        reason: String,
        /// When the worker is ended otherwise, in milliseconds of `CLOCK_BOOTTIME`.
        deadline_boottime_ms: u64,
    },
    /// The configuration of a resource has changed: all of it.
    Config { resource: String, config: Value },
    /// What the worker said was not understood, and nothing was done.
    Error { message: String },
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromWorker {
    /// It has started, and works on what it is assigned.
    Ready {},
    /// It could take over at once; with the id of the `prepare`.
    Prepared { id: String },
    /// It is alive.
    Heartbeat {
        /// Any numbers and texts about itself.
        #[serde(default)]
        stats: Map<String, Value>,
        /// The same about its work on resources, by `KIND/KEY`.
        #[serde(default)]
        resources: BTreeMap<String, Map<String, Value>>,
    },
    /// A checkpoint for the next holder.
    State {
        /// As `KIND/KEY`; not needed by a worker with one resource.
        #[serde(default)]
        resource: Option<String>,
        /// What the next holder gets.
        document: Value,
    },
    /// It has finished with a resource, and will have no more effect on it.
    Drained {
        /// Of the `revoke`.
        id: String,
        /// The last state document, for the next holder.
        #[serde(default)]
        state: Option<Value>,
    },
}

pub fn read(line: &[u8]) -> Result<FromWorker, MessageError> {
    let shown = || {
        let text: String = String::from_utf8_lossy(line).trim().chars().take(SHOWN_CHARS_MAX).collect();
        format!("{text:?}")
    };
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| MessageError::NotJson { shown: shown(), why: error.to_string() })?;
    serde_json::from_value(value)
        .map_err(|error| MessageError::NotUnderstood { shown: shown(), why: error.to_string() })
}

/// The messages in bytes that arrive in pieces of `size`; none for a line that is no message.
#[doc(hidden)] // for the fuzz targets
pub fn read_in_pieces(bytes: &[u8], size: usize) -> Vec<Option<FromWorker>> {
    let mut lines = Lines::default();
    let mut messages = Vec::new();
    for piece in bytes.chunks(size) {
        lines.push(piece);
        while let Some(line) = lines.next() {
            messages.push(line.ok().and_then(|line| read(&line).ok()));
        }
    }
    messages
}

pub fn line(message: &ToWorker) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("plain documents can be written");
    line.push(b'\n');
    line
}

/// Splits received bytes into lines, and rejects lines that are too long.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// The rest of a line that was too long is skipped.
    is_skipping: bool,
}

impl Lines {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next line; none if it is not complete yet.
    pub fn next(&mut self) -> Option<Result<Vec<u8>, MessageError>> {
        loop {
            let end = self.bytes.iter().position(|byte| *byte == b'\n');
            let is_long = end.unwrap_or(self.bytes.len()) > LINE_BYTES_MAX;
            let Some(end) = end else {
                if !is_long && !self.is_skipping {
                    return None;
                }
                self.bytes.clear();
                // Reported once per line.
                let is_new = !self.is_skipping;
                self.is_skipping = true;
                return is_new.then_some(Err(MessageError::TooLong));
            };
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            if is_long {
                return Some(Err(MessageError::TooLong));
            }
            if !line.trim_ascii().is_empty() {
                return Some(Ok(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_of_workers_are_read() {
        let good = |text: &str| read(text.as_bytes()).expect("good");
        assert_eq!(good(r#"{"type":"ready"}"#), FromWorker::Ready {});
        assert_eq!(good(r#"{"type":"prepared","id":"h1"}"#), FromWorker::Prepared { id: "h1".into() });
        let FromWorker::Heartbeat { stats, .. } = good(r#"{"type":"heartbeat","stats":{"fps":25}}"#) else {
            panic!()
        };
        assert_eq!(stats["fps"], json!(25));
        assert!(matches!(good(r#"{"type":"heartbeat"}"#), FromWorker::Heartbeat { .. }));
        assert!(matches!(good(r#"{"type":"drained","id":"r7"}"#), FromWorker::Drained { state: None, .. }));
        assert!(matches!(
            good(r#"{"type":"state","document":[1]}"#),
            FromWorker::State { resource: None, .. }
        ));
    }

    #[test]
    fn an_invalid_message_is_explained() {
        let told = |text: &str| read(text.as_bytes()).expect_err("invalid").to_string();
        assert!(
            told("hello\n").starts_with(r#""hello" is not a JSON document on one line"#),
            "{}",
            told("hello")
        );
        assert!(told("hello").ends_with(r#"write as in {"type":"ready"}"#));
        assert!(
            told(r#"{"type":"redy"}"#).contains("unknown variant `redy`"),
            "{}",
            told(r#"{"type":"redy"}"#)
        );
        assert!(told(r#"{"type":"drained"}"#).contains("missing field `id`"));
        assert!(told(r#"{"type":"prepared","id":"x","sate":1}"#).contains("unknown field `sate`"));
        assert!(told(&"x".repeat(10_000)).len() < 300);
        assert!(read(&[0xff, 0xfe]).is_err());
    }

    #[test]
    fn lines_are_taken_whole_and_long_ones_skipped() {
        let mut lines = Lines::default();
        let next =
            |lines: &mut Lines| lines.next().map(|line| line.map(|l| String::from_utf8(l).expect("text")));
        lines.push(b"a\n\n  \nb");
        assert_eq!(next(&mut lines), Some(Ok("a\n".into())));
        assert_eq!(next(&mut lines), None);
        lines.push(b"c\n");
        assert_eq!(next(&mut lines), Some(Ok("bc\n".into())));
        lines.push(&vec![b'x'; LINE_BYTES_MAX + 1]);
        assert!(matches!(next(&mut lines), Some(Err(_))));
        lines.push(&[b'x'; 100]);
        assert_eq!(next(&mut lines), None, "told once");
        lines.push(b"x\nd\n");
        assert_eq!(next(&mut lines), Some(Ok("d\n".into())));
        let mut long = vec![b'y'; LINE_BYTES_MAX + 1];
        long.extend(b"\ne\n");
        lines.push(&long);
        assert!(matches!(next(&mut lines), Some(Err(_))));
        assert_eq!(next(&mut lines), Some(Ok("e\n".into())));
    }
}
