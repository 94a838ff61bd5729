//! Style is an ordinary test: what the whole repository keeps to, with the reason beside each rule.
//!
//! A rule looks at one file and names lines. `text` is the file as written; `code` is the same with comments,
//! strings and character literals blanked, so that nobody is blamed for words.

mod documents;
mod habits;
mod names;
mod workspace;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// What a rule found: a line, and what to do about it.
type Found = Vec<(usize, String)>;
type Rule = fn(&Source) -> Found;

const RULES: [Rule; 10] = [
    clock_reads,
    unwraps,
    domain_words_in_core,
    long_files,
    sleeps_in_tests,
    channels_without_bound,
    meaning_in_sentences,
    compiled_in_folders,
    unfinished,
    routes_without_role,
];

const LINES_MAX: usize = 600;
const LINE_CHARS_MAX: usize = 120;

#[test]
fn the_repository_is_tidy() {
    let root = repository();
    let mut report = String::new();
    let mut seen = 0;
    for path in files(&root, &[".rs"]) {
        let text = fs::read_to_string(&path).expect("a readable source file");
        let source = Source::new(path.strip_prefix(&root).expect("a path below the root"), &text);
        seen += 1;
        for (line, advice) in RULES.iter().flat_map(|rule| rule(&source)) {
            writeln!(report, "{}:{line}: {advice}", source.path.display()).expect("a string takes writes");
        }
    }
    assert!(seen > 5, "found only {seen} files below {}", root.display());
    assert!(report.is_empty(), "\n{report}");
}

/// One clock decides (rule 1), so reading one is the business of a single crate.
fn clock_reads(source: &Source) -> Found {
    if source.path.starts_with("crates/clock/src") || source.has_folder(&["bench", "benches", "examples"]) {
        return Vec::new();
    }
    let reads = ["SystemTime::now", "Instant::now", "clock_gettime", "Timestamp::now", "Zoned::now"];
    source.find(
        Side::Product,
        &reads,
        "reads a clock: take the time as an argument, or read it with solehold-clock",
    )
}

/// A panic without a reason helps nobody at night.
fn unwraps(source: &Source) -> Found {
    if source.has_folder(&["benches"]) {
        return Vec::new();
    }
    source.find(
        Side::Product,
        &[".unwrap()"],
        "return the error, or say why it cannot be: `.expect(\"reason\")`",
    )
}

/// The core leases resources; what they are is known outside.
fn domain_words_in_core(source: &Source) -> Found {
    const WORDS: [&str; 7] = ["scene", "scenes", "camera", "cameras", "http", "json", "sql"];
    if !source.path.starts_with("crates/core/src") {
        return Vec::new();
    }
    let mut found = Found::new();
    for (number, line) in (1..).zip(source.text.lines()) {
        // The crate's front page may say what the core does not know.
        if source.is_named("lib.rs") && line.trim_start().starts_with("//!") {
            continue;
        }
        let seen: Vec<String> = words(line).iter().map(|word| word.to_lowercase()).collect();
        if let Some(word) = WORDS.iter().find(|word| seen.iter().any(|seen| seen == **word)) {
            found.push((number, format!("core knows no {word}: name the concept, or move this outward")));
        }
    }
    found
}

/// A file has one purpose, and a reader one evening.
fn long_files(source: &Source) -> Found {
    let lines = source.text.lines().count();
    let advice = || format!("{lines} lines, more than {LINES_MAX}: split it by purpose");
    (lines > LINES_MAX).then(|| (LINES_MAX + 1, advice())).into_iter().collect()
}

/// A test that sleeps is slow on a fast machine and wrong on a slow one.
fn sleeps_in_tests(source: &Source) -> Found {
    if source.path.starts_with("crates/testkit/src") {
        return Vec::new();
    }
    source.find(
        Side::Test,
        &["sleep(", "sleep_until("],
        "wait for the condition: `solehold_testkit::wait_for`",
    )
}

