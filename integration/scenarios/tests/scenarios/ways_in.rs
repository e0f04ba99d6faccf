//! Tests every path to a Service from two pods, the node and an external host: which pod replies,
//! and which client address it sees.

use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, Port, Service, Tally, at, sctp, tally, tcp, udp};

const ENDPOINTS: &str = "10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10";

/// Addresses of the Service. The flag is true if a client pod's own address reaches the endpoint
/// (no SNAT).
const WAYS_IN: [(&str, bool); 8] = [
    ("10.96.0.10:80", true),
    ("172.35.0.100:30080", false),
    ("192.0.2.10:80", false),
    ("192.0.2.20:80", false),
    ("[fd96::10]:80", true),
    ("[fd35::100]:30080", false),
    ("[2001:db8::10]:80", false),
    ("[2001:db8::20]:80", false),
];

pub(crate) fn each_service_address_works_over_tcp(c: &mut Cluster) -> Outcome {
    every_way_in(c, Transport::Tcp, tcp(80, 8080))
}

pub(crate) fn each_service_address_works_over_udp(c: &mut Cluster) -> Outcome {
    every_way_in(c, Transport::Udp, udp(80, 8080))
}

pub(crate) fn each_service_address_works_over_sctp(c: &mut Cluster) -> Outcome {
    c.near.serve_sctp(8080)?;
    c.far.serve_sctp(8080)?;
    every_way_in(c, Transport::Sctp, sctp(80, 8080))
}

pub(crate) fn each_service_address_bound_as_route_works_over_tcp(c: &mut Cluster) -> Outcome {
    every_way_in_with(c, &["--ipvs-vip-mode=route"], Transport::Tcp, tcp(80, 8080))
}

pub(crate) fn each_service_address_bound_as_route_works_over_udp(c: &mut Cluster) -> Outcome {
    every_way_in_with(c, &["--ipvs-vip-mode=route"], Transport::Udp, udp(80, 8080))
}

fn every_way_in(c: &mut Cluster, transport: Transport, port: Port) -> Outcome {
    every_way_in_with(c, &[], transport, port)
}

fn every_way_in_with(c: &mut Cluster, flags: &[&str], transport: Transport, port: Port) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(port.node_port(30080))
        .external("192.0.2.20 2001:db8::20")
        .ingress("192.0.2.10 2001:db8::10")
        .endpoints(ENDPOINTS);
    c.apply(&web)?;
    c.start(flags)?;
    c.until_served(&web)?;
    for (to, keeps_pods) in WAYS_IN {
        for from in [&c.client, &c.near, &*c.node1, &c.outside] {
            ask_six_times(from, transport, to, keeps_pods)?;
        }
    }
    Ok(())
}

/// Sends six requests, and checks that each of the two pods replies three times. If `keeps_pods`, a
/// pod must see a client pod's own address. In all other cases, it must see node1's address on the
/// pod's side (SNAT).
fn ask_six_times(from: &Place, transport: Transport, to: &str, keeps_pods: bool) -> Outcome {
    let is_v4 = at(to).is_ipv4();
    let own = from
        .addresses()
        .iter()
        .find(|net| net.addr().is_ipv4() == is_v4);
    let own = own.map(|net| net.addr().to_string()).unwrap_or_default();
    let (gateway, node1) = if is_v4 {
        ("10.244.1.1", "172.35.0.100")
    } else {
        ("fd44:1::1", "fd35::100")
    };
    let (near_sees, far_sees) = match from.name() {
        "client" if keeps_pods => (&*own, &*own),
        // Hairpin: a pod that calls itself must see another client address than its own, because it
        // would otherwise reply to itself.
        "near" if keeps_pods => (gateway, &*own),
        _ => (gateway, node1),
    };
    let wanted = Tally::from([
        (format!("near from {near_sees}"), 3),
        (format!("far from {far_sees}"), 3),
    ]);
    assert_eq!(
        tally(from, transport, at(to), 6)?,
        wanted,
        "{} asks {to}",
        from.name()
    );
    Ok(())
}

pub(crate) fn a_service_with_several_ports_works(c: &mut Cluster) -> Outcome {
    c.far.serve_tcp(9100)?;
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080).named("http"))
        .port(tcp(9090, 9100).named("metrics"))
        .port(udp(80, 8080).named("dns"));
    // Returns an EndpointSlice with one port and one pod.
    let slice = |name: &str, protocol: &str, port: u16, ip: &str| {
        format!(
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{name: web-{name}, labels: {{kubernetes.io/service-name: web}}}}, \
             ports: [{{name: {name}, protocol: {protocol}, port: {port}}}], endpoints: [{{addresses: [{ip}]}}]}}\n"
        )
    };
    let slices = slice("http", "TCP", 8080, "10.244.1.10")
        + &slice("metrics", "TCP", 9100, "10.244.2.10")
        + &slice("dns", "UDP", 8080, "10.244.2.10");
    c.write("web", &format!("{web}{slices}"))?;
    c.start(&[])?;
    c.until_reals("UDP 10.96.0.10:80", "10.244.2.10:8080*1")?;
    for (transport, to, who) in [
        (Transport::Tcp, "10.96.0.10:80", "near"),
        (Transport::Tcp, "10.96.0.10:9090", "far"),
        (Transport::Udp, "10.96.0.10:80", "far"),
    ] {
        let wanted = Tally::from([(format!("{who} from 10.244.1.99"), 2)]);
        assert_eq!(tally(&c.client, transport, at(to), 2)?, wanted, "{to}");
    }
    c.refuses(&c.client, "10.96.0.10:8080")
}

