//! Stores the objects and their change history. Every change has its own resource version.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::object::{Change, Key, Object, Recording};
use crate::options::Options;
use crate::resource::Kind;
use crate::selector::Scope;
use crate::status::Status;

/// The state of an API server: its objects and their history. The server and in-process editors
/// share it. A clone is a handle to the same state. The state outlives its server, and another
/// server can serve it.
#[derive(Debug, Clone)]
pub struct Cluster {
    state: Arc<Mutex<StoredCluster>>,
    /// The latest resource version. Each change wakes the watches, which then read the history.
    changed: Arc<watch::Sender<u64>>,
}

/// Reason why [`Cluster::apply_yaml`] stopped. Objects before the error stay applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The text to apply is not valid YAML.
    #[error("cannot read the YAML: {0}")]
    Yaml(#[from] Box<serde_saphyr::Error>),
    /// The server rejected an object of the text.
    #[error("document {document} ({object}) is refused")]
    Refused {
        /// Position of the rejected object's document in the text, counted from 1.
        document: usize,
        /// Kind, namespace and name of the rejected object, as far as the object has them.
        object: String,
        /// Error response that a client would get for the rejected object.
        #[source]
        status: Box<Status>,
    },
}

impl Cluster {
    /// Creates a cluster with the `ServiceCIDR` object of a new Kubernetes cluster. Adds the
    /// Service `default/kubernetes` if the options ask for it. Ignores options that concern only a
    /// server, such as its listen address.
    pub fn new(options: &Options) -> Self {
        // The family of the first range is the default family of Services.
        let cidrs: Vec<IpNet> = options
            .service_cidrs
            .iter()
            .filter_map(|cidr| cidr.parse().ok())
            .collect();
        let mut state = StoredCluster {
            version: 0,
            compacted: 0,
            history: options.history.max(1),
            collections: BTreeMap::new(),
            uids: RandomState::new(),
        };
        let mut objects = vec![json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" },
            "spec": { "cidrs": cidrs.iter().map(ToString::to_string).collect::<Vec<_>>() },
            "status": { "conditions": [{
                "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready",
                "lastTransitionTime": crate::time::now(),
            }] },
        })];
        if let (true, Some(cidr)) = (options.kubernetes_service, cidrs.first()) {
            objects.push(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {
                    "name": "kubernetes", "namespace": "default",
                    "labels": { "component": "apiserver", "provider": "kubernetes" },
                },
                "spec": {
                    "clusterIP": cidr.hosts().next(),
                    "ports": [{ "name": "https", "port": 443, "targetPort": 6443 }],
                },
            }));
        }
        for object in objects {
            state
                .apply(object)
                .expect("what a cluster starts with is valid");
        }
        let changed = Arc::new(watch::Sender::new(state.version));
        Self {
            state: Arc::new(Mutex::new(state)),
            changed,
        }
    }

    /// Creates or replaces an object, including its status. Keeps the identity (uid, creation time)
    /// of an existing object. Ignores `resourceVersion` in the given object. Returns the stored
    /// object.
    pub fn apply(&self, object: Value) -> Result<Value, Status> {
        let object = self.write(|state| state.apply(object))?;
        Ok(object.value())
    }

    /// Returns a recording of an EndpointSlice in its present version, for [`Self::replay`].
    pub fn recording(&self, namespace: &str, name: &str) -> Option<Recording> {
        let kind = Kind::EndpointSlice;
        let object = self.lock().get(kind, &(namespace.into(), name.into()))?;
        Some(Recording::new(kind, &object))
    }

    /// Stores all `recordings` in one step, so that watches see all of them together. Each object
    /// keeps its recorded content and gets the next resource version. (Its generation can therefore
    /// decrease.) This function reaches higher change rates than [`Self::apply`].
    pub fn replay<'a>(&self, recordings: impl IntoIterator<Item = &'a mut Recording>) {
        self.write(|state| {
            for slice in recordings {
                state.replay(slice);
            }
        });
    }

    /// Applies every object of a YAML or JSON text. The text may have several documents and lists.
    /// Returns the number of objects.
    pub fn apply_yaml(&self, text: &str) -> Result<usize, ApplyError> {
        // Tries JSON first: benchmarks load large JSON files, which a JSON parser reads many times
        // faster than a YAML parser.
        let documents: Vec<Value> = if let Ok(document) = serde_json::from_str(text) {
            vec![document]
        } else {
            // Disables the parser's budget, which protects against untrusted input: large fixture
            // files exceed this budget.
            let options = serde_saphyr::options! { budget: None };
            serde_saphyr::from_multiple_with_options(text, options).map_err(Box::new)?
        };
        let mut count = 0;
        for (index, document) in documents.into_iter().enumerate() {
            for object in items(document) {
                let named = describe(&object);
                self.apply(object).map_err(|status| ApplyError::Refused {
                    document: index + 1,
                    object: named,
                    status: Box::new(status),
                })?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Deletes an object. `namespace` is empty for cluster-scoped kinds.
    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<(), Status> {
        self.write(|state| state.delete(kind, &(namespace.into(), name.into())))
            .map(drop)
    }

    /// Returns the present version of an object.
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let object = self.lock().get(kind, &(namespace.into(), name.into()))?;
        Some(object.value())
    }

    /// Returns all objects of a kind, ordered by namespace and name.
    pub fn list(&self, kind: Kind) -> Vec<Value> {
        let objects: Vec<_> = self.lock().objects(kind).cloned().collect();
        objects.iter().map(|object| object.value()).collect()
    }

    /// Returns the Events that clients have posted.
    pub fn events(&self) -> Vec<Value> {
        self.list(Kind::Event)
    }

    /// Returns the resource version of the latest change.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// Compacts the history, as a real API server makes etcd do every five minutes. A new watch
    /// from an older version, or a further page of an older list, gets 410 Expired. Open watches
    /// continue.
    pub fn compact(&self) {
        let mut state = self.lock();
        state.compacted = state.version;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StoredCluster> {
        // Ignores poisoning: every write is atomic, so a test thread that panics leaves the state
        // valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Edits the state. Wakes the watches if the edit has created a resource version.
    pub(crate) fn write<T>(&self, edit: impl FnOnce(&mut StoredCluster) -> T) -> T {
        let mut state = self.lock();
        let result = edit(&mut state);
        self.changed
            .send_if_modified(|version| std::mem::replace(version, state.version) != state.version);
        result
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

/// Returns the objects of a document: a list's items, or a single object, or none.
fn items(mut document: Value) -> Vec<Value> {
    let text = |name: &str| {
        document
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    match (
        kind.strip_suffix("List"),
        document.get_mut("items").map(Value::take),
    ) {
        (Some(kind), Some(Value::Array(mut items))) => {
            // Items of a ServiceList may lack `apiVersion` and `kind`.
            for item in items
                .iter_mut()
                .filter_map(Value::as_object_mut)
                .filter(|_| !kind.is_empty())
            {
                item.entry("apiVersion")
                    .or_insert_with(|| api_version.clone().into());
                item.entry("kind").or_insert_with(|| kind.into());
            }
            items
        }
        _ if document.is_null() => Vec::new(),
        _ => vec![document],
    }
}

fn describe(object: &Value) -> String {
    let text = |path: &str| {
        object
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or("?")
            .to_owned()
    };
    match object
        .pointer("/metadata/namespace")
        .and_then(Value::as_str)
    {
        Some(namespace) => format!("{} {namespace}/{}", text("/kind"), text("/metadata/name")),
        None => format!("{} {}", text("/kind"), text("/metadata/name")),
    }
}

/// State of a cluster, behind a lock. Module [`crate::write`] implements its writes.
#[derive(Debug)]
pub(crate) struct StoredCluster {
    pub(crate) version: u64,
    /// Resource version up to which the history is compacted.
    compacted: u64,
    /// Maximum number of changes that the history of each kind keeps.
    history: usize,
    collections: BTreeMap<Kind, Collection>,
    uids: RandomState,
}

#[derive(Debug, Default)]
struct Collection {
    objects: BTreeMap<Key, Arc<Object>>,
    changes: VecDeque<Change>,
    /// Resource version of the latest change that the history has removed from `changes`.
    dropped: u64,
}

/// A page of a list: objects of one kind, at one resource version.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) version: u64,
    pub(crate) objects: Vec<Arc<Object>>,
    /// Number of keys after the page, including objects that the selectors do not match.
    pub(crate) remaining: usize,
    /// Last key that the page examined, if any. The next page begins after this key.
    pub(crate) last: Option<Key>,
}

impl StoredCluster {
    pub(crate) fn get(&self, kind: Kind, key: &Key) -> Option<Arc<Object>> {
        self.collections.get(&kind)?.objects.get(key).cloned()
    }

    pub(crate) fn objects(&self, kind: Kind) -> impl Iterator<Item = &Arc<Object>> {
        self.collections
            .get(&kind)
            .into_iter()
            .flat_map(|collection| collection.objects.values())
    }

    /// Returns the oldest resource version from which the history of `kind` is complete.
    pub(crate) fn oldest(&self, kind: Kind) -> u64 {
        self.compacted.max(self.dropped(kind))
    }

    /// Returns the resource version of the last change removed from the history. An open watch at
    /// an earlier version has lost changes.
    fn dropped(&self, kind: Kind) -> u64 {
        self.collections
            .get(&kind)
            .map_or(0, |collection| collection.dropped)
    }

    /// Returns up to `limit` changes after the version `after`, and the version up to which these
    /// changes are complete. Returns `None` if the history has already dropped changes after
    /// `after`.
    pub(crate) fn changes(
        &self,
        kind: Kind,
        after: u64,
        limit: usize,
    ) -> Option<(Vec<Change>, u64)> {
        if after < self.dropped(kind) {
            return None;
        }
        let changes: Vec<Change> = self.later(kind, after).take(limit).cloned().collect();
        let until = match changes.last() {
            Some(last) if changes.len() == limit => last.version,
            _ => self.version,
        };
        Some((changes, until))
    }

    fn later(&self, kind: Kind, after: u64) -> impl Iterator<Item = &Change> {
        self.collections
            .get(&kind)
            .into_iter()
            .flat_map(move |collection| {
                let is_known = |change: &Change| change.version <= after;
                let start = collection.changes.partition_point(is_known);
                collection.changes.range(start..)
            })
    }

    /// Returns the objects of `scope` after the key `after`, in their state at `version`. Returns
    /// at most `limit` objects (0: all). The history must reach back to `version`.
    pub(crate) fn page(
        &self,
        kind: Kind,
        scope: &Scope,
        version: u64,
        after: Option<&Key>,
        limit: usize,
    ) -> Page {
        // Computes the past state by undoing the later changes. For each object that has changed
        // since `version`, `past` contains its state before the first change.
        let mut past: HashMap<&Key, Option<&Arc<Object>>> = HashMap::new();
        for change in self.later(kind, version) {
            past.entry(&change.object.key)
                .or_insert(change.before.as_ref());
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let present = self.collections.get(&kind).into_iter();
        let present = present
            .flat_map(|collection| collection.objects.range::<Key, _>((from, Bound::Unbounded)));
        let mut candidates: Vec<&Arc<Object>> = present
            .filter(|(key, _)| !past.contains_key(key))
            .map(|(_, object)| object)
            .chain(
                past.iter()
                    .filter(|(key, _)| after.is_none_or(|after| **key > after))
                    .filter_map(|(_, was)| *was),
            )
            .filter(|object| scope.contains(object))
            .collect();
        if !past.is_empty() {
            candidates.sort_by(|a, b| a.key.cmp(&b.key));
        }

        let mut page = Page {
            version,
            objects: Vec::new(),
            remaining: candidates.len(),
            last: None,
        };
        for object in candidates {
            if limit > 0 && page.objects.len() == limit {
                break;
            }
            page.remaining -= 1;
            page.last = Some(object.key.clone());
            if scope.matches(object) {
                page.objects.push(object.clone());
            }
        }
        page
    }

    /// Records a new version of `object`, or its deletion if `deleted` is set. The version is the
    /// next resource version.
    pub(crate) fn record(&mut self, kind: Kind, object: Arc<Object>, deleted: bool) {
        let collection = self.collections.entry(kind).or_default();
        let before = if deleted {
            collection.objects.remove(&object.key)
        } else {
            collection
                .objects
                .insert(object.key.clone(), object.clone())
        };
        self.version = object.version;
        if collection.changes.len() == self.history
            && let Some(lost) = collection.changes.pop_front()
        {
            collection.dropped = lost.version;
        }
        collection.changes.push_back(Change {
            version: object.version,
            before,
            object,
            deleted,
        });
    }

    /// Returns a version 4 UUID that is unique in this cluster.
    pub(crate) fn uid(&self) -> String {
        let (a, b) = (
            self.uids.hash_one((self.version, 'a')),
            self.uids.hash_one((self.version, 'b')),
        );
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            0x8000 | ((b >> 48) & 0x3fff),
            b & 0xffff_ffff_ffff,
        )
    }
}
