//! IPVS mode on this machine's kernel.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{Backend, Iptables};
use proxy::IpFamily;
use proxy_ipvs::{
    Carrier, Config, Kernel as _, NetlinkKernel, Op, Outcome, Plan, Rules, ShimStyle, Snapshot,
    VirtualServer, VirtualServerKey,
};

pub(super) use crate::real::set_addresses;
use crate::real::{delete_link, shell};

/// Access to the real kernel for the test itself, which reads and damages the kernel's state.
pub(super) struct RealKernel {
    family: IpFamily,
    /// Reader of iptables rules for the test, or `None` if iptables does not work on this machine.
    /// It shares no cache with the daemon's reader.
    iptables: Option<Iptables>,
    has_nftables: bool,
    eyes: Option<(Config, NetlinkKernel)>,
}

/// A simulated process of the daemon: the settings with which its threads open the kernel.
pub(super) struct Process {
    family: IpFamily,
    config: Config,
    carrier: Carrier,
}

impl Process {
    /// Opens the kernel for one of the process's threads.
    pub(super) fn kernel(&self) -> NetlinkKernel {
        NetlinkKernel::lazy(self.family, self.carrier.clone()).with_vip_mode(self.config.vip_mode)
    }
}

#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a kernel that cannot be read or damaged ends the history"
)]
impl RealKernel {
    /// Opens the kernel's interfaces in the network namespace of the calling thread.
    pub(super) fn open(family: IpFamily, config: &Config) -> Result<Self, String> {
        let iptables = Iptables::choose(None).ok();
        let real = Self {
            family,
            iptables,
            has_nftables: proxy_ipvs::probe_nftables(family).is_ok(),
            eyes: None,
        };
        if !real.has(config.shim) {
            return Err(format!("it cannot carry the shim {:?}", config.shim));
        }
        let opened = NetlinkKernel::open(family, real.carrier(config.shim));
        opened.map_err(|error| error.to_string())?;
        Ok(real)
    }

    /// Returns true if the kernel supports this shim of IPVS mode.
    pub(super) fn has(&self, style: ShimStyle) -> bool {
        match style {
            ShimStyle::Nftables => self.has_nftables,
            _ => self.iptables.is_some(),
        }
    }

    fn backend(&self) -> Option<Backend> {
        self.iptables.as_ref().map(Iptables::backend)
    }

    fn carrier(&self, style: ShimStyle) -> Carrier {
        if style == ShimStyle::Nftables {
            return Carrier::Nftables;
        }
        let chosen = Iptables::choose(self.backend()).expect("iptables, which was there");
        Carrier::Iptables(chosen)
    }

    /// Starts a simulated process of the daemon with these settings.
    pub(super) fn process(&mut self, config: &Config) -> Process {
        self.eyes = None;
        Process {
            family: self.family,
            config: config.clone(),
            carrier: self.carrier(config.shim),
        }
    }

    fn eyes(&mut self, config: &Config, are_new: bool) -> &mut NetlinkKernel {
        let known = self.eyes.take();
        let known = known.filter(|(of, _)| of == config && !are_new);
        let eyes = known.unwrap_or_else(|| {
            let carrier = self.carrier(config.shim);
            let eyes = NetlinkKernel::lazy(self.family, carrier).with_vip_mode(config.vip_mode);
            (config.clone(), eyes)
        });
        &mut self.eyes.insert(eyes).1
    }

    /// Reads the real kernel's state into `there`, with the rules only if `takes_in_rules` is true.
    pub(super) fn look(&mut self, config: &Config, there: &mut Snapshot, takes_in_rules: bool) {
        // A `NetlinkKernel` searches only once for leftovers of another shim, so each read of the
        // rules needs a new one.
        let eyes = self.eyes(config, takes_in_rules);
        there.servers = eyes.read_servers().expect("the virtual servers");
        let sets = eyes.read_sets().expect("the sets");
        (there.sets, there.set_sizes) = (sets.members, sets.sizes);
        let addresses = eyes.read_addresses().expect("the addresses");
        there.has_link = addresses.has_link;
        there.bound = addresses.bound;
        there.bound_otherwise = addresses.bound_otherwise;
        there.ranges = addresses.ranges;
        there.networks = addresses.networks;
        there.interface_addresses = addresses.interface_addresses;
        if takes_in_rules {
            let rules = eyes.read_rules().expect("the rules");
            there.rules = Some(rules.rules);
            there.leftovers = Some(rules.leftovers);
        }
    }

