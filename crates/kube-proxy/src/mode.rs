//! The modes that this build has, and how one is opened for each IP family of the node.

mod iptables;

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use netlink_batch::Worker;
use proxy::{IpFamily, Mode, Model, NodeFacts};
use proxy_ipvs::{Backend, Config, Iptables, IptablesError, NetlinkKernel, OpenError, Proxier};
use tracing::{info, warn};

use crate::flags::{IptablesBackend, Options, ProxyMode};

/// The kernel, opened for each family that the node has. Nothing has been written yet.
pub(crate) enum Kernels {
    /// For IPVS mode.
    Ipvs(Ipvs),
    /// For iptables mode.
    Iptables(iptables::Kernels),
}

/// The kernel for IPVS mode.
pub(crate) struct Ipvs {
    iptables: Iptables,
    opened: Vec<(IpFamily, Worker<NetlinkKernel>)>,
}

/// Opens the kernel for the mode that is asked for. Fails if the primary family, that of `--bind-address`, cannot be served; the
/// other one is left out then.
pub(crate) async fn open(options: &Options) -> Result<Kernels> {
    let asked = options.clone();
    // Blocks on the kernel and on programs; the first lists come meanwhile.
    let opened = tokio::task::spawn_blocking(move || open_to_write(&asked));
    let kernels = opened.await??;
    if let Kernels::Ipvs(kernels) = &kernels
        && let Some((_, kernel)) = kernels.opened.first()
    {
        set_timeouts(kernel, options).await?;
    }
    Ok(kernels)
}

fn open_to_write(options: &Options) -> Result<Kernels> {
    if options.mode == ProxyMode::Iptables {
        return iptables::Kernels::open(options).map(Kernels::Iptables);
    }
    let iptables = choose(options).context("cannot use iptables")?;
    let kernels = Ipvs::open(options, iptables, Iptables::check, NetlinkKernel::open)?;
    for (_, kernel) in &kernels.opened {
        // It is done whether or not anybody waits for it.
        drop(kernel.call(NetlinkKernel::read_ahead));
    }
    Ok(Kernels::Ipvs(kernels))
}

/// Opens the kernel as [`open`] does, but only to read: nothing in it changes.
pub(crate) fn open_to_read(options: &Options) -> Result<Kernels> {
    if options.mode == ProxyMode::Iptables {
        return iptables::Kernels::open_to_read(options).map(Kernels::Iptables);
    }
    let iptables = Iptables::look(backend(options)).context("cannot use iptables")?;
    let check = Iptables::check_reading;
    Ipvs::open(options, iptables, check, NetlinkKernel::open_to_read).map(Kernels::Ipvs)
}

/// Does what needs more privileges than serving, and what only a container with kernel modules in reach can: IPVS is loaded, and
/// its time-outs are set, for its mode.
pub(crate) async fn prepare(options: &Options) -> Result<()> {
    let options = options.clone();
    let prepared = move || {
        // Here iptables may be missing.
        if let Err(error) = choose(&options) {
            info!(reason = %error, "iptables is not prepared");
        }
        if options.mode != ProxyMode::Ipvs {
            return Ok(());
        }
        let wanted = options.timeouts;
        proxy_ipvs::prepare(wanted.tcp, wanted.tcp_fin, wanted.udp)
    };
    // Blocks on the kernel and on programs; nothing else happens meanwhile.
    tokio::task::spawn_blocking(prepared).await??;
    Ok(())
}

/// Chooses iptables to write with, and loads the kernel modules that it needs with those of the mode, if they are not there.
fn choose(options: &Options) -> Result<Iptables, IptablesError> {
    let scheduler = format!("ip_vs_{}", options.scheduler);
    let modules = match options.mode {
        ProxyMode::Ipvs => [proxy_ipvs::MODULES.as_slice(), &[scheduler.as_str()]].concat(),
        ProxyMode::Iptables => proxy_iptables::MODULES.to_vec(),
    };
    Iptables::choose_loading(backend(options), &modules)
}

fn backend(options: &Options) -> Option<Backend> {
    match options.iptables_backend {
        IptablesBackend::Auto => None,
        IptablesBackend::Legacy => Some(Backend::Legacy),
        IptablesBackend::Nft => Some(Backend::Nft),
    }
}

