//! Lists and watches Services, EndpointSlices and this node's Node on a Kubernetes API server.
//!
//! ```text
//!   Services ───────┐ one ListWatch each, on its own task
//!   EndpointSlices ─┼─▶ events
//!   the own Node ───┤        └─▶ Outage: logs the start and the end of an outage, once each
//!   ServiceCIDRs ───┘ only if the settings request them
//! ```
//!
//! - The crate `kube` provides kubeconfig, TLS and HTTP.
//! - `list_watch` lists and watches one kind of object. Its documentation says why it replaces
//!   `kube`'s watcher.
//! - `token` reads a service account's token, and `connection` reads the certificate files.
//! - `tunnel` connects through an HTTP or SOCKS proxy.

mod addresses;
mod backoff;
mod cause;
mod connection;
mod end;
mod http_proxy;
mod in_cluster;
mod kubeconfig;
mod list;
mod list_watch;
mod messages;
mod outage;
mod request;
mod server_url;
mod token;
mod trust;
mod tunnel;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use http::{Request, Response, Uri};
use hyper::body::{Bytes, Incoming};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use proxy::{Event, Kind};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tower::layer::util::Identity;
use tower::util::{BoxCloneService, option_layer};
use tower::{BoxError, Layer, Service};

use crate::error::StartError;
use crate::settings::{Api, ContentType, Lists, ServiceCidrWatch};
use addresses::{Addresses, ServerPeer};
pub use addresses::{ApiServerAddress, ApiServerAddresses, Clear, ConnectHooks, Resolve};
pub use backoff::{Backoff, Cost};
use cause::{quoted_once, root_cause};
use connection::{Connection, Files};
use list_watch::ListWatch;
use outage::Outage;
pub use outage::{Trouble, Troubles};
use request::{Need, Resource};
use server_url::{EXAMPLE, master_url, without_user};

/// Capacity of the channel between the watches and the stream of events, in events. An
/// EndpointSlice of 50 endpoints is an event of 8 kB.
const IN_FLIGHT: usize = 128;

/// Host name in the kubeconfig of `manifests/daemonset` that the operator must replace with the API
/// server's.
const PLACEHOLDER_HOST: &str = "control-plane.example";

/// The `tower` service that sends the client's requests to the API server. A [`Counter`] layer
/// wraps it.
pub type Transport = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

/// A layer around a client's [`Transport`] that counts requests.
pub trait Counter: Layer<Transport, Service = Self::CountingService> {
    /// A `tower` service that wraps the transport and counts requests.
    type CountingService: Service<Request<Body>, Response = Response<Self::Body>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static;
    /// Response body of `CountingService`.
    type Body: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;
}

impl<L, S, B> Counter for L
where
    L: Layer<Transport, Service = S>,
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type CountingService = S;
    type Body = B;
}

/// Returns a layer that counts no requests, for callers without request metrics.
pub fn uncounted(_host: &str) -> Identity {
    Identity::new()
}

/// Client of one API server, with the settings of its lists and watches.
#[derive(Clone)]
pub struct Server {
    client: Client,
    url: String,
    addresses: Addresses,
    outage: Arc<Outage>,
    lists: Lists,
    content_type: ContentType,
    service_cidrs: ServiceCidrWatch,
}

impl Server {
    /// Reads the API server's address and credentials from one of three places:
    ///
    /// - a kubeconfig, whose URL `settings.master` overrides;
    /// - `settings.master` alone;
    /// - this Pod's environment.
    ///
    /// Sends no request, so the server may still be down. `count` gets the server's host and port,
    /// and returns the layer that counts requests.
    ///
    /// # Errors
    ///
    /// Fails if no server is configured, or if its credentials or certificates are invalid.
    pub async fn new<C: Counter>(
        settings: &Api,
        count: impl FnOnce(&str) -> C,
    ) -> Result<Self, StartError> {
        Self::by(settings, count, ConnectHooks::default()).await
    }

