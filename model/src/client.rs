//! A client: what it knows, what it may do next, and what it makes of a reply.

use std::time::Duration;

use solehold_clock::{BootTime, deadline::local_deadline};

use crate::{
    message::{Ask, GrantId, Reply},
    scope::{Scope, Tenure},
    variant::Variant,
};

/// A lease as its holder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guard {
    pub token: u64,
    /// By the client's own clock.
    pub deadline: BootTime,
    pub grant: GrantId,
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
        }
    }

    /// Its lease, if it may work on it: the local deadline has not passed (rule 4).
    pub fn trusted(&self) -> Option<&Guard> {
        self.guard.as_ref().filter(|guard| self.clock < guard.deadline)
    }

    /// The requests that it may send now.
    pub fn asks(&self, scope: &Scope) -> Vec<Ask> {
        if self.asks_left == 0 {
            return Vec::new();
        }
        if scope.tenure == Tenure::Session && !self.has_session {
            return vec![Ask::OpenSession];
        }
        if let Some(Guard { token, .. }) = self.trusted().copied() {
            return vec![Ask::Renew { token }, Ask::Release { token }];
        }
        match self.request {
            None => vec![Ask::Acquire { request: self.last_request + 1, attempt: 0 }],
            Some(request) => vec![Ask::Acquire { request, attempt: self.attempts }, Ask::Cancel { request }],
        }
    }

    /// Takes note that it sends a request. It has stopped its work before it releases a lease.
    pub fn send(&mut self, ask: Ask) {
        self.asks_left -= 1;
        match ask {
            Ask::Acquire { request, attempt } => {
                self.guard = None;
                self.request = Some(request);
                self.last_request = request;
                self.attempts = attempt + 1;
            }
            Ask::Release { .. } => self.guard = None,
            Ask::Cancel { .. } => self.request = None,
            _ => {}
        }
    }

    /// Takes a reply to a request that was sent at `sent`.
    pub fn take(&mut self, sent: BootTime, ask: Ask, reply: Reply, variant: Variant) {
        let sent = if variant == Variant::DeadlineFromReply { self.clock } else { sent };
        let until = |left_ms| local_deadline(sent, Duration::from_millis(left_ms), Duration::ZERO);
        match (ask, reply) {
            (Ask::OpenSession, Reply::Opened) => self.has_session = true,
            (Ask::Acquire { request, .. }, Reply::Granted { token, left_ms, grant })
                if self.request == Some(request) =>
            {
                self.request = None;
                self.guard = Some(Guard { token, deadline: until(left_ms), grant });
            }
            (Ask::Acquire { request, .. }, Reply::Refused | Reply::Lost) if self.request == Some(request) => {
                self.request = None;
            }
            (Ask::Renew { token }, Reply::Renewed { left_ms }) => self.renewed(token, until(left_ms)),
            (Ask::Renew { token }, Reply::Lost) => {
                self.guard = self.guard.filter(|guard| guard.token != token);
            }
            _ => {}
        }
    }

    /// A renewal moves the deadline of a lease that is still trusted. One that is not stays lost.
    fn renewed(&mut self, token: u64, deadline: BootTime) {
        let is_trusted = self.trusted().is_some_and(|guard| guard.token == token);
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
    }
}
