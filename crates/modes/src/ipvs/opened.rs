//! Opens the kernel's IPVS for IPVS mode.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cleanup::ServingMode;
use footprint::uses::{self, KernelFeature, Uses};
use netlink_batch::Worker;
use nftables_netlink::OwnSockets;
use proxy::{Changes, EntryChange, IpFamily, Model, Scheduler};
use proxy_ipvs::{
    Carrier, Config, Lanes, MarkAddresses, NetlinkKernel, Op, Part as OfKernel, Plan, Proxier,
    ShimStyle, VipMode,
};
use service_counters::ReadCounters;
use tokio::runtime::Handle;

use super::counters::IpvsCounters;
use super::settings::Timeouts;
use super::shim::ChosenShim;
use crate::definition::{IntoProxiers, OpenedKernel, Start};
use crate::families::{Access, Families, SkippedFamily, is_disabled, thread};
use crate::footprints;
use crate::preview::{Action, Change, OTHER_MODES, Obstacle, PlanPreview, Preview};
use crate::rulesets::{Notices, follow_all};
use crate::settings::Settings;
use crate::sysctl::setting::Setting;

/// Interval between two counts of the virtual servers. The count detects `ipvsadm -C`, because IPVS
/// sends no notification. It takes one system call.
const GLANCE_PERIOD: Duration = Duration::from_secs(2);

/// The kernel's IPVS and the shim's rules, with a worker thread for each IP family.
pub(super) struct Ipvs {
    shim: ChosenShim,
    /// The nftables sockets of this process, whose transactions are no drift.
    written: Arc<OwnSockets>,
    families: Families<NetlinkKernel>,
    /// Service address that each fwmark stands for, for the counters.
    marks: MarkAddresses,
}

impl Ipvs {
    pub(super) fn open(settings: &Settings, shim: ChosenShim, access: Access) -> Result<Self> {
        let vip_mode = settings.ipvs.vip_mode;
        let is_exact = settings.ipvs.semantics.is_exact();
        // The family is unusable if it is disabled on the link `kube-ipvs0`, because the link then
        // cannot have its addresses. If the link does not exist yet, the setting `default` applies.
        let is_off = |family| {
            let of_link = is_disabled(family, "kube-ipvs0");
            of_link.or_else(|| is_disabled(family, "default")) == Some(true)
        };
        let own = shim.carrier.clone();
        let written = Arc::<OwnSockets>::default();
        let of_kernel = Arc::clone(&written);
        let check = |family| shim.check(family, access);
        let families = Families::open(check, is_off, "services", move |family| {
            let kernel = match access {
                Access::Write => NetlinkKernel::open(family, own.clone()),
                Access::Read => NetlinkKernel::open_to_read(family, own.clone()),
            };
            let kernel = kernel?.one_of(Arc::clone(&of_kernel));
            let kernel = kernel.with_vip_mode(vip_mode).with_node_source(is_exact);
            Ok(kernel.among(footprints::ALL))
        })?;
        Ok(Self {
            shim,
            written,
            families,
            marks: MarkAddresses::default(),
        })
    }

    /// Sets the IPVS timeouts, which apply to the whole network namespace and so to both families.
    /// Blocks.
    pub(super) fn set_timeouts(&self, wanted: Timeouts) -> Result<()> {
        let Some((_, kernel)) = self.families.opened.first() else {
            return Ok(());
        };
        if wanted == Timeouts::default() {
            return Ok(());
        }
        let Timeouts { tcp, tcp_fin, udp } = wanted;
        let set = kernel.call(move |kernel| kernel.set_timeouts(tcp, tcp_fin, udp));
        Handle::current().block_on(set)?.context(
            "cannot set the IPVS time-outs (--ipvs-tcp-timeout, --ipvs-tcpfin-timeout, --ipvs-udp-timeout)",
        )
    }

    /// Returns the IPVS timeouts whose current value differs from the flags, with both values.
    async fn pending_timeouts(&self, wanted: Timeouts) -> Result<Vec<Setting>> {
        let Some((_, kernel)) = self.families.opened.first() else {
            return Ok(Vec::new());
        };
        let found = kernel
            .call(NetlinkKernel::timeouts)
            .await?
            .context("cannot read the IPVS time-outs")?;
        let wanted = [
            ("TCP", wanted.tcp),
            ("TCP after a FIN", wanted.tcp_fin),
            ("UDP", wanted.udp),
        ];
        let differing = wanted
            .into_iter()
            .zip(found)
            .filter(|((_, wanted), found)| {
                // The kernel stores whole seconds. A wanted value below one second leaves the
                // kernel's value unchanged.
                wanted.as_secs() > 0 && wanted.as_secs() != found.as_secs()
            });
        Ok(differing
            .map(|((what, wanted), found)| {
                let seconds = |time: Duration| format!("{} s", time.as_secs());
                Setting {
                    name: format!("the IPVS time-out of {what}"),
                    found: seconds(found),
                    wanted: seconds(wanted),
                }
            })
            .collect())
    }

