//! What an API server adds to an object that it is given: defaults, cluster IPs, node ports. And
//! the little validation without which these make no sense; everything else is taken as it comes.
//!
//! Source of the rules: `pkg/apis/*/v1/defaults.go` and `pkg/registry/core/service` of Kubernetes
//! 1.36. Unlike there, free addresses and ports are taken in order (tests read better), and a
//! cluster IP may lie outside the ranges.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::object::Key;
use crate::resource::Kind;

/// The field that is wrong, and what is.
#[derive(Debug)]
pub(crate) struct Invalid {
    pub(crate) field: String,
    pub(crate) why: String,
}

fn invalid(field: impl Into<String>, why: impl Into<String>) -> Invalid {
    Invalid {
        field: field.into(),
        why: why.into(),
    }
}

/// The cluster IPs and node ports that Services hold, and the ranges that new ones come from.
#[derive(Debug)]
pub(crate) struct Allocations {
    cidrs: Vec<IpNet>,
    node_ports: RangeInclusive<u16>,
    ip_owner: HashMap<IpAddr, Key>,
    port_owner: HashMap<u16, Key>,
    /// Where the search for a free one goes on: per range of addresses, and for ports.
    next_ip: Vec<u64>,
    next_port: u16,
}

impl Allocations {
    pub(crate) fn new(cidrs: Vec<IpNet>, node_ports: RangeInclusive<u16>) -> Self {
        // The lower band is left to Services that choose their address, as KEP-3070 has it.
        let next_ip = cidrs
            .iter()
            .map(|cidr| (last(cidr) / 16).clamp(16, 256).min(last(cidr)))
            .collect();
        let next_port = *node_ports.start();
        Self {
            cidrs,
            node_ports,
            ip_owner: HashMap::new(),
            port_owner: HashMap::new(),
            next_ip,
            next_port,
        }
    }

    fn families(&self) -> Vec<&'static str> {
        self.cidrs.iter().map(|cidr| family(cidr.addr())).collect()
    }

    fn free_ip(&mut self, of: &str) -> Option<IpAddr> {
        let (cidr, next) = self
            .cidrs
            .iter()
            .zip(&mut self.next_ip)
            .find(|(cidr, _)| family(cidr.addr()) == of)?;
        let last = last(cidr);
        for _ in 0..last {
            let candidate = nth(cidr, *next);
            *next = if *next < last { *next + 1 } else { 1 };
            if !self.ip_owner.contains_key(&candidate) {
                return Some(candidate);
            }
        }
        None
    }

    fn free_port(&mut self, but: &HashSet<u16>) -> Option<u16> {
        for _ in self.node_ports.clone() {
            let candidate = self.next_port;
            self.next_port = if candidate < *self.node_ports.end() {
                candidate + 1
            } else {
                *self.node_ports.start()
            };
            if !self.port_owner.contains_key(&candidate) && !but.contains(&candidate) {
                return Some(candidate);
            }
        }
        None
    }

    /// Makes `key` hold what its Service says, and nothing else. None: the Service is gone.
    pub(crate) fn hold(&mut self, key: &Key, old: Option<&Value>, new: Option<&Value>) {
        for (service, held) in [(old, false), (new, true)] {
            let Some(spec) = service.and_then(|service| service.get("spec")?.as_object()) else {
                continue;
            };
            for ip in texts(spec, "clusterIPs")
                .iter()
                .filter_map(|ip| ip.parse().ok())
            {
                if held {
                    self.ip_owner.insert(ip, key.clone())
                } else {
                    self.ip_owner.remove(&ip)
                };
            }
            for port in node_ports(spec) {
                if held {
                    self.port_owner.insert(port, key.clone())
                } else {
                    self.port_owner.remove(&port)
                };
            }
        }
    }
}

/// The last usable address of a range, as an offset from its first.
fn last(cidr: &IpNet) -> u64 {
    let bits = u32::from(cidr.max_prefix_len() - cidr.prefix_len()).min(20);
    let broadcast = u64::from(cidr.addr().is_ipv4());
    ((1_u64 << bits) - 1).saturating_sub(broadcast)
}

