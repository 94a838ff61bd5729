//! Partitions by leases: each partition is a resource of a Solehold server, which plans its holder.
//!
//! ```text
//!   register as a runner ──> receive the plan ──> acquire, or take over ──> raise the epoch under the token
//!                                            └──> hand over, release
//! ```
//! The server plans where partitions should be (rule 27), the leases decide who has them, and the row in PostgreSQL
//! rejects the writes of a former holder.

use std::{collections::HashSet, sync::Arc, time::Duration};

use solehold_api::{paths, resources::PutResource, runners::RegisterRunner};
use solehold_client::{
    AcquireError, ClientSession, Guard, Http, OpenError, ResourceName, SessionConfig,
    assignments::{Assigned, Want},
};
use solehold_clock::Backoff;
use solehold_sql::partitions::{Partition, Raised};
use tokio::sync::Notify;

use super::{
    Handler,
    group::{Won, look, members, prove, skip_lost, work_or_wait},
    poll::Order,
    shared::{Entered, Leave},
    tenure::TaskContext,
    winning::{NotWon, Start, is_first, start},
};

/// The kind of the leases that partitions are held by.
pub const PARTITION_KIND: &str = "partition";

/// How long a holder may take to hand a partition over.
const HAND_OVER_MAX: Duration = Duration::from_secs(10);
/// How long to wait for a release; after that, the lease expires.
const RELEASE_MAX: Duration = Duration::from_millis(150);
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(1) };

/// The partitions of one topic and group, as resources.
#[derive(Debug, Clone)]
pub(super) struct PartitionKeys {
    pub prefix: String,
    pub count: i32,
}

impl PartitionKeys {
    pub fn new(group: &str, topic: &str, count: i32) -> Self {
        Self { prefix: format!("{group}/{topic}/"), count }
    }

    fn key(&self, number: i32) -> String {
        format!("{}{number}", self.prefix)
    }

    fn number(&self, resource: &ResourceName) -> Option<i32> {
        let number = resource.key.as_str().strip_prefix(&self.prefix)?.parse().ok()?;
        (resource.kind.as_str() == PARTITION_KIND && (0..self.count).contains(&number)).then_some(number)
    }
}

/// The runner that a consumer registers as.
pub(super) fn runner(name: &str, capacity: u32) -> RegisterRunner {
    RegisterRunner {
        runner_id: name.to_owned(),
        capacity: Some(capacity.into()),
        kinds: vec![PARTITION_KIND.to_owned()],
        ..RegisterRunner::default()
    }
}

/// Opens the session that the leases are attached to; retries while the server cannot be reached.
pub(super) async fn open(http: Arc<Http>, name: &str, ttl: Duration) -> Result<ClientSession, OpenError> {
    let session = SessionConfig { ttl, ..SessionConfig::new(name) };
    let mut has_warned = false;
    loop {
        match ClientSession::open(http.clone(), session.clone()).await {
            Err(OpenError::Authority(error)) => {
                if !has_warned {
                    tracing::warn!(%error, "cannot reach the Solehold server; retrying");
                }
                has_warned = true;
            }
            opened => return opened,
        }
    }
}

pub(super) struct PlanFollower<H> {
    pub context: Arc<TaskContext<H>>,
    pub http: Arc<Http>,
    pub session: ClientSession,
    pub resources: PartitionKeys,
    /// Notified when a partition that is planned for this consumer was not granted.
    pub not_granted: Notify,
}

/// The long poll for the plan.
#[derive(Debug, Default)]
struct PlanPoll {
    /// The version of the last plan. The server responds when it has another one, and at once if this is none.
    known: Option<String>,
    failures: u32,
}

impl PlanPoll {
    /// Records a response. Returns whether the version is unchanged.
    fn responded(&mut self, version: Option<&String>) -> bool {
        let is_same = self.known.as_ref() == version;
        self.known = version.cloned();
        is_same
    }

    /// The plan was not received, or not executed: request it again after this pause, for an immediate response.
    /// Waiting for another plan would leave partitions of this one without a holder.
    fn failed(&mut self) -> Duration {
        self.known = None;
        self.failures = self.failures.saturating_add(1);
        RETRY.wait(self.failures, rand::random())
    }
}

