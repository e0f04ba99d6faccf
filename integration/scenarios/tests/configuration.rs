//! Tests changes of the configuration file while the daemon runs. Also tests the init container,
//! which runs before the daemon (`--init-only`).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use scenarios::{
    Cluster, METRICS, Modprobe, Outcome, SOON, Service, at, get, is_module, kube_proxy, stories,
    tcp, tell,
};

fn main() {
    let stories = stories! {
        a_changed_configuration_is_applied_without_losing_connections,
        a_configuration_change_that_fails_is_retried if is_module("ip_vs_mh"),
        health_checks_are_served_at_node_port_addresses,
        packets_in_conntrack_state_invalid_are_accepted_after_a_configuration_change,
        changes_that_need_a_restart_are_logged,
        a_restarted_container_keeps_its_pods_mode,
        an_unwritable_kernel_setting_affects_only_its_feature,
        the_old_mode_serves_while_the_new_mode_cannot_start,
        kernel_settings_are_restored_or_reported,
        a_configuration_without_a_mode_means_iptables,
        init_only_prepares_the_node_and_leaves_no_rule,
        init_only_fails_if_the_node_cannot_run_the_mode,
        init_only_names_a_missing_kernel_module if is_module("xt_set"),
    };
    tell(&stories, Duration::from_mins(4))
}

/// Directory with the links of a mounted ConfigMap: `config.conf → ..data/config.conf`, and `..data
/// → ..1` for the first version.
struct ConfigMap(PathBuf);

impl ConfigMap {
    fn new(c: &Cluster, fields: &str) -> Result<Self> {
        let folder = c.folder().join("kube-proxy");
        fs::create_dir(&folder)?;
        symlink("..data/config.conf", folder.join("config.conf"))?;
        let map = Self(folder);
        map.publish("..1", fields)?;
        Ok(map)
    }

    /// Publishes a version of the ConfigMap as the kubelet does: writes a new directory, and
    /// renames a new `..data` link over the old one.
    fn publish(&self, version: &str, fields: &str) -> Result<()> {
        let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                      conntrack: {maxPerCore: 0}\nclusterCIDR: 10.244.0.0/16,fd44::/16\n";
        let folder = self.0.join(version);
        fs::create_dir(&folder)?;
        fs::write(folder.join("config.conf"), format!("{header}{fields}"))?;
        symlink(version, self.0.join("..new"))?;
        fs::rename(self.0.join("..new"), self.0.join("..data"))?;
        Ok(())
    }

    fn flag(&self) -> String {
        format!("--config={}", self.0.join("config.conf").display())
    }
}

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10")
}

fn scheduler(c: &Cluster, server: &str) -> Result<String> {
    let servers = c.servers()?;
    let found = servers.get(server).map(|found| found.properties.clone());
    Ok(found.unwrap_or_default())
}

