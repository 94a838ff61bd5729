//! A consumer, from start to end.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use rdkafka::{config::FromClientConfigAndContext as _, consumer::Consumer as _};
use solehold_client::{ClientSession, Http, OpenError};
use solehold_clock::Backoff;
use solehold_sql::partitions::Partitions;
use tokio::sync::{Notify, mpsc, watch};

use super::{
    Brokers, ConsumerMetrics, ConsumerSettings, Handler, Hook, PartitionAssignment, SettingsError,
    broker_errors::{BrokerErrors, REPORTED_WITHIN},
    group,
    leases::{self, PartitionKeys, PlanFollower},
    poll::{self, Callbacks, Client, ClientFailed, ORDERS_MAX, Order},
    shared::{Leave, Shared},
    tenure::TaskContext,
};

/// How long the tasks of partitions may take to finish before their leases are released.
const LEASES_LEAVE_MAX: Duration = Duration::from_millis(250);
/// How long the client may take to commit positions and to leave the group.
const CLOSE_MAX: Duration = Duration::from_millis(900);
const METADATA_MAX: Duration = Duration::from_secs(5);
const RETRY: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(2) };

/// Why a consumer ended before it was stopped.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    #[error("the settings of the consumer: {0}")]
    Settings(#[from] SettingsError),
    /// The topic does not match the settings, or was deleted and created again.
    #[error("{0}")]
    Topic(String),
    /// It could not open a session.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

/// A consumer of the partitions of a topic. See the [module](super).
pub struct Consumer<H> {
    /// The topic, the group, and the limits.
    pub settings: ConsumerSettings,
    pub brokers: Brokers,
    pub pool: Pool,
    pub partitions: Partitions,
    pub handler: Arc<H>,
    /// Shared with the caller, who registers them.
    pub metrics: Arc<ConsumerMetrics>,
    /// The unique name of this consumer, in the rows and as a holder of leases.
    pub name: String,
    /// The server, for `partition_assignment: leases`.
    pub leases: Option<Http>,
    pub hook: Option<Hook>,
}

impl<H: Handler> Consumer<H> {
    /// Consumes until `ending` is true, and then releases its partitions.
    pub async fn run(mut self, mut ending: watch::Receiver<bool>) -> Result<(), ConsumerError> {
        let by_leases = self.settings.partition_assignment == PartitionAssignment::Leases;
        self.settings.check()?;
        let http = match (self.leases.take(), by_leases) {
            (Some(http), true) => Some(http.registering(leases::runner(&self.name, self.settings.capacity))),
            (None, true) => return Err(SettingsError::NoServer.into()),
            (_, false) => None,
        };
        let mut leave_timeout = self.settings.leave_timeout;
        if by_leases {
            leave_timeout = leave_timeout.min(LEASES_LEAVE_MAX);
        }
        let topic = &self.settings.topic;
        let shared = Arc::new(Shared::new(topic, self.metrics.clone(), self.hook.clone(), leave_timeout));
        let client = self.client(shared.clone())?;
        tokio::select! {
            checked = self.check_topic(&client) => checked?,
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        }
        let running = self.begin(client, shared);
        let ended = match http {
            None => running.run_in_group(ending).await,
            Some(http) => running.run_by_leases(http, ending).await,
        };
        running.leave().await;
        ended
    }

    fn client(&self, shared: Arc<Shared>) -> Result<Arc<Client>, SettingsError> {
        let config = self.settings.client(&self.brokers)?;
        let callbacks = Callbacks { shared, errors: BrokerErrors::logged() };
        Ok(Arc::new(Client::from_config_and_context(&config, callbacks)?))
    }

    /// The number of partitions must be as configured: keys belong to partitions by it.
    async fn check_topic(&self, client: &Arc<Client>) -> Result<(), ConsumerError> {
        let topic = &self.settings.topic;
        let expected = self.settings.partitions;
        for failures in 1.. {
            let client_of_task = client.clone();
            let name = topic.clone();
            let metadata = tokio::task::spawn_blocking(move || {
                let metadata = client_of_task.fetch_metadata(Some(&name), METADATA_MAX);
                if metadata.is_err() {
                    // librdkafka reports its errors to the caller of poll, and no other thread polls yet.
                    client_of_task.poll(REPORTED_WITHIN);
                }
                let metadata = metadata?;
                let topic = metadata.topics().iter().find(|topic| topic.name() == name);
                Ok::<_, rdkafka::error::KafkaError>(topic.map_or(0, |topic| topic.partitions().len()))
            });
            match metadata.await.map_err(|error| ConsumerError::Failed(error.to_string()))? {
                Ok(0) => {
                    tracing::warn!(
                        topic,
                        "topic does not exist; waiting for it to be created with {expected} partitions"
                    )
                }
                Ok(count) if usize::try_from(expected) == Ok(count) => break,
                Ok(count) => {
                    return Err(ConsumerError::Topic(format!(
                        "topic {topic} has {count} partitions and not {expected}: set `partitions` to {count} in every \
                         consumer, after everything that was sent before the change has taken effect, since keys have \
                         moved to other partitions"
                    )));
                }
                Err(error) => client.context().errors.no_answer(&error),
            }
            tokio::time::sleep(RETRY.wait(failures, rand::random())).await;
        }
        Ok(())
    }

    fn begin(self, client: Arc<Client>, shared: Arc<Shared>) -> Running<H> {
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        let (thread, polling) = watch::channel(Polling::Runs);
        let weak = Arc::downgrade(&client);
        // The client blocks, in callbacks too, and is closed on the thread that polls it.
        std::thread::spawn(move || {
            let polled = poll::poll(&client, taken);
            thread.send_replace(Polling::Ended(polled.clone()));
            // Leaves the group. This waits for the broker, without a limit.
            drop(client);
            thread.send_replace(Polling::Left(polled));
        });
        let Self { settings, pool, partitions, handler, name, .. } = self;
        let context =
            TaskContext { settings, owner: name, handler, pool, partitions, shared, orders, client: weak };
        Running { context: Arc::new(context), polling }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Polling {
    Runs,
    /// It has stopped polling, with an error if the client cannot recover.
    Ended(Result<(), ClientFailed>),
    /// It has left the group, too.
    Left(Result<(), ClientFailed>),
}

struct Running<H> {
    context: Arc<TaskContext<H>>,
    polling: watch::Receiver<Polling>,
}

impl<H: Handler> Running<H> {
    async fn run_in_group(&self, ending: watch::Receiver<bool>) -> Result<(), ConsumerError> {
        let context = self.context.clone();
        let runtime = tokio::runtime::Handle::current();
        let start = move |number| {
            if let Some(entered) = context.shared.enter(number) {
                runtime.spawn(group::hold(context.clone(), entered));
            }
        };
        let _ = self.context.shared.start.set(Box::new(start));
        let failed = |why: String| ConsumerError::Failed(why);
        let client =
            self.context.client.upgrade().ok_or_else(|| failed("the Kafka client has ended".to_owned()))?;
        client.subscribe(&[&self.context.settings.topic]).map_err(|error| failed(error.to_string()))?;
        drop(client);
        self.until(ending, std::future::pending()).await
    }

    async fn run_by_leases(
        &self,
        http: Http,
        mut ending: watch::Receiver<bool>,
    ) -> Result<(), ConsumerError> {
        let http = Arc::new(http);
        let ttl = self.context.settings.session_timeout;
        let session: ClientSession = tokio::select! {
            session = leases::open(http.clone(), &self.context.owner, ttl) => session?,
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        };
        let ConsumerSettings { group, topic, partitions, .. } = &self.context.settings;
        let follower = Arc::new(PlanFollower {
            context: self.context.clone(),
            http,
            session: session.clone(),
            resources: PartitionKeys::new(group, topic, *partitions),
            not_granted: Notify::new(),
        });
        let ended = self.until(ending, follower.follow()).await;
        self.end_tasks().await;
        session.close().await;
        ended
    }

    async fn until(
        &self,
        mut ending: watch::Receiver<bool>,
        failing: impl Future<Output = String>,
    ) -> Result<(), ConsumerError> {
        let mut fault = self.context.shared.fault.subscribe();
        let mut polling = self.polling.clone();
        tokio::select! {
            _ = ending.wait_for(|ending| *ending) => Ok(()),
            why = failing => Err(ConsumerError::Failed(why)),
            fault = fault.wait_for(Option::is_some) => {
                Err(ConsumerError::Topic(fault.ok().and_then(|fault| fault.clone()).unwrap_or_default()))
            }
            ended = polling.wait_for(|polling| *polling != Polling::Runs) => {
                let why = match ended.map(|ended| ended.clone()) {
                    Ok(Polling::Ended(Err(failed)) | Polling::Left(Err(failed))) => failed.to_string(),
                    Ok(_) => "the Kafka client has ended".to_owned(),
                    Err(_) => "the polling thread panicked".to_owned(),
                };
                Err(ConsumerError::Failed(why))
            }
        }
    }

    /// Ends the tasks of all partitions, after they have finished the messages in progress.
    async fn end_tasks(&self) {
        let shared = self.context.shared.clone();
        let numbers = shared.close();
        let _ = tokio::task::spawn_blocking(move || shared.end_tasks(&numbers, Leave::Finish)).await;
    }

    /// Ends the tasks, commits the positions to the broker, and leaves the group.
    async fn leave(&self) {
        self.end_tasks().await;
        let _ = self.context.orders.send(Order::Stop).await;
        let mut polling = self.polling.clone();
        let left = polling.wait_for(|polling| matches!(polling, Polling::Left(_)));
        if tokio::time::timeout(CLOSE_MAX, left).await.is_err() {
            tracing::warn!(
                "leaving the consumer group timed out; the broker assigns the partitions after the session timeout"
            );
        }
    }
}
