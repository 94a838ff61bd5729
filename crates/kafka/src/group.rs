//! Partitions by a consumer group: how a tenure is won for a partition that the group has assigned.
//!
//! ```text
//!   read the row ──> commit the position to the broker ──> not revoked meanwhile? ──> raise, if the row is unchanged
//!        ^                   │ refused: not a member                                         │ it has changed
//!        └───────────────────┴───────────────────────────────────────────────────────────────┘
//! ```

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer as _},
    error::KafkaResult,
};
use solehold_clock::Backoff;
use solehold_sql::partitions::{Checkpoint, Partition, PartitionRow, Raised, Standing, Tenure};

use super::{
    Begin, ConsumerSettings, Handler, LostMessages,
    lane::Lane,
    poll::{Client, Order},
    shared::{Entered, LaneCell, Moment},
    tenure::{Ended, TaskContext, serve},
};

/// Between two attempts to win a partition.
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(1) };
/// How long the broker may take for one answer.
const BROKER_MAX: Duration = Duration::from_secs(10);

/// Why a partition was not won.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotWon {
    /// It may be won later.
    Again(String),
    /// It is stopped until an operator decides; the other partitions are not.
    Stopped(String),
    /// It cannot be won: the consumer ends.
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

/// What PostgreSQL and the broker know about a partition before it is won.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub row: PartitionRow,
    /// The group's committed offset at the broker, if the partition never had a tenure: another system may have
    /// processed its messages.
    pub committed: Option<i64>,
    /// The first message that the broker has, and one above the last.
    pub watermarks: (i64, i64),
}

/// Where the messages of a partition begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    /// The lowest offset that is not committed and whose message exists.
    pub next_offset: i64,
    /// A committed message by which the topic is recognized.
    pub checkpoint: Option<Checkpoint>,
    /// Messages from here to `next_offset` were deleted before they were committed.
    pub lost_from: Option<i64>,
    /// Where the position comes from, for the log.
    pub origin: &'static str,
}

impl Start {
    /// The lowest offset that is not committed, whether its message still exists or not.
    pub fn position(&self) -> i64 {
        self.lost_from.unwrap_or(self.next_offset)
    }
}

/// A tenure that was won, and how its topic is recognized.
#[derive(Debug)]
pub(super) struct Won {
    pub tenure: Tenure,
    pub checkpoint: Option<Checkpoint>,
    /// Where the position comes from, for the log.
    pub origin: &'static str,
}

const OUR_POSITION: &str = "the position in PostgreSQL";
const GROUP_OFFSET: &str = "the first start, at the consumer group's committed offset";
const NO_OFFSET_EARLIEST: &str =
    "the first start, the group has no committed offset, auto_offset_reset is earliest";
const NO_OFFSET_LATEST: &str =
    "the first start, the group has no committed offset, auto_offset_reset is latest";
const BEGUN_ANEW: &str = "the position was forgotten (begin-anew)";

/// Consumes a partition of the group until it is revoked.
pub(super) async fn hold<H: Handler>(context: Arc<TaskContext<H>>, mut entered: Entered) {
    let mut failures = 0;
    loop {
        let leave = entered.leave.clone();
        let is_ours = || leave.borrow().is_stay();
        let won = tokio::select! {
            won = win(&context, entered.number, is_ours) => won,
            () = entered.left() => return,
        };
        if !work_or_wait(&context, &mut entered, won, &mut failures).await {
            return;
        }
    }
}

/// Works under a tenure that was won, or records why it was not; then pauses. False if the task of the partition ends.
pub(super) async fn work_or_wait<H: Handler>(
    context: &Arc<TaskContext<H>>,
    entered: &mut Entered,
    won: Result<Won, NotWon>,
    failures: &mut u32,
) -> bool {
    match won {
        Ok(won) => match work(context, entered, &won).await {
            Ended::Fenced => *failures = 0,
            Ended::Stalled(_) => {}
            _ => return false,
        },
        Err(NotWon::Never(why)) => {
            context.shared.fail(why);
            return false;
        }
        Err(not_won) => note(context, entered.number, *failures, not_won),
    }
    *failures += 1;
    tokio::select! {
        () = tokio::time::sleep(RETRY.wait(*failures, rand::random())) => true,
        () = entered.left() => false,
    }
}

/// What to do about a topic that was deleted and created again.
const ANEW: &str = "If that is meant, let the group begin anew with what is there: `solehold orchestrator begin-anew` for \
                    an orchestrator, otherwise see docs/guides/partitions.md, \"A recreated topic\"";
/// After this many consecutive attempts, a partition that is not won is reported as stopped.
const NOT_WON_MAX: u32 = 5;

