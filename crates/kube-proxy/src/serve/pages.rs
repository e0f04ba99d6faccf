//! Pages for monitoring and debugging (`--metrics-bind-address`).
//!
//! | path            | content                                                          |
//! |-----------------|------------------------------------------------------------------|
//! | `/metrics`      | all metrics: Prometheus' text, or OpenMetrics if `Accept` has it |
//! | `/metrics/slis` | results of `/healthz` on this server; `DELETE` resets them       |
//! | `/proxyMode`    | the mode, as its flag names it                                   |
//! | `/configz`      | the configuration in effect, in the format of its file           |
//! | `/flagz`        | the flags, if the feature gate is on: see `zpages`               |
//! | `/statusz`      | versions and start time, if the feature gate is on               |
//! | `/healthz`      | `ok`: the process responds; the proxy's health is in `healthz`   |
//! | `/api/v1/...`   | the state of the daemon, on loopback only: see `inspect`         |
//! | `/ui/`          | a page with that state, on loopback only: see `ui`               |
//! | `/`             | redirects to `/ui/`, on loopback only                            |
//!
//! The pages that upstream also has ignore a request's method and body, as in upstream. The only
//! exception is `DELETE /metrics/slis`.

use std::net::SocketAddr;
use std::sync::Arc;

use flags::gates::Gates;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use http_server::{Answer, Purpose, Respond, answer, not_found, text};
use inspect::{Asker, Inspect};
use tokio::task::spawn_blocking;

use super::ui;
use super::zpages::Zpages;
use crate::config::configz::Configz;
use crate::metrics::Metrics;

/// Names of the metrics server in the log, in the flags and in Kubernetes events.
pub(crate) const PURPOSE: Purpose = Purpose {
    name: "metrics",
    flag: "metrics-bind-address",
    event: "FailedToStartMetricServer",
};

const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Header with the start time of the process, in seconds since 1970. From this time, a scraper
/// detects that the counters have restarted.
const STARTED: HeaderName = HeaderName::from_static("process-start-time-unix");
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// State that the pages of the metrics server show.
pub(crate) struct Pages {
    metrics: Metrics,
    configz: Configz,
    mode: &'static str,
    zpages: Zpages,
    api: Api,
}

/// API `/api/v1/...` and the page `/ui/` that shows its data, as served at one address.
pub(crate) struct Api {
    /// True if only this node can reach the server's address.
    is_loopback: bool,
    inspect: Arc<Inspect>,
}

impl Api {
    /// Creates the API for a server with this address.
    pub(crate) fn at(address: SocketAddr, inspect: Arc<Inspect>) -> Self {
        Self {
            is_loopback: address.ip().to_canonical().is_loopback(),
            inspect,
        }
    }

    /// Redirects a browser from `/` to the page `/ui/`, if this server serves that page. Otherwise
    /// `/` is unknown, as in upstream.
    fn point_to_page(&self, head: &Parts) -> Option<Answer> {
        let is_served = inspect::refusal(head, self.is_loopback).is_none();
        is_served.then(|| ui::redirect("ui/"))
    }

    async fn respond(&self, head: &Parts) -> Answer {
        match inspect::refusal(head, self.is_loopback) {
            None => match ui::respond(head) {
                Some(page) => page,
                None => self.inspect.respond(head, Asker::Anyone).await,
            },
            Some(why) => text(StatusCode::FORBIDDEN, format!("{why}\n")),
        }
    }
}

impl Respond for Pages {
    async fn respond(&self, head: &Parts) -> Answer {
        let path = head.uri.path();
        if path == "/" {
            self.api.point_to_page(head).unwrap_or_else(not_found)
        } else if path.starts_with(inspect::PREFIX) || ui::has(path) {
            self.api.respond(head).await
        } else if head.uri.path() == "/metrics" {
            self.scrape(head).await
        } else {
            self.page(head)
        }
    }
}

impl Pages {
    /// Creates the pages of the metrics server. `flags` are the flags of this process's command
    /// line, with their values.
    pub(crate) fn new(
        metrics: Metrics,
        configz: Configz,
        mode: &'static str,
        gates: &Gates,
        flags: impl IntoIterator<Item = (String, String)>,
        api: Api,
    ) -> Self {
        Self {
            api,
            zpages: Zpages::new(gates, flags, metrics.started),
            metrics,
            configz,
            mode,
        }
    }

    /// Renders all metrics. Uses a blocking thread if some metrics are read from the kernel.
    async fn scrape(&self, head: &Parts) -> Answer {
        let (content_type, tell): (_, fn(&Metrics) -> String) = if asks_for_openmetrics(head) {
            (OPENMETRICS, Metrics::openmetrics)
        } else {
            (CLASSIC, Metrics::classic)
        };
        if !self.metrics.reads_kernel() {
            return self.scraped(content_type, tell(&self.metrics));
        }
        let metrics = self.metrics.clone();
        match spawn_blocking(move || tell(&metrics)).await {
            Ok(told) => self.scraped(content_type, told),
            // The blocking thread did not run, because the runtime is shutting down.
            Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        }
    }

    /// Returns the response for a page that reads nothing from the kernel, such as `/configz`.
    fn page(&self, head: &Parts) -> Answer {
        match head.uri.path() {
            "/metrics/slis" if head.method == Method::DELETE => {
                self.metrics.reset_slis();
                text(StatusCode::OK, "metrics reset\n")
            }
            "/metrics/slis" => self.scraped(CLASSIC, self.metrics.slis()),
            "/proxyMode" => text(StatusCode::OK, self.mode),
            "/configz" => answer(StatusCode::OK, "application/json", self.configz.body()),
            "/healthz" => {
                self.metrics.pinged();
                let query = head.uri.query().unwrap_or_default();
                let is_verbose = query
                    .split('&')
                    .any(|pair| pair == "verbose" || pair.starts_with("verbose="));
                let body = if is_verbose {
                    "[+]ping ok\nhealthz check passed\n"
                } else {
                    "ok"
                };
                text(StatusCode::OK, body)
            }
            "/healthz/ping" => text(StatusCode::OK, "ok"),
            _ => self.zpages.respond(head).unwrap_or_else(not_found),
        }
    }

    fn scraped(&self, content_type: &'static str, metrics: String) -> Answer {
        let mut answer = answer(StatusCode::OK, content_type, metrics);
        let started = HeaderValue::from(self.metrics.started_in_seconds());
        answer.headers_mut().insert(STARTED, started);
        answer
    }
}

/// Reports whether `Accept` allows OpenMetrics: the header names it without `q=0`. A client that
/// accepts both formats gets OpenMetrics.
fn asks_for_openmetrics(head: &Parts) -> bool {
    let accepted = head.headers.get_all(header::ACCEPT).iter();
    let ranges = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    ranges.into_iter().any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_named = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        is_named && quality.is_none_or(|quality| quality > 0.0)
    })
}

#[cfg(test)]
mod tests;
