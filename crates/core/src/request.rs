//! Spent request ids: they are granted nothing more (rule 7).

use serde::{Deserialize, Serialize};

use crate::{key::Name, time::StoreTime};

/// What is remembered of a spent request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpentRequest {
    /// It is remembered until then.
    pub until: StoreTime,
    /// The key that it counts for: the owner of the lease or place in line that it had, or the key that cancelled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    /// Whether it was cancelled before it was seen, or after what it had was over. Such requests are never forgotten
    /// before their time; their number is bounded when they are cancelled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
}
