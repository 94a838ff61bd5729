//! One state of everything, and the step from it to the next.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{
    action::Action,
    authority::{Call, Rows},
    client::{Client, Guard},
    message::{Ask, GrantId, Message, Process, Reply, Shown},
    scope::Scope,
    variant::Variant,
};

/// The messages of the operator and of the sweeper come from no client.
const NOBODY: Process = Process { client: u8::MAX, life: 0 };

/// What is left of a scope's bounds.
#[derive(Debug, Clone, Copy, Hash)]
struct Left {
    ticks: u8,
    repeats: u8,
    crashes: u8,
    revokes: u8,
    nominations: u8,
    outages: u8,
}

/// The place where work takes effect.
#[derive(Debug, Clone, Default, Hash)]
pub struct Sink {
    highest_token: u64,
    /// The authority's version as it was when the sink last asked for it.
    version: Option<u64>,
    /// How often the one command of a system that has commands was executed.
    pub effects: u8,
    /// The place of the newest grant whose write was admitted in the order of grants.
    newest: usize,
    /// Whether a write was admitted after one of a later grant.
    pub has_admitted_older: bool,
}

#[derive(Debug, Clone, Hash)]
pub struct World {
    now_ms: u64,
    rows: Rows,
    pub clients: Vec<Client>,
    /// What is under way, sorted, since a network has no order.
    network: Vec<Message>,
    pub sink: Sink,
    /// Every grant there was, in order, for the checks.
    grants: Vec<GrantId>,
    highest_token: u64,
    /// Whether a grant had no greater token than the one before it.
    pub has_reused_token: bool,
    /// Whether a request that showed a lease renewed or ended a later one.
    pub has_affected_later: bool,
    left: Left,
}

impl World {
    pub fn new(scope: &Scope, variant: Variant) -> Self {
        Self {
            now_ms: 0,
            rows: Rows::new(scope, variant),
            clients: vec![Client::new(scope); scope.clients.into()],
            network: Vec::new(),
            sink: Sink::default(),
            grants: Vec::new(),
            highest_token: 0,
            has_reused_token: false,
            has_affected_later: false,
            left: Left {
                ticks: scope.ticks,
                repeats: scope.repeats,
                crashes: scope.crashes,
                revokes: scope.revokes,
                nominations: scope.nominations,
                outages: scope.outages,
            },
        }
    }

    /// A number that two states share only by chance, of one in 2^64.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Whether nobody else can get what this guard says.
    pub fn protects(&self, guard: &Guard) -> bool {
        let live = self.rows.live(self.now_ms);
        live.is_some_and(|shown| shown == guard.shown) || self.rows.is_held_back(self.now_ms)
    }

    pub fn is_free_in_the_end(&self) -> bool {
        self.rows.is_free_in_the_end(self.now_ms)
    }

    /// Grants that were made for one request of one client. Each has an attempt of its own.
    pub fn has_granted_twice(&self) -> bool {
        let request = |grant: &GrantId| grant.to_be_bytes();
        let is_same = |a: [u8; 4], b: [u8; 4]| a[0] == b[0] && a[2] == b[2];
        let is_engine = matches!(self.rows, Rows::Engine(_));
        let mut pairs =
            self.grants.iter().enumerate().flat_map(|(n, a)| self.grants[..n].iter().map(move |b| (a, b)));
        is_engine && pairs.any(|(a, b)| is_same(request(a), request(b)))
    }

