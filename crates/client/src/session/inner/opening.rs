//! How a session is opened, first and again.

use std::sync::Arc;

use solehold_clock::BootTime;
use solehold_core::key::SessionId;

use super::{Inner, Phase, Window};
use crate::{
    authority::{AuthorityError, Beat, HeartbeatAttempt, Opening, RefusalReason, Reply},
    renewer::Renewer,
    session::config::OpenError,
};

impl Inner {
    /// Opens the first session, retrying for `open_timeout`.
    pub(super) async fn first_session(&self) -> Result<(), OpenError> {
        let give_up = self.clock().now().plus(self.config.open_timeout);
        for failures in 1.. {
            let error = match self.try_open().await {
                Ok(Ok((sent, beat))) => match self.begin(sent, &beat) {
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                },
                Ok(Err(refusal)) => return Err(refusal.into()),
                Err(error) => error,
            };
            let wait = self.backoff(failures, error.retry_after());
            if self.clock().now().plus(wait) >= give_up {
                return Err(error.into());
            }
            tracing::debug!(holder = %self.holder, %error, ?wait, "cannot open a session yet; retrying");
            self.pause(wait).await;
        }
        unreachable!("the loop ends with a session or an error")
    }

    /// Tries once to open a session; returns the answer and when its request was sent. A holder that remembers the
    /// store's history sends it first, so that a store that was set back knows before it grants anything.
    pub async fn try_open(&self) -> Reply<(BootTime, Beat)> {
        let sent = self.clock().now();
        // Until one is answered, all attempts use the same id: a late one must not supersede another.
        let id = *self.opening.lock().get_or_insert_with(|| SessionId(self.fresh_id()));
        let opening = Opening {
            id,
            holder: self.holder.clone(),
            ttl: self.timing().ttl,
            metrics: self.metrics.lock().clone(),
            follows: *self.last.lock(),
        };
        let opened = self.authority.open(&opening).await?;
        if let Ok(opened) = &opened {
            *self.last.lock() = Some(opened.session);
        }
        if opened.as_ref().map_or_else(RefusalReason::ends_session, |_| true) {
            self.opening.lock().take();
        }
        let opened = match opened {
            Ok(opened) => opened,
            Err(refusal) if refusal.ends_session() && !refusal.is_superseded() => {
                let why = "the session expired before the request that opened it was answered";
                return Err(AuthorityError::unreachable(why));
            }
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Some(cursor) = self.sealed_cursor() else { return Ok(Ok((sent, opened))) };
        let sent = self.clock().now();
        let attempt = HeartbeatAttempt::within(self.timing().patience());
        let metrics = &opening.metrics;
        let shown = self.authority.heartbeat(opened.session, metrics, Some(&cursor), None, attempt).await?;
        Ok(shown.map(|beat| (sent, beat)))
    }

    /// Makes an opened session the present one; false if this one was closed meanwhile. The leases of the former
    /// session are lost by now, or suspended. The answer of a store with an older history is an error.
    pub fn begin(&self, sent: BootTime, beat: &Beat) -> Result<bool, AuthorityError> {
        let mut incarnation = self.incarnation.lock();
        if matches!(*self.phase.borrow(), Phase::Over(_)) {
            return Ok(false);
        }
        let history = incarnation.history().clone();
        let renewer = Renewer::new(self.timing(), sent, beat, history, self.unit())
            .map_err(|older| AuthorityError::unreachable(older.to_string()))?;
        let window = Arc::<Window>::default();
        window.show(&renewer);
        *self.window.lock() = window;
        incarnation.renewer = Some(renewer);
        self.learn(sent, beat);
        self.phase.send_replace(Phase::Live(beat.session));
        self.has_contact();
        Ok(true)
    }
}
