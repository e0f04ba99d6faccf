//! Decodes Services.

use std::net::IpAddr;

use hashbrown::HashSet;
use ipnet::IpNet;
use proxy::{FamilySet, IpFamily, Kind, Service, ServiceOptions, ServicePort, ServiceType};
use smallvec::SmallVec;

use super::address;
use super::decoded::{DecodedObject, MissingName, Object};
use super::findings::{Findings, family};
use super::wire::{self, Text};

/// Default of `sessionAffinityConfig.clientIP.timeoutSeconds`: three hours.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
/// Longest session affinity timeout that the API accepts, in seconds: one day.
const MAX_AFFINITY_SECONDS: u32 = 86_400;

/// Decodes a Service, with the API server's defaults for missing fields.
pub(crate) fn service(wire: wire::Service<'_>) -> Result<DecodedObject, MissingName> {
    let metadata = wire.metadata.unwrap_or_default();
    let mut findings = Findings::new(Kind::Service, &metadata)?;
    if !findings.is_kind(wire.kind.as_deref()) {
        return Ok(findings.unusable());
    }
    if !findings.is_well_named() {
        return Ok(findings.ignored("not a name"));
    }
    let spec = wire.spec.unwrap_or_default();
    if metadata
        .labels
        .is_some_and(|labels| labels.proxy_name.is_some())
    {
        return Ok(findings
            .ignored("label service.kubernetes.io/service-proxy-name: another proxy serves it"));
    }
    let kind = match spec.kind.as_deref() {
        None | Some("" | "ClusterIP") => ServiceType::ClusterIp,
        Some("NodePort") => ServiceType::NodePort,
        Some("LoadBalancer") => ServiceType::LoadBalancer,
        Some("ExternalName") => return Ok(findings.ignored("type ExternalName")),
        Some(other) => {
            findings.text(
                "spec.type",
                other,
                "give ClusterIP, NodePort or LoadBalancer; it is served as ClusterIP until then",
            );
            ServiceType::ClusterIp
        }
    };
    let given_ips = match (&spec.cluster_ips, &spec.cluster_ip) {
        (Some(ips), _) if !ips.is_empty() => &ips[..],
        (_, Some(ip)) if !ip.is_empty() => std::slice::from_ref(ip),
        _ => {
            findings.value(
                "spec.clusterIP",
                "missing",
                "the Service is ignored, because kube-proxy allocates no addresses: give it one",
            );
            return Ok(findings.ignored("no cluster IP"));
        }
    };
    if given_ips.iter().any(|ip| &**ip == "None") || spec.cluster_ip.as_deref() == Some("None") {
        return Ok(findings.ignored("headless"));
    }
    let cluster_ips = cluster_ips(&mut findings, given_ips, spec.ip_families.as_deref());
    if cluster_ips.is_empty() {
        return Ok(findings.unusable());
    }

    let has_family = |ip: IpAddr| cluster_ips.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
    let external_ips = further_ips(
        &mut findings,
        has_family,
        spec.external_ips
            .iter()
            .flatten()
            .enumerate()
            .map(|(i, ip)| (move || format!("spec.externalIPs[{i}]"), &**ip)),
    );
    let ingress = match kind {
        ServiceType::LoadBalancer => wire.status.unwrap_or_default().load_balancer,
        _ => None,
    }
    .and_then(|status| status.ingress)
    .unwrap_or_default();
    for (i, entry) in ingress.iter().enumerate() {
        if let Some(other) = entry.ip_mode.as_deref()
            && !matches!(other, "VIP" | "Proxy")
        {
            findings.text(
                format!("status.loadBalancer.ingress[{i}].ipMode"),
                other,
                "give VIP or Proxy; this address is ignored until then",
            );
        }
    }
    let ingress_ips = further_ips(
        &mut findings,
        has_family,
        ingress.iter().enumerate().filter_map(|(i, entry)| {
            let is_vip = matches!(entry.ip_mode.as_deref(), None | Some("VIP"));
            let ip = entry.ip.as_deref().filter(|ip| is_vip && !ip.is_empty())?;
            Some((move || format!("status.loadBalancer.ingress[{i}].ip"), ip))
        }),
    );
    let proxied = ingress
        .iter()
        .filter(|entry| entry.ip_mode.as_deref() == Some("Proxy"));
    let proxied_ips = proxied.filter_map(|entry| address::ip(entry.ip.as_deref()?));
    let proxied_ips = proxied_ips.collect();
    let (source_ranges, closed) = source_ranges(
        &mut findings,
        spec.load_balancer_source_ranges
            .as_deref()
            .unwrap_or_default(),
    );

    let ports = ports(
        &mut findings,
        spec.ports.as_deref().unwrap_or_default(),
        kind,
    );
    let is_external = kind != ServiceType::ClusterIp || !external_ips.is_empty();
    let external_local = policy(
        &mut findings,
        "spec.externalTrafficPolicy",
        spec.external_traffic_policy.as_deref(),
    ) && is_external;
    let internal_local = policy(
        &mut findings,
        "spec.internalTrafficPolicy",
        spec.internal_traffic_policy.as_deref(),
    );
    let health_check_node_port = match spec.health_check_node_port {
        None | Some(0) => None,
        Some(_) if kind != ServiceType::LoadBalancer || !external_local => None,
        port => findings.port(|| "spec.healthCheckNodePort".to_owned(), port),
    };
    let affinity_seconds = affinity(
        &mut findings,
        spec.session_affinity.as_deref(),
        spec.session_affinity_config
            .and_then(|config| config.client_ip)
            .and_then(|client_ip| client_ip.timeout_seconds),
    );
    let created = findings.time(
        "metadata.creationTimestamp",
        metadata.creation_timestamp.as_ref(),
    );
    let options = metadata.annotations.unwrap_or_default().options;
    let service = Service {
        name: findings.key.name.clone(),
        uid: (*metadata.uid.unwrap_or_default()).into(),
        created: created.map(jiff::Timestamp::as_second),
        kind,
        cluster_ips,
        yielded: Box::default(),
        external_ips,
        ingress_ips,
        proxied_ips,
        ports,
        affinity_seconds,
        internal_local,
        external_local,
        source_ranges,
        closed,
        health_check_node_port,
        options: ServiceOptions::read(options.iter().map(|(key, value)| (&**key, &**value))),
    };
    Ok(findings.proxied(Object::Service(service)))
}

