//! Report tables about the load that a kube-proxy puts on the API server, by occasion (such as a
//! restart).

use super::comparison::{self, Pair};
use super::point::{sizes, subjects};
use super::table::{short, table};
use super::{measured, services};
use crate::schema::{Axis, Report, RequestOccasion, ServerCost, Size};

/// A row of the table: its name, and the function that returns its value.
type Column = (&'static str, fn(&ServerCost) -> f64);

#[allow(clippy::cast_precision_loss, reason = "below 2^52")]
const COLUMNS: [Column; 4] = [
    ("received, kB", |cost| cost.bytes as f64 / 1e3),
    ("requests", |cost| cost.requests as f64),
    ("lists", |cost| cost.lists as f64),
    ("CPU of the server, ms", |cost| cost.cpu_s * 1e3),
];

/// Ratio of two byte counts up to which they count as equal.
const NOISE: f64 = 1.05;

/// Returns one table of the load on the API server for each size.
pub(super) fn tables(report: &Report) -> String {
    let names = subjects(report, Axis::Api);
    let pairs = comparison::pairs(report);
    let mut text = String::new();
    for size in sizes(report, Axis::Api) {
        let mut head = vec![format!("**{}**", services(size)), String::new()];
        head.extend(names.iter().map(|&name| name.to_owned()));
        head.extend(
            pairs
                .iter()
                .map(|pair| format!("{} / {}", pair.ours, pair.other)),
        );
        let mut rows = Vec::new();
        for occasion in RequestOccasion::ALL {
            for (index, (column, value)) in COLUMNS.into_iter().enumerate() {
                let of = |name: &str| median(report, name, size, occasion, value);
                let title = if index == 0 {
                    told(report, size, occasion)
                } else {
                    String::new()
                };
                let mut row = vec![title, column.to_owned()];
                let or_none = |value: Option<f64>, text: fn(f64) -> String| {
                    value.map_or_else(|| "–".to_owned(), text)
                };
                row.extend(names.iter().map(|name| or_none(of(name), written)));
                let ratio = |pair: &Pair<'_>| {
                    let base = of(pair.other).filter(|base| *base > 0.0);
                    or_none(
                        of(pair.ours).zip(base).map(|(ours, base)| ours / base),
                        short,
                    )
                };
                row.extend(pairs.iter().map(ratio));
                rows.push(row);
            }
        }
        text.push_str(&table(&head, &rows));
    }
    text
}

/// Formats an integer without decimals, and any other number with its significant digits.
fn written(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        short(value)
    }
}

/// Returns the name of an occasion, with the number of clients or changes if it has one.
fn told(report: &Report, size: Size, occasion: RequestOccasion) -> String {
    let figure = |name: &str| {
        let mut all = measured(report, Axis::Api, size);
        all.find_map(|(_, one)| one.figures.get(name).copied())
    };
    let count = match occasion {
        RequestOccasion::Reconnect => {
            figure("clients").map(|count| format!(" of {} clients", written(count)))
        }
        RequestOccasion::Watch => {
            figure("changes").map(|count| format!(", {} of them", written(count)))
        }
        _ => None,
    };
    occasion.name().to_owned() + &count.unwrap_or_default()
}

/// Returns the median of a value over all repeats of a subject on this occasion, or `None` if none
/// has it.
fn median(
    report: &Report,
    subject: &str,
    size: Size,
    occasion: RequestOccasion,
    value: fn(&ServerCost) -> f64,
) -> Option<f64> {
    let of_subject = measured(report, Axis::Api, size).filter(|(name, _)| *name == subject);
    let costs = of_subject.filter_map(|(_, one)| one.server.get(&occasion));
    let mut values: Vec<f64> = costs.map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Returns our daemon's bytes divided by another kube-proxy's, for each pair and occasion at the
/// largest size. Also returns true if no ratio exceeds [`NOISE`].
pub(super) fn bytes(report: &Report) -> Option<(String, Option<bool>)> {
    let size = *sizes(report, Axis::Api).last()?;
    let (_, bytes) = COLUMNS.first()?;
    let (mut texts, mut is_met) = (Vec::new(), true);
    for Pair { ours, other } in comparison::pairs(report) {
        let ratios = RequestOccasion::ALL.into_iter().filter_map(|occasion| {
            let of = |name| median(report, name, size, occasion, *bytes);
            let ratio = of(ours)? / of(other).filter(|base| *base > 0.0)?;
            Some((occasion, ratio))
        });
        let ratios: Vec<_> = ratios.collect();
        if ratios.is_empty() {
            continue;
        }
        is_met &= ratios.iter().all(|(_, ratio)| *ratio <= NOISE);
        let each = ratios
            .iter()
            .map(|(occasion, ratio)| format!("{} {} ×", occasion.name(), short(*ratio)));
        let each: Vec<String> = each.collect();
        texts.push(format!("{ours} / {other}: {}", each.join(", ")));
    }
    (!texts.is_empty()).then(|| (texts.join("; "), Some(is_met)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{About, Cell, CellFigures, Measurement, Mode, Outcome, Subject};

    fn measurement(name: &str, is_ours: bool, bytes: u64) -> Measurement {
        let cost = ServerCost {
            bytes,
            requests: 4,
            lists: 3,
            cpu_s: 0.25,
        };
        Measurement {
            cell: Cell {
                axis: Axis::Api,
                subject: Subject::kube_proxy(name, "kube-proxy", Mode::Ipvs, &[], is_ours),
                size: "100".parse().unwrap(),
                repeat: 0,
                is_counting: false,
                limit_s: 120,
                changes: 1_000,
                idle_s: 1,
            },
            outcome: Outcome::Measured(Box::new(CellFigures {
                server: [(RequestOccasion::First, cost)].into(),
                figures: [("clients".to_owned(), 500.0)].into(),
                ..CellFigures::default()
            })),
            took_s: 1.0,
        }
    }

    #[test]
    fn more_api_traffic_than_the_compared_kube_proxy_misses_the_aim() {
        let report = |ours| Report {
            version: 1,
            about: About {
                subjects: vec!["ipvs".into(), "up".into()],
                ..About::default()
            },
            measurements: vec![
                measurement("ipvs", true, ours),
                measurement("up", false, 2_000),
            ],
        };
        let text = tables(&report(3_000));
        for line in [
            "| **100 × 2** |  | ipvs | up | ipvs / up |",
            "| First list | received, kB | 3 | 2 | 1.50 |",
            "|  | lists | 3 | 3 | 1.00 |",
            "|  | CPU of the server, ms | 250 | 250 | 1.00 |",
            "| Reconnect of 500 clients | received, kB | – | – | – |",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let missed = ("ipvs / up: First list 1.50 ×".to_owned(), Some(false));
        assert_eq!(bytes(&report(3_000)), Some(missed));
        assert_eq!(bytes(&report(2_050)).unwrap().1, Some(true));
    }
}
