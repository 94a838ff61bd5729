//! Placement: how long a plan takes, how much it moves beside what cannot be avoided, and how even the loads become.

use std::{collections::BTreeMap, time::Duration};

use solehold_core::{
    key::{HolderKey, Name, ResourceKey},
    placement::{Needs, PlacementResource, Plan, Runner, Snapshot, Step, plan},
    session::HolderStatus,
};
use solehold_engine::clock::BootTime;

use crate::commands::name;

const RUNNERS: usize = 1_000;
const RESOURCES: usize = 100_000;
/// How often a plan is measured.
const PLANS: usize = 9;

pub fn run() {
    println!("planning {RESOURCES} resources on {RUNNERS} runners, median and slowest of {PLANS} plans");
    println!("{:<44} {:>10} {:>10} {:>8} {:>8}", "", "median", "slowest", "moves", "acquires");
    for (what, snapshot) in snapshots() {
        measure(what, &snapshot);
    }
    println!();
    println!("becoming balanced again; the least is what no plan can do without");
    println!(
        "{:<44} {:>7} {:>7} {:>7} {:>7} {:>15}",
        "", "moves", "least", "ratio", "rounds", "load, of share"
    );
    for (what, snapshot) in events() {
        converge(what, snapshot);
    }
}

fn runner(number: usize, capacity: u32) -> Runner {
    Runner::new(HolderKey { tenant: name("default"), name: name(format!("runner-{number:04}")) }, capacity)
}

fn resource(number: usize) -> PlacementResource {
    let key = name(format!("resource-{number:06}"));
    PlacementResource::new(ResourceKey::new(name("default"), name("job"), key))
}

fn fleet(runners: usize, capacity: u32, resources: usize) -> Snapshot {
    Snapshot {
        runners: (0..runners).map(|n| runner(n, capacity)).collect(),
        resources: (0..resources).map(resource).collect(),
        ..Default::default()
    }
}

/// The same with 20 sites and two labels, so that there are 60 sets of runners.
fn constrained(mut snapshot: Snapshot) -> Snapshot {
    for (n, runner) in snapshot.runners.iter_mut().enumerate() {
        runner.site = Some(name(format!("site-{:02}", n % 20)));
        if n % 3 == 0 {
            runner.labels.insert("gpu".into(), "yes".into());
        }
    }
    for (n, resource) in snapshot.resources.iter_mut().enumerate() {
        resource.site = Some(name(format!("site-{:02}", n / 7 % 20)));
        if n % 5 == 0 {
            resource.needs =
                Needs { labels: BTreeMap::from([("gpu".into(), "yes".into())]), ..Needs::default() };
        }
    }
    snapshot
}

fn settled(mut snapshot: Snapshot) -> Snapshot {
    loop {
        let plan = plan(&snapshot);
        if plan.is_settled() {
            return snapshot;
        }
        snapshot = snapshot.follow(&plan);
    }
}

fn joined(mut snapshot: Snapshot, count: usize) -> Snapshot {
    let from = snapshot.runners.len();
    let capacity = snapshot.runners[0].capacity;
    snapshot.runners.extend((from..from + count).map(|n| runner(n, capacity)));
    snapshot
}

fn drained(mut snapshot: Snapshot, count: usize) -> Snapshot {
    snapshot.runners.iter_mut().take(count).for_each(|runner| runner.status = HolderStatus::Draining);
    snapshot
}

fn gone(mut snapshot: Snapshot, count: usize) -> Snapshot {
    let gone: Vec<Name> = snapshot.runners.drain(..count).map(|runner| runner.key.name).collect();
    for resource in &mut snapshot.resources {
        resource.held = resource.holder.as_ref().is_some_and(|holder| !gone.contains(holder));
    }
    snapshot
}

