//! Claims on the rows of one table.

use std::{collections::HashSet, ops::RangeInclusive, time::Duration};

use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio_postgres::{
    Client, GenericClient, Row,
    types::{ToSql, Type},
};

use crate::{
    Error,
    floor::{Floors, Pass},
    ident,
    limits::{
        BATCH_ROWS_MAX, CLAIMS_AT_ONCE, COLUMNS_MAX, DEFER_MAX, LEASE_MAX, LEASE_MIN, OBSERVATIONS_MAX,
        REASON_BYTES_MAX,
    },
    outcome::{ClaimOutcome, LossReason},
    row::{ClaimedRow, Ids, Owner, Proof, RowId},
    statements::{self, Start, Statements},
    table::ClaimTable,
};

pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Claims on the rows of one table. One value serves all tasks of a process: share it, so that they share its floors.
///
/// Every method takes a client or a transaction; in a transaction, all of it commits or none. At most
/// [`CLAIMS_AT_ONCE`] claims are under way at a time, and others wait for their turn.
///
/// A claim begins to look where the last one ended, and looks at everything whenever that is cheap (at most one part in
/// [`FULL_PASS_SHARE`](crate::limits::FULL_PASS_SHARE) of the time), so that dead rows under a long-running reader do
/// not slow it down.
#[derive(Debug)]
pub struct Claims {
    table: ClaimTable,
    pub(crate) statements: Statements,
    floors: Floors,
    /// Each claim scans the rows that others are claiming at this moment: with many tasks at once, they would do little
    /// else.
    turns: Semaphore,
}

/// One change of state, asked for by the holder of a claim. It also ends the lease.
#[derive(Debug, Clone)]
pub struct Transition {
    proof: Proof,
    from: Option<String>,
    to: String,
    set: Map<String, Value>,
}

impl Transition {
    /// From one state to another. A row whose state is null has a state like any other: `None`.
    pub fn new<'a>(proof: &Proof, from: impl Into<Option<&'a str>>, to: &str) -> Self {
        let from = from.into().map(str::to_owned);
        Self { proof: proof.clone(), from, to: to.to_owned(), set: Map::new() }
    }

    /// Sets a column too. The value is JSON and is converted to the column's type, as by `jsonb_populate_recordset`.
    pub fn set(mut self, column: &str, value: impl Into<Value>) -> Self {
        self.set.insert(column.to_owned(), value.into());
        self
    }

    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// The state that it starts from; none where that is null.
    pub fn from(&self) -> Option<&str> {
        self.from.as_deref()
    }

    pub fn to(&self) -> &str {
        &self.to
    }

    /// The columns that it sets, beside the state.
    pub fn changes(&self) -> &Map<String, Value> {
        &self.set
    }
}

/// Whether deferring a row counts as an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// The row was observed successfully: the count starts at zero again.
    Reset,
    /// The attempt failed: it counts.
    Count,
    /// The attempt says nothing about the row: the count is what it was before the claim.
    Restore,
}

impl Claims {
    pub fn new(table: ClaimTable) -> Self {
        let statements = Statements::new(&table);
        Self { table, statements, floors: Floors::default(), turns: Semaphore::new(CLAIMS_AT_ONCE) }
    }

    /// Allows this many claims at the same time, instead of [`CLAIMS_AT_ONCE`]: more where the way to the database is
    /// long and batches are small, fewer where many processes claim.
    pub fn at_once(mut self, claims: usize) -> Self {
        self.turns = Semaphore::new(claims.clamp(1, OBSERVATIONS_MAX));
        self
    }

    pub fn table(&self) -> &ClaimTable {
        &self.table
    }

    /// The number of claims that scanned all rows, not only those after the last claim's end.
    pub fn full_passes(&self) -> u64 {
        self.floors.full_passes()
    }

