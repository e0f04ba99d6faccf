//! Tests the Kubernetes events that the daemon posts. Each event must refer to the object that an
//! operator inspects with `kubectl describe`.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::Transport;
use scenarios::{ApiServer, Cluster, Outcome, Service, at, stories, tally, tcp, tell};

const CLAIMED: &str = "192.0.2.20:80";
const HEALTH_CHECK: &str = "FailedToStartServiceHealthcheck";

fn main() {
    let stories = stories! {
        a_service_denied_its_address_gets_an_event_and_takes_over_later,
        a_health_check_port_in_use_causes_an_event,
        an_unreachable_api_server_delays_no_write,
        no_service_can_keep_the_api_servers_address,
    };
    tell(&stories, Duration::from_mins(3))
}

/// Returns the posted events with this reason, in the form `TYPE KIND NAME UID NOTE`.
fn events(api: &ApiServer, reason: &str) -> Vec<String> {
    let text = |event: &serde_json::Value, path: &str| {
        let text = event.pointer(path).and_then(serde_json::Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let all = api.events();
    let of_reason = all.iter().filter(|event| text(event, "/reason") == reason);
    let fields = [
        "/type",
        "/regarding/kind",
        "/regarding/name",
        "/regarding/uid",
        "/note",
    ];
    of_reason
        .map(|event| fields.map(|path| text(event, path)).join(" "))
        .collect()
}

fn uid(api: &ApiServer, service: &str) -> Result<String> {
    let service = api.service(service).context("no such Service")?;
    let uid = service
        .pointer("/metadata/uid")
        .and_then(|uid| uid.as_str());
    Ok(uid.context("without a uid")?.to_owned())
}

fn claim(name: &str, ip: &str, endpoint: &str) -> Service {
    Service::new(name, ip)
        .port(tcp(80, 8080))
        .external("192.0.2.20")
        .endpoints(endpoint)
}

/// Checks that only the pod `who` replies to the external host at the address that two Services
/// claim.
fn answers(who: &str, c: &Cluster) -> Outcome {
    let tally = tally(&c.outside, Transport::Tcp, at(CLAIMED), 4)?;
    assert!(
        tally.keys().all(|answer| answer.starts_with(who)),
        "{who} is to answer: {tally:?}"
    );
    Ok(())
}

fn a_service_denied_its_address_gets_an_event_and_takes_over_later(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    let (winner, loser) = (
        claim("alpha", "10.96.0.10", "10.244.1.10"),
        claim("beta", "10.96.0.11", "10.244.2.10"),
    );
    api.apply(&winner)?;
    api.apply(&loser)?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.until_served(&winner)?;
    answers("near", c)?;
    c.until("the loser is told", || {
        Ok(!events(&api, "AddressConflict").is_empty())
    })?;
    let about = format!("Warning Service beta {} {CLAIMED}/TCP", uid(&api, "beta")?);
    let told = events(&api, "AddressConflict");
    assert!(
        matches!(&told[..], [one] if one.starts_with(&about) && one.contains("default/alpha")),
        "{told:?}"
    );
    assert_eq!(
        events(&api, "Starting"),
        ["Normal Node node1 node1 kube-proxy starts to carry Services in ipvs mode"]
    );

    // After another change and after a restart, the daemon does not post the event again.
    let other = Service::new("other", "10.96.0.12").port(tcp(80, 8080));
    api.apply(&other)?;
    c.until_served(&other)?;
    c.stop()?;
    c.launch_on(&api, &[])?;
    c.until("it has started again", || {
        Ok(events(&api, "Starting").len() == 2)
    })?;
    c.await_first_sync()?;
    assert_eq!(events(&api, "AddressConflict"), told);
    answers("near", c)?;

    api.delete_service("alpha")?;
    c.until_served(&loser)?;
    answers("far", c)?;
    assert_eq!(events(&api, "AddressConflict"), told);
    Ok(())
}

/// Returns the Service `web` with a health-check node port.
fn web() -> Service {
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .ingress("192.0.2.10")
        .spec("externalTrafficPolicy: Local, healthCheckNodePort: 30999")
        .endpoints("10.244.1.10")
}

fn a_health_check_port_in_use_causes_an_event(c: &mut Cluster) -> Outcome {
    c.node1.serve_tcp(30999)?;
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.until("it is told", || Ok(!events(&api, HEALTH_CHECK).is_empty()))?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    let about = format!("Warning Service web {} node node1", uid(&api, "web")?);
    let told = events(&api, HEALTH_CHECK);
    assert!(
        matches!(&told[..], [one] if one.starts_with(&about) && one.contains(":30999")),
        "{told:?}"
    );
    Ok(())
}

/// The daemon keeps unsent events while the API server is unreachable, and still programs all
/// changes.
fn an_unreachable_api_server_delays_no_write(c: &mut Cluster) -> Outcome {
    let web = web();
    c.node1.serve_tcp(30999)?;
    let mut api = c.api_server(true)?;
    api.apply(&web)?;
    api.start()?;
    c.launch_on(&api, &["--nodeport-addresses=198.51.100.0/24"])?;
    c.until("the start is told", || {
        Ok(!events(&api, "Starting").is_empty())
    })?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    assert_eq!(events(&api, HEALTH_CHECK), [""; 0], "no address yet");

    api.stop();
    c.sh("ip address add 198.51.100.1/24 dev lo")?;
    c.await_line("cannot listen for the health checks")?;
    c.sh("ip link delete kube-ipvs0")?;
    c.until("the damage is repaired", || {
        Ok(c.addresses()?.contains("kube-ipvs0 10.96.0.10/32"))
    })?;
    c.until_answered(&c.client, "10.96.0.10:80")?;

    api.start()?;
    c.until("it is told", || Ok(!events(&api, HEALTH_CHECK).is_empty()))?;
    let told = events(&api, HEALTH_CHECK);
    assert!(
        matches!(&told[..], [one] if one.contains("198.51.100.1:30999")),
        "{told:?}"
    );
    Ok(())
}

/// Tests the API server's address in each mode. The kubeconfig has a host name for the API server.
///
/// - When the daemon starts, a Service already has the API server's address in the kernel.
/// - Later, the host name moves to an address of a Service.
fn no_service_can_keep_the_api_servers_address(c: &mut Cluster) -> Outcome {
    let claiming = |name: &str, ip: &str, external: &str| {
        let service = Service::new(name, ip).port(tcp(6443, 8080));
        service.external(external).endpoints("10.244.1.10")
    };
    let thief = claiming("thief", "10.96.0.66", "172.35.0.9");
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10");
    let hosts = c.folder().join("hosts");
    let resolve_to = |ip: &str| fs::write(&hosts, format!("{ip} api.example\n"));
    resolve_to("172.35.0.9")?;
    let enter = format!(
        "mount --bind {} /etc/hosts && exec \"$0\" \"$@\"",
        hosts.display()
    );
    c.prefix = ["unshare", "-m", "sh", "-ec", &enter]
        .map(Into::into)
        .to_vec();
    let mut api = c.api_server(true)?;
    // The node's own packets to a Service need a route, because only IPVS mode makes Service
    // addresses local.
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    let kubernetes = Service::new("kubernetes", "10.96.0.1")
        .port(tcp(443, 6443))
        .endpoints("172.35.0.9");
    for service in [&thief, &web, &kubernetes] {
        api.apply(service)?;
    }
    api.start()?;
    let by_cluster_ip = c.folder().join("by-cluster-ip");
    let of_cluster_ip = api.kubeconfig().replace("172.35.0.9:6443", "10.96.0.1:443");
    fs::write(&by_cluster_ip, of_cluster_ip)?;
    let by_cluster_ip = format!("--kubeconfig={}", by_cluster_ip.display());
    let kubeconfig = c.folder().join("by-name");
    fs::write(&kubeconfig, api.kubeconfig_of("api.example"))?;
    let by_name = format!("--kubeconfig={}", kubeconfig.display());

    let always: [&[&str]; 3] = [
        &["--proxy-mode=iptables"],
        &["--ipvs-shim=lean"],
        &["--ipvs-shim=upstream"],
    ];
    let in_nftables: [&[&str]; 4] = [
        &["--proxy-mode=nftables"],
        &["--proxy-mode=nftables", "--nftables-layout=flat"],
        &["--proxy-mode=userspace"],
        &["--ipvs-shim=nftables"],
    ];
    let has_nftables = lab::iptables_backend() == "nft";
    let in_nftables = in_nftables.into_iter().filter(|_| has_nftables);
    for flags in in_nftables.chain(always) {
        // The first daemon has no API server, so it does not protect the API server's address and
        // programs the Service.
        c.apply(&thief)?;
        c.start(flags)?;
        c.until_answered(&c.node1, "172.35.0.9:6443")?;
        c.stop()?;
        c.launch_with(&[&[by_name.as_str()], flags].concat())?;
        let line = c
            .await_line("removed a Service's entries at the API server's address")
            .with_context(|| format!("{flags:?}"))?;
        assert!(line.contains("172.35.0.9"), "{line}");
        c.await_first_sync()?;
        c.until_answered(&c.client, "10.96.0.10:80")?;
        c.stop()?;
        // The API server's own Service keeps its cluster IP. Skips userspace mode, in which no
        // cluster IP works while no daemon runs.
        if !flags.contains(&"--proxy-mode=userspace") {
            let removals = |c: &Cluster| c.said().matches("removed a Service's entries").count();
            let before = removals(c);
            c.launch_with(&[&[by_cluster_ip.as_str()], flags].concat())?;
            c.await_first_sync()?;
            c.stop()?;
            assert_eq!(removals(c), before, "{flags:?}");
        }
    }
    c.until("it is told", || {
        Ok(!events(&api, "AddressRefused").is_empty())
    })?;
    let told = events(&api, "AddressRefused").join("\n");
    assert!(told.contains("thief"), "{told}");
    assert!(told.contains("spec.externalIPs"), "{told}");

    // Runs `kube-proxy check` in IPVS mode, the last mode of this test.
    let (program, check) = (scenarios::kube_proxy()?, "check");
    let command = c.prefix.iter().cloned().chain([program.into()]);
    let flags = [
        check,
        &by_name,
        "--hostname-override=node1",
        "--proxy-mode=ipvs",
    ];
    let said = c.node1.run(command.chain(flags.map(Into::into)))?.stdout;
    assert!(
        said.contains("172.35.0.9:6443 (api.example resolves to it)"),
        "{said}"
    );
    c.launch_with(&[&by_name])?;
    c.await_first_sync()?;
    let second = claiming("second", "10.96.0.67", "172.35.0.8");
    api.apply(&second)?;
    c.until_answered(&c.node1, "172.35.0.8:6443")?;
    c.outside.read([
        "sh",
        "-ec",
        "ip address add 172.35.0.8/24 dev $(ip -o -4 address show to 172.35.0.9 | cut -d' ' -f2)",
    ])?;
    api.stop();
    api.move_to(at("172.35.0.8:6443"));
    resolve_to("172.35.0.8")?;
    api.start()?;
    c.until_gone("TCP 172.35.0.8:6443")?;
    api.delete_service("thief")?;
    c.until_gone("TCP 10.96.0.66:6443")?;
    Ok(())
}
