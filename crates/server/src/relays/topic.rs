//! Routing keys and topics: templates that are filled with the names of a message, escaped so that no name can be
//! mistaken for a separator or a wildcard.

use super::message::Message;

const ROUTING_KEY_BYTES_MAX: usize = 255;
/// In a routing key that would be too long, a name beyond this is replaced by its hash. Four names, the name of the
/// event and the rest of the longest template (31 bytes) then fit.
const NAME_BYTES_MAX: usize = 50;
/// Stands for a site that is not known.
const NOTHING: &str = "-";

/// The separator of a topic, and the characters of names that must be escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Words with dots between them, at most 255 bytes: AMQP.
    Words,
    /// Levels with slashes between them: MQTT.
    Levels,
}

impl Style {
    fn reserved(self) -> &'static [char] {
        match self {
            Self::Words => &['.', '*', '#', '%'],
            Self::Levels => &['/', '+', '#', '%', '$'],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    #[error(
        "{template:?} has braces around something else than {}",
        FIELDS.map(|field| format!("{{{field}}}")).join(", ")
    )]
    Field { template: String },
    #[error("{0:?} has a {1:?}, which no message can be published under")]
    Wildcard(String, char),
    #[error("a routing key or topic needs 1 to {} characters, with its fields in braces", ROUTING_KEY_BYTES_MAX / 4)]
    Length,
}

/// A template with `{tenant}`, `{site}`, `{kind}`, `{key}` and `{event}` in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    template: String,
    style: Style,
}

const FIELDS: [&str; 5] = ["tenant", "site", "kind", "key", "event"];

impl Topic {
    pub fn new(template: &str, style: Style) -> Result<Self, TopicError> {
        let mut rest = template;
        while let Some(open) = rest.find(['{', '}']) {
            let field = rest[open..].strip_prefix('{').and_then(|field| field.split_once('}'));
            let Some((field, after)) = field.filter(|(field, _)| FIELDS.contains(field)) else {
                return Err(TopicError::Field { template: template.to_owned() });
            };
            let _ = field;
            rest = after;
        }
        let wild: &[char] = if style == Style::Words { &['*', '#'] } else { &['+', '#'] };
        if let Some(c) = template.chars().find(|c| wild.contains(c) || c.is_control()) {
            return Err(TopicError::Wildcard(template.to_owned(), c));
        }
        if template.is_empty() || (style == Style::Words && template.len() > ROUTING_KEY_BYTES_MAX / 4) {
            return Err(TopicError::Length);
        }
        Ok(Self { template: template.to_owned(), style })
    }

    pub fn of(&self, message: &Message) -> String {
        let whole = self.fill(message, usize::MAX);
        match self.style {
            Style::Words if whole.len() > ROUTING_KEY_BYTES_MAX => self.fill(message, NAME_BYTES_MAX),
            _ => whole,
        }
    }

    fn fill(&self, message: &Message, most: usize) -> String {
        let key = &message.resource;
        let name = |name: &str| {
            let escaped = escape(name, self.style);
            // `%~` begins no escape.
            if escaped.len() > most {
                format!("%~{}", &blake3::hash(name.as_bytes()).to_hex()[..32])
            } else {
                escaped
            }
        };
        let site = message.site.as_ref().map_or_else(|| NOTHING.to_owned(), |site| name(site.as_str()));
        self.template
            .replace("{event}", message.event)
            .replace("{tenant}", &name(key.tenant.as_str()))
            .replace("{site}", &site)
            .replace("{kind}", &name(key.kind.as_str()))
            .replace("{key}", &name(key.key.as_str()))
    }
}

/// A name as one word or level: reserved characters as `%` and two hexadecimal digits, as in a URL. So are braces,
/// which a template would take for a field, and a name that is only a dash, which stands for no site.
fn escape(name: &str, style: Style) -> String {
    if name == NOTHING {
        return "%2D".to_owned();
    }
    let mut escaped = String::with_capacity(name.len());
    for c in name.chars() {
        if style.reserved().contains(&c) || c == '{' || c == '}' {
            escaped.push_str(&format!("%{:02X}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use solehold_core::{
        key::{Name, ResourceKey},
        time::{Revision, StoreTime},
    };
    use uuid::Uuid;

    use super::*;
    use crate::relays::config::RabbitMqConfig;

    fn message(tenant: &str, site: Option<&str>, key: &str) -> Message {
        of_kind("job", tenant, site, key)
    }

    fn of_kind(kind: &str, tenant: &str, site: Option<&str>, key: &str) -> Message {
        let name = |text: &str| Name::new(text).expect("a name");
        Message {
            id: Uuid::nil(),
            event: "lease_acquired",
            resource: ResourceKey::new(name(tenant), name(kind), name(key)),
            site: site.map(name),
            at: StoreTime(0),
            revision: Revision(1),
            body: Bytes::new(),
        }
    }

    fn words(message: &Message) -> String {
        Topic::new(RabbitMqConfig::ROUTING_KEY, Style::Words).expect("good").of(message)
    }

    #[test]
    fn no_name_is_taken_for_a_separator_or_a_wildcard() {
        assert_eq!(words(&message("acme", Some("north"), "a-1")), "leases.acme.north.job.a-1.lease_acquired");
        assert_eq!(words(&message("a.b", None, "#*%")), "leases.a%2Eb.-.job.%23%2A%25.lease_acquired");
        assert_eq!(words(&message("{site}", Some("-"), "c")), "leases.%7Bsite%7D.%2D.job.c.lease_acquired");
        let levels = Topic::new("leases/{tenant}/{kind}/{key}/{event}", Style::Levels).expect("good");
        assert_eq!(levels.of(&message("a/+", None, "$x")), "leases/a%2F%2B/job/%24x/lease_acquired");
    }

    #[test]
    fn a_routing_key_is_never_too_long() {
        let long = "ü.".repeat(84);
        let one = format!("{long}1");
        let other = format!("{long}2");
        let routed = words(&message(&one, Some(&one), &one));
        assert!(routed.len() <= ROUTING_KEY_BYTES_MAX, "{routed}");
        assert_eq!(routed.split('.').count(), 6);
        for long in [50, 51, 60, 255] {
            let name = "n".repeat(long);
            let routed = words(&of_kind(&name, &name, Some(&name), &name));
            assert!(routed.len() <= ROUTING_KEY_BYTES_MAX, "four names of {long} bytes: {routed}");
        }
        assert_ne!(routed, words(&message(&other, Some(&one), &one)), "names that differ stay apart");
        assert!(
            words(&message("acme", Some("north"), &long[..99])).contains("%2E"),
            "short ones stay readable"
        );
    }

    #[test]
    fn a_template_is_checked() {
        for (template, style, words) in [
            ("leases.{device}", Style::Words, "{tenant}, {site}, {kind}, {key}, {event}"),
            ("leases.{key", Style::Words, "braces"),
            ("leases.#", Style::Words, "'#'"),
            ("leases/+/{key}", Style::Levels, "'+'"),
            ("", Style::Levels, "1 to"),
        ] {
            let error = Topic::new(template, style).expect_err(template).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
