//! Renewals, for relays that are configured to send them: live, by the replica that served them, without retries
//! (rule 19).

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use solehold_api::watch::Cursor;
use solehold_core::outcome::LeaseView;
use solehold_engine::watch::{Filter, Frame, Watch};

use super::{Message, Relay, sites::site_of, window::Failure};
use crate::metrics::RelayCount;

/// Renewals that are sent and not confirmed; further ones are dropped.
const IN_FLIGHT_MAX: usize = 64;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Publishes the renewals of this replica. Renewals that cannot be sent at once are dropped, and counted.
pub async fn publish(relay: std::sync::Arc<Relay>) {
    loop {
        if let Some(watch) = open(&relay).await {
            forward(&relay, watch).await;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

async fn open(relay: &Relay) -> Option<Watch> {
    let tenant = relay.config.tenant.clone();
    let kind = relay.config.kind.clone();
    let filter = Filter { tenant, kind, renewals: true, ..Default::default() };
    let at = relay.engine.cursor();
    let watch = relay.engine.watch(Some(at), filter).await;
    watch.inspect_err(|error| tracing::debug!(%error, "cannot watch renewals; retrying")).ok()
}

async fn forward(relay: &Relay, mut watch: Watch) {
    let mut in_flight = FuturesUnordered::new();
    loop {
        tokio::select! {
            frame = watch.next() => match frame {
                Some(Frame::Renewed(lease)) if !relay.wants(&lease.key) => {}
                Some(Frame::Renewed(_)) if in_flight.len() >= IN_FLIGHT_MAX => count(relay, false),
                Some(Frame::Renewed(lease)) => {
                    let at = watch.cursor();
                    let cursor = Cursor { epoch: at.epoch, revision: at.revision.0 };
                    in_flight.push(send(relay, lease, cursor));
                }
                Some(Frame::Compacted { .. }) | None => return,
                Some(_) => {}
            },
            Some(sent) = in_flight.next() => count(relay, sent.is_ok()),
        }
    }
}

async fn send(relay: &Relay, lease: Box<LeaseView>, cursor: Cursor) -> Result<(), Failure> {
    // Read each time: a cache would not be updated here, since only the active replica reads declarations.
    let site = site_of(&relay.engine, &lease.key).await;
    let site = site.map_err(|error| Failure::Away(error.to_string()))?;
    relay.destination.publish(&Message::renewed(&lease, cursor, site)).await
}

fn count(relay: &Relay, is_sent: bool) {
    let what = if is_sent { RelayCount::RenewalSent } else { RelayCount::RenewalLeftOut };
    relay.metrics.relay(relay.name(), what);
}