    fn into_foreseeing(
        self,
        start: &Start<'_>,
        foreseen: &[(Scheduler, Result<(), String>)],
    ) -> Result<Vec<Proxier<NetlinkKernel>>> {
        let Self {
            shim,
            written,
            families,
            marks,
        } = self;
        let settings = start.settings;
        let into_proxier = |(family, services): (IpFamily, Worker<NetlinkKernel>)| {
            let further = |what: &str| {
                let (carrier, vip_mode) = (shim.carrier.clone(), settings.ipvs.vip_mode);
                let is_exact = settings.ipvs.semantics.is_exact();
                let written = Arc::clone(&written);
                thread(what, family, move || {
                    let kernel = NetlinkKernel::lazy(family, carrier).with_vip_mode(vip_mode);
                    let kernel = kernel.with_node_source(is_exact);
                    Ok(kernel.among(footprints::ALL).one_of(written))
                })
            };
            let rules = further("rules")?;
            // Starts to read the rules in the background, so that the first comparison need not
            // wait for them.
            drop(rules.call(NetlinkKernel::read_ahead));
            let lanes = Lanes::new([services, further("addresses")?, rules, further("reader")?]);
            let facts = start.node_facts(family);
            let config = Config {
                foreseen_schedulers: foreseen.to_vec(),
                mark_addresses: marks.clone(),
                ..config(start, family, &shim)
            };
            Ok(Proxier::new(config, facts, lanes, start.now))
        };
        families.opened.into_iter().map(into_proxier).collect()
    }
}

impl IntoProxiers for Ipvs {
    type Proxier = Proxier<NetlinkKernel>;

    fn into_proxiers(self, start: &Start<'_>) -> Result<Vec<Self::Proxier>> {
        self.into_foreseeing(start, &[])
    }

    async fn preview(self, start: &Start<'_>, told: &Changes) -> Result<Preview> {
        let settings = start.settings;
        let mut preview = Preview {
            settings: self.pending_timeouts(settings.ipvs.timeouts).await?,
            ..Preview::default()
        };
        preview.warnings.extend(foresee_scheduler(settings));
        for (family, kernel) in &self.families.opened {
            let found = kernel.call(NetlinkKernel::sets_in_the_way).await?;
            for set in found.with_context(|| family.to_string())? {
                if set.is_replaced {
                    preview.warnings.push(set.message);
                } else {
                    preview.obstacles.push(Obstacle {
                        kind: "sets",
                        message: set.message,
                    });
                }
            }
        }
        let show = |of: IpFamily, known: &proxy_ipvs::Ipvs, plan: &Plan| PlanPreview {
            writes: plan.ops.len(),
            changes: plan_changes(of, plan, |op| known.entry(of, op)),
        };
        let modes = self.into_foreseeing(start, &foreseen_schedulers(start.model))?;
        Box::pin(preview.add(modes, start, told, show)).await?;
        Ok(preview)
    }
}

impl OpenedKernel for Ipvs {
    fn left_out(&self) -> &[SkippedFamily] {
        &self.families.left_out
    }

    /// Returns `None`: IPVS mode removes the entries of other modes itself, in the order in which
    /// it replaces them.
    fn serving(&self) -> Option<ServingMode> {
        None
    }

    fn notices(&self) -> Result<Vec<Notices>> {
        Ok(match self.shim.carrier {
            Carrier::Nftables => {
                let families = self.families.opened.iter().map(|(family, _)| *family);
                follow_all(&proxy_ipvs::FOOTPRINT, families, &self.written)?
            }
            Carrier::Iptables(_) => Vec::new(),
        })
    }

    fn uses(&self, settings: &Settings) -> Uses {
        let scheduler = settings.ipvs.scheduler.clone();
        let style = match self.shim.style {
            ShimStyle::Upstream => "upstream",
            ShimStyle::Lean => "lean",
            ShimStyle::Nftables => "nftables",
        };
        let mut forms = vec![format!("scheduler {scheduler}"), format!("shim {style}")];
        match settings.ipvs.vip_mode {
            VipMode::Address => {}
            VipMode::Route => forms.push("service addresses as routes".to_owned()),
            VipMode::Range => forms.push("service ranges as routes".to_owned()),
        }
        let mut parts = vec![KernelFeature::Ipvs { scheduler }];
        let mut backend = None;
        match &self.shim.carrier {
            Carrier::Nftables => parts.push(KernelFeature::NfTables),
            Carrier::Iptables(iptables) => {
                backend = Some(uses::backend(iptables));
                parts.extend([
                    KernelFeature::Ipset,
                    KernelFeature::Iptables(iptables.backend().to_string()),
                ]);
            }
        }
        Uses {
            forms,
            backend,
            parts,
            ..Uses::default()
        }
    }

    fn counters(&self) -> Box<dyn ReadCounters> {
        Box::new(IpvsCounters::with_marks(self.marks.clone()))
    }
}

/// Returns the error with which a start would end because the kernel lacks the scheduler in
/// `--ipvs-scheduler`. Returns `None` if the kernel has it.
pub fn foresee_scheduler(settings: &Settings) -> Option<String> {
    let lack = proxy_ipvs::foresee_scheduler(&settings.ipvs.scheduler)?;
    Some(format!(
        "{lack}: the start will end with an error; install it, or choose another --ipvs-scheduler"
    ))
}

