//! Tests Service options: their effect on packets, and the messages about ignored options.

use std::path::Path;

use anyhow::{Context as _, ensure};
use lab::{Failure, Transport};
use scenarios::under_traffic;
use scenarios::{Cluster, FIRST_TRY, Modprobe, Outcome, Service, ask, at, is_module, tally, tcp};
use serde_json::Value;

const VIP: &str = "10.96.0.10:80";

/// Value of the option that limits an endpoint's number of connections.
const CEILING: usize = 20;

/// Returns the Service `web` with this scheduler. An empty scheduler means the node's default.
fn with(scheduler: &str) -> Service {
    with_flags(scheduler, "")
}

/// Returns the Service `web` with this scheduler and these scheduler flags.
fn with_flags(scheduler: &str, flags: &str) -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10")
        .metadata(&format!(
            "annotations: {{other.io/x: \"1\", kube-proxy-ipvs/scheduler: {scheduler:?}, kube-proxy-ipvs/scheduler-flags: {flags:?}}}"
        ))
}

/// Waits until all virtual servers of the Service `web` have the scheduler and flags in
/// `properties`.
fn until_scheduled(c: &Cluster, properties: &str) -> Outcome {
    let took = c.until(properties, || {
        let servers = c.servers()?;
        let own = servers.iter().filter(|(at, _)| !at.contains("10.96.0.11"));
        let own: Vec<&str> = own.map(|(_, server)| &*server.properties).collect();
        Ok(own.len() == 4 && own.iter().all(|has| *has == properties))
    })?;
    println!("    {properties}: within {took:.1?}");
    Ok(())
}

/// Returns the number of pods that reply to eight requests.
fn answering(c: &Cluster, to: &str) -> anyhow::Result<usize> {
    Ok(tally(&c.client, Transport::Tcp, at(to), 8)?.len())
}

/// Denies the daemon the right to load modules, and hides the module files from it. The kernel can
/// still load modules, because it runs `modprobe` in its own mount namespace.
fn without_modules(c: &mut Cluster) -> Outcome {
    // Loads the iptables modules, because the kernel does not load them on demand, and the daemon's
    // iptables programs may not load them.
    c.sh("modprobe -qa ip_vs iptable_nat iptable_filter ip6table_nat ip6table_filter || true")?;
    let script = "mount -t tmpfs none /lib/modules && exec setpriv --bounding-set=-sys_module --inh-caps=-sys_module \"$@\"";
    c.prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
        .map(Into::into)
        .to_vec();
    Ok(())
}

pub(crate) fn a_service_chooses_its_scheduler(c: &mut Cluster) -> Outcome {
    let other = Service::new("other", "10.96.0.11")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10");
    let module = Path::new("/sys/module/ip_vs_sh");
    let was_loaded = module.exists();
    without_modules(c)?;
    let mut api = c.api_server(true)?;
    api.apply(&with("sh"))?;
    api.apply(&other)?;
    api.start()?;
    c.launch_on(&api, &["--nodeport-addresses=primary"])?;
    c.await_first_sync()?;
    c.until_served(&with("sh"))?;
    until_scheduled(c, "sh")?;
    println!(
        "    ip_vs_sh: loaded before {was_loaded}, now {}",
        module.exists()
    );
    ensure!(
        module.exists() || !is_module("ip_vs_sh"),
        "the kernel has loaded it"
    );
    // The scheduler `sh` of `web` sends each client to one endpoint. The other Service uses its
    // endpoints in turn.
    ensure!(answering(c, VIP)? == 1 && answering(c, "[fd96::10]:80")? == 1);
    let turns = tally(&c.client, Transport::Tcp, at("10.96.0.11:80"), 8)?;
    assert_eq!(turns.into_values().collect::<Vec<_>>(), [4, 4]);

    let (client, outside) = (&c.client, &c.outside);
    let ways = [
        (client, VIP),
        (client, "[fd96::10]:80"),
        (outside, "172.35.0.100:30080"),
    ];
    under_traffic(&ways, 4, FIRST_TRY, || {
        for (scheduler, properties, pods) in [
            ("", "rr", Some(2)),
            ("mh", "mh -b mh-port", None),
            ("lc", "lc", None),
            ("rr", "rr", Some(2)),
            ("sh", "sh", Some(1)),
        ] {
            api.apply(&with(scheduler))?;
            until_scheduled(c, properties)?;
            let answering = answering(c, VIP)?;
            ensure!(
                pods.is_none_or(|pods| pods == answering),
                "{scheduler}: {answering}"
            );
        }
        Ok(())
    })?;

    let (code, shown) = ask(c, &["services", "default/web"])?;
    ensure!(
        code == 0 && shown.contains("kube-proxy-ipvs/scheduler: sh"),
        "{code} {shown}"
    );
    let (_, way) = ask(c, &["explain", "default/web", "--from", "pod", "-v"])?;
    let origin = "spec.clusterIPs; annotation kube-proxy-ipvs/scheduler";
    ensure!(way.contains(origin), "{way}");

    flags_and_a_ceiling_hold(c, &mut api)?;
    weights_divide_connections(c, &mut api)?;

    // A restarted daemon finds the complete state, and writes nothing.
    let before = c.state()?;
    c.stop()?;
    c.launch_on(&api, &["--nodeport-addresses=primary"])?;
    for _family in 0..2 {
        let line = c.await_line("first sync done")?;
        ensure!(line.contains("written=0"), "{line}");
    }
    assert_eq!(c.state()?, before);
    Ok(())
}

