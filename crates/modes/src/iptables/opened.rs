//! Opens iptables for iptables mode.

use std::cell::OnceCell;
use std::fs;

use anyhow::Result;
use cleanup::ServingMode;
use footprint::uses::{self, KernelFeature, Uses};
use iptables::Iptables;
use netlink_batch::Worker;
use proxy::{Changes, IpFamily};
use proxy_iptables::{
    Config, IptablesKernel, Lanes, Plan, PlanStep, Proxier, has_counting_rules, probe_counters,
};
use service_counters::ReadCounters;
use tracing::info;

use super::chains::Chains;
use super::counters::RuleCounters;
use crate::definition::{IntoProxiers, OpenedKernel, Start};
use crate::families::{Access, Families, SkippedFamily, is_disabled, thread};
use crate::footprints;
use crate::preview::{Change, PlanPreview, Preview};
use crate::settings::Settings;

/// The sysctl that makes connection tracking accept TCP segments outside of the window. If it is
/// off, such segments have the state INVALID.
const BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// The iptables programs, and a worker thread for each IP family that the node can serve.
pub(super) struct Rules {
    iptables: Iptables,
    families: Families<IptablesKernel>,
    /// IP families whose rules have nfacct counters.
    counting: Vec<IpFamily>,
}

impl Rules {
    pub(super) fn open(iptables: Iptables, access: Access) -> Result<Self> {
        let own = iptables.clone();
        let families = Families::open(
            |family| access.check(&iptables, family),
            |family| is_disabled(family, "all") == Some(true),
            "rules",
            move |family| Ok(IptablesKernel::new(family, own.clone()).among(footprints::ALL)),
        )?;
        let opened = families.opened.iter().map(|(family, _)| *family);
        let counting = opened
            .filter(|family| counts(*family, &iptables, access))
            .collect();
        Ok(Self {
            iptables,
            families,
            counting,
        })
    }
}

impl IntoProxiers for Rules {
    type Proxier = Proxier<IptablesKernel>;

    fn into_proxiers(self, start: &Start<'_>) -> Result<Vec<Self::Proxier>> {
        let (settings, counting, iptables) = (start.settings, self.counting, self.iptables);
        let shared = &settings.shared;
        let lets_invalid_pass =
            fs::read_to_string(BE_LIBERAL).is_ok_and(|found| found.trim() != "0");
        let into_proxier = |(family, rules): (IpFamily, Worker<IptablesKernel>)| {
            let config = Config {
                masquerade_all: shared.masquerade_all,
                masquerade_mark: shared.masquerade_mark(),
                detector: shared.detect_local.detector(family, start.model.node()),
                localhost_node_ports: family == IpFamily::V4
                    && settings.iptables.serves_localhost(shared),
                lets_invalid_pass,
                has_counters: counting.contains(&family),
                sync_period: shared.sync_period,
                source_port: iptables.source_port(),
                modes: footprints::ALL,
            };
            let facts = start.node_facts(family);
            let further = iptables.clone();
            let looks = thread("looks", family, move || {
                Ok(IptablesKernel::new(family, further).among(footprints::ALL))
            })?;
            let lanes = Lanes::new([rules, looks]);
            Ok(Proxier::new(config, facts, lanes, start.now))
        };
        self.families.opened.into_iter().map(into_proxier).collect()
    }

    async fn preview(self, start: &Start<'_>, told: &Changes) -> Result<Preview> {
        let mut preview = Preview::default();
        let iptables = self.iptables.clone();
        // Parses the output of `iptables-save` immediately and drops the text, which may be large.
        let there = |family| {
            let saved = iptables.save(family).ok();
            saved.map(|saved| Chains::of(&saved))
        };
        let found = IpFamily::ALL.map(|family| (family, OnceCell::new()));
        let show = |of: IpFamily, _: &_, plan: &Plan| {
            let found = found.iter().find(|(family, _)| *family == of);
            let told = plan.steps().into_iter();
            // If the chains cannot be read, the preview shows changes without a comparison.
            let change = |told: PlanStep| {
                let found = found.and_then(|(_, found)| found.get_or_init(|| there(of)).as_ref());
                match (told.chain, found) {
                    (Some(chain), Some(found)) => found.change(of, chain, told.line),
                    _ => Change::rule(of, "rules", told.line),
                }
            };
            PlanPreview {
                writes: 1,
                changes: told.map(change).collect(),
            }
        };
        let modes = self.into_proxiers(start)?;
        Box::pin(preview.add(modes, start, told, show)).await?;
        Ok(preview)
    }
}

impl OpenedKernel for Rules {
    fn left_out(&self) -> &[SkippedFamily] {
        &self.families.left_out
    }

    fn serving(&self) -> Option<ServingMode> {
        Some(ServingMode {
            mode: &proxy_iptables::FOOTPRINT,
            iptables: Some(self.iptables.clone()),
        })
    }

    fn uses(&self, _: &Settings) -> Uses {
        let backend = self.iptables.backend().to_string();
        Uses {
            backend: Some(uses::backend(&self.iptables)),
            forms: vec![format!("backend {backend}")],
            parts: vec![KernelFeature::Iptables(backend)],
            ..Uses::default()
        }
    }

    fn counters(&self) -> Box<dyn ReadCounters> {
        let families = self.families.opened.iter().map(|(family, _)| *family);
        Box::new(RuleCounters {
            iptables: self.iptables.clone(),
            families: families.collect(),
        })
    }
}

/// Reports whether rules of `family` can have nfacct counters. With write access, writes a test
/// rule. With read access, searches the existing rules for such a counter.
fn counts(family: IpFamily, iptables: &Iptables, access: Access) -> bool {
    match access {
        Access::Write => match probe_counters(family, iptables) {
            Ok(()) => true,
            Err(reason) => {
                info!(%family, reason, "dropped packets are not counted: nfacct cannot be used");
                false
            }
        },
        Access::Read => has_counting_rules(family, iptables),
    }
}
