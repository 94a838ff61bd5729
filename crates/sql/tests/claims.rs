//! Claims, against a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;

use std::time::Duration;

use kit::{Kit, LONG, connect, ids, int, owner};
use solehold_sql::{
    Attempts, ClaimOutcome, ClaimTable, Claims, LossReason, Proof, RowId, Transition, limits, migrations,
};

fn proofs(rows: &[solehold_sql::ClaimedRow]) -> Vec<Proof> {
    rows.iter().map(|row| row.proof.clone()).collect()
}

fn taken(owner: Option<&str>, epoch: i64) -> ClaimOutcome {
    ClaimOutcome::Lost { why: LossReason::Taken { owner: owner.map(str::to_owned), epoch } }
}

#[tokio::test]
async fn rows_come_in_order_with_their_payload_and_only_once() {
    let kit = Kit::new(5).await;
    let first = kit.claim(3, "a").await;
    assert_eq!(ids(&first), [1, 2, 3]);
    assert_eq!(first[0].get::<i64>("amount").unwrap(), 10);
    assert_eq!((first[0].proof.epoch, first[0].attempts, first[0].state.as_deref()), (1, 1, Some("pending")));
    assert_eq!(ids(&kit.claim(3, "b").await), [4, 5]);
    assert_eq!(ids(&kit.claim(3, "c").await), [0; 0]);
    let error = first[0].get::<i64>("nothing").unwrap_err().to_string();
    assert!(error.contains("nothing") && error.contains("payload"), "{error}");
}

#[tokio::test]
async fn a_transition_compares_sets_and_ends_the_lease() {
    let kit = Kit::new(1).await;
    let row = kit.claim(1, "a").await.remove(0);
    let change = Transition::new(&row.proof, "pending", "detected")
        .set("note", "seen in block 7")
        .set("paid_at", "2026-11-15T06:00:00Z");
    assert_eq!(kit.claims.transition(&kit.client, change.clone()).await.unwrap(), ClaimOutcome::Done);
    let sql = "SELECT note || ' ' || (paid_at = '2026-11-15T06:00:00Z') || ' ' || (lease_owner IS NULL AND lease_until IS NULL) || \
        ' ' || lease_epoch || ' ' || attempts FROM app.payments";
    assert_eq!(kit.one::<String>(sql, &[]).await, "seen in block 7 true true 1 0");
    // The same again changes nothing, and says so.
    let again = kit.claims.transition(&kit.client, change).await.unwrap();
    assert_eq!(again, ClaimOutcome::Lost { why: LossReason::Ended });
    // The next claim of the row is of the next epoch.
    let next = kit.claim_when_there(1, "b").await.remove(0);
    assert_eq!((next.proof.epoch, next.state.as_deref()), (2, Some("detected")));
}

#[tokio::test]
async fn every_way_to_lose_a_claim_is_told_apart() {
    let kit = Kit::new(5).await;
    let rows = kit.claim(5, "a").await;
    let update = |sql: &'static str| kit.client.batch_execute(sql);
    update("UPDATE app.payments SET lease_until = clock_timestamp() WHERE id IN (1, 2)").await.unwrap();
    let stolen = kit.claim_when_there(1, "b").await.remove(0);
    update("UPDATE app.payments SET status = 'detected' WHERE id = 3; DELETE FROM app.payments WHERE id = 4")
        .await
        .unwrap();
    let all: Vec<Transition> =
        rows.iter().map(|row| Transition::new(&row.proof, "pending", "confirmed")).collect();
    let outcomes = kit.claims.transition_all(&kit.client, &all).await.unwrap();
    let lost = |why| ClaimOutcome::Lost { why };
    assert_eq!(int(stolen.id()), 1);
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
    assert_eq!(kit.state(1).await, "pending");
    assert_eq!(kit.state(5).await, "confirmed");
}

