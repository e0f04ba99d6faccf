//! The packet matrix as a table of expected results, and the document that contains this table.

use std::fmt::Write as _;

use lab::Transport;

use crate::clients::{Mode, carried};

/// Services with the same policies and endpoints. Each sender and kind of address has a row.
pub(crate) struct Section {
    /// True if the Services have `externalTrafficPolicy: Local`.
    pub(crate) external_local: bool,
    /// True if the Services have `internalTrafficPolicy: Local`.
    pub(crate) internal_local: bool,
    /// True if one endpoint is on this node and another endpoint is on another node. False if the
    /// only endpoint is on another node.
    pub(crate) is_here: bool,
    rows: &'static str,
}

/// A row of the table: sender, kind of address, and three results. The first column is with
/// detection of local traffic, the second without it, and the third with `--masquerade-all`.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) seen: [&'static str; 3],
    /// Results of the rule-based modes if they differ from IPVS mode: one result for all three
    /// columns, or one for each column.
    iptables: &'static str,
    why: &'static str,
}

/// Letters and texts of the reasons why results differ between modes.
const REASONS: [(&str, &str); 7] = [
    (
        "A",
        "In IPVS mode, each service address is also an address of the node. So the kernel uses the service address as \
         the source of the node's own packets, and IPVS mode must masquerade these packets.",
    ),
    (
        "B",
        "An IPVS virtual server has one list of destinations for all clients. So with externalTrafficPolicy Local, \
         even clients inside the cluster reach only the local endpoint \
         ([kubernetes/kubernetes#93456](https://github.com/kubernetes/kubernetes/issues/93456)). In iptables mode, \
         these clients reach any endpoint.",
    ),
    (
        "C",
        "Without a local endpoint, the virtual server gets the remote endpoints, for clients inside the cluster \
         ([kubernetes/kubernetes#97081](https://github.com/kubernetes/kubernetes/pull/97081)). So IPVS mode also \
         forwards packets from outside clients. iptables mode drops these packets.",
    ),
    (
        "D",
        "Without a local endpoint, the virtual server gets the remote endpoints (reason C). With \
         externalTrafficPolicy Local, IPVS mode never masquerades packets to external addresses.",
    ),
    (
        "E",
        "IPVS mode forwards the packet to another node with the service address as its source (reasons A and D). That \
         node sends no reply to a service address, so the client times out.",
    ),
    (
        "F",
        "Without a local endpoint, a ClusterIP gets the remote endpoints if the Service has external addresses. \
         Otherwise, its virtual server has no destination, and IPVS refuses the connection at once. iptables mode \
         drops the packets in both cases.",
    ),
    (
        "G",
        "kube-proxy chooses the same endpoints as in iptables and nftables mode. The endpoint sees the node's address, \
         because kube-proxy connects to the endpoint. Without an endpoint, kube-proxy **resets** a TCP client that it \
         has accepted, and a UDP client gets no answer.",
    ),
];

/// Last part of the document: results of tests that are not in the table.
const BESIDE: &str = "
## Beside the table

The following results hold in every mode and IP family, for every policy, client and address, unless
an item names an exception.

- **UDP, SCTP and IPv6** have the results of TCP over IPv4. Userspace mode does not support SCTP.
- **A Service without endpoints**: the kernel refuses packets at once with an ICMP port unreachable.
  After a burst, each client gets at most one such packet per second (`net.ipv4.icmp_ratelimit`). On
  the node, a UDP client's send fails (exception: to a node port, in nftables mode with upstream's
  layout).
