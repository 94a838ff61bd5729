//! The state that the polling thread, its rebalance callback and the tasks of the partitions share.
//!
//! - `slots`: the task of each partition. A task enters with [`Shared::enter`] and leaves when its [`Entered`] is
//!   dropped; the callback and the leases ask it to leave with [`Shared::leave`].
//! - `fetching`: the partitions whose messages librdkafka fetches. Only the polling thread changes it.
//! - `positions`: committed positions that the broker does not have yet. Tasks add them, the polling thread takes them.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, watch};

use super::{ConsumerMetrics, lane::Lane};

/// What the task of a partition should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leave {
    Stay,
    /// Finish and commit the messages in progress, then end.
    Finish,
    /// End at once: another consumer has the partition, or soon will.
    Drop,
}

impl Leave {
    pub fn is_stay(self) -> bool {
        self == Self::Stay
    }
}

/// A moment at which a test may pause a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Assigned,
    Revoked,
    Lost,
    /// The broker accepted a commit, so this consumer is a member; the epoch is not raised yet.
    Proven,
}

/// Called at each [`Moment`], by the thread or task that reached it.
pub type Hook = Arc<dyn Fn(Moment) + Send + Sync>;

/// A lane that the polling thread fills and the task of the partition empties.
#[derive(Debug)]
pub(super) struct LaneCell {
    pub lane: Mutex<Lane>,
    pub wake: Notify,
    /// Whether a message of another topic of the same name arrived.
    pub is_foreign: AtomicBool,
    /// Why no more messages will arrive.
    stalled: Mutex<Option<String>>,
}

impl LaneCell {
    pub fn new(lane: Lane) -> Self {
        Self {
            lane: Mutex::new(lane),
            wake: Notify::new(),
            is_foreign: AtomicBool::new(false),
            stalled: Mutex::default(),
        }
    }

    /// Reports to the partition's task that no more messages will arrive: it ends the tenure.
    pub fn stall(&self, why: String) {
        self.stalled.lock().get_or_insert(why);
        self.wake.notify_one();
    }

    /// Why no more messages will arrive; none if they do.
    pub fn stalled(&self) -> Option<String> {
        self.stalled.lock().clone()
    }
}

#[derive(Debug)]
struct Slot {
    serial: u64,
    leave: watch::Sender<Leave>,
}

/// A partition whose messages are fetched.
#[derive(Debug)]
pub(super) struct Fetching {
    pub serial: u64,
    pub cell: Arc<LaneCell>,
    pub is_paused: bool,
    /// The offset that the client fetches next.
    pub next: i64,
    /// Its tenure ends because nothing arrives. It stays assigned in librdkafka until the next tenure, or until it is
    /// unassigned.
    pub is_stalled: bool,
}

#[derive(Default)]
pub(super) struct Shared {
    pub topic: String,
    pub metrics: Arc<ConsumerMetrics>,
    pub hook: Option<Hook>,
    pub leave_timeout: Duration,
    /// Starts the task of a partition that the group assigned.
    pub start: OnceLock<Box<dyn Fn(i32) + Send + Sync>>,
    pub fetching: Mutex<HashMap<i32, Fetching>>,
    /// Positions to commit to the broker.
    pub positions: Mutex<HashMap<i32, i64>>,
    /// Why the consumer must end.
    pub fault: watch::Sender<Option<String>>,
    slots: Mutex<HashMap<i32, Slot>>,
    changed: Condvar,
    serials: AtomicU64,
    is_closed: AtomicBool,
}

impl Shared {
    pub fn new(
        topic: &str,
        metrics: Arc<ConsumerMetrics>,
        hook: Option<Hook>,
        leave_timeout: Duration,
    ) -> Self {
        Self { topic: topic.to_owned(), metrics, hook, leave_timeout, ..Self::default() }
    }

    pub fn at(&self, moment: Moment) {
        if let Some(hook) = &self.hook {
            hook(moment);
        }
    }

    /// Ends the consumer with this error, unless another came first.
    pub fn fail(&self, why: String) {
        self.fault.send_if_modified(|fault| {
            let is_first = fault.is_none();
            fault.get_or_insert(why);
            is_first
        });
    }

    /// Enters a task for this partition; a former task must end. None if the consumer is ending.
    pub fn enter(self: &Arc<Self>, number: i32) -> Option<Entered> {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed) + 1;
        let (leave, receiver) = watch::channel(Leave::Stay);
        let mut slots = self.slots.lock();
        if self.is_closed.load(Ordering::SeqCst) {
            return None;
        }
        if let Some(former) = slots.insert(number, Slot { serial, leave }) {
            former.leave.send_replace(Leave::Drop);
        }
        Some(Entered { shared: self.clone(), number, serial, leave: receiver })
    }

    /// Enters a task unless the partition has one.
    pub fn enter_if_absent(self: &Arc<Self>, number: i32) -> Option<Entered> {
        let is_there = self.slots.lock().contains_key(&number);
        if is_there { None } else { self.enter(number) }
    }

    /// Asks the tasks of these partitions to leave.
    pub fn leave(&self, numbers: &HashSet<i32>, how: Leave) {
        let slots = self.slots.lock();
        for slot in numbers.iter().filter_map(|number| slots.get(number)) {
            slot.leave.send_if_modified(|leave| {
                let is_more = *leave < how;
                *leave = how.max(*leave);
                is_more
            });
        }
    }

    pub fn entered(&self) -> HashSet<i32> {
        self.slots.lock().keys().copied().collect()
    }

    /// Refuses further tasks, and returns the partitions that have one.
    pub fn close(&self) -> HashSet<i32> {
        // Under the lock, so that no task enters after it.
        let slots = self.slots.lock();
        self.is_closed.store(true, Ordering::SeqCst);
        slots.keys().copied().collect()
    }

    /// Blocks until the tasks of these partitions have ended. Returns false after the timeout.
    pub fn wait_gone(&self, numbers: &HashSet<i32>, timeout: Duration) -> bool {
        let mut slots = self.slots.lock();
        let is_there =
            |slots: &mut HashMap<i32, Slot>| numbers.iter().any(|number| slots.contains_key(number));
        !self.changed.wait_while_for(&mut slots, is_there, timeout).timed_out()
    }

    /// Ends the tasks of these partitions: lets them finish within the timeout if `how` says so, then drops the rest.
    pub fn end_tasks(&self, numbers: &HashSet<i32>, how: Leave) {
        self.leave(numbers, how);
        let is_gone = how == Leave::Finish && self.wait_gone(numbers, self.leave_timeout);
        if !is_gone {
            self.leave(numbers, Leave::Drop);
            if !self.wait_gone(numbers, self.leave_timeout) {
                tracing::warn!(
                    topic = self.topic,
                    ?numbers,
                    "tasks of released partitions did not end in time"
                );
            }
        }
    }
}

/// The entry of a task for its partition. Dropping it removes the entry.
pub(super) struct Entered {
    shared: Arc<Shared>,
    pub number: i32,
    pub serial: u64,
    pub leave: watch::Receiver<Leave>,
}

impl Entered {
    pub async fn left(&mut self) {
        // The sender is dropped when another task has taken its place.
        let _ = self.leave.wait_for(|leave| *leave != Leave::Stay).await;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut slots = self.shared.slots.lock();
        if slots.get(&self.number).is_some_and(|slot| slot.serial == self.serial) {
            slots.remove(&self.number);
            self.shared.metrics.ends(self.number);
        }
        self.shared.changed.notify_all();
        drop(slots);
        if std::thread::panicking() {
            self.shared.fail(format!("the task of partition {} panicked", self.number));
        }
    }
}
