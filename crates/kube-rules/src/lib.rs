//! The rules that modes of kube-proxy write alike. Here those of iptables: where packets are marked,
//! how what is marked is masqueraded and forwarded, and what tells this node's pods apart. Those of
//! nf_tables are in [`nft`].
//!
//! Other components know some of these chains by name, and jump into them.
//!
//! Source: upstream's `pkg/proxy/iptables/proxier.go`, `pkg/proxy/ipvs/proxier.go`.

pub mod nft;

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use iptables::{FlowState, Jump, Match, Rule, SourcePort, Table, Target};
use proxy::LocalDetector;

/// 127.0.0.0/8
pub const LOCALHOST: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));

/// In table nat: where each packet comes by that may be for a Service.
pub const SERVICES: &str = "KUBE-SERVICES";
/// In table nat: marks a packet to be masqueraded.
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// In table nat: masquerades what is marked.
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
/// In table filter: lets service traffic through a firewall that forwards nothing else.
pub const FORWARD: &str = "KUBE-FORWARD";

const PORTALS: &str = "kubernetes service portals";
const FORWARDING: &str = "kubernetes forwarding rules";

/// The jumps from the built-in chains into [`SERVICES`], for what this node sends.
pub const FROM_OUTPUT: Jump = Jump::new(Table::Nat, "OUTPUT", SERVICES, PORTALS);
/// The same for what comes to it.
pub const FROM_PREROUTING: Jump = Jump::new(Table::Nat, "PREROUTING", SERVICES, PORTALS);
/// The jump into [`POSTROUTING`].
pub const FROM_POSTROUTING: Jump = Jump::new(
    Table::Nat,
    "POSTROUTING",
    POSTROUTING,
    "kubernetes postrouting rules",
);
/// The jump into [`FORWARD`].
pub const FROM_FORWARD: Jump = Jump::new(Table::Filter, "FORWARD", FORWARD, FORWARDING);

/// What comes from this node's pods; `None` where that is not told apart.
pub fn local(detector: &LocalDetector) -> Option<Match> {
    Some(match detector {
        LocalDetector::None => return None,
        LocalDetector::SourceNet(net) => Match::Source(*net),
        LocalDetector::Bridge(name) => Match::InInterface(name.clone()),
        LocalDetector::InterfacePrefix(prefix) => Match::InInterface(format!("{prefix}+")),
    })
}

/// What does not.
pub fn not_local(detector: &LocalDetector) -> Option<Match> {
    Some(match local(detector)? {
        Match::Source(net) => Match::NotSource(net),
        Match::InInterface(name) => Match::NotInInterface(name),
        other => other,
    })
}

/// The rules of [`POSTROUTING`] that masquerade what carries `mark`, once.
pub fn masquerade(mark: u32, port: SourcePort) -> [Rule; 3] {
    let why = Match::comment("kubernetes service traffic requiring SNAT");
    [
        Rule::new([Match::NotMark(mark)], Target::Return),
        Rule::new([], Target::flip_mark(mark)),
        Rule::new([why], Target::Masquerade(port)),
    ]
}

/// The rules of [`FORWARD`]: what carries `mark`, and what belongs to a flow that is known.
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
