//! Summarises the paths of a packet in one sentence, the verdict.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use proxy::{IpFamily, Reason};
use view::{Endpoint, Fate, Walk};

use super::journeys::{PacketOrigin, TracedPacket};
use super::misdirection::{self, NO_ENDPOINT, REDIRECTED};
use super::objects::ServicePortAddress;
use super::origin::NOT_OURS;
use super::walk_text::THIS_NODE;

/// Location of a step ([`Step::place`](view::Step::place)) at which the kernel looks up a route.
const ROUTING: &str = "routing";
/// Maximum number of endpoints that a verdict names.
const NAMED: usize = 4;

/// Returns the verdict on a packet, from all paths that it may take.
pub(crate) fn verdict(planned: &TracedPacket<'_>, walks: &[Walk]) -> String {
    let mut parts: Vec<(f64, String)> = Vec::new();
    for (end, delivered) in delivered(walks) {
        let said = match end {
            ReplyFate::Comes => reached(planned, &delivered),
            ReplyFate::Unsure(why) | ReplyFate::Lost(why) if why.starts_with(NO_ENDPOINT) => {
                format!("reaches {}, which is {why}", named(planned, &delivered))
            }
            ReplyFate::Unsure(why) => format!(
                "{}; a reply is not certain: {why}",
                reached(planned, &delivered)
            ),
            ReplyFate::Lost(why) => format!(
                "reaches {}, but gets no answer: {why}",
                named(planned, &delivered)
            ),
        };
        parts.push((total(&delivered), said));
    }
    for walk in walks.iter().filter(|walk| walk.fate != Fate::Delivered) {
        let said = other(planned, walk);
        match parts.iter_mut().find(|(_, known)| *known == said) {
            Some((chance, _)) => *chance += walk.chance.0,
            None => parts.push((walk.chance.0, said)),
        }
    }
    let who = &planned.sender.who;
    match &*parts {
        [] => format!(
            "the path of packets from {} is unknown",
            who.trim_end_matches(',')
        ),
        [(_, said)] => format!("{who} {said}"),
        several => {
            let mut text = who.clone();
            for (number, (chance, said)) in several.iter().enumerate() {
                let between = if number == 0 { " " } else { "; " };
                let _ = write!(text, "{between}{} {said}", times(*chance));
            }
            text
        }
    }
}

/// Fate of the reply to a delivered packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReplyFate<'a> {
    Comes,
    Unsure(&'a str),
    Lost(&'a str),
}

/// Groups the delivered paths by the fate of the reply: returning replies first, then uncertain
/// ones, then lost ones.
fn delivered(walks: &[Walk]) -> BTreeMap<ReplyFate<'_>, Vec<&Walk>> {
    let mut all: BTreeMap<ReplyFate<'_>, Vec<&Walk>> = BTreeMap::new();
    for walk in walks.iter().filter(|walk| walk.fate == Fate::Delivered) {
        let back = match (&walk.unanswered, &walk.unsure) {
            (Some(why), _) => ReplyFate::Lost(why),
            (None, Some(why)) => ReplyFate::Unsure(why),
            (None, None) => ReplyFate::Comes,
        };
        all.entry(back).or_default().push(walk);
    }
    all
}

fn total(walks: &[&Walk]) -> f64 {
    walks.iter().map(|walk| walk.chance.0).sum()
}

/// Describes the endpoints that a packet reaches, and the client address that they see: `reaches
/// 10.244.1.5:8080 or 10.244.2.7:8080, half each; the endpoint sees …`.
fn reached(planned: &TracedPacket<'_>, walks: &[&Walk]) -> String {
    format!(
        "reaches {}; {}",
        named(planned, walks),
        seen(planned, walks)
    )
}

/// Lists the endpoints, each with its share of the packets: `10.244.1.5:8080 or 10.244.2.7:8080,
/// half each`.
fn named(planned: &TracedPacket<'_>, walks: &[&Walk]) -> String {
    let mut shares: Vec<(String, f64)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for walk in walks {
        let endpoint = walk.endpoint.as_deref().unwrap_or("an endpoint");
        let place = *places.entry(endpoint).or_insert(shares.len());
        if let Some((_, chance)) = shares.get_mut(place) {
            *chance += walk.chance.0;
            continue;
        }
        let name = if is_itself(planned, endpoint) {
            format!("itself ({endpoint})")
        } else {
            endpoint.to_owned()
        };
        shares.push((name, walk.chance.0));
    }
    endpoints(&shares)
}

