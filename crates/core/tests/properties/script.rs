//! Symbolic steps over small alphabets, so that collisions are frequent and a failing script shrinks to a readable one.

use proptest::{collection::vec, option, prelude::*};
use solehold_core::{limits, session::HolderStatus};

use crate::scenes;

/// How many resources the scripts know; see [`crate::memory::resource`].
pub const RESOURCES: u8 = 4;
/// How many holders the scripts know; see [`crate::memory::holder`].
pub const HOLDERS: u8 = 4;

/// How many actors the scripts know; see [`crate::memory::actor`].
pub const ACTORS: u8 = 8;

/// One act of a script.
#[derive(Debug, Clone)]
pub enum Act {
    /// Time passes.
    Wait(Wait),
    /// Commands are decided together, as one batch at one moment.
    Batch(Vec<Ask>),
    /// The engine stops and comes back with nothing but its rows.
    Restart { gap_ms: u64 },
    /// The engine forgets what has no use any more.
    Forget,
    /// The engine finds that its rows may lack the latest commits.
    SetBack,
    /// Someone else gives the commands from now on; see [`crate::memory::actor`].
    By(u8),
    /// Requests that nobody ever made are cancelled, more of them than are remembered of those that leases spent.
    CancelInvented { what: u8, who: u8, count: u16 },
}

/// How time passes.
#[derive(Debug, Clone)]
pub enum Wait {
    Ms(u64),
    /// To the nth deadline ahead, exactly or a millisecond beside it.
    Deadline {
        nth: u8,
        beside: i8,
    },
    /// Close to the end of time.
    End {
        before_ms: u64,
    },
}

/// A session to name.
#[derive(Debug, Clone)]
pub enum Who {
    /// The one that a holder opened last.
    LastOf(u8),
    /// The nth last that anyone opened.
    Former(u8),
    /// The nth last waiting room, which is nobody's session.
    Room(u8),
    Unknown,
}

/// A part of a claim.
#[derive(Debug, Clone)]
pub enum Shown {
    Nothing,
    Right,
    Former(u8),
    Absurd,
}

/// Which lease is claimed.
#[derive(Debug, Clone)]
pub enum Meant {
    Resource,
    Lease,
    FormerLease(u8),
    LeaseOfAnotherTenant,
}

#[derive(Debug, Clone)]
pub struct Claiming {
    pub what: u8,
    pub meant: Meant,
    pub token: Shown,
    pub session: Shown,
    pub holder: Shown,
}

#[derive(Debug, Clone)]
pub enum Keep {
    Own(u64),
    Session(Who),
    /// The session that the asking holder opened last.
    Present,
}

/// What a record is written over.
#[derive(Debug, Clone)]
pub enum Put {
    Anything,
    Nothing,
    /// One of two documents.
    Text(u8),
}

/// One command, before it is known what the names in it stand for.
#[derive(Debug, Clone)]
pub enum Ask {
    Acquire {
        what: u8,
        who: u8,
        keep: Keep,
        request: Option<u8>,
        strict: bool,
        /// For how long, and in which room, to wait in line.
        wait: Option<(u64, u8)>,
        /// How many may share it.
        slots: Option<u32>,
    },
    /// Acquires, all or none.
    All(Vec<Ask>),
    /// Leaves a line that was joined as the nth last.
    Leave {
        nth: u8,
    },
    OpenRoom {
        ttl_ms: u64,
    },
    Renew {
        claim: Claiming,
        ttl_ms: Option<u64>,
        stats: bool,
    },
    Release {
        claim: Claiming,
        sequence: Option<u64>,
    },
    Revoke {
        claim: Claiming,
        fenced: bool,
    },
    Cancel {
        what: u8,
        who: u8,
        request: u8,
    },
    Write {
        claim: Claiming,
        sequence: u64,
    },
    HandOver {
        what: u8,
        to: Who,
        within_ms: u64,
        budget: Option<u32>,
        planned: bool,
    },
    Expire {
        what: u8,
        slot: u32,
    },
    Open {
        who: u8,
        ttl_ms: u64,
        replace: Option<Who>,
        fenced: bool,
        capacity: Option<Option<u32>>,
    },
    Heartbeat {
        session: Who,
        who: Option<u8>,
    },
    Close {
        session: Who,
    },
    ExpireSession {
        session: Who,
    },
    HeardOf {
        who: u8,
    },
    Status {
        who: u8,
        status: HolderStatus,
    },
    RemoveHolder {
        who: u8,
        /// The session that is shown as proof.
        session: Option<Who>,
    },
    Declare {
        what: u8,
        lock_delay_ms: u64,
        only_new: bool,
    },
    Delete {
        what: u8,
        force: bool,
        fenced: bool,
    },
    Note {
        what: u8,
    },
    PutRecord {
        id: u8,
        over: Put,
        text: u8,
    },
    RemoveRecord {
        id: u8,
    },
    Raise {
        above: u64,
    },
    /// The nth last command once more: as it was, or as a client sends it again, with ids made anew.
    Again {
        nth: u8,
        is_fresh: bool,
    },
}

