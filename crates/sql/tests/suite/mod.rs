//! What claims promise, whichever driver makes them. `suite!(Driver)` makes a test of each function.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

pub mod together;

use std::time::Duration;

use solehold_sql::{
    Attempts, ClaimOutcome, ClaimTable, LossReason, Proof, RowId, Transition, limits, migrations,
};

use crate::kit::driver::{Case, Driver, changes, ids, proofs};
use crate::kit::{LONG, int, owner};

macro_rules! suite {
    ($driver:ty) => {
        $crate::suite::suite!($driver: rows_come_in_order_with_their_payload_and_only_once,
            a_transition_compares_sets_and_ends_the_lease, every_way_to_lose_a_claim_is_told_apart,
            extend_release_defer_and_bury_need_the_proof_too, extending_never_shortens,
            what_is_released_comes_back_and_does_not_count, an_expired_claim_comes_back_by_itself,
            deferred_rows_wait_for_their_time, an_attempt_counts_or_does_not,
            buried_rows_stay_with_their_reason_until_revived, priority_goes_before_the_order,
            what_comes_up_below_the_floor_is_found, ids_may_be_uuids_or_text_and_states_may_be_enums,
            bad_input_is_refused);
        $crate::suite::suite!(in together $driver: many_workers_never_hold_a_row_together_and_do_each_once,
            in_a_transaction_all_of_it_commits_or_none, serialization_failures_are_retried,
            claims_work_where_everything_is_serializable, it_works_through_pgbouncer_in_transaction_mode,
            a_slow_worker_overwrites_nothing, the_plan_is_a_short_index_scan_whatever_the_statistics_say,
            dead_rows_under_a_pinned_snapshot_do_not_strangle_claims);
    };
    ($driver:ty: $($name:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $name() { suite::$name::<$driver>().await }
    )* };
    (in together $driver:ty: $($name:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $name() { suite::together::$name::<$driver>().await }
    )* };
}
pub(crate) use suite;

fn taken(owner: Option<&str>, epoch: i64) -> ClaimOutcome {
    ClaimOutcome::Lost { why: LossReason::Taken { owner: owner.map(str::to_owned), epoch } }
}

pub async fn rows_come_in_order_with_their_payload_and_only_once<D: Driver>() {
    let case = Case::<D>::new(5).await;
    let first = case.claim(3, "a").await;
    assert_eq!(ids(&first), [1, 2, 3]);
    assert_eq!(first[0].amount, Some(10));
    assert_eq!((first[0].proof.epoch, first[0].attempts, first[0].state.as_deref()), (1, 1, Some("pending")));
    assert_eq!(ids(&case.claim(3, "b").await), [4, 5]);
    assert_eq!(ids(&case.claim(3, "c").await), [0; 0]);
}

pub async fn a_transition_compares_sets_and_ends_the_lease<D: Driver>() {
    let case = Case::<D>::new(1).await;
    let row = case.claim(1, "a").await.remove(0);
    let change = Transition::new(&row.proof, "pending", "detected")
        .set("note", "seen in block 7")
        .set("paid_at", "2026-11-15T06:00:00Z");
    assert_eq!(case.complete(change.clone()).await, ClaimOutcome::Done);
    let sql = "SELECT note || ' ' || (paid_at = '2026-11-15T06:00:00Z') || ' ' || (lease_owner IS NULL AND lease_until IS NULL) || \
        ' ' || lease_epoch || ' ' || attempts FROM app.payments";
    assert_eq!(case.one::<String>(sql, &[]).await, "seen in block 7 true true 1 0");
    // The same again changes nothing, and says so.
    assert_eq!(case.complete(change).await, ClaimOutcome::Lost { why: LossReason::Ended });
    // The next claim of the row is of the next epoch.
    let next = case.claim_when_there(1, "b").await.remove(0);
    assert_eq!((next.proof.epoch, next.state.as_deref()), (2, Some("detected")));
}

pub async fn every_way_to_lose_a_claim_is_told_apart<D: Driver>() {
    let case = Case::<D>::new(5).await;
    let rows = case.claim(5, "a").await;
    let update = |sql: &'static str| case.client.batch_execute(sql);
    update("UPDATE app.payments SET lease_until = clock_timestamp() WHERE id IN (1, 2)").await.unwrap();
    let stolen = case.claim_when_there(1, "b").await.remove(0);
    update("UPDATE app.payments SET status = 'detected' WHERE id = 3; DELETE FROM app.payments WHERE id = 4")
        .await
        .unwrap();
    let outcomes = case.driver.complete(&case.client, &changes(&rows, "pending", "confirmed")).await.unwrap();
    let lost = |why| ClaimOutcome::Lost { why };
    assert_eq!(int(&stolen.proof.id), 1);
    assert_eq!(
        outcomes,
        [
            taken(Some("b"), 2),
            lost(LossReason::Expired),
            lost(LossReason::State { actual: Some("detected".into()) }),
            lost(LossReason::Gone),
            ClaimOutcome::Done,
        ]
    );
    assert_eq!(case.state(1).await, "pending");
    assert_eq!(case.state(5).await, "confirmed");
}

