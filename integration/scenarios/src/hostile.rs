//! Manifests with hostile objects. An API server would reject some of them, and accept others:
//!
//! - thousands of ports, ten thousand source ranges;
//! - wrong families, loopback and broadcast addresses;
//! - names beyond their limits, duplicates;
//! - texts that try to break out of their context.
//!
//! Cluster IPs of these Services are in 10.96.1.0/24 and fd96::/112.

use std::fmt::Write as _;

/// Text in object names that tries to break out of every output format.
const BREAKOUT: &str =
    "x\\\" -j DROP\\n-A INPUT -j DROP\\nCOMMIT\\u001b[31m\\u202e\\u0000\\ud83d\\ude00";

fn service(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: \"{name}\", uid: same}}, spec: {{{spec}}}}}\n---\n"
    )
}

fn slice(of: &str, name: &str, family: &str, ports: &str, addresses: &[&str]) -> String {
    let endpoints: Vec<String> = addresses
        .iter()
        .map(|address| format!("{{addresses: ['{address}']}}"))
        .collect();
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: {family}, ports: [{ports}], \
         metadata: {{name: \"{name}\", uid: same, labels: {{kubernetes.io/service-name: \"{of}\"}}}}, endpoints: [{}]}}\n---\n",
        endpoints.join(", ")
    )
}

/// Returns hostile manifests, each with its file name. One Service has `ports` ports, another has
/// `ranges` source ranges.
pub fn files(ports: usize, ranges: usize) -> Vec<(&'static str, String)> {
    let list = |count: usize, item: &dyn Fn(usize) -> String| {
        let items: Vec<String> = (0..count).map(item).collect();
        items.join(", ")
    };
    let web = "clusterIP: 10.96.1.1, ports: [{port: 80}]";
    let named = list(ports, &|n| format!("{{name: p{n}, port: {}}}", n + 1));
    let targets = list(ports, &|n| format!("{{name: p{n}, port: 8080}}"));
    let many_ports = service("ports", &format!("clusterIP: 10.96.1.2, ports: [{named}]"))
        + &slice("ports", "ports", "IPv4", &targets, &["10.244.1.10"]);
    let families = service(
        "families",
        "clusterIPs: ['fd96::66', 10.96.1.3, 10.96.1.4], ipFamilies: [IPv4, IPv6], ports: [{port: 80}]",
    ) + &service(
        "families-2",
        "clusterIP: 10.96.1.3, externalIPs: ['fd96::1'], ports: [{port: 80}]",
    ) + &slice(
        "families-2",
        "families-2",
        "IPv4",
        "{port: 8080}",
        &["fd44:1::10", "10.244.1.10"],
    );
    let odd = [
        "127.0.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "10.96.1.5",
        "10.244.1.255",
        "::ffff:10.244.2.10",
        "172.35.0.100",
        "not an address",
        "",
    ];
    let odd_6 = [
        "::1",
        "::",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "fd96::5",
        "fe80::1%eth0",
    ];
    let endpoints = service(
        "endpoints",
        "clusterIPs: [10.96.1.5, 'fd96::5'], ports: [{port: 80}]",
    ) + &slice("endpoints", "endpoints-4", "IPv4", "{port: 8080}", &odd)
        + &slice("endpoints", "endpoints-6", "IPv6", "{port: 8080}", &odd_6);
    let external = "externalIPs: [172.35.0.100, 127.0.0.1, 0.0.0.0, 169.254.1.1, 224.0.0.5, 203.0.113.9, 10.96.0.10]";
    let node = service(
        "node",
        &format!("clusterIP: 10.96.1.6, {external}, ports: [{{port: 80}}]"),
    ) + &slice("node", "node", "IPv4", "{port: 8080}", &["10.244.2.10"]);
    let mut names = String::new();
    for (number, length) in [63, 64, 253, 254, 1_000].into_iter().enumerate() {
        let (name, port) = ("n".repeat(length), "p".repeat(length));
        let spec = format!(
            "clusterIP: 10.96.1.{}, ports: [{{name: {port}, port: 80}}]",
            10 + number
        );
        names += &service(&name, &spec);
        let ports = format!("{{name: {port}, port: 8080}}");
        names += &slice(
            &name,
            &format!("{name}-1"),
            "IPv4",
            &ports,
            &["10.244.1.10"],
        );
    }
    let ranges = list(ranges, &|n| match n % 10 {
        0 => "'10.0.0.0/99'".to_owned(),
        1 => "192.0.2.0/24".to_owned(),
        _ => format!("{}.{}.{}.0/24", 11 + n / 2_500, n / 250 % 250, n % 250),
    });
    let ranges = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: ranges}}, spec: {{type: LoadBalancer, clusterIP: 10.96.1.7, \
         ports: [{{port: 80}}], loadBalancerSourceRanges: [{ranges}]}}, \
         status: {{loadBalancer: {{ingress: [{{ip: 192.0.2.30}}]}}}}}}\n---\n"
    ) + &slice("ranges", "ranges", "IPv4", "{port: 8080}", &["10.244.1.10"]);
    let twice = ["10.244.1.10"; 100];
    let same = "{name: a, port: 80}, {name: a, port: 80}, {name: b, port: 80}, {name: a, port: 81}";
    let twins = service(
        "twins",
        &format!("clusterIP: 10.96.1.8, externalIPs: [192.0.2.31, 192.0.2.31], ports: [{same}]"),
    ) + &slice("twins", "twins", "IPv4", same, &twice)
        + &slice("twins", "twins", "IPv4", same, &twice)
        + &service("twins", web)
        + &service(
            "twins-2",
            "clusterIP: 10.96.1.8, externalIPs: [192.0.2.31], ports: [{port: 80}]",
        );
    let mut texts = service(BREAKOUT, "clusterIP: 10.96.1.9, ports: [{port: 80}]");
    let of_text = format!(
        "clusterIP: 10.96.1.20, type: \"{BREAKOUT}\", ports: [{{name: \"{BREAKOUT}\", port: 80}}]"
    );
    texts += &service("texts", &of_text);
    let ports = format!("{{name: \"{BREAKOUT}\", port: 8080}}");
    texts += &slice("texts", BREAKOUT, "IPv4", &ports, &["10.244.1.10"]);
    let _ = write!(texts, "{}", service("empty", ""));
    vec![
        ("ports", many_ports),
        ("families", families),
        ("endpoints", endpoints),
        ("node", node),
        ("names", names),
        ("ranges", ranges),
        ("twins", twins.clone()),
        ("twins-again", twins),
        ("texts", texts),
        (
            "broken",
            "{apiVersion: v1, kind: Service, metadata: {name: [".to_owned(),
        ),
        ("deep", "[".repeat(20_000)),
        ("binary", "\u{0}\u{1}\u{fffd}".repeat(1_000)),
    ]
}
