//! Decodes ServiceCIDRs, the networks of ClusterIPs.

use proxy::{Kind, ServiceCidr};

use super::decoded::{DecodedObject, MissingName, Object};
use super::findings::Findings;
use super::{address, wire};

/// Decodes a ServiceCIDR. Skips and reports invalid networks.
pub(crate) fn service_cidr(wire: wire::ServiceCidr<'_>) -> Result<DecodedObject, MissingName> {
    let metadata = wire.metadata.unwrap_or_default();
    let mut findings = Findings::new(Kind::ServiceCidr, &metadata)?;
    if !findings.is_kind(wire.kind.as_deref()) {
        return Ok(findings.unusable());
    }
    let given = wire.spec.unwrap_or_default().cidrs.unwrap_or_default();
    let mut nets = Vec::new();
    for (i, text) in given.iter().enumerate() {
        match address::net(text) {
            Some(net) => nets.push(net),
            None => findings.text(
                format!("spec.cidrs[{i}]"),
                text,
                "not a network such as 10.96.0.0/16; it is ignored until it is corrected",
            ),
        }
    }
    let cidr = ServiceCidr {
        name: findings.key.name.name().into(),
        nets,
    };
    Ok(findings.proxied(Object::ServiceCidr(cidr)))
}
