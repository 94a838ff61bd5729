//! The entry point of libFuzzer: `SOLEHOLD_FUZZ_TARGET` names the target.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use solehold_fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("SOLEHOLD_FUZZ_TARGET").expect("SOLEHOLD_FUZZ_TARGET names a target");
    *TARGETS.iter().find(|target| target.name == name).expect("SOLEHOLD_FUZZ_TARGET is a known target")
});

fuzz_target!(|data: &[u8]| (TARGET.run)(data));