fn snapshots() -> Vec<(&'static str, Snapshot)> {
    let cold = fleet(RUNNERS, 150, RESOURCES);
    let warm = settled(cold.clone());
    let sites = constrained(cold.clone());
    let warm_sites = settled(sites.clone());
    vec![
        ("no resource is held", cold),
        ("everything is in its place", warm.clone()),
        ("100 runners join", joined(warm.clone(), 100)),
        ("100 runners are gone", gone(warm, 100)),
        ("20 sites, 2 labels: no resource is held", sites),
        ("20 sites, 2 labels: in its place", warm_sites.clone()),
        ("20 sites, 2 labels: 100 runners drain", drained(warm_sites, 100)),
    ]
}

fn measure(what: &str, snapshot: &Snapshot) {
    let mut took: Vec<Duration> = Vec::with_capacity(PLANS);
    let mut last = None;
    for _ in 0..PLANS {
        let began = BootTime::now();
        last = Some(plan(snapshot));
        took.push(BootTime::now().since(began));
    }
    took.sort();
    let Some(plan) = last else { return };
    let ms = |took: Duration| format!("{:.1} ms", took.as_secs_f64() * 1_000.0);
    let acquires = plan.count(|step| *step == Step::Acquire);
    println!(
        "{what:<44} {:>10} {:>10} {:>8} {acquires:>8}",
        ms(took[PLANS / 2]),
        ms(took[PLANS - 1]),
        plan.moves()
    );
}

/// What happens to a fleet, and the moves that no plan can do without: what a drained runner holds, and what newcomers
/// lack to the lower edge of their band.
fn events() -> Vec<(&'static str, (Snapshot, usize))> {
    let small = settled(fleet(5, 100, 300));
    let large = settled(fleet(100, 150, 10_000));
    let held = |snapshot: &Snapshot, runner: usize| {
        let name = &snapshot.runners[runner].key.name;
        snapshot.resources.iter().filter(|resource| resource.holder.as_ref() == Some(name)).count()
    };
    let drain: usize = (0..10).map(|n| held(&large, n)).sum();
    vec![
        ("300 resources, from 5 to 10 runners", (joined(small, 5), 5 * 27)),
        // The share is 90.9, and its band begins at 81.8.
        ("10,000 on 100 runners, 10 join", (joined(large.clone(), 10), 10 * 82)),
        ("10,000 on 100 runners, 10 drain", (drained(large.clone(), 10), drain)),
        ("10,000 on 100 runners, 10 are gone", (gone(large, 10), 0)),
    ]
}

fn converge(what: &str, (mut snapshot, least): (Snapshot, usize)) {
    let mut moves = 0;
    let mut rounds = 0;
    let last = loop {
        let plan = plan(&snapshot);
        if plan.is_settled() {
            break plan;
        }
        moves += plan.count(|step| *step == Step::Move);
        rounds += 1;
        snapshot = snapshot.follow(&plan);
    };
    let ratio = if least == 0 { "-".to_owned() } else { format!("{:.2}", moves as f64 / least as f64) };
    let (low, high) = spread(&snapshot, &last);
    let spread = format!("{low:.0} to {high:.0} %");
    println!("{what:<44} {moves:>7} {least:>7} {ratio:>7} {rounds:>7} {spread:>15}");
}

/// The least and the greatest load relative to the fair share, in percent.
fn spread(snapshot: &Snapshot, plan: &Plan) -> (f64, f64) {
    let mut loads: BTreeMap<&Name, u64> = BTreeMap::new();
    for holder in snapshot.resources.iter().filter_map(|resource| resource.holder.as_ref()) {
        *loads.entry(holder).or_default() += 1;
    }
    let percent = plan.shares.iter().map(|(runner, thousandths)| {
        let load = loads.get(&runner.name).copied().unwrap_or(0);
        load as f64 * 100_000.0 / (*thousandths).max(1) as f64
    });
    percent.fold((f64::MAX, 0.0), |(low, high), percent| (percent.min(low), percent.max(high)))
}