/// Whether modes that are opened with these options would differ.
pub(crate) fn differ(one: &Options, other: &Options) -> bool {
    // Taken apart, so that an option that comes with time is thought of.
    let settings = |options: &Options| {
        let Options {
            mode,
            localhost_node_ports,
            source: _,
            node_name: _,
            bind_address,
            healthz_address: _,
            metrics_address: _,
            bind_address_hard_fail: _,
            detect_local,
            node_port_addresses,
            masquerade_all,
            masquerade_bit,
            iptables_backend,
            scheduler,
            exclude_cidrs,
            strict_arp: _,
            timeouts,
            shim,
            drain_timeout,
            vip_mode,
            conntrack: _,
            sync_period,
            min_sync_period: _,
            oom_score_adj: _,
            init_only: _,
            verbosity: _,
            vmodule: _,
            log_format: _,
            configuration_file: _,
            configuration: _,
            warnings: _,
        } = options.clone();
        (
            (bind_address, detect_local, node_port_addresses),
            (masquerade_all, masquerade_bit, iptables_backend, shim),
            (scheduler, exclude_cidrs, timeouts),
            (drain_timeout, sync_period, vip_mode),
            (mode, localhost_node_ports),
        )
    };
    settings(one) != settings(other)
}

/// The time-outs are the network namespace's, not a family's.
async fn set_timeouts(kernel: &Worker<NetlinkKernel>, options: &Options) -> Result<()> {
    let wanted = options.timeouts;
    if wanted == crate::flags::IpvsTimeouts::default() {
        return Ok(());
    }

    kernel
        .call(move |kernel| kernel.set_timeouts(wanted.tcp, wanted.tcp_fin, wanted.udp))
        .await?
        .context("cannot set the IPVS time-outs (--ipvs-tcp-timeout, --ipvs-tcpfin-timeout, --ipvs-udp-timeout)")
}

impl Kernels {
    /// One mode for each family, for a node of which the model may know the object.
    pub(crate) fn into_modes(self, options: &Options, model: &Model) -> Vec<Box<dyn Mode>> {
        match self {
            Self::Ipvs(kernels) => kernels.into_modes(options, model),
            Self::Iptables(kernels) => {
                let proxiers = kernels.into_proxiers(options, model).into_iter();
                proxiers
                    .map(|proxier| -> Box<dyn Mode> { Box::new(proxier) })
                    .collect()
            }
        }
    }

    /// The IPVS time-outs that are not as the flags say, a line each.
    pub(crate) async fn pending_timeouts(&self, options: &Options) -> Result<Vec<String>> {
        match self {
            Self::Ipvs(kernels) => kernels.pending_timeouts(options).await,
            Self::Iptables(_) => Ok(Vec::new()),
        }
    }

    /// The iptables that rules of iptables mode are written with; `None` in IPVS mode, which clears up by itself.
    pub(crate) fn clears_with(&self) -> Option<Iptables> {
        match self {
            Self::Ipvs(_) => None,
            Self::Iptables(kernels) => Some(kernels.iptables()),
        }
    }
}

impl Ipvs {
    fn open(
        options: &Options,
        iptables: Iptables,
        check: fn(&Iptables, IpFamily) -> Result<(), IptablesError>,
        open: fn(IpFamily, Iptables) -> Result<NetlinkKernel, OpenError>,
    ) -> Result<Self> {
        info!(backend = %iptables.backend(), "iptables");
        let primary = IpFamily::of(options.bind_address);
        let vip_mode = options.vip_mode;
        let opened = served(
            primary,
            |family| check(&iptables, family),
            |family| {
                let iptables = iptables.clone();
                Worker::spawn(&format!("netlink-{family}"), move || {
                    Ok(open(family, iptables)?.with_vip_mode(vip_mode))
                })
            },
        )?;
        Ok(Self { iptables, opened })
    }

    async fn pending_timeouts(&self, options: &Options) -> Result<Vec<String>> {
        let Some((_, kernel)) = self.opened.first() else {
            return Ok(Vec::new());
        };
        let found = kernel
            .call(NetlinkKernel::timeouts)
            .await?
            .context("cannot read the IPVS time-outs")?;
        let wanted = options.timeouts;
        let wanted = [
            ("TCP", wanted.tcp),
            ("TCP after a FIN", wanted.tcp_fin),
            ("UDP", wanted.udp),
        ];
        let differing = wanted
            .into_iter()
            .zip(found)
            .filter(|((_, wanted), found)| {
                // The kernel counts in seconds, and zero leaves it as it is.
                wanted.as_secs() > 0 && wanted.as_secs() != found.as_secs()
            });
        Ok(differing
            .map(|((what, wanted), found)| {
                let (wanted, found) = (wanted.as_secs(), found.as_secs());
                format!("set the IPVS time-out of {what} to {wanted} s (it is {found} s)")
            })
            .collect())
    }