fn a_changed_configuration_is_applied_without_losing_connections(c: &mut Cluster) -> Outcome {
    let map = ConfigMap::new(c, "mode: ipvs\n")?;
    c.apply(&web())?;
    c.start(&[&map.flag()])?;
    c.until_served(&web())?;
    let mut kept = [
        c.client.open_tcp(at("10.96.0.10:80"), SOON)?,
        c.client.open_tcp(at("[fd96::10]:80"), SOON)?,
        c.outside.open_tcp(at("172.35.0.100:30080"), SOON)?,
    ];
    let mut all_answer = || {
        kept.iter_mut()
            .try_for_each(|connection| connection.ask().map(drop))
    };
    all_answer()?;

    // The new file is invalid, so the daemon keeps the configuration in use.
    map.publish("..2", "mode: [\n")?;
    c.await_line("going on with the configuration in use")?;
    ensure!(scheduler(c, "TCP 10.96.0.10:80")? == "rr");

    let changed = "mode: ipvs\nipvs: {scheduler: wrr, tcpTimeout: 800s, strictARP: true, \
                   syncPeriod: 1m}\n\
                   conntrack: {maxPerCore: 0, tcpBeLiberal: true}\niptables: {masqueradeAll: \
                   true}\n";
    map.publish("..3", changed)?;
    let line = c.await_line("which needs no restart")?;
    for field in [
        "conntrack.tcpBeLiberal",
        "iptables.masqueradeAll",
        "ipvs.scheduler",
        "ipvs.strictARP",
        "ipvs.syncPeriod",
        "ipvs.tcpTimeout",
    ] {
        ensure!(line.contains(field), "{line}");
    }
    for server in [
        "TCP 10.96.0.10:80",
        "TCP [fd96::10]:80",
        "TCP 172.35.0.100:30080",
    ] {
        c.until(&format!("{server} has the new scheduler"), || {
            Ok(scheduler(c, server)? == "wrr")
        })?;
    }
    c.until("all is masqueraded", || {
        Ok(!c
            .sh("iptables-save -t nat")?
            .contains("! -s 10.244.0.0/16 -m comment"))
    })?;
    ensure!(c.sh("ipvsadm -l --timeout")?.contains(": 800 "));
    for (sysctl, value) in [
        ("net.netfilter.nf_conntrack_tcp_be_liberal", "1"),
        ("net.ipv4.conf.all.arp_ignore", "1"),
        ("net.ipv4.conf.all.arp_announce", "2"),
    ] {
        let found = c.sh(&format!("sysctl -n {sysctl}"))?;
        ensure!(found.trim() == value, "{sysctl}: {found}");
    }
    all_answer()?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    // The same process still runs and watches objects, so it programs this change.
    let less = web().endpoints("10.244.2.10 fd44:1::10");
    c.apply(&less)?;
    c.until_served(&less)?;
    all_answer()?;
    c.stop()
}

/// Returns the scheduler and strict ARP setting that the daemon reports in `/configz`.
fn told_in_effect(c: &Cluster) -> Result<String> {
    let (_, body) = get(&c.node1, METRICS, "/configz")?;
    let all: serde_json::Value = serde_json::from_str(&body)?;
    let field = |name| all.pointer(&format!("/kubeproxy.config.k8s.io/ipvs/{name}"));
    Ok(format!("{:?} {:?}", field("scheduler"), field("strictARP")))
}

/// A new file cannot be applied, so the daemon logs the failure and keeps the old configuration.
/// After the cause is removed, the new file takes effect without another edit.
fn a_configuration_change_that_fails_is_retried(c: &mut Cluster) -> Outcome {
    let map = ConfigMap::new(c, "mode: ipvs\n")?;
    c.apply(&web())?;
    c.start(&[&map.flag()])?;
    c.until_served(&web())?;
    let before = told_in_effect(c)?;
    let taken_away = Modprobe::take_away()?;
    c.sh("rmmod ip_vs_mh 2>/dev/null || true")?;
    map.publish(
        "..2",
        "mode: ipvs\nipvs: {scheduler: mh, strictARP: true}\n",
    )?;
    let line = c.await_line("is not in effect")?;
    ensure!(line.contains("modprobe ip_vs_mh"), "{line}");
    let less = web().endpoints("10.244.2.10 fd44:1::10");
    c.apply(&less)?;
    c.until_served(&less)?;
    ensure!(told_in_effect(c)? == before);
    ensure!(setting(c, "net.ipv4.conf.all.arp_ignore")? == "0");
    ensure!(scheduler(c, "TCP 10.96.0.10:80")? == "rr");
    c.sh("modprobe ip_vs_mh")?;
    let took = c.until("the new scheduler", || {
        Ok(scheduler(c, "TCP 10.96.0.10:80")?.starts_with("mh"))
    })?;
    println!("    in effect {took:.1?} after the cause was gone");
    drop(taken_away);
    let after = told_in_effect(c)?;
    ensure!(after.contains("mh") && after != before, "{before} {after}");
    ensure!(setting(c, "net.ipv4.conf.all.arp_ignore")? == "1");
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.stop()
}

