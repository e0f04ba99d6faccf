//! Sets default values in objects, like a real API server. Does not allocate ClusterIPs or ports:
//! clients must set them. Reports only errors that prevent defaulting.
//!
//! The rules come from `pkg/apis/*/v1/defaults.go` and `pkg/registry/core/service` of Kubernetes
//! 1.36.

use serde_json::{Map, Value, json};

use crate::resource::Kind;

/// Reason why an object is invalid, and the invalid field.
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

/// Sets the default values of `object`. `old` is the stored object that it replaces, if any.
pub(crate) fn fill(kind: Kind, object: &mut Value, old: Option<&Value>) -> Result<(), Invalid> {
    let object = object
        .as_object_mut()
        .ok_or_else(|| invalid("", "is no object"))?;
    match kind {
        Kind::Service => service(object, old),
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

fn service(service: &mut Map<String, Value>, old: Option<&Value>) -> Result<(), Invalid> {
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

    if kind != "ExternalName" {
        cluster_ips(spec, old)?;
    }
    for port in maps(spec, "ports", "spec.ports")? {
        default(port, "protocol", "TCP");
        let number = port.get("port").cloned();
        default(port, "targetPort", number);
    }

    let balancer = section(section(service, "status")?, "loadBalancer")?;
    for ingress in maps(balancer, "ingress", "status.loadBalancer.ingress")? {
        if !text(ingress, "ip").is_empty() {
            default(ingress, "ipMode", "VIP");
        }
    }
    Ok(())
}

/// Sets `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` from those of them that are
/// given. An updated Service keeps its ClusterIPs.
fn cluster_ips(
    spec: &mut Map<String, Value>,
    old: Option<&Map<String, Value>>,
) -> Result<(), Invalid> {
    let one = text(spec, "clusterIP").to_owned();
    let mut ips = texts(spec, "clusterIPs");
    if ips.is_empty() {
        ips = match old {
            Some(old) if one.is_empty() => texts(old, "clusterIPs"),
            _ => vec![one],
        };
    } else if !one.is_empty() && ips.first() != Some(&one) {
        return Err(invalid("spec.clusterIPs[0]", "is not spec.clusterIP"));
    }
    ips.retain(|ip| !ip.is_empty());
    let families: Vec<&str> = ips
        .iter()
        .map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" })
        .collect();
    if !families.is_empty() {
        spec.insert("clusterIP".into(), json!(ips.first()));
        spec.insert("clusterIPs".into(), json!(ips));
    }
    let policy = match families.len() {
        0 | 1 => "SingleStack",
        _ => "RequireDualStack",
    };
    default(spec, "ipFamilyPolicy", policy);
    default(spec, "ipFamilies", families);
    Ok(())
}

/// Sets the field `name` to `value` if it is absent or null.
fn default(map: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    let slot = map.entry(name).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// Returns the object in the field `name`. Creates an empty one if the field is absent or null.
fn section<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> Result<&'a mut Map<String, Value>, Invalid> {
    default(map, name, json!({}));
    map.get_mut(name)
        .and_then(Value::as_object_mut)
        .ok_or_else(|| invalid(name, "must be an object"))
}

/// Returns the objects in the list `name`. Empty if the field is absent or null.
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
