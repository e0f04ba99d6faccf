//! The modes that this build has, by name, and how one is opened for each IP family of the node.

use anyhow::{Context as _, Result};
use netlink_batch::Worker;
use proxy::{IpFamily, Mode, Model, NodeFacts};
use proxy_ipvs::{Backend, Config, Iptables, NetlinkKernel, Proxier};
use tracing::info;

use crate::flags::{IptablesBackend, Options};

/// The kernel, opened for each family that the node has. Nothing has been read or written yet.
pub(crate) struct Kernels {
    iptables: Iptables,
    opened: Vec<(IpFamily, Worker<NetlinkKernel>)>,
}

/// Opens the kernel for IPVS mode. Fails if the primary family, that of `--bind-address`, cannot be served; the other one is
/// left out then.
pub(crate) async fn open(options: &Options) -> Result<Kernels> {
    let backend = match options.iptables_backend {
        IptablesBackend::Auto => None,
        IptablesBackend::Legacy => Some(Backend::Legacy),
        IptablesBackend::Nft => Some(Backend::Nft),
    };
    let iptables = Iptables::choose(backend).context("cannot use iptables")?;
    info!(backend = %iptables.backend(), "iptables");
    let primary = IpFamily::of(options.bind_address);
    let mut opened = Vec::new();
    for family in IpFamily::ALL {
        if let Err(error) = iptables.check(family) {
            anyhow::ensure!(
                family != primary,
                "cannot serve {family}, the primary family: {error}"
            );
            info!(%family, reason = %error, "this family is left out");
            continue;
        }
        let for_kernel = iptables;
        let kernel = Worker::spawn(&format!("netlink-{family}"), move || {
            NetlinkKernel::open(family, for_kernel)
        })
        .with_context(|| format!("cannot serve {family}"))?;
        opened.push((family, kernel));
    }
    if let Some((_, kernel)) = opened.first() {
        set_timeouts(kernel, options).await?;
    }
    Ok(Kernels { iptables, opened })
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
        let random_fully = self.iptables.random_fully();
        let into_mode = |(family, kernel)| -> Box<dyn Mode> {
            let mut node = NodeFacts::new(family, &options.node_name);
            node.node_port_addresses = options.node_port_addresses.clone();
            Box::new(Proxier::new(
                config(options, family, model, random_fully),
                node,
                kernel,
            ))
        };
        self.opened.into_iter().map(into_mode).collect()
    }
}

fn config(options: &Options, family: IpFamily, model: &Model, random_fully: bool) -> Config {
    let bind = options.bind_address;
    Config {
        scheduler: options.scheduler.as_str().into(),
        masquerade_all: options.masquerade_all,
        masquerade_mark: 1 << options.masquerade_bit,
        detector: options.detect_local.detector(family, model.node()),
        exclude_cidrs: options.exclude_cidrs.clone(),
        node_ip: (!bind.is_unspecified() && IpFamily::of(bind) == family).then_some(bind),
        sync_period: options.sync_period,
        drain_timeout: options.drain_timeout,
        random_fully,
    }
}