fn health_checks_are_served_at_node_port_addresses(c: &mut Cluster) -> Outcome {
    const AT: [&str; 3] = ["172.35.0.100:30999", "10.244.1.1:30999", "127.0.0.1:30999"];
    let fields = |addresses: &str| format!("mode: ipvs\nnodePortAddresses: [{addresses}]\n");
    let map = ConfigMap::new(c, &fields("172.35.0.0/24"))?;
    let local = web()
        .ingress("192.0.2.10")
        .spec("externalTrafficPolicy: Local, healthCheckNodePort: 30999");
    c.apply(&local)?;
    c.start(&[&map.flag()])?;
    for (number, addresses, wanted) in [
        (1, "172.35.0.0/24", [true, false, false]),
        (2, "10.244.1.0/24", [false, true, false]),
        (3, "", [true; 3]),
        (4, "172.35.0.0/24", [true, false, false]),
    ] {
        if number > 1 {
            map.publish(&format!("..{number}"), &fields(addresses))?;
        }
        let answered = || AT.map(|at| get(&c.node1, at, "/").is_ok_and(|(code, _)| code == 200));
        let took = c.until(addresses, || Ok(answered() == wanted))?;
        println!("    health checks answered at [{addresses}] after {took:.1?}");
    }
    c.stop()
}

/// With `tcpBeLiberal`, no rule drops packets in conntrack state INVALID. If a later file omits the
/// option, the kernel setting stays.
fn packets_in_conntrack_state_invalid_are_accepted_after_a_configuration_change(
    c: &mut Cluster,
) -> Outcome {
    has_a_way(c)?;
    let fields = |is_liberal: bool| {
        format!("mode: iptables\nconntrack: {{maxPerCore: 0, tcpBeLiberal: {is_liberal}}}\n")
    };
    let map = ConfigMap::new(c, &fields(false))?;
    c.apply(&web())?;
    c.start(&[&map.flag()])?;
    let drops = |c: &Cluster| -> Result<[bool; 2]> {
        let rules = c.sh("iptables-$backend-save -t filter; ip6tables-$backend-save -t filter")?;
        let mut drops = rules
            .lines()
            .filter(|line| line.starts_with("-A KUBE-FORWARD") && line.contains("INVALID"));
        let has_rules = drops.next().is_some();
        let is_liberal = setting(c, "net.netfilter.nf_conntrack_tcp_be_liberal")? == "1";
        Ok([has_rules, is_liberal])
    };
    ensure!(drops(c)? == [true, false]);
    map.publish("..2", &fields(true))?;
    let took = c.until("the rule to go", || Ok(drops(c)? == [false, true]))?;
    println!("    tcpBeLiberal in effect after {took:.1?}");
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.stop()
}

fn changes_that_need_a_restart_are_logged(c: &mut Cluster) -> Outcome {
    let map = ConfigMap::new(c, "mode: ipvs\nipvs: {syncPeriod: 50s}\n")?;
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    api.start()?;
    let flags = [&map.flag(), "--master=http://172.35.0.9:6443"];
    c.launch_with(&flags)?;
    c.await_first_sync()?;
    let (before, daemon) = (c.state()?, c.daemon_id()?);
    map.publish(
        "..2",
        "mode: iptables\nmetricsBindAddress: 127.0.0.1:9\nconntrack: {maxPerCore: 0, \
         tcpBeLiberal: true}\n",
    )?;
    let line = c.await_line("need a restart")?;
    for part in [
        "ipvs.syncPeriod: 30s (in use: 50s)",
        "metricsBindAddress: 127.0.0.1:9 (in use: 127.0.0.1:10249)",
        "mode: iptables (in use: ipvs)",
        "kubectl -n kube-system rollout restart daemonset NAME` (kubeadm: kube-proxy;",
    ] {
        ensure!(line.starts_with('W') && line.contains(part), "{line}");
    }
    // The daemon still applies the other fields of the file.
    let line = c.await_line("which needs no restart")?;
    ensure!(
        line.contains("has changed in conntrack.tcpBeLiberal, which"),
        "{line}"
    );
    c.until("the setting", || {
        Ok(setting(c, "net.netfilter.nf_conntrack_tcp_be_liberal")? == "1")
    })?;
    let of_the_node = |event: &serde_json::Value| {
        let says = |path: &str, text: &str| event.pointer(path).is_some_and(|found| found == text);
        says("/reason", "RestartRequired") && says("/regarding/kind", "Node")
    };
    c.until("the event", || Ok(api.events().iter().any(of_the_node)))?;
    // The process has not restarted, keeps its state, and still watches objects.
    ensure!(c.state()? == before && c.daemon_id()? == daemon);
    ensure!(c.sh("curl -s http://127.0.0.1:10249/proxyMode")? == "ipvs");
    let configz = c.sh("curl -s http://127.0.0.1:10249/configz")?;
    ensure!(configz.contains("\"mode\":\"ipvs\""), "{configz}");
    let less = web().endpoints("10.244.2.10 fd44:1::10");
    api.apply(&less)?;
    c.until_served(&less)?;

    map.publish("..3", "mode: ipvs\nipvs: {syncPeriod: 50s}\n")?;
    c.await_line("no restart is needed")?;
    map.publish("..4", "mode: iptables\n")?;
    c.await_line("mode: iptables (in use: ipvs)")?;
    let said = c.said();
    ensure!(said.lines().all(|line| !line.starts_with('E')), "{said}");
    c.stop()?;
    // After a restart, the daemon runs the new mode.
    c.launch_with(&flags)?;
    c.until("iptables mode", || Ok(c.sh("ipset list -name")?.is_empty()))?;
    c.stop()
}

