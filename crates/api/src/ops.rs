//! Operating: whether a server is up, and whether it can serve.

use serde::{Deserialize, Serialize};

use crate::{time::Timestamp, watch::Cursor};

/// The process is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// Always `ok`.
    pub status: String,
    /// Which server this is.
    pub node_id: String,
    /// The version of the program.
    pub version: String,
    /// Which engine it runs on.
    pub engine: String,
}

/// Whether the server can serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ready {
    /// Whether it can.
    pub ready: bool,
    /// Which server this is.
    pub node_id: String,
    /// Why it cannot.
    pub reason: Option<String>,
    /// How far the store is.
    pub cursor: Option<Cursor>,
    /// The store's time.
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
            version: text("0.1.0"),
            engine: text("memory"),
        });
        round_trip(&Ready {
            ready: false,
            node_id: text("n-1"),
            reason: Some(text("the store is unreachable")),
            cursor: Some(Cursor { epoch: 1, revision: 2 }),
            store_time: Some(solehold_core::time::StoreTime(5).into()),
        });
    }
}
