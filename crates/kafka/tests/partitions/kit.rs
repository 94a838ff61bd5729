//! A topic, a database, a handler that commits into it, and consumers as tasks or as processes of their own.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering},
    time::Duration,
};

use deadpool_postgres::{Pool, Transaction};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer},
};
use serde::{Deserialize, Serialize};
use solehold_client::Http;
use solehold_kafka::{
    Brokers, Consumer, ConsumerError, ConsumerMetrics, ConsumerSettings, Done, Failure, Handler, Hook,
    Leaving, Message, Moment, PartitionAssignment,
};
use solehold_sql::{
    Error,
    partitions::{Partitions, Tenure},
};
use solehold_testkit::{Kafka, Postgres, Program, wait_for};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};
use tokio_postgres::{Client, NoTls};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const PARTITIONS: i32 = 12;
/// How long messages may take to be sent: a broker that was killed, on a busy machine, is away for a while.
const SENT: Duration = Duration::from_secs(240);
const CHILD: &str = "SOLEHOLD_TEST_CHILD_CONSUMER";

const TABLES: &str = "CREATE TABLE marks (id text PRIMARY KEY); \
    CREATE TABLE effects (number bigserial, partition int NOT NULL, message text NOT NULL, key text, epoch bigint NOT NULL); \
    CREATE TABLE letters (message text NOT NULL, reason text NOT NULL); \
    CREATE TABLE tries (message text NOT NULL)";

/// What a consumer is to do: also told to a process of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub settings: ConsumerSettings,
    pub brokers: Brokers,
    pub database: String,
    pub name: String,
    pub server: Option<String>,
    /// Stops itself (SIGSTOP) the first time that it comes to this moment.
    pub stops_at: Option<String>,
}

pub struct Kit {
    pub kafka: &'static Kafka,
    pub topic: String,
    pub database: String,
    pub client: Client,
    producer: ThreadedProducer<DefaultProducerContext>,
}

impl Kit {
    pub async fn new() -> anyhow::Result<Self> {
        let (kafka, postgres) = tokio::try_join!(Kafka::shared(), Postgres::shared())?;
        let topic = kafka.create_topic("commands", PARTITIONS).await?;
        let database = postgres.create_database("consumer").await?;
        Self::with(kafka, topic, database).await
    }

    /// The same with a topic that is there.
    pub async fn with(kafka: &'static Kafka, topic: String, database: String) -> anyhow::Result<Self> {
        let client = connect(&database).await?;
        client.batch_execute(&partitions().schema()).await?;
        client.batch_execute(TABLES).await?;
        Ok(Self { kafka, topic, database, client, producer: producer(kafka)? })
    }

    /// Another producer for a topic that was made anew; tables and all stay.
    pub async fn with_tables_of(other: &Self) -> anyhow::Result<Self> {
        let producer = producer(other.kafka)?;
        let topic = other.topic.clone();
        let database = other.database.clone();
        Ok(Self { kafka: other.kafka, topic, client: connect(&database).await?, database, producer })
    }

    /// Orders for one consumer of a group that is named after the topic.
    pub fn orders(&self, name: &str) -> Orders {
        let settings = ConsumerSettings {
            topic: self.topic.clone(),
            group: format!("group-{}", self.topic),
            partitions: PARTITIONS,
            session_timeout: Duration::from_secs(3),
            leave_timeout: Duration::from_millis(1_500),
            retry_first: Duration::from_millis(20),
            retry_max: Duration::from_millis(100),
            ..ConsumerSettings::default()
        };
        let database = self.database.clone();
        let name = name.to_owned();
        Orders { settings, brokers: brokers(self.kafka), database, name, server: None, stops_at: None }
    }

    /// The same by leases of this server.
    pub fn lease_orders(&self, name: &str, server: &str) -> Orders {
        let mut orders = self.orders(name);
        orders.settings.partition_assignment = PartitionAssignment::Leases;
        orders.server = Some(server.to_owned());
        orders
    }

    /// Sends a message, to the partition of its key.
    pub fn send(&self, key: &str, payload: &str) {
        let partition = key.bytes().map(i32::from).sum::<i32>() % PARTITIONS;
        self.send_to(partition, key, payload);
    }

    pub fn send_to(&self, partition: i32, key: &str, payload: &str) {
        let record = BaseRecord::to(&self.topic).partition(partition).key(key).payload(payload);
        self.producer.send(record).map_err(|(error, _)| error).expect("room for a message");
    }

    /// Sends `count` messages named after `prefix`, of `keys` keys.
    pub fn send_many(&self, prefix: &str, count: usize, keys: usize) {
        (0..count)
            .for_each(|number| self.send(&format!("key-{}", number % keys), &format!("{prefix}-{number}")));
    }

    pub async fn flush(&self) {
        let producer = self.producer.clone();
        tokio::task::spawn_blocking(move || producer.flush(SENT)).await.expect("a thread").expect("sent");
    }

    pub async fn count(&self, sql: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {sql}");
        self.client.query_one(&sql, &[]).await.expect("a count").get(0)
    }

