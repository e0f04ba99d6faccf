//! Reads Services from an API server or a directory of manifests. Each source is a stream of
//! [`Event`]s that never ends.
//!
//! ```text
//!   Settings ─▶ open ─┬─▶ api: lists and watches ──▶ decode ─┬─▶ Event
//!                     └─▶ manifests: a directory ──▶ decode ─┘
//! ```
//!
//! - **Permanent errors**, such as a missing directory or an invalid kubeconfig: returned as a
//!   [`StartError`].
//! - **Temporary errors**, such as an API server that is down or a broken file: logged and retried.
//!   They delete no objects.
//!
//! The crate does not know flags, modes or metrics. The caller can pass a layer that counts
//! requests.

pub mod api;
mod complaints;
mod decode;
mod endpoint_places;
mod error;
#[doc(hidden)]
pub mod fuzzed;
pub mod manifests;
mod settings;
pub mod yaml;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Client;
use proxy::Event;

pub use api::{
    ApiServerAddress, ApiServerAddresses, Clear, ConnectHooks, Counter, Resolve, Trouble, Troubles,
    uncounted,
};
pub use decode::{address, kind_name};
pub use endpoint_places::{EndpointPlaces, Registry, WhereaboutsError};
pub use error::StartError;
pub use manifests::{UnreadableManifest, UnreadableManifests};
pub use settings::{Api, ContentType, Lists, ServiceCidrWatch, Settings};

/// A started source: its stream of events, and access to its state.
pub struct Source {
    /// Events about the source's objects. The stream never ends.
    pub events: BoxStream<'static, Event>,
    /// Client of the API server. `None`: the source is a directory of manifests.
    pub client: Option<Client>,
    /// Source of the endpoints' pods, nodes and zones, which events omit.
    pub registry: Registry,
    /// Description of the source without secrets, such as `API server https://10.0.0.1:6443`.
    pub from: String,
    /// Addresses at which this process reaches the API server.
    pub addresses: ApiServerAddresses,
    /// Current failures of lists and watches. Always empty for a directory of manifests.
    pub troubles: Troubles,
    /// Manifests that cannot be read. Always empty for an API server.
    pub unreadable: UnreadableManifests,
}

/// Opens a source. `node` is this node's name. `count` gets the API server's host and port, and
/// creates the layer that counts requests; [`uncounted`] counts nothing. `hooks` run before each
/// connection to an API server.
///
/// # Errors
///
/// Returns a [`StartError`] for errors that the operator must correct.
pub async fn connect<C: Counter>(
    settings: &Settings,
    node: &str,
    count: impl FnOnce(&str) -> C,
    hooks: ConnectHooks,
) -> Result<Source, StartError> {
    Ok(match settings {
        Settings::Manifests(folder) => {
            let stream = manifests::stream(folder, node)?;
            Source {
                unreadable: stream.unreadable(),
                events: stream.boxed(),
                client: None,
                registry: Registry::Manifests(folder.clone()),
                from: format!("manifests in {}", folder.display()),
                addresses: ApiServerAddresses::default(),
                troubles: Troubles::default(),
            }
        }
        Settings::Api(api) => {
            let server = api::Server::by(api, count, hooks).await?;
            Source {
                events: server.stream(node).boxed(),
                client: Some(server.client().clone()),
                registry: Registry::Api(server.client().clone()),
                from: format!("API server {}", server.url()),
                addresses: server.addresses(),
                troubles: server.troubles(),
                unreadable: UnreadableManifests::default(),
            }
        }
    })
}

/// Opens a source. Returns its events, and the client if the source is an API server. See
/// [`connect`].
///
/// # Errors
///
/// Returns a [`StartError`] for errors that the operator must correct.
pub async fn open<C: Counter>(
    settings: &Settings,
    node: &str,
    count: impl FnOnce(&str) -> C,
) -> Result<(BoxStream<'static, Event>, Option<Client>), StartError> {
    let Source { events, client, .. } =
        connect(settings, node, count, ConnectHooks::default()).await?;
    Ok((events, client))
}
