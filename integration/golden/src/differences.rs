//! Intended differences between the daemon's and upstream's kernel state.
//!
//! Each function in the table below changes the expected state of those cases to which its
//! difference applies. The comparison requires the changed state, so a case fails if the daemon
//! lacks an intended difference.
//!
//! Two intended differences are not visible in dumps:
//!
//! - If two Services claim the same address and port, the older Service gets it. In upstream,
//!   either Service may get it.
//! - Our ipsets grow. Upstream's ipsets are full at 65,536 members: upstream logs an error, and
//!   does not serve the remaining addresses.

use std::collections::{BTreeMap, BTreeSet};

use crate::table::{Dumps, Table};

/// Expected lines of the dumps, by table.
pub(crate) type Expected = BTreeMap<Table, Vec<String>>;

/// State of the node before the daemon starts, on which expected differences depend.
#[derive(Debug, Clone, Default)]
pub(crate) struct InitialState {
    /// Dumps from before the daemon's start. Empty if no expectation depends on them.
    pub(crate) dumps: Dumps,
    /// Addresses of the node on all interfaces except `lo` and `kube-ipvs0`.
    pub(crate) node: BTreeSet<String>,
    /// True for each IP family (IPv4, IPv6) whose node ports stay closed, because
    /// `--nodeport-addresses` names only networks of the other family.
    pub(crate) has_no_node_ports: [bool; 2],
}

/// An intended difference from upstream, as a function that changes the expected state where the
/// difference applies.
struct Difference {
    expect: fn(&InitialState, &mut Expected),
}

const DIFFERENCES: [Difference; 4] = [
    // Virtual servers of other programs survive, even without `--ipvs-exclude-cidrs`. keepalived or
    // an administrator may use IPVS on the same node. Upstream deletes all unknown virtual servers
    // (kubernetes/kube-proxy#6, kubernetes/kubernetes#55857 for --cleanup).
    Difference {
        expect: foreign_virtual_servers_survive,
    },
    // The daemon does not bind a ClusterIP to kube-ipvs0 if another interface of the node has this
    // address. Upstream always binds it. When the Service is deleted, upstream also removes the
    // address from the node (kubernetes/kubernetes#75290).
    Difference {
        expect: addresses_of_the_node_are_not_bound,
    },
    // The kubelet also uses the rule that protects localhost from neighbours. Like upstream, no
    // mode of the daemon removes this rule. If the rule existed before the daemon's start, the
    // expected state contains the rule.
    Difference {
        expect: the_kubelets_rule_stays,
    },
    // If `--nodeport-addresses` names networks of only one family, node ports of the other family
    // stay closed. An operator who names networks wants node ports only in these networks. Upstream
    // logs an error, and opens node ports on all local addresses of the other family.
    Difference {
        expect: node_ports_stay_closed_without_addresses,
    },
];

/// Returns the state that our daemon must leave, if upstream leaves `expected`.
pub(crate) fn ours(before: &InitialState, mut expected: Expected) -> Expected {
    for difference in &DIFFERENCES {
        (difference.expect)(before, &mut expected);
    }
    expected
}