    /// Waits until as many messages as this have taken effect.
    pub async fn effects(&self, count: i64) {
        let what = format!("{count} effects");
        let waited = wait_for(&what, PATIENCE, async || self.count("effects").await >= count).await;
        waited.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Every one of `count` messages took effect once, those of a key in order, and every position is at the end.
    pub async fn check(&self, count: i64) {
        self.effects(count).await;
        assert_eq!(self.count("effects").await, count);
        assert_eq!(self.count("(SELECT DISTINCT message FROM effects) AS each").await, count);
        let overtaken = "(SELECT split_part(message, '-', 2)::int AS at, lag(split_part(message, '-', 2)::int) \
             OVER (PARTITION BY key, split_part(message, '-', 1) ORDER BY number) AS before FROM effects) AS each \
             WHERE before > at";
        assert_eq!(self.count(overtaken).await, 0, "messages of a key overtook each other");
        let late = "(SELECT epoch, max(epoch) OVER (PARTITION BY partition ORDER BY number) AS newest FROM effects) AS each \
             WHERE epoch < newest";
        assert_eq!(self.count(late).await, 0, "a former owner wrote after its successor");
        let at_end = async || {
            let sum = "SELECT coalesce(sum(next_offset), 0)::bigint FROM partitions";
            self.client.query_one(sum, &[]).await.expect("a sum").get::<_, i64>(0) >= count
        };
        let waited = wait_for("positions at the end", PATIENCE, at_end).await;
        waited.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Which consumer has how many partitions, by the rows.
    pub async fn owners(&self) -> BTreeMap<String, i64> {
        let sql = "SELECT owner, count(*) FROM partitions WHERE owner <> '' GROUP BY owner";
        let rows = self.client.query(sql, &[]).await.expect("owners");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// The positions that the broker displays for the group.
    pub fn displayed(&self) -> anyhow::Result<Vec<Offset>> {
        let mut config = brokers(self.kafka).client().expect("good");
        let asking: BaseConsumer = config.set("group.id", &self.orders("").settings.group).create()?;
        let mut list = TopicPartitionList::new();
        list.add_partition_range(&self.topic, 0, PARTITIONS - 1);
        let committed = asking.committed_offsets(list, PATIENCE)?;
        Ok(committed.elements().iter().map(|element| element.offset()).collect())
    }

    /// Waits until exactly these consumers have all partitions, each about its share.
    pub async fn shared_by(&self, names: &[&str]) {
        let what = format!("{names:?} to share the partitions");
        let share = i64::from(PARTITIONS) / names.len() as i64;
        let is_shared = async || {
            let owners = self.owners().await;
            owners.values().sum::<i64>() == i64::from(PARTITIONS)
                && owners.keys().all(|owner| names.contains(&owner.as_str()))
                && names.iter().all(|name| owners.get(*name).is_some_and(|count| *count >= share - 1))
        };
        if wait_for(&what, PATIENCE, is_shared).await.is_err() {
            panic!("waited for {what}: {:?}", self.owners().await);
        }
    }
}

fn producer(kafka: &Kafka) -> anyhow::Result<ThreadedProducer<DefaultProducerContext>> {
    let mut config = brokers(kafka).client().expect("good");
    // A message that timed out would be lost silently. Without a timeout, `flush` reports what was not sent.
    config.set("linger.ms", "2").set("message.timeout.ms", "0");
    Ok(config.create()?)
}

pub fn partitions() -> Partitions {
    Partitions::new("partitions").expect("a name")
}

pub fn brokers(kafka: &Kafka) -> Brokers {
    let broker_version = kafka.broker_version().map(str::to_owned);
    Brokers { broker_version, ..Brokers::at(kafka.address()) }
}

pub async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn pool(url: &str) -> Pool {
    let manager = deadpool_postgres::Manager::new(url.parse().expect("a URL"), NoTls);
    Pool::builder(manager).max_size(6).build().expect("a pool")
}

/// Commits what messages say into the table `effects`, once.
pub struct Table {
    pool: Pool,
    metrics: Arc<ConsumerMetrics>,
    pub running: AtomicUsize,
    pub most_running: AtomicUsize,
    /// How often a partition began to be attended to.
    pub attended: AtomicUsize,
    /// Ends what attends to partitions now, without an error.
    pub end_attending: Notify,
}

impl Table {
    async fn tried(&self, text: &str) -> i64 {
        let client = self.pool.get().await.expect("a connection");
        client.execute("INSERT INTO tries VALUES ($1)", &[&text]).await.expect("a row");
        let count = "SELECT count(*) FROM tries WHERE message = $1";
        client.query_one(count, &[&text]).await.expect("a count").get(0)
    }
}

fn text(bytes: &Option<bytes::Bytes>) -> String {
    bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}

fn headers(message: &Message) -> String {
    let each =
        message.headers.iter().map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value)));
    each.collect::<Vec<_>>().join(",")
}

impl Handler for Table {
    type Effect = String;
    type Receipt = ();