impl<H: Handler> PlanFollower<H> {
    /// Follows the plan until this is dropped. Returns why it can no longer be followed.
    pub async fn follow(self: Arc<Self>) -> String {
        self.declare().await;
        let mut poll = PlanPoll::default();
        loop {
            if let Err(lost) = self.session.ready().await {
                return format!("the session of the consumer has ended: {lost}");
            }
            let answer = tokio::select! {
                answer = self.http.assignments(self.session.holder(), poll.known.as_deref()) => answer,
                () = self.not_granted.notified() => {
                    tokio::time::sleep(poll.failed()).await;
                    continue;
                }
            };
            match answer {
                Ok(assigned) => {
                    self.context.shared.metrics.set_assigned(true);
                    let is_same = poll.responded(assigned.version.as_ref());
                    // The plan is unchanged because an attempt failed: do not repeat it at once.
                    if self.carry_out(&assigned) > 0 && is_same {
                        tokio::time::sleep(RETRY.wait(3, rand::random())).await;
                    }
                }
                Err(why) => {
                    let pause = poll.failed();
                    tracing::warn!(
                        %why,
                        "cannot request the assignment of partitions; keeping the current ones"
                    );
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Declares the partitions: the server plans only declared resources.
    async fn declare(&self) {
        for number in 0..self.resources.count {
            let mut failures = 0;
            let path = paths::resource(PARTITION_KIND, &self.resources.key(number));
            loop {
                let why = match self.http.put(path.clone(), &PutResource::default()).await {
                    Ok(Ok(())) => break,
                    Ok(Err(refusal)) => refusal.detail,
                    Err(error) => error.to_string(),
                };
                failures += 1;
                tracing::warn!(partition = number, why, "cannot declare the partition; retrying");
                tokio::time::sleep(RETRY.wait(failures, rand::random())).await;
            }
        }
    }

    /// Starts tasks for new partitions, and returns their number.
    fn carry_out(self: &Arc<Self>, assigned: &Assigned) -> usize {
        // Partitions with a next holder are handed over when it requests them.
        let unwanted = assigned.unwanted.iter().filter_map(|resource| self.resources.number(resource));
        self.context.shared.leave(&unwanted.collect(), Leave::Finish);
        let mut begun = 0;
        for (resource, want) in &assigned.wanted {
            let Some(number) = self.resources.number(resource) else { continue };
            if let Some(entered) = self.context.shared.enter_if_absent(number) {
                begun += 1;
                tokio::spawn(self.clone().hold(entered, *want));
            }
        }
        begun
    }

    /// Acquires a partition and consumes it until it is handed over, released or lost.
    async fn hold(self: Arc<Self>, mut entered: Entered, want: Want) {
        let key = self.resources.key(entered.number);
        let acquired = tokio::select! {
            acquired = self.acquire(&key, want) => acquired,
            () = entered.left() => return,
        };
        let guard = match acquired {
            Ok(Some(guard)) => guard,
            Ok(None) => return self.is_not_granted(entered, "the holder did not hand the partition over"),
            Err(error) => return self.is_not_granted(entered, &error.to_string()),
        };
        let number = entered.number;
        let work = async {
            let mut failures = 0;
            let mut is_on = true;
            while is_on {
                let won = self.win(&guard, number).await;
                is_on = work_or_wait(&self.context, &mut entered, won, &mut failures).await;
            }
        };
        let asked = async {
            let asked = guard.hand_over_asked().await;
            tracing::info!(key, to = asked.to, "handing over the partition");
            self.context.shared.leave(&HashSet::from([number]), Leave::Finish);
            std::future::pending::<()>().await;
        };
        let lost = tokio::select! {
            () = work => None,
            lost = guard.lost() => Some(lost),
            () = asked => None,
        };
        let serial = entered.serial;
        let _ = self.context.orders.send(Order::Unfetch { number, serial }).await;
        if let Some(lost) = lost {
            self.context.shared.metrics.lost.inc();
            return tracing::warn!(key, %lost, "lost the lease of the partition");
        }
        match tokio::time::timeout(RELEASE_MAX, guard.release()).await {
            Ok(Ok(())) => tracing::info!(key, "released the partition"),
            Ok(Err(error)) => {
                tracing::warn!(key, %error, "cannot release the partition; its lease will expire")
            }
            Err(_) => tracing::warn!(key, "releasing the partition timed out; its lease will expire"),
        }
    }

    fn is_not_granted(&self, entered: Entered, why: &str) {
        tracing::debug!(partition = entered.number, why, "partition was not granted; retrying");
        // First, so that another task may enter.
        drop(entered);
        self.not_granted.notify_one();
    }

    async fn acquire(&self, key: &str, want: Want) -> Result<Option<Guard>, AcquireError> {
        if want == Want::Moves
            && let Ok(taken) = self.session.take_over(PARTITION_KIND, key, HAND_OVER_MAX).await
        {
            return Ok(taken);
        }
        self.session.try_acquire(PARTITION_KIND, key).await.map(Some)
    }

    /// Raises the epoch under the lease's token.
    async fn win(&self, guard: &Guard, number: i32) -> Result<Won, NotWon> {
        let context = &self.context;
        let partition = context.partition(number);
        let read = async || context.partitions.look(&**context.pool.get().await?, &partition).await;
        let mut row = read().await?;
        if is_first(&row) {
            // The offset counts only if it is read when the former system has left: its last commit may come late.
            self.check_no_members(&partition).await?;
            row = read().await?;
        }
        let found = look(&context.client, &partition, row).await?;
        let start = start(&partition, &found, &context.settings)?;
        if is_first(&found.row) {
            self.check_group_is_empty(&partition, &start).await?;
        }
        let token = guard.check().map_err(|lost| NotWon::Again(lost.to_string()))?;
        let database = context.pool.get().await?;
        let first = start.position();
        let raised = context.partitions.raise_to(&**database, &partition, token.0, &context.owner, first);
        match raised.await? {
            Raised::Ours(tenure) => skip_lost(context, tenure, &start).await,
            Raised::Overtaken(row) if guard.is_live() => Err(NotWon::Never(format!(
                "partition {partition} was held by {} under token {}, and the server gave {}: tokens of one server only \
                 grow, so this is another server, or it was set back. Use the former one, or let the group begin under \
                 this one: set token to 0 in the partition's row",
                row.owner, row.token, token.0
            ))),
            Raised::Overtaken(_) => Err(NotWon::Again("the lease has ended".to_owned())),
        }
    }

    /// At the first start, makes sure that the former system has ended: the broker accepts an offset from outside of a
    /// group only if the group has no members.
    async fn check_group_is_empty(&self, partition: &Partition, start: &Start) -> Result<(), NotWon> {
        let proven = prove(&self.context.client, partition, start.position()).await;
        proven.map_err(|not_won| match not_won {
            NotWon::Again(why) => has_members(partition, &why),
            other => other,
        })
    }

    /// The same by the broker's list of members, which changes nothing.
    async fn check_no_members(&self, partition: &Partition) -> Result<(), NotWon> {
        match members(&self.context.client, partition).await? {
            0 => Ok(()),
            count => Err(has_members(partition, &format!("the broker lists {count}"))),
        }
    }
}

fn has_members(partition: &Partition, why: &str) -> NotWon {
    NotWon::Again(format!(
        "the consumer group {} may still have members, which process the same messages; stop them: {why}",
        partition.group
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_was_not_granted_is_requested_without_waiting_for_another_plan() {
        let mut poll = PlanPoll::default();
        let version = Some("a1".to_owned());
        assert!(!poll.responded(version.as_ref()));
        assert!(poll.responded(version.as_ref()), "the server had nothing new within its time");
        assert_eq!(poll.known, version);
        let first = poll.failed();
        assert_eq!(poll.known, None, "the server answers at once");
        let longest = (0..20).map(|_| poll.failed()).max();
        assert!(first <= RETRY.first && longest <= Some(RETRY.cap), "{first:?} {longest:?}");
    }
}
