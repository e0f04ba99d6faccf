//! The expected table, and its document.

use std::fmt::Write as _;

use lab::Transport;

use crate::cast::{Mode, carried};

/// Services of one kind, with a row for each sender and address.
pub(crate) struct Section {
    /// True if the Services have `externalTrafficPolicy: Local`.
    pub(crate) external_local: bool,
    /// True if the Services have `internalTrafficPolicy: Local`.
    pub(crate) internal_local: bool,
    /// True if one endpoint is on the node. The other endpoint is on another node.
    pub(crate) is_here: bool,
    rows: &'static str,
}

/// A row: the sender, the address, and the results with local detection, without it, and with
/// `--masquerade-all`.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) seen: [&'static str; 3],
    /// Different results of iptables and nftables mode: one for all three columns, or one for each.
    iptables: &'static str,
    why: &'static str,
}

/// Reasons for differences from the rule-based modes.
const REASONS: [(&str, &str); 7] = [
    (
        "A",
        "Every service address is an address of the node, so the kernel takes it as the source of the node's own packets to it. It has to be \
         rewritten. In iptables mode the source is the node's address from the start.",
    ),
    (
        "B",
        "A virtual server has one list of destinations for all clients, so clients inside the cluster are pinned to the local endpoint too; \
         iptables mode sends them anywhere ([k/k#93456](https://github.com/kubernetes/kubernetes/issues/93456)). As upstream.",
    ),
    (
        "C",
        "Without a local endpoint the virtual server gets the others, for clients inside the cluster \
         ([k/k#97081](https://github.com/kubernetes/kubernetes/pull/97081)), and clients outside are forwarded too; iptables mode drops their \
         packets. As upstream.",
    ),
    (
        "D",
        "The list is that of C, and packets to an address of a Service with externalTrafficPolicy Local are never masqueraded. As upstream.",
    ),
    (
        "E",
        "D, and the source is the service address (A), to which the other node does not answer. As upstream.",
    ),
    (
        "F",
        "Without a local endpoint, the ClusterIP of a Service that is reachable from outside gets the other endpoints; that of one that is \
         not has no destination, and IPVS refuses at once. iptables mode drops in both cases. As upstream.",
    ),
    (
        "G",
        "Userspace mode takes the endpoints that iptables and nftables mode take. The process itself connects to one, which always sees an \
         address of the node. It accepts the client before it knows that there is no endpoint, so the client is **reset**; over UDP it hears \
         nothing.",
    ),
];

/// Results of the other tests, in the document's last part.
const BESIDE: &str = "
## Beside the table

For all policies, places and ways unless said otherwise, in both families: in IPVS mode with each
shim, in nftables mode and in userspace mode (G where nothing else is said).

- **UDP and SCTP, and IPv6**: as TCP over IPv4 in the table. Userspace mode carries no SCTP.
- **No endpoints**: refused at once, in IPVS mode by IPVS itself, in the others by a rule. Clients
  get an ICMP port unreachable, at most one a second and client after a burst
  (`net.ipv4.icmp_ratelimit`). On the node a UDP client's send fails, except to a node port in
  nftables mode, whose rule refuses incoming packets.
