//! How many may share a resource, as options give it.

use solehold_core::limits::SLOTS_MAX;

pub fn parser() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX))
}
