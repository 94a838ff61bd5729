//! Partitions in PostgreSQL: one owner at a time, and no write of a former one.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use solehold_sql::partitions::{Checkpoint, Partition, Partitions, Raised, Standing, Tenure};
use solehold_testkit::{Postgres, wait_for};
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

struct Kit {
    url: String,
    client: Client,
    partitions: Partitions,
    partition: Partition,
}

impl Kit {
    async fn new() -> Self {
        let url = Postgres::shared().await.unwrap().create_database("partitions").await.unwrap();
        let client = connect(&url).await;
        let partitions = Partitions::new("partitions").unwrap();
        for _ in 0..2 {
            client.batch_execute(&partitions.schema()).await.unwrap();
        }
        client.batch_execute("CREATE TABLE effects (message bigint, epoch bigint)").await.unwrap();
        let partition = Partition { group: "group".into(), topic: "topic".into(), number: 3 };
        Self { url, client, partitions, partition }
    }

    async fn raise(&self, owner: &str) -> Tenure {
        let seen = self.partitions.look(&self.client, &self.partition).await.unwrap();
        let raised = self.partitions.raise_from(&self.client, &self.partition, seen.epoch, owner, 40);
        ours(raised.await.unwrap())
    }

    async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}

fn ours(raised: Raised) -> Tenure {
    let Raised::Ours(tenure) = raised else { panic!("{raised:?}") };
    tenure
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// One message takes effect, as a consumer does it.
async fn write(client: &mut Client, partitions: &Partitions, tenure: &Tenure, message: i64) -> Standing {
    let transaction = client.transaction().await.unwrap();
    let checkpoint = Checkpoint { offset: message, digest: -message };
    let standing = partitions.advance(&transaction, tenure, message + 1, Some(checkpoint)).await.unwrap();
    if standing == Standing::Ours {
        let insert = "INSERT INTO effects VALUES ($1, $2)";
        transaction.execute(insert, &[&message, &tenure.epoch]).await.unwrap();
        transaction.commit().await.unwrap();
    }
    standing
}

#[tokio::test]
async fn a_thousand_of_a_thousand_late_writes_are_refused() {
    let mut kit = Kit::new().await;
    let first = kit.raise("first").await;
    assert_eq!((first.epoch, first.next_offset), (1, 40), "nothing was known of the partition");
    assert_eq!(write(&mut connect(&kit.url).await, &kit.partitions, &first, 40).await, Standing::Ours);

    let second = kit.raise("second").await;
    assert_eq!((second.epoch, second.next_offset), (2, 41));
    // The first one was paused, and goes on as if nothing had happened, while its successor writes.
    let mut late = connect(&kit.url).await;
    let mut refused = 0;
    for message in 0..1_000 {
        if message % 100 == 0 {
            let next = 41 + message / 100;
            assert_eq!(write(&mut kit.client, &kit.partitions, &second, next).await, Standing::Ours);
        }
        refused +=
            i64::from(write(&mut late, &kit.partitions, &first, 41 + message).await == Standing::Fenced);
    }
    assert_eq!(refused, 1_000);
    assert_eq!(kit.partitions.check(&kit.client, &first).await.unwrap(), Standing::Fenced);
    assert_eq!(kit.partitions.draw(&kit.client, &first, 1).await.unwrap(), None);
    assert_eq!(kit.count("SELECT count(*) FROM effects WHERE epoch = 1").await, 1);
    assert_eq!(kit.count("SELECT count(*) FROM effects WHERE epoch = 2").await, 10);
    let row = kit.partitions.look(&kit.client, &kit.partition).await.unwrap();
    assert_eq!((row.next_offset, row.owner.as_str()), (Some(51), "second"));
    assert_eq!(row.checkpoint, Some(Checkpoint { offset: 50, digest: -50 }));
}

#[tokio::test]
async fn a_write_that_is_under_way_commits_before_its_successor_begins() {
    let mut kit = Kit::new().await;
    let first = kit.raise("first").await;
    let mut slow = connect(&kit.url).await;
    let transaction = slow.transaction().await.unwrap();
    assert_eq!(kit.partitions.check(&transaction, &first).await.unwrap(), Standing::Ours);
    transaction.execute("INSERT INTO effects VALUES (40, 1)", &[]).await.unwrap();

    // The successor waits for it, so that it does not begin before what the first one has checked is committed.
    let partitions = kit.partitions.clone();
    let partition = kit.partition.clone();
    let url = kit.url.clone();
    let successor = tokio::spawn(async move {
        let client = connect(&url).await;
        partitions.raise_from(&client, &partition, 1, "second", 0).await.unwrap()
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let waits = async || kit.count(waiting).await == 1;
    wait_for("the successor to wait", Duration::from_secs(60), waits).await.unwrap();
    assert_eq!(kit.partitions.advance(&transaction, &first, 41, None).await.unwrap(), Standing::Ours);
    transaction.commit().await.unwrap();
    let second = ours(successor.await.unwrap());
    assert_eq!((second.epoch, second.next_offset), (2, 41));
    assert_eq!(write(&mut kit.client, &kit.partitions, &first, 41).await, Standing::Fenced);
}

#[tokio::test]
async fn a_writer_that_is_paused_in_its_transaction_holds_up_nobody_for_long() {
    let kit = Kit::new().await;
    let first = kit.raise("first").await;
    let mut paused = connect(&kit.url).await;
    let transaction = paused.transaction().await.unwrap();
    assert_eq!(kit.partitions.advance(&transaction, &first, 41, None).await.unwrap(), Standing::Ours);
    // Nothing more is heard of it. Its successor need not wait for its connection to be lost.
    let raised = kit.partitions.raise_from(&kit.client, &kit.partition, 1, "second", 0);
    let second = tokio::time::timeout(Duration::from_secs(60), raised).await.expect("the lock is released");
    assert_eq!(ours(second.unwrap()).next_offset, 40);
    assert!(transaction.commit().await.is_err());
    assert_eq!(kit.count("SELECT next_offset FROM partitions").await, 40);
}

#[tokio::test]
async fn of_two_that_saw_the_same_epoch_one_raises_it() {
    let kit = Kit::new().await;
    for _ in 0..50 {
        let seen = kit.partitions.look(&kit.client, &kit.partition).await.unwrap();
        let one = connect(&kit.url).await;
        let two = connect(&kit.url).await;
        let raise = async |client: &Client, owner: &str| {
            kit.partitions.raise_from(client, &kit.partition, seen.epoch, owner, 0).await.unwrap()
        };
        let (one, two) = tokio::join!(raise(&one, "one"), raise(&two, "two"));
        let (winner, loser) = match (&one, &two) {
            (Raised::Ours(tenure), Raised::Overtaken(row)) => (("one", tenure), row),
            (Raised::Overtaken(row), Raised::Ours(tenure)) => (("two", tenure), row),
            both => panic!("{both:?}"),
        };
        assert_eq!(winner.1.epoch, seen.epoch + 1);
        assert_eq!((loser.epoch, loser.owner.as_str()), (seen.epoch + 1, winner.0));
    }
}

#[tokio::test]
async fn a_lease_raises_the_epoch_once_under_each_token() {
    let kit = Kit::new().await;
    let raise = async |token: u64, owner: &str| {
        kit.partitions.raise_to(&kit.client, &kit.partition, token, owner, 0).await.unwrap()
    };
    assert_eq!(ours(raise(70, "one").await).epoch, 1);
    assert_eq!(ours(raise(90, "two").await).epoch, 2);
    let Raised::Overtaken(row) = raise(70, "one").await else { panic!("an old token") };
    assert_eq!((row.epoch, row.token, row.owner.as_str()), (2, 90, "two"));
    assert!(matches!(raise(90, "three").await, Raised::Overtaken(_)), "the token is another's");
    // The owner itself begins again, as after an answer that was lost.
    assert_eq!(ours(raise(90, "two").await).epoch, 3);
    // From leases to a group and back, the epoch only grows.
    let seen = kit.partitions.look(&kit.client, &kit.partition).await.unwrap();
    let group = kit.partitions.raise_from(&kit.client, &kit.partition, seen.epoch, "four", 0).await.unwrap();
    assert_eq!(ours(group).epoch, 4);
    assert_eq!(ours(raise(91, "five").await).epoch, 5);
    for token in [0, u64::MAX] {
        let refused =
            kit.partitions.raise_to(&kit.client, &kit.partition, token, "six", 0).await.unwrap_err();
        assert!(refused.to_string().contains("at least 1"), "{refused}");
    }
}

#[tokio::test]
async fn sequences_grow_in_the_order_of_commits_and_positions_never_go_back() {
    let kit = Kit::new().await;
    let tenure = kit.raise("one").await;
    assert_eq!(kit.partitions.draw(&kit.client, &tenure, 3).await.unwrap(), Some(1));
    assert_eq!(kit.partitions.draw(&kit.client, &tenure, 1).await.unwrap(), Some(4));
    for next in [50, 45] {
        let advanced = kit.partitions.advance(&kit.client, &tenure, next, None).await.unwrap();
        assert_eq!(advanced, Standing::Ours);
    }
    let row = kit.partitions.look(&kit.client, &kit.partition).await.unwrap();
    assert_eq!(row.next_offset, Some(50));

    // A topic that was made anew begins with its first message, under a new epoch.
    assert_eq!(kit.partitions.begin_anew(&kit.client, "group", "topic").await.unwrap(), 1);
    assert_eq!(kit.partitions.check(&kit.client, &tenure).await.unwrap(), Standing::Fenced);
    let row = kit.partitions.look(&kit.client, &kit.partition).await.unwrap();
    assert_eq!((row.epoch, row.next_offset, row.checkpoint), (2, None, None));
    assert_eq!(kit.partitions.generation(&kit.client, &kit.partition).await.unwrap(), 1);
    let tenure = kit.raise("two").await;
    assert_eq!((tenure.epoch, tenure.next_offset), (3, 40));
    assert_eq!(kit.partitions.draw(&kit.client, &tenure, 1).await.unwrap(), Some(5), "sequences go on");
    assert_eq!(kit.partitions.raise_generation(&kit.client, &tenure).await.unwrap(), 2);
}

#[tokio::test]
async fn odd_names_are_refused() {
    let kit = Kit::new().await;
    let long = "x".repeat(256);
    for (group, topic, number) in
        [("", "t", 0), ("g", "", 0), ("g", &long, 0), ("g\0", "t", 0), ("g", "t", -1)]
    {
        let partition = Partition { group: group.into(), topic: topic.into(), number };
        let refused = kit.partitions.look(&kit.client, &partition).await.unwrap_err().to_string();
        assert!(refused.starts_with("invalid "), "{refused}");
    }
    assert!(Partitions::new("a; DROP TABLE b").is_err());
}
