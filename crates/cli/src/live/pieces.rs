//! Pieces of views that several of them have.

use ratatui::{
    style::{Color, Modifier, Style},
    text::{Line as TextLine, Span},
};
use solehold_api::watch::LeaseEvent;
use solehold_core::event::EventName;

use crate::{commands::watch, human::one_line};

pub const HEADING: Style = Style::new().add_modifier(Modifier::BOLD);
pub const QUIET: Style = Style::new().fg(Color::DarkGray);
pub const GOOD: Style = Style::new().fg(Color::Green);
pub const CHANGING: Style = Style::new().fg(Color::Yellow);
pub const BAD: Style = Style::new().fg(Color::Red);
pub const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// What is shown is old: nobody should miss that.
pub const OLD: Style = Style::new().fg(Color::Black).bg(Color::Yellow).add_modifier(Modifier::BOLD);

pub fn event_style(name: EventName) -> Style {
    match name {
        EventName::LeaseAcquired => GOOD,
        EventName::LeasePending | EventName::LeaseReleased => CHANGING,
        EventName::LeaseExpired | EventName::LeaseRevoked | EventName::LeaseStolen => BAD,
        _ => Style::new(),
    }
}

/// Time, name, resource, holder with token, and details.
pub fn event_parts(event: &LeaseEvent) -> [String; 5] {
    let time = event.timestamp.to_string();
    let holder = event.holder.as_ref().map_or_else(String::new, |holder| format!("{holder}  "));
    let token = event.token.map_or_else(String::new, |token| format!("token {token}  "));
    [
        clock(&time).to_owned(),
        event.event_type.to_string(),
        one_line(&format!("{}/{}", event.kind, event.key)),
        one_line(&format!("{token}{holder}")),
        watch::details(event),
    ]
}

/// The time of day of `2026-11-17T05:31:01.915Z`, in UTC.
pub fn clock(time: &str) -> &str {
    time.get(11..23).unwrap_or(time)
}

/// Keys and what they do, for the last line of a view.
pub fn keys(pairs: &[(&str, &str)]) -> TextLine<'static> {
    let spans = pairs.iter().flat_map(|(key, what)| {
        [Span::styled(format!(" {key} "), SELECTED), Span::raw(format!(" {what}  "))]
    });
    TextLine::from(spans.collect::<Vec<_>>())
}
