//! The metrics that alert rules and dashboards name, and those that a program exports.

use std::collections::BTreeSet;

use serde_json::Value;

/// Words of PromQL that stand where a metric could.
const WORDS: [&str; 14] = [
    "and",
    "or",
    "unless",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "bool",
    "offset",
    "inf",
    "nan",
    "atan2",
];

/// The metrics in every `expr` of a document: the rules of Prometheus, or a board of Grafana. Left out are those that
/// the document itself records, and `up`, which is Prometheus's own.
pub fn metrics_named(document: &Value) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    let mut recorded = BTreeSet::from(["up".to_owned()]);
    collect(document, &mut named, &mut recorded);
    &named - &recorded
}

fn collect(value: &Value, named: &mut BTreeSet<String>, recorded: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("expr", Value::String(text)) => named.extend(metrics_in(text)),
                    // A variable of a board, such as its list of instances.
                    ("query", Value::String(text)) => {
                        let values = text.strip_prefix("label_values(").and_then(|rest| rest.split_once(','));
                        named.extend(values.into_iter().flat_map(|(metric, _)| metrics_in(metric)));
                    }
                    ("record", Value::String(name)) => drop(recorded.insert(name.clone())),
                    _ => collect(value, named, recorded),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, named, recorded)),
        _ => {}
    }
}

/// The metrics in one expression of PromQL.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let text = without_selectors(expression);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = BTreeSet::new();
    let mut rest = text.as_str();
    let mut is_list = false;
    while let Some(start) = rest.find(is_part) {
        let word = &rest[start..];
        let length = word.find(|c| !is_part(c)).unwrap_or(word.len());
        let (word, after) = word.split_at(length);
        // `sum(x)`, or `sum by (job) (x)`.
        let is_called = ["(", "by ", "by(", "without ", "without("]
            .iter()
            .any(|next| after.trim_start().starts_with(next));
        let is_name = word.starts_with(|c: char| !c.is_ascii_digit()) && !WORDS.contains(&word);
        // The labels of `by (a, b)` stand between parentheses; there are none within.
        if is_list && rest[..start].contains(')') {
            is_list = false;
        }
        if is_name && !is_called && !is_list {
            found.insert(word.to_owned());
        }
        is_list |= is_called && ["by", "without", "on", "ignoring"].contains(&word);
        rest = after;
    }
    found
}

/// The expression without what stands in braces, brackets and quotes.
fn without_selectors(expression: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    let mut quoted_by = None;
    for c in expression.chars() {
        match (quoted_by, c) {
            (Some(quote), _) => {
                if c == quote {
                    quoted_by = None;
                }
            }
            (None, '"' | '\'') => quoted_by = Some(c),
            (None, '{' | '[') => depth += 1,
            (None, '}' | ']') => {
                depth -= 1;
                text.push(' ');
            }
            (None, _) if depth == 0 => text.push(c),
            (None, _) => {}
        }
    }
    text
}

/// The metrics that a program exports, by the text that it serves.
pub fn metrics_exported(text: &str) -> BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metrics_are_told_from_functions_labels_and_words() {
        let names = |expression: &str| metrics_in(expression).into_iter().collect::<Vec<_>>().join(" ");
        for (expression, metrics) in [
            ("a_total", "a_total"),
            ("sum by (le, lane) (rate(a_bucket{x=\"b_total\"}[5m])) > 0.1", "a_bucket"),
            ("sum(a) / on (instance) sum without (pod) (b offset 1h) >= bool 2e3", "a b"),
            (
                "histogram_quantile(0.99, sum by (le) (rate(a_bucket[1h]))) unless a:p99_1h",
                "a:p99_1h a_bucket",
            ),
            ("max(max_over_time(a[10m])) and (b == 0)", "a b"),
        ] {
            assert_eq!(names(expression), metrics, "{expression}");
        }
    }

    #[test]
    fn recorded_metrics_and_up_are_not_looked_for() {
        let rules = json!({"groups": [{"rules": [
            {"record": "a:rate", "expr": "rate(a_total[1m])"},
            {"alert": "A", "expr": "a:rate > 1 and up == 1"},
        ]}]});
        assert_eq!(metrics_named(&rules), BTreeSet::from(["a_total".to_owned()]));
    }

    #[test]
    fn the_variables_of_a_board_name_metrics_and_its_data_sources_do_not() {
        let board = json!({"templating": {"list": [
            {"name": "datasource", "query": "prometheus"},
            {"name": "job", "query": "label_values(a_info, job)"},
        ]}});
        assert_eq!(metrics_named(&board), BTreeSet::from(["a_info".to_owned()]));
    }

    #[test]
    fn samples_are_exported_and_comments_are_not() {
        let text = "# TYPE b counter\na_bucket{le=\"1\"} 0\nc 1\n# EOF\n";
        assert_eq!(metrics_exported(text), BTreeSet::from(["a_bucket".to_owned(), "c".to_owned()]));
    }
}
