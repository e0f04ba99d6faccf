//! Reports known objects that are missing in a new list from the API server.
//!
//! A watch usually reports deletions. A new list can lack known objects for two reasons:
//!
//! - Users deleted the objects while the API server was unreachable, or while it compacted its
//!   history.
//! - The API server lost the objects, because it restarted with empty storage or from a backup.
//!
//! In both cases the list looks the same, so the daemon always removes the objects. Only the last
//! known state of this node's Node object stays in use. The daemon logs a warning if a list lacks
//! all known objects, or a tenth of them and at least [`NOTEWORTHY_COUNT`]. If a list lacks fewer
//! objects, the daemon logs information.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use proxy::{Changes, Kind, MissingObjects};
use source::kind_name;
use tracing::{info, warn};

/// Smallest number of missing objects that may cause a warning. Their share of the known objects
/// must also be at least a tenth ([`NOTEWORTHY_PART`]).
const NOTEWORTHY_COUNT: usize = 3;
/// Divisor for the share of missing objects that causes a warning: a tenth of the known objects.
const NOTEWORTHY_PART: usize = 10;

/// Counter of objects that were missing in a new list, by kind.
pub(crate) type Counts = Family<KindLabels, Counter>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabels {
    kind: &'static str,
}

/// Creates the counter with 0 for each kind. A time series that began with the first increment
/// would show no increase.
pub(crate) fn counts() -> Counts {
    let counts = Counts::default();
    for kind in Kind::ALL {
        drop(counts.get_or_create(&of(kind)));
    }
    counts
}

/// Logs and counts the known objects that are missing in a new list.
pub(crate) fn tell(changes: &Changes, counts: &Counts) {
    for vanished in &changes.vanished {
        let count = vanished.count as u64;
        counts.get_or_create(&of(vanished.kind)).inc_by(count);
        let line = line(vanished);
        if is_much(vanished) {
            warn!(
                "{line}. If these deletions were not intended, check whether the API server's \
                 storage (etcd) was restored or recreated"
            );
        } else {
            info!("{line}");
        }
    }
}

fn of(kind: Kind) -> KindLabels {
    KindLabels {
        kind: kind_name(kind),
    }
}

fn is_much(vanished: &MissingObjects) -> bool {
    let MissingObjects { count, known, .. } = *vanished;
    // Also warns if every known object is missing. An API server with intact data lists at least
    // the Service default/kubernetes, so an empty list means lost data.
    count == known || (count >= NOTEWORTHY_COUNT && count * NOTEWORTHY_PART >= known)
}