fn is_itself(planned: &TracedPacket<'_>, endpoint: &str) -> bool {
    let endpoint = endpoint.parse::<SocketAddr>().map(|at| at.ip());
    matches!((&planned.sender.way, endpoint), (PacketOrigin::Comes(_, from), Ok(at)) if *from == at)
}

fn endpoints(shares: &[(String, f64)]) -> String {
    let all: f64 = shares.iter().map(|(_, chance)| chance).sum();
    let count = shares.len();
    #[allow(clippy::cast_precision_loss, reason = "a number of endpoints")]
    let equal = all / count.max(1) as f64;
    let is_even = shares
        .iter()
        .all(|(_, chance)| (chance - equal).abs() < 0.005 * equal);
    let name = |(endpoint, chance): &(String, f64)| {
        if is_even || all == 0.0 {
            endpoint.clone()
        } else {
            format!("{endpoint} ({})", percent(chance / all))
        }
    };
    let mut names: Vec<String> = shares.iter().take(NAMED).map(name).collect();
    let more = count.saturating_sub(names.len());
    let mut text = if more > 0 {
        format!("{} or one of {more} more", names.join(", "))
    } else {
        let last = names.pop().unwrap_or_default();
        if names.is_empty() {
            last
        } else {
            format!("{} or {last}", names.join(", "))
        }
    };
    if is_even {
        match count {
            0 | 1 => {}
            2 => text.push_str(", half each"),
            3 => text.push_str(", a third each"),
            4 => text.push_str(", a quarter each"),
            more => {
                let _ = write!(text, ", one in {more} each");
            }
        }
    }
    text
}

fn seen(planned: &TracedPacket<'_>, walks: &[&Walk]) -> String {
    let kept = |walk: &&&Walk| is_kept(walk);
    let count = walks.iter().filter(kept).count();
    if count == walks.len() {
        match planned.sender.way {
            PacketOrigin::Made(_) => {
                "the endpoint sees the address that it was sent from".to_owned()
            }
            PacketOrigin::Comes(..) => "the endpoint sees the client's own address".to_owned(),
        }
    } else if count == 0 {
        "the endpoint sees an address of this node as the client".to_owned()
    } else {
        let rewritten = walks.iter().find(|walk| !is_kept(walk));
        let rewritten = rewritten.and_then(|walk| walk.endpoint.as_deref());
        format!(
            "{} sees an address of this node as the client, the others the client's own",
            rewritten.unwrap_or("one endpoint")
        )
    }
}

/// Reports whether the endpoint sees the packet's original source address.
pub(crate) fn is_kept(walk: &Walk) -> bool {
    walk.source.starts_with("kept")
}

