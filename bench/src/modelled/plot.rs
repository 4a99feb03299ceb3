//! Bars in groups, as an SVG: enough of a plot to see a shape, from no library.

use std::fmt::Write;

/// One group of bars: its name, and a value for each series.
pub struct Group {
    pub name: String,
    pub values: Vec<f64>,
}

const COLOURS: [&str; 4] = ["#2563a8", "#d0893b", "#4c9a5b", "#9b5aa5"];
const HEIGHT: f64 = 260.0;
const TOP: f64 = 60.0;
const LEFT: f64 = 20.0;
const BAR: f64 = 34.0;
const GAP: f64 = 26.0;

/// A title, the names of the series, and the groups. Values are written above their bars.
pub fn bars(title: &str, series: &[&str], groups: &[Group]) -> String {
    let most = groups.iter().flat_map(|g| &g.values).copied().fold(f64::MIN_POSITIVE, f64::max);
    let wide = |g: &Group| (g.values.len() as f64 * BAR).max(g.name.len() as f64 * 6.5) + GAP;
    let width = (LEFT * 2.0 + groups.iter().map(wide).sum::<f64>()).max(480.0);
    let floor = TOP + HEIGHT;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        floor + 30.0,
        escape(title)
    );
    for (i, name) in series.iter().enumerate() {
        let (x, colour) = (LEFT + i as f64 * 150.0, COLOURS[i % COLOURS.len()]);
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"30\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        let _ = writeln!(out, "<text x=\"{}\" y=\"39\">{}</text>", x + 14.0, escape(name));
    }
    let mut x = LEFT;
    for group in groups {
        for (i, value) in group.values.iter().enumerate() {
            let (height, at) = (HEIGHT * (value / most).max(0.0), x + i as f64 * BAR);
            let (y, colour) = (floor - height, COLOURS[i % COLOURS.len()]);
            let _ = writeln!(
                out,
                "<rect x=\"{at:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>",
                BAR - 4.0
            );
            let shown = if *value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
            let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{:.1}\">{shown}</text>", y - 4.0);
        }
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\">{}</text>", floor + 16.0, escape(&group.name));
        x += wide(group);
    }
    let _ = writeln!(
        out,
        "<line x1=\"{LEFT}\" y1=\"{floor}\" x2=\"{x:.1}\" y2=\"{floor}\" stroke=\"black\"/>\n</svg>"
    );
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
