//! Tables of IPVS mode: for each kind of entry, the wanted, actual and pending ones.
//!
//! ```text
//!   claims ──▶ Tables ──planner──▶ Plan ──Kernel──▶ Outcomes ──settle (booking)──▶ Tables
//! ```

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;
use proxy::Owner;
use reconcile::{Removals, Rows, Table};

use crate::config::Semantics;
use crate::footprint::FOOTPRINT;
use crate::foreign::ForeignServers;
use crate::leftovers::{LeftoverPlace, Leftovers};
use crate::part::Part;
use crate::ranges::{Networks, RangeSource};
use crate::rules::Rules;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// Initial capacity of each set, in members, as in upstream. A set that needs more gets a larger
/// capacity.
pub(crate) const SET_SIZE: u32 = 65_536;

/// An earlier run's rules that serve packets until the shim is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FormerRules {
    None,
    /// IPVS mode's iptables shim, before a change of `--ipvs-shim` to nftables. Its virtual servers
    /// exist.
    Shim,
    /// Rules of another mode. Virtual servers may be missing.
    OtherMode,
}

/// All tables of IPVS mode for one IP family.
pub(crate) struct Tables {
    /// The link `kube-ipvs0`, which the proxy always wants.
    pub(crate) link: Table<(), (), ()>,
    /// Capacity of each set, in members. All sets that the present `--ipvs-semantics` uses are
    /// wanted.
    pub(crate) sets: Table<Set, u32, ()>,
    /// Members of each set, indexed by the set's number.
    members: [Table<Member, (), Arc<Owner>>; Set::EVERY],
    pub(crate) rules: Table<(), Arc<Rules>, ()>,
    /// Leftovers of other modes and of another shim. The proxy wants none of them.
    pub(crate) leftovers: Table<LeftoverPlace, Arc<Leftovers>, ()>,
    pub(crate) servers: Table<VirtualServerKey, VirtualServer, Arc<Owner>>,
    pub(crate) addresses: Table<IpAddr, (), Arc<Owner>>,
    /// Service addresses on the link from an earlier run with another `--ipvs-vip-mode`. The proxy
    /// wants none in this form.
    pub(crate) bound_otherwise: Table<IpAddr, (), ()>,
    /// Ranges of service addresses: networks that a single local route makes local.
    pub(crate) ranges: Table<IpNet, RangeSource, ()>,
    /// Networks that no range of service addresses may make local.
    pub(crate) networks: Networks,
    /// Virtual servers with a write whose reply was lost.
    pub(crate) uncertain: HashSet<VirtualServerKey>,
    /// Our virtual servers that the last full dump lacked. The kernel dumps virtual servers by
    /// position, so it skips one if another is removed during the dump.
    pub(crate) missed: HashMap<VirtualServerKey, VirtualServer>,
    pub(crate) foreign: ForeignServers,
}

/// Iterates over all tables, each with the part of the kernel's state that it describes.
macro_rules! each {
    ($tables:ident, $iter:ident $(, $mut:tt)?) => {{
        let single = [
            (Part::Addresses, &$($mut)? $tables.link as &$($mut)? dyn Rows),
            (Part::Addresses, &$($mut)? $tables.addresses),
            (Part::Addresses, &$($mut)? $tables.bound_otherwise),
            (Part::Addresses, &$($mut)? $tables.ranges),
            (Part::Servers, &$($mut)? $tables.servers),
            (Part::Sets, &$($mut)? $tables.sets),
            (Part::Rules, &$($mut)? $tables.rules),
            (Part::Rules, &$($mut)? $tables.leftovers),
        ];
        let members = $tables.members.$iter();
        let members = members.map(|table| (Part::Sets, table as &$($mut)? dyn Rows));
        single.into_iter().chain(members)
    }};
}

impl Tables {
    /// Creates tables in which the link and the sets are wanted, and nothing is known to exist in
    /// the kernel.
    pub(crate) fn new(semantics: Semantics, now: Instant) -> Self {
        let mut tables = Self {
            link: Table::new(),
            sets: Table::new(),
            members: std::array::from_fn(|_| Table::new()),
            rules: Table::new(),
            leftovers: Table::new(),
            servers: Table::new(),
            addresses: Table::new(),
            bound_otherwise: Table::new(),
            ranges: Table::new(),
            networks: Networks::default(),
            uncertain: HashSet::new(),
            missed: HashMap::new(),
            foreign: ForeignServers::default(),
        };
        tables.begin(now);
        tables.link.claim(&(), [((), ())]);
        let is_used = |set: &Set| semantics.is_exact() || !set.is_of_exact();
        let sets = Set::every().filter(is_used).map(|set| (set, SET_SIZE));
        tables.sets.claim(&(), sets);
        tables
    }

    /// Returns the tables that describe one part of the kernel's state.
    pub(crate) fn of(&self, part: Part) -> impl Iterator<Item = &dyn Rows> {
        let is_of = move |(of, table)| (of == part).then_some(table);
        each!(self, iter).filter_map(is_of)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn Rows> {
        each!(self, iter_mut, mut).map(|(_, table)| table)
    }

    /// Sets whether unwanted entries that still exist count as overdue, which they do not while the
    /// proxy must not remove entries.
    pub(crate) fn count_removals(&mut self, removals: Removals) {
        let tables = self.all_mut();
        tables.for_each(|table| table.count_removals(removals));
    }

    /// Passes the current time to all tables.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.all_mut().for_each(|table| table.begin(now));
    }

