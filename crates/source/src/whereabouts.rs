//! Which pods, nodes and zones a Service's endpoints are of: what nobody needs to serve them, and so
//! is not kept. Who looks at one Service has it read once, from its source.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use form_urlencoded::Serializer;
use kube::Client;
use proxy::NamespacedName;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::task::spawn_blocking;

use crate::manifests;

/// The label that says whose a slice is.
const SERVICE: &str = "kubernetes.io/service-name";
const GROUP: &str = "discovery.k8s.io/v1";
/// How many slices are asked for: 1,000 have 100,000 endpoints.
const SLICES_MAX: &str = "1000";

/// Where an endpoint is, as far as its slice says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// `targetRef.name` of a Pod; `KIND/NAME` of anything else.
    pub pod: Option<String>,
    /// `nodeName`.
    pub node: Option<String>,
    /// `zone`.
    pub zone: Option<String>,
}

/// Whom to ask.
#[derive(Clone)]
pub enum Registry {
    /// An API server.
    Api(Client),
    /// A folder of manifests.
    Manifests(PathBuf),
}

/// Why it cannot be said.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// The API server does not tell.
    #[error("the API server does not tell its EndpointSlices: {0}")]
    Api(#[from] kube::Error),
    /// What it says cannot be read.
    #[error("the API server's answer cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// The question cannot be put.
    #[error("its EndpointSlices cannot be asked for: {0}")]
    Request(#[from] http::Error),
    /// The folder cannot be read.
    #[error("the folder of manifests cannot be read: {0}")]
    Folder(#[from] std::io::Error),
}

impl Registry {
    /// Where the endpoints of a Service are, by address. Files are read, and what comes is decoded, on
    /// a blocking thread: a Service may have 100,000 endpoints.
    ///
    /// # Errors
    ///
    /// It cannot be read. What cannot be decoded is left out.
    pub async fn whereabouts(
        &self,
        service: &NamespacedName,
    ) -> Result<HashMap<IpAddr, Whereabouts>, Unknown> {
        let read = match self.clone() {
            Self::Api(client) => {
                let text = client.request_text(request(service)?).await?;
                spawn_blocking(move || read_list(&text)).await
            }
            Self::Manifests(folder) => {
                let service = service.clone();
                spawn_blocking(move || read_folder(&folder, &service)).await
            }
        };
        read.unwrap_or_else(|ended| Err(Unknown::Folder(ended.into())))
    }
}

/// Out of the server's watch cache, whatever its age.
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

fn read_list(text: &str) -> Result<HashMap<IpAddr, Whereabouts>, Unknown> {
    let mut found = HashMap::new();
    let slices: Objects = serde_json::from_str(text)?;
    slices
        .items
        .into_iter()
        .for_each(|slice| slice.tell(&mut found));
    Ok(found)
}

fn read_folder(
    folder: &Path,
    service: &NamespacedName,
) -> Result<HashMap<IpAddr, Whereabouts>, Unknown> {
    let mut found = HashMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // What is no text, or goes meanwhile, has no slices.
        let text = fs::read_to_string(&path).unwrap_or_default();
        for document in manifests::documents_of(&text) {
            let Ok(object) = serde_saphyr::from_str::<Slice>(document) else {
                continue;
            };
            let items = object.items.clone().unwrap_or_default();
            let objects = items.into_iter().chain([object]);
            let own = objects.filter(|slice| slice.is_of(service));
            own.for_each(|slice| slice.tell(&mut found));
        }
    }
    Ok(found)
}

#[derive(Deserialize)]
struct Objects {
    #[serde(default)]
    items: Vec<Slice>,
}

/// An EndpointSlice, or a list of some, with nothing but what is told of here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Slice {
    kind: String,
    metadata: Metadata,
    /// A server says null for none.
    endpoints: Option<Vec<Endpoint>>,
    items: Option<Vec<Self>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Metadata {
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

    fn tell(self, found: &mut HashMap<IpAddr, Whereabouts>) {
        for endpoint in self.endpoints.unwrap_or_default() {
            let Some(address) = endpoint.addresses.first() else {
                continue;
            };
            let Ok(address) = address.parse::<IpAddr>() else {
                continue;
            };
            let pod = endpoint.target_ref.and_then(|of| {
                let name = of.name?;
                match of.kind.as_deref() {
                    None | Some("Pod") => Some(name),
                    Some(kind) => Some(format!("{kind}/{name}")),
                }
            });
            found.insert(
                address,
                Whereabouts {
                    pod,
                    node: endpoint.node_name,
                    zone: endpoint.zone,
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_tells_of_one_services_endpoints() {
        let folder = std::env::temp_dir().join(format!("whereabouts-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let slice = |name: &str, of: &str, address: &str| {
            format!(
                "{{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {{name: {name}, labels: \
                 {{kubernetes.io/service-name: {of}}}}}, endpoints: [{{addresses: ['{address}'], nodeName: n2, zone: z1, \
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
        ];
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        let web = NamespacedName::new("default", "web");
        let found = read_folder(&folder, &web).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let of = |pod: &str| Whereabouts {
            pod: Some(pod.to_owned()),
            node: Some("n2".to_owned()),
            zone: Some("z1".to_owned()),
        };
        let wanted = [("10.0.0.1", of("pod-a")), ("fd00::1", of("pod-b"))];
        let wanted = wanted.map(|(ip, of)| (ip.parse().unwrap(), of));
        assert_eq!(found, HashMap::from(wanted));
    }

    #[test]
    fn an_api_server_is_asked_for_one_services_slices() {
        let request = request(&NamespacedName::new("default", "web")).unwrap();
        assert_eq!(
            request.uri(),
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dweb&\
             resourceVersion=0&limit=1000"
        );
    }

    #[test]
    fn an_answer_may_have_no_endpoints() {
        let text = r#"{"kind":"EndpointSliceList","items":[{"endpoints":null},{"metadata":{"labels":null},
            "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true},"nodeName":"n1"}]}]}"#;
        let found = read_list(text).unwrap();
        assert_eq!(
            found[&IpAddr::from([10, 0, 0, 1])].node.as_deref(),
            Some("n1")
        );
        assert!(read_list("{").is_err());
    }
}
