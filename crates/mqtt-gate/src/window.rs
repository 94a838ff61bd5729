//! The messages that were received and not yet acknowledged. Adds verdicts, holding back and publications to
//! [`OrderedWindow`].
//!
//! ```text
//!               ┌── refused, ignored ─────────────────────────────────┐
//!   arrive ─────┼── admitted ──> published ──> confirmed ─────────────┼──> acknowledged, in order of arrival
//!               └── held back ──> decided: admitted or refused ───────┘
//! ```
//!
//! - A message is acknowledged when its publication is confirmed, or when nothing is published for it; never before the
//!   messages that arrived before it.
//! - A message that cannot be decided is held back, and with it the later messages for the same resource, so that they
//!   stay in order. Other resources do not wait.
//! - A window belongs to one connection, and is dropped with it: the broker redelivers the messages that were not
//!   acknowledged.

use std::collections::VecDeque;

use solehold_core::{fence::Verdict, key::ResourceKey, time::Token};
use solehold_window::OrderedWindow;

use crate::{
    intake::{Fate, Message, MessageClaim},
    refusal::Reason,
    routes::{Publication, Routes},
};

/// The most messages that one connection should have unacknowledged: MQTT numbers them with 16 bits. Some brokers send
/// more, a whole backlog at once, and reuse the numbers.
pub const MESSAGES_MAX: usize = 65_535;

/// About what a message takes beside its payload.
const ENTRY_BYTES: usize = 256;

/// The messages of one connection that are not acknowledged. `A` is what the broker's client needs to acknowledge one.
#[derive(Debug)]
pub struct Window<A> {
    routes: Routes,
    bytes_max: usize,
    /// Messages by number of arrival. Only a message that is held back has a key, its resource, and is ready: to be
    /// judged, when it is the first of its resource.
    messages: OrderedWindow<u64, ResourceKey, Stage>,
    /// One for each message that is not acknowledged; none where the broker expects no acknowledgement (QoS 0).
    acks: VecDeque<Option<A>>,
    /// The number of the first of `acks`.
    first: u64,
    outbox: VecDeque<(u64, Publication)>,
    held: usize,
    unconfirmed: usize,
    /// Payloads of messages that are held back or not confirmed.
    bytes: usize,
    counts: Counts,
}

#[derive(Debug)]
enum Stage {
    Held { resource: ResourceKey, token: Token, message: Message },
    Published { bytes: usize, passes: bool },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed on, and confirmed by the broker.
    pub passed: u64,
    /// Refused, by [`Reason::ALL`].
    pub refused: [u64; Reason::ALL.len()],
    /// Left to other shards.
    pub ignored: u64,
}

/// Judges a token by local knowledge, without a request.
pub type ByKnowledge<'a> = &'a mut dyn FnMut(&ResourceKey, Token) -> Verdict;

impl<A> Window<A> {
    /// An empty window, for payloads up to a number of bytes in all.
    pub fn new(routes: Routes, bytes_max: usize) -> Self {
        Self {
            routes,
            bytes_max,
            messages: OrderedWindow::new(0),
            acks: VecDeque::new(),
            first: 1,
            outbox: VecDeque::new(),
            held: 0,
            unconfirmed: 0,
            bytes: 0,
            counts: Counts::default(),
        }
    }

    pub fn arrive(&mut self, ack: Option<A>, message: Message, fate: Fate, judge: ByKnowledge<'_>) {
        let number = self.messages.last() + 1;
        let has_ack = ack.is_some();
        self.acks.push_back(ack);
        let verdict = match fate {
            Fate::Ignore => {
                self.counts.ignored += 1;
                return self.messages.skip(number);
            }
            Fate::Refuse(reason) => Err(reason),
            Fate::Judge(MessageClaim { resource, token }) => {
                let is_behind = self.messages.first_of(&resource).is_some();
                let verdict = if is_behind { None } else { decided(judge(&resource, token)) };
                match verdict {
                    Some(verdict) => verdict,
                    None if has_ack || self.may_hold_unacknowledged(&message) => {
                        return self.hold(number, resource, token, message);
                    }
                    None => Err(Reason::NoRoom),
                }
            }
        };
        match self.publication(message, verdict) {
            Some(publication) => {
                let stage = self.published(number, publication, verdict.is_ok());
                self.messages.insert(number, None, stage);
                self.messages.release(number);
            }
            None => self.messages.skip(number),
        }
    }

