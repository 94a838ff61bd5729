//! Routing: which of the live nodes should serve a key, without a coordinator.
//!
//! Weighted rendezvous hashing: every node draws a number for the key, and the lowest wins. All who know the same nodes
//! compute the same answer; a node that leaves moves only its own keys, one that joins takes only its share.
//!
//! A node's draw is exponential with its weight as rate, so that it wins in proportion to it: `-log2(u) / weight`, with
//! `u` from XXH3. It is computed in whole numbers, so that every machine gets the same, and **must never change**: a
//! fleet whose halves disagree sends a key to two nodes.

use std::cmp::Ordering;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Weights are integers in these units: this is the weight 1.
pub const WEIGHT_ONE: u32 = 1_000;
/// Digits of a logarithm after the point, in binary.
const FRACTION_BITS: u32 = 32;

/// A node that could serve a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its name: two of one name are one node.
    pub name: &'a str,
    /// How much it gets, against the others, in thousandths; 0 gets nothing.
    pub weight: u32,
}

impl<'a> Candidate<'a> {
    /// A node of weight 1.
    pub fn new(name: &'a str) -> Self {
        Self { name, weight: WEIGHT_ONE }
    }
}

/// The node that should serve a key of some kind; none if there is none with any weight.
///
/// ```
/// use solehold_core::route::{Candidate, route};
///
/// let nodes = [Candidate::new("a"), Candidate::new("b"), Candidate::new("c")];
/// let home = route("chat", "session-7", nodes).expect("there are nodes");
/// // If any other node leaves, the key stays where it is.
/// let rest = nodes.into_iter().filter(|node| node.name == home.name);
/// assert_eq!(route("chat", "session-7", rest), Some(home));
/// ```
pub fn route<'a>(
    kind: &str,
    key: &str,
    candidates: impl IntoIterator<Item = Candidate<'a>>,
) -> Option<Candidate<'a>> {
    let key = bytes(kind, key);
    let draws = candidates.into_iter().filter(|c| c.weight > 0).map(|c| (draw(&key, c.name), c));
    draws.min_by(|a, b| compare(*a, *b)).map(|(_, candidate)| candidate)
}

/// All nodes with any weight, the one that should serve the key first, then those that should if the ones before are
/// gone.
pub fn rank<'a>(
    kind: &str,
    key: &str,
    candidates: impl IntoIterator<Item = Candidate<'a>>,
) -> Vec<Candidate<'a>> {
    let key = bytes(kind, key);
    let draws = candidates.into_iter().filter(|c| c.weight > 0).map(|c| (draw(&key, c.name), c));
    let mut draws: Vec<_> = draws.collect();
    draws.sort_by(|a, b| compare(*a, *b));
    draws.into_iter().map(|(_, candidate)| candidate).collect()
}

/// What is hashed. No name has a NUL in it.
fn bytes(kind: &str, key: &str) -> Vec<u8> {
    [kind.as_bytes(), b"\0", key.as_bytes()].concat()
}

/// `-log2(u)` for the number `u` between 0 and 1 that a node draws for a key, times 2^32.
fn draw(key: &[u8], name: &str) -> u64 {
    let hash = xxh3_64_with_seed(key, xxh3_64(name.as_bytes()));
    (64 << FRACTION_BITS) - log2(hash | 1)
}

/// The logarithm of a number above 0, times 2^32, rounded down: each squaring gives another digit.
fn log2(number: u64) -> u64 {
    let whole = 63 - u64::from(number.leading_zeros());
    // Between 1 and 2, times 2^63.
    let mut rest = u128::from(number << number.leading_zeros());
    let mut digits = whole;
    for _ in 0..FRACTION_BITS {
        rest = (rest * rest) >> 63;
        let digit = (rest >> 64) as u64;
        rest >>= digit;
        digits = digits << 1 | digit;
    }
    digits
}

