//! What must hold after every command; one property a file.

mod activation;
mod answers;
mod capacity;
mod claims;
mod deadlines;
mod deterministic;
mod events_are_in_order;
mod footprint;
mod keys;
mod lease_count;
mod lease_index;
mod moves;
mod news;
mod one_holder;
mod present_sessions;
mod refusals;
mod removal;
mod requests;
mod sharing;
mod state_sequence;
mod stolen;
mod superseded;
mod tenants;
mod token_monotonic;
mod waiting;

use crate::step::Invariant;

pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(one_holder::at_most_one_live_holder),
        Box::new(one_holder::no_grant_while_another_may_work),
        Box::<token_monotonic::TokensGrowAndAreNeverUsedTwice>::default(),
        Box::new(events_are_in_order::revisions_have_no_gaps),
        Box::new(deterministic::the_same_twice),
        Box::new(lease_count::is_what_hangs_on_the_session),
        Box::<lease_index::NamesEveryLeaseAndNoFormerOne>::default(),
        Box::new(capacity::is_never_exceeded),
        Box::new(moves::are_counted_and_keep_to_the_budget),
        Box::new(moves::move_the_sets_of_both_sides),
        Box::new(refusals::change_only_what_time_had_decided),
        Box::new(refusals::name_the_live_holder),
        Box::new(deadlines::never_move_earlier),
        Box::new(deadlines::are_as_promised),
        Box::new(news::renewals_are_nobodys),
        Box::new(footprint::holds_all_that_is_read_or_changed),
        Box::new(activation::is_in_the_same_commit),
        Box::<requests::NeverLeadToTwoGrants>::default(),
        Box::new(requests::are_cancelled_one_at_a_time),
        Box::new(claims::are_of_the_live_lease),
        Box::new(superseded::renews_nothing),
        Box::new(superseded::is_no_answer_to_an_acquire),
        Box::new(removal::by_name_alone_releases_nothing),
        Box::new(present_sessions::rows_name_rows_that_exist),
        Box::<state_sequence::GrowsUnderOneToken>::default(),
        Box::new(stolen::stands_between_expired_and_acquired),
        Box::new(answers::say_what_is_stored),
        Box::new(tenants::keep_to_themselves),
        Box::new(keys::touch_only_what_is_theirs),
        Box::new(keys::own_their_sessions_leases),
        Box::new(keys::are_named_by_what_they_did),
        Box::new(sharing::is_counted),
        Box::new(sharing::keeps_to_the_number_of_slots),
        Box::new(sharing::excludes_who_wants_it_alone),
        Box::new(waiting::is_first_come_first_served),
        Box::new(waiting::ends_with_what_is_free),
        Box::new(waiting::lasts_as_promised),
        Box::new(waiting::is_counted),
        Box::<waiting::WhoLeftGetsNothing>::default(),
    ]
}
