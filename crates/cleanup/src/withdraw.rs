//! Removes entries that redirect packets for the API server to a Service. Such entries exist if a
//! Service names an address of the API server. After their removal, a starting process reaches the
//! API server again and receives the corrected Service.
//!
//! ```text
//!   virtual server ─▶ address on the link ─▶ set members, elements of tables, rules
//! ```
//!
//! All other entries of Services stay. The mode compares them with the wanted state once it knows
//! the Services. Two kinds of addresses also stay:
//!
//! * cluster IPs: the API server has assigned them, and clients may reach the API server through
//!   them;
//! * addresses for which the kernel's state does not show whether they are cluster IPs.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use footprint::{Footprint, Footprints, Says, nft};
use inet::{IpFamily, Protocol};
use ipset_netlink::{Entry as Member, IpProtocol, Ipset, Key, Outcome, Reason};
use iptables::{Entry, RuleLine, Table, entries, restore_text};
use ipvs_netlink::{Ipvs, ServiceKey};
use netlink_batch::{Batch, Reply};
use nftables_netlink::{
    Change, Concatenation, DataType, Element, Family, Name, Nftables, Set, Transaction,
};
use route_netlink::Rtnetlink;

use crate::report::{Cleanup, many};
use crate::servers::LIST;

/// Suffix of the comment on an iptables rule for a cluster IP.
const CLUSTER_IP: &str = " cluster IP";
/// Chain of the filter table in which all rules are for cluster IPs.
const CLUSTER_IPS_CHAIN: (Table, &str) = (Table::Filter, "KUBE-SERVICES");
const TCP: Protocol = Protocol::Tcp;

/// Removes the entries of these modes that redirect TCP packets to one of these addresses. Works in
/// the network namespace of the calling thread. Keeps virtual servers with an address in
/// `excluded`. Loads no kernel module.
pub fn withdraw(modes: Footprints, addresses: &[SocketAddr], excluded: &[ipnet::IpNet]) -> Cleanup {
    let mut cleanup = Cleanup::default();
    for family in IpFamily::ALL {
        let of_family = addresses.iter().copied();
        let of_family: Vec<SocketAddr> = of_family
            .filter(|at| IpFamily::of(at.ip()) == family)
            .collect();
        if of_family.is_empty() {
            continue;
        }
        let mut stores = Stores::open(modes, family, &mut cleanup);
        for at in &of_family {
            if let Err(error) = stores.withdraw(modes, *at, excluded, &mut cleanup) {
                cleanup.leave(family, &format_args!("what leads {at} elsewhere"), &error);
            }
        }
        withdraw_rules(modes, family, &of_family, &mut cleanup);
    }
    cleanup
}

type Failure = Box<dyn std::error::Error>;

/// Access to the entries that redirect packets to endpoints, except iptables rules: virtual
/// servers, ipsets and nftables tables.
struct Stores {
    family: IpFamily,
    ipset: Option<Ipset>,
    tables: Vec<OwnTable>,
}

/// An nftables table of one mode, with its sets.
struct OwnTable {
    mode: &'static Footprint,
    name: &'static str,
    nftables: Nftables,
    sets: Vec<Set>,
}

/// Kind of an address and port, according to the sets of a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A cluster IP of a Service, with this port.
    ClusterIp,
    /// An external or load-balancer address of a Service, with this port.
    External,
    /// No Service, because no set contains the address and port.
    Nobodys,
}

impl Stores {
    fn open(modes: Footprints, family: IpFamily, cleanup: &mut Cleanup) -> Self {
        let ipset = match Ipset::open() {
            Ok(ipset) => Some(ipset),
            Err(ipset_netlink::Error::NoIpset) => None,
            Err(error) => {
                cleanup.leave(family, &"the ipsets cannot be read", &error);
                None
            }
        };
        let mut tables = Vec::new();
        for mode in modes {
            for name in mode.nft_tables {
                let opened = nft::open_with(family, name).and_then(|nftables| {
                    let Some(mut nftables) = nftables else {
                        return Ok(None);
                    };
                    let found = nftables.sets(Family::from(family), name)?.into_iter();
                    Ok(Some(OwnTable {
                        mode,
                        name,
                        sets: found.map(|found| found.set).collect(),
                        nftables,
                    }))
                });
                match opened {
                    Ok(table) => tables.extend(table),
                    Err(error) => cleanup.leave(family, &format_args!("table {name}"), &error),
                }
            }
        }
        Self {
            family,
            ipset,
            tables,
        }
    }

