//! The dashboard as one HTML page with pictures in SVG, without Grafana: each panel at its place in
//! the grid, with what Prometheus has said.

use std::fmt::Write as _;

use crate::grafana::{Dashboard, Panel, Range, Target};
use crate::prometheus::Series;

/// The width of the page, in pixels.
pub const WIDTH: u32 = 1440;
/// Of a column of the grid, and of a line with the gap below it, as Grafana has them.
const COLUMN: u64 = 59;
const LINE: u64 = 38;
const GAP: u64 = 8;

/// Told apart by people who see colours otherwise.
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
 ul{list-style:none;margin:2px 8px;padding:0;font-size:11px;line-height:15px;max-height:45px;overflow:hidden}li{display:inline;margin-right:12px;white-space:nowrap}\
 i{display:inline-block;width:12px;height:3px;margin-right:4px;vertical-align:middle}table{border-collapse:collapse;margin:8px;width:calc(100% - 16px)}\
 td,th{text-align:left;padding:5px 8px;border-bottom:1px solid #e4e7eb}text{font-size:10px;fill:#666}";

/// What each query of a panel has found.
pub type Found<'a> = (Panel<'a>, Vec<(Target<'a>, Vec<Series>)>);

/// The page.
pub fn page(dashboard: &Dashboard, range: &Range, panels: &[Found<'_>]) -> String {
    let bottom = panels.iter().map(|(panel, _)| {
        let [_, y, _, h] = panel.place();
        (y + h) * LINE
    });
    let height = bottom.max().unwrap_or_default();
    let mut page = format!(
        "<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\
         <h1>{title}</h1><p>Drawn from manifests/monitoring/dashboard.json without Grafana, which looks otherwise. The data are real: \
         a daemon in the lab, scraped each second by Prometheus for {seconds:.0} s. Collapsed rows are open.</p><main style=\"height:{height}px\">",
        title = escaped(dashboard.title()),
        seconds = range.to - range.from,
    );
    for (panel, found) in panels {
        let [x, y, w, h] = panel.place();
        let (left, top) = (x * COLUMN, y * LINE);
        let title = escaped(panel.title());
        // Writing to a String cannot fail.
        if panel.kind() == "row" {
            let _ = write!(page, "<h2 class=row style=\"top:{top}px\">{title}</h2>");
            continue;
        }
        let (width, height) = (w * COLUMN - GAP, h * LINE - GAP);
        let _ = write!(
            page,
            "<section style=\"left:{left}px;top:{top}px;width:{width}px;height:{height}px\">"
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
                chart(*panel, found, range, [width, height])
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

/// A row for each node, a column for each query, as the merge of the file makes it.
fn table(panel: Panel<'_>, found: &[(Target<'_>, Vec<Series>)]) -> String {
    let mut table = "<table><tr><th>Node".to_owned();
    for (target, _) in found {
        let _ = write!(table, "<th>{}", escaped(panel.column(target).0));
    }
    let first = found.first().map(|(_, series)| series.as_slice());
    for one in first.unwrap_or_default() {
        let node = one.called("{{instance}}");
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

/// Lines, each with its name and its last value; stacked ones with the area below.
#[allow(clippy::cast_precision_loss, reason = "pixels")]
fn chart(
    panel: Panel<'_>,
    found: &[(Target<'_>, Vec<Series>)],
    range: &Range,
    [width, height]: [u64; 2],
) -> String {
    let (left, width, height) = (68.0, width as f64 - 84.0, height as f64 - 124.0);
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = found
        .iter()
        .flat_map(|(target, series)| {
            series
                .iter()
                .map(|one| (one.called(target.legend()), one.points.clone()))
        })
        .collect();
    let last: Vec<Option<f64>> = lines
        .iter()
        .map(|(_, line)| line.last().map(|at| at.1))
        .collect();
    if panel.is_stacked() {
        pile_up(&mut lines);
    }
    let values = lines
        .iter()
        .flat_map(|(_, line)| line.iter().map(|(_, value)| *value));
    let top = ceiling(values.fold(0.0, f64::max));
    let x = |at: f64| left + (at - range.from) / (range.to - range.from) * width;
    let y = |value: f64| 8.0 + height - value / top * height;
    let mut svg = format!(
        "<svg width=\"{:.0}\" height=\"{:.0}\">",
        width + 84.0,
        height + 30.0
    );
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (at, value) = (y(top * part), escaped(&amount(top * part, panel.unit())));
        let _ = write!(
            svg,
            "<path d=\"M{left} {at:.1}h{width:.1}\" stroke=\"#e4e7eb\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            left - 5.0,
            at + 3.5
        );
        let (at, seconds) = (left + width * part, (range.to - range.from) * part);
        let _ = write!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{seconds:.0} s</text>",
            height + 24.0
        );
    }
    let mut names = String::new();
    for (index, ((name, line), last)) in lines.iter().zip(last).enumerate().rev() {
        let colour = COLOURS.get(index % COLOURS.len()).unwrap_or(&"#000");
        let mut path = String::new();
        let mut before = f64::NEG_INFINITY;
        for (at, value) in line {
            // A gap stays one; a point of its own is a dot.
            let go = if at - before > range.step as f64 * 1.5 {
                'M'
            } else {
                'L'
            };
            let _ = write!(path, "{go}{:.1} {:.1}", x(*at), y(*value));
            if go == 'M' {
                path.push_str("h.1");
            }
            before = *at;
        }
        if let (true, Some(from), Some(to)) = (panel.is_stacked(), line.first(), line.last()) {
            let bottom = y(0.0);
            let _ = write!(
                svg,
                "<path d=\"{path}L{:.1} {bottom:.1}L{:.1} {bottom:.1}Z\" fill=\"{colour}\" fill-opacity=\"0.75\"/>",
                x(to.0),
                x(from.0)
            );
        }
        let _ = write!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-linecap=\"round\"/>"
        );
        let last = last.map_or(String::new(), |last| {
            format!(" {}", amount(last, panel.unit()))
        });
        names = format!(
            "<li><i style=\"background:{colour}\"></i>{}{last}{names}",
            escaped(name)
        );
    }
    format!("{svg}</svg><ul>{names}</ul>")
}

/// Each line stands on the one before it.
fn pile_up(lines: &mut [(String, Vec<(f64, f64)>)]) {
    let mut below: Vec<(f64, f64)> = Vec::new();
    for (_, line) in lines {
        for (at, value) in &mut *line {
            let found = below.iter().find(|(other, _)| (*other - *at).abs() < 0.01);
            *value += found.map_or(0.0, |(_, value)| *value);
        }
        below.clone_from(line);
    }
}

/// The next larger 1, 2 or 5 with zeros.
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

/// A value in Grafana's unit.
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

/// Three digits at most.
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
    use super::{amount, ceiling};

    #[test]
    fn amounts_are_short_and_in_their_unit() {
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
    fn a_scale_ends_at_a_round_number() {
        let tops = [0.0, 0.013, 1.0, 4.2, 60.0].map(|value| ceiling(value).to_string());
        assert_eq!(tops, ["1", "0.02", "1", "5", "100"]);
    }
}
