//! Tests invalid objects, and objects whose entries the kernel refuses. The daemon logs each such
//! object with the next step, and programs the valid objects.

use anyhow::Context as _;
use scenarios::{Cluster, Outcome, Service, at, tcp, udp};

fn web() -> Service {
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10")
}

pub(crate) fn invalid_objects_are_reported_by_name(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&[])?;
    c.until_served(&web())?;
    let wrong = "
{apiVersion: v1, kind: Service, metadata: {name: six}, spec: {clusterIP: 'fd96::7', ipFamilies: [IPv4], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: half}, spec: {clusterIP: 10.96.0.20, externalIPs: ['2001:db8::20', 192.0.2.20], ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: half-1, labels: {kubernetes.io/service-name: half}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: []}, {addresses: ['fd44:1::10']}, {addresses: [10.244.2.10]}]
";
    c.write("wrong", wrong)?;
    c.until_answered(&c.client, "10.96.0.20:80")?;
    c.until_answered(&c.outside, "192.0.2.20:80")?;
    assert_eq!(c.reals("TCP 10.96.0.20:80")?, "10.244.2.10:8080*1");
    assert!(
        !c.servers()?
            .keys()
            .any(|key| key.contains("fd96::7") || key.contains("2001:db8"))
    );
    let said = c.said();
    for parts in [
        ["Service default/six", "fd96::7", "ipFamilies"],
        [
            "Service default/half",
            "spec.externalIPs[0]",
            "2001:db8::20",
        ],
        [
            "EndpointSlice default/half-1",
            "endpoints[0].addresses",
            "is ignored",
        ],
        [
            "EndpointSlice default/half-1",
            "endpoints[1].addresses[0]",
            "fd44:1::10",
        ],
    ] {
        let is_said = said
            .lines()
            .any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(is_said, "no line has {parts:?}");
    }

    // A Service that becomes invalid keeps its previous kernel entries.
    let broken = web().to_string().replace("10.96.0.10", "10.96.0.1000");
    c.write("web", &broken)?;
    c.await_line("10.96.0.1000")?;
    c.until_served(&web())?;
    c.until_answered(&c.client, "10.96.0.10:80").map(drop)
}

/// The kernel refuses an IPVS destination at a broadcast address.
pub(crate) fn an_endpoint_refused_by_the_kernel_is_reported(c: &mut Cluster) -> Outcome {
    let refused = Service::new("half", "10.96.0.20")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.255 10.244.2.10");
    c.apply(&refused)?;
    c.apply(&web())?;
    c.start(&[])?;
    c.until_served(&web())?;
    c.until_reals("TCP 10.96.0.20:80", "10.244.2.10:8080*1")?;
    assert_eq!(
        c.client.ask_tcp(at("10.96.0.20:80"), scenarios::SOON)?.who,
        "far"
    );
    let said = c.said();
    let line = said
        .lines()
        .find(|line| line.contains("10.244.1.255"))
        .unwrap_or_default();
    assert!(
        line.contains("default/half") && line.contains("correct the EndpointSlice"),
        "{line}"
    );
    let corrected = refused.endpoints("10.244.1.10 10.244.2.10");
    c.apply(&corrected)?;
    c.until_served(&corrected).map(drop)
}

/// Another program has created an ipset with the name, but not the type, of one of the daemon's
/// sets.
pub(crate) fn a_foreign_ipset_with_our_name_is_reported(c: &mut Cluster) -> Outcome {
    c.sh("ipset create KUBE-NODE-PORT-UDP hash:ip")?;
    c.apply(&web())?;
    c.apply(
        &Service::new("dns", "10.96.0.53")
            .port(udp(53, 8080).node_port(30053))
            .endpoints("10.244.1.10"),
    )?;
    let foreseen = c.check(&[])?;
    let mut lines = foreseen.lines();
    let told = lines.find(|line| line.starts_with("[fail] sets: ipset KUBE-NODE-PORT-UDP "));
    let told = told.with_context(|| foreseen.clone())?;
    for part in [
        "hash:ip",
        "bitmap:port",
        "`ipset destroy KUBE-NODE-PORT-UDP`",
    ] {
        assert!(told.contains(part), "{told}");
    }
    c.launch(&["--ipvs-sync-period=2s"])?;
    let line = c.await_line("set KUBE-NODE-PORT-UDP exists")?;
    assert!(line.contains("ipset"), "{line}");
    c.until_served(&web())?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    // The operator flushes the chain that uses the other program's set, and destroys this set. The
    // daemon must then complete its entries without a restart.
    c.sh("iptables-$backend -t nat -F KUBE-NODE-PORT || true; ipset destroy KUBE-NODE-PORT-UDP")?;
    c.until("the set is filled", || {
        Ok(c.members("KUBE-NODE-PORT-UDP")?.contains("30053"))
    })?;
    c.until("its rule rewrites the source", || {
        let answer = c
            .outside
            .ask_udp(at("172.35.0.100:30053"), scenarios::SOON)?;
        Ok(answer.seen_source.ip().to_string() == "10.244.1.1")
    })
    .map(drop)
}