- **A port that the Service does not expose**, also a node port asked at a service address: refused
  at once, also if a process on the node listens on all addresses
  ([k/k#72236](https://github.com/kubernetes/kubernetes/issues/72236)). The rules of
  KUBE-IPVS-FILTER do so, upstream's since 1.27. nftables mode does so at ClusterIPs alone: no node
  has the other addresses of a Service, so the network decides about packets to them. In iptables
  and userspace mode it decides about ClusterIPs, too.
- **An address of the ServiceCIDRs that no Service has**: nftables mode drops packets to it. The
  others do not know these ranges.
- **A pod that asks a Service whose only endpoint it is** reaches itself, masqueraded, in every way
  and with all policies.
- **Terminating endpoints** that still serve answer where no ready one does: no ready one at all,
  or, where the policy says Local, no ready one here. If this node has neither, IPVS mode uses all
  others (C, F), nftables mode drops, userspace mode resets.
- **loadBalancerSourceRanges** hold for the load balancer's addresses alone, in all modes: a client
  in no range gets a timeout, in userspace mode a reset. The node itself is allowed if a range holds
  an address of its Node object.
- **ICMP echo** to a service address is refused (port unreachable) by the rule that refuses ports
  that are not exposed; in nftables mode to a ClusterIP (over IPv4 the node itself cannot even send
  it). An address of the node answers, with or without a node port. If no node has the address of a
  Service, the network decides about a ping to it.
";

pub(crate) const SECTIONS: [Section; 8] = [
    Section {
        external_local: false,
        internal_local: false,
        is_here: true,
        rows: "
pod     | ClusterIP     | both kept   | both kept   | both masq   |
pod     | NodePort      | both masq   | both masq   | both masq   |
pod     | LoadBalancer  | both masq   | both masq   | both masq   |
pod     | externalIP    | both masq   | both masq   | both masq   |
node    | ClusterIP     | both masq   | both masq   | both masq   | both masq / both kept / both masq | A
node    | NodePort      | both masq   | both masq   | both masq   |
node    | LoadBalancer  | both masq   | both masq   | both masq   |
node    | externalIP    | both masq   | both masq   | both masq   |
outside | ClusterIP     | both masq   | both kept   | both masq   |
outside | NodePort      | both masq   | both masq   | both masq   |
outside | LoadBalancer  | both masq   | both masq   | both masq   |
outside | externalIP    | both masq   | both masq   | both masq   |
",
    },
    Section {
        external_local: true,
        internal_local: false,
        is_here: true,
        rows: "
pod     | ClusterIP     | both kept   | both kept   | both masq   |
pod     | NodePort      | local kept  | local kept  | local kept  | both kept / local kept / both kept | B
pod     | LoadBalancer  | local kept  | local kept  | local kept  | both kept / local kept / both kept | B
pod     | externalIP    | local kept  | local kept  | local kept  | both kept / local kept / both kept | B
node    | ClusterIP     | both masq   | both masq   | both masq   | both masq / both kept / both masq | A
node    | NodePort      | local kept  | local kept  | local kept  | both masq | B
node    | LoadBalancer  | local vip   | local vip   | local vip   | both masq | A, B
node    | externalIP    | local vip   | local vip   | local vip   | both masq | A, B
outside | ClusterIP     | both masq   | both kept   | both masq   |
outside | NodePort      | local kept  | local kept  | local kept  |
outside | LoadBalancer  | local kept  | local kept  | local kept  |
outside | externalIP    | local kept  | local kept  | local kept  |
",
    },
    Section {
        external_local: false,
        internal_local: true,
        is_here: true,
        rows: "
pod     | ClusterIP     | local kept  | local kept  | local masq  |
pod     | NodePort      | both masq   | both masq   | both masq   |
pod     | LoadBalancer  | both masq   | both masq   | both masq   |
pod     | externalIP    | both masq   | both masq   | both masq   |
node    | ClusterIP     | local masq  | local masq  | local masq  | local masq / local kept / local masq | A
node    | NodePort      | both masq   | both masq   | both masq   |
node    | LoadBalancer  | both masq   | both masq   | both masq   |
node    | externalIP    | both masq   | both masq   | both masq   |
outside | ClusterIP     | local masq  | local kept  | local masq  |
outside | NodePort      | both masq   | both masq   | both masq   |
outside | LoadBalancer  | both masq   | both masq   | both masq   |
outside | externalIP    | both masq   | both masq   | both masq   |
",
    },
    Section {
        external_local: true,
        internal_local: true,
        is_here: true,
        rows: "
pod     | ClusterIP     | local kept  | local kept  | local masq  |
pod     | NodePort      | local kept  | local kept  | local kept  | both kept / local kept / both kept | B
pod     | LoadBalancer  | local kept  | local kept  | local kept  | both kept / local kept / both kept | B
pod     | externalIP    | local kept  | local kept  | local kept  | both kept / local kept / both kept | B
node    | ClusterIP     | local masq  | local masq  | local masq  | local masq / local kept / local masq | A
node    | NodePort      | local kept  | local kept  | local kept  | both masq | B
node    | LoadBalancer  | local vip   | local vip   | local vip   | both masq | A, B
node    | externalIP    | local vip   | local vip   | local vip   | both masq | A, B
outside | ClusterIP     | local masq  | local kept  | local masq  |
outside | NodePort      | local kept  | local kept  | local kept  |
outside | LoadBalancer  | local kept  | local kept  | local kept  |
outside | externalIP    | local kept  | local kept  | local kept  |
",
    },
    Section {
        external_local: false,
        internal_local: false,
        is_here: false,
        rows: "
pod     | ClusterIP     | remote kept | remote kept | remote masq |
pod     | NodePort      | remote masq | remote masq | remote masq |
pod     | LoadBalancer  | remote masq | remote masq | remote masq |
pod     | externalIP    | remote masq | remote masq | remote masq |
node    | ClusterIP     | remote masq | remote masq | remote masq | remote masq / remote kept / remote masq | A
node    | NodePort      | remote masq | remote masq | remote masq |
node    | LoadBalancer  | remote masq | remote masq | remote masq |
node    | externalIP    | remote masq | remote masq | remote masq |
outside | ClusterIP     | remote masq | remote kept | remote masq |
outside | NodePort      | remote masq | remote masq | remote masq |
outside | LoadBalancer  | remote masq | remote masq | remote masq |
outside | externalIP    | remote masq | remote masq | remote masq |
",
    },
    Section {
        external_local: true,
        internal_local: false,
        is_here: false,
        rows: "
pod     | ClusterIP     | remote kept | remote kept | remote masq |
pod     | NodePort      | remote kept | remote kept | remote kept | remote kept / timeout / remote kept | C
pod     | LoadBalancer  | remote kept | remote kept | remote kept | remote kept / timeout / remote kept | C
pod     | externalIP    | remote kept | remote kept | remote kept | remote kept / timeout / remote kept | C
node    | ClusterIP     | remote masq | remote masq | remote masq | remote masq / remote kept / remote masq | A
node    | NodePort      | remote kept | remote kept | remote kept | remote masq | D
node    | LoadBalancer  | timeout     | timeout     | timeout     | remote masq | E
node    | externalIP    | timeout     | timeout     | timeout     | remote masq | E
outside | ClusterIP     | remote masq | remote kept | remote masq |
outside | NodePort      | remote kept | remote kept | remote kept | timeout | C
outside | LoadBalancer  | remote kept | remote kept | remote kept | timeout | C
outside | externalIP    | remote kept | remote kept | remote kept | timeout | C
",
    },
    Section {
        external_local: false,
        internal_local: true,
        is_here: false,
        rows: "
pod     | ClusterIP     | remote kept | remote kept | remote masq | timeout | F
pod     | NodePort      | remote masq | remote masq | remote masq |
pod     | LoadBalancer  | remote masq | remote masq | remote masq |
pod     | externalIP    | remote masq | remote masq | remote masq |
node    | ClusterIP     | remote masq | remote masq | remote masq | timeout | F
node    | NodePort      | remote masq | remote masq | remote masq |
node    | LoadBalancer  | remote masq | remote masq | remote masq |
node    | externalIP    | remote masq | remote masq | remote masq |
outside | ClusterIP     | remote masq | remote kept | remote masq | timeout | F
outside | NodePort      | remote masq | remote masq | remote masq |
outside | LoadBalancer  | remote masq | remote masq | remote masq |
outside | externalIP    | remote masq | remote masq | remote masq |
pod     | ClusterIP only | refused    | refused     | refused     | timeout | F
node    | ClusterIP only | refused    | refused     | refused     | timeout | F
outside | ClusterIP only | refused    | refused     | refused     | timeout | F
",
    },
    Section {
        external_local: true,
        internal_local: true,
        is_here: false,
        rows: "
pod     | ClusterIP     | remote kept | remote kept | remote masq | timeout | F
pod     | NodePort      | remote kept | remote kept | remote kept | remote kept / timeout / remote kept | C
pod     | LoadBalancer  | remote kept | remote kept | remote kept | remote kept / timeout / remote kept | C
pod     | externalIP    | remote kept | remote kept | remote kept | remote kept / timeout / remote kept | C
node    | ClusterIP     | remote masq | remote masq | remote masq | timeout | F
node    | NodePort      | remote kept | remote kept | remote kept | remote masq | D
node    | LoadBalancer  | timeout     | timeout     | timeout     | remote masq | E
node    | externalIP    | timeout     | timeout     | timeout     | remote masq | E
outside | ClusterIP     | remote masq | remote kept | remote masq | timeout | F
outside | NodePort      | remote kept | remote kept | remote kept | timeout | C
outside | LoadBalancer  | remote kept | remote kept | remote kept | timeout | C
outside | externalIP    | remote kept | remote kept | remote kept | timeout | C
",
    },
];

impl Section {
    /// Returns the rows, in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.rows.trim().lines().map(|line| {
            let mut cells = line.split('|').map(str::trim);
            let mut next = || cells.next().unwrap_or_default();
            Row {
                from: next(),
                to: next(),
                seen: [next(), next(), next()],
                iptables: next(),
                why: next(),
            }
        })
    }

    fn title(&self) -> String {
        let policies = match (self.external_local, self.internal_local) {
            (false, false) => "Both policies Cluster",
            (true, false) => "externalTrafficPolicy Local",
            (false, true) => "internalTrafficPolicy Local",
            (true, true) => "Both policies Local",
        };
        let endpoints = if self.is_here {
            "one endpoint here, one elsewhere"
        } else {
            "an endpoint elsewhere only"
        };
        format!("{policies}, {endpoints}")
    }
}