pub async fn extend_release_defer_and_bury_need_the_proof_too<D: Driver>() {
    let case = Case::<D>::new(1).await;
    let old = proofs(&case.claim(1, "a").await);
    case.run_out().await;
    let new = case.claim_when_there(1, "b").await.remove(0);
    let driver = &case.driver;
    let client = &case.client;
    let expected = [taken(Some("b"), 2)];
    let second = Duration::from_secs(1);
    assert_eq!(driver.extend(client, &old, LONG).await.unwrap(), expected);
    assert_eq!(driver.release(client, &old).await.unwrap(), expected);
    for attempts in [Attempts::Reset, Attempts::Count, Attempts::Restore] {
        let deferred = [(old[0].clone(), second)];
        assert_eq!(driver.defer(client, &deferred, attempts).await.unwrap(), expected);
    }
    let buried = [(old[0].clone(), "no".to_owned())];
    assert_eq!(driver.bury(client, &buried).await.unwrap(), expected);
    // The same worker's older epoch is no better.
    let forged = Proof { owner: owner("b"), ..old[0].clone() };
    assert_eq!(driver.release(client, &[forged]).await.unwrap(), expected);
    assert_eq!(driver.extend(client, &[new.proof], LONG).await.unwrap(), [ClaimOutcome::Done]);
}

pub async fn extending_never_shortens<D: Driver>() {
    let case = Case::<D>::new(1).await;
    let row = proofs(&case.claim(1, "a").await);
    let left = "SELECT lease_until > clock_timestamp() + interval '500 seconds' FROM app.payments";
    let extend = async |lease| case.driver.extend(&case.client, &row, lease).await.unwrap();
    assert_eq!(extend(limits::LEASE_MIN).await, [ClaimOutcome::Done]);
    assert!(case.one::<bool>(left, &[]).await);
    assert_eq!(extend(LONG * 2).await, [ClaimOutcome::Done]);
    assert!(case.one::<bool>(&left.replace("500", "1100"), &[]).await);
}

pub async fn what_is_released_comes_back_and_does_not_count<D: Driver>() {
    let case = Case::<D>::new(3).await;
    let rows = case.claim(3, "a").await;
    let released = case.driver.release(&case.client, &proofs(&rows[..1])).await.unwrap();
    assert_eq!(released, [ClaimOutcome::Done]);
    let back = case.claim_when_there(1, "b").await.remove(0);
    assert_eq!((int(&back.proof.id), back.attempts, back.proof.epoch), (1, 1, 2));
}

pub async fn an_expired_claim_comes_back_by_itself<D: Driver>() {
    let case = Case::<D>::new(2).await;
    let gone = case.driver.claim(&case.client, 1, "a", limits::LEASE_MIN).await.unwrap().remove(0);
    assert_eq!(ids(&case.claim(1, "b").await), [2]);
    let back = case.claim_when_there(1, "b").await.remove(0);
    assert_eq!((int(&back.proof.id), back.proof.epoch, back.attempts), (1, 2, 2));
    let late = Transition::new(&gone.proof, "pending", "confirmed");
    assert_eq!(case.complete(late).await, taken(Some("b"), 2));
}

pub async fn deferred_rows_wait_for_their_time<D: Driver>() {
    for next_attempt in [false, true] {
        let describe = |table: solehold_sql::ClaimTableBuilder| {
            if next_attempt { table.next_attempt("next_attempt_at") } else { table }
        };
        let case = Case::<D>::with(2, describe).await;
        let rows = proofs(&case.claim(2, "a").await);
        let pauses = [(rows[0].clone(), LONG), (rows[1].clone(), Duration::from_millis(1))];
        let done = case.driver.defer(&case.client, &pauses, Attempts::Count).await.unwrap();
        assert_eq!(done, [ClaimOutcome::Done, ClaimOutcome::Done]);
        let back = case.claim_when_there(1, "b").await.remove(0);
        assert_eq!((int(&back.proof.id), back.attempts), (2, 2));
        assert_eq!(ids(&case.claim(2, "b").await), [0; 0]);
    }
}

pub async fn an_attempt_counts_or_does_not<D: Driver>() {
    let case = Case::<D>::new(1).await;
    // Claimed once, then again after each: the count is what was kept, and this claim.
    for (attempts, expected) in [(Attempts::Count, 2), (Attempts::Restore, 2), (Attempts::Reset, 1)] {
        let row = case.claim_when_there(1, "a").await.remove(0);
        let deferred = [(row.proof, Duration::ZERO)];
        let done = case.driver.defer(&case.client, &deferred, attempts).await.unwrap();
        assert_eq!(done, [ClaimOutcome::Done]);
        let back = case.claim_when_there(1, "b").await.remove(0);
        assert_eq!(back.attempts, expected, "{attempts:?}");
        assert_eq!(case.driver.release(&case.client, &[back.proof]).await.unwrap(), [ClaimOutcome::Done]);
    }
}

