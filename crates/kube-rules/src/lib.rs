//! Rules that several modes write, to mark, masquerade and forward packets, and to detect traffic
//! from local pods: here for iptables, and in the module [`nft`] for nf_tables.
//!
//! Other programs jump to some of these chains by name.
//!
//! Source: upstream's `pkg/proxy/iptables/proxier.go`, `pkg/proxy/ipvs/proxier.go`.

pub mod nft;

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use iptables::{FlowState, Jump, Match, Rule, SourcePort, Table, Target};
use proxy::LocalDetector;

/// The IPv4 loopback network 127.0.0.0/8.
pub const LOCALHOST: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));

/// Name of the chain in table nat that handles packets to Services.
pub const SERVICES: &str = "KUBE-SERVICES";
/// Name of the chain in table nat that marks packets for masquerading.
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// Name of the chain in table nat that masquerades marked packets.
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
/// Name of the chain in table filter that accepts forwarded traffic of Services.
pub const FORWARD: &str = "KUBE-FORWARD";

const PORTALS: &str = "kubernetes service portals";
const FORWARDING: &str = "kubernetes forwarding rules";

/// Jump from OUTPUT to [`SERVICES`], for packets that this node sends.
pub const FROM_OUTPUT: Jump = Jump::new(Table::Nat, "OUTPUT", SERVICES, PORTALS);
/// Jump from PREROUTING to [`SERVICES`], for packets that arrive at this node.
pub const FROM_PREROUTING: Jump = Jump::new(Table::Nat, "PREROUTING", SERVICES, PORTALS);
/// Jump from POSTROUTING to [`POSTROUTING`], for packets that leave this node.
pub const FROM_POSTROUTING: Jump = Jump::new(
    Table::Nat,
    "POSTROUTING",
    POSTROUTING,
    "kubernetes postrouting rules",
);
/// Jump from FORWARD to [`FORWARD`], for packets that this node forwards.
pub const FROM_FORWARD: Jump = Jump::new(Table::Filter, "FORWARD", FORWARD, FORWARDING);

/// Returns the match for traffic from pods of this node, or `None` if the detector is
/// [`LocalDetector::None`].
pub fn local(detector: &LocalDetector) -> Option<Match> {
    Some(match detector {
        LocalDetector::None => return None,
        LocalDetector::SourceNet(net) => Match::Source(*net),
        LocalDetector::Bridge(name) => Match::InInterface(name.clone()),
        LocalDetector::InterfacePrefix(prefix) => Match::InInterface(format!("{prefix}+")),
    })
}

/// Returns the match for traffic that is not from pods of this node, or `None` if the detector is
/// [`LocalDetector::None`].
pub fn not_local(detector: &LocalDetector) -> Option<Match> {
    Some(match local(detector)? {
        Match::Source(net) => Match::NotSource(net),
        Match::InInterface(name) => Match::NotInInterface(name),
        other => other,
    })
}

/// Returns the rules of the chain [`POSTROUTING`], which masquerade marked packets and clear the
/// mark.
pub fn masquerade(mark: u32, port: SourcePort) -> [Rule; 3] {
    let why = Match::comment("kubernetes service traffic requiring SNAT");
    [
        Rule::new([Match::NotMark(mark)], Target::Return),
        Rule::new([], Target::flip_mark(mark)),
        Rule::new([why], Target::Masquerade(port)),
    ]
}

/// Returns the rules of the chain [`FORWARD`], which accept marked packets and established flows.
pub fn forward(mark: u32) -> [Rule; 2] {
    let known = [
        Match::comment("kubernetes forwarding conntrack rule"),
        Match::State(&[FlowState::Related, FlowState::Established]),
    ];
    [
        Rule::new(
            [Match::comment(FORWARDING), Match::Mark(mark)],
            Target::Accept,
        ),
        Rule::new(known, Target::Accept),
    ]
}
