//! The state of `solehold top`, and how news and keys change it. Pure: nothing is read or drawn here.

use clap::ValueEnum;
use solehold_api::{runners::Runner, watch::LeaseEvent};

use super::rows;
use crate::{
    error::CommandError,
    live::{
        board::{Board, Holding},
        feed::FeedNews,
        screen::Press,
    },
    target::ResourceArg,
};

/// A server that has said nothing for this long is not heard: its watch has marks of progress more often.
const SILENCE_MS_MAX: u64 = 20_000;
/// Lines of a page, for the keys that scroll.
const PAGE: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopTab {
    Resources,
    Runners,
    Events,
}

impl TopTab {
    pub const ALL: [Self; 3] = [Self::Resources, Self::Runners, Self::Events];

    pub fn title(self) -> &'static str {
        match self {
            Self::Resources => "Resources",
            Self::Runners => "Runners",
            Self::Events => "Events",
        }
    }

    fn at(self) -> usize {
        Self::ALL.iter().position(|tab| *tab == self).unwrap_or_default()
    }

    fn next(self, steps: usize) -> Self {
        Self::ALL[(self.at() + steps) % Self::ALL.len()]
    }
}

/// What lines are sorted by. Runners are sorted by load where resources are by holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By name
    Name,
    /// By holder; runners by load
    Holder,
    /// By fencing token: the last granted first
    Token,
    /// By the time that is left; runners by their last heartbeat
    Expires,
}

impl Sort {
    const ALL: [Self; 4] = [Self::Name, Self::Holder, Self::Token, Self::Expires];

    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Holder => "holder",
            Self::Token => "token",
            Self::Expires => "expiry",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or_default();
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// What is looked at closely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A resource.
    Of(ResourceArg),
    Runner(String),
}

#[derive(Debug)]
pub enum TopInput {
    News(FeedNews),
    Runners(Result<Vec<Runner>, String>),
    Story(Subject, Result<String, String>),
    Key(Press),
    Tick,
}

/// What the model cannot do itself.
#[derive(Debug)]
pub enum Wish {
    Quit,
    Fail(Box<CommandError>),
}

/// The page of a resource or runner.
#[derive(Debug)]
pub struct StoryPage {
    pub subject: Subject,
    /// None until it has been read.
    pub text: Option<String>,
    /// Why the last read failed.
    pub trouble: Option<String>,
    pub scroll: usize,
}

#[derive(Debug)]
pub struct Top {
    pub server: String,
    pub tab: TopTab,
    pub sort: Sort,
    pub is_reversed: bool,
    pub filter: String,
    /// Keys go into the filter.
    pub is_typing: bool,
    pub selected: usize,
    pub story: Option<StoryPage>,
    board: Board,
    runners: Vec<Runner>,
    heard_ms: u64,
    /// Why nothing is heard.
    lost: Option<String>,
}