    pub(crate) fn members(&self, set: Set) -> &Table<Member, (), Arc<Owner>> {
        #[allow(clippy::indexing_slicing, reason = "Set::EVERY is the number of sets")]
        &self.members[set as usize]
    }

    pub(crate) fn members_mut(&mut self, set: Set) -> &mut Table<Member, (), Arc<Owner>> {
        #[allow(clippy::indexing_slicing, reason = "Set::EVERY is the number of sets")]
        &mut self.members[set as usize]
    }

    /// Returns each set with its members.
    pub(crate) fn all_members(
        &self,
    ) -> impl Iterator<Item = (Set, &Table<Member, (), Arc<Owner>>)> {
        Set::every().zip(&self.members)
    }

    /// Returns true if the kernel has every entry that an owner claims. A virtual server may lack a
    /// destination that the kernel refused as invalid.
    pub(crate) fn is_settled_for(&self, owner: &Arc<Owner>) -> bool {
        let is_settled = |(_, table): (Set, &Table<Member, (), Arc<Owner>>)| {
            let mut keys = table.keys_of(owner).iter();
            keys.all(|key| !table.is_pending(key))
        };
        let serves = |key: &VirtualServerKey| {
            let servers = &self.servers;
            !servers.is_pending(key) || (servers.is_excused(key) && servers.actual(key).is_some())
        };
        let mut addresses = self.addresses.keys_of(owner).iter();
        let mut keys = self.servers.keys_of(owner).iter();
        keys.all(|key| serves(key) && self.is_local(key))
            && addresses.all(|address| !self.addresses.is_pending(address))
            && self.all_members().all(is_settled)
    }

    /// Returns true if a virtual server's address is local, on the link or within a range. Returns
    /// true for an fwmark virtual server, too.
    fn is_local(&self, key: &VirtualServerKey) -> bool {
        let address = key.address().map(|at| at.address);
        address.is_none_or(|address| {
            self.is_covered(&address) || self.addresses.actual(&address).is_some()
        })
    }

    /// Returns true unless the kernel lacks a wanted range that contains this address.
    pub(crate) fn is_covered(&self, address: &IpAddr) -> bool {
        let mut missing = self.ranges.pending();
        missing.all(|net| self.ranges.wanted(net).is_none() || !net.contains(address))
    }

    /// Returns true if this proxy created or adopted a virtual server. After a lost reply, the
    /// kernel may have created it, so it counts as ours.
    pub(crate) fn is_ours(&self, key: &VirtualServerKey) -> bool {
        self.servers.actual(key).is_some() || self.uncertain.contains(key)
    }

    /// Returns true if the proxy may lower weights of a virtual server. After a lost reply it may
    /// not, because the kernel may lack new destinations.
    pub(crate) fn may_lower(&self, key: &VirtualServerKey) -> bool {
        !self.uncertain.contains(key)
    }

    /// Returns which rules of an earlier run still serve packets.
    ///
    /// - In iptables, the shim's chains have the names of the other mode's chains, and jump to the
    ///   other mode's rules until the proxy rewrites them.
    /// - In nftables, the shim comes before other modes' rules. Once the shim is written, packets
    ///   no longer reach those rules.
    pub(crate) fn former_rules(&self) -> FormerRules {
        let mut leftovers = self.leftovers.iter_actual();
        let wanted = self.rules.wanted(&());
        if wanted.is_some_and(|wanted| !wanted.native().is_empty()) {
            let rules = leftovers.map(|(place, left)| match place {
                LeftoverPlace::Other(_) if left.are_of(&FOOTPRINT) => FormerRules::Shim,
                LeftoverPlace::Nftables | LeftoverPlace::Other(_) => FormerRules::OtherMode,
                _ => FormerRules::None,
            });
            return rules.max().unwrap_or(FormerRules::None);
        }
        let serves = self.rules.actual(&()).is_some_and(|installed| {
            leftovers.any(|(place, left)| {
                matches!(place, LeftoverPlace::Beside(_)) && left.serve(installed.rules())
            })
        });
        if serves {
            FormerRules::OtherMode
        } else {
            FormerRules::None
        }
    }

    /// Returns true if another mode's rules still serve packets.
    pub(crate) fn are_served_by_another_mode(&self) -> bool {
        self.former_rules() == FormerRules::OtherMode
    }

    /// Returns true if a set has members, but the proxy wants none in it any more.
    pub(crate) fn empties_sets(&self) -> bool {
        let mut tables = self.members.iter();
        tables.any(|table| table.wanted_len() == 0 && table.pending_len() > 0)
    }

    /// Sets the wanted capacity of each set, which must hold all its members, including those to be
    /// removed. Sets never shrink.
    pub(crate) fn want_room(&mut self) {
        for (set, table) in Set::every().zip(&self.members) {
            if self.sets.wanted(&set).is_none() {
                continue;
            }
            let needed = u32::try_from(table.len().next_power_of_two()).unwrap_or(u32::MAX);
            let there = self.sets.actual(&set).copied().unwrap_or(SET_SIZE);
            let size = needed.max(there);
            if self.sets.wanted(&set) != Some(&size) {
                self.sets.amend(&(), &set, size);
            }
        }
    }
}

/// Returns the keys in ascending order.
pub(crate) fn sorted<'a, T: Ord + Copy + 'a>(keys: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut keys: Vec<T> = keys.copied().collect();
    keys.sort_unstable();
    keys
}
