//! Times and durations on the wire.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::Number;
use solehold_core::time::StoreTime;

use crate::{field::FieldError, limits::TtlBounds};

/// A time as RFC 3339 in UTC with milliseconds: `2026-01-22T10:00:00.000Z`. Past the end of the calendar it stays
/// there.
///
/// ```
/// use solehold_api::time::Timestamp;
/// use solehold_core::time::StoreTime;
///
/// let time = Timestamp::from(StoreTime(1_701_424_800_000));
/// assert_eq!(time.to_string(), "2023-12-01T10:00:00.000Z");
/// assert_eq!("2023-12-01T11:00:00+01:00".parse(), Ok(time));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime, example = "2026-01-22T10:00:00.000Z"))]
pub struct Timestamp(i64);

/// The last millisecond that jiff knows, at the end of the year 9999.
const MS_MAX: i64 = 253_402_207_200_000;

/// A text is not a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not a time as in 2026-01-22T10:00:00.000Z")]
pub struct TimestampError;

impl Timestamp {
    fn from_ms(ms: i64) -> Self {
        Self(ms.clamp(0, MS_MAX))
    }
}

impl From<StoreTime> for Timestamp {
    fn from(time: StoreTime) -> Self {
        Self::from_ms(i64::try_from(time.0).unwrap_or(i64::MAX))
    }
}

impl From<Timestamp> for StoreTime {
    fn from(time: Timestamp) -> Self {
        Self(time.0.unsigned_abs())
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let time: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        Ok(Self::from_ms(time.as_millisecond()))
    }
}

impl TryFrom<String> for Timestamp {
    type Error = TimestampError;
    fn try_from(text: String) -> Result<Self, TimestampError> {
        text.parse()
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> Self {
        time.to_string()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Within the bounds there is always one.
        write!(f, "{:.3}", jiff::Timestamp::from_millisecond(self.0).unwrap_or_default())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TtlBounds {
    /// The given time to live, or the default.
    pub fn resolve(self, ttl_ms: Option<&Number>, ttl_seconds: Option<&Number>) -> Result<u64, FieldError> {
        Ok(self.given(ttl_ms, ttl_seconds)?.unwrap_or(self.default_ms))
    }

    /// The given time to live, if any.
    pub fn given(
        self,
        ttl_ms: Option<&Number>,
        ttl_seconds: Option<&Number>,
    ) -> Result<Option<u64>, FieldError> {
        match (ttl_ms, ttl_seconds) {
            (Some(_), Some(_)) => {
                Err(FieldError::new("ttl_ms", "and ttl_seconds are both given; give only one"))
            }
            (Some(ms), None) => self.ms("ttl_ms", ms).map(Some),
            (None, seconds) => seconds.map(|seconds| self.seconds("ttl_seconds", seconds)).transpose(),
        }
    }

    /// A whole number of milliseconds within the bounds.
    pub fn ms(self, field: &str, given: &Number) -> Result<u64, FieldError> {
        let Self { least_ms, most_ms, .. } = self;
        let fault = || {
            FieldError::new(
                field,
                format!("is {given}; it must be a whole number from {least_ms} to {most_ms}"),
            )
        };
        given.as_u64().filter(|ms| (least_ms..=most_ms).contains(ms)).ok_or_else(fault)
    }

    /// A number of seconds within the bounds, as the nearest number of milliseconds.
    pub fn seconds(self, field: &str, given: &Number) -> Result<u64, FieldError> {
        let least = self.least_ms as f64 / 1000.0;
        let most = self.most_ms as f64 / 1000.0;
        let fault = || FieldError::new(field, format!("is {given}; it must be {least} to {most}"));
        let ms = given.as_f64().map(|seconds| (seconds * 1000.0).round());
        // Within the bounds it is finite, positive and far below 2^53, so the cast is exact.
        ms.filter(|ms| (self.least_ms as f64..=self.most_ms as f64).contains(ms))
            .map(|ms| ms as u64)
            .ok_or_else(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CAMERA_TTL, SCENE_TTL};

    fn number(text: &str) -> Number {
        text.parse().expect("a JSON number")
    }

    #[test]
    fn times_keep_their_milliseconds() {
        for ms in [0, 1, 999, 1_701_424_800_123, 253_402_207_199_999] {
            let time = Timestamp::from(StoreTime(ms));
            assert_eq!(StoreTime::from(time), StoreTime(ms), "{time}");
            let json = serde_json::to_string(&time).expect("a time");
            assert_eq!(serde_json::from_str::<Timestamp>(&json).expect(&json), time);
        }
        assert_eq!(Timestamp::from(StoreTime(1)).to_string(), "1970-01-01T00:00:00.001Z");
    }

    #[test]
    fn absurd_times_saturate() {
        let end = Timestamp::from(StoreTime(u64::MAX));
        assert_eq!(end, Timestamp::from(StoreTime(i64::MAX as u64)));
        assert_eq!(end.to_string().parse(), Ok(end));
        assert_eq!(end.to_string(), "9999-12-30T22:00:00.000Z");
        assert!(jiff::Timestamp::from_millisecond(MS_MAX).is_ok(), "jiff's last millisecond has moved");
        assert_eq!("1969-07-20T20:17:00Z".parse(), Ok(Timestamp::from(StoreTime(0))));
        for odd in ["", "yesterday", "2023-12-01", "2023-12-01T10:00:00", "2023-13-01T10:00:00Z", "数"] {
            assert_eq!(odd.parse::<Timestamp>(), Err(TimestampError), "{odd}");
        }
        assert!(odd_json("12").is_err() && odd_json("null").is_err());
    }

    fn odd_json(json: &str) -> serde_json::Result<Timestamp> {
        serde_json::from_str(json)
    }

    #[test]
    fn a_ttl_is_seconds_or_milliseconds() {
        assert_eq!(SCENE_TTL.resolve(None, None), Ok(30_000));
        assert_eq!(SCENE_TTL.given(None, None), Ok(None));
        assert_eq!(SCENE_TTL.resolve(Some(&number("1500")), None), Ok(1_500));
        assert_eq!(SCENE_TTL.resolve(None, Some(&number("1.5"))), Ok(1_500));
        assert_eq!(SCENE_TTL.resolve(None, Some(&number("1.0004"))), Ok(1_000));
        assert_eq!(CAMERA_TTL.resolve(None, Some(&number("300"))), Ok(300_000));
        let both = SCENE_TTL.resolve(Some(&number("1")), Some(&number("1"))).expect_err("both");
        assert_eq!(both.to_string(), "ttl_ms and ttl_seconds are both given; give only one");
    }

    #[test]
    fn an_odd_ttl_is_refused_with_its_bounds() {
        for odd in ["-5", "0", "-0.0", "0.9", "86400.1", "1e300", "-1e300", "18446744073709551615"] {
            let fault = CAMERA_TTL.resolve(None, Some(&number(odd))).expect_err(odd);
            assert_eq!(fault.field, "ttl_seconds");
            assert!(fault.message.ends_with("it must be 1 to 86400"), "{fault}");
        }
        for odd in ["-5", "1000.5", "999", "86400001", "1e300"] {
            let fault = SCENE_TTL.resolve(Some(&number(odd)), None).expect_err(odd);
            assert_eq!(fault.field, "ttl_ms");
            assert!(fault.message.ends_with("it must be a whole number from 1000 to 86400000"), "{fault}");
        }
    }
}
