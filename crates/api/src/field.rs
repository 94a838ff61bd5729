//! Validation of a body, field by field. Checks continue after the first fault, so that all are reported at once.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use solehold_core::key::Name;

use crate::limits::{LABELS_MAX, REASON_BYTES_MAX};

/// An invalid field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{field} {message}")]
pub struct FieldError {
    /// The path of the field in the body, such as `zones[2].polygon`.
    pub field: String,
    /// The fault, as a sentence that begins with the field: "is empty".
    pub message: String,
    /// The smallest valid number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum: Option<u64>,
    /// The largest valid number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum: Option<u64>,
}

impl FieldError {
    /// The message states the fault and the allowed values.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into(), minimum: None, maximum: None }
    }

    #[must_use]
    pub fn bounds(self, minimum: u64, maximum: u64) -> Self {
        Self { minimum: Some(minimum), maximum: Some(maximum), ..self }
    }
}

/// A value, or all of its faults.
pub type Checked<T> = Result<T, Vec<FieldError>>;

/// Makes a text of the wire a name.
///
/// ```
/// use solehold_api::field::name;
///
/// assert_eq!(name("holder", "tracker-0").map(String::from), Ok("tracker-0".to_owned()));
/// assert_eq!(name("holder", "").expect_err("no name").to_string(), "holder is empty; a name has 1 to 255 bytes");
/// ```
pub fn name(field: &str, value: &str) -> Result<Name, FieldError> {
    Name::new(value).map_err(|error| FieldError::new(field, error.to_string()))
}

pub fn maybe_name(field: &str, value: Option<&str>) -> Result<Option<Name>, FieldError> {
    value.map(|value| name(field, value)).transpose()
}

pub(crate) fn reason(given: &Option<String>) -> Checked<Option<String>> {
    let mut faults = Faults::default();
    faults.text("reason", given.as_deref(), REASON_BYTES_MAX);
    faults.finish(|| Some(given.clone()))
}

/// Collects faults.
#[derive(Debug, Default)]
pub struct Faults(Vec<FieldError>);

impl Faults {
    pub fn note(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError::new(field, message));
    }

    /// Notes a fault unless all is `good`.
    pub fn check(&mut self, good: bool, field: impl Into<String>, message: impl Into<String>) {
        if !good {
            self.note(field, message);
        }
    }

    /// The value, or notes what is wrong with it.
    pub fn take<T>(&mut self, result: Result<T, FieldError>) -> Option<T> {
        result.map_err(|fault| self.0.push(fault)).ok()
    }

    /// Notes all faults of a part, their paths below `at`.
    pub fn take_all<T>(&mut self, at: &str, result: Checked<T>) -> Option<T> {
        let below = |fault: FieldError| FieldError { field: join(at, &fault.field), ..fault };
        result.map_err(|faults| self.0.extend(faults.into_iter().map(below))).ok()
    }

    /// A name that must be there.
    pub fn name(&mut self, field: &str, value: &str) -> Option<Name> {
        self.take(name(field, value))
    }

    /// A name that may be left out: `Some(None)` then, and `None` if it is no name.
    pub fn maybe_name(&mut self, field: &str, value: Option<&str>) -> Option<Option<Name>> {
        self.take(maybe_name(field, value))
    }

    pub fn within<T: Copy + PartialOrd + fmt::Display>(&mut self, field: &str, value: T, least: T, most: T) {
        let good = least <= value && value <= most;
        self.check(good, field, format!("is {value}; it must be {least} to {most}"));
    }

    /// Labels: names, with short printable values that may be empty.
    pub fn labels(&mut self, field: &str, labels: &BTreeMap<String, String>) {
        self.check(
            labels.len() <= LABELS_MAX,
            field,
            format!("has {} entries; it may have {LABELS_MAX}", labels.len()),
        );
        for (label, value) in labels {
            let at = format!("{field}.{}", label.chars().take(64).collect::<String>());
            self.take(name(&at, label));
            if !value.is_empty() {
                self.take(name(&at, value));
            }
        }
    }

    pub fn text(&mut self, field: &str, value: Option<&str>, bytes_max: usize) {
        let bytes = value.map_or(0, str::len);
        self.check(bytes <= bytes_max, field, format!("has {bytes} bytes; it may have {bytes_max}"));
    }

    /// Builds the value from the checked parts, if there are no faults. Every missing part has noted a fault.
    pub fn finish<T>(self, made: impl FnOnce() -> Option<T>) -> Checked<T> {
        if !self.0.is_empty() {
            return Err(self.0);
        }
        made().ok_or(self.0)
    }

    /// Nothing, if nothing is wrong.
    pub fn done(self) -> Checked<()> {
        self.finish(|| Some(()))
    }
}

pub(crate) fn join(at: &str, field: &str) -> String {
    if at.is_empty() { field.to_owned() } else { format!("{at}.{field}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_faults_are_reported() {
        let mut faults = Faults::default();
        let good = faults.name("a", "söhne/数");
        let empty = faults.name("b", "");
        let long = faults.maybe_name("c", Some(&"x".repeat(10_000)));
        let absent = faults.maybe_name("d", None);
        faults.within("e", 101, 1, 100);
        faults.take_all("items[3]", Err::<(), _>(vec![FieldError::new("key", "is odd")]));
        faults.text("f", Some("four"), 3);
        assert!(good.is_some() && empty.is_none() && long.is_none() && absent == Some(None));
        let faults = faults.finish(|| Some(1)).expect_err("much is wrong");
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "b is empty; a name has 1 to 255 bytes",
                "c has 10000 bytes; a name has at most 255",
                "e is 101; it must be 1 to 100",
                "items[3].key is odd",
                "f has 4 bytes; it may have 3",
            ]
        );
    }

    #[test]
    fn labels_are_names_with_short_values() {
        let check = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(l, v)| ((*l).to_owned(), (*v).to_owned())).collect();
            let mut faults = Faults::default();
            faults.labels("labels", &labels);
            faults.done().map_err(|faults| faults.into_iter().map(|f| f.field).collect::<Vec<_>>())
        };
        assert_eq!(check(&[("zone", "eu"), ("gpu", "")]), Ok(()));
        assert_eq!(
            check(&[("", "x"), ("a", "line\nbreak")]),
            Err(vec!["labels.".to_owned(), "labels.a".to_owned()])
        );
        let many: Vec<String> = (0..=LABELS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|n| (n.as_str(), "")).collect();
        assert_eq!(check(&many), Err(vec!["labels".to_owned()]));
    }
}
