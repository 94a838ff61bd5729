//! A shard that is held: connected to the broker for as long as its lease lives, and not a moment longer.
//!
//! A broker ends the older of two connections with one client id. A gate that was paused and taken over must therefore
//! not connect again, or it would end its successor's connection. So it asks its guard, which goes by a clock that
//! counts through pauses, right before it connects. If it is paused between the two it connects once and is ended by
//! its successor, which connects again; then its guard says no.

use std::time::Duration;

use solehold_client::{Guard, Lost};
use solehold_clock::Backoff;

use super::{Context, broker::BrokerError, figures::Standing, probe, pump::Pump};
use crate::window::Window;

/// Between two attempts to connect.
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(5) };

/// Moves the messages of a shard while its lease is held, and gives it back when the gate is to end.
pub(super) async fn serve(context: &Context, shard: u32, guard: Guard) {
    let id = context.config.shards.id(shard);
    tracing::info!(shard = id, token = %guard.token(), "this gate has the shard");
    match guard.run(stay_connected(context, shard, &id, &guard)).await {
        Ok(Ok(())) => {
            if let Err(error) = guard.release().await {
                tracing::warn!(shard = id, %error, "the shard was not given back: it is free when its ttl is over");
            }
        }
        Ok(Err(lost)) | Err(lost) => tracing::warn!(shard = id, %lost, "this gate no longer has the shard"),
    }
}

/// Connects again and again, until the gate is to end or the lease is lost.
async fn stay_connected(context: &Context, shard: u32, id: &str, guard: &Guard) -> Result<(), Lost> {
    let (mut ending, mut failures, mut told) = (context.ending.clone(), 0u32, String::new());
    loop {
        let mut was_connected = false;
        let error = match connect_once(context, shard, id, guard, &mut was_connected).await {
            Ok(ended) => return ended,
            Err(error) => error.to_string(),
        };
        context.figures.stands(shard, Standing::Down(error.clone()));
        if was_connected {
            (failures, told) = (0, String::new());
        }
        failures += 1;
        // The same failure is told once.
        if error != told {
            tracing::warn!(shard = id, error, "no connection to the broker");
            told = error;
        }
        tokio::select! {
            () = tokio::time::sleep(RECONNECT.wait(failures, rand::random())) => {}
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        }
    }
}

/// One pair of connections, from their beginning to their end.
async fn connect_once(
    context: &Context,
    shard: u32,
    id: &str,
    guard: &Guard,
    was_connected: &mut bool,
) -> Result<Result<(), Lost>, BrokerError> {
    let config = &context.config;
    for topic in config.probe_topics(shard) {
        probe::probe(&config.broker, id, &topic).await?;
    }
    let (reader, mut reading) = config.broker.connection(id, true)?;
    let (writer, mut writing) = config.broker.connection(&format!("{id}-out"), false)?;
    let window = Window::new(config.routes.clone(), config.held_bytes_max);
    let (gate, figures) = (context.gate.clone(), context.figures.clone());
    let clients = (reader.clone(), writer.clone());
    let mut pump = Pump::new(config.intake(shard), window, gate, figures, clients);
    if let Err(lost) = guard.check() {
        return Ok(Err(lost));
    }
    let connected = || {
        *was_connected = true;
        context.figures.connects();
        context.figures.stands(shard, Standing::Connected);
        tracing::info!(shard = id, broker = %config.broker, "messages flow");
    };
    pump.run((&mut reading, &mut writing), context.ending.clone(), connected).await?;
    drop(pump);
    tokio::join!(probe::leave(reader, reading), probe::leave(writer, writing));
    Ok(Ok(()))
}
