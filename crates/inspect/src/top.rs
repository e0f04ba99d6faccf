//! Responds to `/api/v1/top` with the busiest Services, computed from two counter samples.
//!
//! ```text
//!   sample: all addresses ─▶ rates since the last sample ─▶ busiest addresses
//!                                                            └─▶ the loop: their owners
//!                                                                             │
//!   view::Top ◀─ rates of their endpoints ◀─ sample: endpoints of addresses ◀─┘
//! ```
//!
//! - All clients share the last two samples. They are dropped a minute after the last request.
//! - Requests within a second share one read of all addresses, and one read of the endpoints of
//!   each listed address.
//! - Separate threads read the kernel, one sample after the other, and rank the Services.

mod rank;
mod samples;

use std::sync::Arc;
use std::time::Instant;

use http::Uri;
use tokio::task::spawn_blocking;

use rank::{Sort, assemble, busiest};
pub(super) use samples::SampleStore;

use super::owners::{Owner, RequestedPorts};
use super::{Inspect, Question, RequestRefusal, rendered};

/// Number of Service ports, and of endpoints, that a response lists if the query has no parameter
/// `limit`.
const LIMIT: usize = 50;
/// Maximum number of Service ports, and of endpoints, that a response lists.
const LIMIT_MAX: usize = 1_000;

/// Parameters of a request for `/api/v1/top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TopQuery {
    limit: usize,
    sort: Sort,
}

impl TopQuery {
    fn read(uri: &Uri) -> Result<Self, RequestRefusal> {
        let mut asked = Self {
            limit: LIMIT,
            sort: Sort::Connections,
        };
        let pairs = uri.query().unwrap_or_default().split('&');
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    asked.limit = limit.ok_or_else(|| {
                        RequestRefusal::Wrong(format!("limit={value}: give 1 to {LIMIT_MAX}"))
                    })?;
                }
                "sort" => {
                    asked.sort = Sort::named(value).ok_or_else(|| {
                        RequestRefusal::Wrong(format!(
                            "sort={value}: give connections, packets or bytes"
                        ))
                    })?;
                }
                _ => {
                    let why = format!("there is no parameter {name}; there are: limit, sort");
                    return Err(RequestRefusal::Wrong(why));
                }
            }
        }
        Ok(asked)
    }
}

impl Inspect {
    /// Returns the busiest Service ports and endpoints as JSON.
    pub(super) async fn top(&self, uri: &Uri) -> Result<Vec<u8>, RequestRefusal> {
        let TopQuery { limit, sort } = TopQuery::read(uri)?;
        let facts = self.ask(Question::Facts).await?;
        let looks = self.looks.clone();
        let counters = self.counters.clone();
        let looked = spawn_blocking(move || {
            let span = looks.take(&counters, Instant::now())?;
            let found = busiest(&span, sort, limit);
            Ok::<_, RequestRefusal>((span, RequestedPorts::new(found.at, found.names)))
        });
        let ended = |error: tokio::task::JoinError| RequestRefusal::Unreadable(error.to_string());
        let (span, wanted) = looked.await.map_err(ended)??;
        self.looks.forget_later();
        let owners = self.owners(wanted).await?;
        let looks = self.looks.clone();
        let counters = self.counters.clone();
        rendered(move || {
            let is_node = |address| facts.is_of_node(address);
            let mut top = assemble(&span, owners, &is_node, sort, limit);
            let endpoints = looks.endpoints(&counters, &top.at, Instant::now())?;
            top.add_endpoints(&endpoints, sort, limit);
            let mut view = top.view;
            let families = &facts.families;
            view.pending = families.iter().map(|of| of.standing.pending).sum();
            view.failing = families.iter().map(|of| of.standing.failing).sum();
            view.draining = families.iter().map(|of| of.drains.count).sum();
            view.notes.extend(counters.note());
            Ok(view)
        })
        .await
    }

    /// Requests the owners of addresses from the daemon's main loop, which checks a limited number
    /// of Services per turn.
    async fn owners(&self, wanted: RequestedPorts) -> Result<Vec<Owner>, RequestRefusal> {
        let wanted = Arc::new(wanted);
        let mut all = Vec::new();
        let mut from = 0;
        loop {
            let asked = |answer| Question::Owners(Arc::clone(&wanted), from, answer);
            let part = self.ask(asked).await?;
            all.extend(part.found);
            if part.is_last {
                return Ok(all);
            }
            from += super::owners::LOOKED_AT_A_TURN;
        }
    }
}

#[cfg(test)]
mod tests;
