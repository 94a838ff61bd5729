//! What the chain says about a payment request, and what follows.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use solehold_sql::{
    ClaimedRow, Observation, Observer, RowId,
    reconciler::{AppliedTransition, ObserverError},
};
use tokio_postgres::{Transaction, types::Type};
use uuid::Uuid;

use crate::chain::{Chain, PaymentStatus};

/// The only chain that there is here.
pub const CHAIN: &str = "simulated";

/// Looks at the chain; writes each change to the outbox.
#[derive(Debug)]
pub struct PaymentObserver {
    /// The chain.
    pub chain: Chain,
}

#[async_trait]
impl Observer for PaymentObserver {
    async fn observe(&self, row: &ClaimedRow) -> Result<Observation, ObserverError> {
        let chain: &str = row.get("chain")?;
        if chain != CHAIN {
            return Ok(Observation::Hopeless { reason: format!("there is no chain {chain:?} here") });
        }
        let created_at: SystemTime = row.get("created_at")?;
        let expires_at: SystemTime = row.get("expires_at")?;
        // Both times are the database's.
        let age = row.claimed_at.duration_since(created_at).unwrap_or(Duration::ZERO);
        // Whatever is wrong with the node, it is not the payment's fault.
        let seen = self.chain.look(row.get("address")?, age).await.map_err(ObserverError::unreachable)?;
        Ok(verdict(row.state.as_deref().unwrap_or_default(), seen, row.claimed_at >= expires_at))
    }

    async fn effects(
        &self,
        tx: &Transaction<'_>,
        applied: &[AppliedTransition<'_>],
    ) -> Result<(), ObserverError> {
        let ids: Vec<Uuid> = applied.iter().filter_map(|one| uuid(one.row.id())).collect();
        let froms: Vec<Option<&str>> = applied.iter().map(|one| one.transition.from()).collect();
        let tos: Vec<&str> = applied.iter().map(|one| one.transition.to()).collect();
        let epochs: Vec<i64> = applied.iter().map(|one| one.row.proof.epoch).collect();
        let workers: Vec<&str> = applied.iter().map(|one| one.row.proof.owner.as_str()).collect();
        let sql = "INSERT INTO app.payment_outbox (payment_request_id, from_status, to_status, epoch, worker_id) \
            SELECT * FROM unnest($1, $2, $3, $4, $5)";
        let texts = Type::TEXT_ARRAY;
        tx.execute_typed(
            sql,
            &[
                (&ids, Type::UUID_ARRAY),
                (&froms, texts.clone()),
                (&tos, texts.clone()),
                (&epochs, Type::INT8_ARRAY),
                (&workers, texts),
            ],
        )
        .await?;
        Ok(())
    }
}

fn uuid(id: &RowId) -> Option<Uuid> {
    if let RowId::Uuid(id) = id { Some(*id) } else { None }
}

/// A payment that arrived counts even after the deadline; one that is gone was reorganized away.
fn verdict(status: &str, seen: PaymentStatus, is_late: bool) -> Observation {
    match (status, seen) {
        (_, PaymentStatus::Final) => Observation::moved("confirmed"),
        ("pending" | "reorged", PaymentStatus::InBlock) => Observation::moved("detected"),
        ("detected", PaymentStatus::Unknown) => Observation::moved("reorged"),
        ("pending" | "reorged", PaymentStatus::Unknown) if is_late => Observation::moved("expired"),
        _ => Observation::Unchanged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        for (status, seen, is_late, expected) in [
            ("pending", PaymentStatus::Unknown, false, None),
            ("pending", PaymentStatus::Unknown, true, Some("expired")),
            ("pending", PaymentStatus::InBlock, true, Some("detected")),
            ("pending", PaymentStatus::Final, true, Some("confirmed")),
            ("detected", PaymentStatus::InBlock, true, None),
            ("detected", PaymentStatus::Unknown, true, Some("reorged")),
            ("reorged", PaymentStatus::Unknown, true, Some("expired")),
            ("reorged", PaymentStatus::InBlock, false, Some("detected")),
        ] {
            let expected = expected.map_or(Observation::Unchanged, Observation::moved);
            assert_eq!(verdict(status, seen, is_late), expected, "{status} {seen:?}");
        }
    }
}
