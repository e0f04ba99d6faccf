#![allow(
    clippy::needless_pass_by_value,
    reason = "literals are handed over as they are written"
)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use proxy::{
    EndpointSlice, Event, IpFamily, Kind, NamespacedName, Placement, Protocol, Service, ServiceType,
};
use serde_json::{Value, json};
use std::net::IpAddr;

use super::decoded::Object;
use super::json::{self, object as from_json};
use super::*;

fn decode(kind: Kind, object: &Value) -> DecodedObject {
    from_json(kind, &object.to_string()).unwrap()
}

/// Decodes a Service `default/web` with this spec. Returns its content and problems.
fn web(spec: Value) -> (Content, Vec<String>) {
    web_with(spec, json!({}))
}

fn web_with(spec: Value, rest: Value) -> (Content, Vec<String>) {
    let mut object = json!({"metadata": {"name": "web"}, "spec": spec});
    for (key, value) in rest.as_object().unwrap() {
        object[key] = value.clone();
    }
    let decoded = decode(Kind::Service, &object);
    (
        decoded.content,
        decoded.problems.iter().map(ToString::to_string).collect(),
    )
}

fn served(content: (Content, Vec<String>)) -> Service {
    assert_eq!(content.1, [""; 0]);
    of(content.0)
}

fn of(content: Content) -> Service {
    match content {
        Content::Proxied(Object::Service(service)) => service,
        other => panic!("{other:?}"),
    }
}

fn ips(ips: &[IpAddr]) -> Vec<String> {
    ips.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_with_all_fields_is_decoded() {
    let service = served(web_with(
        json!({
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10", "fd00:96::10"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "externalIPs": ["192.0.2.1", "fd00:2::1", "192.0.2.1"],
            "ports": [
                {"name": "http", "port": 80, "targetPort": "web", "nodePort": 30080, "protocol": "TCP"},
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "sig", "port": 80, "protocol": "SCTP", "nodePort": 30080},
            ],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "internalTrafficPolicy": "Local",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000,
            "loadBalancerSourceRanges": [" 203.0.113.7/24 ", "fd00:3::/64"],
        }),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u-1", "resourceVersion": "7",
                "creationTimestamp": "2024-05-06T07:08:09Z",
                "labels": {"app": "web"}, "managedFields": [{"fieldsV1": {"f:spec": {}}}],
            },
            "status": {"loadBalancer": {"ingress": [
                {"ip": "198.51.100.1"}, {"ip": "198.51.100.2", "ipMode": "VIP"},
                {"ip": "198.51.100.3", "ipMode": "Proxy"}, {"hostname": "lb.example"},
            ]}},
        }),
    ));
    assert_eq!(service.name, NamespacedName::new("shop", "web"));
    assert_eq!(
        (&*service.uid, service.created),
        ("u-1", Some(1_714_979_289))
    );
    assert_eq!(service.kind, ServiceType::LoadBalancer);
    assert_eq!(ips(&service.cluster_ips), ["10.96.0.10", "fd00:96::10"]);
    assert_eq!(ips(&service.external_ips), ["192.0.2.1", "fd00:2::1"]);
    assert_eq!(ips(&service.ingress_ips), ["198.51.100.1", "198.51.100.2"]);
    assert_eq!(ips(&service.proxied_ips), ["198.51.100.3"]);
    let ports: Vec<_> = service
        .ports
        .iter()
        .map(|p| format!("{}:{}/{}>{:?}", p.name, p.port, p.protocol, p.node_port))
        .collect();
    assert_eq!(
        ports,
        [
            "http:80/TCP>Some(30080)",
            "dns:53/UDP>None",
            "sig:80/SCTP>Some(30080)"
        ]
    );
    assert_eq!(service.affinity_seconds, Some(60));
    assert!(service.internal_local && service.external_local);
    assert_eq!(service.health_check_node_port, Some(32000));
    let ranges: Vec<_> = service
        .source_ranges
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(ranges, ["203.0.113.0/24", "fd00:3::/64"]);
}

