//! Tables in Markdown, and the figures in them.

/// A table in Markdown whose columns are as wide as they must be; the first row is its head.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default().max(3);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let cell = if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            text += &format!("| {cell} ");
        }
        text += "|\n";
        if number == 0 {
            let rule = |(column, width): (usize, &usize)| {
                let dashes = "-".repeat(width - 1);
                if column == 0 { format!("|-{dashes}--") } else { format!("|--{dashes}:") }
            };
            text += &widths.iter().enumerate().map(rule).collect::<String>();
            text += "|\n";
        }
    }
    text
}

/// Three significant digits at least.
pub fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 || !value.is_finite() => thousands(value),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// A whole number with commas.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(["1", "999", "1,000", "1,234,568"], [1.0, 999.0, 1e3, 1_234_567.8].map(thousands)[..]);
        assert_eq!(
            ["0.012", "0.12", "1.23", "12.3", "123"],
            [0.0123, 0.123, 1.23, 12.3, 123.0].map(figure)[..]
        );
    }
}
