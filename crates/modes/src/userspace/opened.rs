//! Opens userspace mode: its relay, and the kernel feature whose rules redirect packets to the
//! relay's listening ports (nf_tables or iptables).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cleanup::ServingMode;
use footprint::uses::{self, KernelFeature, Uses};
use iptables::{Iptables, IptablesError};
use netlink_batch::Worker;
use nftables_netlink::OwnSockets;
use proxy::{Changes, IpFamily};
use proxy_userspace::{Config, Lanes, Plan, Proxier, Traffic, UserspaceKernel};
use relay::{Limits, Relay};
use service_counters::ReadCounters;
use tracing::info;

use super::counters::RelayCounters;
use crate::definition::{Ending, IntoProxiers, OpenedKernel, Start};
use crate::families::{Access, Families, SkippedFamily, is_disabled, thread};
use crate::footprints;
use crate::preview::{Change, PlanPreview, Preview};
use crate::programs::Programs;
use crate::rulesets::{Notices, follow_all};
use crate::settings::Settings;

/// Time for which open connections may continue when the process ends. Until this time is over, no
/// process accepts new connections, because the next process starts only afterwards.
const DRAIN: Duration = Duration::from_secs(5);

/// Kernel feature whose rules redirect packets to the relay's listening ports.
#[derive(Debug, Clone)]
pub(super) enum Redirector {
    /// An nf_tables table, which needs no iptables program and no iptables module.
    Nftables,
    /// iptables rules, if the kernel lacks nf_tables or if a flag sets the iptables backend.
    Iptables(Iptables),
}

impl Redirector {
    /// Chooses nf_tables or iptables. Blocks while it queries the kernel.
    pub(super) fn choose(settings: &Settings, programs: &Programs, access: Access) -> Result<Self> {
        let can = |family: &IpFamily| match access {
            Access::Write => proxy_userspace::probe_nftables(*family).is_ok(),
            Access::Read => proxy_userspace::has_nftables(),
        };
        let is_forced = settings.shared.iptables_backend.forced().is_some();
        if !is_forced && IpFamily::ALL.iter().any(can) {
            info!("packets are redirected by nf_tables");
            return Ok(Self::Nftables);
        }
        let chosen = programs.choose(&proxy_userspace::MODULES);
        let chosen = chosen.context("the kernel has no nf_tables, and iptables cannot be used")?;
        Ok(Self::Iptables(chosen))
    }

    /// Checks that the kernel accepts the mode's rules for `family`. Leaves no rule in the kernel.
    pub(super) fn probe(&self, family: IpFamily) -> Result<()> {
        match self {
            Self::Nftables => proxy_userspace::probe_nftables(family)?,
            Self::Iptables(iptables) => {
                iptables.check(family)?;
                proxy_userspace::probe(iptables, family)
                    .context("cannot write the rules of userspace mode")?;
            }
        }
        Ok(())
    }

    /// Checks that the node supports `family`. With iptables, also checks that the programs can
    /// write its rules or, with read access, read them.
    fn check(&self, family: IpFamily, access: Access) -> Result<(), IptablesError> {
        match self {
            Self::Nftables => iptables::exists(family),
            Self::Iptables(iptables) => access.check(iptables, family),
        }
    }

    fn kernel(
        &self,
        family: IpFamily,
        relay: Relay,
        written: &Arc<OwnSockets>,
        traffic: &Traffic,
    ) -> Result<UserspaceKernel> {
        let kernel = match self {
            Self::Nftables => UserspaceKernel::with_nftables(family, relay, written)?,
            Self::Iptables(iptables) => {
                UserspaceKernel::with_iptables(family, iptables.clone(), relay)
            }
        };
        Ok(kernel.counted_in(traffic).among(footprints::ALL))
    }
}

/// The relay, and a worker thread for each IP family that the node can serve.
pub(super) struct Userspace {
    redirector: Redirector,
    relay: Relay,
    /// The nftables sockets of this process, whose transactions are no drift.
    written: Arc<OwnSockets>,
    /// The relay's counters of each Service port.
    traffic: Traffic,
    families: Families<UserspaceKernel>,
}

