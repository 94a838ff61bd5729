//! How much may happen: the bounds that make the number of states finite.

use std::time::Duration;

/// What keeps a client's lease alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenure {
    /// The lease itself, renewed by its token.
    Own,
    /// The client's session, renewed by heartbeats.
    Session,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    pub clients: u8,
    pub tenure: Tenure,
    /// Whether all clients have one name: each was started in place of the one before, which still runs.
    pub one_name: bool,
    /// Whether an acquire waits in line.
    pub waits: bool,
    /// How often time passes, by [`Self::TICK_MS`].
    pub ticks: u8,
    /// Requests of each client, after which it only receives.
    pub asks: u8,
    /// Writes of each client to the sink.
    pub writes: u8,
    /// Messages that arrive a second time.
    pub repeats: u8,
    /// Crashes, of any client: it forgets everything and starts again under the same name.
    pub crashes: u8,
    /// Times that an operator revokes the lease.
    pub revokes: u8,
    /// Nominations of the sweeper.
    pub nominations: u8,
    /// Writes that arrive while the sink cannot reach the authority.
    pub outages: u8,
    /// How far the wall clock of each client is ahead of the store's; the last one is for all that follow.
    pub ahead_ms: [i64; 2],
}

impl Scope {
    /// One step of the store's clock.
    pub const TICK_MS: u64 = 1_000;
    pub const TTL_MS: u64 = 2_000;
    /// What a waiter asks for.
    pub const WAIT_MS: u64 = 60_000;

    /// Two clients and nothing else; the other bounds are set on top of it.
    pub const fn new(tenure: Tenure) -> Self {
        Self {
            clients: 2,
            tenure,
            one_name: false,
            waits: false,
            ticks: 3,
            asks: 2,
            writes: 1,
            repeats: 0,
            crashes: 0,
            revokes: 0,
            nominations: 0,
            outages: 0,
            ahead_ms: [0, 0],
        }
    }

    /// The scopes that the protocol is checked in. Each lets something else go wrong, beside loss and reordering.
    pub const fn all() -> [(&'static str, Self); 9] {
        use Tenure::{Own, Session};
        let least = Self { ticks: 2, writes: 0, ..Self::new(Own) };
        let sessions = Self { tenure: Session, asks: 3, ..least };
        [
            ("writes to a sink", Self { writes: 1, ..least }),
            ("a longer time", Self { ticks: 3, ..least }),
            ("a repeated message", Self { repeats: 1, ..least }),
            ("a crash", Self { crashes: 1, ..least }),
            ("a revocation", Self { revokes: 1, ..least }),
            ("a sweeper", Self { nominations: 1, ..least }),
            ("three clients", Self { clients: 3, asks: 1, ticks: 3, ..least }),
            ("waiting in line", Self { waits: true, ..least }),
            ("sessions", sessions),
        ]
    }

    /// Scopes in which several things go wrong one after the other, in any order: millions of states.
    pub const fn together() -> [(&'static str, Self); 4] {
        let [(_, writes), .., (_, waits), (_, sessions)] = Self::all();
        let all = Self { repeats: 1, crashes: 1, revokes: 1, nominations: 1, ..writes };
        [
            ("a crash, a repeated message", Self { revokes: 0, nominations: 0, ..all }),
            ("a crash, a revocation, a sweeper", Self { repeats: 0, ..all }),
            ("sessions: a crash, a revocation", Self { crashes: 1, revokes: 1, ..sessions }),
            ("waiting in line: a crash, a revocation", Self { crashes: 1, revokes: 1, ..waits }),
        ]
    }

    /// The name of a client, by number.
    pub fn name_of(&self, client: u8) -> u8 {
        if self.one_name { 0 } else { client }
    }

    pub fn wall_ahead_ms(&self, client: u8) -> i64 {
        self.ahead_ms[usize::from(client).min(1)]
    }

    /// How far a client's clock moves in a tick: every second client's is 1 % slow, the most that rule 2 allows.
    pub fn tick_of(client: usize) -> Duration {
        Duration::from_millis(if client.is_multiple_of(2) {
            Self::TICK_MS - Self::TICK_MS / 100
        } else {
            Self::TICK_MS
        })
    }
}