/// The address at an offset from the first of a range.
pub(crate) fn nth(cidr: &IpNet, offset: u64) -> IpAddr {
    match cidr.network() {
        IpAddr::V4(base) => {
            Ipv4Addr::from_bits(base.to_bits() | u32::try_from(offset).unwrap_or(0)).into()
        }
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() | u128::from(offset)).into(),
    }
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Completes `object`, which is `old` in a new version, in place.
pub(crate) fn fill(
    kind: Kind,
    key: &Key,
    object: &mut Value,
    old: Option<&Value>,
    allocations: &mut Allocations,
) -> Result<(), Invalid> {
    let object = object
        .as_object_mut()
        .ok_or_else(|| invalid("", "is no object"))?;
    match kind {
        Kind::Service => service(key, object, old, allocations),
        Kind::EndpointSlice => endpoint_slice(object),
        Kind::Node => node(section(object, "spec")?),
        Kind::Event | Kind::ServiceCidr => Ok(()),
    }
}

fn node(spec: &mut Map<String, Value>) -> Result<(), Invalid> {
    let (one, all) = (text(spec, "podCIDR").to_owned(), texts(spec, "podCIDRs"));
    match all.first() {
        None if one.is_empty() => {}
        None => default(spec, "podCIDRs", json!([one])),
        Some(first) if one.is_empty() || *first == one => default(spec, "podCIDR", first.as_str()),
        Some(_) => return Err(invalid("spec.podCIDRs[0]", "is not spec.podCIDR")),
    }
    Ok(())
}

fn endpoint_slice(slice: &mut Map<String, Value>) -> Result<(), Invalid> {
    if !["IPv4", "IPv6", "FQDN"].contains(&text(slice, "addressType")) {
        return Err(invalid("addressType", "must be IPv4, IPv6 or FQDN"));
    }
    default(slice, "endpoints", Value::Null);
    default(slice, "ports", Value::Null);
    for port in maps(slice, "ports", "ports")? {
        default(port, "name", "");
        default(port, "protocol", "TCP");
    }
    Ok(())
}

fn service(
    key: &Key,
    service: &mut Map<String, Value>,
    old: Option<&Value>,
    allocations: &mut Allocations,
) -> Result<(), Invalid> {
    let old = old.and_then(|old| old.get("spec")?.as_object());
    let spec = section(service, "spec")?;

    default(spec, "type", "ClusterIP");
    let kind = text(spec, "type").to_owned();
    if !["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"].contains(&kind.as_str()) {
        return Err(invalid(
            "spec.type",
            "must be ClusterIP, NodePort, LoadBalancer or ExternalName",
        ));
    }
    let external = match kind.as_str() {
        "ClusterIP" => !texts(spec, "externalIPs").is_empty(),
        kind => kind != "ExternalName",
    };
    default(spec, "sessionAffinity", "None");
    match text(spec, "sessionAffinity") {
        "ClientIP" => {
            let client_ip = section(section(spec, "sessionAffinityConfig")?, "clientIP")?;
            default(client_ip, "timeoutSeconds", 10_800);
        }
        "None" => _ = spec.remove("sessionAffinityConfig"),
        _ => return Err(invalid("spec.sessionAffinity", "must be ClientIP or None")),
    }
    if external {
        default(spec, "externalTrafficPolicy", "Cluster");
    } else if old.is_some() {
        spec.remove("externalTrafficPolicy");
    }
    if kind != "ExternalName" {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }

    let headless = cluster_ips(key, spec, old, &kind, allocations)?;
    ports(key, spec, old, &kind, headless, allocations)?;

    let balancer = section(section(service, "status")?, "loadBalancer")?;
    for ingress in maps(balancer, "ingress", "status.loadBalancer.ingress")? {
        if !text(ingress, "ip").is_empty() {
            default(ingress, "ipMode", "VIP");
        }
    }
    Ok(())
}

