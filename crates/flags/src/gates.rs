//! Feature gates of Kubernetes 1.34 to 1.38: the values that a user sets, and the gates that are
//! on.
//!
//! A cluster often has one `featureGates` list for all its components and for several releases. An
//! upstream kube-proxy knows only the gates of its own release. This program serves clusters of all
//! these releases:
//!
//! - A gate that this program does not use or know causes a warning. The program still starts.
//! - `gates/kubernetes.txt` has one line per gate, with its stage in each release.
//! - A gate that the user does not set has its default in the [release that this program
//!   matches](KUBERNETES), or else in the nearest release that has the gate.
//! - Few gates change the behaviour of a kube-proxy. docs/flags.md, `OF_KUBE_PROXY` and
//!   `WITHOUT_EFFECT` describe their effects.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::version::KUBERNETES;

/// Gate for serving `spec.externalIPs` of Services (KEP-5707).
pub const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";
/// Gate for the page `/flagz` of the metrics server.
pub const FLAGZ: &str = "ComponentFlagz";
/// Gate for the page `/statusz` of the metrics server.
pub const STATUSZ: &str = "ComponentStatusz";
/// Gate for the alpha flags of the log: split output streams, and buffers.
pub const ALPHA_LOGGING: &str = "LoggingAlphaOptions";
/// Gate for the beta log format, `--logging-format=json`.
pub const BETA_LOGGING: &str = "LoggingBetaOptions";
/// Gate for receiving the first list of objects as a watch stream (WatchList).
pub const STREAMED_LISTS: &str = "WatchListClient";
/// Gate for IPVS mode (KEP-5495). Here, only `false` has an effect: it disables IPVS mode.
pub const IPVS_MODE: &str = "KubeProxyIPVS";
/// Gate for NodePorts at loopback addresses in nftables mode (KEP-6032). It is alpha and off in
/// 1.37, and beta and on in 1.38.
pub const LOCALHOST_NODE_PORTS: &str = "KubeProxyNFTablesLocalhostNodePorts";

/// Gates that set all gates of one stage. A gate that the user sets by name takes precedence.
const OF_STAGE: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

/// Gates that upstream's kube-proxy or its libraries read in at least one of these releases.
const OF_KUBE_PROXY: &[&str] = &[
    EXTERNAL_IPS,
    FLAGZ,
    STATUSZ,
    ALPHA_LOGGING,
    BETA_LOGGING,
    STREAMED_LISTS,
    IPVS_MODE,
    LOCALHOST_NODE_PORTS,
    "AllAlpha",
    "AllBeta",
    "AtomicFIFO",
    "CBORServingAndStorage",
    "ClientsAllowCARotation",
    "ClientsAllowCBOR",
    "ClientsAllowTLSCacheGC",
    "ClientsPreferCBOR",
    "ContextualLogging",
    "InOrderInformers",
    "InOrderInformersBatchProcess",
    "InformerResourceVersion",
    "LoadBalancerIPMode",
    "MultiCIDRServiceAllocator",
    "NFTablesNetlink",
    "NFTablesProxyMode",
    "NativeHistograms",
    "PreferSameTrafficDistribution",
    "ServiceTrafficDistribution",
    "TopologyAwareHints",
    "UnlockWhileProcessingFIFO",
    "WinDSR",
    "WinOverlay",
];

/// Gates of kube-proxy for which one value has no effect here: name, that value, and the reason
/// that the warning gives.
const WITHOUT_EFFECT: &[(&str, bool, &str)] = &[
    ("CBORServingAndStorage", true, "no page is served as CBOR"),
    (
        "ClientsAllowCARotation",
        false,
        "certificate authorities are always read again",
    ),
    (
        "ClientsAllowCBOR",
        true,
        "objects are read as protobuf or JSON",
    ),
    (
        "ClientsPreferCBOR",
        true,
        "objects are read as protobuf or JSON",
    ),
    (
        "ContextualLogging",
        false,
        "lines say of which IP family they are anyway",
    ),
    (
        "NFTablesNetlink",
        false,
        "nf_tables are always read and written over netlink",
    ),
    (
        "NativeHistograms",
        true,
        "metrics are served as text, which has classic histograms only",
    ),
];

