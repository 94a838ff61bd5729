//! Times as people write them, with the bounds of what they are for.

use std::time::Duration;

use crate::error::ValueError;

/// How long a lease may last without renewal.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 60 * 60);
const TTL_BOUNDS: &str = "--ttl must be 1s to 24h";

/// The value of `--ttl`.
pub fn ttl(text: &str) -> Result<Duration, ValueError> {
    match humantime::parse_duration(text) {
        Ok(ttl) if TTL.contains(&ttl) => Ok(ttl),
        Ok(_) => Err(TTL_BOUNDS.into()),
        Err(error) => Err(format!("{error}; {TTL_BOUNDS}, as in 30s").into()),
    }
}

/// A time above zero, for the options that say how long something may take.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    match humantime::parse_duration(text) {
        Ok(time) if time > Duration::ZERO && time <= *TTL.end() => Ok(time),
        Ok(_) => Err("the time must be above 0 and at most 24h".into()),
        Err(error) => Err(format!("{error}; write it as in 30s").into()),
    }
}

#[cfg(test)]
mod tests {
    use solehold_core::limits::{TTL_MS_MAX, TTL_MS_MIN};

    use super::*;

    #[test]
    fn a_ttl_is_within_the_bounds_of_the_machine() {
        assert_eq!(ttl("1s").map(|ttl| ttl.as_millis()), Ok(u128::from(TTL_MS_MIN)));
        assert_eq!(ttl("24h").map(|ttl| ttl.as_millis()), Ok(u128::from(TTL_MS_MAX)));
        for odd in ["0", "0s", "999ms", "24h 1ms", "5", "soon", ""] {
            assert!(ttl(odd).expect_err(odd).to_string().contains(TTL_BOUNDS), "{odd:?}");
        }
    }
}