/// `clusterIP`, `clusterIPs`, `ipFamilies`, `ipFamilyPolicy`. Returns whether the Service is
/// headless.
fn cluster_ips(
    key: &Key,
    spec: &mut Map<String, Value>,
    old: Option<&Map<String, Value>>,
    kind: &str,
    allocations: &mut Allocations,
) -> Result<bool, Invalid> {
    if kind == "ExternalName" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            spec.remove(field);
        }
        return Ok(false);
    }
    let had = old.map_or_else(Vec::new, |old| texts(old, "clusterIPs"));
    let one = text(spec, "clusterIP").to_owned();
    let mut ips = texts(spec, "clusterIPs");
    if ips.is_empty() {
        ips = if one.is_empty() {
            had.clone()
        } else {
            vec![one]
        };
    } else if !one.is_empty() && ips.first() != Some(&one) {
        return Err(invalid("spec.clusterIPs[0]", "is not spec.clusterIP"));
    }
    if let (Some(was), Some(is)) = (had.first(), ips.first())
        && was != is
    {
        return Err(invalid(
            "spec.clusterIPs[0]",
            format!("is {was} for ever, it cannot become {is}"),
        ));
    }
    let headless = ips.first().is_some_and(|ip| ip == "None");
    let selects = spec
        .get("selector")
        .and_then(Value::as_object)
        .is_some_and(|selector| !selector.is_empty());

    let mut families = texts(spec, "ipFamilies");
    let given = match text(spec, "ipFamilyPolicy") {
        "" => old.map_or("", |old| text(old, "ipFamilyPolicy")),
        given => given,
    };
    let policy = match given {
        "" if headless && !selects => "RequireDualStack",
        "" if ips.len() > 1 || families.len() > 1 => "RequireDualStack",
        "" => "SingleStack",
        given @ ("SingleStack" | "PreferDualStack" | "RequireDualStack") => given,
        _ => {
            let why = "must be SingleStack, PreferDualStack or RequireDualStack";
            return Err(invalid("spec.ipFamilyPolicy", why));
        }
    }
    .to_owned();
    if policy == "SingleStack" && old.is_some() {
        // The way back from two families.
        ips.truncate(1);
        families.truncate(1);
    }
    if !headless {
        for (index, ip) in ips.iter().enumerate() {
            let field = format!("spec.clusterIPs[{index}]");
            let ip: IpAddr = ip
                .parse()
                .map_err(|_| invalid(&field, format!("{ip:?} is no IP address")))?;
            if let Some((namespace, name)) =
                allocations.ip_owner.get(&ip).filter(|owner| *owner != key)
            {
                return Err(invalid(
                    field,
                    format!("{ip} is already allocated to {namespace}/{name}"),
                ));
            }
            match families.get(index) {
                None => families.push(family(ip).into()),
                Some(given) if given == family(ip) => {}
                Some(given) => {
                    return Err(invalid(
                        field,
                        format!("{ip} is not {given}, see spec.ipFamilies"),
                    ));
                }
            }
        }
    }
    let served = if headless && !selects {
        vec!["IPv4", "IPv6"]
    } else {
        allocations.families()
    };
    let wanted = match policy.as_str() {
        "SingleStack" => 1,
        "PreferDualStack" => served.len().clamp(1, 2),
        _ => 2,
    };
    for family in served {
        if families.len() < wanted && !families.iter().any(|given| given == family) {
            families.push(family.into());
        }
    }
    if families.len() < wanted {
        return Err(invalid(
            "spec.ipFamilyPolicy",
            "asks for two families, and one is served",
        ));
    }
    if policy == "SingleStack" && families.len().max(ips.len()) > 1 {
        return Err(invalid(
            "spec.ipFamilyPolicy",
            "is SingleStack, with two families given",
        ));
    }
    if !headless {
        for family in families.iter().skip(ips.len()) {
            let ip = allocations.free_ip(family).ok_or_else(|| {
                invalid(
                    "spec.clusterIPs",
                    format!("no free {family} address in the Service ranges"),
                )
            })?;
            ips.push(ip.to_string());
        }
    }
    spec.insert("clusterIP".into(), json!(ips.first()));
    spec.insert("clusterIPs".into(), json!(ips));
    spec.insert("ipFamilies".into(), json!(families));
    spec.insert("ipFamilyPolicy".into(), json!(policy));
    Ok(headless)
}

