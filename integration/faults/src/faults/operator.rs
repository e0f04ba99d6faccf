//! Faults that operators cause: restarts, upgrades, reloads and crashes of the daemon.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::row::Row;
use crate::stage::{Promise, Stage};

pub(super) fn restart(s: &mut Stage<'_>) -> Result<Row> {
    s.serve(&[])?;
    let whole = s.c.state()?;
    s.traffic()?;
    let began = Instant::now();
    let times = s.size.pick(2, 10);
    let mut slowest = Duration::ZERO;
    for _ in 0..times {
        s.c.stop()?;
        s.launch(&[])?;
        slowest = slowest.max(s.until_ready()?);
    }
    s.holds(&whole)?;
    s.did(format!(
        "restarted {times} times without a write, ready after {slowest:.1?} at most"
    ));
    s.sees("log: “first sync done”; same kernel state");
    s.close(began, Promise::NothingFails)
}

pub(super) fn upgrade(s: &mut Stage<'_>) -> Result<Row> {
    let before = s.before.context("no older binary is given: BEFORE=PATH")?;
    s.c.program = Some(before.to_owned());
    s.serve(&[])?;
    s.traffic()?;
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    for program in [None, Some(before), None, Some(before), None] {
        s.c.stop()?;
        s.c.program = program.map(Into::into);
        s.launch(&[])?;
        slowest = slowest.max(s.until_ready()?);
    }
    s.did(format!(
        "adopted the other version's state five times, ready after {slowest:.1?} at most"
    ));
    s.close(began, Promise::NothingFails)
}

pub(super) fn other_flags(s: &mut Stage<'_>) -> Result<Row> {
    s.serve(&[])?;
    s.traffic()?;
    let began = Instant::now();
    let more: [&[&str]; 4] = [
        &["--ipvs-scheduler=wrr", "--ipvs-sync-period=7s"],
        &["--ipvs-scheduler=lc", "--masquerade-all"],
        &["--ipvs-vip-mode=route"],
        &[],
    ];
    for flags in more {
        s.c.stop()?;
        s.launch(flags)?;
        s.until_ready()?;
    }
    s.did("changed scheduler, masquerade rules and service addresses in place");
    s.close(began, Promise::NothingFails)
}

pub(super) fn reload(s: &mut Stage<'_>) -> Result<Row> {
    let file = s.c.folder().join("config.conf");
    let publish = |fields: &str| -> Result<()> {
        let draft = file.with_extension("draft");
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                    conntrack: {maxPerCore: 0}\nclusterCIDR: 10.244.0.0/16,fd44::/16\n";
        fs::write(&draft, format!("{head}{fields}"))?;
        Ok(fs::rename(&draft, &file)?)
    };
    let mode = s
        .mode
        .flags
        .iter()
        .find_map(|flag| flag.strip_prefix("--proxy-mode="));
    let mode = format!("mode: {}\n", mode.unwrap_or("ipvs"));
    let other = "iptables: {masqueradeAll: true, syncPeriod: 20s}\nnftables: {masqueradeAll: \
                 true}\n\
                 ipvs: {scheduler: wrr, syncPeriod: 20s}\n";
    publish(&mode)?;
    let flag = format!("--config={}", file.display());
    s.serve(&[&flag])?;
    s.traffic()?;
    let began = Instant::now();
    let times = s.size.pick(2, 10);
    for round in 0..times {
        publish(&if round % 2 == 0 {
            format!("{mode}{other}")
        } else {
            mode.clone()
        })?;
        s.c.await_line("which needs no restart")?;
    }
    s.did(format!("applied {times} changed files without a restart"));
    s.sees("log: “… which needs no restart”");
    s.close(began, Promise::NothingFails)
}

pub(super) fn crash_loop(s: &mut Stage<'_>) -> Result<Row> {
    s.serve(&[])?;
    let whole = s.c.state()?;
    s.traffic()?;
    let began = Instant::now();
    let times = s.size.pick(5, 20);
    for _ in 0..times {
        s.c.kill()?;
        s.launch(&[])?;
        s.until_ready()?;
    }
    s.holds(&whole)?;
    s.did(format!("adopted the existing state {times} times"));
    s.sees("same kernel state");
    s.close(began, Promise::NothingFails)
}