    /// Removes the entries that capture packets sent to this address and port.
    fn withdraw(
        &mut self,
        modes: Footprints,
        at: SocketAddr,
        excluded: &[ipnet::IpNet],
        cleanup: &mut Cleanup,
    ) -> Result<(), Failure> {
        let family = self.family;
        let servers = modes.iter().filter(|mode| mode.virtual_servers.is_some());
        for mode in servers {
            let role = self.role(mode, at)?;
            let is_excluded = excluded.iter().any(|net| net.contains(&at.ip()));
            if role == Role::External && !is_excluded && delete_server(at)? {
                cleanup.remove(family, format_args!("virtual server {at}/{TCP}"));
            }
            // While the address is on the link, the node accepts packets to every port of the
            // address. So the address must also leave the link.
            if role != Role::ClusterIp
                && self.has_no_cluster_ip(mode, at.ip())?
                && let Some(link) = unbind(mode, family, at.ip())?
            {
                cleanup.remove(family, format_args!("address {} of {link}", at.ip()));
            }
            if role == Role::External {
                let count = self.delete_members(mode, at)?;
                if count > 0 {
                    let what = many(count, "set member");
                    cleanup.remove(family, format_args!("{what} for {at}/{TCP}"));
                }
            }
        }
        for table in &mut self.tables {
            let count = table.delete(family, at)?;
            if count > 0 {
                let (what, name) = (many(count, "element"), table.name);
                cleanup.remove(
                    family,
                    format_args!("{what} for {at}/{TCP} in table {name}"),
                );
            }
        }
        Ok(())
    }

    /// Returns the kind of an address and port, according to the sets of a mode that uses virtual
    /// servers.
    fn role(&mut self, mode: &Footprint, at: SocketAddr) -> Result<Role, Failure> {
        let family = self.family;
        let cluster_ips = (mode.cluster_ips)(family);
        let mut role = Role::Nobodys;
        for set in (mode.sets)(family) {
            if set.says != Says::VirtualServers {
                continue;
            }
            let mut has = match &mut self.ipset {
                Some(ipset) => has_member(ipset, &set.name, at)?,
                None => false,
            };
            for table in self.tables.iter_mut().filter(|table| table.mode == mode) {
                has |= table.element(family, &set.name, &key_of(at))?.is_some();
            }
            if has && cluster_ips.as_ref() == Some(&set.name) {
                return Ok(Role::ClusterIp);
            }
            if has {
                role = Role::External;
            }
        }
        Ok(role)
    }

    /// Reports whether the address is certainly no cluster IP: this mode has a set of cluster IPs,
    /// and the set lacks the address.
    fn has_no_cluster_ip(&mut self, mode: &Footprint, ip: IpAddr) -> Result<bool, Failure> {
        let Some(name) = (mode.cluster_ips)(self.family) else {
            return Ok(false);
        };
        let mut is_known = false;
        match self.ipset.as_mut().map(|ipset| ipset.list(&name)) {
            Some(Ok(set)) => {
                is_known = true;
                let is_it =
                    |member: &Member| matches!(member, Member::IpPort { ip: of, .. } if *of == ip);
                if set.entries.iter().any(is_it) {
                    return Ok(false);
                }
            }
            None
            | Some(Err(ipset_netlink::Error::Refused {
                reason: Reason::NoSuchSet,
                ..
            })) => {}
            Some(Err(error)) => return Err(error.into()),
        }
        let address = Concatenation::new().address(ip).into_key();
        let tables = self.tables.iter_mut().filter(|table| table.mode == mode);
        for table in tables {
            if !table.sets.iter().any(|set| *set.name == *name) {
                continue;
            }
            is_known = true;
            let of = Family::from(self.family);
            let elements = table.nftables.elements(of, table.name, &name)?;
            if elements.iter().any(|one| one.key.starts_with(&address)) {
                return Ok(false);
            }
        }
        Ok(is_known)
    }

