//! Where a reader of the watch stands.

use std::{fmt, str::FromStr};

use crate::field::FieldError;

/// A point in the stream of all changes: `epoch.revision`. Epochs tell a restored store from the one before.
///
/// ```
/// use solehold_api::watch::Cursor;
///
/// let cursor: Cursor = "1.42".parse()?;
/// assert_eq!(cursor, Cursor { epoch: 1, revision: 42 });
/// assert_eq!(cursor.to_string(), "1.42");
/// # Ok::<(), solehold_api::field::FieldError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor {
    /// The epoch of the store.
    pub epoch: u64,
    /// The last revision that was seen.
    pub revision: u64,
}

impl FromStr for Cursor {
    type Err = FieldError;
    fn from_str(text: &str) -> Result<Self, FieldError> {
        // Digits only: `parse` alone would take a sign.
        let number =
            |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let cursor = text
            .split_once('.')
            .and_then(|(epoch, revision)| Some(Self { epoch: number(epoch)?, revision: number(revision)? }));
        cursor.ok_or_else(|| FieldError::new("from", "is not a cursor, as in 1.42"))
    }
}

text_on_the_wire!(Cursor);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.revision)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Cursor {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, Type};
        let text = ObjectBuilder::new().schema_type(Type::String).examples(["1.42"]);
        text.description(Some("A point in the stream of all changes: `epoch.revision`.")).into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Cursor {}