    async fn work(&self, message: &Message) -> Result<String, Failure> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        let text = text(&message.payload);
        match text.split('-').next() {
            Some("poison") => Err(Failure::Poison("it makes no sense".to_owned())),
            Some("never") => {
                self.tried(&text).await;
                Err(Failure::Again("it never works".to_owned()))
            }
            Some("third") if self.tried(&text).await < 3 => Err(Failure::Again("not yet".to_owned())),
            Some("headers") => Ok(headers(message)),
            Some("stuck") => std::future::pending().await,
            _ => Ok(text),
        }
    }

    async fn commit(
        &self,
        transaction: &Transaction<'_>,
        tenure: &Tenure,
        done: &[Done<String>],
    ) -> Result<(), Error> {
        for Done { message, effect } in done {
            let said = text(&message.payload);
            let key = text(&message.key);
            let mark = "INSERT INTO marks VALUES ($1) ON CONFLICT DO NOTHING";
            if transaction.execute(mark, &[&format!("{}/{}", message.partition, message.offset)]).await? == 0
            {
                self.metrics.duplicates(1);
                continue;
            }
            match effect {
                Err(failure) => {
                    let letter = "INSERT INTO letters VALUES ($1, $2)";
                    transaction.execute(letter, &[&said, &failure.to_string()]).await?;
                }
                Ok(effect) => {
                    // A row that the table refuses.
                    let said = (!effect.starts_with("refused")).then_some(effect);
                    let insert =
                        "INSERT INTO effects (partition, message, key, epoch) VALUES ($1, $2, $3, $4)";
                    transaction.execute(insert, &[&message.partition, &said, &key, &tenure.epoch]).await?;
                }
            }
        }
        Ok(())
    }

    async fn attend(&self, _: Tenure, mut leaving: Leaving) {
        let ended = self.end_attending.notified();
        self.attended.fetch_add(1, Ordering::SeqCst);
        tokio::select! {
            _ = leaving.wait_for(|leaving| *leaving) => {}
            () = ended => {}
        }
    }
}

/// A consumer in this process.
pub struct Running {
    pub metrics: Arc<ConsumerMetrics>,
    pub handler: Arc<Table>,
    ending: watch::Sender<bool>,
    task: JoinHandle<Result<(), ConsumerError>>,
}

impl Running {
    pub fn start(mut orders: Orders) -> Self {
        let hook = orders.stops_at.take().map(stopping);
        Self::start_with(orders, hook)
    }

    /// The same, with a hook of the test.
    pub fn start_with(orders: Orders, hook: Option<Hook>) -> Self {
        let (ending, told) = watch::channel(false);
        let metrics = Arc::new(ConsumerMetrics::default());
        let pool = pool(&orders.database);
        let handler = Arc::new(Table {
            pool: pool.clone(),
            metrics: metrics.clone(),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            attended: AtomicUsize::new(0),
            end_attending: Notify::new(),
        });
        let consumer = Consumer {
            settings: orders.settings,
            brokers: orders.brokers,
            pool,
            partitions: partitions(),
            handler: handler.clone(),
            metrics: metrics.clone(),
            name: orders.name,
            leases: orders.server.map(|server| Http::to(server).expect("a URL")),
            hook,
        };
        let task = tokio::spawn(consumer.run(told));
        Self { metrics, handler, ending, task }
    }

    /// Ends it, as SIGTERM would.
    pub async fn end(self) -> Result<(), ConsumerError> {
        self.ending.send_replace(true);
        self.ended().await
    }

    /// Waits until it ends.
    pub async fn ended(self) -> Result<(), ConsumerError> {
        tokio::time::timeout(PATIENCE, self.task).await.expect("it ends").expect("it does not panic")
    }
}

fn stopping(at: String) -> Hook {
    let is_first = std::sync::atomic::AtomicBool::new(true);
    Arc::new(move |moment: Moment| {
        if format!("{moment:?}") == at && is_first.swap(false, Ordering::SeqCst) {
            println!("stopped at {at}");
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::STOP).expect("a signal");
        }
    })
}

/// A consumer in a process of its own: this program again, with one test.
pub async fn child(orders: &Orders) -> anyhow::Result<Program> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "a_consumer_in_a_process_of_its_own", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, serde_json::to_string(orders)?);
    Program::start("consumer", &command, "consumer ready").await
}

/// What such a process does, until SIGTERM.
pub async fn be_child() {
    let Ok(orders) = std::env::var(CHILD) else { return };
    let orders: Orders = serde_json::from_str(&orders).expect("orders");
    let mut terminated =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("a signal handler");
    // Shown if the test panics.
    let about = tracing_subscriber::EnvFilter::new("solehold_kafka=debug,solehold_client=info");
    tracing_subscriber::fmt().with_env_filter(about).with_ansi(false).init();
    let running = Running::start(orders);
    println!("\nconsumer ready");
    terminated.recv().await;
    let metrics = running.metrics.clone();
    let ended = running.end().await;
    println!("consumer ended: {ended:?}, {metrics:?}");
}