impl Top {
    pub fn new(server: String, tab: TopTab, sort: Sort, filter: String) -> Self {
        Self {
            server,
            tab,
            sort,
            is_reversed: false,
            filter,
            is_typing: false,
            selected: 0,
            story: None,
            board: Board::default(),
            runners: Vec::new(),
            heard_ms: 0,
            lost: None,
        }
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Adds events of before the start.
    pub fn remember(&mut self, events: Vec<LeaseEvent>) {
        events.into_iter().for_each(|event| self.board.remember(event));
    }

    pub fn subject(&self) -> Option<&Subject> {
        self.story.as_ref().map(|story| &story.subject)
    }

    pub fn is_story_awaited(&self) -> bool {
        self.story.as_ref().is_some_and(|story| story.text.is_none() && story.trouble.is_none())
    }

    pub fn update(&mut self, input: TopInput, now_ms: u64) -> Option<Wish> {
        match input {
            TopInput::News(FeedNews::Frame(frame)) => {
                self.board.take(&frame, now_ms);
                self.heard_ms = now_ms;
                self.lost = None;
            }
            TopInput::News(FeedNews::Lost(why)) => self.lost = Some(why),
            TopInput::News(FeedNews::Refused(failure)) => return Some(Wish::Fail(Box::new(failure))),
            TopInput::Runners(Ok(runners)) => self.runners = runners,
            // The watch says that the server is away.
            TopInput::Runners(Err(_)) | TopInput::Tick => {}
            TopInput::Story(of, told) => {
                if let Some(story) = self.story.as_mut().filter(|story| story.subject == of) {
                    match told {
                        Ok(text) => (story.text, story.trouble) = (Some(text), None),
                        Err(why) => story.trouble = Some(why),
                    }
                }
            }
            TopInput::Key(Press::Interrupt) => return Some(Wish::Quit),
            TopInput::Key(press) if self.is_typing => self.type_filter(press),
            TopInput::Key(press) if self.story.is_some() => return self.read_on(press),
            TopInput::Key(press) => return self.browse(press),
        }
        None
    }

    fn type_filter(&mut self, press: Press) {
        match press {
            Press::Char(c) => self.filter.push(c),
            Press::Backspace => drop(self.filter.pop()),
            Press::Enter => self.is_typing = false,
            Press::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        self.selected = 0;
    }

    fn read_on(&mut self, press: Press) -> Option<Wish> {
        let story = self.story.as_mut()?;
        match press {
            Press::Char('q') => return Some(Wish::Quit),
            Press::Escape | Press::Backspace | Press::Enter => self.story = None,
            Press::Up | Press::Char('k') => story.scroll = story.scroll.saturating_sub(1),
            Press::Down | Press::Char('j') => story.scroll += 1,
            Press::PageUp => story.scroll = story.scroll.saturating_sub(PAGE),
            Press::PageDown | Press::Char(' ') => story.scroll += PAGE,
            Press::Home => story.scroll = 0,
            _ => {}
        }
        None
    }

    fn browse(&mut self, press: Press) -> Option<Wish> {
        match press {
            Press::Char('q') => return Some(Wish::Quit),
            Press::Char('/') => self.is_typing = true,
            Press::Char('s') => self.sort = self.sort.next(),
            Press::Char('r') => self.is_reversed = !self.is_reversed,
            Press::Char('1') => self.open(TopTab::Resources),
            Press::Char('2') => self.open(TopTab::Runners),
            Press::Char('3') => self.open(TopTab::Events),
            Press::Tab => self.open(self.tab.next(1)),
            Press::BackTab => self.open(self.tab.next(2)),
            Press::Escape => self.filter.clear(),
            Press::Up | Press::Char('k') => self.selected = self.selected.saturating_sub(1),
            Press::Down | Press::Char('j') => self.selected += 1,
            Press::PageUp => self.selected = self.selected.saturating_sub(PAGE),
            Press::PageDown => self.selected += PAGE,
            Press::Home => self.selected = 0,
            Press::End => self.selected = usize::MAX,
            Press::Enter => {
                let subject = self.selected_subject();
                self.story =
                    subject.map(|subject| StoryPage { subject, text: None, trouble: None, scroll: 0 });
            }
            _ => {}
        }
        self.selected = self.selected.min(self.len().saturating_sub(1));
        None
    }

    fn open(&mut self, tab: TopTab) {
        self.tab = tab;
        self.selected = 0;
    }

    fn selected_subject(&self) -> Option<Subject> {
        match self.tab {
            TopTab::Resources => {
                self.resources().get(self.selected).map(|row| Subject::Of(named(&row.kind, &row.key)))
            }
            TopTab::Runners => {
                self.runners().get(self.selected).map(|runner| Subject::Runner(runner.runner_id.clone()))
            }
            TopTab::Events => {
                self.events().get(self.selected).map(|event| Subject::Of(named(&event.kind, &event.key)))
            }
        }
    }

    /// Lines of the present tab.
    pub fn len(&self) -> usize {
        match self.tab {
            TopTab::Resources => self.resources().len(),
            TopTab::Runners => self.runners().len(),
            TopTab::Events => self.events().len(),
        }
    }

    /// The resources that the filter lets through, sorted.
    pub fn resources(&self) -> Vec<&Holding> {
        let all = self.board.rows().filter(|row| rows::has(row, &self.filter));
        rows::sorted(all.collect(), self.sort, self.is_reversed)
    }

    pub fn runners(&self) -> Vec<&Runner> {
        let all = self.runners.iter().filter(|runner| rows::runner_has(runner, &self.filter));
        rows::sorted_runners(all.collect(), self.sort, self.is_reversed)
    }

    /// The newest first, or last.
    pub fn events(&self) -> Vec<&LeaseEvent> {
        let mut events: Vec<_> =
            self.board.events().filter(|event| rows::event_has(event, &self.filter)).collect();
        if self.is_reversed {
            events.reverse();
        }
        events
    }

    /// How old what is shown is, and why, if it is not what is so now.
    pub fn is_old(&self, now_ms: u64) -> Option<(u64, String)> {
        let age = now_ms.saturating_sub(self.heard_ms);
        match &self.lost {
            Some(why) => Some((age, why.clone())),
            None if age > SILENCE_MS_MAX => Some((age, "the server says nothing".to_owned())),
            None => None,
        }
    }
}

fn named(kind: &str, key: &str) -> ResourceArg {
    ResourceArg { kind: kind.to_owned(), key: key.to_owned() }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::live::board::tests::{event, snapshot};

    pub fn shown() -> Top {
        let mut top =
            Top::new("http://127.0.0.1:7070".to_owned(), TopTab::Resources, Sort::Name, String::new());
        let rows = [("a", Some("r2"), 3), ("b", None, 4), ("c", Some("r1"), 9)];
        for frame in [snapshot(&rows, false), event(11, "lease_acquired", "b", "r1", Some(11))] {
            top.update(TopInput::News(FeedNews::Frame(frame)), 11_000);
        }
        top
    }

    fn press(top: &mut Top, keys: &[Press]) -> Option<Wish> {
        keys.iter().fold(None, |_, key| top.update(TopInput::Key(*key), 11_000))
    }

    fn names(top: &Top) -> String {
        top.resources().iter().map(|row| row.key.clone()).collect()
    }

    #[test]
    fn lines_are_sorted_and_filtered_by_keys() {
        let mut top = shown();
        assert_eq!(names(&top), "abc");
        press(&mut top, &[Press::Char('s')]);
        assert_eq!((top.sort, names(&top).as_str()), (Sort::Holder, "bca"));
        press(&mut top, &[Press::Char('r')]);
        assert_eq!(names(&top), "acb");
        press(&mut top, &[Press::Char('/'), Press::Char('r'), Press::Char('1'), Press::Enter]);
        assert_eq!((names(&top).as_str(), top.is_typing), ("cb", false));
        press(&mut top, &[Press::Escape]);
        assert_eq!(names(&top), "acb");
    }

    #[test]
    fn the_selection_stays_within_the_lines() {
        let mut top = shown();
        press(&mut top, &[Press::PageDown, Press::PageDown]);
        assert_eq!(top.selected, 2);
        press(&mut top, &[Press::Home, Press::Up, Press::End]);
        assert_eq!(top.selected, 2);
        press(&mut top, &[Press::Tab]);
        assert_eq!((top.tab, top.selected), (TopTab::Runners, 0));
        press(&mut top, &[Press::Char('3')]);
        assert_eq!((top.tab, top.len()), (TopTab::Events, 1));
    }

    #[test]
    fn enter_opens_the_story_and_escape_closes_it() {
        let mut top = shown();
        press(&mut top, &[Press::Down, Press::Enter]);
        let subject = Subject::Of(named("counter", "b"));
        assert_eq!(top.subject(), Some(&subject));
        assert!(top.is_story_awaited());
        let other = Subject::Runner("r1".to_owned());
        top.update(TopInput::Story(other, Ok("of another".to_owned())), 11_000);
        assert!(top.is_story_awaited(), "the answer to an earlier question is dropped");
        top.update(TopInput::Story(subject.clone(), Ok("held by r1".to_owned())), 11_000);
        top.update(TopInput::Story(subject, Err("no server".to_owned())), 12_000);
        let story = top.story.as_ref().expect("it is open");
        assert_eq!(story.text.as_deref(), Some("held by r1"), "the last good answer stays, with the trouble");
        assert_eq!(story.trouble.as_deref(), Some("no server"));
        press(&mut top, &[Press::Escape]);
        assert!(top.story.is_none());
        assert!(matches!(press(&mut top, &[Press::Char('q')]), Some(Wish::Quit)));
    }

    #[test]
    fn what_is_old_is_called_old() {
        let mut top = shown();
        assert_eq!(top.is_old(12_000), None);
        assert_eq!(top.is_old(40_000), Some((29_000, "the server says nothing".to_owned())));
        top.update(TopInput::News(FeedNews::Lost("no server at x".to_owned())), 12_000);
        assert_eq!(top.is_old(14_000), Some((3_000, "no server at x".to_owned())));
        let frame = event(12, "lease_released", "b", "r1", Some(11));
        top.update(TopInput::News(FeedNews::Frame(frame)), 15_000);
        assert_eq!(top.is_old(15_000), None);
    }
}