/// Records that a partition was not won. A stopped partition is reported once, until it runs again.
pub(super) fn note<H: Handler>(context: &TaskContext<H>, number: i32, failures: u32, not_won: NotWon) {
    let why = match not_won {
        NotWon::Again(why) if failures < NOT_WON_MAX => {
            return tracing::debug!(
                partition = number,
                why,
                "cannot begin to consume the partition; retrying"
            );
        }
        NotWon::Again(why) | NotWon::Stopped(why) | NotWon::Never(why) => why,
    };
    if context.shared.metrics.stops(number, &why) {
        tracing::error!(partition = number, why, "partition is stopped");
    }
}

/// Fetches and processes messages under this tenure.
async fn work<H: Handler>(context: &Arc<TaskContext<H>>, entered: &Entered, won: &Won) -> Ended {
    let Won { tenure, checkpoint, origin } = won;
    let number = entered.number;
    let serial = entered.serial;
    let checkpoint = *checkpoint;
    let next_offset = tenure.next_offset;
    let partition = &tenure.partition;
    let epoch = tenure.epoch;
    tracing::info!(%partition, epoch, next_offset, origin, "began to consume the partition");
    context.shared.metrics.begins(number, epoch, next_offset);
    // The former owner may have advanced the position since we committed an older one as the proof of membership.
    context.shared.positions.lock().insert(number, next_offset);
    let cell = Arc::new(LaneCell::new(Lane::new(next_offset, checkpoint, context.settings.bounds())));
    let offset = checkpoint.map_or(next_offset, |checkpoint| checkpoint.offset.min(next_offset));
    let _ = context.orders.send(Order::Fetch { number, serial, offset, cell: cell.clone() }).await;
    let ended = serve(context, tenure, serial, &cell, entered.leave.clone()).await;
    match &ended {
        Ended::Foreign => context.shared.fail(format!(
            "topic {} was made anew under its name: at offset {} of partition {number} it has another message than the \
             one that took effect. {ANEW}",
            tenure.partition.topic,
            checkpoint.map_or(-1, |checkpoint| checkpoint.offset),
        )),
        Ended::Broken(why) => context.shared.fail(why.clone()),
        Ended::Fenced => tracing::warn!(partition = %tenure.partition, "another consumer took over the partition"),
        Ended::Stalled(why) => note(context, number, 0, NotWon::Stopped(why.clone())),
        _ => {}
    }
    ended
}

/// Makes one attempt to win a partition.
async fn win<H: Handler>(
    context: &TaskContext<H>,
    number: i32,
    is_ours: impl Fn() -> bool,
) -> Result<Won, NotWon> {
    let partition = context.partition(number);
    let row = context.partitions.look(&**context.pool.get().await?, &partition).await?;
    let found = look(&context.client, &partition, row).await?;
    let start = start(&partition, &found, &context.settings)?;
    prove(&context.client, &partition, start.position()).await?;
    context.shared.at(Moment::Proven);
    if !is_ours() {
        return Err(NotWon::Again("the group has revoked it".to_owned()));
    }
    let database = context.pool.get().await?;
    let epoch = found.row.epoch;
    let first = start.position();
    let raised = context.partitions.raise_from(&**database, &partition, epoch, &context.owner, first);
    match raised.await? {
        Raised::Ours(tenure) => skip_lost(context, tenure, &start).await,
        Raised::Overtaken(row) => {
            Err(NotWon::Again(format!("{} has raised the epoch to {}", row.owner, row.epoch)))
        }
    }
}

/// Reads the state of the broker, after the row. In the other order a process that is paused in between would find a
/// position above the last message, as if the topic had been created again.
pub(super) async fn look(
    client: &Weak<Client>,
    partition: &Partition,
    row: PartitionRow,
) -> Result<Found, NotWon> {
    let topic = partition.topic.clone();
    let number = partition.number;
    let is_first = is_first(&row);
    let request = with_client(client, move |client| {
        let committed = if is_first { committed(client, &topic, number)? } else { None };
        Ok((committed, client.fetch_watermarks(&topic, number, BROKER_MAX)?))
    });
    let (committed, watermarks) = request.await?;
    Ok(Found { row, committed, watermarks })
}

/// Whether the partition never had a tenure. A position that an operator reset does not count: the group's committed
/// offset would then belong to a topic that is gone.
pub(super) fn is_first(row: &PartitionRow) -> bool {
    row.epoch == 0 && row.next_offset.is_none()
}

/// The committed offset of the group, by any of its members.
fn committed(client: &Client, topic: &str, number: i32) -> KafkaResult<Option<i64>> {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, number);
    let committed = client.committed_offsets(list, BROKER_MAX)?;
    let Some(element) = committed.find_partition(topic, number) else { return Ok(None) };
    element.error()?;
    Ok(match element.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    })
}

