//! A type name stands for one thing in a crate, and the nouns of the core for the core's types everywhere.

use std::collections::BTreeMap;
use std::fs;

use super::{Source, files, repository};

/// The nouns that `core` defines. Elsewhere a type that is like one says what it is: `LeaseRow`, `LeaseView`.
const CORE_NOUNS: [&str; 7] = ["Lease", "Grant", "Resource", "Session", "Event", "Claim", "Refusal"];

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
    let repeated: Vec<_> =
        places.iter().filter(|((krate, name), places)| is_repeated(krate, name, places)).collect();
    assert!(repeated.is_empty(), "give each of these types a name of its own: {repeated:#?}");
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
