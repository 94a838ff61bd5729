//! The window against a model that keeps everything and computes each answer from scratch.

use std::collections::BTreeMap;

use proptest::prelude::*;
use solehold_window::OrderedWindow;

#[derive(Debug, Clone)]
enum Step {
    Insert {
        gap: u64,
        key: Option<u8>,
    },
    Skip {
        gap: u64,
    },
    Take {
        which: usize,
    },
    PutBack {
        which: usize,
    },
    Release {
        which: usize,
    },
    Settle {
        which: usize,
    },
    /// A position that was inserted or skipped before.
    InsertOld {
        behind: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..4u64, prop::option::weighted(0.8, 0..4u8)).prop_map(|(gap, key)| Step::Insert { gap, key }),
        1 => (1..4u64).prop_map(|gap| Step::Skip { gap }),
        5 => (0..20usize).prop_map(|which| Step::Take { which }),
        2 => (0..20usize).prop_map(|which| Step::PutBack { which }),
        2 => (0..20usize).prop_map(|which| Step::Release { which }),
        5 => (0..20usize).prop_map(|which| Step::Settle { which }),
        1 => (0..20u64).prop_map(|behind| Step::InsertOld { behind }),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Model {
    Open { key: Option<u8>, is_taken: bool, is_released: bool },
    Settled,
}

/// The window, and every position that it was ever given.
struct World {
    window: OrderedWindow<u64, u8, u64>,
    all: BTreeMap<u64, Model>,
}

const START: u64 = 100;

impl World {
    fn new() -> Self {
        Self { window: OrderedWindow::new(START), all: BTreeMap::new() }
    }

    fn last(&self) -> u64 {
        self.all.keys().next_back().copied().unwrap_or(START)
    }

    fn is_behind(&self, position: u64) -> bool {
        let Some(Model::Open { key: Some(key), is_released: false, .. }) = self.all.get(&position) else {
            return false;
        };
        self.all.range(..position).any(|(_, earlier)| {
            matches!(earlier, Model::Open { key: of, is_released: false, .. } if *of == Some(*key))
        })
    }

    fn open(&self) -> Vec<u64> {
        self.all
            .iter()
            .filter(|(_, model)| **model != Model::Settled)
            .map(|(position, _)| *position)
            .collect()
    }

    fn ready(&self) -> Vec<u64> {
        let is_ready = |position: &u64| {
            matches!(self.all[position], Model::Open { is_taken: false, is_released: false, .. })
                && !self.is_behind(*position)
        };
        self.open().into_iter().filter(is_ready).collect()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Insert { gap, key } => {
                let position = self.last() + gap;
                assert!(self.window.insert(position, *key, position));
                self.all.insert(position, Model::Open { key: *key, is_taken: false, is_released: false });
            }
            Step::InsertOld { behind } => {
                let position = self.last().saturating_sub(*behind);
                assert!(!self.window.insert(position, None, position));
                self.window.skip(position);
            }
            Step::Skip { gap } => {
                let position = self.last() + gap;
                self.window.skip(position);
                self.all.insert(position, Model::Settled);
            }
            Step::Take { which } => self.on(*which, Self::take),
            Step::PutBack { which } => self.on(*which, Self::put_back),
            Step::Release { which } => self.on(*which, Self::release),
            Step::Settle { which } => self.on(*which, Self::settle),
        }
    }

    fn on(&mut self, which: usize, act: fn(&mut Self, u64)) {
        if let Some(position) = self.open().get(which).copied() {
            act(self, position);
        }
    }

    fn take(&mut self, position: u64) {
        let is_ready = self.ready().contains(&position);
        assert_eq!(self.window.take(position).copied(), is_ready.then_some(position));
        if let Some(Model::Open { is_taken, .. }) = self.all.get_mut(&position) {
            *is_taken |= is_ready;
        }
    }

    fn put_back(&mut self, position: u64) {
        self.window.put_back(position);
        if let Some(Model::Open { is_taken, is_released: false, .. }) = self.all.get_mut(&position) {
            *is_taken = false;
        }
    }

    fn release(&mut self, position: u64) {
        let is_behind = self.is_behind(position);
        self.window.release(position);
        if let Some(Model::Open { is_released, .. }) = self.all.get_mut(&position) {
            *is_released |= !is_behind;
        }
    }

    fn settle(&mut self, position: u64) {
        let is_behind = self.is_behind(position);
        assert_eq!(self.window.settle(position), (!is_behind).then_some(position));
        if !is_behind {
            self.all.insert(position, Model::Settled);
            assert_eq!(self.window.settle(position), None, "settled twice");
            assert_eq!(self.window.get(position), None);
        }
    }

    fn check(&self) {
        let window = &self.window;
        let ready: Vec<u64> = window.ready().map(|(position, _)| position).collect();
        assert_eq!(ready, self.ready(), "only the first open item of a key is ready");
        let open = self.open();
        assert_eq!(window.positions().collect::<Vec<_>>(), open);
        assert_eq!(window.unsettled(), open.len());
        assert_eq!(window.last(), self.last());
        let prefix = self.all.iter().take_while(|(_, model)| **model == Model::Settled);
        let settled_to = prefix.map(|(position, _)| *position).last().unwrap_or(START);
        assert_eq!(window.settled_to(), settled_to, "the prefix is as long as it may be, and no longer");
        let after = self.all.range(settled_to + 1..).count();
        assert!(window.len() <= after, "{} entries for {after} positions", window.len());
        assert_eq!(window.is_empty(), open.is_empty(), "nothing is kept once everything is settled");
        for key in 0..4 {
            let first = open.iter().find(|position| {
                matches!(self.all[position], Model::Open { key: of, is_released: false, .. } if of == Some(key))
            });
            assert_eq!(window.first_of(&key), first.copied());
        }
        assert!(open.iter().all(|position| window.get(*position) == Some(position)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn items_are_in_order_per_key_and_the_settled_prefix_advances(steps in prop::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
        }
        // Whatever happened before, everything can be settled, in order per key.
        while let Some(position) = world.ready().first().copied() {
            world.take(position);
            world.settle(position);
            world.check();
        }
        // Items that were taken or released before.
        while let Some(position) = world.open().into_iter().find(|position| !world.is_behind(*position)) {
            world.settle(position);
            world.check();
        }
        prop_assert_eq!(world.window.settled_to(), world.last());
        prop_assert!(world.window.is_empty());
    }
}

#[test]
fn a_key_waits_for_its_first_item_and_other_keys_do_not() {
    let mut window = OrderedWindow::new(0);
    for (position, key) in [(1, "a"), (2, "a"), (3, "b")] {
        assert!(window.insert(position, Some(key), ()));
    }
    let ready = |window: &OrderedWindow<i32, &str, ()>| -> Vec<i32> {
        window.ready().map(|(position, ())| position).collect()
    };
    assert_eq!(ready(&window), [1, 3]);
    assert_eq!((window.settle(3), window.settled_to()), (Some(()), 0), "1 is not settled");
    assert_eq!(window.settle(2), None, "it is behind 1");
    window.release(1);
    assert_eq!((ready(&window), window.first_of(&"a")), (vec![2], Some(2)));
    assert_eq!((window.settle(2), window.settled_to()), (Some(()), 0));
    assert_eq!((window.settle(1), window.settled_to(), window.len()), (Some(()), 3, 0));
}