pub(crate) fn clients_with_session_affinity_keep_their_endpoint(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints(ENDPOINTS);
    let pinned = web.clone().affinity(60);
    c.apply(&pinned)?;
    c.start(&[])?;
    c.until_served(&pinned)?;
    assert_eq!(
        c.servers()?
            .get("TCP 10.96.0.10:80")
            .map(|server| &*server.properties),
        Some("rr -p 60")
    );
    for (from, to) in [
        (&c.client, "10.96.0.10:80"),
        (&c.client, "[fd96::10]:80"),
        (&c.outside, "172.35.0.100:30080"),
        (&c.outside, "[fd35::100]:30080"),
    ] {
        let tally = tally(from, Transport::Tcp, at(to), 6)?;
        assert_eq!(tally.len(), 1, "{} asks {to}: {tally:?}", from.name());
    }
    // After the option is removed, the existing virtual server changes. IPVS then distributes new
    // connections over both endpoints.
    c.apply(&web)?;
    c.until("it is rr alone", || {
        Ok(c.servers()?
            .get("TCP 10.96.0.10:80")
            .is_some_and(|server| server.properties == "rr"))
    })?;
    let tally = tally(&c.client, Transport::Tcp, at("10.96.0.10:80"), 6)?;
    assert_eq!(tally.into_values().collect::<Vec<_>>(), [3, 3]);
    Ok(())
}

/// A Service has an external IP that another interface of the node already has. The Service works,
/// and the address stays only on that interface.
pub(crate) fn a_node_address_as_external_ip_stays_on_its_interface(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .external("172.35.0.100")
        .endpoints(ENDPOINTS);
    c.apply(&web)?;
    c.start(&[])?;
    c.until_answered(&c.outside, "172.35.0.100:80")?;
    let addresses = c.addresses()?;
    assert!(
        addresses.contains("kube-ipvs0 10.96.0.10/32"),
        "{addresses:?}"
    );
    assert!(
        !addresses.contains("kube-ipvs0 172.35.0.100/32"),
        "{addresses:?}"
    );
    c.stop()?;
    c.start(&[])?;
    c.delete("web")?;
    c.until_gone("TCP 172.35.0.100:80")?;
    assert!(c.addresses()?.contains("eth0 172.35.0.100/24"));
    Ok(())
}

/// The daemon ignores headless Services, ExternalName Services, and Services whose label
/// `service.kubernetes.io/service-proxy-name` names another proxy.
pub(crate) fn headless_services_and_services_of_other_proxies_are_ignored(
    c: &mut Cluster,
) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints(ENDPOINTS);
    let others = format!(
        "{}---\n{}---\n{{apiVersion: v1, kind: Service, metadata: {{name: alias}}, \
         spec: {{type: ExternalName, externalName: example.org, ports: [{{port: 80}}]}}}}\n",
        "{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, ports: [{port: 80}]}}\n",
        Service::new("mesh", "10.96.0.99")
            .port(tcp(80, 8080))
            .endpoints("10.244.1.10")
            .metadata("labels: {service.kubernetes.io/service-proxy-name: mesh}"),
    );
    c.write("others", &others)?;
    c.apply(&web)?;
    c.start(&[])?;
    c.until_served(&web)?;
    assert_eq!(
        c.servers()?.keys().collect::<Vec<_>>(),
        ["TCP 10.96.0.10:80"]
    );
    c.stop()?;

    // Repeats the test with an API server. The daemon's label selector already excludes the Service
    // `mesh`.
    let mut api = c.api_server(true)?;
    api.apply(&others)?;
    api.apply(&web)?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.await_first_sync()?;
    assert_eq!(
        c.servers()?.keys().collect::<Vec<_>>(),
        ["TCP 10.96.0.10:80"]
    );
    // A label gives the Service `web` to another proxy, so the daemon must remove its entries.
    // Without the label, `web` belongs to kube-proxy again.
    let taken = web
        .clone()
        .metadata("labels: {service.kubernetes.io/service-proxy-name: mesh}");
    api.apply(&taken)?;
    c.until_gone("TCP 10.96.0.10:80")?;
    api.apply(&web)?;
    c.until_served(&web).map(drop)
}
