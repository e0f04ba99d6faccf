//! Draws the dashboard as one HTML page with SVG charts, without Grafana. Each panel is at its
//! position in the grid, with the results from Prometheus.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use crate::grafana::{Dashboard, Panel, Range, Target};
use crate::prometheus::Series;

/// Width of the page, in pixels.
pub const WIDTH: u32 = 1440;
/// Width of a grid column, in pixels.
const COLUMN: u64 = 59;
/// Height of a grid row, including the gap below the row, in pixels.
const LINE: u64 = 38;
/// Gap between panels, in pixels.
const GAP: u64 = 8;
/// Width of a legend next to a chart, in pixels.
const LEGEND: u64 = 250;

/// Colours of series, which people with colour blindness can distinguish.
const COLOURS: [&str; 10] = [
    "#3274d9", "#e0751c", "#37872d", "#c4162a", "#8f3bb8", "#0d98ba", "#b9770e", "#7b8a8b",
    "#d63384", "#1b1f24",
];

const STYLE: &str = "body{margin:12px;background:#f4f5f5;font:13px 'DejaVu Sans',sans-serif;color:#24292e;position:relative}\
 h1{font-size:18px;margin:0 0 4px}p{margin:0 0 10px;color:#555}main{position:relative}\
 section{position:absolute;background:#fff;border:1px solid #dcdfe3;border-radius:2px;box-sizing:border-box;overflow:hidden}\
 h2{font-size:12.5px;margin:6px 8px 2px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}h2.row{font-size:15px;margin:10px 2px 0;position:absolute}\
 small{display:block;margin:0 8px;color:#666;font-size:10.5px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}\
 .stat{height:100%;color:#fff;display:flex;flex-direction:column}.stat b{font-size:36px;margin:auto}.stat small{color:#fff;margin-bottom:6px;white-space:normal;max-height:42px}\
 ul{list-style:none;margin:2px 8px;padding:0;font-size:11px;line-height:15px}li{display:inline;margin-right:12px;white-space:nowrap}\
 .beside{display:flex}.beside ul{flex:1;margin-top:8px}.beside li{display:block;margin:0 0 3px;white-space:normal;overflow-wrap:anywhere}\
 i{display:inline-block;width:12px;height:3px;margin-right:4px;vertical-align:middle}table{border-collapse:collapse;margin:8px;width:calc(100% - 16px)}\
 td,th{text-align:left;padding:5px 8px;border-bottom:1px solid #e4e7eb}text{font-size:10px;fill:#666}";

/// A panel, and each of its queries with the resulting series.
pub type PanelResult<'a> = (Panel<'a>, Vec<(Target<'a>, Vec<Series>)>);

/// Returns the dashboard with the results of its queries as an HTML page.
pub fn page(dashboard: &Dashboard, range: &Range, panels: &[PanelResult<'_>]) -> String {
    let bottom = panels.iter().map(|(panel, _)| {
        let [_, y, _, h] = panel.grid_position();
        (y + h) * LINE
    });
    let height = bottom.max().unwrap_or_default();
    let mut page = format!(
        "<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\
         <h1>{title}</h1><p>Drawn from manifests/monitoring/dashboard.json without Grafana, which looks different. The data are real: \
         a daemon in the lab, scraped each second by Prometheus for {seconds:.0} s. Collapsed rows are expanded.</p><main style=\"height:{height}px\">",
        title = escaped(dashboard.title()),
        seconds = range.to - range.from,
    );
    let mut colours = Colours::default();
    for (panel, found) in panels {
        let [x, y, w, h] = panel.grid_position();
        let (left, top) = (x * COLUMN, y * LINE);
        let title = escaped(panel.title());
        // A write to a String cannot fail.
        if panel.kind() == "row" {
            let _ = write!(page, "<h2 class=row style=\"top:{top}px\">{title}</h2>");
            continue;
        }
        let (width, height) = (w * COLUMN - GAP, h * LINE - GAP);
        let _ = write!(
            page,
            "<section data-title=\"{title}\" style=\"left:{left}px;top:{top}px;width:{width}px;height:{height}px\">"
        );
        let words = escaped(panel.description());
        let inside = match panel.kind() {
            "stat" => stat(*panel, found, &title, &words),
            "table" => format!(
                "<h2>{title}</h2><small>{words}</small>{}",
                table(*panel, found)
            ),
            _ => format!(
                "<h2>{title}</h2><small>{words}</small>{}",
                chart(*panel, found, range, [width, height], &mut colours)
            ),
        };
        page.push_str(&inside);
        page.push_str("</section>");
    }
    page + "</main></html>\n"
}

fn stat(panel: Panel<'_>, found: &[(Target<'_>, Vec<Series>)], title: &str, words: &str) -> String {
    let value = found.first().and_then(|(_, series)| series.first()?.last());
    let (colour, text) = value.map_or(("#7b8a8b", "No data".to_owned()), |value| {
        let colour = match panel.colour(value) {
            "green" => "#37872d",
            "orange" => "#c15c17",
            "red" => "#c4162a",
            other => other,
        };
        (colour, amount(value, panel.unit()))
    });
    format!(
        "<div class=stat style=\"background:{colour}\"><h2>{title}</h2><b>{text}</b><small>{words}</small></div>"
    )
}

