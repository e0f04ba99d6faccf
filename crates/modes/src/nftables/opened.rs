//! Opens nf_tables for nftables mode.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cleanup::ServingMode;
use footprint::uses::{KernelFeature, Uses};
use netlink_batch::Worker;
use nftables_netlink::{Nftables, OwnSockets, Subscription};
use proxy::{Changes, IpFamily};
use proxy_nftables::{
    Config, Lanes, Layout, LayoutSizes, Localhost, LocalhostNodePorts, NetlinkKernel, Plan,
    ProbeError, Proxier, TABLE,
};
use relay::{AllowedClients, Dial, Limits, Pin, Relay};
use service_counters::ReadCounters;
use tracing::{info, warn};

use super::counters::TrackedFlows;
use super::settings::LayoutChoice;
use crate::definition::{Ending, IntoProxiers, OpenedKernel, Start};
use crate::families::{Access, Families, SkippedFamily, is_disabled, thread};
use crate::footprints;
use crate::preview::{Change, PlanPreview, Preview};
use crate::rulesets::{Notices, follow, leave_out, subscribe};
use crate::settings::Settings;
use crate::sysctl::machine::Machine;

/// Timeout of a connection attempt from the relay of localhost NodePorts to an endpoint, as in
/// upstream.
const DIAL: Duration = Duration::from_secs(5);
/// Time for which connections to NodePorts on localhost may continue after the process begins to
/// end.
const DRAIN: Duration = Duration::from_secs(5);
/// First kernel version that upstream accepts. Upstream assumes that a host with an older kernel
/// also has an old `nft`.
const FIRST_OF_UPSTREAM: (u32, u32) = (5, 13);
/// First kernel version that accepts `reject` in prerouting chains, as in the layout `flat` (Linux,
/// `net/netfilter/nft_reject.c`, `nft_reject_validate`). The program compares versions, because a
/// trial transaction cannot detect this feature. The kernel checks `reject` at the end of a
/// transaction, and a trial omits the message that ends it.
const FIRST_OF_FLAT: (u32, u32) = (5, 9);
/// Environment variable that makes upstream skip its check of the kernel version, unless it is
/// empty.
const SKIP: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";

/// nf_tables, with a worker thread for each IP family that the node can serve.
pub(super) struct OpenedNftables {
    families: Families<NetlinkKernel>,
    /// Subscriptions to changes of nftables, one for each IP family. Empty with read access.
    subscriptions: Vec<(IpFamily, Arc<Subscription>)>,
    /// Relay for NodePorts on localhost, or `None` if the mode serves no NodePorts on localhost.
    localhost: Option<Localhost>,
    /// Numbers of Service ports at which the layout changes, or `None` if it never changes.
    sizes: Option<LayoutSizes>,
}

impl OpenedNftables {
    pub(super) fn open(settings: &Settings, access: Access) -> Result<Self> {
        let choice = settings.nftables.layout;
        refuse_old(choice, Machine::this().kernel)?;
        // Subscribes before the first read of the table, so that the mode misses no change.
        let mut subscriptions = Vec::new();
        if access == Access::Write {
            // Opens nf_tables first, because its error names the missing module or privilege.
            Nftables::open()?;
            for family in IpFamily::ALL {
                let subscription =
                    subscribe().context("cannot subscribe to changes of nftables")?;
                subscriptions.push((family, subscription));
            }
        }
        let own = Arc::new(OwnSockets::default());
        for (_, subscription) in &subscriptions {
            leave_out(&own, subscription);
        }
        let (own_settings, shared) = (settings.nftables.clone(), settings.shared.clone());
        let localhost = |family| own_settings.localhost(&shared, family);
        let serves = IpFamily::ALL
            .into_iter()
            .any(|family| localhost(family) == LocalhostNodePorts::Served);
        let relay = (serves && access == Access::Write).then(|| Relay::start(limits()));
        let relay = relay.transpose();
        let relay = relay.context("cannot start the relay of NodePorts on localhost")?;
        let served = relay.map(Localhost::new);
        let of_kernel = served.clone();
        let families = Families::open(
            iptables::exists,
            |family| is_disabled(family, "all") == Some(true),
            "table",
            move |family| {
                if access == Access::Write {
                    own_settings.probe(&shared, family)?;
                }
                // Registers this socket as the process's own, so that the subscriptions ignore its
                // transactions.
                let kernel = NetlinkKernel::new(family).among(footprints::ALL);
                let kernel = kernel.on_localhost(of_kernel.clone());
                Ok(kernel.one_of(Arc::clone(&own)))
            },
        )?;
        let can_change = choice == LayoutChoice::Auto
            && Machine::this().kernel >= FIRST_OF_FLAT
            && (access == Access::Read
                || families.opened.iter().all(|(family, _)| has_flat(*family)));
        if access == Access::Write
            && let Some(line) = note_of_kernel(Machine::this().kernel, env::var_os(SKIP).is_some())
        {
            warn!("{line}");
        }
        Ok(Self {
            families,
            subscriptions,
            localhost: served,
            sizes: can_change.then_some(LayoutSizes::AUTO),
        })
    }
}