/// Limits have names (rule 25): a queue without a bound is a memory leak that waits for load.
fn channels_without_bound(source: &Source) -> Found {
    let channels = ["unbounded_channel", "UnboundedSender", "::unbounded(", "mpsc::channel()"];
    let advice = "give the channel a bound, from limits.rs";
    let mut found = source.find(Side::Both, &channels, advice);
    // std's with a type named, which takes no bound either.
    let typed = source.code.lines().map(|line| line.split_once("mpsc::channel::<"));
    let typed = (1..).zip(typed).filter(|(_, split)| split.is_some_and(|(_, rest)| rest.contains(">()")));
    found.extend(typed.map(|(number, _)| (number, advice.to_owned())));
    found
}

/// Errors are types up to the edge: a reworded message must not change what a program does.
fn meaning_in_sentences(source: &Source) -> Found {
    const SENTENCES: [&str; 7] =
        ["why", "why()", "message", "detail", "reason", "error.to_string()", "error_text"];
    const METHODS: [&str; 6] =
        ["contains", "starts_with", "ends_with", "strip_prefix", "strip_suffix", "split_once"];
    let needle = |sentence: &&str| METHODS.map(|method| format!("{sentence}.{method}("));
    let needles: Vec<String> = SENTENCES.iter().flat_map(needle).collect();
    let needles: Vec<&str> = needles.iter().map(String::as_str).collect();
    // The errors of other crates that have a kind in their text alone.
    let foreign = ["crates/process/src/config.rs", "crates/sql/src/error.rs"];
    if foreign.iter().any(|path| source.path.starts_with(path)) {
        return Vec::new();
    }
    source.find(Side::Product, &needles, "give the error a type or a field, and look at that")
}

/// `routes!` takes only handlers that say who may call them, and describes them, so that the specification of access
/// has every operation.
fn routes_without_role(source: &Source) -> Found {
    let public = ["crates/server/src/dashboard/mod.rs", "crates/server/src/serve/entrance.rs"];
    if !source.path.starts_with("crates/server/src")
        || public.iter().any(|path| source.path == Path::new(path))
    {
        return Vec::new();
    }
    let mounts = [".route(", ".route_service(", ".nest(", ".nest_service("];
    source.find(Side::Product, &mounts, "mount it with `routes!`, which needs a role and describes it")
}

/// Clones that share a target folder run each other's binaries.
fn compiled_in_folders(source: &Source) -> Found {
    let named = concat!("env!(\"CARGO_", "MANIFEST_DIR\")");
    let lines = (1..).zip(source.text.lines()).filter(|(_, line)| line.contains(named));
    let advice = "ask where the package is when it runs: `solehold_testkit::package_file`";
    lines.map(|(number, _)| (number, advice.to_owned())).collect()
}

/// What is not done is an issue, not a line of code.
fn unfinished(source: &Source) -> Found {
    source.find(
        Side::Both,
        &["todo!", "unimplemented!", "#[ignore"],
        "finish it, or leave it out and file an issue",
    )
}

/// Which lines a rule is about.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Product,
    Test,
    Both,
}

struct Source {
    path: PathBuf,
    text: String,
    code: String,
    /// For each line, whether it belongs to a test.
    in_test: Vec<bool>,
}

impl Source {
    fn new(path: &Path, text: &str) -> Self {
        let code = blank_words(text);
        let mut source = Self { path: path.to_owned(), text: text.to_owned(), code, in_test: Vec::new() };
        let whole = source.has_folder(&["tests", "testkit", "conformance", "sim", "fuzz", "chaos"])
            || ["tests.rs", "conformance.rs"].iter().any(|name| source.is_named(name));
        source.in_test = test_lines(&source.code).into_iter().map(|line| whole || line).collect();
        source
    }

    fn is_named(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|file| file == name)
    }

    fn has_folder(&self, names: &[&str]) -> bool {
        let folder = self.path.parent().unwrap_or(&self.path);
        folder.iter().any(|part| names.iter().any(|name| part == *name))
    }

    /// The lines of one side on which one of `needles` begins as a word of code.
    fn find(&self, side: Side, needles: &[&str], advice: &str) -> Found {
        let lines = (1..).zip(self.code.lines()).zip(&self.in_test);
        let lines = lines.filter(|(_, in_test)| side == Side::Both || (side == Side::Test) == **in_test);
        let hits = lines.filter_map(|((number, line), _)| {
            let needle = needles.iter().find(|needle| has_word(line, needle))?;
            Some((number, format!("`{needle}`: {advice}")))
        });
        hits.collect()
    }
}

