//! Line charts over time, with two linear axes that start at zero.

use std::fmt::Write as _;

use crate::figure::short;
use crate::frame::{BOTTOM, HEIGHT, LEFT, Line, RIGHT, TOP, axes, names, open, polyline};

/// Approximate number of tick marks on an axis.
const TICKS: f64 = 6.0;

/// A linear scale. It maps the values from 0 to `high`, a round number, to the positions from
/// `from` to `to`.
#[derive(Debug, Clone, Copy)]
struct Linear {
    high: f64,
    step: f64,
    from: f64,
    to: f64,
}

impl Linear {
    fn new(highest: f64, from: f64, to: f64) -> Self {
        let highest = if highest > 0.0 { highest } else { 1.0 };
        let rough = highest / TICKS;
        let decade = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|part| part * decade)
            .find(|step| *step >= rough)
            .unwrap_or(decade * 10.0);
        Self {
            high: (highest / step).ceil() * step,
            step,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value / self.high).clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (step, high) = (self.step, self.high);
        std::iter::successors(Some(0.0), move |tick| Some(tick + step))
            .take_while(move |tick| *tick < high + step / 2.0)
    }
}

/// Draws lines over minutes. A grey area marks the time before `settled` (in minutes), which soak
/// tests do not judge. Returns `None` if no line has a point.
pub fn over_time(title: &str, unit: &str, settled: f64, lines: &[Line]) -> Option<String> {
    let all = || lines.iter().flat_map(|line| &line.points);
    all().next()?;
    let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
    let x = Linear::new(most(|point| point.0), LEFT, RIGHT);
    let y = Linear::new(most(|point| point.1), BOTTOM, TOP);
    let mut svg = open(title, HEIGHT);
    let _ = write!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.0}\" fill=\"#8c959f\" fill-opacity=\".15\"><title>not judged: the first minutes</title></rect>",
        x.at(settled) - LEFT,
        BOTTOM - TOP
    );
    let marks = |axis: Linear| {
        axis.ticks()
            .map(|tick| (axis.at(tick), short(tick)))
            .collect()
    };
    axes(&mut svg, unit, marks(y), marks(x), "minutes");
    for line in lines {
        let places = line.points.iter();
        let places: Vec<_> = places
            .map(|(minutes, value)| (x.at(*minutes), y.at(*value)))
            .collect();
        polyline(&mut svg, line.look, "1.5", &places);
    }
    names(&mut svg, lines, |value| y.at(value));
    svg.push_str("</svg>\n");
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_ends_at_a_round_number() {
        let axis = Linear::new(37.0, 0.0, 400.0);
        assert_eq!(
            axis.ticks().collect::<Vec<_>>(),
            [0.0, 10.0, 20.0, 30.0, 40.0]
        );
        assert!((axis.at(20.0) - 200.0).abs() < 1e-9);
        // If all values are zero, the line is at the bottom.
        assert!((Linear::new(0.0, 346.0, 52.0).at(0.0) - 346.0).abs() < 1e-9);
    }

    #[test]
    fn a_chart_over_time_shows_lines_and_marks_the_warm_up() {
        let line = Line {
            name: "resident".into(),
            points: vec![(0.0, 20.0), (40.0, 21.0)],
            ..Line::default()
        };
        let svg = over_time("Memory", "MiB", 10.0, &[line]).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert!(svg.contains("minutes") && svg.contains("not judged") && svg.contains("resident"));
        assert_eq!(over_time("Memory", "MiB", 1.0, &[]), None);
    }
}
