//! The one place where a test waits.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout_at};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(10);

/// What a condition may answer: `true`, or `Some(value)`, once it holds.
pub trait Ready {
    /// What the wait gives back.
    type Value;

    /// The value, when the condition holds.
    fn ready(self) -> Option<Self::Value>;
}

impl Ready for bool {
    type Value = ();

    fn ready(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Ready for Option<T> {
    type Value = T;

    fn ready(self) -> Option<T> {
        self
    }
}

/// Waits until `condition` holds, looking every 10 ms; the error after `timeout` names `what`.
///
/// A condition that hangs is out of time like one that is false.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use solehold_testkit::wait_for;
/// use std::time::Duration;
///
/// let mut looks = 0;
/// let third = wait_for("the third look", Duration::from_secs(5), || {
///     looks += 1;
///     std::future::ready((looks == 3).then_some(looks))
/// });
/// assert_eq!(third.await.unwrap(), 3);
/// # });
/// ```
pub async fn wait_for<R, F>(
    what: &str,
    timeout: Duration,
    mut condition: impl FnMut() -> F,
) -> Result<R::Value>
where
    R: Ready,
    // Not `AsyncFnMut`: a task that waits on one is not `Send` for the compiler.
    F: Future<Output = R>,
{
    let deadline = Instant::now() + timeout;
    loop {
        match timeout_at(deadline, condition()).await.map(R::ready) {
            Ok(Some(value)) => return Ok(value),
            Ok(None) if Instant::now() < deadline => sleep(POLL).await,
            _ => bail!("waited {timeout:?} for {what}"),
        }
    }
}
