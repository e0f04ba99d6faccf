//! Feature gates: which there are in Kubernetes 1.36, what was given, and what comes of it.
//!
//! Upstream's kube-proxy knows every gate of Kubernetes, also those of other programs, because one
//! `featureGates` is often written for a whole cluster: it is an error to give one that is unknown,
//! or to give one that is locked another value. The same here; `gates/kubernetes-1.36.txt` has a
//! line for each: its name, its stage, its default, whether it is locked, and which others it
//! needs. (From `pkg/features`, `apiserver/pkg/features`, `apiextensions-apiserver/pkg/features`,
//! `client-go/features` and `component-base/{logs,metrics,zpages}`, as of 1.36.2: what is linked
//! into its kube-proxy.)
//!
//! Few of them change what a kube-proxy does. What each of these comes to is in docs/flags.md, and
//! in `WITHOUT_EFFECT` and `ABSENT` here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// `spec.externalIPs` of Services are served (KEP-5707).
pub const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";
/// The page `/flagz`.
pub const FLAGZ: &str = "ComponentFlagz";
/// The page `/statusz`.
pub const STATUSZ: &str = "ComponentStatusz";
/// Options of the log that are alpha: standard output, and buffers.
pub(crate) const ALPHA_LOGGING: &str = "LoggingAlphaOptions";
/// Options of the log that are beta: JSON.
pub(crate) const BETA_LOGGING: &str = "LoggingBetaOptions";
/// The first list of objects is streamed.
pub(crate) const STREAMED_LISTS: &str = "WatchListClient";

/// Gates that switch all others of a stage which are not given themselves.
const OF_STAGE: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

/// Gates that upstream's kube-proxy reads, a value of theirs that changes nothing here, and why.
const WITHOUT_EFFECT: &[(&str, bool, &str)] = &[
    ("CBORServingAndStorage", true, "no page is served as CBOR"),
    (
        "ClientsAllowCARotation",
        false,
        "certificate authorities are always read anew",
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
];

/// Gates that ask for what this build has not, if they have this value, and what that is.
const ABSENT: &[(&str, bool, &str)] = &[(
    "NativeHistograms",
    true,
    "this build has no native histograms",
)];

/// Gates of later versions, and what to do.
const LATER: &[(&str, &str)] = &[(
    "KubeProxyIPVS",
    "it is of Kubernetes 1.37, and ipvs mode needs no gate here: take it out",
)];

/// How far a feature has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Off by default.
    Alpha,
    /// Mostly on by default.
    Beta,
    /// General availability.
    Stable,
    /// To go.
    Deprecated,
}

impl Stage {
    /// As metrics label it: a stable one has no name.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Stable => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// A gate as Kubernetes has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    name: &'static str,
    stage: Stage,
    default: bool,
    is_locked: bool,
    /// What must be on if this is.
    needs: Vec<&'static str>,
}

/// All, sorted by name.
static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let lines = include_str!("gates/kubernetes-1.36.txt").lines();
    lines.filter_map(Known::read).collect()
});

impl Known {
    /// Reads `NAME STAGE on|off [locked] [needs NAME,...]`.
    fn read(line: &'static str) -> Option<Self> {
        let mut words = line.split(' ').peekable();
        let name = words.next()?;
        let stage = match words.next()? {
            "alpha" => Stage::Alpha,
            "beta" => Stage::Beta,
            "stable" => Stage::Stable,
            "deprecated" => Stage::Deprecated,
            _ => return None,
        };
        let default = words.next()? == "on";
        let is_locked = words.next_if_eq(&"locked").is_some();
        let needs = match words.next() {
            Some("needs") => words.next()?.split(',').collect(),
            _ => Vec::new(),
        };
        Some(Self {
            name,
            stage,
            default,
            is_locked,
            needs,
        })
    }

    fn of(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.name == name)
    }
}

/// Why gates cannot be used: what was given, and what is wrong with it and allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unusable {
    pub(crate) given: String,
    pub(crate) advice: String,
}

impl Unusable {
    fn new(name: &str, value: bool, advice: impl Into<String>) -> Self {
        Self {
            given: format!("{name}={value}"),
            advice: advice.into(),
        }
    }
}

/// What was given; what was not has its default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gates(BTreeMap<String, bool>);

