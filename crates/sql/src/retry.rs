//! Trying again, with bounds.

use std::{hash::BuildHasher, time::Duration};

use crate::{Error, limits::CONTENTION_ATTEMPTS};

/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Runs `attempt` again while others are in its way (40001, 40P01), up to [`CONTENTION_ATTEMPTS`] times.
///
/// `attempt` is a whole transaction, or a statement outside one.
pub async fn on_contention<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    for tried in 1.. {
        match attempt().await {
            Err(error) if error.is_contention() && tried < CONTENTION_ATTEMPTS => {
                tokio::time::sleep(pause(tried)).await;
            }
            result => return result,
        }
    }
    unreachable!("the loop ends by returning")
}

/// Pauses grow, each of a random length, so that two who met do not meet again.
pub(crate) fn pause(tried: u32) -> Duration {
    chance(Duration::from_micros(500 << tried.min(10)).min(PAUSE_MAX))
}

/// A random part of `longest`.
pub(crate) fn chance(longest: Duration) -> Duration {
    // The hasher is seeded by chance: that is all that is needed here.
    let chance = std::hash::RandomState::new().hash_one(longest);
    longest.mul_f64(f64::from(chance as u32) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_bounded() {
        assert!((0..100).all(|tried| pause(tried) <= PAUSE_MAX));
    }

    #[tokio::test]
    async fn other_errors_are_not_tried_again() {
        let mut tried = 0;
        let result: Result<(), Error> = on_contention(|| {
            tried += 1;
            std::future::ready(Err(Error::Effect("no".into())))
        })
        .await;
        assert!(result.is_err() && tried == 1);
    }
}
