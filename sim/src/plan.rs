//! What is done to a world, and when: all of it follows from its seed, before the world begins. A failure is shrunk by
//! leaving acts out.

use std::{fmt, time::Duration};

use solehold_client::ResourceName;

use crate::{
    chance::SeededChance,
    program::Asking,
    stores::REPLICAS,
    wire::{Kind, Weather},
    world::{AGENTS, CAMERAS, CONSUMERS, GATES, JOBS, PROGRAMS, TTL},
};

/// How long things go wrong.
pub const CHAOS: Duration = Duration::from_secs(40);
/// How many acts there are, beside those of scenes.
const ACTS: (u64, u64) = (20, 60);
/// How many scenes there are: acts that rarely come in this order by chance.
const SCENES: u64 = 8;

/// How many times something happens to a wall clock.
const CLOCK_SCENES: u64 = 8;

/// One of the processes of a world, by its number: programs first, then agents, gates for MQTT, consumers, the gate
/// and the watcher.
pub type Who = usize;

#[derive(Debug, Clone)]
pub enum Act {
    /// A program asks for a resource.
    Ask { who: Who, what: ResourceName, how: Asking, wait: Duration },
    /// A program releases something, and waits so long for the answer.
    Release { who: Who, patience: Duration },
    /// A program drops a guard.
    LetGo { who: Who },
    /// A program asks the holder of a resource to hand it over, and gives up after a while.
    TakeOver { who: Who, what: ResourceName, within: Duration, patience: Duration },
    /// A program asks what it holds.
    Refresh { who: Who },
    /// An operator hands a resource over to someone who has not asked for it.
    Offer { who: Who, what: ResourceName },
    /// An operator ends a lease.
    Revoke { what: ResourceName },
    /// The network of a process turns bad, for requests of one kind or of all.
    Weather { who: Who, kind: Option<Kind>, weather: Weather, lasts: Duration },
    /// A process stands still.
    Pause { who: Who, lasts: Duration },
    /// A process is killed, and another one of its name is started.
    Kill { who: Who, back_after: Duration },
    /// Another store takes over that has lost everything.
    FailOver,
    /// A process reaches a store that was failed over.
    LeadBack { who: Who, lasts: Duration },
    /// A worker of an agent ends by itself.
    Crash { who: Who },
    /// An operator drains an agent for a while: what it holds is moved to the other one.
    Drain { who: Who, lasts: Duration },
    /// The MQTT broker loses its connection with the gate.
    CutBroker,
    /// Someone sets the wall clock of the store, forward or back.
    StepClock { ms: i64 },
    /// A server over a wall clock stands still.
    StallServer { replica: usize, lasts: Duration },
    /// A server over a wall clock starts again.
    RestartServer { replica: usize },
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[derive(Debug, Clone)]
pub struct Step {
    pub at: Duration,
    pub act: Act,
}

/// The steps of a world, in order.
pub struct Plan {
    /// Whether the store's time is a wall clock's.
    pub is_by_wall: bool,
    pub steps: Vec<Step>,
}

impl Plan {
    pub fn of(chance: &SeededChance) -> Self {
        let is_by_wall = chance.one_in(3);
        let mut drawn = Drawn { chance, steps: Vec::new(), fails_over: chance.one_in(4) };
        for _ in 0..chance.below(ACTS.1 - ACTS.0) + ACTS.0 {
            let at = drawn.moment();
            drawn.one(at);
        }
        for _ in 0..chance.below(SCENES) {
            let at = drawn.moment();
            drawn.scene(at);
        }
        if is_by_wall {
            (0..chance.below(CLOCK_SCENES)).for_each(|_| drawn.clock_scene());
        }
        let mut steps = drawn.steps;
        steps.sort_by_key(|step| step.at);
        Self { is_by_wall, steps }
    }