/// Maturity of the feature behind a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Early feature, off by default.
    Alpha,
    /// Mature feature, usually on by default.
    Beta,
    /// Generally available feature.
    Stable,
    /// Feature whose gate a later release removes.
    Deprecated,
}

impl Stage {
    /// Returns the label `stage` of the metric `kubernetes_feature_enabled`, empty for a stable
    /// gate.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Stable => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// Minor version of the first release in `gates/kubernetes.txt`.
const FIRST: usize = 34;
/// Number of releases in `gates/kubernetes.txt`.
const RELEASES: usize = 5;

/// Index of the column in `gates/kubernetes.txt` whose release this program matches.
static OWN: LazyLock<usize> = LazyLock::new(|| {
    let minor: usize = KUBERNETES.minor.parse().unwrap_or(FIRST);
    minor.saturating_sub(FIRST).min(RELEASES - 1)
});

/// Stage and default of a gate in one Kubernetes release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spec {
    stage: Stage,
    default: bool,
    is_locked: bool,
}

impl Spec {
    /// Parses a cell of `gates/kubernetes.txt`, such as `B!`: beta, on by default, locked. Returns
    /// `None` if the release lacks the gate.
    fn read(cell: &str) -> Option<Self> {
        let (letter, is_locked) = match cell.strip_suffix('!') {
            Some(letter) => (letter, true),
            None => (cell, false),
        };
        let stage = match letter.to_ascii_lowercase().as_str() {
            "a" => Stage::Alpha,
            "b" => Stage::Beta,
            "g" => Stage::Stable,
            "d" => Stage::Deprecated,
            _ => return None,
        };
        Some(Self {
            stage,
            default: letter.chars().all(char::is_uppercase),
            is_locked,
        })
    }
}

/// A gate of Kubernetes, with its stage and default in each release.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownGate {
    name: &'static str,
    specs: [Option<Spec>; RELEASES],
    /// Stage and default in the release that this program matches, or else in the nearest release
    /// that has the gate.
    spec: Spec,
}

/// All known feature gates, sorted by name.
static KNOWN: LazyLock<Vec<KnownGate>> = LazyLock::new(|| {
    let lines = include_str!("gates/kubernetes.txt").lines();
    lines.filter_map(KnownGate::read).collect()
});

impl KnownGate {
    fn read(line: &'static str) -> Option<Self> {
        let mut words = line.split(' ');
        let name = words.next().filter(|name| !name.starts_with('#'))?;
        let mut specs = [None; RELEASES];
        for spec in &mut specs {
            *spec = Spec::read(words.next()?);
        }
        let there = specs.iter().enumerate();
        let there = there.filter_map(|(at, spec)| Some((at.abs_diff(*OWN), (*spec)?)));
        let (_, spec) = there.min_by_key(|(distance, _)| *distance)?;
        Some(Self { name, specs, spec })
    }

    fn of(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// Returns the first release that locks the gate to its default, such as `1.35`. Returns `None`
    /// if no release does.
    fn locked_since(&self) -> Option<String> {
        let is_locked = |spec: &Option<Spec>| spec.is_some_and(|spec| spec.is_locked);
        let at = self.specs.iter().position(is_locked)?;
        Some(format!("{}.{}", KUBERNETES.major, FIRST + at))
    }
}

/// Gates that the user sets, with their values. All other gates have their defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gates(BTreeMap<String, bool>);

impl Gates {
    /// Collects gates with their values. If a gate is given several times, its last value applies.
    pub fn new(given: impl IntoIterator<Item = (String, bool)>) -> Self {
        let given = given.into_iter().filter(|(name, _)| !name.is_empty());
        Self(given.collect())
    }

    /// Returns true if a gate is on. An unknown gate is off.
    pub fn is_on(&self, name: &str) -> bool {
        KnownGate::of(name).is_some_and(|known| self.has(known))
    }