/// Returns the cluster IPs, at most one of each family. If `ipFamilies` is set, this field
/// determines the families and the order of the addresses.
fn cluster_ips(
    findings: &mut Findings,
    given: &[Text<'_>],
    families: Option<&[Text<'_>]>,
) -> SmallVec<[IpAddr; 2]> {
    let families = families.unwrap_or_default();
    let mut ips = SmallVec::<[IpAddr; 2]>::new();
    for (i, text) in given.iter().enumerate() {
        let field = || format!("spec.clusterIPs[{i}]");
        let Some(ip) = findings.address(field, text) else {
            continue;
        };
        let of = IpFamily::of(ip);
        if let Some(wanted) = families.get(i)
            && family(wanted) != Some(of)
        {
            findings.text(
                field(),
                text,
                format!(
                    "{of}, but spec.ipFamilies[{i}] is {wanted:?}; it is not served until one of \
                     them is corrected"
                ),
            );
        } else if i >= families.len() && !families.is_empty() {
            findings.text(
                field(),
                text,
                format!(
                    "spec.ipFamilies has no entry {i}; it is not served until {of} is added there"
                ),
            );
        } else if ips.iter().any(|own| IpFamily::of(*own) == of) {
            findings.text(
                field(),
                text,
                format!("a second {of} address; only the first is served: remove one"),
            );
        } else {
            ips.push(ip);
        }
    }
    ips
}

/// Parses external or ingress IPs, without duplicates. Skips invalid addresses, and addresses of a
/// family in which the Service has no cluster IP.
fn further_ips<'a, F: Fn() -> String>(
    findings: &mut Findings,
    has_family: impl Fn(IpAddr) -> bool,
    given: impl Iterator<Item = (F, &'a str)>,
) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    let mut known = HashSet::new();
    for (field, text) in given {
        let Some(ip) = findings.address(&field, text) else {
            continue;
        };
        if !has_family(ip) {
            findings.text(
                field(),
                text,
                format!(
                    "the Service has no {} cluster IP; this address is not served until it has one",
                    IpFamily::of(ip)
                ),
            );
        } else if known.insert(ip) {
            ips.push(ip);
        }
    }
    ips
}

/// Parses `loadBalancerSourceRanges`. A /0 allows all clients of its family, so the result has no
/// range of that family.
///
/// An invalid range must not open the Service to every client. So after an invalid range, this
/// function also returns the IP families without a valid range.
fn source_ranges(findings: &mut Findings, given: &[Text<'_>]) -> (Vec<IpNet>, FamilySet) {
    let (mut ranges, mut closed) = (Vec::new(), FamilySet::default());
    let mut is_any_wrong = false;
    for (i, text) in given.iter().enumerate() {
        if let Some(net) = address::net(text.trim()) {
            ranges.push(net);
        } else {
            is_any_wrong = true;
            findings.text(
                format!("spec.loadBalancerSourceRanges[{i}]"),
                text,
                "not a network such as 10.0.0.0/8; it admits no client until it is corrected",
            );
        }
    }
    let of = |net: &IpNet| IpFamily::of(net.addr());
    if is_any_wrong {
        let is_closed = |family: &IpFamily| !ranges.iter().any(|net| of(net) == *family);
        closed.extend(IpFamily::ALL.into_iter().filter(is_closed));
    }
    for open in IpFamily::ALL {
        if ranges
            .iter()
            .any(|net| of(net) == open && net.prefix_len() == 0)
        {
            ranges.retain(|net| of(net) != open);
        }
    }
    (ranges, closed)
}

/// Returns the valid ports. If two ports of a protocol have the same name or number, returns only
/// the first.
fn ports(
    findings: &mut Findings,
    given: &[wire::ServicePort<'_>],
    kind: ServiceType,
) -> SmallVec<[ServicePort; 1]> {
    let mut ports = SmallVec::<[ServicePort; 1]>::new();
    let (mut numbers, mut names) = (HashSet::new(), HashSet::new());
    let mut node_ports = HashSet::new();
    if given.is_empty() {
        findings.value(
            "spec.ports",
            "missing",
            "a Service without ports serves nothing: give it ports, and check the spelling of its \
             fields",
        );
    }
    for (i, wire) in given.iter().enumerate() {
        let Some(protocol) = findings.protocol(
            || format!("spec.ports[{i}].protocol"),
            wire.protocol.as_deref(),
        ) else {
            continue;
        };
        let Some(port) = findings.port(|| format!("spec.ports[{i}].port"), wire.port) else {
            continue;
        };
        let Some(name) =
            findings.port_name(|| format!("spec.ports[{i}].name"), wire.name.as_deref())
        else {
            continue;
        };
        // Uses hash sets, because an object may have 65,535 ports.
        if numbers.contains(&(protocol, port)) || names.contains(&(protocol, name)) {
            findings.text(
                format!("spec.ports[{i}]"),
                &format!("{name}:{port}/{protocol}"),
                "an earlier port has the same name or number; this one is ignored: change one of \
                 them",
            );
            continue;
        }
        let field = || format!("spec.ports[{i}].nodePort");
        let node_port = match wire.node_port {
            None | Some(0) => None,
            Some(number) if kind == ServiceType::ClusterIp => {
                findings.value(
                    field(),
                    number,
                    "a Service of type ClusterIP has no node ports; it is not served: change \
                     spec.type",
                );
                None
            }
            Some(number) if node_ports.contains(&(protocol, number)) => {
                findings.value(
                    field(),
                    number,
                    "an earlier port has the same; it is not served: change one of them",
                );
                None
            }
            number => findings.port(field, number),
        };
        numbers.insert((protocol, port));
        names.insert((protocol, name));
        node_ports.extend(node_port.map(|number| (protocol, i64::from(number))));
        ports.push(ServicePort {
            name: name.into(),
            protocol,
            port,
            node_port,
        });
    }
    ports
}

/// Reports whether a traffic policy is `Local`. An invalid policy counts as `Cluster`.
fn policy(findings: &mut Findings, field: &str, text: Option<&str>) -> bool {
    match text {
        Some("Local") => true,
        None | Some("" | "Cluster") => false,
        Some(other) => {
            findings.text(
                field,
                other,
                "give Cluster or Local; it is Cluster until then",
            );
            false
        }
    }
}

fn affinity(findings: &mut Findings, affinity: Option<&str>, seconds: Option<i64>) -> Option<u32> {
    match affinity {
        Some("ClientIP") => {}
        None | Some("" | "None") => return None,
        Some(other) => {
            findings.text(
                "spec.sessionAffinity",
                other,
                "give ClientIP or None; it is None until then",
            );
            return None;
        }
    }
    let Some(seconds) = seconds else {
        return Some(DEFAULT_AFFINITY_SECONDS);
    };
    if let Ok(seconds @ 1..=MAX_AFFINITY_SECONDS) = u32::try_from(seconds) {
        return Some(seconds);
    }
    findings.value(
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        seconds,
        format!("give 1 to {MAX_AFFINITY_SECONDS}; it is {DEFAULT_AFFINITY_SECONDS} until then"),
    );
    Some(DEFAULT_AFFINITY_SECONDS)
}
