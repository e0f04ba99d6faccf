//! Tests the iptables rules and ipsets of `--ipvs-semantics=exact` with an iptables shim. The
//! packet matrix tests the packets.

use std::fs;

use anyhow::ensure;
use scenarios::{Cluster, Outcome, Service, kube_proxy, tcp};

const EXACT: &str = "--ipvs-semantics=exact";
const LEAN: [&str; 2] = [EXACT, "--ipvs-shim=lean"];
/// Script that prints table mangle and the ipsets of firewall marks. IPVS mode uses them only with
/// `--ipvs-semantics=exact`.
const MARKS: &str = "iptables-$backend-save -t mangle; ip6tables-$backend-save -t mangle; \
                     for set in KUBE-LOCAL-MARK KUBE-6-LOCAL-MARK; do ipset save $set || true; done";
/// Script that adds another program's rules to table mangle. The script [`FOREIGN`] prints this
/// table.
const ADD_FOREIGN: &str = "for t in iptables ip6tables; do $t-$backend -t mangle -N OTHER; \
                           $t-$backend -t mangle -A INPUT -m mark --mark 0x99 -j OTHER; done";
const FOREIGN: &str = "iptables-$backend-save -t mangle; ip6tables-$backend-save -t mangle";

pub(crate) fn iptables_marks_are_adopted_repaired_and_removed(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .external("192.0.2.20 2001:db8::20")
        .spec("externalTrafficPolicy: Local")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    c.apply(&web)?;
    c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
    c.sh(ADD_FOREIGN)?;
    c.start(&LEAN)?;
    for to in ["192.0.2.20:80", "[2001:db8::20]:80", "172.35.0.100:30080"] {
        c.until_answered(&c.outside, to)?;
    }
    // With `--ipvs-semantics=exact`, node ports refuse connections to 127.0.0.1. The packet matrix
    // lists this exception.
    c.refuses(&c.node1, "127.0.0.1:30080")?;
    let marks = c.sh(MARKS)?;
    for part in [
        "-j SET --map-set KUBE-LOCAL-MARK dst,dst --map-mark",
        "-j SET --map-set KUBE-6-LOCAL-MARK dst,dst --map-mark",
        "add KUBE-LOCAL-MARK 192.0.2.20,tcp:80 skbmark 0x1",
        "add KUBE-6-LOCAL-MARK 2001:db8::20,tcp:80 skbmark 0x1",
    ] {
        ensure!(marks.contains(part), "no {part:?}:\n{marks}");
    }

    // A restarted daemon adopts all entries and writes none.
    c.stop()?;
    let preview = c.check(&LEAN)?;
    ensure!(!preview.contains("KUBE-"), "{preview}");
    c.launch(&LEAN)?;
    for _family in 0..2 {
        let line = c.await_line("first sync done")?;
        ensure!(line.contains("written=0"), "{line}");
    }

    // While no daemon runs, another program changes a firewall mark and removes rules.
    c.stop()?;
    c.sh(
        "ipset -exist add KUBE-LOCAL-MARK 192.0.2.20,tcp:80 skbmark 0x7/0xff; \
          iptables-$backend -t mangle -F KUBE-IPVS-BEFORE",
    )?;
    c.start(&LEAN)?;
    ensure!(same(&c.sh(MARKS)?) == same(&marks), "{}", c.sh(MARKS)?);

    // `--ipvs-semantics=upstream` needs no rules in table mangle, so the daemon removes its rules.
    c.stop()?;
    c.start(&["--ipvs-shim=lean"])?;
    let left = c.sh(MARKS)?;
    ensure!(
        !left.contains("KUBE-IPVS") && !left.contains("skbmark"),
        "{left}"
    );

    c.stop()?;
    let has_nftables = lab::iptables_backend() == "nft";
    let flags = if has_nftables { &LEAN[..] } else { &[EXACT] };
    c.start(flags)?;
    let made = c.sh(MARKS)?;
    ensure!(made.contains("KUBE-IPVS-BEFORE"), "{made}");
    c.stop()?;
    let kube_proxy = kube_proxy()?;
    c.sh(&format!("{} --cleanup", kube_proxy.display()))?;
    let left = c.sh(&format!("{FOREIGN}; ipset list -name; ipvsadm -Sn"))?;
    ensure!(!left.contains("KUBE-"), "{left}");
    let foreign = left
        .matches("-A INPUT -m mark --mark 0x99 -j OTHER")
        .count();
    ensure!(foreign == 2, "{left}");
    Ok(())
}

pub(crate) fn a_missing_iptables_extension_for_marks_is_reported(c: &mut Cluster) -> Outcome {
    let (bin, folder) = (c.folder().join("bin"), c.folder().join("xtables"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&folder)?;
    // The iptables programs load extensions from this directory, which lacks the extension SET.
    c.sh(&format!(
        "cp -rs $(dirname $(find /usr/lib -name libxt_SET.so | head -n 1))/*.so {folder} && rm {folder}/libxt_SET.so; \
         for program in iptables-legacy-restore iptables-nft-restore; do printf '#!/bin/sh\\nXTABLES_LIBDIR={folder} exec %s \"$@\"\\n' \
         $(command -v $program) > {bin}/$program; chmod +x {bin}/$program; done",
        folder = folder.display(),
        bin = bin.display(),
    ))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("PATH={}:{path}", bin.display());
    c.prefix = vec!["env".into(), path.into()];
    c.launch(&LEAN)?;
    let said = c.refusal()?;
    for part in [EXACT, "SET --map-mark", "--ipvs-shim=nftables"] {
        ensure!(said.contains(part), "no {part:?}:\n{said}");
    }
    c.prefix.clear();
    Ok(())
}

fn same(state: &str) -> Vec<&str> {
    let rules = state
        .lines()
        .filter(|line| line.contains("KUBE-IPVS") || line.starts_with("add "));
    let mut lines: Vec<_> = rules.filter(|line| line.starts_with(['-', 'a'])).collect();
    lines.sort_unstable();
    lines
}
