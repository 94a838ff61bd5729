//! The memory store against the conformance suite. Its clock moves when it is told to.

use std::sync::Arc;

use async_trait::async_trait;
use solehold_conformance::Fixture;
use solehold_core::{command::Footprint, time::StoreTime};
use solehold_engine::{clock::ManualClock, resident, store::Store};

#[derive(Default)]
struct Memory(Arc<ManualClock>);

#[async_trait]
impl Fixture for Memory {
    async fn open(&self) -> Arc<dyn Store> {
        self.open_fresh().await
    }

    async fn open_fresh(&self) -> Arc<dyn Store> {
        resident::memory(self.0.clone()).expect("memory")
    }

    fn is_durable(&self) -> bool {
        false
    }

    async fn pass_until(&self, store: &dyn Store, until: StoreTime) {
        let now = store.load(&Footprint::default()).await.expect("memory").now;
        self.0.advance_ms(until.ms_after(now));
    }
}

solehold_conformance::suite!(forgetful Memory::default());

/// More of the model than a store with a disk has time for.
#[tokio::test]
async fn many_seeds_of_the_model() {
    for seed in 100..140 {
        solehold_conformance::model::play(&Memory::default(), seed, 200, 1 + seed as usize % 9).await;
    }
}

/// A thousand in one line, more than a store with a disk has time for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_in_order() {
    solehold_conformance::waiting::hand_down(&Memory::default(), 1_000).await;
}

#[tokio::test]
async fn set_back_jumps_and_bars() {
    solehold_conformance::moving::set_back_jumps_and_bars(
        &Memory::default(),
        solehold_core::limits::TTL_MS_MAX,
    )
    .await;
}

#[tokio::test]
async fn no_more_spent_requests_are_kept_than_the_bound() {
    solehold_conformance::request::no_more_spent_requests_are_kept_than_the_bound(&Memory::default()).await;
}
