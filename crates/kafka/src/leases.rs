//! Partitions by leases: each one is a resource of a Solehold server, which plans who has it.
//!
//! ```text
//!   register as a runner ──> what is planned for it ──> acquire, or take over ──> raise the epoch under the token
//!                                                  └──> hand over, release
//! ```
//! The server says where partitions should be (rule 27), the leases decide who has them, and the row in PostgreSQL
//! refuses the writes of a former holder.

use std::{
    collections::HashSet,
    sync::{Arc, Weak},
    time::Duration,
};

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
    desk::{Entered, Leave},
    group::{NotWon, Start, Terms, Won, is_first, look, note, prove, skip_lost, start, work},
    poll::{Client, Order},
    tenure::{Ended, Office},
};

/// The kind of the leases that partitions are held by.
pub const PARTITION_KIND: &str = "partition";

/// How long a holder may take to hand a partition over.
const HAND_OVER_MAX: Duration = Duration::from_secs(10);
/// How long a release is waited for; then the lease runs out.
const RELEASE_MAX: Duration = Duration::from_millis(150);
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(1) };

/// The partitions of one topic and group, as resources.
#[derive(Debug, Clone)]
pub(super) struct Resources {
    pub prefix: String,
    pub count: i32,
}

impl Resources {
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

/// Opens the session that the partitions are attached to; a server that does not answer is waited for.
pub(super) async fn open(http: Arc<Http>, name: &str, ttl: Duration) -> Result<ClientSession, OpenError> {
    let session = SessionConfig { ttl, ..SessionConfig::new(name) };
    let mut is_told = false;
    loop {
        match ClientSession::open(http.clone(), session.clone()).await {
            Err(OpenError::Authority(error)) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "the server is not there yet; waiting for it");
                }
            }
            opened => return opened,
        }
    }
}

/// What does not change between partitions.
pub(super) struct Following<H> {
    pub office: Arc<Office<H>>,
    pub client: Weak<Client>,
    pub terms: Arc<Terms>,
    pub http: Arc<Http>,
    pub session: ClientSession,
    pub resources: Resources,
    /// A partition that is planned for this consumer was not granted.
    pub not_granted: Notify,
}

/// What the server is asked for next.
#[derive(Debug, Default)]
struct Asking {
    /// The version of the plan that is known. The server answers when it has another one, and at once without it.
    known: Option<String>,
    /// Attempts in a row that came to nothing.
    failures: u32,
}

impl Asking {
    /// The server has answered; whether with the version that was known.
    fn answered(&mut self, version: Option<&String>) -> bool {
        let is_same = self.known.as_ref() == version;
        self.known = version.cloned();
        is_same
    }

    /// The plan was not carried out, or not received: it is asked for again after a pause, and answered at once. To
    /// wait for another plan would leave what is planned to nobody.
    fn failed(&mut self) -> Duration {
        self.known = None;
        self.failures = self.failures.saturating_add(1);
        RETRY.wait(self.failures, rand::random())
    }
}