fn foreign_virtual_servers_survive(before: &InitialState, expected: &mut Expected) {
    let Some(servers) = expected.get_mut(&Table::IpvsadmSave) else {
        return;
    };
    let dump = |table: Table| {
        before
            .dumps
            .get(&table)
            .map(|dump| table.clean(dump))
            .unwrap_or_default()
    };
    let bound: BTreeSet<String> = dump(Table::KubeIpvs0Addresses)
        .iter()
        .map(|line| without_prefix(line))
        .collect();
    let members = dump(Table::IpsetSave);
    let is_member = |sets: &[&str], member: &str| {
        let mut names = sets.iter().flat_map(|set| {
            [
                format!("add KUBE-{set} {member}"),
                format!("add KUBE-6-{set} {member}"),
            ]
        });
        names.any(|line| members.contains(&line))
    };
    // A virtual server belongs to a kube-proxy if kube-ipvs0 has its address, or if a kube-proxy's
    // ipset contains its address. Any other virtual server is foreign.
    let is_foreign = |server: &Server<'_>| {
        let Server {
            address,
            port,
            protocol,
        } = server;
        let at = format!("{address},{protocol}:{port}");
        let sets = [
            "CLUSTER-IP",
            "EXTERNAL-IP",
            "EXTERNAL-IP-LOCAL",
            "LOAD-BALANCER",
            "NODE-PORT-SCTP-HASH",
        ];
        let node_ports = format!("NODE-PORT-{}", protocol.to_uppercase());
        let is_node_port = before.node.contains(*address) && is_member(&[&node_ports], port);
        !(bound.contains(*address) || is_member(&sets, &at) || is_node_port)
    };
    let key = |line: &str| {
        line.split_whitespace()
            .skip(1)
            .take(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let kept: BTreeSet<_> = servers.iter().map(|line| key(line)).collect();
    for line in dump(Table::IpvsadmSave) {
        if !kept.contains(&key(&line)) && Server::of(&line).is_none_or(|server| is_foreign(&server))
        {
            servers.push(line);
        }
    }
    *servers = Table::IpvsadmSave.clean(&servers.join("\n"));
}

fn addresses_of_the_node_are_not_bound(before: &InitialState, expected: &mut Expected) {
    if let Some(addresses) = expected.get_mut(&Table::KubeIpvs0Addresses) {
        addresses.retain(|line| !before.node.contains(&without_prefix(line)));
    }
    if let Some(sets) = expected.get_mut(&Table::IpsetSave) {
        let address = |line: &str| {
            let member = ["add KUBE-IPVS-IPS ", "add KUBE-6-IPVS-IPS "]
                .iter()
                .find_map(|add| line.strip_prefix(add));
            member.map(str::to_owned)
        };
        sets.retain(|line| address(line).is_none_or(|address| !before.node.contains(&address)));
    }
}

fn the_kubelets_rule_stays(before: &InitialState, expected: &mut Expected) {
    let table = Table::IptablesSave;
    let (Some(before), Some(rules)) = (before.dumps.get(&table), expected.get_mut(&table)) else {
        return;
    };
    let is_it = |line: &&String| line.starts_with("filter -A KUBE-FIREWALL ");
    let found = table.clean(before);
    let place = rules
        .iter()
        .position(|line| line.starts_with("filter -A KUBE-FORWARD "));
    if let Some(rule) = found
        .iter()
        .find(is_it)
        .filter(|rule| !rules.contains(rule))
    {
        let place = place.unwrap_or(rules.len());
        rules.insert(place, rule.clone());
    }
}

fn node_ports_stay_closed_without_addresses(before: &InitialState, expected: &mut Expected) {
    for ((table, is_closed), (family, loopback)) in [Table::NftIp, Table::NftIp6]
        .into_iter()
        .zip(before.has_no_node_ports)
        .zip([("ip", "127.0.0.0/8"), ("ip6", "::1")])
    {
        let Some(lines) = expected.get_mut(&table).filter(|_| is_closed) else {
            continue;
        };
        let everywhere = format!("{family} daddr != {loopback} ");
        let nowhere = format!("{family} daddr @nodeport-ips ");
        for line in lines.iter_mut() {
            *line = line.replace(&format!("fib daddr type local {everywhere}"), &everywhere);
            *line = line.replace(&everywhere, &nowhere);
        }
        let version = if family == "ip" { 4 } else { 6 };
        let set = [
            "{".to_owned(),
            format!("type ipv{version}_addr"),
            "comment \"IPs that accept NodePort traffic\"".to_owned(),
        ];
        // Canonical lines are sorted by kind and name (`chain`, `map`, `set`), so sets come last.
        lines.extend(set.map(|line| format!("set nodeport-ips {line}")));
    }
}

/// Removes the prefix length: `10.96.0.1/32` → `10.96.0.1`.
pub(crate) fn without_prefix(line: &str) -> String {
    line.split('/').next().unwrap_or_default().to_owned()
}

/// Address, port and protocol of a virtual server, from a line of `ipvsadm -Sn`.
struct Server<'a> {
    address: &'a str,
    port: &'a str,
    protocol: &'static str,
}

