//! The link `kube-ipvs0`, the service addresses on it, and this node's other addresses, over
//! rtnetlink.
//!
//! - The link is a dummy that stays down: its addresses are still local to this node, but the node
//!   does not announce them to other hosts. Like upstream, the proxy accepts another type of link
//!   with this name.
//! - The kernel makes an address local by a route of type local. With [`VipMode::Route`], the proxy
//!   adds only that route, in the same routing table. With [`VipMode::Range`], one route makes a
//!   whole network local. The protocol number distinguishes our routes from the kernel's.
//! - IPv6 routes need a link that is up. The kernel removes a link's IPv4 routes with its last IPv4
//!   address, so one IPv4 address ([`ANCHOR`]) always stays.
//! - The kernel acknowledges an IPv6 address before it creates the address's route. The proxy
//!   treats the address as bound only once the route exists. Until then, the address is tentative,
//!   and the kernel does not use it as a source. (Replies to such packets would not arrive.)
//! - With very many addresses, the link gets one more local route ([`LANDMARK`]), which spares the
//!   kernel a long search for each incoming packet.
//!
//! Source: `net/ipv4/devinet.c`, `fib_semantics.c`, `fib_frontend.c`, `net/ipv6/addrconf.c`,
//! `route.c`.

mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;
use proxy::IpFamily;
use route_netlink::{
    Address, AddressGeneration, Batch, Error, Family, KernelRoutes, LinkState, LocalRoute, Reply,
    Rtnetlink, outward_source,
};

use self::outcome::{judged, outcome};
use super::reason::{refused, said, unsent};
use crate::config::VipMode;
use crate::footprint::{ANCHOR, LINK, ROUTE_PROTOCOL};
use crate::kernel::FoundAddresses;
use crate::plan::{Op, Outcome};
use crate::ranges::RangeSource;

/// Local route that speeds up the source check of incoming packets (`fib_validate_source`, with
/// `rp_filter` 0 and no foreign rules). Without it, the check walks through a 256th of all
/// addresses. After the first such route, the kernel looks the source up in the routes
/// (`fib_has_custom_local_routes`) as long as the network namespace exists. The address is local
/// anyway, like all of 127.0.0.0/8. The route is on the link, so the usual dump shows it, and it
/// disappears with the link.
const LANDMARK: Ipv4Addr = Ipv4Addr::new(127, 107, 0, 2);

/// Number of addresses from which the proxy adds [`LANDMARK`]. With 2,000 addresses, the search is
/// cheaper; with 5,000, both cost the same; with 10,000, the route is cheaper (docs/operating.md).
const LANDMARK_FROM: usize = 4_096;

/// Number of IPv6 addresses that the kernel binds within some hundredths of a second. The time
/// grows with the square of the number (`netlink-batch/examples/address_cost.rs`).
const SOON_BOUND_ADDRESSES: usize = 1_000;

/// Time without a new route after which the proxy stops waiting for the kernel's routes.
const ROUTED_WITHIN: Duration = Duration::from_secs(2);

/// Access to the links, addresses and routes of one IP family.
#[derive(Debug)]
pub(super) struct Addresses {
    rtnetlink: Rtnetlink,
    family: IpFamily,
    /// Way in which service addresses become local: as addresses, routes or ranges.
    pub(super) vip_mode: VipMode,
    /// True if the node's own packets to service addresses must have a node address as source.
    pub(super) has_node_source: bool,
    /// Source address that our routes should have, or `None` for no source address.
    route_source: Option<IpAddr>,
    /// Source addresses of our host routes that differ from `route_source`, by destination. An
    /// entry stays until the proxy replaces or removes the route.
    of_other_source: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Ranges whose route has another source address than `route_source`.
    ranges_of_other_source: BTreeSet<IpNet>,
    /// Addresses on the link that another program added with a shorter prefix. The request to
    /// remove one must contain its prefix length.
    foreign_prefixes: BTreeMap<IpAddr, u8>,
    /// True if the last dump found [`ANCHOR`] on the link.
    is_anchored: bool,
    /// Number of addresses on the link, from the last dump and later writes.
    bound: usize,
    landmark: Landmark,
    /// True if the proxy could not create or configure the link. All writes of addresses then fail.
    is_link_refused: bool,
}

