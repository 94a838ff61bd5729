//! The leases of the present session: granted, renewed, lost, suspended and released.

use std::sync::Arc;

use solehold_clock::BootTime;
use solehold_core::key::{LeaseId, SessionId};
use tokio::sync::watch;

use super::{Holding, Incarnation, Inner, KnownSet, Phase};
use crate::{
    authority::{Attributes, Beat, GrantedLease, HeldLease},
    renewer::Lost,
    session::claims::ClaimStatus,
};

impl Inner {
    /// When the newest answered heartbeat was sent: those sent before it need no answer any more.
    pub fn answered_beats(&self) -> watch::Receiver<BootTime> {
        self.answered_beat.subscribe()
    }

    /// A heartbeat was answered. The guards that have ended by it are cancelled before the others see the new deadline,
    /// so that no guard sees a deadline that is not its own.
    pub fn answered(&self, sent: BootTime, beat: &Beat) {
        let now = self.clock().now();
        let unit = self.unit();
        let mut incarnation = self.incarnation.lock();
        if *self.phase.borrow() != Phase::Live(beat.session) {
            return;
        }
        let Incarnation { renewer: Some(renewer), holdings, .. } = &mut *incarnation else { return };
        let heard = renewer.on_answer(sent, now, beat, unit);
        for lease in heard.ended {
            let Some(holding) = holdings.remove(&lease) else { continue };
            if let Some(reissued) = beat.leases.iter().find(|held| held.lease == lease) {
                holding.reissue(reissued.clone());
            }
            tracing::warn!(resource = %holding.resource, "lost a lease: the server has ended it; stopping its work");
            holding.lose(Lost::Ended);
        }
        self.window().show(renewer);
        if heard.is_newest {
            for holding in holdings.values() {
                let lease = holding.held().lease;
                let asked = beat.hand_overs.iter().find(|(asked, _)| *asked == lease);
                // Counted from before the request, so that an offer never seems to last longer than it does.
                holding.ask(asked.map(|(_, hand_over)| (hand_over.clone(), sent.plus(hand_over.within))));
            }
            self.learn(sent, beat);
        }
        self.has_contact();
        self.answered_beat.send_if_modified(|at| {
            let is_later = sent > *at;
            *at = sent.max(*at);
            is_later
        });
        drop(incarnation);
        self.changed.notify_one();
    }

    /// Keeps a set that is newer than all before. It was read after the set before, and so after that one's request.
    pub(super) fn learn(&self, sent: BootTime, beat: &Beat) {
        self.sets.send_modify(|known| {
            let before = known.as_ref().filter(|known| known.beat.session == beat.session);
            let asked = before.map_or(sent, |before| before.asked.max(sent));
            self.claims.learned(asked);
            *known = Some(KnownSet { asked, beat: beat.clone() });
        });
    }

    /// The leases without a claim. If only a newer set is missing to prove it, a heartbeat requests one.
    pub fn unclaimed(&self) -> Vec<HeldLease> {
        let Some(known) = self.set() else { return Vec::new() };
        let status = |held: &HeldLease| self.claims.status(&held.resource, held.lease, known.asked);
        let mut unclaimed = Vec::new();
        let mut is_unproven = false;
        for held in known.beat.leases.iter().filter(|held| !self.is_guarded(held.lease)) {
            match status(held) {
                ClaimStatus::Claimed => {}
                ClaimStatus::Unproven => is_unproven = true,
                ClaimStatus::Unclaimed => unclaimed.push(held.clone()),
            }
        }
        // One that is sent at the instant of the last one would prove no more.
        if is_unproven && known.asked < self.clock().now() {
            self.beat_now();
        }
        unclaimed
    }

    /// Runs `work` with the set that shows a lease, while no guard for the lease can appear; none if it has one.
    pub fn while_unguarded<T>(
        &self,
        lease: &HeldLease,
        work: impl FnOnce(KnownSet) -> Option<T>,
    ) -> Option<T> {
        let incarnation = self.incarnation.lock();
        let known = self.set().filter(|known| known.beat.leases.contains(lease))?;
        if incarnation.holdings.contains_key(&lease.lease) {
            return None;
        }
        work(known)
    }

    /// Takes up a lease that was granted to `session`. None if that session is no longer the present one, if the lease
    /// has ended by what is known already, or if it has a guard.
    pub fn hold(
        &self,
        session: SessionId,
        granted: GrantedLease,
        attributes: Attributes,
    ) -> Option<Arc<Holding>> {
        let mut incarnation = self.incarnation.lock();
        let lease = granted.held.lease;
        let token = granted.held.token;
        if *self.phase.borrow() != Phase::Live(session) || incarnation.holdings.contains_key(&lease) {
            return None;
        }
        let now = self.clock().now();
        let epoch = granted.epoch;
        if !incarnation.renewer.as_mut().is_some_and(|renewer| renewer.granted(lease, token, epoch, now)) {
            return None;
        }
        let holding = Arc::new(Holding::new(granted, attributes, self.window()));
        incarnation.holdings.insert(lease, holding.clone());
        Some(holding)
    }

    /// A guard gives up its lease. Returns what to release. Under the lock, so that the lease is not reclaimed for it.
    pub fn let_go(&self, holding: &Holding) -> HeldLease {
        let mut incarnation = self.incarnation.lock();
        holding.go();
        let held = holding.held();
        incarnation.holdings.remove(&held.lease);
        if let Some(renewer) = &mut incarnation.renewer {
            renewer.released(held.lease);
        }
        holding.reissued().cloned().unwrap_or(held)
    }

    /// The session is lost, with all leases attached to it. Guards are cancelled before the next session begins.
    pub fn lose_all(&self, lost: &Lost, next: Phase) {
        let mut incarnation = self.incarnation.lock();
        let holdings = incarnation.end();
        self.phase.send_replace(next);
        for holding in holdings.into_values() {
            holding.lose(lost.clone());
        }
    }

    /// For rule 22: the session is over, and its leases may be reclaimed before the grace period ends.
    pub fn suspend(&self) -> Vec<Arc<Holding>> {
        let mut incarnation = self.incarnation.lock();
        let holdings = incarnation.end();
        self.phase.send_replace(Phase::Reopening);
        holdings.into_values().collect()
    }

    /// A suspended lease was reclaimed under a new grant; false if its guard is gone or lost.
    pub fn resume(&self, holding: &Arc<Holding>, granted: GrantedLease) -> bool {
        let mut incarnation = self.incarnation.lock();
        if holding.is_gone() || holding.lost().is_some() {
            return false;
        }
        let lease = granted.held.lease;
        let token = granted.held.token;
        let epoch = granted.epoch;
        let now = self.clock().now();
        let is_held =
            incarnation.renewer.as_mut().is_some_and(|renewer| renewer.granted(lease, token, epoch, now));
        if is_held {
            holding.renewed_as(granted, self.window());
            incarnation.holdings.insert(lease, holding.clone());
        }
        is_held
    }

    pub fn is_guarded(&self, lease: LeaseId) -> bool {
        self.incarnation.lock().holdings.contains_key(&lease)
    }

    /// Whether a guard's lease is held by the present session.
    pub fn holds(&self, holding: &Holding) -> bool {
        self.incarnation.lock().holdings.contains_key(&holding.held().lease)
    }

    /// Whether a lease of the present session is known to have ended.
    pub fn has_ended(&self, held: &HeldLease) -> bool {
        self.with_renewer(|renewer| renewer.is_known_to_have_ended(held.lease, held.token)).unwrap_or(false)
    }
}