#[test]
fn missing_service_fields_get_the_api_servers_defaults() {
    let service = served(web(
        json!({"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}),
    ));
    assert_eq!(service.name, NamespacedName::new("default", "web"));
    assert_eq!(service.kind, ServiceType::ClusterIp);
    assert_eq!(ips(&service.cluster_ips), ["10.96.0.10"]);
    let port = &service.ports[0];
    assert_eq!(
        (&*port.name, port.protocol, port.node_port),
        ("", Protocol::Tcp, None)
    );
    assert_eq!((service.affinity_seconds, service.created), (None, None));
    assert!(!service.internal_local && !service.external_local);

    let both = served(web(
        json!({"clusterIPs": ["fd00::1", "10.96.0.1"], "ports": [{"port": 80}]}),
    ));
    assert_eq!(ips(&both.cluster_ips), ["fd00::1", "10.96.0.1"]);
    let affine = served(web(
        json!({"clusterIP": "10.96.0.1", "sessionAffinity": "ClientIP", "ports": [{"port": 80}]}),
    ));
    assert_eq!(affine.affinity_seconds, Some(10_800));
    let (nulls, problems) = web_with(
        json!({"clusterIP": "10.96.0.1", "ports": null, "externalIPs": null, "ipFamilies": null}),
        json!({"metadata": {"name": "web", "creationTimestamp": null, "labels": null}, "status": null}),
    );
    assert!(of(nulls).ports.is_empty());
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    let wanted =
        "Service default/web: spec.ports is missing: a Service without ports serves nothing";
    assert!(problem.starts_with(wanted), "{problem}");
}

#[test]
fn option_annotations_are_parsed_and_unrelated_annotations_are_ignored() {
    let read = |annotations: Value| {
        let metadata = json!({"metadata": {"name": "web", "annotations": annotations}});
        let spec = json!({"clusterIP": "10.96.0.10", "ports": [{"port": 80}]});
        served(web_with(spec, metadata)).options
    };
    for none in [
        json!(null),
        json!({}),
        json!({"a": "b", "scheduler": "sh", "other.io/x": {"not": ["a", "text"]}}),
        json!({"kube-proxy-ipvs/scheduler": ""}),
        json!({"kube-proxy-ipvs/scheduler": null}),
    ] {
        assert_eq!(read(none), None);
    }
    let options = read(json!({
        "a": "b", "kube-proxy-ipvs/scheduler": "sh", "kube-proxy-ipvs/weight": "3", "z": "y"
    }));
    let options = options.unwrap();
    assert_eq!(options.scheduler.unwrap().name(), "sh");
    let wrong: Vec<_> = options.wrong.iter().map(|one| &*one.annotation).collect();
    assert_eq!(wrong, ["kube-proxy-ipvs/weight"]);
    let options = read(json!({"kube-proxy-ipvs/scheduler": "best"})).unwrap();
    assert_eq!(
        (options.scheduler, &*options.wrong[0].value),
        (None, "best")
    );
    // A text with an escape cannot be borrowed from JSON, so it is copied.
    let escaped = r#"{"metadata":{"name":"web","annotations":{"kube-proxy-ipvs\u002fscheduler":"s\u0068"}},"spec":{"clusterIP":"10.96.0.10"}}"#;
    let options = of(from_json(Kind::Service, escaped).unwrap().content).options;
    assert_eq!(options.unwrap().scheduler.unwrap().name(), "sh");
}

#[test]
fn services_for_other_proxies_are_ignored() {
    let ignored = |content: (Content, Vec<String>)| match content {
        (Content::Ignored(why), problems) => (why.split(':').next().unwrap_or(why), problems.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(ignored(web(json!({"clusterIP": "None"}))), ("headless", 0));
    assert_eq!(
        ignored(web(json!({"clusterIPs": ["None"]}))),
        ("headless", 0)
    );
    assert_eq!(
        ignored(web(json!({"type": "ExternalName", "externalName": "a.b"}))),
        ("type ExternalName", 0)
    );
    assert_eq!(ignored(web(json!({"clusterIP": ""}))), ("no cluster IP", 1));
    let labels = json!({"name": "web", "labels": {"service.kubernetes.io/service-proxy-name": ""}});
    assert_eq!(
        ignored(web_with(
            json!({"clusterIP": "10.96.0.1"}),
            json!({"metadata": labels})
        )),
        ("label service.kubernetes.io/service-proxy-name", 0)
    );
}

#[test]
fn external_policy_local_applies_only_to_services_with_external_traffic() {
    let local = |mut spec: Value| {
        spec["clusterIP"] = json!("10.96.0.1");
        spec["externalTrafficPolicy"] = json!("Local");
        spec["healthCheckNodePort"] = json!(32000);
        let service = of(web(spec).0);
        (
            service.external_local,
            service.health_check_node_port.is_some(),
        )
    };
    assert_eq!(local(json!({})), (false, false));
    assert_eq!(local(json!({"externalIPs": ["192.0.2.1"]})), (true, false));
    assert_eq!(local(json!({"type": "NodePort"})), (true, false));
    assert_eq!(local(json!({"type": "LoadBalancer"})), (true, true));
}

#[test]
fn a_source_range_of_all_addresses_opens_only_its_ip_family() {
    let ranges = |ranges: Value| {
        let service = of(web_with(
            json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.1", "fd00::1"], "loadBalancerSourceRanges": ranges}),
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "fd00:2::1"}]}}}),
        ).0);
        let text: Vec<_> = service
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect();
        let closed = IpFamily::ALL.map(|family| service.closed.contains(family));
        (text.join(","), closed)
    };
    let none = [false, false];
    assert_eq!(ranges(json!([])), (String::new(), none));
    assert_eq!(
        ranges(json!(["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"])),
        ("fd00::/8".into(), none)
    );
    assert_eq!(ranges(json!(["10.0.0.0/8"])), ("10.0.0.0/8".into(), none));
    // An invalid range admits no client. Without a valid range, a family's addresses are closed.
    assert_eq!(
        ranges(json!(["10.0.0.0/8", "web"])),
        ("10.0.0.0/8".into(), [false, true])
    );
    assert_eq!(
        ranges(json!(["10.0.0.0/88"])),
        (String::new(), [true, true])
    );
}

