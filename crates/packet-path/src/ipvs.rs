//! Predicts how IPVS handles a packet at netfilter's hooks (`net/netfilter/ipvs/ip_vs_core.c`,
//! `ip_vs_xmit.c`).
//!
//! | packets | hook and priority | position |
//! |---|---|---|
//! | for this node | `LOCAL_IN`, 99 | after the filter chains |
//! | from this node | `LOCAL_OUT`, -98 | after output NAT |
//!
//! Higher priority numbers run later. IPVS sends the packet in one of two ways:
//!
//! - To another host: the packet passes all of OUTPUT and then POSTROUTING, but never FORWARD.
//! - To an endpoint on this node: the packet continues at the same hook.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use inet::IpFamily;
use ipvs_netlink::{Destination, DestinationEntry, Flags, Forward, Protocol, Service, ServiceKey};

use crate::branch::{Branch, Counters, End, Step};
use crate::kernel::{Kernel, ReadFailure, Route, RouteQuestion, Server};
use crate::packet::{Packet, Tracking};
use crate::ruleset::Hook;

/// Priority at which IPVS handles packets at the hook `input` (`NF_IP_PRI_NAT_SRC - 1`).
pub(crate) const PRIORITY_INPUT: i32 = 99;
/// Priority at which IPVS handles packets at the hook `output` (`NF_IP_PRI_NAT_DST + 2`).
pub(crate) const PRIORITY_OUTPUT: i32 = -98;
/// Priority at which IPVS handles replies at the hook `forward` (`ip_vs_out`).
const PRIORITY_FORWARD: i32 = 100;

const PLACE: &str = "IPVS";
const CONNTRACK: &str = "net/ipv4/vs/conntrack";

/// Hook at which a packet's path continues after IPVS.
pub(crate) enum AfterIpvs {
    /// The packet continues at the same hook.
    Stays(Branch),
    /// IPVS sends the packet, which then starts at the hook OUTPUT.
    Leaves(Branch),
}

/// Returns the priority at which IPVS handles packets at a hook, or `None` if it does not run
/// there.
pub(crate) fn priority(hook: Hook) -> Option<i32> {
    match hook {
        Hook::Input => Some(PRIORITY_INPUT),
        Hook::Output => Some(PRIORITY_OUTPUT),
        Hook::Forward => Some(PRIORITY_FORWARD),
        Hook::Prerouting | Hook::Postrouting => None,
    }
}

/// Applies IPVS to a packet at the current hook. Returns the packet's possible paths after IPVS.
pub(crate) fn pass(mut branch: Branch, kernel: &dyn Kernel) -> Vec<AfterIpvs> {
    // Skips packets that IPVS itself has sent, which the kernel marks (`ipvs_property`). Also skips
    // forwarded packets, because IPVS handles only replies among these.
    let is_forwarded = branch.packet.iif.is_some() && branch.packet.oif.is_some();
    if branch.packet.server.is_some() || is_forwarded {
        return vec![AfterIpvs::Stays(branch)];
    }
    let server = match find(&branch.packet, kernel) {
        Ok(Some(server)) => server,
        Ok(None) => return vec![AfterIpvs::Stays(branch)],
        Err(unread) => {
            let reason = unread.to_string();
            branch.step(Step::new(PLACE, "", format!("is unknown: {reason}")));
            branch.end = Some(End::Unknown(reason));
            return vec![AfterIpvs::Stays(branch)];
        }
    };
    let shares = shares(&server);
    let mut step = Step::new(PLACE, listed(&server.entry.service), "");
    let statistics = server.entry.statistics;
    step.counters = Some(Counters {
        packets: statistics.incoming_packets,
        bytes: statistics.incoming_bytes,
    });
    if shares.is_empty() {
        step.says = format!(
            "refused: {}; its sender gets {UNREACHABLE}",
            nobody(&server)
        );
        branch.step(step);
        branch.end = Some(End::Refused(format!("{UNREACHABLE}, by IPVS")));
        return vec![AfterIpvs::Stays(branch)];
    }
    step.says = says(
        &server.entry.service,
        shares.len(),
        server.destinations.len(),
    );
    branch.step(step);
    let ways = shares.into_iter().map(|(destination, share)| {
        let branch = branch.with_chance(share);
        send(branch, &server.entry.service, destination, kernel)
    });
    ways.collect()
}

const UNREACHABLE: &str = "ICMP port unreachable";

