//! `solehold orchestrator shadow`: decides every command that the former system has passed, has no effect, and reports
//! where the former system did something else.
//!
//! ```text
//!   observe   messages below the group's committed offsets     (solehold_kafka::Observer)
//!   decide    what the orchestrator would do, in a schema that is dropped at the end     (decide.rs)
//!   look      at the former system's marks in Redis     (marks.rs)
//!   compare   the decision with the mark     (compare.rs)
//! ```

mod compare;
mod decide;
mod marks;

use std::{collections::BTreeMap, path::Path, time::Duration};

use futures_util::FutureExt as _;
use serde::Serialize;
use solehold_clock::BootTime;
use solehold_kafka::{Message, Observer, ObserverError};

pub use self::compare::{Difference, DifferenceKind};
use self::{
    compare::{Compared, compare, set_again},
    decide::Decider,
    marks::TheirMarks,
};
use super::{PAGE, PROGRESS_EVERY, connect};
use crate::{
    config::{self, Flags, Settings},
    error::RunError,
};

/// How long one read waits for messages.
const READ_WITHIN: Duration = Duration::from_millis(500);

/// What to compare, and until when.
#[derive(Debug, Clone)]
pub struct ShadowOrders {
    /// The Redis of the former system, as in `redis://HOST:PORT/DATABASE`.
    pub redis: String,
    /// The form of its keys, as in `job:processed:{job_id}`.
    pub pattern: String,
    /// How long the former system keeps its keys.
    pub ttl: Duration,
    /// How many commands of each partition to begin with that were passed already; all by default.
    pub last: Option<u64>,
    /// Whether to end when everything was compared that was passed at the start.
    pub until_caught_up: bool,
    pub within: Option<Duration>,
    /// The most commands to compare.
    pub commands_max: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShadowEnd {
    /// Everything was compared that had been passed at the start.
    CaughtUp,
    TimeOver,
    /// As many commands as allowed were compared.
    CommandsMax,
    Interrupted,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShadowReport {
    pub ended: ShadowEnd,
    pub compared: u64,
    /// How many differences of each kind there are.
    pub differences: BTreeMap<DifferenceKind, u64>,
    /// Commands that cannot be compared: their job began before the first command that was read, or their mark may have
    /// expired.
    pub undecided: u64,
    /// Tasks that the orchestrator would have sent.
    pub tasks_not_sent: u64,
    /// Commands that the former system had not passed at the end.
    pub not_passed: i64,
}

impl ShadowReport {
    pub fn differ(&self) -> u64 {
        self.differences.values().sum()
    }
}

/// Compares until an end that was ordered, or `ending`. Each difference is shown when it is found.
pub async fn shadow(
    path: &Path,
    flags: Flags,
    orders: ShadowOrders,
    show: impl Fn(&Difference),
    say: impl Fn(&str),
    ending: impl Future<Output = ()>,
) -> Result<ShadowReport, RunError> {
    let settings = config::load(path, |file| flags.apply(file))?;
    let template = orders.pattern.parse()?;
    let marks = TheirMarks::new(connect(&orders.redis).await?, template, &orders);
    let observer = observer(&settings, orders.last).await?;
    let decider = Decider::open(&settings).await?;
    say(&format!(
        "comparing topic {} with group {}; decisions are made in schema {}_shadow",
        settings.consumer.topic, settings.consumer.group, settings.postgres.schema
    ));
    let report = ShadowReport {
        ended: ShadowEnd::Interrupted,
        compared: 0,
        differences: BTreeMap::new(),
        undecided: 0,
        tasks_not_sent: 0,
        not_passed: 0,
    };
    let mut shadow = Shadow { orders, marks, decider, report, show, say };
    let followed = shadow.follow(observer, ending).await;
    let closed = shadow.decider.close().await;
    followed?;
    closed?;
    Ok(shadow.report)
}

async fn observer(settings: &Settings, last: Option<u64>) -> Result<Observer, RunError> {
    let brokers = settings.kafka.brokers.clone();
    let consumer = settings.consumer.clone();
    let last = last.map(|last| i64::try_from(last).unwrap_or(i64::MAX));
    blocking(move || Observer::open(&brokers, &consumer.group, &consumer.topic, consumer.partitions, last))
        .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ObserverError> + Send + 'static,
) -> Result<T, RunError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| RunError::Failed(error.to_string()))?.map_err(|error| match error {
        ObserverError::Broker(_) => RunError::Unavailable(format!("kafka: {error}")),
        ObserverError::Settings(_) | ObserverError::Topic(_) => RunError::Usage(format!("kafka: {error}")),
    })
}

struct Shadow<F, S> {
    orders: ShadowOrders,
    marks: TheirMarks,
    decider: Decider,
    report: ShadowReport,
    show: F,
    say: S,
}

impl<F: Fn(&Difference), S: Fn(&str)> Shadow<F, S> {
    async fn follow(
        &mut self,
        mut observer: Observer,
        ending: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let mut ending = Box::pin(ending);
        let began = BootTime::now();
        let mut shown = began;
        self.report.ended = loop {
            let left = self.orders.commands_max.saturating_sub(self.report.compared);
            let max = PAGE.min(usize::try_from(left).unwrap_or(PAGE));
            let read = blocking(move || observer.read(max, READ_WITHIN).map(|read| (read, observer)));
            let (read, again) = read.await?;
            observer = again;
            self.compare(read, &observer).await?;
            if ending.as_mut().now_or_never().is_some() {
                break ShadowEnd::Interrupted;
            }
            if self.orders.until_caught_up && observer.is_caught_up() {
                break ShadowEnd::CaughtUp;
            }
            if self.orders.within.is_some_and(|within| BootTime::now().since(began) >= within) {
                break ShadowEnd::TimeOver;
            }
            if self.report.compared >= self.orders.commands_max {
                break ShadowEnd::CommandsMax;
            }
            if BootTime::now().since(shown) >= PROGRESS_EVERY {
                shown = BootTime::now();
                let ShadowReport { compared, .. } = &self.report;
                (self.say)(&format!("{compared} commands compared, {} differ", self.report.differ()));
            }
        };
        for again in self.marks.set_again_since().await? {
            self.differs(set_again(&again));
        }
        self.report.not_passed = blocking(move || observer.not_passed()).await?;
        Ok(())
    }

    async fn compare(&mut self, read: Vec<Message>, observer: &Observer) -> Result<(), RunError> {
        let mut partitions: BTreeMap<i32, Vec<Message>> = BTreeMap::new();
        for message in read {
            partitions.entry(message.partition).or_default().push(message);
        }
        for (partition, messages) in partitions {
            let decided = self.decider.decide(partition, observer.first(partition), &messages).await?;
            self.report.compared += decided.len() as u64;
            let marks = self.marks.look(&decided).await?;
            for (decided, mark) in decided.iter().zip(marks) {
                match compare(decided, mark, &self.orders.pattern) {
                    Compared::Same => {}
                    Compared::Undecided => self.report.undecided += 1,
                    Compared::Differs(difference) => self.differs(difference),
                }
            }
        }
        self.report.tasks_not_sent = self.decider.tasks;
        Ok(())
    }

    fn differs(&mut self, difference: Difference) {
        (self.show)(&difference);
        *self.report.differences.entry(difference.kind).or_default() += 1;
    }
}