/// Checks that an invalid field affects only itself, and that the problem contains the field's
/// value.
#[test]
fn an_invalid_field_of_a_service_is_ignored_and_reported() {
    for (spec, named, check) in [
        (
            json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv4"]}),
            r#"spec.clusterIPs[1] is "fd00::1": IPv6, but spec.ipFamilies[1] is "IPv4""#,
            (|s| s.cluster_ips.len() == 1) as fn(&Service) -> bool,
        ),
        (
            json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4"]}),
            r#"spec.clusterIPs[1] is "fd00::1": spec.ipFamilies has no entry 1"#,
            |s| s.cluster_ips.len() == 1,
        ),
        (
            json!({"clusterIPs": ["10.96.0.1", "10.96.0.2"]}),
            r#"spec.clusterIPs[1] is "10.96.0.2": a second IPv4 address"#,
            |s| ips(&s.cluster_ips) == ["10.96.0.1"],
        ),
        (
            json!({"clusterIPs": ["10.96.0.1", "10.96.0.256"]}),
            r#"spec.clusterIPs[1] is "10.96.0.256": not an IP address"#,
            |s| s.cluster_ips.len() == 1,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "externalIPs": ["web", "127.0.0.1", "192.0.2.1"]}),
            "spec.externalIPs[1] is 127.0.0.1: a loopback address",
            |s| ips(&s.external_ips) == ["192.0.2.1"],
        ),
        (
            json!({"clusterIP": "10.96.0.1", "externalIPs": ["fd00::1"]}),
            r#"spec.externalIPs[0] is "fd00::1": the Service has no IPv6 cluster IP"#,
            |s| s.external_ips.is_empty(),
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"port": 0}, {"port": 70000}, {"port": 80}]}),
            "spec.ports[1].port is 70000: a port is 1 to 65535",
            |s| s.ports.len() == 1 && s.ports[0].port == 80,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{}, {"port": 80}]}),
            "spec.ports[0].port is missing",
            |s| s.ports.len() == 1,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80, "protocol": "tcp"}]}),
            r#"spec.ports[0].protocol is "tcp": give TCP, UDP or SCTP"#,
            |s| s.ports.is_empty(),
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]}),
            r#"spec.ports[1] is "b:80/TCP": an earlier port has the same"#,
            |s| s.ports.len() == 1,
        ),
        (
            json!({"type": "NodePort", "clusterIP": "10.96.0.1", "ports": [{"port": 80, "nodePort": -1}]}),
            "spec.ports[0].nodePort is -1",
            |s| s.ports[0].node_port.is_none(),
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80, "nodePort": 30080}]}),
            "spec.ports[0].nodePort is 30080: a Service of type ClusterIP has no node ports",
            |s| s.ports[0].node_port.is_none(),
        ),
        (
            json!({"type": "NodePort", "clusterIP": "10.96.0.1", "ports": [
                {"name": "a", "port": 80, "nodePort": 30080}, {"name": "b", "port": 81, "nodePort": 30080}]}),
            "spec.ports[1].nodePort is 30080: an earlier port has the same",
            |s| s.ports.len() == 2 && s.ports[1].node_port.is_none(),
        ),
        (
            json!({"type": "Magic", "clusterIP": "10.96.0.1"}),
            r#"spec.type is "Magic": give ClusterIP"#,
            |s| s.kind == ServiceType::ClusterIp,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds is 0: give 1 to 86400",
            |s| s.affinity_seconds == Some(10_800),
        ),
        (
            json!({"clusterIP": "10.96.0.1", "internalTrafficPolicy": "local"}),
            r#"spec.internalTrafficPolicy is "local": give Cluster or Local"#,
            |s| !s.internal_local,
        ),
    ] {
        let (content, problems) = web(spec.clone());
        let wanted = format!("Service default/web: {named}");
        assert!(
            problems.iter().any(|problem| problem.starts_with(&wanted)),
            "{spec}: {problems:?} lacks {wanted:?}"
        );
        let service = of(content);
        assert!(check(&service), "{spec}: {service:?}");
    }
}