/// `ports` with their node ports, and the health check's.
fn ports(
    key: &Key,
    spec: &mut Map<String, Value>,
    old: Option<&Map<String, Value>>,
    kind: &str,
    headless: bool,
    allocations: &mut Allocations,
) -> Result<(), Invalid> {
    let balanced = kind == "LoadBalancer";
    let allocate = kind == "NodePort"
        || (balanced && spec.get("allocateLoadBalancerNodePorts") != Some(&json!(false)));
    let health = balanced && text(spec, "externalTrafficPolicy") == "Local";
    let mut taken: HashSet<u16> = node_ports(spec).collect();
    let free = |field: &str, port: u16, allocations: &Allocations| match allocations
        .port_owner
        .get(&port)
        .filter(|owner| *owner != key)
    {
        None => Ok(()),
        Some((namespace, name)) => Err(invalid(
            field,
            format!("{port} is already allocated to {namespace}/{name}"),
        )),
    };
    let exhausted = |field: &str| invalid(field, "no free node port is left");

    let (mut names, mut pairs) = (HashSet::new(), HashSet::new());
    let ports = maps(spec, "ports", "spec.ports")?;
    let several = ports.len() > 1;
    if ports.is_empty() && !headless && kind != "ExternalName" {
        return Err(invalid("spec.ports", "is required"));
    }
    for (index, port) in ports.into_iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{index}].{name}");
        let number =
            number(port, "port").ok_or_else(|| invalid(field("port"), "must be 1 to 65535"))?;
        default(port, "protocol", "TCP");
        let protocol = text(port, "protocol").to_owned();
        if !["TCP", "UDP", "SCTP"].contains(&protocol.as_str()) {
            return Err(invalid(field("protocol"), "must be TCP, UDP or SCTP"));
        }
        if matches!(port.get("targetPort"), None | Some(Value::Null))
            || port.get("targetPort") == Some(&json!(0))
        {
            port.insert("targetPort".into(), number.into());
        }
        let name = text(port, "name").to_owned();
        if several && name.is_empty() {
            return Err(invalid(
                field("name"),
                "is required where there are several ports",
            ));
        }
        if !names.insert(name.clone()) {
            return Err(invalid(field("name"), "is another port's too"));
        }
        if !pairs.insert((number, protocol)) {
            return Err(invalid(
                field("port"),
                "is another port's too, with the same protocol",
            ));
        }
        let given = self::number(port, "nodePort");
        if given.is_none()
            && !matches!(port.get("nodePort"), None | Some(Value::Null))
            && port.get("nodePort") != Some(&json!(0))
        {
            return Err(invalid(field("nodePort"), "must be 1 to 65535"));
        }
        match given {
            Some(_) if old.is_some() && !allocate && !balanced => _ = port.remove("nodePort"),
            Some(_) if !allocate && !balanced => {
                return Err(invalid(
                    field("nodePort"),
                    format!("a Service of type {kind} has none"),
                ));
            }
            Some(given) => free(&field("nodePort"), given, allocations)?,
            None if allocate => {
                let held = old
                    .and_then(|old| held_node_port(old, &name))
                    .filter(|held| !taken.contains(held));
                let chosen = held.or_else(|| allocations.free_port(&taken));
                let chosen = chosen.ok_or_else(|| exhausted(&field("nodePort")))?;
                taken.insert(chosen);
                port.insert("nodePort".into(), chosen.into());
            }
            None => _ = port.remove("nodePort"),
        }
    }

    match number(spec, "healthCheckNodePort") {
        _ if !health => _ = spec.remove("healthCheckNodePort"),
        Some(given) => free("spec.healthCheckNodePort", given, allocations)?,
        None => {
            let held = old.and_then(|old| number(old, "healthCheckNodePort"));
            let chosen = held.or_else(|| allocations.free_port(&taken));
            let chosen = chosen.ok_or_else(|| exhausted("spec.healthCheckNodePort"))?;
            spec.insert("healthCheckNodePort".into(), chosen.into());
        }
    }
    Ok(())
}