impl Row {
    /// Returns the expected result in a mode, in one of the three columns.
    pub(crate) fn expected(&self, mode: Mode, transport: Transport, column: usize) -> &'static str {
        let said = if mode == Mode::Ipvs || self.iptables.is_empty() {
            self.seen.get(column).copied()
        } else {
            self.iptables.split(" / ").cycle().nth(column)
        };
        carried(mode, transport, said.unwrap_or_default())
    }

    /// Returns the result of userspace mode: one for all three columns, or one for each.
    fn userspace(&self) -> String {
        let all = [0, 1, 2].map(|column| self.expected(Mode::Userspace, Transport::Tcp, column));
        let [first, ..] = all;
        if all == [first; 3] {
            first.to_owned()
        } else {
            all.join(" / ")
        }
    }

    /// Returns true if the results of iptables mode match their reasons.
    pub(crate) fn is_sound(&self) -> bool {
        if self.iptables.is_empty() {
            return self.why.is_empty();
        }
        let iptables: Vec<_> = self.iptables.split(" / ").collect();
        let differs = iptables
            .iter()
            .cycle()
            .zip(self.seen)
            .any(|(iptables, seen)| *iptables != seen);
        let has_reasons = self
            .why
            .split(", ")
            .all(|why| REASONS.iter().any(|(name, _)| *name == why));
        matches!(iptables.len(), 1 | 3) && differs && has_reasons
    }
}

