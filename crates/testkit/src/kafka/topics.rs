//! Topics are made and deleted: through ZooKeeper with the broker of these tests, by request with a current one.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, bail};

use super::{
    wire::{Wire, Writer},
    zookeeper::ZooKeeper,
};

const CREATE_TOPICS: i16 = 19;
const DELETE_TOPICS: i16 = 20;
const TIMEOUT_MS: i32 = 30_000;

/// What the controller of an old broker takes for an order.
pub(super) fn order_by_zookeeper(to: SocketAddr, topic: &str, partitions: i32) -> Result<()> {
    let mut zookeeper = ZooKeeper::connect(to)?;
    let only_broker = (0..partitions).map(|number| format!("\"{number}\":[0]")).collect::<Vec<_>>().join(",");
    let replicas = format!("{{\"version\":1,\"partitions\":{{{only_broker}}}}}");
    zookeeper.create(&format!("/config/topics/{topic}"), r#"{"version":1,"config":{}}"#)?;
    let is_new = zookeeper.create(&format!("/brokers/topics/{topic}"), &replicas)?;
    anyhow::ensure!(is_new, "there is a topic {topic} already");
    Ok(())
}

/// Whether every partition has a leader.
pub(super) fn is_led(to: SocketAddr, topic: &str, partitions: i32) -> Result<bool> {
    let mut zookeeper = ZooKeeper::connect(to)?;
    for number in 0..partitions {
        if !zookeeper.exists(&format!("/brokers/topics/{topic}/partitions/{number}/state"))? {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn order_deletion_by_zookeeper(to: SocketAddr, topic: &str) -> Result<()> {
    ZooKeeper::connect(to)?.create(&format!("/admin/delete_topics/{topic}"), "").map(|_| ())
}

/// Whether nothing is left of it, and it may be made again.
pub(super) fn is_deleted(to: SocketAddr, topic: &str) -> Result<bool> {
    let mut zookeeper = ZooKeeper::connect(to)?;
    let is_there = zookeeper.exists(&format!("/brokers/topics/{topic}"))?
        || zookeeper.exists(&format!("/admin/delete_topics/{topic}"))?;
    Ok(!is_there)
}

pub(super) fn create_by_request(broker: &str, topic: &str, partitions: i32) -> Result<()> {
    let topics = 1;
    let replication = 1;
    let assignments = 0;
    let settings = 0;
    let does_it = 0;
    let ask = request(CREATE_TOPICS, 2).i32(topics).short(topic).i32(partitions).i16(replication);
    answered(broker, ask.i32(assignments).i32(settings).i32(TIMEOUT_MS).byte(does_it), topic)
}

pub(super) fn delete_by_request(broker: &str, topic: &str) -> Result<()> {
    let topics = 1;
    answered(broker, request(DELETE_TOPICS, 1).i32(topics).short(topic).i32(TIMEOUT_MS), topic)
}

fn request(kind: i16, version: i16) -> Writer {
    let only_one = 1;
    Writer::default().i16(kind).i16(version).i32(only_one).short("solehold-testkit")
}

fn answered(broker: &str, request: Writer, topic: &str) -> Result<()> {
    let to = broker.to_socket_addrs()?.next().with_context(|| format!("{broker} is not an address"))?;
    let mut answer = Wire::connect(to)?.ask(request)?;
    let _id = answer.i32()?;
    let _throttled = answer.i32()?;
    let _topics = answer.i32()?;
    answer.skip_short()?;
    match answer.i16()? {
        0 => Ok(()),
        code => bail!("{broker} does not make or delete the topic {topic}: error {code}"),
    }
}