/// Describes the fate of a packet on a path that does not lead to an endpoint.
fn other(planned: &TracedPacket<'_>, walk: &Walk) -> String {
    let last = walk.steps.last();
    let why = why(planned, walk.fate);
    let at = last.map(|step| {
        let entry = if step.entry.is_empty() {
            String::new()
        } else {
            format!(" (`{}`)", step.entry)
        };
        format!("{}{entry}", step.place)
    });
    let at = at.unwrap_or_else(|| "this node".to_owned());
    let origin = last
        .map(|step| &*step.origin)
        .filter(|origin| !origin.is_empty());
    let says = last.map(|step| &*step.says).unwrap_or_default();
    let because = match origin {
        _ if walk.fate == Fate::Dropped && at == ROUTING => Some(by_routing(planned, says)),
        Some(origin) if origin.starts_with(NOT_OURS) => Some(origin.to_owned()),
        _ => why.or_else(|| origin.map(|origin| format!("it comes from {origin}"))),
    };
    let because = because.map_or_else(String::new, |why| format!(": {why}"));
    match walk.fate {
        Fate::Refused if at == THIS_NODE && says.contains(REDIRECTED) => {
            format!("reaches this node itself, and is {says}")
        }
        Fate::Refused if at == THIS_NODE => format!(
            "reaches this node itself, and is refused: no Service is served at {}, and no process \
             listens there{}",
            planned.to,
            taken(planned)
        ),
        Fate::Refused => format!("is refused by {at}{because}{}", taken(planned)),
        Fate::Unrouted => {
            let why = says.split_once(": ").map_or(says, |(_, why)| why);
            format!(
                "does not get to {}: {why}, and the sender gets an error{}{}",
                planned.to,
                unserved(planned),
                proxied(planned)
            )
        }
        Fate::Dropped => format!("is dropped by {at}, and hears nothing{because}"),
        Fate::Reset => format!("is accepted by {at}, and reset{because}"),
        Fate::Local => local(planned, walk),
        // The function `delivered` handles delivered paths, so `Fate::Delivered` never reaches this
        // arm.
        Fate::Delivered | Fate::Forwarded => format!(
            "is forwarded to {} unchanged: no Service matches here{}{}",
            walk.endpoint
                .clone()
                .unwrap_or_else(|| planned.to.to_string()),
            unserved(planned),
            proxied(planned)
        ),
        Fate::Unknown => format!("cannot be followed beyond {at}: {says}"),
    }
}

/// Explains that IPVS mode makes the destination address local, so that this node reaches no other
/// host with this address. Returns an empty text if no Service names the address, or if a Service
/// has this port.
fn taken(planned: &TracedPacket<'_>) -> String {
    if planned.named_by.is_empty() || planned.of.is_some() {
        return String::new();
    }
    format!(
        ". {} is an address of {}, which IPVS mode gives to this node: nothing else of a host \
         that has it is reached from here",
        planned.to.ip(),
        planned.named_by.join(", ")
    )
}

/// Names the Services that have the destination address, but are not served there at this port.
fn unserved(planned: &TracedPacket<'_>) -> String {
    if planned.named_by.is_empty() || planned.of.is_some() {
        return String::new();
    }
    format!(
        ". {} is an address of {}, which is not served at this port: the errors of `kube-proxy \
         services` name the reason",
        planned.to.ip(),
        planned.named_by.join(", ")
    )
}

/// Explains that this node leaves the destination address to a load balancer. Returns an empty text
/// if no Service has the address with `ipMode: Proxy`.
fn proxied(planned: &TracedPacket<'_>) -> String {
    if planned.proxied_by.is_empty() {
        return String::new();
    }
    format!(
        ". Service {} has {} with `ipMode: Proxy`, so packets to it go to the load balancer",
        planned.proxied_by.join(", "),
        planned.to.ip()
    )
}

/// Describes why the kernel's route look-up drops a packet. If the sender has a service address,
/// adds advice for the operator.
fn by_routing(planned: &TracedPacket<'_>, says: &str) -> String {
    let why = says.strip_prefix("dropped: ").unwrap_or(says);
    if planned.sender.has_service_address {
        format!(
            "{why}. A load balancer that sends from its Service's address is not heard in IPVS \
             mode, where the node has that \
             address too: give `ipMode: Proxy` in status.loadBalancer.ingress, or have the \
             balancer send from another address"
        )
    } else {
        why.to_owned()
    }
}

/// Describes the fate of a packet that a process of this node receives, at an address and port of
/// no Service.
fn local(planned: &TracedPacket<'_>, walk: &Walk) -> String {
    let at = walk.endpoint.clone();
    let at = at.unwrap_or_else(|| planned.to.to_string());
    let reaches =
        format!("reaches a process of this node that listens at {at}: no Service is served there");
    match (&walk.unanswered, &walk.unsure) {
        (Some(why), _) if why.starts_with(NO_ENDPOINT) => {
            format!("reaches this node itself at {at}, which is {why}")
        }
        (Some(lost), _) => format!("{reaches}, and gets no answer: {lost}"),
        (None, Some(why)) => {
            format!("reaches this node itself: no Service is served at {at}; not sure: {why}")
        }
        (None, None) => reaches,
    }
}

