//! Kubernetes events, which `kubectl describe` shows with an object (`events.k8s.io/v1`, KEP-383).
//!
//! ```text
//!   the daemon ─record─▶ bounded queue ─▶ task: sent recently? ─▶ POST, retries with back-off
//! ```
//!
//! - Sending events never delays the daemon.
//! - An event that cannot be sent is dropped with a debug line. The log already reports the same
//!   fact.
//! - Of equal events within [`ONCE_IN`], only the first is sent. No event has the field `series`.
//! - An event with the same content on every node also has the same name. The first node creates
//!   the event, and all other nodes find that the event exists. So a conflict of two Services
//!   causes one event in the whole cluster.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::core::Status;
use kube::{Api, Client};
use proxy::{Conflict, Model, NamespacedName, ServicePortName};
use source::api::{Backoff, Cost};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

/// Time after an event during which an equal event is not sent.
pub const ONCE_IN: Duration = Duration::from_mins(10);
/// Largest number of queued events, and of distinct events remembered within [`ONCE_IN`].
pub const EVENTS_MAX: usize = 256;
/// Longest time for sending one event, including retries.
const TELLING_PATIENCE: Duration = Duration::from_mins(2);
/// Time limit for one response of the API server.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the last event before the process ends.
const LAST_EVENT_PATIENCE: Duration = Duration::from_secs(3);
/// Maximum length of a note in bytes, set by the API server (`pkg/apis/core/validation/events.go`).
const NOTE_BYTES_MAX: usize = 1024;
const INSTANCE_BYTES_MAX: usize = 128;
/// Maximum length, in bytes, of the prefix of an event's name. The name is a DNS subdomain: the
/// object's name, a dot, and 16 hexadecimal digits.
const NAME_PREFIX_BYTES_MAX: usize = 253 - 17;
/// Value of `reportingController`, as in upstream's events.
const CONTROLLER: &str = "kube-proxy";

/// A Kubernetes event about a Node or a Service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    is_warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
    kind: &'static str,
    /// Namespace of the object. Empty for a Node.
    namespace: String,
    name: String,
    uid: Option<String>,
    /// True if every node sends this event, with the same content and name.
    is_everywhere: bool,
}

impl Event {
    /// Returns a normal event on the Node: the proxy has started in the mode `mode`. Reason and
    /// action are the same as upstream's.
    pub fn starting(node: &str, mode: &str) -> Self {
        let note = format!("kube-proxy starts to carry Services in {mode} mode");
        Self::of_node(node, "Starting", note)
    }

    /// Returns a warning on the Node: the health or metrics server cannot listen. Reason and action
    /// are the same as upstream's. Upstream sends the event only before it exits
    /// (`--bind-address-hard-fail`). This program also sends it before a retry.
    pub fn listen_failed(node: &str, reason: &'static str, note: String) -> Self {
        Self {
            is_warning: true,
            ..Self::of_node(node, reason, note)
        }
    }

    /// Returns a warning on the Node: no mode was chosen. Upstream 1.37 also has this event.
    pub fn mode_not_set(node: &str, note: String) -> Self {
        Self {
            is_warning: true,
            ..Self::of_node(node, "ProxyModeNotSet", note)
        }
    }

    /// Returns a warning on the Node: a change of the configuration file takes effect only after a
    /// restart. Upstream has no such event.
    pub fn restart_required(node: &str, note: String) -> Self {
        Self {
            is_warning: true,
            action: "Reconfigure",
            ..Self::of_node(node, "RestartRequired", note)
        }
    }

    /// Returns a normal event on the Node. The field `regarding.uid` is the Node's name, because
    /// `kubectl describe node` searches for that uid.
    fn of_node(node: &str, reason: &'static str, note: String) -> Self {
        Self {
            is_warning: false,
            reason,
            action: "StartKubeProxy",
            note,
            kind: "Node",
            namespace: String::new(),
            name: node.to_owned(),
            uid: Some(node.to_owned()),
            is_everywhere: false,
        }
    }

    /// Returns a warning on a Service whose address and port belong to another Service. Upstream
    /// has no such event.
    pub fn address_conflict(conflict: &Conflict, model: &Model) -> Self {
        let Conflict {
            object,
            winner,
            loser,
        } = conflict;
        let note = format!(
            "{object} is also claimed by Service {winner}, which gets it as the older Service or \
             the first by name. This Service takes over when the other one no longer claims it"
        );
        Self {
            is_everywhere: true,
            ..Self::service_warning(
                &loser.service,
                model,
                ("AddressConflict", "SyncProxyRules"),
                note,
            )
        }
    }