    /// Deletes an address and port from all ipsets of a mode except its set of cluster IPs. Returns
    /// the number of deleted members.
    fn delete_members(&mut self, mode: &Footprint, at: SocketAddr) -> Result<usize, Failure> {
        let Some(ipset) = &mut self.ipset else {
            return Ok(0);
        };
        let cluster_ips = (mode.cluster_ips)(self.family);
        let mut deleted = 0;
        for set in (mode.sets)(self.family) {
            if cluster_ips.as_ref() == Some(&set.name) || !has_member(ipset, &set.name, at)? {
                continue;
            }
            let member = Member::IpPort {
                ip: at.ip(),
                protocol: IpProtocol::TCP,
                port: at.port(),
            };
            // Deletes only from sets of type `hash:ip,port`. Members of sets with more fields have
            // no effect once this member is deleted.
            let outcomes = ipset.delete(&set.name, &[member])?;
            deleted += usize::from(outcomes == [Outcome::Done]);
        }
        Ok(deleted)
    }
}

/// Reports whether an ipset exists and contains this address and port.
fn has_member(ipset: &mut Ipset, name: &str, at: SocketAddr) -> Result<bool, Failure> {
    let key = Key {
        ip: Some(at.ip()),
        protocol: Some(IpProtocol::TCP),
        port: Some(at.port()),
        ip2: None,
    };
    match ipset.header(name) {
        Ok(header) if header.type_name == "hash:ip,port" => {}
        Ok(_)
        | Err(ipset_netlink::Error::Refused {
            reason: Reason::NoSuchSet,
            ..
        }) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    Ok(ipset.test(name, &key)?)
}

/// Deletes the virtual server at an address and port. Returns true if it existed.
fn delete_server(at: SocketAddr) -> Result<bool, Failure> {
    if !Path::new(LIST).exists() {
        return Ok(false);
    }
    let mut ipvs = Ipvs::open()?;
    let protocol = ipvs_netlink::Protocol(TCP.number());
    let key = ServiceKey::new(protocol, at.ip(), at.port());
    let mut batch = Batch::new();
    ipvs.family().del_service(&mut batch, &key);
    match ipvs.execute(&batch)?.first() {
        Some(Reply::Done) => Ok(true),
        Some(Reply::Refused(refusal)) if refusal.errno == libc::ESRCH => Ok(false),
        Some(Reply::Refused(refusal)) => Err(refusal.to_string().into()),
        Some(Reply::Unknown) | None => Err(crate::report::LOST.into()),
    }
}

/// Removes an address from the link of a mode, both as an interface address and as a route. Returns
/// the name of the link if it had the address.
fn unbind(mode: &Footprint, family: IpFamily, ip: IpAddr) -> Result<Option<&'static str>, Failure> {
    let Some(link) = mode.link else {
        return Ok(None);
    };
    let mut rtnetlink = Rtnetlink::open()?;
    let Some(found) = rtnetlink.link(link.name)? else {
        return Ok(None);
    };
    let mut batch = Batch::new();
    let held = rtnetlink.addresses_of(found.index, family.into())?;
    for address in held.iter().filter(|held| held.address == ip) {
        address.push_del(&mut batch);
    }
    let routes = rtnetlink.local_routes(family.into(), link.route_protocol)?;
    let is_it = |route: &&route_netlink::LocalRoute| {
        route.link == found.index && route.is_host() && route.address == ip
    };
    for route in routes.iter().filter(is_it) {
        route.push_del(&mut batch);
    }
    let replies = rtnetlink.execute(&batch)?;
    for reply in &replies {
        match reply {
            Reply::Done => {}
            Reply::Refused(refusal)
                if [libc::EADDRNOTAVAIL, libc::ESRCH].contains(&refusal.errno) => {}
            Reply::Refused(refusal) => return Err(refusal.to_string().into()),
            Reply::Unknown => return Err(crate::report::LOST.into()),
        }
    }
    Ok((!replies.is_empty()).then_some(link.name))
}

/// Returns the key of the nftables set element for an address and a TCP port.
fn key_of(at: SocketAddr) -> nftables_netlink::Bytes {
    let key = Concatenation::new().address(at.ip());
    key.protocol(TCP.number()).port(at.port()).into_key()
}

impl OwnTable {
    fn element(
        &mut self,
        family: IpFamily,
        set: &str,
        key: &[u8],
    ) -> Result<Option<Element>, nftables_netlink::Error> {
        if !self.sets.iter().any(|known| *known.name == *set) {
            return Ok(None);
        }
        self.nftables.element(family.into(), self.name, set, key)
    }