/// Finds the packet's virtual server in the order of `ip_vs_service_find`: by fwmark, then by
/// address and port, then by address with port 0.
fn find(packet: &Packet, kernel: &dyn Kernel) -> Result<Option<Server>, ReadFailure> {
    let family = IpFamily::of(packet.destination);
    let protocol = Protocol(packet.protocol);
    let marked = (packet.mark != 0).then_some(ServiceKey::Fwmark {
        family,
        mark: packet.mark,
    });
    let at = |port| ServiceKey::new(protocol, packet.destination, port);
    for key in marked.into_iter().chain([at(packet.port), at(0)]) {
        if let Some(found) = kernel.server(&key)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the destinations that accept new connections, each with its share of these, from 0 to 1.
fn shares(server: &Server) -> Vec<(&DestinationEntry, f64)> {
    let scheduler = server.entry.service.scheduler;
    let has_room = |entry: &&DestinationEntry| {
        let limit = entry.destination.upper_threshold;
        limit == 0 || entry.active.saturating_add(entry.inactive) < limit
    };
    let takes = |entry: &&DestinationEntry| entry.destination.weight > 0 && has_room(entry);
    let mut able: Vec<&DestinationEntry> = server.destinations.iter().filter(takes).collect();
    let is_by_weight = match scheduler.as_str() {
        "rr" | "lc" => false,
        // `fo` uses the destination with the highest weight, and so does `ovf` until this
        // destination is overloaded.
        "fo" | "ovf" => {
            let weight = |entry: &DestinationEntry| entry.destination.weight;
            let most = able.iter().map(|entry| weight(entry)).max();
            able.retain(|entry| Some(weight(entry)) == most);
            able.truncate(1);
            false
        }
        _ => true,
    };
    let weight = |entry: &DestinationEntry| {
        if is_by_weight {
            f64::from(entry.destination.weight)
        } else {
            1.0
        }
    };
    let all: f64 = able.iter().map(|entry| weight(entry)).sum();
    able.into_iter()
        .map(|entry| (entry, weight(entry) / all))
        .collect()
}

/// Returns the reason why no destination gets the packet, as text for the user.
fn nobody(server: &Server) -> String {
    match server.destinations.len() {
        0 => "the virtual server has no destination".to_owned(),
        count => {
            format!("none of its {count} destinations takes new connections (weight 0, or full)")
        }
    }
}

/// Describes how a virtual server chooses a destination, as text for the user.
fn says(service: &Service, able: usize, all: usize) -> String {
    let how = match service.scheduler.as_str() {
        "rr" => "one after the other",
        "wrr" => "one after the other, by their weights",
        "lc" => "the one with the fewest connections",
        "wlc" | "sed" | "nq" => "the one with the fewest connections for its weight",
        "sh" | "mh" => "by a hash of the client's address",
        "dh" => "by a hash of the destination's address",
        "lblc" | "lblcr" => "by the destination's address and their load",
        "fo" | "ovf" => "the one of the greatest weight",
        _ => "by its scheduler",
    };
    let mut says = match (able, all) {
        (1, 1) => "its one destination gets it".to_owned(),
        _ if able == all => format!("chooses among {all} destinations: {how}"),
        _ => format!("chooses among {able} of {all} destinations that take new connections: {how}"),
    };
    if service.flags.contains(Flags::PERSISTENT) {
        let _ = write!(
            says,
            "; a client stays where it was sent for {} s after its last connection",
            service.timeout
        );
    }
    says
}

/// Follows a packet that IPVS sends to the destination `entry` of the virtual server `service`.
fn send(
    mut branch: Branch,
    service: &Service,
    entry: &DestinationEntry,
    kernel: &dyn Kernel,
) -> AfterIpvs {
    let (key, destination) = (&service.key, &entry.destination);
    let port = port_at(service, destination.key.port, branch.packet.port);
    let to = SocketAddr::new(destination.key.address, port);
    let mut step = Step::new(PLACE, listed_destination(key, destination), "");
    step.counters = Some(Counters {
        packets: entry.statistics.incoming_packets,
        bytes: entry.statistics.incoming_bytes,
    });
    let route = match route_to(to.ip(), branch.packet.mark, kernel) {
        Ok(route) => route,
        Err(unread) => return ends(branch, step, End::Unknown(unread.to_string())),
    };
    let was_input = branch.packet.iif.is_some();
    branch.packet.server = Some(*key);
    branch.packet.real_server = Some(to);
    let is_local = matches!(route, Route::Local { .. });
    match destination.forward {
        Forward::Masq => {
            branch.packet.destination = to.ip();
            branch.packet.port = to.port();
            step.says = format!("sent to {to}");
        }
        Forward::Local => {
            "left to this node itself".clone_into(&mut step.says);
            branch.step(step);
            return AfterIpvs::Stays(branch);
        }
        Forward::Route => step.says = format!("sent as it is to the host that has {}", to.ip()),
        Forward::Tunnel => {
            step.says = format!("sent in a tunnel to {}", to.ip());
            branch.step(step);
            branch.end = Some(End::Forwarded);
            return AfterIpvs::Stays(branch);
        }
        Forward::Bypass | Forward::Other(_) => {
            let why = "this way of forwarding is not understood".to_owned();
            return ends(branch, step, End::Unknown(why));
        }
    }
    let interface = match route {
        Route::Local { .. } if to.ip().is_loopback() && was_input => {
            step.says = format!("dropped: {to} cannot be reached from outside");
            return ends(branch, step, End::Dropped);
        }
        Route::Local { .. } => None,
        Route::None { why, .. } => {
            step.says = format!("dropped: {why} to {to}");
            return ends(branch, step, End::Dropped);
        }
        Route::Out { .. } if branch.packet.source.is_loopback() => {
            step.says = format!("dropped: {} may not leave the node", branch.packet.source);
            return ends(branch, step, End::Dropped);
        }
        Route::Out { interface, .. } => Some(interface),
    };
    match kernel.setting(CONNTRACK) {
        Err(unread) => return ends(branch, step, End::Unknown(unread.to_string())),
        Ok(Some(value)) if value == "1" => {}
        Ok(_) => {
            branch.packet.tracking = Tracking::Untracked;
            step.says.push_str(
                "; it is not tracked, so that no chain of type nat sees it \
                           (net.ipv4.vs.conntrack is 0)",
            );
        }
    }
    if let Some(interface) = &interface {
        let _ = write!(step.says, " by {}", interface.name);
    }
    branch.step(step);
    if is_local {
        return AfterIpvs::Stays(branch);
    }
    branch.packet.iif = None;
    branch.packet.oif = interface;
    AfterIpvs::Leaves(branch)
}

/// Returns the port at which a destination gets packets to `port`:
///
/// - A destination without a port of its own (0) gets them at the packet's port.
/// - With persistence, a destination uses its own port only if the virtual server has the packet's
///   port, not 0 (`ip_vs_sched_persist`).
fn port_at(service: &Service, own: u16, port: u16) -> u16 {
    let is_of_port = matches!(service.key, ServiceKey::Address { port: of, .. } if of == port);
    let is_kept = service.flags.contains(Flags::PERSISTENT) && !is_of_port;
    if own == 0 || is_kept { port } else { own }
}

fn ends(mut branch: Branch, mut step: Step, end: End) -> AfterIpvs {
    if let (End::Unknown(why), true) = (&end, step.says.is_empty()) {
        step.says = format!("is unknown: {why}");
    }
    branch.step(step);
    branch.end = Some(end);
    AfterIpvs::Stays(branch)
}

fn route_to(destination: IpAddr, mark: u32, kernel: &dyn Kernel) -> Result<Route, ReadFailure> {
    kernel.route(&RouteQuestion {
        destination,
        source: None,
        iif: None,
        mark,
    })
}

/// Formats a virtual server like `ipvsadm -Sn`.
fn listed(service: &Service) -> String {
    let mut text = format!("-A {} -s {}", selector(&service.key), service.scheduler);
    if service.flags.contains(Flags::PERSISTENT) {
        let _ = write!(text, " -p {}", service.timeout);
    }
    if service.flags.contains(Flags::ONE_PACKET) {
        text.push_str(" -o");
    }
    let names = match service.scheduler.as_str() {
        "sh" => ["sh-fallback", "sh-port", "flag-3"],
        "mh" => ["mh-fallback", "mh-port", "flag-3"],
        _ => ["flag-1", "flag-2", "flag-3"],
    };
    let flags = [Flags::SCHED_1, Flags::SCHED_2, Flags::SCHED_3];
    let set: Vec<&str> = flags
        .into_iter()
        .zip(names)
        .filter_map(|(flag, name)| service.flags.contains(flag).then_some(name))
        .collect();
    if !set.is_empty() {
        let _ = write!(text, " -b {}", set.join(","));
    }
    text
}

fn listed_destination(key: &ServiceKey, destination: &Destination) -> String {
    let method = match destination.forward {
        Forward::Masq => "-m",
        Forward::Tunnel => "-i",
        _ => "-g",
    };
    format!(
        "-a {} -r {} {method} -w {}",
        selector(key),
        destination.key,
        destination.weight
    )
}

fn selector(key: &ServiceKey) -> String {
    match *key {
        ServiceKey::Address {
            protocol,
            address,
            port,
        } => {
            let option = match protocol {
                Protocol::TCP => "-t",
                Protocol::UDP => "-u",
                _ => "--sctp-service",
            };
            format!("{option} {}", SocketAddr::new(address, port))
        }
        ServiceKey::Fwmark { family, mark } => {
            let six = if family == IpFamily::V6 { " -6" } else { "" };
            format!("-f {mark}{six}")
        }
    }
}