    /// Creates the client as [`new`](Self::new) does, with `hooks` that run before each connection.
    ///
    /// # Errors
    ///
    /// See [`new`](Self::new).
    pub async fn by<C: Counter>(
        settings: &Api,
        count: impl FnOnce(&str) -> C,
        hooks: ConnectHooks,
    ) -> Result<Self, StartError> {
        let master = settings.master.as_deref().map(master_url).transpose()?;
        let Access {
            mut config,
            proxy,
            files,
        } = match (&settings.kubeconfig, &master) {
            (Some(path), _) => from_file(path).await?,
            (None, Some(url)) => Access::without_credentials(url),
            (None, None) => of_this_pod(Path::new(in_cluster::FOLDER), environment).await?,
        };
        if let Some(url) = master {
            config.cluster_url = url;
        }
        // Removes a user name and password from the URL. Servers ignore both, but libraries would
        // log them with the URL.
        if let Ok(url) = without_user(&config.cluster_url.to_string()).parse() {
            config.cluster_url = url;
        }
        if config.cluster_url.host() == Some(PLACEHOLDER_HOST) {
            return Err(StartError::Api {
                what: format!("API server {}", config.cluster_url),
                reason: "this is the manifests' placeholder, no server".to_owned(),
                advice: "set `server` in the kubeconfig to the control plane's address (in a \
                         cluster: `kubectl -n kube-system edit configmap kube-proxy-ipvs`, key \
                         kubeconfig.conf, then delete the pods)",
            });
        }
        server_url::check(&config.cluster_url).map_err(|reason| StartError::Api {
            what: format!("API server {}", config.cluster_url),
            reason: reason.to_owned(),
            advice: EXAMPLE,
        })?;
        config.proxy_url = None;
        let proxy = http_proxy::choose(proxy.as_deref(), &config.cluster_url, environment);
        let proxy = proxy.map_err(|reason| StartError::Api {
            what: format!("API server {}", config.cluster_url),
            reason,
            advice: "correct it, or list the server in NO_PROXY",
        })?;
        let token = token::FromFile::take(&mut config.auth_info);
        // `ListWatch` retries its requests itself, because only `ListWatch` knows which events were
        // lost.
        config.default_retry = false;
        let url = config
            .cluster_url
            .to_string()
            .trim_end_matches('/')
            .to_owned();
        let host = config.cluster_url.authority();
        let host = host.map_or_else(String::new, ToString::to_string);
        let wrong = |error: kube::Error| StartError::Api {
            what: format!("API server {url}"),
            reason: quoted_once(&error),
            advice: "correct the credentials and certificates in the kubeconfig",
        };
        let (base, headers) = (config.base_uri_layer(), config.extra_headers_layer());
        let authorization = option_layer(config.auth_layer().map_err(wrong)?);
        let reached = [
            Some(&config.cluster_url),
            proxy.as_ref().map(|proxy| &proxy.url),
        ];
        let targets = reached.into_iter().flatten().filter_map(ServerPeer::of);
        let addresses = Addresses::new(targets.collect(), hooks);
        let connection = Connection::new(config, files, proxy, addresses.clone()).map_err(wrong)?;
        let connection = headers.map_err(wrong)?.layer(connection);
        let connection = authorization.layer(token.layer(connection));
        let transport = Transport::new(base.layer(connection));
        let counted = count(&host).layer(transport);
        Ok(Self {
            client: ClientBuilder::new(counted, "default").build(),
            outage: Arc::new(Outage::new(url.clone())),
            url,
            addresses,
            lists: settings.lists,
            content_type: settings.content_type,
            service_cidrs: settings.service_cidrs,
        })
    }

    /// Returns the current failures of the lists and watches that [`stream`](Self::stream) starts.
    pub fn troubles(&self) -> Troubles {
        Troubles::of(&self.outage)
    }

    /// Returns the client, for requests other than lists and watches.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the server's URL, without a user or password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the addresses at which this process reaches the server.
    pub fn addresses(&self) -> ApiServerAddresses {
        ApiServerAddresses::of(&self.addresses)
    }

    /// Lists and watches Services, EndpointSlices and the Node named `node`, with upstream's
    /// selectors. Adds ServiceCIDRs if the settings request them. The stream never ends, and needs
    /// a tokio runtime.
    pub fn stream(&self, node: &str) -> impl Stream<Item = Event> + Send + use<> {
        let mut resources = vec![
            Resource {
                kind: Kind::Service,
                need: Need::Needed,
                path: "/api/v1/services",
                labels: Some("!service.kubernetes.io/service-proxy-name"),
                fields: Some("spec.clusterIP!=None".to_owned()),
            },
            Resource {
                kind: Kind::EndpointSlice,
                need: Need::Needed,
                path: "/apis/discovery.k8s.io/v1/endpointslices",
                labels: Some("!service.kubernetes.io/headless"),
                fields: None,
            },
            Resource {
                kind: Kind::Node,
                need: Need::Needed,
                path: "/api/v1/nodes",
                labels: None,
                fields: Some(format!("metadata.name={node}")),
            },
        ];
        if self.service_cidrs == ServiceCidrWatch::On {
            resources.push(Resource {
                kind: Kind::ServiceCidr,
                need: Need::Optional {
                    right: "list and watch of servicecidrs in networking.k8s.io",
                    since: "1.33",
                },
                path: "/apis/networking.k8s.io/v1/servicecidrs",
                labels: None,
                fields: None,
            });
        }
        let (events, received) = mpsc::channel(IN_FLIGHT);
        let outage = &self.outage;
        let mut tasks = JoinSet::new();
        for resource in resources {
            let list_watch = ListWatch::new(
                self.client.clone(),
                self.content_type,
                self.lists,
                resource,
                Arc::clone(outage),
                events.clone(),
            );
            tasks.spawn(list_watch.run());
        }
        tasks.spawn(self.addresses.clone().follow());
        Events {
            addresses: self.addresses.subscribe(),
            received,
            _tasks: tasks,
        }
    }
}

