//! Tests whether the kernel supports this mode's rules, before the mode writes its first rule.

use nftables_netlink::{Chain, Change, CommitError, Error, Name, Nftables, Transaction};
use proxy::{IpFamily, LocalDetector};

use crate::base::{Base, BaseKey, NodePortIps};
use crate::config::{Config, LocalhostNodePorts};
use crate::layout::Layout;
use kube_rules::nft::{Line, Sense, Side};

/// Name of the table in the tested transaction. The kernel never creates this table.
const PROBE: &str = "kube-proxy-probe";

/// Reason why this node cannot run nftables mode.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel lacks nf\_tables, or the process lacks a privilege to use it.
    #[error(transparent)]
    Unusable(#[from] Error),
    /// The kernel lacks a feature of nf\_tables that this mode needs. The text names the feature, or
    /// the refused object and the modules that may be missing.
    #[error("the kernel does not take the rules of nftables mode: {0}")]
    Refused(String),
}

/// Checks that the kernel accepts all objects that do not depend on Services, and each kind of rule
/// for a Service. The kernel only validates the transaction: it creates no table, sends no
/// notification, and keeps the generation of its ruleset.
///
/// # Errors
///
/// Fails if the kernel refuses an object.
pub fn probe(
    ip_family: IpFamily,
    layout: Layout,
    localhost: LocalhostNodePorts,
) -> Result<(), ProbeError> {
    check(&attempt(ip_family, layout, localhost))
}

fn check(transaction: &Transaction) -> Result<(), ProbeError> {
    let mut nftables = Nftables::open()?;
    let refused = match nftables.check(transaction) {
        Ok(()) => return Ok(()),
        Err(CommitError::Error(error)) => return Err(error.into()),
        Err(refused) => refused,
    };
    let missing = nftables.probe(transaction.family).unwrap_or_default();
    Err(ProbeError::Refused(match missing.first() {
        Some(missing) => missing.to_string(),
        None => format!(
            "{refused}; it needs the modules nft_ct, nft_nat, nft_masq, nft_fib, nft_numgen and \
             nft_reject"
        ),
    }))
}

fn attempt(ip_family: IpFamily, layout: Layout, localhost: LocalhostNodePorts) -> Transaction {
    let config = Config {
        layout,
        localhost,
        detector: LocalDetector::InterfacePrefix("probe".to_owned()),
        ..Config::default()
    };
    let base = Base::new(ip_family, &config, NodePortIps::InSet, None);
    let mut table = base.table();
    table.name = PROBE.into();
    table.comment = None;
    let (mut sets, mut chains, mut rules) = (Vec::new(), Vec::new(), Vec::new());
    for (key, _) in base.entries() {
        match key {
            BaseKey::Table => {}
            BaseKey::Counter(name) => sets.push(Change::AddCounter(name.into())),
            BaseKey::Set(name) => sets.extend(base.set(name).cloned().map(Change::AddSet)),
            BaseKey::Chain(_) | BaseKey::Chooser(_) => {
                if let Some((chain, of_chain)) = base.chain(&key) {
                    chains.push(Change::AddChain(chain.clone()));
                    let add = |rule: &nftables_netlink::Rule| {
                        Change::AddRule(chain.name.clone(), rule.clone())
                    };
                    rules.extend(of_chain.iter().map(add));
                }
            }
        }
    }
    let service = Name::from("probe/service");
    chains.push(Change::AddChain(Chain {
        name: service.clone(),
        base: None,
        comment: None,
    }));
    let endpoint: std::net::SocketAddr = match ip_family {
        IpFamily::V4 => ([192, 0, 2, 1], 1).into(),
        IpFamily::V6 => ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 1).into(),
    };
    let line = || Line::new(ip_family);
    let of_service = [
        line().of_this_node(Side::Source).set_mark(1).rule(),
        line()
            .pod_traffic(Sense::Is, &config.detector)
            .unwrap_or_else(line)
            .drop()
            .rule(),
        line()
            .protocol(proxy::Protocol::Tcp)
            .translate_to_one_of([endpoint].into_iter())
            .rule(),
    ];
    rules.extend(of_service.map(|rule| Change::AddRule(service.clone(), rule)));
    let add = [Change::AddTable(table)].into_iter();
    let all = add.chain(sets).chain(chains).chain(rules);
    Transaction {
        family: ip_family.into(),
        table: PROBE.into(),
        changes: all.collect(),
    }
}

#[cfg(test)]
mod tests {
    use nftables_netlink::Family;

    use super::*;

    #[test]
    #[ignore = "needs nf_tables"]
    fn the_probe_detects_missing_kernel_features() {
        // Simulates a kernel without NAT: tables of the family `netdev` have no NAT.
        let lacking = Transaction {
            family: Family::Netdev,
            ..attempt(IpFamily::V4, Layout::Upstream, LocalhostNodePorts::Off)
        };
        let error = check(&lacking).unwrap_err();
        assert!(matches!(error, ProbeError::Refused(_)), "{error}");
        assert!(error.to_string().contains("nf_tables lacks"), "{error}");
        for localhost in [LocalhostNodePorts::Off, LocalhostNodePorts::Refused] {
            let attempt = attempt(IpFamily::V4, Layout::Upstream, localhost);
            assert!(check(&attempt).is_ok(), "{localhost:?}");
        }
    }
}
