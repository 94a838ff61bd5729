//! Where messages are republished.

use bytes::Bytes;

use crate::{intake::Message, message, refusal::Reason};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    pub topic: String,
    pub payload: Bytes,
    /// Whether the broker keeps it for later subscribers.
    pub is_retained: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// The prefix for the topics of messages that pass.
    pub prefix: String,
    /// The JSON member to remove from messages that pass.
    pub strip: Option<String>,
    /// The prefix for refused messages, before their reason and topic: `DEAD_LETTER/stale/plant/...`.
    pub dead_letter: Option<String>,
}

impl Routes {
    /// The longest topic that fits below every prefix.
    pub fn topic_bytes_max(&self) -> usize {
        let reason = Reason::ALL.iter().map(|reason| reason.name().len()).max().unwrap_or_default();
        let dead = self.dead_letter.as_ref().map_or(0, |topic| topic.len() + 1 + reason);
        crate::topic::TOPIC_BYTES_MAX - dead.max(self.prefix.len()) - 1
    }

    pub fn passed(&self, message: Message) -> Publication {
        let payload = match &self.strip {
            Some(field) => message::without(&message.payload, field),
            None => message.payload,
        };
        let topic = format!("{}/{}", self.prefix, message.topic);
        Publication { topic, payload, is_retained: message.is_retained }
    }

    /// The publication for a refused message, if there is a dead-letter topic.
    pub fn refused(&self, message: Message, reason: Reason) -> Option<Publication> {
        let dead_letter = self.dead_letter.as_ref()?;
        // A topic that is too long to read may be too long to publish.
        let topic = match reason {
            Reason::BadTopic => format!("{dead_letter}/{}", reason.name()),
            _ => format!("{dead_letter}/{}/{}", reason.name(), message.topic),
        };
        let payload = if reason == Reason::TooLarge { Bytes::new() } else { message.payload };
        Some(Publication { topic, payload, is_retained: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::tests::message;

    #[test]
    fn messages_that_pass_keep_their_topic_and_refused_ones_have_their_reason_in_it() {
        let message = message("a/b", r#"{"x":1,"token":2}"#);
        let plain = Routes { prefix: "gated".to_owned(), strip: None, dead_letter: None };
        let passed = plain.passed(message.clone());
        assert_eq!((passed.topic.as_str(), &passed.payload), ("gated/a/b", &message.payload));
        assert_eq!(plain.refused(message.clone(), Reason::Stale), None);
        let full =
            Routes { strip: Some("token".to_owned()), dead_letter: Some("dead".to_owned()), ..plain.clone() };
        assert_eq!(full.passed(message.clone()).payload, r#"{"x":1}"#);
        let dead = full.refused(message.clone(), Reason::Stale).expect("told");
        assert_eq!((dead.topic.as_str(), &dead.payload), ("dead/stale/a/b", &message.payload));
        assert_eq!(full.refused(message.clone(), Reason::TooLarge).expect("told").payload, "");
        assert!(full.topic_bytes_max() < plain.topic_bytes_max());
        let longest = Message { topic: "x".repeat(full.topic_bytes_max()), ..message };
        for reason in Reason::ALL {
            assert!(full.refused(longest.clone(), reason).expect("told").topic.len() <= 65_535);
        }
    }
}
