//! What the thread that polls, its rebalance callback, and the tasks of the partitions share.

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

use super::{Figures, lane::Lane};

/// What the task of a partition is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leave {
    /// Go on.
    Stay,
    /// Finish what is under way, and end.
    Finish,
    /// End at once: somebody else has the partition, or soon will.
    Drop,
}

impl Leave {
    pub fn is_stay(self) -> bool {
        self == Self::Stay
    }
}

/// A moment at which a test may hold a consumer up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// In the rebalance callback: partitions were assigned.
    Assigned,
    /// In the rebalance callback: partitions are revoked.
    Revoked,
    /// In the rebalance callback: partitions were lost.
    Lost,
    /// The broker has proven that we are a member; the epoch is not raised yet.
    Proven,
}

/// Called at those moments, by the thread or task that is there.
pub type Hook = Arc<dyn Fn(Moment) + Send + Sync>;

/// A lane that one thread fills and one task empties.
#[derive(Debug)]
pub(super) struct LaneCell {
    pub lane: Mutex<Lane>,
    pub wake: Notify,
    /// What arrived is of another topic.
    pub is_foreign: AtomicBool,
    /// Why no more messages will arrive, if so.
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

    /// Why no more messages will arrive, if so.
    pub fn stalled(&self) -> Option<String> {
        self.stalled.lock().clone()
    }
}

/// The task of a partition.
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
    /// Its tenure ends because nothing arrives; it stays assigned to the client until the next one, or is let go of.
    pub is_stalled: bool,
}

/// Shared by everything in a consumer.
pub(super) struct Desk {
    pub topic: String,
    pub figures: Arc<Figures>,
    pub hook: Option<Hook>,
    pub leave_timeout: Duration,
    /// Begins to hold a partition of the group.
    pub start: OnceLock<Box<dyn Fn(i32) + Send + Sync>>,
    pub fetching: Mutex<HashMap<i32, Fetching>>,
    /// Positions that the broker has not been told.
    pub positions: Mutex<HashMap<i32, i64>>,
    /// Why the consumer must end, if it must.
    pub fault: watch::Sender<Option<String>>,
    slots: Mutex<HashMap<i32, Slot>>,
    changed: Condvar,
    serials: AtomicU64,
    is_closed: AtomicBool,
}

impl Desk {
    pub fn new(topic: &str, figures: Arc<Figures>, hook: Option<Hook>, leave_timeout: Duration) -> Self {
        Self {
            topic: topic.to_owned(),
            figures,
            hook,
            leave_timeout,
            start: OnceLock::new(),
            fetching: Mutex::default(),
            positions: Mutex::default(),
            fault: watch::Sender::new(None),
            slots: Mutex::default(),
            changed: Condvar::new(),
            serials: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Calls the hook, if there is one.
    pub fn at(&self, moment: Moment) {
        if let Some(hook) = &self.hook {
            hook(moment);
        }
    }

    /// Ends the consumer with this error, unless another came first.
    pub fn fail(&self, why: String) {
        self.fault.send_if_modified(|fault| match fault {
            Some(_) => false,
            None => {
                *fault = Some(why);
                true
            }
        });
    }

    /// A task begins to hold this partition; a former one of it is to end. None if the consumer is ending.
    pub fn enter(self: &Arc<Self>, number: i32) -> Option<Entered> {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed) + 1;
        let (leave, told) = watch::channel(Leave::Stay);
        let mut slots = self.slots.lock();
        if self.is_closed.load(Ordering::SeqCst) {
            return None;
        }
        if let Some(former) = slots.insert(number, Slot { serial, leave }) {
            former.leave.send_replace(Leave::Drop);
        }
        Some(Entered { desk: self.clone(), number, serial, leave: told })
    }

    /// The same, unless a task holds it already.
    pub fn enter_if_absent(self: &Arc<Self>, number: i32) -> Option<Entered> {
        let is_there = self.slots.lock().contains_key(&number);
        if is_there { None } else { self.enter(number) }
    }

    /// Tells the tasks of these partitions to leave.
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

    /// The partitions that tasks hold, or try to win.
    pub fn entered(&self) -> HashSet<i32> {
        self.slots.lock().keys().copied().collect()
    }

    /// Refuses further partitions, and returns those that it has.
    pub fn close(&self) -> HashSet<i32> {
        // Under the lock, so that nothing is entered after it.
        let slots = self.slots.lock();
        self.is_closed.store(true, Ordering::SeqCst);
        slots.keys().copied().collect()
    }

    /// Waits, with the thread, until the tasks of these partitions have ended; whether they have.
    pub fn wait_gone(&self, numbers: &HashSet<i32>, timeout: Duration) -> bool {
        let mut slots = self.slots.lock();
        let is_there =
            |slots: &mut HashMap<i32, Slot>| numbers.iter().any(|number| slots.contains_key(number));
        !self.changed.wait_while_for(&mut slots, is_there, timeout).timed_out()
    }

    /// Lets these partitions go: finishes what is under way if that is still worth it, within the bound, and then ends
    /// the rest.
    pub fn let_go(&self, numbers: &HashSet<i32>, how: Leave) {
        self.leave(numbers, how);
        let is_gone = how == Leave::Finish && self.wait_gone(numbers, self.leave_timeout);
        if !is_gone {
            self.leave(numbers, Leave::Drop);
            if !self.wait_gone(numbers, self.leave_timeout) {
                tracing::warn!(topic = self.topic, "work on a partition that was given up has not ended yet");
            }
        }
    }
}

/// That a task holds a partition; at its end the desk is told.
pub(super) struct Entered {
    desk: Arc<Desk>,
    pub number: i32,
    pub serial: u64,
    pub leave: watch::Receiver<Leave>,
}

impl Entered {
    /// Waits until it is to leave.
    pub async fn left(&mut self) {
        // The sender is dropped when another task has taken its place.
        let _ = self.leave.wait_for(|leave| *leave != Leave::Stay).await;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut slots = self.desk.slots.lock();
        if slots.get(&self.number).is_some_and(|slot| slot.serial == self.serial) {
            slots.remove(&self.number);
            self.desk.figures.ends(self.number);
        }
        self.desk.changed.notify_all();
        drop(slots);
        if std::thread::panicking() {
            self.desk.fail(format!("the work on partition {} panicked", self.number));
        }
    }
}
