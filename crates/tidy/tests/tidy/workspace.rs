//! The workspace's dependencies: how many there are, and that each is used.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::{files, repository};

/// Everyone who tries Solehold compiles these: a dependency more is a decision.
const CRATES_MAX: usize = 288;

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
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let tree = ["tree", "--offline", "--package", package, "--edges", "normal,build", "--prefix", "none"];
    let output = Command::new(cargo).args(tree).current_dir(repository()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
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
