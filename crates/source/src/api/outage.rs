//! Logs an outage of the API server only at its start and at its end, although every watch retries.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use proxy::Kind;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::backoff::Cost;
use super::token::TokenError;
use super::trust::Untrusted;
use super::tunnel::ProxyError;
use crate::decode::kind_name;

const IS_IT_AN_API_SERVER: &str = "check that this is the URL of a Kubernetes API server";

/// Reason why a list or a watch failed, for the log and the back-off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The client sent no request, because its token file has no token.
    WithoutToken(TokenError),
    /// The client could not connect to the server, for this reason.
    Unreachable(String),
    /// The connection broke, or the server stayed silent.
    Unanswered(String),
    /// The proxy does not connect this process to the server.
    Proxied(ProxyError),
    /// One peer does not trust the other peer's certificate.
    Untrusted(Untrusted),
    /// The server replied with an error status.
    Refused { code: u16, message: String },
    /// The response is not one of an API server, for this reason.
    Nonsense(String),
}

impl Failure {
    /// Returns the amount of work that the attempt caused on the server.
    pub(super) fn cost(&self) -> Cost {
        match self {
            Self::Unreachable(_) | Self::WithoutToken(_) => Cost::Nothing,
            Self::Proxied(error) => error.cost,
            Self::Unanswered(_) | Self::Untrusted(_) | Self::Refused { .. } | Self::Nonsense(_) => {
                Cost::Something
            }
        }
    }

    /// Reports whether both failures belong to the same outage, which is logged only once.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Untrusted(one), Self::Untrusted(two)) => one.advice == two.advice,
            (Self::Proxied(one), Self::Proxied(two)) => one.advice == two.advice,
            (
                Self::Unreachable(_) | Self::Unanswered(_),
                Self::Unreachable(_) | Self::Unanswered(_),
            )
            | (Self::Nonsense(_), Self::Nonsense(_))
            | (Self::WithoutToken(_), Self::WithoutToken(_)) => true,
            (Self::Refused { code: one, .. }, Self::Refused { code: two, .. }) => one == two,
            _ => false,
        }
    }
}

/// Kinds of objects that cannot be listed or watched at the moment, with the reasons.
#[derive(Debug)]
pub(super) struct Outage {
    url: String,
    state: Mutex<State>,
    over: Notify,
}

#[derive(Debug, Default)]
struct State {
    failing: HashMap<Kind, OngoingOutage>,
    /// Kinds that were listed or watched at least once. During an outage, the proxy serves their
    /// last known state.
    known: HashSet<Kind>,
}

/// Latest failure of a kind, and the time at which the kind began to fail.
#[derive(Debug)]
struct OngoingOutage {
    failure: Failure,
    since: Instant,
}

/// Current failures of a source, for readers on other tasks. `None` if the source cannot have
/// outages, like a directory of manifests. Clones share the failures.
#[derive(Debug, Clone, Default)]
pub struct Troubles(Option<Arc<Outage>>);

/// A current failure, which the source retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The failure and the advice, as text.
    pub text: String,
    /// Start time of the outage to which the failure belongs.
    pub since: Instant,
}

impl Troubles {
    pub(super) fn of(outage: &Arc<Outage>) -> Self {
        Self(Some(Arc::clone(outage)))
    }

    /// Returns the current failures, one for each outage.
    pub fn now(&self) -> Vec<Trouble> {
        let ongoing = self.0.as_deref().map(Outage::ongoing);
        ongoing.unwrap_or_default()
    }
}

