//! Reads the resource and the token of a message.

use std::collections::HashMap;

use bytes::Bytes;
use solehold_core::{
    key::{Name, ResourceKey},
    time::Token,
};

use crate::{message, refusal::Reason, shards::Shards, topic::Pattern};

/// The size of the cache of topics.
const TOPICS_MAX: usize = 10_000;

/// A message as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    /// JSON, if it is valid.
    pub payload: Bytes,
    /// Whether the broker had retained it, and sent it because of a new subscription.
    pub is_retained: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageClaim {
    pub resource: ResourceKey,
    pub token: Token,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It belongs to another shard.
    Ignore,
    Refuse(Reason),
    /// Its token decides.
    Judge(MessageClaim),
}

/// Reads messages for one shard. The settings are those of the gate.
#[derive(Debug, Clone)]
pub struct Intake {
    pub patterns: Vec<Pattern>,
    pub tenant: Name,
    pub kinds: Vec<Name>,
    pub token_field: String,
    pub message_bytes_max: usize,
    pub topic_bytes_max: usize,
    pub takes_retained: bool,
    pub shards: Shards,
    pub shard: u32,
    /// The resources of known topics; none for topics that name none.
    pub known: HashMap<String, Option<ResourceKey>>,
}

impl Intake {
    pub fn fate(&mut self, message: &Message) -> Fate {
        let Some(resource) = self.resource(&message.topic) else {
            // It has no hash, so the first shard refuses it.
            return if self.shard == 0 { Fate::Refuse(Reason::BadTopic) } else { Fate::Ignore };
        };
        if self.shards.of(&resource) != self.shard {
            return Fate::Ignore;
        }
        if message.is_retained && !self.takes_retained {
            return Fate::Refuse(Reason::Retained);
        }
        if message.payload.len() > self.message_bytes_max {
            return Fate::Refuse(Reason::TooLarge);
        }
        match message::token(&message.payload, &self.token_field) {
            Ok(token) => Fate::Judge(MessageClaim { resource, token }),
            Err(reason) => Fate::Refuse(reason),
        }
    }

    fn resource(&mut self, topic: &str) -> Option<ResourceKey> {
        if let Some(known) = self.known.get(topic) {
            return known.clone();
        }
        let found = self.find(topic);
        if self.known.len() >= TOPICS_MAX {
            self.known.clear();
        }
        self.known.insert(topic.to_owned(), found.clone());
        found
    }

    fn find(&self, topic: &str) -> Option<ResourceKey> {
        if topic.len() > self.topic_bytes_max {
            return None;
        }
        let named = self.patterns.iter().find_map(|pattern| pattern.find(topic))?;
        let mut kinds = self.kinds.iter();
        let kind = kinds.find(|kind| named.kind.is_none_or(|named| named == kind.as_str()))?.clone();
        Some(ResourceKey::new(self.tenant.clone(), kind, Name::new(named.key).ok()?))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn intake() -> Intake {
        Intake {
            patterns: vec!["data/{key}/+".parse().expect("a pattern")],
            tenant: Name::new("default").expect("a name"),
            kinds: vec![Name::new("scene").expect("a name")],
            token_field: "token".to_owned(),
            message_bytes_max: 100,
            topic_bytes_max: 50,
            takes_retained: false,
            shards: Shards::new("main", 1).expect("good"),
            shard: 0,
            known: HashMap::new(),
        }
    }

    pub(crate) fn resource(key: &str) -> ResourceKey {
        let name = |text: &str| Name::new(text).expect("a name");
        ResourceKey::new(name("default"), name("scene"), name(key))
    }

    pub(crate) fn message(topic: &str, payload: &str) -> Message {
        Message { topic: topic.to_owned(), payload: Bytes::from(payload.to_owned()), is_retained: false }
    }

    #[test]
    fn every_message_has_a_fate() {
        let mut intake = intake();
        let mut fate = |topic: &str, payload: &str| intake.fate(&message(topic, payload));
        let claim = MessageClaim { resource: resource("s"), token: Token(7) };
        assert_eq!(fate("data/s/person", r#"{"token":7}"#), Fate::Judge(claim));
        assert_eq!(fate("data/s", "{}"), Fate::Refuse(Reason::BadTopic));
        assert_eq!(fate("data//person", r#"{"token":7}"#), Fate::Refuse(Reason::BadTopic));
        assert_eq!(fate("data/\u{7}/person", r#"{"token":7}"#), Fate::Refuse(Reason::BadTopic));
        assert_eq!(fate(&format!("data/{}/x", "s".repeat(60)), "{}"), Fate::Refuse(Reason::BadTopic));
        assert_eq!(fate("data/s/person", &" ".repeat(101)), Fate::Refuse(Reason::TooLarge));
        assert_eq!(fate("data/s/person", "{"), Fate::Refuse(Reason::NotJson));
        assert_eq!(fate("data/s/person", "{}"), Fate::Refuse(Reason::NoToken));
        let retained = Message { is_retained: true, ..message("data/s/person", r#"{"token":7}"#) };
        assert_eq!(intake.fate(&retained), Fate::Refuse(Reason::Retained));
        intake.takes_retained = true;
        assert!(matches!(intake.fate(&retained), Fate::Judge(_)));
    }

    #[test]
    fn each_message_is_read_by_exactly_one_shard() {
        let shards = Shards::new("main", 3).expect("good");
        let mut all: Vec<Intake> =
            (0..3).map(|shard| Intake { shards: shards.clone(), shard, ..intake() }).collect();
        for number in 0..100 {
            for topic in [format!("data/s-{number}/x"), format!("odd-{number}")] {
                let message = message(&topic, "{}");
                let readers = all.iter_mut().filter_map(|intake| match intake.fate(&message) {
                    Fate::Ignore => None,
                    _ => Some(()),
                });
                assert_eq!(readers.count(), 1, "{topic}");
            }
        }
    }
}
