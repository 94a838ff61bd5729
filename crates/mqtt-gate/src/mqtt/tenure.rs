//! A tenure: one shard, connected to the broker for as long as its lease is held.
//!
//! A broker closes the older of two connections with one client id. A gate that was paused and replaced must therefore
//! not reconnect, or it would close the connection of its successor. So it checks its guard, whose clock counts through
//! pauses, right before it connects. If it is paused between the two, it connects once and is disconnected by its
//! successor, which reconnects; then its guard refuses.

use std::time::Duration;

use solehold_client::{Guard, Lost};
use solehold_clock::Backoff;

use super::{Context, broker::BrokerError, metrics::ShardStatus, probe, pump::Pump};
use crate::window::Window;

/// Between two attempts to connect.
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(5) };

/// Why a pair of connections could not be opened, or ended.
#[derive(Debug)]
enum Disconnected {
    LeaseLost(Lost),
    Broker(BrokerError),
}

impl From<BrokerError> for Disconnected {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error)
    }
}

/// Forwards the messages of a shard while its lease is held, and releases it when the gate ends.
pub(super) async fn serve(context: &Context, shard: u32, guard: Guard) {
    let id = context.config.shards.id(shard);
    tracing::info!(shard = id, token = %guard.token(), "acquired the shard");
    match guard.run(stay_connected(context, shard, &id, &guard)).await {
        Ok(Ok(())) => {
            if let Err(error) = guard.release().await {
                tracing::warn!(shard = id, %error, "cannot release the shard; its lease will expire");
            }
        }
        Ok(Err(lost)) | Err(lost) => tracing::warn!(shard = id, %lost, "lost the shard"),
    }
}

/// Connects and reconnects until the gate ends or the lease is lost.
async fn stay_connected(context: &Context, shard: u32, id: &str, guard: &Guard) -> Result<(), Lost> {
    let mut ending = context.ending.clone();
    let mut failures = 0u32;
    let mut last_logged = String::new();
    loop {
        let mut was_connected = false;
        let error = match connect_once(context, shard, id, guard, &mut was_connected).await {
            Ok(()) => return Ok(()),
            Err(Disconnected::LeaseLost(lost)) => return Err(lost),
            Err(Disconnected::Broker(error)) => error.to_string(),
        };
        context.metrics.set_status(shard, ShardStatus::Down(error.clone()));
        if was_connected {
            failures = 0;
            last_logged.clear();
        }
        failures += 1;
        // The same error is logged once.
        if error != last_logged {
            tracing::warn!(shard = id, error, "not connected to the broker; reconnecting");
            last_logged = error;
        }
        tokio::select! {
            () = tokio::time::sleep(RECONNECT.wait(failures, rand::random())) => {}
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        }
    }
}

/// Opens one pair of connections, and forwards messages until the gate ends.
async fn connect_once(
    context: &Context,
    shard: u32,
    id: &str,
    guard: &Guard,
    was_connected: &mut bool,
) -> Result<(), Disconnected> {
    let config = &context.config;
    for topic in config.probe_topics(shard) {
        probe::probe(&config.broker, id, &topic).await?;
    }
    let (reader, mut reading) = config.broker.connection(id, true)?;
    let (writer, mut writing) = config.broker.connection(&format!("{id}-out"), false)?;
    let window = Window::new(config.routes.clone(), config.held_bytes_max);
    let gate = context.gate.clone();
    let metrics = context.metrics.clone();
    let mut pump = Pump::new(config.intake(shard), window, gate, metrics, reader.clone(), writer.clone());
    guard.check().map_err(Disconnected::LeaseLost)?;
    let connected = || {
        *was_connected = true;
        context.metrics.connects();
        context.metrics.set_status(shard, ShardStatus::Connected);
        tracing::info!(shard = id, broker = %config.broker, "connected to the broker");
    };
    pump.run(&mut reading, &mut writing, context.ending.clone(), connected).await?;
    drop(pump);
    tokio::join!(probe::leave(reader, reading), probe::leave(writer, writing));
    Ok(())
}