impl Outage {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            state: Mutex::default(),
            over: Notify::new(),
        }
    }

    /// Records that `kind` cannot be listed or watched. Logs a warning only if this begins a new
    /// outage.
    pub(super) fn begin(&self, kind: Kind, failure: Failure) {
        match self.news(kind, failure) {
            Ok(line) => warn!("{line}"),
            Err(line) => debug!("{line}"),
        }
    }

    /// Records that `kind` is listed or watched again. Logs the end of the outage if no other kind
    /// fails.
    pub(super) fn end(&self, kind: Kind) {
        if self.ends(kind) {
            info!("API server {}: all is watched again", self.url);
            self.over.notify_waiters();
        }
    }

    /// Waits for the end of an outage, after which the server may run another Kubernetes version.
    pub(super) async fn over(&self) {
        self.over.notified().await;
    }

    /// Returns the log line about a failure: `Ok` for a new outage, and `Err` if the log has
    /// already reported the outage.
    fn news(&self, kind: Kind, failure: Failure) -> Result<String, String> {
        let (what, advice) = self.words(kind, &failure);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let effect = if state.known.contains(&kind) {
            "serving the last known state, and retrying"
        } else {
            "retrying"
        };
        let line = format!("{what}; {effect}; {advice}");
        let failing = &mut state.failing;
        let is_known = failing
            .values()
            .any(|known| known.failure.is_like(&failure));
        let since = failing.get(&kind).map(|known| known.since);
        let since = since.unwrap_or_else(Instant::now);
        failing.insert(kind, OngoingOutage { failure, since });
        if is_known { Err(line) } else { Ok(line) }
    }

    fn ends(&self, kind: Kind) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.insert(kind);
        state.failing.remove(&kind).is_some() && state.failing.is_empty()
    }

    /// Returns one failure for each outage, with the oldest start time.
    fn ongoing(&self) -> Vec<Trouble> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<(&Kind, &OngoingOutage)> = state.failing.iter().collect();
        all.sort_by_key(|(_, ongoing)| ongoing.since);
        let mut told: Vec<(&Kind, &OngoingOutage)> = Vec::new();
        for (kind, ongoing) in all {
            let is_told =
                |(_, told): &(&Kind, &OngoingOutage)| told.failure.is_like(&ongoing.failure);
            if !told.iter().any(is_told) {
                told.push((kind, ongoing));
            }
        }
        let trouble = |(kind, ongoing): (&Kind, &OngoingOutage)| {
            let (what, advice) = self.words(*kind, &ongoing.failure);
            Trouble {
                text: format!("{what}; {advice}"),
                since: ongoing.since,
            }
        };
        told.into_iter().map(trouble).collect()
    }

    /// Formats a failure as two texts for the operator: the failure with the server's URL, and the
    /// next step.
    fn words<'a>(&self, kind: Kind, failure: &'a Failure) -> (String, &'a str) {
        let (url, kind) = (&self.url, kind_name(kind));
        let (what, advice) = match failure {
            Failure::WithoutToken(error) => (
                format!("is not asked: {error}"),
                "correct the file, or tokenFile in the kubeconfig",
            ),
            Failure::Unreachable(cause) | Failure::Unanswered(cause) => (
                format!("cannot be reached: {cause}"),
                "check that it runs and that this node reaches it",
            ),
            Failure::Proxied(error) => (format!("cannot be reached: {error}"), &*error.advice),
            Failure::Untrusted(untrusted) => (
                format!("cannot be talked to: {untrusted}"),
                &*untrusted.advice,
            ),
            Failure::Refused { code, message } => (
                format!("refuses to list or watch {kind}s: {message} ({code})"),
                match code {
                    401 => "check the credentials in the kubeconfig or of the service account",
                    403 => {
                        "check that its role allows list and watch of services, endpointslices and nodes"
                    }
                    300..=399 | 404 => IS_IT_AN_API_SERVER,
                    _ => "check its log",
                },
            ),
            Failure::Nonsense(what) => (
                format!("answers nonsense about {kind}s: {what}"),
                IS_IT_AN_API_SERVER,
            ),
        };
        (format!("API server {url} {what}"), advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_and_the_end_of_an_outage_are_each_logged_once() {
        let outage = Arc::new(Outage::new("http://a".into()));
        assert!(!outage.ends(Kind::Service), "listed without an outage");
        let refused = |text: &str| Failure::Unreachable(text.into());
        let line = outage
            .news(Kind::Service, refused("Connection refused"))
            .unwrap();
        assert_eq!(
            line,
            "API server http://a cannot be reached: Connection refused; serving the last known state, and retrying; \
             check that it runs and that this node reaches it"
        );
        assert!(
            outage
                .news(Kind::Service, refused("Connection reset"))
                .is_err()
        );
        assert!(
            outage
                .news(Kind::Node, refused("Connection refused"))
                .is_err()
        );
        let troubles = Troubles::of(&outage).now();
        let [one] = &*troubles else {
            panic!("{troubles:?}");
        };
        assert_eq!(
            one.text,
            "API server http://a cannot be reached: Connection reset; check that it runs and that this node reaches it"
        );
        assert!(!outage.ends(Kind::Service), "Nodes are still away");
        assert!(!outage.ends(Kind::Service));
        assert!(outage.ends(Kind::Node));
        assert_eq!(Troubles::of(&outage).now(), []);
        assert!(!outage.ends(Kind::EndpointSlice), "was never away");
        assert!(
            outage
                .news(Kind::Node, refused("Connection refused"))
                .is_ok()
        );
    }

    #[test]
    fn the_message_of_an_outage_before_the_first_list_mentions_no_known_state() {
        let outage = Outage::new("http://a".into());
        let refused = Failure::Refused {
            code: 404,
            message: "404 page not found".into(),
        };
        assert_eq!(
            outage.news(Kind::Service, refused).unwrap(),
            "API server http://a refuses to list or watch Services: 404 page not found (404); retrying; \
             check that this is the URL of a Kubernetes API server"
        );
    }

    #[test]
    fn each_different_failure_is_logged_once() {
        let outage = Outage::new("http://a".into());
        let status = |code| Failure::Refused {
            code,
            message: "no".into(),
        };
        assert!(outage.news(Kind::Service, status(503)).is_ok());
        assert!(outage.news(Kind::Service, status(503)).is_err());
        let line = outage.news(Kind::EndpointSlice, status(403)).unwrap();
        assert!(
            line.contains("EndpointSlices: no (403)") && line.contains("role"),
            "{line}"
        );
        assert!(
            outage
                .news(Kind::Service, Failure::Nonsense("html".into()))
                .is_ok()
        );
    }
}