    /// Deletes the elements that capture packets sent to an address and port, unless the address is
    /// a cluster IP. Returns the number of deleted elements.
    fn delete(&mut self, family: IpFamily, at: SocketAddr) -> Result<usize, Failure> {
        let address = Concatenation::new().address(at.ip());
        if let Some(cluster_ips) = (self.mode.cluster_ips)(family) {
            for key in [address.clone().into_key(), key_of(at)] {
                let is_its = |set: &&Set| *set.name == *cluster_ips && len(&set.key) == key.len();
                if self.sets.iter().any(|set| is_its(&set))
                    && self.element(family, &cluster_ips, &key)?.is_some()
                {
                    return Ok(0);
                }
            }
        }
        let mut doomed: Vec<(Name, Vec<Element>)> = Vec::new();
        for set in self.sets.clone() {
            let found = match set.key[..] {
                [_, DataType::InetProto, DataType::InetService] => {
                    let found = self.element(family, &set.name, &key_of(at))?;
                    found.into_iter().collect()
                }
                // A key of this map also has a number, which selects one of the Service's
                // endpoints.
                [DataType::Integer, _, DataType::InetService] if set.name.contains("tcp") => {
                    self.numbered(family, &set.name, at)?
                }
                _ => Vec::new(),
            };
            if !found.is_empty() {
                doomed.push((set.name, found));
            }
        }
        let count = doomed.iter().map(|(_, elements)| elements.len()).sum();
        if count > 0 {
            let changes = doomed.into_iter();
            let changes = changes.map(|(set, elements)| Change::DeleteElements(set, elements));
            let transaction = Transaction {
                family: family.into(),
                table: self.name.into(),
                changes: changes.collect(),
            };
            self.nftables.commit(&transaction, None)?;
        }
        Ok(count)
    }

    fn numbered(
        &mut self,
        family: IpFamily,
        set: &str,
        at: SocketAddr,
    ) -> Result<Vec<Element>, Failure> {
        let mut all = Vec::new();
        for number in 0_u32.. {
            let key = Concatenation::new().part(&number.to_ne_bytes());
            let key = key.address(at.ip()).port(at.port()).into_key();
            match self.element(family, set, &key)? {
                Some(found) => all.push(found),
                None => break,
            }
        }
        Ok(all)
    }
}

/// Returns the length in bytes of an nftables set key with parts of these types.
fn len(types: &[DataType]) -> usize {
    types
        .iter()
        .map(|part| part.len().next_multiple_of(4))
        .sum()
}

/// Deletes the iptables rules that capture packets sent to one of these addresses.
fn withdraw_rules(
    modes: Footprints,
    family: IpFamily,
    addresses: &[SocketAddr],
    cleanup: &mut Cleanup,
) {
    if iptables::exists(family).is_err() {
        return;
    }
    // Changing iptables rules needs the iptables programs.
    for iptables in crate::installed(cleanup) {
        // Reads directly from the kernel whether the IP family has iptables rules. If it has none,
        // no iptables program needs to run.
        if iptables.is_empty(family) {
            continue;
        }
        let of = format!("iptables ({})", iptables.backend());
        let deleted = iptables.save(family).and_then(|saved| {
            let rules = leading(modes, addresses, &saved);
            if !rules.is_empty() {
                iptables.restore_among(saved.len(), family, &deletion(&rules))?;
            }
            Ok(rules.len())
        });
        match deleted {
            Ok(0) => {}
            Ok(count) => {
                let at: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                let (rules, at) = (many(count, "rule"), at.join(", "));
                cleanup.remove(family, format_args!("{rules} of {of} for {at}/{TCP}"));
            }
            Err(error) if error.is_unsupported() => {}
            Err(error) => cleanup.leave(family, &format_args!("the rules of {of}"), &error),
        }
    }
}

