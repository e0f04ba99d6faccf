//! Reads the state of a node's kernel: single entries while the benchmark waits, and the whole
//! state at the end.
//!
//! The benchmark does not rely on reports of the measured kube-proxy. While the kube-proxy works,
//! the benchmark looks up some entries by their keys, with pauses that keep the kube-proxy from
//! slowing down. For single changes, it looks them up without pauses, at the lowest scheduler
//! priority. Once the kernel has all these entries, the benchmark compares the whole state with the
//! expected state.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result, ensure};
use ipset_netlink::{Entry, Ipset, Reason};
use ipvs_netlink::{DestinationEntry, Ipvs, ServiceKey};
use lab::Place;
use netlink_batch::{Batch, Reply};
use route_netlink::{Family, LocalRoute, Lookup, Rtnetlink};

use crate::nat::Nat;
use crate::nft::{self, Tables};
use crate::objects::{Objects, PORT};
use crate::rules::{Rules, Servers};
use crate::schema::{KernelDigest, Mode};

/// Set with the ClusterIP and port of each Service.
pub(crate) const CLUSTER_IP: &str = "KUBE-CLUSTER-IP";
pub(crate) const IPVS_IPS: &str = "KUBE-IPVS-IPS";
pub(crate) const LOOP_BACK: &str = "KUBE-LOOP-BACK";

/// Protocol number of the routes that our daemon adds (`--ipvs-vip-mode=route`).
const OWN_ROUTES: u8 = 107;

/// Maximum number of differences in the text of an outcome.
const NAMED: usize = 5;

/// State of a node's kernel, either read from the kernel, or expected because of the objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Destinations that get new connections, by virtual server (IPVS) or by Service address (other
    /// modes).
    pub(crate) servers: Servers,
    /// IPVS mode: members of the set of ClusterIPs and ports.
    pub(crate) cluster_ip: BTreeSet<SocketAddrV4>,
    /// IPVS mode: members of the set of Service addresses.
    pub(crate) ipvs_ips: BTreeSet<Ipv4Addr>,
    /// IPVS mode: members of the set of endpoints on this node.
    pub(crate) loop_back: BTreeSet<SocketAddrV4>,
    /// IPVS mode: Service addresses that are local to this node, through `kube-ipvs0` or through a
    /// route.
    pub(crate) local: BTreeSet<Ipv4Addr>,
}

impl Snapshot {
    /// Returns the state that a kube-proxy in this mode must write for these objects.
    pub(crate) fn wanted(objects: &Objects, mode: Mode) -> Self {
        let mut wanted = Self::default();
        for service in 0..objects.services() {
            let address = Objects::address(service);
            let at = SocketAddrV4::new(address, PORT);
            let endpoints = objects.endpoints(service);
            wanted
                .servers
                .insert(at, endpoints.iter().map(|endpoint| endpoint.at).collect());
            if mode == Mode::Ipvs {
                wanted.cluster_ip.insert(at);
                wanted.ipvs_ips.insert(address);
                wanted.local.insert(address);
                let local = endpoints.iter().filter(|endpoint| endpoint.is_local);
                wanted.loop_back.extend(local.map(|endpoint| endpoint.at));
            }
        }
        wanted
    }

    /// Returns a summary of this state: the numbers of its entries, and a digest. `rules` is the
    /// number of iptables rules.
    pub(crate) fn state(&self, rules: u64) -> KernelDigest {
        let mut digest = DefaultHasher::new();
        (&self.servers, &self.cluster_ip, &self.ipvs_ips).hash(&mut digest);
        (&self.loop_back, &self.local).hash(&mut digest);
        let members = self.cluster_ip.len() + self.ipvs_ips.len() + self.loop_back.len();
        KernelDigest {
            servers: self.servers.len() as u64,
            destinations: self.servers.values().map(|reals| reals.len() as u64).sum(),
            members: members as u64,
            addresses: self.local.len() as u64,
            rules,
            digest: format!("{:016x}", digest.finish()),
        }
    }

    /// Returns the Services of `wanted` that this state lacks, or that have other destinations or
    /// no local address.
    pub(crate) fn lacking(&self, wanted: &Self) -> BTreeSet<Ipv4Addr> {
        let servers = wanted
            .servers
            .iter()
            .filter(|(at, reals)| self.servers.get(at) != Some(reals));
        let addresses = wanted.local.difference(&self.local).copied();
        servers.map(|(at, _)| *at.ip()).chain(addresses).collect()
    }

