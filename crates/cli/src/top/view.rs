//! How `solehold top` looks.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line as TextLine, Span},
    widgets::{Block, Paragraph, Row, Table as TableWidget, TableState},
};

use super::{
    model::{StoryPage, Subject, Top, TopTab},
    plain, rows,
};
use crate::{
    human::{duration_ms, one_line},
    live::pieces::{self, BAD, CHANGING, HEADING, OLD, QUIET, SELECTED},
};

pub fn draw(frame: &mut Frame<'_>, top: &mut Top, now_ms: u64) {
    let old = top.is_old(now_ms);
    let banner = if old.is_some() { 1 } else { 0 };
    let parts = [
        Constraint::Length(1),
        Constraint::Length(banner),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [head, warning, tabs, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(plain::headline(top)).style(HEADING), head);
    if let Some((age_ms, why)) = old {
        let text = format!(
            " OLD: this is how it was {} ago, because {}; trying again",
            duration_ms(age_ms),
            one_line(&why)
        );
        frame.render_widget(Paragraph::new(text).style(OLD), warning);
    }
    frame.render_widget(Paragraph::new(tab_line(top)), tabs);
    let is_story = top.story.is_some();
    match &mut top.story {
        Some(story) => draw_story(frame, story, body),
        None => draw_table(frame, top, body, now_ms),
    }
    frame.render_widget(Paragraph::new(foot_line(top, is_story)), foot);
}

fn tab_line(top: &Top) -> TextLine<'static> {
    let mut spans = Vec::new();
    for (at, tab) in (1..).zip(TopTab::ALL) {
        let style = if tab == top.tab { SELECTED } else { QUIET };
        spans.push(Span::styled(format!(" {at} {} ", tab.title()), style));
        spans.push(Span::raw(" "));
    }
    let direction = if top.is_reversed { ", reversed" } else { "" };
    if top.tab != TopTab::Events {
        spans.push(Span::styled(format!(" by {}{direction}", top.sort.word()), QUIET));
    }
    if top.is_typing || !top.filter.is_empty() {
        let caret = if top.is_typing { "_" } else { "" };
        spans.push(Span::styled(format!("  /{}{caret}", one_line(&top.filter)), CHANGING));
    }
    TextLine::from(spans)
}

fn foot_line(top: &Top, is_story: bool) -> TextLine<'static> {
    if top.is_typing {
        return pieces::keys(&[("Enter", "keep the filter"), ("Esc", "drop it")]);
    }
    if is_story {
        return pieces::keys(&[("Esc", "back"), ("up/down", "scroll"), ("q", "quit")]);
    }
    pieces::keys(&[
        ("1 2 3", "tabs"),
        ("Enter", "details"),
        ("s", "sort"),
        ("r", "reverse"),
        ("/", "filter"),
        ("q", "quit"),
    ])
}

fn draw_story(frame: &mut Frame<'_>, story: &mut StoryPage, area: Rect) {
    let title = match &story.subject {
        Subject::Of(resource) => format!(" {resource} "),
        Subject::Runner(name) => format!(" runner {name} "),
    };
    let text = story.text.clone().unwrap_or_else(|| "reading ...".to_owned());
    let mut lines: Vec<TextLine<'_>> = text.lines().map(|line| TextLine::from(one_line(line))).collect();
    if let Some(why) = &story.trouble {
        lines.insert(0, TextLine::styled(format!("OLD, or never read: {}", one_line(why)), BAD));
    }
    story.scroll = story.scroll.min(lines.len().saturating_sub(1));
    let top_line = u16::try_from(story.scroll).unwrap_or(u16::MAX);
    let page = Paragraph::new(lines).block(Block::bordered().title(one_line(&title))).scroll((top_line, 0));
    frame.render_widget(page, area);
}

