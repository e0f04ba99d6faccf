//! Responds to `/api/v1/services` and `/api/v1/services/NAMESPACE/NAME`.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use proxy::NamespacedName;
use service_counters::{At, CounterSamples, CounterSelection, Counters};
use source::EndpointPlaces;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use view::{Service, ServiceList};

use super::query::Query;
use super::question::{NodeContext, Question, SERVICES_A_TURN, ServiceCopy};
use super::service::{Detail, ServiceContext, anywhere};
use super::{Inspect, RequestRefusal, rendered};

/// Maximum number of attempts to list the Services. An attempt fails if Services are added or
/// removed meanwhile.
const TRIES: usize = 3;
/// Number of endpoints at which a page of Services with their endpoints ends. An endpoint counts
/// once for each Service port.
const ENDPOINTS_MAX: usize = 20_000;
/// Maximum number of addresses for which the server reads counters one by one, together with those
/// of endpoints. For more addresses, it reads one dump without counters of endpoints.
const COUNTED_ADDRESSES_MAX: usize = 2_000;
/// Longest wait for the source to return the names of pods, nodes and zones.
const WHEREABOUTS_PATIENCE: Duration = Duration::from_secs(2);

/// Names of the Services on a page, and the number of Services on all pages.
struct Page {
    names: Vec<NamespacedName>,
    total: usize,
    has_more: bool,
}

impl Inspect {
    /// Returns one page of the list of Services, as JSON.
    pub(super) async fn services(&self, uri: &Uri) -> Result<Vec<u8>, RequestRefusal> {
        let query = Query::read(uri)?;
        let mut list = ServiceList::default();
        let names = self.names(&mut list.notes).await?;
        let of = query.clone();
        let page = blocking(move || page(names, &of)).await?;
        list.total = page.total;
        let ground = Arc::new(self.ask(Question::Ground).await?);
        let mut has_more = page.has_more;
        let mut last = None;
        let mut copied = Vec::new();
        let mut endpoints = 0;
        let mut names = &*page.names;
        while !names.is_empty() {
            let asked = names.get(..SERVICES_A_TURN).unwrap_or(names).to_vec();
            let told = self.ask(|answer| Question::Services(asked, answer)).await?;
            // Each reply covers at least one Service, so this loop ends.
            let (done, rest) = names.split_at(told.len().clamp(1, names.len()));
            last = done.last().cloned();
            names = rest;
            let told = told.into_iter().flatten();
            copied.extend(told.inspect(|one| endpoints += one.listed_count()));
            if query.has_endpoints && endpoints >= ENDPOINTS_MAX && !names.is_empty() {
                has_more = true;
                break;
            }
        }
        list.next = last.filter(|_| has_more).map(|name| name.to_string());
        let detail = Detail {
            has_endpoints: query.has_endpoints,
        };
        let counters = query.has_counters.then(|| self.counters.clone());
        rendered(move || {
            let counted = counters.map(|counters| {
                let addresses = addresses(&copied, &ground);
                counted_of_page(&counters, &addresses, detail, &mut list.notes)
            });
            let counted = counted.unwrap_or_default();
            let nowhere = EndpointPlaces::default();
            let seen = ServiceContext::new(&ground, &counted, &nowhere);
            list.items = copied.iter().map(|one| seen.service(one, detail)).collect();
            Ok(list)
        })
        .await
    }

