//! State that a node keeps between requests: API keys and quotas as last read from the store, rates, identities.
//! Nothing here knows of requests or routes.

pub(crate) mod identity;
pub mod keys;
pub(crate) mod quota;
pub(crate) mod rates;
pub(crate) mod records;
pub(crate) mod ring;
