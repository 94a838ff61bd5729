//! What `run` and `lock` say to people, on stderr: a line when the server goes away and one when it is back; on a
//! terminal also the wait as it goes on.

use std::{
    convert::Infallible,
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

use solehold_api::{paths, resources::Resource};
use solehold_client::Contact;
use solehold_clock::BootTime;
use tokio::{
    sync::watch,
    time::{interval, timeout},
};

use crate::{client::Client, human::duration_ms, output, target::ResourceArg};

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

/// Our place among those who wait in line. Nobody tells it: we come last when we come, and move up with each grant, and
/// when there are fewer in line than we thought. One who leaves the line before us may be counted for a while.
#[derive(Debug, Default)]
struct Place {
    seen: Option<(u32, Option<u64>)>,
}

impl Place {
    /// How many are in line, ourselves included, and the token of who holds it.
    fn see(&mut self, waiting: u32, token: Option<u64>) -> u32 {
        let place = match self.seen {
            Some((place, before)) if token.is_some() && before.is_some() && token != before => {
                place.saturating_sub(1).min(waiting)
            }
            Some((place, _)) => place.min(waiting),
            None => waiting,
        };
        let place = place.max(1);
        self.seen = Some((place, token.or(self.seen.and_then(|(_, before)| before))));
        place
    }
}

/// How long the server may take to tell how many wait.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// What is waited for, and how many do, as `place 2 of 5 in line`.
async fn place_in_line(client: &Client, resource: &ResourceArg, place: &mut Place) -> Option<String> {
    let path = paths::resource(&resource.kind, &resource.key);
    let seen = timeout(LOOK_MAX, client.get::<Resource>(&path, &[])).await.ok()?.ok()?;
    let at = (seen.waiting > 0).then(|| place.see(seen.waiting, seen.lease.map(|lease| lease.token)))?;
    Some(format!("place {at} of {} in line", seen.waiting))
}

/// Tells that something is waited for, and by whom it is held, until it is dropped.
pub async fn waiting(
    resource: &ResourceArg,
    holder: Option<&str>,
    client: &Client,
    mut contact: watch::Receiver<Contact>,
) -> Infallible {
    let (mut line, mut place) = (Line::new(resource, holder), Place::default());
    let (mut outage, mut ticks) = (Outage::default(), interval(SHOW_EVERY));
    loop {
        tokio::select! {
            _ = ticks.tick(), if line.is_terminal => {
                line.place = place_in_line(client, resource, &mut place).await;
                line.show();
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
    place: Option<String>,
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
        Self { said, place: None, since: BootTime::now(), is_terminal }
    }

    fn show(&self) {
        let waited = duration_ms(waited_ms(self.since) / 1_000 * 1_000);
        let place = self.place.as_ref().map(|place| format!(", {place}")).unwrap_or_default();
        let _ = write!(stderr().lock(), "\r\x1b[K{} for {waited}{place}", self.said);
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
        let mut place = Place::default();
        assert_eq!(place.see(3, Some(7)), 3, "last of all when it comes");
        assert_eq!(place.see(5, Some(7)), 3, "others come behind");
        assert_eq!(place.see(4, Some(12)), 2, "the first got it");
        assert_eq!(place.see(6, None), 2, "held back");
        assert_eq!(place.see(6, Some(20)), 1);
        assert_eq!(place.see(6, Some(21)), 1, "it is about to be granted");
        let mut place = Place::default();
        assert_eq!((place.see(9, Some(1)), place.see(4, Some(1))), (9, 4), "others have left");
    }
}
