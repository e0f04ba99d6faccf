//! Updates the ranges of service addresses (`--ipvs-vip-mode=range`): networks that a single local
//! route makes local.

use std::net::SocketAddr;

use ipnet::IpNet;
use proxy::{IpFamily, Model};

use crate::config::VipMode;
use crate::kinds::State;
use crate::proxier::Ipvs;
use crate::ranges::{Networks, RangeGround, RangeSource, Ranges, SkippedRange};

impl Ipvs {
    /// Updates the ranges after a change of the ServiceCIDRs, the node's networks or the API
    /// servers. Returns true if every Service must be recompiled. Without a change, costs
    /// O(ServiceCIDRs and API servers).
    pub(crate) fn follow_ranges(&mut self, state: &State, model: &Model) -> bool {
        // Waits until the node's networks are read, because they limit the ranges.
        if state.config.vip_mode != VipMode::Range || !state.node.has_addresses {
            return false;
        }
        let ground = RangeGround {
            service_cidrs: state.node.service_cidrs.clone(),
            api_servers: model.api_servers().to_vec(),
        };
        if self.range_ground.as_ref() == Some(&ground) {
            return false;
        }
        let (ranges, skipped) = self.wanted_ranges(state, &ground);
        self.range_ground = Some(ground);
        for range in skipped
            .iter()
            .filter(|it| !self.skipped_ranges.contains(it))
        {
            tracing::warn!("{range}");
        }
        self.skipped_ranges = skipped;
        if ranges == self.ranges {
            return false;
        }
        let routes = ranges.routes().into_iter();
        let routes = routes.map(|net| (net, RangeSource::Current));
        self.tables.ranges.claim(&(), routes);
        self.ranges = ranges;
        true
    }

    fn wanted_ranges(&self, state: &State, ground: &RangeGround) -> (Ranges, Vec<SkippedRange>) {
        let family = state.node.family;
        let api_servers = ground.api_servers.iter().map(SocketAddr::ip);
        let api_servers = api_servers.filter(|ip| IpFamily::of(*ip) == family);
        let mut others: Networks = self.tables.networks.clone();
        others.of_interfaces.extend(api_servers.map(IpNet::from));
        let by_flag = &state.config.service_cidrs;
        match &ground.service_cidrs {
            Some(nets) if !nets.is_empty() => Ranges::new(nets.iter().copied(), &others),
            None if by_flag.is_empty() => {
                // While the ServiceCIDRs are unknown, the ranges in the kernel stay.
                let there = self.tables.ranges.iter_actual().map(|(net, _)| *net);
                Ranges::new(there, &others)
            }
            Some(_) | None => Ranges::new(by_flag.iter().copied(), &others),
        }
    }

    /// Returns the ranges that are local or will become local. Rules must protect the node's own
    /// processes at their addresses.
    pub(crate) fn guarded_ranges(&self) -> Ranges {
        let there = self.tables.ranges.iter_actual().map(|(net, _)| *net);
        let is_unwanted = |net: &IpNet| !self.ranges.nets.iter().any(|of| of.contains(net));
        let mut ranges = self.ranges.clone();
        ranges.nets.extend(there.filter(is_unwanted));
        ranges
    }
}
