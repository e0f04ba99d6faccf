//! Where Services come from: an API server, or a folder of manifests. Both are a stream of [`Event`]s that never ends.
//!
//! What can go wrong for good (no such folder, a kubeconfig that cannot be read) is said at once, as a [`StartError`].
//! What may heal (an API server that is away, a broken file) is logged, waited for, and takes nothing away meanwhile.

pub mod api;
pub mod manifests;

use std::collections::HashMap;
use std::path::PathBuf;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Client;
use proxy::Event;

use crate::decode::{Key, Problem};
use crate::metrics::Metrics;
use crate::options::object_source::ObjectSource;

/// A source cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder of manifests cannot be watched.
    #[error("cannot watch manifests in {}: {source}; {advice}", folder.display())]
    Manifests {
        /// `--manifests`.
        folder: PathBuf,
        /// What to do.
        advice: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// It is not known how to reach the API server.
    #[error("{what}: {reason}; {advice}")]
    Api {
        /// What was read for it.
        what: String,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
}

/// Opens the source that the flags name, and the client of its API server, if it is one; `node` is this node's name.
pub async fn open(
    source: &ObjectSource,
    node: &str,
) -> Result<(BoxStream<'static, Event>, Option<Client>), StartError> {
    open_counted(source, node, &Metrics::new()).await
}

/// The same, and `metrics` counts what is asked of the API server.
pub async fn open_counted(
    source: &ObjectSource,
    node: &str,
    metrics: &Metrics,
) -> Result<(BoxStream<'static, Event>, Option<Client>), StartError> {
    match source {
        ObjectSource::Manifests(folder) => Ok((manifests::stream(folder, node)?.boxed(), None)),
        ObjectSource::Api {
            kubeconfig,
            master,
            first_list,
        } => {
            let server =
                api::Server::counted(kubeconfig.as_deref(), master.as_deref(), metrics).await?;
            let server = server.with_first_list(*first_list);
            Ok((server.stream(node).boxed(), Some(server.client().clone())))
        }
    }
}

/// What was said of each object's problems, so that it is said once and not with every update of the object.
#[derive(Debug, Default)]
struct Complaints(HashMap<Key, Vec<Problem>>);

impl Complaints {
    /// The lines to say about an object that now has these problems.
    fn of(&mut self, key: &Key, problems: Vec<Problem>) -> Vec<String> {
        /// A slice with a thousand wrong endpoints is one mistake.
        const MOST: usize = 5;
        if problems.is_empty() {
            self.0.remove(key);
            return Vec::new();
        }
        if self.0.get(key) == Some(&problems) {
            return Vec::new();
        }
        let mut lines: Vec<String> = problems
            .iter()
            .take(MOST)
            .map(ToString::to_string)
            .collect();
        if let Some(further @ 1..) = problems.len().checked_sub(MOST) {
            lines.push(format!("{key}: {further} further problems like these"));
        }
        self.0.insert(key.clone(), problems);
        lines
    }

    fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }
}