    /// Returns the value that the user set for this gate by name, or `None`. Ignores `AllAlpha` and
    /// `AllBeta`.
    pub fn given(&self, name: &str) -> Option<bool> {
        self.0.get(name).copied()
    }

    /// Lists the gates of the release that this program matches: name, stage, and true if the gate
    /// is on.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        let there = KNOWN
            .iter()
            .filter(|known| matches!(known.specs.get(*OWN), Some(Some(_))));
        there.map(|known| (known.name, known.spec.stage, self.has(known)))
    }

    /// Returns log lines about the gates of kube-proxy that the user sets. For a stable or
    /// deprecated gate, the line is upstream's: a future release removes the gate.
    /// `KubeProxyIPVS=true` gets a line of its own, because it has no effect.
    pub fn notes(&self) -> Vec<String> {
        let read = self.0.iter().filter(|(name, _)| is_of_kube_proxy(name));
        let notes = read.filter_map(|(name, value)| {
            if name == IPVS_MODE {
                let text = "it has no effect: ipvs mode is always built in";
                return value.then(|| format!("the feature gate {name}=true is given; {text}"));
            }
            let stage = match KnownGate::of(name)?.spec.stage {
                Stage::Stable => "GA",
                Stage::Deprecated => "deprecated",
                Stage::Alpha | Stage::Beta => return None,
            };
            Some(format!(
                "setting {stage} feature gate {name}={value}; it will be removed in a future \
                 release"
            ))
        });
        notes.collect()
    }

    /// Returns the warnings about gates that the user sets. Each gate of kube-proxy whose value has
    /// no effect here gets its own line. Gates of other components share one line, and unknown
    /// gates share another.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let (mut foreign, mut unknown) = (Vec::new(), Vec::new());
        for (name, value) in &self.0 {
            let known = KnownGate::of(name);
            match known {
                None => unknown.push(&**name),
                Some(_) if !is_of_kube_proxy(name) => foreign.push(&**name),
                Some(known) => {
                    let rows = WITHOUT_EFFECT.iter();
                    let row = rows
                        .filter(|row| (row.0, row.1) == (name, *value))
                        .map(|row| row.2.to_owned());
                    let locked = known.spec.is_locked && known.spec.default != *value;
                    let since = known.locked_since().filter(|_| locked);
                    let locked = since.map(|since| {
                        let default = known.spec.default;
                        format!("Kubernetes {since} locks it to {default}; remove it")
                    });
                    warnings.extend(row.chain(locked).map(|why| {
                        format!("the feature gate {name}={value} has no effect: {why}")
                    }));
                }
            }
        }
        if !foreign.is_empty() {
            let names = foreign.join(", ");
            warnings.push(format!(
                "feature gates of other components have no effect on kube-proxy: {names}"
            ));
        }
        if !unknown.is_empty() {
            let (first, last) = (FIRST, FIRST + RELEASES - 1);
            let names = unknown.join(", ");
            warnings.push(format!(
                "unrecognized feature gates have no effect: {names}; Kubernetes 1.{first} to \
                 1.{last} have none of these names, look for a \
                 spelling mistake"
            ));
        }
        warnings
    }

    fn has(&self, known: &KnownGate) -> bool {
        let Spec {
            stage,
            default,
            is_locked,
        } = known.spec;
        if is_locked {
            return default;
        }
        let of_stage = || {
            let all = OF_STAGE.iter().find(|(_, of)| *of == stage);
            let is_switch = OF_STAGE.iter().any(|(name, _)| *name == known.name);
            all.filter(|_| !is_switch)
                .and_then(|(name, _)| self.0.get(*name))
        };
        let given = self.0.get(known.name).or_else(of_stage);
        *given.unwrap_or(&default)
    }
}

fn is_of_kube_proxy(name: &str) -> bool {
    OF_KUBE_PROXY.contains(&name)
}

#[cfg(test)]
mod tests;
