//! Services from the Kubernetes API.
//!
//! ```text
//!   Services ───────┐ one ListWatch each, on tasks of their own
//!   EndpointSlices ─┼─▶ events
//!   the own Node ───┘        └─▶ Outage: says once that the server is away, and once that it is back
//! ```
//!
//! `kube` does what is common to all clients: kubeconfig, certificates, TLS, HTTP. Listing and watching is done here, in
//! `list_watch`, which says why, and so is the token of a service account, in `token`.

mod http_proxy;
mod list_watch;
mod outage;
mod token;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use http::Uri;
use kube::client::ClientBuilder;
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use proxy::{Event, Kind};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::StartError;
use crate::metrics::{CountRequests, Metrics};
use list_watch::{ListWatch, Resource};
use outage::Outage;

/// Events on their way to whoever reads the stream.
const IN_FLIGHT: usize = 1024;

/// An API server, and how to talk to it.
#[derive(Clone)]
pub struct Server {
    client: Client,
    url: String,
}

impl Server {
    /// Reads how to reach the server: from a kubeconfig, whose URL `master` overrides, from `master` alone, or from the
    /// Pod that this is. The server itself need not be there yet.
    pub async fn new(kubeconfig: Option<&Path>, master: Option<&str>) -> Result<Self, StartError> {
        Self::counted(kubeconfig, master, &Metrics::new()).await
    }

    /// The same, and `metrics` counts the requests.
    pub async fn counted(
        kubeconfig: Option<&Path>,
        master: Option<&str>,
        metrics: &Metrics,
    ) -> Result<Self, StartError> {
        let master = master.map(master_url).transpose()?;
        let (mut config, proxy) = match (kubeconfig, &master) {
            (Some(path), _) => from_kubeconfig(path).await?,
            (None, Some(url)) => (Config::new(url.clone()), None),
            (None, None) => {
                let config = Config::incluster().map_err(|error| StartError::Api {
                    what: "the API server of this Pod".to_owned(),
                    reason: root_cause(&error),
                    advice: "outside of a cluster, give --kubeconfig, --master or --manifests",
                })?;
                (config, None)
            }
        };
        if let Some(url) = master {
            config.cluster_url = url;
        }
        let environment = |name: &str| std::env::var(name).ok();
        config.proxy_url = http_proxy::choose(proxy.as_deref(), &config.cluster_url, environment)
            .map_err(|reason| StartError::Api {
            what: format!("API server {}", config.cluster_url),
            reason,
            advice: "correct it, or list the server in NO_PROXY",
        })?;
        let token = token::FromFile::take(&mut config.auth_info);
        // Retrying is done here, where it is known what was lost.
        config.default_retry = false;
        let url = config
            .cluster_url
            .to_string()
            .trim_end_matches('/')
            .to_owned();
        let host = config.cluster_url.authority().map(|authority| {
            let text = authority.as_str();
            text.rsplit_once('@')
                .map_or(text, |(_, host)| host)
                .to_owned()
        });
        let client = ClientBuilder::try_from(config).map_err(|error| StartError::Api {
            what: format!("API server {url}"),
            reason: root_cause(&error),
            advice: "correct the credentials and certificates in the kubeconfig",
        })?;
        let count = CountRequests::new(metrics.clone(), &host.unwrap_or_default());
        let client = client.with_layer(&token).with_layer(&count).build();
        Ok(Self { client, url })
    }

