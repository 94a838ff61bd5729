//! A client: what it knows, what it may do next, and what it makes of a reply.

use std::time::Duration;

use solehold_clock::{BootTime, deadline::local_deadline};

use crate::{
    message::{Ask, Reply, Shown},
    scope::{Scope, Tenure},
    variant::Variant,
};

/// A lease as its holder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guard {
    pub shown: Shown,
    /// By the client's own clock. None if it works until it is told to stop.
    pub deadline: Option<BootTime>,
}

/// How far a pod of the video orchestrator has come with the one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    Assigned,
    /// It has seen that there is no mark.
    Unmarked,
    Executed,
    Marked,
    Skipped,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its clock, which runs at a rate of its own.
    pub clock: BootTime,
    /// How often it has crashed.
    pub life: u8,
    pub asks_left: u8,
    pub writes_left: u8,
    /// The last request id that it has used. Ids are unique, so it survives a crash.
    pub last_request: u8,
    /// Attempts at the present request.
    pub attempts: u8,
    /// The request that it waits for.
    pub request: Option<u8>,
    pub has_session: bool,
    pub guard: Option<Guard>,
    stage: Stage,
}

impl Client {
    pub fn new(scope: &Scope) -> Self {
        Self {
            clock: BootTime::from_nanos(0),
            life: 0,
            asks_left: scope.asks,
            writes_left: scope.writes,
            last_request: 0,
            attempts: 0,
            request: None,
            has_session: false,
            guard: None,
            stage: Stage::Assigned,
        }
    }

    /// Its lease, if it may work on it: the local deadline has not passed (rule 4).
    pub fn trusted(&self) -> Option<&Guard> {
        let is_live = |guard: &&Guard| guard.deadline.is_none_or(|deadline| self.clock < deadline);
        self.guard.as_ref().filter(is_live)
    }

    /// The lease that it may write under now.
    pub fn writes(&self, variant: Variant) -> Option<Shown> {
        let may = match variant {
            Variant::VideoOrchestrator => self.stage == Stage::Unmarked,
            _ => true,
        };
        self.trusted().filter(|_| may && self.writes_left > 0).map(|guard| guard.shown)
    }

    /// The requests that it may send now.
    pub fn asks(&self, scope: &Scope, variant: Variant) -> Vec<Ask> {
        if self.asks_left == 0 {
            return Vec::new();
        }
        if scope.tenure == Tenure::Session && !self.has_session {
            return vec![Ask::OpenSession];
        }
        if let Some(Guard { shown, .. }) = self.trusted().copied() {
            return self.asks_of_holder(shown, variant);
        }
        match self.request {
            None => vec![Ask::Acquire { request: self.last_request + 1, attempt: 0 }],
            // The other designs have no requests to cancel: they ask again.
            Some(request) if variant.is_origin() => vec![Ask::Acquire { request, attempt: self.attempts }],
            Some(request) => vec![Ask::Acquire { request, attempt: self.attempts }, Ask::Cancel { request }],
        }
    }

    fn asks_of_holder(&self, shown: Shown, variant: Variant) -> Vec<Ask> {
        match (variant, self.stage) {
            (Variant::PaymentReconciler, _) => vec![Ask::Advance(shown)],
            (Variant::VideoOrchestrator, Stage::Assigned) => vec![Ask::Renew(shown), Ask::LookUp],
            (Variant::VideoOrchestrator, Stage::Executed) => vec![Ask::Mark],
            (Variant::VideoOrchestrator, _) => vec![Ask::Renew(shown)],
            _ => vec![Ask::Renew(shown), Ask::Release(shown)],
        }
    }

    /// Takes note that it sends a request. It has stopped its work before it releases a lease.
    pub fn send(&mut self, ask: Ask) {
        self.asks_left -= 1;
        match ask {
            Ask::Acquire { request, attempt } => {
                self.guard = None;
                self.stage = Stage::Assigned;
                self.request = Some(request);
                self.last_request = request;
                self.attempts = attempt + 1;
            }
            Ask::Release(_) | Ask::Advance(_) => self.guard = None,
            Ask::Cancel { .. } => self.request = None,
            Ask::Mark => self.stage = Stage::Marked,
            _ => {}
        }
    }

    /// Takes note that it writes.
    pub fn wrote(&mut self) {
        self.writes_left -= 1;
        self.stage = Stage::Executed;
    }

    /// Takes a reply to a request that was sent at `sent`.
    pub fn take(&mut self, sent: BootTime, ask: Ask, reply: Reply, variant: Variant) {
        let sent = if variant == Variant::DeadlineFromReply { self.clock } else { sent };
        let until = |left_ms| {
            let deadline = local_deadline(sent, Duration::from_millis(left_ms), Duration::ZERO);
            (!variant.is_origin()).then_some(deadline)
        };
        match (ask, reply) {
            (Ask::OpenSession, Reply::Opened) => self.has_session = true,
            (Ask::Acquire { request, .. }, Reply::Granted { token, left_ms, grant })
                if self.request == Some(request) =>
            {
                self.request = None;
                self.guard = Some(Guard { shown: Shown { token, grant }, deadline: until(left_ms) });
            }
            (Ask::Acquire { request, .. }, Reply::Refused | Reply::Lost) if self.request == Some(request) => {
                self.request = None;
            }
            (Ask::Renew(shown), Reply::Renewed { left_ms }) => self.renewed(shown, until(left_ms)),
            (Ask::Renew(shown), Reply::Lost) => {
                self.guard = self.guard.filter(|guard| guard.shown != shown);
            }
            (Ask::LookUp, Reply::Found(is_marked)) if self.stage == Stage::Assigned => {
                self.stage = if is_marked { Stage::Skipped } else { Stage::Unmarked };
            }
            _ => {}
        }
    }

    /// A renewal moves the deadline of a lease that is still trusted. One that is not stays lost.
    fn renewed(&mut self, shown: Shown, deadline: Option<BootTime>) {
        let is_trusted = self.trusted().is_some_and(|guard| guard.shown == shown);
        if let Some(guard) = self.guard.as_mut().filter(|_| is_trusted) {
            guard.deadline = guard.deadline.max(deadline);
        }
    }

    /// Everything is forgotten but what nobody can forget: its name, and that ids are not used again.
    pub fn crash(&mut self) {
        self.life += 1;
        self.attempts = 0;
        self.request = None;
        self.has_session = false;
        self.guard = None;
        self.stage = Stage::Assigned;
    }
}
