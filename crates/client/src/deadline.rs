//! How long a holder may trust its lease (rule 4): one function, used for every grant and every renewal.

use std::time::Duration;

use crate::clock::Tick;

/// The least margin.
const MARGIN_MIN: Duration = Duration::from_millis(100);
/// What a store whose clock may step adds to it: so far may its time be off before a replica corrects it (rule 2).
const STEP_MARGIN: Duration = Duration::from_millis(500);

/// What the authority's store counts time by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreClock {
    /// A clock that never steps: the embedded store and memory.
    Steady,
    /// A wall clock, corrected when it steps: PostgreSQL. Also what nobody knows yet.
    Wall,
}

impl StoreClock {
    /// The clock of a store by its name, as health tells it. An unknown one may step.
    pub fn of_store(name: &str) -> Self {
        match name {
            "embedded" | "memory" => Self::Steady,
            _ => Self::Wall,
        }
    }
}

/// How much earlier than the authority a holder stops: 2 % of the time left or 100 ms, and 500 ms more where the store's
/// clock may step; at most half of the time left.
pub fn margin(ttl_left: Duration, clock: StoreClock) -> Duration {
    let step = match clock {
        StoreClock::Steady => Duration::ZERO,
        StoreClock::Wall => STEP_MARGIN,
    };
    ((ttl_left / 50).max(MARGIN_MIN) + step).min(ttl_left / 2)
}

/// Until when the holder may trust a lease of which the authority said, in answer to what was sent at `sent`, that it has
/// `ttl_left` to live. The authority decided after `sent`, so its own deadline is later.
pub fn local_deadline(sent: Tick, ttl_left: Duration, clock: StoreClock) -> Tick {
    sent.plus(ttl_left.saturating_sub(margin(ttl_left, clock)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clocks() -> impl Strategy<Value = StoreClock> {
        prop_oneof![Just(StoreClock::Steady), Just(StoreClock::Wall)]
    }

    proptest! {
        #[test]
        fn the_holder_stops_before_the_authority_does(
            sent_ms in 0u64..1 << 40, answered_ms in 0u64..60_000, ttl_ms in 1u64..86_400_000, clock in clocks(),
        ) {
            let sent = Tick::from_nanos(sent_ms * 1_000_000);
            // The authority decides somewhere between the sending and the answer.
            let decided = sent.plus(Duration::from_millis(answered_ms));
            let ttl = Duration::from_millis(ttl_ms);
            let deadline = local_deadline(sent, ttl, clock);
            prop_assert!(deadline >= sent);
            prop_assert!(deadline < decided.plus(ttl));
            // Even if the holder's clock is 1 % slower than the authority's.
            let slow = sent.plus(deadline.since(sent).mul_f64(1.01));
            prop_assert!(slow <= sent.plus(ttl));
        }

        #[test]
        fn the_margin_is_as_the_rule_says(ttl_ms in 1u64..86_400_000, clock in clocks()) {
            let ttl = Duration::from_millis(ttl_ms);
            let margin = margin(ttl, clock);
            prop_assert!(margin <= ttl / 2);
            if ttl >= Duration::from_secs(2) {
                prop_assert!(margin >= ttl / 50 && margin >= MARGIN_MIN);
                prop_assert_eq!(margin >= STEP_MARGIN + ttl / 50, clock == StoreClock::Wall || ttl / 50 >= STEP_MARGIN + ttl / 50);
            }
        }

        #[test]
        fn more_time_left_never_means_an_earlier_deadline(a in 1u64..100_000_000, b in 1u64..100_000_000, clock in clocks()) {
            let sent = Tick::from_nanos(7);
            let of = |ms| local_deadline(sent, Duration::from_millis(ms), clock);
            prop_assert!(of(a.min(b)) <= of(a.max(b)));
        }
    }

    #[test]
    fn known_values() {
        let ms = Duration::from_millis;
        assert_eq!(margin(ms(30_000), StoreClock::Steady), ms(600));
        assert_eq!(margin(ms(30_000), StoreClock::Wall), ms(1_100));
        assert_eq!(margin(ms(2_000), StoreClock::Steady), ms(100));
        assert_eq!(margin(ms(1_000), StoreClock::Wall), ms(500));
        assert_eq!(StoreClock::of_store("embedded"), StoreClock::Steady);
        assert_eq!(StoreClock::of_store("postgres"), StoreClock::Wall);
        assert_eq!(StoreClock::of_store(""), StoreClock::Wall);
    }
}