    /// Everything that may happen next. Messages come first and time last, so that of several shortest traces the one
    /// that is found is easy to follow.
    pub fn actions(&self, scope: &Scope, variant: Variant) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut last = None;
        for message in &self.network {
            if last == Some(message) {
                continue;
            }
            last = Some(message);
            actions.push(Action::Deliver(*message));
            if self.left.repeats > 0 {
                actions.push(Action::DeliverTwice(*message));
            }
            if self.left.outages > 0 && matches!(message, Message::Write(_)) {
                actions.push(Action::DeliverUnchecked(*message));
            }
        }
        for (n, client) in (0..).zip(&self.clients) {
            if client.writes(variant).is_some() {
                actions.push(Action::Write { client: n });
            }
            actions
                .extend(client.asks(scope, variant).into_iter().map(|ask| Action::Send { client: n, ask }));
            if self.left.crashes > 0 && client.asks_left > 0 && client.asks_left < scope.asks {
                actions.push(Action::Crash { client: n });
            }
        }
        if self.left.revokes > 0 && self.rows.held().is_some() {
            actions.push(Action::Revoke);
        }
        if let Some(token) = self.rows.expired(self.now_ms).filter(|_| self.left.nominations > 0) {
            actions.push(Action::Nominate { token });
        }
        if self.left.ticks > 0 {
            actions.push(Action::Tick);
        }
        actions
    }

    /// The state after an action.
    #[must_use]
    pub fn after(&self, action: &Action, scope: &Scope, variant: Variant) -> Self {
        let mut next = self.clone();
        next.step(action, scope, variant);
        next
    }

    fn step(&mut self, action: &Action, scope: &Scope, variant: Variant) {
        match *action {
            Action::Tick => {
                self.left.ticks -= 1;
                self.now_ms += Scope::TICK_MS;
                for (n, client) in self.clients.iter_mut().enumerate() {
                    client.clock = client.clock.plus(Scope::tick_of(n));
                }
            }
            Action::Send { client, ask } => {
                let from = self.process(client);
                let sender = &mut self.clients[usize::from(client)];
                let sent = sender.clock;
                sender.send(ask);
                self.post(Message::Call { from, sent, ask });
            }
            Action::Write { client } => {
                let writer = &mut self.clients[usize::from(client)];
                let Some(shown) = writer.writes(variant) else { return };
                writer.wrote();
                self.post(Message::Write(shown));
            }
            Action::Crash { client } => {
                self.left.crashes -= 1;
                self.clients[usize::from(client)].crash();
                let is_to =
                    |message: &Message| matches!(message, Message::Reply { to, .. } if to.client == client);
                self.network.retain(|message| !is_to(message));
            }
            Action::Revoke => {
                self.left.revokes -= 1;
                self.post_from_nobody(Ask::Revoke);
            }
            Action::Nominate { token } => {
                self.left.nominations -= 1;
                self.post_from_nobody(Ask::Expire { token });
            }
            Action::Deliver(message) => {
                self.drop(&message);
                self.arrive(message, scope, variant);
            }
            Action::DeliverUnchecked(message) => {
                self.left.outages -= 1;
                self.drop(&message);
                if let Message::Write(shown) = message {
                    self.write(shown, variant);
                }
            }
            Action::DeliverTwice(message) => {
                self.left.repeats -= 1;
                self.arrive(message, scope, variant);
            }
        }
    }

    fn process(&self, client: u8) -> Process {
        Process { client, life: self.clients[usize::from(client)].life }
    }

    fn post(&mut self, message: Message) {
        let at = self.network.binary_search(&message).unwrap_or_else(|at| at);
        self.network.insert(at, message);
    }

    fn post_from_nobody(&mut self, ask: Ask) {
        let sent = solehold_clock::BootTime::from_nanos(0);
        self.post(Message::Call { from: NOBODY, sent, ask });
    }

    fn drop(&mut self, message: &Message) {
        if let Ok(at) = self.network.binary_search(message) {
            self.network.remove(at);
        }
    }

    fn arrive(&mut self, message: Message, scope: &Scope, variant: Variant) {
        match message {
            Message::Call { from, sent, ask } => {
                let before = self.rows.live(self.now_ms);
                let reply = self.rows.decide(&Call { from, sent, ask }, self.now_ms, scope, variant);
                self.note_effect(before, ask, reply);
                self.note_grant();
                if from != NOBODY && reply != Reply::Done {
                    self.post(Message::Reply { to: from, sent, ask, reply });
                }
            }
            Message::Reply { to, sent, ask, reply } => {
                if to == self.process(to.client) {
                    self.clients[usize::from(to.client)].take(sent, ask, reply, variant);
                }
            }
            Message::Write(shown) => {
                self.sink.version = self.rows.version().or(self.sink.version);
                self.write(shown, variant);
            }
        }
    }

    /// Notes what a request did to the lease that was live before it.
    fn note_effect(&mut self, before: Option<Shown>, ask: Ask, reply: Reply) {
        let (Some(shown), Some(before)) = (ask.shown(), before) else { return };
        let has_ended = self.rows.held().is_none_or(|held| held.shown.grant != before.grant);
        let is_renewed = matches!(reply, Reply::Renewed { .. });
        self.has_affected_later |= shown.grant != before.grant && (is_renewed || has_ended);
        if matches!(ask, Ask::Advance(_)) && reply == Reply::Done {
            self.note_write(shown.grant);
        }
    }

    fn note_grant(&mut self) {
        let Some(Shown { token, grant }) = self.rows.held().map(|held| held.shown) else { return };
        if !self.grants.contains(&grant) {
            self.grants.push(grant);
            self.has_reused_token |= token <= self.highest_token;
            self.highest_token = self.highest_token.max(token);
        }
    }

    fn write(&mut self, Shown { token, grant }: Shown, variant: Variant) {
        let newest = match variant {
            Variant::SceneTrackers => self.sink.version,
            _ => Some(self.sink.highest_token),
        };
        let is_current = newest.is_some_and(|newest| newest <= token);
        if variant.is_fenced() && !is_current {
            return;
        }
        self.sink.highest_token = token;
        self.sink.effects += u8::from(variant == Variant::VideoOrchestrator);
        self.note_write(grant);
    }

    fn note_write(&mut self, grant: GrantId) {
        let place = self.grants.iter().position(|known| *known == grant).unwrap_or(0);
        self.sink.has_admitted_older |= place < self.sink.newest;
        self.sink.newest = self.sink.newest.max(place);
    }
}
