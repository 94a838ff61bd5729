//! What was received and not yet acknowledged.
//!
//! ```text
//!               ┌── refused, ignored ─────────────────────────────────┐
//!   arrive ─────┼── admitted ──> published ──> confirmed ─────────────┼──> acknowledged, in order of arrival
//!               └── held back ──> decided: admitted or refused ───────┘
//! ```
//!
//! - A message is acknowledged when what was published for it is confirmed, or when nothing is published for it; never
//!   before those that came before it.
//! - What cannot be decided is held back, and with it what comes later for the same resource, so that a resource's
//!   messages stay in order. Other resources go on.
//! - The window is of one connection. When that is lost, so is the window: the broker sends again what was not
//!   acknowledged.

use std::collections::{HashMap, VecDeque};

use solehold_core::{fence::Verdict, key::ResourceKey, time::Token};

use crate::{
    intake::{Claim, Fate, Message},
    refusal::Reason,
    routes::{Publication, Routes},
};

/// The most messages that one connection should have unacknowledged: MQTT numbers them with 16 bits. There are brokers
/// that send more, a whole backlog at once, and number them anew.
pub const MESSAGES_MAX: usize = 65_535;

/// What a message takes beside its payload, about.
const ENTRY_BYTES: usize = 256;

/// What was received and not yet acknowledged. `A` is what an acknowledgement takes.
#[derive(Debug)]
pub struct Window<A> {
    routes: Routes,
    bytes_max: usize,
    entries: VecDeque<Entry<A>>,
    /// The number of the first entry.
    first: u64,
    /// What is held back, of each resource: the numbers of its entries, in order of arrival.
    held: HashMap<ResourceKey, VecDeque<u64>>,
    outbox: VecDeque<(u64, Publication)>,
    /// Payloads that are held or not yet confirmed.
    bytes: usize,
    counts: Counts,
}

#[derive(Debug)]
struct Entry<A> {
    /// None for a message that nobody waits for an acknowledgement of (QoS 0).
    ack: Option<A>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Held { token: Token, message: Message },
    Published { bytes: usize, passes: bool },
    Done,
}

/// What became of messages since this was last asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed on, and confirmed by the broker.
    pub passed: u64,
    /// Refused, by [`Reason::ALL`].
    pub refused: [u64; Reason::ALL.len()],
    /// Left to other shards.
    pub ignored: u64,
}

/// Judges by what is known, without asking anyone.
pub type ByKnowledge<'a> = &'a mut dyn FnMut(&ResourceKey, Token) -> Verdict;

impl<A> Window<A> {
    /// An empty window, for payloads up to a number of bytes in all.
    pub fn new(routes: Routes, bytes_max: usize) -> Self {
        let (entries, held, outbox) = (VecDeque::new(), HashMap::new(), VecDeque::new());
        Self { routes, bytes_max, entries, first: 0, held, outbox, bytes: 0, counts: Counts::default() }
    }

    /// A message came.
    pub fn arrive(&mut self, ack: Option<A>, message: Message, fate: Fate, judge: ByKnowledge<'_>) {
        let number = self.first + self.entries.len() as u64;
        let has_ack = ack.is_some();
        self.entries.push_back(Entry { ack, stage: Stage::Done });
        match fate {
            Fate::Ignore => self.counts.ignored += 1,
            Fate::Refuse(reason) => self.refuse(number, message, reason),
            Fate::Judge(Claim { resource, token }) => {
                let verdict = match self.held.contains_key(&resource) {
                    true => None,
                    false => decided(judge(&resource, token)),
                };
                match verdict {
                    Some(verdict) => self.settle(number, message, verdict),
                    None if !has_ack && !self.may_hold_unasked(&message) => {
                        self.refuse(number, message, Reason::NoRoom);
                    }
                    None => self.hold(number, resource, token, message),
                }
            }
        }
    }

    /// The first message that is held back for a resource was asked about, under this token. What follows it is judged
    /// by what is known now.
    pub fn answered(
        &mut self,
        resource: &ResourceKey,
        token: Token,
        verdict: Verdict,
        judge: ByKnowledge<'_>,
    ) {
        let mut answer = Some(verdict);
        self.go_on(resource, &mut |resource, head| match answer.take() {
            Some(verdict) if head == token => verdict,
            _ => judge(resource, head),
        });
    }

    /// Something became known: judges everything that is held back again.
    pub fn reconsider(&mut self, judge: ByKnowledge<'_>) {
        let resources: Vec<ResourceKey> = self.held.keys().cloned().collect();
        resources.iter().for_each(|resource| self.go_on(resource, judge));
    }

