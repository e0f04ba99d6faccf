//! Reads the dashboard file as Grafana does: panels at their positions, and queries with their
//! variables replaced.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Time range of a query, and the distance of its points.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// Start of the range, in seconds since the epoch.
    pub from: f64,
    /// End of the range, in seconds since the epoch.
    pub to: f64,
    /// Seconds between two points, which is also the scrape interval.
    pub step: u64,
}

impl Range {
    /// Returns `$__rate_interval` in seconds, as Grafana computes it: at least four scrape
    /// intervals.
    fn rate_interval(&self) -> u64 {
        (self.step + self.step).max(4 * self.step)
    }
}

/// A Grafana dashboard.
#[derive(Debug, Clone)]
pub struct Dashboard(Value);

/// A panel or a row of a dashboard.
#[derive(Debug, Clone, Copy)]
pub struct Panel<'a>(&'a Value);

/// A PromQL query of a panel.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a>(&'a Value);

impl Dashboard {
    /// Parses a dashboard file.
    ///
    /// # Errors
    ///
    /// Fails if the text is not JSON.
    pub fn read(text: &str) -> Result<Self> {
        Ok(Self(serde_json::from_str(text)?))
    }

    /// Returns the dashboard's title.
    pub fn title(&self) -> &str {
        text(&self.0, "/title")
    }

    /// Returns all rows and panels in file order. The panels of a collapsed row follow the row.
    pub fn panels(&self) -> Vec<Panel<'_>> {
        let all = array(&self.0, "/panels").iter();
        all.flat_map(|one| std::iter::once(one).chain(array(one, "/panels")))
            .map(Panel)
            .collect()
    }

    /// Returns the name, series selector and label of each variable with a query.
    ///
    /// # Errors
    ///
    /// Fails if a query does not have the form `label_values(SELECTOR, LABEL)`.
    pub fn query_variables(&self, job: &str) -> Result<Vec<(&str, String, &str)>> {
        let variables = array(&self.0, "/templating/list").iter();
        let with_query = variables.filter(|one| text(one, "/type") == "query");
        with_query
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
    /// Returns the panel's title.
    pub fn title(&self) -> &'a str {
        text(self.0, "/title")
    }

    /// Returns the panel's type: `row`, `stat`, `timeseries` or `table`.
    pub fn kind(&self) -> &'a str {
        text(self.0, "/type")
    }

    /// Returns the panel's description: one or two sentences.
    pub fn description(&self) -> &'a str {
        text(self.0, "/description")
    }

    /// Returns the panel's unit by its name in Grafana, such as `s` or `bytes`.
    pub fn unit(&self) -> &'a str {
        text(self.0, "/fieldConfig/defaults/unit")
    }

    /// Returns the URL of the panel's runbook, with unexpanded variables, or an empty text without
    /// a runbook.
    pub fn runbook(&self) -> &'a str {
        text(self.0, "/links/0/url")
    }

    /// Returns true if the panel draws bars, false if it draws lines.
    pub fn has_bars(&self) -> bool {
        text(self.0, "/fieldConfig/defaults/custom/drawStyle") == "bars"
    }

    /// Returns true if the legend is a table next to the chart.
    pub fn has_legend_beside(&self) -> bool {
        text(self.0, "/options/legend/placement") == "right"
    }

    /// Returns true if the panel stacks its series.
    pub fn is_stacked(&self) -> bool {
        text(self.0, "/fieldConfig/defaults/custom/stacking/mode") == "normal"
    }

    /// Returns the panel's `x`, `y`, `w` and `h` in Grafana's grid of 24 columns.
    pub fn grid_position(&self) -> [u64; 4] {
        ["x", "y", "w", "h"].map(|side| {
            let side = self.0.pointer(&format!("/gridPos/{side}"));
            side.and_then(Value::as_u64).unwrap_or_default()
        })
    }

    /// Returns the panel's queries.
    pub fn targets(&self) -> Vec<Target<'a>> {
        array(self.0, "/targets").iter().map(Target).collect()
    }

    /// Returns the colour that the panel's thresholds give to a value.
    pub fn colour(&self, value: f64) -> &'a str {
        let mut steps = array(self.0, "/fieldConfig/defaults/thresholds/steps").iter();
        let reached = steps.rfind(|step| {
            let from = step.get("value").and_then(Value::as_f64);
            from.is_none_or(|from| value >= from)
        });
        reached.map_or("", |step| text(step, "/color"))
    }

    /// Returns the name of the query's column in a table panel, and true if the column's unit is
    /// seconds.
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
    /// Returns the PromQL query as written in the dashboard file, with unexpanded variables.
    pub fn raw(&self) -> &'a str {
        text(self.0, "/expr")
    }

    /// Returns true for an instant query, which Prometheus evaluates at one time instead of over a
    /// range.
    pub fn is_instant(&self) -> bool {
        self.0.get("instant") == Some(&Value::Bool(true))
    }

    /// Returns the legend's pattern for a series, such as `{{label}}`.
    pub fn legend(&self) -> &'a str {
        text(self.0, "/legendFormat")
    }

    /// Returns the query with Grafana's variables replaced. `instance` is the regular expression
    /// that Grafana builds from the chosen nodes.
    ///
    /// # Errors
    ///
    /// Fails if the query has a variable that the dashboard lacks.
    pub fn expand(&self, job: &str, instance: &str, range: &Range) -> Result<String> {
        let query = self
            .raw()
            .replace("$__rate_interval", &format!("{}s", range.rate_interval()))
            .replace("$job", job)
            .replace("$instance", instance);
        ensure!(!query.contains('$'), "unknown variable in: {query}");
        Ok(query)
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
    fn a_query_expands_dashboard_variables_and_rejects_unknown_variables() {
        let dashboard = Dashboard::read(FILE).unwrap();
        let panels = dashboard.panels();
        assert_eq!([panels[0].title(), panels[1].title()], ["r", "s"]);
        let range = Range {
            from: 0.0,
            to: 9.0,
            step: 1,
        };
        let targets = panels[1].targets();
        let query = targets[0].expand("k", "a|b", &range).unwrap();
        assert_eq!(query, "rate(m{job=\"k\",i=~\"a|b\"}[4s])");
        assert!(targets[1].expand("k", ".*", &range).is_err());
        let variables = dashboard.query_variables("k").unwrap();
        assert_eq!(variables, [("job", "m{job=\"k\"}".to_owned(), "instance")]);
    }

    #[test]
    fn a_threshold_includes_its_own_value() {
        let dashboard = Dashboard::read(FILE).unwrap();
        let stat = dashboard.panels()[1];
        assert_eq!([stat.colour(0.9), stat.colour(1.0)], ["green", "red"]);
    }
}
