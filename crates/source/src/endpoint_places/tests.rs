use std::fs;

use super::*;

#[test]
fn endpoint_pods_of_a_service_are_found_in_manifests() {
    let folder = std::env::temp_dir().join(format!("whereabouts-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let slice = |name: &str, of: &str, address: &str| {
        format!(
            "{{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {{name: {name}, labels: \
             {{kubernetes.io/service-name: {of}}}}}, ports: [{{name: http, port: 8080}}], \
             endpoints: [{{addresses: ['{address}'], nodeName: n2, zone: z1, \
             targetRef: {{kind: Pod, name: pod-{name}, fieldPath: x}}}}, {{addresses: [wrong]}}, {{}}]}}"
        )
    };
    let listed = format!("kind: List\nitems:\n- {}\n", slice("b", "web", "fd00::1"));
    let files = [
        (
            "a.yaml",
            format!(
                "{}\n---\n{}",
                slice("a", "web", "10.0.0.1"),
                slice("x", "other", "10.0.0.9")
            ),
        ),
        ("b.yaml", listed),
        ("broken.yaml", "{".to_owned()),
        ("notes.txt", slice("c", "web", "10.0.0.3")),
    ];
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
    let web = NamespacedName::new("default", "web");
    let found = read_folder(&folder, &web).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let of = |pod: &str| EndpointLocation {
        pod: Some(pod.to_owned()),
        node: Some("n2".to_owned()),
        zone: Some("z1".to_owned()),
    };
    for (ip, wanted) in [("10.0.0.1", of("pod-a")), ("fd00::1", of("pod-b"))] {
        let found = found.find(&http(), ip.parse().unwrap(), Some(8080));
        assert_eq!(found, Some(&wanted), "{ip}");
    }
    assert_eq!(found.endpoints.len(), 2);
}

/// Checks which manifests are decoded. Decoding a whole directory with 1,200 Services once took
/// 2 s, so the page showed no pod names.
#[test]
fn only_manifests_that_contain_the_services_name_are_decoded() {
    for (text, name, wanted) in [
        ("labels: {kubernetes.io/service-name: web}", "web", true),
        ("service-name: web\n", "web", true),
        (r#"{"service-name":"web"}"#, "web", true),
        (r#"{"service-name":"we\u0062"}"#, "web", true),
        ("service-name: web-1", "web", false),
        ("service-name: my-web", "web", false),
        ("service-name: web2", "web", false),
    ] {
        assert_eq!(may_name(text, name), wanted, "{text}");
    }
}

#[test]
fn a_yaml_list_with_aliases_is_decoded_as_a_whole() {
    let item = |of: &str| {
        format!(
            "- apiVersion: discovery.k8s.io/v1\n  endpoints:\n  - addresses:\n    - 10.0.0.1\n  kind: EndpointSlice\n  \
             metadata:\n    labels:\n      kubernetes.io/service-name: {of}\n    name: {of}-a\n"
        )
    };
    let list = format!(
        "apiVersion: v1\nitems:\n{}{}kind: List\nmetadata:\n  resourceVersion: \"\"\n",
        item("other"),
        item("web")
    );
    assert_eq!(block_items(&list).len(), 2);
    let names = |text: &str| -> Vec<String> {
        let slices = slices_in(text, "web").into_iter();
        let slices = slices.filter(|slice| slice.kind == "EndpointSlice");
        slices.map(|slice| slice.metadata.name).collect()
    };
    assert_eq!(names(&list), ["web-a"]);
    // An alias can be read only together with the item that has its anchor.
    let aliased = list.replace("- 10.0.0.1\n  kind: EndpointSlice\n  metadata:\n    labels:\n      kubernetes.io/service-name: web", "- *ip\n  kind: EndpointSlice\n  metadata:\n    labels:\n      kubernetes.io/service-name: web");
    let aliased = aliased.replacen("- 10.0.0.1", "- &ip 10.0.0.1", 1);
    assert_ne!(aliased, list);
    assert_eq!(names(&aliased), ["other-a", "web-a"]);
    let json = r#"{"kind":"List","items":[{"kind":"EndpointSlice","metadata":{"name":"web-a"}}]}"#;
    assert_eq!(names(json), ["web-a"]);
}

fn http() -> ServicePortName {
    ServicePortName {
        service: NamespacedName::new("default", "web"),
        port: "http".into(),
        protocol: Protocol::Tcp,
    }
}

#[test]
fn endpoints_with_invalid_addresses_are_reported() {
    let text = r#"{"items":[{"metadata":{"name":"web-a"},"endpoints":[{"addresses":["127.0.0.1"]},
        {"addresses":["10.0.0.1"]},{"addresses":["169.254.20.10"]}]}]}"#;
    let found = EndpointPlaces::from_list(text).unwrap();
    assert_eq!(
        found.ignored(),
        [
            "EndpointSlice web-a: endpoint 127.0.0.1 is ignored: a loopback address, which no pod can have",
            "EndpointSlice web-a: endpoint 169.254.20.10 is ignored: a link-local address, which no pod can have",
        ]
    );
    assert!(found.find(&http(), [127, 0, 0, 1].into(), None).is_none());
}

