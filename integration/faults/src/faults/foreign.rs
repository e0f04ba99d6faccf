//! Faults in which another program removes or changes the daemon's kernel entries.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::mode::{IPTABLES, USERSPACE};
use crate::row::Row;
use crate::stage::{Promise, Stage};

/// Time limit for a repair that the daemon starts immediately. It is generous, because the VM has a
/// single CPU, which also carries the traffic.
const AT_ONCE: Duration = Duration::from_secs(3);
/// Time limit for adding a removed virtual server again. The daemon checks the number of virtual
/// servers every 2 s.
const GLANCED: Duration = Duration::from_secs(6);

/// Damage to the kernel state by another program, and the expected repair.
struct Damage<'a> {
    script: &'a str,
    /// Script that succeeds once the daemon has repaired the damage.
    holds: &'a str,
    /// Kinds of kernel entries that the daemon must count as drifted.
    kinds: &'a [&'a str],
    /// Description of kube-proxy's reaction, for docs/faults.md.
    did: &'a str,
    /// Time limit for the repair. `None`: the repair may wait for the next periodic check
    /// ([`period`]).
    within: Option<Duration>,
    /// True if no request may fail because of the damage.
    is_harmless: bool,
}

/// Defaults for [`Damage`], used as `..DAMAGE`.
const DAMAGE: Damage<'_> = Damage {
    script: "",
    holds: "",
    kinds: &[],
    did: "",
    within: None,
    is_harmless: false,
};

/// Damages the kernel state under traffic. Checks that the daemon repairs it within the time limit,
/// and counts and logs the drift.
fn repair(s: &mut Stage<'_>, damage: &Damage<'_>) -> Result<Row> {
    s.serve(&[])?;
    // Runs the check once before the damage, so that the VM has already read its programs from
    // disk.
    s.c.sh(damage.holds)?;
    let whole = s.c.state()?;
    s.traffic()?;
    let damaged = Instant::now();
    s.c.sh(damage.script)?;
    let took = s.until_holds(damage.holds, damaged)?;
    s.repaired(took);
    s.did(damage.did);
    let limit = damage.within.unwrap_or_else(|| period(s));
    ensure!(
        took <= limit,
        "repaired after {took:.1?}, and not within {limit:.1?}"
    );
    let mut differs = None;
    let as_before = s.c.until("the kernel's state is as before", || {
        differs = s.holds(&whole).err();
        Ok(differs.is_none())
    });
    as_before.with_context(|| format!("{differs:?}"))?;
    s.expect_drift(damage.kinds)?;
    let promise = if damage.is_harmless {
        Promise::NothingFails
    } else {
        Promise::WholeWithin(limit)
    };
    s.close(damaged, promise)
}

/// Returns the time limit for a repair that waits for the next periodic check: the sync period plus
/// [`AT_ONCE`].
fn period(s: &Stage<'_>) -> Duration {
    s.size.period + AT_ONCE
}

/// Returns a script that runs `script` twice, with the variable `p` set to `iptables` and
/// `ip6tables`.
fn both(script: &str) -> String {
    format!("for p in iptables ip6tables; do {script}; done")
}

/// Returns a script that succeeds if the kernel has the mode's rules in both IP families.
fn rules_hold(s: &Stage<'_>) -> &'static str {
    match s.mode.name {
        "ipvs" => {
            "for p in iptables ip6tables; do r=$($p-$backend-save); case $r in *'-A PREROUTING '*KUBE-SERVICES*) ;; *) exit 1;; esac
             case $r in *'-A KUBE-SERVICES '*match-set*) ;; *) exit 1;; esac; case $r in *'-A KUBE-POSTROUTING '*MASQ*) ;; *) exit 1;; esac; done"
        }
        "iptables" => {
            "for p in iptables ip6tables; do r=$($p-$backend-save); case $r in *'-A PREROUTING '*KUBE-SERVICES*) ;; *) exit 1;; esac
             case $r in *'-A KUBE-SEP-'*DNAT*) ;; *) exit 1;; esac; case $r in *'-A KUBE-POSTROUTING '*MASQ*) ;; *) exit 1;; esac; done"
        }
        "nftables" => "nft list table ip kube-proxy | grep -q dnat; nft list table ip6 kube-proxy | grep -q dnat",
        "userspace" if lab::iptables_backend() == "nft" => {
            "nft list table ip kube-proxy-userspace | grep -q 10.96.0.10; nft list table ip6 kube-proxy-userspace | grep -q fd96::10"
        }
        "userspace" => "for p in iptables ip6tables; do $p-$backend-save | grep -q 'A KUBE-PORTALS-CONTAINER'; done",
        _ => "nft list table ip kube-proxy-ipvs | grep -q masquerade; nft list table ip6 kube-proxy-ipvs | grep -q masquerade",
    }
}

pub(super) fn flush_chains(s: &mut Stage<'_>) -> Result<Row> {
    let script = both(
        "for t in nat filter; do $p-$backend -t $t -F; $p-$backend -t $t -X; done 2>/dev/null || true",
    );
    let has_rules = [&crate::mode::IPVS, &IPTABLES]
        .iter()
        .any(|mode| mode.name == s.mode.name)
        || (s.mode.name == USERSPACE.name && lab::iptables_backend() == "legacy");
    if !has_rules {
        return nothing_of_ours(s, &script);
    }
    // Creates the tables nat and filter if they are missing. Otherwise the flush would create them,
    // but the damage must only remove entries.
    s.c.sh(&both(
        "for t in nat filter; do $p-$backend -t $t -n -L >/dev/null; done",
    ))?;
    let kinds: &[&str] = &["rule"];
    repair(
        s,
        &Damage {
            script: &script,
            holds: rules_hold(s),
            kinds,
            did: "rewrote chains, rules and jumps",
            ..DAMAGE
        },
    )
}

