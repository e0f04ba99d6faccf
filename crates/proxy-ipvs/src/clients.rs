//! Order of changes of the clients that the firewall of source ranges admits.
//!
//! If a load balancer's address moves to another Service, or a Service changes its source ranges,
//! no client may reach endpoints that its ranges exclude. Of two networks, one contains the other,
//! or they have no common client. So this order is possible without dropping a client's packets:
//!
//! 1. Networks within a former network are added. They admit no further client.
//! 2. Former networks that the new ranges exclude at least in part are removed.
//! 3. The virtual server gets the new endpoints, and loses the former ones.
//! 4. All other new networks are added. Then the former networks within them are removed.

use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;
use proxy::ServiceAddress;

use crate::masquerading::{GUARDS, losing_endpoints, marked_otherwise, serves};
use crate::plan::Op;
use crate::sets::{Member, Set};
use crate::tables::{Tables, sorted};

/// Clients of one address's firewall.
#[derive(Debug, Default)]
struct Clients {
    /// Wanted networks. The `bool` is true if the kernel has the network, or has refused it.
    wanted: Vec<(IpNet, bool)>,
    /// Networks that are no longer wanted, but still admitted.
    former: Vec<IpNet>,
    /// True while packets to the address may reach the former Service's endpoints.
    may_reach_former: bool,
}

/// The firewalls in use whose clients change.
#[derive(Debug, Default)]
pub(crate) struct ChangingClients {
    at: HashMap<ServiceAddress, Clients>,
}

impl ChangingClients {
    /// Finds the firewalls in use whose clients change. Costs O(pending members), and O(members of
    /// the Services that own these firewalls).
    pub(crate) fn of(tables: &Tables) -> Self {
        let firewall = tables.members(Set::LoadBalancerFirewall);
        let mut all = HashMap::<ServiceAddress, Clients>::new();
        for set in GUARDS {
            let table = tables.members(set);
            for member in table.pending() {
                let at = set.service_address(member);
                let at = at.filter(|at| firewall.actual(&(*at).into()).is_some());
                let (Some(at), Some(net)) = (at, network(member)) else {
                    continue;
                };
                let clients = all.entry(at).or_default();
                let is_former = table.wanted(member).is_none() && table.actual(member).is_some();
                if is_former && !table.is_failing(member) {
                    clients.former.push(net);
                }
            }
        }
        if all.is_empty() {
            return Self::default();
        }
        // Visits each owner once: a Service may have very many addresses.
        let owner = |at: ServiceAddress| firewall.owner(&at.into());
        let owners: HashSet<_> = all.keys().filter_map(|at| owner(*at)).collect();
        for set in GUARDS {
            let table = tables.members(set);
            for own in owners.iter().copied() {
                for member in table.keys_of(own) {
                    let at = set.service_address(member);
                    let clients = at.filter(|at| owner(*at) == Some(own));
                    let clients = clients.and_then(|at| all.get_mut(&at));
                    if let (Some(clients), Some(net)) = (clients, network(member)) {
                        let is_settled = table.actual(member).is_some() || table.is_failing(member);
                        clients.wanted.push((net, is_settled));
                    }
                }
            }
        }
        for at in losing_endpoints(tables).chain(marked_otherwise(tables)) {
            if let Some(clients) = all.get_mut(&at) {
                clients.may_reach_former = true;
            }
        }
        Self { at: all }
    }

    /// Returns the clients of the firewall that a member of a set in [`GUARDS`] belongs to.
    fn clients(&self, set: Set, member: &Member) -> Option<&Clients> {
        let at = set.service_address(member);
        self.at.get(&at.filter(|_| GUARDS.contains(&set))?)
    }

    /// Returns true if a wanted client must not be admitted yet (step 4), because its packets may
    /// reach the former Service's endpoints.
    pub(crate) fn must_wait(&self, set: Set, member: &Member) -> bool {
        self.clients(set, member).is_some_and(|clients| {
            let admitted = || network(member).is_some_and(|net| clients.admits(net));
            clients.may_reach_former && !admitted()
        })
    }

    /// Returns true if a former client must be removed before the virtual server gets new endpoints
    /// (step 2), and the clients that stay admitted have their own networks.
    fn ends_early(&self, set: Set, member: &Member) -> bool {
        let net = network(member);
        let clients = self.clients(set, member);
        net.zip(clients)
            .is_some_and(|(net, clients)| clients.excludes(net) && clients.has_all_within(net))
    }

    /// Returns true if a former client must stay, because a wanted network that contains it is
    /// still missing (step 4).
    pub(crate) fn must_stay(&self, set: Set, member: &Member) -> bool {
        let net = network(member);
        let clients = self.clients(set, member);
        net.zip(clients)
            .is_some_and(|(net, clients)| clients.lacks_around(net))
    }

    /// Returns the writes that remove former clients before a virtual server gets endpoints. With
    /// `awaits_rules`, rules that admit the new clients are missing. A virtual server with endpoints
    /// then keeps its former clients.
    pub(crate) fn end_former(&self, tables: &Tables, now: Instant, awaits_rules: bool) -> Vec<Op> {
        let is_idle = |at: ServiceAddress| {
            let server = tables.servers.actual(&at.into());
            server.is_some_and(|server| !serves(server))
        };
        let ended = GUARDS.into_iter().flat_map(|set| {
            let table = tables.members(set);
            let unwanted = table
                .due(now)
                .filter(|member| table.wanted(member).is_none());
            let ended = unwanted.filter(|member| {
                set.service_address(member).is_some_and(is_idle)
                    || (!awaits_rules && self.ends_early(set, member))
            });
            let ended = sorted(ended).into_iter();
            ended.map(move |member| Op::RemoveMember(set, member))
        });
        ended.collect()
    }

    /// Returns true if an address must not get endpoints yet, because its firewall still admits
    /// clients that the new ranges exclude.
    pub(crate) fn admits_excluded(&self, at: ServiceAddress) -> bool {
        self.at.get(&at).is_some_and(|clients| {
            let mut former = clients.former.iter();
            former.any(|net| clients.excludes(*net))
        })
    }
}

impl Clients {
    /// Returns true if the firewall already admits all clients of a network.
    fn admits(&self, net: IpNet) -> bool {
        let there = self.wanted.iter().filter(|(_, is_there)| *is_there);
        let mut there = there.map(|(net, _)| net).chain(&self.former);
        there.any(|other| other.contains(&net))
    }

    /// Returns true if the wanted networks exclude at least one client of a network.
    fn excludes(&self, net: IpNet) -> bool {
        !self.wanted.is_empty() && !self.wanted.iter().any(|(wanted, _)| wanted.contains(&net))
    }

    /// Returns true if the firewall has all wanted networks within a network.
    fn has_all_within(&self, net: IpNet) -> bool {
        let mut within = self
            .wanted
            .iter()
            .filter(|(wanted, _)| net.contains(wanted));
        within.all(|(_, is_there)| *is_there)
    }

    /// Returns true if wanted networks contain a network, but all of them are still missing.
    fn lacks_around(&self, net: IpNet) -> bool {
        let around = self
            .wanted
            .iter()
            .filter(|(wanted, _)| wanted.contains(&net));
        let mut around = around.peekable();
        around.peek().is_some() && around.all(|(_, is_there)| !is_there)
    }
}

/// Returns the clients that a member of a set in [`GUARDS`] admits.
fn network(member: &Member) -> Option<IpNet> {
    match *member {
        Member::AddressPortNet(.., net) => Some(net),
        Member::AddressPortAddress(.., client) => Some(client.into()),
        _ => None,
    }
}
