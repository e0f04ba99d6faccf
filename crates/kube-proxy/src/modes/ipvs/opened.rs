//! The kernel, opened for IPVS mode.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::{FutureExt as _, LocalBoxFuture};
use iptables::Iptables;
use netlink_batch::Worker;
use proxy::{Changes, IpFamily, Mode};
use proxy_ipvs::{Config, Lanes, NetlinkKernel, Op, Plan, Proxier};
use tokio::runtime::Handle;

use super::settings::Timeouts;
use crate::footprints;
use crate::modes::definition::{Opened, Start};
use crate::modes::families::{Access, Families, LeftOut, boxed, is_disabled, thread};
use crate::modes::predecessor::Predecessor;
use crate::modes::preview::{Action, Change, Preview, unreadable};
use crate::modes::settings::Settings;

/// How often it is glanced at whether the virtual servers are all there. The kernel tells nobody
/// that somebody's `ipvsadm -C` has taken away every Service; the question is one system call
/// (docs/operating.md).
const GLANCE_PERIOD: Duration = Duration::from_secs(2);

/// The kernel for IPVS mode.
pub(super) struct Ipvs {
    iptables: Iptables,
    families: Families<NetlinkKernel>,
}

impl Ipvs {
    pub(super) fn open(settings: &Settings, iptables: Iptables, access: Access) -> Result<Self> {
        let vip_mode = settings.ipvs.vip_mode;
        // Where no address can be bound to the link. One that is made has the default.
        let is_off = |family| {
            let of_link = is_disabled(family, "kube-ipvs0");
            of_link.or_else(|| is_disabled(family, "default")) == Some(true)
        };
        let own = iptables.clone();
        let families = Families::open(access, &iptables, is_off, "services", move |family| {
            let kernel = match access {
                Access::Write => NetlinkKernel::open(family, own.clone()),
                Access::Read => NetlinkKernel::open_to_read(family, own.clone()),
            };
            Ok(kernel?.with_vip_mode(vip_mode).among(footprints::ALL))
        })?;
        Ok(Self { iptables, families })
    }

    /// The time-outs are the network namespace's, not a family's. Blocks.
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

    /// The time-outs that are not as they are wanted, a line each.
    async fn pending_timeouts(&self, wanted: Timeouts) -> Result<Vec<String>> {
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

    fn into_proxiers(self, start: &Start<'_>) -> Result<Vec<Proxier<NetlinkKernel>>> {
        let Self { iptables, families } = self;
        let settings = start.settings;
        let into_proxier = |(family, services): (IpFamily, Worker<NetlinkKernel>)| {
            let further = |what: &str| {
                let (iptables, vip_mode) = (iptables.clone(), settings.ipvs.vip_mode);
                thread(what, family, move || {
                    let kernel = NetlinkKernel::lazy(family, iptables).with_vip_mode(vip_mode);
                    Ok(kernel.among(footprints::ALL))
                })
            };
            let rules = further("rules")?;
            // The first look at the rules finds them read; it is done whether or not anybody waits
            // for it.
            drop(rules.call(NetlinkKernel::read_ahead));
            let lanes = Lanes::new([services, further("addresses")?, rules, further("reader")?]);
            let facts = start.node_facts(family);
            let config = config(start, family, &iptables);
            Ok(Proxier::new(config, facts, lanes, start.now))
        };
        families.opened.into_iter().map(into_proxier).collect()
    }

    async fn preview(self, start: &Start<'_>, told: &Changes) -> Result<Preview> {
        let Start {
            settings,
            model,
            now,
            ..
        } = *start;
        let mut preview = Preview {
            settings: self.pending_timeouts(settings.ipvs.timeouts).await?,
            ..Preview::default()
        };
        let scheduler = proxy_ipvs::foresee_scheduler(&settings.ipvs.scheduler);
        preview.warnings.extend(scheduler);
        for mut proxier in self.into_proxiers(start)? {
            let family = proxier.family();
            let read = proxier.read(model, now).await;
            read.map_err(unreadable(family))?;
            proxier.update(model, told, now);
            let plans = Box::pin(proxier.preview(now)).await;
            let of = family.to_string();
            let changes = plans.iter().flat_map(|plan| plan_changes(&of, plan));
            preview.changes.extend(changes);
            let writes = plans.iter().map(|plan| plan.ops.len()).sum();
            preview.writes.push((of, writes));
        }
        Ok(preview)
    }
}

impl Opened for Ipvs {
    fn left_out(&self) -> &[LeftOut] {
        &self.families.left_out
    }