/// Runs a script that flushes only other programs' rules. Checks that no request fails, even after
/// the next periodic check.
fn nothing_of_ours(s: &mut Stage<'_>, script: &str) -> Result<Row> {
    s.serve(&[])?;
    s.traffic()?;
    let damaged = Instant::now();
    s.c.sh(script)?;
    std::thread::sleep(period(s));
    s.did("had no rules there");
    s.close(damaged, Promise::NothingFails)
}

pub(super) fn flush_ruleset(s: &mut Stage<'_>) -> Result<Row> {
    let is_told = ["nftables", "ipvs, shim in nftables", "userspace"].contains(&s.mode.name);
    repair(
        s,
        &Damage {
            script: "nft flush ruleset",
            holds: rules_hold(s),
            did: "rewrote its tables",
            within: is_told.then_some(AT_ONCE),
            ..DAMAGE
        },
    )
}

pub(super) fn sets_deleted(s: &mut Stage<'_>) -> Result<Row> {
    repair(
        s,
        &Damage {
            script: "iptables-$backend -t nat -F KUBE-NODE-PORT
                     for i in 1 2 3 4 5; do ipset destroy KUBE-NODE-PORT-TCP && break || sleep 0.1; done
                     ipset flush KUBE-CLUSTER-IP",
            holds: "ipset test KUBE-NODE-PORT-TCP 30080; ipset test KUBE-CLUSTER-IP 10.96.0.10,tcp:80
                    iptables-$backend -t nat -S KUBE-NODE-PORT | grep -q KUBE-NODE-PORT-TCP",
            kinds: &["set", "set_member", "rule"],
            did: "recreated and filled the sets, and rewrote the rule",
            ..DAMAGE
        },
    )
}

const SERVER: &str = "ipvsadm -Sn | grep -q -- '-a -t 10.96.0.10:80 -r 10.244.2.10:8080 -m -w 1'";

pub(super) fn virtual_server(s: &mut Stage<'_>) -> Result<Row> {
    repair(
        s,
        &Damage {
            script: "ipvsadm -D -t 10.96.0.10:80",
            holds: SERVER,
            kinds: &["virtual_server"],
            did: "recreated the virtual server and its destinations",
            within: Some(GLANCED),
            ..DAMAGE
        },
    )
}

pub(super) fn all_virtual_servers(s: &mut Stage<'_>) -> Result<Row> {
    repair(
        s,
        &Damage {
            script: "ipvsadm -C",
            holds: &format!(
                "{SERVER}; ipvsadm -Sn | grep -q -- '-a -t .fd96::10.:80 -r .fd44:1::10.:8080'"
            ),
            kinds: &["virtual_server"],
            did: "recreated all virtual servers",
            within: Some(GLANCED),
            ..DAMAGE
        },
    )
}

pub(super) fn real_server(s: &mut Stage<'_>) -> Result<Row> {
    repair(
        s,
        &Damage {
            script: "ipvsadm -d -t 10.96.0.10:80 -r 10.244.2.10:8080",
            holds: SERVER,
            kinds: &["destination"],
            did: "added the destination again",
            ..DAMAGE
        },
    )
}

pub(super) fn weight(s: &mut Stage<'_>) -> Result<Row> {
    repair(
        s,
        &Damage {
            script: "ipvsadm -e -t 10.96.0.10:80 -r 10.244.2.10:8080 -m -w 0
                     ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.10:8080 -m -w 5",
            holds: SERVER,
            kinds: &["destination"],
            did: "reset both weights to 1",
            is_harmless: true,
            ..DAMAGE
        },
    )
}

pub(super) fn address(s: &mut Stage<'_>) -> Result<Row> {
    repair(
        s,
        &Damage {
            script: "ip address del 10.96.0.10/32 dev kube-ipvs0",
            holds: "ip address show dev kube-ipvs0 | grep -q 10.96.0.10/32",
            kinds: &["address"],
            did: "bound the address again",
            within: Some(AT_ONCE),
            ..DAMAGE
        },
    )
}

pub(super) fn link(s: &mut Stage<'_>) -> Result<Row> {
    repair(
        s,
        &Damage {
            script: "ip link del kube-ipvs0",
            holds: "ip address show dev kube-ipvs0 | grep -q 10.96.0.10/32; ip address show dev kube-ipvs0 | grep -q fd96::10/128",
            kinds: &["link"],
            did: "recreated the link, and bound all addresses",
            within: Some(AT_ONCE),
            ..DAMAGE
        },
    )
}

pub(super) fn rules_deleted(s: &mut Stage<'_>) -> Result<Row> {
    repair(
        s,
        &Damage {
            script: "iptables-$backend -t nat -D PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES",
            holds: rules_hold(s),
            kinds: &["rule"],
            did: "rewrote the jump at its old position",
            ..DAMAGE
        },
    )
}

pub(super) fn table_damaged(s: &mut Stage<'_>) -> Result<Row> {
    let script = match s.mode.name {
        "nftables" => {
            "nft flush chain ip kube-proxy nat-prerouting; nft flush map ip kube-proxy service-ips"
        }
        _ => "nft flush table ip kube-proxy-ipvs",
    };
    repair(
        s,
        &Damage {
            script,
            holds: match s.mode.name {
                "nftables" => {
                    "nft list chain ip kube-proxy nat-prerouting | grep -q services; nft list map ip kube-proxy service-ips | grep -q 10.96.0.10"
                }
                _ => rules_hold(s),
            },
            did: "read the table, and wrote the differences",
            within: Some(AT_ONCE),
            ..DAMAGE
        },
    )
}