- **Ports that the Service does not expose**, and node ports at a service address: in IPVS mode, a
  rule rejects packets at once, even if a process on the node listens
  ([kubernetes/kubernetes#72236](https://github.com/kubernetes/kubernetes/issues/72236)). nftables
  mode rejects these packets only at ClusterIPs, iptables and userspace mode at no address.
- **An unused address of the ServiceCIDRs**: nftables mode drops packets. IPVS mode with
  `--ipvs-vip-mode=range` refuses packets. Other modes ignore ServiceCIDRs.
- **A pod that is the only endpoint of its Service** reaches itself at every address, with every
  traffic policy. The rules masquerade the pod's packets.
- **Terminating endpoints** that still serve get packets if no endpoint is ready (with traffic
  policy Local: if no endpoint on this node is ready). If the policy is Local and no endpoint on
  this node serves, IPVS mode uses all other endpoints (reasons C and F). nftables mode then drops
  the packets, and userspace mode resets connections.
- **loadBalancerSourceRanges** apply only to load-balancer addresses. A client outside the ranges
  gets a timeout (in userspace mode, a reset). The node may connect if a range contains an address
  of its Node object.
- **ICMP echo requests (ping)** to a service address: IPVS mode replies \"port unreachable\", unless
  [`--ipvs-answer-ping`](ipvs-shim.md#ping) is set. nftables mode replies so only at ClusterIPs. An
  address of the node always replies. In all other cases, kube-proxy does not handle the packets.
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
    /// Parses the rows of this section, in the document's order.
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
            "one endpoint on this node, one on another"
        } else {
            "endpoint only on another node"
        };
        format!("{policies}, {endpoints}")
    }
}

impl Row {
    /// Returns the result that a mode should have in one of the three columns.
    pub(crate) fn expected(&self, mode: Mode, transport: Transport, column: usize) -> &'static str {
        let said = if mode == Mode::Ipvs || self.iptables.is_empty() {
            self.seen.get(column).copied()
        } else {
            self.iptables.split(" / ").cycle().nth(column)
        };
        carried(mode, transport, said.unwrap_or_default())
    }

    /// Returns the results that a mode should have over TCP in the three columns.
    fn results(&self, mode: Mode) -> [&'static str; 3] {
        [0, 1, 2].map(|column| self.expected(mode, Transport::Tcp, column))
    }

    /// Returns a mode's cell in the document: its results, or "as IPVS" if the mode has the results
    /// of IPVS mode.
    fn cell(&self, mode: Mode) -> String {
        let all = self.results(mode);
        if all == self.results(Mode::Ipvs) {
            "as IPVS".to_owned()
        } else {
            in_one_cell(&all.map(str::to_owned))
        }
    }

    /// Returns true if the row has valid reasons exactly when iptables mode differs from IPVS mode.
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

/// Returns a result in the words of the document: the endpoint, and the source address that the
/// endpoint sees.
fn described(result: &str) -> String {
    let result = result.replace(" kept", ", client");
    result.replace(" masq", ", node").replace(" vip", ", VIP")
}

/// Returns a cell of the document: the result with detection of local traffic. If another result
/// differs, adds it with its condition. Omits the endpoint if both results have the same endpoint.
fn in_one_cell(results: &[String; 3]) -> String {
    let [first, second, third] = results;
    let main = described(first);
    let endpoint = main.split(", ").next().unwrap_or_default();
    let mut text = main.clone();
    for (condition, other) in [
        ("without `--cluster-cidr`", second),
        ("with `--masquerade-all`", third),
    ] {
        if other != first {
            let other = described(other);
            let source = other
                .strip_prefix(endpoint)
                .and_then(|rest| rest.strip_prefix(", "));
            let _ = write!(text, " ({condition}: {})", source.unwrap_or(&other));
        }
    }
    text
}

const INTRODUCTION: &str = "\
# The packet matrix

For operators who ask which endpoint a client reaches, and which source address the endpoint sees.
Find the table of the Service's traffic policies, then the row with the client and the address.

The columns with results have these modes:

* **IPVS**: IPVS mode with every `--ipvs-shim`
* **iptables, nftables, exact**: iptables mode, both layouts of nftables mode, and IPVS mode with
  [`--ipvs-semantics=exact`](ipvs-shim.md#exact-semantics). If their results differ from IPVS
  mode's, the last column names the [reason](#why).
* **userspace**: userspace mode, with redirects by nftables or iptables. Reason G explains its
  results.

Results are with `--cluster-cidr`. Parentheses have a different result without `--cluster-cidr` or
with `--masquerade-all`.

`integration/scenarios/tests/matrix` tests every row with real packets and `kube-proxy explain`.
`cargo test -p scenarios --test matrix -- --print > docs/packet-matrix.md` prints this page.

| word | meaning |
|---|---|
| client **pod** | a pod on this node |
| client **node** | a process on this node |
| client **outside** | another host, whose packets and replies pass this node |
| address **ClusterIP only** | ClusterIP of a Service without NodePorts and external addresses |
| endpoint **local**, **remote**, **both** | the endpoint on this node replies, the endpoint on another node replies, or both reply in turn |
| **refused**, **reset**, **timeout** | the client gets an error at once, a reset after it has connected, or no reply |
| source **client** | the endpoint sees the client's address |
| source **node** | the endpoint sees an address of this node |
| source **VIP** | the endpoint sees the service address, which the node's own packets have as their source |
";

/// Results outside the tables in which `--ipvs-semantics=exact` differs from iptables mode.
const EXCEPTIONS: &str = "
Outside these combinations, `--ipvs-semantics=exact` differs from iptables mode in three points
([details](ipvs-shim.md#exact-semantics)):

* NodePorts at 127.0.0.1 refuse connections.
* Session affinity may end when endpoints change, if `externalTrafficPolicy` is Local.
* If no packet mark is free for a Service, its results are those of IPVS mode ([reason B](#why)).
";

/// Returns a table with the number of rows in which each mode differs from iptables mode, and the
/// exceptions.
fn differing_rows() -> String {
    let rows: Vec<Row> = SECTIONS.iter().flat_map(Section::rows).collect();
    let mut text = format!(
        "\n| mode | results that differ from iptables mode, of {} combinations of client, address and table |\n|---|--:|\n",
        rows.len()
    );
    for (name, mode) in [
        ("IPVS mode", Mode::Ipvs),
        ("IPVS mode, `--ipvs-semantics=exact`", Mode::Exact),
        ("nftables mode", Mode::Nftables),
        ("userspace mode", Mode::Userspace),
    ] {
        let differs = |row: &&Row| row.results(mode) != row.results(Mode::Iptables);
        let _ = writeln!(text, "| {name} | {} |", rows.iter().filter(differs).count());
    }
    text + EXCEPTIONS
}

/// Returns the document's text with observed results of IPVS mode. `seen` has each row's results,
/// in the order of the rows.
pub(crate) fn document_of(mut seen: impl Iterator<Item = [String; 3]>) -> String {
    let mut text = INTRODUCTION.to_owned() + &differing_rows();
    for section in &SECTIONS {
        let _ = writeln!(
            text,
            "\n## {}\n\n\
             | client | address | IPVS (endpoint, source) | iptables, nftables, exact | userspace | reason |\n\
             |---|---|---|---|---|---|",
            section.title()
        );
        // Adjacent rows with the same client and results share a line, which lists their addresses.
        let mut lines: Vec<(&str, Vec<&str>, String)> = Vec::new();
        for row in section.rows() {
            let seen = in_one_cell(&seen.next().unwrap_or_default());
            let why = if row.why.is_empty() { "–" } else { row.why };
            let results = format!(
                "{seen} | {} | {} | {why}",
                row.cell(Mode::Iptables),
                row.cell(Mode::Userspace)
            );
            match lines.last_mut() {
                Some((from, to, same)) if *from == row.from && *same == results => to.push(row.to),
                _ => lines.push((row.from, vec![row.to], results)),
            }
        }
        // Clients with the same results at the same addresses share a line, too.
        let mut shared: Vec<(Vec<&str>, String)> = Vec::new();
        for (from, to, results) in lines {
            let results = format!("{} | {results}", to.join(", "));
            match shared.iter_mut().find(|(_, same)| *same == results) {
                Some((clients, _)) => clients.push(from),
                None => shared.push((vec![from], results)),
            }
        }
        for (clients, results) in shared {
            let _ = writeln!(text, "| {} | {results} |", clients.join(", "));
        }
    }
    text.push_str("\n## Why\n\nReasons A to F also apply to upstream's IPVS mode.\n");
    for (name, reason) in REASONS {
        let _ = write!(text, "\n- **{name}** {reason}");
    }
    lab::pages::wrapped(&(text + "\n" + BESIDE))
}

/// Returns the document's text with the expected results of IPVS mode.
pub(crate) fn document() -> String {
    document_of(
        SECTIONS
            .iter()
            .flat_map(Section::rows)
            .map(|row| row.seen.map(str::to_owned)),
    )
}
