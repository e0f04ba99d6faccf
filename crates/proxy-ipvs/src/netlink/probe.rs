//! Tests whether a kernel supports all sets and rules of IPVS mode, before the node depends on them
//! (`--init-only`).
//!
//! 1. The test creates a set of each type. In a chain that no packet reaches, it creates rules that
//!    match the set.
//! 2. The kernel loads the modules that these objects need.
//! 3. The test removes all objects that it created.

use std::time::Duration;

use ipset_netlink::{Definition, Family, Ipset, SetType};
use iptables::{
    Field, FlowState, Iptables, IptablesError, Kind, Match, Rule, SourcePort, Table, Target,
    restore_text,
};
use proxy::IpFamily;

/// Longest wait until the nft backend releases a set after its rules are removed.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

/// Types of sets that the shim uses.
const TYPES: [SetType; 5] = [
    SetType::BitmapPort,
    SetType::HashIpPort,
    SetType::HashIpPortIp,
    SetType::HashIpPortNet,
    // The last type must be the one that the test rules match.
    SetType::HashIp,
];

/// Returns rules that match an existing set. Together they use each match and target that all
/// clusters need.
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

/// Name of a set that does not exist.
const NO_SET: &str = "KUBE-PROXY-NO-SET";

/// Feature that a kernel lacks.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A set could not be created.
    #[error("cannot make the sets of ipvs mode: {0}")]
    Set(#[from] ipset_netlink::Error),
    /// A rule could not be written.
    #[error("cannot write the rules of ipvs mode: {0}")]
    Rule(#[from] IptablesError),
    /// The kernel's sets have no marks.
    #[error(
        "--ipvs-semantics=exact needs sets with marks, or --ipvs-shim=nftables (Linux 5.2 or newer): {0}"
    )]
    Marks(ipset_netlink::Error),
    /// The kernel or the program lacks the target that copies a set's mark to a packet.
    #[error(
        "--ipvs-semantics=exact needs rules with the target `SET --map-mark` in table mangle (iptables 1.6 and Linux 3.18, modules \
         xt_set and iptable_mangle, or newer), or --ipvs-shim=nftables: {0}"
    )]
    MarkTarget(IptablesError),
}

/// Checks that sets and rules of iptables can give marks to packets. Writes nothing: the test's
/// rule names a set that does not exist, so the program rejects the whole text.
///
/// # Errors
///
/// Names the missing part. A failure that may be temporary does not count as an error.
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

/// Chain of the rule that is never written.
const PROBE_CHAIN: &str = "KUBE-PROXY-PROBE";

/// Runs the test in the network namespace of the calling thread, with an iptables backend that
/// works there.
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
    // Rules of an earlier, interrupted test may still match the set. This test first removes these
    // rules together with its own, and then destroys the set.
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