/// State of [`LANDMARK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Landmark {
    Missing,
    There,
    /// The kernel refused the route, and the log has said so.
    Refused,
}

/// IPv6 addresses of the link: the number of service addresses, and the link-local addresses.
#[derive(Default)]
struct OnLink {
    of_services: usize,
    /// Link-local addresses, which the kernel assigned to the link.
    own: Vec<Address>,
}

impl Addresses {
    pub(super) fn open(family: IpFamily, vip_mode: VipMode) -> Result<Self, Error> {
        Ok(Self {
            rtnetlink: Rtnetlink::open()?,
            family,
            vip_mode,
            has_node_source: false,
            route_source: None,
            of_other_source: BTreeMap::new(),
            ranges_of_other_source: BTreeSet::new(),
            foreign_prefixes: BTreeMap::new(),
            is_anchored: false,
            bound: 0,
            landmark: Landmark::Missing,
            is_link_refused: false,
        })
    }

    pub(super) fn sent(&self) -> u32 {
        self.rtnetlink.sent()
    }

    pub(super) fn dump(&mut self) -> Result<FoundAddresses, Error> {
        self.rtnetlink = Rtnetlink::open()?;
        let link = self.rtnetlink.link(LINK)?;
        let index = link.as_ref().map(|link| link.index);
        let mut found = FoundAddresses::default();
        self.foreign_prefixes.clear();
        self.is_anchored = false;
        let mut has_own_address = false;
        for held in self.rtnetlink.addresses(self.family.into())? {
            let is_on_link = Some(held.link) == index;
            self.is_anchored |= is_on_link && held.address == ANCHOR;
            has_own_address |= is_on_link && is_link_local(held.address);
            if !counts(held.address) {
                continue;
            }
            if !is_on_link {
                found.interface_addresses.insert(held.address);
                if self.vip_mode == VipMode::Range {
                    let networks = &mut found.networks.of_interfaces;
                    networks.extend(network(held.address, held.prefix));
                }
                continue;
            }
            if held != Address::host(held.link, held.address) {
                self.foreign_prefixes.insert(held.address, held.prefix);
            }
            found.bound.insert(held.address);
        }
        if self.vip_mode == VipMode::Range {
            let routes = self.rtnetlink.main_routes(self.family.into())?.into_iter();
            let others = routes.filter(|route| route.link.is_none() || route.link != index);
            let others = others.filter_map(|route| network(route.address, route.prefix));
            found.networks.routed = others.collect();
        }
        self.choose_source(&found.interface_addresses);
        if let Some(link) = link {
            found.has_link = match (self.vip_mode.uses_routes(), self.family) {
                (false, _) if link.state == LinkState::Down => true,
                // Setting the link down removes IPv6 service addresses, which only the IPv6 worker
                // binds again. So the IPv4 worker leaves the link up if it has any.
                (false, IpFamily::V4) => {
                    let ipv6 = self.ipv6_on(link.index)?;
                    ipv6.own.is_empty() || ipv6.of_services > 0
                }
                (false, IpFamily::V6) => !has_own_address,
                (true, IpFamily::V4) => self.is_anchored,
                (true, IpFamily::V6) => link.state == LinkState::Up,
            };
            self.sort_routes(link.index, &mut found)?;
        }
        self.bound = found.bound.len();
        let has_landmark = found.bound_otherwise.remove(&LANDMARK.into());
        self.landmark = match self.landmark {
            _ if has_landmark => Landmark::There,
            Landmark::Refused => Landmark::Refused,
            _ => Landmark::Missing,
        };
        if self.vip_mode.uses_routes() {
            std::mem::swap(&mut found.bound, &mut found.bound_otherwise);
            for address in self.of_other_source.keys() {
                if *address != IpAddr::V4(LANDMARK) {
                    found.bound.remove(address);
                    found.bound_otherwise.insert(*address);
                }
            }
        }
        Ok(found)
    }