    /// Returns one Service with all details, as JSON.
    pub(super) async fn service(&self, path: &str) -> Result<Vec<u8>, RequestRefusal> {
        let (namespace, name) = path.split_once('/').unwrap_or_default();
        let is_name = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        };
        if !is_name(namespace) || !is_name(name) {
            let why = "give /api/v1/services/NAMESPACE/NAME".to_owned();
            return Err(RequestRefusal::Wrong(why));
        }
        let name = NamespacedName::new(namespace, name);
        let asked = vec![name.clone()];
        let told = self.ask(|answer| Question::Services(asked, answer)).await?;
        let Some(copied) = told.into_iter().next().flatten() else {
            return Err(RequestRefusal::NotFound(format!(
                "there is no Service {name} that is proxied: none of that name, or it is \
                 headless, of type ExternalName, or has \
                 the label service.kubernetes.io/service-proxy-name, or it is unreadable, as \
                 kube-proxy status or the log says"
            )));
        };
        let ground = self.ask(Question::Ground).await?;
        let mut notes = Vec::new();
        let places = self.whereabouts(&name, &mut notes).await;
        notes.extend(places.ignored().iter().cloned());
        let own_node = |answer| Question::OwnNode(None, answer);
        let (mode, _) = self.ask(own_node).await?;
        notes.extend(affinity_note(mode, copied.service.affinity_seconds));
        let counters = self.counters.clone();
        rendered(move || {
            let copied = [copied];
            let addresses = addresses(&copied, &ground);
            let counted = counted(&counters, CounterSelection::Of(&addresses), &mut notes);
            let seen = ServiceContext::new(&ground, &counted, &places);
            let detail = Detail {
                has_endpoints: true,
            };
            let mut services = copied.iter().map(|one| seen.service(one, detail));
            let service = services.next().unwrap_or_default();
            Ok(Service { notes, ..service })
        })
        .await
    }

    /// Requests the pods, nodes and zones of a Service's endpoints from the source, because the
    /// object model does not store them.
    async fn whereabouts(&self, name: &NamespacedName, notes: &mut Vec<String>) -> EndpointPlaces {
        let without = "the names of pods, nodes and zones are missing";
        let Some(source) = self.source.get() else {
            return EndpointPlaces::default();
        };
        match timeout(WHEREABOUTS_PATIENCE, source.registry.whereabouts(name)).await {
            Ok(Ok(found)) => return found,
            Ok(Err(error)) => notes.push(format!("{without}: {error}")),
            Err(_) => notes.push(format!(
                "{without}: {} has not answered within {} s",
                source.from,
                WHEREABOUTS_PATIENCE.as_secs()
            )),
        }
        EndpointPlaces::default()
    }

    /// Requests the names of all Services from the daemon's main loop. Returns them unsorted.
    async fn names(&self, notes: &mut Vec<String>) -> Result<Vec<NamespacedName>, RequestRefusal> {
        let mut all = Vec::new();
        for _ in 0..TRIES {
            all.clear();
            let mut version = None;
            loop {
                let from = all.len();
                let told = self.ask(|answer| Question::Names(from, answer)).await?;
                if version.is_some_and(|version| version != told.version) {
                    break;
                }
                version = Some(told.version);
                all.extend(told.some);
                if told.is_last {
                    return Ok(all);
                }
            }
        }
        let mut from = 0;
        loop {
            let told = self.ask(|answer| Question::Names(from, answer)).await?;
            from += told.some.len();
            all.extend(told.some);
            if told.is_last {
                break;
            }
        }
        notes.push("Services came and went while they were listed: some may be missing".to_owned());
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

/// Selects the Services for a page, and sorts them.
fn page(mut names: Vec<NamespacedName>, query: &Query) -> Page {
    names.retain(|name| query.matches(name));
    let total = names.len();
    let key = |name: &NamespacedName| (name.namespace().to_owned(), name.name().to_owned());
    if let Some(after) = &query.after {
        let after = (after.namespace(), after.name());
        names.retain(|name| (name.namespace(), name.name()) > after);
    }
    let has_more = names.len() > query.limit;
    if has_more {
        // Moves the first `limit` names to the front, so that only these must be sorted.
        names.select_nth_unstable_by(query.limit, by_name);
        names.truncate(query.limit);
    }
    names.sort_by_cached_key(key);
    Page {
        names,
        total,
        has_more,
    }
}

/// Compares the namespaces first, then the names. A comparison of the texts `NAMESPACE/NAME` would
/// sort `-` before `/`.
fn by_name(one: &NamespacedName, other: &NamespacedName) -> std::cmp::Ordering {
    (one.namespace(), one.name()).cmp(&(other.namespace(), other.name()))
}

/// Lists the addresses of all ports of the copied Services.
fn addresses(copied: &[ServiceCopy], ground: &NodeContext) -> Vec<At> {
    let ports = copied.iter().flat_map(|one| {
        let service = &one.service;
        service.ports.iter().map(move |port| (service, port))
    });
    let addresses = ports.flat_map(|(service, port)| {
        let addresses = ground.addresses(service, port).into_iter();
        addresses.map(|(_, at)| at).chain(anywhere(port))
    });
    addresses.collect()
}

/// Reads the counters of a page of Services. Blocks.
fn counted_of_page(
    counters: &Counters,
    addresses: &[At],
    detail: Detail,
    notes: &mut Vec<String>,
) -> CounterSamples {
    let is_one_by_one = counters.with(|reader| reader.tells_more_of_single());
    let is_much = addresses.len() > COUNTED_ADDRESSES_MAX && is_one_by_one == Some(true);
    if is_much && detail.has_endpoints {
        let note =
            "endpoints have no counters on a page of so many addresses: ask with a smaller limit";
        notes.push(note.to_owned());
    }
    let which = if is_much {
        CounterSelection::Addresses
    } else {
        CounterSelection::Of(addresses)
    };
    counted(counters, which, notes)
}

/// Reads counters. If the read fails, adds a note and returns no counters. Blocks.
fn counted(
    counters: &Counters,
    which: CounterSelection<'_>,
    notes: &mut Vec<String>,
) -> CounterSamples {
    let read = counters.with(|reader| reader.read(which));
    match read {
        Some(Ok(counted)) => {
            notes.extend(counted.note.map(str::to_owned));
            return counted;
        }
        Some(Err(error)) => notes.push(format!("counters are missing: {error:#}")),
        None => {}
    }
    CounterSamples::default()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RequestRefusal> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| RequestRefusal::Unreadable(error.to_string()))
}