    /// Returns a warning on a Service whose address and port belong to another program's virtual
    /// server. Upstream overwrites that virtual server.
    pub fn address_taken(at: &str, owner: &ServicePortName, model: &Model) -> Self {
        let note = format!(
            "another program has a virtual server of IPVS at {at} on this node: it stays \
             unchanged, and port {owner} is not served there until it is removed"
        );
        let reason = ("AddressTaken", "SyncProxyRules");
        Self::service_warning(&owner.service, model, reason, note)
    }

    /// Returns a warning on a Service that needs its own packet mark (`--ipvs-semantics=exact`)
    /// while no mark is free. Upstream has no such event, because its Services need no marks of
    /// their own.
    pub fn marks_exhausted(owner: &ServicePortName, model: &Model) -> Self {
        let note = format!(
            "all packet marks of --ipvs-mark-bits are in use on this node: clients inside the \
             cluster reach only the local endpoints of port {owner} at its external addresses, \
             until a mark becomes free; add bits that nothing else uses"
        );
        let reason = ("MarksExhausted", "SyncProxyRules");
        Self::service_warning(&owner.service, model, reason, note)
    }

    /// Returns a warning on a Service about an external or load-balancer address. The proxy rejects
    /// the address, or serves it although this node has the address. `node` is `None` if every node
    /// sends the same event. Upstream has no such event.
    pub fn address_contested(
        service: &NamespacedName,
        model: &Model,
        node: Option<&str>,
        is_refused: bool,
        line: &str,
    ) -> Self {
        let reason = if is_refused {
            "AddressRefused"
        } else {
            "NodeAddressClaimed"
        };
        let note = match node {
            Some(node) => format!("on node {node}, {line}"),
            None => line.to_owned(),
        };
        Self {
            is_everywhere: node.is_none(),
            ..Self::service_warning(service, model, (reason, "SyncProxyRules"), note)
        }
    }

    /// Returns a warning on a Service with more addresses, ports or endpoints than the proxy
    /// serves. Every node sends the same event.
    pub fn service_too_large(service: &NamespacedName, model: &Model, line: String) -> Self {
        let reason_and_action = ("ServiceTooLarge", "SyncProxyRules");
        Self {
            is_everywhere: true,
            ..Self::service_warning(service, model, reason_and_action, line)
        }
    }

    /// Returns a warning on a Service with an ignored annotation. If `node` is set, only this node
    /// ignores the annotation. If `node` is `None`, every node in this mode ignores it.
    pub fn option_not_heeded(
        service: &NamespacedName,
        model: &Model,
        node: Option<&str>,
        line: String,
    ) -> Self {
        let note = match node {
            Some(node) => format!("on node {node}, {line}"),
            None => line,
        };
        Self {
            is_everywhere: node.is_none(),
            ..Self::service_warning(service, model, ("OptionNotHeeded", "SyncProxyRules"), note)
        }
    }

    /// Returns a warning on a Service whose health checks this node cannot serve. Reason and action
    /// are the same as upstream's.
    pub fn health_check_failed(
        service: &NamespacedName,
        model: &Model,
        node: &str,
        at: impl Display,
        error: &std::io::Error,
    ) -> Self {
        let note = format!(
            "node {node} cannot listen on {at} for the health checks of the Service, so its load \
             balancer may leave \
             this node out: {error}"
        );
        let reason_and_action = ("FailedToStartServiceHealthcheck", "Listen");
        Self::service_warning(service, model, reason_and_action, note)
    }

    /// Returns a warning on a Service. The field `regarding.uid` is the Service's uid from the
    /// model, because `kubectl describe service` searches for that uid.
    fn service_warning(
        service: &NamespacedName,
        model: &Model,
        (reason, action): (&'static str, &'static str),
        note: String,
    ) -> Self {
        let uid = model.view(service).map(|view| view.service.uid.to_string());
        Self {
            is_warning: true,
            reason,
            action,
            note,
            kind: "Service",
            namespace: service.namespace().to_owned(),
            name: service.name().to_owned(),
            uid: uid.filter(|uid| !uid.is_empty()),
            is_everywhere: false,
        }
    }