/// Makes `/proc/sys` read-only for daemons that start later, as in an unprivileged container.
fn may_not_write_settings(c: &mut Cluster) {
    let script =
        "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec \"$@\"";
    c.prefix = ["unshare", "--mount", "sh", "-ec", script, "sh"]
        .map(Into::into)
        .to_vec();
}

/// Adds a default route to node1. The node's own packets to a Service need a route, because
/// iptables mode makes no Service address local.
fn has_a_way(c: &Cluster) -> Outcome {
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    Ok(())
}

fn setting(c: &Cluster, name: &str) -> Result<String> {
    Ok(c.sh(&format!("sysctl -n {name}"))?.trim().to_owned())
}

/// Kills the daemon with SIGKILL, as the kernel's out-of-memory killer would.
fn crash(c: &mut Cluster) -> Outcome {
    c.sh(&format!("kill -KILL {}", c.daemon_id()?))?;
    ensure!(c.stop().is_err(), "it was to be killed");
    Ok(())
}

/// The changed file names another mode. A container that restarts after a crash keeps its pod's
/// mode, because no init container runs again. Other fields of the file take effect. An invalid
/// file does not end the daemon.
fn a_restarted_container_keeps_its_pods_mode(c: &mut Cluster) -> Outcome {
    has_a_way(c)?;
    let map = ConfigMap::new(c, "mode: ipvs\n")?;
    c.apply(&web())?;
    let pod = c.folder().join("pod");
    fs::create_dir(&pod)?;
    let prepared = format!("--prepared-config={}", pod.join("config").display());
    let flags = [map.flag(), prepared.clone()];
    let flags = flags.each_ref().map(String::as_str);
    let init = |c: &Cluster| {
        let program = kube_proxy()?;
        c.sh(&format!(
            "exec {} --init-only {} 2>&1",
            program.display(),
            flags.join(" ")
        ))
    };
    init(c)?;
    may_not_write_settings(c);
    c.start(&flags)?;
    c.until_served(&web())?;

    map.publish(
        "..2",
        "mode: iptables\nnodePortAddresses: [172.35.0.0/24]\n",
    )?;
    c.await_line("mode: iptables (in use: ipvs)")?;
    crash(c)?;
    c.start(&flags)?;
    // The daemon may log the message before or after its first sync.
    c.until("it is said again", || {
        Ok(c.said().matches("mode: iptables (in use: ipvs)").count() == 2)
    })?;
    let moved = web().endpoints("10.244.2.10 fd44:1::10");
    c.apply(&moved)?;
    c.until("the change", || {
        Ok(c.reals("TCP 10.96.0.10:80")? == "10.244.2.10:8080*1")
    })?;
    // For fields that take effect immediately, `/configz` shows the file's value.
    let configz = c.sh("curl -s http://127.0.0.1:10249/configz")?;
    ensure!(configz.contains("172.35.0.0/24"), "{configz}");

    map.publish("..3", "mode: [\n")?;
    crash(c)?;
    c.start(&flags)?;
    let line = c.said();
    let line = line
        .lines()
        .rfind(|line| line.contains("that this pod had"));
    ensure!(line.is_some_and(|line| line.starts_with('W')), "{line:?}");
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.stop()?;

    // The next pod has an empty volume. In this volume, its init container records iptables mode.
    map.publish("..4", "mode: iptables\n")?;
    fs::remove_file(pod.join("config"))?;
    init(c)?;
    c.start(&flags)?;
    c.until_answered(&c.node1, "127.0.0.1:30080")?;
    let said = c.said();
    ensure!(said.lines().all(|line| !line.starts_with('E')), "{said}");
    c.stop()
}

