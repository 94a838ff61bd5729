//! Kafka is started, stopped and started again, with topics that come and go.

use std::net::TcpStream;

use anyhow::Result;
use solehold_testkit::{Kafka, Proxy};

#[tokio::test]
async fn topics_outlive_the_broker_and_can_be_made_anew() -> Result<()> {
    let builder = Kafka::builder()?;
    let direct = builder.addr();
    let proxy = Proxy::start(builder.addr()).await?;
    let kafka = builder.advertise(proxy.addr()).start().await?;
    assert_eq!(kafka.address(), proxy.addr().to_string(), "clients are sent to the proxy");
    assert!(TcpStream::connect(direct).is_ok());

    let topic = kafka.create_topic("orders", 12).await?;
    let again = kafka.create_topic_named(&topic, 12).await.expect_err("it is there").to_string();
    assert!(again.contains("already"), "{again}");

    kafka.stop().await?;
    assert!(TcpStream::connect(direct).is_err());
    kafka.start_again().await?;
    kafka.kill9().await?;
    kafka.start_again().await?;
    assert!(kafka.create_topic_named(&topic, 12).await.is_err(), "it is still there");
    kafka.delete_topic(&topic).await?;
    kafka.create_topic_named(&topic, 3).await?;
    Ok(())
}