/// Where to begin, from the committed position and the offsets of the broker.
pub(super) fn start(
    partition: &Partition,
    found: &Found,
    settings: &ConsumerSettings,
) -> Result<Start, NotWon> {
    let Partition { number, topic, .. } = partition;
    let row = &found.row;
    let (low, high) = found.watermarks;
    let at = |next_offset: i64, origin| Start { next_offset, checkpoint: None, lost_from: None, origin };
    let (next, origin) = match (row.next_offset, found.committed) {
        (Some(next), _) => (next, OUR_POSITION),
        (None, Some(committed)) => (committed, GROUP_OFFSET),
        (None, None) if !is_first(row) => return Ok(at(low, BEGUN_ANEW)),
        (None, None) => {
            return Ok(match settings.auto_offset_reset {
                Begin::Earliest => at(low, NO_OFFSET_EARLIEST),
                Begin::Latest => at(high, NO_OFFSET_LATEST),
            });
        }
    };
    let by =
        if row.next_offset.is_some() { "" } else { ", by the offset that the consumer group has committed" };
    if next > high {
        return Err(NotWon::Never(format!(
            "topic {topic} is not the one that it was: it was made anew under its name, or its broker lost messages. \
             Everything below offset {next} of partition {number} has taken effect{by}, and the broker has {low} to \
             {high}. {ANEW}"
        )));
    }
    if next < low && settings.lost_messages == LostMessages::Stop {
        return Err(NotWon::Stopped(format!(
            "messages {next} to {} of partition {number} of topic {topic} were deleted before they took effect{by}: the \
             broker has {low} to {high}. What to do: docs/guides/partitions.md, \"Deleted messages\"",
            low - 1,
        )));
    }
    if next < low {
        return Ok(Start { lost_from: Some(next), ..at(low, origin) });
    }
    Ok(Start { checkpoint: row.checkpoint.filter(|checkpoint| checkpoint.offset >= low), ..at(next, origin) })
}

/// Advances the position past deleted messages, if there are any, and reports them.
pub(super) async fn skip_lost<H: Handler>(
    context: &TaskContext<H>,
    mut tenure: Tenure,
    start: &Start,
) -> Result<Won, NotWon> {
    let origin = if tenure.next_offset == start.position() { start.origin } else { OUR_POSITION };
    // The former owner may have advanced the position meanwhile.
    let Some(from) = start.lost_from.map(|from| from.max(tenure.next_offset)) else {
        return Ok(Won { tenure, checkpoint: start.checkpoint, origin });
    };
    let to = start.next_offset;
    if from < to {
        let mut database = context.pool.get().await?;
        let transaction = database.transaction().await.map_err(solehold_sql::Error::from)?;
        if context.partitions.advance(&*transaction, &tenure, to, None).await? == Standing::Fenced {
            return Err(NotWon::Again("another consumer has raised the epoch".to_owned()));
        }
        transaction.commit().await.map_err(solehold_sql::Error::from)?;
        tenure.next_offset = to;
        context.shared.metrics.lost_messages.inc_by((to - from).unsigned_abs());
        tracing::error!(
            partition = %tenure.partition, from, to = to - 1,
            "messages were deleted before they were committed; skipping them"
        );
    }
    Ok(Won { tenure, checkpoint: None, origin })
}

/// Proves membership of the group: the broker accepts a position only from a member.
pub(super) async fn prove(client: &Weak<Client>, partition: &Partition, position: i64) -> Result<(), NotWon> {
    let topic = partition.topic.clone();
    let number = partition.number;
    let commit = with_client(client, move |client| {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&topic, number, Offset::Offset(position))?;
        client.commit(&list, CommitMode::Sync)
    });
    commit.await
}

/// How many members the group has, as far as the broker reports it.
pub(super) async fn members(client: &Weak<Client>, partition: &Partition) -> Result<usize, NotWon> {
    let group = partition.group.clone();
    let request = with_client(client, move |client| {
        let list = client.fetch_group_list(Some(&group), BROKER_MAX)?;
        Ok(list.groups().iter().map(|group| group.members().len()).sum())
    });
    request.await
}

