//! Who has which partition, and how it changes hands: by a group, and by leases.

use std::{sync::Arc, time::Instant};

use rdkafka::Offset;
use solehold_kafka::{Hook, Moment};
use solehold_testkit::{Solehold, wait_for};

use crate::{
    first_start::{commit, former},
    kit::{Kit, Orders, PARTITIONS, PATIENCE, Running, child, connect},
};

/// Two consumers share the partitions; one leaves, one is killed, one is paused and resumes. Times are printed.
async fn changes_of_hands(kit: &Kit, orders: impl Fn(&str) -> Orders) -> anyhow::Result<()> {
    let one = child(&orders("one")).await?;
    kit.send_many("a", 1_000, 60);
    kit.shared_by(&["one"]).await;
    let two = child(&orders("two")).await?;
    kit.shared_by(&["one", "two"]).await;
    kit.send_many("b", 1_000, 60);

    // SIGTERM: what it has is taken over without waiting for a timeout.
    let asked = Instant::now();
    let ended = one.terminate().await?;
    println!("SIGTERM: ended after {:?}", asked.elapsed());
    assert!(ended.success() && one.logs().contains("consumer ended: Ok(())"), "{}", one.logs());
    kit.shared_by(&["two"]).await;
    println!("SIGTERM: taken over after {:?}", asked.elapsed());

    let three = child(&orders("three")).await?;
    kit.shared_by(&["two", "three"]).await;
    kit.send_many("c", 1_000, 60);
    let killed = Instant::now();
    two.kill9().await?;
    kit.shared_by(&["three"]).await;
    println!("SIGKILL: taken over after {:?}", killed.elapsed());

    let four = child(&orders("four")).await?;
    kit.shared_by(&["three", "four"]).await;
    kit.send_many("d", 1_000, 60);
    let paused = Instant::now();
    three.pause().await?;
    kit.shared_by(&["four"]).await;
    println!("SIGSTOP: taken over after {:?}", paused.elapsed());
    kit.send_many("e", 1_000, 60);
    three.resume()?;
    // It finds that others have its partitions. A group gives it a share at once, a server's plan when it has settled.
    if kit.orders("").settings == orders("").settings {
        kit.shared_by(&["three", "four"]).await;
    }
    kit.send_many("f", 1_000, 60);
    kit.flush().await;
    kit.check(6_000).await;
    four.terminate().await?;
    kit.shared_by(&["three"]).await;
    three.terminate().await?;
    kit.check(6_000).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_change_hands_in_a_group() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    changes_of_hands(&kit, |name| kit.orders(name)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_change_hands_by_leases() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let server = Solehold::builder().start().await?;
    changes_of_hands(&kit, |name| kit.lease_orders(name, server.url())).await
}

/// A consumer stops in the midst of taking a partition, is taken over, and goes on.
async fn stops_at(kit: &Kit, moment: &str) -> anyhow::Result<()> {
    let mut orders = kit.orders("sleeper");
    orders.stops_at = Some(moment.to_owned());
    let sleeper = child(&orders).await?;
    let helper = if moment == "Revoked" {
        kit.shared_by(&["sleeper"]).await;
        Some(child(&kit.orders("helper")).await?)
    } else {
        None
    };
    let said = format!("stopped at {moment}");
    wait_for(&said, PATIENCE, async || sleeper.logs().contains(&said)).await?;
    let awake = match helper {
        Some(helper) => helper,
        None => child(&kit.orders("helper")).await?,
    };
    kit.shared_by(&["helper"]).await;
    kit.send_many("a", 500, 60);
    kit.effects(500).await;
    sleeper.resume()?;
    kit.shared_by(&["helper", "sleeper"]).await;
    kit.send_many("b", 500, 60);
    kit.flush().await;
    kit.check(1_000).await;
    sleeper.terminate().await?;
    awake.terminate().await?;
    kit.check(1_000).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_sleeps_while_it_takes_partitions_is_fenced() -> anyhow::Result<()> {
    for moment in ["Assigned", "Proven", "Revoked"] {
        stops_at(&Kit::new().await?, moment).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_displays_what_a_former_owner_did_last() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    (0..PARTITIONS).for_each(|number| kit.send_to(number, "key", "m-1"));
    kit.flush().await;
    // Between the proof, which tells the broker offset 0, and the raise, the former owner commits the only message.
    let former = Arc::new(connect(&kit.database).await?);
    let commits: Hook = Arc::new(move |moment| {
        if moment == Moment::Proven {
            let former = former.clone();
            let commit = async move { former.execute("UPDATE partitions SET next_offset = 1", &[]).await };
            let done = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(commit));
            done.expect("a position");
        }
    });
    let one = Running::start_with(kit.orders("one"), Some(commits));
    let at_the_end = vec![Offset::Offset(1); PARTITIONS as usize];
    let is_displayed = async || kit.displayed().is_ok_and(|displayed| displayed == at_the_end);
    wait_for("the positions to be displayed", PATIENCE, is_displayed).await?;
    assert_eq!(kit.count("effects").await, 0, "no message takes effect again");
    one.end().await?;
    Ok(())
}

/// By leases, the broker takes a position from anyone: nobody is a member of the group.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_position_that_a_former_owner_displays_late_is_corrected() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let server = Solehold::builder().start().await?;
    (0..PARTITIONS).for_each(|number| kit.send_to(number, "key", "m-1"));
    kit.flush().await;
    let one = Running::start(kit.lease_orders("one", server.url()));
    let at_the_end = vec![Offset::Offset(1); PARTITIONS as usize];
    let is_displayed = async || kit.displayed().is_ok_and(|displayed| displayed == at_the_end);
    wait_for("the positions to be displayed", PATIENCE, is_displayed).await?;
    commit(&former(&kit)?, &kit, (0..PARTITIONS).map(|number| (number, 0)))?;
    wait_for("the positions to be displayed again", PATIENCE, is_displayed).await?;
    one.end().await?;
    Ok(())
}
