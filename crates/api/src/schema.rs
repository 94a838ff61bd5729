//! OpenAPI schemas that cannot be derived: those of core's enums, whose words are the wire's words.

use serde::Serialize;
use solehold_core::{event::EventName, lease::LeaseStatus, session::Standing};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

/// The words of an enum, as they are on the wire.
pub fn words<T: Serialize>(all: &[T]) -> Object {
    let words = all.iter().map(|word| serde_json::to_value(word).unwrap_or_default());
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build()
}

pub fn lease_status() -> Object {
    use LeaseStatus::{Active, Expired, Pending, Released, Revoked};
    words(&[Pending, Active, Expired, Released, Revoked])
}

pub fn event_name() -> Object {
    words(&EventName::ALL)
}

pub fn standing() -> Object {
    words(&[Standing::Current, Standing::Draining, Standing::Superseded])
}

#[cfg(test)]
mod tests {
    use utoipa::ToSchema;

    use super::*;
    use crate::{leases::Envelope, problem::Problem, resources::ResourceBody, watch::WatchFrame};

    /// The schema of a type, and the names of those that it is made of.
    fn of<T: ToSchema>() -> (String, Vec<String>) {
        let mut parts = Vec::new();
        T::schemas(&mut parts);
        let schema = serde_json::to_string(&T::schema()).expect("a schema");
        (schema, parts.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn enums_have_the_words_of_the_wire() {
        let schema = serde_json::to_value(lease_status()).expect("a schema");
        assert_eq!(
            schema["enum"],
            serde_json::json!(["pending", "active", "expired", "released", "revoked"])
        );
        let (event, _) = of::<crate::watch::LeaseEvent>();
        assert!(event.contains("lease_stolen") && event.contains("resource_deleted"), "{event}");
        let (session, _) = of::<crate::sessions::SessionBody>();
        assert!(session.contains("superseded"), "{session}");
    }

    #[test]
    fn schemas_are_whole() {
        let (problem, parts) = of::<Problem>();
        assert!(
            problem.contains("retry_after_ms") && parts.contains(&"ErrorCode".to_owned()),
            "{problem} {parts:?}"
        );
        let (envelope, parts) = of::<Envelope>();
        assert!(envelope.contains("retry_after_seconds"), "{envelope}");
        for part in ["Lease", "Problem", "EndedLease", "ErrorCode", "Timestamp"] {
            assert!(parts.contains(&part.to_owned()), "{part} is not in {parts:?}");
        }
        assert!(of::<WatchFrame>().1.contains(&"Ownership".to_owned()));
        assert!(of::<ResourceBody>().1.contains(&"HeldLease".to_owned()));
    }
}