fn draw_table(frame: &mut Frame<'_>, top: &mut Top, area: Rect, now_ms: u64) {
    top.selected = top.selected.min(top.len().saturating_sub(1));
    let store_ms = top.board().store_ms(now_ms);
    // Only what can be seen is made: there may be many thousands of lines.
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let first = top.selected.saturating_sub(height - 1);
    let window = |len: usize| first.min(len)..(first + height).min(len);
    let (columns, widths, lines) = match top.tab {
        TopTab::Resources => {
            let all = top.resources();
            let lines = all[window(all.len())].iter().map(|row| {
                let style = if row.holder.is_none() { BAD } else { Default::default() };
                let style = if row.next.is_some() { CHANGING } else { style };
                Row::new(rows::resource_row(row, store_ms)).style(style)
            });
            (rows::RESOURCE_COLUMNS, [32, 28, 10, 12, 14], lines.collect::<Vec<_>>())
        }
        TopTab::Runners => {
            let all = top.runners();
            let lines =
                all[window(all.len())].iter().map(|runner| Row::new(rows::runner_row(runner, store_ms)));
            (rows::RUNNER_COLUMNS, [28, 18, 10, 14, 20], lines.collect())
        }
        TopTab::Events => {
            let all = top.events();
            let lines = all[window(all.len())]
                .iter()
                .map(|event| Row::new(rows::event_row(event)).style(pieces::event_style(event.event_type)));
            (rows::EVENT_COLUMNS, [12, 17, 24, 24, 40], lines.collect())
        }
    };
    if lines.is_empty() {
        let text = if top.filter.is_empty() { "nothing yet" } else { "nothing has this text; Esc shows all" };
        frame.render_widget(Paragraph::new(text).style(QUIET), area);
        return;
    }
    let widths = widths.map(Constraint::Max);
    let table = TableWidget::new(lines, widths)
        .header(Row::new(columns).style(HEADING))
        .row_highlight_style(SELECTED);
    let mut state = TableState::new().with_selected(top.selected - first);
    frame.render_stateful_widget(table, area, &mut state);
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::{
        live::{feed::FeedNews, screen::Press},
        top::model::{TopInput, tests::shown},
    };

    /// What is on a screen of 100 columns.
    fn screen(top: &mut Top, now_ms: u64) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(100, 12)).expect("a screen in memory");
        terminal.draw(|frame| draw(frame, top, now_ms)).expect("it draws");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..12).map(line).collect()
    }

    #[test]
    fn resources_are_shown_with_their_holders() {
        let lines = screen(&mut shown(), 12_000);
        assert_eq!(lines[0], "http://127.0.0.1:7070: 3 resources, 3 held, cursor 1.11");
        assert!(lines[1].starts_with(" 1 Resources   2 Runners   3 Events"), "{lines:?}");
        let words = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(2), "RESOURCE HOLDER TOKEN EXPIRES LAST CHANGE");
        assert_eq!(words(3), "counter/a r2 3 in 2s -");
        assert_eq!(words(4), "counter/b r1 11 in 3s 1s ago");
    }

    #[test]
    fn a_server_that_is_not_heard_is_said_plainly() {
        let mut top = shown();
        top.update(TopInput::News(FeedNews::Lost("no server at 127.0.0.1:7070".to_owned())), 12_000);
        let lines = screen(&mut top, 15_000);
        assert_eq!(
            lines[1],
            " OLD: this is how it was 4s ago, because no server at 127.0.0.1:7070; trying again"
        );
    }

    #[test]
    fn events_and_stories_are_shown() {
        let mut top = shown();
        top.update(TopInput::Key(Press::Char('3')), 12_000);
        let lines = screen(&mut top, 12_000);
        assert!(lines[3].contains("lease_acquired") && lines[3].contains("counter/b"), "{lines:?}");
        top.update(TopInput::Key(Press::Enter), 12_000);
        let subject = top.subject().cloned().expect("it is open");
        top.update(TopInput::Story(subject, Ok("held by  r1\nkey  \u{1b}[31m".to_owned())), 12_000);
        let lines = screen(&mut top, 12_000);
        assert!(lines[2].contains("counter/b"), "{lines:?}");
        assert!(lines[3].contains("held by  r1"), "{lines:?}");
        assert!(lines[4].contains("key   [31m"), "control characters do nothing: {lines:?}");
    }
}