impl<'a> Server<'a> {
    /// Parses a line of `ipvsadm -Sn`. Returns `None` for a virtual server with a firewall mark.
    fn of(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(1);
        let protocol = match words.next()? {
            "-t" => "tcp",
            "-u" => "udp",
            "--sctp-service" => "sctp",
            _ => return None,
        };
        let (address, port) = words.next()?.rsplit_once(':')?;
        Some(Self {
            address: address.trim_matches(['[', ']']),
            port,
            protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split('\n').map(str::to_owned).collect()
    }

    #[test]
    fn virtual_servers_of_other_programs_are_expected_to_survive() {
        let server = |at: &str| format!("-A -t {at} -s rr\n-a -t {at} -r 10.9.9.9:80 -m -w 1\n");
        let wanted = server("10.96.0.10:80");
        let before = InitialState {
            dumps: Dumps::from([
                (
                    Table::IpvsadmSave,
                    [
                        &*server("9.9.9.9:9"),
                        &*server("[fd09::9]:9"),
                        "-A -f 7 -s rr\n",
                        &*server("10.96.0.10:80"),
                        &*server("10.0.0.1:80"),
                        &*server("10.0.0.2:80"),
                        &*server("192.168.99.10:30080"),
                        &*server("192.168.99.10:80"),
                    ]
                    .concat(),
                ),
                (Table::KubeIpvs0Addresses, "10.0.0.1/32\n".into()),
                (
                    Table::IpsetSave,
                    "add KUBE-LOAD-BALANCER 10.0.0.2,tcp:80\nadd KUBE-NODE-PORT-TCP 30080\n".into(),
                ),
            ]),
            node: ["192.168.99.10".to_owned()].into(),
            ..InitialState::default()
        };
        let found = ours(
            &before,
            Expected::from([(Table::IpvsadmSave, Table::IpvsadmSave.clean(&wanted))]),
        );
        let wanted = [
            &*wanted,
            &*server("9.9.9.9:9"),
            &*server("[fd09::9]:9"),
            "-A -f 7 -s rr\n",
            &*server("192.168.99.10:80"),
        ];
        assert_eq!(
            found.get(&Table::IpvsadmSave).unwrap(),
            &Table::IpvsadmSave.clean(&wanted.concat())
        );
    }

    #[test]
    fn node_addresses_are_not_expected_on_kube_ipvs0() {
        let before = InitialState {
            node: ["10.96.0.10".to_owned()].into(),
            ..InitialState::default()
        };
        let expected = Expected::from([
            (
                Table::KubeIpvs0Addresses,
                lines("10.96.0.1/32\n10.96.0.10/32"),
            ),
            (
                Table::IpsetSave,
                lines(
                    "add KUBE-CLUSTER-IP 10.96.0.10,tcp:80\nadd KUBE-IPVS-IPS 10.96.0.1\nadd KUBE-IPVS-IPS 10.96.0.10",
                ),
            ),
        ]);
        let found = ours(&before, expected);
        assert_eq!(
            found.get(&Table::KubeIpvs0Addresses).unwrap(),
            &lines("10.96.0.1/32")
        );
        assert_eq!(
            found.get(&Table::IpsetSave).unwrap(),
            &lines("add KUBE-CLUSTER-IP 10.96.0.10,tcp:80\nadd KUBE-IPVS-IPS 10.96.0.1")
        );
    }

    #[test]
    fn no_node_ports_are_expected_in_an_ip_family_without_nodeport_addresses() {
        let lines_of = |ports: &str| {
            lines(&format!(
                "table ip6 kube-proxy {{\nchain a {{\nchain a {ports} meta l4proto . th dport vmap @service-nodeports"
            ))
        };
        let everywhere = lines_of("fib daddr type local ip6 daddr != ::1");
        let expected = |closed| {
            let before = InitialState {
                has_no_node_ports: closed,
                ..InitialState::default()
            };
            let expected = Expected::from([(Table::NftIp6, everywhere.clone())]);
            ours(&before, expected).remove(&Table::NftIp6).unwrap()
        };
        assert_eq!(expected([true, false]), everywhere);
        let closed = expected([false, true]);
        assert_eq!(closed.len(), everywhere.len() + 3);
        assert!(closed.starts_with(&lines_of("ip6 daddr @nodeport-ips")));
    }
}
