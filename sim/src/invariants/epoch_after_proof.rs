//! Who the group has given a partition to, and who has raised its epoch since, is not overtaken by a former owner:
//! nobody else raises the epoch until the group is rebalanced.

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct EpochAfterProof {
    assigned: u64,
    has_it: bool,
}

impl Invariant for EpochAfterProof {
    fn name(&self) -> &'static str {
        "the epoch of a partition is raised by no former owner"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        match &record.what {
            Happening::Assigned(member, _) => {
                self.assigned = *member;
                self.has_it = false;
            }
            Happening::Raised(member, _) if *member == self.assigned => self.has_it = true,
            Happening::Raised(member, epoch) if self.has_it => {
                let owner = self.assigned;
                return Err(format!(
                    "member {member} raises the epoch to {epoch}, and member {owner} has it"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}
