use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use solehold_core::key::Name;

use super::*;

const LIMITS: WindowLimits = WindowLimits { events_max: 20, in_flight_max: 4, attempts_max: Some(3) };

fn resource(number: u8) -> ResourceKey {
    let name = |text: &str| Name::new(text).expect("a short name");
    ResourceKey::new(name("t"), name("k"), name(&number.to_string()))
}

/// One thing that happens to a relay.
#[derive(Debug, Clone)]
enum Step {
    Offer(u8),
    Skip,
    Send,
    /// Of those in flight, which one, and how it went.
    Answer(usize, Going),
    Pass(u64),
}

#[derive(Debug, Clone, Copy)]
enum Going {
    Well,
    Away,
    Busy,
    Refused,
}

fn step() -> impl Strategy<Value = Step> {
    let going = prop_oneof![
        4 => Just(Going::Well),
        1 => Just(Going::Away),
        1 => Just(Going::Busy),
        2 => Just(Going::Refused)
    ];
    prop_oneof![
        4 => (0u8..4).prop_map(Step::Offer),
        1 => Just(Step::Skip),
        4 => Just(Step::Send),
        4 => (0usize..8, going).prop_map(|(which, going)| Step::Answer(which, going)),
        2 => (0u64..2_000).prop_map(Step::Pass),
    ]
}

/// What is known of a window from outside.
struct World {
    window: Window<u64>,
    now: BootTime,
    last: u64,
    resources: BTreeMap<u64, u8>,
    in_flight: BTreeSet<u64>,
    settled: BTreeSet<u64>,
    refusals: BTreeMap<u64, u32>,
}

impl World {
    fn new() -> Self {
        Self {
            window: Window::new(Revision(100), LIMITS),
            now: BootTime::from_ms(1_000),
            last: 100,
            resources: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            settled: BTreeSet::new(),
            refusals: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Offer(number) if self.window.has_room() => {
                self.last += 1;
                self.resources.insert(self.last, number);
                self.window.offer(Revision(self.last), resource(number), self.last);
            }
            Step::Offer(_) => {}
            Step::Skip => {
                self.last += 1;
                self.window.skip(Revision(self.last));
                self.settled.insert(self.last);
            }
            Step::Send => {
                let Some(job) = self.window.next(self.now) else { return };
                self.sent(&job);
            }
            Step::Answer(which, going) => {
                let Some(revision) = self.in_flight.iter().nth(which).copied() else { return };
                self.answer(revision, going);
            }
            Step::Pass(ms) => self.now = self.now.plus(Duration::from_millis(ms)),
        }
    }

    fn sent(&mut self, job: &Delivery<u64>) {
        let revision = job.message;
        assert_eq!(job.revision, Revision(revision));
        assert!(self.in_flight.insert(revision), "{revision} was in flight already");
        assert!(self.in_flight.len() <= LIMITS.in_flight_max, "too many in flight");
        let line = self.resources[&revision];
        let before = self.resources.range(..revision).filter(|(_, other)| **other == line);
        for (earlier, _) in before {
            assert!(self.settled.contains(earlier), "{revision} was sent before {earlier} was settled");
        }
        let refusals = self.refusals.get(&revision).copied().unwrap_or_default();
        assert_eq!(job.condemned.is_some(), refusals >= 3, "condemned after {refusals} refusals");
    }

    fn answer(&mut self, revision: u64, going: Going) {
        self.in_flight.remove(&revision);
        let failure = match going {
            Going::Well => {
                self.window.confirmed(Revision(revision));
                self.settled.insert(revision);
                return;
            }
            Going::Away => Failure::Away("gone".to_owned()),
            Going::Busy => Failure::Busy("later".to_owned()),
            Going::Refused => Failure::Refused("no".to_owned()),
        };
        if matches!(going, Going::Refused) {
            *self.refusals.entry(revision).or_default() += 1;
        }
        self.window.failed(Revision(revision), &failure, self.now, 0.5);
        if matches!(going, Going::Away) {
            assert!(self.window.next(self.now).is_none(), "sent while nothing can be reached");
        }
    }

    /// The cursor is as far as it may be, and no further.
    fn check_cursor(&self) {
        let unsettled = (101..=self.last).find(|revision| !self.settled.contains(revision));
        let safe = unsettled.map_or(self.last, |first| first - 1);
        assert_eq!(self.window.cursor(), Revision(safe));
        assert_eq!(self.window.in_flight(), self.in_flight.len());
        assert_eq!(self.window.read(), Revision(self.last));
    }
}

proptest! {
    #[test]
    fn each_resource_in_order_and_the_cursor_behind_what_is_settled(steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check_cursor();
        }
        // When all goes well again everything is delivered, by waking only when it is asked for.
        for _ in 0..1_000 {
            while let Some(job) = world.window.next(world.now) {
                world.sent(&job);
            }
            let Some(revision) = world.in_flight.first().copied() else {
                let Some(wake) = world.window.wake_at() else { break };
                world.now = world.now.max(wake);
                continue;
            };
            world.answer(revision, Going::Well);
        }
        world.check_cursor();
        prop_assert_eq!(world.window.cursor(), Revision(world.last));
    }
}

#[test]
fn after_a_pause_one_event_finds_out() {
    let mut window = Window::new(Revision(0), LIMITS);
    let mut now = BootTime::from_ms(0);
    for number in 1..=3 {
        window.offer(Revision(number), resource(number as u8), number);
    }
    let sent: Vec<_> = std::iter::from_fn(|| window.next(now)).map(|job| job.revision).collect();
    assert_eq!(sent.len(), 3);
    let away = Failure::Away("no route".to_owned());
    for revision in sent {
        window.failed(revision, &away, now, 1.0);
    }
    assert!(window.next(now).is_none());
    assert_eq!(window.wake_at(), Some(now.plus(AWAY.first)), "three in flight are one failure");
    now = now.plus(AWAY.first);
    let job = window.next(now).expect("one to find out");
    assert!(window.next(now).is_none(), "only one");
    window.confirmed(job.revision);
    assert!(window.next(now).is_some() && window.next(now).is_some(), "all again");
}

#[test]
fn without_a_bound_on_attempts_nothing_is_condemned() {
    let mut window = Window::new(Revision(0), WindowLimits { attempts_max: None, ..LIMITS });
    let mut now = BootTime::from_ms(0);
    window.offer(Revision(1), resource(1), 1);
    window.offer(Revision(2), resource(2), 2);
    for _ in 0..50 {
        now = window.wake_at().unwrap_or(now);
        let job = window.next(now).expect("it is sent again");
        if job.revision == Revision(2) {
            window.confirmed(job.revision);
        } else {
            let verdict = window.failed(job.revision, &Failure::Refused("no".to_owned()), now, 1.0);
            assert_eq!((verdict, job.condemned), (Fate::Retry, None));
        }
    }
    assert_eq!((window.cursor(), window.in_flight()), (Revision(0), 0));
}