/// True when `needle` occurs in `line` and does not continue an identifier.
fn has_word(line: &str, needle: &str) -> bool {
    let is_identifier = |c: char| c.is_alphanumeric() || c == '_';
    let starts_word = needle.starts_with(is_identifier);
    line.match_indices(needle).any(|(at, _)| !(starts_word && line[..at].ends_with(is_identifier)))
}

/// The words of a line: identifiers taken apart at underscores and capitals.
fn words(line: &str) -> Vec<String> {
    let characters: Vec<char> = line.chars().collect();
    let mut words = vec![String::new()];
    for (at, &c) in characters.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| characters[before]);
        let next_is_lower = characters.get(at + 1).is_some_and(|next| next.is_lowercase());
        let after_lower = before.is_some_and(|before| !before.is_uppercase());
        if !c.is_alphanumeric() || (c.is_uppercase() && (after_lower || next_is_lower)) {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("one word at least").push(c);
        }
    }
    words
}

/// For each line of code, whether it is part of an item under `#[cfg(test)]` or `#[test]`.
fn test_lines(code: &str) -> Vec<bool> {
    let mut in_test = Vec::new();
    // Braces open since the attribute; None outside. An item ends with its last brace, or a semicolon before the first.
    let mut depth: Option<usize> = None;
    for line in code.lines() {
        if depth.is_none() && is_test_attribute(line) {
            depth = Some(0);
        }
        in_test.push(depth.is_some());
        for c in line.chars() {
            depth = match (depth, c) {
                (Some(open), '{') => Some(open + 1),
                (Some(1), '}') | (Some(0), ';') => None,
                (Some(open), '}') => open.checked_sub(1),
                (depth, _) => depth,
            };
        }
    }
    in_test
}

/// Such as `#[cfg(test)]`, `#[test]` and `#[tokio::test(flavor = "multi_thread")]`.
fn is_test_attribute(line: &str) -> bool {
    let line = line.trim_start();
    let says_test = line.contains("(test") || line.contains("test]") || line.contains("::test(");
    line.starts_with("#[") && says_test && !line.contains("not(test")
}

/// The same text, every line in its place, without what stands in comments, strings and character literals.
fn blank_words(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = word_length(rest, code.chars().last());
        match length {
            Some(length) => code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' })),
            None => code.push(c),
        }
        rest = &rest[length.unwrap_or(c.len_utf8())..];
    }
    code
}

/// How long the comment or literal is with which `rest` begins, if it does.
fn word_length(rest: &str, before: Option<char>) -> Option<usize> {
    let until =
        |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment_length(rest));
    }
    if rest.starts_with('"') {
        return Some(quoted_length(rest, '"'));
    }
    let after_identifier = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with('r') && !after_identifier || rest.starts_with('r') && before == Some('b') {
        let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
        if rest[1 + hashes..].starts_with('"') {
            return Some(until(&format!("\"{}", "#".repeat(hashes)), hashes + 2));
        }
    }
    // A lifetime has no quote at its end.
    let mut characters = rest.strip_prefix('\'')?.chars();
    let is_escape = characters.next()? == '\\';
    (is_escape || characters.next() == Some('\'')).then(|| quoted_length(rest, '\''))
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Block comments nest.
fn block_comment_length(rest: &str) -> usize {
    let mut open = 0;
    let mut at = 0;
    while let Some(c) = rest[at..].chars().next() {
        match rest.get(at..at + 2) {
            Some("/*") => (open, at) = (open + 1, at + 2),
            Some("*/") if open == 1 => return at + 2,
            Some("*/") => (open, at) = (open - 1, at + 2),
            _ => at += c.len_utf8(),
        }
    }
    rest.len()
}