    /// Returns the Services of this state that `wanted` does not have.
    pub(crate) fn excess(&self, wanted: &Self) -> impl Iterator<Item = Ipv4Addr> {
        let is_excess = |at: &&SocketAddrV4| !wanted.servers.contains_key(at);
        self.servers.keys().filter(is_excess).map(|at| *at.ip())
    }

    /// Returns true if this state has everything in `wanted`. It may have more.
    pub(crate) fn holds(&self, wanted: &Self) -> bool {
        self.lacking(wanted).is_empty()
            && self.cluster_ip.is_superset(&wanted.cluster_ip)
            && self.ipvs_ips.is_superset(&wanted.ipvs_ips)
            && self.loop_back.is_superset(&wanted.loop_back)
    }

    /// Returns a description of the first differences, or an empty string if both states are equal.
    pub(crate) fn differences(&self, wanted: &Self) -> String {
        let mut text = String::new();
        for (at, reals) in &wanted.servers {
            match self.servers.get(at) {
                None => _ = writeln!(text, "virtual server {at} is missing"),
                Some(found) if found != reals => {
                    let few =
                        |reals: &BTreeSet<_>| reals.iter().take(3).copied().collect::<Vec<_>>();
                    _ = writeln!(
                        text,
                        "{at} has {} destinations {:?}.. instead of {} {:?}..",
                        found.len(),
                        few(found),
                        reals.len(),
                        few(reals)
                    );
                }
                Some(_) => {}
            }
        }
        for at in self
            .servers
            .keys()
            .filter(|at| !wanted.servers.contains_key(at))
        {
            _ = writeln!(text, "virtual server {at} is too many");
        }
        compare(&mut text, CLUSTER_IP, &self.cluster_ip, &wanted.cluster_ip);
        compare(&mut text, IPVS_IPS, &self.ipvs_ips, &wanted.ipvs_ips);
        compare(&mut text, LOOP_BACK, &self.loop_back, &wanted.loop_back);
        compare(&mut text, "local addresses", &self.local, &wanted.local);
        let count = text.lines().count();
        let mut first: String = text.lines().take(NAMED).collect::<Vec<_>>().join("; ");
        if count > NAMED {
            _ = write!(first, "; and {} more", count - NAMED);
        }
        first
    }
}

fn compare<T: Ord + std::fmt::Display>(
    text: &mut String,
    what: &str,
    found: &BTreeSet<T>,
    wanted: &BTreeSet<T>,
) {
    for one in wanted.difference(found) {
        _ = writeln!(text, "{what}: {one} is missing");
    }
    for one in found.difference(wanted) {
        _ = writeln!(text, "{what}: {one} is too many");
    }
}

/// Kernel subsystem in which IPVS mode has its sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetsIn {
    /// Sets are ipsets, as in upstream's kube-proxy.
    Ipset,
    /// Sets are in the nf_tables table that also has the rules.
    Nftables,
}

/// Sockets for reading a node's kernel. Only those that the mode needs are open, because the kernel
/// may lack other features.
pub(crate) struct Kernel {
    place: Place,
    mode: Mode,
    ipvs: Option<Ipvs>,
    ipset: Option<Ipset>,
    route: Rtnetlink,
    nat: Option<Nat>,
    tables: Option<Tables>,
}

impl Kernel {
    /// Opens the sockets for this mode in the network namespace of `place`.
    pub(crate) fn open(place: &Place, mode: Mode, sets: SetsIn) -> Result<Self> {
        let is_ipvs = mode == Mode::Ipvs;
        let has_ipset = is_ipvs && sets == SetsIn::Ipset;
        let has_tables = mode == Mode::Nftables || (is_ipvs && sets == SetsIn::Nftables);
        place.enter(|| {
            let open = || {
                Ok(Self {
                    place: place.clone(),
                    mode,
                    ipvs: is_ipvs.then(Ipvs::open).transpose()?,
                    ipset: has_ipset.then(Ipset::open).transpose()?,
                    route: Rtnetlink::open()?,
                    nat: (!has_tables).then(Nat::open).transpose()?,
                    tables: has_tables.then(Tables::open).transpose()?,
                })
            };
            Ok(open())
        })?
    }

    // ---- Single entries ----