/// Checks with packets that `sh-port` distributes one client's connections, and that IPVS gives a
/// full endpoint no further connection.
fn flags_and_a_ceiling_hold(c: &Cluster, api: &mut scenarios::ApiServer) -> Outcome {
    api.apply(&with_flags("sh", "sh-port"))?;
    until_scheduled(c, "sh -b sh-port")?;
    let spread = tally(&c.client, Transport::Tcp, at(VIP), 16)?;
    ensure!(spread.len() == 2, "{spread:?}");

    let full = Service::new("full", "10.96.0.12")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10");
    let annotation = format!("annotations: {{kube-proxy-ipvs/max-connections: \"{CEILING}\"}}");
    api.apply(&full.clone().metadata(&annotation))?;
    c.until_served(&full)?;
    let open = || c.client.open_tcp(at("10.96.0.12:80"), FIRST_TRY);
    let mut held = Vec::new();
    let refusal = loop {
        match open() {
            Ok(connection) => held.push(connection),
            Err(refusal) => break refusal,
        }
        ensure!(held.len() <= 2 * CEILING, "no endpoint is ever full");
    };
    println!(
        "    two endpoints with a ceiling of {CEILING}: {} connections, then {refusal:?}",
        held.len()
    );
    ensure!(matches!(refusal, Failure::Refused), "{refusal}");
    // The limit also counts the connections of the wait for the Service. The test may therefore
    // open fewer connections than both endpoints' limits together.
    ensure!(held.len() > CEILING, "{}", held.len());
    api.apply(&full)?;
    c.until("no ceiling", || Ok(open().is_ok())).map(drop)
}

/// Checks with packets that the endpoints share connections in proportion to their weights.
fn weights_divide_connections(c: &Cluster, api: &mut scenarios::ApiServer) -> Outcome {
    let weighted = Service::new("weighted", "10.96.0.13")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10");
    api.apply(&weighted)?;
    c.until_served(&weighted)?;
    let annotations =
        "annotations: {kube-proxy-ipvs/scheduler: wrr, kube-proxy-ipvs/weights: local=3}";
    api.apply(&weighted.metadata(annotations))?;
    c.until("weights", || {
        let turns = tally(&c.client, Transport::Tcp, at("10.96.0.13:80"), 8)?;
        let mut shares: Vec<usize> = turns.into_values().collect();
        shares.sort_unstable();
        println!("    wrr with local=3: {shares:?} of 8 connections");
        Ok(shares == [2, 6])
    })
    .map(drop)
}

pub(crate) fn an_ignored_service_option_is_reported(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    api.apply(&with("best"))?;
    api.start()?;
    c.launch_on(&api, &["--nodeport-addresses=primary"])?;
    let line = c.await_line("cannot apply annotation")?;
    let parts = [
        "default/web",
        "kube-proxy-ipvs/scheduler",
        "best",
        "one of rr, wrr, lc",
    ];
    ensure!(parts.iter().all(|part| line.contains(part)), "{line}");
    c.until_served(&with("best"))?;
    until_scheduled(c, "rr")?;
    until_told(c, &api, "one of rr, wrr, lc")?;

    // Corrects the scheduler, and later names a scheduler that the kernel cannot load.
    api.apply(&with("sh"))?;
    until_scheduled(c, "sh")?;
    let (code, shown) = ask(c, &["services", "default/web"])?;
    ensure!(code == 0, "{shown}");
    if is_module("ip_vs_lblc") && !Path::new("/sys/module/ip_vs_lblc").exists() {
        let taken_away = Modprobe::take_away()?;
        api.apply(&with("lblc"))?;
        let line = c.await_line("cannot apply annotation")?;
        ensure!(line.contains("modprobe ip_vs_lblc"), "{line}");
        until_scheduled(c, "rr")?;
        until_told(c, &api, "modprobe ip_vs_lblc")?;
        c.until_answered(&c.client, VIP)?;
        drop(taken_away);
    }
    // With a manifest directory, `check` must predict the same result.
    c.stop()?;
    c.apply(&with("best"))?;
    for (flags, why) in [
        (&[][..], "give one of rr, wrr, lc"),
        (
            &["--proxy-mode=iptables"][..],
            "has no effect in iptables mode, only in: ipvs",
        ),
    ] {
        let wrong = if flags.is_empty() { "best" } else { "sh" };
        c.apply(&with(wrong))?;
        let foreseen = c.check(flags)?;
        let line = foreseen
            .lines()
            .find(|line| line.contains("cannot apply annotation"));
        let line = line.with_context(|| foreseen.clone())?;
        ensure!(line.contains(why), "{line}");
    }
    Ok(())
}

/// Waits for a Kubernetes event about the Service that contains the reason `why`.
fn until_told(c: &Cluster, api: &scenarios::ApiServer, why: &str) -> Outcome {
    c.until("an event", || {
        Ok(api.events().iter().any(|event| {
            let has = |path, part| {
                let text = event.pointer(path).and_then(Value::as_str);
                text.is_some_and(|text| text.contains(part))
            };
            has("/reason", "OptionNotHeeded") && has("/regarding/name", "web") && has("/note", why)
        }))
    })?;
    let (code, shown) = ask(c, &["services", "default/web"])?;
    ensure!(
        code == 1 && shown.contains("cannot apply annotation") && shown.contains(why),
        "{code} {shown}"
    );
    Ok(())
}
