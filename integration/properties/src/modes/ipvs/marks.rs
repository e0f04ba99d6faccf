//! Firewall marks of `--ipvs-semantics=exact`: rules set the mark of packets to the members of the
//! set KUBE-LOCAL-MARK.

use std::collections::{BTreeMap, BTreeSet};

use proxy::ServiceAddress;
use proxy_ipvs::{Member, Set, Snapshot};

/// Returns the address and the mark of a set member, or `None` if the member has no mark.
pub(super) fn marked_address(member: &Member) -> Option<(ServiceAddress, u32)> {
    match *member {
        Member::AddressPortMark(address, protocol, port, mark) => {
            Some((ServiceAddress::new(address, port, protocol), mark))
        }
        _ => None,
    }
}

/// Returns all addresses whose packets get a mark, with their marks.
fn marks(there: &Snapshot) -> impl Iterator<Item = (ServiceAddress, u32)> {
    let members = there.sets.get(&Set::LocalMark).into_iter().flatten();
    members.filter_map(marked_address)
}

/// Returns the addresses (as text) whose packets get a mark, by mark.
pub(super) fn marked(there: &Snapshot) -> BTreeMap<u32, BTreeSet<String>> {
    let mut all = BTreeMap::<u32, BTreeSet<String>>::new();
    for (at, mark) in marks(there) {
        all.entry(mark).or_default().insert(at.to_string());
    }
    all
}

/// Returns the mark of packets to the address `wanted`, or `None` if they get none.
pub(super) fn mark_at(there: &Snapshot, wanted: ServiceAddress) -> Option<u32> {
    let mut all = marks(there);
    all.find_map(|(at, mark)| (at == wanted).then_some(mark))
}
