//! The first start of a consumer under a group that another program has worked in.

use anyhow::Result;
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
};
use solehold_kafka::{Begin, LostMessages};
use solehold_testkit::{Program, Solehold, wait_for};

use crate::kit::{Kit, Orders, PARTITIONS, PATIENCE, Running, brokers, child};

/// A member of the group that is no consumer of ours: it assigns partitions as most programs do.
pub fn former(kit: &Kit) -> Result<BaseConsumer> {
    let mut config = brokers(kit.kafka).client()?;
    config.set("group.id", kit.orders("").settings.group).set("enable.auto.commit", "false");
    config.set("session.timeout.ms", "3000").set("auto.offset.reset", "earliest");
    Ok(config.create()?)
}

pub fn commit(former: &BaseConsumer, kit: &Kit, offsets: impl Iterator<Item = (i32, i64)>) -> Result<()> {
    let mut list = TopicPartitionList::new();
    for (number, offset) in offsets {
        list.add_partition_offset(&kit.topic, number, Offset::Offset(offset))?;
    }
    Ok(former.commit(&list, CommitMode::Sync)?)
}

/// Ten messages in each partition; the former program has done as many of them as the partition's number, up to nine,
/// and none of the last two partitions, of which it never committed anything.
async fn worked_before(kit: &Kit) -> Result<()> {
    (0..PARTITIONS * 10).for_each(|number| kit.send_to(number / 10, "key", &format!("m-{number}")));
    kit.flush().await;
    commit(&former(kit)?, kit, (0..PARTITIONS - 2).map(|number| (number, number.into())))
}

async fn says(program: &Program, words: &str) -> Result<()> {
    let said = wait_for(words, PATIENCE, async || program.logs().contains(words)).await;
    said.map_err(|error| error.context(program.logs()))
}

async fn begins_where_the_group_was(kit: &Kit, orders: Orders) -> Result<()> {
    worked_before(kit).await?;
    let one = child(&orders).await?;
    let done: i64 = (0..PARTITIONS - 2).map(i64::from).sum();
    let left = i64::from(PARTITIONS) * 10 - done;
    kit.effects(left).await;
    kit.send_to(3, "key", "last-0");
    kit.flush().await;
    kit.effects(left + 1).await;
    assert_eq!(kit.count("effects").await, left + 1);
    let again = "effects WHERE message LIKE 'm-%' AND partition < 10 AND split_part(message, '-', 2)::int % 10 < partition";
    assert_eq!(kit.count(again).await, 0, "what the group had committed was done again");
    says(&one, "next_offset=3 origin=\"the first start, at the consumer group's committed offset\"").await?;
    says(
        &one,
        "next_offset=0 origin=\"the first start, the group has no committed offset, auto_offset_reset",
    )
    .await?;
    // For those who come after us, the group is where we ended.
    one.terminate().await?;
    let at_the_end: Vec<Offset> =
        (0..PARTITIONS).map(|number| Offset::Offset(if number == 3 { 11 } else { 10 })).collect();
    assert_eq!(kit.displayed()?, at_the_end);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_in_a_group_does_not_repeat_what_the_group_has_committed() -> Result<()> {
    let kit = Kit::new().await?;
    begins_where_the_group_was(&kit, kit.orders("one")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_by_leases_does_not_repeat_what_the_group_has_committed() -> Result<()> {
    let kit = Kit::new().await?;
    let server = Solehold::builder().start().await?;
    begins_where_the_group_was(&kit, kit.lease_orders("one", server.url())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn latest_is_for_partitions_of_which_the_group_knows_nothing() -> Result<()> {
    let kit = Kit::new().await?;
    worked_before(&kit).await?;
    let mut orders = kit.orders("one");
    orders.settings.auto_offset_reset = Begin::Latest;
    let one = Running::start(orders);
    kit.shared_by(&["one"]).await;
    kit.send_to(11, "key", "last-11");
    kit.flush().await;
    let left: i64 = (0..PARTITIONS - 2).map(|number| 10 - i64::from(number)).sum();
    kit.effects(left + 1).await;
    assert_eq!(kit.count("effects WHERE partition >= 10").await, 1);
    one.end().await?;
    assert_eq!(kit.count("effects").await, left + 1);
    Ok(())
}

/// The broker refuses a member of another kind, and an offset from outside of a group that has members.
async fn waits_for_the_former_program(kit: &Kit, orders: Orders, told: &str) -> Result<()> {
    worked_before(kit).await?;
    let former = former(kit)?;
    former.subscribe(&[&kit.topic])?;
    let is_assigned = || former.assignment().is_ok_and(|assigned| assigned.count() == PARTITIONS as usize);
    while !is_assigned() {
        former.poll(std::time::Duration::from_millis(50));
    }
    let one = child(&orders).await?;
    says(&one, told).await?;
    assert_eq!(kit.count("effects").await, 0, "two programs work on one partition");
    // Its last commit counts.
    commit(&former, kit, [(11, 9)].into_iter())?;
    drop(former);
    let done: i64 = (0..PARTITIONS - 2).map(i64::from).sum::<i64>() + 9;
    kit.effects(i64::from(PARTITIONS) * 10 - done).await;
    one.terminate().await?;
    assert_eq!(kit.count("effects").await, i64::from(PARTITIONS) * 10 - done);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_in_a_group_waits_for_the_former_program_and_says_so() -> Result<()> {
    let kit = Kit::new().await?;
    let told = "the consumer group has members with another assignment strategy";
    waits_for_the_former_program(&kit, kit.orders("one"), told).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_by_leases_waits_for_the_former_program_and_says_so() -> Result<()> {
    let kit = Kit::new().await?;
    let server = Solehold::builder().start().await?;
    let told = "may still have members, which process the same messages; stop them";
    waits_for_the_former_program(&kit, kit.lease_orders("one", server.url()), told).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_offset_that_the_broker_does_not_have_is_reported() -> Result<()> {
    let kit = Kit::new().await?;
    worked_before(&kit).await?;
    kit.kafka.delete_topic(&kit.topic).await?;
    kit.kafka.create_topic_named(&kit.topic, PARTITIONS).await?;
    commit(&former(&kit)?, &kit, [(4, 4)].into_iter())?;
    let mut orders = kit.orders("one");
    orders.settings.lost_messages = LostMessages::Skip;
    let error = Running::start(orders).ended().await.expect_err("another topic").to_string();
    assert!(error.contains("by the offset that the consumer group has committed"), "{error}");
    assert!(error.contains("begin-anew"), "{error}");
    Ok(())
}