/// Checks stored objects that are older than the present validation. This validation requires a
/// single spelling of addresses, and names that begin with a letter.
#[test]
fn old_field_spellings_in_stored_objects_are_normalized() {
    let spec = |ips: &[&str], external: &str, range: &str, names: [&str; 2]| {
        let [name, port] = names;
        json!({
            "metadata": {"name": name, "namespace": "1st"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": ips[0], "clusterIPs": ips,
                "externalIPs": [external], "loadBalancerSourceRanges": [range],
                "ports": [{"name": port, "port": 80, "protocol": "TCP"}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": external}]}},
        })
    };
    let read = |object: &Value| {
        let decoded = decode(Kind::Service, object);
        assert_eq!(decoded.problems.len(), 0, "{:?}", decoded.problems);
        of(decoded.content)
    };
    let names = ["2nd-web", "8080-http"];
    let canonical = ["10.96.0.10", "fd00:96::a"];
    let wanted = read(&spec(&canonical, "192.0.2.1", "10.0.0.0/8", names));
    assert_eq!(wanted.name.to_string(), "1st/2nd-web");
    for (ips, external, range) in [
        (
            ["010.096.000.010", "FD00:96:0:0::000A"],
            "192.000.002.001",
            "010.1.2.3/8",
        ),
        (
            ["::ffff:10.96.0.10", "fd00:0096::a"],
            "::FFFF:192.0.2.1",
            "::ffff:10.0.0.0/104",
        ),
        (
            ["::ffff:a60:a", "fd00:96:0:0:0:0:0:a"],
            "::ffff:c000:201",
            " 10.0.0.0/8 ",
        ),
    ] {
        assert_eq!(read(&spec(&ips, external, range, names)), wanted);
    }
    let (read, problems) = read_slice(json!({
        "metadata": {"name": "2nd-web-x", "namespace": "1st", "labels": {"kubernetes.io/service-name": "2nd-web"}},
        "addressType": "IPv4",
        "ports": [{"name": "8080-http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["010.244.001.005"]}, {"addresses": ["::ffff:10.244.1.6"]}],
    }));
    assert_eq!(problems, [""; 0]);
    let addresses = read.endpoints.iter().map(|endpoint| endpoint.address);
    assert_eq!(
        ips(&addresses.collect::<Vec<_>>()),
        ["10.244.1.5", "10.244.1.6"]
    );
}

#[test]
fn a_service_without_a_valid_address_is_unusable() {
    let (content, problems) =
        web(json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1"], "ipFamilies": ["IPv4"]}));
    assert_eq!(content, Content::Unusable);
    assert!(
        problems[0].starts_with(r#"Service default/web: spec.clusterIPs[0] is "fd00::1": IPv6"#)
    );
    let (content, problems) = web_with(json!({"clusterIP": "10.96.0.1"}), json!({"kind": "Pod"}));
    assert_eq!(content, Content::Unusable);
    assert!(problems[0].contains(r#"kind is "Pod": a Service was requested"#));
}

#[test]
fn an_object_that_cannot_be_decoded_is_reported_by_name() {
    let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": "http"}]}});
    let decoded = decode(Kind::Service, &object);
    assert_eq!(
        decoded.clone().into_event(),
        Event::Unreadable(Kind::Service, NamespacedName::new("shop", "web"))
    );
    let said = decoded.problems[0].to_string();
    assert!(
        said.starts_with(
            "Service shop/web: the object is unreadable: invalid type: string \"http\""
        ) && said.contains(r#"\"port\":\"http\""#),
        "{said}"
    );
    for nameless in [
        json!({}),
        json!([]),
        json!("x"),
        json!({"metadata": {"name": 5}, "spec": 1}),
    ] {
        let error = from_json(Kind::Service, &nameless.to_string()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("Service without metadata.name"),
            "{error}"
        );
    }
}

fn slice(object: Value) -> (Content, Vec<String>) {
    let decoded = decode(Kind::EndpointSlice, &object);
    (
        decoded.content,
        decoded.problems.iter().map(ToString::to_string).collect(),
    )
}

fn read_slice(object: Value) -> (EndpointSlice, Vec<String>) {
    match slice(object) {
        (Content::Proxied(Object::EndpointSlice(slice)), problems) => (slice, problems),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_endpoint_slice_with_all_fields_is_decoded() {
    let (slice, problems) = read_slice(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "web-a", "namespace": "shop",
            "labels": {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "lab"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2024-05-06T07:08:09.5Z"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "", "port": 53, "protocol": "UDP"}],
        "endpoints": [
            {"addresses": ["10.244.1.5", "10.244.1.6"], "conditions": {"ready": true, "serving": true, "terminating": false},
             "nodeName": "node1", "zone": "a", "targetRef": {"kind": "Pod", "name": "p"},
             "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "node1"}]}},
            {"addresses": ["10.244.2.5"], "conditions": {"ready": false, "serving": true, "terminating": true}, "nodeName": "node2"},
            {"addresses": ["10.244.2.6"], "conditions": {}, "nodeName": "node2"},
            {"addresses": ["10.244.3.5"]},
        ],
    }));
    assert_eq!(problems, [""; 0]);
    assert_eq!(slice.name, NamespacedName::new("shop", "web-a"));
    assert_eq!(slice.service, NamespacedName::new("shop", "web"));
    assert_eq!(slice.family, IpFamily::V4);
    assert_eq!(
        slice.change_trigger,
        Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_714_979_289_500))
    );
    assert_eq!((&*slice.ports[0].name, slice.ports[0].port), ("http", 8080));
    assert_eq!(
        (&*slice.ports[1].name, slice.ports[1].protocol),
        ("", Protocol::Udp)
    );
    let endpoints: Vec<_> = slice
        .endpoints
        .iter()
        .map(|e| (e.address.to_string(), e.ready, e.serving, e.terminating))
        .collect();
    assert_eq!(
        endpoints,
        [
            ("10.244.1.5".to_owned(), true, true, false),
            ("10.244.2.5".to_owned(), false, true, true),
            ("10.244.2.6".to_owned(), true, true, false),
            ("10.244.3.5".to_owned(), true, true, false),
        ]
    );
    let placements: Vec<_> = slice.endpoints.iter().map(|e| e.placement).collect();
    assert_eq!(
        **placements[0],
        Placement {
            node: Some("node1".into()),
            zone: Some("a".into()),
            for_nodes: ["node1".into()].into(),
            for_zones: ["a".into()].into(),
        }
    );
    assert!(Arc::ptr_eq(placements[1], placements[2]));
    assert_eq!(**placements[3], Placement::default());
}

#[test]
fn each_endpoint_slice_sets_the_zone_of_its_own_endpoints() {
    let long = "z".repeat(64);
    for zone in ["a", "b", &long] {
        let (slice, problems) = read_slice(json!({
            "metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.244.1.5"], "nodeName": "node1", "zone": zone}],
        }));
        assert_eq!(problems, [""; 0]);
        let endpoint = slice.endpoints.iter().next().unwrap();
        let kept = Some(zone).filter(|zone| zone.len() < 64);
        assert_eq!(endpoint.placement.zone.as_deref(), kept);
    }
}

#[test]
fn endpoint_slices_for_other_consumers_are_ignored() {
    let ignored = |labels: Value, kind: &str| match slice(
        json!({"metadata": {"name": "a", "labels": labels}, "addressType": kind}),
    ) {
        (Content::Ignored(_), problems) => problems,
        other => panic!("{other:?}"),
    };
    let web = json!({"kubernetes.io/service-name": "web"});
    assert_eq!(ignored(web.clone(), "FQDN"), [""; 0]);
    assert_eq!(
        ignored(
            json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""}),
            "IPv4"
        ),
        [""; 0]
    );
    let problems = ignored(json!({}), "IPv4");
    assert!(
        problems[0]
            .starts_with("EndpointSlice default/a: label kubernetes.io/service-name is missing")
    );
    assert_eq!(
        slice(json!({"metadata": {"name": "a", "labels": web}})).0,
        Content::Unusable,
        "no addressType"
    );
}

#[test]
fn an_invalid_field_of_an_endpoint_slice_is_ignored_and_reported() {
    let (slice, problems) = read_slice(json!({
        "metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv6",
        "ports": [{"port": 80}, {"name": "all"}, {"port": 65536}, {"port": 80, "protocol": "QUIC"}],
        "endpoints": [
            {"addresses": ["fd00::1"]}, {"addresses": []}, {}, {"addresses": null},
            {"addresses": ["10.0.0.1"]}, {"addresses": ["pod-1"]}, {"addresses": ["::"]}, {"addresses": ["ff02::1"]},
        ],
    }));
    assert_eq!((slice.ports.len(), slice.endpoints.len()), (1, 1));
    for (said, wanted) in problems.iter().zip([
        "ports[1].port is missing: ",
        "ports[2].port is 65536: ",
        r#"ports[3].protocol is "QUIC": "#,
        "endpoints[1].addresses is empty: ",
        "endpoints[2].addresses is empty: ",
        "endpoints[3].addresses is empty: ",
        "endpoints[4].addresses[0] is 10.0.0.1: IPv4, but addressType is IPv6",
        r#"endpoints[5].addresses[0] is "pod-1": not an IP address"#,
        "endpoints[6].addresses[0] is ::: an unspecified address",
        "endpoints[7].addresses[0] is ff02::1: not an address of one host",
    ]) {
        let wanted = format!("EndpointSlice default/a: {wanted}");
        assert!(said.starts_with(&wanted), "{said:?} is not {wanted:?}");
    }
    assert_eq!(problems.len(), 10);
}

#[test]
fn a_node_is_decoded() {
    let decoded = decode(
        Kind::Node,
        &json!({
            "metadata": {"name": "node1", "labels": {"topology.kubernetes.io/zone": "zone-a"}},
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:244:1::/64", "web"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "node1"}, {"type": "ExternalIP", "address": "192.0.2.1"},
                {"type": "InternalIP", "address": "192.168.99.10"}, {"type": "InternalIP", "address": "fd00:99::10"},
                {"type": "InternalIP", "address": "x"},
            ]},
        }),
    );
    assert_eq!(decoded.key.to_string(), "Node node1");
    let Content::Proxied(Object::Node(node)) = decoded.content else {
        panic!("{:?}", decoded.content);
    };
    assert_eq!(
        ips(&node.addresses),
        ["192.168.99.10", "fd00:99::10", "192.0.2.1"]
    );
    assert_eq!(node.zone.as_deref(), Some("zone-a"));
    let nets: Vec<_> = node.pod_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["10.244.1.0/24", "fd00:244:1::/64"]);
    assert_eq!(decoded.problems.len(), 2);
    assert!(
        decoded.problems[0]
            .to_string()
            .starts_with(r#"Node node1: status.addresses[4].address is "x""#)
    );

    let one = decode(
        Kind::Node,
        &json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.244.1.0/24"}}),
    );
    assert!(
        matches!(one.content, Content::Proxied(Object::Node(node)) if node.pod_cidrs.len() == 1)
    );
}

#[test]
fn a_service_cidr_is_decoded() {
    let decoded = decode(
        Kind::ServiceCidr,
        &json!({
            "metadata": {"name": "more", "namespace": "of no use"},
            "spec": {"cidrs": ["10.128.0.0/16", "fd00:96::/112", "10.0.0.1"]},
        }),
    );
    assert_eq!(decoded.key.to_string(), "ServiceCIDR more");
    let [problem] = &decoded.problems[..] else {
        panic!("{:?}", decoded.problems)
    };
    assert!(
        problem
            .to_string()
            .starts_with(r#"ServiceCIDR more: spec.cidrs[2] is "10.0.0.1": not a network"#)
    );
    let Content::Proxied(Object::ServiceCidr(cidr)) = decoded.content else {
        panic!("{:?}", decoded.content);
    };
    assert_eq!(&*cidr.name, "more");
    let nets: Vec<_> = cidr.nets.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["10.128.0.0/16", "fd00:96::/112"]);
}

#[test]
fn a_node_is_leaving_if_deleted_or_tainted_by_the_autoscaler() {
    let is_leaving = |metadata: Value, spec: Value| {
        let node = json!({"metadata": metadata, "spec": spec});
        let decoded = from_json(Kind::Node, &node.to_string()).unwrap();
        let Content::Proxied(Object::Node(node)) = decoded.content else {
            panic!("{:?}", decoded.content);
        };
        node.is_leaving
    };
    let name = || json!({"name": "n"});
    let taint = |key: &str| json!({"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": key}]});
    assert!(!is_leaving(name(), json!({})));
    assert!(!is_leaving(
        name(),
        taint("node.kubernetes.io/unschedulable")
    ));
    assert!(is_leaving(name(), taint("ToBeDeletedByClusterAutoscaler")));
    let deleted = json!({"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert!(is_leaving(deleted, json!({})));
    assert!(!is_leaving(
        json!({"name": "n", "deletionTimestamp": null}),
        json!({})
    ));
}

/// Checks that an added or modified object is decoded together with its event. All other events
/// need a second pass.
#[test]
fn added_and_modified_events_are_decoded_together_with_their_objects() {
    let object = |port: Value| json!({"metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": port}]}});
    let event = |kind: &str, object: &Value| {
        json::applied(
            Kind::Service,
            &json!({"type": kind, "object": object}).to_string(),
        )
    };
    let right = object(json!(80));
    for kind in ["ADDED", "MODIFIED"] {
        let decoded = from_json(Kind::Service, &right.to_string());
        assert_eq!(event(kind, &right), Some(decoded));
        assert_eq!(
            event(kind, &json!({})),
            Some(Err(MissingName { kind: "Service" }))
        );
        assert_eq!(event(kind, &object(json!("http"))), None);
    }
    for kind in ["DELETED", "BOOKMARK", "ERROR", "added", ""] {
        assert_eq!(event(kind, &right), None, "{kind}");
    }
    for wrong in [
        "",
        "{}",
        r#"{"type":"ADDED"}"#,
        r#"{"type":"ADDED","object":{}"#,
    ] {
        assert_eq!(json::applied(Kind::Service, wrong), None, "{wrong}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let field = prop::sample::select(vec![
        "kind",
        "metadata",
        "name",
        "namespace",
        "labels",
        "annotations",
        "creationTimestamp",
        "spec",
        "type",
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "externalIPs",
        "ports",
        "port",
        "nodePort",
        "protocol",
        "status",
        "loadBalancer",
        "ingress",
        "ip",
        "ipMode",
        "loadBalancerSourceRanges",
        "sessionAffinity",
        "sessionAffinityConfig",
        "clientIP",
        "timeoutSeconds",
        "addressType",
        "endpoints",
        "addresses",
        "conditions",
        "ready",
        "hints",
        "forZones",
        "nodeName",
        "podCIDR",
        "podCIDRs",
        "address",
        "kubernetes.io/service-name",
        "endpoints.kubernetes.io/last-change-trigger-time",
    ]);
    let text = prop::sample::select(vec![
        "",
        "None",
        "IPv4",
        "IPv6",
        "FQDN",
        "10.0.0.1",
        "fd00::1",
        "0.0.0.0/0",
        "10.0.0.0/8",
        "TCP",
        "tcp",
        "VIP",
        "Local",
        "ClientIP",
        "LoadBalancer",
        "NodePort",
        "InternalIP",
        "web",
        "2024-05-06T07:08:09Z",
        "é\u{1f980}",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1_i64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
        "\\PC{0,60}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(field.clone().prop_map(str::to_owned), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_json_objects_never_panic_the_decoder(value in any_json()) {
        for kind in Kind::ALL {
            let text = value.to_string();
            if let Ok(decoded) = from_json(kind, &text) {
                for problem in &decoded.problems {
                    prop_assert!(problem.to_string().starts_with(&decoded.key.to_string()));
                }
                decoded.into_event();
            }
            let _ = from_json(kind, &serde_json::to_string_pretty(&value).unwrap());
            let event = json!({"type": "DELETED", "object": value});
            json::event(kind, event.to_string().as_bytes()).unwrap();
        }
    }

    #[test]
    fn arbitrary_specs_and_statuses_never_panic_the_decoder(spec in any_json(), status in any_json(), parts in any_json()) {
        let labels = json!({"kubernetes.io/service-name": "web"});
        let object = json!({
            "metadata": {"name": "web", "labels": labels}, "spec": spec, "status": status,
            "addressType": "IPv4", "endpoints": parts, "ports": spec.get("ports"),
        });
        for kind in Kind::ALL {
            let decoded = decode(kind, &object);
            if decoded.content == Content::Unusable {
                prop_assert!(!decoded.problems.is_empty());
            }
        }
    }

    #[test]
    fn arbitrary_text_never_panics_the_decoder(text in "\\PC*") {
        let _ = from_json(Kind::Service, &text);
    }
}