pub fn script(length: std::ops::Range<usize>) -> BoxedStrategy<Vec<Act>> {
    // Most stories begin with holders that are there already, and many with a resource that has a lock-delay.
    let acts = prop_oneof![12 => act().prop_map(|act| vec![act]), 1 => scenes::any()];
    (option::weighted(0.8, small_capacity()), any::<bool>(), vec(acts, length))
        .prop_map(|(present, is_declared, acts)| {
            let declare = Ask::Declare { what: 0, lock_delay_ms: 2_000, only_new: false };
            let declared = is_declared.then_some(Act::Batch(vec![declare]));
            present.map(everyone_opens).into_iter().chain(declared).chain(acts.concat()).collect()
        })
        .boxed()
}

/// None at all, or so small that a few resources fill it.
fn small_capacity() -> BoxedStrategy<Option<Option<u32>>> {
    prop_oneof![Just(None), Just(Some(Some(1))), Just(Some(Some(2)))].boxed()
}

fn everyone_opens(capacity: Option<Option<u32>>) -> Act {
    let open = |who| Ask::Open { who, ttl_ms: 6_000, replace: None, fenced: false, capacity };
    Act::Batch((0..HOLDERS).map(open).chain([Ask::OpenRoom { ttl_ms: 6_000 }]).collect())
}

fn everyone_is_heard_of() -> Act {
    let heartbeat = |who| Ask::Heartbeat { session: Who::LastOf(who), who: None };
    let room = Ask::Heartbeat { session: Who::Room(0), who: None };
    Act::Batch((0..HOLDERS).map(heartbeat).chain([room]).collect())
}

fn act() -> BoxedStrategy<Act> {
    prop_oneof![
        30 => vec(ask(), 1..4).prop_map(Act::Batch),
        10 => wait().prop_map(Act::Wait),
        10 => Just(everyone_is_heard_of()),
        2 => small_capacity().prop_map(everyone_opens),
        1 => prop_oneof![Just(0), 1..20_000u64].prop_map(|gap_ms| Act::Restart { gap_ms }),
        1 => Just(Act::Forget),
        1 => Just(Act::SetBack),
        4 => (0..ACTORS).prop_map(Act::By),
    ]
    .boxed()
}

pub fn wait() -> BoxedStrategy<Wait> {
    prop_oneof![
        120 => (0..2u8, -1..=1i8).prop_map(|(nth, beside)| Wait::Deadline { nth, beside }),
        180 => (0..1_000u64).prop_map(Wait::Ms),
        2 => (10_000..3 * limits::REQUEST_KEPT_MS).prop_map(Wait::Ms),
        1 => prop_oneof![Just(0), 0..10_000u64].prop_map(|before_ms| Wait::End { before_ms }),
    ]
    .boxed()
}

