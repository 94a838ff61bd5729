//! How a tenure of a partition is won in a consumer group: in four steps, whose order shows that nobody else has the
//! partition ([why](../../../docs/adr/2026-11-16-an-epoch-is-raised-after-a-proof.md)). Without a broker or a database
//! of its own: those of the consumer are in `group`, and those of the simulator in `sim/`.
//!
//! ```text
//!   read the row ──> commit the position to the broker ──> not revoked meanwhile? ──> raise, if the row is unchanged
//!        ^                   │ refused: not a member                                         │ it has changed
//!        └───────────────────┴───────────────────────────────────────────────────────────────┘
//! ```

use solehold_sql::partitions::{Checkpoint, Partition, PartitionRow, Raised, Tenure};

use super::{Begin, ConsumerSettings, LostMessages};

/// Why a partition was not won.
#[derive(Debug, PartialEq, Eq)]
pub enum NotWon {
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
pub struct Found {
    pub row: PartitionRow,
    /// The group's committed offset at the broker, if the partition never had a tenure: another system may have
    /// processed its messages.
    pub committed: Option<i64>,
    /// The first message that the broker has, and one above the last.
    pub watermarks: (i64, i64),
}

/// Where the messages of a partition begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
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

pub(super) const OUR_POSITION: &str = "the position in PostgreSQL";
const GROUP_OFFSET: &str = "the first start, at the consumer group's committed offset";
const NO_OFFSET_EARLIEST: &str =
    "the first start, the group has no committed offset, auto_offset_reset is earliest";
const NO_OFFSET_LATEST: &str =
    "the first start, the group has no committed offset, auto_offset_reset is latest";
const BEGUN_ANEW: &str = "the position was forgotten (begin-anew)";

/// What to do about a topic that was deleted and created again.
pub(super) const ANEW: &str = "If that is meant, let the group begin anew with what is there: `solehold orchestrator begin-anew` for \
                    an orchestrator, otherwise see docs/guides/partitions.md, \"A recreated topic\"";
/// PostgreSQL and the broker, as one consumer reaches them for one partition.
pub trait Contest: Sync {
    fn row(&self) -> impl Future<Output = Result<PartitionRow, NotWon>> + Send;

    /// What the broker knows. It is asked after the row was read. In the other order a process that is paused in
    /// between would find a position above the last message, as if the topic had been created again.
    fn look(&self, row: PartitionRow) -> impl Future<Output = Result<Found, NotWon>> + Send;

    /// Commits a position to the broker, which takes one from members of the present generation only.
    fn prove(&self, position: i64) -> impl Future<Output = Result<(), NotWon>> + Send;

    /// Whether this consumer has not been told that the partition was taken away.
    fn is_ours(&self) -> bool;

    /// Raises the epoch if it is still `seen`. `first` is where to begin if nothing is known of the partition yet.
    fn raise(&self, seen: i64, first: i64) -> impl Future<Output = Result<Raised, NotWon>> + Send;
}

/// Makes one attempt to win a partition.
pub async fn win(
    partition: &Partition,
    settings: &ConsumerSettings,
    contest: &impl Contest,
) -> Result<(Tenure, Start), NotWon> {
    let row = contest.row().await?;
    let found = contest.look(row).await?;
    let start = start(partition, &found, settings)?;
    contest.prove(start.position()).await?;
    if !contest.is_ours() {
        return Err(NotWon::Again("the group has revoked it".to_owned()));
    }
    match contest.raise(found.row.epoch, start.position()).await? {
        Raised::Ours(tenure) => Ok((tenure, start)),
        Raised::Overtaken(row) => {
            Err(NotWon::Again(format!("{} has raised the epoch to {}", row.owner, row.epoch)))
        }
    }
}

/// Whether the partition never had a tenure. A position that an operator reset does not count: the group's committed
/// offset would then belong to a topic that is gone.
pub(super) fn is_first(row: &PartitionRow) -> bool {
    row.epoch == 0 && row.next_offset.is_none()
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