/// The folder of the workspace. Cargo runs a test in the folder of its package.
fn repository() -> PathBuf {
    let package = std::env::current_dir().expect("a working folder");
    package.ancestors().nth(2).expect("a crate stands two levels below the root").to_owned()
}

/// Every file of ours whose name ends in one of `endings`, in order; a folder named `target` or with a dot holds none.
fn files(root: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let skipped = name.starts_with('.') || ["target", "node_modules"].contains(&name.as_str());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !skipped => folders.push(path),
                Ok(kind) if kind.is_file() && endings.iter().any(|end| name.ends_with(end)) => {
                    files.push(path)
                }
                _ => {}
            }
        }
    }
    files.sort();
    files
}

mod every_rule_fires {
    use super::*;

    fn lines(rule: Rule, path: &str, text: &str) -> Vec<usize> {
        rule(&Source::new(Path::new(path), text)).into_iter().map(|(line, _)| line).collect()
    }

    const PRODUCT: &str = "crates/engine/src/driver.rs";
    const TEST: &str = "crates/engine/tests/driver.rs";

    #[test]
    fn clock_reads_outside_the_clock_crate() {
        for read in [
            "SystemTime::now()",
            "std::time::Instant::now()",
            "clock_gettime(id)",
            "Timestamp::now()",
            "Zoned::now()",
        ] {
            let text = format!("fn f() {{\n    let now = {read};\n}}\n");
            assert_eq!(lines(clock_reads, PRODUCT, &text), [2], "{read}");
            assert_eq!(lines(clock_reads, "crates/engine/src/clock.rs", &text), [2], "{read}");
            assert_eq!(lines(clock_reads, "crates/clock/src/boot_time.rs", &text), [0; 0]);
            assert_eq!(lines(clock_reads, "bench/src/lib.rs", &text), [0; 0]);
            assert_eq!(lines(clock_reads, TEST, &text), [0; 0]);
            assert_eq!(lines(clock_reads, "crates/testkit/src/wait.rs", &text), [0; 0]);
        }
        assert_eq!(
            lines(clock_reads, PRODUCT, "// Instant::now() is not for us\nlet s = \"Instant::now\";"),
            [0; 0]
        );
    }

    #[test]
    fn unwraps_outside_tests() {
        let text = "fn f() {\n    x.unwrap();\n}\n\n#[cfg(test)]\nmod tests {\n    fn g() { if a { y.unwrap() } }\n}\nfn h() { z.unwrap() }";
        assert_eq!(lines(unwraps, PRODUCT, text), [2, 9]);
        assert_eq!(lines(unwraps, "bench/src/lib.rs", text), [2, 9]);
        assert_eq!(lines(unwraps, TEST, text), [0; 0]);
        assert_eq!(lines(unwraps, PRODUCT, "/// x.unwrap()\nx.expect(\"why\"); y.unwrap_or(1);"), [0; 0]);
        assert_eq!(lines(unwraps, PRODUCT, "#[cfg(test)]\nmod tests;\nfn f() { x.unwrap() }"), [3]);
    }

    #[test]
    fn domain_words_in_the_core() {
        const CORE: &str = "crates/core/src/lease.rs";
        for word in [
            "scene_id",
            "CameraLease",
            "cameras",
            "HTTPStatus",
            "toJson",
            "// as JSON",
            "\"sql\"",
            "SqlState",
        ] {
            assert_eq!(lines(domain_words_in_core, CORE, word), [1], "{word}");
            assert_eq!(lines(domain_words_in_core, PRODUCT, word), [0; 0], "{word}");
        }
        for word in ["obscene", "https://example.org", "scenery", "NoSqlite"] {
            assert_eq!(lines(domain_words_in_core, CORE, word), [0; 0], "{word}");
        }
        assert_eq!(
            lines(domain_words_in_core, "crates/core/src/lib.rs", "//! no camera\nstruct Camera;"),
            [2]
        );
    }

