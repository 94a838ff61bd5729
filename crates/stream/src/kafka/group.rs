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
use solehold_sql::partitions::{Landmark, Partition, PartitionRow, Raised, Standing, Tenure};

use super::{
    Begin, Handler, LostMessages,
    desk::{Entered, LaneCell, Moment},
    lane::{Bounds, Lane},
    poll::{Client, Order},
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
    pub lost_messages: LostMessages,
    pub bounds: Bounds,
}

/// Why a partition was not won.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotWon {
    /// It may be later.
    Again(String),
    /// It stands still until someone decides; the other partitions go on.
    Stopped(String),
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
    /// Messages that were deleted before they took effect begin here, and end before `next_offset`.
    pub lost_from: Option<i64>,
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
            Ok((tenure, landmark)) => match work(&office, &terms, &entered, &tenure, landmark).await {
                Ended::Fenced => failures = 0,
                Ended::Stalled(_) => {}
                _ => return,
            },
            Err(NotWon::Never(why)) => return office.desk.fail(why),
            Err(not_won) => note(&office, entered.number, failures, not_won),
        }
        failures += 1;
        tokio::select! {
            () = tokio::time::sleep(RETRY.wait(failures, rand::random())) => {}
            () = entered.left() => return,
        }
    }
}

/// What to do about a topic that was made anew.
const ANEW: &str = "If that is meant, let the group begin anew with what is there: `solehold orchestrator begin-anew` for \
                    an orchestrator, otherwise see docs/guides/partitions.md, \"A topic that was made anew\"";
/// After this many attempts in a row, a partition that is not won counts as one that stands still.
const NOT_WON_MAX: u32 = 5;

/// Takes note of a partition that was not won: what stands still is reported once, until it goes on.
pub(super) fn note<H: Handler>(office: &Office<H>, number: i32, failures: u32, not_won: NotWon) {
    let why = match not_won {
        NotWon::Again(why) if failures < NOT_WON_MAX => {
            return tracing::debug!(partition = number, why, "the partition is not won yet");
        }
        NotWon::Again(why) | NotWon::Stopped(why) | NotWon::Never(why) => why,
    };
    if office.desk.figures.stops(number, &why) {
        tracing::error!(partition = number, why, "the partition is stopped");
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
             one that took effect. {ANEW}",
            tenure.partition.topic,
            landmark.map_or(-1, |landmark| landmark.offset),
        )),
        Ended::Broken(why) => office.desk.fail(why.clone()),
        Ended::Fenced => tracing::warn!(partition = %tenure.partition, "a newer owner wrote for the partition"),
        Ended::Stalled(why) => note(office, number, 0, NotWon::Stopped(why.clone())),
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
    let (row, watermarks) = look(office, client, &partition).await?;
    let start = start(&partition, &row, watermarks, terms)?;
    prove(client, &partition, start.next_offset).await?;
    office.desk.at(Moment::Proven);
    if !is_ours() {
        return Err(NotWon::Again("the group has taken it back".to_owned()));
    }
    let database = office.pool.get().await?;
    let raised =
        office.partitions.raise_from(&**database, &partition, row.epoch, &terms.owner, start.next_offset);
    match raised.await? {
        Raised::Ours(tenure) => skip_lost(office, tenure, &start).await,
        Raised::Overtaken(row) => {
            Err(NotWon::Again(format!("{} has raised the epoch to {}", row.owner, row.epoch)))
        }
    }
}

/// Reads the row of a partition, and after it which messages the broker has: the first one, and one above the last. In
/// the other order a process that is paused in between would find a position above the last message, as if the topic
/// had been made anew.
pub(super) async fn look<H: Handler>(
    office: &Office<H>,
    client: &Weak<Client>,
    partition: &Partition,
) -> Result<(PartitionRow, (i64, i64)), NotWon> {
    let (topic, number) = (partition.topic.clone(), partition.number);
    let row = office.partitions.look(&**office.pool.get().await?, partition).await?;
    let watermarks =
        with_client(client, move |client| client.fetch_watermarks(&topic, number, WATERMARKS_MAX)).await?;
    Ok((row, watermarks))
}

