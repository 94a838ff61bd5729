//! How the demo looks on a terminal.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line as TextLine, Span},
    widgets::{Block, Paragraph},
};
use solehold_api::time::Timestamp;
use solehold_core::time::StoreTime;

use super::{
    RESOURCES,
    model::{DemoModel, RunnerState, Tone},
};
use crate::{
    human::{duration_ms, one_line},
    live::pieces::{self, BAD, CHANGING, GOOD, HEADING, OLD, QUIET, SELECTED},
};

/// How long a counter that has changed hands stands out.
const FRESH_MS: u64 = 2_000;
/// Incidents that are shown while they are under way.
const UNDER_WAY_MAX: usize = 3;

pub fn draw(frame: &mut Frame<'_>, model: &DemoModel, now_ms: u64) {
    let rows = u16::try_from(model.runners.len()).unwrap_or(u16::MAX).saturating_add(3);
    let under_way = under_way(model, now_ms);
    let parts = [
        Constraint::Length(2),
        Constraint::Length(rows),
        Constraint::Length(u16::try_from(under_way.len()).unwrap_or_default()),
        Constraint::Min(3),
        Constraint::Length(2),
    ];
    let [head, map, now, notes, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(model, now_ms)), head);
    draw_map(frame, model, map, now_ms);
    frame.render_widget(Paragraph::new(under_way), now);
    draw_notes(frame, model, notes);
    frame.render_widget(Paragraph::new(foot_lines()), foot);
}

fn head_lines(model: &DemoModel, now_ms: u64) -> Vec<TextLine<'static>> {
    let plane = match (model.cut_ms, model.is_heard) {
        (Some(at), _) => {
            let since = duration_ms(now_ms.saturating_sub(at));
            Span::styled(format!(" control plane cut for {since}: the map is old "), OLD)
        }
        (None, false) => Span::styled(" no server is heard: the map is old ", OLD),
        (None, true) => Span::styled("control plane up", GOOD),
    };
    let refused = model.refused.len();
    let refused_style = if refused > 0 { CHANGING } else { QUIET };
    let violations = model.violations.len();
    let mut counts = vec![
        Span::raw(format!("writes: {} let through, ", model.written)),
        Span::styled(format!("{refused} refused by the gate"), refused_style),
    ];
    if violations > 0 {
        counts.push(Span::styled(format!(", {violations} THAT MUST NOT BE"), BAD));
    }
    vec![
        TextLine::from(vec![
            Span::styled("solehold demo", HEADING),
            Span::raw(format!("  dashboard {}  ", model.dashboard)),
            plane,
        ]),
        TextLine::from(counts),
    ]
}

fn draw_map(frame: &mut Frame<'_>, model: &DemoModel, area: Rect, now_ms: u64) {
    let store_ms = model.board.store_ms(now_ms);
    let mut lines = Vec::new();
    for (at, (name, state)) in model.runners.iter().enumerate() {
        let mut spans = vec![Span::raw(if at == model.selected { "> " } else { "  " })];
        let style = if at == model.selected { SELECTED } else { Style::new() };
        spans.push(Span::styled(format!("{name:<10}"), style));
        spans.push(Span::styled(format!(" {:<9}", state.word()), state_style(*state)));
        spans.extend(cells(model, Some(name), store_ms, state_style(*state)));
        lines.push(TextLine::from(spans));
    }
    let mut spans = vec![Span::styled("  nobody              ", QUIET)];
    spans.extend(cells(model, None, store_ms, BAD));
    lines.push(TextLine::from(spans));
    let title = format!(" Who owns what: {} of {RESOURCES} counters have an owner ", model.board.held());
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), area);
}

fn state_style(state: RunnerState) -> Style {
    match state {
        RunnerState::Working => GOOD,
        RunnerState::Paused | RunnerState::Draining => CHANGING,
        RunnerState::Ended => QUIET,
        RunnerState::Killed => BAD,
    }
}