    /// This mode clears up by itself, in the order in which it takes over.
    fn predecessor(&self, _: &Settings) -> Option<Predecessor> {
        None
    }

    fn into_modes(self: Box<Self>, start: &Start<'_>) -> Result<Vec<Box<dyn Mode>>> {
        Ok(boxed(self.into_proxiers(start)?))
    }

    fn preview<'a>(
        self: Box<Self>,
        start: &'a Start<'a>,
        told: &'a Changes,
    ) -> LocalBoxFuture<'a, Result<Preview>> {
        (*self).preview(start, told).boxed_local()
    }
}

fn config(start: &Start<'_>, family: IpFamily, iptables: &Iptables) -> Config {
    let (shared, own) = (&start.settings.shared, &start.settings.ipvs);
    Config {
        scheduler: own.scheduler.as_str().into(),
        masquerade_all: shared.masquerade_all,
        masquerade_mark: shared.masquerade_mark(),
        detector: shared.detect_local.detector(family, start.model.node()),
        exclude_cidrs: shared.exclude_cidrs.clone(),
        node_ip: shared.node_ip(family),
        sync_period: shared.sync_period,
        glance_period: Some(GLANCE_PERIOD),
        vip_mode: own.vip_mode,
        shim: own.shim,
        drain_timeout: own.drain_timeout,
        random_fully: iptables.random_fully(),
    }
}

/// What a plan does, one change each.
fn plan_changes(of: &str, plan: &Plan) -> Vec<Change> {
    let told = |op: &Op| match op {
        Op::WriteRules { wanted, installed } => {
            let lines = wanted.differences(installed).into_iter();
            lines.map(|line| Change::rule(of, line)).collect()
        }
        op => {
            let (kind, action) = class(op);
            vec![Change {
                of: of.to_owned(),
                kind,
                action,
                write: op.to_string(),
            }]
        }
    };
    plan.ops.iter().flat_map(told).collect()
}

fn class(op: &Op) -> (&'static str, Action) {
    use Action::{Add, Change, Remove};
    match op {
        Op::CreateLink => ("link", Add),
        Op::CreateSet(..) => ("sets", Add),
        Op::AddMember(..) => ("set members", Add),
        Op::RemoveMember(..) => ("set members", Remove),
        Op::WriteRules { .. } => ("rules", Change),
        Op::AddServer(..) => ("virtual servers", Add),
        Op::SetServer(..) => ("virtual servers", Change),
        Op::RemoveServer(..) => ("virtual servers", Remove),
        Op::AddDestination(..) => ("destinations", Add),
        Op::SetDestination(..) => ("destinations", Change),
        Op::RemoveDestination(..) => ("destinations", Remove),
        Op::BindAddress(..) => ("addresses", Add),
        Op::UnbindAddress(..) | Op::UnbindOtherwise(..) => ("addresses", Remove),
        Op::RemoveLeftovers(..) => ("other modes", Remove),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proxy_ipvs::{Rules, Set};

    use super::*;

    #[test]
    fn rules_are_told_by_the_line() {
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
        let told: Vec<_> = plan_changes("IPv4", &plan)
            .into_iter()
            .map(|change| (change.kind, change.action, change.write))
            .collect();
        assert_eq!(
            told,
            [
                (
                    "sets",
                    Action::Add,
                    "create set ClusterIp for 65536 members".to_owned()
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