/// Draws a table with a row for each node and a column for each query.
fn table(panel: Panel<'_>, found: &[(Target<'_>, Vec<Series>)]) -> String {
    let mut table = "<table><tr><th>Node".to_owned();
    for (target, _) in found {
        let _ = write!(table, "<th>{}", escaped(panel.column(target).0));
    }
    let first = found.first().map(|(_, series)| series.as_slice());
    for one in first.unwrap_or_default() {
        let node = one.name_by("{{instance}}");
        let _ = write!(table, "<tr><td>{}", escaped(&node));
        for (target, series) in found {
            let of_node = series.iter().find(|other| other.labels == one.labels);
            let unit = if panel.column(target).1 { "s" } else { "short" };
            let value = of_node.and_then(Series::last);
            let _ = write!(
                table,
                "<td>{}",
                value.map_or(String::new(), |value| amount(value, unit))
            );
        }
    }
    table + "</table>"
}

/// Colours of series, by the series' names. A series name has the same colour on the whole page.
#[derive(Debug, Default)]
struct Colours(HashMap<String, &'static str>);

impl Colours {
    /// Returns a colour for each series name of a chart. A new name gets a colour that is unused in
    /// this chart, if one is left.
    fn of_chart(&mut self, names: &[String]) -> Vec<&'static str> {
        let known = names.iter().filter_map(|name| self.0.get(name).copied());
        let mut used: HashSet<&str> = known.collect();
        let colour_of = |(index, name): (usize, &String)| {
            *self.0.entry(name.clone()).or_insert_with(|| {
                let mut free = COLOURS.into_iter().filter(|colour| !used.contains(colour));
                let repeated = COLOURS.into_iter().cycle().nth(index);
                let colour = free.next().or(repeated).unwrap_or_default();
                used.insert(colour);
                colour
            })
        };
        names.iter().enumerate().map(colour_of).collect()
    }
}

