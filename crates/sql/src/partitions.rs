//! One row per partition of a topic: its owner's epoch, and the position up to which messages have taken effect.
//!
//! A consumer of a partition commits the effect of its messages together with its position, in one transaction that
//! checks the partition's *epoch*. The epoch grows with each change of owner and never goes back, so that a consumer
//! that was paused and taken over cannot write any more: its transaction finds another epoch and is rolled back.
//!
//! ```text
//!   BEGIN
//!     UPDATE partitions SET next_offset = ... WHERE partition = mine AND epoch = mine    no row: fenced, roll back
//!     inbox marks, effects, outgoing messages
//!   COMMIT
//! ```
//!
//! How an epoch is raised depends on who says that the partition is ours:
//!
//! - *A lease* ([`Partitions::raise_to`]): its token is compared with the highest one that was shown before.
//! - *A consumer group* ([`Partitions::raise_from`]): a group gives no token. The consumer reads the row, then makes
//!   the broker prove that it is still a member, then raises the epoch if the row is still as it was read. A consumer
//!   that slept between the proof and the raise finds that its successor has raised it, and must ask for a new proof,
//!   which the broker refuses.
//!
//! The check locks the row until the transaction ends: one writer per partition at a time, in the order of commits. A
//! writer that is paused in its transaction would keep its successor waiting, so PostgreSQL ends a transaction that
//! nothing is heard of for [`WRITER_PAUSE_MS_MAX`].

use tokio_postgres::{GenericClient, Row, types::ToSql};

use crate::{
    Error,
    fenced::signed,
    ident,
    limits::{PARTITION_NAME_BYTES_MAX, WRITER_PAUSE_MS_MAX},
};

/// The partition of a topic, as a group of consumers sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    pub group: String,
    pub topic: String,
    pub number: i32,
}

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} of group {}", self.topic, self.number, self.group)
    }
}

/// The right to write for a partition: valid as long as its row has this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    pub partition: Partition,
    /// Larger at each change of owner, never used twice.
    pub epoch: i64,
    /// The offset of the first message that has not taken effect, when the tenure began.
    pub next_offset: i64,
}

/// A committed message by which a topic is recognized: a topic that was deleted and created again has another message
/// at this offset, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    pub offset: i64,
    pub digest: i64,
}

/// The row of a partition, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRow {
    /// The epoch: 0 if the partition never had an owner.
    pub epoch: i64,
    /// The highest lease token that was shown; 0 for none.
    pub token: i64,
    /// Who has it, or had it last.
    pub owner: String,
    /// The offset of the first message that has not taken effect; none if nothing is known of the partition yet.
    pub next_offset: Option<i64>,
    /// A message that took effect.
    pub checkpoint: Option<Checkpoint>,
}

/// Whether an epoch was raised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raised {
    /// It was: the partition is ours.
    Ours(Tenure),
    /// It was not: another owner has raised it, or shown a higher token.
    Overtaken(PartitionRow),
}

/// Whether a tenure still counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a fenced transaction must be rolled back"]
pub enum Standing {
    /// It does, until the transaction ends: its row is locked.
    Ours,
    /// It does not: roll back, and stop the work on the partition.
    Fenced,
}

/// The table of partitions in the application's database.
///
/// ```
/// use solehold_sql::partitions::Partitions;
///
/// let partitions = Partitions::new("app.partitions")?;
/// assert!(partitions.schema().starts_with("CREATE TABLE IF NOT EXISTS \"app\".\"partitions\""));
/// # Ok::<(), solehold_sql::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    quoted: String,
}

const COLUMNS: &str = "epoch, token, owner, next_offset, landmark_offset, landmark_digest";
const THIS_ONE: &str = "consumer_group = $1 AND topic = $2 AND partition = $3";

impl Partitions {
    /// Partitions in that table, `name` or `schema.name`.
    pub fn new(table: &str) -> Result<Self, Error> {
        Ok(Self { quoted: ident::table(table)? })
    }

