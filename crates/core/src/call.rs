//! A command and its actor (rule 26).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    command::Command,
    key::{Name, ResourceKey},
};

/// Resources of a kind, all of them or those with keys that begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceScope {
    pub kind: Name,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key_prefix: String,
}

impl ResourceScope {
    pub fn contains(&self, key: &ResourceKey) -> bool {
        self.kind == key.kind && key.key.as_str().starts_with(&self.key_prefix)
    }
}

/// Who gives a command. What it opens or takes belongs to that key, and events name it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Actor {
    /// The store itself, or a caller where no keys are in use. It may act for all, and events name no key.
    #[default]
    Unnamed,
    /// A key, which may act on what belongs to it or to no key.
    Key {
        id: Name,
        /// The only resources that it may touch; empty for all.
        scopes: Arc<[ResourceScope]>,
    },
    /// An admin's key, which may act for all keys.
    Admin(Name),
}

impl Actor {
    pub fn key(&self) -> Option<&Name> {
        match self {
            Self::Unnamed => None,
            Self::Key { id, .. } | Self::Admin(id) => Some(id),
        }
    }

    /// Whether it may act on what belongs to `owner`.
    pub fn may_act_for(&self, owner: Option<&Name>) -> bool {
        match (self, owner) {
            (Self::Key { id, .. }, Some(owner)) => id == owner,
            _ => true,
        }
    }

    /// Whether it may touch a resource at all.
    pub fn may_touch(&self, key: &ResourceKey) -> bool {
        match self {
            Self::Key { scopes, .. } => scopes.is_empty() || scopes.iter().any(|scope| scope.contains(key)),
            Self::Unnamed | Self::Admin(_) => true,
        }
    }
}

/// A command and who gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub command: Command,
    pub by: Actor,
}

impl From<Command> for Call {
    fn from(command: Command) -> Self {
        Self { command, by: Actor::Unnamed }
    }
}
