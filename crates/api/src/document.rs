//! JSON documents that core keeps as opaque text, and hashes of what they say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Number, Value};
use solehold_core::key::Document;

use crate::{field::FieldError, limits::DOCUMENT_DEPTH_MAX};

/// Makes a document of something that is JSON; refused when it is too large or too deep.
pub fn to_document<T: Serialize>(field: &str, what: &T) -> Result<Document, FieldError> {
    let fault = |why: String| FieldError::new(field, why);
    let value = serde_json::to_value(what).map_err(|error| fault(format!("is not JSON: {error}")))?;
    if depth(&value) > DOCUMENT_DEPTH_MAX {
        return Err(fault(format!("is nested deeper than {DOCUMENT_DEPTH_MAX} levels")));
    }
    Document::new(value.to_string()).map_err(|error| fault(error.to_string()))
}

/// A document as JSON; one that is not JSON becomes a string.
pub fn to_value(document: &Document) -> Value {
    serde_json::from_str(document.as_str()).unwrap_or_else(|_| Value::String(document.as_str().to_owned()))
}

/// A document as a `T`, if it has that shape.
pub fn read<T: DeserializeOwned>(document: &Document) -> Option<T> {
    serde_json::from_str(document.as_str()).ok()
}

/// The fields of a document; none, if it is not an object.
pub fn to_fields(document: &Document) -> BTreeMap<String, Value> {
    read(document).unwrap_or_default()
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The attributes that the pipeline keeps with a lease. Core does not interpret them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseAttributes {
    /// The shard that works on the camera.
    pub shard_id: String,
    /// The configuration that the holder knew.
    pub config_version: String,
    /// The zones that the holder knew.
    pub zone_version: String,
}

impl LeaseAttributes {
    /// Reads the attributes of a lease; all are empty if another surface wrote them.
    pub fn of(attributes: &Document) -> Self {
        read(attributes).unwrap_or_default()
    }
}

/// A version of content: the same content gives the same version, whatever the order of keys and whether a whole number
/// has a decimal point; the order of `values` and of lists counts. 32 hexadecimal digits.
///
/// ```
/// use serde_json::json;
/// use solehold_api::document::content_hash;
///
/// let one: serde_json::Value = serde_json::from_str(r#"{"a": 1, "b": [2.0]}"#)?;
/// assert_eq!(content_hash([one]), content_hash([json!({"b": [2], "a": 1})]));
/// assert_ne!(content_hash([json!({"a": 1})]), content_hash([json!({"a": 2})]));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn content_hash<T: Serialize>(values: impl IntoIterator<Item = T>) -> String {
    let mut hasher = blake3::Hasher::new();
    for value in values {
        // What cannot be JSON has no content; every wire type can.
        let value = serde_json::to_value(value).unwrap_or_default();
        hasher.update(canonical(value).to_string().as_bytes());
        hasher.update(b"\n");
    }
    let hash = hasher.finalize();
    blake3::Hash::to_hex(&hash).chars().take(32).collect()
}

/// The same value with its keys sorted and whole numbers written as such.
fn canonical(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(canonical).collect(),
        Value::Object(fields) => {
            // Sorted here, whatever order the map of some other build's serde_json keeps.
            let sorted: BTreeMap<String, Value> =
                fields.into_iter().map(|(key, value)| (key, canonical(value))).collect();
            Value::Object(sorted.into_iter().collect())
        }
        Value::Number(number) => Value::Number(whole(&number).unwrap_or(number)),
        other => other,
    }
}

fn whole(number: &Number) -> Option<Number> {
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;
    let value = number.as_f64().filter(|_| number.is_f64())?;
    (value.fract() == 0.0 && value.abs() <= EXACT_MAX).then(|| Number::from(value as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use solehold_core::limits::DOCUMENT_BYTES_MAX;

    use super::*;

    #[test]
    fn documents_come_back_as_they_were() {
        for value in
            [json!({"a": {"b": [1, -2, 0.5, "söhne", null, true]}}), json!(null), json!([]), json!(7)]
        {
            let document = to_document("state", &value).expect("a small document");
            assert_eq!(to_value(&document), value);
        }
        let text = Document::new("not { json").expect("short");
        assert_eq!(to_value(&text), json!("not { json"));
        assert_eq!(to_fields(&text), BTreeMap::new());
        assert_eq!(to_fields(&to_document("x", &json!([1])).expect("small")), BTreeMap::new());
    }

    #[test]
    fn documents_are_bounded() {
        let large = to_document("state", &"x".repeat(DOCUMENT_BYTES_MAX)).expect_err("too large");
        assert_eq!(large.to_string(), "state has 65538 bytes; a document has at most 65536");
        let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        assert!(to_document("state", &nested(DOCUMENT_DEPTH_MAX)).is_ok());
        assert!(to_document("state", &nested(DOCUMENT_DEPTH_MAX + 1)).is_err());
    }

    #[test]
    fn the_same_content_has_the_same_hash() {
        let parse = |json: &str| serde_json::from_str::<Value>(json).expect("JSON");
        let hash = |json: &str| content_hash([parse(json)]);
        assert_eq!(hash(r#"{"a":1,"b":{"c":2,"d":[3]}}"#), hash(r#"{"b":{"d":[3.0],"c":2e0},"a":1.0}"#));
        assert_eq!(hash("-0.0"), hash("0"));
        for other in [r#"{"a":[2,1]}"#, r#"{"a":[1,2.5]}"#, r#"{"a":["1",2]}"#, r#"{"a":1,"b":2}"#, "{}"] {
            assert_ne!(hash(r#"{"a":[1,2]}"#), hash(other), "{other}");
        }
        assert_ne!(content_hash(["ab", "c"]), content_hash(["a", "bc"]));
        assert_ne!(content_hash::<Value>([]), content_hash([Value::Null]));
        // Versions are kept by clients: they must not change between releases.
        assert_eq!(content_hash::<Value>([]), "af1349b9f5f9a1a6a0404dea36dcc949");
        assert_eq!(hash(r#"{"a":1}"#).len(), 32);
    }
}
