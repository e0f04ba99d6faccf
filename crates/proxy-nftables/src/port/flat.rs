//! Compiles a Service port in the layout `flat`.
//!
//! * If the port has only a ClusterIP, its endpoints become elements of shared maps.
//! * Any other port has upstream's chains.
//!
//! This layout has no `filter` chains. So the verdict for packets without an endpoint is in the
//! port's chain or in the map `service-ips`.

use nftables_netlink::{Rule, Verdict};

use super::{EmptyPortPolicy, Endpoints, Route, ServedPort};
use crate::choice::{Choices, Chooser, FEW};
use crate::name::{NameBase, Purpose, REJECT};

impl ServedPort {
    /// Returns true if the port has only a ClusterIP and no session affinity. Its endpoints are
    /// then elements of shared maps, and the port needs no chain of its own.
    pub(super) fn is_flat(&self) -> bool {
        self.affinity.is_none() && !self.is_reachable_from_outside()
    }

    /// Returns the endpoints that the internal traffic policy admits for packets to the ClusterIP.
    fn internal_endpoints(&self) -> &Endpoints {
        if self.internal_local {
            &self.local
        } else {
            &self.cluster
        }
    }

    /// Returns the chooser chain that the ClusterIP needs, or `None` for at most three endpoints.
    pub(crate) fn chooser(&self) -> Option<Chooser> {
        let count = u32::try_from(self.internal_endpoints().len()).ok()?;
        let is_one_of_many = count > FEW && self.is_flat() && self.is_served(self.internal_local);
        is_one_of_many.then(|| Chooser {
            protocol: self.protocol(),
            count,
        })
    }

    pub(super) fn flat_internal(&self, base: &NameBase) -> Route {
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

    pub(super) fn flat_external(&self, base: &NameBase) -> Verdict {
        if self.any {
            Verdict::Goto(base.chain(Purpose::External))
        } else {
            self.flat_unserved()
        }
    }

    fn flat_unserved(&self) -> Verdict {
        match self.unserved() {
            EmptyPortPolicy::Reject => Verdict::Goto(REJECT.into()),
            EmptyPortPolicy::Drop | EmptyPortPolicy::Other => Verdict::Drop,
        }
    }

    /// Returns the last rule of the chain `external-...`, if any. The rule drops packets if the
    /// traffic policy admits no endpoint.
    pub(super) fn flat_end_of_external(&self) -> Option<Rule> {
        let is_served = self.is_served(self.external_local);
        (!is_served).then(|| self.line().drop().rule())
    }

    /// Returns the last rule of the chain `firewall-...`. The rule handles packets that the source
    /// ranges admit.
    pub(super) fn flat_end_of_firewall(&self, base: &NameBase) -> Rule {
        match self.flat_external(base) {
            Verdict::Goto(chain) => self.line().goto(chain).rule(),
            _ => self.line().drop().rule(),
        }
    }
}