    /// Returns a hash of the event, for its name and for finding repeated events. Equal events have
    /// the same hash in every process.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the event as an object of the API group `events.k8s.io/v1`.
    fn object(&self, instance: &str, time: Timestamp) -> v1::Event {
        let suffix = if self.is_everywhere {
            i128::from(self.digest())
        } else {
            time.as_nanosecond()
        };
        let prefix = first_bytes(&self.name, NAME_PREFIX_BYTES_MAX).trim_end_matches(['.', '-']);
        let namespace = if self.namespace.is_empty() {
            "default"
        } else {
            &self.namespace
        };
        let kind_of_event = if self.is_warning { "Warning" } else { "Normal" };
        v1::Event {
            metadata: ObjectMeta {
                name: Some(format!("{prefix}.{suffix:016x}")),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(time)),
            type_: Some(kind_of_event.to_owned()),
            reason: Some(self.reason.to_owned()),
            action: Some(self.action.to_owned()),
            note: Some(first_bytes(&self.note, NOTE_BYTES_MAX).to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some(self.kind.to_owned()),
                name: Some(self.name.clone()),
                namespace: (!self.namespace.is_empty()).then(|| self.namespace.clone()),
                uid: self.uid.clone(),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            ..v1::Event::default()
        }
    }
}

/// Returns at most `most` bytes of the beginning of a text, without cutting a character in two.
fn first_bytes(text: &str, most: usize) -> &str {
    let (first, _) = text.split_at(text.floor_char_boundary(most));
    first
}

/// Queue of events for the task that sends them. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: Option<mpsc::Sender<RecordedEvent>>,
}

/// An event with the time at which it was recorded.
#[derive(Debug)]
pub(crate) struct RecordedEvent {
    pub(crate) event: Event,
    time: Timestamp,
    since: Instant,
    /// Sender whose drop wakes the caller that waits for this event. The task drops the sender
    /// after it has sent the event, or after it has stopped trying. `None` if no caller waits.
    _waiter: Option<oneshot::Sender<()>>,
}

impl Recorder {
    /// Creates a recorder that drops every event, for use without an API server.
    pub fn off() -> Self {
        Self { queue: None }
    }

    /// Starts a task that sends events to an API server, in the name of the node `node`. The task
    /// ends when the last clone of the recorder is dropped. Needs a tokio runtime.
    pub fn start(client: Client, node: &str) -> Self {
        let (recorder, queue) = Self::queued();
        let teller = EventSender {
            client,
            instance: first_bytes(&format!("{CONTROLLER}-{node}"), INSTANCE_BYTES_MAX).to_owned(),
            told: HashMap::new(),
            is_forbidden: false,
        };
        tokio::spawn(teller.run(queue));
        recorder
    }

    /// Creates a recorder, and returns it with the receiving end of its queue.
    pub(crate) fn queued() -> (Self, mpsc::Receiver<RecordedEvent>) {
        let (queue, received) = mpsc::channel(EVENTS_MAX);
        (Self { queue: Some(queue) }, received)
    }

    /// Queues an event without waiting. If the queue is full, the event is dropped.
    pub fn record(&self, event: Event) {
        self.queue(event, None);
    }

    /// Queues the last event before the process ends. Waits up to `LAST_EVENT_PATIENCE` until the
    /// event is sent.
    pub async fn record_last(&self, event: Event) {
        let (waiter, told) = oneshot::channel();
        self.queue(event, Some(waiter));
        // Waits until the task drops the sender, after it has sent the event or stopped trying. The
        // channel never carries a value.
        _ = timeout(LAST_EVENT_PATIENCE, told).await;
    }

    fn queue(&self, event: Event, waiter: Option<oneshot::Sender<()>>) {
        let Some(queue) = &self.queue else {
            return;
        };
        let recorded = RecordedEvent {
            event,
            time: Timestamp::now(),
            since: Instant::now(),
            _waiter: waiter,
        };
        if let Err(mpsc::error::TrySendError::Full(RecordedEvent { event, .. })) =
            queue.try_send(recorded)
        {
            debug!(
                reason = event.reason,
                name = event.name,
                "event dropped: {EVENTS_MAX} events wait"
            );
        }
    }
}

/// Task that sends events to an API server, one after the other.
struct EventSender {
    client: Client,
    instance: String,
    /// Time at which each event was last sent, by the event's digest.
    told: HashMap<u64, Instant>,
    /// True once the log has reported that the API server forbids events.
    is_forbidden: bool,
}

/// Outcome of an attempt to send an event.
enum SendOutcome {
    /// Final: the event exists in the API server, or the API server will never accept the event.
    Final,
    /// The attempt failed for this reason. A later attempt may succeed.
    NotYet(String),
}