fn line(vanished: &MissingObjects) -> String {
    let MissingObjects {
        kind, count, known, ..
    } = *vanished;
    let mut names: Vec<_> = vanished.first.iter().map(ToString::to_string).collect();
    if kind == Kind::Node {
        let names = names.concat();
        let name = names.trim_start_matches('/');
        return format!(
            "the API server's list no longer names the own Node, {name}: its last known state \
             stays in use"
        );
    }
    if count > names.len() {
        names.push("…".to_owned());
    }
    let consequence = match kind {
        Kind::EndpointSlice => "their endpoints are taken away",
        _ => "their entries are removed",
    };
    format!(
        "the API server's list no longer names {count} of {known} {}s: {}; {consequence}",
        kind_name(kind),
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use apiserver::{Options, Server};
    use futures::{Stream, StreamExt as _};
    use proxy::{Event, Model, NamespacedName};
    use serde_json::json;
    use source::{Api, api};

    use super::*;
    use crate::metrics::Metrics;

    /// Buffer to which a test's thread writes its log.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log lines about the changes, without times.
    fn said(changes: &Changes, metrics: &Metrics) -> String {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(subscriber.finish(), || tell(changes, &metrics.vanished));
        let text = log.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap()
    }

    fn counted(metrics: &Metrics, kind: &str) -> u64 {
        let text = metrics.classic();
        let name = format!("kubeproxy_list_vanished_objects_total{{kind=\"{kind}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap().parse().unwrap()
    }

    async fn until(
        events: &mut (impl Stream<Item = Event> + Unpin),
        model: &mut Model,
        is_so: impl Fn(&Model) -> bool,
    ) {
        let told = async {
            while !is_so(model) {
                model.apply(events.next().await.unwrap());
            }
        };
        let limit = Duration::from_mins(2);
        tokio::time::timeout(limit, told).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn objects_lost_by_the_api_server_are_logged_and_counted() {
        let options = || Options {
            kubernetes_service: true,
            ..Options::default()
        };
        let server = Server::start(options()).await.unwrap();
        for number in 100..220 {
            let name = format!("web{number}");
            let service = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"clusterIP": format!("10.96.0.{number}"), "ports": [{"port": 80}]}});
            let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": format!("{name}-a"), "namespace": "default",
                             "labels": {"kubernetes.io/service-name": name}}, "ports": [], "endpoints": []});
            server.apply(service).unwrap();
            server.apply(slice).unwrap();
        }
        let url = server.url();
        let settings = Api {
            master: Some(url),
            ..Api::default()
        };
        let source = api::Server::new(&settings, source::uncounted).await;
        let source = source.ok().unwrap();
        let mut events = source.stream("node1").boxed();
        let (mut model, metrics) = (Model::new(), Metrics::new());
        until(&mut events, &mut model, Model::is_complete).await;
        assert_eq!(said(&model.take_changes(), &metrics), "");
        assert_eq!(counted(&metrics, "Service"), 0);

        // Waits for the watches. Otherwise the new API server could send events before the daemon
        // watches.
        let is_watch = |one: &apiserver::Request| one.query.contains("watch=true");
        while server.requests().iter().filter(|one| is_watch(one)).count() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let address = server.address();
        server.stop().await;
        let options = Options {
            address,
            ..options()
        };
        let _server = Server::start(options).await.unwrap();
        until(&mut events, &mut model, |model| {
            model.changes().vanished.len() == 2
        })
        .await;
        let mut lines: Vec<_> = said(&model.take_changes(), &metrics)
            .lines()
            .map(|line| line.trim().to_owned())
            .collect();
        lines.sort_unstable();
        let advice = "If these deletions were not intended, check whether the API server's \
                      storage (etcd) was restored or recreated";
        assert_eq!(
            lines,
            [
                format!(
                    "WARN the API server's list no longer names 120 of 120 EndpointSlices: \
                     default/web100-a, default/web101-a, \
                     default/web102-a, default/web103-a, default/web104-a, …; their endpoints are \
                     taken away. {advice}"
                ),
                // The API server still lists one Service: every API server has default/kubernetes.
                format!(
                    "WARN the API server's list no longer names 120 of 121 Services: \
                     default/web100, default/web101, default/web102, \
                     default/web103, default/web104, …; their entries are removed. {advice}"
                ),
            ]
        );
        assert_eq!(counted(&metrics, "Service"), 120);
        assert_eq!(counted(&metrics, "EndpointSlice"), 120);
        assert_eq!(counted(&metrics, "Node"), 0);
    }

    #[test]
    fn many_lost_objects_cause_a_warning() {
        let vanished = |kind, count, known, first: &[NamespacedName]| Changes {
            vanished: vec![MissingObjects {
                kind,
                count,
                known,
                first: first.into(),
            }],
            ..Changes::default()
        };
        let metrics = Metrics::new();
        let name = |name| NamespacedName::new("default", name);
        let of = |count, known| {
            let changes = vanished(Kind::Service, count, known, &[name("a")]);
            said(&changes, &metrics).trim_start().starts_with("WARN")
        };
        for (count, known) in [(1, 1), (2, 2), (3, 8), (3, 30), (100, 1000)] {
            assert!(of(count, known), "{count} of {known}");
        }
        for (count, known) in [(1, 2), (2, 3), (3, 31), (99, 1000)] {
            assert!(!of(count, known), "{count} of {known}");
        }
        let one = vanished(Kind::Service, 1, 7, &[name("a")]);
        assert_eq!(
            said(&one, &metrics).trim(),
            "INFO the API server's list no longer names 1 of 7 Services: default/a; their entries \
             are removed"
        );
        let node = vanished(Kind::Node, 1, 1, &[NamespacedName::new("", "node1")]);
        let line = said(&node, &metrics);
        assert!(
            line.contains("the own Node, node1: its last known state stays"),
            "{line}"
        );
        assert_eq!(counted(&metrics, "Node"), 1);
    }
}