/// Draws lines or bars, and a legend with names and last values. Fills the area below stacked
/// lines.
#[allow(clippy::cast_precision_loss, reason = "pixels")]
fn chart(
    panel: Panel<'_>,
    found: &[(Target<'_>, Vec<Series>)],
    range: &Range,
    [width, height]: [u64; 2],
    colours: &mut Colours,
) -> String {
    let is_beside = panel.has_legend_beside();
    let beside = if is_beside { LEGEND } else { 0 };
    let below = if is_beside { 0.0 } else { 34.0 };
    let (left, width) = (68.0, (width - beside) as f64 - 84.0);
    let height = height as f64 - 80.0 - below;
    let (names, mut lines): (Vec<String>, Vec<Line>) = found
        .iter()
        .flat_map(|(target, series)| {
            let legend = target.legend();
            series
                .iter()
                .map(move |one| (one.name_by(legend), one.points.clone()))
        })
        .unzip();
    let last: Vec<Option<f64>> = lines.iter().map(|line| Some(line.last()?.1)).collect();
    if panel.is_stacked() {
        pile_up(&mut lines);
    }
    let values = lines.iter().flatten().map(|(_, value)| *value);
    let top = ceiling(values.fold(0.0, f64::max));
    let frame = Frame {
        left,
        width,
        height,
        top,
        range,
    };
    let mut svg = frame.axes(panel.unit());
    let mut legend = String::new();
    let colours = colours.of_chart(&names);
    for (((name, line), colour), last) in names.iter().zip(&lines).zip(colours).zip(last).rev() {
        svg.push_str(&if panel.has_bars() {
            frame.bars(line, colour)
        } else {
            frame.line(line, colour, panel.is_stacked())
        });
        let last = last.map_or(String::new(), |last| {
            format!(" {}", amount(last, panel.unit()))
        });
        legend = format!(
            "<li><i style=\"background:{colour}\"></i>{}{last}{legend}",
            escaped(name)
        );
    }
    let class = if is_beside { "beside" } else { "below" };
    format!("<div class={class}>{svg}</svg><ul>{legend}</ul></div>")
}

/// Points of a series: seconds since the epoch, and value.
type Line = Vec<(f64, f64)>;

/// The area of a chart, in pixels, and the ranges of its axes.
struct Frame<'a> {
    left: f64,
    width: f64,
    height: f64,
    /// Value at the top of the chart.
    top: f64,
    range: &'a Range,
}

#[allow(clippy::cast_precision_loss, reason = "pixels")]
impl Frame<'_> {
    fn x(&self, at: f64) -> f64 {
        let range = self.range;
        self.left + (at - range.from) / (range.to - range.from) * self.width
    }

    fn y(&self, value: f64) -> f64 {
        8.0 + self.height - value / self.top * self.height
    }

    /// Starts an SVG with horizontal grid lines, and with the labels of both axes.
    fn axes(&self, unit: &str) -> String {
        let (left, width, height) = (self.left, self.width, self.height);
        let mut svg = format!(
            "<svg width=\"{:.0}\" height=\"{:.0}\">",
            width + 84.0,
            height + 30.0
        );
        for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let (at, value) = (self.y(self.top * part), self.top * part);
            let value = escaped(&amount(value, unit));
            // A write to a String cannot fail.
            let _ = write!(
                svg,
                "<path d=\"M{left} {at:.1}h{width:.1}\" stroke=\"#e4e7eb\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                left - 5.0,
                at + 3.5
            );
            let seconds = (self.range.to - self.range.from) * part;
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{seconds:.0} s</text>",
                left + width * part,
                height + 24.0
            );
        }
        svg
    }

    /// Draws a bar for each point of a series.
    fn bars(&self, line: &Line, colour: &str) -> String {
        let step = self.range.step as f64 / (self.range.to - self.range.from) * self.width;
        let wide = (step * 0.8).max(2.0);
        let bar = |(at, value): &(f64, f64)| {
            let (x, y) = (self.x(*at) - wide / 2.0, self.y(*value));
            let high = self.y(0.0) - y;
            format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" fill=\"{colour}\"/>"
            )
        };
        line.iter().map(bar).collect()
    }

    /// Draws a line, with a gap where points are missing. A single point becomes a dot.
    fn line(&self, line: &Line, colour: &str, is_stacked: bool) -> String {
        let mut path = String::new();
        let mut before = f64::NEG_INFINITY;
        for (at, value) in line {
            let is_gap = at - before > self.range.step as f64 * 1.5;
            let go = if is_gap { 'M' } else { 'L' };
            let _ = write!(path, "{go}{:.1} {:.1}", self.x(*at), self.y(*value));
            if is_gap {
                path.push_str("h.1");
            }
            before = *at;
        }
        let mut svg = String::new();
        if let (true, Some(from), Some(to)) = (is_stacked, line.first(), line.last()) {
            let bottom = self.y(0.0);
            let _ = write!(
                svg,
                "<path d=\"{path}L{:.1} {bottom:.1}L{:.1} {bottom:.1}Z\" fill=\"{colour}\" fill-opacity=\"0.75\"/>",
                self.x(to.0),
                self.x(from.0)
            );
        }
        svg + &format!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-linecap=\"round\"/>"
        )
    }
}

