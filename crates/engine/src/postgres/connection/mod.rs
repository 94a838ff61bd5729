//! Connections: how one is made ([`connect`], [`target`], [`tls`]), which server it leads to ([`identity`]), and the
//! few that are kept ([`pool`]).

pub(crate) mod connect;
pub(crate) mod identity;
pub(crate) mod pool;
pub(crate) mod pooled;
pub(crate) mod target;
mod tls;
