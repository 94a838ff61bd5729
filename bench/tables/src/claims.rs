//! Row claims over a table of the application.

use std::time::Duration;

use anyhow::Result;
use solehold_sql::{Attempts, ClaimTable, Claims, Owner, Proof, RowId, Transition, migrations};

use crate::Watch;

const TABLE: &str = "CREATE SCHEMA app; CREATE TABLE app.payments (id bigint PRIMARY KEY, \
    status text NOT NULL DEFAULT 'pending', created_at timestamptz NOT NULL, note text NOT NULL)";
const LEASE: Duration = Duration::from_secs(600);
const BATCH: usize = 100;

/// Half of the rows are done; of the others one in ten is leased, one in ten is due again, one in a hundred is buried.
const FILL: &str = "INSERT INTO app.payments (id, status, created_at, note, lease_owner, lease_until, lease_epoch, \
    attempts, dead_at, dead_reason) \
    SELECT n, CASE n % 2 WHEN 0 THEN 'paid' ELSE 'pending' END, now() - n * interval '1 millisecond', repeat('x', 100), \
    CASE WHEN n % 20 = 1 THEN 'another' END, \
    CASE WHEN n % 20 = 1 THEN now() + interval '1 hour' WHEN n % 20 = 3 THEN now() - interval '1 minute' END, \
    1, 1, CASE WHEN n % 200 = 5 THEN now() END, CASE WHEN n % 200 = 5 THEN 'it failed' END \
    FROM generate_series(1, $1::bigint) AS n";

pub async fn run(watch: &mut Watch, rows: i64) -> Result<()> {
    let database = watch.server.database("claims").await?;
    database.quiet.batch_execute(TABLE).await?;
    let table = ClaimTable::builder("app.payments")
        .state("status")
        .claimable("status = 'pending'")
        .order(["created_at"])
        .attempts("attempts")
        .dead_letter("dead_at", "dead_reason")
        .payload(["note"]);
    let claims = Claims::new(table.build()?);
    migrations::apply(&database.quiet, claims.table()).await?;
    database.quiet.execute(FILL, &[&rows]).await?;
    database.quiet.batch_execute("VACUUM ANALYZE app.payments").await?;
    let client = database.pool(true)?.get().await?;
    let client = &**client;
    let owner = Owner::new("bench")?;
    let mut claimed: Vec<Proof> = Vec::new();
    // Both lanes, from the beginning and from the floor.
    for _ in 0..4 {
        let some =
            watch.step("claim 100 rows", async { Ok(claims.claim(client, BATCH, &owner, LEASE).await?) });
        claimed.extend(some.await?.into_iter().map(|row| row.proof));
    }
    let ids: Vec<RowId> = claimed.iter().map(|proof| proof.id.clone()).collect();
    let (first, rest) = claimed.split_at(BATCH);
    let (second, rest) = rest.split_at(BATCH);
    let (third, fourth) = rest.split_at(BATCH);
    watch.step("renew claims", async { Ok(claims.extend(client, first, LEASE * 2).await?) }).await?;
    let settled: Vec<Transition> =
        first.iter().map(|proof| Transition::new(proof, "pending", "paid")).collect();
    watch.step("settle claims", async { Ok(claims.transition_all(client, &settled).await?) }).await?;
    watch.step("release claims", async { Ok(claims.release(client, second).await?) }).await?;
    let later: Vec<(Proof, Duration)> = third.iter().map(|proof| (proof.clone(), LEASE)).collect();
    watch.step("defer claims", async { Ok(claims.defer(client, &later, Attempts::Count).await?) }).await?;
    let failed: Vec<(Proof, String)> =
        fourth.iter().map(|proof| (proof.clone(), "it failed".to_owned())).collect();
    watch.step("bury rows", async { Ok(claims.bury(client, &failed).await?) }).await?;
    watch
        .step_for("settle lost claims", 100, async { Ok(claims.transition_all(client, &settled).await?) })
        .await?;
    watch.step("list buried rows", async { Ok(claims.buried(client, 10, None).await?) }).await?;
    watch.step_for("find buried rows", 400, async { Ok(claims.buried_among(client, &ids).await?) }).await?;
    watch.step_for("revive rows", 400, async { Ok(claims.revive(client, &ids).await?) }).await?;
    Ok(())
}