    /// Returns true if new connections to a Service reach exactly the endpoints in `wanted`.
    pub(crate) fn serves(
        &mut self,
        address: Ipv4Addr,
        wanted: &BTreeSet<SocketAddrV4>,
    ) -> Result<bool> {
        match self.mode {
            Mode::Ipvs => Ok(self.reals(address)? == *wanted && self.is_local(address)?),
            Mode::Iptables => {
                let (table, _) = self.nat()?.read()?;
                let targets = Rules::new(&table).targets(SocketAddrV4::new(address, PORT))?;
                Ok(targets == *wanted)
            }
            Mode::Nftables => self
                .tables()?
                .serves(SocketAddrV4::new(address, PORT), wanted),
            // In userspace mode, nat rules lead to a port of the daemon. They tell whether a
            // Service has endpoints, but not which.
            Mode::Userspace => {
                let (table, _) = self.nat()?.read()?;
                let targets = Rules::new(&table).targets(SocketAddrV4::new(address, PORT))?;
                Ok(targets.is_empty() == wanted.is_empty())
            }
        }
    }

    /// Returns the destinations of a virtual server that get new connections, or none if it does
    /// not exist.
    pub(crate) fn reals(&mut self, address: Ipv4Addr) -> Result<BTreeSet<SocketAddrV4>> {
        self.weighty(&ServiceKey::new(
            ipvs_netlink::Protocol::TCP,
            address.into(),
            PORT,
        ))
    }

    fn weighty(&mut self, key: &ServiceKey) -> Result<BTreeSet<SocketAddrV4>> {
        let entries = self.ipvs()?.destinations(key)?;
        let weighty = entries.iter().filter(|entry| entry.destination.weight > 0);
        Ok(weighty.filter_map(at).collect())
    }

    /// Returns true if packets to this address are delivered locally on the node.
    pub(crate) fn is_local(&mut self, address: Ipv4Addr) -> Result<bool> {
        let asked = Lookup {
            destination: address.into(),
            source: None,
            link: None,
            mark: 0,
        };
        Ok(self.route.way(&asked)?.is_ok_and(|way| way.is_local()))
    }

    /// Returns the number of members of an ipset, or of elements of an nftables set. Returns 0 if
    /// the set does not exist.
    pub(crate) fn members(&mut self, set: &str) -> Result<u64> {
        if let Some(tables) = &mut self.tables {
            return Ok(tables.members(nft::SHIM, set)?.len() as u64);
        }
        match self.ipset()?.header(set) {
            Err(ipset_netlink::Error::Refused {
                reason: Reason::NoSuchSet,
                ..
            }) => Ok(0),
            header => Ok(header?.entries.unwrap_or(0).into()),
        }
    }

    /// Returns the sockets for the nat tables. Fails in a mode without these tables.
    pub(crate) fn nat(&self) -> Result<&Nat> {
        self.nat
            .as_ref()
            .context("this mode has no nat table of iptables")
    }

    fn ipvs(&mut self) -> Result<&mut Ipvs> {
        self.ipvs
            .as_mut()
            .context("this mode has no virtual servers")
    }

    fn ipset(&mut self) -> Result<&mut Ipset> {
        self.ipset.as_mut().context("this mode has no ipsets")
    }

    fn tables(&mut self) -> Result<&mut Tables> {
        self.tables
            .as_mut()
            .context("this mode has no table of nftables")
    }

    /// Returns the number of rules in the IPv4 nat table of iptables, including the final rule of
    /// each chain. Returns 0 in a mode without this table.
    pub(crate) fn rules(&self) -> Result<u64> {
        self.nat
            .as_ref()
            .map_or(Ok(0), |nat| Ok(nat.length()?.rules))
    }

    /// Returns false if IPv4 has rules or tables, but IPv6 has none yet.
    pub(crate) fn is_in_both(&mut self) -> Result<bool> {
        match (&self.nat, &mut self.tables) {
            (Some(nat), _) => nat.is_in_both(),
            (None, Some(tables)) if self.mode == Mode::Ipvs => tables.is_in_both(nft::SHIM),
            (None, Some(tables)) => tables.is_in_both(nft::TABLE),
            (None, None) => Ok(true),
        }
    }

    /// Removes the elements that lead to a Service from the table of nftables mode.
    pub(crate) fn take_out(&mut self, address: Ipv4Addr) -> Result<()> {
        self.tables()?.take_out(SocketAddrV4::new(address, PORT))
    }