    /// Without the steps of these numbers.
    #[must_use]
    pub fn without(mut self, left_out: &[usize]) -> Self {
        let mut number = 0;
        self.steps.retain(|_| {
            number += 1;
            !left_out.contains(&(number - 1))
        });
        self
    }
}

struct Drawn<'a> {
    chance: &'a SeededChance,
    steps: Vec<Step>,
    fails_over: bool,
}

impl Drawn<'_> {
    fn add(&mut self, at: Duration, act: Act) {
        self.steps.push(Step { at, act });
    }

    fn moment(&self) -> Duration {
        self.chance.millis(0, CHAOS.as_millis() as u64)
    }

    /// Up to so many times the ttl.
    fn ttls(&self, most: u64) -> Duration {
        self.chance.millis(0, TTL.as_millis() as u64 * most)
    }

    fn program(&self) -> Who {
        self.chance.below(PROGRAMS as u64) as Who
    }

    fn process(&self) -> Who {
        self.chance.below((PROGRAMS + AGENTS + GATES + CONSUMERS + 2) as u64) as Who
    }

    fn resource(&self) -> ResourceName {
        let (kind, key) = *self.chance.pick(&JOBS);
        ResourceName::new(kind, key).expect("good names")
    }

    fn any_resource(&self) -> ResourceName {
        if self.chance.one_in(2) {
            return self.resource();
        }
        let (kind, key) = *self.chance.pick(&CAMERAS);
        ResourceName::new(kind, key).expect("good names")
    }

    fn weather(&self) -> Weather {
        match self.chance.below(8) {
            0 => Weather::Away,
            1 => Weather::Silent,
            2 => Weather::AnswersLost,
            3 => Weather::Late(self.ttls(1)),
            4..=6 => Weather::Slow(self.ttls(2)),
            _ => Weather::Twice(self.ttls(2)),
        }
    }

    fn ask(&self, who: Who) -> Act {
        let how = *self.chance.pick(&[Asking::InLine, Asking::InLine, Asking::Repeatedly, Asking::Once]);
        Act::Ask { who, what: self.resource(), how, wait: TTL / 2 + self.ttls(2) }
    }

    fn one(&mut self, at: Duration) {
        let who = self.program();
        let act = match self.chance.below(35) {
            0..=8 => self.ask(who),
            9..=10 => Act::Release { who, patience: self.ttls(1) },
            11..=12 => Act::LetGo { who },
            13..=15 => {
                let within = TTL / 4 + self.ttls(1);
                Act::TakeOver { who, what: self.resource(), within, patience: self.ttls(2) }
            }
            16..=17 => Act::Offer { who: self.holder(), what: self.any_resource() },
            18..=19 => Act::Revoke { what: self.any_resource() },
            20..=24 => {
                let kind = Some(*self.chance.pick(&Kind::WEATHERED));
                Act::Weather { who: self.process(), kind, weather: self.weather(), lasts: self.ttls(3) }
            }
            25..=26 => {
                let lasts = self.ttls(2);
                Act::Weather { who: self.process(), kind: None, weather: self.weather(), lasts }
            }
            27..=28 => Act::Pause { who: self.process(), lasts: self.ttls(2) },
            29 => Act::Kill { who: self.mortal(), back_after: self.ttls(2) },
            30 if self.fails_over && self.chance.one_in(2) => Act::FailOver,
            30 if self.fails_over => Act::LeadBack { who: self.holder(), lasts: self.ttls(2) },
            31 => Act::Crash { who: self.agent() },
            32..=33 => Act::CutBroker,
            _ => Act::Drain { who: self.agent(), lasts: TTL + self.ttls(1) },
        };
        self.add(at, act);
    }

    fn agent(&self) -> Who {
        PROGRAMS + self.chance.below(AGENTS as u64) as Who
    }

    /// Any process but the gate and the watcher.
    fn mortal(&self) -> Who {
        self.chance.below((PROGRAMS + AGENTS + GATES + CONSUMERS) as u64) as Who
    }

    /// A program or an agent.
    fn holder(&self) -> Who {
        self.chance.below((PROGRAMS + AGENTS) as u64) as Who
    }

    /// Several acts that belong together.
    fn scene(&mut self, at: Duration) {
        match self.chance.below(5) {
            0 => self.end_slowly_and_cut_off(at),
            1 => self.revoke_and_cut_off(at),
            2 => self.revoke_before_it_is_taken_up(at),
            3 => self.drain_and_give_to_others(at),
            _ => self.cancel_before_it_arrives(at),
        }
    }

    /// The request that ends a lease is slow, its program does not wait for it, and is cut off before it arrives,
    /// while others wait for the resource.
    fn end_slowly_and_cut_off(&mut self, at: Duration) {
        let who = self.program();
        let other = (who + 1 + self.chance.below(PROGRAMS as u64 - 1) as Who) % PROGRAMS;
        let what = self.resource();
        let wait = TTL * 2;
        let how = Asking::Repeatedly;
        let delay = TTL / 3 + self.ttls(2);
        let begins = at + TTL / 2;
        let slow = Weather::Slow(delay);
        for kind in [Kind::Cancel, Kind::CallOff, Kind::Release] {
            self.add(begins, Act::Weather { who, kind: Some(kind), weather: slow, lasts: TTL });
        }
        let soon = begins + Duration::from_millis(10);
        match self.chance.below(3) {
            0 => {
                let weather = Weather::AnswersLost;
                self.add(begins, Act::Weather { who, kind: Some(Kind::Acquire), weather, lasts: TTL / 3 });
                self.add(soon, Act::Ask { who, what: what.clone(), how: Asking::Once, wait });
            }
            1 => {
                self.add(at, Act::Ask { who: other, what: what.clone(), how, wait });
                let within = TTL;
                let patience = Duration::from_millis(100) + self.ttls(1) / 3;
                self.add(soon, Act::TakeOver { who, what: what.clone(), within, patience });
                self.add(soon + patience + self.ttls(1) / 3, Act::LetGo { who: other });
            }
            _ => {
                self.add(at, Act::Ask { who, what: what.clone(), how, wait });
                self.add(soon, Act::Release { who, patience: self.ttls(1) / 4 });
            }
        }
        let later = soon + self.ttls(1) / 2;
        self.add(later, Act::Refresh { who });
        let cut = later + delay.mul_f64(self.chance.below(100) as f64 / 100.0);
        let lasts = delay + TTL;
        for kind in [Kind::Heartbeat, Kind::News] {
            self.add(cut, Act::Weather { who, kind: Some(kind), weather: Weather::Away, lasts });
        }
        self.add(later, Act::Ask { who: other, what, how: Asking::InLine, wait: TTL * 4 });
    }

    /// Something is taken away from a program, which then gets something else that it has waited for, and is cut off
    /// before it hears of its loss, while others wait for what it has lost.
    fn revoke_and_cut_off(&mut self, at: Duration) {
        let who = self.program();
        let lost = self.resource();
        let other = self.resource();
        let next = (who + 1) % PROGRAMS;
        let wait = TTL * 3;
        let how = Asking::InLine;
        self.add(at, Act::Ask { who, what: lost.clone(), how, wait });
        self.add(at, Act::Ask { who: next, what: other.clone(), how, wait });
        self.add(at + TTL / 10, Act::Ask { who, what: other, how, wait });
        let revoked = at + TTL / 4 + self.ttls(1) / 4;
        for kind in [Kind::Heartbeat, Kind::News] {
            let lasts = TTL * 2;
            self.add(revoked, Act::Weather { who, kind: Some(kind), weather: Weather::Away, lasts });
        }
        self.add(revoked, Act::Revoke { what: lost.clone() });
        self.add(revoked, Act::Ask { who: next, what: lost, how: Asking::Repeatedly, wait });
        self.add(revoked + self.ttls(1) / 2, Act::LetGo { who: next });
    }

    /// A lease is revoked while the answer that grants it is on its way, and heartbeats overtake that answer.
    fn revoke_before_it_is_taken_up(&mut self, at: Duration) {
        let who = self.program();
        let what = self.resource();
        let late = Duration::from_millis(600 + self.chance.below(1_200));
        for kind in [Kind::Acquire, Kind::Wait] {
            self.add(
                at,
                Act::Weather { who, kind: Some(kind), weather: Weather::Late(late), lasts: TTL / 6 },
            );
        }
        let wait = TTL;
        let soon = at + Duration::from_millis(20);
        self.add(soon, Act::Ask { who, what: what.clone(), how: Asking::Once, wait });
        let revoked = soon + Duration::from_millis(100 + self.chance.below(200));
        self.add(revoked, Act::Revoke { what: what.clone() });
        self.add(revoked + Duration::from_millis(50), Act::Refresh { who });
        let other = (who + 1) % PROGRAMS;
        self.add(revoked + TTL / 2, Act::Ask { who: other, what, how: Asking::Repeatedly, wait: TTL * 2 });
    }

    /// A request is slow, and is cancelled before it arrives.
    fn cancel_before_it_arrives(&mut self, at: Duration) {
        let who = self.program();
        let delay = TTL / 3 + self.ttls(1);
        let how = Asking::Once;
        for kind in [Kind::Acquire, Kind::Wait] {
            let lasts = TTL / 6;
            self.add(at, Act::Weather { who, kind: Some(kind), weather: Weather::Slow(delay), lasts });
        }
        let wait = TTL / 6;
        self.add(at + Duration::from_millis(10), Act::Ask { who, what: self.resource(), how, wait });
    }

    /// The wall clock is set, far or a little.
    fn clock_scene(&mut self) {
        let at = self.moment();
        match self.chance.below(4) {
            0 => {
                let ms = self.chance.below(7_200_000) as i64 - 3_600_000;
                self.add(at, Act::StepClock { ms });
            }
            1 => {
                let ms = if self.chance.one_in(2) { self.little_ms() } else { -self.little_ms() };
                self.add(at, Act::StepClock { ms });
                let replica = self.replica();
                self.add(at + self.ttls(1), Act::StallServer { replica, lasts: self.ttls(1) });
            }
            _ => self.set_clock_between_servers(at),
        }
    }

    /// A step of a clock that looks honest.
    fn little_ms(&self) -> i64 {
        350 + self.chance.below(149) as i64
    }

    fn replica(&self) -> usize {
        self.chance.below(REPLICAS as u64) as usize
    }

    /// The wall clock is set back, and a program renews by it and is cut off. When what it holds has nearly run out,
    /// the clock is set forward, while one server stands still and another one starts: neither sees both.
    fn set_clock_between_servers(&mut self, at: Duration) {
        let who = self.program();
        self.add(at, Act::Ask { who, what: self.resource(), how: Asking::Repeatedly, wait: TTL });
        self.add(at, Act::StepClock { ms: -self.little_ms() });
        let cut = at + TTL / 3 + self.ttls(1) / 4;
        for kind in [Kind::Heartbeat, Kind::News] {
            let lasts = TTL * 2;
            self.add(cut, Act::Weather { who, kind: Some(kind), weather: Weather::Away, lasts });
        }
        let set = cut + TTL / 2 + self.ttls(1) / 3;
        for replica in 0..REPLICAS {
            self.add(set, Act::StallServer { replica, lasts: TTL / 3 });
        }
        let ms = 2 * self.little_ms();
        self.add(set + Duration::from_millis(100), Act::StepClock { ms });
        let replica = self.replica();
        self.add(set + Duration::from_millis(200), Act::RestartServer { replica });
    }

    /// The other agent is told to take over what an agent has that is drained, while an operator gives it to programs.
    fn drain_and_give_to_others(&mut self, at: Duration) {
        self.add(at, Act::Drain { who: self.agent(), lasts: TTL });
        for (kind, key) in CAMERAS {
            let what = ResourceName::new(kind, key).expect("good names");
            let offered = at + self.chance.millis(0, 2_000);
            self.add(offered, Act::Offer { who: self.program(), what });
        }
    }
}
