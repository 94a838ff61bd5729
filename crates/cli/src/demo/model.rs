//! What is known in the demo, and what a person may do about it. Pure: times are arguments.

use std::collections::{BTreeMap, VecDeque};

use solehold_api::watch::{LeaseEvent, WatchFrame};
use solehold_core::event::EventName;

use super::{
    RESOURCES,
    incident::{Incident, IncidentCause},
    storage::StorageNews,
};
use crate::{
    human::duration_ms,
    live::{
        board::{Board, ms},
        feed::FeedNews,
        screen::Press,
    },
};

/// Notes that are kept to be shown.
const NOTES_MAX: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunnerState {
    Working,
    /// Every process of it is stopped, as a machine that is suspended.
    Paused,
    Draining,
    /// It has ended after it was drained.
    Ended,
    Killed,
}

impl RunnerState {
    pub fn word(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Ended => "ended",
            Self::Killed => "killed",
        }
    }
}

/// What can be done in the demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    Add,
    Kill(String),
    Pause(String),
    Resume(String),
    Drain(String),
    /// Kill the server.
    Cut,
    /// Start the server again.
    Restore,
    Quit,
}

/// Something that has happened.
#[derive(Debug)]
pub enum DemoInput {
    News(FeedNews),
    Stored(StorageNews),
    /// A deed has been done.
    Done(Deed),
    /// A runner was started.
    Started(String),
    /// The agent of a runner has ended by itself.
    Ended(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Warn,
    Bad,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub at_ms: u64,
    pub tone: Tone,
    pub text: String,
}

/// A write that the gate has refused, because of its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedWrite {
    pub resource: String,
    pub writer: String,
    pub token: u64,
    pub newest: u64,
}

/// The last write of a counter that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastWrite {
    token: u64,
    writer: String,
    at_ms: u64,
}

/// The counters that a runner was granted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrivals {
    pub counters: usize,
    /// The longest time that one of them had no owner before.
    pub gap_ms: u64,
}

#[derive(Debug)]
pub struct DemoModel {
    pub dashboard: String,
    /// In the order in which they were started.
    pub runners: Vec<(String, RunnerState)>,
    pub selected: usize,
    pub board: Board,
    /// When the server was killed.
    pub cut_ms: Option<u64>,
    /// The watch is connected.
    pub is_heard: bool,
    pub written: u64,
    pub refused: Vec<RefusedWrite>,
    /// Writes that took effect although they must not have: after one with a newer token, or of two writers with one
    /// token. There are none, unless the gate is broken.
    pub violations: Vec<String>,
    pub incidents: Vec<Incident>,
    /// What each runner was granted.
    arrivals: BTreeMap<String, Arrivals>,
    notes: VecDeque<Note>,
    last_writes: BTreeMap<String, LastWrite>,
}

impl DemoModel {
    pub fn new(dashboard: String) -> Self {
        Self {
            dashboard,
            runners: Vec::new(),
            selected: 0,
            board: Board::default(),
            cut_ms: None,
            is_heard: false,
            written: 0,
            refused: Vec::new(),
            violations: Vec::new(),
            incidents: Vec::new(),
            arrivals: BTreeMap::new(),
            notes: VecDeque::new(),
            last_writes: BTreeMap::new(),
        }
    }

    /// The newest first.
    pub fn notes(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter().rev()
    }

    pub fn note(&mut self, tone: Tone, text: impl Into<String>, at_ms: u64) {
        self.notes.push_back(Note { at_ms, tone, text: text.into() });
        if self.notes.len() > NOTES_MAX {
            self.notes.pop_front();
        }
    }

    pub fn note_trouble(&mut self, why: &str, at_ms: u64) {
        self.note(Tone::Bad, why, at_ms);
    }

    pub fn state(&self, runner: &str) -> Option<RunnerState> {
        self.runners.iter().find(|(name, _)| name == runner).map(|(_, state)| *state)
    }

    fn set(&mut self, runner: &str, state: RunnerState) {
        if let Some(known) = self.runners.iter_mut().find(|(name, _)| name == runner) {
            known.1 = state;
        }
    }

    /// The keys of the counters that a runner owns; of those that nobody owns.
    pub fn owned_by(&self, runner: Option<&str>) -> Vec<String> {
        let rows = self.board.rows().filter(|row| row.holder.as_deref() == runner);
        rows.map(|row| row.key.clone()).collect()
    }

