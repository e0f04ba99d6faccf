//! Removes the links that modes created for service addresses. A service address on such a link is
//! evidence that a mode created the virtual server with this address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use footprint::{Footprint, Link};
use inet::IpFamily;
use netlink_batch::Error;
use route_netlink::{
    Address, AddressGeneration, Batch, LinkState, LocalRoute, Reply, Rtnetlink, outward_source,
};

use crate::evidence::Evidence;
use crate::report::{Cleanup, LOST, Manner, Need, NeededAddresses, many};

/// Links that modes created, with their addresses and routes, in one IP family.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<LinkEntries>);

/// A link that a mode created, with its addresses and routes.
#[derive(Debug)]
pub(crate) struct LinkEntries {
    name: &'static str,
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<LocalRoute>,
}

impl Links {
    /// Reads the links of these modes. Adds the addresses of all links of the node to `evidence`,
    /// separately for links of modes and for other links.
    pub(crate) fn read(
        modes: &[&'static Footprint],
        family: IpFamily,
        evidence: &mut Evidence,
    ) -> Result<Self, Error> {
        let mut rtnetlink = Rtnetlink::open()?;
        let addresses = rtnetlink.addresses(family.into())?;
        let (mut links, mut indexes) = (Self::default(), BTreeSet::new());
        for link in modes.iter().filter_map(|mode| mode.link) {
            let Some(found) = rtnetlink.link(link.name)? else {
                continue;
            };
            indexes.insert(found.index);
            let is_on_it = |address: &&Address| address.link == found.index;
            let of_protocol = rtnetlink.local_routes(family.into(), link.route_protocol)?;
            let routes = of_protocol.into_iter();
            let held = LinkEntries {
                name: link.name,
                addresses: addresses.iter().filter(is_on_it).copied().collect(),
                routes: routes.filter(|route| route.link == found.index).collect(),
            };
            evidence.bound.extend(held.service_addresses());
            links.0.push(held);
        }
        let elsewhere = addresses
            .iter()
            .filter(|held| !indexes.contains(&held.link));
        let elsewhere = elsewhere.map(|held| held.address);
        evidence
            .elsewhere
            .extend(elsewhere.filter(|ip| counts(*ip)));
        Ok(links)
    }

    pub(crate) fn on(&self, link: &Link) -> Option<&LinkEntries> {
        self.0.iter().find(|held| held.name == link.name)
    }
}

impl LinkEntries {
    /// Returns the service addresses of the link, both interface addresses and local routes.
    fn service_addresses(&self) -> BTreeSet<IpAddr> {
        let addresses = self.addresses.iter().map(|held| held.address);
        let routes = self.routes.iter().filter(|route| route.is_host());
        let routes = routes.map(|route| route.address);
        addresses.chain(routes).filter(|ip| counts(*ip)).collect()
    }
}

/// Links of one IP family, and the evidence that decides whether a link may be removed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FamilyEvidence<'a> {
    pub(crate) family: IpFamily,
    pub(crate) links: &'a Links,
    pub(crate) evidence: &'a Evidence,
    pub(crate) need: Need,
}

