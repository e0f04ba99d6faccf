use super::*;

fn gates(given: &str) -> Gates {
    let pairs = given.split(',').filter(|pair| !pair.is_empty());
    Gates::new(pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.to_owned(), value == "true")
    }))
}

/// Formats the stages of a gate like docs/flags.md: `1.34 alpha, off; 1.36 beta, on; 1.38 gone`.
fn history(known: &KnownGate) -> String {
    let mut runs: Vec<String> = Vec::new();
    let mut before = None;
    for (at, spec) in known.specs.iter().enumerate() {
        if *spec != before {
            let release = FIRST + at;
            runs.push(match spec {
                Some(spec) => {
                    let stage = format!("{:?}", spec.stage).to_lowercase();
                    let default = if spec.default { "on" } else { "off" };
                    let locked = if spec.is_locked { ", locked" } else { "" };
                    format!("1.{release} {stage}, {default}{locked}")
                }
                None => format!("1.{release} gone"),
            });
        }
        before = *spec;
    }
    runs.join("; ")
}

#[test]
fn each_line_of_the_gate_list_is_parsed_as_a_gate() {
    let lines = include_str!("kubernetes.txt").lines();
    let lines = lines.filter(|line| !line.starts_with('#'));
    for line in lines.clone() {
        let cells: Vec<&str> = line.split(' ').skip(1).collect();
        assert_eq!(cells.len(), RELEASES, "{line}");
        let is_read = |cell: &&str| *cell == "-" || Spec::read(cell).is_some();
        assert!(cells.iter().all(is_read), "{line}");
    }
    assert_eq!(KNOWN.len(), lines.count());
    assert!(KNOWN.is_sorted_by(|one, next| one.name < next.name));
    for known in KNOWN.iter() {
        for spec in known.specs.iter().flatten() {
            assert!(spec.stage != Stage::Alpha || !spec.default, "{known:?}");
        }
    }
}

/// Checks the number of gates in 1.36, and the first release and the stages of some gates.
#[test]
fn each_kubernetes_release_has_its_own_feature_gates() {
    let count = |at: usize| {
        KNOWN
            .iter()
            .filter(|known| known.specs[at].is_some())
            .count()
    };
    assert_eq!(count(2), 242);
    for (name, at) in [
        ("KubeProxyIPVS", 3),
        ("NFTablesNetlink", 3),
        (LOCALHOST_NODE_PORTS, 3),
        (EXTERNAL_IPS, 2),
        ("ManagedFieldsOptOut", 4),
    ] {
        let known = KnownGate::of(name).unwrap();
        let first = known.specs.iter().position(Option::is_some);
        assert_eq!(first, Some(at), "{name}");
    }
    let of = |name| history(KnownGate::of(name).unwrap());
    assert_eq!(of("KubeProxyIPVS"), "1.37 deprecated, on");
    assert_eq!(of("NativeHistograms"), "1.36 alpha, off; 1.37 beta, on");
    assert_eq!(of(LOCALHOST_NODE_PORTS), "1.37 alpha, off; 1.38 beta, on");
    assert_eq!(
        of("SidecarContainers"),
        "1.34 stable, on, locked; 1.37 gone"
    );
}

#[test]
fn each_gate_that_kube_proxy_uses_is_in_the_gate_list() {
    let rows = WITHOUT_EFFECT.iter().map(|(name, ..)| *name);
    for name in OF_KUBE_PROXY.iter().copied().chain(rows) {
        assert!(KnownGate::of(name).is_some(), "{name}");
        assert!(is_of_kube_proxy(name), "{name}");
    }
}

/// Checks that the table in docs/flags.md lists each gate that kube-proxy uses, with its stages.
#[test]
fn the_documentation_lists_each_gate_that_kube_proxy_uses() {
    let text = include_str!("../../../../docs/flags.md");
    let (_, text) = text.split_once("\n## Feature gates\n").unwrap();
    let (text, _) = text.split_once("\n## ").unwrap();
    let (intro, table) = text.split_once("\n| gate | ").unwrap();
    let mut documented = Vec::new();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [names, stages, ..] = cells.as_slice() else {
            panic!("{row}");
        };
        for name in names.split('`').skip(1).step_by(2) {
            let known = KnownGate::of(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(*stages, history(known), "{name}");
            documented.push(name);
        }
    }
    let is_switch = |name: &&&str| OF_STAGE.iter().any(|(switch, _)| switch == *name);
    for name in OF_KUBE_PROXY.iter().filter(|name| !is_switch(name)) {
        assert!(documented.contains(name), "{name}");
    }
    let all = format!("All {} gates", KNOWN.len());
    assert!(intro.contains(&all), "{all}");
}

