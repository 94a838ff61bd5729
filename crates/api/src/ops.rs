//! Operating: whether a server is up, and whether it can serve.

use serde::{Deserialize, Serialize};

use crate::{cursor::Cursor, time::Timestamp};

/// The process is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// Always `ok`.
    pub status: String,
    /// The server that answers.
    pub node_id: String,
    /// The version of the server.
    pub version: String,
    /// The storage engine.
    pub engine: String,
}

/// Whether the server can serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ready {
    pub ready: bool,
    /// The server that answers.
    pub node_id: String,
    /// Why it is not ready, or what it refuses although it is.
    pub reason: Option<String>,
    /// How long the store still grants and renews nothing, because it was restored or failed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barred_ms: Option<u64>,
    /// The store's last change.
    pub cursor: Option<Cursor>,
    pub store_time: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::round_trip;

    #[test]
    fn answers_survive_the_wire() {
        let text = |text: &str| text.to_owned();
        round_trip(&Health {
            status: text("ok"),
            node_id: text("n-1"),
            version: text("0.2.0"),
            engine: text("memory"),
        });
        round_trip(&Ready {
            ready: false,
            node_id: text("n-1"),
            reason: Some(text("the store is unreachable")),
            barred_ms: Some(7),
            cursor: Some(Cursor { epoch: 1, revision: 2 }),
            store_time: Some(solehold_core::time::StoreTime(5).into()),
        });
    }
}
