//! Tests whether a kernel supports all sets and rules of the IPVS mode, before the node depends on
//! them (`--init-only`).
//!
//! The test creates and destroys a set of each type. While a set exists, the test writes rules that
//! match it, in a chain that no packet reaches. The kernel loads the needed modules if it can. The
//! test leaves no object behind.

use std::time::Duration;

use ipset_netlink::{Definition, Family, Ipset, SetType};
use iptables::{Field, FlowState, Iptables, IptablesError, Match, Rule, SourcePort, Table, Target};
use proxy::IpFamily;

/// Longest time until the nft backend releases a set after the removal of its rules.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

/// Types of the shim's sets.
const TYPES: [SetType; 5] = [
    SetType::BitmapPort,
    SetType::HashIpPort,
    SetType::HashIpPortIp,
    SetType::HashIpPortNet,
    // The test rules match the last set.
    SetType::HashIp,
];

/// Returns rules for an existing set, with each match and target that every cluster needs.
fn rules(set: &str, family: IpFamily) -> [(Table, Rule); 5] {
    const MARK: u32 = 0x4000;
    let in_set = || Match::InSet(set.to_owned().into(), &[Field::Destination]);
    let new = Match::State(&[FlowState::New]);
    let rules = [
        Rule::new([Match::comment("probe"), in_set()], Target::Return),
        Rule::new([Match::NotMark(MARK)], Target::Return),
        Rule::new([Match::DestinationLocal], Target::set_mark(MARK)),
        Rule::new([], Target::Masquerade(SourcePort::Kept)),
    ];
    let [one, two, three, four] = rules.map(|rule| (Table::Nat, rule));
    let reject = Rule::new([new, in_set()], Target::Reject(family));
    [one, two, three, four, (Table::Filter, reject)]
}

/// Feature that a kernel lacks.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A set could not be created.
    #[error("cannot make the sets of ipvs mode: {0}")]
    Set(#[from] ipset_netlink::Error),
    /// A rule could not be written.
    #[error("cannot write the rules of ipvs mode: {0}")]
    Rule(#[from] IptablesError),
}

/// Runs the test in the network namespace of the calling thread, with an iptables that works there.
///
/// # Errors
///
/// Names the refused set or rule, with the reason.
pub fn probe(iptables: &Iptables, family: IpFamily) -> Result<(), ProbeError> {
    let (name, kind) = match family {
        IpFamily::V4 => ("KUBE-PROXY-PROBE", Family::Inet),
        IpFamily::V6 => ("KUBE-6-PROXY-PROBE", Family::Inet6),
    };
    let mut ipset = Ipset::open()?;
    // This test removes the rules of an interrupted test along with its own. Only then can the old
    // set be destroyed.
    if ipset.destroy_released(name, RELEASED_WITHIN).is_err() {
        let empty = |table| (table, Rule::new([], Target::Return));
        iptables.try_rules(family, &[Table::Nat, Table::Filter].map(empty))?;
    }
    for set_type in TYPES {
        ipset.destroy_released(name, RELEASED_WITHIN)?;
        ipset.create(name, &Definition::new(set_type, kind))?;
    }
    let tried = iptables.try_rules(family, &rules(name, family));
    let destroyed = ipset.destroy_released(name, RELEASED_WITHIN);
    tried?;
    destroyed?;
    Ok(())
}