/// Only NodePorts at 127.0.0.1 need `route_localnet`, and no basic feature needs the conntrack
/// settings. The daemon must serve without them, although upstream exits.
fn an_unwritable_kernel_setting_affects_only_its_feature(c: &mut Cluster) -> Outcome {
    has_a_way(c)?;
    let fields = |more: &str| {
        format!("mode: iptables\nconntrack: {{maxPerCore: 0, tcpBeLiberal: true}}\n{more}")
    };
    let map = ConfigMap::new(c, &fields("iptables: {localhostNodePorts: false}\n"))?;
    c.apply(&web())?;
    may_not_write_settings(c);
    c.start(&[&map.flag()])?;
    let begin = c.said();
    let line = begin
        .lines()
        .find(|line| line.contains("net.netfilter.nf_conntrack_tcp_be_liberal to 1 (it is 0"));
    ensure!(line.is_some_and(|line| line.starts_with('E')), "{begin}");
    let is_served = |c: &Cluster| -> Outcome {
        for (from, to) in [
            (&c.client, "10.96.0.10:80"),
            (&c.outside, "172.35.0.100:30080"),
        ] {
            c.until_answered(from, to)?;
        }
        c.refuses(&c.node1, "127.0.0.1:30080")?;
        let rules = c.sh("iptables-$backend-save")?;
        ensure!(!rules.contains("block incoming localnet"), "{rules}");
        Ok(())
    };
    is_served(c)?;
    // The daemon applies the new file except for settings that it cannot write.
    map.publish("..2", &fields(""))?;
    let said = |c: &mut Cluster| {
        let line = c.await_line("cannot set net.ipv4.conf.all.route_localnet to 1 (it is 0")?;
        ensure!(line.starts_with('E'), "{line}");
        for part in ["NodePorts at 127.0.0.1 are not served", "rollout restart"] {
            ensure!(line.contains(part), "{line}");
        }
        Ok(())
    };
    said(c)?;
    is_served(c)?;
    crash(c)?;
    c.launch(&[&map.flag()])?;
    said(c)?;
    c.await_first_sync()?;
    is_served(c)?;
    let moved = web().endpoints("10.244.2.10");
    c.apply(&moved)?;
    c.until("the other endpoint to answer", || {
        Ok(c.client
            .ask_tcp(at("10.96.0.10:80"), SOON)
            .is_ok_and(|answer| answer.who == "far"))
    })?;
    c.stop()
}

