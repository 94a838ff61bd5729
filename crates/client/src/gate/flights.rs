//! Work that was admitted and is still under way.
//!
//! A gate that lets a request pass does not know when the service has done it. A request with an old token that was
//! admitted in time may still be under way when the next holder's first request comes, and take effect after it. So
//! a request with a higher token waits until none with a lower one is under way.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use solehold_core::{key::ResourceKey, time::Token};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What is under way, by resource.
#[derive(Debug, Default)]
pub struct Flights {
    by_resource: Mutex<HashMap<ResourceKey, UnderWay>>,
    /// Counts what has ended.
    ended: watch::Sender<u64>,
}

/// What is under way for one resource, by token and by the order of arrival.
#[derive(Debug, Default)]
struct UnderWay {
    flights: BTreeMap<(Token, u64), CancellationToken>,
    next: u64,
}

impl UnderWay {
    fn below(&self, token: Token) -> impl Iterator<Item = &CancellationToken> {
        self.flights.range(..(token, 0)).map(|(_, cut)| cut)
    }
}

/// One request that is under way. It ends when this is dropped.
#[derive(Debug)]
pub struct Flight {
    flights: Arc<Flights>,
    key: ResourceKey,
    id: (Token, u64),
    cut: CancellationToken,
}

impl Flight {
    /// Waits until the request must be given up for one with a higher token.
    pub async fn cut(&self) {
        self.cut.cancelled().await;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut by_resource = self.flights.by_resource();
        if let Some(under_way) = by_resource.get_mut(&self.key) {
            under_way.flights.remove(&self.id);
            if under_way.flights.is_empty() {
                by_resource.remove(&self.key);
            }
        }
        drop(by_resource);
        self.flights.ended.send_modify(|count| *count += 1);
    }
}

/// Requests with a lower token are still under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{count} requests with a lower token are still under way")]
pub struct StillUnderWay {
    /// How many.
    pub count: usize,
}

impl Flights {
    fn by_resource(&self) -> MutexGuard<'_, HashMap<ResourceKey, UnderWay>> {
        self.by_resource.lock()
    }

    /// Begins, if nothing with a lower token is under way.
    fn begin(self: &Arc<Self>, key: &ResourceKey, token: Token) -> Result<Flight, StillUnderWay> {
        let mut by_resource = self.by_resource();
        let under_way = by_resource.entry(key.clone()).or_default();
        let count = under_way.below(token).count();
        if count > 0 {
            return Err(StillUnderWay { count });
        }
        let (id, cut) = ((token, under_way.next), CancellationToken::new());
        under_way.next += 1;
        under_way.flights.insert(id, cut.clone());
        Ok(Flight { flights: self.clone(), key: key.clone(), id, cut })
    }

    /// Begins as soon as nothing with a lower token is under way. What is still there after `patience` is told to give
    /// up, and waited for as long again.
    pub async fn board(
        self: &Arc<Self>,
        key: &ResourceKey,
        token: Token,
        patience: Duration,
    ) -> Result<Flight, StillUnderWay> {
        if let Ok(flight) = tokio::time::timeout(patience, self.wait(key, token)).await {
            return Ok(flight);
        }
        if let Some(under_way) = self.by_resource().get(key) {
            under_way.below(token).for_each(CancellationToken::cancel);
        }
        match tokio::time::timeout(patience, self.wait(key, token)).await {
            Ok(flight) => Ok(flight),
            Err(_) => self.begin(key, token),
        }
    }

    async fn wait(self: &Arc<Self>, key: &ResourceKey, token: Token) -> Flight {
        let mut ended = self.ended.subscribe();
        loop {
            if let Ok(flight) = self.begin(key, token) {
                return flight;
            }
            // The sender is ours.
            let _ = ended.changed().await;
        }
    }

    /// How many requests are under way.
    pub fn count(&self) -> usize {
        self.by_resource().values().map(|under_way| under_way.flights.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use solehold_core::key::Name;

    use super::*;

    fn key() -> ResourceKey {
        let name = |text: &str| Name::new(text).expect("a name");
        ResourceKey { tenant: name("default"), kind: name("scene"), key: name("lobby") }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_higher_token_waits_for_the_lower_ones() {
        let flights = Arc::new(Flights::default());
        let board = |token, patience| {
            let flights = flights.clone();
            async move { flights.board(&key(), Token(token), patience).await }
        };
        let (one, two) = (board(7, LONG).await.expect("free"), board(7, LONG).await.expect("the same token"));
        let next = tokio::spawn(board(8, LONG));
        drop(one);
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        drop(two);
        let next = next.await.expect("it ends").expect("nothing below is under way");
        assert_eq!(flights.count(), 1);
        drop(next);
        assert!(flights.by_resource().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_too_long_is_told_to_give_up() {
        let flights = Arc::new(Flights::default());
        let (slow, deaf) =
            (flights.board(&key(), Token(7), LONG).await, flights.board(&key(), Token(7), LONG).await);
        let slow = slow.expect("free");
        let ends = tokio::spawn(async move { slow.cut().await });
        let refused = flights.board(&key(), Token(9), Duration::from_secs(1)).await;
        assert_eq!(refused.expect_err("one does not listen"), StillUnderWay { count: 1 });
        ends.await.expect("the other one does");
        drop(deaf);
        flights.board(&key(), Token(9), Duration::from_secs(1)).await.expect("free");
    }
}
