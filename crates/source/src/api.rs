//! Services from the Kubernetes API.
//!
//! ```text
//!   Services ───────┐ one ListWatch each, on tasks of their own
//!   EndpointSlices ─┼─▶ events
//!   the own Node ───┤        └─▶ Outage: says once that the server is away, and once that it is back
//!   ServiceCIDRs ───┘ where they are asked for
//! ```
//!
//! `kube` does what is common to all clients: kubeconfig, TLS, HTTP. Listing and watching is done
//! here, in `list_watch`, which says why, and so are the token of a service account, in `token`,
//! what certificates come from files, in `connection`, and the ways through a proxy, in `tunnel`.

mod addresses;
mod backoff;
mod cause;
mod connection;
mod end;
mod http_proxy;
mod in_cluster;
mod list;
mod list_watch;
mod messages;
mod outage;
mod request;
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
use crate::settings::{Api, ContentType, Lists, ServiceCidrs};
use addresses::{Addresses, Target};
pub use addresses::{ApiServerAddress, ApiServerAddresses, Clear, Resolve, Way};
pub use backoff::{Backoff, Cost};
use cause::root_cause;
use connection::{Connection, Files};
use list_watch::ListWatch;
use outage::Outage;
pub use outage::{Trouble, Troubles};
use request::{Need, Resource};

/// Events on their way to whoever reads the stream: 8 kB each, where slices have 50 endpoints.
const IN_FLIGHT: usize = 128;

/// What sends a client's requests, as a layer that counts them sees it.
pub type Transport = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

/// A layer around a client's [`Transport`] that counts requests.
pub trait Counter: Layer<Transport, Service = Self::Counted> {
    /// What the client then sends its requests with.
    type Counted: Service<Request<Body>, Response = Response<Self::Body>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static;
    /// The body of an answer.
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
    type Counted = S;
    type Body = B;
}

/// Counts nothing.
pub fn uncounted(_host: &str) -> Identity {
    Identity::new()
}

/// An API server, and how to talk to it.
#[derive(Clone)]
pub struct Server {
    client: Client,
    url: String,
    addresses: Addresses,
    outage: Arc<Outage>,
    lists: Lists,
    content_type: ContentType,
    service_cidrs: ServiceCidrs,
}

impl Server {
    /// Reads how to reach the server: from a kubeconfig, whose URL `master` overrides, from
    /// `master` alone, or from the Pod that this is. The server itself need not be there yet.
    /// `count` makes the layer that counts requests, from the server's host and port.
    ///
    /// # Errors
    ///
    /// There is no such way to a server, or its credentials or certificates cannot be used.
    pub async fn new<C: Counter>(
        settings: &Api,
        count: impl FnOnce(&str) -> C,
    ) -> Result<Self, StartError> {
        Self::by(settings, count, Way::default()).await
    }

