//! Clients of the broker of these tests.

use std::time::Duration;

use rdkafka::ClientConfig;
use solehold_testkit::Kafka;

/// Long enough for anything that a busy machine does.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub fn client(kafka: &Kafka) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", kafka.address()).set("reconnect.backoff.max.ms", "500");
    client.set("topic.metadata.refresh.interval.ms", "2000");
    if let Some(version) = kafka.broker_version() {
        client.set("api.version.request", "false").set("broker.version.fallback", version);
    }
    client
}

/// What aiokafka calls the version of the broker.
pub fn api_version(kafka: &Kafka) -> &'static str {
    kafka.broker_version().map_or("auto", |_| "0.9")
}