/// The new mode needs a kernel setting that the daemon cannot write. It therefore does not replace
/// the previous mode, whose state stays. A mode that has served before serves again, even if the
/// daemon cannot write the setting.
fn the_old_mode_serves_while_the_new_mode_cannot_start(c: &mut Cluster) -> Outcome {
    has_a_way(c)?;
    let map = ConfigMap::new(c, "mode: iptables\n")?;
    c.apply(&web())?;
    c.start(&[&map.flag()])?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.stop()?;
    let prefix = c.prefix.clone();
    map.publish("..2", "mode: ipvs\nipvs: {strictARP: true}\n")?;
    // Loads the modules, because a container without rights could not load them. Then resets a
    // setting that IPVS mode needs.
    c.sh("ipvsadm -Ln; sysctl -q net.ipv4.vs.conntrack=0")?;
    may_not_write_settings(c);
    let before = c.state()?;
    c.launch(&[&map.flag()])?;
    let said = c.refusal()?;
    for part in [
        "net.ipv4.vs.conntrack to 1 (it is 0)",
        "arp_ignore",
        "rollout restart",
    ] {
        ensure!(said.contains(part), "{said}");
    }
    ensure!(c.state()? == before);
    c.until_answered(&c.client, "10.96.0.10:80")?;

    let unprivileged = std::mem::replace(&mut c.prefix, prefix);
    c.start(&[&map.flag()])?;
    c.until_served(&web())?;
    c.sh("sysctl -q net.ipv4.vs.conntrack=0")?;
    crash(c)?;
    c.prefix = unprivileged;
    c.launch(&[&map.flag()])?;
    let line = c.await_line("cannot set net.ipv4.vs.conntrack to 1 (it is 0)")?;
    ensure!(
        line.starts_with('E') && line.contains("continues unchanged"),
        "{line}"
    );
    c.await_first_sync()?;
    c.until_served(&web())?;
    c.stop()
}

fn kernel_settings_are_restored_or_reported(c: &mut Cluster) -> Outcome {
    const ARP: [&str; 2] = [
        "net.ipv4.conf.all.arp_ignore",
        "net.ipv4.conf.all.arp_announce",
    ];
    let arp = |c: &Cluster| anyhow::Ok(ARP.map(|name| setting(c, name).unwrap_or_default()));
    has_a_way(c)?;
    let map = ConfigMap::new(c, "mode: ipvs\nipvs: {strictARP: true}\n")?;
    c.apply(&web())?;
    c.start(&[&map.flag()])?;
    c.until_served(&web())?;
    ensure!(arp(c)? == ["1", "2"]);
    map.publish("..2", "mode: ipvs\n")?;
    c.await_line("net.ipv4.conf.all.arp_announce is 0 again")?;
    ensure!(arp(c)? == ["0", "0"]);

    // Another program sets `arp_ignore`, first to 8 and later to 1, the value of strict ARP. When
    // strict ARP is disabled, the daemon resets only `arp_announce`.
    map.publish("..3", "mode: ipvs\nipvs: {strictARP: true}\n")?;
    c.until("strict ARP", || Ok(arp(c)? == ["1", "2"]))?;
    c.sh("sysctl -q net.ipv4.conf.all.arp_ignore=8")?;
    map.publish("..4", "mode: ipvs\n")?;
    c.await_line("net.ipv4.conf.all.arp_announce is 0 again")?;
    ensure!(arp(c)? == ["8", "0"]);
    c.sh("sysctl -q net.ipv4.conf.all.arp_ignore=1")?;
    map.publish("..5", "mode: ipvs\nipvs: {strictARP: true}\n")?;
    c.until("strict ARP", || Ok(arp(c)? == ["1", "2"]))?;
    map.publish("..6", "mode: ipvs\n")?;
    let line = c.await_line("net.ipv4.conf.all.arp_ignore stays 1")?;
    ensure!(
        line.starts_with('W') && line.contains("`sysctl -w net.ipv4.conf.all.arp_ignore=0` undoes"),
        "{line}"
    );
    ensure!(arp(c)? == ["1", "0"]);
    let said = c.said();
    ensure!(!said.contains("route_localnet"), "{said}");
    c.stop()?;

    // Changes to iptables mode, and back to IPVS mode.
    map.publish("..7", "mode: iptables\n")?;
    c.start(&[&map.flag()])?;
    ensure!(setting(c, "net.ipv4.conf.all.route_localnet")? == "1");
    c.stop()?;
    map.publish("..8", "mode: ipvs\n")?;
    for is_told in [true, false] {
        c.start(&[&map.flag()])?;
        c.until_served(&web())?;
        let said = c.said();
        let last = said.rsplit("\n-- it ended\n").next().unwrap_or_default();
        let line = last
            .lines()
            .find(|line| line.contains("route_localnet stays 1"));
        ensure!(line.is_some() == is_told, "{last}");
        if let Some(line) = line {
            let undo = "`sysctl -w net.ipv4.conf.all.route_localnet=0` undoes";
            ensure!(line.starts_with('W') && line.contains(undo), "{line}");
        }
        c.until("what iptables mode has left to go", || {
            Ok(!c.sh("iptables-$backend-save")?.contains("KUBE-SVC-"))
        })?;
        c.stop()?;
    }
    let cleaned = c.sh(&format!("{} --cleanup", kube_proxy()?.display()))?;
    for part in ["route_localnet stays 1", "arp_ignore stays 1"] {
        ensure!(cleaned.contains(part), "{cleaned}");
    }
    ensure!(!cleaned.contains("arp_announce"), "{cleaned}");
    // If both settings have the values of strict ARP, another program may have set them. The daemon
    // then logs them at level info instead of warning.
    let is_told = |c: &Cluster| {
        let said = c.said();
        let last = said.rsplit("\n-- it ended\n").next().unwrap_or_default();
        let mut lines = last.lines();
        lines.any(|line| line.starts_with('I') && line.contains("arp_ignore stays 1"))
    };
    for announce in [2, 0] {
        c.sh(&format!(
            "sysctl -q net.ipv4.conf.all.arp_announce={announce}"
        ))?;
        c.start(&[&map.flag()])?;
        ensure!(is_told(c) == (announce == 2));
        c.stop()?;
    }
    // The changed file disables node ports at 127.0.0.1, so the running daemon resets
    // `route_localnet`.
    c.sh("sysctl -q net.ipv4.conf.all.route_localnet=0")?;
    map.publish("..9", "mode: iptables\n")?;
    c.start(&[&map.flag()])?;
    c.until_answered(&c.node1, "127.0.0.1:30080")?;
    map.publish(
        "..10",
        "mode: iptables\niptables: {localhostNodePorts: false}\n",
    )?;
    c.await_line("net.ipv4.conf.all.route_localnet is 0 again")?;
    ensure!(setting(c, "net.ipv4.conf.all.route_localnet")? == "0");
    c.stop()
}

