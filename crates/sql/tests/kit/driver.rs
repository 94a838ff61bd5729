//! Two ways to claim: through the crate, and through the SQL functions as a program in any language does. The suite
//! runs with both.

use std::{ops::Deref, time::Duration};

use solehold_sql::functions::Functions;
use solehold_sql::{
    Attempts, ClaimOutcome, ClaimTable, ClaimTableBuilder, Claims, Error, LossReason, Owner, Proof, RowId,
    Transition, migrations,
};
use solehold_testkit::wait_for;
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use super::{Kit, LONG, PATIENCE, int};

type Outcomes = Result<Vec<ClaimOutcome>, Error>;

/// A claimed row of either.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub proof: Proof,
    pub attempts: i32,
    pub state: Option<String>,
    /// The payload's column, where the table has it.
    pub amount: Option<i64>,
}

pub trait Driver: Sized + Send + Sync + 'static {
    fn open(client: &Client, table: ClaimTable) -> impl Future<Output = Self> + Send;
    fn claim(
        &self,
        client: &Client,
        limit: usize,
        worker: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Claimed>, Error>> + Send;
    /// All of them set the same columns.
    fn complete(&self, client: &Client, all: &[Transition]) -> impl Future<Output = Outcomes> + Send;
    fn extend(
        &self,
        client: &Client,
        claims: &[Proof],
        lease: Duration,
    ) -> impl Future<Output = Outcomes> + Send;
    fn release(&self, client: &Client, claims: &[Proof]) -> impl Future<Output = Outcomes> + Send;
    fn defer(
        &self,
        client: &Client,
        claims: &[(Proof, Duration)],
        attempts: Attempts,
    ) -> impl Future<Output = Outcomes> + Send;
    fn bury(&self, client: &Client, claims: &[(Proof, String)]) -> impl Future<Output = Outcomes> + Send;
    /// Those that were buried.
    fn revive(
        &self,
        client: &Client,
        ids: &[RowId],
    ) -> impl Future<Output = Result<Vec<RowId>, Error>> + Send;
    fn full_passes(&self, client: &Client) -> impl Future<Output = u64> + Send;
}

/// The crate.
impl Driver for Claims {
    async fn open(_: &Client, table: ClaimTable) -> Self {
        Self::new(table)
    }

    async fn claim(
        &self,
        client: &Client,
        limit: usize,
        worker: &str,
        lease: Duration,
    ) -> Result<Vec<Claimed>, Error> {
        let rows = Claims::claim(self, client, limit, &Owner::new(worker)?, lease).await?;
        let claimed = |row: solehold_sql::ClaimedRow| Claimed {
            amount: row.get("amount").ok(),
            attempts: row.attempts,
            state: row.state.clone(),
            proof: row.proof,
        };
        Ok(rows.into_iter().map(claimed).collect())
    }

    async fn complete(&self, client: &Client, all: &[Transition]) -> Outcomes {
        self.transition_all(client, all).await
    }

    async fn extend(&self, client: &Client, claims: &[Proof], lease: Duration) -> Outcomes {
        Claims::extend(self, client, claims, lease).await
    }

    async fn release(&self, client: &Client, claims: &[Proof]) -> Outcomes {
        Claims::release(self, client, claims).await
    }

    async fn defer(&self, client: &Client, claims: &[(Proof, Duration)], attempts: Attempts) -> Outcomes {
        Claims::defer(self, client, claims, attempts).await
    }

    async fn bury(&self, client: &Client, claims: &[(Proof, String)]) -> Outcomes {
        Claims::bury(self, client, claims).await
    }

    async fn revive(&self, client: &Client, ids: &[RowId]) -> Result<Vec<RowId>, Error> {
        Claims::revive(self, client, ids).await
    }

    async fn full_passes(&self, _: &Client) -> u64 {
        Claims::full_passes(self)
    }
}

/// The functions, called with nothing but SQL.
pub struct ByFunctions {
    pub functions: Functions,
    id_type: String,
}

/// A batch as arrays: the owner, ids as text, epochs.
fn arrays(proofs: &[&Proof]) -> (String, Vec<String>, Vec<i64>) {
    let owner = proofs.first().map_or("nobody", |proof| proof.owner.as_str());
    assert!(proofs.iter().all(|proof| proof.owner.as_str() == owner), "one owner in a batch");
    let ids = proofs.iter().map(|proof| proof.id.to_string()).collect();
    (owner.to_owned(), ids, proofs.iter().map(|proof| proof.epoch).collect())
}