impl Gates {
    /// Fails as upstream's does, and if one asks for what this build has not. The last value of a
    /// gate that is given twice counts.
    pub(crate) fn new(given: impl IntoIterator<Item = (String, bool)>) -> Result<Self, Unusable> {
        let given = given.into_iter().filter(|(name, _)| !name.is_empty());
        let gates = Self(given.collect());
        for (name, value) in &gates.0 {
            let Some(known) = Known::of(name) else {
                let later = LATER.iter().find(|(later, _)| later == name);
                let advice = later
                    .map_or("Kubernetes 1.36 has none of that name", |(_, advice)| {
                        advice
                    });
                let text = format!("unrecognized feature gate: {name}; {advice}");
                return Err(Unusable::new(name, *value, text));
            };
            if known.is_locked && known.default != *value {
                let default = known.default;
                let text = format!(
                    "cannot set feature gate {name} to {value}, feature is locked to {default}; take it out"
                );
                return Err(Unusable::new(name, *value, text));
            }
        }
        for known in KNOWN.iter().filter(|known| gates.has(known)) {
            let off: Vec<&str> = known
                .needs
                .iter()
                .copied()
                .filter(|needed| !gates.is_on(needed))
                .collect();
            if !off.is_empty() {
                let text = format!(
                    "{} is enabled, but depends on features that are disabled: {}",
                    known.name,
                    off.join(" ")
                );
                return Err(Unusable {
                    given: gates.told(),
                    advice: text,
                });
            }
        }
        for (name, value, what) in ABSENT {
            if gates.is_on(name) == *value {
                let text = format!(
                    "{name}={value} cannot be had: {what}; give {name}={}",
                    !value
                );
                return Err(Unusable {
                    given: gates.told(),
                    advice: text,
                });
            }
        }
        Ok(gates)
    }

    /// Whether a gate is on; one that nobody knows is not.
    pub fn is_on(&self, name: &str) -> bool {
        Known::of(name).is_some_and(|known| self.has(known))
    }

    /// What a gate was given by its name; `AllBeta` gives nothing.
    pub(crate) fn given(&self, name: &str) -> Option<bool> {
        self.0.get(name).copied()
    }

