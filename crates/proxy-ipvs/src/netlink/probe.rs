//! Tests whether a kernel supports all sets and rules of IPVS mode, before the node depends on it
//! (`--init-only`):
//!
//! 1. It creates a set of each type, and rules that match a set, in a chain that no packet reaches.
//! 2. The kernel loads the modules for these sets and rules.
//! 3. It removes all sets and rules that it created.

use std::time::Duration;

use ipset_netlink::{Definition, Family, Ipset, SetType};
use iptables::{
    Field, FlowState, Iptables, IptablesError, Kind, Match, Rule, SourcePort, Table, Target,
    restore_text,
};
use proxy::IpFamily;

/// Longest wait until the nft backend releases a set whose rules the test has removed.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

/// Types of the sets that the shim (the rules beside IPVS) needs.
const TYPES: [SetType; 5] = [
    SetType::BitmapPort,
    SetType::HashIpPort,
    SetType::HashIpPortIp,
    SetType::HashIpPortNet,
    // Last, because the test rules match the set that is created last.
    SetType::HashIp,
];

/// Returns test rules that match this set. Together, they have all matches and targets that every
/// cluster needs.
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

/// Name of a set that never exists.
const NO_SET: &str = "KUBE-PROXY-NO-SET";

/// Feature of the kernel or of iptables whose absence prevents IPVS mode on this node.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The test could not create a set.
    #[error("cannot make the sets of ipvs mode: {0}")]
    Set(#[from] ipset_netlink::Error),
    /// The test could not write a rule.
    #[error("cannot write the rules of ipvs mode: {0}")]
    Rule(#[from] IptablesError),
    /// ipset of this kernel cannot store a packet mark with each member.
    #[error("--ipvs-semantics=exact needs sets with marks, or --ipvs-shim=nftables: {0}")]
    Marks(ipset_netlink::Error),
    /// The kernel or the `iptables` program lacks the target that copies a set member's mark to the
    /// packet.
    #[error(
        "--ipvs-semantics=exact needs rules with the target `SET --map-mark` in table mangle (iptables 1.6 and Linux 3.18, modules \
         xt_set and iptable_mangle, or newer), or --ipvs-shim=nftables: {0}"
    )]
    MarkTarget(IptablesError),
}

/// Checks that ipsets and iptables rules can set packet marks. Writes nothing: the test rule names
/// a set that does not exist, so `iptables-restore` rejects the whole input.
///
/// # Errors
///
/// Fails if a feature is missing, and names it. Ignores failures that may be temporary.
pub fn check_marks(iptables: &Iptables, family: IpFamily) -> Result<(), ProbeError> {
    const DST: &[Field] = &[Field::Destination, Field::Destination];
    let set_family = match family {
        IpFamily::V4 => Family::Inet,
        IpFamily::V6 => Family::Inet6,
    };
    let marks = Definition::new(SetType::HashIpPort, set_family).with_marks();
    let checked = Ipset::open().and_then(|mut ipset| ipset.check(&marks));
    checked.map_err(ProbeError::Marks)?;
    let text = restore_text(|restore| {
        restore.begin(Table::Mangle)?;
        restore.declare(PROBE_CHAIN)?;
        let rule = Rule::new([], Target::MapMark(NO_SET, DST));
        restore.append(&rule.line(PROBE_CHAIN))?;
        restore.commit()
    });
    match iptables.restore(family, &text) {
        Err(error) if matches!(error.kind(), Kind::NoTable | Kind::NoModule | Kind::Refused) => {
            Err(ProbeError::MarkTarget(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Chain of the test rule, which is never written.
const PROBE_CHAIN: &str = "KUBE-PROXY-PROBE";

/// Tests the sets and rules of IPVS mode in the network namespace of the calling thread. `iptables`
/// must be a backend that works there.
///
/// # Errors
///
/// Fails if a set or rule is refused. The error names it and the reason.
pub fn probe(iptables: &Iptables, family: IpFamily) -> Result<(), ProbeError> {
    let (name, kind) = match family {
        IpFamily::V4 => ("KUBE-PROXY-PROBE", Family::Inet),
        IpFamily::V6 => ("KUBE-6-PROXY-PROBE", Family::Inet6),
    };
    let mut ipset = Ipset::open()?;
    // Rules of an interrupted test may still match the set. Writing and removing a rule in the
    // test's chain removes those rules too, so that the set can be destroyed.
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