/// Where to begin, by what has taken effect and what the broker has.
pub(super) fn start(
    partition: &Partition,
    row: &PartitionRow,
    (low, high): (i64, i64),
    terms: &Terms,
) -> Result<Start, NotWon> {
    let number = partition.number;
    match row.next_offset {
        None => {
            let next_offset = if terms.begin == Begin::Earliest { low } else { high };
            Ok(Start { next_offset, landmark: None, lost_from: None })
        }
        Some(next) if next > high => Err(NotWon::Never(format!(
            "topic {} is not the one that it was: it was made anew under its name, or its broker lost messages. \
             Everything below offset {next} of partition {number} has taken effect, and the broker has {low} to {high}. \
             {ANEW}",
            partition.topic
        ))),
        Some(next) if next < low && terms.lost_messages == LostMessages::Stop => {
            Err(NotWon::Stopped(format!(
                "messages {next} to {} of partition {number} of topic {} were deleted before they took effect: the \
                 broker has {low} to {high}. What to do: docs/guides/partitions.md, \"Messages that were deleted\"",
                low - 1,
                partition.topic
            )))
        }
        Some(next) if next < low => Ok(Start { next_offset: low, landmark: None, lost_from: Some(next) }),
        Some(next_offset) => Ok(Start {
            next_offset,
            landmark: row.landmark.filter(|landmark| landmark.offset >= low),
            lost_from: None,
        }),
    }
}

/// Moves the position past messages that were deleted, if there are such, and reports them.
pub(super) async fn skip_lost<H: Handler>(
    office: &Office<H>,
    mut tenure: Tenure,
    start: &Start,
) -> Result<(Tenure, Option<Landmark>), NotWon> {
    // The former owner may have got further meanwhile.
    let Some(from) = start.lost_from.map(|from| from.max(tenure.next_offset)) else {
        return Ok((tenure, start.landmark));
    };
    let to = start.next_offset;
    if from < to {
        let mut database = office.pool.get().await?;
        let transaction = database.transaction().await.map_err(solehold_sql::Error::from)?;
        if office.partitions.advance(&*transaction, &tenure, to, None).await? == Standing::Fenced {
            return Err(NotWon::Again("another consumer has raised the epoch".to_owned()));
        }
        transaction.commit().await.map_err(solehold_sql::Error::from)?;
        tenure.next_offset = to;
        office.desk.figures.skipped((to - from).unsigned_abs());
        tracing::error!(
            partition = %tenure.partition, from, to = to - 1,
            "messages were deleted before they took effect; they are skipped"
        );
    }
    Ok((tenure, None))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::ConsumerSettings;

    fn begins(next_offset: Option<i64>, broker_has: (i64, i64), lost: LostMessages) -> Result<Start, NotWon> {
        let settings = ConsumerSettings::default();
        let terms = Terms {
            group: settings.group.clone(),
            owner: "one".to_owned(),
            begin: Begin::Earliest,
            lost_messages: lost,
            bounds: settings.bounds(),
        };
        let partition = Partition { group: settings.group, topic: "jobs".to_owned(), number: 3 };
        let landmark = Some(Landmark { offset: 41, digest: 7 });
        let row = PartitionRow { epoch: 1, token: 0, owner: String::new(), next_offset, landmark };
        start(&partition, &row, broker_has, &terms)
    }

    #[test]
    fn deleted_messages_stop_the_partition_or_are_skipped_and_are_reported_either_way() {
        for lost in [LostMessages::Stop, LostMessages::Skip] {
            let found = begins(Some(42), (40, 50), lost);
            let landmark = Some(Landmark { offset: 41, digest: 7 });
            assert_eq!(found, Ok(Start { next_offset: 42, landmark, lost_from: None }));
            // The landmark is deleted, and nothing is lost.
            let found = begins(Some(42), (42, 50), lost);
            assert_eq!(found, Ok(Start { next_offset: 42, landmark: None, lost_from: None }));
            let found = begins(None, (42, 50), lost);
            assert_eq!(found, Ok(Start { next_offset: 42, landmark: None, lost_from: None }));
            let another = begins(Some(51), (42, 50), lost);
            assert!(matches!(&another, Err(NotWon::Never(why)) if why.contains("made anew")), "{another:?}");
        }
        let stopped = begins(Some(42), (45, 50), LostMessages::Stop);
        let said = |why: &str| why.starts_with("messages 42 to 44 of partition 3 of topic jobs were deleted");
        assert!(matches!(&stopped, Err(NotWon::Stopped(why)) if said(why)), "{stopped:?}");
        let skipped = begins(Some(42), (45, 50), LostMessages::Skip);
        assert_eq!(skipped, Ok(Start { next_offset: 45, landmark: None, lost_from: Some(42) }));
    }
}
