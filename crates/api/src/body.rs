//! Reading a body: JSON whatever its content type, and an error that names the place.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;

use crate::{field::FieldError, problem::Problem};

/// Reads a body. An empty one is an empty object.
///
/// ```
/// use solehold_api::{body, problem::ErrorCode, scenes::SceneLeaseRequest};
///
/// let request: SceneLeaseRequest = body::parse(br#"{"holder_id": "tracker-0"}"#)?;
/// assert_eq!(request.holder_id, "tracker-0");
/// let problem = body::parse::<SceneLeaseRequest>(br#"{"holder_id": 7}"#).expect_err("a number");
/// assert_eq!((problem.code, problem.errors[0].field.as_str()), (ErrorCode::InvalidField, "holder_id"));
/// # Ok::<(), solehold_api::problem::Problem>(())
/// ```
#[expect(
    clippy::result_large_err,
    reason = "it is answered at once, and there is one for each request at most"
)]
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| Problem::from_json(&error.path().to_string(), error.inner()))?;
    json.end().map_err(|error| Problem::from_json(".", &error))?;
    // Serde takes the values of a list for the fields of an object, in their order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(FieldError::new("body", "is a list; it must be an object").into());
    }
    Ok(value)
}

/// Reads a field that is an object, and not a list of what its fields would be.
pub(crate) fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(given: D) -> Result<T, D::Error> {
    let fields = serde_json::Map::deserialize(given)?;
    serde_json::from_value(Value::Object(fields)).map_err(D::Error::custom)
}

/// Tells a field that is null from one that is not given.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    field: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(field).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        admin::PutTenant,
        config::Camera,
        leases::{AcquireLease, RenewLease},
        problem::ErrorCode,
        resources::PutResource,
        scenes::SceneLeaseRequest,
    };

    fn fault<T: DeserializeOwned + std::fmt::Debug>(body: &str) -> (ErrorCode, String, String) {
        let problem = parse::<T>(body.as_bytes()).expect_err(body);
        let field = problem.errors.first().map(|e| e.field.clone()).unwrap_or_default();
        (problem.code, field, problem.detail.clone())
    }

    #[test]
    fn invalid_json_is_reported_with_its_position() {
        for body in [
            "{",
            "{]",
            "tracker-0",
            r#"{"holder_id": "a"} x"#,
            r#"{"holder_id": "a", "ttl_ms": 1e400}"#,
            "\u{feff}{}",
        ] {
            let (code, _, detail) = fault::<SceneLeaseRequest>(body);
            assert_eq!(code, ErrorCode::InvalidJson, "{body}: {detail}");
            assert!(detail.contains("line 1 column"), "{detail}");
        }
        assert!(parse::<SceneLeaseRequest>(b"{\"holder_id\": \"\xff\"}").is_err());
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse::<serde_json::Value>(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_wrong_type_is_reported_with_its_path() {
        let path = |body| fault::<Camera>(body).1;
        assert_eq!(
            path(r#"{"zones": [{"zone_id": 1, "polygon": [[1, 2], ["a", 2]]}]}"#),
            "zones[0].polygon[1][0]"
        );
        assert_eq!(path(r#"{"motion_gating": {"enabled": "yes"}}"#), "motion_gating.enabled");
        assert_eq!(path("[]"), "body");
        assert_eq!(
            fault::<AcquireLease>(r#"{"camera_uuid": "cam-1", "ttl_seconds": "60"}"#).1,
            "ttl_seconds"
        );
        let (code, field, detail) = fault::<AcquireLease>(r#"{"runner_id": "r"}"#);
        assert_eq!((code, field.as_str()), (ErrorCode::InvalidField, "body"));
        assert!(detail.contains("missing field `camera_uuid`"), "{detail}");
    }

    #[test]
    fn a_list_is_no_object() {
        let (code, field, detail) = fault::<RenewLease>("[null, null, null, null]");
        assert_eq!((code, field.as_str()), (ErrorCode::InvalidField, "body"), "{detail}");
        assert_eq!(fault::<PutTenant>(r#"{"quotas": [1, 2, 3]}"#).1, "quotas");
    }

    #[test]
    fn ours_refuse_unknown_fields_and_an_empty_body_is_empty() {
        let (code, field, _) = fault::<PutResource>(r#"{"lable": {}}"#);
        assert_eq!((code, field.as_str()), (ErrorCode::InvalidField, "lable"));
        assert_eq!(parse::<PutResource>(b" \r\n").expect("nothing is asked"), PutResource::default());
    }
}