#[tokio::test]
async fn extend_release_defer_and_bury_need_the_proof_too() {
    let kit = Kit::new(1).await;
    let old = proofs(&kit.claim(1, "a").await);
    kit.run_out().await;
    let new = kit.claim_when_there(1, "b").await.remove(0);
    let claims = &kit.claims;
    let expected = [taken(Some("b"), 2)];
    let second = Duration::from_secs(1);
    assert_eq!(claims.extend(&kit.client, &old, LONG).await.unwrap(), expected);
    assert_eq!(claims.release(&kit.client, &old).await.unwrap(), expected);
    let deferred = [(old[0].clone(), second)];
    assert_eq!(claims.defer(&kit.client, &deferred, Attempts::Reset).await.unwrap(), expected);
    let buried = [(old[0].clone(), "no".to_owned())];
    assert_eq!(claims.bury(&kit.client, &buried).await.unwrap(), expected);
    // The same worker's older epoch is no better.
    let forged = Proof { owner: owner("b"), ..old[0].clone() };
    assert_eq!(claims.release(&kit.client, &[forged]).await.unwrap(), expected);
    assert_eq!(claims.extend(&kit.client, &[new.proof], LONG).await.unwrap(), [ClaimOutcome::Done]);
}

#[tokio::test]
async fn extending_never_shortens() {
    let kit = Kit::new(1).await;
    let row = proofs(&kit.claim(1, "a").await);
    let left = "SELECT lease_until > clock_timestamp() + interval '500 seconds' FROM app.payments";
    assert_eq!(kit.claims.extend(&kit.client, &row, limits::LEASE_MIN).await.unwrap(), [ClaimOutcome::Done]);
    assert!(kit.one::<bool>(left, &[]).await);
    assert_eq!(kit.claims.extend(&kit.client, &row, LONG * 2).await.unwrap(), [ClaimOutcome::Done]);
    assert!(kit.one::<bool>(&left.replace("500", "1100"), &[]).await);
}

#[tokio::test]
async fn what_is_released_comes_back_and_does_not_count() {
    let kit = Kit::new(3).await;
    let rows = kit.claim(3, "a").await;
    assert_eq!(kit.claims.release(&kit.client, &proofs(&rows[..1])).await.unwrap(), [ClaimOutcome::Done]);
    let back = kit.claim_when_there(1, "b").await.remove(0);
    assert_eq!((int(back.id()), back.attempts, back.proof.epoch), (1, 1, 2));
}

#[tokio::test]
async fn an_expired_claim_comes_back_by_itself() {
    let kit = Kit::new(2).await;
    let lease = limits::LEASE_MIN;
    let gone = kit.claims.claim(&kit.client, 1, &owner("a"), lease).await.unwrap().remove(0);
    assert_eq!(ids(&kit.claim(1, "b").await), [2]);
    let back = kit.claim_when_there(1, "b").await.remove(0);
    assert_eq!((int(back.id()), back.proof.epoch, back.attempts), (1, 2, 2));
    let late = Transition::new(&gone.proof, "pending", "confirmed");
    assert_eq!(kit.claims.transition(&kit.client, late).await.unwrap(), taken(Some("b"), 2));
}

#[tokio::test]
async fn deferred_rows_wait_for_their_time() {
    for next_attempt in [false, true] {
        let kit =
            Kit::with(2, |table| if next_attempt { table.next_attempt("next_attempt_at") } else { table })
                .await;
        let rows = proofs(&kit.claim(2, "a").await);
        let pauses = [(rows[0].clone(), LONG), (rows[1].clone(), Duration::from_millis(1))];
        let done = kit.claims.defer(&kit.client, &pauses, Attempts::Count).await.unwrap();
        assert_eq!(done, [ClaimOutcome::Done, ClaimOutcome::Done]);
        let back = kit.claim_when_there(1, "b").await.remove(0);
        assert_eq!((int(back.id()), back.attempts), (2, 2));
        assert_eq!(ids(&kit.claim(2, "b").await), [0; 0]);
    }
}

