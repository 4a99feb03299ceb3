//! The advice as a picture: hit rate over size, and reads a second over size for each kind of
//! device.
//!
//! Written by hand, since it is two charts with straight lines: axes with units, a grid, a legend
//! at the end of each line.

use crate::advice::{Advice, Point};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 780.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 690.0;
/// Dark enough on white, and told apart by those who do not see red and green apart.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#806000"];

struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    dashed: bool,
}

/// A size in a unit in which it is short.
fn bytes(n: f64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut n, mut unit) = (n, 0);
    while n >= 1024.0 && unit + 1 < UNITS.len() {
        n /= 1024.0;
        unit += 1;
    }
    let unit = UNITS.get(unit).unwrap_or(&"");
    if n >= 10.0 || n.fract() == 0.0 { format!("{n:.0} {unit}") } else { format!("{n:.1} {unit}") }
}

fn count(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e4 => format!("{:.0} k", n / 1e3),
        n if n >= 1e3 => format!("{:.1} k", n / 1e3),
        n if n >= 10.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A step of a scale: 1, 2 or 5 times a power of ten.
fn step(top: f64) -> f64 {
    let raw = (top / 5.0).max(1e-9);
    let power = 10f64.powf(raw.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|t| t * power >= raw).unwrap_or(10.0);
    times * power
}

struct Chart<'a> {
    top: f64,
    bottom: f64,
    title: &'a str,
    y_title: &'a str,
    most: f64,
    label: fn(f64) -> String,
    lines: Vec<Line>,
    /// A size that is marked.
    mark: Option<(f64, String)>,
}

fn draw(out: &mut String, c: &Chart<'_>) {
    let xs = || c.lines.iter().flat_map(|l| l.points.iter().map(|p| p.0)).filter(|x| *x > 0.0);
    let (low, high) = (xs().fold(f64::MAX, f64::min), xs().fold(1.0, f64::max));
    let (low, high) = (low.min(high / 2.0).log2(), high.log2());
    let x = |size: f64| LEFT + (size.max(1.0).log2() - low) / (high - low).max(1e-9) * (RIGHT - LEFT);
    let most = if c.most > 0.0 { c.most } else { 1.0 };
    let y = |v: f64| c.bottom - (v / most).clamp(0.0, 1.0) * (c.bottom - c.top);
    let middle = (LEFT + RIGHT) / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\" font-size=\"15\" font-weight=\"bold\">{}</text>",
        c.top - 14.0,
        escape(c.title)
    );
    let by = step(most);
    for v in (0..12).map(|i| by * f64::from(i)).take_while(|v| *v <= most * 1.0001) {
        let at = y(v);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            (c.label)(v)
        );
    }
    // So many doublings between two marks that about eight fit.
    let every = (((high - low) / 8.0).ceil() as i64).max(1);
    let mut power = (low.ceil() as i64 + every - 1) / every * every;
    while (power as f64) <= high + 1e-9 {
        let at = x((power as f64).exp2());
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{:.0}\" x2=\"{at:.1}\" y2=\"{:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            c.top,
            c.bottom,
            c.bottom + 18.0,
            bytes((power as f64).exp2())
        );
        power += every;
    }
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" fill=\"none\" stroke=\"#333\"/>\
         <text x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\">size (bytes, each mark a power of two)</text>\
         <text x=\"20\" y=\"{:.0}\" text-anchor=\"middle\" transform=\"rotate(-90 20 {:.0})\">{}</text>",
        c.top,
        RIGHT - LEFT,
        c.bottom - c.top,
        c.bottom + 38.0,
        (c.top + c.bottom) / 2.0,
        (c.top + c.bottom) / 2.0,
        escape(c.y_title)
    );
    if let Some((size, name)) = &c.mark
        && (low..=high).contains(&size.max(1.0).log2())
    {
        let at = x(*size);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{:.0}\" x2=\"{at:.1}\" y2=\"{:.0}\" stroke=\"#777\" stroke-dasharray=\"2 3\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\" fill=\"#555\">{}</text>",
            c.top,
            c.bottom,
            at + 4.0,
            c.bottom - 6.0,
            escape(name)
        );
    }
    for (i, line) in c.lines.iter().enumerate() {
        let colour = COLOURS.get(i % COLOURS.len()).unwrap_or(&"#000");
        let points: Vec<String> =
            line.points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
        let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            points.join(" ")
        );
        let at = c.top + 14.0 + 20.0 * i as f64;
        let _ = writeln!(
            out,
            "<line x1=\"{:.0}\" y1=\"{:.1}\" x2=\"{:.0}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
             <text x=\"{:.0}\" y=\"{at:.1}\">{}</text>",
            RIGHT + 12.0,
            at - 4.0,
            RIGHT + 36.0,
            at - 4.0,
            RIGHT + 42.0,
            escape(&line.name)
        );
    }
}

fn line(name: &str, points: &[Point], dashed: bool) -> Line {
    Line {
        name: name.into(),
        points: points.iter().map(|p| (p.size as f64, 100.0 * p.hits)).collect(),
        dashed,
    }
}

/// The advice as an SVG file.
pub fn plot(a: &Advice) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>Advice for {0}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        escape(&a.pool)
    );
    let percent = |v: f64| format!("{v:.0} %");
    draw(
        &mut out,
        &Chart {
            top: 50.0,
            bottom: 330.0,
            title: &format!("{}: reads found in a cache, over its size", a.pool),
            y_title: "hit rate (%)",
            most: 100.0,
            label: percent,
            lines: vec![
                line("ARC of this size", &a.memory, false),
                line("ARC as it is, L2ARC", &a.both, true),
            ],
            mark: Some((a.arc_limit as f64, format!("ARC now: {}", bytes(a.arc_limit as f64)))),
        },
    );
    let mut lines = Vec::<Line>::new();
    for c in &a.caches {
        let point = (c.size as f64, c.reads.per_second);
        match lines.iter_mut().find(|l| l.name == c.profile) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: c.profile.clone(), points: vec![point], dashed: false }),
        }
    }
    let ends = |l: &Line| Some((l.points.first()?.0, l.points.last()?.0));
    if let Some((from, to)) = lines.first().and_then(ends) {
        let points = vec![(from, a.now.per_second), (to, a.now.per_second)];
        lines.push(Line { name: "as it is".into(), points, dashed: true });
    }
    let most = lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)).fold(0.0, f64::max);
    draw(
        &mut out,
        &Chart {
            top: 440.0,
            bottom: 720.0,
            title: "expected reads, over the size of a cache device",
            y_title: "reads a second",
            most: most * 1.05,
            label: count,
            lines,
            mark: None,
        },
    );
    out.push_str("</svg>\n");
    out
}