pub async fn buried_rows_stay_with_their_reason_until_revived<D: Driver>() {
    let case = Case::<D>::new(1).await;
    let row = case.claim(1, "a").await.remove(0);
    let reason = format!("cannot be parsed {}", "x".repeat(3000));
    let buried = case.driver.bury(&case.client, &[(row.proof, reason)]).await.unwrap();
    assert_eq!(buried, [ClaimOutcome::Done]);
    assert_eq!(ids(&case.claim(1, "b").await), [0; 0]);
    let kept: String = case.one("SELECT dead_reason FROM app.payments", &[]).await;
    assert!(kept.starts_with("cannot be parsed") && kept.len() == limits::REASON_BYTES_MAX, "{kept}");
    let revive = async || case.driver.revive(&case.client, &[RowId::Int(1), RowId::Int(9)]).await.unwrap();
    assert_eq!(revive().await, [RowId::Int(1)]);
    assert_eq!(revive().await, [], "once");
    let row = case.claim_when_there(1, "b").await.remove(0);
    assert_eq!((row.attempts, row.proof.epoch), (1, 2));
}

pub async fn priority_goes_before_the_order<D: Driver>() {
    let case = Case::<D>::with(4, |table| table.priority("priority")).await;
    case.client.batch_execute("UPDATE app.payments SET priority = -1 WHERE id = 3").await.unwrap();
    assert_eq!(ids(&case.claim(2, "a").await), [3, 1]);
}

pub async fn what_comes_up_below_the_floor_is_found<D: Driver>() {
    let case = Case::<D>::with(20, |table| table.priority("priority")).await;
    for _ in 0..5 {
        case.claim(2, "a").await;
    }
    // Committed late, and more urgent: both stand before what has been claimed.
    case.insert(0, 0).await;
    case.client.batch_execute("UPDATE app.payments SET priority = -1 WHERE id = 20").await.unwrap();
    let mut rest = ids(&case.claim_when_there(11, "b").await);
    rest.sort_unstable();
    assert_eq!(rest, [0, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
}

pub async fn ids_may_be_uuids_or_text_and_states_may_be_enums<D: Driver>() {
    let case = Case::<D>::new(0).await;
    let sql = "CREATE TYPE app.mood AS ENUM ('new', 'done'); \
        CREATE TABLE app.by_uuid (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), mood app.mood NOT NULL DEFAULT 'new'); \
        CREATE TABLE app.by_text (id varchar(40) PRIMARY KEY, mood app.mood NOT NULL DEFAULT 'new'); \
        INSERT INTO app.by_uuid SELECT FROM generate_series(1, 5); INSERT INTO app.by_text SELECT 'k' || i FROM generate_series(1, 5) i";
    case.client.batch_execute(sql).await.unwrap();
    for name in ["app.by_uuid", "app.by_text"] {
        let table = ClaimTable::builder(name).state("mood").state_type("app.mood").claimable("mood = 'new'");
        let table = table.build().unwrap();
        migrations::apply(&case.client, &table).await.unwrap();
        let driver = D::open(&case.client, table).await;
        for rows in [2, 2, 1] {
            let claimed = driver.claim(&case.client, 2, "a", LONG).await.unwrap();
            assert_eq!(claimed.len(), rows, "{name}");
            let done = driver.complete(&case.client, &changes(&claimed, "new", "done")).await.unwrap();
            assert!(done.iter().all(ClaimOutcome::is_done));
        }
    }
}

pub async fn bad_input_is_refused<D: Driver>() {
    let case = Case::<D>::new(1).await;
    for (limit, lease, expected) in [
        (0, LONG, ["invalid", "0", "10000"]),
        (limits::BATCH_ROWS_MAX + 1, LONG, ["invalid", "10001", "10000"]),
        (1, Duration::from_millis(1), ["invalid lease", "1", "50"]),
        (1, limits::LEASE_MAX * 2, ["invalid lease", "172800", "86400"]),
    ] {
        let error = case.driver.claim(&case.client, limit, "a", lease).await.unwrap_err().to_string();
        let error = error.replace("0.05", "50ms").replace("0.001", "1ms");
        assert!(expected.iter().all(|word| error.contains(word)), "{error} should have {expected:?}");
    }
    let row = case.claim(1, "a").await.remove(0);
    for column in ["status", "lease_epoch", "id", "no such"] {
        let change = Transition::new(&row.proof, "pending", "detected").set(column, 1);
        let error = case.driver.complete(&case.client, &[change]).await.unwrap_err().to_string();
        assert!(error.contains(column) && error.contains("column"), "{error}");
    }
    let twice = [row.proof.clone(), row.proof.clone()];
    let error = case.driver.release(&case.client, &twice).await.unwrap_err().to_string();
    assert!(error.contains("once"), "{error}");
    let far = [(row.proof.clone(), limits::DEFER_MAX * 2)];
    let error = case.driver.defer(&case.client, &far, Attempts::Reset).await.unwrap_err().to_string();
    assert!(error.contains("invalid pause"), "{error}");
    // Nothing of all that has touched the claim.
    assert_eq!(case.complete(Transition::new(&row.proof, "pending", "detected")).await, ClaimOutcome::Done);
}
