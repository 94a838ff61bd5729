//! What must hold in every world, one to a file. Each reads the records as they are written, and nothing else.

mod acknowledged_last;
mod capacity;
mod effects_in_order;
mod ends_in_time;
mod epoch_after_proof;
mod events_once;
mod gate_knows;
mod granted_once;
mod jobs_in_order;
mod one_at_a_time;
mod plan_for_holder;
mod promises;
mod released_after_work;
mod sink_order;
mod tokens_grow;
mod window_fenced;
mod window_order;
mod work_is_done;
mod worked_on;

use std::time::Duration;

use crate::chronicle::{Record, Working};

pub trait Invariant: Send {
    /// What must hold, in a few words.
    fn name(&self) -> &'static str;

    /// Judges what has happened; the error says what is wrong.
    fn see(&mut self, _record: &Record) -> Result<(), String> {
        Ok(())
    }

    /// Judges who works at this moment.
    fn look(&mut self, _at: Duration, _working: &[&Working]) -> Result<(), String> {
        Ok(())
    }
}

pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(one_at_a_time::OneAtATime),
        Box::<sink_order::SinkOrder>::default(),
        Box::<gate_knows::GateKnows>::default(),
        Box::<tokens_grow::TokensGrow>::default(),
        Box::<granted_once::GrantedOnce>::default(),
        Box::<capacity::Capacity>::default(),
        Box::<promises::Promises>::default(),
        Box::<released_after_work::ReleasedAfterWork>::default(),
        Box::<ends_in_time::EndsInTime>::default(),
        Box::<events_once::EventsOnce>::default(),
        Box::<plan_for_holder::PlanForHolder>::default(),
        Box::<acknowledged_last::AcknowledgedLast>::default(),
        Box::<window_fenced::WindowFenced>::default(),
        Box::<window_order::WindowOrder>::default(),
        Box::<effects_in_order::EffectsInOrder>::default(),
        Box::<epoch_after_proof::EpochAfterProof>::default(),
        Box::<jobs_in_order::JobsInOrder>::default(),
        Box::new(work_is_done::WorkIsDone),
        Box::new(worked_on::WorkedOn),
    ]
}
