//! The modes that this build has, and how one is opened for each IP family of the node.

mod iptables;
mod prepare;

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use netlink_batch::Worker;
use proxy::{IpFamily, Mode, Model, NodeFacts};
use proxy_ipvs::{
    Backend, Config, Iptables, IptablesError, Lanes, NetlinkKernel, OpenError, Proxier,
};
use tracing::{info, warn};

use crate::flags::{IptablesBackend, Options, ProxyMode};
use crate::{footprints, sysctl};

pub(crate) use prepare::prepare;

/// How often it is glanced at whether the virtual servers are all there. The kernel tells nobody that somebody's `ipvsadm -C` has
/// taken away every Service; the question is one system call (docs/operating.md).
const GLANCE_PERIOD: Duration = Duration::from_secs(2);

/// Why IPv6 is left out.
const DISABLED: &str = "IPv6 is disabled on this node (net.ipv6.conf.all.disable_ipv6, or that of default or kube-ipvs0)";

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
    families: Families<NetlinkKernel>,
}

/// A kernel thread for each family that can be served, and why others cannot.
struct Families<K> {
    opened: Vec<(IpFamily, Worker<K>)>,
    left_out: Vec<LeftOut>,
}

/// A family that cannot be served.
struct LeftOut {
    family: IpFamily,
    reason: String,
    /// Half of all nodes have no IPv6: that is no warning.
    is_usual: bool,
}

/// The family that must be served: that of `--bind-address`, if it names an address, or of the Node's first one.
pub(crate) fn primary(options: &Options, model: &Model) -> IpFamily {
    let bind = options.bind_address;
    let node = model
        .node()
        .and_then(|node| node.addresses.first().copied());
    let of_node = node.filter(|_| bind.is_unspecified());
    IpFamily::of(of_node.unwrap_or(bind))
}

