//! One ordered window: items are processed in order per key, and acknowledged by their settled prefix.
//!
//! ```text
//!   insert ──> behind ──> ready ──take──> taken ──settle──> settled ──> the prefix passes it
//!                           ^               │                 ^
//!                           ├── put_back ───┤                 │
//!                           │               └── release ──> released: the next item of its key is ready
//!   skip ───────────────────────────────────────────────────> settled
//! ```
//!
//! - Items enter in the order of their positions, which may have gaps. An item with a key is ready when every earlier
//!   item of that key is settled or released; an item without a key is ready at once.
//! - Items that are not behind another one are settled in any order. [`OrderedWindow::settled_to`] is the end of the
//!   settled prefix: every position up to it is settled, so a source that resumes after it misses nothing.
//! - The window keeps the positions after the prefix and nothing else. Its owner bounds it: by
//!   [`OrderedWindow::len`], the positions that would come again after a crash, or by
//!   [`OrderedWindow::unsettled`], the items in memory.
//!
//! No I/O, no clock, no retries: these are the policy of the owner. The relays of the server, the MQTT gate and the
//! lanes of a Kafka consumer are built on it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::Hash,
};

/// Items by position, in order per key. See the [crate] for the states of an item.
#[derive(Debug)]
pub struct OrderedWindow<P, K, T> {
    settled_to: P,
    /// The positions after the settled prefix, in order. The first one is not settled.
    entries: VecDeque<Entry<P, K, T>>,
    /// The items of each key that are neither settled nor released, in order.
    lines: HashMap<K, VecDeque<P>>,
    /// The items in the state [`State::Ready`].
    ready: BTreeSet<P>,
    unsettled: usize,
}

#[derive(Debug)]
struct Entry<P, K, T> {
    position: P,
    /// None once it is settled.
    open: Option<Open<K, T>>,
}

#[derive(Debug)]
struct Open<K, T> {
    key: Option<K>,
    state: State,
    item: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Behind,
    Ready,
    Taken,
    Released,
}

impl<P: Copy + Ord, K: Eq + Hash + Clone, T> OrderedWindow<P, K, T> {
    /// An empty window: every position up to `settled_to` is settled.
    pub fn new(settled_to: P) -> Self {
        Self {
            settled_to,
            entries: VecDeque::new(),
            lines: HashMap::new(),
            ready: BTreeSet::new(),
            unsettled: 0,
        }
    }

    /// The end of the settled prefix.
    pub fn settled_to(&self) -> P {
        self.settled_to
    }

    /// The highest position that was inserted or skipped.
    pub fn last(&self) -> P {
        self.entries.back().map_or(self.settled_to, |last| last.position)
    }

    /// The number of positions after the settled prefix, settled or not.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether every position is settled.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of items that are not settled.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// The positions of the items that are not settled, in order.
    pub fn positions(&self) -> impl Iterator<Item = P> {
        self.entries.iter().filter(|entry| entry.open.is_some()).map(|entry| entry.position)
    }

    /// The items that are ready, in order.
    pub fn ready(&self) -> impl Iterator<Item = (P, &T)> {
        self.ready.iter().filter_map(|position| Some((*position, self.get(*position)?)))
    }

    /// The first item of a key that is neither settled nor released.
    pub fn first_of(&self, key: &K) -> Option<P> {
        self.lines.get(key)?.front().copied()
    }

    /// An item that is not settled.
    pub fn get(&self, position: P) -> Option<&T> {
        let entry = self.entries.get(self.index(position)?)?;
        entry.open.as_ref().map(|open| &open.item)
    }

    /// An item that is not settled.
    pub fn get_mut(&mut self, position: P) -> Option<&mut T> {
        self.open(position).map(|open| &mut open.item)
    }

    /// Takes in an item. Returns false, and drops the item, unless its position is above all others.
    pub fn insert(&mut self, position: P, key: Option<K>, item: T) -> bool {
        if position <= self.last() {
            return false;
        }
        let is_first = key.as_ref().is_none_or(|key| {
            let line = self.lines.entry(key.clone()).or_default();
            line.push_back(position);
            line.len() == 1
        });
        let state = if is_first { State::Ready } else { State::Behind };
        if is_first {
            self.ready.insert(position);
        }
        self.unsettled += 1;
        self.entries.push_back(Entry { position, open: Some(Open { key, state, item }) });
        true
    }

    /// Settles every position up to this one that was not inserted. Does nothing unless it is above all others.
    pub fn skip(&mut self, position: P) {
        if position <= self.last() {
            return;
        }
        match self.entries.back_mut() {
            None => self.settled_to = position,
            // Both are settled: the prefix passes them together.
            Some(last) if last.open.is_none() => last.position = position,
            Some(_) => self.entries.push_back(Entry { position, open: None }),
        }
    }

    /// Begins an item that is ready. Later items of its key stay behind it.
    pub fn take(&mut self, position: P) -> Option<&mut T> {
        if !self.ready.remove(&position) {
            return None;
        }
        let open = self.open(position)?;
        open.state = State::Taken;
        Some(&mut open.item)
    }

    /// Makes a taken item ready again.
    pub fn put_back(&mut self, position: P) {
        if let Some(open) = self.open(position)
            && open.state == State::Taken
        {
            open.state = State::Ready;
            self.ready.insert(position);
        }
    }

    /// Lets the next item of the same key become ready before this one is settled.
    pub fn release(&mut self, position: P) {
        let Some(open) = self.open(position) else { return };
        if matches!(open.state, State::Behind | State::Released) {
            return;
        }
        open.state = State::Released;
        let key = open.key.take();
        self.ready.remove(&position);
        if let Some(key) = key {
            self.advance_line(&key);
        }
    }

    /// Settles an item, and returns it. None if it is settled already, or behind another item of its key.
    pub fn settle(&mut self, position: P) -> Option<T> {
        if self.open(position)?.state == State::Behind {
            return None;
        }
        self.release(position);
        let index = self.index(position)?;
        let settled = self.entries[index].open.take()?;
        self.unsettled -= 1;
        while let Some(first) = self.entries.front()
            && first.open.is_none()
        {
            self.settled_to = first.position;
            self.entries.pop_front();
        }
        Some(settled.item)
    }

    fn advance_line(&mut self, key: &K) {
        let Some(line) = self.lines.get_mut(key) else { return };
        line.pop_front();
        let Some(next) = line.front().copied() else {
            self.lines.remove(key);
            return;
        };
        if let Some(open) = self.open(next) {
            open.state = State::Ready;
            self.ready.insert(next);
        }
    }

    fn index(&self, position: P) -> Option<usize> {
        self.entries.binary_search_by_key(&position, |entry| entry.position).ok()
    }

    fn open(&mut self, position: P) -> Option<&mut Open<K, T>> {
        let index = self.index(position)?;
        self.entries[index].open.as_mut()
    }
}