    /// Each runner that works, and how much it owns.
    pub fn loads(&self) -> Vec<(String, usize)> {
        let at_work = self.runners.iter().filter(|(_, state)| *state == RunnerState::Working);
        at_work.map(|(name, _)| (name.clone(), self.owned_by(Some(name)).len())).collect()
    }

    /// Every counter has an owner that works, and no counter is being handed over.
    pub fn is_settled(&self) -> bool {
        let loads = self.loads().iter().map(|(_, load)| load).sum::<usize>();
        loads == RESOURCES && self.board.rows().all(|row| row.next.is_none())
    }

    /// The present owner of every counter has written to it.
    pub fn is_written(&self) -> bool {
        self.is_settled()
            && self.board.rows().all(|row| {
                self.last_writes.get(&row.key).is_some_and(|last| {
                    last.token == row.token && Some(last.writer.as_str()) == row.holder.as_deref()
                })
            })
    }

    /// How many counters have been written to since then.
    pub fn written_since(&self, at_ms: u64) -> usize {
        self.last_writes.values().filter(|last| last.at_ms > at_ms).count()
    }

    /// The tokens of all counters.
    pub fn tokens(&self) -> BTreeMap<String, u64> {
        self.board.rows().map(|row| (row.key.clone(), row.token)).collect()
    }

    pub fn incident(&self, cause: IncidentCause, runner: &str) -> Option<&Incident> {
        self.incidents.iter().rev().find(|incident| incident.cause == cause && incident.runner == runner)
    }

    pub fn update(&mut self, input: DemoInput, now_ms: u64) {
        match input {
            DemoInput::News(FeedNews::Frame(frame)) => self.take(&frame, now_ms),
            DemoInput::News(FeedNews::Lost(_)) => self.is_heard = false,
            DemoInput::News(FeedNews::Refused(failure)) => {
                self.is_heard = false;
                self.note_trouble(&failure.message, now_ms);
            }
            DemoInput::Stored(news) => self.stored(news, now_ms),
            DemoInput::Done(deed) => self.done(&deed, now_ms),
            DemoInput::Started(runner) => {
                self.note(Tone::Plain, format!("{runner} started"), now_ms);
                self.runners.push((runner, RunnerState::Working));
            }
            DemoInput::Ended(runner) => match self.state(&runner) {
                Some(RunnerState::Draining) => {
                    self.set(&runner, RunnerState::Ended);
                    self.note(Tone::Good, format!("{runner} has ended; nothing of it is left"), now_ms);
                }
                _ => {
                    self.set(&runner, RunnerState::Ended);
                    self.note(Tone::Bad, format!("{runner} has ended by itself"), now_ms);
                }
            },
        }
    }

    pub fn arrivals(&self, runner: &str) -> Arrivals {
        self.arrivals.get(runner).copied().unwrap_or_default()
    }

    fn take(&mut self, frame: &WatchFrame, now_ms: u64) {
        self.is_heard = true;
        if let WatchFrame::Event(event) = frame {
            self.arrive(event);
        }
        self.board.take(frame, now_ms);
        let WatchFrame::Event(event) = frame else { return };
        let over: Vec<String> = self
            .incidents
            .iter_mut()
            .filter_map(|incident| incident.take(event).then(|| incident.summary(now_ms)))
            .collect();
        for summary in over {
            self.note(Tone::Good, summary, now_ms);
        }
    }

    /// Counts a grant, before the board has it.
    fn arrive(&mut self, event: &LeaseEvent) {
        let Some(holder) = event.holder.clone().filter(|_| event.event_type == EventName::LeaseAcquired)
        else {
            return;
        };
        let before = self.board.rows().find(|row| row.key == event.key && row.holder.is_none());
        let freed_ms = before.and_then(|row| row.changed_ms);
        let gap_ms = freed_ms.map_or(0, |freed| ms(event.timestamp).saturating_sub(freed));
        let arrivals = self.arrivals.entry(holder).or_default();
        arrivals.counters += 1;
        arrivals.gap_ms = arrivals.gap_ms.max(gap_ms);
    }