/// Returns the schedulers that Services name in their options, each with an error if the kernel
/// lacks it. Writes nothing.
fn foreseen_schedulers(model: &Model) -> Vec<(Scheduler, Result<(), String>)> {
    let named = model.services_with_options();
    let named: BTreeSet<Scheduler> = named.filter_map(|(_, of)| of.scheduler).collect();
    let foreseen = named.into_iter().map(|scheduler| {
        let lack = proxy_ipvs::foresee_scheduler(scheduler.name());
        (scheduler, lack.map_or(Ok(()), Err))
    });
    foreseen.collect()
}

fn config(start: &Start<'_>, family: IpFamily, shim: &ChosenShim) -> Config {
    let (shared, own) = (&start.settings.shared, &start.settings.ipvs);
    Config {
        mark_addresses: MarkAddresses::default(),
        scheduler: own.scheduler.as_str().into(),
        foreseen_schedulers: Vec::new(),
        masquerade_all: shared.masquerade_all,
        masquerade_mark: shared.masquerade_mark(),
        detector: shared.detect_local.detector(family, start.model.node()),
        exclude_cidrs: shared.exclude_cidrs.clone(),
        sync_period: shared.sync_period,
        glance_period: Some(GLANCE_PERIOD),
        vip_mode: own.vip_mode,
        service_cidrs: own.service_cidrs(family),
        shim: shim.style,
        semantics: own.semantics,
        answers_ping: own.answers_ping,
        drain_timeout: own.drain_timeout,
        source_port: shim.source_port(),
    }
}

/// Returns the changes that a plan makes: one for each changed rule, and one for each other write.
/// `entry` returns the name of the entry that a write changes.
fn plan_changes(
    of: IpFamily,
    plan: &Plan,
    entry: impl Fn(&Op) -> Option<EntryChange>,
) -> Vec<Change> {
    let told = |op: &Op| match (op, entry(op)) {
        (Op::WriteRules { wanted, installed }, _) => {
            let lines = wanted.differences(installed).into_iter();
            lines.map(|line| Change::rule(of, lane(op), line)).collect()
        }
        (op, entry) => {
            let change = entry.unwrap_or_else(|| EntryChange {
                entry: op.words(of),
                ..EntryChange::default()
            });
            let (kind, action) = class(op);
            vec![Change {
                action,
                ..Change::of_entry(of, lane(op), kind, change, op.words(of))
            }]
        }
    };
    plan.ops.iter().flat_map(told).collect()
}

/// Returns the name of the lane (worker thread) that writes `op`.
fn lane(op: &Op) -> &'static str {
    match op.part() {
        OfKernel::Servers | OfKernel::Sets => "services",
        OfKernel::Addresses => "addresses",
        OfKernel::Rules => "rules",
    }
}

fn class(op: &Op) -> (&'static str, Action) {
    use Action::{Add, Change, Remove};
    match op {
        Op::CreateLink => ("link", Add),
        Op::CreateSet(..) => ("sets", Add),
        Op::RemoveSet(_) => ("sets", Remove),
        Op::AddMember(..) => ("set members", Add),
        Op::RemoveMember(..) => ("set members", Remove),
        Op::ReplaceMember(..) => ("set members", Change),
        Op::WriteRules { .. } => ("rules", Change),
        Op::AddServer(..) => ("virtual servers", Add),
        Op::SetServer(..) => ("virtual servers", Change),
        Op::RemoveServer(..) => ("virtual servers", Remove),
        Op::AddDestination(..) => ("destinations", Add),
        Op::SetDestination(..) => ("destinations", Change),
        Op::RemoveDestination(..) => ("destinations", Remove),
        Op::BindAddress(..) | Op::BindRange(..) => ("addresses", Add),
        Op::UnbindAddress(..) | Op::UnbindOtherwise(..) | Op::UnbindRange(..) => {
            ("addresses", Remove)
        }
        Op::RemoveLeftovers(..) => (OTHER_MODES, Remove),
    }
}

#[cfg(test)]
mod tests {
    use proxy_ipvs::{Rules, Set};

    use super::*;

    #[test]
    fn changed_rules_are_previewed_line_by_line() {
        let installed = "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n";
        let plan = Plan {
            ops: vec![
                Op::CreateSet(Set::ClusterIp, 65_536),
                Op::WriteRules {
                    wanted: Arc::new(Rules::parse("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")),
                    installed: Arc::new(Rules::parse(installed)),
                },
            ],
        };
        let told: Vec<_> = plan_changes(IpFamily::V4, &plan, |_| None)
            .into_iter()
            .map(|change| (change.kind, change.action, change.write))
            .collect();
        assert_eq!(
            told,
            [
                (
                    "sets",
                    Action::Add,
                    "create set KUBE-CLUSTER-IP for 65536 members".to_owned()
                ),
                (
                    "rules",
                    Action::Remove,
                    "remove in table nat: -A KUBE-SERVICES -j RETURN".to_owned()
                )
            ]
        );
    }
}
