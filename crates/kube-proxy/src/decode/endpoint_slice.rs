//! EndpointSlices.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use proxy::{Endpoint, EndpointPort, EndpointSlice, IpFamily, Kind, NamespacedName, Placement};

use super::wire::FirstAddress;
use super::{Decoded, Findings, Object, Unnamed, family, wire};

/// Reads an `EndpointSlice`.
pub(crate) fn endpoint_slice(wire: wire::EndpointSlice) -> Result<Decoded, Unnamed> {
    let mut metadata = wire.metadata.unwrap_or_default();
    let mut findings = Findings::new(Kind::EndpointSlice, &mut metadata)?;
    if !findings.is_kind(wire.kind.as_deref()) {
        return Ok(findings.unusable());
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
            "give IPv4 or IPv6; the slice is left out until then",
        );
        return Ok(findings.unusable());
    };
    let Some(service) = labels.service_name.filter(|name| !name.is_empty()) else {
        findings.value(
            "label kubernetes.io/service-name",
            "missing",
            "the slice belongs to no Service and is left out: label it with its Service's name",
        );
        return Ok(findings.ignored("no label kubernetes.io/service-name"));
    };

    let mut ports = smallvec::SmallVec::new();
    for (i, wire) in wire.ports.iter().flatten().enumerate() {
        let protocol =
            findings.protocol(|| format!("ports[{i}].protocol"), wire.protocol.as_deref());
        let port = findings.port(|| format!("ports[{i}].port"), wire.port);
        if let (Some(protocol), Some(port)) = (protocol, port) {
            ports.push(EndpointPort {
                name: wire.name.as_deref().unwrap_or_default().into(),
                protocol,
                port,
            });
        }
    }
    let mut endpoints = Vec::with_capacity(wire.endpoints.as_ref().map_or(0, Vec::len));
    let mut placements = HashSet::new();
    for (i, wire) in wire.endpoints.into_iter().flatten().enumerate() {
        endpoints.extend(endpoint(&mut findings, &mut placements, family, i, wire));
    }
    let trigger = metadata
        .annotations
        .and_then(|annotations| annotations.change_trigger);
    let trigger = findings.time(
        "annotation endpoints.kubernetes.io/last-change-trigger-time",
        trigger.as_deref(),
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

fn endpoint(
    findings: &mut Findings,
    placements: &mut HashSet<Arc<Placement>>,
    family: IpFamily,
    i: usize,
    wire: wire::Endpoint,
) -> Option<Endpoint> {
    let field = || format!("endpoints[{i}].addresses[0]");
    let address = match wire.addresses.unwrap_or_default() {
        FirstAddress::Missing => {
            findings.value(
                format!("endpoints[{i}].addresses"),
                "empty",
                "an endpoint has an address; this one is left out until it has",
            );
            return None;
        }
        FirstAddress::Wrong(text) => findings.address(field, &text)?,
        FirstAddress::Ip(ip) => findings.host(field, ip)?,
    };
    if IpFamily::of(address) != family {
        findings.value(
            field(),
            address,
            format!(
                "{}, but addressType is {family}; this endpoint is left out until one of them is corrected",
                IpFamily::of(address)
            ),
        );
        return None;
    }
    let conditions = wire.conditions.unwrap_or_default();
    let hints = wire.hints.unwrap_or_default();
    let names = |named: Option<Vec<wire::Named>>| {
        named
            .unwrap_or_default()
            .into_iter()
            .map(|named| named.name)
            .collect()
    };
    let placement = Placement {
        node: wire.node_name.filter(|name| !name.is_empty()),
        for_nodes: names(hints.for_nodes),
        for_zones: names(hints.for_zones),
    };
    let placement = placements.get(&placement).cloned().unwrap_or_else(|| {
        let new = Arc::new(placement);
        placements.insert(Arc::clone(&new));
        new
    });
    Some(Endpoint {
        address,
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        placement,
    })
}
