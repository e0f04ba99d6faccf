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
use proxy::{IpFamily, NamespacedName, Protocol, ServicePortName};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::task::spawn_blocking;

use crate::decode::address;
use crate::decode::findings::family;
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
            // The model ignores an EndpointSlice of host names as a whole.
            let endpoints = slice.endpoints.filter(|_| slice.address_type != "FQDN");
            for endpoint in endpoints.unwrap_or_default() {
                let Some(text) = endpoint.addresses.first() else {
                    continue;
                };
                let address = match address_of(text, &slice.address_type) {
                    Ok(address) => address,
                    Err(why) => {
                        places.ignore(&slice.metadata.name, text, &why);
                        continue;
                    }
                };
                let listed = places.endpoints.entry(address).or_default();
                listed.push(endpoint.into_listed(number));
            }
        }
        places
    }

    fn ignore(&mut self, slice: &str, address: &str, why: &str) {
        /// Maximum length of an address in a log line. No valid address is longer.
        const LENGTH_MAX: usize = 64;
        if self.ignored.len() < IGNORED_MAX {
            let address: String = address.chars().take(LENGTH_MAX).collect();
            self.ignored.push(format!(
                "EndpointSlice {slice}: endpoint {address} is ignored: {why}"
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

/// Parses an endpoint's address like the decoder of the model.
///
/// # Errors
///
/// Fails with the reason why the model ignores the endpoint.
fn address_of(text: &str, address_type: &str) -> Result<IpAddr, String> {
    let Some(address) = address::ip(text) else {
        return Err("not an IP address".to_owned());
    };
    if let Some(why) = address::not_of_an_endpoint(address) {
        return Err(format!("{why}, which no pod can have"));
    }
    match (family(address_type), IpFamily::of(address)) {
        (Some(wanted), of) if of != wanted => Err(format!(
            "{of}, but addressType of the EndpointSlice is {wanted}"
        )),
        _ => Ok(address),
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
    address_type: String,
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
mod tests;
