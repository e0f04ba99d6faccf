//! Where Services come from: an API server, or a folder of manifests. Both are a stream of
//! [`Event`]s that never ends.
//!
//! ```text
//!   Settings ─▶ open ─┬─▶ api: lists and watches ──▶ decode ─┬─▶ Event
//!                     └─▶ manifests: a folder ─────▶ decode ─┘
//! ```
//!
//! What can go wrong for good (no such folder, a kubeconfig that cannot be read) is said at once,
//! as a [`StartError`]. What may heal (an API server that is away, a broken file) is logged, waited
//! for, and takes nothing away meanwhile.
//!
//! What it knows nothing of: flags, metrics (a layer around the client counts requests), and the
//! proxy's modes.

pub mod api;
mod complaints;
mod decode;
mod error;
#[doc(hidden)]
pub mod fuzzed;
pub mod manifests;
mod settings;
mod whereabouts;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Client;
use proxy::Event;

pub use api::{
    ApiServerAddress, ApiServerAddresses, Clear, Counter, Resolve, Trouble, Troubles, Way,
    uncounted,
};
pub use decode::{address, kind_name};
pub use error::StartError;
pub use settings::{Api, ContentType, Lists, ServiceCidrs, Settings};
pub use whereabouts::{Places, Registry, Unknown};

/// A source that is open.
pub struct Source {
    /// What it tells, without end.
    pub events: BoxStream<'static, Event>,
    /// The client of its API server, if it is one.
    pub client: Option<Client>,
    /// Whom to ask for what it does not tell.
    pub registry: Registry,
    /// What it is, in words, without secrets: `API server https://10.0.0.1:6443`.
    pub from: String,
    /// The addresses at which its API server is reached.
    pub addresses: ApiServerAddresses,
    /// What fails there; nothing does at a folder.
    pub troubles: Troubles,
}

/// Opens a source; `node` is this node's name. `count` makes the layer that counts requests, from
/// the server's host and port ([`uncounted`]: none). An API server is connected to in this `way`.
///
/// # Errors
///
/// What does not heal by itself: [`StartError`].
pub async fn connect<C: Counter>(
    settings: &Settings,
    node: &str,
    count: impl FnOnce(&str) -> C,
    way: Way,
) -> Result<Source, StartError> {
    Ok(match settings {
        Settings::Manifests(folder) => Source {
            events: manifests::stream(folder, node)?.boxed(),
            client: None,
            registry: Registry::Manifests(folder.clone()),
            from: format!("manifests in {}", folder.display()),
            addresses: ApiServerAddresses::default(),
            troubles: Troubles::default(),
        },
        Settings::Api(api) => {
            let server = api::Server::by(api, count, way).await?;
            Source {
                events: server.stream(node).boxed(),
                client: Some(server.client().clone()),
                registry: Registry::Api(server.client().clone()),
                from: format!("API server {}", server.place()),
                addresses: server.addresses(),
                troubles: server.troubles(),
            }
        }
    })
}

/// Opens a source, and the client of its API server, if it is one; `node` is this node's name.
/// `count` makes the layer that counts requests, from the server's host and port ([`uncounted`]:
/// none).
///
/// # Errors
///
/// What does not heal by itself: [`StartError`].
pub async fn open<C: Counter>(
    settings: &Settings,
    node: &str,
    count: impl FnOnce(&str) -> C,
) -> Result<(BoxStream<'static, Event>, Option<Client>), StartError> {
    let Source { events, client, .. } = connect(settings, node, count, Way::default()).await?;
    Ok((events, client))
}
