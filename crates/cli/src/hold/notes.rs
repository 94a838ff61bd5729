//! What `run` and `lock` say to people, on stderr: a line when the server goes away and one when it is back; on a
//! terminal also the wait as it goes on.

use std::{
    convert::Infallible,
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

use solehold_api::{paths, resources::ResourceBody};
use solehold_client::Contact;
use solehold_clock::BootTime;
use tokio::{
    sync::watch,
    time::{interval, timeout},
};

use crate::{client::Client, human::duration_ms, output, target::ResourceArg};

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

/// How long the server may take to tell how many wait.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Our place among those who wait in line. Nobody tells it: we come after those who were there before us, and move up
/// with each grant, and when there are fewer in line than we thought. One who leaves the line before us may be counted
/// for a while.
#[derive(Debug)]
pub struct Place {
    place: u32,
    waiting: u32,
    token: Option<u64>,
}

impl Place {
    /// As it will be for one who comes now; none where nobody looks at it.
    pub async fn next(client: &Client, resource: &ResourceArg) -> Option<Self> {
        if !stderr().is_terminal() {
            return None;
        }
        let (waiting, token) = line_of(client, resource).await?;
        Some(Self::after(waiting, token))
    }

    fn after(waiting: u32, token: Option<u64>) -> Self {
        Self { place: waiting.saturating_add(1), waiting, token }
    }

    /// How many are in line now, and the token of who holds it.
    fn see(&mut self, waiting: u32, token: Option<u64>) {
        if token.is_some() && token != self.token {
            self.place = self.place.saturating_sub(1);
            self.token = token;
        }
        // Before we have come there are fewer, too: only if some have left does it say anything.
        if waiting < self.waiting {
            self.place = self.place.min(waiting);
        }
        self.place = self.place.max(1);
        self.waiting = waiting;
    }

    fn shown(&self) -> String {
        format!("place {} of {} in line", self.place, self.waiting.max(self.place))
    }
}

/// How many wait for it, and the token of who holds it.
async fn line_of(client: &Client, resource: &ResourceArg) -> Option<(u32, Option<u64>)> {
    let path = paths::resource(&resource.kind, &resource.key);
    let seen = timeout(LOOK_MAX, client.get::<ResourceBody>(&path, &[])).await.ok()?.ok()?;
    Some((seen.waiting, seen.lease.map(|lease| lease.token)))
}

/// Tells that something is waited for, and by whom it is held, until it is dropped.
pub async fn waiting(
    resource: &ResourceArg,
    holder: Option<&str>,
    client: &Client,
    mut place: Option<Place>,
    mut contact: watch::Receiver<Contact>,
) -> Infallible {
    let line = Line::new(resource, holder);
    let mut outage = Outage::default();
    let mut ticks = interval(SHOW_EVERY);
    loop {
        tokio::select! {
            _ = ticks.tick(), if line.is_terminal => {
                if let (Some(place), Some((waiting, token))) = (&mut place, line_of(client, resource).await) {
                    place.see(waiting, token);
                }
                line.show(place.as_ref());
            }
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

    fn show(&self, place: Option<&Place>) {
        let waited = duration_ms(waited_ms(self.since) / 1_000 * 1_000);
        let place = place.map(|place| format!(", {}", place.shown())).unwrap_or_default();
        let _ = write!(stderr().lock(), "\r\x1b[K{}; waited {waited}{place}", self.said);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_only_gets_better() {
        let mut place = Place::after(2, Some(7));
        let mut see = |waiting, token| {
            place.see(waiting, token);
            place.shown()
        };
        assert_eq!(see(2, Some(7)), "place 3 of 3 in line", "not in line yet");
        assert_eq!(see(5, Some(7)), "place 3 of 5 in line", "others come behind");
        assert_eq!(see(4, Some(12)), "place 2 of 4 in line", "the first got it");
        assert_eq!(see(6, None), "place 2 of 6 in line", "held back");
        assert_eq!(see(6, Some(20)), "place 1 of 6 in line");
        assert_eq!(see(6, Some(21)), "place 1 of 6 in line", "it is about to be granted");
        let mut place = Place::after(9, Some(1));
        place.see(4, Some(1));
        assert_eq!(place.shown(), "place 4 of 4 in line", "others have left");
    }
}
