//! Finds other proxies: leftovers of kube-proxy modes, and other programs.

use std::collections::BTreeSet;

use modes::preview::{Change, OTHER_MODES};

use crate::check::finding::{Finding, some};

const NAME: &str = "other proxies";

/// Links of programs that serve or may serve Services, each with a message for the operator.
const KNOWN: [(&str, &str); 4] = [
    (
        "cilium_host",
        "Cilium is here (cilium_host): if it replaces kube-proxy (`cilium-dbg status | grep \
         KubeProxyReplacement`), \
         one of the two is to serve; set kubeProxyReplacement=false, or do without a kube-proxy",
    ),
    (
        "kube-dummy-if",
        "kube-router's service proxy is here (kube-dummy-if): two proxies would write virtual \
         servers; run it with \
         --run-service-proxy=false, and `kube-router --cleanup-config` on the node",
    ),
    (
        "bpfin.cali",
        "Calico's eBPF data plane is here (bpfin.cali): it serves Services by itself; set \
         bpfEnabled: false in its \
         FelixConfiguration, or do without a kube-proxy",
    ),
    (
        "nodelocaldns",
        "NodeLocal DNSCache is here (nodelocaldns): in ipvs mode pods need its own address \
         (--cluster-dns of the kubelet), because it cannot take over the DNS Service's",
    ),
];

/// A virtual server that no kube-proxy created.
pub(super) struct UnownedServer {
    /// Service address, port and protocol, such as `192.0.2.1:80/TCP`.
    pub(super) name: String,
    /// Service port that needs this address and port, if any.
    pub(super) wanted_by: Option<String>,
}

/// Returns findings about other proxies. `foreign` are other programs' virtual servers. `unread`
/// names the parts of the state that could not be read and may contain more such servers. `daemons`
/// are the kube-proxies that run now.
pub(super) fn judge(
    daemons: &[String],
    links: &BTreeSet<String>,
    foreign: &[UnownedServer],
    changes: &[Change],
    mode: &str,
    unread: &[String],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if daemons.len() > 1 {
        let message = format!(
            "more than one kube-proxy runs in this network namespace ({}), and they overwrite each \
             other's kernel entries: end all except one",
            some(daemons)
        );
        findings.push(Finding::warn(NAME, message));
    }
    let known = KNOWN.iter().filter(|(link, _)| links.contains(*link));
    // Reports NodeLocal DNSCache only in IPVS mode. In other modes, NodeLocal DNSCache can take
    // over the address of the DNS Service.
    let known = known.filter(|(link, _)| *link != "nodelocaldns" || mode == "ipvs");
    findings.extend(known.map(|(_, message)| Finding::warn(NAME, *message)));
    let taken = foreign
        .iter()
        .filter_map(|of| Some((&of.name, of.wanted_by.as_ref()?)));
    let taken: Vec<String> = taken
        .map(|(name, service)| format!("{name} of Service {service}"))
        .collect();
    if !taken.is_empty() && mode == "ipvs" {
        findings.push(Finding::warn(
            NAME,
            format!(
                "another program has virtual servers where Services are to be served ({}): unless \
                 they hold endpoints of these \
                 Services they are left alone, and the Services are not served there until they \
                 are gone (`ipvsadm -Ln`)",
                some(&taken)
            ),
        ));
    }
    let foreign = foreign.iter().filter(|of| of.wanted_by.is_none());
    let foreign: Vec<String> = foreign.map(|of| of.name.clone()).collect();
    if !foreign.is_empty() {
        findings.push(Finding::warn(
            NAME,
            format!(
                "IPVS has virtual servers of other programs ({}): they stay; find their owner \
                 (keepalived, another proxy) with `ipvsadm -Ln`",
                some(&foreign)
            ),
        ));
    }
    let left = changes.iter().filter(|change| change.kind == OTHER_MODES);
    let left: Vec<String> = left
        .map(|change| {
            if change.of == "node" {
                change.entry.clone()
            } else {
                format!("{}: {}", change.of, change.entry)
            }
        })
        .collect();
    if !left.is_empty() {
        findings.push(Finding::warn(
            NAME,
            format!(
                "left by another mode, and removed once this one serves: {}",
                some(&left)
            ),
        ));
    }
    if !unread.is_empty() {
        findings.push(super::unknown(NAME, unread));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(NAME, "none found"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use modes::preview::Action;

    use super::*;
    use crate::check::finding::Status;

    #[test]
    fn other_proxies_are_detected_by_their_objects() {
        let links = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let told = |names: &[&str], foreign: &[UnownedServer], changes: &[Change]| {
            let found: BTreeSet<String> = links(names);
            let findings = judge(&[], &found, foreign, changes, "nftables", &[]).into_iter();
            findings
                .map(|of| (of.status, of.message))
                .collect::<Vec<_>>()
        };
        let none = told(&["lo", "eth0", "nodelocaldns"], &[], &[]);
        assert_eq!(none, [(Status::Ok, "none found".to_owned())]);
        let daemons = ["kube-proxy[7]", "kube-proxy[9]"].map(str::to_owned);
        let two = judge(&daemons, &links(&[]), &[], &[], "nftables", &[]);
        assert!(
            two[0].message.contains("(kube-proxy[7], kube-proxy[9])"),
            "{two:?}"
        );
        let one = judge(&daemons[..1], &links(&[]), &[], &[], "nftables", &[]);
        assert_eq!(one[0].status, Status::Ok);
        let cilium = told(&["cilium_host"], &[], &[]);
        assert!(cilium[0].0 == Status::Warn && cilium[0].1.starts_with("Cilium"));
        let left = Change::left_by_another("link kube-ipvs0 with 3 addresses");
        let gone = crate::check::tests::change("rules", Action::Remove, "x");
        let foreign = [UnownedServer {
            name: "9.9.9.9:9/TCP".to_owned(),
            wanted_by: None,
        }];
        let both = told(&[], &foreign, &[left, gone]);
        assert!(
            both[0]
                .1
                .starts_with("IPVS has virtual servers of other programs (9.9.9.9:9/TCP)")
        );
        assert!(
            both[1]
                .1
                .ends_with("serves: link kube-ipvs0 with 3 addresses")
        );
        let taken = [UnownedServer {
            name: "192.0.2.10:80/TCP".to_owned(),
            wanted_by: Some("default/web:http".to_owned()),
        }];
        let ipvs = judge(&[], &links(&[]), &taken, &[], "ipvs", &[]);
        assert_eq!((ipvs.len(), ipvs[0].status), (1, Status::Warn));
        let named = "192.0.2.10:80/TCP of Service default/web:http";
        assert!(ipvs[0].message.contains(named), "{}", ipvs[0].message);
        let ipvs = judge(&[], &links(&["nodelocaldns"]), &[], &[], "ipvs", &[]);
        assert_eq!(ipvs[0].status, Status::Warn);
    }
}