fn outcome(row: &Row) -> ClaimOutcome {
    let why = match row.get("outcome") {
        "done" | "deferred" | "buried" => return ClaimOutcome::Done,
        "taken" => LossReason::Taken { owner: row.get("current_owner"), epoch: row.get("current_epoch") },
        "expired" => LossReason::Expired,
        "ended" => LossReason::Ended,
        "state" => LossReason::State { actual: row.get("current_state") },
        "gone" => LossReason::Gone,
        other => panic!("{other} is not an outcome"),
    };
    ClaimOutcome::Lost { why }
}

impl ByFunctions {
    fn parse(&self, id: &str) -> RowId {
        RowId::parse(id, &self.id_type).unwrap()
    }

    /// `more` is SQL for the arguments after owner, ids and epochs, from `$4` on.
    async fn settle(
        &self,
        client: &Client,
        function: &str,
        proofs: &[&Proof],
        more: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Outcomes {
        let (owner, ids, epochs) = arrays(proofs);
        let name = self.functions.name(function);
        let sql = format!("SELECT * FROM {name}($1, $2::text[]::{}[], $3{more})", self.id_type);
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> =
            vec![(&owner, Type::TEXT), (&ids, Type::TEXT_ARRAY), (&epochs, Type::INT8_ARRAY)];
        parameters.extend(values.iter().cloned());
        let rows = client.query_typed(&sql, &parameters).await?;
        assert_eq!(rows.len(), proofs.len(), "a row for each");
        Ok(rows.iter().map(outcome).collect())
    }
}

impl Driver for ByFunctions {
    async fn open(client: &Client, table: ClaimTable) -> Self {
        let columns = migrations::columns(client, table.name()).await.unwrap();
        let id_type = columns.into_iter().find(|(name, _)| name == "id").unwrap().1;
        let functions = Functions::describe(client, &table, None).await.unwrap();
        functions.apply(client).await.unwrap();
        Self { functions, id_type }
    }

    async fn claim(
        &self,
        client: &Client,
        limit: usize,
        worker: &str,
        lease: Duration,
    ) -> Result<Vec<Claimed>, Error> {
        let sql = format!("SELECT claim_id::text AS id, * FROM {}($1, $2, $3)", self.functions.name("claim"));
        let limit = limit as i32;
        let seconds = lease.as_secs_f64();
        let parameters =
            [(&worker as _, Type::TEXT), (&limit as _, Type::INT4), (&seconds as _, Type::FLOAT8)];
        let rows = client.query_typed(&sql, &parameters).await?;
        let claimed = |row: &Row| Claimed {
            proof: Proof {
                id: self.parse(row.get(0)),
                owner: Owner::new(worker).unwrap(),
                epoch: row.get("claim_epoch"),
            },
            attempts: row.get("claim_attempts"),
            state: row.get("claim_state"),
            amount: row.try_get("amount").ok(),
        };
        Ok(rows.iter().map(claimed).collect())
    }

    async fn complete(&self, client: &Client, all: &[Transition]) -> Outcomes {
        let proofs: Vec<&Proof> = all.iter().map(Transition::proof).collect();
        let froms: Vec<Option<&str>> = all.iter().map(Transition::from).collect();
        let tos: Vec<&str> = all.iter().map(Transition::to).collect();
        let changes: serde_json::Value = all.iter().map(|one| one.changes().clone()).collect();
        let texts = Type::TEXT_ARRAY;
        let values = [(&froms as _, texts.clone()), (&tos as _, texts), (&changes as _, Type::JSONB)];
        self.settle(client, "complete_all", &proofs, ", $4, $5, $6", &values).await
    }

    async fn extend(&self, client: &Client, claims: &[Proof], lease: Duration) -> Outcomes {
        let proofs: Vec<&Proof> = claims.iter().collect();
        let seconds = lease.as_secs_f64();
        self.settle(client, "extend_all", &proofs, ", $4", &[(&seconds, Type::FLOAT8)]).await
    }

    async fn release(&self, client: &Client, claims: &[Proof]) -> Outcomes {
        self.settle(client, "release_all", &claims.iter().collect::<Vec<_>>(), "", &[]).await
    }

