//! Logins by password. No broker that knows them can be had for these tests, so a front asks for them.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use solehold_testkit::Kafka;

use crate::{
    front::{Front, PASSWORD, USER},
    world::{Authority, World},
};

#[tokio::test(flavor = "multi_thread")]
async fn an_orchestrator_logs_in_by_password_over_tls() -> Result<()> {
    let authority = Authority::new()?;
    let (certificate, key) = authority.sign("127.0.0.1")?;
    let builder = Kafka::builder()?;
    let identity = (certificate.as_str(), key.as_str());
    let target = builder.addr();
    let front = Front::start(target, identity, &["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]).await?;
    let world = World::new(builder.advertise(front.addr).start().await?, "kafka_sasl").await?;
    let tls = json!({ "ca_cert": world.keep("authority.pem", &authority.pem)? });
    let right = world.keep("right", &format!("{PASSWORD}\n"))?;
    let wrong = world.keep("wrong", "not it at all")?;
    let way = |mechanism: &str, user: &str, password_file: &str| {
        let sasl = json!({ "mechanism": mechanism, "user": user, "password_file": password_file });
        json!({ "brokers": front.addr.to_string(), "tls": tls, "sasl": sasl })
    };
    world.a_job_succeeds("by-scram", &way("scram-sha-512", USER, &right)).await?;
    world.a_job_succeeds("by-plain", &way("plain", USER, &right)).await?;
    let before = front.logins();
    let checked = world.check(&way("scram-sha-256", USER, &right)).await?;
    ensure!(checked.code == Some(0) && front.logins() > before, "{checked:?}");

    let before = front.logins();
    let refused = format!("{} refuses the login (", front.addr);
    for mechanism in ["plain", "scram-sha-256", "scram-sha-512"] {
        for (user, password_file) in [(USER, &wrong), ("somebody", &right)] {
            let way = way(mechanism, user, password_file);
            world.is_refused(&way, 5, &refused).await?;
            let said = world.check(&way).await?.stderr;
            ensure!(!said.contains(PASSWORD) && !said.contains("not it at all"), "{said}");
        }
    }
    ensure!(front.logins() == before, "someone got in");
    let anonymous = json!({ "brokers": front.addr.to_string(), "tls": tls });
    // The connection is closed, and what is noticed of that first depends on the moment.
    world.is_refused(&anonymous, 5, "sasl").await?;

    let scram_only = Front::start(target, identity, &["SCRAM-SHA-512"]).await?;
    let mut plain = way("plain", USER, &right);
    plain["brokers"] = json!(scram_only.addr.to_string());
    world.is_refused(&plain, 5, "the broker's mechanisms: SCRAM-SHA-512").await?;
    refused_from_the_file(&world, &plain).await
}

/// What this build cannot do is refused before anyone is asked.
async fn refused_from_the_file(world: &World, way: &Value) -> Result<()> {
    let with = |key: &str, value: Value| {
        let mut way = way.clone();
        way[key] = value;
        way
    };
    let mut kerberos = way.clone();
    kerberos["sasl"]["mechanism"] = json!("GSSAPI");
    let why = "mechanism \"GSSAPI\" is none of plain, scram-sha-256, scram-sha-512: Kerberos needs libsasl2";
    world.is_refused(&kerberos, 2, why).await?;
    let raw = with("properties", json!({ "security.protocol": "sasl_ssl" }));
    let why = "kafka: property security.protocol: write tls for TLS and sasl for a password instead";
    world.is_refused(&raw, 2, why).await?;
    let why = "kafka: sasl is for brokers of Kafka 0.10 and later, and broker_version is 0.9.0.1";
    world.is_refused(&with("broker_version", json!("0.9.0.1")), 2, why).await?;
    // Nothing below `tls:` must not mean no TLS.
    let checked = world.check(&with("tls", Value::Null)).await?;
    ensure!(checked.code == Some(2) || checked.stderr.contains("is not trusted"), "{checked:?}");
    let elsewhere = json!({ "brokers": "kafka.example:9092", "sasl": way["sasl"] });
    world
        .is_refused(&elsewhere, 2, "plain without tls would send the password readable over the network")
        .await
}
