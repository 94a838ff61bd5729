//! Partitions by a consumer group: how the right to write is won for a partition that the group has assigned.
//!
//! ```text
//!   look at the row ──> commit the position to the broker ──> not revoked meanwhile? ──> raise, if the row is as it was
//!        ^                   │ refused: no member                                            │ it is not
//!        └───────────────────┴───────────────────────────────────────────────────────────────┘
//! ```

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer as _},
};
use solehold_clock::Backoff;
use solehold_sql::partitions::{Landmark, Partition, PartitionRow, Raised, Tenure};

use super::{
    Begin, Handler,
    desk::{Entered, LaneCell, Moment},
    lane::{Bounds, Lane},
    poll::{Client, Order, out_of_range},
    tenure::{Ended, Office, serve},
};

/// Between two attempts to win a partition.
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(1) };
/// How long the broker may take to say which messages it has.
const WATERMARKS_MAX: Duration = Duration::from_secs(10);

/// What does not change between partitions.
pub(super) struct Terms {
    pub group: String,
    pub owner: String,
    pub begin: Begin,
    pub bounds: Bounds,
}

/// Why a partition was not won.
pub(super) enum NotWon {
    /// It may be later.
    Again(String),
    /// It never will be: the consumer ends.
    Never(String),
}

impl From<solehold_sql::Error> for NotWon {
    fn from(error: solehold_sql::Error) -> Self {
        Self::Again(error.to_string())
    }
}

impl From<deadpool_postgres::PoolError> for NotWon {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        solehold_sql::Error::from(error).into()
    }
}

/// Where the messages of a partition begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    /// The first that has not taken effect.
    pub next_offset: i64,
    /// A message by which the topic is known again.
    pub landmark: Option<Landmark>,
}

/// Works on a partition of the group until it is revoked.
pub(super) async fn hold<H: Handler>(
    office: Arc<Office<H>>,
    client: Weak<Client>,
    terms: Arc<Terms>,
    mut entered: Entered,
) {
    let mut failures = 0;
    loop {
        let won = tokio::select! {
            won = win(&office, &client, &terms, entered.number, || entered.leave.borrow().is_stay()) => won,
            () = wait_left(entered.leave.clone()) => return,
        };
        match won {
            Ok((tenure, landmark)) => {
                failures = 0;
                match work(&office, &terms, &entered, &tenure, landmark).await {
                    Ended::Fenced => {
                        tracing::warn!(partition = %tenure.partition, "another consumer wrote for it")
                    }
                    _ => return,
                }
            }
            Err(NotWon::Never(why)) => return office.desk.fail(why),
            Err(NotWon::Again(why)) => {
                tracing::debug!(partition = entered.number, why, "the partition is not won yet");
            }
        }
        failures += 1;
        tokio::select! {
            () = tokio::time::sleep(RETRY.wait(failures, rand::random())) => {}
            () = entered.left() => return,
        }
    }
}

async fn wait_left(mut leave: tokio::sync::watch::Receiver<super::desk::Leave>) {
    let _ = leave.wait_for(|leave| !leave.is_stay()).await;
}

/// Fetches messages and works on them, under this tenure.
pub(super) async fn work<H: Handler>(
    office: &Arc<Office<H>>,
    terms: &Terms,
    entered: &Entered,
    tenure: &Tenure,
    landmark: Option<Landmark>,
) -> Ended {
    let (number, serial) = (entered.number, entered.serial);
    let next_offset = tenure.next_offset;
    tracing::info!(partition = %tenure.partition, epoch = tenure.epoch, next_offset, "this consumer has the partition");
    office.desk.figures.begins(number, tenure.epoch, next_offset);
    // The former owner may have got further since we proved that we are a member, with an older position.
    office.desk.positions.lock().insert(number, next_offset);
    let cell = Arc::new(LaneCell::new(Lane::new(next_offset, landmark, terms.bounds.clone())));
    let offset = landmark.map_or(next_offset, |landmark| landmark.offset.min(next_offset));
    let _ = office.orders.send(Order::Fetch { number, serial, offset, cell: cell.clone() }).await;
    let ended = serve(office, tenure, serial, &cell, entered.leave.clone()).await;
    match &ended {
        Ended::Foreign => office.desk.fail(format!(
            "topic {} was made anew under its name: at offset {} of partition {number} it has another message than the \
             one that took effect. If that is meant, let the group begin anew with what is there \
             (docs/guides/partitions.md, \"A topic that was made anew\")",
            tenure.partition.topic,
            landmark.map_or(-1, |landmark| landmark.offset),
        )),
        Ended::Broken(why) => office.desk.fail(why.clone()),
        _ => {}
    }
    ended
}

