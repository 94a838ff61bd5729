//! The figures of all sections as a table in Markdown.

use std::time::Duration;

use crate::section::Section;

const HEAD: &str = "\
| fault | times | operations | unknown | refused | lost | takeovers | p50 | p99 | longest silence | overlap, fenced | overlap, unfenced |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

/// One row for each section. Times are in seconds.
pub fn table(sections: &[Section]) -> String {
    let mut table = HEAD.to_owned();
    table.extend(sections.iter().map(row));
    table
}

fn row(section: &Section) -> String {
    let Section { name, strikes, figures, .. } = section;
    let takeover = |part| figures.takeover(part).map_or_else(|| "-".to_owned(), seconds);
    format!(
        "| {name} | {strikes} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        figures.operations,
        figures.unknown,
        figures.refused,
        figures.lost,
        figures.takeovers.len(),
        takeover(0.5),
        takeover(0.99),
        seconds(figures.silence),
        seconds(figures.overlap_fenced),
        seconds(figures.overlap_unfenced),
    )
}

/// As `4.2`, and `0` if it is nothing at all: what is not nothing never reads as nothing.
fn seconds(time: Duration) -> String {
    if time.is_zero() { "0".to_owned() } else { format!("{:.1}", (time.as_secs_f64()).max(0.1)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::section::Figures;

    #[test]
    fn a_row_has_each_figure_at_its_place() {
        let figures = Figures {
            operations: 900,
            unknown: 3,
            refused: 20,
            lost: 0,
            overlap_unfenced: Duration::from_millis(20),
            takeovers: [2_000, 3_000, 4_200].map(Duration::from_millis).to_vec(),
            silence: Duration::from_millis(5_250),
            ..Figures::default()
        };
        let section =
            Section { name: "writer paused".to_owned(), strikes: 2, figures, violations: Vec::new() };
        let expected = "| writer paused | 2 | 900 | 3 | 20 | 0 | 3 | 3.0 | 4.2 | 5.2 | 0 | 0.1 |\n";
        assert_eq!(table(&[section]), format!("{HEAD}{expected}"));
    }
}