/// Stacks lines: adds the values of the previous line to each line.
fn pile_up(lines: &mut [Line]) {
    let mut below = Line::new();
    for line in lines {
        for (at, value) in &mut *line {
            let found = below.iter().find(|(other, _)| (*other - *at).abs() < 0.01);
            *value += found.map_or(0.0, |(_, value)| *value);
        }
        below.clone_from(line);
    }
}

/// Rounds a value up to 1, 2 or 5 times a power of ten.
fn ceiling(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let tens = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * tens);
    steps
        .into_iter()
        .find(|step| *step >= value)
        .unwrap_or(value)
}

/// Formats a value with a Grafana unit.
fn amount(value: f64, unit: &str) -> String {
    let scaled = |base: f64, names: [&str; 4]| {
        let mut left = value;
        let mut names = names.into_iter();
        let mut name = names.next().unwrap_or_default();
        for next in names {
            if left.abs() < base {
                break;
            }
            (left, name) = (left / base, next);
        }
        format!("{}{name}", short(left))
    };
    match unit {
        "s" if value == 0.0 => "0 s".to_owned(),
        "s" if value < 0.001 => format!("{} µs", short(value * 1e6)),
        "s" if value < 1.0 => format!("{} ms", short(value * 1e3)),
        "s" => format!("{} s", short(value)),
        "percentunit" => format!("{} %", short(value * 100.0)),
        "bytes" => scaled(1024.0, [" B", " KiB", " MiB", " GiB"]),
        "Bps" => scaled(1000.0, [" B/s", " kB/s", " MB/s", " GB/s"]),
        "short" => scaled(1000.0, ["", " K", " Mil", " Bil"]),
        "pps" => scaled(1000.0, [" p/s", " kp/s", " Mp/s", " Gp/s"]),
        per_second => format!(
            "{} {}",
            short(value),
            match per_second {
                "wps" => "writes/s",
                "reqps" => "req/s",
                "ops" => "ops/s",
                other => other,
            }
        ),
    }
}

/// Formats a value with at most two decimals, and without decimals from 100 on.
fn short(value: f64) -> String {
    let places = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{COLOURS, Colours, amount, ceiling};

    #[test]
    fn amounts_are_formatted_with_their_unit() {
        for (value, unit, text) in [
            (0.000_25, "s", "250 µs"),
            (0.0, "s", "0 s"),
            (1234.0, "short", "1.23 K"),
            (3.0, "short", "3"),
            (0.034, "percentunit", "3.4 %"),
            (12_582_912.0, "bytes", "12 MiB"),
            (0.5, "cps", "0.5 cps"),
        ] {
            assert_eq!(amount(value, unit), text);
        }
    }

    #[test]
    fn each_series_has_a_unique_colour_in_its_chart() {
        let names = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let mut colours = Colours::default();
        let first = colours.of_chart(&names("a b"));
        let second = colours.of_chart(&names("c b a d"));
        assert_eq!([second[2], second[1]], [first[0], first[1]]);
        let mut all = second.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4, "{second:?}");
        let many: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        assert!(
            colours
                .of_chart(&many)
                .iter()
                .all(|one| COLOURS.contains(one))
        );
    }

    #[test]
    fn a_chart_scale_ends_at_a_round_number() {
        let tops = [0.0, 0.013, 1.0, 4.2, 60.0].map(|value| ceiling(value).to_string());
        assert_eq!(tops, ["1", "0.02", "1", "5", "100"]);
    }
}
