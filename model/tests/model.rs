//! The protocol as it is breaks no invariant within the scopes, and each wrong variant breaks one.

use clap::ValueEnum;
use solehold_model::{
    Scope, Variant,
    flaw::{FLAWS, MERITS},
    invariants, search,
};

#[test]
fn the_protocol_breaks_no_invariant() {
    for (name, scope) in Scope::all() {
        let seen = search::exhaust(&scope, Variant::Sound, &invariants::ALL);
        let seen = seen.unwrap_or_else(|violation| panic!("{name}: {violation}"));
        println!("{name}: {seen:?}");
        assert!(seen.states > 1_000, "{name} hardly tries anything: {seen:?}");
    }
}

#[test]
fn every_flaw_is_caught() {
    for flaw in FLAWS {
        let variant = flaw.variant;
        let what = flaw.what;
        let violation = search::shortest(&flaw.scope, variant, flaw.invariant);
        let violation = violation.unwrap_or_else(|| panic!("{variant:?}, {what}: was not caught"));
        println!("{variant:?}, {what}: {violation}");
    }
}

#[test]
fn every_wrong_variant_has_a_flaw() {
    let has_flaw = |variant: &Variant| FLAWS.iter().any(|flaw| flaw.variant == *variant);
    let without: Vec<_> = Variant::value_variants().iter().filter(|variant| !has_flaw(variant)).collect();
    assert_eq!(without, [&Variant::Sound]);
}

/// What the designs have right is right in the model too, and their flaws show by the fault that is named.
#[test]
fn nothing_is_violated_without_the_fault() {
    for merit in MERITS {
        let variant = merit.variant;
        let what = merit.what;
        let seen = search::exhaust(&merit.scope, variant, &[merit.invariant]);
        let seen = seen.unwrap_or_else(|violation| panic!("{variant:?}, {what}: {violation}"));
        println!("{variant:?}, {what}: {seen:?}");
        assert!(seen.states > 50, "{variant:?}, {what}: hardly tries anything: {seen:?}");
    }
}
