//! The terminal: taken while a view is shown, given back however it ends.

use std::{io, thread};

use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event as TerminalEvent, KeyCode, KeyEventKind, KeyModifiers},
};
use tokio::sync::mpsc;

use crate::error::{CommandError, CommandResult};

/// Keys that wait to be taken; more are lost, as on a terminal.
const KEYS_MAX: usize = 64;

/// What a person does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Press {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    /// Ctrl-C.
    Interrupt,
    /// The terminal has another size now.
    Resize,
}

impl Press {
    fn of(event: &TerminalEvent) -> Option<Self> {
        let key = match event {
            TerminalEvent::Resize(..) => return Some(Self::Resize),
            TerminalEvent::Key(key) if key.kind != KeyEventKind::Release => key,
            _ => return None,
        };
        Some(match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Self::Interrupt,
            KeyCode::Char(c) if !key.modifiers.contains(KeyModifiers::CONTROL) => Self::Char(c),
            KeyCode::Up => Self::Up,
            KeyCode::Down => Self::Down,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown => Self::PageDown,
            KeyCode::Home => Self::Home,
            KeyCode::End => Self::End,
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Escape,
            KeyCode::Backspace => Self::Backspace,
            KeyCode::Tab => Self::Tab,
            KeyCode::BackTab => Self::BackTab,
            _ => return None,
        })
    }
}

pub struct Screen {
    terminal: DefaultTerminal,
    keys: mpsc::Receiver<Press>,
}

impl Screen {
    /// Takes the terminal; a panic gives it back, too.
    pub fn open() -> CommandResult<Self> {
        let failed = |error: io::Error| CommandError::broken(format!("cannot use the terminal: {error}"));
        let terminal = ratatui::try_init().map_err(failed)?;
        let (sender, keys) = mpsc::channel(KEYS_MAX);
        // It waits for a key for ever, and ends with the process.
        thread::spawn(move || {
            while let Ok(event) = event::read() {
                let is_over = Press::of(&event).is_some_and(|press| sender.blocking_send(press).is_err());
                if is_over {
                    return;
                }
            }
        });
        Ok(Self { terminal, keys })
    }

    pub fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> CommandResult {
        self.terminal.draw(view).map(drop).map_err(CommandError::from)
    }

    /// The next key; an interrupt when the terminal is gone.
    pub async fn press(&mut self) -> Press {
        self.keys.recv().await.unwrap_or(Press::Interrupt)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn keys_are_what_people_press() {
        let press = |code, modifiers| Press::of(&TerminalEvent::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(press(KeyCode::Char('k'), KeyModifiers::NONE), Some(Press::Char('k')));
        assert_eq!(press(KeyCode::Char('K'), KeyModifiers::SHIFT), Some(Press::Char('K')));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Press::Interrupt));
        assert_eq!(press(KeyCode::Char('x'), KeyModifiers::CONTROL), None);
        assert_eq!(Press::of(&TerminalEvent::Resize(80, 24)), Some(Press::Resize));
    }
}
