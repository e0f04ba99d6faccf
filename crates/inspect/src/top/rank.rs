//! Ranks Service ports and endpoints by their traffic, from two counter samples and the owners of
//! addresses. Does not read the kernel.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use proxy::{Protocol, ServicePortName};
use service_counters::{At, Count};
use view::{Rate, ServiceName, Top, TopEndpoint, TopPort};

use super::samples::{Endpoints, Span};
use crate::owners::Owner;
use crate::service::counters;

/// Number of busy addresses whose owners are looked up, for each Service port to list. A Service
/// port may have several addresses.
const ADDRESSES_EACH: usize = 4;

/// Measure of traffic by which Service ports and endpoints are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Connections,
    Packets,
    Bytes,
}

impl Sort {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "connections" => Some(Self::Connections),
            "packets" => Some(Self::Packets),
            "bytes" => Some(Self::Bytes),
            _ => None,
        }
    }

    fn of(self, rate: &Rate) -> f64 {
        match self {
            Self::Connections => rate.connections,
            Self::Packets => rate.packets_in + rate.packets_out,
            Self::Bytes => rate.bytes_in + rate.bytes_out,
        }
    }
}

/// Addresses with the most traffic. In userspace mode, which counts traffic by Service port, names
/// of Service ports.
#[derive(Debug, Default)]
pub(super) struct BusiestAddresses {
    pub(super) at: Vec<At>,
    pub(super) names: Vec<ServicePortName>,
}

/// Ranked Service ports, to which endpoints are added later.
#[derive(Debug, Default)]
pub(super) struct AddressRanking {
    pub(super) view: Top,
    /// Addresses of the ranked Service ports.
    pub(super) at: Vec<At>,
    /// Index of the Service port in the ranking, for each address.
    port_of: HashMap<At, usize>,
    /// Indices of the Service ports whose addresses already have a number of open connections.
    has_active: HashSet<usize>,
}

/// Returns the busiest addresses and, in userspace mode, the busiest Service ports. With only one
/// sample there are no rates, so open connections and totals decide.
pub(super) fn busiest(span: &Span, sort: Sort, limit: usize) -> BusiestAddresses {
    let at = span.now.addresses.iter().map(|(at, count)| {
        let before = span.before.as_ref().and_then(|look| look.addresses.get(at));
        (*at, rate(count, before, span.seconds()), count)
    });
    let names = span.now.ports.iter().map(|(name, count)| {
        let before = span.before.as_ref().and_then(|look| look.ports.get(name));
        (name.clone(), rate(count, before, span.seconds()), count)
    });
    BusiestAddresses {
        at: first(at.collect(), sort, limit * ADDRESSES_EACH),
        names: first(names.collect(), sort, limit),
    }
}

fn first<T: Ord>(mut all: Vec<(T, Rate, &Count)>, sort: Sort, most: usize) -> Vec<T> {
    let by = |one: &(T, Rate, &Count), other: &(T, Rate, &Count)| {
        order(sort, (&other.1, other.2), (&one.1, one.2)).then_with(|| one.0.cmp(&other.0))
    };
    if all.len() > most {
        all.select_nth_unstable_by(most, by);
        all.truncate(most);
    }
    all.into_iter().map(|(of, _, _)| of).collect()
}

/// Compares the rates, then the open connections, then the total numbers of connections.
fn order(sort: Sort, one: (&Rate, &Count), other: (&Rate, &Count)) -> std::cmp::Ordering {
    let rates = sort.of(one.0).total_cmp(&sort.of(other.0));
    let active = one.1.active.cmp(&other.1.active);
    rates
        .then(active)
        .then(one.1.connections.cmp(&other.1.connections))
}

