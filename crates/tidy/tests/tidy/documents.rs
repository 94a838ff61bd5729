//! What documents say must be true, and readable: the rules that are cited, the tests and paths that are named, the
//! length of lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{Found, LINE_CHARS_MAX, files, repository};

const PROTOCOL: &str = "docs/protocol.md";
/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Printed by programs, whose own texts are checked elsewhere, and a list of links.
const GOLDEN: [&str; 4] = ["docs/api.md", "docs/cli.md", "docs/reference/", SUMMARY];

/// A text file of ours; its path is relative to the repository.
struct Document {
    path: String,
    text: String,
}

fn documents(endings: &[&str]) -> Vec<Document> {
    let root = repository();
    let read = |path: &Path| Document {
        path: path.strip_prefix(&root).expect("a path below the root").display().to_string(),
        text: fs::read_to_string(path).expect("a readable file"),
    };
    files(&root, endings).iter().map(|path| read(path)).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn report(findings: impl Iterator<Item = (String, Found)>) {
    let lines = findings.flat_map(|(path, found)| {
        found.into_iter().map(move |(line, advice)| format!("{path}:{line}: {advice}\n"))
    });
    let report: String = lines.collect();
    assert!(report.is_empty(), "\n{report}");
}

/// `(rule 7)` means a heading of docs/protocol.md. A number that is not there leads a reader nowhere.
#[test]
fn cited_rules_exist() {
    let rules = rules_of(&read(PROTOCOL));
    let documents = documents(&[".rs", ".py", ".sql", ".md", ".toml", ".sh", ".yaml"]);
    report(documents.into_iter().map(|document| (document.path, unknown_rules(&document.text, &rules))));
}

/// Every rule names tests that exist where it says, or says that it is not built.
#[test]
fn rules_name_their_tests() {
    let found = missing_tests(&read(PROTOCOL), |path| fs::read_to_string(repository().join(path)).ok());
    report([(PROTOCOL.to_owned(), found)].into_iter());
}

/// A path in a document that leads newcomers through the code leads somewhere.
#[test]
fn named_paths_exist() {
    let guides = ["README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", PROTOCOL];
    let exists = |path: &str| repository().join(path).exists();
    report(guides.into_iter().map(|path| (path.to_owned(), missing_paths(&read(path), exists))));
}

/// So does a link.
#[test]
fn links_lead_somewhere() {
    let dead = |document: Document| {
        let folder = repository().join(&document.path).parent().expect("a file has a folder").to_owned();
        let mut found = dead_links(&document.text, |target| folder.join(target).exists());
        found.extend(dead_anchors(&document.text, |target| match target {
            "" => Some(document.text.clone()),
            target => fs::read_to_string(folder.join(target)).ok(),
        }));
        (document.path, found)
    };
    report(documents(&[".md"]).into_iter().map(dead));
}

/// A guide that no page links to is not found by the people that it is for.
#[test]
fn guides_are_linked() {
    let pages = documents(&[".md"]);
    let pages: Vec<_> = pages.iter().filter(|page| page.path != "CHANGELOG.md").collect();
    let guides = pages.iter().filter(|page| page.path.starts_with("docs/guides/"));
    report(guides.map(|guide| {
        let name = guide.path.rsplit('/').next().expect("a path has a last part");
        let links = |page: &&&Document| page.path != guide.path && is_linked(&page.text, name);
        let found = match pages.iter().find(links) {
            Some(_) => Found::new(),
            None => vec![(1, "no page links to this guide".to_owned())],
        };
        (guide.path.clone(), found)
    }));
}

/// The book has every page: the documents, and the READMEs of the clients and of the examples.
#[test]
fn pages_are_in_the_book() {
    let pages: Vec<Document> = documents(&[".md"]).into_iter().filter(|page| is_page(&page.path)).collect();
    assert!(pages.len() > 50, "found only {} pages", pages.len());
    report([(SUMMARY.to_owned(), missing_pages(&read(SUMMARY), &pages))].into_iter());
}

fn is_page(path: &str) -> bool {
    let is_readme = path.ends_with("/README.md");
    let is_document = path.starts_with("docs/") && path != SUMMARY;
    is_document || is_readme && ["clients/", "examples/"].iter().any(|folder| path.starts_with(folder))
}

fn missing_pages(summary: &str, pages: &[Document]) -> Found {
    let in_book: BTreeSet<String> = links(summary).into_iter().map(|(_, target)| target.to_owned()).collect();
    let mut found = Found::new();
    for page in pages {
        let link = match page.path.strip_prefix("docs/") {
            Some(path) => path.to_owned(),
            None => format!("../{}", page.path),
        };
        if !in_book.contains(&link) {
            let title = page.text.lines().next().unwrap_or_default().trim_start_matches("# ");
            found.push((1, format!("{} is not in the book: add a line `- [{title}]({link})`", page.path)));
        }
    }
    found
}

/// Prose wraps, so that a diff shows what changed.
#[test]
fn prose_wraps() {
    let documents = documents(&[".md", ".rs"]).into_iter();
    let documents = documents.filter(|document| !GOLDEN.iter().any(|path| document.path.starts_with(path)));
    report(documents.map(|document| {
        let comments_only = document.path.ends_with(".rs");
        let found = long_prose(&document.text, comments_only);
        (document.path, found)
    }));
}

/// The systems that Solehold replaces are told of in one place; elsewhere a reader meets what a thing is for.
#[test]
fn former_systems_are_in_origins_only() {
    let documents =
        documents(&[".rs", ".py", ".sql", ".md", ".json", ".toml", ".sh", ".yaml", "Makefile"]).into_iter();
    let documents = documents.filter(|document| !document.path.starts_with("crates/tidy/tests/tidy/"));
    let documents = documents.filter(|document| document.path != "docs/origins.md");
    report(documents.map(|document| (document.path, former_systems(&document.text))));
}

fn former_systems(text: &str) -> Found {
    const WORDS: [&str; 8] =
        ["the seed", "the_seed", "seed's", "seeds'", "seeds/", "seed=0", "seed 00", "seeds 00"];
    let lines = (1..).zip(text.lines().map(str::to_lowercase));
    let hits = lines.filter(|(_, line)| WORDS.iter().any(|word| line.contains(word)));
    hits.map(|(number, _)| {
        (number, "say what it is for; docs/origins.md tells where it comes from".to_owned())
    })
    .collect()
}

fn rules_of(protocol: &str) -> BTreeSet<u32> {
    let headings = protocol.lines().filter_map(|line| line.strip_prefix("### Rule "));
    headings.filter_map(|heading| heading.split_once(':')?.0.parse().ok()).collect()
}

fn unknown_rules(text: &str, rules: &BTreeSet<u32>) -> Found {
    let mut found = Found::new();
    for (number, line) in (1..).zip(text.lines()) {
        let unknown = cited(line).into_iter().filter(|rule| !rules.contains(rule));
        found.extend(unknown.map(|rule| (number, format!("there is no rule {rule} in {PROTOCOL}"))));
    }
    found
}

/// The numbers after the word: 7 of "rule 7"; 1, 2 and 23 of "rules 1, 2 and 23".
fn cited(line: &str) -> Vec<u32> {
    let line = line.to_lowercase();
    let mut numbers = Vec::new();
    for (at, word) in line.match_indices("rule") {
        if line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &line[at + word.len()..];
        let Some(rest) = rest.strip_prefix("s ").or_else(|| rest.strip_prefix(' ')) else { continue };
        let parts = rest.split([' ', ',']).filter(|part| !part.is_empty() && *part != "and");
        let number = |part: &str| part.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok();
        numbers.extend(parts.map_while(number));
    }
    numbers
}

fn missing_tests(protocol: &str, read: impl Fn(&str) -> Option<String>) -> Found {
    let mut found = Found::new();
    let mut heading: Option<(usize, &str)> = None;
    let mut named = false;
    let mut file: Option<String> = None;
    let mut in_tests = false;
    for (number, line) in (1..).zip(protocol.lines().chain(["### end"])) {
        if line.starts_with("### ") {
            if let Some((number, rule)) = heading.filter(|_| !named) {
                found.push((number, format!("{rule} names no test")));
            }
            (heading, named) = (Some((number, line)), false);
        }
        named |= line.contains("*Not built yet.*");
        in_tests = line.starts_with("Tests: ") || (in_tests && !line.is_empty());
        if !in_tests {
            continue;
        }
        for span in spans(line) {
            if span.contains('/') {
                file = read(span);
                if file.is_none() {
                    found.push((number, format!("{span} does not exist")));
                }
            } else if let Some(text) = &file {
                named = true;
                // A test of several drivers takes the driver as a type.
                let is =
                    |word: &str| ["(", "<"].iter().any(|end| text.contains(&format!("{word}{span}{end}")));
                if !["fn ", "def ", "func "].into_iter().any(is) {
                    found.push((number, format!("no function {span} in the file named before it")));
                }
            }
        }
    }
    found
}

fn missing_paths(text: &str, exists: impl Fn(&str) -> bool) -> Found {
    const FOLDERS: [&str; 8] =
        ["bench/", "clients/", "crates/", "docs/", "examples/", "fuzz/", "scripts/", ".ci/"];
    let mut found = Found::new();
    for (number, line) in (1..).zip(text.lines()) {
        let paths = spans(line).filter(|span| FOLDERS.iter().any(|folder| span.starts_with(folder)));
        let missing = paths.filter(|path| !path.contains(['*', ' ']) && !exists(path));
        found.extend(missing.map(|path| (number, format!("{path} does not exist"))));
    }
    found
}

fn dead_links(text: &str, exists: impl Fn(&str) -> bool) -> Found {
    let local = links(text).into_iter().filter(|(_, target)| !target.starts_with('#'));
    let paths = local.map(|(number, target)| (number, target.split('#').next().unwrap_or(target)));
    let dead = paths.filter(|(_, path)| !exists(path));
    dead.map(|(number, path)| (number, format!("{path} does not exist"))).collect()
}

/// Links to a heading that its page does not have. `read` returns the text of a page, and that of this one for "".
fn dead_anchors(text: &str, read: impl Fn(&str) -> Option<String>) -> Found {
    let mut found = Found::new();
    for (number, target) in links(text) {
        let Some((path, anchor)) = target.split_once('#') else { continue };
        let is_page = path.is_empty() || path.ends_with(".md");
        if is_page && read(path).is_some_and(|page| !anchors(&page).contains(anchor)) {
            found.push((number, format!("{target}: the page has no such heading")));
        }
    }
    found
}

/// The anchors of a page's headings: lower case, blanks as hyphens, without punctuation.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose_lines(page).into_iter().filter(|(_, line)| line.starts_with('#'));
    let titles = headings.map(|(_, line)| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    titles.map(|title| title.chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

/// The links to files of ours and to headings, each with its line.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in prose_lines(text) {
        let targets = line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        links.extend(targets.filter(|target| !target.contains("://")).map(|target| (number, target)));
    }
    links
}

/// The lines outside blocks of code, with their numbers.
fn prose_lines(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        in_code ^= line.trim_start().starts_with("```");
        if !in_code {
            lines.push((number, line));
        }
    }
    lines
}