/// Stream of the events of all watched kinds. Dropping the stream ends its list and watch tasks.
struct Events {
    addresses: mpsc::UnboundedReceiver<Vec<SocketAddr>>,
    received: mpsc::Receiver<Event>,
    _tasks: JoinSet<()>,
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        // Polls the addresses first, so that the receiver knows an address before it gets events
        // from a connection to this address.
        if let Poll::Ready(Some(addresses)) = self.addresses.poll_recv(context) {
            return Poll::Ready(Some(Event::ApiServerAt(addresses)));
        }
        self.received.poll_recv(context)
    }
}

/// Configuration to reach an API server: URL, credentials, proxy and certificate files.
struct Access {
    config: Config,
    /// Value of `proxy-url` in the kubeconfig's cluster, if set.
    proxy: Option<String>,
    files: Files,
}

impl Access {
    fn without_credentials(url: &Uri) -> Self {
        Self {
            config: Config::new(url.clone()),
            proxy: None,
            files: Files::default(),
        }
    }

    /// Reads the current context of a kubeconfig. `what` is the kubeconfig's name in error
    /// messages.
    async fn by(mut kubeconfig: Kubeconfig, what: &str) -> Result<Self, StartError> {
        // Replaces `proxy-url` with a placeholder. Without `proxy-url`, `kube` would read the proxy
        // from the environment, and blame this file for errors in the environment.
        let unused = "http://unused.invalid".to_owned();
        let proxy = cluster(&mut kubeconfig).and_then(|cluster| cluster.proxy_url.replace(unused));
        let authority = cluster(&mut kubeconfig).and_then(|cluster| {
            let is_inline = cluster.certificate_authority_data.is_some();
            let is_used = !is_inline && cluster.insecure_skip_tls_verify != Some(true);
            cluster.certificate_authority.clone().filter(|_| is_used)
        });
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let config = config.map_err(|error| StartError::Api {
            what: what.to_owned(),
            advice: match error {
                KubeconfigError::LoadCertificateAuthority(_)
                | KubeconfigError::ParseCertificates(_) => {
                    "correct its certificate-authority or certificate-authority-data, or the file that it names"
                }
                KubeconfigError::ParseClusterUrl(_) => EXAMPLE,
                _ => "correct the file: it needs a current-context with a cluster",
            },
            reason: quoted_once(&error),
        })?;
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            return Err(StartError::Api {
                what: what.to_owned(),
                reason: "there is no certificate in its certificate authority".to_owned(),
                advice: "correct its certificate-authority or certificate-authority-data",
            });
        }
        let user = &config.auth_info;
        let file = |path: &Option<String>, is_inline: bool| {
            let path = path.as_ref().filter(|_| !is_inline);
            path.map(PathBuf::from)
        };
        let files = Files {
            authority: authority.map(PathBuf::from),
            certificate: file(
                &user.client_certificate,
                user.client_certificate_data.is_some(),
            ),
            key: file(&user.client_key, user.client_key_data.is_some()),
        };
        Ok(Self {
            config,
            proxy,
            files,
        })
    }
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

