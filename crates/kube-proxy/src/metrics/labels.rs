//! Label sets of the metrics, one type for each combination of labels.

use prometheus_client::encoding::EncodeLabelSet;
use proxy::{EntryKind, Fate, IpFamily};

use flags::version::KUBERNETES;
use modes::metrics::{FamilyLabels, of};

use crate::process::version::COMMIT;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabels {
    pub(crate) ip_family: &'static str,
    pub(crate) kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PolicyLabels {
    pub(crate) ip_family: &'static str,
    pub(crate) traffic_policy: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CodeLabels {
    pub(crate) code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) code: String,
    pub(crate) host: String,
    pub(crate) method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct VerbLabels {
    pub(crate) host: String,
    pub(crate) verb: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CheckLabels {
    pub(crate) name: &'static str,
    pub(crate) r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CheckStatusLabels {
    pub(crate) name: &'static str,
    pub(crate) status: &'static str,
    pub(crate) r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FeatureLabels {
    pub(crate) name: &'static str,
    pub(crate) stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StabilityLabels {
    pub(crate) deprecated_version: &'static str,
    pub(crate) stability_level: &'static str,
}

/// Labels of `kubernetes_build_info`: the Kubernetes version that this program matches. Tools use
/// this metric to compare the versions in a cluster. So a separate metric has this program's own
/// version: see [`OwnBuild`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(clippy::struct_field_names, reason = "the label is upstream's")]
pub(crate) struct Build {
    pub(crate) build_date: &'static str,
    pub(crate) compiler: &'static str,
    pub(crate) git_commit: &'static str,
    pub(crate) git_tree_state: &'static str,
    pub(crate) git_version: String,
    pub(crate) go_version: &'static str,
    pub(crate) major: &'static str,
    pub(crate) minor: &'static str,
    pub(crate) platform: String,
}

/// Labels of `kubeproxy_ipvs_build_info`: this program's own version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OwnBuild {
    pub(crate) version: &'static str,
    pub(crate) commit: &'static str,
}

impl Build {
    pub(super) fn this() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            build_date: "",
            compiler: "rustc",
            git_commit: COMMIT,
            git_tree_state: "",
            git_version: KUBERNETES.git_version(),
            go_version: "",
            major: KUBERNETES.major,
            minor: KUBERNETES.minor,
            platform: format!("{}/{architecture}", std::env::consts::OS),
        }
    }
}

/// Labels of a metric that counts writes by kind of entry and outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WriteLabels {
    pub(crate) ip_family: &'static str,
    pub(crate) subsystem: &'static str,
    pub(crate) result: &'static str,
}

pub(super) fn of_write(family: IpFamily, subject: EntryKind, fate: Fate) -> WriteLabels {
    let FamilyLabels { ip_family } = of(family);
    WriteLabels {
        ip_family,
        subsystem: subject.label(),
        result: fate.label(),
    }
}

pub(super) fn of_kind(family: IpFamily, kind: &str) -> KindLabels {
    let FamilyLabels { ip_family } = of(family);
    KindLabels {
        ip_family,
        kind: kind.replace(' ', "_"),
    }
}
