//! Every target over its inputs and over mutations of them, so that a change that breaks a target is noticed at once.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use solehold_fuzz::{TARGETS, Target};

const MUTATIONS: usize = 2_000;
const LENGTH_MAX: usize = 4 << 10;

/// Cargo runs a test in the folder of its package.
fn inputs(target: Target) -> Vec<Vec<u8>> {
    let folder = Path::new("inputs").join(target.name);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("a folder of inputs")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no inputs", target.name);
    files.iter().map(|path| fs::read(path).expect("a readable input")).collect()
}

/// Changes, removes, repeats or splices a few bytes.
fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut StdRng) {
    const TOKENS: [&[u8]; 12] = [
        b"\"",
        b"{",
        b"}",
        b"[",
        b"\\u0000",
        b"-1",
        b"18446744073709551616",
        b"1e999",
        b"\0",
        b"\n",
        b"/",
        b"\xff",
    ];
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=input.len());
        let end = random.random_range(at..=input.len().min(at + 16));
        match random.random_range(0..5) {
            0 => drop(input.drain(at..end)),
            1 => drop(input.splice(at..at, input[at..end].to_vec())),
            2 => drop(input.splice(at..end, TOKENS.choose(random).expect("tokens").to_vec())),
            3 => input[at..end].iter_mut().for_each(|byte| *byte ^= 1 << random.random_range(0..8)),
            _ => {
                let other = others.choose(random).expect("inputs");
                let from = random.random_range(0..=other.len());
                drop(input.splice(at..end, other[from..].iter().copied()));
            }
        }
        input.truncate(LENGTH_MAX);
    }
}

/// How long to mutate the inputs of one target. `SOLEHOLD_FUZZ_SECONDS=20` does so for longer than usual, and from
/// another beginning each time.
#[derive(Clone, Copy)]
enum Effort {
    Rounds(usize),
    Time(Duration),
}

fn effort() -> Effort {
    match std::env::var("SOLEHOLD_FUZZ_SECONDS") {
        Ok(seconds) => Effort::Time(Duration::from_secs(seconds.parse().expect("a number of seconds"))),
        Err(_) => Effort::Rounds(MUTATIONS),
    }
}

#[test]
fn every_target_survives_its_inputs() {
    let effort = effort();
    for target in TARGETS {
        let inputs = inputs(target);
        inputs.iter().for_each(|input| (target.run)(input));
        (target.run)(b"");
        let mut random = match effort {
            Effort::Rounds(_) => StdRng::seed_from_u64(7),
            Effort::Time(_) => rand::make_rng(),
        };
        let begun = Instant::now();
        let is_done = |round: usize| match effort {
            Effort::Rounds(rounds) => round == rounds,
            Effort::Time(time) => begun.elapsed() >= time,
        };
        let mut input = Vec::new();
        let mut round = 0;
        while !is_done(round) {
            // A chain of mutations, begun again now and then.
            if round.is_multiple_of(8) {
                input.clone_from(inputs.choose(&mut random).expect("inputs"));
            }
            mutate(&mut input, &inputs, &mut random);
            let caught = std::panic::catch_unwind(|| (target.run)(&input));
            assert!(caught.is_ok(), "{} panics at {:?}", target.name, String::from_utf8_lossy(&input));
            round += 1;
        }
        println!("{}: {round} inputs in {:.1} s", target.name, begun.elapsed().as_secs_f64());
    }
}
