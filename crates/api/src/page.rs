//! Lists are paged by cursor: `?limit=100&cursor=...`, and `next` in the answer, until it is null.

use std::{fmt, str::FromStr};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::{
    field::FieldError,
    limits::{PAGE_CURSOR_BYTES_MAX, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX},
};

/// The separator of the parts, and characters that must be escaped in a query string.
const ESCAPED: &AsciiSet =
    &CONTROLS.add(b'/').add(b'%').add(b'+').add(b'&').add(b'#').add(b' ').add(b'"').add(b'=').add(b'?');

/// Where the next page begins: after the item of this identity. Clients give it back as they got it.
///
/// ```
/// use solehold_api::page::PageCursor;
///
/// let cursor = PageCursor(vec!["camera".into(), "hall/7".into()]);
/// assert_eq!(cursor.to_string(), "camera/hall%2F7");
/// assert_eq!("camera/hall%2F7".parse(), Ok(cursor));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
pub struct PageCursor(pub Vec<String>);

impl FromStr for PageCursor {
    type Err = FieldError;
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let is_graphic = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_graphic || !(1..=PAGE_CURSOR_BYTES_MAX).contains(&text.len()) {
            return Err(unknown_cursor());
        }
        let part = |part: &str| percent_decode_str(part).decode_utf8().map(|part| part.into_owned());
        let parts: Result<_, _> = text.split('/').map(part).collect();
        parts.map(Self).map_err(|_| unknown_cursor())
    }
}

text_on_the_wire!(PageCursor);

impl fmt::Display for PageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.0.iter().enumerate() {
            let slash = if at == 0 { "" } else { "/" };
            write!(f, "{slash}{}", utf8_percent_encode(part, ESCAPED))?;
        }
        Ok(())
    }
}

/// A cursor that no page of this list gave.
pub fn unknown_cursor() -> FieldError {
    FieldError::new("cursor", "is not a `next` cursor of this list")
}

/// The number of items on a page: `limit`, or the default.
pub fn size(limit: Option<i64>) -> Result<usize, FieldError> {
    let Some(limit) = limit else { return Ok(PAGE_SIZE_DEFAULT) };
    let fault = || FieldError::new("limit", format!("is {limit}; it must be 1 to {PAGE_SIZE_MAX}"));
    usize::try_from(limit).ok().filter(|size| (1..=PAGE_SIZE_MAX).contains(size)).ok_or_else(fault)
}

/// The query of a list that has no filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct PageQuery {
    /// Where to begin: the `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub cursor: Option<PageCursor>,
    /// The largest number of items to return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    /// The tenant, for a key that is not limited to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// The query of a history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct HistoryQuery {
    /// Begin with the newest event and go back; otherwise with the oldest that is kept.
    #[serde(default)]
    pub newest_first: bool,
    /// Where to begin: the `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub cursor: Option<PageCursor>,
    /// The largest number of items to return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    /// The tenant, for a key that is not limited to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back() {
        for parts in
            [vec!["a"], vec!["a", "b/c", "100%"], vec!["söhne 数", ""], vec!["a+b&c=d#e?"], vec!["", ""]]
        {
            let cursor = PageCursor(parts.into_iter().map(str::to_owned).collect());
            assert_eq!(cursor.to_string().parse(), Ok(cursor.clone()), "{cursor}");
            let json = serde_json::to_string(&cursor).expect("a cursor");
            assert_eq!(serde_json::from_str::<PageCursor>(&json).expect(&json), cursor);
        }
        for odd in ["", "%FF", "a b", "söhne", "line\n", &"x".repeat(PAGE_CURSOR_BYTES_MAX + 1)] {
            assert!(odd.parse::<PageCursor>().is_err(), "{odd}");
        }
    }

    #[test]
    fn page_sizes_are_bounded() {
        assert_eq!(size(None), Ok(100));
        assert_eq!((size(Some(1)), size(Some(1_000))), (Ok(1), Ok(1_000)));
        for odd in [0, -1, 1_001, i64::MAX, i64::MIN] {
            assert_eq!(size(Some(odd)).expect_err("odd").field, "limit");
        }
    }
}
