//! Clients of the broker of these tests.

use std::time::Duration;

use rdkafka::ClientConfig;

/// Long enough for anything that a busy machine does.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// What clients must be told of a broker that is too old to be asked.
const OLD_BROKER: [(&str, &str); 2] =
    [("api.version.request", "false"), ("broker.version.fallback", "0.9.0.1")];

pub fn client(broker: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", broker).set("reconnect.backoff.max.ms", "500");
    client.set("topic.metadata.refresh.interval.ms", "2000");
    for (name, value) in OLD_BROKER {
        client.set(name, value);
    }
    client
}