    fn stored(&mut self, news: StorageNews, now_ms: u64) {
        let StorageNews { resource, writer, token, refusal } = news;
        match refusal {
            Some(refusal) => {
                // What is only put off comes again, and is no news.
                let Some(newest) = refusal.newest else { return };
                let text = format!(
                    "the gate refused {writer}: it wrote to {resource} with token {token}, the newest is {newest}"
                );
                self.note(Tone::Warn, text, now_ms);
                self.refused.push(RefusedWrite { resource, writer, token, newest });
            }
            None => {
                self.written += 1;
                let key = resource.rsplit('/').next().unwrap_or_default().to_owned();
                if let Some(last) = self.last_writes.get(&key) {
                    let is_odd = token < last.token || (token == last.token && writer != last.writer);
                    if is_odd {
                        let text = format!(
                            "{writer} wrote to {resource} with token {token} after {} with token {}",
                            last.writer, last.token
                        );
                        self.note(Tone::Bad, text.clone(), now_ms);
                        self.violations.push(text);
                    }
                }
                self.last_writes.insert(key, LastWrite { token, writer, at_ms: now_ms });
            }
        }
    }

    fn done(&mut self, deed: &Deed, now_ms: u64) {
        match deed {
            Deed::Kill(runner) => {
                self.set(runner, RunnerState::Killed);
                let text = format!("{runner} killed: all of its processes are gone, as if it lost power");
                self.note(Tone::Bad, text, now_ms);
                self.begin(IncidentCause::Killed, runner, now_ms);
            }
            Deed::Pause(runner) => {
                self.set(runner, RunnerState::Paused);
                let text = format!("{runner} paused: all of its processes stand still, and do not know it");
                self.note(Tone::Warn, text, now_ms);
                self.begin(IncidentCause::Paused, runner, now_ms);
            }
            Deed::Resume(runner) => {
                self.set(runner, RunnerState::Working);
                let text = format!("{runner} comes back, and goes on as if nothing had happened");
                self.note(Tone::Warn, text, now_ms);
            }
            Deed::Drain(runner) => {
                self.set(runner, RunnerState::Draining);
                self.note(Tone::Plain, format!("{runner} drains: it hands over what it owns"), now_ms);
                self.begin(IncidentCause::Drained, runner, now_ms);
            }
            Deed::Cut => {
                self.cut_ms = Some(now_ms);
                let text = "control plane cut: the server was killed, and nobody can be granted anything";
                self.note(Tone::Bad, text, now_ms);
            }
            Deed::Restore => {
                let cut = self.cut_ms.take().map_or(0, |at| now_ms.saturating_sub(at));
                let text = format!("control plane back after {}", duration_ms(cut));
                self.note(Tone::Good, text, now_ms);
            }
            Deed::Add | Deed::Quit => {}
        }
    }

    fn begin(&mut self, cause: IncidentCause, runner: &str, now_ms: u64) {
        let owned = self.owned_by(Some(runner));
        // By the store's clock, as the events that end it.
        let began_ms = self.board.store_ms(now_ms);
        self.incidents.push(Incident::new(cause, runner, began_ms, owned));
    }

    /// What a key asks for. Keys that make no sense now are answered by a note.
    pub fn press(&mut self, press: Press) -> Option<Deed> {
        let last = self.runners.len().saturating_sub(1);
        match press {
            Press::Char('q') | Press::Interrupt | Press::Escape => return Some(Deed::Quit),
            Press::Up => self.selected = self.selected.saturating_sub(1),
            Press::Down => self.selected = (self.selected + 1).min(last),
            Press::Char('a') => return Some(Deed::Add),
            Press::Char('c') if self.cut_ms.is_some() => return Some(Deed::Restore),
            Press::Char('c') => return Some(Deed::Cut),
            Press::Char('b') => return self.first_paused().map(Deed::Resume),
            Press::Char(c) => {
                let (name, state) = self.runners.get(self.selected).cloned()?;
                return match (c, state) {
                    ('k', RunnerState::Working | RunnerState::Paused | RunnerState::Draining) => {
                        Some(Deed::Kill(name))
                    }
                    ('p', RunnerState::Working) => Some(Deed::Pause(name)),
                    ('p', RunnerState::Paused) => Some(Deed::Resume(name)),
                    ('d', RunnerState::Working) => Some(Deed::Drain(name)),
                    _ => None,
                };
            }
            _ => {}
        }
        None
    }

