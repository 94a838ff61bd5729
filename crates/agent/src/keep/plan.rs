//! Decides when a command gets SIGTERM and when SIGKILL, from the deadline and the events so far. Pure.

/// How long processes that the command left behind may take to finish, such as a `tee` that still writes.
const LEFTOVERS_LINGER_MS: u64 = 500;
/// How long they then have from SIGTERM to SIGKILL.
const LEFTOVERS_GRACE_MS: u64 = 1_000;
/// How long all processes have from SIGTERM to SIGKILL when the holder is gone and there are no more renewals.
const ABANDONED_GRACE_MS: u64 = 1_000;

/// The times of both signals, in milliseconds of `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    deadline_ms: u64,
    /// How long before the deadline SIGTERM is sent if no renewal came.
    warn_ms: u64,
    /// Set by an end before the deadline; only ever moved earlier.
    term_at_ms: u64,
    kill_at_ms: u64,
    /// A part of the work must have ended by then, and has not reported it yet.
    bound_ms: u64,
    /// SIGTERM was sent: a renewal that comes now is too late.
    is_ending: bool,
}

impl Plan {
    /// The command runs until the deadline, with a warning before it.
    pub fn new(deadline_ms: u64, warn_ms: u64) -> Self {
        let never = u64::MAX;
        Self { deadline_ms, warn_ms, term_at_ms: never, kill_at_ms: never, bound_ms: never, is_ending: false }
    }

    pub fn extend(&mut self, deadline_ms: u64) {
        if !self.is_ending {
            self.deadline_ms = self.deadline_ms.max(deadline_ms);
        }
    }

    /// One of several leases is lost: everything ends by then, despite renewals, unless the bound is lifted first.
    pub fn bound(&mut self, bound_ms: Option<u64>) {
        self.bound_ms = bound_ms.unwrap_or(u64::MAX);
    }

    /// The lease is lost: SIGTERM now, SIGKILL at this time or the deadline, whichever is first.
    pub fn lose(&mut self, now_ms: u64, kill_at_ms: u64) {
        self.sooner(now_ms, kill_at_ms);
        self.is_ending = true;
    }

    /// The command has exited; processes that it left behind are ended, too.
    pub fn leftovers(&mut self, now_ms: u64) {
        let term_at_ms = now_ms.saturating_add(LEFTOVERS_LINGER_MS);
        self.sooner(term_at_ms, term_at_ms.saturating_add(LEFTOVERS_GRACE_MS));
    }

    /// The holder is gone.
    pub fn abandon(&mut self, now_ms: u64) {
        self.lose(now_ms, now_ms.saturating_add(ABANDONED_GRACE_MS));
    }

    pub fn asked(&mut self) {
        self.is_ending = true;
    }

    pub fn term_at_ms(&self) -> u64 {
        self.deadline_ms.min(self.bound_ms).saturating_sub(self.warn_ms).min(self.term_at_ms)
    }

    pub fn kill_at_ms(&self) -> u64 {
        self.deadline_ms.min(self.bound_ms).min(self.kill_at_ms)
    }

    fn sooner(&mut self, term_at_ms: u64, kill_at_ms: u64) {
        self.term_at_ms = self.term_at_ms.min(term_at_ms);
        self.kill_at_ms = self.kill_at_ms.min(kill_at_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_move_both_times() {
        let mut plan = Plan::new(30_000, 5_000);
        assert_eq!((plan.term_at_ms(), plan.kill_at_ms()), (25_000, 30_000));
        plan.extend(40_000);
        assert_eq!((plan.term_at_ms(), plan.kill_at_ms()), (35_000, 40_000));
        plan.extend(35_000);
        assert_eq!(plan.kill_at_ms(), 40_000, "a renewal never moves a deadline earlier");
    }

    #[test]
    fn a_renewal_after_the_warning_is_too_late() {
        let mut plan = Plan::new(30_000, 5_000);
        plan.asked();
        plan.extend(60_000);
        assert_eq!(plan.kill_at_ms(), 30_000);
    }

    #[test]
    fn a_lost_lease_ends_by_the_deadline_at_the_latest() {
        let mut plan = Plan::new(30_000, 5_000);
        plan.lose(10_000, u64::MAX);
        assert_eq!((plan.term_at_ms(), plan.kill_at_ms()), (10_000, 30_000));
        plan.lose(11_000, 12_000);
        assert_eq!((plan.term_at_ms(), plan.kill_at_ms()), (10_000, 12_000));
        plan.extend(99_000);
        assert_eq!(plan.kill_at_ms(), 12_000);
    }

    #[test]
    fn a_bound_holds_against_renewals_until_it_is_lifted() {
        let mut plan = Plan::new(30_000, 5_000);
        plan.bound(Some(20_000));
        plan.extend(60_000);
        assert_eq!((plan.term_at_ms(), plan.kill_at_ms()), (15_000, 20_000));
        plan.bound(None);
        assert_eq!((plan.term_at_ms(), plan.kill_at_ms()), (55_000, 60_000));
        plan.bound(Some(70_000));
        assert_eq!(plan.kill_at_ms(), 60_000, "it never moves the end later");
    }

    #[test]
    fn leftovers_are_ended_while_the_lease_is_still_renewed() {
        let mut plan = Plan::new(30_000, 5_000);
        plan.leftovers(10_000);
        plan.extend(40_000);
        assert_eq!((plan.term_at_ms(), plan.kill_at_ms()), (10_500, 11_500));
        let mut late = Plan::new(30_000, 5_000);
        late.leftovers(29_900);
        assert_eq!((late.term_at_ms(), late.kill_at_ms()), (25_000, 30_000), "never past the deadline");
    }

    #[test]
    fn everything_ends_soon_without_a_holder() {
        let mut plan = Plan::new(30_000, 5_000);
        plan.abandon(10_000);
        assert_eq!((plan.term_at_ms(), plan.kill_at_ms()), (10_000, 11_000));
        let mut late = Plan::new(10_200, 100);
        late.abandon(10_000);
        assert_eq!(late.kill_at_ms(), 10_200);
    }
}
