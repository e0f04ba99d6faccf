//! Reads the log of the fake API server: requests of the measured kube-proxy, and sizes of
//! responses.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::http::{self, Api};
use crate::schema::ServerCost;

/// Requests of the measured kube-proxy, with the sizes of their responses. Excludes the benchmark's
/// own requests.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Traffic {
    /// Requests since the [`Mark`] from which the log was read.
    requests: Vec<Request>,
    /// Bytes that the server has ever sent in responses to the kube-proxy, after compression.
    sent_bytes: u64,
    /// Number of all requests in the log, including the benchmark's own.
    count: usize,
}

/// Position in the server's log, from which a later read counts requests and bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    sent_bytes: u64,
    count: usize,
}

/// A request of the kube-proxy, and the number of bytes in its response.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    asked: String,
    kind: Option<String>,
    pub(super) accept: String,
    pub(super) accept_encoding: String,
    /// HTTP status code of the response, or `None` if the server has not responded yet.
    code: Option<u16>,
    sent_bytes: u64,
}

impl Traffic {
    /// Reads the server's log from the position `since` on. With `None`, reads only the totals.
    pub(super) fn read(api: &mut Api, since: Option<Mark>) -> Result<Self> {
        // Excludes all requests by `from`, because listing them would add to the server's measured
        // CPU time.
        let from = since.map_or(u32::MAX as usize, |mark| mark.count);
        let path = format!("/fixture/requests?from={from}&without={}", http::USER_AGENT);
        serde_json::from_value(api.get(&path)?).context("the fixture's requests are not understood")
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            sent_bytes: self.sent_bytes,
            count: self.count,
        }
    }

    /// Returns the kinds of objects for which the server has accepted a watch, sorted, each once.
    pub(super) fn watched(&self) -> Vec<String> {
        let watches = self.requests.iter().filter(|request| {
            request.code == Some(200) && ["watch", "streamed-list"].contains(&&*request.asked)
        });
        let kinds: BTreeSet<&String> = watches.filter_map(|one| one.kind.as_ref()).collect();
        kinds.into_iter().cloned().collect()
    }

    /// Returns the `GET` requests: lists, watches and reads of single objects.
    pub(super) fn reads(self) -> Vec<Request> {
        let all = self.requests.into_iter();
        all.filter(|request| request.method == "GET").collect()
    }

    /// Returns the load on the server since the mark `since`, from which this traffic must have
    /// been read.
    pub(super) fn cost(&self, since: Mark, cpu_s: f64) -> ServerCost {
        let lists = self
            .requests
            .iter()
            .filter(|request| request.is_full_list());
        ServerCost {
            bytes: self.sent_bytes - since.sent_bytes,
            requests: self.requests.len() as u64,
            lists: lists.count() as u64,
            cpu_s,
        }
    }
}

impl Request {
    /// Returns true if the server responded to this request with a list of all objects. Excludes
    /// later pages, and lists with `limit=1`, which only query the resource version.
    pub(super) fn is_full_list(&self) -> bool {
        let is_probe = self.query.split('&').any(|pair| pair == "limit=1");
        self.code == Some(200) && ["list", "streamed-list"].contains(&&*self.asked) && !is_probe
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(asked: &str, query: &str, code: Option<u16>) -> Request {
        serde_json::from_value(json!({
            "method": "GET", "path": "/api/v1/services", "query": query, "asked": asked, "kind": "Service",
            "userAgent": "kube-proxy", "accept": "", "acceptEncoding": "", "code": code,
            "contentType": null, "contentEncoding": null, "sentBytes": 1,
        }))
        .unwrap()
    }

    #[test]
    fn api_traffic_is_counted_from_the_start_of_a_measurement() {
        let since = Mark {
            sent_bytes: 100,
            count: 1,
        };
        let now = Traffic {
            requests: vec![
                request("list", "limit=500", Some(200)),
                request("next-page", "limit=500&continue=x", Some(200)),
                request("list", "limit=1", Some(200)),
                request("list", "", Some(504)),
                request("streamed-list", "watch=true", Some(200)),
            ],
            sent_bytes: 2_670,
            count: 9,
        };
        let wanted = ServerCost {
            bytes: 2_570,
            requests: 5,
            lists: 2,
            cpu_s: 0.5,
        };
        assert_eq!(now.cost(since, 0.5), wanted);
        assert_eq!(now.watched(), ["Service"]);
        assert_eq!(now.reads().len(), 5);
    }
}
