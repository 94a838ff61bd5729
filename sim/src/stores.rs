//! The store, those that took its place by failing over, and the replicas of the server over each.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_client::{
    Embedded,
    clock::{BootTime, Clock, VirtualClock},
};
use solehold_core::{
    command::Command,
    event::{Change, Event},
    time::Revision,
};
use solehold_engine::{Engine, EngineOptions, observe::Observer, resident};

use crate::chronicle::{Chronicle, Happening};

/// Servers over each store.
pub const REPLICAS: usize = 2;

/// Writes down what is committed, in the order of commits.
struct Commits {
    epoch: u64,
    chronicle: Arc<Chronicle>,
}

impl Observer for Commits {
    fn committed(&self, events: &[Event], _renewals: &[Change]) {
        for event in events {
            self.chronicle.note("store", Happening::Committed(self.epoch, Box::new(event.clone())));
        }
    }
}

struct History {
    replicas: Vec<Arc<Embedded>>,
    /// Until then it grants and renews nothing (rule 23).
    barred_until: BootTime,
}

/// One store for each epoch, which begins with 1.
pub struct Stores {
    clock: Arc<VirtualClock>,
    chronicle: Arc<Chronicle>,
    histories: Mutex<Vec<History>>,
}

impl Stores {
    pub fn new(clock: Arc<VirtualClock>, chronicle: Arc<Chronicle>) -> Self {
        let first = History { replicas: replicas(&clock, &chronicle, 1), barred_until: clock.now() };
        Self { histories: Mutex::new(vec![first]), clock, chronicle }
    }

    /// The newest epoch.
    pub fn newest(&self) -> u64 {
        self.histories.lock().len() as u64
    }

    pub fn replica(&self, epoch: u64, replica: usize) -> Arc<Embedded> {
        self.histories.lock()[epoch as usize - 1].replicas[replica].clone()
    }

    pub fn engine(&self) -> Engine {
        self.replica(self.newest(), 0).engine().clone()
    }

    pub fn is_barred(&self, epoch: u64) -> bool {
        self.clock.now() < self.histories.lock()[epoch as usize - 1].barred_until
    }

    /// Another store takes over that has lost everything: its tokens are above all others, and it waits until what it
    /// has lost has run out.
    pub async fn fail_over(&self, ttl_max: Duration) {
        let epoch = self.newest() + 1;
        let replicas = replicas(&self.clock, &self.chronicle, epoch);
        let above = Revision((epoch - 1) << 32);
        let raised = replicas[0].engine().submit(Command::RaiseRevision { above }).await;
        raised.expect("an outcome").expect("raised");
        self.histories.lock().push(History { replicas, barred_until: self.clock.now().plus(ttl_max) });
    }
}

fn replicas(clock: &Arc<VirtualClock>, chronicle: &Arc<Chronicle>, epoch: u64) -> Vec<Arc<Embedded>> {
    let store = resident::memory(clock.clone()).expect("a store in memory opens");
    let start = |_| {
        let commits = Arc::new(Commits { epoch, chronicle: chronicle.clone() });
        Arc::new(Embedded::over(Engine::start(store.clone(), EngineOptions::default(), commits)))
    };
    (0..REPLICAS).map(start).collect()
}
