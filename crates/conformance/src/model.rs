//! Random commands: what a store decides over the rows that it loaded is what would be decided over all rows.
//!
//! The model is a plain [`Ledger`] that nothing is left out of. A batch is decided on both, at the moment that the
//! store tells; a row that a store failed to load, or loaded as it was before, shows as a difference.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use solehold_core::{
    call::{Actor, Call},
    command::*,
    event::Change,
    forget,
    key::*,
    lease::{Declaration, Resource},
    ledger::{FoundLate, Ledger},
    record::Record,
    session::{HolderStatus, Session},
    time::*,
};
use uuid::Uuid;

use crate::{Fixture, kit::*};
use solehold_engine::observe::Lane;
use solehold_engine::store::{BatchDecision, Decider, Row};

/// Decides on the store's rows and on the model's, and compares.
struct Twice {
    judge: Judge,
    model: Ledger,
    after: Ledger,
}

impl Decider for Twice {
    fn decide(&mut self, state: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
        let decided = self.judge.decide(state, moment)?;
        let mut model = Judge::of(self.judge.calls.clone());
        let mut after = self.model.clone();
        let expected = model.decide(&mut after, moment).expect("the model has every session");
        assert_eq!(self.judge.outcomes, model.outcomes, "for {:#?}", self.judge.calls);
        assert_eq!(self.judge.changes, model.changes, "for {:#?}", self.judge.calls);
        assert_eq!(decided, expected);
        self.after = after;
        Ok(decided)
    }
}

/// What is known of the store from outside, to make commands that hit something.
struct Player {
    random: StdRng,
    sessions: Vec<(SessionId, String)>,
    leases: Vec<(ResourceKey, LeaseId, Token)>,
    rooms: Vec<SessionId>,
    waited: Vec<(ResourceKey, LeaseId)>,
}

const HOLDERS: [&str; 4] = ["ann", "bea", "carl", "dan"];
const KEYS: [&str; 6] = ["a", "b", "c/ü", "d", "e", "f"];

