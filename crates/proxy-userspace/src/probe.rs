//! Checks that the kernel supports the iptables rules of this mode.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use iptables::{Iptables, IptablesError, Match, Rule, Table, Target};
use proxy::{IpFamily, Protocol};

/// Kernel modules for the matches and targets that this mode usually needs, by alias
/// ([`Iptables::choose_loading`]).
pub const MODULES: [&str; 4] = ["ipt_tcp", "ipt_udp", "ipt_mark", "ipt_DNAT"];

/// Tests the kernel with rules in an unused chain, and removes them again. Together, these rules
/// have each match and target that all clusters need.
///
/// # Errors
///
/// Fails if the kernel refuses a rule. Returns the first refusal.
pub fn probe(iptables: &Iptables, family: IpFamily) -> Result<(), IptablesError> {
    let localhost: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
        IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    let redirect = |protocol| {
        let matches = [
            Match::Protocol(protocol),
            Match::comment("probe"),
            Match::Port(protocol, 1),
        ];
        Rule::new(matches, Target::Dnat((localhost, 1).into()))
    };
    let rules = [
        Rule::new([Match::DestinationLocal, Match::NotMark(1)], Target::Return),
        redirect(Protocol::Tcp),
        redirect(Protocol::Udp),
    ];
    iptables.try_rules(family, &rules.map(|rule| (Table::Nat, rule)))
}