    /// Chooses the source address of our routes, without sending a packet: the address that the
    /// kernel would choose for packets to other hosts if no service address were local.
    fn choose_source(&mut self, own: &BTreeSet<IpAddr>) {
        let source = || outward_source(self.family.into(), own);
        self.route_source = self.has_node_source.then(source).flatten();
    }

    /// Reads our routes into `found`: host routes as single addresses, all others as ranges.
    fn sort_routes(&mut self, link: u32, found: &mut FoundAddresses) -> Result<(), Error> {
        self.of_other_source.clear();
        self.ranges_of_other_source.clear();
        for route in self.routes(link, ROUTE_PROTOCOL)? {
            let has_source = route.source == self.route_source;
            if route.is_host() {
                found.bound_otherwise.insert(route.address);
                if !has_source {
                    self.of_other_source.insert(route.address, route.source);
                }
            } else if let Some(net) = network(route.address, route.prefix) {
                let source = if has_source {
                    RangeSource::Current
                } else {
                    self.ranges_of_other_source.insert(net);
                    RangeSource::Former
                };
                found.ranges.insert(net, source);
            }
        }
        Ok(())
    }

    /// Returns the link's local routes with this protocol number.
    fn routes(&mut self, link: u32, protocol: u8) -> Result<Vec<LocalRoute>, Error> {
        let mut routes = self.rtnetlink.local_routes(self.family.into(), protocol)?;
        routes.retain(|route| route.link == link);
        Ok(routes)
    }

    /// Returns the route that makes a network local. With upstream's semantics, it has no source
    /// address. The kernel then chooses the source of the node's own packets as if the link had the
    /// destination as an address: in IPv4, the destination itself.
    fn route(&self, link: u32, destination: IpNet) -> LocalRoute {
        LocalRoute {
            link,
            address: destination.network(),
            prefix: destination.prefix_len(),
            protocol: ROUTE_PROTOCOL,
            source: self.route_source,
        }
    }

    /// Waits until all IPv6 addresses on the link have their routes. Ends after a short timeout if
    /// the kernel never creates a route (`dadfailed`).
    fn await_all_routes(&mut self, link: u32) -> Result<(), Error> {
        let subscription = KernelRoutes::subscribe(self.bound)?;
        let mut missing = self.dump()?.bound;
        for route in self.routes(link, LocalRoute::KERNEL)? {
            missing.remove(&route.address);
        }
        subscription.wait(&mut self.rtnetlink, &mut missing, ROUTED_WITHIN)
    }

    /// Waits until new IPv6 addresses have their routes. Until then, the node forwards packets to
    /// these addresses, unless another mode's rules still handle them.
    fn await_routes(&mut self, subscription: &KernelRoutes, mut missing: BTreeSet<IpAddr>) {
        let waited = subscription.wait(&mut self.rtnetlink, &mut missing, ROUTED_WITHIN);
        let reason = match waited {
            Ok(()) if missing.is_empty() => return,
            Ok(()) => format!("none within {ROUTED_WITHIN:?}"),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            addresses = missing.len(),
            first = ?missing.first(),
            "service addresses on kube-ipvs0 may have no local route yet ({reason}): see `ip -6 address show dev kube-ipvs0`"
        );
    }

    /// Creates the link if it is missing, and prepares it for addresses or routes.
    pub(super) fn create_link(&mut self) -> Outcome {
        let mut outcome = self.try_create_link();
        if outcome == Outcome::Done {
            outcome = match (self.vip_mode.uses_routes(), self.family) {
                (false, _) => judged(self.set_link_down(), |refusal| {
                    refused(said(refusal, "try `ip link set kube-ipvs0 down` by hand"))
                }),
                (true, IpFamily::V4) => self.anchor(),
                (true, IpFamily::V6) => judged(self.set_link_up(), |refusal| {
                    refused(said(refusal, "try `ip link set kube-ipvs0 up` by hand"))
                }),
            };
        }
        self.is_link_refused = outcome != Outcome::Done;
        outcome
    }

