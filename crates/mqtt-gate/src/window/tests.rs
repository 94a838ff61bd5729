use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use solehold_core::fence::Doubt;

use super::*;
use crate::intake::tests::message;

fn routes(dead_letter: bool) -> Routes {
    let dead_letter = dead_letter.then(|| "dead".to_owned());
    Routes { prefix: "gated".to_owned(), strip: None, dead_letter }
}

fn resource(number: u8) -> ResourceKey {
    crate::intake::tests::resource(&format!("s-{number}"))
}

fn claim(of: u8, token: u64) -> Fate {
    Fate::Judge(MessageClaim { resource: resource(of), token: Token(token) })
}

/// What happens to a gate.
#[derive(Debug, Clone)]
enum Step {
    /// A message for a resource, whose newest token is this many below, or above, that of the message.
    Arrive { of: u8, behind: u8, is_ours: bool, is_good: bool },
    /// A grant that the gate is told of at once, or only when it asks.
    Grant { of: u8, is_told: bool },
    /// An answer about the first message that is held back.
    Answer { at: usize },
    /// The gate learns of everything.
    News,
    /// The broker confirms one of what was published.
    Confirm { at: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..4, 0u8..3, prop::bool::weighted(0.9), prop::bool::weighted(0.9))
            .prop_map(|(of, behind, is_ours, is_good)| Step::Arrive { of, behind, is_ours, is_good }),
        2 => (0u8..4, any::<bool>()).prop_map(|(of, is_told)| Step::Grant { of, is_told }),
        2 => any::<usize>().prop_map(|at| Step::Answer { at }),
        1 => Just(Step::News),
        4 => any::<usize>().prop_map(|at| Step::Confirm { at }),
    ]
}

/// A gate, what is true, and what the gate knows of it.
struct World {
    window: Window<u64>,
    newest: BTreeMap<ResourceKey, u64>,
    known: BTreeMap<ResourceKey, u64>,
    arrived: u64,
    /// What was published and not confirmed: the number, and the message.
    flying: Vec<(u64, u64)>,
    /// What a message needs before it may be acknowledged.
    needs: BTreeMap<u64, bool>,
    passed: Vec<(ResourceKey, u64, u64)>,
    acknowledged: Vec<u64>,
    claims: BTreeMap<u64, (ResourceKey, u64)>,
}

impl World {
    fn new(dead_letter: bool) -> Self {
        let all: BTreeMap<ResourceKey, u64> = (0..4).map(|of| (resource(of), 1)).collect();
        Self {
            window: Window::new(routes(dead_letter), usize::MAX),
            newest: all.clone(),
            known: all,
            arrived: 0,
            flying: Vec::new(),
            needs: BTreeMap::new(),
            passed: Vec::new(),
            acknowledged: Vec::new(),
            claims: BTreeMap::new(),
        }
    }

    fn judge(known: &BTreeMap<ResourceKey, u64>, resource: &ResourceKey, token: Token) -> Verdict {
        match token.0.cmp(&known[resource]) {
            std::cmp::Ordering::Less => Verdict::Stale { newest: Token(known[resource]) },
            std::cmp::Ordering::Equal => Verdict::Admit,
            std::cmp::Ordering::Greater => {
                Verdict::Undecidable(Doubt::Newer { known: Token(known[resource]) })
            }
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Arrive { of, behind, is_ours, is_good } => {
                let resource = resource(*of);
                let token = self.newest[&resource].saturating_sub(u64::from(*behind)).max(1);
                let fate = match (is_ours, is_good) {
                    (false, _) => Fate::Ignore,
                    (true, false) => Fate::Refuse(Reason::NotJson),
                    (true, true) => claim(*of, token),
                };
                if *is_ours && *is_good {
                    self.claims.insert(self.arrived, (resource, token));
                }
                let mut note = message("data/x/y", "");
                note.payload = self.arrived.to_string().into();
                let known = &self.known;
                self.window.arrive(Some(self.arrived), note, fate, &mut |resource, token| {
                    Self::judge(known, resource, token)
                });
                self.needs.insert(self.arrived, false);
                self.arrived += 1;
            }
            Step::Grant { of, is_told } => {
                let resource = resource(*of);
                let newest = self.newest[&resource] + 1;
                self.newest.insert(resource.clone(), newest);
                if *is_told {
                    self.known.insert(resource, newest);
                }
            }
            Step::Answer { at } => {
                let waiting: Vec<_> =
                    self.window.waiting().map(|(resource, token)| (resource.clone(), token)).collect();
                if waiting.is_empty() {
                    return;
                }
                let (resource, token) = &waiting[at % waiting.len()];
                self.known.insert(resource.clone(), self.newest[resource]);
                let verdict = Self::judge(&self.known, resource, *token);
                let known = &self.known;
                self.window.answered(resource, *token, verdict, &mut |resource, token| {
                    Self::judge(known, resource, token)
                });
            }
            Step::News => {
                self.known = self.newest.clone();
                let known = &self.known;
                self.window.reconsider(&mut |resource, token| Self::judge(known, resource, token));
            }
            Step::Confirm { at } => {
                if !self.flying.is_empty() {
                    let at = at % self.flying.len();
                    let (number, message) = self.flying.remove(at);
                    self.window.confirmed(number);
                    self.needs.insert(message, false);
                }
            }
        }
        self.look();
    }

