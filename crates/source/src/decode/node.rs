//! Decodes the Node object of this node.

use ipnet::IpNet;
use proxy::{Kind, Node};

use super::decoded::{DecodedObject, MissingName, Object};
use super::findings::Findings;
use super::{address, wire};

/// Key of the taint that the cluster autoscaler adds to a node before it deletes the node.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Decodes a Node's addresses (internal addresses first), zone, pod CIDRs and deletion state.
pub(crate) fn node(wire: wire::Node<'_>) -> Result<DecodedObject, MissingName> {
    let metadata = wire.metadata.unwrap_or_default();
    let mut findings = Findings::new(Kind::Node, &metadata)?;
    if !findings.is_kind(wire.kind.as_deref()) {
        return Ok(findings.unusable());
    }
    let given = wire
        .status
        .unwrap_or_default()
        .addresses
        .unwrap_or_default();
    let mut addresses = Vec::new();
    for kind in ["InternalIP", "ExternalIP"] {
        for (i, given) in given.iter().enumerate() {
            if given.kind.as_deref() == Some(kind) {
                let field = || format!("status.addresses[{i}].address");
                let text = given.address.as_deref().unwrap_or_default();
                addresses.extend(findings.address(field, text));
            }
        }
    }
    let spec = wire.spec.unwrap_or_default();
    let given: Vec<wire::Text<'_>> = match spec.pod_cidrs {
        Some(nets) if !nets.is_empty() => nets,
        _ => spec.pod_cidr.into_iter().collect(),
    };
    let pod_cidrs = given
        .iter()
        .enumerate()
        .filter_map(|(i, text)| pod_cidr(&mut findings, i, text))
        .collect();
    let taints = spec.taints.unwrap_or_default();
    let is_doomed = taints.iter().any(|taint| &*taint.key == TO_BE_DELETED);
    let node = Node {
        name: findings.key.name.name().into(),
        addresses,
        zone: metadata
            .labels
            .and_then(|labels| labels.zone)
            .filter(|zone| !zone.is_empty())
            .map(|zone| (*zone).into()),
        pod_cidrs,
        is_leaving: is_doomed || metadata.deletion_timestamp.is_some(),
    };
    Ok(findings.proxied(Object::Node(node)))
}

fn pod_cidr(findings: &mut Findings, i: usize, text: &str) -> Option<IpNet> {
    let net = address::net(text);
    if net.is_none() && !text.is_empty() {
        findings.text(
            format!("spec.podCIDRs[{i}]"),
            text,
            "not a network such as 10.244.1.0/24; it is ignored until it is corrected",
        );
    }
    net
}
