//! Documents that the engine keeps for its host.

use serde::{Deserialize, Serialize};

use crate::key::{Document, Name};

/// A named document that the engine keeps for its host: API keys, tenants' quotas. Core does not read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What sort of document it is.
    pub collection: Name,
    /// Its name among its sort.
    pub id: Name,
    pub document: Document,
}

impl Record {
    pub fn key(&self) -> (Name, Name) {
        (self.collection.clone(), self.id.clone())
    }
}