/// How many, and which; those that have just changed hands stand out.
fn cells(model: &DemoModel, runner: Option<&str>, store_ms: u64, style: Style) -> Vec<Span<'static>> {
    let rows: Vec<_> = model.board.rows().filter(|row| row.holder.as_deref() == runner).collect();
    let mut spans = vec![Span::raw(format!(" {:>2}  ", rows.len()))];
    for row in rows {
        let is_fresh = row.changed_ms.is_some_and(|at| store_ms.saturating_sub(at) < FRESH_MS);
        let style = if is_fresh || row.next.is_some() { style.patch(SELECTED) } else { style };
        spans.push(Span::styled(one_line(&row.key), style));
        spans.push(Span::raw(" "));
    }
    spans
}

fn under_way(model: &DemoModel, now_ms: u64) -> Vec<TextLine<'static>> {
    let store_ms = model.board.store_ms(now_ms);
    let open = model.incidents.iter().rev().filter(|incident| !incident.is_over()).take(UNDER_WAY_MAX);
    open.map(|incident| TextLine::styled(format!("  ... {}", incident.summary(store_ms)), CHANGING)).collect()
}

fn draw_notes(frame: &mut Frame<'_>, model: &DemoModel, area: Rect) {
    let height = usize::from(area.height.saturating_sub(2));
    let lines = model.notes().take(height).map(|note| {
        let style = match note.tone {
            Tone::Plain => Style::new(),
            Tone::Good => GOOD,
            Tone::Warn => CHANGING,
            Tone::Bad => BAD,
        };
        let time = Timestamp::from(StoreTime(note.at_ms)).to_string();
        TextLine::from(vec![
            Span::styled(format!("{} ", pieces::clock(&time)), QUIET),
            Span::styled(one_line(&note.text), style),
        ])
    });
    let block = Block::bordered().title(" What happened, the newest first (UTC) ");
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}

fn foot_lines() -> Vec<TextLine<'static>> {
    vec![
        pieces::keys(&[("up/down", "choose a runner"), ("k", "kill"), ("p", "pause"), ("d", "drain")]),
        pieces::keys(&[
            ("b", "let a paused one come back"),
            ("a", "add a runner"),
            ("c", "cut/restore the server"),
            ("q", "quit"),
        ]),
    ]
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::demo::model::{
        Deed, DemoInput,
        tests::{shown, write},
    };

    const WIDTH: u16 = 110;

    fn screen(model: &DemoModel, now_ms: u64) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(WIDTH, 20)).expect("a screen in memory");
        terminal.draw(|frame| draw(frame, model, now_ms)).expect("it draws");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..WIDTH).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..20).map(line).collect()
    }

    #[test]
    fn the_map_shows_who_owns_what() {
        let mut model = shown();
        write(&mut model, "r1", 3, None);
        write(&mut model, "r2", 2, Some(3));
        let lines = screen(&model, 11_000);
        assert!(lines[0].contains("dashboard http://127.0.0.1:7070/  control plane up"), "{lines:?}");
        assert_eq!(lines[1], "writes: 1 let through, 1 refused by the gate");
        assert!(lines[2].contains("2 of 24 counters have an owner"), "{lines:?}");
        assert!(lines[3].contains("> r1         working    1  01"), "{lines:?}");
        assert!(lines[4].contains("  r2         working    1  02"), "{lines:?}");
        assert!(lines[5].contains("nobody") && lines[5].contains(" 1  03"), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("the gate refused r2")), "{lines:?}");
    }

    #[test]
    fn what_is_under_way_and_what_is_old_are_shown() {
        let mut model = shown();
        model.update(DemoInput::Done(Deed::Kill("r1".to_owned())), 11_000);
        model.update(DemoInput::Done(Deed::Cut), 12_000);
        let lines = screen(&model, 13_000);
        assert!(lines[0].contains("control plane cut for 1s: the map is old"), "{lines:?}");
        assert!(
            lines.iter().any(|line| line == "  ... r1 killed 2s ago: 0 of 1 counter taken over"),
            "{lines:?}"
        );
    }
}
