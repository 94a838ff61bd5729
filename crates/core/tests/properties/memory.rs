//! What a script has seen so far, from which it takes former tokens, lease ids, sessions and commands.

use solehold_core::{
    call::{Actor, ResourceScope},
    command::{
        Acquire, AskedTenure, Claim, Command, HandOver, OpenSession, Over, Registration, StateWrite,
        StatusBy, Target, Undeclared, Wait,
    },
    event::{Change, What},
    key::{Document, HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{Declaration, Lease},
    record::Record,
    time::{Revision, Token},
};
use uuid::Uuid;

use crate::{
    common::{World, document, key_of, name},
    script::{Ask, Claiming, HOLDERS, Keep, Meant, Put, RESOURCES, Shown, Who},
    step::Step,
};

/// The resources of the scripts: three of one tenant, and one of another by the same name.
pub fn resource(what: u8) -> ResourceKey {
    match what % RESOURCES {
        0 => key_of("acme", "lobby"),
        1 => key_of("acme", "a/b ✓"),
        2 => key_of("acme", "yard"),
        _ => key_of("øther", "lobby"),
    }
}

/// The holders of the scripts: three of one tenant, and one of another by the same name.
pub fn holder(who: u8) -> HolderKey {
    let (tenant, who) =
        [("acme", "ann"), ("acme", "bob"), ("acme", "çat"), ("øther", "ann")][usize::from(who % HOLDERS)];
    HolderKey { tenant: name(tenant), name: name(who) }
}

fn request(n: u8) -> Name {
    name(["r0", "r1", "r2"][usize::from(n % 3)])
}

/// Nobody in particular, an admin, and keys that may touch everything or little.
pub fn actor(n: u8) -> Actor {
    let key = |id, scopes: &[ResourceScope]| Actor::Key { id: name(id), scopes: scopes.into() };
    let lobby = resource(0);
    match n {
        0..=2 => Actor::Unnamed,
        3 => Actor::Admin(name("root")),
        4..=5 => key("k0", &[]),
        6 => key("k1", &[]),
        _ => key("k0", &[ResourceScope { kind: lobby.kind, key_prefix: lobby.key.to_string() }]),
    }
}

/// Everything that a script may name again.
#[derive(Debug, Default)]
pub struct Memory {
    sessions: Vec<(SessionId, HolderKey)>,
    leases: Vec<(LeaseId, Name)>,
    rooms: Vec<SessionId>,
    waited: Vec<(ResourceKey, LeaseId)>,
    tokens: Vec<Token>,
    commands: Vec<Command>,
}

/// The nth last of what there was.
fn nth_last<T: Clone>(of: &[T], nth: u8) -> Option<T> {
    let len = of.len();
    (len > 0).then(|| of[len - 1 - usize::from(nth) % len].clone())
}

impl Memory {
    pub fn learn(&mut self, step: &Step<'_>) {
        self.commands.push(step.command.clone());
        for change in &step.decision.changes {
            match change {
                Change::SessionOpened(session) => {
                    self.sessions.push((session.id, session.holder.clone()));
                    self.rooms.extend(session.is_room().then_some(session.id));
                }
                Change::Waits(waiter) => self.waited.push((waiter.key.clone(), waiter.lease)),
                Change::Event(event) => {
                    if let What::Acquired(lease) = &event.what {
                        self.tokens.push(lease.token);
                        self.leases.push((lease.id, event.key.tenant.clone()));
                    }
                }
                _ => {}
            }
        }
    }

    fn session(&self, who: &Who) -> SessionId {
        let unknown = SessionId(Uuid::from_u128(u128::MAX));
        match who {
            Who::LastOf(who) => {
                let holder = holder(*who);
                self.sessions.iter().rev().find(|(_, h)| *h == holder).map_or(unknown, |(id, _)| *id)
            }
            Who::Former(nth) => nth_last(&self.sessions, *nth).map_or(unknown, |(id, _)| id),
            Who::Room(nth) => nth_last(&self.rooms, *nth).unwrap_or(unknown),
            Who::Unknown => unknown,
        }
    }

    fn claim(&self, world: &World, claiming: &Claiming) -> Claim {
        let key = resource(claiming.what);
        let slots = world.state.slots_of(&key).expect("the whole state is here");
        let held = world.state.resource(&key).into_iter().chain(slots).find_map(|r| r.lease.as_ref());
        let unknown = LeaseId(Uuid::from_u128(u128::MAX));
        let by_id = |tenant, id| Target::Lease { tenant, id };
        let id = held.map_or(unknown, |l| l.id);
        let target = match claiming.meant {
            Meant::Resource => Target::Resource(key.clone()),
            Meant::Lease => by_id(key.tenant.clone(), id),
            Meant::LeaseOfAnotherTenant => by_id(name("nobody"), id),
            Meant::FormerLease(nth) => {
                let (id, tenant) = nth_last(&self.leases, nth).unwrap_or((unknown, key.tenant.clone()));
                by_id(tenant, id)
            }
        };
        Claim {
            target,
            token: self.shown_token(held, &claiming.token),
            session: self.shown_session(held, &claiming.session),
            holder: match claiming.holder {
                Shown::Nothing => None,
                Shown::Right => held.map(|l| l.holder.clone()),
                Shown::Former(n) => Some(holder(n).name),
                Shown::Absurd => Some(name("nobody")),
            },
        }
    }

    fn shown_token(&self, held: Option<&Lease>, shown: &Shown) -> Option<Token> {
        match shown {
            Shown::Nothing => None,
            Shown::Right => held.map(|l| l.token),
            Shown::Former(nth) => nth_last(&self.tokens, *nth),
            Shown::Absurd => Some(Token(u64::MAX)),
        }
    }

    fn shown_session(&self, held: Option<&Lease>, shown: &Shown) -> Option<SessionId> {
        match shown {
            Shown::Nothing => None,
            Shown::Right => held.and_then(|l| l.tenure.session()),
            Shown::Former(nth) => Some(self.session(&Who::Former(*nth))),
            Shown::Absurd => Some(self.session(&Who::Unknown)),
        }
    }

    /// The command that an ask stands for now.
    pub fn command(&self, world: &mut World, ask: &Ask) -> Command {
        match ask {
            Ask::Acquire { what, who, keep, request: asked, strict, wait, slots } => {
                Command::Acquire(Acquire {
                    key: resource(*what),
                    lease: LeaseId(world.fresh()),
                    holder: holder(*who).name,
                    tenure: match keep {
                        Keep::Own(ttl_ms) => AskedTenure::Own { ttl_ms: *ttl_ms },
                        Keep::Session(who) => AskedTenure::Session(self.session(who)),
                        Keep::Present => AskedTenure::Session(self.session(&Who::LastOf(*who))),
                    },
                    request: asked.map(request),
                    attributes: Document::default(),
                    undeclared: if *strict { Undeclared::Refuse } else { Undeclared::Allow },
                    wait: wait.map(|(wait_ms, room)| Wait { room: self.session(&Who::Room(room)), wait_ms }),
                    slots: *slots,
                    holds_at_most: strict.then_some(1),
                })
            }
            Ask::All(asks) => {
                let acquires = asks.iter().map(|ask| match self.command(world, ask) {
                    Command::Acquire(ask) => ask,
                    other => unreachable!("{other:?} is not an acquire"),
                });
                Command::AcquireAll(acquires.collect())
            }
            Ask::Leave { nth } => {
                let unknown = (resource(0), LeaseId(Uuid::from_u128(u128::MAX)));
                let (key, lease) = nth_last(&self.waited, *nth).unwrap_or(unknown);
                Command::LeaveQueue { key, lease }
            }
            Ask::OpenRoom { ttl_ms } => Command::OpenRoom { id: SessionId(world.fresh()), ttl_ms: *ttl_ms },
            Ask::Renew { claim, ttl_ms, stats } => Command::Renew {
                claim: self.claim(world, claim),
                ttl_ms: *ttl_ms,
                stats: stats.then(|| document("stats")),
            },
            Ask::Release { claim, sequence } => {
                Command::Release { claim: self.claim(world, claim), state: sequence.map(write) }
            }
            Ask::Revoke { claim, fenced } => {
                Command::Revoke { claim: self.claim(world, claim), fenced: *fenced, reason: None }
            }
            Ask::Cancel { what, who, request: asked } => Command::CancelRequest(RequestKey {
                resource: resource(*what),
                holder: holder(*who).name,
                request: request(*asked),
            }),
            Ask::Write { claim, sequence } => {
                Command::WriteState { claim: self.claim(world, claim), write: write(*sequence) }
            }
            Ask::HandOver { what, to, within_ms, budget, planned } => Command::HandOver(HandOver {
                budget: *budget,
                planned: world.state.resource(&resource(*what)).map(|r| r.last_token).filter(|_| *planned),
                ..HandOver::new(resource(*what), LeaseId(world.fresh()), self.session(to), *within_ms)
            }),
            Ask::Expire { what, slot } => Command::Expire { key: resource(*what).of_slot(*slot) },
            Ask::Declare { what, lock_delay_ms, only_new } => Command::Declare {
                key: resource(*what),
                declaration: Declaration { lock_delay_ms: *lock_delay_ms, ..Declaration::default() },
                only_new: *only_new,
            },
            Ask::Note { what } => Command::NoteConfig { key: resource(*what), details: document("note") },
            Ask::Delete { what, force, fenced } => {
                Command::Delete { key: resource(*what), force: *force, fenced: *fenced }
            }
            Ask::Again { nth, is_fresh } => self.again(world, *nth, *is_fresh),
            _ => self.other(world, ask),
        }
    }

    /// Commands about sessions, holders, records and the revision.
    fn other(&self, world: &mut World, ask: &Ask) -> Command {
        match ask {
            Ask::Open { who, ttl_ms, replace, fenced, capacity } => Command::OpenSession(OpenSession {
                id: SessionId(world.fresh()),
                holder: holder(*who),
                ttl_ms: *ttl_ms,
                replace: replace.as_ref().map(|who| self.session(who)),
                fenced: *fenced,
                follows: None,
                registration: capacity.map(|capacity| Registration {
                    site: None,
                    capacity,
                    attributes: Document::default(),
                }),
                metrics: None,
            }),
            Ask::Heartbeat { session, who } => {
                let session = self.session(session);
                Command::Heartbeat {
                    tenant: self.tenant_of(session),
                    session,
                    holder: who.map(|who| holder(who).name),
                    metrics: Some(document("metrics")),
                }
            }
            Ask::Close { session } => {
                let session = self.session(session);
                Command::CloseSession { tenant: self.tenant_of(session), session }
            }
            Ask::ExpireSession { session } => Command::ExpireSession(self.session(session)),
            Ask::HeardOf { who } => {
                Command::HeardOf { holder: holder(*who), metrics: Some(document("heard")) }
            }
            Ask::Status { who, status } => {
                Command::SetStatus { holder: holder(*who), status: *status, by: StatusBy::Operator }
            }
            Ask::RemoveHolder { who, session } => {
                let session = session.as_ref().map(|who| self.session(who));
                Command::RemoveHolder { holder: holder(*who), session }
            }
            Ask::PutRecord { id, over, text } => {
                let over = match over {
                    Put::Anything => Over::Anything,
                    Put::Nothing => Over::Nothing,
                    Put::Text(text) => Over::Document(record(*id, *text).document),
                };
                Command::PutRecord { record: record(*id, *text), over }
            }
            Ask::RemoveRecord { id } => {
                let (collection, id) = record(*id, 0).key();
                Command::RemoveRecord { collection, id }
            }
            Ask::Raise { above } => Command::RaiseRevision { above: Revision(*above) },
            other => unreachable!("{other:?} is about leases"),
        }
    }

    fn tenant_of(&self, session: SessionId) -> Name {
        self.sessions.iter().find(|(id, _)| *id == session).map_or(name("nobody"), |(_, h)| h.tenant.clone())
    }

    fn again(&self, world: &mut World, nth: u8, is_fresh: bool) -> Command {
        let mut command = nth_last(&self.commands, nth).unwrap_or(Command::Expire { key: resource(0) });
        if is_fresh {
            match &mut command {
                Command::Acquire(Acquire { lease, .. }) | Command::HandOver(HandOver { lease, .. }) => {
                    *lease = LeaseId(world.fresh());
                }
                Command::OpenSession(OpenSession { id, .. }) | Command::OpenRoom { id, .. } => {
                    *id = SessionId(world.fresh())
                }
                _ => {}
            }
        }
        command
    }
}

fn write(sequence: u64) -> StateWrite {
    StateWrite { sequence, document: document("state") }
}

fn record(id: u8, text: u8) -> Record {
    let collection = name("keys");
    let id = name(["k0", "k1"][usize::from(id % 2)]);
    Record { collection, id, document: document(["one", "two"][usize::from(text % 2)]) }
}