#[test]
fn endpoints_that_the_decoder_ignores_are_noted() {
    let text = r#"{"items":[
        {"metadata":{"name":"v4"},"addressType":"IPv4",
         "endpoints":[{"addresses":["fd44:2::10"]},{"addresses":["10.0.0.1"]},{"addresses":["010.000.0.2"]},
         {"addresses":["10.0.0"]}]},
        {"metadata":{"name":"v6"},"addressType":"IPv6",
         "endpoints":[{"addresses":["::ffff:10.0.0.3"]},{"addresses":["fd44::1"]}]},
        {"metadata":{"name":"names"},"addressType":"FQDN","endpoints":[{"addresses":["web.example"]}]}]}"#;
    let found = EndpointPlaces::from_list(text).unwrap();
    assert_eq!(
        found.ignored(),
        [
            "EndpointSlice v4: endpoint fd44:2::10 is ignored: IPv6, but addressType of the EndpointSlice is IPv4",
            "EndpointSlice v4: endpoint 10.0.0 is ignored: not an IP address",
            "EndpointSlice v6: endpoint ::ffff:10.0.0.3 is ignored: IPv4, but addressType of the EndpointSlice is IPv6",
        ]
    );
    for (address, is_known) in [
        ("fd44:2::10", false),
        ("10.0.0.1", true),
        ("10.0.0.2", true),
        ("10.0.0.3", false),
        ("fd44::1", true),
    ] {
        let place = found.find(&http(), address.parse().unwrap(), None);
        assert_eq!(place.is_some(), is_known, "{address}");
    }
}

/// Checks two host-network pods of one node, which share an address. Each pod is in its own
/// EndpointSlice.
#[test]
fn pods_that_share_an_address_are_distinguished_by_port() {
    let text = r#"{"items":[
        {"metadata":{"name":"web-8081"},"ports":[{"name":"http","port":8081}],
         "endpoints":[{"addresses":["10.0.0.1"],"targetRef":{"kind":"Pod","name":"b"}}]},
        {"metadata":{"name":"web-8080"},"ports":[{"name":"http","port":8080},{"name":"dns","protocol":"UDP","port":53}],
         "endpoints":[{"addresses":["10.0.0.1"],"targetRef":{"kind":"Pod","name":"a"}}]}]}"#;
    let found = EndpointPlaces::from_list(text).unwrap();
    let pod = |name: &str, protocol, number| {
        let of = ServicePortName {
            port: name.into(),
            protocol,
            ..http()
        };
        let place = found.find(&of, [10, 0, 0, 1].into(), number);
        place.and_then(|place| place.pod.clone())
    };
    let told = |name: &str| Some(name.to_owned());
    assert_eq!(pod("http", Protocol::Tcp, Some(8080)), told("a"));
    assert_eq!(pod("http", Protocol::Tcp, Some(8081)), told("b"));
    assert_eq!(pod("dns", Protocol::Udp, Some(53)), told("a"));
    assert_eq!(pod("http", Protocol::Udp, Some(8080)), None);
    assert_eq!(
        pod("http", Protocol::Tcp, Some(8082)),
        None,
        "in no slice any more"
    );
    assert_eq!(pod("http", Protocol::Tcp, None), told("a"));
}

/// Checks that the result is the endpoint that `proxy::Endpoints` uses, for any order of the
/// EndpointSlices.
#[test]
fn the_effective_endpoint_of_a_shared_address_is_returned() {
    let slice = |name: &str, pods: &[(&str, bool)]| {
        let endpoint = |(pod, terminating): &(&str, bool)| {
            serde_json::json!({
                "addresses": ["10.0.0.1"], "conditions": {"terminating": terminating},
                "targetRef": {"kind": "Pod", "name": pod}
            })
        };
        let endpoints: Vec<_> = pods.iter().map(endpoint).collect();
        serde_json::json!({"metadata": {"name": name}, "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
    };
    for (slices, wanted) in [
        (vec![slice("a", &[("old", true), ("new", false)])], "new"),
        (vec![slice("a", &[("new", false), ("old", true)])], "new"),
        (vec![slice("a", &[("one", false), ("two", false)])], "two"),
        (vec![slice("a", &[("one", true), ("two", true)])], "one"),
        (
            vec![slice("z", &[("old", true)]), slice("a", &[("new", false)])],
            "new",
        ),
        (
            vec![slice("a", &[("old", true)]), slice("z", &[("new", false)])],
            "new",
        ),
        (
            vec![slice("z", &[("z", false)]), slice("a", &[("a", false)])],
            "a",
        ),
    ] {
        let text = serde_json::json!({ "items": slices }).to_string();
        let found = EndpointPlaces::from_list(&text).unwrap();
        let place = found
            .find(&http(), [10, 0, 0, 1].into(), Some(8080))
            .unwrap();
        assert_eq!(place.pod.as_deref(), Some(wanted), "{text}");
    }
}

#[test]
fn one_request_lists_the_endpoint_slices_of_one_service() {
    let request = request(&NamespacedName::new("default", "web")).unwrap();
    assert_eq!(
        request.uri(),
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dweb&\
         resourceVersion=0&limit=1000"
    );
}

#[test]
fn an_endpoint_slice_without_endpoints_is_accepted() {
    let text = r#"{"kind":"EndpointSliceList","items":[{"endpoints":null},{"metadata":{"labels":null},
        "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true},"nodeName":"n1"}]}]}"#;
    let found = EndpointPlaces::from_list(text).unwrap();
    let place = found.find(&http(), [10, 0, 0, 1].into(), None).unwrap();
    assert_eq!(place.node.as_deref(), Some("n1"));
    assert!(EndpointPlaces::from_list("{").is_err());
}