    /// The client, for whatever else is to be asked or told.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The server's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Lists and watches Services, EndpointSlices and the Node named `node`, with upstream's selectors. Never ends; needs
    /// a tokio runtime.
    pub fn stream(&self, node: &str) -> impl Stream<Item = Event> + Send + use<> {
        let resources = [
            Resource {
                kind: Kind::Service,
                path: "/api/v1/services",
                labels: Some("!service.kubernetes.io/service-proxy-name"),
                fields: Some("spec.clusterIP!=None".to_owned()),
            },
            Resource {
                kind: Kind::EndpointSlice,
                path: "/apis/discovery.k8s.io/v1/endpointslices",
                labels: Some("!service.kubernetes.io/headless"),
                fields: None,
            },
            Resource {
                kind: Kind::Node,
                path: "/api/v1/nodes",
                labels: None,
                fields: Some(format!("metadata.name={node}")),
            },
        ];
        let (events, received) = mpsc::channel(IN_FLIGHT);
        let outage = Arc::new(Outage::new(self.url.clone()));
        let mut tasks = JoinSet::new();
        for resource in resources {
            let list_watch = ListWatch::new(
                self.client.clone(),
                resource,
                Arc::clone(&outage),
                events.clone(),
            );
            tasks.spawn(list_watch.run());
        }
        Events {
            received,
            _tasks: tasks,
        }
    }
}

/// The stream; its tasks end when it is dropped.
struct Events {
    received: mpsc::Receiver<Event>,
    _tasks: JoinSet<()>,
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.received.poll_recv(context)
    }
}

/// Also the `proxy-url` that it gives.
async fn from_kubeconfig(path: &Path) -> Result<(Config, Option<String>), StartError> {
    let failed = |error: &dyn std::error::Error, advice| StartError::Api {
        what: format!("kubeconfig {}", path.display()),
        reason: root_cause(error),
        advice,
    };
    // Read here first, for the plain reasons: it is not there, or may not be read.
    std::fs::read(path).map_err(|error| failed(&error, "correct --kubeconfig"))?;
    let mut kubeconfig =
        Kubeconfig::read_from(path).map_err(|error| failed(&error, "correct the file"))?;
    if let Some(plugin) = plugin(&kubeconfig) {
        return Err(StartError::Api {
            what: format!("kubeconfig {}", path.display()),
            reason: format!(
                "its user's credentials come from {plugin}, which this program does not run"
            ),
            advice: "give the user a token, a tokenFile, or a client certificate with its key",
        });
    }
    let proxy = cluster(&mut kubeconfig).and_then(|cluster| cluster.proxy_url.take());
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let advice = "correct the file: it needs a current-context with a cluster";
    Ok((config.map_err(|error| failed(&error, advice))?, proxy))
}

/// The current context's.
fn cluster(kubeconfig: &mut Kubeconfig) -> Option<&mut Cluster> {
    let name = context(kubeconfig)?.cluster.clone();
    let mut clusters = kubeconfig.clusters.iter_mut();
    clusters.find(|one| one.name == name)?.cluster.as_mut()
}

fn context(kubeconfig: &Kubeconfig) -> Option<&kube::config::Context> {
    let name = kubeconfig.current_context.as_ref()?;
    let mut contexts = kubeconfig.contexts.iter();
    contexts.find(|one| one.name == *name)?.context.as_ref()
}

/// The program or library that the current context's credentials come from, if they do.
fn plugin(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let context = kubeconfig.current_context.as_ref()?;
    let mut contexts = kubeconfig.contexts.iter();
    let context = contexts
        .find(|one| one.name == *context)?
        .context
        .as_ref()?;
    let mut users = kubeconfig.auth_infos.iter();
    let user = users.find(|one| Some(&one.name) == context.user.as_ref())?;
    match user.auth_info.as_ref()? {
        user if user.exec.is_some() => Some("an exec plugin"),
        user if user.auth_provider.is_some() => Some("an auth-provider"),
        _ => None,
    }
}

/// `--master`, with its scheme as client-go takes it: plain HTTP where none is given.
fn master_url(master: &str) -> Result<Uri, StartError> {
    let url = if master.contains("://") {
        master.to_owned()
    } else {
        format!("http://{master}")
    };
    url.parse()
        .map_err(|error: http::uri::InvalidUri| StartError::Api {
            what: format!("--master={master}"),
            reason: error.to_string(),
            advice: "give a URL such as https://10.0.0.1:6443",
        })
}

/// The innermost reason, without the layers that carried it.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