/// Ranks the Service ports, the busiest first. `is_node` reports whether an address serves
/// NodePorts.
pub(super) fn assemble(
    span: &Span,
    owners: Vec<Owner>,
    is_node: &dyn Fn(IpAddr) -> bool,
    sort: Sort,
    limit: usize,
) -> AddressRanking {
    let seconds = span.seconds();
    let exact: HashSet<At> = owners.iter().flat_map(service_addresses).collect();
    let node_ports = by_node_port(span, &owners, &exact, is_node);
    let mut ports: Vec<_> = owners
        .into_iter()
        .map(|owner| {
            let on_node = owner.node_port.map(|port| (port, owner.name.protocol));
            let on_node = on_node.and_then(|key| node_ports.get(&key));
            let at = service_addresses(&owner).chain(on_node.into_iter().flatten().copied());
            let at: Vec<At> = at
                .filter(|at| span.now.addresses.contains_key(at))
                .collect();
            let (rate, count) = of_port(span, &owner.name, &at, seconds);
            (owner, at, rate, count)
        })
        // Omits Service ports that have never had any traffic.
        .filter(|(_, _, _, count)| count.connections > 0 || count.packets_in > Some(0))
        .collect();
    ports.sort_by(
        |(one_owner, _, one_rate, one), (other_owner, _, other_rate, other)| {
            order(sort, (other_rate, other), (one_rate, one))
                .then_with(|| one_owner.name.cmp(&other_owner.name))
        },
    );
    ports.truncate(limit);
    let mut ranked = AddressRanking::default();
    ranked.view.seconds = seconds;
    ranked.view.total = total(span, seconds);
    for (number, (owner, at, rate, count)) in ports.into_iter().enumerate() {
        ranked.port_of.extend(at.iter().map(|at| (*at, number)));
        ranked.at.extend(at);
        if count.active.is_some() {
            ranked.has_active.insert(number);
        }
        ranked.add_counted_by_port(span, &owner.name);
        ranked.view.ports.push(TopPort {
            service: service(&owner.name),
            port_name: owner.name.port.to_string(),
            protocol: owner.name.protocol.to_string(),
            port: owner.port,
            rate,
            counters: counters(&count),
        });
    }
    ranked
}

impl AddressRanking {
    /// Adds the endpoints of a Service port in userspace mode, which counts traffic by Service port
    /// instead of address.
    fn add_counted_by_port(&mut self, span: &Span, name: &ServicePortName) {
        for ((of, endpoint), count) in &span.now.port_endpoints {
            if of == name {
                let key = (of.clone(), *endpoint);
                let before = span
                    .before
                    .as_ref()
                    .and_then(|look| look.port_endpoints.get(&key));
                let rate = rate(count, before, span.seconds());
                self.view
                    .endpoints
                    .push(endpoint_of(name, *endpoint, rate, count));
            }
        }
    }

    /// Adds the endpoints of the ranked Service ports, sorts all endpoints, and keeps the first
    /// `limit`.
    pub(super) fn add_endpoints(&mut self, found: &Endpoints, sort: Sort, limit: usize) {
        // An endpoint has counters at each address of its Service port, so adds them up.
        let mut all: HashMap<(usize, SocketAddr), (Rate, Count)> = HashMap::new();
        for ((at, endpoint), counted) in found {
            let Some(port) = self.port_of.get(at) else {
                continue;
            };
            let (sum, count) = all.entry((*port, *endpoint)).or_default();
            count.add(&counted.now);
            // IPVS counts open connections by endpoint, so the number of a Service port is the sum
            // over its endpoints.
            if let (Some(active), Some(of)) = (counted.now.active, self.view.ports.get_mut(*port))
                && !self.has_active.contains(port)
            {
                let sum = of.counters.active.unwrap_or_default();
                of.counters.active = Some(sum.saturating_add(active));
            }
            if let Some((before, seconds)) = &counted.before {
                *sum = plus(sum, &rate(&counted.now, Some(before), *seconds));
            }
        }
        let ports = &self.view.ports;
        let more = all
            .into_iter()
            .filter_map(|((port, endpoint), (rate, count))| {
                let of = ports.get(port)?;
                Some(TopEndpoint {
                    service: of.service.clone(),
                    port_name: of.port_name.clone(),
                    at: endpoint.to_string(),
                    rate,
                    counters: counters(&count),
                })
            });
        let more: Vec<_> = more.collect();
        let endpoints = &mut self.view.endpoints;
        endpoints.extend(more);
        endpoints.sort_by(|one, other| {
            let rates = sort.of(&other.rate).total_cmp(&sort.of(&one.rate));
            rates
                .then(other.counters.active.cmp(&one.counters.active))
                .then(other.counters.connections.cmp(&one.counters.connections))
                .then_with(|| (&one.service, &one.at).cmp(&(&other.service, &other.at)))
        });
        endpoints.truncate(limit);
    }
}