/// Whether a text has a link to a file of this name.
fn is_linked(text: &str, name: &str) -> bool {
    text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()).any(|target| {
        let file = target.rsplit('/').next();
        file == Some(name)
    })
}

/// What stands between backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Tables, code and what cannot be broken may be longer.
fn long_prose(text: &str, comments_only: bool) -> Found {
    let mut found = Found::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        let Some(prose) = prose_of(line, comments_only) else {
            in_code = false;
            continue;
        };
        if prose.starts_with("```") {
            in_code = !in_code;
        }
        let length = line.chars().count();
        let is_table = prose.starts_with('|');
        if length > LINE_CHARS_MAX && !in_code && !is_table && prose.contains(' ') {
            found.push((number, format!("{length} characters, more than {LINE_CHARS_MAX}: wrap the prose")));
        }
    }
    found
}

/// The text of a line of prose, without the signs of a comment or of a list; none if it is code.
fn prose_of(line: &str, comments_only: bool) -> Option<&str> {
    let line = line.trim_start();
    let text = if comments_only { line.strip_prefix("//")?.trim_start_matches(['/', '!']) } else { line };
    let text = text.trim_start();
    Some(["- ", "* "].iter().find_map(|mark| text.strip_prefix(mark)).unwrap_or(text))
}

mod every_check_fires {
    use super::*;

