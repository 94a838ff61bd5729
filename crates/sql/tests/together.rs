//! Hand-written claims beside ours. `suite/together.rs` has what ours promise in the same places.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;

use std::time::{Duration, SystemTime};

use kit::{Kit, LONG, connect, ids, owner};
use solehold_sql::Error;
use tokio_postgres::Client;

/// A claim and a transition as they are often written: the guard is the owner's name, and the time comes from
/// the application.
mod hand_written {
    use super::*;

    pub async fn claim(client: &Client, now: SystemTime, worker: &str, lease: Duration) -> Vec<i64> {
        let sql = "WITH open AS (SELECT id FROM app.payments WHERE status IN ('pending', 'detected') \
              AND (lease_until IS NULL OR lease_until <= $1) ORDER BY created_at, id LIMIT 10 FOR UPDATE SKIP LOCKED) \
            UPDATE app.payments p SET lease_owner = $2, lease_until = $3 FROM open WHERE p.id = open.id RETURNING p.id";
        let rows = client.query(sql, &[&now, &worker, &(now + lease)]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub async fn transition(client: &Client, id: i64, worker: &str, from: &str, to: &str) -> u64 {
        let sql = "UPDATE app.payments SET status = $4, lease_owner = NULL, lease_until = NULL \
            WHERE id = $1 AND lease_owner = $2 AND status = $3";
        client.execute(sql, &[&id, &worker, &from, &to]).await.unwrap()
    }
}

/// A worker claims a row, sleeps past its lease; the row is claimed again, by a restarted worker of the same name (a
/// host name and a pid, in a container, are often the same), which sees the payment; then the sleeper wakes up and
/// writes what it saw long ago. The suite has the same with ours: `a_slow_worker_overwrites_nothing`.
#[tokio::test]
async fn a_slow_worker_overwrites_by_hand_written_sql() {
    let kit = Kit::new(2).await;
    let now = SystemTime::now();
    let lease = Duration::from_secs(30);
    assert_eq!(hand_written::claim(&kit.client, now, "host-1", lease).await, [1, 2]);
    let later = now + lease * 2;
    assert_eq!(hand_written::claim(&kit.client, later, "host-1", lease).await, [1, 2]);
    // The sleeper's stale verdict goes through, under its successor's lease.
    assert_eq!(hand_written::transition(&kit.client, 1, "host-1", "pending", "expired").await, 1);
    assert_eq!(hand_written::transition(&kit.client, 1, "host-1", "pending", "confirmed").await, 0);
    assert_eq!(kit.state(1).await, "expired", "the money came, and the payment is expired");
    // Nor does hand-written SQL notice that a lease has run out.
    kit.run_out().await;
    assert_eq!(hand_written::transition(&kit.client, 2, "host-1", "pending", "expired").await, 1);
}

/// An application whose clock is an hour ahead takes everybody's claims by hand-written SQL. Ours asks only the
/// database.
#[tokio::test]
async fn the_applications_clock_decides_nothing() {
    let kit = Kit::new(1).await;
    let now = SystemTime::now();
    assert_eq!(hand_written::claim(&kit.client, now, "a", Duration::from_secs(30)).await, [1]);
    let ahead = now + Duration::from_secs(3600);
    assert_eq!(
        hand_written::claim(&kit.client, ahead, "b", Duration::from_secs(30)).await,
        [1],
        "stolen from a"
    );
    let ours = Kit::new(1).await;
    assert_eq!(ids(&ours.claim(1, "a").await), [1]);
    assert_eq!(ids(&ours.claim(1, "b").await), [0; 0]);
}

#[tokio::test]
async fn a_claim_is_not_lost_to_a_worker_that_fails_half_way() {
    let kit = Kit::new(1).await;
    let result: Result<(), Error> = async {
        let mut client = connect(&kit.url).await;
        let tx = client.transaction().await?;
        kit.claims.claim(tx.client(), 1, &owner("a"), LONG).await?;
        Err(Error::Effect("it fails".into()))
    }
    .await;
    assert!(result.is_err());
    assert_eq!(ids(&kit.claim_when_there(1, "b").await), [1]);
}