    /// Claims up to `limit` rows for `owner`, for `lease` by the database's clock. Rows come in the order of the table.
    ///
    /// Fresh rows and rows that are due again (their lease or pause has run out) take turns in coming first.
    pub async fn claim(
        &self,
        client: &(impl GenericClient + Sync),
        limit: usize,
        owner: &Owner,
        lease: Duration,
    ) -> Result<Vec<ClaimedRow>, Error> {
        Error::unless_within("limit", limit, 1..=BATCH_ROWS_MAX)?;
        let lease_ms = milliseconds("lease", lease, LEASE_MIN..=LEASE_MAX)?;
        let limit = limit as i64;
        // The semaphore is never closed.
        let turn = self.turns.acquire().await.ok();
        let pass = self.floors.begin();
        let rows = self.ask(client.client(), &pass, limit, owner, lease_ms).await?;
        let header =
            rows.first().ok_or_else(|| Error::Connection("PostgreSQL returned no row for a claim".into()))?;
        pass.finish(header, limit, self.table.order.len() + 1)?;
        drop(turn);
        let claimed = |row: Row| -> Option<Result<ClaimedRow, Error>> {
            match row.try_get::<_, Option<i64>>("claim_epoch") {
                Ok(None) => None,
                Ok(Some(epoch)) => Some(self.read_claimed(row, owner, epoch)),
                Err(error) => Some(Err(error.into())),
            }
        };
        rows.into_iter().filter_map(claimed).collect()
    }

    fn read_claimed(&self, row: Row, owner: &Owner, epoch: i64) -> Result<ClaimedRow, Error> {
        let columns = row.columns();
        let id_column = columns.iter().position(|column| column.name() == "claim_id").unwrap_or_default();
        Ok(ClaimedRow {
            proof: Proof { id: RowId::read(&row, id_column)?, owner: owner.clone(), epoch },
            attempts: row.try_get::<_, Option<i32>>("claim_attempts")?.unwrap_or(0),
            state: row.try_get("claim_state")?,
            claimed_at: row.try_get("now")?,
            payload_from: columns.len() - self.table.payload.len(),
            row,
        })
    }

    async fn ask(
        &self,
        client: &Client,
        pass: &Pass<'_>,
        limit: i64,
        owner: &Owner,
        lease_ms: f64,
    ) -> Result<Vec<Row>, Error> {
        let sql = self.statements.claim(pass.start, pass.due_first);
        let owner = owner.as_str();
        let mut parameters: Vec<Parameter<'_>> =
            vec![(&limit, Type::INT8), (&owner, Type::TEXT), (&lease_ms, Type::FLOAT8)];
        if pass.start == Start::Floor {
            parameters.push((&pass.due, Type::TIMESTAMPTZ));
        }
        if pass.start != Start::Beginning {
            parameters.extend(pass.fresh.iter().flatten().map(|raw| {
                let parameter: Parameter<'_> = (raw, raw.kind.clone());
                parameter
            }));
        }
        Ok(client.query_typed(sql, &parameters).await?)
    }

    /// Compare-and-set of one row: see [`transition_all`](Self::transition_all).
    pub async fn transition(
        &self,
        client: &(impl GenericClient + Sync),
        transition: Transition,
    ) -> Result<ClaimOutcome, Error> {
        let none = || Error::Connection("PostgreSQL returned no row for a transition".into());
        self.transition_all(client, &[transition]).await?.pop().ok_or_else(none)
    }

    /// Changes the state of claimed rows, and ends their leases: where the claim holds by the database's clock and the
    /// row is in the state that the change starts from. Outcomes come in the order of `transitions`; lost rows do not
    /// affect the others.
    ///
    /// One statement for each set of columns that is set.
    pub async fn transition_all(
        &self,
        client: &(impl GenericClient + Sync),
        transitions: &[Transition],
    ) -> Result<Vec<ClaimOutcome>, Error> {
        if self.table.state.is_none() && !transitions.is_empty() {
            return Err(Error::invalid("table", self.table.name(), "name its state column to change states"));
        }
        Ids::collect(transitions.iter().map(|one| &one.proof.id))?;
        let mut groups: Vec<(Vec<&String>, Vec<&Transition>)> = Vec::new();
        for transition in transitions {
            let columns: Vec<&String> = transition.set.keys().collect();
            match groups.iter_mut().find(|(known, _)| *known == columns) {
                Some((_, group)) => group.push(transition),
                None => groups.push((columns, vec![transition])),
            }
        }
        let client = client.client();
        let mut done = Vec::with_capacity(transitions.len());
        for (columns, group) in groups {
            done.extend(self.transition_group(client, &columns, group).await?);
        }
        let proofs: Vec<&Proof> = transitions.iter().map(|one| &one.proof).collect();
        let froms: Vec<Option<&str>> = transitions.iter().map(Transition::from).collect();
        self.outcomes(client, &proofs, Some(&froms), done).await
    }