    /// The table, to be made once. It may be applied again. A row is updated by every transaction of its partition, so
    /// there is room left for its versions, and no index over what changes.
    pub fn schema(&self) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {0} (consumer_group text NOT NULL, topic text NOT NULL, partition integer NOT NULL, \
             epoch bigint NOT NULL DEFAULT 0, token bigint NOT NULL DEFAULT 0, owner text NOT NULL DEFAULT '', \
             next_offset bigint, next_sequence bigint NOT NULL DEFAULT 1, \
             landmark_offset bigint, landmark_digest bigint, raised_at timestamptz, \
             PRIMARY KEY (consumer_group, topic, partition)) WITH (fillfactor = 20);\n\
             ALTER TABLE {0} ADD COLUMN IF NOT EXISTS generation bigint NOT NULL DEFAULT 0;\n",
            self.quoted
        )
    }

    /// Reads a partition's row, which is made if it is missing.
    pub async fn look(
        &self,
        client: &impl GenericClient,
        partition: &Partition,
    ) -> Result<PartitionRow, Error> {
        check_names(partition)?;
        let read = format!("SELECT {COLUMNS} FROM {} WHERE {THIS_ONE}", self.quoted);
        let Partition { group, topic, number } = partition;
        if let Some(row) = client.query_opt(&read, &[group, topic, number]).await? {
            return Ok(row_of(&row));
        }
        let insert = format!(
            "INSERT INTO {} (consumer_group, topic, partition) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            self.quoted
        );
        client.execute(&insert, &[group, topic, number]).await?;
        Ok(row_of(&client.query_one(&read, &[group, topic, number]).await?))
    }

    /// Raises the epoch if it is still `seen`. To be called after a [look](Self::look) and a proof of membership, in
    /// this order. `first` is where to begin if nothing is known of the partition yet.
    pub async fn raise_from(
        &self,
        client: &impl GenericClient,
        partition: &Partition,
        seen: i64,
        owner: &str,
        first: i64,
    ) -> Result<Raised, Error> {
        let raise = format!(
            "UPDATE {} SET epoch = epoch + 1, owner = $4, next_offset = coalesce(next_offset, $5), \
             raised_at = clock_timestamp() WHERE {THIS_ONE} AND epoch = $6 RETURNING epoch, next_offset",
            self.quoted
        );
        let Partition { group, topic, number } = partition;
        let raised = client.query_opt(&raise, &[group, topic, number, &owner, &first, &seen]).await?;
        self.raised(client, partition, raised).await
    }

    /// Raises the epoch under a lease, unless a higher token was shown before. Shown again by the same owner, a token
    /// raises it again. `first` is where to begin if nothing is known of the partition yet.
    pub async fn raise_to(
        &self,
        client: &impl GenericClient,
        partition: &Partition,
        token: u64,
        owner: &str,
        first: i64,
    ) -> Result<Raised, Error> {
        self.look(client, partition).await?;
        let token = signed(token)?;
        let raise = format!(
            "UPDATE {} SET epoch = epoch + 1, token = $6, owner = $4, next_offset = coalesce(next_offset, $5), \
             raised_at = clock_timestamp() \
             WHERE {THIS_ONE} AND (token < $6 OR token = $6 AND owner = $4) RETURNING epoch, next_offset",
            self.quoted
        );
        let Partition { group, topic, number } = partition;
        let raised = client.query_opt(&raise, &[group, topic, number, &owner, &first, &token]).await?;
        self.raised(client, partition, raised).await
    }

    async fn raised(
        &self,
        client: &impl GenericClient,
        partition: &Partition,
        row: Option<Row>,
    ) -> Result<Raised, Error> {
        let Some(row) = row else { return Ok(Raised::Overtaken(self.look(client, partition).await?)) };
        let epoch = row.get(0);
        let next_offset = row.get(1);
        Ok(Raised::Ours(Tenure { partition: partition.clone(), epoch, next_offset }))
    }

    /// Checks a tenure in the caller's transaction, before anything is written for its partition, and locks the row. It
    /// waits for a writer of the same partition that has not committed yet. From then on the transaction should wait
    /// for nothing but PostgreSQL.
    pub async fn check(&self, transaction: &impl GenericClient, tenure: &Tenure) -> Result<Standing, Error> {
        let lock = format!("SELECT 1 FROM {} WHERE {THIS_ONE} AND epoch = $4 FOR NO KEY UPDATE", self.quoted);
        let Partition { group, topic, number } = &tenure.partition;
        let values: [&(dyn ToSql + Sync); 4] = [group, topic, number, &tenure.epoch];
        // Both are on their way before the first is answered.
        let bound = bound_pause();
        let (bounded, found) =
            tokio::join!(transaction.batch_execute(&bound), transaction.query_opt(&lock, &values));
        bounded?;
        let found = found?;
        Ok(if found.is_some() { Standing::Ours } else { Standing::Fenced })
    }

    /// The same, and the position: all messages below `next_offset` take effect with this transaction, or have before.
    /// The position never goes back.
    pub async fn advance(
        &self,
        transaction: &impl GenericClient,
        tenure: &Tenure,
        next_offset: i64,
        checkpoint: Option<Checkpoint>,
    ) -> Result<Standing, Error> {
        let advance = format!(
            "UPDATE {} SET next_offset = greatest(next_offset, $5), landmark_offset = coalesce($6, landmark_offset), \
             landmark_digest = coalesce($7, landmark_digest) WHERE {THIS_ONE} AND epoch = $4",
            self.quoted
        );
        let Partition { group, topic, number } = &tenure.partition;
        let at = checkpoint.map(|mark| mark.offset);
        let digest = checkpoint.map(|mark| mark.digest);
        let values: [&(dyn ToSql + Sync); 7] =
            [group, topic, number, &tenure.epoch, &next_offset, &at, &digest];
        let bound = bound_pause();
        let (bounded, changed) =
            tokio::join!(transaction.batch_execute(&bound), transaction.execute(&advance, &values));
        bounded?;
        Ok(if changed? > 0 { Standing::Ours } else { Standing::Fenced })
    }

    /// Draws `count` numbers that no other transaction of this partition has drawn or will draw, and returns the first:
    /// they grow in the order of commits, since the row is locked until then. None if the tenure is fenced.
    pub async fn draw(
        &self,
        transaction: &impl GenericClient,
        tenure: &Tenure,
        count: i64,
    ) -> Result<Option<i64>, Error> {
        let draw = format!(
            "UPDATE {} SET next_sequence = next_sequence + $5 WHERE {THIS_ONE} AND epoch = $4 \
             RETURNING next_sequence - $5",
            self.quoted
        );
        let Partition { group, topic, number } = &tenure.partition;
        let drawn = transaction.query_opt(&draw, &[group, topic, number, &tenure.epoch, &count]).await?;
        Ok(drawn.map(|row| row.get(0)))
    }

    /// The generation of a partition: how often its topic was made anew. An offset means a message only together with
    /// the generation in which it was read.
    pub async fn generation(&self, client: &impl GenericClient, partition: &Partition) -> Result<i64, Error> {
        let read = format!("SELECT generation FROM {} WHERE {THIS_ONE}", self.quoted);
        let Partition { group, topic, number } = partition;
        Ok(client.query_one(&read, &[group, topic, number]).await?.get(0))
    }

    /// Begins the next generation of one partition, and returns it: for an owner that finds out by itself, in a
    /// transaction that has checked its tenure, that the messages are those of a topic that was made anew.
    pub async fn raise_generation(
        &self,
        transaction: &impl GenericClient,
        tenure: &Tenure,
    ) -> Result<i64, Error> {
        let raise = format!(
            "UPDATE {} SET generation = generation + 1 WHERE {THIS_ONE} AND epoch = $4 RETURNING generation",
            self.quoted
        );
        let Partition { group, topic, number } = &tenure.partition;
        Ok(transaction.query_one(&raise, &[group, topic, number, &tenure.epoch]).await?.get(0))
    }

    /// Forgets how far the messages of a topic have taken effect, for a topic that was made anew: its consumers begin
    /// with its first message, in the next generation. Epochs and sequences stay, and every present tenure is fenced.
    /// Returns the number of partitions.
    pub async fn begin_anew(
        &self,
        client: &impl GenericClient,
        group: &str,
        topic: &str,
    ) -> Result<u64, Error> {
        let forget = format!(
            "UPDATE {} SET epoch = epoch + 1, generation = generation + 1, next_offset = NULL, \
             landmark_offset = NULL, landmark_digest = NULL \
             WHERE consumer_group = $1 AND topic = $2",
            self.quoted
        );
        Ok(client.execute(&forget, &[&group, &topic]).await?)
    }
}

fn bound_pause() -> String {
    format!("SET LOCAL idle_in_transaction_session_timeout = {WRITER_PAUSE_MS_MAX}")
}

fn row_of(row: &Row) -> PartitionRow {
    let checkpoint = row.get::<_, Option<i64>>(4).zip(row.get(5));
    PartitionRow {
        epoch: row.get(0),
        token: row.get(1),
        owner: row.get(2),
        next_offset: row.get(3),
        checkpoint: checkpoint.map(|(offset, digest)| Checkpoint { offset, digest }),
    }
}

fn check_names(partition: &Partition) -> Result<(), Error> {
    for (what, name) in [("group", &partition.group), ("topic", &partition.topic)] {
        if name.is_empty() || name.len() > PARTITION_NAME_BYTES_MAX || name.contains('\0') {
            let wanted = format!("it has 1 to {PARTITION_NAME_BYTES_MAX} bytes, and none of them is 0");
            return Err(Error::invalid(what, name, wanted));
        }
    }
    if partition.number < 0 {
        let wanted = "partitions are numbered from 0";
        return Err(Error::invalid("partition", partition.number.to_string(), wanted));
    }
    Ok(())
}