#[tokio::test]
async fn buried_rows_stay_with_their_reason_until_revived() {
    let kit = Kit::new(1).await;
    let row = kit.claim(1, "a").await.remove(0);
    let reason = format!("cannot be parsed\0{}", "x".repeat(3000));
    assert_eq!(kit.claims.bury(&kit.client, &[(row.proof, reason)]).await.unwrap(), [ClaimOutcome::Done]);
    assert_eq!(ids(&kit.claim(1, "b").await), [0; 0]);
    assert_eq!(kit.one::<String>("SELECT dead_reason FROM app.payments", &[]).await, "cannot be parsed");
    assert_eq!(kit.claims.revive(&kit.client, &[RowId::Int(1)]).await.unwrap(), [RowId::Int(1)]);
    let row = kit.claim_when_there(1, "b").await.remove(0);
    assert_eq!((row.attempts, row.proof.epoch), (1, 2));
}

#[tokio::test]
async fn priority_goes_before_the_order() {
    let kit = Kit::with(4, |table| table.priority("priority")).await;
    kit.client.batch_execute("UPDATE app.payments SET priority = -1 WHERE id = 3").await.unwrap();
    assert_eq!(ids(&kit.claim(2, "a").await), [3, 1]);
}

#[tokio::test]
async fn what_comes_up_below_the_floor_is_found() {
    let kit = Kit::with(20, |table| table.priority("priority")).await;
    for _ in 0..5 {
        kit.claim(2, "a").await;
    }
    // Committed late, and more urgent: both stand before what has been claimed.
    kit.insert(0, 0).await;
    kit.client.batch_execute("UPDATE app.payments SET priority = -1 WHERE id = 20").await.unwrap();
    let mut rest = ids(&kit.claim_when_there(11, "b").await);
    rest.sort_unstable();
    assert_eq!(rest, [0, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
}

#[tokio::test]
async fn ids_may_be_uuids_or_text_and_states_may_be_enums() {
    let kit = Kit::new(0).await;
    let sql = "CREATE TYPE app.mood AS ENUM ('new', 'done'); \
        CREATE TABLE app.by_uuid (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), mood app.mood NOT NULL DEFAULT 'new'); \
        CREATE TABLE app.by_text (id varchar(40) PRIMARY KEY, mood app.mood NOT NULL DEFAULT 'new'); \
        INSERT INTO app.by_uuid SELECT FROM generate_series(1, 5); INSERT INTO app.by_text SELECT 'k' || i FROM generate_series(1, 5) i";
    kit.client.batch_execute(sql).await.unwrap();
    for name in ["app.by_uuid", "app.by_text"] {
        let table = ClaimTable::builder(name).state("mood").state_type("app.mood").claimable("mood = 'new'");
        let claims = Claims::new(table.build().unwrap());
        migrations::apply(&kit.client, claims.table()).await.unwrap();
        for rows in [2, 2, 1] {
            let claimed = claims.claim(&kit.client, 2, &owner("a"), LONG).await.unwrap();
            assert_eq!(claimed.len(), rows, "{name}");
            let done: Vec<_> = claimed.iter().map(|row| Transition::new(&row.proof, "new", "done")).collect();
            assert!(
                claims.transition_all(&kit.client, &done).await.unwrap().iter().all(ClaimOutcome::is_done)
            );
        }
    }
}

#[tokio::test]
async fn columns_may_have_the_names_that_we_use() {
    let kit = Kit::new(0).await;
    let sql = "CREATE TABLE app.odd (id int PRIMARY KEY, now text, claim_id text, ahead text, status text); \
        INSERT INTO app.odd VALUES (1, 'a', 'b', 'c', 'open'), (2, 'd', 'e', 'f', 'open')";
    kit.client.batch_execute(sql).await.unwrap();
    let table = ClaimTable::builder("app.odd").state("status").order(["now", "claim_id"]);
    let claims = Claims::new(table.payload(["now", "claim_id", "ahead", "id"]).build().unwrap());
    migrations::apply(&kit.client, claims.table()).await.unwrap();
    let row = claims.claim(&kit.client, 1, &owner("a"), LONG).await.unwrap().remove(0);
    let payload = ["now", "claim_id", "ahead"].map(|column| row.get::<String>(column).unwrap());
    assert_eq!((payload, row.get::<i32>("id").unwrap()), (["a", "b", "c"].map(str::to_owned), 1));
    assert_eq!(claims.claim(&kit.client, 1, &owner("a"), LONG).await.unwrap().len(), 1);
    let change = Transition::new(&row.proof, "open", "done").set("now", "z");
    assert_eq!(claims.transition(&kit.client, change).await.unwrap(), ClaimOutcome::Done);
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    let kit = Kit::new(1).await;
    let a = owner("a");
    let claim = |limit, lease| kit.claims.claim(&kit.client, limit, &a, lease);
    for (limit, lease, expected) in [
        (0, LONG, "limit \"0\""),
        (limits::BATCH_ROWS_MAX + 1, LONG, "limit"),
        (1, Duration::from_millis(1), "lease \"1ms\""),
        (1, limits::LEASE_MAX * 2, "lease"),
    ] {
        let error = claim(limit, lease).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let row = kit.claim(1, "a").await.remove(0);
    for column in ["status", "lease_epoch", "id", "no such"] {
        let change = Transition::new(&row.proof, "pending", "detected").set(column, 1);
        let error = kit.claims.transition(&kit.client, change).await.unwrap_err().to_string();
        assert!(error.contains(column) && error.contains("column"), "{error}");
    }
    let twice = [row.proof.clone(), row.proof.clone()];
    assert!(kit.claims.release(&kit.client, &twice).await.unwrap_err().to_string().contains("once"));
    let stateless = Claims::new(ClaimTable::builder("app.payments").build().unwrap());
    let change = Transition::new(&row.proof, "pending", "detected");
    assert!(
        stateless.transition(&kit.client, change).await.unwrap_err().to_string().contains("state column")
    );
    let buried = stateless.bury(&kit.client, &[(row.proof, "x".into())]).await;
    assert!(buried.unwrap_err().to_string().contains("dead-letter"));
}

#[tokio::test]
async fn migrations_are_safe_on_a_live_table_and_may_be_repeated() {
    let kit = Kit::new(10).await;
    kit.client.batch_execute("CREATE TABLE app.live (id bigint PRIMARY KEY, status text)").await.unwrap();
    let live = ClaimTable::builder("app.live")
        .state("status")
        .index(["status", "lease_until", "id"])
        .build()
        .unwrap();
    let error = migrations::check(&kit.client, &live).await.unwrap_err().to_string();
    assert!(error.contains("lease_owner, lease_until, lease_epoch"), "{error}");
    // A reader that holds the table for a while: the migration waits in short turns, and others get in between.
    let reader = connect(&kit.url).await;
    reader.batch_execute("BEGIN; SELECT * FROM app.live").await.unwrap();
    let one = connect(&kit.url).await;
    let two = connect(&kit.url).await;
    let table = live.clone();
    let same = live.clone();
    let first = tokio::spawn(async move { migrations::apply(&one, &table).await });
    let second = tokio::spawn(async move { migrations::apply(&two, &same).await });
    kit.client
        .batch_execute("SET statement_timeout = '30s'; INSERT INTO app.live VALUES (1, 'new')")
        .await
        .unwrap();
    assert!(!first.is_finished() && !second.is_finished());
    reader.batch_execute("COMMIT").await.unwrap();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    migrations::check(&kit.client, &live).await.unwrap();
    migrations::apply(&kit.client, &live).await.unwrap();
    let invalid = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'app.live_claim_due'::regclass";
    kit.client.batch_execute(invalid).await.unwrap();
    migrations::apply(&kit.client, &live).await.unwrap();
    let valid = "SELECT count(*) FROM pg_index WHERE indrelid = 'app.live'::regclass AND indisvalid";
    assert_eq!(kit.one::<i64>(valid, &[]).await, 4);
    let missing = ClaimTable::builder("app.nothing").build().unwrap();
    assert!(
        migrations::apply(&kit.client, &missing).await.unwrap_err().to_string().contains("no such table")
    );
    // The printed script does the same.
    kit.client.batch_execute("CREATE TABLE app.by_hand (id bigint PRIMARY KEY)").await.unwrap();
    let by_hand = ClaimTable::builder("app.by_hand").build().unwrap();
    for statement in migrations::print(&by_hand).split(";\n").filter(|sql| !sql.is_empty()) {
        kit.client.batch_execute(statement).await.unwrap();
    }
    migrations::check(&kit.client, &by_hand).await.unwrap();
}
