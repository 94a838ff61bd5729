//! `lease_stolen` stands between the expiry that nobody had swept and the grant to another holder (rule 14).

use solehold_core::{
    command::Command,
    event::{Ended, Event, What},
};

use crate::step::Step;

pub fn stands_between_expired_and_acquired(step: &Step<'_>) {
    if let Command::AcquireAll(_) = step.command {
        return;
    }
    let events: Vec<_> = step.events().collect();
    let expected = taken_over(step, &events).map(|ended| ended.lease);
    let mut found = None;
    for (i, event) in events.iter().enumerate() {
        let What::Stolen(stolen) = &event.what else { continue };
        assert!(matches!(events[i + 1].what, What::Acquired(_)), "{events:?}");
        assert_eq!(found.replace(stolen.lease), None, "{events:?}");
    }
    assert_eq!(found, expected, "{events:?}");
}

/// The lease of another holder that expired on the way to the grant that was asked for, if there was one.
fn taken_over<'a>(step: &Step<'_>, events: &[&'a Event]) -> Option<&'a Ended> {
    let Command::Acquire(ask) = step.command else { return None };
    let grant = events
        .iter()
        .position(|e| matches!(&e.what, What::Acquired(l) if l.id == ask.lease && l.confirm_by.is_none()))?;
    events[..grant].iter().find_map(|event| match &event.what {
        What::Expired(ended) if ended.token.is_some() && ended.holder != ask.holder => {
            Some(ended).filter(|_| !event.key.is_slot())
        }
        _ => None,
    })
}
