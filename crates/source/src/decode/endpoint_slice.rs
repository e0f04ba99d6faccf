//! Decodes EndpointSlices.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::SystemTime;

use hashbrown::HashMap;
use proxy::{Endpoint, EndpointPort, EndpointSlice, IpFamily, Kind, NamespacedName, Placement};

use super::decoded::{DecodedObject, MissingName, Object};
use super::findings::{Findings, family, is_name};
use super::wire::{self, Conditions, FirstAddress, Named};

/// Decodes an `EndpointSlice`. Ignores headless and FQDN EndpointSlices, and those without a
/// Service.
pub(crate) fn endpoint_slice(wire: wire::EndpointSlice<'_>) -> Result<DecodedObject, MissingName> {
    let metadata = wire.metadata.unwrap_or_default();
    let mut findings = Findings::new(Kind::EndpointSlice, &metadata)?;
    if !findings.is_kind(wire.kind.as_deref()) {
        return Ok(findings.unusable());
    }
    if !findings.is_well_named() {
        return Ok(findings.ignored("not a name"));
    }
    let labels = metadata.labels.unwrap_or_default();
    if labels.headless.is_some() {
        return Ok(findings.ignored("label service.kubernetes.io/headless"));
    }
    let address_type = wire.address_type.as_deref().unwrap_or_default();
    if address_type == "FQDN" {
        return Ok(findings.ignored("addressType FQDN"));
    }
    let Some(family) = family(address_type) else {
        findings.text(
            "addressType",
            address_type,
            "give IPv4 or IPv6; the slice is ignored until then",
        );
        return Ok(findings.unusable());
    };
    let Some(service) = labels.service_name.filter(|name| !name.is_empty()) else {
        findings.value(
            "label kubernetes.io/service-name",
            "missing",
            "the slice belongs to no Service and is ignored: label it with its Service's name",
        );
        return Ok(findings.ignored("no label kubernetes.io/service-name"));
    };
    if !is_name(&service) {
        findings.text(
            "label kubernetes.io/service-name",
            &service,
            "no Service has such a name; the slice is ignored: label it with its Service's name",
        );
        return Ok(findings.ignored("no label kubernetes.io/service-name"));
    }

    let mut ports = smallvec::SmallVec::new();
    for (i, wire) in wire.ports.iter().flatten().enumerate() {
        let protocol =
            findings.protocol(|| format!("ports[{i}].protocol"), wire.protocol.as_deref());
        let port = findings.port(|| format!("ports[{i}].port"), wire.port);
        let name = findings.port_name(|| format!("ports[{i}].name"), wire.name.as_deref());
        if let (Some(protocol), Some(port), Some(name)) = (protocol, port, name) {
            ports.push(EndpointPort {
                name: name.into(),
                protocol,
                port,
            });
        }
    }
    let given = wire.endpoints.unwrap_or_default();
    let mut endpoints = Vec::with_capacity(given.len());
    let mut placements = Placements::new();
    for (i, wire) in given.iter().enumerate() {
        endpoints.extend(endpoint(&mut findings, &mut placements, family, i, wire));
    }
    let trigger = metadata
        .annotations
        .and_then(|annotations| annotations.change_trigger);
    let trigger = findings.time(
        "annotation endpoints.kubernetes.io/last-change-trigger-time",
        trigger.as_ref(),
    );
    let slice = EndpointSlice {
        service: NamespacedName::new(findings.key.name.namespace(), &service),
        name: findings.key.name.clone(),
        family,
        ports,
        endpoints: endpoints.into(),
        change_trigger: trigger.map(SystemTime::from),
    };
    Ok(findings.proxied(Object::EndpointSlice(slice)))
}

/// Placements of endpoints with hints, by node, zone, and the nodes and zones in the hints.
type Placements<'a> = HashMap<PlacementKey<'a>, Arc<Placement>>;

type PlacementKey<'a> = (&'a str, &'a str, &'a [Named<'a>], &'a [Named<'a>]);

fn endpoint<'a>(
    findings: &mut Findings,
    placements: &mut Placements<'a>,
    family: IpFamily,
    i: usize,
    wire: &'a wire::Endpoint<'a>,
) -> Option<Endpoint> {
    let field = || format!("endpoints[{i}].addresses[0]");
    let address = match &wire.addresses {
        None | Some(FirstAddress::Missing) => {
            findings.value(
                format!("endpoints[{i}].addresses"),
                "empty",
                "this endpoint has no address, and is ignored until it has one",
            );
            return None;
        }
        Some(FirstAddress::Wrong(text)) => findings.address(field, text)?,
        Some(FirstAddress::Ip(ip)) => findings.endpoint(field, *ip)?,
    };
    if IpFamily::of(address) != family {
        findings.value(
            field(),
            address,
            format!(
                "{}, but addressType is {family}; this endpoint is ignored until one of them is corrected",
                IpFamily::of(address)
            ),
        );
        return None;
    }
    let (for_nodes, for_zones) = match &wire.hints {
        Some(hints) => (
            hints.for_nodes.as_deref().unwrap_or_default(),
            hints.for_zones.as_deref().unwrap_or_default(),
        ),
        None => Default::default(),
    };
    let node = wire.node_name.as_deref().unwrap_or_default();
    // Ignores a zone of more than 63 characters. Zones are label values, which cannot be longer.
    let zone = wire.zone.as_deref().filter(|zone| zone.len() <= 63);
    let zone = zone.unwrap_or_default();
    let placement = if for_nodes.is_empty() && for_zones.is_empty() {
        on_node(node, zone)
    } else {
        let place = || placement(node, zone, for_nodes, for_zones);
        let key = (node, zone, for_nodes, for_zones);
        Arc::clone(placements.entry(key).or_insert_with(place))
    };
    let conditions = wire.conditions.as_ref();
    let says = |condition: fn(&Conditions) -> Option<bool>| conditions.and_then(condition);
    Some(Endpoint {
        address,
        ready: says(|of| of.ready).unwrap_or(true),
        serving: says(|of| of.serving).unwrap_or(true),
        terminating: says(|of| of.terminating).unwrap_or(false),
        placement,
    })
}

fn placement(
    node: &str,
    zone: &str,
    for_nodes: &[Named<'_>],
    for_zones: &[Named<'_>],
) -> Arc<Placement> {
    let given = |name: &str| (!name.is_empty()).then(|| name.into());
    let names = |named: &[Named<'_>]| named.iter().map(|named| (*named.name).into()).collect();
    Arc::new(Placement {
        node: given(node),
        zone: given(zone),
        for_nodes: names(for_nodes),
        for_zones: names(for_zones),
    })
}

/// Returns the placement that all endpoints without hints on `node` share. EndpointSlices repeat
/// the same few thousand placements, so each placement is allocated only once. Separate allocations
/// would take a third of the time for decoding a list.
fn on_node(node: &str, zone: &str) -> Arc<Placement> {
    /// Number of placements at which the cache is cleared. Kubernetes supports fewer nodes.
    const MOST: usize = 8192;
    thread_local! {
        static KNOWN: RefCell<HashMap<Box<str>, Arc<Placement>>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| {
        // Looks up the placement by its node alone, because a node is in only one zone. Then
        // compares the zone.
        let is_in_zone =
            |known: &&Arc<Placement>| known.zone.as_deref().unwrap_or_default() == zone;
        if let Some(placement) = known.get(node).filter(is_in_zone) {
            return Arc::clone(placement);
        }
        if known.len() >= MOST {
            known.clear();
        }
        let new = placement(node, zone, &[], &[]);
        known.insert(node.into(), Arc::clone(&new));
        new
    })
}