/// Returns the counted addresses of each NodePort, by port number and protocol: addresses of the
/// node that are not a Service's own.
fn by_node_port(
    span: &Span,
    owners: &[Owner],
    exact: &HashSet<At>,
    is_node: &dyn Fn(IpAddr) -> bool,
) -> HashMap<(u16, Protocol), Vec<At>> {
    let mut found: HashMap<(u16, Protocol), Vec<At>> = owners
        .iter()
        .filter_map(|owner| Some(((owner.node_port?, owner.name.protocol), Vec::new())))
        .collect();
    for at in span.now.addresses.keys() {
        if let Some(all) = found.get_mut(&(at.port, at.protocol))
            && !exact.contains(at)
            && is_node(at.address)
        {
            all.push(*at);
        }
    }
    found
}

fn service_addresses(owner: &Owner) -> impl Iterator<Item = At> + '_ {
    owner.addresses.iter().map(|address| At {
        address: *address,
        port: owner.port,
        protocol: owner.name.protocol,
    })
}

/// Adds up the counters of a Service port over its addresses, and those that userspace mode has
/// under the port's name.
fn of_port(span: &Span, name: &ServicePortName, at: &[At], seconds: f64) -> (Rate, Count) {
    let mut sum = (Rate::default(), Count::default());
    let mut add = |count: &Count, before: Option<&Count>| {
        sum.0 = plus(&sum.0, &rate(count, before, seconds));
        sum.1.add(count);
    };
    for at in at {
        if let Some(count) = span.now.addresses.get(at) {
            add(
                count,
                span.before.as_ref().and_then(|look| look.addresses.get(at)),
            );
        }
    }
    if let Some(count) = span.now.ports.get(name) {
        add(
            count,
            span.before.as_ref().and_then(|look| look.ports.get(name)),
        );
    }
    sum
}

/// Returns the sum of all rates, including traffic that belongs to no Service.
fn total(span: &Span, seconds: f64) -> Rate {
    let before = span.before.as_ref();
    let addresses = span.now.addresses.iter().map(|(at, count)| {
        rate(
            count,
            before.and_then(|look| look.addresses.get(at)),
            seconds,
        )
    });
    let ports =
        span.now.ports.iter().map(|(name, count)| {
            rate(count, before.and_then(|look| look.ports.get(name)), seconds)
        });
    addresses
        .chain(ports)
        .fold(Rate::default(), |sum, each| plus(&sum, &each))
}

/// Returns the rates per second, or zeros if there is only one sample. A counter that is new or has
/// become smaller counts from zero.
fn rate(now: &Count, before: Option<&Count>, seconds: f64) -> Rate {
    if seconds <= 0.0 {
        return Rate::default();
    }
    let before = before.copied().unwrap_or_default();
    let of = |now: Option<u64>, before: Option<u64>| {
        let now = now.unwrap_or_default();
        per_second(
            now.checked_sub(before.unwrap_or_default()).unwrap_or(now),
            seconds,
        )
    };
    Rate {
        connections: of(Some(now.connections), Some(before.connections)),
        packets_in: of(now.packets_in, before.packets_in),
        packets_out: of(now.packets_out, before.packets_out),
        bytes_in: of(now.bytes_in, before.bytes_in),
        bytes_out: of(now.bytes_out, before.bytes_out),
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, seconds: f64) -> f64 {
    // Rounds to three decimals.
    (count as f64 / seconds * 1_000.0).round() / 1_000.0
}

fn plus(one: &Rate, other: &Rate) -> Rate {
    Rate {
        connections: one.connections + other.connections,
        packets_in: one.packets_in + other.packets_in,
        packets_out: one.packets_out + other.packets_out,
        bytes_in: one.bytes_in + other.bytes_in,
        bytes_out: one.bytes_out + other.bytes_out,
    }
}

fn endpoint_of(name: &ServicePortName, at: SocketAddr, rate: Rate, count: &Count) -> TopEndpoint {
    TopEndpoint {
        service: service(name),
        port_name: name.port.to_string(),
        at: at.to_string(),
        rate,
        counters: counters(count),
    }
}

fn service(name: &ServicePortName) -> ServiceName {
    ServiceName {
        namespace: name.service.namespace().to_owned(),
        name: name.service.name().to_owned(),
    }
}
