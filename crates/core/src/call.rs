//! A command and its actor (rule 26).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    command::Command,
    key::{Document, Name, ResourceKey},
    record::Record,
    time::StoreTime,
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

/// A document that is stored together with what a command changes, so that the host can tell later who gave it and why.
/// Core does not read it. A command that is refused leaves none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The collection of records that it becomes one of.
    pub collection: Name,
    /// Tells it apart from others of the same millisecond.
    pub unique: u64,
    pub document: Document,
}

impl Note {
    /// What is stored: its id begins with the time, so that ids sort by it.
    pub fn record(&self, at: StoreTime) -> Record {
        let id = Name::timed(at, self.unique);
        Record { collection: self.collection.clone(), id, document: self.document.clone() }
    }

    /// When the note was stored that became the record of this id.
    pub fn time(id: &Name) -> Option<StoreTime> {
        let (at, _) = id.as_str().split_once('-')?;
        u64::from_str_radix(at, 16).ok().map(StoreTime)
    }
}

/// A command and who gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub command: Command,
    pub by: Actor,
    /// What is stored with it, unless it is refused.
    pub note: Option<Note>,
}

impl Call {
    pub fn new(command: Command, by: Actor) -> Self {
        Self { command, by, note: None }
    }
}

impl From<Command> for Call {
    fn from(command: Command) -> Self {
        Self::new(command, Actor::Unnamed)
    }
}