    /// Takes what the window gives out, and notes it.
    fn look(&mut self) {
        while let Some((number, publication)) = self.window.next_publication() {
            let text = std::str::from_utf8(&publication.payload).expect("a number");
            let message: u64 = text.parse().expect("a number");
            self.needs.insert(message, true);
            self.flying.push((number, message));
            if publication.topic.starts_with("gated/") {
                let (resource, token) = self.claims[&message].clone();
                assert_eq!(token, self.known[&resource], "passed what was not the newest known");
                self.passed.push((resource, message, token));
            }
        }
        while let Some(ack) = self.window.next_ack() {
            assert!(
                !self.needs[&ack],
                "{ack} was acknowledged before what was published for it was confirmed"
            );
            self.acknowledged.push(ack);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn acknowledgements_are_in_order_and_nothing_undecided_has_one(
        steps in prop::collection::vec(step(), 1..80),
        dead_letter in any::<bool>(),
    ) {
        let mut world = World::new(dead_letter);
        for step in &steps {
            world.take(step);
            let waiting: BTreeSet<Token> = world.window.waiting().map(|(_, token)| token).collect();
            prop_assert_eq!(waiting.is_empty(), world.window.held() == 0);
        }
        // In order of arrival, each once, with no gap.
        prop_assert_eq!(&world.acknowledged, &(0..world.acknowledged.len() as u64).collect::<Vec<_>>());
        // The messages of a resource pass in the order in which they came, and never an older token after a newer one.
        for of in 0..4 {
            let of = resource(of);
            let passed: Vec<_> = world.passed.iter().filter(|(resource, ..)| *resource == of).collect();
            prop_assert!(passed.windows(2).all(|two| two[0].1 < two[1].1 && two[0].2 <= two[1].2), "{:?}", passed);
        }
        // In the end everything is decided, confirmed and acknowledged.
        world.take(&Step::News);
        while !world.flying.is_empty() {
            world.take(&Step::Confirm { at: 0 });
        }
        prop_assert_eq!(world.acknowledged.len() as u64, world.arrived);
        prop_assert_eq!((world.window.held(), world.window.unacknowledged(), world.window.bytes), (0, 0, 0));
        let counts = world.window.take_counts();
        let told = counts.passed + counts.ignored + counts.refused.iter().sum::<u64>();
        prop_assert_eq!(told, world.arrived, "every message is counted once");
        prop_assert_eq!(counts.passed, world.passed.len() as u64);
    }
}

/// Keeps what it says to itself.
fn silent(_: &ResourceKey, _: Token) -> Verdict {
    Verdict::Undecidable(Doubt::Expired)
}

#[test]
fn one_resource_that_waits_holds_up_acknowledgements_and_no_other_resource() {
    let mut window = Window::new(routes(false), 1_000);
    window.arrive(Some('a'), message("data/1/x", "{}"), claim(1, 5), &mut silent);
    window.arrive(Some('b'), message("data/2/x", "{}"), claim(2, 5), &mut |_, _| Verdict::Admit);
    window.arrive(Some('c'), message("data/1/x", "{}"), claim(1, 5), &mut |_, _| panic!("behind the first"));
    let (number, publication) = window.next_publication().expect("the second is not held up");
    assert_eq!(publication.topic, "gated/data/2/x");
    window.confirmed(number);
    assert_eq!(window.next_ack(), None, "not before the first");
    assert_eq!(window.held(), 2);
    window.answered(&resource(1), Token(5), Verdict::Undecidable(Doubt::NoSuchResource), &mut silent);
    assert_eq!((window.next_ack(), window.next_ack(), window.next_ack()), (Some('a'), Some('b'), None));
    assert_eq!(window.held(), 1, "the third has to be asked about by itself");
}

#[test]
fn an_answer_about_another_token_decides_nothing() {
    let mut window = Window::new(routes(false), 1_000);
    window.arrive(Some(()), message("data/1/x", "{}"), claim(1, 5), &mut silent);
    window.answered(&resource(1), Token(4), Verdict::Admit, &mut silent);
    assert_eq!((window.next_publication(), window.held()), (None, 1));
    window.answered(&resource(2), Token(5), Verdict::Admit, &mut silent);
    assert_eq!((window.next_publication(), window.held()), (None, 1));
}

#[test]
fn what_nobody_would_send_again_is_held_only_while_there_is_room() {
    let mut window = Window::<()>::new(routes(false), 100);
    for _ in 0..10 {
        window.arrive(None, message("data/1/x", &"x".repeat(10)), claim(1, 5), &mut silent);
    }
    assert_eq!(window.held(), 5);
    assert_eq!(window.take_counts().refused[Reason::NoRoom as usize], 5);
    assert!(!window.is_overfull());
}

#[test]
fn no_more_is_read_than_fits_until_there_is_room_again() {
    let mut window = Window::new(routes(false), 100);
    for number in 0..11 {
        assert!(window.has_room());
        window.arrive(Some(number), message("data/1/x", &"x".repeat(10)), claim(1, 5), &mut silent);
    }
    assert!(!window.has_room() && !window.is_overfull(), "what is held back can be decided");
    window.reconsider(&mut |_, _| Verdict::Admit);
    assert!(!window.has_room(), "nothing is confirmed yet");
    let (number, _) = window.next_publication().expect("published");
    window.confirmed(number);
    assert!(window.has_room());
}

#[test]
fn a_broker_that_sends_more_messages_than_can_be_numbered_is_noticed() {
    let mut window = Window::new(routes(false), 100);
    for number in 0..=MESSAGES_MAX {
        assert!(!window.is_overfull());
        window.arrive(Some(number), message("data/1/x", ""), claim(1, 5), &mut silent);
    }
    assert!(window.is_overfull());
}