/// Returns the rules of these modes that capture packets sent to one of these addresses, each with
/// its table.
fn leading<'a>(
    modes: Footprints,
    addresses: &[SocketAddr],
    saved: &'a str,
) -> Vec<(Table, &'a str)> {
    let rules = entries(saved).filter_map(|(table, entry)| match entry {
        Entry::Rule(rule) => Some((table, rule)),
        Entry::Chain(_) => None,
    });
    let is_own = |table, chain| modes.iter().any(|mode| mode.has_chain(table, chain));
    let doomed = rules.filter(|(table, rule)| {
        is_own(*table, rule.chain)
            && (*table, rule.chain) != CLUSTER_IPS_CHAIN
            && destination(rule).is_some_and(|at| addresses.contains(&at))
            && !rule
                .comment()
                .is_some_and(|text| text.ends_with(CLUSTER_IP))
    });
    doomed.map(|(table, rule)| (table, rule.text)).collect()
}

/// Returns the address and TCP port that a rule matches, if it matches exactly one address and one
/// port.
fn destination(rule: &RuleLine<'_>) -> Option<SocketAddr> {
    let (mut ip, mut port, mut is_tcp, mut is_negated) = (None, None, false, false);
    let mut options = rule.options();
    while let Some(option) = options.next() {
        match &*option {
            "!" => is_negated = true,
            "-d" if !is_negated => ip = host(&options.next()?),
            "-p" if !is_negated => is_tcp = options.next()? == "tcp",
            "--dport" if !is_negated => port = options.next()?.parse().ok(),
            _ => is_negated = false,
        }
    }
    is_tcp.then_some(SocketAddr::new(ip?, port?))
}

/// Returns the address of a network that has only one address, such as `10.0.0.1/32`.
fn host(net: &str) -> Option<IpAddr> {
    let (ip, len) = net.split_once('/').unwrap_or((net, ""));
    matches!(len, "" | "32" | "128").then(|| ip.parse().ok())?
}

/// Returns input for `iptables-restore` that deletes these rules.
fn deletion(rules: &[(Table, &str)]) -> String {
    restore_text(|restore| {
        for part in rules.chunk_by(|(one, _), (two, _)| one == two) {
            if let Some((table, _)) = part.first() {
                restore.begin(*table)?;
                for (_, rule) in part {
                    restore.delete(rule)?;
                }
                restore.commit()?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:OTHER - [0:0]
-A KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment \"default/a has no endpoints\" -m tcp --dport 443 -j REJECT
-A KUBE-EXTERNAL-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment \"default/b has no endpoints\" -m tcp --dport 443 -j REJECT
-A KUBE-PROXY-FIREWALL -d 192.0.2.1/32 -p tcp -m comment --comment \"default/c traffic not accepted by KUBE-FW-C\" -m tcp --dport 443 -j DROP
-A OTHER -d 192.0.2.1/32 -p tcp -m tcp --dport 443 -j DROP
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-EXT-C - [0:0]
-A KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment \"default/d cluster IP\" -m tcp --dport 443 -j KUBE-SVC-D
-A KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment \"default/c loadbalancer IP\" -m tcp --dport 443 -j KUBE-EXT-C
-A KUBE-SERVICES -d 192.0.2.1/32 -p udp -m comment --comment \"default/c loadbalancer IP\" -m udp --dport 443 -j KUBE-EXT-C
-A KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment \"default/c external IP\" -m tcp --dport 80 -j KUBE-EXT-C
-A KUBE-SERVICES -d 192.0.2.0/24 -p tcp -m comment --comment \"default/c external IP\" -m tcp --dport 443 -j KUBE-EXT-C
-A KUBE-SERVICES ! -d 192.0.2.1/32 -p tcp -m tcp --dport 443 -j KUBE-EXT-C
COMMIT
";

    #[test]
    fn only_rules_that_redirect_the_given_addresses_are_removed() {
        let modes: Footprints = &[&proxy_iptables::FOOTPRINT];
        let found = leading(modes, &["192.0.2.1:443".parse().unwrap()], SAVED);
        let commands: Vec<&str> = found
            .iter()
            .map(|(_, rule)| rule.split('"').nth(1).unwrap())
            .collect();
        assert_eq!(
            commands,
            [
                "default/b has no endpoints",
                "default/c traffic not accepted by KUBE-FW-C",
                "default/c loadbalancer IP"
            ]
        );
        let text = deletion(&found);
        assert!(text.starts_with("*filter\n-D KUBE-EXTERNAL-SERVICES -d 192.0.2.1/32"));
        assert_eq!(text.matches("COMMIT").count(), 2, "{text}");
    }
}