/// Removes a link with its addresses and routes. Keeps the link while its addresses are needed as
/// evidence, and keeps the addresses of draining virtual servers.
pub(crate) fn remove(
    link: &Link,
    families: &[FamilyEvidence<'_>],
    manner: Manner,
    cleanup: &mut Cleanup,
) {
    let name = link.name;
    let need = families.iter().map(|of| of.need).max();
    if need == Some(Need::Draining) {
        let needed = NeededAddresses::of(&cleanup.draining);
        for of in families {
            if let Err(error) = keep(link, of, &needed, cleanup) {
                cleanup.leave(of.family, &format_args!("the addresses on {name}"), &error);
            }
        }
        return;
    }
    let is_free = need != Some(Need::Unknown);
    let removed = Rtnetlink::open().and_then(|mut rtnetlink| {
        let kind = rtnetlink.link(name)?.map(|link| link.kind);
        if kind.as_deref() == Some("dummy") && is_free && manner != Manner::Count {
            rtnetlink.delete_link(name)?;
        }
        Ok(kind)
    });
    match removed {
        Ok(None) => {}
        Ok(Some(_)) if !is_free => cleanup.left.push(format!(
            "link {name} stays: its addresses prove which virtual servers are kube-proxy's; \
             remove the other leftovers, then \
             run this again"
        )),
        Ok(Some(kind)) if kind == "dummy" => {
            let held = families.iter().filter_map(|family| family.links.on(link));
            let bound = held.map(|held| held.service_addresses().len()).sum();
            let bound = many(bound, "service address");
            cleanup.removed.push(format!("link {name} with {bound}"));
        }
        Ok(Some(kind)) => {
            cleanup.left.push(format!(
                "link {name} is no dummy that a kube-proxy has made, but {}: it stays; remove it \
                 by hand (`ip link del \
                 {name}`) if nobody needs it",
                if kind.is_empty() { "hardware" } else { &kind }
            ));
            for family in families {
                unbind(link, family, manner, cleanup);
            }
        }
        Err(error) => cleanup
            .left
            .push(format!("link {name} cannot be removed: {error}")),
    }
}

/// Turns the addresses of draining virtual servers into routes, and removes all other addresses.
///
/// These routes have an address of the node as their source. So new connections from the node do
/// not use a service address as source, and service addresses do not count as addresses of the
/// node.
fn keep(
    link: &Link,
    of: &FamilyEvidence<'_>,
    needed: &NeededAddresses,
    cleanup: &mut Cleanup,
) -> Result<(), Error> {
    let Some(held) = of.links.on(link) else {
        return Ok(());
    };
    let mut rtnetlink = Rtnetlink::open()?;
    let Some(found) = rtnetlink.link(link.name)? else {
        return Ok(());
    };
    let mut bound = held.service_addresses();
    bound.retain(|ip| needed.contains(*ip));
    // A route for a whole range may cover a draining address. Such an address gets its own route
    // before the range's route is removed.
    let ranges = || held.routes.iter().filter(|route| !route.is_host());
    let is_within = |ip: &&IpAddr| ranges().any(|range| range.contains(**ip));
    bound.extend(needed.named.iter().filter(is_within));
    if !bound.is_empty() {
        prepare_for_routes(&mut rtnetlink, link, of.family, found.index)?;
    }
    let source = outward_source(of.family.into(), &of.evidence.elsewhere);
    let mut batch = Batch::new();
    let mut requested = Vec::new();
    for address in bound {
        let route = LocalRoute {
            source,
            ..LocalRoute::host(found.index, address, link.route_protocol)
        };
        // Removes an old route with a different source first. Once the new route exists, the
        // removal of the old route could remove the new one instead.
        let mut hosts = held.routes.iter().filter(|route| route.is_host());
        let before = hosts.find(|held| held.address == address);
        if let Some(before) = before.filter(|before| before.source != source) {
            before.push_del(&mut batch);
            requested.push(address);
        }
        route.push_new(&mut batch);
        requested.push(address);
    }
    let replies = rtnetlink.execute(&batch)?;
    let mut without_route = BTreeSet::new();
    for (address, reply) in requested.into_iter().zip(&replies) {
        match reply {
            Reply::Done => {}
            Reply::Refused(refusal) if [libc::EEXIST, libc::ESRCH].contains(&refusal.errno) => {}
            Reply::Refused(refusal) => {
                let what = format!("cannot bind {address} to {} as a route", link.name);
                let next = format_args!("{refusal}; it stays an address until its connections end");
                cleanup.leave(of.family, &what, &next);
                without_route.insert(address);
            }
            Reply::Unknown => {
                without_route.insert(address);
            }
        }
    }
    let mut batch = Batch::new();
    let may_unbind = |address: &&Address| {
        let is_own = found.kind == "dummy" || of.evidence.said_bound.contains(&address.address);
        is_own && counts(address.address) && !without_route.contains(&address.address)
    };
    for address in held.addresses.iter().filter(may_unbind) {
        address.push_del(&mut batch);
    }
    let is_unused = |route: &&LocalRoute| {
        let is_needed = if route.is_host() {
            needed.contains(route.address)
        } else {
            needed.is_whole(of.family) || without_route.iter().any(|ip| route.contains(*ip))
        };
        counts(route.address) && !is_needed
    };
    for route in held.routes.iter().filter(is_unused) {
        route.push_del(&mut batch);
    }
    // Ignores refusals, because another program may have removed an address already. The cleanup
    // after the drain reports addresses that are still on the link.
    rtnetlink.execute(&batch)?;
    Ok(())
}

/// Prepares a link for local routes. IPv4 routes need an address on the link. IPv6 routes need a
/// link that is up.
fn prepare_for_routes(
    rtnetlink: &mut Rtnetlink,
    link: &Link,
    family: IpFamily,
    index: u32,
) -> Result<(), Error> {
    if family == IpFamily::V6 {
        // If the kernel cannot turn off address generation, the link gets a link-local address,
        // which is harmless.
        drop(rtnetlink.set_address_generation(link.name, AddressGeneration::None));
        return rtnetlink.set_link_state(link.name, LinkState::Up);
    }
    if let Some(anchor) = link.anchor {
        let mut batch = Batch::new();
        Address::host(index, anchor).push_new(&mut batch);
        rtnetlink.execute(&batch)?;
    }
    Ok(())
}

/// Removes the routes of addresses whose last virtual server has finished draining.
pub(crate) fn release(
    links: impl Iterator<Item = Link>,
    ended: &BTreeSet<IpAddr>,
) -> Result<(), Error> {
    let mut rtnetlink = Rtnetlink::open()?;
    let mut batch = Batch::new();
    for link in links {
        let Some(found) = rtnetlink.link(link.name)? else {
            continue;
        };
        for family in IpFamily::ALL {
            let routes = rtnetlink.local_routes(family.into(), link.route_protocol)?;
            let is_ended = |route: &&LocalRoute| {
                route.link == found.index && route.is_host() && ended.contains(&route.address)
            };
            for route in routes.iter().filter(is_ended) {
                route.push_del(&mut batch);
            }
        }
    }
    rtnetlink.execute(&batch).map(drop)
}

/// Removes a mode's entries from a link that stays: the mode's routes, and the addresses that a set
/// lists as bound by the mode.
fn unbind(link: &Link, of: &FamilyEvidence<'_>, manner: Manner, cleanup: &mut Cleanup) {
    let (family, name) = (of.family, link.name);
    let Some(held) = of.links.on(link) else {
        return;
    };
    let (mut batch, mut doomed) = (Batch::new(), Vec::new());
    let said = &of.evidence.said_bound;
    for bound in held
        .addresses
        .iter()
        .filter(|held| said.contains(&held.address))
    {
        bound.push_del(&mut batch);
        doomed.push(bound.address);
    }
    let is_of_service = |route: &&LocalRoute| counts(route.address);
    for route in held.routes.iter().filter(is_of_service) {
        route.push_del(&mut batch);
        doomed.push(route.address);
    }
    // The anchor address only keeps the IPv4 routes on the link. It is no service address, so the
    // report does not count it.
    let is_anchor = |held: &&Address| Some(held.address) == link.anchor;
    if let Some(anchor) = held.addresses.iter().find(is_anchor) {
        anchor.push_del(&mut batch);
    }
    let replies = match manner {
        Manner::Remove | Manner::Drain => {
            Rtnetlink::open().and_then(|mut rtnetlink| rtnetlink.execute(&batch))
        }
        Manner::Count => Ok(doomed.iter().map(|_| Reply::Done).collect()),
    };
    let replies = match replies {
        Ok(replies) => replies,
        Err(error) => {
            return cleanup.leave(family, &format_args!("the addresses on {name}"), &error);
        }
    };
    let mut done = 0;
    for (address, reply) in doomed.iter().zip(&replies) {
        let what = format!("cannot unbind {address} from {name}");
        match reply {
            Reply::Done => done += 1,
            // The address, the route or the link no longer exists.
            Reply::Refused(refusal)
                if [libc::EADDRNOTAVAIL, libc::ESRCH, libc::ENODEV].contains(&refusal.errno) =>
            {
                done += 1;
            }
            Reply::Refused(refusal) => {
                let next = format_args!("{refusal}; try it with `ip address` by hand");
                cleanup.leave(family, &what, &next);
            }
            Reply::Unknown => cleanup.leave(family, &what, &LOST),
        }
    }
    if done > 0 {
        cleanup.remove(family, many(done, "service address"));
    }
}

/// Returns false for loopback and IPv6 link-local addresses, which the cleanup ignores.
pub(crate) fn counts(address: IpAddr) -> bool {
    let is_link_local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !(address.is_loopback() || is_link_local)
}
