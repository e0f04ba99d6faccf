//! Finds the pods, nodes and zones of a Service's endpoints, for web pages and subcommands.
//!
//! The proxy does not need this data to serve, so the model does not store it. This module reads
//! the data from the source, one Service at a time.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use form_urlencoded::Serializer;
use kube::Client;
use proxy::{NamespacedName, Protocol, ServicePortName};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::task::spawn_blocking;

use crate::decode::address::not_of_an_endpoint;
use crate::manifests;

/// Label of an EndpointSlice that contains the name of its Service.
const SERVICE: &str = "kubernetes.io/service-name";
const GROUP: &str = "discovery.k8s.io/v1";
/// Limit of EndpointSlices in a response, which a server with a watch cache ignores. With the
/// EndpointSlice controller's default of 100 endpoints for each, 1,000 EndpointSlices have 100,000
/// endpoints.
const SLICES_MAX: &str = "1000";

/// Pod, node and zone of an endpoint, according to its EndpointSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointLocation {
    /// `targetRef.name` of a Pod, or `KIND/NAME` of another object, if known.
    pub pod: Option<String>,
    /// Name of the endpoint's node (`nodeName`), if known.
    pub node: Option<String>,
    /// Name of the endpoint's zone (`zone`), if known.
    pub zone: Option<String>,
}

/// Locations of a Service's endpoints. One address may have several locations: host-network pods of
/// a node share an address, and an EndpointSlice may contain a terminating pod and its replacement.
#[derive(Debug, Clone, Default)]
pub struct EndpointPlaces {
    /// Ports of each EndpointSlice. The EndpointSlices are sorted by name, as in the model.
    slices: Vec<SlicePorts>,
    endpoints: HashMap<IpAddr, Vec<ListedEndpoint>>,
    /// Log lines about ignored endpoints, at most [`IGNORED_MAX`].
    ignored: Vec<String>,
}

/// Maximum number of log lines about ignored endpoints.
const IGNORED_MAX: usize = 20;

/// Name, protocol and number of each port of an EndpointSlice.
type SlicePorts = Vec<(Option<String>, Option<String>, Option<u16>)>;

#[derive(Debug, Clone)]
struct ListedEndpoint {
    /// Index in `slices` of the EndpointSlice that contains the endpoint.
    slice: usize,
    terminating: bool,
    whereabouts: EndpointLocation,
}

impl EndpointPlaces {
    /// Parses an `EndpointSliceList` of one Service, in JSON.
    ///
    /// # Errors
    ///
    /// Fails if the text is not such a list.
    pub fn from_list(text: &str) -> Result<Self, WhereaboutsError> {
        let slices: Objects = serde_json::from_str(text)?;
        Ok(Self::new(slices.items))
    }

    fn new(mut slices: Vec<Slice>) -> Self {
        slices.sort_by(|one, next| one.metadata.name.cmp(&next.metadata.name));
        let mut places = Self::default();
        for (number, slice) in slices.into_iter().enumerate() {
            let ports = slice.ports.unwrap_or_default().into_iter();
            let ports = ports.map(|port| (port.name, port.protocol, port.number));
            places.slices.push(ports.collect());
            for endpoint in slice.endpoints.unwrap_or_default() {
                let Some(Ok(address)) = endpoint.addresses.first().map(|text| text.parse()) else {
                    continue;
                };
                if let Some(why) = not_of_an_endpoint(address) {
                    places.ignore(&slice.metadata.name, address, why);
                    continue;
                }
                let listed = places.endpoints.entry(address).or_default();
                listed.push(endpoint.into_listed(number));
            }
        }
        places
    }

    fn ignore(&mut self, slice: &str, address: IpAddr, why: &str) {
        if self.ignored.len() < IGNORED_MAX {
            self.ignored.push(format!(
                "EndpointSlice {slice}: endpoint {address} is ignored: {why}, which no pod can have"
            ));
        }
    }