    fn lines(found: Found) -> Vec<usize> {
        found.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn rules_that_do_not_exist() {
        let rules = rules_of("### Rule 1: a\n### Rule 2: b\n#### Rule 9: no\n");
        assert_eq!(rules, BTreeSet::from([1, 2]));
        let text = "(rule 1)\n(rules 1, 2 and 3)\n// Rule 2: yes\nrule 4.\nmore rules than 7\nferrule 8\nrules are 5";
        assert_eq!(lines(unknown_rules(text, &rules)), [2, 4]);
    }

    #[test]
    fn tests_that_do_not_exist() {
        let protocol = "### Rule 1: a\nTests: `a/b.rs`: `yes`,\n`no`. `a/c.rs`: `x`.\n\n`not_a_test`\n### Rule 2: b\nTests: none.\n\
            ### Rule 3: c\n*Not built yet.*\n";
        let read = |path: &str| (path == "a/b.rs").then(|| "async fn yes() {}".to_owned());
        assert_eq!(lines(missing_tests(protocol, read)), [3, 3, 6]);
    }

    #[test]
    fn paths_and_links_that_lead_nowhere() {
        let exists = |path: &str| path == "crates/core";
        let text = "`crates/core` `crates/none`\n`a/b` `crates/* all`\n`docs/none.md`";
        assert_eq!(lines(missing_paths(text, exists)), [1, 3]);
        let text = "[a](crates/core#x) [b](none)\n[c](https://x.org/none) [d](#here)\n```\n[e](none)\n```\n[f](none.md#x)";
        assert_eq!(lines(dead_links(text, exists)), [1, 6]);
        let page = |path: &str| {
            ["", "a.md"].contains(&path).then(|| "# One `two`, three\n```\n# no\n```".to_owned())
        };
        let text = "[a](a.md#one-two-three) [b](#no)\n[c](a.md#four)\n[d](none.md#x) [e](a.rs#L1)";
        assert_eq!(lines(dead_anchors(text, page)), [1, 2]);
        assert!(
            is_linked("see [it](guides/a.md#x) there", "a.md") && !is_linked("[a.md](guides/b-a.md)", "a.md")
        );
    }

    #[test]
    fn pages_that_are_not_in_the_book() {
        let page = |path: &str| Document { path: path.to_owned(), text: "# A title\n".to_owned() };
        let pages = ["docs/a.md", "docs/guides/b.md", "examples/c/README.md"].map(page);
        let found = missing_pages("- [a](a.md)\n  - [c](../examples/c/README.md)\n", &pages);
        let advice = "docs/guides/b.md is not in the book: add a line `- [A title](guides/b.md)`";
        assert_eq!(found, [(1, advice.to_owned())]);
        assert!(is_page("docs/adr/x.md") && is_page("clients/go/README.md"));
        assert!(!is_page(SUMMARY) && !is_page("clients/go/CHANGES.md") && !is_page("bench/README.md"));
    }

    #[test]
    fn former_systems_outside_origins() {
        let text = "The seed's SQL\nSOLEHOLD_SEED=1\nmake e2e SEED=003\nrandom seeds\n// Seed 002\nfn the_seed_s_curl()";
        assert_eq!(lines(former_systems(text)), [1, 3, 5, 6]);
    }

    #[test]
    fn prose_that_does_not_wrap() {
        let long = "word ".repeat(30);
        let unbreakable = "x".repeat(200);
        let text = format!("{long}\n| {long}\n```\n{long}\n```\n- {unbreakable}\n- {long}\nshort");
        assert_eq!(lines(long_prose(&text, false)), [1, 7]);
        let text = format!(
            "/// {long}\nlet {long}\n    //! - {long}\n// https://{unbreakable}\n/// ```\n/// {long}\n/// ```"
        );
        assert_eq!(lines(long_prose(&text, true)), [1, 3]);
    }
}
