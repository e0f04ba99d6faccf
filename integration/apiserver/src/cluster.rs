//! Stores the objects of an API server and their history. Each change gets the next resource
//! version.

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

/// The objects of an API server, and their history. A clone is a handle to the same objects, so
/// tests can edit them while a server runs. The objects outlive their server, and another server
/// can serve them.
#[derive(Debug, Clone)]
pub struct Cluster {
    state: Arc<Mutex<StoredCluster>>,
    /// Latest resource version. Watches wait for this channel, and read new changes from the
    /// history.
    changed: Arc<watch::Sender<u64>>,
}

/// Reason why [`Cluster::apply_yaml`] stopped. The objects before the error are already stored.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The text is not valid YAML.
    #[error("cannot read the YAML: {0}")]
    Yaml(#[from] Box<serde_saphyr::Error>),
    /// An object in the text is invalid.
    #[error("document {document} ({object}) is refused")]
    Refused {
        /// Position in the text of the document with this object, counted from 1.
        document: usize,
        /// Kind, namespace and name of the invalid object, as far as it has them.
        object: String,
        /// Error response that a client would get for this object.
        #[source]
        status: Box<Status>,
    },
}

impl Cluster {
    /// Creates a cluster with only a `ServiceCIDR`, like a new Kubernetes cluster. Adds the Service
    /// `default/kubernetes` if the options ask for it. Ignores options of the server, such as its
    /// listen address.
    pub fn new(options: &Options) -> Self {
        // The first range's IP family is the default family of single-stack Services.
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

    /// Creates or replaces an object, including its status, and returns the stored object. An
    /// existing object keeps its uid and creation time. Ignores `resourceVersion` of the given
    /// object.
    pub fn apply(&self, object: Value) -> Result<Value, Status> {
        let object = self.write(|state| state.apply(object))?;
        Ok(object.value())
    }

    /// Returns the current state of an EndpointSlice in the form that [`Self::replay`] stores.
    /// `None` if the EndpointSlice does not exist.
    pub fn recording(&self, namespace: &str, name: &str) -> Option<Recording> {
        let kind = Kind::EndpointSlice;
        let object = self.lock().get(kind, &(namespace.into(), name.into()))?;
        Some(Recording::new(kind, &object))
    }

    /// Stores all `recordings` at once, each at a new resource version, so that watches see all of
    /// them together. Allows more changes per second than [`Self::apply`]. An EndpointSlice's
    /// generation may decrease.
    pub fn replay<'a>(&self, recordings: impl IntoIterator<Item = &'a mut Recording>) {
        self.write(|state| {
            for slice in recordings {
                state.replay(slice);
            }
        });
    }

    /// Stores every object of a YAML or JSON text like [`Self::apply`]. The text may contain
    /// several documents, and lists. Returns the number of objects.
    pub fn apply_yaml(&self, text: &str) -> Result<usize, ApplyError> {
        // Tries JSON first: benchmarks load large JSON files, which a JSON parser reads many times
        // faster than a YAML parser.
        let documents: Vec<Value> = if let Ok(document) = serde_json::from_str(text) {
            vec![document]
        } else {
            // Disables the parser's limits on untrusted input, because large files of a benchmark
            // exceed them.
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

    /// Returns the current state of an object, or `None` if it does not exist.
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let object = self.lock().get(kind, &(namespace.into(), name.into()))?;
        Some(object.value())
    }

    /// Returns all objects of a kind, ordered by namespace and name.
    pub fn list(&self, kind: Kind) -> Vec<Value> {
        let objects: Vec<_> = self.lock().objects(kind).cloned().collect();
        objects.iter().map(|object| object.value()).collect()
    }

    /// Returns the Events that clients have created.
    pub fn events(&self) -> Vec<Value> {
        self.list(Kind::Event)
    }

    /// Returns the resource version of the latest change.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// Compacts the history up to the latest version, as a real API server does in etcd every five
    /// minutes. Afterwards, a watch from an older version and the next page of an older list get
    /// 410 Expired. Open watches continue.
    pub fn compact(&self) {
        let mut state = self.lock();
        state.compacted = state.version;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StoredCluster> {
        // Ignores poisoning: each write leaves a valid state, even if a test panics while it holds
        // the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `edit` on the locked state. Wakes the watches if the resource version has changed.
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

/// Returns the objects of a YAML document: a list's items, a single object, or none if the document
/// is empty.
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
            // Items of a typed list, such as ServiceList, may lack `apiVersion` and `kind`.
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

/// Objects and history of a cluster. Module [`crate::write`] implements the changes.
#[derive(Debug)]
pub(crate) struct StoredCluster {
    pub(crate) version: u64,
    /// Resource version up to which [`Cluster::compact`] has dropped the history.
    compacted: u64,
    /// Maximum number of changes in the history of each kind.
    history: usize,
    collections: BTreeMap<Kind, Collection>,
    uids: RandomState,
}

#[derive(Debug, Default)]
struct Collection {
    objects: BTreeMap<Key, Arc<Object>>,
    changes: VecDeque<Change>,
    /// Resource version of the latest change that has left `changes` because the history was full.
    /// 0 if none has.
    dropped: u64,
}

/// A page of a list: objects of one kind, at one resource version.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) version: u64,
    pub(crate) objects: Vec<Arc<Object>>,
    /// Number of objects in the namespace of the list after this page, including those that the
    /// selectors do not match.
    pub(crate) remaining: usize,
    /// Last key that this page examined, even if no selector matches it. The next page begins after
    /// this key. `None` if the page examined no key.
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

    /// Returns the oldest resource version from which the history of `kind` has every change.
    pub(crate) fn oldest(&self, kind: Kind) -> u64 {
        self.compacted.max(self.dropped(kind))
    }

    /// Returns the resource version of the last change that the full history of `kind` has dropped,
    /// or 0. A watch that is still at an older version misses changes.
    fn dropped(&self, kind: Kind) -> u64 {
        self.collections
            .get(&kind)
            .map_or(0, |collection| collection.dropped)
    }

    /// Returns up to `limit` changes of `kind` after the version `after`, and the version up to
    /// which they are complete. Returns `None` if the history no longer has all changes after
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

    /// Returns up to `limit` objects of `scope` in their state at `version`, beginning after the
    /// key `after`. The limit 0 means all. The history must reach back to `version`.
    pub(crate) fn page(
        &self,
        kind: Kind,
        scope: &Scope,
        version: u64,
        after: Option<&Key>,
        limit: usize,
    ) -> Page {
        // Undoes the changes after `version`: for each object that has changed since, `past` has
        // its state at `version`.
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

    /// Stores `object` at its resource version, which must be the next one. With `deleted`, removes
    /// the object instead.
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