    /// Returns a log line for each endpoint with an invalid address, at most 20 lines.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Returns the location of the endpoint that serves a Service port at this address and port
    /// number. If several endpoints match, returns the location of the endpoint that
    /// `proxy::Endpoints` uses. If no port number is given, compares only the address.
    pub fn find(
        &self,
        of: &ServicePortName,
        address: IpAddr,
        number: Option<u16>,
    ) -> Option<&EndpointLocation> {
        let has_port = |listed: &&ListedEndpoint| {
            let mut ports = self.slices.get(listed.slice).into_iter().flatten();
            number.is_none()
                || ports.any(|(name, protocol, port)| {
                    *port == number
                        && name.as_deref().unwrap_or_default() == &*of.port
                        && is_protocol(protocol.as_deref(), of.protocol)
                })
        };
        let listed = self.endpoints.get(&address)?.iter().enumerate();
        let counts_first = |(position, listed): &(usize, &ListedEndpoint)| {
            // If an EndpointSlice lists the address twice and neither entry is terminating, the
            // last entry counts.
            let later = (!listed.terminating).then_some(Reverse(*position));
            (listed.terminating, listed.slice, later, *position)
        };
        let served = listed.filter(|(_, listed)| has_port(listed));
        served
            .min_by_key(counts_first)
            .map(|(_, listed)| &listed.whereabouts)
    }
}

fn is_protocol(text: Option<&str>, protocol: Protocol) -> bool {
    text.unwrap_or("TCP").eq_ignore_ascii_case(protocol.lower())
}

/// Source of a Service's EndpointSlices.
#[derive(Clone)]
pub enum Registry {
    /// The API server that serves the EndpointSlices.
    Api(Client),
    /// The directory whose manifests contain the EndpointSlices.
    Manifests(PathBuf),
}