    /// Judges what is held back for a resource, until something cannot be decided.
    fn go_on(&mut self, resource: &ResourceKey, judge: ByKnowledge<'_>) {
        while let Some(&number) = self.held.get(resource).and_then(VecDeque::front) {
            let verdict = match &self.entry(number).stage {
                Stage::Held { token, .. } => decided(judge(resource, *token)),
                _ => return,
            };
            let Some(verdict) = verdict else { return };
            let Stage::Held { message, .. } = std::mem::replace(&mut self.entry(number).stage, Stage::Done)
            else {
                return;
            };
            self.bytes -= message.payload.len();
            if let Some(line) = self.held.get_mut(resource) {
                line.pop_front();
                if line.is_empty() {
                    self.held.remove(resource);
                }
            }
            self.settle(number, message, verdict);
        }
    }

    /// What is to be published next.
    pub fn next_publication(&mut self) -> Option<(u64, Publication)> {
        self.outbox.pop_front()
    }

    /// The broker has what was published under this number.
    pub fn confirmed(&mut self, number: u64) {
        let entry = self.entry(number);
        let Stage::Published { bytes, passes } = entry.stage else { return };
        entry.stage = Stage::Done;
        self.bytes -= bytes;
        self.counts.passed += u64::from(passes);
    }

    /// What may be acknowledged next.
    pub fn next_ack(&mut self) -> Option<A> {
        while matches!(self.entries.front(), Some(Entry { stage: Stage::Done, .. })) {
            self.first += 1;
            if let Some(ack) = self.entries.pop_front().and_then(|entry| entry.ack) {
                return Some(ack);
            }
        }
        None
    }

    /// The first message that is held back of each resource.
    pub fn waiting(&self) -> impl Iterator<Item = (&ResourceKey, Token)> {
        self.held.iter().filter_map(|(resource, line)| {
            let entry = &self.entries[(line.front()? - self.first) as usize];
            match entry.stage {
                Stage::Held { token, .. } => Some((resource, token)),
                _ => None,
            }
        })
    }

    /// How many messages are held back.
    pub fn held(&self) -> usize {
        self.held.values().map(VecDeque::len).sum()
    }

    /// How many messages are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is published that is not confirmed.
    pub fn is_settled(&self) -> bool {
        self.entries.iter().all(|entry| !matches!(entry.stage, Stage::Published { .. }))
    }

    /// Whether the broker sends more than it should without being acknowledged: then the connection must be given up.
    pub fn is_overfull(&self) -> bool {
        self.entries.len() > MESSAGES_MAX.max(self.bytes_max / ENTRY_BYTES)
    }

    /// Whether more should be read. What is published makes room when it is confirmed, what is held back when it is
    /// decided.
    pub fn has_room(&self) -> bool {
        self.bytes <= self.bytes_max
    }

    /// What became of messages since this was last asked.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Whether a message may be held that the broker does not count as unacknowledged.
    fn may_hold_unasked(&self, message: &Message) -> bool {
        self.bytes + message.payload.len() <= self.bytes_max / 2 && self.entries.len() <= MESSAGES_MAX
    }

    fn hold(&mut self, number: u64, resource: ResourceKey, token: Token, message: Message) {
        self.bytes += message.payload.len();
        self.held.entry(resource).or_default().push_back(number);
        self.entry(number).stage = Stage::Held { token, message };
    }

    fn settle(&mut self, number: u64, message: Message, verdict: Result<(), Reason>) {
        match verdict {
            Ok(()) => {
                let publication = self.routes.passed(message);
                self.publish(number, publication, true);
            }
            Err(reason) => self.refuse(number, message, reason),
        }
    }

    fn refuse(&mut self, number: u64, message: Message, reason: Reason) {
        self.counts.refused[reason as usize] += 1;
        if let Some(publication) = self.routes.refused(message, reason) {
            self.publish(number, publication, false);
        }
    }

    fn publish(&mut self, number: u64, publication: Publication, passes: bool) {
        let bytes = publication.payload.len();
        self.bytes += bytes;
        self.entry(number).stage = Stage::Published { bytes, passes };
        self.outbox.push_back((number, publication));
    }

    fn entry(&mut self, number: u64) -> &mut Entry<A> {
        &mut self.entries[(number - self.first) as usize]
    }
}

/// Whether a message passes, or why not; none if that cannot be told now, but later.
fn decided(verdict: Verdict) -> Option<Result<(), Reason>> {
    match verdict {
        Verdict::Admit => Some(Ok(())),
        Verdict::Stale { .. } => Some(Err(Reason::Stale)),
        Verdict::Undecidable(doubt) if doubt.may_pass() => None,
        // The store has answered, and waiting changes nothing.
        Verdict::Undecidable(_) => Some(Err(Reason::Unknown)),
    }
}

#[cfg(test)]
mod tests;