    fn into_modes(self, options: &Options, model: &Model) -> Vec<Box<dyn Mode>> {
        let (iptables, vip_mode) = (self.iptables.clone(), options.vip_mode);
        let proxiers = self.into_proxiers(options, model).into_iter();
        proxiers
            .map(|proxier| -> Box<dyn Mode> {
                let family = proxier.family();
                let iptables = iptables.clone();
                let open = move || {
                    NetlinkKernel::open_to_read(family, iptables)
                        .map(|kernel| kernel.with_vip_mode(vip_mode))
                };
                match Worker::spawn(&format!("reader-{family}"), open) {
                    Ok(reader) => Box::new(proxier.with_reader(reader)),
                    Err(error) => {
                        warn!(%family, reason = %error, "events wait while the kernel is checked for drift");
                        Box::new(proxier)
                    }
                }
            })
            .collect()
    }

    /// One proxier for each family, for a node of which the model may know the object.
    pub(crate) fn into_proxiers(
        self,
        options: &Options,
        model: &Model,
    ) -> Vec<Proxier<NetlinkKernel>> {
        let random_fully = self.iptables.random_fully();
        let into_proxier = |(family, kernel)| {
            let mut node = NodeFacts::new(family, &options.node_name);
            node.node_port_addresses = options.node_port_addresses.clone();
            Proxier::new(config(options, family, model, random_fully), node, kernel)
        };
        self.opened.into_iter().map(into_proxier).collect()
    }
}

/// What is opened for each family that can be served; without the primary one, nothing is.
fn served<K>(
    primary: IpFamily,
    check: impl Fn(IpFamily) -> Result<(), IptablesError>,
    open: impl Fn(IpFamily) -> Result<K, OpenError>,
) -> Result<Vec<(IpFamily, K)>> {
    let mut opened = Vec::new();
    for family in IpFamily::ALL {
        // Half of all nodes have no IPv6: that is no warning.
        let error = match check(family) {
            Err(error) if family != primary => {
                info!(%family, reason = %error, "this family is left out");
                continue;
            }
            Err(error) => anyhow::Error::from(error),
            Ok(()) => match open(family) {
                Ok(kernel) => {
                    opened.push((family, kernel));
                    continue;
                }
                Err(error) => error.into(),
            },
        };
        if family == primary {
            return Err(error)
                .with_context(|| format!("cannot serve {family}, the primary family"));
        }
        warn!(%family, reason = %error, "this family is left out");
    }
    Ok(opened)
}

fn config(options: &Options, family: IpFamily, model: &Model, random_fully: bool) -> Config {
    Config {
        scheduler: options.scheduler.as_str().into(),
        masquerade_all: options.masquerade_all,
        masquerade_mark: 1 << options.masquerade_bit,
        detector: options.detect_local.detector(family, model.node()),
        exclude_cidrs: options.exclude_cidrs.clone(),
        node_ip: node_ip(options, family),
        sync_period: options.sync_period,
        shim: options.shim,
        drain_timeout: options.drain_timeout,
        random_fully,
    }
}

/// `--bind-address`, if it names this node's address of a family.
fn node_ip(options: &Options, family: IpFamily) -> Option<IpAddr> {
    let bind = options.bind_address;
    (!bind.is_unspecified() && IpFamily::of(bind) == family).then_some(bind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which families are served where checking, or opening, one of them fails.
    fn families(
        primary: IpFamily,
        unchecked: &[IpFamily],
        unopened: &[IpFamily],
    ) -> Result<Vec<IpFamily>> {
        let unless = |fails| {
            if fails {
                Err(IptablesError::NoIpv6)
            } else {
                Ok(())
            }
        };
        let check = |family| unless(unchecked.contains(&family));
        let open = |family| Ok(unless(unopened.contains(&family))?);
        let opened = served(primary, check, open)?;
        Ok(opened.into_iter().map(|(family, ())| family).collect())
    }

    #[test]
    fn a_secondary_family_that_fails_is_left_out_and_the_primary_one_is_not() {
        use IpFamily::{V4, V6};
        assert_eq!(families(V4, &[], &[]).unwrap(), [V4, V6]);
        assert_eq!(families(V4, &[V6], &[]).unwrap(), [V4]);
        assert_eq!(families(V4, &[], &[V6]).unwrap(), [V4]);
        assert_eq!(families(V6, &[], &[V4]).unwrap(), [V6]);
        for error in [families(V6, &[V6], &[]), families(V6, &[], &[V6])] {
            let error = format!("{:#}", error.unwrap_err());
            assert!(
                error.starts_with("cannot serve IPv6, the primary family: "),
                "{error}"
            );
            assert!(error.contains("modprobe ipv6"), "{error}");
        }
    }
}
