//! The file as Grafana reads it: panels in their places, and expressions with the variables filled
//! in.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// From when until when something is drawn, in seconds since the epoch, and with which distance of
/// points.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// The beginning.
    pub from: f64,
    /// The end.
    pub to: f64,
    /// Between two points, in seconds; the scrape interval, too.
    pub step: u64,
}

impl Range {
    /// What Grafana takes for `$__rate_interval`, in seconds: four scrapes at least.
    fn rate_interval(&self) -> u64 {
        (self.step + self.step).max(4 * self.step)
    }
}

/// A dashboard of Grafana.
#[derive(Debug, Clone)]
pub struct Dashboard(Value);

/// One of its panels, or a row.
#[derive(Debug, Clone, Copy)]
pub struct Panel<'a>(&'a Value);

/// A query of a panel.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a>(&'a Value);

impl Dashboard {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// It is no JSON.
    pub fn read(text: &str) -> Result<Self> {
        Ok(Self(serde_json::from_str(text)?))
    }

    /// Its title.
    pub fn title(&self) -> &str {
        text(&self.0, "/title")
    }

    /// Rows and panels in their order; those of a collapsed row behind it.
    pub fn panels(&self) -> Vec<Panel<'_>> {
        let all = array(&self.0, "/panels").iter();
        all.flat_map(|one| std::iter::once(one).chain(array(one, "/panels")))
            .map(Panel)
            .collect()
    }

    /// The metric, its selector filled in, and the label that each variable is chosen from, with
    /// the variable's name.
    ///
    /// # Errors
    ///
    /// One is asked for by something else than `label_values`.
    pub fn choices(&self, job: &str) -> Result<Vec<(&str, String, &str)>> {
        let variables = array(&self.0, "/templating/list").iter();
        let asked = variables.filter(|one| text(one, "/type") == "query");
        asked
            .map(|one| {
                let query = text(one, "/query/query");
                let inner = query
                    .strip_prefix("label_values(")
                    .and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "));
                let (series, label) = inner.with_context(|| format!("cannot read {query}"))?;
                Ok((text(one, "/name"), series.replace("$job", job), label))
            })
            .collect()
    }
}

impl<'a> Panel<'a> {
    /// What stands above it.
    pub fn title(&self) -> &'a str {
        text(self.0, "/title")
    }

    /// `row`, `stat`, `timeseries`, `table`.
    pub fn kind(&self) -> &'a str {
        text(self.0, "/type")
    }

    /// What it shows, in a sentence.
    pub fn description(&self) -> &'a str {
        text(self.0, "/description")
    }

    /// Grafana's name of the unit.
    pub fn unit(&self) -> &'a str {
        text(self.0, "/fieldConfig/defaults/unit")
    }

    /// Whether series stand on each other.
    pub fn is_stacked(&self) -> bool {
        text(self.0, "/fieldConfig/defaults/custom/stacking/mode") == "normal"
    }

    /// Column, line, width and height in units of Grafana's grid, which has 24 columns.
    pub fn place(&self) -> [u64; 4] {
        ["x", "y", "w", "h"].map(|side| {
            let side = self.0.pointer(&format!("/gridPos/{side}"));
            side.and_then(Value::as_u64).unwrap_or_default()
        })
    }

    /// Its queries.
    pub fn targets(&self) -> Vec<Target<'a>> {
        array(self.0, "/targets").iter().map(Target).collect()
    }

    /// The colour that a value has by the thresholds.
    pub fn colour(&self, value: f64) -> &'a str {
        let mut steps = array(self.0, "/fieldConfig/defaults/thresholds/steps").iter();
        let reached = steps.rfind(|step| {
            let from = step.get("value").and_then(Value::as_f64);
            from.is_none_or(|from| value >= from)
        });
        reached.map_or("", |step| text(step, "/color"))
    }

    /// What a table calls the column of a query, and whether it is a duration.
    pub fn column(&self, target: &Target<'_>) -> (&'a str, bool) {
        let letter = text(target.0, "/refId");
        let name = array(self.0, "/transformations").iter().find_map(|one| {
            let names = one.pointer("/options/renameByName")?;
            names.get(format!("Value #{letter}"))?.as_str()
        });
        let name = name.unwrap_or_default();
        let is_duration = array(self.0, "/fieldConfig/overrides").iter().any(|one| {
            text(one, "/matcher/options") == name && text(one, "/properties/0/value") == "s"
        });
        (name, is_duration)
    }
}

impl<'a> Target<'a> {
    /// The query as it stands in the file.
    pub fn raw(&self) -> &'a str {
        text(self.0, "/expr")
    }

    /// Whether it is asked for one moment.
    pub fn is_instant(&self) -> bool {
        self.0.get("instant") == Some(&Value::Bool(true))
    }

    /// What a series is called, with `{{labels}}`.
    pub fn legend(&self) -> &'a str {
        text(self.0, "/legendFormat")
    }

    /// The query with Grafana's variables filled in. `instance` is a pattern, as Grafana makes it of
    /// what was chosen.
    ///
    /// # Errors
    ///
    /// There is a variable that the dashboard does not have.
    pub fn filled(&self, job: &str, instance: &str, range: &Range) -> Result<String> {
        let filled = self
            .raw()
            .replace("$__rate_interval", &format!("{}s", range.rate_interval()))
            .replace("$job", job)
            .replace("$instance", instance);
        ensure!(!filled.contains('$'), "a variable is unknown: {filled}");
        Ok(filled)
    }
}

fn text<'a>(value: &'a Value, at: &str) -> &'a str {
    value
        .pointer(at)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn array<'a>(value: &'a Value, at: &str) -> &'a [Value] {
    let found = value.pointer(at).and_then(Value::as_array);
    found.map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"title": "t", "templating": {"list": [
        {"name": "job", "type": "query", "query": {"query": "label_values(m{job=\"$job\"}, instance)"}}]},
      "panels": [{"type": "row", "title": "r", "panels": [
        {"type": "stat", "title": "s", "targets": [{"refId": "A", "expr": "rate(m{job=\"$job\",i=~\"$instance\"}[$__rate_interval])"}, {"refId": "B", "expr": "$other"}],
         "fieldConfig": {"defaults": {"thresholds": {"steps": [{"color": "green", "value": null}, {"color": "red", "value": 1}]}}}}]}]}"#;

    #[test]
    fn variables_are_filled_in_and_unknown_ones_are_an_error() {
        let dashboard = Dashboard::read(FILE).unwrap();
        let panels = dashboard.panels();
        assert_eq!([panels[0].title(), panels[1].title()], ["r", "s"]);
        let range = Range {
            from: 0.0,
            to: 9.0,
            step: 1,
        };
        let targets = panels[1].targets();
        let filled = targets[0].filled("k", "a|b", &range).unwrap();
        assert_eq!(filled, "rate(m{job=\"k\",i=~\"a|b\"}[4s])");
        assert!(targets[1].filled("k", ".*", &range).is_err());
        let choices = dashboard.choices("k").unwrap();
        assert_eq!(choices, [("job", "m{job=\"k\"}".to_owned(), "instance")]);
    }

    #[test]
    fn a_threshold_counts_from_its_value_on() {
        let dashboard = Dashboard::read(FILE).unwrap();
        let stat = dashboard.panels()[1];
        assert_eq!([stat.colour(0.9), stat.colour(1.0)], ["green", "red"]);
    }
}
