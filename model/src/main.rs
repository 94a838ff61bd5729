//! `solehold-model`: exhausts the scopes for the protocol as it is, and shows the shortest way to break each variant.

use std::process::ExitCode;

use clap::Parser;
use solehold_clock::BootTime;
use solehold_model::{
    Scope, Variant,
    flaw::{FLAWS, Finding, MERITS},
    invariants, search,
};

/// Check the lease protocol in every order of events within a scope
#[derive(Parser)]
struct Args {
    /// Only this variant
    #[arg(long, value_enum)]
    variant: Option<Variant>,
    /// Also exhaust the scopes in which several things go wrong, which have millions of states
    #[arg(long)]
    together: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let is_wanted = |variant: Variant| args.variant.is_none_or(|only| only == variant);
    let mut is_sound = !is_wanted(Variant::Sound) || exhaust(args.together);
    for flaw in FLAWS.iter().filter(|flaw| is_wanted(flaw.variant)) {
        is_sound &= is_violated(flaw);
    }
    for merit in MERITS.iter().filter(|merit| is_wanted(merit.variant)) {
        is_sound &= holds(merit);
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn exhaust(together: bool) -> bool {
    let mut is_sound = true;
    let more = together.then(Scope::together).into_iter().flatten();
    for (name, scope) in Scope::all().into_iter().chain(more) {
        let started = BootTime::now();
        match search::exhaust(&scope, Variant::Sound, &invariants::ALL) {
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

fn is_violated(flaw: &Finding) -> bool {
    let violation = search::shortest(&flaw.scope, flaw.variant, flaw.invariant);
    let Finding { variant, what, invariant, .. } = flaw;
    match &violation {
        Some(violation) => println!("{variant:?}: {what}\n  {violation}"),
        None => println!("{variant:?}: {what}\n  not violated, although it is wrong: {}", invariant.name),
    }
    violation.is_some()
}

fn holds(merit: &Finding) -> bool {
    let Finding { variant, what, scope, invariant } = merit;
    match search::exhaust(scope, *variant, &[*invariant]) {
        Ok(seen) => {
            println!("{variant:?}: {what}\n  {} states, not violated: {}", seen.states, invariant.name)
        }
        Err(violation) => {
            println!("{variant:?}: {what}\n  {violation}");
            return false;
        }
    }
    true
}