    fn try_create_link(&mut self) -> Outcome {
        judged(self.rtnetlink.create_dummy(LINK), |refusal| {
            match refusal.errno {
                libc::EEXIST => Outcome::Done,
                libc::EOPNOTSUPP => refused(said(
                    refusal,
                    "the kernel has no dummy links: run `modprobe dummy` on the host (CONFIG_DUMMY)",
                )),
                _ => refused(said(
                    refusal,
                    "try `ip link add kube-ipvs0 type dummy` by hand",
                )),
            }
        })
    }

    fn anchor(&mut self) -> Outcome {
        let index = match self.rtnetlink.link(LINK) {
            Ok(Some(link)) => link.index,
            Ok(None) => return self.without_link(&Op::CreateLink),
            Err(error) => return unsent(&error),
        };
        let mut batch = Batch::new();
        Address::host(index, ANCHOR).push_new(&mut batch);
        match self.last_of(&batch) {
            Ok(reply) => outcome(&Op::BindAddress(ANCHOR), reply),
            Err(error) => unsent(&error),
        }
    }

    fn set_link_up(&mut self) -> Result<(), Error> {
        self.go_without_own_address();
        self.rtnetlink.set_link_state(LINK, LinkState::Up)
    }

    /// Sets the link down if it is up. Addresses on it stay local.
    ///
    /// - A link that is up gets a link-local IPv6 address, and takes part in neighbour discovery.
    /// - A link that is set down loses its IPv6 addresses, and the proxy must bind them again. If
    ///   that would take too long, the link stays up and loses only its link-local address.
    fn set_link_down(&mut self) -> Result<(), Error> {
        let link = self.rtnetlink.link(LINK)?;
        let Some(link) = link.filter(|link| link.state == LinkState::Up) else {
            return Ok(());
        };
        let ipv6 = self.ipv6_on(link.index)?;
        if ipv6.own.is_empty() {
            // Leaves the link up: an earlier run probably used routes, which the kernel removes
            // when the link is set down.
            return Ok(());
        }
        if ipv6.of_services <= SOON_BOUND_ADDRESSES {
            return self.rtnetlink.set_link_state(LINK, LinkState::Down);
        }
        self.go_without_own_address();
        let mut batch = Batch::new();
        for own in ipv6.own {
            own.push_del(&mut batch);
        }
        match self.last_of(&batch)? {
            Reply::Done => Ok(()),
            Reply::Refused(refusal) => Err(refusal.into()),
            Reply::Unknown => Err(Error::LostReply),
        }
    }

    /// Makes the kernel assign no link-local address when the link is set up. A kernel without this
    /// option assigns one, which is harmless.
    fn go_without_own_address(&mut self) {
        let none = AddressGeneration::None;
        drop(self.rtnetlink.set_address_generation(LINK, none));
    }

