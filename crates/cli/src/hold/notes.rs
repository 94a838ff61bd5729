//! What `run` and `lock` say to people, on stderr: a line when the server goes away and one when it is back; on a
//! terminal also the wait as it goes on.

use std::{
    convert::Infallible,
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

use solehold_client::Contact;
use solehold_clock::BootTime;
use tokio::{sync::watch, time::interval};

use crate::{human::duration_ms, output, target::ResourceArg};

/// How often the wait is shown on a terminal.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// Tells once that the server is gone, and once that it is back.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<BootTime>,
}

impl Outage {
    /// Says what has changed, if anything has: `gone` with why, or `back` with how long it took.
    pub fn follow(
        &mut self,
        contact: &Contact,
        gone: impl FnOnce(&str) -> String,
        back: impl FnOnce(String) -> String,
    ) {
        let said = match (contact, self.since) {
            (Contact::Missing(why), None) => {
                self.since = Some(BootTime::now());
                gone(why)
            }
            (Contact::Kept, Some(since)) => {
                self.since = None;
                back(duration_ms(waited_ms(since)))
            }
            _ => return,
        };
        output::note(format!("solehold: {said}"));
    }
}

/// Tells that something is waited for, and by whom it is held, until it is dropped.
pub async fn waiting(
    resource: &ResourceArg,
    holder: Option<&str>,
    mut contact: watch::Receiver<Contact>,
) -> Infallible {
    let line = Line::new(resource, holder);
    let (mut outage, mut ticks) = (Outage::default(), interval(SHOW_EVERY));
    loop {
        tokio::select! {
            _ = ticks.tick(), if line.is_terminal => line.show(),
            Ok(()) = contact.changed() => {
                line.clear();
                outage.follow(
                    &contact.borrow_and_update().clone(),
                    |why| format!("no answer while waiting for {resource}: {why}; trying again"),
                    |after| format!("the server answers again, after {after}; waiting for {resource}"),
                );
            }
        }
    }
}

/// A line that is written over and over on a terminal, and elsewhere once.
struct Line {
    said: String,
    since: BootTime,
    is_terminal: bool,
}

impl Line {
    fn new(resource: &ResourceArg, holder: Option<&str>) -> Self {
        let holder = holder.map(|holder| format!(", held by {holder}")).unwrap_or_default();
        let said = format!("waiting for {resource}{holder}");
        let is_terminal = stderr().is_terminal();
        if !is_terminal {
            output::note(&said);
        }
        Self { said, since: BootTime::now(), is_terminal }
    }

    fn show(&self) {
        let waited = duration_ms(waited_ms(self.since) / 1_000 * 1_000);
        let _ = write!(stderr().lock(), "\r\x1b[K{} for {waited}", self.said);
    }

    fn clear(&self) {
        if self.is_terminal {
            let _ = write!(stderr().lock(), "\r\x1b[K");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

fn waited_ms(since: BootTime) -> u64 {
    u64::try_from(BootTime::now().since(since).as_millis()).unwrap_or(u64::MAX)
}
