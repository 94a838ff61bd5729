//! How numbers and times are shown to people.

use std::fmt::Write;

use solehold_api::time::Timestamp;
use solehold_core::time::StoreTime;

/// A duration in its two largest units: `850ms`, `27s`, `3m 12s`, `2h 5m`, `4d 1h`.
pub fn duration_ms(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    if ms < 1_000 {
        return format!("{ms}ms");
    }
    let first = UNITS.iter().position(|(size, _)| ms >= *size).unwrap_or(UNITS.len() - 1);
    let (size, unit) = UNITS[first];
    let mut text = format!("{}{unit}", ms / size);
    if let Some((smaller, unit)) = UNITS.get(first + 1)
        && ms % size >= *smaller
    {
        let _ = write!(text, " {}{unit}", ms % size / smaller);
    }
    text
}

/// How long ago `time` was at `now`, both in milliseconds since the Unix epoch.
pub fn ago(time: Timestamp, now_ms: u64) -> String {
    let then = StoreTime::from(time).0;
    match now_ms.saturating_sub(then) {
        0..1_000 => "just now".to_owned(),
        ms => format!("{} ago", duration_ms(ms)),
    }
}

/// Text from elsewhere on one line of a terminal: control characters could do anything there.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `3 leases`, `1 lease`.
pub fn count(number: usize, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (59_999, "59s"),
            (60_000, "1m"),
            (192_000, "3m 12s"),
            (3_600_000, "1h"),
            (3_659_000, "1h"),
            (7_500_000, "2h 5m"),
            (349_200_000, "4d 1h"),
        ] {
            assert_eq!(duration_ms(ms), text);
        }
        assert!(duration_ms(u64::MAX).ends_with('h'));
    }

    #[test]
    fn the_future_is_now() {
        let time = Timestamp::from(StoreTime(5_000));
        assert_eq!(ago(time, 4_000), "just now");
        assert_eq!(ago(time, 65_000), "1m ago");
    }
}