    /// The same, which is connected to in this way.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub async fn by<C: Counter>(
        settings: &Api,
        count: impl FnOnce(&str) -> C,
        way: Way,
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
        // What stands before the host proves nothing to a server here, and would be told by libraries
        // that log where they connect to.
        if let Ok(url) = without_user(&config.cluster_url.to_string()).parse() {
            config.cluster_url = url;
        }
        config.proxy_url = None;
        let proxy = http_proxy::choose(proxy.as_deref(), &config.cluster_url, environment);
        let proxy = proxy.map_err(|reason| StartError::Api {
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
        let wrong = |error: kube::Error| StartError::Api {
            what: format!("API server {url}"),
            reason: error.to_string(),
            advice: "correct the credentials and certificates in the kubeconfig",
        };
        let (base, headers) = (config.base_uri_layer(), config.extra_headers_layer());
        let authorization = option_layer(config.auth_layer().map_err(wrong)?);
        let reached = [
            Some(&config.cluster_url),
            proxy.as_ref().map(|proxy| &proxy.url),
        ];
        let targets = reached.into_iter().flatten().filter_map(Target::of);
        let addresses = Addresses::new(targets.collect(), way);
        let connection = Connection::new(config, files, proxy, addresses.clone()).map_err(wrong)?;
        let connection = authorization.layer(headers.map_err(wrong)?.layer(connection));
        let transport = Transport::new(token.layer(base.layer(connection)));
        let counted = count(&host.unwrap_or_default()).layer(transport);
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

    /// What fails of what [`stream`](Self::stream) asks.
    pub fn troubles(&self) -> Troubles {
        Troubles::of(&self.outage)
    }

    /// The client, for whatever else is to be asked or told.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The server's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same without the user and password that it may have.
    pub fn place(&self) -> String {
        without_user(&self.url)
    }

    /// The addresses at which it is reached.
    pub fn addresses(&self) -> ApiServerAddresses {
        ApiServerAddresses::of(&self.addresses)
    }

    /// Lists and watches Services, EndpointSlices and the Node named `node`, with upstream's
    /// selectors, and ServiceCIDRs where they are asked for. Never ends; needs a tokio runtime.
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
        if self.service_cidrs == ServiceCidrs::Watched {
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

/// The stream; its tasks end when it is dropped.
struct Events {
    addresses: mpsc::UnboundedReceiver<Vec<SocketAddr>>,
    received: mpsc::Receiver<Event>,
    _tasks: JoinSet<()>,
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        // Before what was told over a connection to one of them.
        if let Poll::Ready(Some(addresses)) = self.addresses.poll_recv(context) {
            return Poll::Ready(Some(Event::ApiServerAt(addresses)));
        }
        self.received.poll_recv(context)
    }
}

/// What is known of a server and its client.
struct Access {
    config: Config,
    /// `proxy-url`.
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

    /// By the current context. `what` the kubeconfig is called.
    async fn by(mut kubeconfig: Kubeconfig, what: &str) -> Result<Self, StartError> {
        // Without one, `kube` would read the variables, and take what is wrong with them for the
        // file's.
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
                _ => "correct the file: it needs a current-context with a cluster",
            },
            reason: error.to_string(),
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
    // Read here first, for the plain reasons: it is not there, or may not be read.
    std::fs::read(path).map_err(|error| failed(&error, "correct --kubeconfig"))?;
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| StartError::Api {
        what: what.clone(),
        reason: without_content(&root_cause(&error)),
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

/// Where a kubeconfig cannot be read, by what the parser says of it. What stands there is not told:
/// it may be a key or a token.
fn without_content(error: &str) -> String {
    let number = |word: &str| -> Option<usize> {
        let (_, behind) = error.split_once(word)?;
        let digits = behind.split(|of: char| !of.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    match (number("line "), number("column ")) {
        (Some(line), Some(column)) => {
            format!("it is no kubeconfig from line {line} column {column} on")
        }
        _ => "it is no kubeconfig".to_owned(),
    }
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

/// A URL without what stands in front of its host.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    // What follows a `?` may be a secret, too.
    let path = path.split('?').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
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

/// Reads a list and a watch of these bytes, in each form and in pieces.
pub(crate) fn read_as_anything(kind: Kind, bytes: &[u8]) {
    use futures::{FutureExt as _, TryStreamExt as _, stream};
    use messages::{Messages, Next};
    use request::{Answer, Format};

    for format in [Format::Json, Format::Protobuf] {
        for length in [7, 4096] {
            let answer = || Answer {
                format,
                body: {
                    let pieces = bytes.chunks(length).map(|piece| Ok(piece.to_vec()));
                    let pieces: Vec<std::io::Result<Vec<u8>>> = pieces.collect();
                    Box::pin(stream::iter(pieces).into_async_read())
                },
            };
            let mut list = list::List::new(kind, answer());
            // All has come, so that nothing is waited for.
            while let Some(Ok(Some(object))) = list.next().now_or_never() {
                drop(object);
            }
            let mut messages = Messages::new(answer());
            while let Some(Ok(Next::Event)) = messages.next().now_or_never() {
                drop(match format {
                    Format::Json => crate::decode::json::event(kind, messages.event()),
                    Format::Protobuf => crate::decode::protobuf::event(kind, messages.event()),
                });
            }
        }
    }
}

/// Reads what is read of a kubeconfig before any file that it names, and URLs of servers and
/// proxies.
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