/// Compares `draw / weight` without dividing. Of equals the first by name wins.
fn compare(a: (u64, Candidate<'_>), b: (u64, Candidate<'_>)) -> Ordering {
    let left = u128::from(a.0) * u128::from(b.1.weight);
    let right = u128::from(b.0) * u128::from(a.1.weight);
    left.cmp(&right).then_with(|| a.1.name.cmp(b.1.name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const KEYS: usize = 100_000;

    /// The names of `count` nodes, others for each salt.
    fn names(salt: u32, count: usize) -> Vec<String> {
        (0..count).map(|n| format!("node-{salt:x}-{n}")).collect()
    }

    fn even(names: &[String]) -> Vec<Candidate<'_>> {
        names.iter().map(|name| Candidate::new(name)).collect()
    }

    fn key(n: usize) -> String {
        format!("session-{n}")
    }

    fn home<'a>(n: usize, nodes: &[Candidate<'a>]) -> &'a str {
        route("chat", &key(n), nodes.iter().copied()).expect("there are nodes").name
    }

    fn shares<'a>(nodes: &[Candidate<'a>], keys: usize) -> BTreeMap<&'a str, usize> {
        let mut shares = BTreeMap::new();
        for n in 0..keys {
            *shares.entry(home(n, nodes)).or_default() += 1;
        }
        shares
    }

    #[test]
    fn logarithms_are_right() {
        for number in [1u64, 2, 3, 10, 1 << 40, (1 << 40) + 12_345, u64::MAX / 3, u64::MAX] {
            let exact = (number as f64).log2();
            let ours = log2(number) as f64 / (1u64 << FRACTION_BITS) as f64;
            assert!((exact - ours).abs() < 1e-9, "{number}: {exact} and {ours}");
        }
        assert_eq!(log2(1), 0);
        assert_eq!(log2(1 << 63), 63 << FRACTION_BITS);
    }

    /// If this fails, the change must not be made: nodes of the old and the new version would disagree.
    #[test]
    fn golden_values_never_change() {
        let nodes = ["gateway-a", "gateway-b", "gateway-c", "gateway-d"].map(Candidate::new);
        let homes: Vec<_> = (0..12).map(|n| home(n, &nodes)).collect();
        let letters: String = homes.iter().map(|name| &name[8..]).collect();
        assert_eq!(letters, "dcbdbbcadcbb");
        let draws = [("chat", "session-0", "gateway-a"), ("", "", ""), ("lock", "söhne/数", "n")];
        let draws = draws.map(|(kind, key, name)| draw(&bytes(kind, key), name));
        assert_eq!(draws, [16_478_555_551, 18_130_783_509, 5_032_476_787]);
        // The hash is standard XXH3.
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn nobody_and_the_weightless_serve_nothing() {
        assert_eq!(route("chat", "k", []), None);
        let none = Candidate { name: "a", weight: 0 };
        assert_eq!(route("chat", "k", [none]), None);
        assert_eq!(route("chat", "k", [none, Candidate::new("b")]), Some(Candidate::new("b")));
        assert!(rank("chat", "k", [none]).is_empty());
    }

    #[test]
    fn kind_and_key_do_not_run_together() {
        let names = names(1, 50);
        let nodes = even(&names);
        let same = (0..100).filter(|n| {
            let a = route("ab", &format!("c{n}"), nodes.clone());
            let b = route("a", &format!("bc{n}"), nodes.clone());
            a == b
        });
        assert!(same.count() < 20);
    }

    #[test]
    fn weights_are_respected() {
        let weights = [500, 1_000, 2_000, 4_000];
        let names = names(7, weights.len());
        let nodes: Vec<_> =
            names.iter().zip(weights).map(|(name, weight)| Candidate { name, weight }).collect();
        let shares = shares(&nodes, KEYS);
        let total: u32 = weights.iter().sum();
        for node in &nodes {
            let wanted = KEYS as f64 * f64::from(node.weight) / f64::from(total);
            let got = shares[node.name] as f64;
            assert!((got / wanted - 1.0).abs() < 0.1, "{node:?} got {got} instead of {wanted}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2))]

        #[test]
        fn no_node_has_more_than_a_tenth_above_its_share(salt: u32) {
            let names = names(salt, 10);
            for (name, share) in shares(&even(&names), KEYS) {
                prop_assert!(share as f64 <= 1.1 * (KEYS / 10) as f64, "{name} has {share}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn a_node_that_leaves_moves_only_its_own_keys(salt: u32, leaves in 0usize..10) {
            let names = names(salt, 10);
            let before = even(&names);
            let after: Vec<_> = before.iter().copied().filter(|node| node.name != names[leaves]).collect();
            for n in 0..5_000 {
                let old = home(n, &before);
                let new = home(n, &after);
                prop_assert!(old == new || old == names[leaves]);
                // It goes to the one that came second.
                let ranked = rank("chat", &key(n), before.iter().copied());
                prop_assert_eq!(ranked[0].name, old);
                prop_assert_eq!(new, ranked[usize::from(old == names[leaves])].name);
            }
        }

        #[test]
        fn a_node_that_joins_takes_only_its_share(salt: u32, weight in 100u32..5_000) {
            let names = names(salt, 10);
            let before = even(&names[..9]);
            let joined = Candidate { name: &names[9], weight };
            let after: Vec<_> = before.iter().copied().chain([joined]).collect();
            let mut taken = 0;
            for n in 0..5_000 {
                let old = home(n, &before);
                let new = home(n, &after);
                prop_assert!(old == new || new == joined.name);
                taken += usize::from(new == joined.name);
            }
            let share = 5_000.0 * f64::from(weight) / f64::from(9 * WEIGHT_ONE + weight);
            prop_assert!((taken as f64 - share).abs() < 5.0 * share.sqrt() + 10.0, "{taken} instead of {share}");
        }

        #[test]
        fn the_order_in_which_nodes_are_named_does_not_matter(salt: u32, n in 0usize..1_000) {
            let names = names(salt, 10);
            let forth = even(&names);
            let mut back = even(&names);
            back.reverse();
            prop_assert_eq!(home(n, &forth), home(n, &back));
        }
    }
}