fn what() -> BoxedStrategy<u8> {
    prop_oneof![6 => Just(0), 3 => 1..3u8, 1 => Just(3)].boxed()
}

pub fn who() -> BoxedStrategy<u8> {
    prop_oneof![8 => 0..3u8, 1 => Just(3)].boxed()
}

fn ttl() -> BoxedStrategy<u64> {
    prop_oneof![
        20 => 1_000..3_000u64,
        20 => 3_000..10_000u64,
        1 => prop_oneof![Just(0), Just(999), Just(limits::TTL_MS_MAX), Just(u64::MAX)],
    ]
    .boxed()
}

fn session() -> BoxedStrategy<Who> {
    prop_oneof![16 => who().prop_map(Who::LastOf), 2 => (0..2u8).prop_map(Who::Room), 3 => (0..6u8).prop_map(Who::Former), 1 => Just(Who::Unknown)].boxed()
}

fn shown() -> BoxedStrategy<Shown> {
    prop_oneof![
        15 => Just(Shown::Nothing),
        15 => Just(Shown::Right),
        2 => (0..6u8).prop_map(Shown::Former),
        1 => Just(Shown::Absurd),
    ]
    .boxed()
}

fn claim() -> BoxedStrategy<Claiming> {
    let meant = prop_oneof![
        12 => Just(Meant::Resource),
        8 => Just(Meant::Lease),
        2 => (0..6u8).prop_map(Meant::FormerLease),
        1 => Just(Meant::LeaseOfAnotherTenant),
    ];
    (what(), meant, shown(), shown(), shown())
        .prop_map(|(what, meant, token, session, holder)| Claiming { what, meant, token, session, holder })
        .boxed()
}

fn sequence() -> BoxedStrategy<u64> {
    prop_oneof![8 => 0..6u64, 1 => Just(u64::MAX)].boxed()
}

fn lock_delay() -> BoxedStrategy<u64> {
    prop_oneof![5 => Just(0), 5 => 1..4_000u64, 1 => Just(limits::LOCK_DELAY_MS_MAX), 1 => Just(u64::MAX)]
        .boxed()
}

fn within() -> BoxedStrategy<u64> {
    prop_oneof![10 => 1..6_000u64, 1 => prop_oneof![Just(0), Just(limits::PENDING_MS_MAX), Just(u64::MAX)]]
        .boxed()
}

fn capacity() -> BoxedStrategy<Option<Option<u32>>> {
    option::of(option::of(prop_oneof![6 => 1..3u32, 1 => prop_oneof![Just(0), Just(u32::MAX)]])).boxed()
}

fn status() -> BoxedStrategy<HolderStatus> {
    prop_oneof![
        3 => Just(HolderStatus::Active),
        1 => Just(HolderStatus::Draining),
        1 => Just(HolderStatus::Maintenance),
    ]
    .boxed()
}

fn acquire() -> BoxedStrategy<Ask> {
    let keep = prop_oneof![
        5 => ttl().prop_map(Keep::Own),
        5 => Just(Keep::Present),
        1 => session().prop_map(Keep::Session),
    ];
    let wait_ms = prop_oneof![20 => 1..8_000u64, 1 => prop_oneof![Just(0), Just(u64::MAX)]];
    let wait = option::weighted(0.6, (wait_ms, prop_oneof![9 => Just(0u8), 1 => 0..3u8]));
    let slots = prop_oneof![20 => 1..4u32, 1 => prop_oneof![Just(0), Just(u32::MAX)]];
    let slots = option::weighted(0.4, slots);
    (what(), who(), keep, option::weighted(0.4, 0..3u8), proptest::bool::weighted(0.1), wait, slots)
        .prop_map(|(what, who, keep, request, strict, wait, slots)| Ask::Acquire {
            what,
            who,
            keep,
            request,
            strict,
            wait,
            slots,
        })
        .boxed()
}