/// Wins the right to write for a partition, once.
async fn win<H: Handler>(
    office: &Office<H>,
    client: &Weak<Client>,
    terms: &Terms,
    number: i32,
    is_ours: impl Fn() -> bool,
) -> Result<(Tenure, Option<Landmark>), NotWon> {
    let topic = office.desk.topic.clone();
    let partition = Partition { group: terms.group.clone(), topic, number };
    let row = office.partitions.look(&**office.pool.get().await?, &partition).await?;
    let start = start(client, &partition, &row, terms.begin).await?;
    prove(client, &partition, start.next_offset).await?;
    office.desk.at(Moment::Proven);
    if !is_ours() {
        return Err(NotWon::Again("the group has taken it back".to_owned()));
    }
    let database = office.pool.get().await?;
    let raised =
        office.partitions.raise_from(&**database, &partition, row.epoch, &terms.owner, start.next_offset);
    match raised.await? {
        Raised::Ours(tenure) => Ok((tenure, start.landmark)),
        Raised::Overtaken(row) => {
            Err(NotWon::Again(format!("{} has raised the epoch to {}", row.owner, row.epoch)))
        }
    }
}

/// Where to begin, by what has taken effect and what the broker has.
pub(super) async fn start(
    client: &Weak<Client>,
    partition: &Partition,
    row: &PartitionRow,
    begin: Begin,
) -> Result<Start, NotWon> {
    let (topic, number) = (partition.topic.clone(), partition.number);
    let watermarks =
        with_client(client, move |client| client.fetch_watermarks(&topic, number, WATERMARKS_MAX));
    let (low, high) = watermarks.await?;
    match row.next_offset {
        None => {
            let next_offset = if begin == Begin::Earliest { low } else { high };
            Ok(Start { next_offset, landmark: None })
        }
        Some(next) if !(low..=high).contains(&next) => {
            Err(NotWon::Never(out_of_range(&partition.topic, number, next, low, high)))
        }
        Some(next_offset) => {
            Ok(Start { next_offset, landmark: row.landmark.filter(|landmark| landmark.offset >= low) })
        }
    }
}

/// Makes the broker prove that we are a member of the group: it takes a position from nobody else.
async fn prove(client: &Weak<Client>, partition: &Partition, position: i64) -> Result<(), NotWon> {
    let (topic, number) = (partition.topic.clone(), partition.number);
    let commit = with_client(client, move |client| {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&topic, number, Offset::Offset(position))?;
        client.commit(&list, CommitMode::Sync)
    });
    commit.await
}

/// Asks something of the client that takes a thread while it waits.
async fn with_client<T: Send + 'static>(
    client: &Weak<Client>,
    ask: impl FnOnce(&Client) -> rdkafka::error::KafkaResult<T> + Send + 'static,
) -> Result<T, NotWon> {
    let client = client.clone();
    let again = |why: String| NotWon::Again(why);
    let asked = tokio::task::spawn_blocking(move || client.upgrade().map(|client| ask(&client)));
    let answer = asked.await.map_err(|error| again(error.to_string()))?;
    let answer = answer.ok_or_else(|| again("the consumer ends".to_owned()))?;
    answer.map_err(|error| again(error.to_string()))
}
