//! Placements in words: for API fields and for people.

use solehold_core::{
    key::Name,
    placement::{Eviction, Holdup, Placement, Reason, Step, Unplaceable},
};

pub fn step_word(step: Step) -> &'static str {
    match step {
        Step::Keep => "keep",
        Step::Acquire => "acquire",
        Step::Move => "move",
        Step::Moving => "moving",
        Step::Later(_) => "later",
        Step::Nothing => "nothing",
    }
}

pub fn word(reason: &Reason) -> &'static str {
    match reason {
        Reason::Held => "held",
        Reason::Returned => "returned",
        Reason::AwaitsReturn => "awaits_return",
        Reason::Unowned => "unowned",
        Reason::Evicted(Eviction::Draining) => "draining",
        Reason::Evicted(Eviction::Maintenance) => "maintenance",
        Reason::Evicted(Eviction::Unfit) => "unfit",
        Reason::Evicted(Eviction::OverCapacity) => "over_capacity",
        Reason::Shift => "shift",
        Reason::FailedThere => "failed_there",
        Reason::Balance => "balance",
        Reason::MakesRoom => "makes_room",
        Reason::HandOver => "hand_over",
        Reason::StuckHandOver => "stuck_hand_over",
        Reason::Outsider => "outsider",
        Reason::NowhereElse(why) | Reason::Unplaceable(why) => unplaceable_word(why),
    }
}

fn unplaceable_word(why: &Unplaceable) -> &'static str {
    match why {
        Unplaceable::Quarantined => "quarantined",
        Unplaceable::NoRunner => "no_runner",
        Unplaceable::NoRunnerForKind(_) => "no_runner_for_kind",
        Unplaceable::NoRunnerAtSite(_) => "no_runner_at_site",
        Unplaceable::NoRunnerWithLabel { .. } => "no_runner_with_label",
        Unplaceable::NoRunnerWithCapability(_) => "no_runner_with_capability",
        Unplaceable::NoRunnerWithKey => "no_runner_with_key",
        Unplaceable::NoRunnerWithAll => "no_runner_with_all",
        Unplaceable::StaticRunnerAway(_) => "static_runner_away",
        Unplaceable::NoneAvailable => "none_available",
        Unplaceable::AllAtCapacity => "all_at_capacity",
    }
}

pub fn sentence(placement: &Placement) -> String {
    let holder = placement.holder.as_ref().map_or("no runner", Name::as_str);
    let target = placement.target.as_ref().map_or("no runner", Name::as_str);
    let what = match &placement.reason {
        Reason::Held => format!("{holder} holds it and has no more than its share"),
        Reason::Returned => format!("it is free; {target} held it last and is available"),
        Reason::AwaitsReturn => format!("it is free, waiting for {target}, which held it last, to return"),
        Reason::Unowned => format!("it is free; {target} should acquire it"),
        Reason::Evicted(why) => format!("{holder} {}; {target} should have it", eviction(*why)),
        Reason::Shift => format!("a shift between deployments moves it from {holder} to {target}"),
        Reason::FailedThere => format!("it failed on {holder}; {target} should try it"),
        Reason::Balance => format!("{holder} has more than its share, or {target} less; it goes to {target}"),
        Reason::MakesRoom => {
            format!(
                "it goes to {target}, so that {holder} has room for resources that no other runner can hold"
            )
        }
        Reason::HandOver => format!("{holder} hands it over to {target}"),
        Reason::StuckHandOver => {
            format!("a hand-over from {holder} has taken too long; {holder} keeps it")
        }
        Reason::Outsider => format!("{holder} holds it, which is not a registered runner"),
        Reason::NowhereElse(why) => {
            format!("{holder} keeps it, since no other runner can hold it: {}", unplaceable(why))
        }
        Reason::Unplaceable(why) => format!("it is placed nowhere: {}", unplaceable(why)),
    };
    match placement.step {
        Step::Later(Holdup::Budget) => format!("{what}, once fewer moves are in progress"),
        Step::Later(Holdup::Room) => format!("{what}, once there is room"),
        _ => what,
    }
}

fn eviction(why: Eviction) -> &'static str {
    match why {
        Eviction::Draining => "is draining",
        Eviction::Maintenance => "is under maintenance",
        Eviction::Unfit => {
            "does not meet its requirements, its API key may not hold it, or a static list names another runner"
        }
        Eviction::OverCapacity => "holds more than its capacity",
    }
}

fn unplaceable(why: &Unplaceable) -> String {
    match why {
        Unplaceable::Quarantined => "it is in quarantine, after too many failures or by request".into(),
        Unplaceable::NoRunner => "no runner is registered".into(),
        Unplaceable::NoRunnerForKind(kind) => format!("no runner works on the kind {kind}"),
        Unplaceable::NoRunnerAtSite(site) => format!("no runner serves the site {site}"),
        Unplaceable::NoRunnerWithLabel { label, value } => format!("no runner has the label {label}={value}"),
        Unplaceable::NoRunnerWithCapability(capability) => {
            format!("no runner has the capability {capability}")
        }
        Unplaceable::NoRunnerWithKey => "no runner has an API key that may hold it".into(),
        Unplaceable::NoRunnerWithAll => "no runner meets all of its requirements".into(),
        Unplaceable::StaticRunnerAway(runner) => {
            format!("a static list names {runner} for it, which is absent or takes no work")
        }
        Unplaceable::NoneAvailable => {
            "every runner that could hold it is draining, under maintenance, or has no live session".into()
        }
        Unplaceable::AllAtCapacity => "every runner that could hold it is full".into(),
    }
}