    /// Sends the IPVS messages that the function `write` adds to a batch. Fails if the kernel
    /// refuses one.
    pub(crate) fn write_servers(
        &mut self,
        write: impl FnOnce(ipvs_netlink::Family, &mut Batch),
    ) -> Result<()> {
        let mut batch = Batch::new();
        let ipvs = self.ipvs()?;
        write(ipvs.family(), &mut batch);
        let replies = ipvs.execute(&batch)?;
        let refused = replies.iter().find(|reply| **reply != Reply::Done);
        ensure!(refused.is_none(), "IPVS refuses: {refused:?}");
        Ok(())
    }

    // ---- Whole state ----

    /// Returns all virtual servers with their destinations.
    ///
    /// Reads `/proc/net/ip_vs`, because netlink would need a request for each virtual server. Linux
    /// 6.1 omits entries there if other network namespaces have virtual servers as well. In this
    /// case, sends the netlink requests.
    pub(crate) fn servers(&mut self) -> Result<Servers> {
        let text = self
            .place
            .enter(|| fs::read_to_string("/proc/thread-self/net/ip_vs"))
            .context("cannot read /proc/net/ip_vs")?;
        let listed = virtual_servers(&text)?;
        let all = self.ipvs()?.services()?;
        if listed.len() == all.len() {
            return Ok(listed);
        }
        let mut servers = Servers::new();
        for entry in all {
            let key = entry.service.key;
            let ServiceKey::Address {
                address: IpAddr::V4(address),
                port,
                ..
            } = key
            else {
                anyhow::bail!("virtual server {key} is not of the objects");
            };
            servers.insert(SocketAddrV4::new(address, port), self.weighty(&key)?);
        }
        Ok(servers)
    }

    /// Reads the whole state. Copies parts from `wanted` that are expensive to read, or that the
    /// kernel does not know.
    pub(crate) fn snapshot(&mut self, wanted: &Snapshot) -> Result<Snapshot> {
        let servers = match self.mode {
            Mode::Ipvs => return self.virtual_state(wanted),
            Mode::Iptables => Rules::new(&self.nat()?.read()?.0).servers()?,
            Mode::Nftables => self.tables()?.servers(&wanted.servers)?,
            Mode::Userspace => {
                let mut servers = Rules::new(&self.nat()?.read()?.0).servers()?;
                for (at, targets) in &mut servers {
                    // In userspace mode, the rules lead a Service to one port of the daemon. The
                    // kernel does not know its endpoints, so this copies the expected ones.
                    if let (1, Some(wanted)) = (targets.len(), wanted.servers.get(at)) {
                        targets.clone_from(wanted);
                    }
                }
                servers
            }
        };
        Ok(Snapshot {
            servers,
            ..Snapshot::default()
        })
    }

    /// Reads the whole state of IPVS mode.
    fn virtual_state(&mut self, wanted: &Snapshot) -> Result<Snapshot> {
        let mut snapshot = Snapshot {
            servers: self.servers()?,
            local: self.local_addresses(&wanted.local)?,
            ..Snapshot::default()
        };
        if let Some(tables) = &mut self.tables {
            let mut of = |set| tables.members(nft::SHIM, set);
            for member in of(CLUSTER_IP)? {
                snapshot.cluster_ip.extend(nft::address(&member.key));
            }
            for member in of(IPVS_IPS)? {
                let key: Option<[u8; 4]> = member.key.as_slice().try_into().ok();
                snapshot.ipvs_ips.extend(key.map(Ipv4Addr::from));
            }
            for member in of(LOOP_BACK)? {
                snapshot.loop_back.extend(nft::address(&member.key));
            }
            return Ok(snapshot);
        }
        for entry in self.list(CLUSTER_IP)? {
            if let Entry::IpPort {
                ip: IpAddr::V4(ip),
                port,
                ..
            } = entry
            {
                snapshot.cluster_ip.insert(SocketAddrV4::new(ip, port));
            }
        }
        for entry in self.list(IPVS_IPS)? {
            if let Entry::Ip(IpAddr::V4(ip)) = entry {
                snapshot.ipvs_ips.insert(ip);
            }
        }
        for entry in self.list(LOOP_BACK)? {
            if let Entry::IpPortIp {
                ip: IpAddr::V4(ip),
                port,
                ..
            } = entry
            {
                snapshot.loop_back.insert(SocketAddrV4::new(ip, port));
            }
        }
        Ok(snapshot)
    }