/// Every node port that a Service's spec holds.
fn node_ports(spec: &Map<String, Value>) -> impl Iterator<Item = u16> {
    let ports = spec
        .get("ports")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let ports = ports.filter_map(|port| number(port.as_object()?, "nodePort"));
    ports.chain(number(spec, "healthCheckNodePort"))
}

fn held_node_port(old: &Map<String, Value>, name: &str) -> Option<u16> {
    let ports = old.get("ports")?.as_array()?;
    ports
        .iter()
        .filter_map(Value::as_object)
        .find(|port| text(port, "name") == name)
        .and_then(|port| number(port, "nodePort"))
}

/// Sets what is absent or null.
fn default(map: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    let slot = map.entry(name).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// A nested object, made if it is absent or null.
fn section<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> Result<&'a mut Map<String, Value>, Invalid> {
    default(map, name, json!({}));
    map.get_mut(name)
        .and_then(Value::as_object_mut)
        .ok_or_else(|| invalid(name, "must be an object"))
}

/// A nested list of objects; absent or null is empty.
fn maps<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
    path: &str,
) -> Result<Vec<&'a mut Map<String, Value>>, Invalid> {
    let wrong = || invalid(path, "must be a list of objects");
    match map.get_mut(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter_mut()
            .map(|item| item.as_object_mut().ok_or_else(wrong))
            .collect(),
        Some(_) => Err(wrong()),
    }
}

