//! How long a holder may trust its lease (rule 4): one function, used for every grant, renewal and row claim.

use std::time::Duration;

use crate::BootTime;

/// The least margin.
const MARGIN_MIN: Duration = Duration::from_millis(100);

/// How much earlier than the authority a holder stops: 2 % of the time left, at least 100 ms, plus the slack that the
/// authority reports for its store's clock (500 ms where that is a wall clock, which may step that far unnoticed); at
/// most half of the time left.
pub fn margin(ttl_left: Duration, slack: Duration) -> Duration {
    (ttl_left / 50).max(MARGIN_MIN).saturating_add(slack).min(ttl_left / 2)
}

/// Until when the holder may trust a lease that has `ttl_left`, according to the answer to a request that was sent at
/// `sent`. The authority decided after `sent`, so its own deadline is later.
pub fn local_deadline(sent: BootTime, ttl_left: Duration, slack: Duration) -> BootTime {
    sent.plus(ttl_left.saturating_sub(margin(ttl_left, slack)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slack() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::from_millis(500)),
            (0u64..100_000).prop_map(Duration::from_millis)
        ]
    }

    proptest! {
        #[test]
        fn the_holder_stops_before_the_authority_does(
            sent_ms in 0u64..1 << 40, answered_ms in 0u64..60_000, ttl_ms in 1u64..86_400_000, slack in slack(),
        ) {
            let sent = BootTime::from_nanos(sent_ms * 1_000_000);
            // The authority decides somewhere between the sending and the answer.
            let decided = sent.plus(Duration::from_millis(answered_ms));
            let ttl = Duration::from_millis(ttl_ms);
            let deadline = local_deadline(sent, ttl, slack);
            prop_assert!(deadline >= sent);
            prop_assert!(deadline < decided.plus(ttl));
            // Even if the holder's clock is 1 % slower than the authority's.
            let slow = sent.plus(deadline.since(sent).mul_f64(1.01));
            prop_assert!(slow <= sent.plus(ttl));
        }

        #[test]
        fn the_margin_is_as_the_rule_says(ttl_ms in 1u64..86_400_000, slack in slack()) {
            let ttl = Duration::from_millis(ttl_ms);
            let margin = margin(ttl, slack);
            prop_assert!(margin <= ttl / 2);
            prop_assert!(margin == ttl / 2 || margin == (ttl / 50).max(MARGIN_MIN) + slack);
        }

        #[test]
        fn more_time_left_never_means_an_earlier_deadline(a in 1u64..100_000_000, b in 1u64..100_000_000, slack in slack()) {
            let sent = BootTime::from_nanos(7);
            let of = |ms| local_deadline(sent, Duration::from_millis(ms), slack);
            prop_assert!(of(a.min(b)) <= of(a.max(b)));
        }
    }

    #[test]
    fn known_values() {
        let ms = Duration::from_millis;
        assert_eq!(margin(ms(30_000), ms(0)), ms(600));
        assert_eq!(margin(ms(30_000), ms(500)), ms(1_100));
        assert_eq!(margin(ms(2_000), ms(0)), ms(100));
        assert_eq!(margin(ms(1_000), ms(500)), ms(500));
    }
}
