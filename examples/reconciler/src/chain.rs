//! A simulated chain: the fate of a payment follows from its address and its age, so every replica sees the same chain.
//! Its node is as bad as a real one: it answers late, not at all, or with rubbish.

use std::{hash::BuildHasher, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// The chain, and how badly its node behaves.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The time between two blocks.
    pub block: Duration,
    /// How many of 100 questions go wrong.
    pub faults_percent: u32,
    /// How long an answer takes, at most.
    pub latency: Duration,
    /// The node is away while this file exists.
    pub away_file: Option<PathBuf>,
}

/// No usable answer from the node. It says nothing about the payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeError(pub String);

impl std::fmt::Display for NodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NodeError {}

/// What happens to a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Paid in this block, final two blocks later.
    Paid {
        /// Blocks after the request was made.
        at: u32,
    },
    /// Paid in this block, thrown out by a reorganization one block later, paid again after another, final two blocks
    /// after that.
    Reorged {
        /// Blocks after the request was made.
        at: u32,
    },
    /// Never paid.
    Unpaid,
}

/// Blocks until a payment is final.
const FINALITY: u32 = 2;
/// By then every payment that is made has been seen.
pub const PAID_WITHIN_BLOCKS: u32 = 6;

impl Fate {
    /// The fate of an address: 7 in 10 are paid, 1 is reorganized, 2 are never paid.
    pub fn of(address: &str) -> Self {
        let hash = blake3::hash(address.as_bytes());
        let at = 1 + u32::from(hash.as_bytes()[1]) % 3;
        match hash.as_bytes()[0] % 10 {
            0..=6 => Self::Paid { at },
            7 => Self::Reorged { at },
            _ => Self::Unpaid,
        }
    }

    /// The state in which a payment of this fate ends.
    pub fn ends(self) -> &'static str {
        if self == Self::Unpaid { "expired" } else { "confirmed" }
    }

    /// Confirmations at this age; none if the chain does not have the payment, or no longer has it.
    fn confirmations(self, age: u32) -> Option<u32> {
        match self {
            Self::Paid { at } => age.checked_sub(at),
            Self::Reorged { at } if age == at => Some(0),
            Self::Reorged { at } => age.checked_sub(at + 2),
            Self::Unpaid => None,
        }
    }
}

/// What a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentStatus {
    /// The chain does not know the payment.
    Unknown,
    /// It is in a block that may still be thrown out.
    InBlock,
    /// It is final.
    Final,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    address: String,
    seen: PaymentStatus,
}

impl Chain {
    /// Asks the node, and reads its answer.
    pub async fn look(&self, address: &str, age: Duration) -> Result<PaymentStatus, NodeError> {
        let text = self.ask(address, age).await?;
        let answer: Answer = serde_json::from_str(&text)
            .map_err(|error| NodeError(format!("the node's answer is malformed: {error}")))?;
        if answer.address != address {
            return Err(NodeError(format!("the node answered about {}, not {address}", answer.address)));
        }
        Ok(answer.seen)
    }

    /// What the node answers, as it sends it.
    pub async fn ask(&self, address: &str, age: Duration) -> Result<String, NodeError> {
        if self.away_file.as_ref().is_some_and(|file| file.exists()) {
            return Err(NodeError("the node is away".into()));
        }
        let luck = std::hash::RandomState::new().hash_one(address);
        tokio::time::sleep(self.latency.mul_f64((luck >> 40) as f64 / f64::from(1 << 24))).await;
        let blocks = (age.as_secs_f64() / self.block.as_secs_f64()) as u32;
        let seen = match Fate::of(address).confirmations(blocks) {
            None => PaymentStatus::Unknown,
            Some(confirmations) if confirmations < FINALITY => PaymentStatus::InBlock,
            Some(_) => PaymentStatus::Final,
        };
        let answer = serde_json::to_string(&Answer { address: address.to_owned(), seen })
            .map_err(|error| NodeError(error.to_string()))?;
        if (luck % 100) as u32 >= self.faults_percent {
            return Ok(answer);
        }
        match luck / 100 % 3 {
            0 => Err(NodeError("the node did not answer".into())),
            1 => Ok(answer[..answer.len() / 2].to_owned()),
            _ => Ok("{\"address\": \"somebody else\", \"seen\": \"final\"}".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fate_ends() {
        let fates: Vec<Fate> = (0..1000).map(|i| Fate::of(&format!("address-{i}"))).collect();
        assert!(
            fates.iter().any(|fate| matches!(fate, Fate::Reorged { .. })) && fates.contains(&Fate::Unpaid)
        );
        for fate in fates.into_iter().filter(|fate| *fate != Fate::Unpaid) {
            assert!(fate.confirmations(PAID_WITHIN_BLOCKS).is_some());
        }
        let reorged: Vec<_> = (0..7).map(|age| Fate::Reorged { at: 2 }.confirmations(age)).collect();
        assert_eq!(reorged, [None, None, Some(0), None, Some(0), Some(1), Some(2)]);
    }

    #[tokio::test]
    async fn a_bad_node_is_not_believed() {
        let chain = Chain {
            block: Duration::from_secs(1),
            faults_percent: 100,
            latency: Duration::ZERO,
            away_file: None,
        };
        for _ in 0..50 {
            assert!(chain.look("address-1", Duration::from_secs(100)).await.is_err());
        }
    }
}
