//! Line charts over the number of Services, with two logarithmic axes, and bar charts.

use std::fmt::Write as _;

use crate::figure::short;
use crate::frame::{
    BOTTOM, COLOURS, HEIGHT, LEFT, Line, RIGHT, TOP, axes, escape, look, names, open, polyline,
};

/// A logarithmic scale. It maps the values from `low` to `high` to the positions from `from` to
/// `to`.
#[derive(Debug, Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Creates a scale that covers all positive values and ends at round numbers.
    fn round(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        let below = |value: f64| {
            let decade = 10_f64.powf(value.log10().floor());
            let part = if value >= 5.0 * decade {
                5.0
            } else if value >= 2.0 * decade {
                2.0
            } else {
                1.0
            };
            part * decade
        };
        let low = below(low);
        let mut top = below(high);
        while top < high || top <= low {
            top = next(top);
        }
        Self {
            low,
            high: top,
            from,
            to,
        }
    }

    /// Creates a scale whose ends are the minimum and the maximum of the values.
    fn exact(values: &[f64], from: f64, to: f64) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(low, f64::max);
        Self {
            low,
            high: high.max(low * 1.1),
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value / self.low).log10() / (self.high / self.low).log10();
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Returns the values of the ticks: 1, 2, 5, 10, ... On a wide scale, returns only powers of
    /// ten.
    fn ticks(&self) -> Vec<f64> {
        let is_wide = self.high / self.low > 1_000.0;
        let mut ticks = Vec::new();
        let mut tick = self.low;
        // The tolerance allows for rounding errors of powers of ten.
        while tick < self.high * 1.01 {
            let is_decade = (tick.log10() - tick.log10().round()).abs() < 0.01;
            if is_decade || !is_wide {
                ticks.push(tick);
            }
            tick = next(tick);
        }
        ticks
    }
}

/// Returns the next value of the sequence 1, 2, 5, 10, 20, ...
fn next(round: f64) -> f64 {
    let decade = 10_f64.powf((round * 1.01).log10().floor());
    if round < 1.5 * decade {
        2.0 * decade
    } else if round < 3.0 * decade {
        5.0 * decade
    } else {
        10.0 * decade
    }
}

/// Draws a line chart as SVG. Returns `None` if no line has a point.
pub fn lines(title: &str, unit: &str, lines: &[Line]) -> Option<String> {
    let all = || {
        lines
            .iter()
            .flat_map(|line| line.points.iter().chain(&line.over))
    };
    all().next()?;
    let mut sizes: Vec<f64> = all().map(|point| point.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let x = Scale::exact(&sizes, LEFT, RIGHT);
    let y = Scale::round(all().map(|point| point.1), BOTTOM, TOP);
    let mut svg = open(title, HEIGHT);
    let left = y
        .ticks()
        .into_iter()
        .map(|tick| (y.at(tick), thousands(tick)));
    let below = sizes.iter().map(|size| (x.at(*size), thousands(*size)));
    axes(&mut svg, unit, left.collect(), below.collect(), "Services");
    for line in lines {
        let (colour, _) = look(line.look);
        let places = line.points.iter();
        let places: Vec<_> = places
            .map(|(services, value)| (x.at(*services), y.at(*value)))
            .collect();
        polyline(&mut svg, line.look, "2", &places);
        for (services, value) in &line.points {
            _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
                x.at(*services),
                y.at(*value)
            );
        }
        // Draws each exceeded time limit as an arrow that points upwards from the limit.
        for (services, limit) in &line.over {
            let (at, from) = (x.at(*services), y.at(*limit));
            _ = write!(
                svg,
                "<path d=\"M{:.1} {from:.1}h10l-5 -9z\" fill=\"{colour}\"><title>over {limit} s</title></path>",
                at - 5.0
            );
        }
    }
    names(&mut svg, lines, |value| y.at(value));
    svg.push_str("</svg>\n");
    Some(svg)
}

/// Draws horizontal bars on a linear scale from 0, as SVG. Returns `None` without bars.
pub fn bars(title: &str, unit: &str, bars: &[(String, f64)]) -> Option<String> {
    const ROW: f64 = 20.0;
    /// Maximum number of characters of a name. The chart truncates a longer name.
    const NAME: usize = 58;
    const FROM: f64 = 470.0;
    const TO: f64 = 690.0;
    let most = bars.iter().map(|bar| bar.1).max_by(f64::total_cmp)?;
    let mut svg = open(
        title,
        60.0 + ROW * f64::from(u32::try_from(bars.len()).ok()?),
    );
    _ = write!(
        svg,
        "<text class=\"s\" x=\"12\" y=\"42\">{}</text>",
        escape(unit)
    );
    let mut at = 62.0;
    for (name, value) in bars {
        let width = (TO - FROM) * (value / most).max(0.0);
        let name = name.replace("-m set --match-set ", "");
        let name: String = if name.chars().count() > NAME {
            name.chars().take(NAME - 1).chain(['…']).collect()
        } else {
            name
        };
        _ = write!(
            svg,
            "<text class=\"s\" x=\"{:.0}\" y=\"{at:.0}\" text-anchor=\"end\">{}</text><rect x=\"{FROM}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"13\" fill=\"{}\"/><text class=\"s\" x=\"{:.1}\" y=\"{at:.0}\">{}</text>",
            FROM - 8.0,
            escape(&name),
            at - 11.0,
            COLOURS[0],
            FROM + width + 6.0,
            short(*value)
        );
        at += ROW;
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// Formats a number in thousands or millions: `500`, `10k`, `1M`.
fn thousands(value: f64) -> String {
    if value >= 999_999.0 {
        format!("{:.0}M", value / 1e6)
    } else if value >= 999.0 {
        format!("{:.0}k", value / 1e3)
    } else if value >= 0.99 {
        format!("{value:.0}")
    } else {
        let decimals = usize::from(value < 0.099) + usize::from(value < 0.0099) + 1;
        format!("{value:.decimals$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_scale_starts_and_ends_at_round_numbers() {
        let scale = Scale::round([3.0, 48_000.0].into_iter(), 0.0, 500.0);
        assert_eq!(scale.ticks().len(), 4, "10, 100, 1k and 10k");
        assert!((scale.at(2.0) - 0.0).abs() < 1e-6);
        assert!((scale.at(50_000.0) - 500.0).abs() < 1e-6);
        let narrow = Scale::round([3_400.0, 9_980.0].into_iter(), 0.0, 1.0);
        assert_eq!(narrow.ticks().len(), 3, "2k, 5k and 10k");
        let one = Scale::round([1.0].into_iter(), 0.0, 1.0);
        assert!(one.high > one.low);
        assert_eq!(
            [1.0, 0.1, 0.01, 1e3, 1e4].map(thousands),
            ["1", "0.1", "0.01", "1k", "10k"]
        );
    }

    #[test]
    fn a_chart_shows_lines_limits_and_names() {
        let line = Line {
            name: "a<b".into(),
            look: 8,
            points: vec![(1.0, 0.5), (100.0, 2.0)],
            over: vec![(1_000.0, 120.0)],
        };
        let svg = lines("T", "s", &[line.clone(), line]).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("stroke-dasharray").count(), 2);
        assert!(svg.contains("over 120 s") && svg.contains("a&lt;b") && !svg.contains("script"));
        assert_eq!(lines("T", "s", &[Line::default()]), None);
        assert_eq!(bars("T", "ns", &[]), None);
    }
}