/// Checks that exactly one gate of kube-proxy has a different default in 1.38 than in 1.37, and
/// that docs/versions.md names this gate.
#[test]
fn one_gate_of_kube_proxy_has_a_different_default_in_1_38() {
    let read = KNOWN.iter().filter(|gate| is_of_kube_proxy(gate.name));
    let differs = |gate: &&KnownGate| {
        let default = |minor: usize| gate.specs[minor - FIRST].map(|spec| spec.default);
        default(38).is_some() && default(37) != default(38)
    };
    let names: Vec<_> = read.filter(differs).map(|gate| gate.name).collect();
    assert_eq!(names, [LOCALHOST_NODE_PORTS]);
    let text = include_str!("../../../../docs/versions.md");
    assert!(text.contains(LOCALHOST_NODE_PORTS));
}

#[test]
fn a_feature_gate_that_is_not_set_has_its_default() {
    let default = gates("");
    assert_eq!(default, Gates::default());
    for (name, is_on) in [
        (EXTERNAL_IPS, true),
        ("NFTablesProxyMode", true),
        (IPVS_MODE, true),
        (LOCALHOST_NODE_PORTS, false),
        ("NativeHistograms", true),
        ("AllAlpha", false),
        ("NoSuch", false),
    ] {
        assert_eq!(default.is_on(name), is_on, "{name}");
    }
    assert!(!gates("AllowServiceExternalIPs=false").is_on(EXTERNAL_IPS));
}

#[test]
fn all_alpha_and_all_beta_do_not_affect_gates_set_by_name() {
    let of = |given: &str, name: &str| gates(given).is_on(name);
    assert!(!of("AllBeta=false", FLAGZ));
    assert!(of("AllBeta=false,ComponentFlagz=true", FLAGZ));
    // `AllAlpha` and `AllBeta` affect only alpha and beta gates, so this gate stays on.
    assert!(of("AllBeta=false,AllAlpha=false", EXTERNAL_IPS));
    assert!(!of("AllBeta=false", "AllAlpha"));
    assert!(of("AllAlpha=true", "ClientsAllowCBOR"));
    assert!(of("AllAlpha=true", LOCALHOST_NODE_PORTS));
    // `AllAlpha` and `AllBeta` do not turn off IPVS mode, because its gate is deprecated.
    assert!(of("AllAlpha=false,AllBeta=false", IPVS_MODE));
    // A locked gate keeps its default, even if the user sets a different value.
    assert!(of(
        "PreferSameTrafficDistribution=false",
        "PreferSameTrafficDistribution"
    ));
}

/// Sets gates that the upstream kube-proxy of at least one release rejects.
#[test]
fn feature_gates_without_effect_cause_a_warning() {
    assert_eq!(gates("AllAlpha=true,AllBeta=true").warnings(), [""; 0]);
    for (given, part) in [
        (
            "NoSuch=true",
            "no effect: NoSuch; Kubernetes 1.34 to 1.38 have none",
        ),
        (
            "SidecarContainers=true,PodsAPI=true",
            "other components have no effect on kube-proxy: PodsAPI, SidecarContainers",
        ),
        ("GangScheduling=true", "other components"),
        ("DisableNodeKubeProxyVersion=false", "other components"),
        (
            "PreferSameTrafficDistribution=false",
            "PreferSameTrafficDistribution=false has no effect: Kubernetes 1.35 locks it to true",
        ),
        (
            "NFTablesProxyMode=false",
            "Kubernetes 1.34 locks it to true",
        ),
        ("NFTablesNetlink=false", "over netlink"),
        ("NativeHistograms=true", "classic histograms"),
    ] {
        let gates = gates(given);
        let [warning] = &gates.warnings()[..] else {
            panic!("{given}: {:?}", gates.warnings());
        };
        assert!(warning.contains(part), "{given}: {warning}");
    }
    assert_eq!(
        gates("PreferSameTrafficDistribution=true").warnings(),
        [""; 0]
    );
}

#[test]
fn feature_gates_that_are_set_and_will_be_removed_are_logged() {
    let given = "AllowServiceExternalIPs=false,ClientsAllowCARotation=false,ComponentFlagz=false";
    let [external] = &gates(given).notes()[..] else {
        panic!("{:?}", gates(given).notes());
    };
    assert!(external.contains("GA feature gate AllowServiceExternalIPs=false"));
    let [ineffective] = &gates(given).warnings()[..] else {
        panic!("{:?}", gates(given).warnings());
    };
    assert!(ineffective.contains("ClientsAllowCARotation=false has no effect"));
    let on = gates("KubeProxyIPVS=true");
    let [note] = &on.notes()[..] else {
        panic!("{:?}", on.notes());
    };
    assert!(
        note.contains("KubeProxyIPVS=true is given; it has no effect"),
        "{note}"
    );
    assert_eq!(on.warnings(), [""; 0]);
}
