//! The suite that every store must pass: one set of cases, thin fixtures.
//!
//! A store's own test file says how it is opened, and that is all:
//!
//! ```ignore
//! use solehold_conformance::Fixture;
//!
//! struct Mine { /* a temporary folder, a database of its own ... */ }
//!
//! #[async_trait::async_trait]
//! impl Fixture for Mine {
//!     async fn open(&self) -> Arc<dyn Store> { /* the fixture's one store; called again after close: a restart */ }
//!     async fn open_fresh(&self) -> Arc<dyn Store> { /* yet another store, empty */ }
//! }
//!
//! solehold_conformance::suite!(Mine::new().await);
//! ```
//!
//! [`suite!`] makes one `#[tokio::test]` of each case, in modules named like the ones below; the
//! expression is evaluated in each test, so that no two share a store. A case that fails is run alone by its name:
//! `cargo test -p solehold-engine --test memory lease::renew_after_expiry`.
//!
//! Most cases work straight on the [`Store`], batch by batch, since nothing moves there unless the case moves it; those
//! about running (sweeping, watching, racing) start an engine over it.

pub mod batch;
pub mod ending;
pub mod find;
pub mod handover;
pub mod history;
pub mod kit;
pub mod lease;
pub mod model;
pub mod moving;
pub mod news;
pub mod request;
pub mod restart;
pub mod session;
pub mod sharing;
pub mod sweep;
pub mod waiting;
pub mod watching;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use solehold_core::{command::Footprint, time::StoreTime};
use solehold_testkit::wait_for;

use solehold_engine::store::Store;

/// How a store under test is opened and how its time passes.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Opens the fixture's store: empty the first time. Called again after [`Store::close`], it is the same store after
    /// a restart of its process.
    async fn open(&self) -> Arc<dyn Store>;

    /// Opens another store of the same sort, empty.
    async fn open_fresh(&self) -> Arc<dyn Store>;

    /// Whether a store that is opened again has what it had.
    fn is_durable(&self) -> bool {
        true
    }

    /// Lets store time pass until `until`. A store whose clock cannot be moved is waited for.
    async fn pass_until(&self, store: &dyn Store, until: StoreTime) {
        let reached = wait_for("store time to pass", Duration::from_secs(120), || async {
            store.load(&Footprint::default()).await.is_ok_and(|loaded| loaded.now >= until)
        });
        reached.await.expect("store time goes on");
    }
}

/// Makes a test of every case of the suite, over a fixture that the expression makes anew for each. After `forgetful`,
/// those about a restart are left out.
#[macro_export]
macro_rules! suite {
    ($fixture:expr) => {
        $crate::suite! { forgetful $fixture }
        $crate::suite! { @cases $fixture;
            restart {
                reopen_keeps_everything, reopen_keeps_time_left, tokens_grow_through_reopen,
                a_line_outlives_a_restart, across_a_restart
            }
        }
    };
    (forgetful $fixture:expr) => {
        $crate::suite! { @cases $fixture;
            lease {
                life, second_acquirer_is_refused, renewals_are_nobodys_news, renew_after_expiry, release_with_an_old_token,
                found_by_id, other_tenants_see_nothing, takeover_of_an_unswept_lease, proof_is_needed, undeclared_or_refused,
                bounds_are_refused, attributes_and_stats_are_kept
            }
            session {
                heartbeat_keeps_a_hundred_leases, close_releases_all, supersede, replace, replace_fenced, capacity,
                capacity_by_name, draining, remove_holder, heard_of_by_name, restarted_holder_renews_nothing
            }
            request {
                repeat_gets_the_same_grant, spent_after_release, cancel_before_it_was_seen, cancel_releases,
                spent_after_expiry, scope, another_key_displaces_no_spent_request, unseen_cancellations_are_bounded
            }
            batch {
                same_resource_twice, session_and_lease_in_one, found_in_one_batch, two_hundred_acquirers_one_wins,
                a_thousand_in_few_batches, heartbeats_race_expiry, nothing_by_halves
            }
            handover {
                state_goes_to_the_next_holder, state_sequence, release_with_final_state, activation_on_release,
                activation_on_expiry, pending_lapses, pending_of_a_dead_session, at_most_one, the_move_budget,
                called_off
            }
            ending {
                revoke_holds_back, revoke_fenced, delete_refused_while_held, delete_by_force,
                hold_back_survives_declaring_anew, lock_delay, tokens_grow, raise_revision
            }
            find {
                every_filter, of_every_tenant, pages_in_byte_order, holders, records,
                a_note_commits_with_its_command, usage
            }
            history {
                pages, of_a_lease_and_of_a_resource, after_the_head, news_wakes, retention, unsent_events_stay,
                renewals_leave_no_trace
            }
            sweep {
                due_is_exact, due_pendings, due_sessions, mass_expiry_in_bounded_steps, engine_sweeps,
                maintain_forgets, hold_back_ends_in_activation
            }
            moving {
                export_and_import, import_into_memory, import_refused, cut_off_export,
                import_of_a_store_that_may_live_on_jumps_and_bars,
                an_export_under_way_is_in_nobodys_way
            }
            waiting {
                first_come_first_served, whatever_ends_a_lease, unconfirmed_grants_lapse, a_dead_room_is_skipped,
                the_same_request_keeps_its_place, leaving, hand_over_and_delete, rooms_are_nobodys,
                a_long_line_is_not_loaded, an_engine_waits, dropping_leaves_the_line,
                a_lost_room_is_opened_anew, a_cleared_place_is_noticed, many_in_order
            }
            sharing {
                as_many_as_there_are_slots, alone_or_shared, in_one_line, a_slot_is_held_back,
                a_slot_raises_the_last_token, by_key_and_token,
                sessions_and_requests, all_or_none, slots_of_a_deleted_resource
            }
            watching {
                snapshot_then_events, no_gap_no_double, slow_watcher, resume_from_a_cursor, compacted, filter, renewals,
                progress, ahead_of_history, a_snapshot_under_way_is_in_nobodys_way
            }
            news {
                holders_are_told_of_what_others_do, late_askers_are_told_by_the_rows,
                a_superseded_session_is_notified
            }
            model {
                random_commands, random_batches
            }
        }
    };
    (@cases $fixture:expr; $($module:ident { $($case:ident),* $(,)? })*) => {
        $(
            mod $module {
                #[allow(unused_imports)]
                use super::*;
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        $crate::$module::$case(&$fixture).await;
                    }
                )*
            }
        )*
    };
}