impl Player {
    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.random.random_range(0..from.len())].clone())
    }

    fn key(&mut self) -> ResourceKey {
        let tenant = if self.random.random_ratio(1, 8) { "other" } else { "acme" };
        ResourceKey { tenant: name(tenant), ..key(self.pick(&KEYS).expect("some")) }
    }

    fn holder(&mut self) -> String {
        self.pick(&HOLDERS).expect("some").to_owned()
    }

    fn session(&mut self) -> SessionId {
        let sessions = self.sessions.clone();
        self.pick(&sessions).map_or(SessionId(Uuid::new_v4()), |(id, _)| id)
    }

    fn claim(&mut self) -> Claim {
        let leases = self.leases.clone();
        let newest = &leases[leases.len().saturating_sub(12)..];
        let Some((key, id, token)) = self.pick(newest) else { return by_holder(&self.key(), "ann") };
        let key = if self.random.random_ratio(1, 2) { key.whole() } else { key };
        match self.random.random_range(0..5) {
            0 => by_id("acme", id),
            1 => by_session(&key, self.session()),
            2 => by_holder(&key, &self.holder()),
            _ => by_token(&key, token),
        }
    }

    fn acquire(&mut self) -> Acquire {
        let key = self.key();
        let mut holder = self.holder();
        let sessions = self.sessions.clone();
        let newest = &sessions[sessions.len().saturating_sub(6)..];
        let tenure = match self.pick(newest).filter(|_| self.random.random_ratio(2, 3)) {
            Some((id, its)) => {
                holder = its;
                AskedTenure::Session(id)
            }
            None => AskedTenure::Own { ttl_ms: self.random.random_range(1_000..4_000) },
        };
        let request =
            self.random.random_ratio(1, 2).then(|| name(&format!("r{}", self.random.random_range(0..6))));
        let undeclared = if self.random.random_ratio(1, 5) { Undeclared::Refuse } else { Undeclared::Allow };
        let room = self.room().filter(|_| self.random.random_ratio(2, 3));
        let wait = room.map(|room| Wait { room, wait_ms: self.random.random_range(1..6_000) });
        let slots = self.random.random_ratio(1, 3).then(|| self.random.random_range(1..4));
        Acquire { tenure, request, undeclared, wait, slots, ..ask(&key, &holder) }
    }

    fn acquire_all(&mut self) -> Command {
        let count = self.random.random_range(1..4);
        Command::AcquireAll((0..count).map(|_| self.acquire()).collect())
    }

    /// One of the newest rooms.
    fn room(&mut self) -> Option<SessionId> {
        let rooms = self.rooms.clone();
        self.pick(&rooms[rooms.len().saturating_sub(3)..])
    }

    /// Rooms and those who wait in them.
    fn waiting(&mut self) -> Command {
        let waited = self.waited.clone();
        let room = self.room();
        let newest = &waited[waited.len().saturating_sub(20)..];
        match (self.random.random_range(0..8), room, self.pick(newest)) {
            (0..2, _, Some((key, lease))) => Command::LeaveQueue { key, lease },
            (2..6, Some(session), _) => {
                Command::Heartbeat { tenant: Name::rooms(), session, holder: None, metrics: None }
            }
            (6, Some(session), _) => Command::CloseSession { tenant: Name::rooms(), session },
            _ => {
                let ttl_ms = self.random.random_range(1_000..6_000);
                Command::OpenRoom { id: SessionId(Uuid::new_v4()), ttl_ms }
            }
        }
    }

    fn open(&mut self) -> Command {
        let name_of_holder = self.holder();
        let replace = self.random.random_ratio(1, 2).then(|| self.session());
        let registration = self.random.random_ratio(1, 2).then(|| Registration {
            site: None,
            capacity: self.random.random_ratio(1, 2).then_some(2),
            attributes: Document::default(),
        });
        Command::OpenSession(OpenSession {
            id: SessionId(Uuid::new_v4()),
            holder: holder(&name_of_holder),
            ttl_ms: self.random.random_range(1_000..4_000),
            replace,
            fenced: self.random.random_ratio(1, 2),
            follows: self.random.random_ratio(1, 3).then(|| self.session()),
            registration,
            metrics: None,
        })
    }

    fn command(&mut self) -> Command {
        match self.random.random_range(0..100) {
            0..24 => Command::Acquire(self.acquire()),
            24..26 => self.acquire_all(),
            26..31 => self.open(),
            31..36 => self.waiting(),
            36..41 => Command::Heartbeat {
                tenant: name("acme"),
                session: self.session(),
                holder: None,
                metrics: None,
            },
            41..49 => renew(self.claim()),
            49..57 => {
                let sequence = self.random.random_range(0..9);
                let state =
                    self.random.random_ratio(1, 3).then(|| StateWrite { sequence, document: text("last") });
                Command::Release { claim: self.claim(), state }
            }
            57..60 => revoke(self.claim(), self.random.random_ratio(1, 2)),
            60..63 => {
                let resource = self.key();
                let holder = name(&self.holder());
                let request = name(&format!("r{}", self.random.random_range(0..6)));
                Command::CancelRequest(RequestKey { resource, holder, request })
            }
            63..67 => {
                let write = StateWrite { sequence: self.random.random_range(0..9), document: text("s") };
                Command::WriteState { claim: self.claim(), write }
            }
            67..74 => hand_over(&self.key(), self.session(), self.random.random_range(1..3_000)),
            74..80 => Command::Expire { key: self.key().of_slot(self.random.random_range(0..3)) },
            80..83 => close(self.session()),
            83..86 => Command::ExpireSession(self.session()),
            86..88 => Command::HeardOf { holder: holder(&self.holder()), metrics: Some(text("m")) },
            88..90 => {
                let status = [HolderStatus::Active, HolderStatus::Draining, HolderStatus::Maintenance];
                let status = self.pick(&status).expect("some");
                let by = [StatusBy::Operator, StatusBy::Itself(None), StatusBy::Itself(Some(self.session()))];
                let by = self.pick(&by).expect("some");
                Command::SetStatus { holder: holder(&self.holder()), status, by }
            }
            90..91 => {
                let session = self.random.random_ratio(1, 2).then(|| self.session());
                Command::RemoveHolder { holder: holder(&self.holder()), session }
            }
            91..95 => {
                let lock_delay_ms = [0, 0, 300][self.random.random_range(0..3)];
                declare(&self.key(), Declaration { lock_delay_ms, ..Default::default() })
            }
            95..97 => {
                let force = self.random.random_ratio(2, 3);
                let fenced = self.random.random_ratio(1, 2);
                Command::Delete { key: self.key(), force, fenced }
            }
            97..99 => {
                let record = Record { collection: name("c"), id: name(&self.holder()), document: text("d") };
                let over = [Over::Anything, Over::Nothing, Over::Document(text("d"))];
                Command::PutRecord { record, over: self.pick(&over).expect("some") }
            }
            _ => Command::RemoveRecord { collection: name("c"), id: name(&self.holder()) },
        }
    }

    /// Someone who may do most of it: sessions and leases are shared by two keys, an admin and nobody.
    fn actor(&mut self) -> Actor {
        let key = |id| Actor::Key { id: name(id), scopes: Default::default() };
        let all = [Actor::Unnamed, Actor::Admin(name("root")), key("one"), key("two")];
        self.pick(&all).expect("some")
    }

    /// Commits a batch and compares; tells what the model has come to.
    async fn play(&mut self, bench: &Bench<'_>, commands: Vec<Command>, model: &Ledger) -> Ledger {
        let mut footprint = Footprint::default();
        commands.iter().for_each(|command| command.footprint(&mut footprint));
        let lane = Lane::of(&commands);
        let judge = Judge::of(commands.into_iter().map(|command| Call::new(command, self.actor())));
        let mut twice = Twice { judge, model: model.clone(), after: Ledger::default() };
        bench.store.transact(&footprint, lane, &mut twice).await.expect("the store commits");
        self.learn(&twice.judge.changes);
        let mut after = twice.after;
        after.take_dirty();
        after
    }

    fn learn(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::SessionOpened(session) if session.is_room() => self.rooms.push(session.id),
                Change::Waits(waiter) => self.waited.push((waiter.key.clone(), waiter.lease)),
                Change::SessionOpened(session) => {
                    self.sessions.push((session.id, session.holder.name.to_string()));
                }
                Change::Event(event) => {
                    if let solehold_core::event::What::Acquired(lease) = &event.what {
                        self.leases.push((event.key.clone(), lease.id, lease.token));
                    }
                }
                _ => {}
            }
        }
    }
}

