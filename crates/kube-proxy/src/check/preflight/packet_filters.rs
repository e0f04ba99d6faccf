//! Checks the chosen iptables backend, and the other backend if it has rules.

use std::collections::BTreeMap;

use footprint::is_kubelets;
use iptables::{
    Backend, DormantTable, Iptables, IptablesError, Table, TakenChain, exists, native_chains,
};
use modes::footprints;
use proxy::IpFamily;

use super::Traces;
use crate::check::finding::{Finding, some};

const NAME: &str = "iptables";

/// Returns findings about the iptables backends. `chosen` is the backend that the mode would use,
/// or the reason why no backend can be chosen. `None` means that the mode does not use iptables.
pub(super) fn judge(chosen: Option<&Result<Backend, String>>, traces: &Traces) -> Vec<Finding> {
    let mut ours: BTreeMap<Backend, usize> = BTreeMap::new();
    let mut kubelets: Vec<Backend> = Vec::new();
    for (backend, _, chain) in &traces.chains {
        if chain == "KUBE-KUBELET-CANARY" {
            kubelets.push(*backend);
        } else if is_kubelets(chain) {
            // Ignores this chain. Both kubelet and kube-proxy create a chain with this name, so the
            // name does not show which program created it.
        } else if chain.starts_with("KUBE-") {
            *ours.entry(*backend).or_default() += 1;
        }
    }
    let counted: Vec<String> = ours
        .iter()
        .map(|(backend, count)| format!("{backend} {count}"))
        .collect();
    let counted = if counted.is_empty() {
        "no chain of a kube-proxy exists".to_owned()
    } else {
        format!("chains of kube-proxies: {}", counted.join(", "))
    };
    let mut findings = vec![match chosen {
        None => Finding::ok(NAME, format!("not used by this mode; {counted}")),
        Some(Ok(backend)) => Finding::ok(NAME, format!("{backend} is used; {counted}")),
        Some(Err(error)) => Finding::warn(NAME, format!("{error}; {counted}")),
    }];
    if ours.len() > 1 {
        findings.push(Finding::warn(
            NAME,
            "both backends have chains of a kube-proxy, and packets pass through both: once this mode serves, kube-proxy \
             removes its chains from the other backend; remove chains of other programs by hand \
             (`iptables-legacy-save`, `iptables-nft-save`)",
        ));
    }
    if let Some(Ok(chosen)) = chosen
        && !kubelets.is_empty()
        && !kubelets.contains(chosen)
    {
        findings.push(Finding::warn(
            NAME,
            format!(
                "the kubelet writes to the other backend than {chosen} (KUBE-KUBELET-CANARY): let \
                 --iptables-backend name the host's"
            ),
        ));
    }
    findings
}

/// Reports nftables objects that affect this mode's iptables tables: base chains that have the name
/// of an iptables chain, dormant tables, and rules that iptables cannot list.
pub(super) fn beside_nft(iptables: &Iptables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for family in IpFamily::ALL {
        let unknown = |error: IptablesError| Finding::warn(NAME, format!("{family}: {error}"));
        let taken = iptables.taken_chains(family);
        let mut taken = taken.unwrap_or_else(|error| {
            findings.push(unknown(error));
            Vec::new()
        });
        taken.retain(|of| of.is_built_in || is_of_a_mode(of));
        let told = taken.iter();
        findings.extend(told.map(|taken| Finding::fail(NAME, taken.to_string())));
        match iptables.dormant_tables(family) {
            Ok(dormant) => findings.extend(dormant.into_iter().filter_map(switched_off)),
            Err(error) => findings.push(unknown(error)),
        }
        match iptables.save(family) {
            Ok(saved) => {
                let nft = match family {
                    IpFamily::V4 => "ip",
                    IpFamily::V6 => "ip6",
                };
                let is_taken = |table: &str, chain: &str| {
                    let at = format!("{nft} {table}");
                    let mut taken = taken.iter();
                    taken.any(|of| of.table == at && of.chain == chain)
                };
                let chains = native_chains(&saved).into_iter();
                let chains = chains.filter(|(table, chain)| !is_taken(table, chain));
                let chains = chains.map(|(table, chain)| format!("{chain} of table {nft} {table}"));
                let chains: Vec<String> = chains.collect();
                if !chains.is_empty() {
                    findings.push(Finding::warn(
                        NAME,
                        format!(
                            "nft has put rules into {} that iptables cannot list: kube-proxy reads and writes beside them, and \
                             `iptables-save` ignores these tables; put such rules into a table of their own",
                            some(&chains)
                        ),
                    ));
                }
            }
            Err(error) if error.kind().is_absence() || exists(family).is_err() => {}
            Err(error) => findings.push(Finding::fail(NAME, error.to_string())),
        }
    }
    findings
}

/// Reports whether a mode of kube-proxy owns this chain.
fn is_of_a_mode(taken: &TakenChain) -> bool {
    let table = taken.table.rsplit(' ').next().and_then(Table::find);
    let mut modes = footprints::ALL.iter();
    table.is_some_and(|table| modes.any(|mode| mode.has_chain(table, &taken.chain)))
}

/// Reports a dormant nat or filter table, whose rules the kernel skips. A dormant nat table stops
/// every Service, so its finding is a failure.
fn switched_off(table: DormantTable) -> Option<Finding> {
    let message = table.to_string();
    match table.name {
        "nat" => Some(Finding::fail(NAME, message)),
        "filter" => Some(Finding::warn(NAME, message)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use iptables::Table;

    use super::*;
    use crate::check::finding::Status;

    fn traces(chains: &[(Backend, &str)]) -> Traces {
        let chains = chains.iter();
        Traces {
            chains: chains
                .map(|(backend, name)| (*backend, Table::Nat, (*name).to_owned()))
                .collect(),
            ..Traces::default()
        }
    }

    #[test]
    fn mixed_iptables_backends_are_reported() {
        let statuses = |chosen: Option<Result<Backend, String>>, chains: &[(Backend, &str)]| {
            let findings = judge(chosen.as_ref(), &traces(chains)).into_iter();
            findings.map(|finding| finding.status).collect::<Vec<_>>()
        };
        let (nft, legacy) = (Backend::Nft, Backend::Legacy);
        assert_eq!(statuses(None, &[]), [Status::Ok]);
        assert_eq!(statuses(Some(Err("none".to_owned())), &[]), [Status::Warn]);
        let one = [
            (nft, "KUBE-SERVICES"),
            (nft, "KUBE-KUBELET-CANARY"),
            (legacy, "DOCKER"),
        ];
        assert_eq!(statuses(Some(Ok(nft)), &one), [Status::Ok]);
        assert_eq!(statuses(Some(Ok(legacy)), &one), [Status::Ok, Status::Warn]);
        let kubelets = [
            (nft, "KUBE-KUBELET-CANARY"),
            (nft, "KUBE-IPTABLES-HINT"),
            (nft, "KUBE-FIREWALL"),
        ];
        let told = judge(Some(&Ok(nft)), &traces(&kubelets)).remove(0).message;
        assert_eq!(told, "nft is used; no chain of a kube-proxy exists");
        let both = [(nft, "KUBE-SERVICES"), (legacy, "KUBE-SERVICES")];
        assert_eq!(statuses(Some(Ok(nft)), &both), [Status::Ok, Status::Warn]);
    }
}
