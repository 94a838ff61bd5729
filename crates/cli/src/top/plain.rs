//! One page of plain text, where there is no terminal.

use super::{model::Top, rows};
use crate::{human::count, output};

/// Events on the page.
const EVENTS_SHOWN: usize = 10;

pub fn page(top: &Top, now_ms: u64) -> String {
    let store_ms = top.board().store_ms(now_ms);
    let resources = top.resources();
    let runners = top.runners();
    let mut events = top.events();
    events.truncate(EVENTS_SHOWN);
    let mut text = format!("{}\n", headline(top));
    if !top.filter.is_empty() {
        text += &format!("only lines with {:?}\n", top.filter);
    }
    let mut add = |title: &str, table: String, is_empty: bool| {
        text += &format!("\n{title}\n");
        text += if is_empty { "none\n" } else { &table };
    };
    let lines = resources.iter().map(|row| rows::resource_row(row, store_ms)).collect();
    add("Resources", output::table(rows::RESOURCE_COLUMNS, &["TOKEN"], lines), resources.is_empty());
    let lines = runners.iter().map(|runner| rows::runner_row(runner, store_ms)).collect();
    add("Runners", output::table(rows::RUNNER_COLUMNS, &["LOAD"], lines), runners.is_empty());
    let lines = events.iter().map(|event| rows::event_row(event)).collect();
    add("Last events", output::table(rows::EVENT_COLUMNS, &[], lines), events.is_empty());
    text
}

/// Which server, and how much there is.
pub fn headline(top: &Top) -> String {
    let board = top.board();
    let resources = count(board.len(), "resource");
    let cursor = board.cursor().map_or_else(String::new, |cursor| format!(", cursor {cursor}"));
    format!("{}: {resources}, {} held{cursor}", top.server, board.held())
}