/// Opens the kernel for the mode that is asked for, for each family that can be served; fails if none can.
pub(crate) async fn open(options: &Options) -> Result<Kernels> {
    let asked = options.clone();
    // Blocks on the kernel and on programs; the first lists come meanwhile.
    let opened = tokio::task::spawn_blocking(move || open_to_write(&asked));
    let kernels = opened.await??;
    if let Kernels::Ipvs(kernels) = &kernels
        && let Some((_, kernel)) = kernels.families.opened.first()
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
    sysctl::note_leftovers(&iptables);
    let kernels = Ipvs::open(options, iptables, Iptables::check, NetlinkKernel::open)?;
    proxy_ipvs::probe_scheduler(&options.scheduler)?;
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
            conntrack,
            sync_period,
            min_sync_period: _,
            oom_score_adj: _,
            init_only: _,
            verbosity: _,
            vmodule: _,
            log_format: _,
            log_is_split: _,
            gates: _,
            configuration_file: _,
            prepared_configuration: _,
            configuration: _,
            notes: _,
            warnings: _,
        } = options.clone();
        (
            (bind_address, detect_local, node_port_addresses),
            (masquerade_all, masquerade_bit, iptables_backend, shim),
            (scheduler, exclude_cidrs, timeouts),
            (drain_timeout, sync_period, vip_mode),
            (mode, localhost_node_ports),
            // One of iptables mode's rules depends on it.
            (mode == ProxyMode::Iptables).then_some(conntrack.tcp_be_liberal),
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
    /// Says which families are left out, and why.
    pub(crate) fn tell_left_out(&self) {
        for left_out in self.left_out() {
            let LeftOut { family, reason, .. } = left_out;
            if left_out.is_usual {
                info!(%family, %reason, "this family is left out");
            } else {
                warn!(%family, %reason, "this family is left out");
            }
        }
    }

    /// Fails if this family cannot be served.
    pub(crate) fn require(&self, family: IpFamily) -> Result<()> {
        require(self.left_out(), family)
    }

    fn left_out(&self) -> &[LeftOut] {
        match self {
            Self::Ipvs(kernels) => &kernels.families.left_out,
            Self::Iptables(kernels) => kernels.left_out(),
        }
    }

    /// One mode for each family, for a node of which the model may know the object.
    pub(crate) fn into_modes(
        self,
        options: &Options,
        model: &Model,
        now: Instant,
    ) -> Result<Vec<Box<dyn Mode>>> {
        match self {
            Self::Ipvs(kernels) => {
                let proxiers = kernels.into_proxiers(options, model, now)?.into_iter();
                Ok(proxiers.map(boxed).collect())
            }
            Self::Iptables(kernels) => {
                let proxiers = kernels.into_proxiers(options, model, now)?.into_iter();
                Ok(proxiers.map(boxed).collect())
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

fn require(left_out: &[LeftOut], family: IpFamily) -> Result<()> {
    match left_out.iter().find(|left_out| left_out.family == family) {
        Some(LeftOut { reason, .. }) => Err(anyhow!("cannot serve {family}: {reason}")),
        None => Ok(()),
    }
}

fn boxed(mode: impl Mode + 'static) -> Box<dyn Mode> {
    Box::new(mode)
}

impl Ipvs {
    fn open(
        options: &Options,
        iptables: Iptables,
        check: fn(&Iptables, IpFamily) -> Result<(), IptablesError>,
        open: fn(IpFamily, Iptables) -> Result<NetlinkKernel, OpenError>,
    ) -> Result<Self> {
        info!(backend = %iptables.backend(), "iptables");
        let vip_mode = options.vip_mode;
        // Where no address can be bound to the link. One that is made has the default.
        let is_off = |family| {
            let of_link = is_disabled(family, "kube-ipvs0");
            of_link.or_else(|| is_disabled(family, "default")) == Some(true)
        };
        let families = served(
            is_off,
            |family| check(&iptables, family),
            |family| {
                let iptables = iptables.clone();
                Worker::spawn(&format!("services-{family}"), move || {
                    Ok(open(family, iptables)?
                        .with_vip_mode(vip_mode)
                        .among(footprints::ALL))
                })
            },
        )?;
        Ok(Self { iptables, families })
    }

    async fn pending_timeouts(&self, options: &Options) -> Result<Vec<String>> {
        let Some((_, kernel)) = self.families.opened.first() else {
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

    /// One proxier for each family, for a node of which the model may know the object.
    pub(crate) fn into_proxiers(
        self,
        options: &Options,
        model: &Model,
        now: Instant,
    ) -> Result<Vec<Proxier<NetlinkKernel>>, OpenError> {
        let Self { iptables, families } = self;
        let random_fully = iptables.random_fully();
        let into_proxier = |(family, services)| {
            let further = |what: &str| {
                let (iptables, vip_mode) = (iptables.clone(), options.vip_mode);
                Worker::spawn(&format!("{what}-{family}"), move || {
                    Ok::<_, OpenError>(
                        NetlinkKernel::lazy(family, iptables)
                            .with_vip_mode(vip_mode)
                            .among(footprints::ALL),
                    )
                })
            };
            let rules = further("rules")?;
            // The first look at the rules finds them read; it is done whether or not anybody waits for it.
            drop(rules.call(NetlinkKernel::read_ahead));
            let lanes = Lanes::new(services, further("addresses")?, rules, further("reader")?);
            let mut node = NodeFacts::new(family, &options.node_name);
            node.node_port_addresses = options.node_port_addresses.clone();
            let config = config(options, family, model, random_fully);
            Ok(Proxier::new(config, node, lanes, now))
        };
        families.opened.into_iter().map(into_proxier).collect()
    }
}

/// What is opened for each family that can be served. Fails if none can.
fn served<K>(
    is_disabled: impl Fn(IpFamily) -> bool,
    check: impl Fn(IpFamily) -> Result<(), IptablesError>,
    open: impl Fn(IpFamily) -> Result<Worker<K>, OpenError>,
) -> Result<Families<K>> {
    let mut families = Families {
        opened: Vec::new(),
        left_out: Vec::new(),
    };
    for family in IpFamily::ALL {
        let (reason, is_usual) = if is_disabled(family) {
            (DISABLED.to_owned(), true)
        } else if let Err(error) = check(family) {
            (error.to_string(), true)
        } else {
            match open(family) {
                Ok(kernel) => {
                    families.opened.push((family, kernel));
                    continue;
                }
                Err(error) => (error.to_string(), false),
            }
        };
        families.left_out.push(LeftOut {
            family,
            reason,
            is_usual,
        });
    }
    match families.left_out.first() {
        Some(LeftOut { family, reason, .. }) if families.opened.is_empty() => {
            Err(anyhow!("cannot serve {family}: {reason}"))
        }
        _ => Ok(families),
    }
}

/// Whether this setting of IPv6 (`disable_ipv6`, by interface) says that this family is off; `None` if there is no such interface.
fn is_disabled(family: IpFamily, interface: &str) -> Option<bool> {
    if family == IpFamily::V4 {
        return Some(false);
    }
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    let value = fs::read_to_string(path).ok()?;
    Some(value.trim() != "0")
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
        glance_period: Some(GLANCE_PERIOD),
        vip_mode: options.vip_mode,
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
    use proxy::{Event, Node};

    use super::*;

    const V4: IpFamily = IpFamily::V4;
    const V6: IpFamily = IpFamily::V6;

    /// What becomes of the families where some are disabled, cannot be checked, or cannot be opened.
    fn families(
        disabled: &[IpFamily],
        unchecked: &[IpFamily],
        unopened: &[IpFamily],
    ) -> Result<Families<()>> {
        let unless = |fails| {
            if fails {
                Err(IptablesError::NoIpv6)
            } else {
                Ok(())
            }
        };
        served(
            |family| disabled.contains(&family),
            |family| unless(unchecked.contains(&family)),
            |family| {
                unless(unopened.contains(&family))?;
                Worker::spawn("served", || Ok(()))
            },
        )
    }

    #[test]
    fn a_family_that_fails_is_left_out_unless_none_is_left() {
        let of = |families: Families<()>| {
            let opened = families.opened.iter().map(|(family, _)| *family);
            let left_out = families.left_out.iter();
            let left_out = left_out.map(|left_out| (left_out.family, left_out.is_usual));
            (opened.collect::<Vec<_>>(), left_out.collect::<Vec<_>>())
        };
        let all = of(families(&[], &[], &[]).unwrap());
        assert_eq!(all, (vec![V4, V6], vec![]));
        let disabled = of(families(&[V6], &[], &[]).unwrap());
        assert_eq!(disabled, (vec![V4], vec![(V6, true)]));
        let unchecked = of(families(&[], &[V6], &[]).unwrap());
        assert_eq!(unchecked, (vec![V4], vec![(V6, true)]));
        let unopened = of(families(&[], &[], &[V4]).unwrap());
        assert_eq!(unopened, (vec![V6], vec![(V4, false)]));
        let Err(error) = families(&[V6], &[], &[V4]) else {
            panic!("nothing is served")
        };
        assert!(
            error.to_string().starts_with("cannot serve IPv4: "),
            "{error}"
        );
    }

    #[test]
    fn the_primary_family_cannot_be_left_out() {
        let Families { left_out, .. } = families(&[], &[V6], &[]).unwrap();
        assert!(require(&left_out, V4).is_ok());
        let error = require(&left_out, V6).unwrap_err().to_string();
        assert!(error.starts_with("cannot serve IPv6: "), "{error}");
        assert!(error.contains("modprobe ipv6"), "{error}");
    }

    #[test]
    fn the_primary_family_is_that_of_a_bind_address_or_of_the_nodes_first() {
        let model = |addresses: &[&str]| {
            let mut model = Model::of_node("node1");
            model.apply(Event::NodeApplied(Node {
                name: "node1".into(),
                addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
                ..Node::default()
            }));
            model
        };
        for (bind, addresses, wanted) in [
            ("0.0.0.0", &["fd00::1", "192.0.2.1"][..], V6),
            ("0.0.0.0", &["192.0.2.1", "fd00::1"], V4),
            ("::", &["192.0.2.1"], V4),
            ("192.0.2.1", &["fd00::1"], V4),
            ("fd00::1", &["192.0.2.1"], V6),
            // It is not known.
            ("0.0.0.0", &[], V4),
            ("::", &[], V6),
        ] {
            let options = crate::run::tests::options(&[&format!("--bind-address={bind}")]);
            assert_eq!(primary(&options, &model(addresses)), wanted, "{bind}");
        }
    }
}
