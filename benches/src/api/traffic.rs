//! What was asked of the fixture, as it says.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::http::{self, Api};
use crate::schema::ServerCost;

/// All requests so far but for this program's.
#[derive(Debug, PartialEq)]
pub(super) struct Traffic {
    pub(super) requests: Vec<Request>,
}

/// A request, and what was sent for it so far.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    asked: String,
    kind: Option<String>,
    user_agent: String,
    pub(super) accept: String,
    pub(super) accept_encoding: String,
    /// None before there is an answer.
    code: Option<u16>,
    sent_bytes: u64,
}

impl Traffic {
    pub(super) fn read(api: &mut Api) -> Result<Self> {
        let all = api.get("/fixture/requests")?;
        let mut requests: Vec<Request> =
            serde_json::from_value(all).context("the fixture's requests are not understood")?;
        requests.retain(|request| request.user_agent != http::USER_AGENT);
        Ok(Self { requests })
    }

    /// The kinds of which a watch was begun from a request on, in order.
    pub(super) fn watched(&self, from: usize) -> Vec<String> {
        let since = self.requests.iter().skip(from);
        let watches = since.filter(|request| {
            request.code == Some(200) && ["watch", "streamed-list"].contains(&&*request.asked)
        });
        let kinds: BTreeSet<&String> = watches.filter_map(|one| one.kind.as_ref()).collect();
        kinds.into_iter().cloned().collect()
    }

    /// What was read from a request on.
    pub(super) fn reads_since(self, from: usize) -> Vec<Request> {
        let since = self.requests.into_iter().skip(from);
        since.filter(|request| request.method == "GET").collect()
    }

    fn bytes(&self) -> u64 {
        self.requests.iter().map(|request| request.sent_bytes).sum()
    }
}

impl Request {
    /// Whether it is answered with all objects, and is no further page of them. (One with a limit of 1 only asks how far the
    /// server is.)
    pub(super) fn is_full_list(&self) -> bool {
        let is_probe = self.query.split('&').any(|pair| pair == "limit=1");
        self.code == Some(200) && ["list", "streamed-list"].contains(&&*self.asked) && !is_probe
    }
}

/// What the server was asked and sent between two looks.
pub(super) fn cost(before: &Traffic, now: &Traffic, cpu_s: f64) -> ServerCost {
    let new = now.requests.iter().skip(before.requests.len());
    ServerCost {
        bytes: now.bytes() - before.bytes(),
        requests: new.clone().count() as u64,
        lists: new.filter(|request| request.is_full_list()).count() as u64,
        cpu_s,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(asked: &str, query: &str, code: Option<u16>, sent: u64) -> Request {
        serde_json::from_value(json!({
            "method": "GET", "path": "/api/v1/services", "query": query, "asked": asked, "kind": "Service",
            "userAgent": "kube-proxy", "accept": "", "acceptEncoding": "", "code": code,
            "contentType": null, "contentEncoding": null, "sentBytes": sent,
        }))
        .unwrap()
    }

    #[test]
    fn what_came_in_between_counts() {
        let watch = |sent| request("watch", "watch=true", Some(200), sent);
        let before = Traffic {
            requests: vec![watch(100)],
        };
        let now = Traffic {
            requests: vec![
                watch(150),
                request("list", "limit=500", Some(200), 1_000),
                request("next-page", "limit=500&continue=x", Some(200), 1_000),
                request("list", "limit=1", Some(200), 10),
                request("list", "", Some(504), 10),
                request("streamed-list", "watch=true", Some(200), 500),
            ],
        };
        let wanted = ServerCost {
            bytes: 2_570,
            requests: 5,
            lists: 2,
            cpu_s: 0.5,
        };
        assert_eq!(cost(&before, &now, 0.5), wanted);
        assert_eq!(now.watched(0), ["Service"]);
        assert!(now.watched(6).is_empty());
        assert_eq!(now.reads_since(4).len(), 2);
    }
}