impl EventSender {
    async fn run(mut self, mut queue: mpsc::Receiver<RecordedEvent>) {
        while let Some(recorded) = queue.recv().await {
            let event = &recorded.event;
            let (digest, now) = (event.digest(), Instant::now());
            self.told
                .retain(|_, told| now.duration_since(*told) < ONCE_IN);
            if self.told.contains_key(&digest) {
                continue;
            }
            let is_flood = self.told.len() >= EVENTS_MAX;
            if !is_flood && self.tell(&recorded).await {
                self.told.insert(digest, Instant::now());
            } else {
                let why = if is_flood {
                    "too many different ones"
                } else {
                    "the API server is away"
                };
                debug!(
                    reason = event.reason,
                    name = event.name,
                    "event dropped: {why}"
                );
            }
        }
    }

    /// Sends an event, with retries until the outcome is final or the event is too old. Returns
    /// false if the event is too old.
    async fn tell(&mut self, recorded: &RecordedEvent) -> bool {
        let object = recorded.event.object(&self.instance, recorded.time);
        let mut backoff = Backoff::default();
        loop {
            let SendOutcome::NotYet(why) = self.create(&object).await else {
                return true;
            };
            debug!(reason = recorded.event.reason, "event not sent yet: {why}");
            let delay = backoff.next(Cost::Something, Instant::now());
            if recorded.since.elapsed() + delay > TELLING_PATIENCE {
                return false;
            }
            sleep(delay).await;
        }
    }

    async fn create(&mut self, object: &v1::Event) -> SendOutcome {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<v1::Event> = Api::namespaced(self.client.clone(), namespace);
        match timeout(ANSWER_PATIENCE, api.create(&PostParams::default(), object)).await {
            Ok(Ok(_)) => {
                self.is_forbidden = false;
                SendOutcome::Final
            }
            Ok(Err(kube::Error::Api(status))) => self.refused(&status),
            Ok(Err(error)) => SendOutcome::NotYet(error.to_string()),
            Err(_) => SendOutcome::NotYet(format!("no answer for {ANSWER_PATIENCE:?}")),
        }
    }

    fn refused(&mut self, status: &Status) -> SendOutcome {
        let message = first_bytes(&status.message, 200);
        match status.code {
            408 | 429 | 500.. => return SendOutcome::NotYet(message.to_owned()),
            // The event exists: another node created it, or this node created it and lost the
            // response.
            409 => {}
            403 if !is_terminating(status) && !self.is_forbidden => {
                self.is_forbidden = true;
                warn!(
                    "the API server forbids Kubernetes events ({message}); they are in this log \
                     only. Bind the ClusterRole \
                     system:node-proxier, or allow `create` on `events` in the API group \
                     events.k8s.io"
                );
            }
            code => debug!("event refused: {code} {message}"),
        }
        SendOutcome::Final
    }
}

/// Reports whether the API server rejects an object because its namespace is being deleted.
fn is_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .into_iter()
        .any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use proxy::{Protocol, ServicePortName};

    use super::*;

    fn conflict(object: &str) -> Event {
        let port = |name: &str| ServicePortName {
            service: NamespacedName::new("shop", name),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let conflict = Conflict {
            object: object.to_owned(),
            winner: port("older"),
            loser: port("younger"),
        };
        Event::address_conflict(&conflict, &Model::new())
    }

    fn starting(node: &str) -> Event {
        Event::starting(node, "ipvs")
    }

    /// Returns the name and the API object of an event.
    fn told(event: &Event, node: &str, nanoseconds: i128) -> (String, v1::Event) {
        let time = Timestamp::from_nanosecond(nanoseconds).unwrap();
        let object = event.object(&format!("kube-proxy-{node}"), time);
        (object.metadata.name.clone().unwrap(), object)
    }

    #[test]
    fn a_conflict_event_has_the_same_name_on_all_nodes() {
        let of = |object: &str, node, time| told(&conflict(object), node, time).0;
        let name = of("192.0.2.1:80/TCP", "node1", 1);
        assert!(name.starts_with("younger."), "{name}");
        assert_eq!(name, of("192.0.2.1:80/TCP", "node2", 2));
        assert_ne!(name, of("192.0.2.1:81/TCP", "node1", 1));
    }

    #[test]
    fn each_start_event_has_its_own_name() {
        let of = |time| told(&starting("node1"), "node1", time).0;
        assert_eq!(of(0x1234_5678_9abc_def0), "node1.123456789abcdef0");
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn the_length_of_event_fields_is_limited() {
        let (_, object) = told(&conflict(&"ü".repeat(1000)), "n", 1);
        let note = object.note.unwrap();
        assert_eq!(note, "ü".repeat(512));
        let node = "a.".repeat(126) + "a";
        let (name, _) = told(&starting(&node), "n", 1);
        // The name's prefix must not end in a dot.
        assert_eq!(name, format!("{}a.0000000000000001", "a.".repeat(117)));
    }
}
