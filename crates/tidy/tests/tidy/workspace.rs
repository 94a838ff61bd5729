//! The workspace's dependencies: how many there are, and that each is used.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::{files, repository};

/// Everyone who tries Solehold compiles these: a dependency more is a decision. ratatui, for `demo` and `top`, brings
/// 31: drawing on terminals by hand would be more code than the views.
const CRATES_MAX: usize = 320;

#[test]
fn the_default_build_stays_small() {
    let crates = crates_of("solehold");
    assert!(crates.len() > 50, "found only {crates:?}");
    assert!(
        crates.len() <= CRATES_MAX,
        "the default build has {} crates, more than {CRATES_MAX}",
        crates.len()
    );
}

/// Nobody compiles a database that they do not use: the gateway has the engine in-process, straight on PostgreSQL.
#[test]
fn a_gateway_on_postgres_compiles_no_sqlite() {
    let crates = crates_of("solehold-example-gateway");
    let named = |part: &str| crates.iter().filter(|name| name.contains(part)).cloned().collect::<Vec<_>>();
    assert_eq!(named("solehold-engine ").len(), 1, "{crates:?}");
    assert_eq!(named("sqlite"), [""; 0]);
}

/// All crates that a package is built of.
fn crates_of(package: &str) -> BTreeSet<String> {
    tree(&["--package", package])
}

fn tree(selection: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let common = ["tree", "--offline", "--edges", "normal,build", "--prefix", "none"];
    let tree = Command::new(cargo).args(common).args(selection).current_dir(repository()).output();
    let output = tree.expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    // A blank line stands between members.
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// The licences of deny.toml. cargo-deny checks more, but is not installed everywhere.
#[test]
fn every_licence_is_allowed() {
    let config = fs::read_to_string(repository().join("deny.toml")).expect("the configuration of cargo-deny");
    let list = config.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).expect("a list");
    let allowed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let crates = tree(&["--workspace", "--format", "{p}|{l}"]);
    assert!(crates.len() > 100, "found only {crates:?}");
    let is_refused = |name: &&String| {
        let (_, licence) = name.split_once('|').unwrap_or_default();
        !is_allowed(licence, &allowed)
    };
    let refused: Vec<_> = crates.iter().filter(is_refused).collect();
    assert!(refused.is_empty(), "these have a licence that deny.toml does not allow: {refused:#?}");
}

/// Whether an SPDX expression can be satisfied. AND binds more tightly than OR, and some crates write `/` for OR.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let either = |part: &str| split(part, " AND ").iter().all(|term| is_term_allowed(term, allowed));
    split(&expression.replace('/', " OR "), " OR ").iter().any(|part| either(part))
}

fn is_term_allowed(term: &str, allowed: &[&str]) -> bool {
    let term = term.trim();
    match term.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) => is_allowed(inner, allowed),
        None => allowed.contains(&term),
    }
}

/// Splits an expression outside its parentheses.
fn split<'a>(expression: &'a str, word: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in expression.match_indices(word) {
        let before = &expression[..at];
        if before.matches('(').count() == before.matches(')').count() {
            parts.push(&expression[start..at]);
            start = at + word.len();
        }
    }
    parts.push(&expression[start..]);
    parts
}

#[test]
fn licences_are_understood() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"];
    for licence in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "ISC AND (GPL-3.0 OR MIT)",
        "X AND Y OR MIT",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_allowed(licence, &allowed), "{licence}");
    }
    for licence in ["", "GPL-3.0", "MIT AND GPL-3.0", "ISC AND (GPL-3.0 OR X)", "Apache-2.0"] {
        assert!(!is_allowed(licence, &allowed), "{licence}");
    }
}

/// An entry that no member uses is kept up to date for nobody.
#[test]
fn every_workspace_dependency_is_used() {
    let root = repository();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the workspace's manifest");
    let members: Vec<String> = files(&root, &["Cargo.toml"])
        .iter()
        .filter(|path| path.parent() != Some(&root))
        .map(|path| fs::read_to_string(path).expect("a readable manifest"))
        .collect();
    assert!(members.len() > 5, "found only {} members", members.len());
    assert_eq!(unused(&manifest, &members), [""; 0], "remove them from [workspace.dependencies]");
}

fn unused<'a>(manifest: &'a str, members: &[String]) -> Vec<&'a str> {
    let table = manifest.split("[workspace.dependencies]").nth(1).expect("a table of dependencies");
    let entries = table.lines().take_while(|line| !line.starts_with('['));
    let names = entries.filter_map(|line| Some(line.split_once(" = ")?.0));
    let is_used = |name: &str| {
        let entry = format!("{name} = {{ workspace = true");
        members.iter().any(|member| member.lines().any(|line| line.starts_with(&entry)))
    };
    names.filter(|name| !is_used(name)).collect()
}

#[test]
fn unused_entries_are_found() {
    let manifest = "[workspace]\n[workspace.dependencies]\na = \"1\"\na-b = { version = \"1\" }\n\n[workspace.lints.rust]\nc = \"deny\"\n";
    let members = ["[dependencies]\na = { workspace = true, features = [] }\n".to_owned()];
    assert_eq!(unused(manifest, &members), ["a-b"]);
}
