//! A Kafka broker, as far as the consumers of one partition see it: the messages, and the group that takes turns.
//!
//! A rebalance waits for every member, or until its session has timed out. A position is taken from members of the
//! present generation only, and a member that was paused believes in its own until it is told.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_kafka::Message;
use tokio::time::Instant;

use crate::{
    chance::SeededChance,
    chronicle::{Chronicle, Happening},
    plan::CHAOS,
    virtual_time::pass,
};

/// How long a member is kept that is not heard of.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(3);
/// How often the broker looks for members whose session has timed out.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a message is written, while things go wrong.
const WRITE_EVERY_MS: (u64, u64) = (100, 1_500);
/// The jobs that commands are about.
const JOBS: u64 = 8;
/// The messages of this many jobs have keys of their own; the others share one.
const KEYS: u64 = 4;

/// What a member is told with a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It is no member any more.
    Unknown,
    /// The group is being rebalanced: give the partition up, and join.
    Rebalance,
    /// The generation, and whether the partition is this member's.
    Stable { generation: u64, is_assigned: bool },
}

struct GroupMember {
    name: String,
    heard: Instant,
    has_joined: bool,
}

struct Group {
    log: Vec<Message>,
    generation: u64,
    is_stable: bool,
    /// By a number that is never used again.
    members: BTreeMap<u64, GroupMember>,
    last_member: u64,
    assigned: Option<u64>,
    committed: Option<i64>,
}

pub struct Kafka {
    began: Instant,
    chronicle: Arc<Chronicle>,
    group: Mutex<Group>,
}

impl Kafka {
    pub fn start(chronicle: Arc<Chronicle>, chance: SeededChance) -> Arc<Self> {
        let group = Group {
            log: Vec::new(),
            generation: 0,
            is_stable: true,
            members: BTreeMap::new(),
            last_member: 0,
            assigned: None,
            committed: None,
        };
        let broker = Arc::new(Self { began: Instant::now(), chronicle, group: Mutex::new(group) });
        tokio::spawn(broker.clone().look());
        tokio::spawn(broker.clone().feed(chance));
        broker
    }

    /// Whether things may go wrong.
    pub fn is_rough(&self) -> bool {
        self.began.elapsed() < CHAOS
    }

    /// Removes members that are not heard of.
    async fn look(self: Arc<Self>) {
        loop {
            pass(LOOK_EVERY).await;
            let group = &mut *self.group.lock();
            let now = Instant::now();
            let before = group.members.len();
            group.members.retain(|_, member| now < member.heard + SESSION_TIMEOUT);
            if group.members.len() < before {
                group.rebalance();
            }
            self.complete(group);
        }
    }

    /// Others write commands: many that create jobs, and some that cancel or retry them.
    async fn feed(self: Arc<Self>, chance: SeededChance) {
        while self.is_rough() {
            pass(chance.millis(WRITE_EVERY_MS.0, WRITE_EVERY_MS.1)).await;
            let job = chance.below(JOBS);
            let command = match chance.below(6) {
                0 => "cancel",
                1 => "retry",
                _ => "create",
            };
            let group = &mut *self.group.lock();
            group.log.push(Message {
                topic: "jobs".into(),
                partition: 0,
                offset: group.log.len() as i64,
                key: Some(format!("key-{}", job.min(KEYS)).into()),
                payload: Some(format!("{command} job-{job}").into()),
                headers: Vec::new(),
                timestamp_ms: None,
            });
        }
    }

    /// Ends a rebalance when every member has joined.
    fn complete(&self, group: &mut Group) {
        if group.is_stable || group.members.values().any(|member| !member.has_joined) {
            return;
        }
        group.is_stable = true;
        group.generation += 1;
        let members: Vec<u64> = group.members.keys().copied().collect();
        let turn = group.generation as usize % members.len().max(1);
        group.assigned = members.get(turn).copied();
        let name = group.assigned.map_or("nobody", |member| group.members[&member].name.as_str());
        self.chronicle.note(name, Happening::Assigned(group.assigned.unwrap_or_default(), group.generation));
    }

    /// A process joins the group, as another member.
    pub fn join(&self, name: &str) -> u64 {
        let group = &mut *self.group.lock();
        group.last_member += 1;
        let member = GroupMember { name: name.to_owned(), heard: Instant::now(), has_joined: true };
        group.rebalance();
        group.members.insert(group.last_member, member);
        group.last_member
    }

    /// A heartbeat of a member. It has joined if its callback has run since it was told of a rebalance.
    pub fn heartbeat(&self, member: u64, has_joined: bool) -> Told {
        let group = &mut *self.group.lock();
        let is_stable = group.is_stable;
        let Some(heard) = group.members.get_mut(&member) else { return Told::Unknown };
        heard.heard = Instant::now();
        heard.has_joined |= has_joined && !is_stable;
        self.complete(group);
        if !group.is_stable {
            return Told::Rebalance;
        }
        Told::Stable { generation: group.generation, is_assigned: group.assigned == Some(member) }
    }

    /// Takes a position from a member of the present generation.
    pub fn commit(&self, member: u64, generation: u64, position: i64) -> Result<(), String> {
        let group = &mut *self.group.lock();
        if !group.is_stable || group.generation != generation || !group.members.contains_key(&member) {
            return Err(format!("member {member} of generation {generation} is none of this one"));
        }
        group.committed = Some(position);
        Ok(())
    }

    pub fn committed(&self) -> Option<i64> {
        self.group.lock().committed
    }

    /// The first offset, and one above the last.
    pub fn watermarks(&self) -> (i64, i64) {
        (0, self.group.lock().log.len() as i64)
    }

    /// Some messages from an offset on.
    pub fn fetch(&self, from: i64, most: usize) -> Vec<Message> {
        self.group.lock().log.iter().skip(from.max(0) as usize).take(most).cloned().collect()
    }
}

impl Group {
    fn rebalance(&mut self) {
        self.is_stable = false;
        self.members.values_mut().for_each(|member| member.has_joined = false);
    }
}