/// Runs a blocking request of the client on a thread.
async fn with_client<T: Send + 'static>(
    client: &Weak<Client>,
    request: impl FnOnce(&Client) -> KafkaResult<T> + Send + 'static,
) -> Result<T, NotWon> {
    let client = client.clone();
    let again = |why: String| NotWon::Again(why);
    let task = tokio::task::spawn_blocking(move || client.upgrade().map(|client| request(&client)));
    let response = task.await.map_err(|error| again(error.to_string()))?;
    let response = response.ok_or_else(|| again("the consumer is ending".to_owned()))?;
    response.map_err(|error| again(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(auto_offset_reset: Begin, lost_messages: LostMessages) -> ConsumerSettings {
        ConsumerSettings { auto_offset_reset, lost_messages, ..ConsumerSettings::default() }
    }

    fn partition() -> Partition {
        Partition { group: ConsumerSettings::default().group, topic: "jobs".to_owned(), number: 3 }
    }

    fn row(epoch: i64, next_offset: Option<i64>) -> PartitionRow {
        let checkpoint = next_offset.map(|_| Checkpoint { offset: 41, digest: 7 });
        PartitionRow { epoch, token: 0, owner: String::new(), next_offset, checkpoint }
    }

    fn begins(next_offset: Option<i64>, watermarks: (i64, i64), lost: LostMessages) -> Result<Start, NotWon> {
        let found = Found { row: row(1, next_offset), committed: None, watermarks };
        start(&partition(), &found, &settings(Begin::Earliest, lost))
    }

    fn at(next_offset: i64, origin: &'static str) -> Start {
        Start { next_offset, checkpoint: None, lost_from: None, origin }
    }

    #[test]
    fn deleted_messages_stop_the_partition_or_are_skipped_and_are_reported_either_way() {
        for lost in [LostMessages::Stop, LostMessages::Skip] {
            let found = begins(Some(42), (40, 50), lost);
            let checkpoint = Some(Checkpoint { offset: 41, digest: 7 });
            assert_eq!(found, Ok(Start { checkpoint, ..at(42, OUR_POSITION) }));
            // The checkpoint is deleted, and nothing is lost.
            let found = begins(Some(42), (42, 50), lost);
            assert_eq!(found, Ok(at(42, OUR_POSITION)));
            let found = begins(None, (42, 50), lost);
            assert_eq!(found, Ok(at(42, BEGUN_ANEW)));
            let another = begins(Some(51), (42, 50), lost);
            assert!(matches!(&another, Err(NotWon::Never(why)) if why.contains("made anew")), "{another:?}");
        }
        let stopped = begins(Some(42), (45, 50), LostMessages::Stop);
        let said = |why: &str| why.starts_with("messages 42 to 44 of partition 3 of topic jobs were deleted");
        assert!(matches!(&stopped, Err(NotWon::Stopped(why)) if said(why)), "{stopped:?}");
        let skipped = begins(Some(42), (45, 50), LostMessages::Skip);
        assert_eq!(skipped, Ok(Start { lost_from: Some(42), ..at(45, OUR_POSITION) }));
    }

    #[test]
    fn the_first_start_is_at_the_groups_committed_offset_or_where_the_setting_says() {
        let begins = |committed, watermarks, begin, lost| {
            let found = Found { row: row(0, None), committed, watermarks };
            start(&partition(), &found, &settings(begin, lost))
        };
        for begin in [Begin::Earliest, Begin::Latest] {
            let found = begins(Some(42), (40, 50), begin, LostMessages::Stop);
            assert_eq!(found, Ok(at(42, GROUP_OFFSET)));
            // Not where the setting says: these messages were not worked on.
            let stopped = begins(Some(42), (45, 50), begin, LostMessages::Stop);
            let said =
                "were deleted before they took effect, by the offset that the consumer group has committed";
            assert!(matches!(&stopped, Err(NotWon::Stopped(why)) if why.contains(said)), "{stopped:?}");
            let skipped = begins(Some(42), (45, 50), begin, LostMessages::Skip);
            assert_eq!(skipped, Ok(Start { lost_from: Some(42), ..at(45, GROUP_OFFSET) }));
            let another = begins(Some(51), (42, 50), begin, LostMessages::Stop);
            let said = "offset 51 of partition 3 has taken effect, by the offset that the consumer group has committed";
            assert!(matches!(&another, Err(NotWon::Never(why)) if why.contains(said)), "{another:?}");
        }
        let found = begins(None, (40, 50), Begin::Earliest, LostMessages::Stop);
        assert_eq!(found, Ok(at(40, NO_OFFSET_EARLIEST)));
        let found = begins(None, (40, 50), Begin::Latest, LostMessages::Stop);
        assert_eq!(found, Ok(at(50, NO_OFFSET_LATEST)));
        // A position that was forgotten on purpose: the topic's first message, whatever the setting.
        let found = Found { row: row(7, None), committed: None, watermarks: (0, 50) };
        let found = start(&partition(), &found, &settings(Begin::Latest, LostMessages::Stop));
        assert_eq!(found, Ok(at(0, BEGUN_ANEW)));
    }
}
