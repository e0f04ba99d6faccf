//! Changes by other programs, to the daemon's entries in IPVS mode and to their own entries.

use chance::Chance;
use proxy::{Notice, Protocol, Target};
use proxy_ipvs::{
    Member, Properties, RealServer, Rules, Set, ShimStyle, VipMode, VirtualServer, VirtualServerKey,
};

use super::Ipvs;
use crate::cluster::at;
use crate::subject::Damage;

impl Ipvs {
    pub(super) fn damage_state(&mut self, chance: &mut Chance) -> Option<Damage> {
        let nftables = self.config.shim == ShimStyle::Nftables;
        let mut state = self.kernel.state();
        let there = &mut state.snapshot;
        let foreign = &self.foreign;
        let ours: Vec<VirtualServerKey> = there
            .servers
            .keys()
            .filter(|key| !foreign.contains_key(key))
            .copied()
            .collect();
        // Damage that the kernel does not report. It reports only damage to addresses and links.
        let untold = |what: String| Some(Damage { what, told: None });
        match chance.below(10) {
            0 => {
                let key = chance.one_of(&ours)?;
                there.servers.remove(key);
                untold(format!("virtual server {key} is removed"))
            }
            1 | 2 => {
                let key = chance.one_of(&ours)?;
                let server = there.servers.get_mut(key)?;
                let mut all = server.destinations.to_vec();
                let at = chance.index(all.len());
                let real = all.get_mut(at)?;
                let what = if chance.is_one_in(2) {
                    let target = real.target;
                    all.remove(at);
                    format!("destination {target:?} of {key} is removed")
                } else {
                    *real = real.with_weight(if chance.is_one_in(2) { 0 } else { 7 });
                    format!(
                        "destination {:?} of {key} gets weight {}",
                        real.target, real.weight
                    )
                };
                server.destinations = all.into();
                untold(what)
            }
            3 => {
                let key = chance.one_of(&ours)?;
                let server = there.servers.get_mut(key)?;
                server.properties.scheduler = "lc".into();
                untold(format!("{key} gets another scheduler"))
            }
            4 => {
                let key = chance.one_of(&ours)?;
                let server = there.servers.get_mut(key)?;
                let target = Target {
                    ip: at(self.family, [172, 31, 1, 1]),
                    port: 1,
                };
                let mut all = server.destinations.to_vec();
                if all.iter().any(|real| real.target == target) {
                    return None;
                }
                all.push(RealServer::new(target));
                all.sort_unstable();
                server.destinations = all.into();
                untold(format!("{key} gets a destination of somebody's"))
            }
            5 if self.routed == VipMode::Range && chance.is_one_in(2) => {
                let (net, _) = there.ranges.pop_first()?;
                untold(format!("range {net} is removed"))
            }
            5 => {
                let at = chance.index(there.bound.len());
                let address = there.bound.iter().nth(at).copied()?;
                there.bound.remove(&address);
                let of_address = ours
                    .iter()
                    .filter(|key| key.address().is_some_and(|at| at.address == address));
                self.orphans.extend(of_address);
                untold(format!("address {address} is removed"))
            }
            6 => {
                there.has_link = false;
                there.bound.clear();
                there.bound_otherwise.clear();
                there.ranges.clear();
                self.orphans.extend(&ours);
                untold("the link is removed".to_owned())
            }
            7 => {
                let sets: Vec<Set> = there.sets.keys().copied().collect();
                let set = chance.one_of(&sets)?;
                let members = there.sets.get_mut(set)?;
                let at = chance.index(members.len());
                let what = if let Some(member) = members.iter().nth(at).copied() {
                    members.remove(&member);
                    let is_of = |key: &&VirtualServerKey| match (member, key.address()) {
                        (Member::Port(port), Some(at)) => at.port == port,
                        (_, Some(at)) => member.to_string().starts_with(&at.address.to_string()),
                        (_, None) => false,
                    };
                    self.orphans.extend(ours.iter().filter(is_of));
                    format!("{member} is removed from set {set:?}")
                } else {
                    return None;
                };
                Some(Damage {
                    what,
                    told: nftables.then_some(Notice::Ruleset),
                })
            }
            8 => {
                let all: Vec<Set> = Set::all()
                    .filter(|set| there.sets.contains_key(set))
                    .collect();
                let set = *chance.one_of(&all)?;
                let member =
                    Member::AddressPort(at(self.family, [10, 96, 9, 9]), Protocol::Tcp, 80);
                if set.kind() != proxy_ipvs::SetKind::AddressPort {
                    return None;
                }
                there.sets.get_mut(&set)?.insert(member);
                Some(Damage {
                    what: format!("{member} is added to set {set:?}"),
                    told: nftables.then_some(Notice::Ruleset),
                })
            }
            _ => {
                there.rules = Some(Rules::default());
                Some(Damage {
                    what: "the rules are flushed".to_owned(),
                    told: nftables.then_some(Notice::Ruleset),
                })
            }
        }
    }

    pub(super) fn change_foreign_state(&mut self, chance: &mut Chance) -> String {
        let key = self.foreign_key(chance);
        let mut state = self.kernel.state();
        let servers = &mut state.snapshot.servers;
        if chance.is_one_in(3) && self.foreign.remove(&key).is_some() {
            servers.remove(&key);
            return format!("their virtual server {key} goes");
        }
        let ports = [1, 2, 3].into_iter().filter(|_| chance.is_one_in(2));
        let reals = ports.map(|port| {
            let ip = at(self.family, [172, 31, 1, 1]);
            RealServer::new(Target { ip, port })
        });
        let reals: Vec<RealServer> = reals.collect();
        let server = VirtualServer {
            properties: Properties {
                scheduler: "wrr".into(),
                flags: 0,
                timeout: 0,
            },
            destinations: reals.into(),
        };
        servers.insert(key, server.clone());
        self.foreign.insert(key, server);
        format!("their virtual server {key} is there")
    }
}
