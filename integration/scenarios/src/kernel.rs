//! Kernel state of a network namespace, as an operator's tools print it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use lab::Place;

/// Virtual servers by protocol, address and port (`TCP 10.96.0.10:80`), or by firewall mark (`FWM
/// 7`).
pub type VirtualServers = BTreeMap<String, VirtualServer>;

/// An IPVS virtual server with its destinations.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct VirtualServer {
    /// Scheduler and flags of the virtual server: `rr`, `rr -p 10800`.
    pub properties: String,
    /// Weights of the destinations by address and port, such as `10.244.1.10:8080`.
    pub reals: BTreeMap<String, u32>,
}

impl VirtualServer {
    /// Returns each destination with its weight, such as `10.244.1.10:8080*1`.
    pub fn weights(&self) -> Vec<String> {
        self.reals
            .iter()
            .map(|(at, weight)| format!("{at}*{weight}"))
            .collect()
    }
}

impl VirtualServer {
    /// Returns true if exactly the destinations `reals` have weight 1, and all other destinations
    /// have weight 0.
    pub(crate) fn serves(&self, reals: &[String]) -> bool {
        let weighty = self.reals.iter().filter(|(_, weight)| **weight != 0);
        let wanted: BTreeMap<_, _> = reals.iter().map(|real| (real, &1)).collect();
        weighty.collect::<BTreeMap<_, _>>() == wanted
    }
}

/// Returns the virtual servers of the network namespace, from the output of `ipvsadm -Sn`.
pub fn virtual_servers(place: &Place) -> Result<VirtualServers> {
    let mut servers = VirtualServers::new();
    for line in place.read(["ipvsadm", "-Sn"])?.lines() {
        let mut words = line.split_whitespace();
        let (Some(verb), Some(protocol), Some(at)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let protocol = match protocol {
            "-t" => "TCP",
            "-u" => "UDP",
            "-f" => "FWM",
            _ => "SCTP",
        };
        let server = servers.entry(format!("{protocol} {at}")).or_default();
        let rest: Vec<&str> = words.collect();
        match (verb, rest.as_slice()) {
            ("-a", ["-r", real, "-m", "-w", weight]) => {
                server.reals.insert((*real).to_owned(), weight.parse()?);
            }
            ("-A", ["-s", properties @ ..]) => server.properties = properties.join(" "),
            _ => anyhow::bail!("ipvsadm -Sn says what is not understood here: {line}"),
        }
    }
    Ok(servers)
}

/// Returns the members of an ipset. Returns no members if the set does not exist.
pub fn members(place: &Place, set: &str) -> Result<BTreeSet<String>> {
    let saved = place.run(["ipset", "save", set])?.stdout;
    let members = saved
        .lines()
        .filter_map(|line| line.strip_prefix("add ")?.split_once(' '));
    Ok(members
        .map(|(_, member)| member.trim().to_owned())
        .collect())
}

/// Returns each address with its device, such as `kube-ipvs0 10.96.0.10/32`. An address that is
/// local only by a route becomes `kube-ipvs0 local 10.96.0.10`.
pub(crate) fn addresses(place: &Place) -> Result<BTreeSet<String>> {
    let lines = place.read(["ip", "-oneline", "address", "show"])?;
    let address = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        Some(format!("{} {}", words.next()?, words.nth(1)?))
    };
    let routes = "route show table local proto 107";
    let routes = place.read(["sh", "-c", &format!("ip -4 {routes}; ip -6 {routes}")])?;
    let route = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let address = words.next()?;
        Some(format!("{} local {address}", words.nth(1)?))
    };
    let routes = routes.lines().filter_map(route);
    Ok(lines.lines().filter_map(address).chain(routes).collect())
}

/// Returns all kernel state that a proxy may change, one item per line:
///
/// - virtual servers and sets;
/// - rules of both families and backends, without counters;
/// - links and addresses.
///
/// Sorts the lines if their order has no meaning.
pub(crate) fn state(place: &Place) -> Result<String> {
    let part = |script: &str| place.read(["sh", "-c", script]);
    let rules = part(
        "for c in iptables-legacy ip6tables-legacy iptables-nft ip6tables-nft; do $c-save 2>/dev/null | sed \"s/^/$c /\"; done",
    )?;
    let rules = rules.lines().filter(|line| !line.contains(" #"));
    // Cuts the packet counters of chains, such as ` [7:420]`.
    let rules = rules.map(|line| line.split(" [").next().unwrap_or(line).to_owned());
    // Cuts the hash seed of ipsets, which differs after each creation of a set.
    let rest = part("ipvsadm -Sn; ipset save | sed 's/ initval 0x[0-9a-f]*//'")?;
    let mut lines: Vec<String> = rest
        .lines()
        .map(str::to_owned)
        .chain(addresses(place)?)
        .collect();
    lines.sort();
    lines.extend(rules);
    Ok(lines.join("\n"))
}
