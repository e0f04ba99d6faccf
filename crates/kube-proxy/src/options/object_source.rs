//! Where Services come from.

use std::path::PathBuf;

use crate::flags::Flags;
use crate::flags::gates::{Gates, STREAMED_LISTS};
use crate::flags::unusable::UnusableFlag;

/// Where Services come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectSource {
    /// A folder of manifests.
    Manifests(PathBuf),
    /// An API server; in-cluster if both are `None`.
    Api {
        /// `--kubeconfig`.
        kubeconfig: Option<PathBuf>,
        /// `--master`, overriding the URL of the kubeconfig.
        master: Option<String>,
        /// How the first list of each kind is asked for.
        first_list: FirstList,
    },
}

/// How the first list of objects is asked for (the feature gate `WatchListClient`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FirstList {
    /// Object by object, as a watch; in pages from a server that does not know it.
    #[default]
    Streamed,
    /// In pages.
    Paged,
}

/// Whether a source has the own Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnNode {
    /// It is to exist.
    Needed,
    /// It may.
    Optional,
}

impl ObjectSource {
    /// Whether the own Node is to be expected: a folder of manifests need not have any.
    pub(crate) fn own_node(&self) -> OwnNode {
        match self {
            Self::Manifests(_) => OwnNode::Optional,
            Self::Api { .. } => OwnNode::Needed,
        }
    }
}

pub(super) fn read(flags: &Flags, gates: &Gates) -> Result<ObjectSource, UnusableFlag> {
    let kubeconfig = (!flags.kubeconfig.is_empty()).then(|| PathBuf::from(&flags.kubeconfig));
    let master = (!flags.master.is_empty()).then(|| flags.master.clone());
    let Some(folder) = &flags.manifests else {
        let first_list = if gates.is_on(STREAMED_LISTS) {
            FirstList::Streamed
        } else {
            FirstList::Paged
        };
        return Ok(ObjectSource::Api {
            kubeconfig,
            master,
            first_list,
        });
    };
    let unusable = |advice| UnusableFlag::new("manifests", &folder.to_string_lossy(), advice);
    if kubeconfig.is_some() || master.is_some() {
        Err(unusable(
            "Services come from manifests or from an API server, not both: give this, or --kubeconfig and --master",
        ))
    } else if folder.is_empty() {
        Err(unusable("give a folder"))
    } else {
        Ok(ObjectSource::Manifests(folder.into()))
    }
}
