//! A table of payments in a database of its own, and the workers that claim from it.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

pub mod driver;

use std::time::Duration;

use deadpool_postgres::Pool;
use solehold_sql::{ClaimTable, ClaimTableBuilder, Claims, Owner, RowId, migrations};
use solehold_testkit::{Postgres, wait_for};
use tokio_postgres::{Client, NoTls};

pub const LONG: Duration = Duration::from_secs(600);
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Kit {
    pub url: String,
    pub client: Client,
    pub claims: Claims,
}

impl Kit {
    /// `rows` payments, `pending`, with ids from 1, each created a second after the one before.
    pub async fn new(rows: i64) -> Self {
        Self::with(rows, |table| table).await
    }

    pub async fn with(rows: i64, describe: impl Fn(ClaimTableBuilder) -> ClaimTableBuilder) -> Self {
        let url = Postgres::shared().await.unwrap().create_database("sql").await.unwrap();
        let client = connect(&url).await;
        let schema = "CREATE SCHEMA app; CREATE TABLE app.payments (id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', \
             created_at timestamptz NOT NULL, amount bigint NOT NULL, priority int NOT NULL DEFAULT 0, note text, paid_at timestamptz); \
             CREATE TABLE app.outbox (id bigserial PRIMARY KEY, payment bigint NOT NULL, epoch bigint NOT NULL)";
        client.batch_execute(schema).await.unwrap();
        let claims = Claims::new(describe(table()).build().unwrap());
        migrations::apply(&client, claims.table()).await.unwrap();
        migrations::check(&client, claims.table()).await.unwrap();
        let kit = Self { url, client, claims };
        kit.insert(1, rows).await;
        kit
    }

    pub async fn insert(&self, first: i64, last: i64) {
        let sql = "INSERT INTO app.payments (id, created_at, amount) \
            SELECT i, '2026-01-01'::timestamptz + i * interval '1 second', i * 10 FROM generate_series($1::bigint, $2) i";
        self.client.execute(sql, &[&first, &last]).await.unwrap();
    }

    pub async fn claim(&self, limit: usize, worker: &str) -> Vec<solehold_sql::ClaimedRow> {
        self.claims.claim(&self.client, limit, &owner(worker), LONG).await.unwrap()
    }

    pub async fn state(&self, id: i64) -> String {
        self.one("SELECT status FROM app.payments WHERE id = $1", &[&id]).await
    }

    pub async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(
        &self,
        sql: &str,
        values: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> T {
        self.client.query_one(sql, values).await.unwrap().get(0)
    }

    /// Lets every lease and pause run out, by setting them to now.
    pub async fn run_out(&self) {
        self.client
            .batch_execute(
                "UPDATE app.payments SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL",
            )
            .await
            .unwrap();
    }

    /// Waits until a claim gives as many rows as this.
    pub async fn claim_when_there(&self, rows: usize, worker: &str) -> Vec<solehold_sql::ClaimedRow> {
        let mut all = Vec::new();
        for _ in 0..rows {
            let one = wait_for("a row to claim", PATIENCE, async || self.claim(1, worker).await.pop());
            all.push(one.await.unwrap());
        }
        all
    }
}

pub fn table() -> ClaimTableBuilder {
    ClaimTable::builder("app.payments")
        .state("status")
        .claimable("status IN ('pending', 'detected')")
        .order(["created_at"])
        .attempts("attempts")
        .dead_letter("dead_at", "dead_reason")
        .payload(["amount", "created_at"])
}

pub fn owner(name: &str) -> Owner {
    Owner::new(name).unwrap()
}

pub fn ids(rows: &[solehold_sql::ClaimedRow]) -> Vec<i64> {
    rows.iter().map(|row| int(row.id())).collect()
}

pub fn int(id: &RowId) -> i64 {
    let RowId::Int(id) = id else { panic!("{id} is not a number") };
    *id
}

pub fn pool(url: &str) -> Pool {
    let manager = deadpool_postgres::Manager::new(url.parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(8).build().unwrap()
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
