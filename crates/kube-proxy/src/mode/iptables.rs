//! The iptables mode, opened for each IP family of the node.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};
use iptables::{Iptables, IptablesError};
use netlink_batch::Worker;
use proxy::{IpFamily, Model, NodeFacts};
use proxy_iptables::{Config, IptablesKernel, Lanes, Proxier, has_counting_rules, probe_counters};
use proxy_ipvs::OpenError;
use tracing::info;

use super::{Families, LeftOut, is_disabled, node_ip};
use crate::flags::Options;
use crate::footprints;

/// Whether connection tracking lets packets pass that it calls INVALID otherwise.
const BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// iptables, for each family that the node has. Nothing has been read or written yet.
pub(crate) struct Kernels {
    iptables: Iptables,
    families: Families<IptablesKernel>,
    /// By family, whether rules count with nfacct.
    counting: Vec<IpFamily>,
}

impl Kernels {
    /// Opens it to write.
    pub(super) fn open(options: &Options) -> Result<Self> {
        let iptables = super::choose(options).context("cannot use iptables")?;
        let mut kernels = Self::open_checked(iptables.clone(), Iptables::check)?;
        for (family, _) in &kernels.families.opened {
            match probe_counters(*family, &iptables) {
                Ok(()) => kernels.counting.push(*family),
                Err(reason) => {
                    info!(%family, reason, "dropped packets are not counted: nfacct cannot be used");
                }
            }
        }
        Ok(kernels)
    }

    /// Opens it to read: nothing changes. Rules that are there say whether they count.
    pub(super) fn open_to_read(options: &Options) -> Result<Self> {
        let iptables = Iptables::look(super::backend(options)).context("cannot use iptables")?;
        let mut kernels = Self::open_checked(iptables.clone(), Iptables::check_reading)?;
        for (family, _) in &kernels.families.opened {
            let counts = has_counting_rules(*family, &iptables);
            kernels.counting.extend(counts.then_some(*family));
        }
        Ok(kernels)
    }

    fn open_checked(
        iptables: Iptables,
        check: fn(&Iptables, IpFamily) -> Result<(), IptablesError>,
    ) -> Result<Self> {
        info!(backend = %iptables.backend(), "iptables");
        let families = super::served(
            |family| is_disabled(family, "all") == Some(true),
            |family| check(&iptables, family),
            |family| {
                let iptables = iptables.clone();
                Worker::spawn(&format!("rules-{family}"), move || {
                    Ok::<_, OpenError>(IptablesKernel::new(family, iptables))
                })
            },
        )?;
        Ok(Self {
            iptables,
            families,
            counting: Vec::new(),
        })
    }

    pub(super) fn left_out(&self) -> &[LeftOut] {
        &self.families.left_out
    }

    /// One proxier for each family, for a node of which the model may know the object.
    pub(crate) fn into_proxiers(
        self,
        options: &Options,
        model: &Model,
        now: Instant,
    ) -> Result<Vec<Proxier<IptablesKernel>>, OpenError> {
        let (counting, iptables) = (self.counting, self.iptables);
        let lets_invalid_pass =
            fs::read_to_string(BE_LIBERAL).is_ok_and(|found| found.trim() != "0");
        let into_proxier = |(family, rules)| {
            let config = Config {
                masquerade_all: options.masquerade_all,
                masquerade_mark: 1 << options.masquerade_bit,
                detector: options.detect_local.detector(family, model.node()),
                localhost_node_ports: family == IpFamily::V4 && options.serves_localhost(),
                lets_invalid_pass,
                has_counters: counting.contains(&family),
                node_ip: node_ip(options, family),
                sync_period: options.sync_period,
                random_fully: iptables.random_fully(),
                modes: footprints::ALL,
            };
            let mut node = NodeFacts::new(family, &options.node_name);
            node.node_port_addresses = options.node_port_addresses.clone();
            let further = iptables.clone();
            let addresses = Worker::spawn(&format!("looks-{family}"), move || {
                Ok::<_, OpenError>(IptablesKernel::new(family, further))
            })?;
            let lanes = Lanes::new(rules, addresses);
            Ok(Proxier::new(config, node, lanes, now))
        };
        self.families.opened.into_iter().map(into_proxier).collect()
    }

    /// What is used.
    pub(crate) fn iptables(&self) -> Iptables {
        self.iptables.clone()
    }
}