/// kubeadm's ConfigMap has `mode: ""` and periods of zero. With this file, the daemon runs iptables
/// mode like upstream, and warns only about the missing mode.
fn a_configuration_without_a_mode_means_iptables(c: &mut Cluster) -> Outcome {
    // The node's own packets to a Service need a route, because iptables mode makes no Service
    // address local.
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    let periods = "iptables: {minSyncPeriod: 0s, syncPeriod: 0s}\nipvs: {minSyncPeriod: 0s, \
                   syncPeriod: 0s}\n";
    let map = ConfigMap::new(c, &format!("mode: \"\"\n{periods}"))?;
    c.apply(&web())?;
    c.launch(&[&map.flag()])?;
    let line = c.await_line("mode is empty")?;
    ensure!(
        line.starts_with('W') && line.contains("iptables mode is used"),
        "{line}"
    );
    c.await_first_sync()?;
    for from in [&c.client, &c.outside] {
        c.until_answered(from, "10.96.0.10:80")?;
        c.until_answered(from, "172.35.0.100:30080")?;
    }
    ensure!(
        c.sh("ipset list -name")?.is_empty(),
        "nothing is of IPVS mode"
    );
    let said = c.said();
    ensure!(!said.contains("has no effect"), "{said}");
    c.stop()
}

/// Runs the shell commands `before` and then `kube-proxy --init-only`. Returns true on success, and
/// the output.
fn init_only(c: &Cluster, before: &str, flags: &str) -> Result<(bool, String)> {
    let said = c.sh(&format!(
        "unshare -m sh -c '{before} exec {} --init-only --conntrack-max-per-core=0 {flags}' 2>&1 \
         && echo done || echo failed",
        kube_proxy()?.display()
    ))?;
    Ok((said.ends_with("done\n"), said))
}