/// The rows of a state as an export has them, without those that may be forgotten by now.
fn rows(mut state: Ledger, now: StoreTime) -> Vec<Row> {
    forget(&mut state, now);
    let sessions = state.sessions().filter(|s| !s.is_room()).cloned();
    let mut rows: Vec<Row> = sessions.map(|s| Row::Session(Session { waiting: 0, ..s })).collect();
    rows.extend(state.holders().cloned().map(Row::Holder));
    // A store may keep the row of an undeclared resource for the next grant, so when that was made is its own matter.
    let made_at = |r: &Resource| r.declared.as_ref().map_or(StoreTime::default(), |_| r.created_at);
    let resources = state.resources().cloned().map(|r| Resource { queued: 0, created_at: made_at(&r), ..r });
    rows.extend(resources.filter(|r| !r.is_forgettable(now)).map(Row::Resource));
    let requests = state.requests().map(|(request, spent)| (request, spent.clone()));
    rows.extend(requests.map(|(request, spent)| Row::Request { request, spent }));
    rows.extend(state.records().cloned().map(Row::Record));
    rows
}

/// What the store has, as the model would have it.
async fn stored(bench: &Bench<'_>) -> (Ledger, StoreTime) {
    let mut state = Ledger::default();
    let mut now = StoreTime(0);
    for row in bench.exported().await {
        if let Row::Header(header) = &row {
            now = header.now;
        }
        row.load_into(&mut state);
    }
    (state, now)
}

/// Plays random commands in batches of up to `batch_max`.
pub async fn play(fixture: &dyn Fixture, seed: u64, rounds: usize, batch_max: usize) {
    println!("seed {seed}");
    let mut bench = Bench::new(fixture).await;
    let mut model = Ledger::default();
    let mut player = Player {
        random: StdRng::seed_from_u64(seed),
        sessions: Vec::new(),
        leases: Vec::new(),
        rooms: Vec::new(),
        waited: Vec::new(),
    };
    for round in 0..rounds {
        let count = player.random.random_range(1..=batch_max);
        let commands = (0..count).map(|_| player.command()).collect();
        model = player.play(&bench, commands, &model).await;
        if player.random.random_ratio(1, 8) {
            bench.pass(player.random.random_range(1..700)).await;
        }
        if round % 50 == 49 {
            let (state, now) = stored(&bench).await;
            assert_eq!(rows(state, now), rows(model.clone(), now), "after {round} rounds");
        }
        if round % 120 == 119 && fixture.is_durable() {
            // An export has no lines to go on from.
            let rooms = model.sessions().filter(|s| s.is_room()).map(|s| s.id);
            let tenant = Name::rooms();
            let close = |session| Command::CloseSession { tenant: tenant.clone(), session };
            let rooms: Vec<_> = rooms.flat_map(|id| [close(id), Command::ExpireSession(id)]).collect();
            model = player.play(&bench, rooms, &model).await;
            assert_eq!(model.waiters().count(), 0, "all rooms are closed");
            bench = bench.reopen().await;
            // A restart may give time back; everything else is as it was.
            let (state, now) = stored(&bench).await;
            let lease_of = |r: &Resource| r.lease.as_ref().map(|l| (l.id, l.token));
            let leases = |state: &Ledger| state.resources().map(lease_of).collect::<Vec<_>>();
            // What may be forgotten by now may or may not have been: the store goes on with what it has.
            let mut stored = state.clone();
            let mut modelled = model;
            forget(&mut stored, now);
            forget(&mut modelled, now);
            assert_eq!(leases(&stored), leases(&modelled));
            model = state;
        }
    }
}

/// Some hundred commands, one at a time.
pub async fn random_commands(fixture: &dyn Fixture) {
    play(fixture, 1, 400, 1).await;
}

/// The same in batches, where one command sees what the one before it did.
pub async fn random_batches(fixture: &dyn Fixture) {
    play(fixture, 2, 150, 12).await;
}