const INTRODUCTION: &str = "\
# The packet matrix

For who asks which clients reach which endpoints, and with which source address: find your policy's
table, then the row of client and address.

The tables show IPVS mode, with every `--ipvs-shim` (upstream, lean, nftables). Further columns show
where other modes differ, and the last one why:

* iptables and nftables mode have the intended semantics, and never differ from each other here, nor
  do the two layouts of nftables mode (`--nftables-layout`);
* userspace mode differs for one reason (G), with redirects by nftables and by iptables.

The test that holds this table (`integration/scenarios/tests/matrix`) sees all of it with real
packets. The kernel state, except in the flat layout, is upstream's of the same mode.
`kube-proxy explain` says the same: the test asks it about every row, in every mode, for who answers
and whom the endpoint sees.

This file is made by `cargo test -p scenarios --test matrix -- --print > docs/packet-matrix.md`; the
test fails where it is out of date.

| word | meaning |
|---|---|
| from **pod**, **node**, **outside** | a pod on this node, the node itself, a host that sends packets for the address to this node (answers come back by way of this node) |
| **detected**, **not detected**, **masquerade-all** | local traffic is detected (`--cluster-cidr`), it is not, `--masquerade-all` |
| **local**, **remote**, **both** | the endpoint on this node answers, the one on another node, both in turn |
| **refused**, **timeout** | none answers: an error at once, or nothing |
| **kept**, **masq** | the endpoint sees the client's address, an address of this node |
| **vip** | the endpoint sees the service address, which is the client's own where the node asks |
";

/// Returns the document with the observed results, row by row.
pub(crate) fn document_of(mut seen: impl Iterator<Item = [String; 3]>) -> String {
    let mut text = INTRODUCTION.to_owned();
    for section in &SECTIONS {
        let _ = writeln!(
            text,
            "\n## {}\n\n| from | to | detected | not detected | masquerade-all | iptables and nftables mode would | userspace mode would | why |\n\
             |---|---|---|---|---|---|---|---|",
            section.title()
        );
        for row in section.rows() {
            let seen = seen.next().unwrap_or_default().join(" | ");
            let _ = writeln!(
                text,
                "| {} | {} | {seen} | {} | {} | {} |",
                row.from,
                row.to,
                row.iptables,
                row.userspace(),
                row.why
            );
        }
    }
    text.push_str("\n## Why\n");
    for (name, reason) in REASONS {
        let _ = write!(text, "\n- **{name}** {reason}");
    }
    lab::pages::wrapped(&(text + "\n" + BESIDE))
}

/// Returns the document with the expected results.
pub(crate) fn document() -> String {
    document_of(
        SECTIONS
            .iter()
            .flat_map(Section::rows)
            .map(|row| row.seen.map(str::to_owned)),
    )
}