    /// Makes another program's change in the real kernel: from the state `before` to the state
    /// `after`.
    pub(super) fn follow(&mut self, config: &Config, before: &Snapshot, after: &Snapshot) {
        set_addresses(&before.interface_addresses, &after.interface_addresses);
        let mut ops = Vec::new();
        of_servers(&before.servers, &after.servers, &mut ops);
        for (set, members) in &before.sets {
            let none = BTreeSet::new();
            let now = after.sets.get(set).unwrap_or(&none);
            let gone = members.difference(now);
            ops.extend(gone.map(|member| Op::RemoveMember(*set, *member)));
            let new = now.difference(members);
            ops.extend(new.map(|member| Op::AddMember(*set, *member)));
        }
        if before.has_link && !after.has_link {
            delete_link("kube-ipvs0");
        } else {
            let gone = before.bound.difference(&after.bound);
            ops.extend(gone.map(|address| Op::UnbindAddress(*address)));
            let gone = before.ranges.keys();
            let gone = gone.filter(|net| !after.ranges.contains_key(*net));
            ops.extend(gone.map(|net| Op::UnbindRange(*net)));
        }
        let eyes = self.eyes(config, false);
        let outcomes = eyes.apply(&Plan { ops: ops.clone() });
        for (op, outcome) in ops.iter().zip(outcomes) {
            assert_eq!(outcome, Outcome::Done, "{op}");
        }
        if before.rules != after.rules && after.rules == Some(Rules::default()) {
            self.flush(config.shim);
        }
    }

    /// Flushes all rules of this shim, as a firewall does at its restart.
    fn flush(&self, style: ShimStyle) {
        let is_ipv4 = self.family == IpFamily::V4;
        if style == ShimStyle::Nftables {
            let family = if is_ipv4 { "ip" } else { "ip6" };
            drop(shell(&format!("nft flush table {family} kube-proxy-ipvs")));
            return;
        }
        let program = match (is_ipv4, self.backend()) {
            (true, Some(Backend::Legacy)) => "iptables-legacy-restore",
            (true, _) => "iptables-nft-restore",
            (false, Some(Backend::Legacy)) => "ip6tables-legacy-restore",
            (false, _) => "ip6tables-nft-restore",
        };
        let tables = "*nat\\nCOMMIT\\n*filter\\nCOMMIT\\n*mangle\\nCOMMIT\\n";
        let flushed = shell(&format!("printf '{tables}' | {program} -w 5"));
        assert!(flushed.is_some(), "{program} flushes the tables");
    }
}

fn of_servers(
    before: &BTreeMap<VirtualServerKey, VirtualServer>,
    after: &BTreeMap<VirtualServerKey, VirtualServer>,
    ops: &mut Vec<Op>,
) {
    let gone = before.keys().filter(|key| !after.contains_key(key));
    ops.extend(gone.map(|key| Op::RemoveServer(*key)));
    for (key, server) in after {
        let was = before.get(key);
        match was {
            None => ops.push(Op::AddServer(*key, server.properties.clone())),
            Some(was) if was.properties != server.properties => {
                ops.push(Op::SetServer(*key, server.properties.clone()));
            }
            Some(_) => {}
        }
        for real in server.destinations.iter() {
            match was.and_then(|was| was.destination(real.target)) {
                None => ops.push(Op::AddDestination(*key, real)),
                Some(there) if there != real => ops.push(Op::SetDestination(*key, real)),
                Some(_) => {}
            }
        }
        let gone = was.into_iter().flat_map(|was| was.destinations.iter());
        let gone = gone.filter(|real| server.destination(real.target).is_none());
        ops.extend(gone.map(|real| Op::RemoveDestination(*key, real.target)));
    }
}
