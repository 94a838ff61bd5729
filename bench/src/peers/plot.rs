//! The rounds as a picture: a panel for each work and number of tasks, a bar for each median, and a whisker from the
//! least round to the most.

use super::report::{Group, Row};
use crate::table::thousands;

/// In pixels.
const WIDTH: f64 = 900.0;
const NAMES: f64 = 240.0;
const FIGURES: f64 = 90.0;
const BAR: f64 = 16.0;
const STEP: f64 = 22.0;
const HEAD: f64 = 34.0;
const GAP: f64 = 18.0;
const MARGIN: f64 = 16.0;

const OURS: &str = "#1f6f8b";
const PEER: &str = "#b0b7bd";

/// The whole picture as SVG. Each panel has a scale of its own, from zero.
pub fn svg(groups: &[Group], caption: &str) -> String {
    let mut y = MARGIN;
    let mut panels = String::new();
    for group in groups {
        panels += &panel(group, y);
        y += HEAD + STEP * group.rows.len() as f64 + GAP;
    }
    let height = y + MARGIN;
    let caption = escape(caption);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="#222">
<rect width="100%" height="100%" fill="#fff"/>
{panels}<text x="{MARGIN}" y="{y}" fill="#666">{caption}</text>
</svg>
"##
    )
}

fn panel(group: &Group, top: f64) -> String {
    let most = group.rows.iter().map(Row::most).fold(0.0, f64::max);
    let room = WIDTH - NAMES - FIGURES - 2.0 * MARGIN;
    let scale = if most > 0.0 { room / most } else { 0.0 };
    let title = escape(&format!("{}: {}s per second", group.title(), group.work.unit()));
    let y = top + 14.0;
    let mut text = format!("<text x=\"{MARGIN}\" y=\"{y}\" font-weight=\"bold\">{title}</text>\n");
    for (index, row) in group.rows.iter().enumerate() {
        text += &bar(row, top + HEAD + STEP * index as f64, scale);
    }
    text
}

fn bar(row: &Row, top: f64, scale: f64) -> String {
    let left = MARGIN + NAMES;
    let middle = top + BAR / 2.0;
    let line = middle + 4.0;
    let width = row.median() * scale;
    let color = if row.system.is_ours() { OURS } else { PEER };
    let least = left + row.least() * scale;
    let most = left + row.most() * scale;
    let cap = BAR / 4.0;
    let from = middle - cap;
    let to = middle + cap;
    let name = escape(row.system.title());
    let name_at = left - 8.0;
    let figure_at = most + 6.0;
    let figure = thousands(row.median());
    format!(
        r##"<text x="{name_at:.1}" y="{line:.1}" text-anchor="end">{name}</text>
<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{BAR}" fill="{color}"/>
<path d="M{least:.1} {from:.1}V{to:.1}M{most:.1} {from:.1}V{to:.1}M{least:.1} {middle:.1}H{most:.1}" stroke="#222"/>
<text x="{figure_at:.1}" y="{line:.1}">{figure}</text>
"##
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{report::tests::row, system::System, work::Work};

    #[test]
    fn the_longest_whisker_fills_its_panel_and_none_leaves_it() {
        let rows = vec![row(System::Embedded, &[100, 300, 400]), row(System::Redis, &[150, 200, 250])];
        let svg = svg(&[Group { work: Work::Cycle, tasks: 1, rows }], "a < b");
        let left = MARGIN + NAMES;
        let right = WIDTH - FIGURES - MARGIN;
        assert!(svg.contains(&format!("H{right:.1}")), "400 per second end at {right}:\n{svg}");
        let half = (right - left) / 2.0;
        assert!(
            svg.contains(&format!("width=\"{half:.1}\" height")),
            "200 per second are {half} wide:\n{svg}"
        );
        assert!(svg.contains("a &lt; b") && svg.matches("<path").count() == 2, "{svg}");
    }
}