/// Returns the reason why this node does not serve the address of a Service, if the Kubernetes
/// objects show one.
fn why(planned: &TracedPacket<'_>, fate: Fate) -> Option<String> {
    if !matches!(fate, Fate::Refused | Fate::Dropped | Fate::Reset) {
        return None;
    }
    let of = planned.of.as_ref()?;
    let service = &of.service.name;
    if let Some(conflict) = misdirection::describe_conflict(of) {
        return Some(conflict);
    }
    let (policy, is_local) = of.policy();
    let mut endpoints = of.endpoints().map(|(_, endpoint)| endpoint).peekable();
    if endpoints.peek().is_none() {
        return Some(no_endpoints(of));
    }
    let endpoints: Vec<_> = endpoints.collect();
    if !endpoints
        .iter()
        .any(|one| one.cluster || one.local_policy || one.ready)
    {
        return Some(format!("no endpoint of {service} is ready"));
    }
    if is_local && !endpoints.iter().any(|one| one.local && one.local_policy) {
        let stranger = planned.sender.stranger.as_deref();
        let stranger = stranger.filter(|_| policy.starts_with("external"));
        let stranger = stranger.map_or_else(String::new, |why| {
            format!("; its sender counts as one outside, and not as a pod of this node: {why}")
        });
        let unplaced = endpoints.iter().find(|one| one.ready && one.node.is_none());
        let unplaced = unplaced.map_or_else(String::new, |one| {
            format!("; {} {}", one.at, Reason::NoNodeName)
        });
        return Some(format!(
            "{policy} is Local, and no endpoint of {service} on this node is \
             ready{unplaced}{stranger}"
        ));
    }
    outside_ranges(planned, of)
}

/// Explains that a Service port has no endpoint of the address's IP family. Names the endpoints that
/// it has instead.
fn no_endpoints(of: &ServicePortAddress<'_>) -> String {
    let service = &of.service.name;
    let family = IpFamily::of(of.at.ip());
    // An endpoint whose EndpointSlice lacks the port has only an address.
    let is_other = |one: &&Endpoint| {
        let at = one.at.parse::<SocketAddr>();
        at.is_ok_and(|at| IpFamily::of(at.ip()) != family)
    };
    let endpoints = &of.port.endpoints;
    match (endpoints.iter().find(is_other), endpoints.first()) {
        (Some(other), _) if other.cluster || other.local_policy => {
            format!("{service} has endpoints, but no {family} endpoints")
        }
        (Some(other), _) => {
            let (at, why) = (&other.at, &other.why);
            format!("{service} has no {family} endpoints; {at} is not used: {why}")
        }
        (None, Some(one)) => format!("{service} has no endpoints; {}: {}", one.at, one.why),
        (None, None) => format!("{service} has no endpoints"),
    }
}

fn outside_ranges(planned: &TracedPacket<'_>, of: &ServicePortAddress<'_>) -> Option<String> {
    let is_balanced = of.address.kind == view::AddressKind::LoadBalancerIp;
    let ranges = &of.service.source_ranges;
    if !is_balanced || ranges.is_empty() {
        return None;
    }
    let within = |address: IpAddr| {
        let nets = ranges
            .iter()
            .filter_map(|range| range.parse::<ipnet::IpNet>().ok());
        nets.into_iter().any(|net| net.contains(&address))
    };
    let said = ranges.join(", ");
    match planned.sender.way {
        PacketOrigin::Comes(_, from) if !within(from) => Some(format!(
            "{from} is in none of the loadBalancerSourceRanges of {} ({said})",
            of.service.name
        )),
        PacketOrigin::Made(_) => Some(format!(
            "no address of this node is in the loadBalancerSourceRanges of {} ({said})",
            of.service.name
        )),
        PacketOrigin::Comes(..) => None,
    }
}

/// Formats a probability as `half of the time` or `25 % of the time`.
fn times(chance: f64) -> String {
    if (chance - 0.5).abs() < 0.005 {
        "half of the time".to_owned()
    } else {
        format!("{} of the time", percent(chance))
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 1.0 {
        format!("{percent:.2} %")
    } else {
        format!("{percent:.0} %")
    }
}

#[cfg(test)]
mod tests;