fn init_only_prepares_the_node_and_leaves_no_rule(c: &mut Cluster) -> Outcome {
    let rules = |c: &Cluster| -> Result<String> {
        let state = c.state()?;
        // `iptables-save` creates each table that it reads, but without rules. The comparison
        // ignores such tables.
        let is_bare = |line: &&str| {
            !line.contains(" *") && !line.contains(" COMMIT") && !line.contains(" ACCEPT")
        };
        Ok(state.lines().filter(is_bare).collect::<Vec<_>>().join("\n"))
    };
    let before = rules(c)?;
    let flags = "--proxy-mode=ipvs --ipvs-udp-timeout=250s --ipvs-strict-arp";
    let (is_done, said) = init_only(c, "", flags)?;
    ensure!(is_done, "{said}");
    ensure!(c.sh("ipvsadm -l --timeout")?.trim_end().ends_with(" 250"));
    ensure!(setting(c, "net.ipv4.vs.conntrack")? == "1");
    ensure!(setting(c, "net.ipv4.conf.all.arp_ignore")? == "1");
    ensure!(setting(c, "net.ipv4.conf.all.route_localnet")? == "0");
    let (is_done, said) = init_only(c, "", "--proxy-mode=iptables")?;
    ensure!(is_done, "{said}");
    ensure!(setting(c, "net.ipv4.conf.all.route_localnet")? == "1");
    let after = rules(c)?;
    ensure!(
        before == after,
        "no rule, set or virtual server:\n{before}\n---\n{after}"
    );
    Ok(())
}

/// The node cannot run the mode. The init container must fail with the serving container's error,
/// so that the serving container does not start.
fn init_only_fails_if_the_node_cannot_run_the_mode(c: &mut Cluster) -> Outcome {
    // All iptables programs are links to two binaries, which the script hides by mounts of a device
    // node.
    let no_iptables =
        "for multi in legacy nft; do mount --bind /dev/null /usr/sbin/xtables-$multi-multi; done;";
    let read_only = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys;";
    let backend = format!("--iptables-backend={}", lab::iptables_backend());
    for (before, flags, reason) in [
        (
            no_iptables,
            "--proxy-mode=ipvs --ipvs-shim=upstream",
            "cannot use iptables",
        ),
        (no_iptables, "--proxy-mode=iptables", "cannot use iptables"),
        (
            no_iptables,
            &format!("--proxy-mode=ipvs {backend}"),
            "is not here: install the package iptables",
        ),
        (
            "",
            "--proxy-mode=ipvs --ipvs-scheduler=nonesuch",
            "no scheduler `nonesuch`",
        ),
        (
            read_only,
            "--proxy-mode=iptables",
            "cannot set net.ipv4.conf.all.route_localnet to 1",
        ),
    ] {
        let (is_done, said) = init_only(c, before, flags)?;
        let is_told = said
            .lines()
            .any(|line| line.starts_with('E') && line.contains(reason));
        ensure!(!is_done && is_told, "{flags}: {said}");
    }
    Ok(())
}

/// The init container reports a missing kernel module. Otherwise, the next daemon would fail only
/// at the first Service, after the previous daemon has ended.
fn init_only_names_a_missing_kernel_module(c: &mut Cluster) -> Outcome {
    for (module, mode, reason) in [
        (
            "ip_set_hash_ipportnet",
            "ipvs",
            "run `modprobe ip_set_hash_ipportnet`",
        ),
        ("xt_set", "ipvs", "modprobe -a xt_set"),
        (
            "xt_statistic",
            "iptables",
            "cannot write the rules of iptables mode",
        ),
    ] {
        // With the module, the init container must succeed, although earlier tests have left state
        // in the kernel.
        let (is_done, said) = init_only(c, "", &format!("--proxy-mode={mode}"))?;
        ensure!(is_done, "{said}");
        c.sh("sysctl -q kernel.modprobe=/bin/false")?;
        c.until("the module to go", || {
            Ok(c.sh(&format!("rmmod {module} && echo gone || true"))? == "gone\n")
        })?;
        let (is_done, said) = init_only(c, "", &format!("--proxy-mode={mode}"))?;
        c.sh("sysctl -q kernel.modprobe=/sbin/modprobe")?;
        let error = said.lines().find(|line| line.starts_with('E'));
        let is_told = error.is_some_and(|line| line.contains(reason));
        ensure!(!is_done && is_told, "{module}: {said}");
        ensure!(
            !c.state()?.contains("KUBE-PROXY-PROBE"),
            "nothing stays of what was tried"
        );
    }
    Ok(())
}
