//! A consumer, from its beginning to its end.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use deadpool_postgres::Pool;
use rdkafka::{config::FromClientConfigAndContext as _, consumer::Consumer as _};
use solehold_client::{ClientSession, Http, OpenError};
use solehold_clock::Backoff;
use solehold_sql::partitions::Partitions;
use tokio::sync::{Notify, mpsc, watch};

use super::{
    Brokers, ConsumerSettings, Figures, Handler, Hook, PartitionAssignment,
    desk::{Desk, Leave},
    group::{self, Terms},
    leases::{self, Following, Resources},
    poll::{self, Callbacks, Client, ORDERS_MAX, Order},
    tenure::Office,
    trouble::{HEARD_WITHIN, Trouble},
};

/// The work on partitions that are released may take this long.
const LEASES_LEAVE_MAX: Duration = Duration::from_millis(250);
/// How long the client may take to commit positions and to leave the group.
const CLOSE_MAX: Duration = Duration::from_millis(900);
const METADATA_MAX: Duration = Duration::from_secs(5);
const RETRY: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(2) };

/// Why a consumer ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// Its settings make no sense.
    #[error("the consumer's settings: {0}")]
    Settings(String),
    /// The topic is not as the settings say, or not as it was.
    #[error("{0}")]
    Topic(String),
    /// It could not register.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot go on.
    #[error("{0}")]
    Failed(String),
}

/// A consumer of the partitions of a topic. See the [module](super).
pub struct Consumer<H> {
    /// What to read, and how much at once.
    pub settings: ConsumerSettings,
    /// From where.
    pub brokers: Brokers,
    /// Where effects and positions are committed.
    pub pool: Pool,
    /// The rows of the positions.
    pub partitions: Partitions,
    /// What to do with messages.
    pub handler: Arc<H>,
    /// How it is doing.
    pub figures: Arc<Figures>,
    /// Its name in the rows, and as a holder of leases: no other consumer has it.
    pub name: String,
    /// The server, for `partition_assignment: leases`.
    pub leases: Option<Http>,
    /// For tests.
    pub hook: Option<Hook>,
}

impl<H: Handler> Consumer<H> {
    /// Consumes until `ending` is true, and then gives its partitions back.
    pub async fn run(mut self, mut ending: watch::Receiver<bool>) -> Result<(), ConsumerError> {
        let by_leases = self.settings.partition_assignment == PartitionAssignment::Leases;
        if let Some(fault) = self.settings.fault() {
            return Err(ConsumerError::Settings(fault));
        }
        let http = match (self.leases.take(), by_leases) {
            (Some(http), true) => Some(http.registering(leases::runner(&self.name, self.settings.capacity))),
            (None, true) => {
                let why = "partition_assignment: leases needs a Solehold server".to_owned();
                return Err(ConsumerError::Settings(why));
            }
            (_, false) => None,
        };
        let leave_timeout = match by_leases {
            true => self.settings.leave_timeout.min(LEASES_LEAVE_MAX),
            false => self.settings.leave_timeout,
        };
        let topic = &self.settings.topic;
        let desk = Arc::new(Desk::new(topic, self.figures.clone(), self.hook.clone(), leave_timeout));
        let client = self.client(desk.clone())?;
        tokio::select! {
            checked = self.check_topic(&client) => checked?,
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        }
        let running = self.begin(client, desk);
        let ended = match http {
            None => running.run_in_group(ending).await,
            Some(http) => running.run_by_leases(http, ending).await,
        };
        running.leave().await;
        ended
    }

    fn client(&self, desk: Arc<Desk>) -> Result<Arc<Client>, ConsumerError> {
        let wrong = |why: String| ConsumerError::Settings(why);
        let config = self.settings.client(&self.brokers).map_err(|error| wrong(error.to_string()))?;
        let client = Client::from_config_and_context(&config, Callbacks { desk, trouble: Trouble::logged() });
        client.map(Arc::new).map_err(|error| wrong(error.to_string()))
    }

    /// The number of partitions must be as configured: keys belong to partitions by it.
    async fn check_topic(&self, client: &Arc<Client>) -> Result<(), ConsumerError> {
        let (topic, expected) = (&self.settings.topic, self.settings.partitions);
        for failures in 1.. {
            let (asked, of) = (client.clone(), topic.clone());
            let metadata = tokio::task::spawn_blocking(move || {
                let metadata = asked.fetch_metadata(Some(&of), METADATA_MAX);
                if metadata.is_err() {
                    // librdkafka reports its errors to the caller of poll, and no other thread polls yet.
                    asked.poll(HEARD_WITHIN);
                }
                let metadata = metadata?;
                let topic = metadata.topics().iter().find(|topic| topic.name() == of);
                Ok::<_, rdkafka::error::KafkaError>(topic.map_or(0, |topic| topic.partitions().len()))
            });
            match metadata.await.map_err(|error| ConsumerError::Failed(error.to_string()))? {
                Ok(0) => {
                    tracing::warn!(topic, "the topic is not there yet: create it with {expected} partitions")
                }
                Ok(count) if usize::try_from(expected) == Ok(count) => break,
                Ok(count) => {
                    return Err(ConsumerError::Topic(format!(
                        "topic {topic} has {count} partitions and not {expected}: set `partitions` to {count} in every \
                         consumer, after everything that was sent before the change has taken effect, since keys have \
                         moved to other partitions"
                    )));
                }
                Err(error) => client.context().trouble.no_answer(&error),
            }
            tokio::time::sleep(RETRY.wait(failures, rand::random())).await;
        }
        Ok(())
    }

