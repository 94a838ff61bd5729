//! Apache Kafka with a certificate, and clients with and without one.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use solehold_testkit::{Kafka, KafkaTls, wait_for};

use crate::world::{Authority, PATIENCE, World};

/// The way to a broker that is too old to be asked for its version.
fn way(world: &World, brokers: &str, more: Value) -> Value {
    let mut way = json!({ "brokers": brokers, "broker_version": world.kafka.broker_version() });
    for (key, value) in more.as_object().into_iter().flatten() {
        way[key] = value.clone();
    }
    way
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_an_orchestrator_goes_by_tls() -> Result<()> {
    let authority = Authority::new()?;
    let (certificate, key) = authority.sign("127.0.0.1")?;
    let tls = KafkaTls { certificate, key, client_authority: None };
    let world = World::new(Kafka::builder()?.tls(tls).start().await?, "kafka_tls").await?;
    let encrypted = world.kafka.tls_address()?;
    let plain = world.kafka.address().to_owned();
    let trusted = world.keep("authority.pem", &authority.pem)?;
    let with_tls = json!({ "tls": { "ca_cert": trusted } });
    world.a_job_succeeds("by-tls", &way(&world, &encrypted, with_tls.clone())).await?;

    // Another authority than that of the broker's certificate: of our own, and the system's.
    let other = world.keep("other.pem", &Authority::new()?.pem)?;
    let untrusting = way(&world, &encrypted, json!({ "tls": { "ca_cert": other } }));
    let untrusted =
        format!("the certificate of {encrypted} is not trusted, or is for another host name: tls.ca_cert");
    world.is_refused(&untrusting, 5, &untrusted).await?;
    world.is_refused(&way(&world, &encrypted, json!({ "tls": {} })), 5, &untrusted).await?;
    // The right one, and a name that the certificate is not for.
    let by_name = encrypted.replace("127.0.0.1", "localhost");
    let why = format!("the certificate of {by_name} is not trusted, or is for another host name");
    world.is_refused(&way(&world, &by_name, with_tls.clone()), 5, &why).await?;
    let why = format!("{plain} does not speak TLS: give its port for TLS, or remove tls");
    world.is_refused(&way(&world, &plain, with_tls), 5, &why).await?;
    // This broker waits for more of what it takes for the beginning of TLS.
    let why = "kafka.tls and kafka.sasl are for brokers that need them";
    world.is_refused(&way(&world, &encrypted, json!({})), 5, why).await?;

    // An orchestrator that runs says so, too, and not with every attempt.
    let program = world.start("untrusting", &untrusting).await?;
    let lines = || program.logs().lines().filter(|line| line.contains("is not trusted")).count();
    wait_for("the reason in the log", PATIENCE, async || lines() > 0).await?;
    let ended = program.terminate().await?;
    ensure!(ended.success() && lines() < 20, "{ended}: {}", program.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_may_ask_for_a_certificate() -> Result<()> {
    let authority = Authority::new()?;
    let (certificate, key) = authority.sign("127.0.0.1")?;
    let tls = KafkaTls { certificate, key, client_authority: Some(authority.pem.clone()) };
    let world = World::new(Kafka::builder()?.tls(tls).start().await?, "kafka_client_cert").await?;
    let address = world.kafka.tls_address()?;
    let trusted = world.keep("authority.pem", &authority.pem)?;
    let show = |name: &str, authority: &Authority| -> Result<Value> {
        let (certificate, key) = authority.sign("orchestrator")?;
        let certificate = world.keep(&format!("{name}.pem"), &certificate)?;
        let key = world.keep(&format!("{name}.key"), &key)?;
        let tls = json!({ "ca_cert": trusted, "client_cert": certificate, "client_key": key });
        Ok(way(&world, &address, json!({ "tls": tls })))
    };
    world.a_job_succeeds("with-certificate", &show("ours", &authority)?).await?;
    let why = format!(
        "{address} refuses TLS with this client; if it asks for client certificates, tls.client_cert"
    );
    let none = way(&world, &address, json!({ "tls": { "ca_cert": trusted } }));
    world.is_refused(&none, 5, &why).await?;
    world.is_refused(&show("others", &Authority::new()?)?, 5, &why).await?;
    // The key of another certificate.
    let mut mixed = show("ours", &authority)?;
    mixed["tls"]["client_key"] = show("others", &Authority::new()?)?["tls"]["client_key"].clone();
    world.is_refused(&mixed, 2, "key").await
}