impl Userspace {
    pub(super) fn open(
        redirector: Redirector,
        settings: &Settings,
        access: Access,
    ) -> Result<Self> {
        let limits = Limits {
            udp_idle: settings.userspace.udp_timeout,
            mark: Some(settings.shared.masquerade_mark()),
            ..Limits::default()
        };
        let relay = Relay::start(limits).context("cannot start the relay")?;
        let (own, of_kernel) = (redirector.clone(), relay.clone());
        let written = Arc::<OwnSockets>::default();
        let by_kernel = Arc::clone(&written);
        let traffic = Traffic::default();
        let counted = traffic.clone();
        let families = Families::open(
            |family| redirector.check(family, access),
            |family| is_disabled(family, "all") == Some(true),
            "sockets",
            move |family| own.kernel(family, of_kernel.clone(), &by_kernel, &counted),
        )?;
        Ok(Self {
            redirector,
            relay,
            written,
            traffic,
            families,
        })
    }
}

impl IntoProxiers for Userspace {
    type Proxier = Proxier<UserspaceKernel>;

    fn into_proxiers(self, start: &Start<'_>) -> Result<Vec<Self::Proxier>> {
        let Self {
            redirector,
            relay,
            written,
            traffic,
            families,
        } = self;
        let settings = start.settings;
        let shared = &settings.shared;
        let into_proxier = |(family, sockets): (IpFamily, Worker<UserspaceKernel>)| {
            let config = Config {
                detector: shared.detect_local.detector(family, start.model.node()),
                localhost_node_ports: settings.userspace.serves_localhost(shared),
                // The relay sets kube-proxy's masquerade mark on its own packets. Masquerading does
                // not change them, because their source is already an address of the node.
                own_mark: Some(shared.masquerade_mark()),
                sync_period: shared.sync_period,
                modes: footprints::ALL,
            };
            let (redirector, relay) = (redirector.clone(), relay.clone());
            let (written, traffic) = (Arc::clone(&written), traffic.clone());
            let rules = thread("rules", family, move || {
                redirector.kernel(family, relay, &written, &traffic)
            })?;
            let facts = start.node_facts(family);
            Ok(Proxier::new(
                config,
                facts,
                Lanes::new([sockets, rules]),
                start.now,
            ))
        };
        families.opened.into_iter().map(into_proxier).collect()
    }

    async fn preview(self, start: &Start<'_>, told: &Changes) -> Result<Preview> {
        let mut preview = Preview::default();
        let show = |of: IpFamily, _: &_, plan: &Plan| {
            let (lane, kind) = match plan {
                Plan::Sockets(_) => ("sockets", "listening ports"),
                Plan::Redirects(_) => ("rules", "rules"),
            };
            let lines = plan.lines().into_iter();
            PlanPreview {
                writes: 1,
                changes: lines
                    .map(|line| Change::told(of, lane, kind, line))
                    .collect(),
            }
        };
        let modes = self.into_proxiers(start)?;
        Box::pin(preview.add(modes, start, told, show)).await?;
        Ok(preview)
    }
}

impl OpenedKernel for Userspace {
    fn left_out(&self) -> &[SkippedFamily] {
        &self.families.left_out
    }

    fn serving(&self) -> Option<ServingMode> {
        Some(ServingMode {
            mode: &proxy_userspace::FOOTPRINT,
            iptables: match &self.redirector {
                Redirector::Nftables => None,
                Redirector::Iptables(used) => Some(used.clone()),
            },
        })
    }

    fn notices(&self) -> Result<Vec<Notices>> {
        Ok(match self.redirector {
            Redirector::Nftables => {
                let families = self.families.opened.iter().map(|(family, _)| *family);
                follow_all(&proxy_userspace::FOOTPRINT, families, &self.written)?
            }
            Redirector::Iptables(_) => Vec::new(),
        })
    }

    fn ending(&self) -> Option<Ending> {
        let relay = self.relay.clone();
        Some(Box::new(move || {
            let cut = relay.finish(DRAIN);
            (cut > 0).then(|| format!("{cut} connections that this process carried were cut"))
        }))
    }

    fn uses(&self, _: &Settings) -> Uses {
        let (by, part) = match &self.redirector {
            Redirector::Nftables => ("nftables".to_owned(), KernelFeature::NfTables),
            Redirector::Iptables(iptables) => {
                let backend = iptables.backend().to_string();
                (
                    format!("iptables ({backend})"),
                    KernelFeature::Iptables(backend),
                )
            }
        };
        let backend = match &self.redirector {
            Redirector::Nftables => None,
            Redirector::Iptables(iptables) => Some(uses::backend(iptables)),
        };
        Uses {
            backend,
            forms: vec![format!("redirects by {by}")],
            parts: vec![part],
            ..Uses::default()
        }
    }

    fn counters(&self) -> Box<dyn ReadCounters> {
        Box::new(RelayCounters(self.traffic.clone()))
    }
}
