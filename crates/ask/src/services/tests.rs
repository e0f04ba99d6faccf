use view::{EndpointCounts, ServiceName};

use super::*;

fn web() -> Service {
    let address = |kind, at: &str, connections| Address {
        kind,
        at: at.to_owned(),
        scheduler: Some("rr".to_owned()),
        lost_to: None,
        counters: Some(Counters {
            connections,
            packets_in: Some(12_000),
            packets_out: Some(1_000),
            active: Some(2),
            ..Counters::default()
        }),
    };
    let endpoint = |at: &str, condition, within| Endpoint {
        at: at.to_owned(),
        condition,
        cluster: within,
        why: "ready".to_owned(),
        weight: Some(1),
        ..Endpoint::default()
    };
    Service {
        name: ServiceName {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        kind: "NodePort".to_owned(),
        internal_traffic_policy: "Cluster".to_owned(),
        external_traffic_policy: "Local".to_owned(),
        ports: vec![Port {
            name: "http".to_owned(),
            protocol: "TCP".to_owned(),
            port: 80,
            node_port: Some(30_080),
            addresses: vec![
                address(AddressKind::ClusterIp, "10.96.0.10:80", 4),
                address(AddressKind::ClusterIp, "[fd96::10]:80", 0),
                Address {
                    lost_to: Some("default/old".to_owned()),
                    ..address(AddressKind::NodePort, "172.35.0.100:30080", 1)
                },
            ],
            endpoint_counts: EndpointCounts {
                total: 2,
                ready: 1,
                local: 1,
                used: 1,
                draining: 0,
            },
            endpoints: vec![
                Endpoint {
                    pod: Some("web-0".to_owned()),
                    node: Some("node1".to_owned()),
                    local: true,
                    ..endpoint("10.244.1.10:8080", Condition::Ready, true)
                },
                Endpoint {
                    why: "not ready".to_owned(),
                    ..endpoint("10.244.2.10:8080", Condition::NotReady, false)
                },
            ],
            counters: None,
        }],
        ..Service::default()
    }
}

#[test]
fn a_service_list_has_a_line_for_each_port() {
    let list = ServiceList {
        items: vec![web()],
        total: 1,
        ..ServiceList::default()
    };
    assert_eq!(
        render_list(&list, false, false),
        "NAMESPACE   NAME   TYPE       PORT          ADDRESSES                        ENDPOINTS   ERRORS\n\
         default     web    NodePort   http 80/TCP   10.96.0.10,fd96::10,node:30080   1/1/2       -\n"
    );
    let wide = render_list(&list, true, false);
    assert!(wide.contains("Cluster, external Local"), "{wide}");
    assert_eq!(
        render_list(&ServiceList::default(), false, false),
        "No Services found.\n"
    );
}

#[test]
fn the_view_of_a_service_lists_its_addresses_and_endpoints() {
    let mut service = web();
    service.errors.push("IPv4: cannot add".to_owned());
    let text = render_one(&service, false, false);
    for part in [
        "Name     default/web\n",
        "Error: IPv4: cannot add\n",
        "Port http 80/TCP\n",
        "  10.96.0.10:80        cluster IP   rr          4       2        13.0k     -       \n",
        "served for default/old\n",
        "  10.244.1.10:8080   web-0   node1 (here)   -      ready       Cluster   1        -       ready\n",
        "  10.244.2.10:8080   -       -              -      not ready   no        1        -       not ready\n",
    ] {
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        let part = part.trim_end();
        let is_there = lines.iter().any(|line| line.contains(part));
        assert!(is_there, "{part:?} in\n{text}");
    }
    assert_eq!(code([&service]), EXIT_WRONG);
    assert_eq!(code([&web()]), EXIT_WELL);
}