impl IntoProxiers for OpenedNftables {
    type Proxier = Proxier<NetlinkKernel>;

    fn into_proxiers(self, start: &Start<'_>) -> Result<Vec<Self::Proxier>> {
        let (shared, own) = (&start.settings.shared, &start.settings.nftables);
        let into_proxier = |(family, table): (IpFamily, Worker<NetlinkKernel>)| {
            let config = Config {
                masquerade_all: own.masquerade_all,
                masquerade_mark: own.masquerade_mark(),
                layout: own.layout.first(),
                sizes: self.sizes,
                localhost: own.localhost(shared, family),
                detector: shared.detect_local.detector(family, start.model.node()),
                sync_period: shared.sync_period,
            };
            let looks = thread("looks", family, move || {
                Ok(NetlinkKernel::new(family).among(footprints::ALL))
            })?;
            let facts = start.node_facts(family);
            let lanes = Lanes::new([table, looks]);
            Ok(Proxier::new(config, facts, lanes, start.now))
        };
        self.families.opened.into_iter().map(into_proxier).collect()
    }

    async fn preview(self, start: &Start<'_>, told: &Changes) -> Result<Preview> {
        let mut preview = Preview::default();
        let show = |of: IpFamily, _: &_, plan: &Plan| {
            let lines = plan.lines().into_iter();
            PlanPreview {
                // Counts the writes as the daemon does when it starts.
                writes: plan.len(),
                changes: lines
                    .map(|line| Change::told(of, "table", "nftables", line))
                    .collect(),
            }
        };
        let modes = self.into_proxiers(start)?;
        Box::pin(preview.add(modes, start, told, show)).await?;
        Ok(preview)
    }
}

impl OpenedKernel for OpenedNftables {
    fn left_out(&self) -> &[SkippedFamily] {
        &self.families.left_out
    }

    fn serving(&self) -> Option<ServingMode> {
        Some(ServingMode {
            mode: &proxy_nftables::FOOTPRINT,
            iptables: None,
        })
    }

    fn notices(&self) -> Result<Vec<Notices>> {
        let subscriptions = self.subscriptions.iter().cloned();
        let notices =
            subscriptions.map(|(family, subscription)| follow(family, TABLE, subscription));
        Ok(notices.collect::<Result<_, _>>()?)
    }

    fn uses(&self, settings: &Settings) -> Uses {
        let form = match self.sizes {
            Some(_) => "layout auto",
            None => settings.nftables.layout.first().form(),
        };
        Uses {
            forms: vec![form.to_owned()],
            parts: vec![KernelFeature::NfTables],
            ..Uses::default()
        }
    }

    fn ending(&self) -> Option<Ending> {
        let relay = self.localhost.as_ref()?.relay().clone();
        Some(Box::new(move || {
            let cut = relay.finish(DRAIN);
            (cut > 0).then(|| format!("{cut} connections to NodePorts on localhost were cut"))
        }))
    }

    fn counters(&self) -> Box<dyn ReadCounters> {
        Box::new(TrackedFlows(self.localhost.as_ref().map(Localhost::ports)))
    }
}

/// Checks that the kernel accepts the rules of nftables mode for `family`. Commits no transaction.
pub(super) fn probe(family: IpFamily, settings: &Settings) -> Result<()> {
    let own = &settings.nftables;
    refuse_old(own.layout, Machine::this().kernel)?;
    let localhost = own.localhost(&settings.shared, family);
    Ok(proxy_nftables::probe(
        family,
        own.layout.first(),
        localhost,
    )?)
}

