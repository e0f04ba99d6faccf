//! Parts that all charts share: the sheet, the colours, and the names at the ends of lines.

use std::fmt::Write as _;

/// A line of a chart, with its name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Line {
    /// Name at the end of the line.
    pub name: String,
    /// Index of the line's colour and dash pattern. A line name has the same index in all charts.
    pub look: usize,
    /// Points of the line. In a benchmark chart, x is the number of Services and y the median. In a
    /// soak chart, x is the time in minutes and y the value.
    pub points: Vec<(f64, f64)>,
    /// Results that exceeded the benchmark's time limit: the number of Services, and this limit in
    /// seconds.
    pub over: Vec<(f64, f64)>,
}

pub(crate) const WIDTH: f64 = 760.0;
pub(crate) const HEIGHT: f64 = 400.0;
pub(crate) const LEFT: f64 = 70.0;
pub(crate) const RIGHT: f64 = 600.0;
pub(crate) const TOP: f64 = 52.0;
pub(crate) const BOTTOM: f64 = 346.0;
/// Minimum vertical distance between the names at the ends of lines, in pixels.
pub(crate) const NAME_HEIGHT: f64 = 17.0;
/// Seven colours that people with colour blindness can distinguish (after Okabe and Ito). From the
/// eighth line on, lines use these colours again, with dashes.
pub(crate) const COLOURS: [&str; 7] = [
    "#1f83c9", "#d9660a", "#0f9d76", "#c65b9a", "#b58a00", "#8a6fd1", "#7a8793",
];
pub(crate) const STYLE: &str = "<style>text{font:13px system-ui,sans-serif;fill:#24292f}.t{font-size:15px;font-weight:600}.s{font-size:12px;fill:#57606a}.g{stroke:#8c959f;stroke-opacity:.35}.a{stroke:#8c959f}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#a6b0bb}}</style>";

/// Marks of an axis: position on the sheet in pixels, and text.
pub(crate) type Marks = Vec<(f64, String)>;

/// Draws both axes: `unit` above the left axis, the marks `left` and `below`, and `name` under the
/// lower axis.
pub(crate) fn axes(svg: &mut String, unit: &str, left: Marks, below: Marks, name: &str) {
    _ = write!(
        svg,
        "<text class=\"s\" x=\"{LEFT}\" y=\"42\">{}</text>",
        escape(unit)
    );
    for (at, text) in left {
        _ = write!(
            svg,
            "<line class=\"g\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"s\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for (at, text) in below {
        _ = write!(
            svg,
            "<line class=\"a\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{BOTTOM}\" y2=\"{:.0}\"/><text class=\"s\" x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{text}</text>",
            BOTTOM + 5.0,
            BOTTOM + 20.0
        );
    }
    _ = write!(
        svg,
        "<line class=\"a\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{BOTTOM}\" y2=\"{BOTTOM}\"/><text class=\"s\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{name}</text>",
        f64::midpoint(LEFT, RIGHT),
        BOTTOM + 40.0
    );
}

/// Draws a line through the pixel positions `places`, in the colour and dash pattern of [`look`].
pub(crate) fn polyline(svg: &mut String, number: usize, width: &str, places: &[(f64, f64)]) {
    let (colour, dash) = look(number);
    let places: Vec<String> = places
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    _ = write!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dash} points=\"{}\"/>",
        places.join(" ")
    );
}

/// Draws each line's name at the height of the line's end. Moves overlapping names apart.
pub(crate) fn names(svg: &mut String, lines: &[Line], y: impl Fn(f64) -> f64) {
    let mut ends: Vec<(f64, &str, &str)> = lines
        .iter()
        .filter_map(|line| {
            let points = line.points.iter().chain(&line.over);
            let end = points.max_by(|one, other| one.0.total_cmp(&other.0))?;
            Some((y(end.1), line.name.as_str(), look(line.look).0))
        })
        .collect();
    ends.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut lowest = TOP;
    for end in &mut ends {
        end.0 = end.0.max(lowest);
        lowest = end.0 + NAME_HEIGHT;
    }
    // Moves names up if the lowest name would be below the lower axis.
    let mut highest = BOTTOM;
    for end in ends.iter_mut().rev() {
        end.0 = end.0.min(highest);
        highest = end.0 - NAME_HEIGHT;
    }
    for (at, name, colour) in ends {
        _ = write!(
            svg,
            "<circle cx=\"{:.0}\" cy=\"{at:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{:.1}\">{}</text>",
            RIGHT + 14.0,
            RIGHT + 23.0,
            at + 4.5,
            escape(name)
        );
    }
}

pub(crate) fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\"><title>{title}</title>{STYLE}<text class=\"t\" x=\"12\" y=\"22\">{title}</text>"
    )
}

/// Returns the colour and the SVG dash attribute of the line with index `number`.
pub(crate) fn look(number: usize) -> (&'static str, &'static str) {
    let dashes = ["", " stroke-dasharray=\"6 4\"", " stroke-dasharray=\"2 3\""];
    let pick = |of: &[&'static str], number: usize| of.get(number % of.len()).copied();
    let dash = pick(&dashes, number / COLOURS.len());
    (
        pick(&COLOURS, number).unwrap_or_default(),
        dash.unwrap_or_default(),
    )
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