fn open() -> BoxedStrategy<Ask> {
    (who(), ttl(), option::weighted(0.4, session()), any::<bool>(), capacity())
        .prop_map(|(who, ttl_ms, replace, fenced, capacity)| Ask::Open {
            who,
            ttl_ms,
            replace,
            fenced,
            capacity,
        })
        .boxed()
}

fn of_leases() -> BoxedStrategy<Ask> {
    prop_oneof![
        20 => acquire(),
        2 => vec(acquire(), 1..4).prop_map(Ask::All),
        5 => (claim(), option::of(ttl()), any::<bool>())
            .prop_map(|(claim, ttl_ms, stats)| Ask::Renew { claim, ttl_ms, stats }),
        4 => (claim(), option::of(sequence())).prop_map(|(claim, sequence)| Ask::Release { claim, sequence }),
        3 => (claim(), any::<bool>()).prop_map(|(claim, fenced)| Ask::Revoke { claim, fenced }),
        3 => (what(), who(), 0..3u8).prop_map(|(what, who, request)| Ask::Cancel { what, who, request }),
        3 => (claim(), sequence()).prop_map(|(claim, sequence)| Ask::Write { claim, sequence }),
        14 => (what(), session(), within(), option::of(0..3u32), any::<bool>())
            .prop_map(|(what, to, within_ms, budget, planned)| Ask::HandOver { what, to, within_ms, budget, planned }),
        4 => (what(), prop_oneof![2 => Just(0), 1 => 1..4u32])
            .prop_map(|(what, slot)| Ask::Expire { what, slot }),
        2 => (0..4u8).prop_map(|nth| Ask::Leave { nth }),
    ]
    .boxed()
}

fn of_sessions() -> BoxedStrategy<Ask> {
    prop_oneof![
        8 => open(),
        2 => ttl().prop_map(|ttl_ms| Ask::OpenRoom { ttl_ms }),
        8 => (session(), option::weighted(0.2, who()))
            .prop_map(|(session, who)| Ask::Heartbeat { session, who }),
        1 => session().prop_map(|session| Ask::Close { session }),
        2 => session().prop_map(|session| Ask::ExpireSession { session }),
        1 => who().prop_map(|who| Ask::HeardOf { who }),
        2 => (who(), status()).prop_map(|(who, status)| Ask::Status { who, status }),
        2 => (who(), option::of(session())).prop_map(|(who, session)| Ask::RemoveHolder { who, session }),
        1 => who().prop_map(|who| Ask::RemoveHolder { who, session: Some(Who::LastOf(who)) }),
    ]
    .boxed()
}

fn put() -> BoxedStrategy<Put> {
    prop_oneof![Just(Put::Anything), Just(Put::Nothing), (0..2u8).prop_map(Put::Text)].boxed()
}

fn of_the_registry() -> BoxedStrategy<Ask> {
    let raise = prop_oneof![4 => 0..1_000u64, 1 => Just(1 << 32), 1 => Just(u64::MAX)];
    prop_oneof![
        4 => (what(), lock_delay(), proptest::bool::weighted(0.2))
            .prop_map(|(what, lock_delay_ms, only_new)| Ask::Declare { what, lock_delay_ms, only_new }),
        3 => (what(), any::<bool>(), any::<bool>())
            .prop_map(|(what, force, fenced)| Ask::Delete { what, force, fenced }),
        1 => what().prop_map(|what| Ask::Note { what }),
        2 => (0..2u8, put(), 0..2u8).prop_map(|(id, over, text)| Ask::PutRecord { id, over, text }),
        1 => (0..2u8).prop_map(|id| Ask::RemoveRecord { id }),
        1 => raise.prop_map(|above| Ask::Raise { above }),
    ]
    .boxed()
}

pub fn ask() -> BoxedStrategy<Ask> {
    prop_oneof![
        20 => of_leases(),
        9 => of_sessions(),
        4 => of_the_registry(),
        4 => (0..6u8, any::<bool>()).prop_map(|(nth, is_fresh)| Ask::Again { nth, is_fresh }),
    ]
    .boxed()
}
