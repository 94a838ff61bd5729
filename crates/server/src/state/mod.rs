//! State that a node keeps between requests: API keys and quotas as last read from the store, rates, identities.
//! Changes by operators are recorded in the audit trail. Nothing here knows of requests or routes.

pub mod audit;
pub(crate) mod identity;
pub mod keys;
pub mod operator;
pub(crate) mod quota;
pub(crate) mod rates;
pub(crate) mod records;
pub(crate) mod ring;