    fn begin(self, client: Arc<Client>, desk: Arc<Desk>) -> Running<H> {
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        let (thread, polling) = watch::channel(Polling::Runs);
        let weak = Arc::downgrade(&client);
        // The client blocks, in callbacks too, and is closed where it ends.
        std::thread::spawn(move || {
            let polled = poll::poll(&client, taken);
            thread.send_replace(Polling::Ended(polled.clone()));
            // Leaves the group, and waits for the broker to agree: for ever, if that is gone.
            drop(client);
            thread.send_replace(Polling::Left(polled));
        });
        let Self { settings, pool, partitions, handler, name, .. } = self;
        let terms = Terms {
            group: settings.group.clone(),
            owner: name,
            begin: settings.auto_offset_reset,
            lost_messages: settings.lost_messages,
            bounds: settings.bounds(),
        };
        let office = Arc::new(Office { handler, pool, partitions, desk, orders });
        Running { settings, office, terms: Arc::new(terms), client: weak, polling }
    }
}

/// How the thread that polls is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Polling {
    Runs,
    /// It has stopped polling, with an error if the client cannot recover.
    Ended(Result<(), String>),
    /// It has left the group, too.
    Left(Result<(), String>),
}

struct Running<H> {
    settings: ConsumerSettings,
    office: Arc<Office<H>>,
    terms: Arc<Terms>,
    client: Weak<Client>,
    polling: watch::Receiver<Polling>,
}

impl<H: Handler> Running<H> {
    async fn run_in_group(&self, ending: watch::Receiver<bool>) -> Result<(), ConsumerError> {
        let (office, terms, client) = (self.office.clone(), self.terms.clone(), self.client.clone());
        let runtime = tokio::runtime::Handle::current();
        let start = move |number| {
            if let Some(entered) = office.desk.enter(number) {
                let holding = group::hold(office.clone(), client.clone(), terms.clone(), entered);
                runtime.spawn(holding);
            }
        };
        let _ = self.office.desk.start.set(Box::new(start));
        let failed = |why: String| ConsumerError::Failed(why);
        let client = self.client.upgrade().ok_or_else(|| failed("the client has ended".to_owned()))?;
        client.subscribe(&[&self.settings.topic]).map_err(|error| failed(error.to_string()))?;
        drop(client);
        self.until(ending, std::future::pending()).await
    }

    async fn run_by_leases(
        &self,
        http: Http,
        mut ending: watch::Receiver<bool>,
    ) -> Result<(), ConsumerError> {
        let http = Arc::new(http);
        let session: ClientSession = tokio::select! {
            session = leases::open(http.clone(), &self.terms.owner, self.settings.session_timeout) => session?,
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        };
        let ConsumerSettings { group, topic, partitions, .. } = &self.settings;
        let following = Arc::new(Following {
            office: self.office.clone(),
            client: self.client.clone(),
            terms: self.terms.clone(),
            http,
            session: session.clone(),
            resources: Resources::new(group, topic, *partitions),
            not_granted: Notify::new(),
        });
        let ended = self.until(ending, following.follow()).await;
        self.let_go().await;
        session.close().await;
        ended
    }

    /// Waits for the end, whatever brings it.
    async fn until(
        &self,
        mut ending: watch::Receiver<bool>,
        failing: impl Future<Output = String>,
    ) -> Result<(), ConsumerError> {
        let mut fault = self.office.desk.fault.subscribe();
        let mut polling = self.polling.clone();
        tokio::select! {
            _ = ending.wait_for(|ending| *ending) => Ok(()),
            why = failing => Err(ConsumerError::Failed(why)),
            fault = fault.wait_for(Option::is_some) => {
                Err(ConsumerError::Topic(fault.ok().and_then(|fault| fault.clone()).unwrap_or_default()))
            }
            ended = polling.wait_for(|polling| *polling != Polling::Runs) => {
                let why = match ended.map(|ended| ended.clone()) {
                    Ok(Polling::Ended(Err(why)) | Polling::Left(Err(why))) => why,
                    Ok(_) => "the client has ended".to_owned(),
                    Err(_) => "the thread that polls panicked".to_owned(),
                };
                Err(ConsumerError::Failed(why))
            }
        }
    }

    /// Finishes what is under way, and lets go of every partition.
    async fn let_go(&self) {
        let desk = self.office.desk.clone();
        let numbers = desk.close();
        let _ = tokio::task::spawn_blocking(move || desk.let_go(&numbers, Leave::Finish)).await;
    }

    /// Lets go of every partition, tells the broker how far they are, and leaves the group.
    async fn leave(&self) {
        self.let_go().await;
        let _ = self.office.orders.send(Order::Stop).await;
        let mut polling = self.polling.clone();
        let left = polling.wait_for(|polling| matches!(polling, Polling::Left(_)));
        if tokio::time::timeout(CLOSE_MAX, left).await.is_err() {
            tracing::warn!(
                "the broker was not left in time: in a group, the partitions are free after the session timeout"
            );
        }
    }
}