    /// The server gave its verdict on the first message that is held back for a resource, under this token. Later
    /// messages are judged by local knowledge.
    pub fn answered(
        &mut self,
        resource: &ResourceKey,
        token: Token,
        verdict: Verdict,
        judge: ByKnowledge<'_>,
    ) {
        let mut answer = Some(verdict);
        self.advance(resource, &mut |resource, head| match answer.take() {
            Some(verdict) if head == token => verdict,
            _ => judge(resource, head),
        });
    }

    /// Local knowledge changed: judges the messages that are held back again.
    pub fn reconsider(&mut self, judge: ByKnowledge<'_>) {
        let resources: Vec<ResourceKey> = self.waiting().map(|(resource, _)| resource.clone()).collect();
        resources.iter().for_each(|resource| self.advance(resource, judge));
    }

    /// Judges the messages that are held back for a resource, up to one that cannot be decided.
    fn advance(&mut self, resource: &ResourceKey, judge: ByKnowledge<'_>) {
        while let Some(number) = self.messages.first_of(resource) {
            let Some(Stage::Held { token, message, .. }) = self.messages.get(number) else { return };
            let Some(verdict) = decided(judge(resource, *token)) else { return };
            let message = message.clone();
            self.held -= 1;
            self.bytes -= message.payload.len();
            let Some(publication) = self.publication(message, verdict) else {
                self.messages.settle(number);
                continue;
            };
            let published = self.published(number, publication, verdict.is_ok());
            if let Some(stage) = self.messages.get_mut(number) {
                *stage = published;
            }
            self.messages.release(number);
        }
    }

    pub fn next_publication(&mut self) -> Option<(u64, Publication)> {
        self.outbox.pop_front()
    }

    /// The broker confirmed the publication with this number.
    pub fn confirmed(&mut self, number: u64) {
        let Some(Stage::Published { bytes, passes }) = self.messages.get(number) else { return };
        self.bytes -= bytes;
        self.counts.passed += u64::from(*passes);
        self.unconfirmed -= 1;
        self.messages.settle(number);
    }

    pub fn next_ack(&mut self) -> Option<A> {
        while self.first <= self.messages.settled_to() {
            self.first += 1;
            if let Some(ack) = self.acks.pop_front().flatten() {
                return Some(ack);
            }
        }
        None
    }

    /// The first message that is held back of each resource.
    pub fn waiting(&self) -> impl Iterator<Item = (&ResourceKey, Token)> {
        self.messages.ready().filter_map(|(_, stage)| match stage {
            Stage::Held { resource, token, .. } => Some((resource, *token)),
            Stage::Published { .. } => None,
        })
    }

    pub fn held(&self) -> usize {
        self.held
    }

    pub fn unacknowledged(&self) -> usize {
        self.acks.len()
    }

    /// Whether the broker has confirmed every publication.
    pub fn is_settled(&self) -> bool {
        self.unconfirmed == 0
    }

    /// Whether the broker sends more than it should without an acknowledgement: the connection must be closed.
    pub fn is_overfull(&self) -> bool {
        self.acks.len() > MESSAGES_MAX.max(self.bytes_max / ENTRY_BYTES)
    }

    /// Whether to read more messages.
    pub fn has_room(&self) -> bool {
        self.bytes <= self.bytes_max
    }

    /// The counts since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Whether to hold back a message that the broker does not count as unacknowledged.
    fn may_hold_unacknowledged(&self, message: &Message) -> bool {
        self.bytes + message.payload.len() <= self.bytes_max / 2 && self.acks.len() <= MESSAGES_MAX
    }

    fn hold(&mut self, number: u64, resource: ResourceKey, token: Token, message: Message) {
        self.held += 1;
        self.bytes += message.payload.len();
        let stage = Stage::Held { resource: resource.clone(), token, message };
        self.messages.insert(number, Some(resource), stage);
    }

    /// What to publish for a message that is decided; none for one that is refused without a dead-letter topic.
    fn publication(&mut self, message: Message, verdict: Result<(), Reason>) -> Option<Publication> {
        match verdict {
            Ok(()) => Some(self.routes.passed(message)),
            Err(reason) => {
                self.counts.refused[reason as usize] += 1;
                self.routes.refused(message, reason)
            }
        }
    }

    fn published(&mut self, number: u64, publication: Publication, passes: bool) -> Stage {
        let bytes = publication.payload.len();
        self.bytes += bytes;
        self.unconfirmed += 1;
        self.outbox.push_back((number, publication));
        Stage::Published { bytes, passes }
    }
}

/// Whether a message passes, or why not; none if that cannot be decided yet.
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
