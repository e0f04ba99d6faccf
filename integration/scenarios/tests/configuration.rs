//! The configuration file that changes under a running daemon, and what is done before one runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use scenarios::{Cluster, Outcome, SOON, Service, Story, at, kube_proxy, tcp, tell};

fn main() {
    let story = |name, tell| Story {
        name,
        tell,
        is_possible: || true,
    };
    let stories = [
        story(
            "a_changed_file_is_applied_while_connections_live",
            a_changed_file_is_applied_while_connections_live,
        ),
        story(
            "what_cannot_be_applied_ends_the_process_and_is_named",
            what_cannot_be_applied_ends_the_process_and_is_named,
        ),
        story(
            "init_only_needs_no_iptables_and_writes_no_rule",
            init_only_needs_no_iptables_and_writes_no_rule,
        ),
    ];
    tell(&stories, Duration::from_mins(2))
}

/// A folder into which a ConfigMap is mounted: the file is a link into a folder that is a link.
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

    /// As the kubelet does it: a new folder, and a link that is renamed over the old one.
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

fn a_changed_file_is_applied_while_connections_live(c: &mut Cluster) -> Outcome {
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

    // Broken: what is in use stays in use.
    map.publish("..2", "mode: [\n")?;
    c.await_line("going on with the configuration in use")?;
    ensure!(scheduler(c, "TCP 10.96.0.10:80")? == "rr");

    let changed = "mode: ipvs\nipvs: {scheduler: wrr, tcpTimeout: 800s, strictARP: true, syncPeriod: 1m}\n\
                   conntrack: {maxPerCore: 0, tcpBeLiberal: true}\niptables: {masqueradeAll: true}\n";
    map.publish("..3", changed)?;
    let line = c.await_line("applied without a new start")?;
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
    // The same process follows objects as ever.
    let less = web().endpoints("10.244.2.10 fd44:1::10");
    c.apply(&less)?;
    c.until_served(&less)?;
    all_answer()?;
    c.stop()
}

fn what_cannot_be_applied_ends_the_process_and_is_named(c: &mut Cluster) -> Outcome {
    let map = ConfigMap::new(c, "mode: ipvs\n")?;
    c.apply(&web())?;
    c.start(&[&map.flag()])?;
    c.until_served(&web())?;
    let before = c.state()?;
    map.publish(
        "..2",
        "mode: ipvs\nmetricsBindAddress: 127.0.0.1:9\nipvs: {scheduler: sh}\n",
    )?;
    let said = c.refusal()?;
    let last = said.lines().last().unwrap_or_default();
    ensure!(
        last.contains("has changed in metricsBindAddress: exiting"),
        "{said}"
    );
    ensure!(c.state()? == before, "everything programmed stays");
    Ok(())
}

fn init_only_needs_no_iptables_and_writes_no_rule(c: &mut Cluster) -> Outcome {
    let before = c.state()?;
    // A device in the place of both programs that the many names of iptables are links to.
    let said = c.sh(&format!(
        "unshare -m sh -ec '
             for multi in legacy nft; do mount --bind /dev/null /usr/sbin/xtables-$multi-multi; done
             exec {} --init-only --conntrack-max-per-core=0 --ipvs-udp-timeout=250s --ipvs-strict-arp 2>&1'",
        kube_proxy()?.display()
    ))?;
    ensure!(said.contains("iptables is not prepared"), "{said}");
    ensure!(c.sh("ipvsadm -l --timeout")?.trim_end().ends_with(" 250"));
    ensure!(c.sh("sysctl -n net.ipv4.vs.conntrack")?.trim() == "1");
    ensure!(c.sh("sysctl -n net.ipv4.conf.all.arp_ignore")?.trim() == "1");
    ensure!(c.state()? == before, "no rule, set or virtual server");
    Ok(())
}