    async fn defer(&self, client: &Client, claims: &[(Proof, Duration)], attempts: Attempts) -> Outcomes {
        let proofs: Vec<&Proof> = claims.iter().map(|(proof, _)| proof).collect();
        let pauses: Vec<f64> = claims.iter().map(|(_, pause)| pause.as_secs_f64()).collect();
        let reasons: Vec<&str> = claims.iter().map(|_| "it failed").collect();
        let pauses = (&pauses as &(dyn ToSql + Sync), Type::FLOAT8_ARRAY);
        let (function, more) = match attempts {
            Attempts::Reset => ("defer_all", ", $4"),
            Attempts::Restore => ("defer_all", ", $4, 'restore'"),
            Attempts::Count => {
                let values = [(&reasons as _, Type::TEXT_ARRAY), pauses];
                return self.settle(client, "fail_all", &proofs, ", $4, $5, NULL", &values).await;
            }
        };
        self.settle(client, function, &proofs, more, &[pauses]).await
    }

    async fn bury(&self, client: &Client, claims: &[(Proof, String)]) -> Outcomes {
        let proofs: Vec<&Proof> = claims.iter().map(|(proof, _)| proof).collect();
        let reasons: Vec<&str> = claims.iter().map(|(_, reason)| reason.as_str()).collect();
        let pauses = vec![0.0; claims.len()];
        let values = [(&reasons as _, Type::TEXT_ARRAY), (&pauses as _, Type::FLOAT8_ARRAY)];
        self.settle(client, "fail_all", &proofs, ", $4, $5, 0", &values).await
    }

    async fn revive(&self, client: &Client, ids: &[RowId]) -> Result<Vec<RowId>, Error> {
        let name = self.functions.name("revive_all");
        let sql = format!("SELECT id::text, outcome FROM {name}($1::text[]::{}[])", self.id_type);
        let asked: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let rows = client.query_typed(&sql, &[(&asked, Type::TEXT_ARRAY)]).await?;
        assert_eq!(rows.len(), ids.len(), "a row for each");
        let done = rows.iter().filter(|row| row.get::<_, &str>(1) == "done");
        Ok(done.map(|row| self.parse(row.get(0))).collect())
    }

    async fn full_passes(&self, client: &Client) -> u64 {
        let sql = "SELECT COALESCE(current_setting($1, true)::jsonb->>'full_passes', '0')";
        let row =
            client.query_typed_one(sql, &[(&self.functions.floor_setting(), Type::TEXT)]).await.unwrap();
        row.get::<_, &str>(0).parse().unwrap()
    }
}

/// A table of payments, and a driver for it.
pub struct Case<D> {
    pub kit: Kit,
    pub driver: D,
}

impl<D> Deref for Case<D> {
    type Target = Kit;

    fn deref(&self) -> &Kit {
        &self.kit
    }
}

impl<D: Driver> Case<D> {
    pub async fn new(rows: i64) -> Self {
        Self::with(rows, |table| table).await
    }

    pub async fn with(rows: i64, describe: impl Fn(ClaimTableBuilder) -> ClaimTableBuilder) -> Self {
        let kit = Kit::with(rows, describe).await;
        let driver = D::open(&kit.client, kit.claims.table().clone()).await;
        Self { kit, driver }
    }

    pub async fn claim(&self, limit: usize, worker: &str) -> Vec<Claimed> {
        self.driver.claim(&self.client, limit, worker, LONG).await.unwrap()
    }

    /// Waits until a claim gives as many rows as this.
    pub async fn claim_when_there(&self, rows: usize, worker: &str) -> Vec<Claimed> {
        let mut all = Vec::new();
        for _ in 0..rows {
            let one = wait_for("a row to claim", PATIENCE, async || self.claim(1, worker).await.pop());
            all.push(one.await.unwrap());
        }
        all
    }

    pub async fn complete(&self, change: Transition) -> ClaimOutcome {
        self.driver.complete(&self.client, &[change]).await.unwrap().remove(0)
    }
}

pub fn ids(rows: &[Claimed]) -> Vec<i64> {
    rows.iter().map(|row| int(&row.proof.id)).collect()
}

pub fn proofs(rows: &[Claimed]) -> Vec<Proof> {
    rows.iter().map(|row| row.proof.clone()).collect()
}

/// The same change of each.
pub fn changes(rows: &[Claimed], from: &str, to: &str) -> Vec<Transition> {
    rows.iter().map(|row| Transition::new(&row.proof, from, to)).collect()
}
