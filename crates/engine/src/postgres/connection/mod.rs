//! Connections: how one is made ([`connect`], [`target`]), which server it leads to ([`identity`]), and the
//! few that are kept ([`pool`]).

pub(crate) mod connect;
pub(crate) mod identity;
pub(crate) mod pool;
pub(crate) mod target;
