//! Two habits that cost a reader a second look: several unrelated bindings in one `let`, and a `match` on a flag.

use std::fs;

use super::{Found, Source, files, repository};

#[test]
fn bindings_and_flags_are_plain() {
    let root = repository();
    let mut report = String::new();
    for path in files(&root, &[".rs"]) {
        let text = fs::read_to_string(&path).expect("a readable source file");
        let source = Source::new(path.strip_prefix(&root).expect("a path below the root"), &text);
        let found = [tuple_lets(&source), matches_on_flags(&source)].concat();
        let name = source.path.display();
        report.extend(found.iter().map(|(line, advice)| format!("{name}:{line}: {advice}\n")));
    }
    assert!(report.is_empty(), "\n{report}");
}

/// `let (a, b) = (x, y);` binds two values that have nothing to do with each other.
fn tuple_lets(source: &Source) -> Found {
    let mut found = Found::new();
    let mut at = 0;
    for (number, line) in (1..).zip(source.code.split_inclusive('\n')) {
        let start = at + line.len() - line.trim_start().len();
        at += line.len();
        if source.code[start..].strip_prefix("let ").is_some_and(is_tuple_let) {
            found.push((number, "give each value a `let` of its own".to_owned()));
        }
    }
    found
}

/// Whether the text after `let` is a tuple pattern, ` = `, and a tuple literal that ends the statement. One that
/// continues with `else` tests several values at once, which is what a tuple is for.
fn is_tuple_let(text: &str) -> bool {
    let Some((_, rest)) = tuple(text) else { return false };
    let Some((kind, value)) = rest.split_once('=') else { return false };
    let has_type = kind.trim_start().starts_with(':') && !kind.contains(';');
    if !(kind.trim().is_empty() || has_type) {
        return false;
    }
    tuple(value.trim_start()).is_some_and(|(fields, rest)| fields > 1 && rest.trim_start().starts_with(';'))
}

/// The number of fields of the parenthesised text that `text` begins with, and the text after it.
fn tuple(text: &str) -> Option<(usize, &str)> {
    if !text.starts_with('(') {
        return None;
    }
    let mut depth = 0;
    let mut fields = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 1 => fields += 1,
            _ => {}
        }
        if depth == 0 {
            return Some((fields, &text[at + 1..]));
        }
    }
    None
}

/// `match flag { true => …, false => … }` is an `if`.
fn matches_on_flags(source: &Source) -> Found {
    let is_arm = |line: &str| {
        ["true =>", "false =>"]
            .iter()
            .any(|arm| line.trim_start().starts_with(arm) || line.contains(&format!("{{ {arm}")))
    };
    let lines = (1..).zip(source.code.lines()).filter(|(_, line)| is_arm(line));
    lines
        .map(|(number, _)| (number, "write `if` and `else` in place of a match on a flag".to_owned()))
        .collect()
}

#[test]
fn both_habits_are_found() {
    let lines = |rule: fn(&Source) -> Found, text: &str| -> Vec<usize> {
        let source = Source::new("crates/engine/src/driver.rs".as_ref(), text);
        rule(&source).into_iter().map(|(line, _)| line).collect()
    };
    for text in [
        "let (a, b) = (x, y);",
        "    let (mut a, b): (u8, Vec<u8>) = (f(1, 2), y.z()?);",
        "let (a, b) =\n    (x, y);",
        "let (a, b) = (\n    x,\n    y,\n);",
    ] {
        assert_eq!(lines(tuple_lets, text), [1], "{text}");
    }
    for text in [
        "let (a, b) = f(x, y);",
        "let (a, b) = (f(x, y));",
        "let (a, b) = (x, y).into();",
        "let (Some(a), Some(b)) = (x, y) else { return };",
        "if let (Some(a), Some(b)) = (x, y) {}",
        "(a, b) = (b, a);",
        "let (a, b);\nlet c = (1, 2);",
    ] {
        assert_eq!(lines(tuple_lets, text), [0; 0], "{text}");
    }
    assert_eq!(lines(matches_on_flags, "match x {\n    true => 1,\n    false => 2,\n}"), [2, 3]);
    assert_eq!(lines(matches_on_flags, "match x { true => 1, false => 2 }"), [1]);
    assert_eq!(lines(matches_on_flags, "match x {\n    Some(true) => 1,\n    (false, _) => 2,\n}"), [0; 0]);
}
