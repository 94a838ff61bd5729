//! Waiting for virtual time, which costs none.

use std::{future::pending, time::Duration};

use tokio::time::{Instant, timeout, timeout_at};

/// Lets time pass.
pub async fn pass(time: Duration) {
    let _ = timeout(time, pending::<()>()).await;
}

/// Lets time pass until then.
pub async fn pass_until(then: Instant) {
    let _ = timeout_at(then, pending::<()>()).await;
}