    /// All that Kubernetes has: their names, their stages, and whether they are on.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        KNOWN
            .iter()
            .map(|known| (known.name, known.stage, self.has(known)))
    }

    /// A line for each that was given and will be gone some day, as upstream says it.
    pub(crate) fn notes(&self) -> Vec<String> {
        let given = self.0.iter();
        let going = given.filter_map(|(name, value)| {
            let stage = match Known::of(name)?.stage {
                Stage::Stable => "GA",
                Stage::Deprecated => "deprecated",
                Stage::Alpha | Stage::Beta => return None,
            };
            Some(format!(
                "setting {stage} feature gate {name}={value}; it will be removed in a future release"
            ))
        });
        going.collect()
    }

    /// A line for each that was given, differs from its default, and changes nothing here, though
    /// upstream's kube-proxy reads it.
    pub(crate) fn without_effect(&self) -> Vec<String> {
        let ineffective = WITHOUT_EFFECT.iter();
        let given = ineffective.filter(|(name, value, _)| self.0.get(*name) == Some(value));
        given
            .map(|(name, value, why)| {
                format!("the feature gate {name}={value} has no effect: {why}")
            })
            .collect()
    }

    fn has(&self, known: &Known) -> bool {
        let of_stage = || {
            let all = OF_STAGE.iter().find(|(_, stage)| *stage == known.stage);
            let is_switch = OF_STAGE.iter().any(|(name, _)| *name == known.name);
            all.filter(|_| !is_switch)
                .and_then(|(name, _)| self.0.get(*name))
        };
        let given = self.0.get(known.name).or_else(of_stage);
        *given.unwrap_or(&known.default)
    }

    /// As they are typed.
    fn told(&self) -> String {
        let pairs = self.0.iter().map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(given: &str) -> Result<Gates, Unusable> {
        let pairs = given.split(',').filter(|pair| !pair.is_empty());
        Gates::new(pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap();
            (name.to_owned(), value == "true")
        }))
    }

    fn refused(given: &str) -> String {
        gates(given).unwrap_err().advice
    }

    #[test]
    fn every_line_is_a_gate() {
        let lines = include_str!("gates/kubernetes-1.36.txt").lines();
        assert_eq!(KNOWN.len(), lines.count());
        assert!(KNOWN.is_sorted_by(|one, next| one.name < next.name));
        for known in KNOWN.iter() {
            for needed in &known.needs {
                let needed = Known::of(needed).unwrap();
                assert!(!known.default || needed.default, "{known:?}");
            }
            assert!(known.stage != Stage::Alpha || !known.default, "{known:?}");
        }
    }

    #[test]
    fn the_gates_that_are_read_are_known() {
        let read = [
            EXTERNAL_IPS,
            FLAGZ,
            STATUSZ,
            ALPHA_LOGGING,
            BETA_LOGGING,
            STREAMED_LISTS,
        ];
        let rows = WITHOUT_EFFECT.iter().chain(ABSENT);
        let rows: Vec<_> = rows.map(|(name, value, _)| (*name, *value)).collect();
        for name in read.into_iter().chain(rows.iter().map(|(name, _)| *name)) {
            assert!(
                Known::of(name).is_some_and(|known| !known.is_locked),
                "{name}"
            );
        }
        for (name, value) in rows {
            assert_ne!(Known::of(name).unwrap().default, value, "{name}");
        }
        for (name, _) in LATER {
            assert_eq!(Known::of(name), None);
        }
    }

    /// The table for operators has the gates that are read, and says of each what Kubernetes has.
    #[test]
    fn the_documentation_has_every_gate_that_is_read() {
        let text = include_str!("../../../../docs/flags.md");
        let (_, text) = text.split_once("\n## Feature gates\n").unwrap();
        let (text, _) = text.split_once("\n## ").unwrap();
        let mut told = Vec::new();
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let [names, what, ..] = cells.as_slice() else {
                panic!("{row}");
            };
            for name in names.split('`').skip(1).step_by(2) {
                let known = Known::of(name).unwrap_or_else(|| panic!("{name}"));
                assert_eq!(what.ends_with("on"), known.default, "{name}: {what}");
                assert_eq!(
                    what.starts_with("locked"),
                    known.is_locked,
                    "{name}: {what}"
                );
                let stage = format!("{:?}, ", known.stage).to_lowercase();
                let has_stage = what.starts_with(&stage) || matches!(*what, "on" | "locked, on");
                assert!(has_stage, "{name}: {what}");
                told.push(name);
            }
        }
        let read = [
            EXTERNAL_IPS,
            FLAGZ,
            STATUSZ,
            ALPHA_LOGGING,
            BETA_LOGGING,
            STREAMED_LISTS,
        ];
        let rows = WITHOUT_EFFECT.iter().chain(ABSENT).map(|(name, ..)| *name);
        for name in read.into_iter().chain(rows) {
            assert!(told.contains(&name), "{name}");
        }
        assert!(text.contains(&format!("All {} gates", KNOWN.len())));
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        let default = gates("").unwrap();
        assert_eq!(default, Gates::default());
        for (name, is_on) in [
            (EXTERNAL_IPS, true),
            ("NFTablesProxyMode", true),
            ("NativeHistograms", false),
            ("AllAlpha", false),
            ("NoSuch", false),
        ] {
            assert_eq!(default.is_on(name), is_on, "{name}");
        }
        assert!(
            !gates("AllowServiceExternalIPs=false")
                .unwrap()
                .is_on(EXTERNAL_IPS)
        );
    }

    #[test]
    fn a_stage_is_switched_but_for_what_is_given() {
        let of = |given: &str, name: &str| gates(given).unwrap().is_on(name);
        assert!(!of("AllBeta=false", FLAGZ));
        assert!(of("AllBeta=false,ComponentFlagz=true", FLAGZ));
        // Not of the stage.
        assert!(of("AllBeta=false,AllAlpha=false", EXTERNAL_IPS));
        assert!(!of("AllBeta=false", "AllAlpha"));
        assert!(of(
            "AllAlpha=true,NativeHistograms=false",
            "ClientsAllowCBOR"
        ));
    }

    #[test]
    fn what_upstream_refuses_is_refused_in_its_words() {
        for (given, part) in [
            ("NoSuch=true", "unrecognized feature gate: NoSuch"),
            ("KubeProxyIPVS=true", "needs no gate here: take it out"),
            (
                "PreferSameTrafficDistribution=false",
                "cannot set feature gate PreferSameTrafficDistribution to false, feature is locked to true",
            ),
            (
                "DisableNodeKubeProxyVersion=false",
                "feature is locked to true",
            ),
            (
                "GangScheduling=true",
                "GangScheduling is enabled, but depends on features that are disabled: GenericWorkload",
            ),
        ] {
            let text = refused(given);
            assert!(text.contains(part), "{given}: {text}");
        }
        assert!(gates("PreferSameTrafficDistribution=true").is_ok());
    }

    #[test]
    fn what_this_build_has_not_is_refused() {
        for given in ["NativeHistograms=true", "AllAlpha=true"] {
            let refused = gates(given).unwrap_err();
            assert_eq!(refused.given, given);
            assert!(
                refused.advice.contains("give NativeHistograms=false"),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn what_will_go_and_what_is_not_heard_is_said() {
        let given = "AllowServiceExternalIPs=false,ClientsAllowCARotation=false,SidecarContainers=true,ComponentFlagz=false";
        let gates = gates(given).unwrap();
        let [external, sidecars] = &gates.notes()[..] else {
            panic!("{:?}", gates.notes());
        };
        assert!(external.contains("GA feature gate AllowServiceExternalIPs=false"));
        assert!(sidecars.contains("SidecarContainers=true"));
        let [ineffective] = &gates.without_effect()[..] else {
            panic!("{:?}", gates.without_effect());
        };
        assert!(
            ineffective.contains("ClientsAllowCARotation=false has no effect"),
            "{ineffective}"
        );
    }
}
