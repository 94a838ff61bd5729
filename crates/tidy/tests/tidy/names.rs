//! A type name stands for one thing in a crate, and the nouns of the core for the core's types everywhere.
//!
//! `repeated_names.txt` lists the names that break the rule, as `crate Name`. It only shrinks: a name that is no longer
//! repeated must leave it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{Source, files, repository};

/// The nouns that `core` defines. Elsewhere a type that is like one says what it is: `LeaseRow`, `LeaseView`.
const CORE_NOUNS: [&str; 7] = ["Lease", "Grant", "Resource", "Session", "Event", "Claim", "Refusal"];
const EXCEPTIONS: &str = include_str!("repeated_names.txt");

#[test]
fn a_type_name_stands_for_one_thing() {
    let root = repository();
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for path in files(&root.join("crates"), &[".rs"]) {
        let text = fs::read_to_string(&path).expect("a readable source file");
        let source = Source::new(path.strip_prefix(&root).expect("a path below the root"), &text);
        let Some(krate) = source.path.iter().nth(1).map(|name| name.to_string_lossy().into_owned()) else {
            continue;
        };
        for (line, name) in type_names(&source) {
            let place = format!("{}:{line}", source.path.display());
            places.entry((krate.clone(), name)).or_default().push(place);
        }
    }
    assert!(places.len() > 100, "found only {} types", places.len());
    let is_repeated = |krate: &str, name: &str, places: &[String]| {
        places.len() > 1 || (krate != "core" && CORE_NOUNS.contains(&name))
    };
    let repeated = places.iter().filter(|((krate, name), places)| is_repeated(krate, name, places));
    let repeated: BTreeMap<String, &Vec<String>> =
        repeated.map(|((krate, name), places)| (format!("{krate} {name}"), places)).collect();
    let allowed: BTreeSet<&str> = EXCEPTIONS.lines().collect();
    let new: Vec<_> = repeated.iter().filter(|(name, _)| !allowed.contains(name.as_str())).collect();
    assert!(new.is_empty(), "give each of these types a name of its own: {new:#?}");
    let gone: Vec<_> = allowed.iter().filter(|name| !repeated.contains_key(**name)).collect();
    assert!(gone.is_empty(), "remove these from repeated_names.txt: {gone:#?}");
}

/// The types that a module of the product defines, each with its line.
fn type_names(source: &Source) -> Vec<(usize, String)> {
    let lines = (1..).zip(source.code.lines()).zip(&source.in_test).filter(|(_, in_test)| !**in_test);
    lines.filter_map(|((number, line), _)| Some((number, type_name(line)?.to_owned()))).collect()
}

/// The type that a line at the top level of a module begins to define.
fn type_name(line: &str) -> Option<&str> {
    let item = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => line,
    };
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let name =
        ["struct ", "enum ", "trait ", "type "].iter().find_map(|keyword| item.strip_prefix(keyword))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

#[test]
fn types_are_found() {
    for (line, name) in [
        ("pub struct Lease {", Some("Lease")),
        ("pub(crate) enum Grant<'a> {", Some("Grant")),
        ("pub(in crate::x) trait Event: Send {", Some("Event")),
        ("type Found = Vec<u8>;", Some("Found")),
        ("    type Error = ();", None),
        ("impl Lease {", None),
        ("pub fn type_name() {}", None),
    ] {
        assert_eq!(type_name(line), name, "{line}");
    }
}
