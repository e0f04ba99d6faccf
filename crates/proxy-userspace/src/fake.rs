//! A fake kernel for tests, with redirects and open ports. The fake refuses each write that the
//! kernel would refuse, and a refused write changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use footprint::Leftovers;
use hashbrown::HashSet;
use proxy::{Protocol, Unreadable};

use crate::config::Config;
use crate::kernel::Kernel;
use crate::part_state::RedirectState;
use crate::plan::{Base, Extent, RedirectTarget, Redirects, Refusal, RefusalMeaning, SocketError};
use crate::port::{Listener, Portal};
use relay::PortBackends;

/// A handle to a fake kernel. Clones of a handle share one kernel.
#[derive(Debug, Clone, Default)]
pub struct FakeKernel(Arc<Mutex<State>>);

/// Content of a fake kernel, and its faults.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Rules that do not depend on Services, or `None` before the mode has written them.
    pub base: Option<Base>,
    /// Redirects that the fake kernel has, by portal.
    pub redirects: BTreeMap<Portal, RedirectTarget>,
    /// Leftovers of other modes in the fake kernel.
    pub leftovers: Leftovers,
    /// Port number and endpoints of each open port, by listener.
    pub open: BTreeMap<Listener, (u16, Arc<PortBackends>)>,
    /// Addresses of the fake node's interfaces.
    pub addresses: BTreeSet<IpAddr>,
    /// Port number that the next opened port gets.
    pub next_port: u16,
    /// Portals whose redirects the fake refuses.
    pub refused: BTreeSet<Portal>,
    /// Reason why all writes of redirects fail, such as a held lock. `None` if writes may succeed.
    pub held: Option<String>,
    /// Reason why no port can be opened. `None` if ports can be opened.
    pub exhausted: Option<String>,
    /// Largest number of open ports, or `None` for no limit.
    pub most: Option<usize>,
    /// Number of attempts to open a port so far.
    pub tries: usize,
    /// Reason why the redirects cannot be read. `None` if the redirects can be read.
    pub unreadable: Option<String>,
    /// Reason why the node's addresses cannot be read. `None` if the addresses can be read.
    pub hidden: Option<String>,
    /// Writes of redirects since a test last cleared this list.
    pub writes: Vec<Redirects>,
    /// Number of reads of the redirects so far.
    pub reads: usize,
}

impl FakeKernel {
    /// Creates a fake kernel with these addresses and no redirects.
    pub fn new(addresses: &[&str]) -> Self {
        let kernel = Self::default();
        let addresses = addresses.iter().filter_map(|ip| ip.parse().ok());
        kernel.state().addresses = addresses.collect();
        kernel.state().next_port = 40_000;
        kernel
    }

    /// Locks the fake kernel, and returns its content.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_open(&self, port: u16) -> bool {
        self.open.values().any(|(number, _)| *number == port)
    }

    fn change(&mut self, plan: &Redirects) -> Result<(), Refusal> {
        let refuse = |reason: String| Refusal {
            reason,
            blame: RefusalMeaning::One,
        };
        if let Some(reason) = self.held.clone() {
            let blame = RefusalMeaning::None;
            return Err(Refusal { reason, blame });
        }
        let mut redirects = self.redirects.clone();
        match plan.extent {
            Extent::Whole => redirects.clear(),
            Extent::Changes if self.base.is_none() => {
                return Err(refuse("there are no chains".to_owned()));
            }
            Extent::Changes => {}
        }
        for change in &plan.changes {
            let portal = change.portal;
            if self.refused.contains(&portal) && change.after.is_some() {
                return Err(refuse(format!("{portal} is refused")));
            }
            if plan.extent == Extent::Changes && redirects.remove(&portal) != change.before {
                return Err(refuse(format!("{portal} is redirected elsewhere")));
            }
            if let Some(aim) = &change.after {
                redirects.insert(portal, aim.clone());
            }
        }
        self.redirects = redirects;
        if let Some(base) = &plan.base {
            self.base = Some(base.clone());
        }
        if !plan.leftovers.is_empty() {
            self.leftovers = Leftovers::default();
        }
        Ok(())
    }
}

impl Kernel for FakeKernel {
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        let state = self.state();
        match state.hidden.clone() {
            Some(reason) => Err(Unreadable::new("the addresses of this node", reason)),
            None => Ok(state.addresses.clone()),
        }
    }

    fn redirects(&mut self, _: &Config) -> Result<RedirectState, Unreadable> {
        let mut state = self.state();
        state.reads += 1;
        if let Some(reason) = state.unreadable.clone() {
            return Err(Unreadable::new(
                "the rules that redirect to listening ports",
                reason,
            ));
        }
        let redirects = state.redirects.iter();
        Ok(RedirectState {
            base: state.base.clone(),
            redirects: redirects.map(|(at, aim)| (*at, aim.clone())).collect(),
            leftovers: state.leftovers.clone(),
        })
    }

    fn redirect(&mut self, plan: &Redirects) -> Result<(), Refusal> {
        let mut state = self.state();
        state.writes.push(plan.clone());
        state.change(plan)
    }

    fn update(
        &mut self,
        listener: &Listener,
        serving: &Arc<PortBackends>,
    ) -> Result<Option<u16>, SocketError> {
        let mut state = self.state();
        let open = state.open.get_mut(listener);
        Ok(open.map(|(port, known)| {
            *known = Arc::clone(serving);
            *port
        }))
    }

    fn open(
        &mut self,
        listener: &Listener,
        serving: &Arc<PortBackends>,
        again: Option<u16>,
        avoided: &HashSet<(Protocol, u16)>,
    ) -> Result<u16, SocketError> {
        let mut state = self.state();
        let protocol = listener.name.protocol;
        if protocol == Protocol::Sctp {
            return Err(SocketError::Never("no SCTP"));
        }
        state.tries += 1;
        if let Some(reason) = state.exhausted.clone() {
            return Err(SocketError::Now(reason));
        }
        if state.most.is_some_and(|most| state.open.len() >= most) {
            return Err(SocketError::Now("they have their share".to_owned()));
        }
        let again = again.filter(|port| !state.is_open(*port));
        let port = again.unwrap_or_else(|| {
            while avoided.contains(&(protocol, state.next_port)) || state.is_open(state.next_port) {
                state.next_port += 1;
            }
            state.next_port += 1;
            state.next_port - 1
        });
        let opened = (port, Arc::clone(serving));
        state.open.insert(listener.clone(), opened);
        Ok(port)
    }

    fn close(&mut self, listener: &Listener) -> Result<(), SocketError> {
        let mut state = self.state();
        let Some((port, _)) = state.open.get(listener) else {
            return Err(SocketError::Now("it is not open".to_owned()));
        };
        let of = listener.name.protocol;
        let mut redirects = state.redirects.iter();
        if redirects.any(|(at, aim)| at.protocol == of && aim.ports().any(|to| to == *port)) {
            return Err(SocketError::Now("rules lead to it".to_owned()));
        }
        state.open.remove(listener);
        Ok(())
    }
}
