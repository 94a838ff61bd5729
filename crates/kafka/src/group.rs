//! Partitions by a consumer group: a tenure is won (`winning`) for a partition that the group has assigned, and worked
//! under.

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
    Handler,
    lane::Lane,
    poll::{Client, Order},
    shared::{Entered, LaneCell, Moment},
    tenure::{Ended, TaskContext, serve},
    winning::{self, ANEW, Contest, Found, NotWon, OUR_POSITION, Start, is_first},
};

/// Between two attempts to win a partition.
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(1) };
/// How long the broker may take for one answer.
const BROKER_MAX: Duration = Duration::from_secs(10);

/// A tenure that was won, and how its topic is recognized.
#[derive(Debug)]
pub(super) struct Won {
    pub tenure: Tenure,
    pub checkpoint: Option<Checkpoint>,
    /// Where the position comes from, for the log.
    pub origin: &'static str,
}

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

/// The consumer itself, as it wins a partition.
struct Candidate<'a, H, F> {
    context: &'a TaskContext<H>,
    partition: &'a Partition,
    is_ours: F,
}

impl<H: Handler, F: Fn() -> bool + Sync> Contest for Candidate<'_, H, F> {
    async fn row(&self) -> Result<PartitionRow, NotWon> {
        let database = self.context.pool.get().await?;
        Ok(self.context.partitions.look(&**database, self.partition).await?)
    }

    async fn look(&self, row: PartitionRow) -> Result<Found, NotWon> {
        look(&self.context.client, self.partition, row).await
    }

    async fn prove(&self, position: i64) -> Result<(), NotWon> {
        prove(&self.context.client, self.partition, position).await?;
        self.context.shared.at(Moment::Proven);
        Ok(())
    }

    fn is_ours(&self) -> bool {
        (self.is_ours)()
    }

    async fn raise(&self, seen: i64, first: i64) -> Result<Raised, NotWon> {
        let Self { context, partition, .. } = self;
        let database = context.pool.get().await?;
        Ok(context.partitions.raise_from(&**database, partition, seen, &context.owner, first).await?)
    }
}

/// Makes one attempt to win a partition.
async fn win<H: Handler>(
    context: &TaskContext<H>,
    number: i32,
    is_ours: impl Fn() -> bool + Sync,
) -> Result<Won, NotWon> {
    let partition = &context.partition(number);
    let candidate = Candidate { context, partition, is_ours };
    let (tenure, start) = winning::win(partition, &context.settings, &candidate).await?;
    skip_lost(context, tenure, &start).await
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
