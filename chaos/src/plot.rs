//! The sections as a picture: for each fault a line from the median takeover to the 99th percentile, with the ttl
//! beside them, and the seconds for which an unfenced sink had two writers.

use std::time::Duration;

use crate::section::Section;

/// In pixels.
const WIDTH: f64 = 900.0;
const NAMES: f64 = 280.0;
const PANEL: f64 = 270.0;
const STEP: f64 = 22.0;
const HEAD: f64 = 44.0;
const MARGIN: f64 = 16.0;

/// The whole picture as SVG. Each panel has a scale of its own, from zero.
pub fn svg(sections: &[Section], ttl: Duration) -> String {
    let longest = |of: fn(&Section) -> Duration| sections.iter().map(of).max().unwrap_or_default();
    let slowest = longest(|section| section.figures.takeover(0.99).unwrap_or_default()).max(ttl);
    let most = longest(|section| section.figures.overlap_unfenced);
    let takeovers = Scale { left: NAMES, most: slowest };
    let overlaps = Scale { left: NAMES + PANEL + 4.0 * MARGIN, most };
    let rows = sections.iter().enumerate();
    let rows: String = rows
        .map(|(index, section)| row(section, HEAD + STEP * index as f64, &takeovers, &overlaps))
        .collect();
    let bottom = HEAD + STEP * sections.len() as f64;
    let height = bottom + MARGIN;
    let ttl_at = takeovers.at(ttl);
    let right = overlaps.left;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="#222">
<rect width="100%" height="100%" fill="#fff"/>
<text x="{NAMES}" y="{MARGIN}" font-weight="bold">Takeover, p50 to p99 (the line is the ttl, {ttl:?})</text>
<text x="{right}" y="{MARGIN}" font-weight="bold">Overlap at an unfenced sink</text>
<path d="M{ttl_at:.1} {HEAD}V{bottom}" stroke="#b0b7bd" stroke-dasharray="4 3"/>
{rows}</svg>
"##
    )
}

/// Where times are in a panel.
struct Scale {
    left: f64,
    most: Duration,
}

impl Scale {
    fn at(&self, time: Duration) -> f64 {
        let most = self.most.as_secs_f64();
        if most > 0.0 { self.left + (PANEL - 50.0) * time.as_secs_f64() / most } else { self.left }
    }
}

fn row(section: &Section, top: f64, takeovers: &Scale, overlaps: &Scale) -> String {
    let middle = top + STEP / 2.0;
    let line = middle + 4.0;
    let name_at = NAMES - 10.0;
    let name = section.name.replace('&', "&amp;").replace('<', "&lt;");
    let mut text = format!("<text x=\"{name_at}\" y=\"{line}\" text-anchor=\"end\">{name}</text>\n");
    if let (Some(median), Some(late)) = (section.figures.takeover(0.5), section.figures.takeover(0.99)) {
        let from = takeovers.at(median);
        let to = takeovers.at(late);
        let label = to + 6.0;
        let seconds = late.as_secs_f64();
        text += &format!(
            "<path d=\"M{from:.1} {middle}H{to:.1}\" stroke=\"#1f6f8b\" stroke-width=\"4\"/>\n\
             <circle cx=\"{from:.1}\" cy=\"{middle}\" r=\"4\" fill=\"#1f6f8b\"/>\n\
             <text x=\"{label:.1}\" y=\"{line}\">{seconds:.1} s</text>\n"
        );
    }
    let overlap = section.figures.overlap_unfenced;
    let end = overlaps.at(overlap);
    let left = overlaps.left;
    let width = end - left;
    let bar = middle - 6.0;
    let label = end + 6.0;
    let seconds = overlap.as_secs_f64();
    text += &format!(
        "<rect x=\"{left:.1}\" y=\"{bar}\" width=\"{width:.1}\" height=\"12\" fill=\"#b0543f\"/>\n\
         <text x=\"{label:.1}\" y=\"{line}\">{seconds:.1} s</text>\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::section::Figures;

    #[test]
    fn the_longest_of_each_panel_fills_it() {
        let figures = |takeover, overlap_unfenced| Figures {
            takeovers: vec![takeover],
            overlap_unfenced,
            ..Figures::default()
        };
        let section = |name: &str, figures| Section {
            name: name.to_owned(),
            strikes: 1,
            figures,
            violations: Vec::new(),
        };
        let second = Duration::from_secs(1);
        let sections = [
            section("a < b", figures(second * 6, second)),
            section("c", figures(second * 3, Duration::ZERO)),
        ];
        let svg = svg(&sections, second * 3);
        let right = NAMES + PANEL - 50.0;
        let half = NAMES + (PANEL - 50.0) / 2.0;
        assert!(
            svg.contains(&format!("cx=\"{right:.1}\"")) && svg.contains(&format!("cx=\"{half:.1}\"")),
            "{svg}"
        );
        assert!(
            svg.contains(&format!("M{half:.1} {HEAD}V")),
            "the ttl is half of the longest takeover:\n{svg}"
        );
        assert!(svg.contains("a &lt; b") && svg.contains(&format!("width=\"{:.1}\"", PANEL - 50.0)), "{svg}");
    }
}
