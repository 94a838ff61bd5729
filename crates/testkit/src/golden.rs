//! Pages of `docs/` that are made from the code: a test compares them, and writes them when it is asked to.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::package_file;

/// The command that writes what a test found to be stale.
const UPDATE: &str = "make reference";

/// The folder of the documents.
pub fn docs() -> PathBuf {
    package_file("../../docs")
}

/// Compares a file of `docs/` with what the code makes; with `SOLEHOLD_UPDATE_GOLDEN` it is written first.
///
/// # Panics
///
/// If they differ, or if the file cannot be written.
pub fn golden(file: &str, made: &str) {
    let path = docs().join(file);
    if std::env::var_os("SOLEHOLD_UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("docs can be written");
        fs::write(&path, made).expect("docs can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let at = kept.lines().zip(made.lines()).position(|(kept, made)| kept != made);
    let line = at.unwrap_or(kept.lines().count().min(made.lines().count()));
    assert!(
        kept == made,
        "docs/{file} is not what the code says, from line {}:\n  kept: {:?}\n  made: {:?}\nif the change is meant: {UPDATE}",
        line + 1,
        kept.lines().nth(line),
        made.lines().nth(line),
    );
}

/// The same for one part of a file: what stands between the comments `<!-- NAME: ... -->` and `<!-- end of NAME -->`.
///
/// # Panics
///
/// As [`golden`], and if the file has no such part.
pub fn golden_part(file: &str, name: &str, made: &str) {
    let path = docs().join(file);
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let end = format!("<!-- end of {name} -->");
    let part = kept.split_once(&format!("<!-- {name}: ")).and_then(|(before, rest)| {
        let (head, rest) = rest.split_once("-->\n")?;
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}<!-- {name}: {head}-->\n{made}{end}{after}"))
    });
    let whole = part.unwrap_or_else(|| panic!("docs/{file} has no part `<!-- {name}: ... -->` ... `{end}`"));
    golden(file, &whole);
}

/// A table of the metrics in `text`, which a program exports: name, type, labels and help.
///
/// # Panics
///
/// If a metric has no sample: its labels would be unknown.
pub fn metrics_table(text: &str) -> String {
    let mut table = String::from("| metric | type | labels | |\n|---|---|---|---|\n");
    let after = |line: &str, word: &str| line.strip_prefix(word).map(str::to_owned);
    let helps: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| after(line, "# HELP "))
        .filter_map(|rest| rest.split_once(' ').map(|(name, help)| (name.to_owned(), help.to_owned())))
        .collect();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut rows: Vec<String> = types
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| {
            let labels = labels(text, name).unwrap_or_else(|| panic!("{name} has no sample:\n{text}"));
            let help = helps.get(name).map_or("", |help| help.trim_end_matches('.'));
            let shown = match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            };
            format!("| `{shown}` | {kind} | {labels} | {} |\n", help.replace('|', "\\|"))
        })
        .collect();
    rows.sort();
    table.extend(rows);
    table
}

/// The names of the labels that the samples of a metric have, but for those of the format itself; none without a
/// sample.
fn labels(text: &str, metric: &str) -> Option<String> {
    const OF_SAMPLES: [&str; 6] = ["", "_total", "_bucket", "_sum", "_count", "_info"];
    let samples = text.lines().filter(|line| {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        name.strip_prefix(metric).is_some_and(|rest| OF_SAMPLES.contains(&rest))
    });
    let mut labels: Vec<&str> = Vec::new();
    let mut has_sample = false;
    for sample in samples {
        has_sample = true;
        let Some((_, rest)) = sample.split_once('{') else { continue };
        // `="` stands after every name; a value may have braces, but no unescaped quote.
        let names = rest.split("=\"").filter_map(|before| before.rsplit(['"', ',', '{']).next());
        for name in names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')) {
            if !name.is_empty() && name != "le" && !labels.contains(&name) {
                labels.push(name);
            }
        }
    }
    has_sample.then(|| labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_each_metric_with_its_labels() {
        let text = "# HELP a_b Things | by route.\n# TYPE a_b counter\na_b_total{route=\"/x/{id}\",method=\"GET\"} 1\n\
                    # HELP c Seconds.\n# TYPE c histogram\nc_sum{lane=\"x\"} 1\nc_bucket{le=\"0.1\",lane=\"x\"} 1\n\
                    # HELP d All.\n# TYPE d gauge\nd 7\n# EOF\n";
        let expected = "| metric | type | labels | |\n|---|---|---|---|\n\
                        | `a_b_total` | counter | `route`, `method` | Things \\| by route |\n\
                        | `c` | histogram | `lane` | Seconds |\n| `d` | gauge |  | All |\n";
        assert_eq!(metrics_table(text), expected);
    }

    #[test]
    #[should_panic(expected = "a has no sample")]
    fn a_metric_without_a_sample_is_refused() {
        metrics_table("# HELP a All.\n# TYPE a gauge\n# EOF\n");
    }
}
