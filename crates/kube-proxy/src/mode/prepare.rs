//! Preparing a node for a mode (`--init-only`): what takes more privileges than serving, and what
//! only a container with kernel modules in reach can do. What the mode cannot do without is tried,
//! so that a node that lacks it is found before a container begins to serve there, while what the
//! mode before has programmed still serves.

use anyhow::{Context as _, Result};
use iptables::Iptables;
use proxy::IpFamily;
use tracing::{info, warn};

use crate::flags::{Options, ProxyMode};

/// Loads IPVS and sets its time-outs, for its mode. An error if the mode that is asked for cannot
/// be served here.
pub(crate) async fn prepare(options: &Options) -> Result<()> {
    let options = options.clone();
    // Blocks on the kernel and on programs; nothing else happens meanwhile.
    tokio::task::spawn_blocking(move || prepare_blocking(&options)).await?
}

fn prepare_blocking(options: &Options) -> Result<()> {
    // The container that is to serve has the same image, so that what is missing here is missing
    // there.
    let iptables = super::choose(options).context("cannot use iptables")?;
    info!(backend = %iptables.backend(), "iptables");
    if options.mode == ProxyMode::Ipvs {
        let wanted = options.timeouts;
        proxy_ipvs::prepare(wanted.tcp, wanted.tcp_fin, wanted.udp)?;
        proxy_ipvs::probe_scheduler(&options.scheduler)?;
    }
    let bind = options.bind_address;
    // Half of all nodes have no IPv6. Where no address is given, the Node's first one may be of
    // either family.
    let is_there = |family: &IpFamily| {
        let is_named = !bind.is_unspecified() && IpFamily::of(bind) == *family;
        is_named || iptables::exists(*family).is_ok()
    };
    let families: Vec<IpFamily> = IpFamily::ALL.into_iter().filter(is_there).collect();
    let failures = families.iter().filter_map(|family| {
        let failure = probe(options.mode, &iptables, *family).err()?;
        Some((*family, failure))
    });
    let failures: Vec<_> = failures.collect();
    for (family, failure) in &failures {
        let is_named = !bind.is_unspecified() && IpFamily::of(bind) == *family;
        if is_named || failures.len() == families.len() {
            anyhow::bail!("cannot serve {family}: {failure:#}");
        }
        warn!(%family, reason = format!("{failure:#}"), "this family cannot be served here");
    }
    Ok(())
}

fn probe(mode: ProxyMode, iptables: &Iptables, family: IpFamily) -> Result<()> {
    iptables.check(family)?;
    match mode {
        ProxyMode::Ipvs => Ok(proxy_ipvs::probe(iptables, family)?),
        ProxyMode::Iptables => proxy_iptables::probe(iptables, family)
            .context("cannot write the rules of iptables mode"),
    }
}
