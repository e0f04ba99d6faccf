//! What a Service port is compiled to in the layout `flat`: elements where it has a cluster IP and
//! nothing else to it, and upstream's chains where it has more. There are no chains of type
//! `filter` behind, so that what nobody takes ends in its own chain, or in `service-ips`.

use nftables_netlink::{Rule, Verdict};

use super::{Endpoints, Route, ServedPort, Unserved};
use crate::choice::{Choices, Chooser, FEW};
use crate::name::{Base, Purpose, REJECT};

impl ServedPort {
    /// Whether its endpoints are elements, and it has no chain that chooses one: it is reached at
    /// its cluster IP alone, and any endpoint does for any client.
    pub(super) fn is_flat(&self) -> bool {
        self.affinity.is_none() && !self.is_reachable_from_outside()
    }

    /// Where its packets go, all of them by one policy.
    fn internal_endpoints(&self) -> &Endpoints {
        if self.internal_local {
            &self.local
        } else {
            &self.cluster
        }
    }

    /// The chain that chooses one of its endpoints, where these are more than few.
    pub(crate) fn chooser(&self) -> Option<Chooser> {
        let count = u32::try_from(self.internal_endpoints().len()).ok()?;
        let is_one_of_many = count > FEW && self.is_flat() && self.is_served(self.internal_local);
        is_one_of_many.then(|| Chooser {
            protocol: self.protocol(),
            count,
        })
    }

    pub(super) fn flat_internal(&self, base: &Base) -> Route {
        let to = |verdict| Route {
            to: Some(verdict),
            ..Route::default()
        };
        if !self.is_served(self.internal_local) {
            return to(self.flat_unserved());
        }
        if !self.is_flat() {
            let chain = base.chain(Self::policy(self.internal_local));
            return to(Verdict::Goto(chain));
        }
        let chooser = self.chooser();
        Route {
            to: chooser.map(|chooser| Verdict::Goto(chooser.name().into())),
            choices: Choices::new(self.internal_endpoints().iter()),
            ..Route::default()
        }
    }

    pub(super) fn flat_external(&self, base: &Base) -> Verdict {
        if self.any {
            Verdict::Goto(base.chain(Purpose::External))
        } else {
            self.flat_unserved()
        }
    }

    fn flat_unserved(&self) -> Verdict {
        match self.unserved() {
            Unserved::Reject => Verdict::Goto(REJECT.into()),
            Unserved::Drop | Unserved::Other => Verdict::Drop,
        }
    }

    /// What is left at the end of `external-...`, where the policy lets nobody serve it.
    pub(super) fn flat_end_of_external(&self) -> Option<Rule> {
        let is_served = self.is_served(self.external_local);
        (!is_served).then(|| self.line().drop().rule())
    }

    /// Whom the source ranges let pass.
    pub(super) fn flat_end_of_firewall(&self, base: &Base) -> Rule {
        match self.flat_external(base) {
            Verdict::Goto(chain) => self.line().goto(chain).rule(),
            _ => self.line().drop().rule(),
        }
    }
}
