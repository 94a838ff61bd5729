//! Which lines are shown, in which order, and what is in them.

use std::cmp::Reverse;

use solehold_api::{runners::Runner, watch::LeaseEvent};

use super::model::Sort;
use crate::{
    commands::runner,
    human::{ago, duration_ms, one_line},
    live::{board::Holding, pieces},
    output::or_dash,
};

pub const RESOURCE_COLUMNS: [&str; 5] = ["RESOURCE", "HOLDER", "TOKEN", "EXPIRES", "LAST CHANGE"];
pub const RUNNER_COLUMNS: [&str; 5] = ["RUNNER", "STATUS", "LOAD", "LAST SEEN", "DEPLOYMENT"];
pub const EVENT_COLUMNS: [&str; 5] = ["TIME (UTC)", "EVENT", "RESOURCE", "HOLDER", "DETAILS"];

/// Whether one of the texts has the filter in it, whatever the case.
fn contains<'a>(texts: impl IntoIterator<Item = &'a str>, filter: &str) -> bool {
    let filter = filter.to_lowercase();
    texts.into_iter().any(|text| text.to_lowercase().contains(&filter))
}

pub fn has(row: &Holding, filter: &str) -> bool {
    contains([row.name().as_str(), row.holder.as_deref().unwrap_or("nobody")], filter)
}

pub fn runner_has(runner: &Runner, filter: &str) -> bool {
    contains([runner.runner_id.as_str(), runner::word(runner.status), &runner::deployment(runner)], filter)
}

pub fn event_has(event: &LeaseEvent, filter: &str) -> bool {
    let resource = format!("{}/{}", event.kind, event.key);
    contains(
        [resource.as_str(), event.event_type.as_str(), event.holder.as_deref().unwrap_or_default()],
        filter,
    )
}

/// By name where the column says nothing.
pub fn sorted(mut rows: Vec<&Holding>, sort: Sort, is_reversed: bool) -> Vec<&Holding> {
    match sort {
        Sort::Name => {}
        Sort::Holder => rows.sort_by(|a, b| a.holder.cmp(&b.holder)),
        Sort::Token => rows.sort_by_key(|row| Reverse(row.token)),
        Sort::Expires => rows.sort_by_key(|row| row.expires_ms.unwrap_or(u64::MAX)),
    }
    if is_reversed {
        rows.reverse();
    }
    rows
}

pub fn sorted_runners(mut runners: Vec<&Runner>, sort: Sort, is_reversed: bool) -> Vec<&Runner> {
    runners.sort_by(|a, b| a.runner_id.cmp(&b.runner_id));
    match sort {
        Sort::Name | Sort::Token => {}
        Sort::Holder => runners.sort_by_key(|runner| Reverse(runner.held)),
        Sort::Expires => runners.sort_by_key(|runner| runner.last_heartbeat),
    }
    if is_reversed {
        runners.reverse();
    }
    runners
}

/// A resource, at this time of the store.
pub fn resource_row(row: &Holding, store_ms: u64) -> [String; 5] {
    let expires = match (&row.holder, row.expires_ms) {
        (Some(_), Some(until)) if until > store_ms => format!("in {}", duration_ms(until - store_ms)),
        (Some(_), Some(_)) => "due".to_owned(),
        _ => "-".to_owned(),
    };
    let holder = match (&row.holder, &row.next) {
        (None, _) => "nobody".to_owned(),
        (Some(holder), None) => holder.clone(),
        (Some(holder), Some(next)) => format!("{holder} > {next}"),
    };
    let token = Some(row.token).filter(|token| *token > 0);
    let changed = row.changed_ms.map(|at| format!("{} ago", duration_ms(store_ms.saturating_sub(at))));
    [one_line(&row.name()), one_line(&holder), or_dash(token), expires, or_dash(changed)]
}

pub fn runner_row(runner: &Runner, store_ms: u64) -> [String; 5] {
    [
        one_line(&runner.runner_id),
        runner::word(runner.status).to_owned(),
        format!("{}/{}", runner.held, runner.about.capacity),
        ago(runner.last_heartbeat, store_ms),
        one_line(&runner::deployment(runner)),
    ]
}

pub fn event_row(event: &LeaseEvent) -> [String; 5] {
    pieces::event_parts(event).map(|part| part.trim_end().to_owned())
}
