//! Starts a Prometheus server on a node, and parses the responses of its API.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Place, Running};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::grafana::Range;

const ADDRESS: &str = "127.0.0.1:9090";
/// Timeout of a request to Prometheus.
const RESPONSE: Duration = Duration::from_secs(10);
/// Timeout for the start of Prometheus.
const START: Duration = Duration::from_secs(20);
/// Value of a sample that is not a number, such as a quantile of an empty histogram.
const NONE: &str = "NaN";

/// A time series from a response of Prometheus.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Labels of the series, by name.
    pub labels: BTreeMap<String, String>,
    /// Points: seconds since the epoch, and value. Excludes NaN values.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Returns the legend of this series: the text `legend` with each `{{label}}` replaced by the
    /// label's value.
    pub fn name_by(&self, legend: &str) -> String {
        self.labels
            .iter()
            .fold(legend.to_owned(), |text, (name, value)| {
                text.replace(&format!("{{{{{name}}}}}"), value)
            })
    }

    /// Returns the value of the last point, or `None` without points.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }
}

/// A running Prometheus server. Dropping it ends the server.
#[derive(Debug)]
pub struct Prometheus {
    place: Place,
    running: Running,
}

impl Prometheus {
    /// Starts Prometheus on the node `place`, with its files in `folder`. Each second, it scrapes
    /// `target` as the job `kube-proxy`, and evaluates the rules. The environment variable
    /// `PROMETHEUS` has the program's path (`integration/promtool prometheus` prints it).
    ///
    /// # Errors
    ///
    /// Fails if the program is missing. If the server does not start, fails with Prometheus'
    /// message.
    pub fn start(place: &Place, folder: &Path, target: &str, rules: &str) -> Result<Self> {
        let program = std::env::var_os("PROMETHEUS").context(
            "PROMETHEUS names no program: PROMETHEUS=$(integration/promtool prometheus)",
        )?;
        let [config, rule_file] = ["prometheus.yaml", "rules.yaml"].map(|name| folder.join(name));
        fs::write(&rule_file, rules)?;
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
                 rule_files: [{}]\n\
                 scrape_configs: [{{job_name: kube-proxy, static_configs: [{{targets: ['{target}']}}]}}]\n",
                rule_file.display()
            ),
        )?;
        let flags = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", folder.join("tsdb").display()),
            format!("--web.listen-address={ADDRESS}"),
            "--log.level=warn".to_owned(),
        ];
        let argv = std::iter::once(program).chain(flags.into_iter().map(Into::into));
        let prometheus = Self {
            place: place.clone(),
            running: place.spawn(argv)?,
        };
        let began = Instant::now();
        while prometheus.get("/-/ready").is_err() {
            ensure!(
                began.elapsed() < START,
                "Prometheus does not start: {}",
                prometheus.running.said()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(prometheus)
    }

    /// Evaluates a PromQL expression at each step of a time range.
    ///
    /// # Errors
    ///
    /// Fails with Prometheus' message if the expression cannot be evaluated.
    pub fn range(&self, expression: &str, range: &Range) -> Result<Vec<Series>> {
        let Range { from, to, step } = range;
        let query = encoded(expression);
        let path = format!("/api/v1/query_range?query={query}&start={from}&end={to}&step={step}");
        self.series(&path)
    }

    /// Evaluates a PromQL expression at one time, in seconds since the epoch.
    ///
    /// # Errors
    ///
    /// Fails like [`range`](Self::range).
    pub fn instant(&self, expression: &str, at: f64) -> Result<Vec<Series>> {
        let query = encoded(expression);
        self.series(&format!("/api/v1/query?query={query}&time={at}"))
    }

    /// Returns all values of a label in the series that match `selector`.
    ///
    /// # Errors
    ///
    /// Fails like [`range`](Self::range).
    pub fn values(&self, selector: &str, label: &str) -> Result<Vec<String>> {
        let selector = encoded(selector);
        let data = self.data(&format!("/api/v1/label/{label}/values?match[]={selector}"))?;
        let values = data.as_array().into_iter().flatten();
        Ok(values
            .filter_map(|value| value.as_str().map(str::to_owned))
            .collect())
    }

    /// Returns the state of each alert by name: `inactive`, `pending` or `firing`.
    ///
    /// # Errors
    ///
    /// Fails with Prometheus' message if a rule cannot be evaluated.
    pub fn alerts(&self) -> Result<BTreeMap<String, String>> {
        let data = self.data("/api/v1/rules?type=alert")?;
        let groups = data.pointer("/groups").and_then(Value::as_array);
        let rules = groups.into_iter().flatten();
        let rules = rules.filter_map(|group| group.pointer("/rules")?.as_array());
        let word = |rule: &Value, name: &str| {
            let word = rule.get(name).and_then(Value::as_str);
            word.unwrap_or_default().to_owned()
        };
        let mut alerts = BTreeMap::new();
        for rule in rules.flatten() {
            let error = word(rule, "lastError");
            ensure!(error.is_empty(), "{}: {error}", word(rule, "name"));
            alerts.insert(word(rule, "name"), word(rule, "state"));
        }
        Ok(alerts)
    }

    /// Returns the state of the alert with this name.
    ///
    /// # Errors
    ///
    /// Fails like [`alerts`](Self::alerts), or if no alert has this name.
    pub fn state(&self, alert: &str) -> Result<String> {
        let state = self.alerts()?.remove(alert);
        state.with_context(|| format!("there is no alert {alert}"))
    }

    fn series(&self, path: &str) -> Result<Vec<Series>> {
        let data = self.data(path)?;
        let result = data.pointer("/result").and_then(Value::as_array);
        let result = result.context("no result")?.iter();
        Ok(result.map(parse_series).collect())
    }

    fn data(&self, path: &str) -> Result<Value> {
        let body = self.get(path)?;
        let mut answer: Value = serde_json::from_str(&body).with_context(|| body.clone())?;
        ensure!(
            answer
                .get("status")
                .is_some_and(|status| status == "success"),
            "{path}: {answer}"
        );
        Ok(answer.get_mut("data").map(Value::take).unwrap_or_default())
    }

    /// Sends a GET request, and returns the body even of an error response. HTTP/1.0 avoids chunked
    /// bodies.
    fn get(&self, path: &str) -> Result<String> {
        let answer = self.place.enter(|| {
            let address = SocketAddr::from(([127, 0, 0, 1], 9090));
            let mut stream = TcpStream::connect_timeout(&address, RESPONSE)?;
            stream.set_read_timeout(Some(RESPONSE))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: {ADDRESS}\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
        ensure!(!head.contains(" 503 "), "not ready");
        Ok(body.to_owned())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.running.stop(RESPONSE));
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn parse_series(value: &Value) -> Series {
    let labels = value.get("metric").and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    let one = value.get("value").into_iter();
    let many = value.get("values").and_then(Value::as_array);
    let points = one.chain(many.into_iter().flatten()).filter_map(|point| {
        let (at, value) = (point.get(0)?.as_f64()?, point.get(1)?.as_str()?);
        (value != NONE).then_some((at, value.parse().ok()?))
    });
    Series {
        labels: labels
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect(),
        points: points.collect(),
    }
}