    /// The selected runner if it is paused, or else the first that is.
    fn first_paused(&self) -> Option<String> {
        let selected = self.runners.get(self.selected).into_iter();
        let paused = selected.chain(&self.runners).find(|(_, state)| *state == RunnerState::Paused);
        paused.map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::{
        demo::storage::WriteRefusal,
        live::board::tests::{event, snapshot},
    };

    pub fn shown() -> DemoModel {
        let mut model = DemoModel::new("http://127.0.0.1:7070/".to_owned());
        model.update(DemoInput::Started("r1".to_owned()), 10_000);
        model.update(DemoInput::Started("r2".to_owned()), 10_000);
        let rows = [("01", Some("r1"), 3), ("02", Some("r2"), 4), ("03", None, 2)];
        model.update(DemoInput::News(FeedNews::Frame(snapshot(&rows, false))), 10_000);
        model
    }

    pub fn write(model: &mut DemoModel, writer: &str, token: u64, newest: Option<u64>) {
        let refusal = newest.map(|newest| WriteRefusal { newest: Some(newest) });
        let resource = "counter/01".to_owned();
        let news = StorageNews { resource, writer: writer.to_owned(), token, refusal };
        model.update(DemoInput::Stored(news), 11_000);
    }

    fn last_note(model: &DemoModel) -> &str {
        model.notes().next().map(|note| note.text.as_str()).unwrap_or_default()
    }

    #[test]
    fn a_runner_that_is_killed_is_followed_until_it_is_replaced() {
        let mut model = shown();
        let deed = model.press(Press::Char('k')).expect("it works");
        assert_eq!(deed, Deed::Kill("r1".to_owned()));
        model.update(DemoInput::Done(deed), 11_000);
        assert_eq!(model.state("r1"), Some(RunnerState::Killed));
        assert_eq!(model.press(Press::Char('k')), None, "it is dead already");
        for frame in [
            event(15, "lease_expired", "01", "r1", Some(3)),
            event(16, "lease_acquired", "01", "r2", Some(16)),
        ] {
            model.update(DemoInput::News(FeedNews::Frame(frame)), 16_000);
        }
        assert_eq!(
            last_note(&model),
            "r1 killed: 1 counter taken over within 5s; 1s at most after the lease ran out"
        );
        assert_eq!(model.loads(), [("r2".to_owned(), 2)]);
        assert_eq!(model.arrivals("r2"), Arrivals { counters: 1, gap_ms: 1_000 });
    }

    #[test]
    fn a_paused_runner_comes_back_by_either_key() {
        let mut model = shown();
        model.press(Press::Down);
        assert_eq!(model.press(Press::Char('b')), None, "nobody is paused");
        let deed = model.press(Press::Char('p')).expect("it works");
        model.update(DemoInput::Done(deed), 11_000);
        assert_eq!(model.press(Press::Char('p')), Some(Deed::Resume("r2".to_owned())));
        model.press(Press::Up);
        assert_eq!(model.press(Press::Char('b')), Some(Deed::Resume("r2".to_owned())));
    }

    #[test]
    fn writes_of_a_former_owner_are_refused_or_noticed() {
        let mut model = shown();
        write(&mut model, "r1", 3, None);
        write(&mut model, "r2", 9, None);
        write(&mut model, "r1", 3, Some(9));
        assert_eq!((model.written, model.refused.len(), model.violations.len()), (2, 1, 0));
        assert_eq!(
            last_note(&model),
            "the gate refused r1: it wrote to counter/01 with token 3, the newest is 9"
        );
        write(&mut model, "r1", 3, None);
        assert_eq!(model.violations.len(), 1, "a gate that lets it through is found out");
        write(&mut model, "r2", 3, None);
        assert_eq!(model.violations.len(), 2, "and so are two writers with one token");
    }

    #[test]
    fn the_control_plane_is_cut_and_restored_by_one_key() {
        let mut model = shown();
        assert_eq!(model.press(Press::Char('c')), Some(Deed::Cut));
        model.update(DemoInput::Done(Deed::Cut), 11_000);
        assert_eq!(model.press(Press::Char('c')), Some(Deed::Restore));
        model.update(DemoInput::Done(Deed::Restore), 14_000);
        assert_eq!(last_note(&model), "control plane back after 3s");
    }
}