/// Reports whether the kernel accepts the layout `flat`. Logs the reason for a refusal.
fn has_flat(family: IpFamily) -> bool {
    match proxy_nftables::probe(family, Layout::Flat, LocalhostNodePorts::Off) {
        Err(error @ ProbeError::Refused(_)) => {
            info!("--nftables-layout=auto stays in upstream's layout: {error}");
            false
        }
        Ok(()) | Err(ProbeError::Unusable(_)) => true,
    }
}

/// Returns the limits of the relay that serves NodePorts on localhost.
fn limits() -> Limits {
    Limits {
        // Closes the listening ports immediately, because the next process opens the same ports.
        linger: Duration::ZERO,
        dial: Dial::Once(DIAL),
        // All clients connect from localhost, so session affinity cannot tell them apart and
        // applies to the whole port.
        pin: Pin::Port,
        reach: AllowedClients::Anybody,
        ..Limits::default()
    }
}

/// Returns an error if `--nftables-layout` is `flat` and the kernel is too old for this layout.
/// Such a kernel would accept a trial transaction, but refuse the first real one.
fn refuse_old(choice: LayoutChoice, kernel: (u32, u32)) -> Result<()> {
    let ((major, minor), (first_major, first_minor)) = (kernel, FIRST_OF_FLAT);
    ensure!(
        choice != LayoutChoice::Always(Layout::Flat) || kernel >= FIRST_OF_FLAT,
        "--nftables-layout=flat needs Linux {first_major}.{first_minor}, which rejects packets before \
         they are routed; this is {major}.{minor}. --nftables-layout=auto does without"
    );
    Ok(())
}

/// Returns a log line if upstream would reject this kernel because of its version, although it has
/// every feature that the mode needs.
fn note_of_kernel(kernel: (u32, u32), is_skipped: bool) -> Option<String> {
    let ((major, minor), (first_major, first_minor)) = (kernel, FIRST_OF_UPSTREAM);
    (kernel < FIRST_OF_UPSTREAM && !is_skipped).then(|| {
        format!(
            "kernel {major}.{minor} takes the rules of nftables mode, which is served. Upstream \
             refuses kernels before {first_major}.{first_minor}: the `nft` of a host with one may \
             be too old to list these rules. This program starts no `nft`; {SKIP}=1 says that the \
             host's is known to be new enough"
        )
    })
}

#[cfg(test)]
mod tests {
    use flags::Flags;

    use super::*;
    use crate::settings::ProxyMode;

    #[test]
    fn a_missing_capability_is_named_in_the_error() {
        let open = || {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective
                .remove(rustix::thread::CapabilitySet::NET_ADMIN);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let (flags, mode) = (Flags::defaults(), ProxyMode::Nftables);
            let settings = Settings::read(&flags, mode, &mode.periods(&flags).unwrap());
            let opened = OpenedNftables::open(&settings.unwrap(), Access::Write);
            opened.map(drop).unwrap_err()
        };
        let error = std::thread::spawn(open).join().unwrap();
        // If the kernel lacks nf_tables, the error names this module instead of the capability.
        let words = format!("{error:#}");
        let is_told = words.contains("CAP_NET_ADMIN") || words.contains("modprobe nf_tables");
        assert!(is_told && !words.contains("subscribe"), "{words}");
    }

    #[test]
    fn the_flat_layout_needs_linux_5_9() {
        let flat = LayoutChoice::Always(Layout::Flat);
        for other in [LayoutChoice::Auto, LayoutChoice::Always(Layout::Upstream)] {
            assert!(refuse_old(other, (5, 8)).is_ok());
        }
        assert!(refuse_old(flat, (5, 9)).is_ok());
        let line = refuse_old(flat, (5, 8)).unwrap_err().to_string();
        assert!(
            line.contains("needs Linux 5.9") && line.contains("this is 5.8"),
            "{line}"
        );
    }

    #[test]
    fn nftables_mode_runs_on_kernels_before_5_13_with_a_log_line() {
        assert_eq!(note_of_kernel((5, 13), false), None);
        assert_eq!(note_of_kernel((6, 1), false), None);
        assert_eq!(note_of_kernel((5, 4), true), None);
        let line = note_of_kernel((5, 12), false).unwrap();
        assert!(line.starts_with("kernel 5.12 takes"), "{line}");
        assert!(line.contains("before 5.13"), "{line}");
    }
}
