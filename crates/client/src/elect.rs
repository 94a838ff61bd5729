//! A role that one of many has at a time, for jobs that exactly one of them must do.

use std::{sync::Arc, time::Duration};

use crate::{
    authority::checked,
    session::{AcquireError, ClientSession, Guard},
};

pub const ROLE_KIND: &str = "role";
/// How long a candidate waits in line before it stands again.
const TERM_WAIT: Duration = Duration::from_secs(3_600);

/// Waits to be elected, leads, and stands again whenever it lost the role, until `lead` returns by itself; then the
/// role is released.
///
/// `lead` gets the guard of its term, whose token fences what it does. When the role is lost its future is dropped.
/// Code that keeps the guard elsewhere keeps the role.
///
/// ```
/// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
/// use std::sync::Arc;
/// use solehold_client::{Embedded, ClientSession, SessionConfig, elect};
///
/// let authority = Arc::new(Embedded::open("memory:").await?);
/// let session = ClientSession::open(authority, SessionConfig::new("node-1")).await?;
/// let token = elect(&session, "compactor", |guard| async move { guard.token() }).await?;
/// assert!(token.0 > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).expect("it runs");
/// ```
pub async fn elect<T, F, W>(session: &ClientSession, role: &str, mut lead: F) -> Result<T, AcquireError>
where
    F: FnMut(Arc<Guard>) -> W,
    W: Future<Output = T>,
{
    checked("role", role)?;
    loop {
        let guard = match session.acquire_within(ROLE_KIND, role, TERM_WAIT).await {
            Ok(guard) => Arc::new(guard),
            Err(AcquireError::TimedOut { .. }) => continue,
            Err(error) => return Err(error),
        };
        tracing::info!(node = session.holder(), role, token = %guard.token(), "elected leader");
        match guard.run(lead(guard.clone())).await {
            Ok(done) => {
                // The next candidate finds the role free, unless the guard is kept elsewhere.
                if let Some(guard) = Arc::into_inner(guard)
                    && let Err(error) = guard.release().await
                {
                    tracing::warn!(node = session.holder(), role, %error, "cannot release the role; it expires after its ttl");
                }
                return Ok(done);
            }
            Err(lost) => {
                tracing::warn!(node = session.holder(), role, %lost, "lost the role; standing for election again")
            }
        }
    }
}