    /// Returns the Service addresses that are local to this node: those with a host route, and
    /// those of `wanted` that a wider local route covers.
    fn local_addresses(&mut self, wanted: &BTreeSet<Ipv4Addr>) -> Result<BTreeSet<Ipv4Addr>> {
        let mut found = BTreeSet::new();
        for protocol in [LocalRoute::KERNEL, OWN_ROUTES] {
            for route in self.route.local_routes(Family::Inet, protocol)? {
                let IpAddr::V4(first) = route.address else {
                    continue;
                };
                let hosts = u32::MAX.checked_shr(route.prefix.into()).unwrap_or(0);
                found.extend(wanted.range(first..=Ipv4Addr::from(u32::from(first) | hosts)));
                if route.is_host() {
                    found.insert(first);
                }
            }
        }
        found.retain(|address| is_service(*address));
        Ok(found)
    }

    fn list(&mut self, set: &str) -> Result<Vec<Entry>> {
        match self.ipset()?.list(set) {
            Err(ipset_netlink::Error::Refused {
                reason: Reason::NoSuchSet,
                ..
            }) => Ok(Vec::new()),
            list => Ok(list?.entries),
        }
    }
}

fn at(entry: &DestinationEntry) -> Option<SocketAddrV4> {
    let key = entry.destination.key;
    match key.address {
        IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, key.port)),
        IpAddr::V6(_) => None,
    }
}

/// Returns true if the address is in the range of Service addresses, 10.96.0.0/12.
fn is_service(address: Ipv4Addr) -> bool {
    let [a, b, ..] = address.octets();
    a == 10 && b & 0xf0 == 96
}

/// Parses `/proc/net/ip_vs`. Skips destinations of weight 0, which get no new connections.
fn virtual_servers(text: &str) -> Result<Servers> {
    let mut servers = Servers::new();
    let mut current: Option<&mut BTreeSet<SocketAddrV4>> = None;
    for line in text.lines().skip(3) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("TCP") => {
                let at = words.next().and_then(hex);
                let at = at.with_context(|| format!("/proc/net/ip_vs: {line:?}"))?;
                current = Some(servers.entry(at).or_default());
            }
            Some("->") => {
                let at = words.next().and_then(hex);
                let at = at.with_context(|| format!("/proc/net/ip_vs: {line:?}"))?;
                let is_weighty = words.nth(1) != Some("0");
                if let (Some(reals), true) = (current.as_mut(), is_weighty) {
                    reals.insert(at);
                }
            }
            _ => anyhow::bail!("/proc/net/ip_vs: {line:?} is not of the objects"),
        }
    }
    Ok(servers)
}

/// Parses an address and a port in hexadecimal, such as `0A600100:0050`.
fn hex(text: &str) -> Option<SocketAddrV4> {
    let (address, port) = text.split_once(':')?;
    Some(SocketAddrV4::new(
        Ipv4Addr::from_bits(u32::from_str_radix(address, 16).ok()?),
        u16::from_str_radix(port, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Size;

    const PROC: &str = "IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600100:0050 rr 
  -> 0A800100:1F90      Masq    1      0          0         
  -> 0A800101:1F90      Masq    0      0          0         
TCP  0A600101:0050 rr 
";

    #[test]
    fn the_kernels_ipvs_table_is_parsed() {
        let servers = virtual_servers(PROC).unwrap();
        let reals: Vec<_> = servers[&"10.96.1.0:80".parse().unwrap()].iter().collect();
        assert_eq!(reals, [&"10.128.1.0:8080".parse().unwrap()]);
        assert!(servers[&"10.96.1.1:80".parse().unwrap()].is_empty());
    }

    #[test]
    fn differences_between_kernel_states_are_listed() {
        let objects = Objects::new(Size {
            services: 3,
            endpoints: 2,
        });
        let wanted = Snapshot::wanted(&objects, Mode::Ipvs);
        assert_eq!(wanted.differences(&wanted), "");
        let mut found = wanted.clone();
        found.local.pop_first();
        found.servers.pop_last();
        let text = found.differences(&wanted);
        assert!(
            text.contains("virtual server 10.96.1.2:80 is missing"),
            "{text}"
        );
        assert!(
            text.contains("local addresses: 10.96.1.0 is missing"),
            "{text}"
        );
        assert_eq!(found.lacking(&wanted).len(), 2);
        assert_ne!(found.state(0).digest, wanted.state(0).digest);
    }
}