    #[test]
    fn files_that_are_too_long() {
        assert_eq!(lines(long_files, PRODUCT, &"\n".repeat(LINES_MAX)), [0; 0]);
        assert_eq!(lines(long_files, PRODUCT, &"\n".repeat(LINES_MAX + 1)), [LINES_MAX + 1]);
    }

    #[test]
    fn sleeps_where_a_test_should_wait() {
        for call in
            ["std::thread::sleep(d)", "tokio::time::sleep(d).await", "sleep(d).await", "sleep_until(t).await"]
        {
            assert_eq!(lines(sleeps_in_tests, TEST, call), [1], "{call}");
            assert_eq!(lines(sleeps_in_tests, PRODUCT, call), [0; 0], "{call}");
            assert_eq!(lines(sleeps_in_tests, "crates/testkit/src/wait.rs", call), [0; 0], "{call}");
            assert_eq!(lines(sleeps_in_tests, "crates/testkit/tests/wait.rs", call), [1], "{call}");
            assert_eq!(lines(sleeps_in_tests, "crates/conformance/src/time.rs", call), [1], "{call}");
            let module = format!("{call};\n#[cfg(test)]\nmod tests {{\n    {call};\n}}");
            assert_eq!(lines(sleeps_in_tests, PRODUCT, &module), [4], "{call}");
        }
        assert_eq!(lines(sleeps_in_tests, TEST, "no_sleep(d); // sleep(d)"), [0; 0]);
    }

    #[test]
    fn channels_without_a_bound() {
        for call in [
            "mpsc::unbounded_channel()",
            "std::sync::mpsc::channel()",
            "mpsc::channel::<Vec<u8>>()",
            "flume::unbounded()",
        ] {
            assert_eq!(lines(channels_without_bound, PRODUCT, call), [1], "{call}");
            assert_eq!(lines(channels_without_bound, TEST, call), [1], "{call}");
        }
        let bounded = "mpsc::channel(8); mpsc::channel::<u8>(8); mpsc::sync_channel(8); oneshot::channel()";
        assert_eq!(lines(channels_without_bound, PRODUCT, bounded), [0; 0]);
    }

    #[test]
    fn errors_that_are_told_apart_by_their_words() {
        for call in [
            "if failure.message.contains(\"in use\") {}",
            "problem.detail.strip_prefix(\"ttl\")",
            "error.why().starts_with(START)",
            "error.to_string().ends_with('x')",
        ] {
            assert_eq!(lines(meaning_in_sentences, PRODUCT, call), [1], "{call}");
            assert_eq!(lines(meaning_in_sentences, TEST, call), [0; 0], "{call}");
        }
        assert_eq!(lines(meaning_in_sentences, PRODUCT, "subject.contains('/')"), [0; 0]);
    }

    #[test]
    fn what_is_not_finished() {
        for text in ["todo!()", "unimplemented!(\"x\")", "#[ignore]", "#[ignore = \"slow\"]"] {
            assert_eq!(lines(unfinished, PRODUCT, text), [1], "{text}");
            assert_eq!(lines(unfinished, TEST, text), [1], "{text}");
        }
        assert_eq!(lines(unfinished, PRODUCT, "// todo! later"), [0; 0]);
    }

    #[test]
    fn routes_that_need_no_role() {
        let mount = "router.route(\"/x\", get(f))";
        assert_eq!(lines(routes_without_role, "crates/server/src/routes/mod.rs", mount), [1]);
        for elsewhere in ["crates/server/src/dashboard/mod.rs", "crates/cli/src/gate.rs", TEST] {
            assert_eq!(lines(routes_without_role, elsewhere, mount), [0; 0], "{elsewhere}");
        }
        assert_eq!(
            lines(routes_without_role, "crates/server/src/routes/mod.rs", "routers.routes(x)"),
            [0; 0]
        );
    }

    #[test]
    fn words_are_not_code() {
        let text =
            "a /* b /* c */ d */ e // f\n'g' '\\'' 'h: \"i\\\"j\\\n\" r#\"k\"l\"# br\"m\" n\n/**/ o /* p";
        let code = blank_words(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "e", "'h:", "b", "n", "o"]);
    }
}
