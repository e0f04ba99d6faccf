//! Options for the source of Services: an API server or a directory of manifests.

use std::path::PathBuf;

use source::{Api, ContentType, Lists, ServiceCidrWatch, Settings};

use flags::gates::{Gates, STREAMED_LISTS};
use flags::unusable_flag::UnusableFlag;
use flags::{Flags, PROTOBUF};

/// Need of this process for its node's Node object, at the start and for `/healthz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnNode {
    /// A start waits for the Node object for a limited time, and `/healthz` fails without it.
    Needed,
    /// The Node object may be missing.
    Optional,
}

impl OwnNode {
    /// Returns `Needed` for an API server, and `Optional` for a directory of manifests, which does
    /// not have to contain a Node.
    pub(crate) fn of(source: &Settings) -> Self {
        match source {
            Settings::Manifests(_) => Self::Optional,
            Settings::Api(_) => Self::Needed,
        }
    }
}

/// Kinds of objects that only some modes need, for which a start waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SideKinds {
    /// The mode needs no objects of these kinds.
    Nothing,
    /// The mode needs ServiceCIDRs. A start waits for their list, for a limited time.
    ServiceCidrs,
}

impl SideKinds {
    /// Returns the optional kinds for which a start with this source waits. From a directory of
    /// manifests, ServiceCIDRs arrive together with all other objects.
    pub(crate) fn of(source: &Settings) -> Self {
        match source {
            Settings::Api(api) if api.service_cidrs == ServiceCidrWatch::Off => Self::Nothing,
            Settings::Api(_) | Settings::Manifests(_) => Self::ServiceCidrs,
        }
    }
}

pub(super) fn read(
    flags: &Flags,
    gates: &Gates,
    service_cidrs: ServiceCidrWatch,
) -> Result<Settings, UnusableFlag> {
    let kubeconfig = (!flags.kubeconfig.is_empty()).then(|| PathBuf::from(&flags.kubeconfig));
    let master = (!flags.master.is_empty()).then(|| flags.master.clone());
    let Some(folder) = &flags.manifests else {
        let lists = match gates.given(STREAMED_LISTS) {
            Some(true) => Lists::Streamed,
            Some(false) | None => Lists::Cached,
        };
        let content_type = match &*flags.kube_api_content_type {
            "" | PROTOBUF => ContentType::Protobuf,
            _ => ContentType::Json,
        };
        return Ok(Settings::Api(Api {
            kubeconfig,
            master,
            lists,
            content_type,
            service_cidrs,
        }));
    };
    let unusable = |advice| UnusableFlag::new("manifests", &folder.to_string_lossy(), advice);
    if kubeconfig.is_some() || master.is_some() {
        Err(unusable(
            "Services come from manifests or from an API server, not both: give this, or --kubeconfig and --master",
        ))
    } else if folder.is_empty() {
        Err(unusable("give a directory"))
    } else {
        Ok(Settings::Manifests(folder.into()))
    }
}