    /// Returns the link's IPv6 addresses: link-local addresses, and the number of others.
    fn ipv6_on(&mut self, link: u32) -> Result<OnLink, Error> {
        let addresses = self.rtnetlink.addresses_of(link, Family::Inet6)?;
        let is_own = |held: &Address| is_link_local(held.address);
        let (own, of_services): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_own);
        Ok(OnLink {
            of_services: of_services.len(),
            own,
        })
    }

    /// Sends a batch, and returns the kernel's reply to its last message.
    fn last_of(&mut self, batch: &Batch) -> Result<Reply, Error> {
        let last = self.rtnetlink.execute(batch)?.pop();
        Ok(last.unwrap_or(Reply::Unknown))
    }

    /// Executes writes of addresses and ranges, and returns their outcomes.
    pub(super) fn apply(&mut self, run: &[Op]) -> Vec<Outcome> {
        let link = match self.rtnetlink.link(LINK) {
            Ok(Some(link)) => link,
            Ok(None) => return run.iter().map(|op| self.without_link(op)).collect(),
            Err(error) => return run.iter().map(|_| unsent(&error)).collect(),
        };
        let index = link.index;
        let is_route = self.vip_mode.uses_routes();
        let is_of_routes = |op: &Op| matches!(op, Op::UnbindOtherwise(_) | Op::UnbindRange(_));
        let gives_up_routes = !is_route && run.iter().any(is_of_routes);
        if gives_up_routes
            && self.family == IpFamily::V6
            && let Err(error) = self.await_all_routes(index)
        {
            return run.iter().map(|_| unsent(&error)).collect();
        }
        let is_bind = |op: &Op| matches!(op, Op::BindAddress(_));
        let awaits = !is_route && self.family == IpFamily::V6 && run.iter().any(is_bind);
        let subscription = awaits.then(|| KernelRoutes::subscribe(run.len()));
        let subscription = match subscription.transpose() {
            Ok(subscription) => subscription,
            Err(error) => return run.iter().map(|_| unsent(&error)).collect(),
        };
        let route = |address: IpAddr| self.route(index, address.into());
        let others = |address: &IpAddr| {
            let source = self.of_other_source.get(address)?;
            Some(LocalRoute {
                source: *source,
                ..route(*address)
            })
        };
        let mut batch = Batch::new();
        for op in run {
            match op {
                Op::BindAddress(address) if is_route && self.replaces_route(address) => {
                    route(*address).push_replace(&mut batch)
                }
                // Adds the route. If the link also has the address, the kernel already has another
                // route to it.
                Op::BindAddress(address) if is_route => route(*address).push_new(&mut batch),
                Op::UnbindAddress(address) if is_route => route(*address).push_del(&mut batch),
                Op::UnbindOtherwise(address) if !is_route => LocalRoute {
                    source: None,
                    ..route(*address)
                }
                .push_del(&mut batch),
                Op::UnbindOtherwise(address) if others(address).is_some() => {
                    // Names the source in the request: otherwise, the kernel would remove the first
                    // of two routes to this destination.
                    let Some(other) = others(address) else {
                        continue;
                    };
                    other.push_del(&mut batch)
                }
                Op::BindAddress(address) if link.resolves_neighbours => {
                    Address::host(index, *address).push_new(&mut batch)
                }
                Op::BindAddress(address) => {
                    Address::host(index, *address).push_new_tentative(&mut batch)
                }
                Op::BindRange(net) if self.ranges_of_other_source.contains(net) => {
                    self.route(index, *net).push_replace(&mut batch)
                }
                Op::BindRange(net) => self.route(index, *net).push_new(&mut batch),
                // Names no source, so that the kernel removes the route with any source.
                Op::UnbindRange(net) => LocalRoute {
                    source: None,
                    ..self.route(index, *net)
                }
                .push_del(&mut batch),
                Op::UnbindAddress(address) | Op::UnbindOtherwise(address) => {
                    let mut held = Address::host(index, *address);
                    if let Some(prefix) = self.foreign_prefixes.get(address) {
                        held.prefix = *prefix;
                    }
                    held.push_del(&mut batch)
                }
                _ => continue,
            };
        }
        if gives_up_routes && self.is_anchored {
            Address::host(index, ANCHOR).push_del(&mut batch);
        }
        self.count(run);
        let sets_landmark = self.wants_landmark();
        if sets_landmark {
            self.route(index, IpAddr::from(LANDMARK).into())
                .push_new(&mut batch);
        }
        match self.rtnetlink.execute(&batch) {
            Ok(mut replies) => {
                if sets_landmark {
                    self.landmark = landmark(replies.pop());
                }
                self.forget_replaced(run, &replies);
                if let Some(subscription) = subscription {
                    let new = run.iter().zip(&replies).filter_map(|(op, reply)| match op {
                        Op::BindAddress(address) if *reply == Reply::Done => Some(*address),
                        _ => None,
                    });
                    self.await_routes(&subscription, new.collect());
                }
                run.iter()
                    .zip(replies)
                    .map(|(op, reply)| outcome(op, reply))
                    .collect()
            }
            Err(error) => run.iter().map(|_| unsent(&error)).collect(),
        }
    }

    /// Returns true if a new route must replace an IPv6 route with another source (else `EEXIST`).
    fn replaces_route(&self, address: &IpAddr) -> bool {
        address.is_ipv6() && self.of_other_source.contains_key(address)
    }

    /// Removes replaced routes from `of_other_source`.
    fn forget_replaced(&mut self, run: &[Op], replies: &[Reply]) {
        for (op, reply) in run.iter().zip(replies) {
            if let (Op::BindAddress(address @ IpAddr::V6(_)), Reply::Done) = (op, reply) {
                self.of_other_source.remove(address);
            }
        }
    }

    /// Updates `bound` for these writes. After a refused write, the number is wrong until the next
    /// dump.
    fn count(&mut self, run: &[Op]) {
        let of = |wanted: fn(&Op) -> bool| run.iter().filter(|op| wanted(op)).count();
        self.bound += of(|op| matches!(op, Op::BindAddress(_)));
        self.bound = self
            .bound
            .saturating_sub(of(|op| matches!(op, Op::UnbindAddress(_))));
    }

    fn wants_landmark(&self) -> bool {
        (self.vip_mode, self.family, self.landmark)
            == (VipMode::Address, IpFamily::V4, Landmark::Missing)
            && self.bound >= LANDMARK_FROM
    }

    fn without_link(&self, op: &Op) -> Outcome {
        match op {
            Op::UnbindAddress(_) | Op::UnbindOtherwise(_) | Op::UnbindRange(_) => Outcome::Done,
            _ if self.is_link_refused => {
                refused("ENODEV, there is no link kube-ipvs0; it could not be made".to_owned())
            }
            // Another program has just removed the link. The next read of the link shows this.
            _ => Outcome::Unknown,
        }
    }
}