    async fn transition_group(
        &self,
        client: &Client,
        columns: &[&String],
        mut group: Vec<&Transition>,
    ) -> Result<Vec<RowId>, Error> {
        if columns.len() > COLUMNS_MAX {
            let wanted = format!("at most {COLUMNS_MAX}");
            return Err(Error::invalid("number of columns", columns.len().to_string(), wanted));
        }
        let columns = columns.iter().map(|name| ident::column(name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(ours) = columns.iter().find(|column| self.table.managed().any(|ours| ours == *column)) {
            return Err(Error::invalid("column", ours.as_str(), "a transition sets it itself"));
        }
        // Sorted, so that two concurrent batches do not deadlock.
        group.sort_by(|a, b| a.proof.id.cmp(&b.proof.id));
        let batch = Batch::new(group.iter().map(|one| &one.proof))?;
        let froms: Vec<Option<&str>> = group.iter().map(|one| one.from()).collect();
        let tos: Vec<&str> = group.iter().map(|one| one.to.as_str()).collect();
        let records = (!columns.is_empty()).then(|| self.records(&group));
        let mut parameters = batch.parameters();
        parameters.push((&froms, Type::TEXT_ARRAY));
        parameters.push((&tos, Type::TEXT_ARRAY));
        if let Some(records) = &records {
            parameters.push((records, Type::JSONB));
        }
        let rows = client.query_typed(&statements::transition(&self.table, &columns), &parameters).await?;
        rows.iter().map(|row| RowId::read(row, 0)).collect()
    }

    /// The columns to set: one object per row, with its id.
    fn records(&self, group: &[&Transition]) -> Value {
        let id = self.table.id.trim_matches('"');
        let record = |one: &&Transition| {
            let mut record = one.set.clone();
            record.insert(id.to_owned(), one.proof.id.to_json());
            Value::Object(record)
        };
        Value::Array(group.iter().map(record).collect())
    }

    /// Prolongs claims to `lease` from now, never shortening one.
    pub async fn extend(
        &self,
        client: &(impl GenericClient + Sync),
        claims: &[Proof],
        lease: Duration,
    ) -> Result<Vec<ClaimOutcome>, Error> {
        let ms = milliseconds("lease", lease, LEASE_MIN..=LEASE_MAX)?;
        let more = vec![ms; claims.len()];
        self.change(client.client(), &self.statements.extend, claims, Some((&more, Type::FLOAT8_ARRAY))).await
    }

    /// Gives claims back: the rows may be claimed at once, and the attempt does not count.
    pub async fn release(
        &self,
        client: &(impl GenericClient + Sync),
        claims: &[Proof],
    ) -> Result<Vec<ClaimOutcome>, Error> {
        self.change(client.client(), &self.statements.release, claims, None).await
    }

    /// Gives claims back, each not to be claimed again before its time has passed.
    pub async fn defer(
        &self,
        client: &(impl GenericClient + Sync),
        claims: &[(Proof, Duration)],
        attempts: Attempts,
    ) -> Result<Vec<ClaimOutcome>, Error> {
        let pauses =
            claims.iter().map(|(_, pause)| milliseconds("pause", *pause, Duration::ZERO..=DEFER_MAX));
        let pauses = pauses.collect::<Result<Vec<f64>, _>>()?;
        let sql = match attempts {
            Attempts::Reset => &self.statements.defer_resetting,
            Attempts::Count => &self.statements.defer_counting,
            Attempts::Restore => &self.statements.defer_restoring,
        };
        // The pauses go with their rows.
        let proofs: Vec<Proof> = claims.iter().map(|(proof, _)| proof.clone()).collect();
        self.change(client.client(), sql, &proofs, Some((&pauses, Type::FLOAT8_ARRAY))).await
    }

    /// Buries rows: they end in the dead-letter columns, each with its reason, and are not claimed until
    /// [`revive`](Self::revive).
    pub async fn bury(
        &self,
        client: &(impl GenericClient + Sync),
        claims: &[(Proof, String)],
    ) -> Result<Vec<ClaimOutcome>, Error> {
        let sql = self.statements.bury.as_ref().ok_or_else(|| self.no_dead_letter())?;
        let reasons: Vec<&str> = claims.iter().map(|(_, reason)| cut(reason)).collect();
        let proofs: Vec<Proof> = claims.iter().map(|(proof, _)| proof.clone()).collect();
        self.change(client.client(), sql, &proofs, Some((&reasons, Type::TEXT_ARRAY))).await
    }

    pub(crate) fn no_dead_letter(&self) -> Error {
        Error::invalid("table", self.table.name(), "name its dead-letter columns to bury rows")
    }

    async fn change(
        &self,
        client: &Client,
        sql: &str,
        claims: &[Proof],
        more: Option<Parameter<'_>>,
    ) -> Result<Vec<ClaimOutcome>, Error> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let batch = Batch::new(claims.iter())?;
        let mut parameters = batch.parameters();
        parameters.extend(more);
        let rows = client.query_typed(sql, &parameters).await?;
        let done = rows.iter().map(|row| RowId::read(row, 0)).collect::<Result<Vec<_>, _>>()?;
        let proofs: Vec<&Proof> = claims.iter().collect();
        self.outcomes(client, &proofs, None, done).await
    }

    /// The outcome of each claim. The reason of a lost one is read from its row as it is now.
    async fn outcomes(
        &self,
        client: &Client,
        proofs: &[&Proof],
        froms: Option<&[Option<&str>]>,
        done: Vec<RowId>,
    ) -> Result<Vec<ClaimOutcome>, Error> {
        let done: HashSet<RowId> = done.into_iter().collect();
        let lost: Vec<usize> = (0..proofs.len()).filter(|at| !done.contains(&proofs[*at].id)).collect();
        let mut outcomes = vec![ClaimOutcome::Done; proofs.len()];
        if lost.is_empty() {
            return Ok(outcomes);
        }
        let batch = Batch::new(lost.iter().map(|at| proofs[*at]))?;
        let states: Option<Vec<Option<&str>>> = froms.map(|froms| lost.iter().map(|at| froms[*at]).collect());
        let checks_state = states.is_some();
        let mut parameters = batch.parameters();
        parameters.push((&states, Type::TEXT_ARRAY));
        parameters.push((&checks_state, Type::BOOL));
        let rows = client.query_typed(&self.statements.explain, &parameters).await?;
        for (at, row) in lost.into_iter().zip(&rows) {
            outcomes[at] = ClaimOutcome::Lost { why: why(row)? };
        }
        Ok(outcomes)
    }
}

fn why(row: &Row) -> Result<LossReason, Error> {
    Ok(match row.try_get("why")? {
        "gone" => LossReason::Gone,
        "taken" => LossReason::Taken { owner: row.try_get("owner")?, epoch: row.try_get("epoch")? },
        "ended" => LossReason::Ended,
        "state" => LossReason::State { actual: row.try_get("state")? },
        _ => LossReason::Expired,
    })
}

/// The proofs of a batch as arrays.
struct Batch<'a> {
    ids: Ids,
    epochs: Vec<i64>,
    owners: Vec<&'a str>,
}

impl<'a> Batch<'a> {
    fn new(proofs: impl Iterator<Item = &'a Proof> + Clone) -> Result<Self, Error> {
        Ok(Self {
            ids: Ids::collect(proofs.clone().map(|proof| &proof.id))?,
            epochs: proofs.clone().map(|proof| proof.epoch).collect(),
            owners: proofs.map(|proof| proof.owner.as_str()).collect(),
        })
    }

    fn parameters(&self) -> Vec<Parameter<'_>> {
        vec![self.ids.parameter(), (&self.epochs, Type::INT8_ARRAY), (&self.owners, Type::TEXT_ARRAY)]
    }
}

fn milliseconds(what: &'static str, time: Duration, bounds: RangeInclusive<Duration>) -> Result<f64, Error> {
    Error::unless_within(what, time, bounds)?;
    Ok(time.as_secs_f64() * 1000.0)
}

/// A reason that is too long is cut; zero bytes cannot be stored.
fn cut(reason: &str) -> &str {
    let end = reason.find('\0').unwrap_or(reason.len()).min(REASON_BYTES_MAX);
    &reason[..reason.floor_char_boundary(end)]
}