fn text<'a>(map: &'a Map<String, Value>, name: &str) -> &'a str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn texts(map: &Map<String, Value>, name: &str) -> Vec<String> {
    let items = map
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A port number: 1 to 65535.
fn number(map: &Map<String, Value>, name: &str) -> Option<u16> {
    map.get(name)?
        .as_u64()
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocations(cidrs: &[&str]) -> Allocations {
        Allocations::new(
            cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            30000..=30002,
        )
    }

    fn filled(name: &str, spec: &Value, from: &mut Allocations) -> Result<Value, String> {
        let key = ("default".into(), name.into());
        let mut object = json!({ "metadata": {}, "spec": spec });
        fill(Kind::Service, &key, &mut object, None, from).map_err(|invalid| invalid.field)?;
        from.hold(&key, None, Some(&object));
        Ok(object)
    }

    #[test]
    fn addresses_are_taken_in_order_and_given_back() {
        let mut from = allocations(&["10.0.0.0/29", "fd00::/112"]);
        let ask = |from: &mut Allocations, name: &str| {
            filled(name, &json!({ "ports": [{ "port": 1 }] }), from)
        };
        let ips: Vec<Value> = (0..6)
            .map(|n| {
                ask(&mut from, &format!("s{n}"))
                    .unwrap()
                    .pointer("/spec/clusterIP")
                    .unwrap()
                    .clone()
            })
            .collect();
        assert_eq!(
            ips,
            [
                "10.0.0.6", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"
            ]
        );
        assert_eq!(ask(&mut from, "full"), Err("spec.clusterIPs".into()));
        from.hold(
            &("default".into(), "s3".into()),
            Some(&json!({ "spec": { "clusterIPs": ["10.0.0.3"] } })),
            None,
        );
        assert_eq!(
            ask(&mut from, "s3").unwrap().pointer("/spec/clusterIP"),
            Some(&json!("10.0.0.3"))
        );
    }

    #[test]
    fn two_families() {
        let mut from = allocations(&["10.0.0.0/16", "fd00::/112"]);
        let prefer = filled(
            "a",
            &json!({ "ipFamilyPolicy": "PreferDualStack", "ports": [{ "port": 1 }] }),
            &mut from,
        );
        let prefer = prefer.unwrap();
        assert_eq!(
            prefer.pointer("/spec/clusterIPs"),
            Some(&json!(["10.0.1.0", "fd00::100"]))
        );
        assert_eq!(
            prefer.pointer("/spec/ipFamilies"),
            Some(&json!(["IPv4", "IPv6"]))
        );
        let six = filled(
            "b",
            &json!({ "ipFamilies": ["IPv6"], "ports": [{ "port": 1 }] }),
            &mut from,
        )
        .unwrap();
        assert_eq!(six.pointer("/spec/clusterIP"), Some(&json!("fd00::101")));
        assert_eq!(
            six.pointer("/spec/ipFamilyPolicy"),
            Some(&json!("SingleStack"))
        );

        let mut one = allocations(&["10.0.0.0/16"]);
        let require = json!({ "ipFamilyPolicy": "RequireDualStack", "ports": [{ "port": 1 }] });
        assert_eq!(
            filled("c", &require, &mut one),
            Err("spec.ipFamilyPolicy".into())
        );
        let wrong =
            json!({ "clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"], "ports": [{ "port": 1 }] });
        assert_eq!(
            filled("d", &wrong, &mut one),
            Err("spec.clusterIPs[0]".into())
        );
    }

    #[test]
    fn node_ports_run_out() {
        let mut from = allocations(&["10.0.0.0/16"]);
        let ask = |from: &mut Allocations, name: &str, port: u16| {
            filled(
                name,
                &json!({ "type": "NodePort", "ports": [{ "port": 1, "nodePort": port }] }),
                from,
            )
        };
        assert!(ask(&mut from, "a", 30001).is_ok());
        assert_eq!(
            ask(&mut from, "b", 30001),
            Err("spec.ports[0].nodePort".into())
        );
        for wanted in [30000, 30002] {
            let got = ask(&mut from, &wanted.to_string(), 0).unwrap();
            assert_eq!(got.pointer("/spec/ports/0/nodePort"), Some(&json!(wanted)));
        }
        assert_eq!(ask(&mut from, "c", 0), Err("spec.ports[0].nodePort".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut from = allocations(&["10.0.0.0/16"]);
        for (spec, field) in [
            (json!({}), "spec.ports"),
            (json!({ "ports": [{ "port": 0 }] }), "spec.ports[0].port"),
            (
                json!({ "ports": [{ "port": 70_000 }] }),
                "spec.ports[0].port",
            ),
            (
                json!({ "ports": [{ "port": 1, "protocol": "tcp" }] }),
                "spec.ports[0].protocol",
            ),
            (
                json!({ "ports": [{ "port": 1 }, { "port": 2, "name": "b" }] }),
                "spec.ports[0].name",
            ),
            (
                json!({ "ports": [{ "port": 1, "name": "a" }, { "port": 1, "name": "b" }] }),
                "spec.ports[1].port",
            ),
            (
                json!({ "ports": [{ "port": 1, "nodePort": 30000 }] }),
                "spec.ports[0].nodePort",
            ),
            (json!({ "ports": 1 }), "spec.ports"),
            (
                json!({ "type": "Nodeport", "ports": [{ "port": 1 }] }),
                "spec.type",
            ),
            (
                json!({ "clusterIP": "10.0.0", "ports": [{ "port": 1 }] }),
                "spec.clusterIPs[0]",
            ),
            (
                json!({ "sessionAffinity": "Client", "ports": [{ "port": 1 }] }),
                "spec.sessionAffinity",
            ),
        ] {
            assert_eq!(filled("x", &spec, &mut from), Err(field.into()), "{spec}");
        }
    }
}
