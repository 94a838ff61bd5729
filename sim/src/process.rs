//! A simulated process: it runs, is paused, or is dead. Its clock goes a little wrong.
//!
//! Whatever reaches a process from outside, a timer or an answer, waits while the process is paused, and comes all at
//! once when it goes on. What it has sent is on its way already. A process that was killed hears nothing any more.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use solehold_client::clock::{AlarmClock, BootTime, Clock, VirtualClock};
use tokio::sync::watch;

/// How far a process' clock may run apart from the store's, in millionths: 1 % (rule 2).
pub const DRIFT_PPM_MAX: i64 = 10_000;

/// What the virtual clock shows when a world begins.
const CLOCK_BEGAN: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    Paused,
    Dead,
}

#[derive(Debug)]
pub struct Process {
    pub name: String,
    life: watch::Sender<Life>,
    store: Arc<VirtualClock>,
    ppm: i64,
}

impl Process {
    pub fn new(name: String, store: Arc<VirtualClock>, ppm: i64) -> Arc<Self> {
        Arc::new(Self { name, life: watch::Sender::new(Life::Running), store, ppm })
    }

    pub fn pause(&self) {
        self.change(Life::Running, Life::Paused);
    }

    pub fn resume(&self) {
        self.change(Life::Paused, Life::Running);
    }

    pub fn kill(&self) {
        self.life.send_replace(Life::Dead);
    }

    fn change(&self, from: Life, to: Life) {
        self.life.send_if_modified(|life| {
            let is_so = *life == from;
            if is_so {
                *life = to;
            }
            is_so
        });
    }

    pub fn is_running(&self) -> bool {
        *self.life.borrow() == Life::Running
    }

    pub fn is_dead(&self) -> bool {
        *self.life.borrow() == Life::Dead
    }

    /// Waits until the process runs; for ever if it is dead.
    pub async fn running(&self) {
        if self.is_running() {
            return;
        }
        let mut life = self.life.subscribe();
        // The sender is this process, which is borrowed.
        let _ = life.wait_for(|life| *life == Life::Running).await;
    }

    /// Waits until the process is dead.
    pub async fn dead(&self) {
        let _ = self.life.subscribe().wait_for(|life| *life == Life::Dead).await;
    }

    fn at_store(&self, time: BootTime) -> u64 {
        Self::scaled(time.as_nanos(), 1_000_000, 1_000_000 + self.ppm)
    }

    /// Waits for a time by this machine's clock, whether the process runs or not.
    pub async fn passes(&self, until: BootTime) {
        self.store.wait_until(BootTime::from_nanos(self.at_store(until) + 1_000)).await;
    }

    /// A time by this machine's clock, as the log counts it.
    pub fn since_began(&self, time: BootTime) -> Duration {
        Duration::from_nanos(self.at_store(time)).saturating_sub(CLOCK_BEGAN)
    }

    fn scaled(nanos: u64, by: i64, over: i64) -> u64 {
        (i128::from(nanos) * i128::from(by) / i128::from(over)) as u64
    }
}

impl Clock for Process {
    fn now(&self) -> BootTime {
        BootTime::from_nanos(Self::scaled(self.store.now().as_nanos(), 1_000_000 + self.ppm, 1_000_000))
    }
}

#[async_trait]
impl AlarmClock for Process {
    async fn wait_until(&self, until: BootTime) {
        self.passes(until).await;
        self.running().await;
    }
}