/// Reason why the locations of a Service's endpoints cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WhereaboutsError {
    /// The API server rejects the request, or cannot be reached.
    #[error("cannot list the Service's EndpointSlices: {0}")]
    Api(#[from] kube::Error),
    /// The API server's response is not a valid list.
    #[error("the API server's answer cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// The request to the API server cannot be built.
    #[error("its EndpointSlices cannot be asked for: {0}")]
    Request(#[from] http::Error),
    /// The directory of manifests cannot be read.
    #[error("the directory of manifests cannot be read: {0}")]
    Folder(#[from] std::io::Error),
}

impl Registry {
    /// Reads the locations of a Service's endpoints. Uses a blocking thread, because a Service may
    /// have 100,000 endpoints. Skips objects that cannot be decoded.
    ///
    /// # Errors
    ///
    /// Fails if the source cannot be read.
    pub async fn whereabouts(
        &self,
        service: &NamespacedName,
    ) -> Result<EndpointPlaces, WhereaboutsError> {
        let read = match self.clone() {
            Self::Api(client) => {
                let text = client.request_text(request(service)?).await?;
                spawn_blocking(move || EndpointPlaces::from_list(&text)).await
            }
            Self::Manifests(folder) => {
                let service = service.clone();
                spawn_blocking(move || read_folder(&folder, &service)).await
            }
        };
        read.unwrap_or_else(|ended| Err(WhereaboutsError::Folder(ended.into())))
    }
}

/// Builds the request for a Service's EndpointSlices. With `resourceVersion=0`, the server replies
/// from its watch cache.
fn request(service: &NamespacedName) -> http::Result<http::Request<Vec<u8>>> {
    let query = Serializer::new(String::new())
        .append_pair("labelSelector", &format!("{SERVICE}={}", service.name()))
        .append_pair("resourceVersion", "0")
        .append_pair("limit", SLICES_MAX)
        .finish();
    let namespace = service.namespace();
    http::Request::get(format!(
        "/apis/{GROUP}/namespaces/{namespace}/endpointslices?{query}"
    ))
    .header(http::header::ACCEPT, "application/json")
    .body(Vec::new())
}

fn read_folder(
    folder: &Path,
    service: &NamespacedName,
) -> Result<EndpointPlaces, WhereaboutsError> {
    let mut found = Vec::new();
    for text in manifests::texts(folder)? {
        let documents = manifests::documents_of(&text);
        for document in documents.filter(|document| may_name(document, service.name())) {
            let slices = slices_in(document, service.name());
            found.extend(slices.into_iter().filter(|slice| slice.is_of(service)));
        }
    }
    Ok(EndpointPlaces::new(found))
}

/// Reports whether a document may contain a Service's name. The caller skips all other documents,
/// because decoding a directory of thousands of Services takes seconds. Returns true for a document
/// with a backslash, because escapes may hide the name.
fn may_name(text: &str, name: &str) -> bool {
    let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    text.contains('\\')
        || text.match_indices(name).any(|(at, _)| {
            let before = text.get(..at).unwrap_or_default().chars().next_back();
            let after = text.get(at + name.len()..).unwrap_or_default();
            !before.is_some_and(is_in_name) && !after.chars().next().is_some_and(is_in_name)
        })
}

/// Decodes the EndpointSlices of a document, which may contain the Service's name. Skips list items
/// that cannot contain the name. Returns no EndpointSlices if the document cannot be decoded.
fn slices_in(document: &str, name: &str) -> Vec<Slice> {
    let items = block_items(document).into_iter();
    let items = items.filter(|item| may_name(item, name));
    let items: Option<Vec<Slice>> = items
        .map(|item| serde_saphyr::from_str(&item).ok())
        .collect();
    if let Some(items) = items.filter(|items| !items.is_empty()) {
        return items;
    }
    // JSON is also valid YAML, but the JSON parser is faster.
    let object = serde_json::from_str::<Slice>(document).ok();
    let object = object.or_else(|| serde_saphyr::from_str(document).ok());
    let objects = object.into_iter().flat_map(|mut object| {
        let items = object.items.take().unwrap_or_default();
        items.into_iter().chain([object])
    });
    objects.collect()
}

/// Splits a YAML list, in the form that kubectl prints, into the texts of its items. Returns no
/// items for any other document.
fn block_items(document: &str) -> Vec<String> {
    let lines = document.split_inclusive('\n');
    let mut lines = lines.skip_while(|line| line.trim_end() != "items:");
    lines.next();
    let mut items: Vec<String> = Vec::new();
    for line in lines {
        if let Some(first) = line.strip_prefix("- ") {
            items.push(format!("  {first}"));
        } else if let (Some(item), true) = (items.last_mut(), line.starts_with([' ', '\n', '\r'])) {
            item.push_str(line);
        } else {
            break;
        }
    }
    items
}

#[derive(Deserialize)]
struct Objects {
    #[serde(default)]
    items: Vec<Slice>,
}

/// An EndpointSlice or a list of EndpointSlices, with the fields that this module reads.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Slice {
    kind: String,
    metadata: Metadata,
    /// Endpoints of the EndpointSlice. `None`: missing or null, which a server writes for an empty
    /// list.
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
    items: Option<Vec<Self>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: Option<String>,
    labels: Option<HashMap<String, String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint {
    addresses: Vec<String>,
    target_ref: Option<Reference>,
    node_name: Option<String>,
    zone: Option<String>,
    conditions: Option<Conditions>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    terminating: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Port {
    name: Option<String>,
    protocol: Option<String>,
    #[serde(rename = "port")]
    number: Option<u16>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Reference {
    kind: Option<String>,
    name: Option<String>,
    #[serde(rename = "fieldPath")]
    _field: Option<IgnoredAny>,
}

impl Slice {
    fn is_of(&self, service: &NamespacedName) -> bool {
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let labels = self.metadata.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(SERVICE));
        self.kind == "EndpointSlice"
            && namespace == service.namespace()
            && label.is_some_and(|of| of == service.name())
    }
}

impl Endpoint {
    fn into_listed(self, slice: usize) -> ListedEndpoint {
        let pod = self.target_ref.and_then(|of| {
            let name = of.name?;
            match of.kind.as_deref() {
                None | Some("Pod") => Some(name),
                Some(kind) => Some(format!("{kind}/{name}")),
            }
        });
        let terminating = self.conditions.and_then(|of| of.terminating);
        ListedEndpoint {
            slice,
            terminating: terminating.unwrap_or_default(),
            whereabouts: EndpointLocation {
                pod,
                node: self.node_name,
                zone: self.zone,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn endpoint_pods_of_a_service_are_found_in_manifests() {
        let folder = std::env::temp_dir().join(format!("whereabouts-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let slice = |name: &str, of: &str, address: &str| {
            format!(
                "{{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {{name: {name}, labels: \
                 {{kubernetes.io/service-name: {of}}}}}, ports: [{{name: http, port: 8080}}], \
                 endpoints: [{{addresses: ['{address}'], nodeName: n2, zone: z1, \
                 targetRef: {{kind: Pod, name: pod-{name}, fieldPath: x}}}}, {{addresses: [wrong]}}, {{}}]}}"
            )
        };
        let listed = format!("kind: List\nitems:\n- {}\n", slice("b", "web", "fd00::1"));
        let files = [
            (
                "a.yaml",
                format!(
                    "{}\n---\n{}",
                    slice("a", "web", "10.0.0.1"),
                    slice("x", "other", "10.0.0.9")
                ),
            ),
            ("b.yaml", listed),
            ("broken.yaml", "{".to_owned()),
            ("notes.txt", slice("c", "web", "10.0.0.3")),
        ];
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        let web = NamespacedName::new("default", "web");
        let found = read_folder(&folder, &web).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let of = |pod: &str| EndpointLocation {
            pod: Some(pod.to_owned()),
            node: Some("n2".to_owned()),
            zone: Some("z1".to_owned()),
        };
        for (ip, wanted) in [("10.0.0.1", of("pod-a")), ("fd00::1", of("pod-b"))] {
            let found = found.find(&http(), ip.parse().unwrap(), Some(8080));
            assert_eq!(found, Some(&wanted), "{ip}");
        }
        assert_eq!(found.endpoints.len(), 2);
    }

    /// Checks which manifests are decoded. Decoding a whole directory with 1,200 Services once took
    /// 2 s, so the page showed no pod names.
    #[test]
    fn only_manifests_that_contain_the_services_name_are_decoded() {
        for (text, name, wanted) in [
            ("labels: {kubernetes.io/service-name: web}", "web", true),
            ("service-name: web\n", "web", true),
            (r#"{"service-name":"web"}"#, "web", true),
            (r#"{"service-name":"we\u0062"}"#, "web", true),
            ("service-name: web-1", "web", false),
            ("service-name: my-web", "web", false),
            ("service-name: web2", "web", false),
        ] {
            assert_eq!(may_name(text, name), wanted, "{text}");
        }
    }

    #[test]
    fn a_yaml_list_with_aliases_is_decoded_as_a_whole() {
        let item = |of: &str| {
            format!(
                "- apiVersion: discovery.k8s.io/v1\n  endpoints:\n  - addresses:\n    - 10.0.0.1\n  kind: EndpointSlice\n  \
                 metadata:\n    labels:\n      kubernetes.io/service-name: {of}\n    name: {of}-a\n"
            )
        };
        let list = format!(
            "apiVersion: v1\nitems:\n{}{}kind: List\nmetadata:\n  resourceVersion: \"\"\n",
            item("other"),
            item("web")
        );
        assert_eq!(block_items(&list).len(), 2);
        let names = |text: &str| -> Vec<String> {
            let slices = slices_in(text, "web").into_iter();
            let slices = slices.filter(|slice| slice.kind == "EndpointSlice");
            slices.map(|slice| slice.metadata.name).collect()
        };
        assert_eq!(names(&list), ["web-a"]);
        // An alias can be read only together with the item that has its anchor.
        let aliased = list.replace("- 10.0.0.1\n  kind: EndpointSlice\n  metadata:\n    labels:\n      kubernetes.io/service-name: web", "- *ip\n  kind: EndpointSlice\n  metadata:\n    labels:\n      kubernetes.io/service-name: web");
        let aliased = aliased.replacen("- 10.0.0.1", "- &ip 10.0.0.1", 1);
        assert_ne!(aliased, list);
        assert_eq!(names(&aliased), ["other-a", "web-a"]);
        let json =
            r#"{"kind":"List","items":[{"kind":"EndpointSlice","metadata":{"name":"web-a"}}]}"#;
        assert_eq!(names(json), ["web-a"]);
    }

    fn http() -> ServicePortName {
        ServicePortName {
            service: NamespacedName::new("default", "web"),
            port: "http".into(),
            protocol: Protocol::Tcp,
        }
    }

    #[test]
    fn endpoints_with_invalid_addresses_are_reported() {
        let text = r#"{"items":[{"metadata":{"name":"web-a"},"endpoints":[{"addresses":["127.0.0.1"]},
            {"addresses":["10.0.0.1"]},{"addresses":["169.254.20.10"]}]}]}"#;
        let found = EndpointPlaces::from_list(text).unwrap();
        assert_eq!(
            found.ignored(),
            [
                "EndpointSlice web-a: endpoint 127.0.0.1 is ignored: a loopback address, which no pod can have",
                "EndpointSlice web-a: endpoint 169.254.20.10 is ignored: a link-local address, which no pod can have",
            ]
        );
        assert!(found.find(&http(), [127, 0, 0, 1].into(), None).is_none());
    }

    /// Checks two host-network pods of one node, which share an address. Each pod is in its own
    /// EndpointSlice.
    #[test]
    fn pods_that_share_an_address_are_distinguished_by_port() {
        let text = r#"{"items":[
            {"metadata":{"name":"web-8081"},"ports":[{"name":"http","port":8081}],
             "endpoints":[{"addresses":["10.0.0.1"],"targetRef":{"kind":"Pod","name":"b"}}]},
            {"metadata":{"name":"web-8080"},"ports":[{"name":"http","port":8080},{"name":"dns","protocol":"UDP","port":53}],
             "endpoints":[{"addresses":["10.0.0.1"],"targetRef":{"kind":"Pod","name":"a"}}]}]}"#;
        let found = EndpointPlaces::from_list(text).unwrap();
        let pod = |name: &str, protocol, number| {
            let of = ServicePortName {
                port: name.into(),
                protocol,
                ..http()
            };
            let place = found.find(&of, [10, 0, 0, 1].into(), number);
            place.and_then(|place| place.pod.clone())
        };
        let told = |name: &str| Some(name.to_owned());
        assert_eq!(pod("http", Protocol::Tcp, Some(8080)), told("a"));
        assert_eq!(pod("http", Protocol::Tcp, Some(8081)), told("b"));
        assert_eq!(pod("dns", Protocol::Udp, Some(53)), told("a"));
        assert_eq!(pod("http", Protocol::Udp, Some(8080)), None);
        assert_eq!(
            pod("http", Protocol::Tcp, Some(8082)),
            None,
            "in no slice any more"
        );
        assert_eq!(pod("http", Protocol::Tcp, None), told("a"));
    }

    /// Checks that the result is the endpoint that `proxy::Endpoints` uses, for any order of the
    /// EndpointSlices.
    #[test]
    fn the_effective_endpoint_of_a_shared_address_is_returned() {
        let slice = |name: &str, pods: &[(&str, bool)]| {
            let endpoint = |(pod, terminating): &(&str, bool)| {
                serde_json::json!({
                    "addresses": ["10.0.0.1"], "conditions": {"terminating": terminating},
                    "targetRef": {"kind": "Pod", "name": pod}
                })
            };
            let endpoints: Vec<_> = pods.iter().map(endpoint).collect();
            serde_json::json!({"metadata": {"name": name}, "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
        };
        for (slices, wanted) in [
            (vec![slice("a", &[("old", true), ("new", false)])], "new"),
            (vec![slice("a", &[("new", false), ("old", true)])], "new"),
            (vec![slice("a", &[("one", false), ("two", false)])], "two"),
            (vec![slice("a", &[("one", true), ("two", true)])], "one"),
            (
                vec![slice("z", &[("old", true)]), slice("a", &[("new", false)])],
                "new",
            ),
            (
                vec![slice("a", &[("old", true)]), slice("z", &[("new", false)])],
                "new",
            ),
            (
                vec![slice("z", &[("z", false)]), slice("a", &[("a", false)])],
                "a",
            ),
        ] {
            let text = serde_json::json!({ "items": slices }).to_string();
            let found = EndpointPlaces::from_list(&text).unwrap();
            let place = found
                .find(&http(), [10, 0, 0, 1].into(), Some(8080))
                .unwrap();
            assert_eq!(place.pod.as_deref(), Some(wanted), "{text}");
        }
    }

    #[test]
    fn one_request_lists_the_endpoint_slices_of_one_service() {
        let request = request(&NamespacedName::new("default", "web")).unwrap();
        assert_eq!(
            request.uri(),
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dweb&\
             resourceVersion=0&limit=1000"
        );
    }

    #[test]
    fn an_endpoint_slice_without_endpoints_is_accepted() {
        let text = r#"{"kind":"EndpointSliceList","items":[{"endpoints":null},{"metadata":{"labels":null},
            "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true},"nodeName":"n1"}]}]}"#;
        let found = EndpointPlaces::from_list(text).unwrap();
        let place = found.find(&http(), [10, 0, 0, 1].into(), None).unwrap();
        assert_eq!(place.node.as_deref(), Some("n1"));
        assert!(EndpointPlaces::from_list("{").is_err());
    }
}
