//! The pages for monitoring and debugging (`--metrics-bind-address`).
//!
//! | path         | says                                                                          |
//! |--------------|-------------------------------------------------------------------------------|
//! | `/metrics`   | all metrics, as Prometheus' text, or as OpenMetrics where `Accept` asks for it |
//! | `/proxyMode` | `ipvs`                                                                        |
//! | `/configz`   | the configuration in effect, fields spelled as in its file                    |
//! | `/healthz`   | `ok`: the process answers. For the proxy's health there is another server     |

use http::request::Parts;
use http::{StatusCode, header};
use serde::Serialize;
use serde_json::json;

use super::Metrics;
use crate::http_server::{Answer, Purpose, answer, not_found, text};

/// For the log.
pub(crate) const PURPOSE: Purpose = Purpose {
    name: "metrics",
    flag: "metrics-bind-address",
};

const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is told.
#[derive(Debug)]
pub(crate) struct Pages {
    metrics: Metrics,
    /// JSON.
    configuration: String,
}

impl Pages {
    pub(crate) fn new(metrics: Metrics, configuration: &impl Serialize) -> Self {
        let configuration = json!({ "kubeproxy.config.k8s.io": configuration }).to_string();
        Self {
            metrics,
            configuration,
        }
    }

    /// What a request is answered.
    pub(crate) fn respond(&self, head: &Parts) -> Answer {
        match head.uri.path() {
            "/metrics" if asks_for_openmetrics(head) => {
                answer(StatusCode::OK, OPENMETRICS, self.metrics.openmetrics())
            }
            "/metrics" => answer(StatusCode::OK, CLASSIC, self.metrics.classic()),
            "/proxyMode" => text(StatusCode::OK, "ipvs"),
            "/configz" => answer(
                StatusCode::OK,
                "application/json",
                self.configuration.clone(),
            ),
            "/healthz" | "/healthz/ping" => text(StatusCode::OK, "ok"),
            _ => not_found(),
        }
    }
}

/// Whether `Accept` names OpenMetrics, and does not refuse it (`q=0`). Who names both can read both.
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
mod tests {
    use super::*;
    use crate::http_server::{self, Server, tests::get};

    fn server() -> Server {
        let pages = Pages::new(Metrics::new(), &json!({"mode": "ipvs"}));
        let respond = move |head: &Parts| pages.respond(head);
        http_server::start(PURPOSE, "127.0.0.1:0".parse().unwrap(), true, respond).unwrap()
    }

    #[tokio::test]
    async fn pages_are_upstreams() {
        let server = server();
        for (page, wanted) in [
            ("/proxyMode", "ipvs"),
            ("/healthz", "ok"),
            ("/configz", r#"{"kubeproxy.config.k8s.io":{"mode":"ipvs"}}"#),
        ] {
            let (head, body) = get(&server, &format!("GET {page}")).await;
            assert!(head.starts_with("HTTP/1.1 200 OK\n"), "{page}: {head}");
            assert!(
                head.contains("X-Content-Type-Options: nosniff\n"),
                "{page}: {head}"
            );
            assert_eq!(body, wanted, "{page}");
        }
        let (head, body) = get(&server, "GET /debug").await;
        assert!(head.starts_with("HTTP/1.1 404 Not Found\n"), "{head}");
        assert_eq!(body, "404 page not found\n");
    }

    #[tokio::test]
    async fn openmetrics_is_for_those_who_ask() {
        let server = server();
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        for (accept, is_openmetrics) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text;q=0", false),
            (prometheus, true),
        ] {
            let (head, body) = get(&server, &format!("GET /metrics\nAccept: {accept}\n")).await;
            let wanted = if is_openmetrics { OPENMETRICS } else { CLASSIC };
            assert!(
                head.contains(&format!("Content-Type: {wanted}\n")),
                "{accept}: {head}"
            );
            assert_eq!(body.ends_with("# EOF\n"), is_openmetrics, "{accept}");
        }
    }
}