impl<H: Handler> Following<H> {
    /// Follows what the server plans, until this is dropped. Returns why the plan can no longer be followed.
    pub async fn follow(self: Arc<Self>) -> String {
        self.declare().await;
        let mut asking = Asking::default();
        loop {
            if let Err(lost) = self.session.ready().await {
                return format!("the consumer's session is over: {lost}");
            }
            let answer = tokio::select! {
                answer = self.http.assignments(self.session.holder(), asking.known.as_deref()) => answer,
                () = self.not_granted.notified() => {
                    tokio::time::sleep(asking.failed()).await;
                    continue;
                }
            };
            match answer {
                Ok(assigned) => {
                    self.office.desk.figures.told(true);
                    let is_same = asking.answered(assigned.version.as_ref());
                    // What was planned and not carried out is planned again, after a while and not at once.
                    if self.carry_out(&assigned) > 0 && is_same {
                        tokio::time::sleep(RETRY.wait(3, rand::random())).await;
                    }
                }
                Err(why) => {
                    let pause = asking.failed();
                    tracing::warn!(
                        why,
                        "the server does not say which partitions to take; what is held is kept"
                    );
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Makes the partitions known to the server, which plans what is declared.
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
                tracing::warn!(partition = number, why, "the partition is not declared yet");
                tokio::time::sleep(RETRY.wait(failures, rand::random())).await;
            }
        }
    }

    /// Begins with what is new, and returns how much that is.
    fn carry_out(self: &Arc<Self>, assigned: &Assigned) -> usize {
        // What has a next holder is handed over when that one asks.
        let unwanted = assigned.unwanted.iter().filter_map(|resource| self.resources.number(resource));
        self.office.desk.leave(&unwanted.collect(), Leave::Finish);
        let mut begun = 0;
        for (resource, want) in &assigned.wanted {
            let Some(number) = self.resources.number(resource) else { continue };
            if let Some(entered) = self.office.desk.enter_if_absent(number) {
                begun += 1;
                tokio::spawn(self.clone().hold(entered, *want));
            }
        }
        begun
    }

    /// Takes a partition and works on it until it is handed over, released or lost.
    async fn hold(self: Arc<Self>, mut entered: Entered, want: Want) {
        let key = self.resources.key(entered.number);
        let acquired = tokio::select! {
            acquired = self.acquire(&key, want) => acquired,
            () = entered.left() => return,
        };
        let guard = match acquired {
            Ok(Some(guard)) => guard,
            Ok(None) => return self.is_not_granted(entered, "it was not handed over"),
            Err(error) => return self.is_not_granted(entered, &error.to_string()),
        };
        let number = entered.number;
        let work = self.work_under(&guard, &mut entered);
        let asked = async {
            let asked = guard.hand_over_asked().await;
            tracing::info!(key, to = asked.to, "the partition is handed over");
            self.office.desk.leave(&HashSet::from([number]), Leave::Finish);
            std::future::pending::<()>().await;
        };
        let lost = tokio::select! {
            () = work => None,
            lost = guard.lost() => Some(lost),
            () = asked => None,
        };
        let serial = entered.serial;
        let _ = self.office.orders.send(Order::Unfetch { number, serial }).await;
        if let Some(lost) = lost {
            self.office.desk.figures.lost(1);
            return tracing::warn!(key, %lost, "the partition is lost");
        }
        match tokio::time::timeout(RELEASE_MAX, guard.release()).await {
            Ok(Ok(())) => tracing::info!(key, "the partition is released"),
            Ok(Err(error)) => {
                tracing::warn!(key, %error, "the partition was not released: it is free after its ttl")
            }
            Err(_) => tracing::warn!(key, "the partition was not released in time: it is free after its ttl"),
        }
    }

    fn is_not_granted(&self, entered: Entered, why: &str) {
        tracing::debug!(partition = entered.number, why, "the partition is not granted");
        // First, so that it may be begun with again.
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

    async fn work_under(&self, guard: &Guard, entered: &mut Entered) {
        let mut failures = 0;
        loop {
            match self.win(guard, entered.number).await {
                Ok(won) => match work(&self.office, &self.terms, entered, &won).await {
                    Ended::Fenced => failures = 0,
                    Ended::Stalled(_) => {}
                    _ => return,
                },
                Err(NotWon::Never(why)) => return self.office.desk.fail(why),
                Err(not_won) => note(&self.office, entered.number, failures, not_won),
            }
            failures += 1;
            tokio::select! {
                () = tokio::time::sleep(RETRY.wait(failures, rand::random())) => {}
                () = entered.left() => return,
            }
        }
    }

    /// Raises the epoch under the lease's token.
    async fn win(&self, guard: &Guard, number: i32) -> Result<Won, NotWon> {
        let (office, terms) = (&self.office, &self.terms);
        let topic = office.desk.topic.clone();
        let partition = Partition { group: terms.group.clone(), topic, number };
        let found = look(office, &self.client, &partition).await?;
        let start = start(&partition, &found, terms)?;
        if is_first(&found.row) {
            self.nobody_in_the_group(&partition, &start).await?;
        }
        let token = guard.check().map_err(|lost| NotWon::Again(lost.to_string()))?;
        let database = office.pool.get().await?;
        let first = start.position();
        let raised = office.partitions.raise_to(&**database, &partition, token.0, &terms.owner, first);
        match raised.await? {
            Raised::Ours(tenure) => skip_lost(office, tenure, &start).await,
            Raised::Overtaken(row) if guard.is_live() => Err(NotWon::Never(format!(
                "partition {partition} was held by {} under token {}, and the server gave {}: tokens of one server only \
                 grow, so this is another server, or it was set back. Use the former one, or let the group begin under \
                 this one: set token to 0 in the partition's row",
                row.owner, row.token, token.0
            ))),
            Raised::Overtaken(_) => Err(NotWon::Again("the lease is over".to_owned())),
        }
    }

    /// At the first start, makes sure that the system before this one has ended: the broker takes an offset from
    /// outside of a group only if the group has no members.
    async fn nobody_in_the_group(&self, partition: &Partition, start: &Start) -> Result<(), NotWon> {
        let proven = prove(&self.client, partition, start.position()).await;
        let not_yet = |why| {
            NotWon::Again(format!(
                "the consumer group {} may still have members, which work on the same messages; stop them: {why}",
                partition.group
            ))
        };
        proven.map_err(|not_won| match not_won {
            NotWon::Again(why) => not_yet(why),
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_was_not_granted_is_asked_for_without_waiting_for_another_plan() {
        let mut asking = Asking::default();
        let version = Some("a1".to_owned());
        assert!(!asking.answered(version.as_ref()));
        assert!(asking.answered(version.as_ref()), "the server had nothing new within its time");
        assert_eq!(asking.known, version);
        let first = asking.failed();
        assert_eq!(asking.known, None, "the server answers at once");
        let longest = (0..20).map(|_| asking.failed()).max();
        assert!(first <= RETRY.first && longest <= Some(RETRY.cap), "{first:?} {longest:?}");
    }
}
