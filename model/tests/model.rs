//! The protocol as it is breaks no invariant within the scopes, and each wrong variant breaks one.

use clap::ValueEnum;
use solehold_model::{Scope, Variant, search};

#[test]
fn the_protocol_breaks_no_invariant() {
    for (name, scope) in Scope::all() {
        let seen =
            search::exhaust(&scope, Variant::Sound).unwrap_or_else(|violation| panic!("{name}: {violation}"));
        println!("{name}: {seen:?}");
        assert!(seen.states > 1_000, "{name} hardly tries anything: {seen:?}");
    }
}

#[test]
fn every_wrong_variant_is_caught() {
    for variant in Variant::value_variants().iter().filter(|variant| **variant != Variant::Sound) {
        let violation = search::shortest(&Scope::breaking(*variant), *variant);
        let violation = violation.unwrap_or_else(|| panic!("{variant:?} was not caught"));
        println!("{variant:?}: {violation}");
    }
}
