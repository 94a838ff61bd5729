//! Bounded retries.

use solehold_clock::RetryPauses;

use crate::{Error, limits::CONTENTION_ATTEMPTS};

/// Runs `attempt` again while others are in its way (40001, 40P01), up to [`CONTENTION_ATTEMPTS`] times.
///
/// `attempt` is a whole transaction, or a statement outside one.
pub async fn on_contention<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut pauses = RetryPauses::default();
    for tried in 1.. {
        match attempt().await {
            Err(error) if error.is_contention() && tried < CONTENTION_ATTEMPTS => {
                pauses.pause().await;
            }
            result => return result,
        }
    }
    unreachable!("the loop ends by returning")
}

#[cfg(test)]
mod tests {
    use super::*;

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