/// Converts the reply about [`LANDMARK`]. Without the route, packets are only slower.
fn landmark(reply: Option<Reply>) -> Landmark {
    match reply {
        Some(Reply::Refused(refusal)) if refusal.errno != libc::EEXIST => {
            tracing::warn!(
                "each packet to or through this node costs the more, the more addresses kube-ipvs0 has: no local route {LANDMARK} can be set there, which would spare it: {}",
                said(
                    &refusal,
                    "set net.ipv4.conf.all.rp_filter to 2, or use --ipvs-vip-mode=route, if that matters here",
                ),
            );
            Landmark::Refused
        }
        Some(Reply::Done | Reply::Refused(_)) => Landmark::There,
        Some(Reply::Unknown) | None => Landmark::Missing,
    }
}

/// Returns the network of this prefix length that contains the address.
fn network(address: IpAddr, prefix: u8) -> Option<IpNet> {
    Some(IpNet::new(address, prefix).ok()?.trunc())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Returns true if upstream treats this address as an address of the node.
fn counts(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use route_netlink::Refusal;

    use super::*;

    #[test]
    fn loopback_and_link_local_addresses_are_not_node_addresses() {
        let counted = ["10.0.0.1", "169.254.0.1", "fd00::1", "2001:db8::1"];
        assert!(counted.iter().all(|text| counts(text.parse().unwrap())));
        let passed = ["127.0.0.1", "127.1.2.3", "::1", "fe80::1"];
        assert!(!passed.iter().any(|text| counts(text.parse().unwrap())));
    }

    #[test]
    fn a_landmark_route_that_the_kernel_refused_is_not_retried() {
        let refusal = |errno| {
            Reply::Refused(Refusal {
                errno,
                message: None,
                request: Vec::new(),
            })
        };
        assert_eq!(landmark(Some(Reply::Done)), Landmark::There);
        assert_eq!(landmark(Some(refusal(libc::EEXIST))), Landmark::There);
        assert_eq!(landmark(Some(refusal(libc::EPERM))), Landmark::Refused);
        assert_eq!(landmark(Some(Reply::Unknown)), Landmark::Missing);
    }
}
