//! Why a gate learns nothing from the store: it cannot be reached, or it refuses the gate.

use std::time::Duration;

use solehold_core::fence::Tick;

const LOG_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Why it cannot be reached, as long as it cannot.
    away: Option<String>,
    /// What it said when it refused the gate, until it tells the gate something.
    denied: Option<String>,
    logged: Option<Tick>,
}

impl Trouble {
    /// The refusal, if there is one: nothing is told before that is mended.
    pub fn why(&self) -> Option<String> {
        self.denied.clone().or_else(|| self.away.clone())
    }

    /// The store was not reached: logged once, until it is.
    pub fn is_away(&mut self, why: String) {
        if self.away.replace(why.clone()).is_none() {
            tracing::warn!(
                why,
                "the gate cannot reach the server; refusing tokens that it cannot judge without it"
            );
        }
    }

    pub fn is_back(&mut self) {
        if self.away.take().is_some() {
            tracing::info!("the gate reached the server again");
        }
    }

    /// The store refuses the gate: logged at once, and again after a minute while it lasts.
    pub fn is_denied(&mut self, why: &str, now: Tick) {
        self.denied = Some(why.to_owned());
        if self.logged.is_none_or(|logged| Duration::from_nanos(now.since(logged)) >= LOG_EVERY) {
            self.logged = Some(now);
            tracing::error!(
                why,
                "the server refuses the gate; check its API key; refusing tokens that it cannot judge"
            );
        }
    }

    /// The store tells the gate what it asks for.
    pub fn is_told(&mut self) {
        if self.denied.take().is_some() {
            tracing::info!("the server accepts the gate again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_outlasts_a_question_that_needs_no_key() {
        let mut trouble = Trouble::default();
        trouble.is_away("no server".to_owned());
        trouble.is_denied("unauthorized", Tick(0));
        assert_eq!(trouble.why().as_deref(), Some("unauthorized"));
        trouble.is_back();
        assert_eq!(trouble.why().as_deref(), Some("unauthorized"));
        trouble.is_told();
        assert_eq!(trouble.why(), None);
    }

    #[test]
    fn a_refusal_that_lasts_is_logged_once_a_minute() {
        let mut trouble = Trouble::default();
        let minute = LOG_EVERY.as_nanos() as u64;
        trouble.is_denied("unauthorized", Tick(5));
        trouble.is_told();
        trouble.is_denied("unauthorized", Tick(4 + minute));
        assert_eq!(trouble.logged, Some(Tick(5)));
        trouble.is_denied("unauthorized", Tick(5 + minute));
        assert_eq!(trouble.logged, Some(Tick(5 + minute)));
    }
}
