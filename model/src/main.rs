//! `solehold-model`: exhausts the scopes for the protocol as it is, and shows the shortest way to break each variant.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use solehold_clock::BootTime;
use solehold_model::{Scope, Variant, search};

/// Check the lease protocol in every order of events within a scope
#[derive(Parser)]
struct Args {
    /// Only this variant
    #[arg(long, value_enum)]
    variant: Option<Variant>,
    /// Add this many ticks, requests and repeated messages to the scopes, as in `--wider 1`
    #[arg(long, default_value_t = 0)]
    wider: u8,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let wanted = |variant: &Variant| args.variant.is_none_or(|only| only == *variant);
    let mut is_sound = true;
    for variant in Variant::value_variants().iter().copied().filter(wanted) {
        is_sound &= if variant == Variant::Sound { exhaust(args.wider) } else { break_it(variant) };
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn exhaust(wider: u8) -> bool {
    let mut is_sound = true;
    for (name, scope) in Scope::all() {
        let scope = scope.wider(wider);
        let started = BootTime::now();
        match search::exhaust(&scope, Variant::Sound) {
            Ok(seen) => println!(
                "{name}: {} states, {} steps, at most {} deep, no violation; {:.1} s",
                seen.states,
                seen.steps,
                seen.depth,
                BootTime::now().since(started).as_secs_f64()
            ),
            Err(violation) => {
                is_sound = false;
                println!("{name}: {violation}");
            }
        }
    }
    is_sound
}

fn break_it(variant: Variant) -> bool {
    let violation = search::shortest(&Scope::breaking(variant), variant);
    match &violation {
        Some(violation) => println!("{variant:?}: {violation}"),
        None => println!("{variant:?}: no violation was found, although it is wrong"),
    }
    violation.is_some()
}