async fn of_this_pod(
    folder: &Path,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Access, StartError> {
    let what = "the API server of this Pod";
    let kubeconfig = in_cluster::kubeconfig(folder, variable);
    let kubeconfig = kubeconfig.map_err(|reason| StartError::Api {
        what: what.to_owned(),
        reason,
        advice: "outside of a cluster, give --kubeconfig, --master or --manifests",
    })?;
    Access::by(kubeconfig, what).await
}

async fn from_file(path: &Path) -> Result<Access, StartError> {
    let what = format!("kubeconfig {}", path.display());
    let failed = |error: &dyn std::error::Error, advice| StartError::Api {
        what: what.clone(),
        reason: root_cause(error),
        advice,
    };
    // Reads the file before `kube` does, for a clear error if the file is missing or unreadable.
    // Rejects FIFOs and devices, because reading one may never end.
    let is_special = std::fs::metadata(path).is_ok_and(|of| !of.is_file() && !of.is_dir());
    let read = if is_special {
        Err(std::io::Error::other("this is not a regular file"))
    } else {
        std::fs::read(path)
    };
    read.map_err(|error| failed(&error, "correct --kubeconfig"))?;
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| StartError::Api {
        what: what.clone(),
        reason: without_content(&root_cause(&error)),
        advice: "correct the file",
    })?;
    let folder = path.parent().unwrap_or(path);
    let kubeconfig = kubeconfig::without_empty(&kubeconfig, folder);
    let kubeconfig = kubeconfig.map_err(|reason| StartError::Api {
        what: what.clone(),
        reason,
        advice: "correct the file",
    })?;
    if let Some(plugin) = plugin(&kubeconfig) {
        return Err(StartError::Api {
            what,
            reason: format!(
                "its user's credentials come from {plugin}, which this program does not run"
            ),
            advice: "give the user a token, a tokenFile, or a client certificate with its key",
        });
    }
    Access::by(kubeconfig, &what).await
}

/// Describes a parser's error without quoting the kubeconfig: the quote could contain a key or
/// token.
fn without_content(error: &str) -> String {
    let number = |word: &str| -> Option<usize> {
        let (_, behind) = error.split_once(word)?;
        let digits = behind.split(|of: char| !of.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    match (number("line "), number("column ")) {
        (Some(line), Some(column)) => {
            format!("line {line}, column {column}: this is not a kubeconfig")
        }
        _ => "this is not a kubeconfig".to_owned(),
    }
}

/// Returns the cluster that the kubeconfig's current context names, if any.
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

/// Returns the kind of credential plugin that the current context's user needs, or `None` if it
/// needs none.
fn plugin(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let context = context(kubeconfig)?;
    let mut users = kubeconfig.auth_infos.iter();
    let user = users.find(|one| Some(&one.name) == context.user.as_ref())?;
    match user.auth_info.as_ref()? {
        user if user.exec.is_some() => Some("an exec plugin"),
        user if user.auth_provider.is_some() => Some("an auth-provider"),
        _ => None,
    }
}

/// Parses the fuzzer's bytes as a list and as a watch, in JSON and protobuf, in chunks of 7 and of
/// 4,096 bytes.
pub(crate) fn read_as_anything(kind: Kind, bytes: &[u8]) {
    use futures::{FutureExt as _, TryStreamExt as _, stream};
    use messages::{Messages, NextMessage};
    use request::{Format, ResponseStream};

    for format in [Format::Json, Format::Protobuf] {
        for length in [7, 4096] {
            let answer = || ResponseStream {
                format,
                body: {
                    let pieces = bytes.chunks(length).map(|piece| Ok(piece.to_vec()));
                    let pieces: Vec<std::io::Result<Vec<u8>>> = pieces.collect();
                    Box::pin(stream::iter(pieces).into_async_read())
                },
            };
            let mut list = list::List::new(kind, answer());
            // All bytes are in memory, so no read waits.
            while let Some(Ok(Some(object))) = list.next().now_or_never() {
                drop(object);
            }
            let mut messages = Messages::new(answer());
            while let Some(Ok(NextMessage::Event)) = messages.next().now_or_never() {
                drop(match format {
                    Format::Json => crate::decode::json::event(kind, messages.event()),
                    Format::Protobuf => crate::decode::protobuf::event(kind, messages.event()),
                });
            }
        }
    }
}

/// Parses the fuzzer's bytes as a kubeconfig, and their first line as the URL of a server and of a
/// proxy. Reads no file.
pub(crate) fn read_as_kubeconfig(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(mut kubeconfig) = Kubeconfig::from_yaml(&text) {
        let _ = plugin(&kubeconfig);
        let _ = cluster(&mut kubeconfig);
    }
    if let Some(first) = text.lines().next() {
        drop(master_url(first));
        if let Ok(url) = first.parse::<Uri>() {
            drop(http_proxy::choose(Some(first), &url, |_| {
                Some(first.to_owned())
            }));
        }
        drop(without_user(first));
    }
}