/// Time for which IPVS keeps a closed TCP connection (`TIME_WAIT`), in seconds.
const TIME_WAIT: u32 = 120;

/// Returns a note if IPVS session affinity may outlast its timeout. IPVS remembers a client's
/// endpoint as long as it has a connection of the client, even a closed one.
fn affinity_note(mode: &str, seconds: Option<u32>) -> Option<String> {
    let seconds = seconds.filter(|seconds| mode == "ipvs" && *seconds < TIME_WAIT)?;
    Some(format!(
        "affinity may last longer than {seconds} s: IPVS keeps a client's endpoint while it knows \
         a connection of the client, \
         and a closed TCP connection for {TIME_WAIT} s more"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_affinity_that_may_outlast_its_timeout_is_noted() {
        assert!(
            affinity_note("ipvs", Some(5))
                .unwrap()
                .contains("longer than 5 s")
        );
        for (mode, seconds) in [("ipvs", Some(120)), ("ipvs", None), ("nftables", Some(5))] {
            assert_eq!(affinity_note(mode, seconds), None, "{mode} {seconds:?}");
        }
    }

    #[test]
    fn pages_of_services_are_sorted_by_namespace_and_name() {
        let all = ["a/x", "a-b/x", "b/a", "a/w", "b/b"];
        let all = all.map(|text| {
            let (namespace, name) = text.split_once('/').unwrap();
            NamespacedName::new(namespace, name)
        });
        let (mut after, mut told) = (String::new(), Vec::new());
        loop {
            let uri = format!("/?limit=2&after={after}").parse().unwrap();
            let page = page(all.to_vec(), &Query::read(&uri).unwrap());
            assert_eq!(page.total, 5);
            told.extend(page.names.iter().map(ToString::to_string));
            if !page.has_more {
                break;
            }
            after = told.last().unwrap().clone();
        }
        assert_eq!(told, ["a/w", "a/x", "a-b/x", "b/a", "b/b"]);
    }
}
